from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from envbuild.catalog.project import Project
from envbuild.digest import sha256_file
from envbuild.prefix import receipt as receipts
from tests import cuda, projects, wheels
from tests.conftest import Envbuild, Result
from tests.programs import require
from tests.servers import SimpleIndex

WHEEL = "toy_kernels-1.0+cu130sm90-cp311-abi3-linux_x86_64.whl"
RECIPE = """\
[static-metadata.toy-kernels]
version = "1.0"
requires-dist = []
[build.toy-kernels]
kind = "cuda"
toolchain = "wheels"
requires = ["toy-cuda"]
architectures = ["90"]
memory-per-job = 1.0
imports = ["toy_kernels"]
"""

Make = Callable[..., Project]


@pytest.fixture(scope="session")
def toolkit(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The toolkit's wheel, written once: 250 MB."""
    folder = tmp_path_factory.mktemp("toolkit")
    yield cuda.toolkit(folder)
    shutil.rmtree(folder)


@pytest.fixture
def make(index: SimpleIndex, toolkit: Path, tmp_path: Path, envbuild: Envbuild) -> Iterator[Make]:
    """Lay out a project whose environment has the extension; ``more`` is added to its recipe."""
    (index.folder / toolkit.name).hardlink_to(toolkit)
    cuda.sdist(index.folder)
    wheels.make_wheel(index.folder, "alpha", "1.0")
    made: list[Path] = []

    def make(
        more: str = "", *, name: str = "project", requirements: tuple[str, ...] = ()
    ) -> Project:
        extra = RECIPE + more + '[checks]\nimports = ["toy_kernels"]\n'
        toy = projects.environment("alpha", cuda.NAME, *requirements, extra=extra)
        folder = tmp_path / name
        made.append(folder)
        project = projects.project(folder, {"toy": toy}, {"local": projects.LOCAL})
        done = envbuild("lock", cwd=folder)
        assert done.code == 0, done.err
        return project

    yield make
    for folder in made:
        shutil.rmtree(folder)


def build(project: Project, envbuild: Envbuild, *options: str, code: int = 0) -> Result:
    secret = {"TOY_SECRET": "SECRET", "CCACHE_DIR": "/SECRET"}
    done = envbuild("wheel", cuda.NAME, "--env", "toy", *options, cwd=project.folder, env=secret)
    assert done.code == code, done.err
    return done


def test_two_folders_give_one_wheel_and_the_store_keeps_it(
    make: Make, envbuild: Envbuild, tmp_path: Path
) -> None:
    project = make()
    one = build(project, envbuild)
    wheel = Path(one.out.strip())
    assert wheel.name == WHEEL
    assert "3 files compiled" in one.err
    store = project.folder / ".envs" / ".envbuild"
    assert wheel.is_relative_to(store / "wheels" / cuda.NAME)
    assert list((store / "builds").iterdir()) == []
    assert "toy_kernels-1.0-cp311-abi3-linux_x86_64" in (wheel.parent / "build.log").read_text()

    statement = msgspec.json.decode((wheel.parent / "receipt.json").read_bytes())
    assert statement["predicateType"] == "urn:envbuild:wheel-receipt:1"
    assert statement["subject"] == [{"name": WHEEL, "digest": {"sha256": sha256_file(wheel)}}]
    told = statement["predicate"]
    assert (told["steps"]["compiled"], told["isolation"]) == (3, "namespaces")
    assert told["nvcc"]["source"] == "the build's own pinned wheels"
    assert told["inputs"]["sdist"]["file"] == "toy_kernels-1.0.tar.gz"

    # a second run takes it, and one that compiles every file anew gives the same bytes
    again = build(project, envbuild, "--offline")
    assert again.out == one.out
    assert "from the store, built" in again.err
    before = wheel.stat().st_mtime_ns
    build(project, envbuild, "--rebuild", "--offline")
    assert wheel.stat().st_mtime_ns != before
    first = sha256_file(wheel)
    assert first == told["sha256"]

    # from another folder, without a compiler cache that knows it
    other = make(name="another/folder")
    out = Path(build(other, envbuild).out.strip())
    assert sha256_file(out) == first

    # create installs this one
    done = envbuild("create", cwd=project.folder)
    assert done.code == 0, done.err
    made = receipts.read(store, "toy")
    assert made is not None
    installed = {one.name: (one.version, one.sha256) for one in made.distributions}
    assert installed[cuda.NAME] == ("1.0+cu130sm90", first)
    done = envbuild("verify", "--full", cwd=project.folder)
    assert done.code == 0, done.out + done.err
    assert "toy: kept" in envbuild("create", "--offline", cwd=project.folder).out

    # one that somebody changed is not taken, nor one with somebody's receipt
    wheel.write_bytes(wheel.read_bytes() + b"\0")
    assert "3 files compiled" in build(project, envbuild, "--offline").err
    receipt = wheel.parent / "receipt.json"
    receipt.write_text(receipt.read_text().replace('"glibc": "', '"glibc": "9'))
    assert "3 files compiled" in build(project, envbuild, "--offline").err


@pytest.mark.parametrize(
    ("fault", "code", "message"),
    [
        ("sm_80", "E004", "sm_80"),
        ("ptx", "E004", "PTX"),
        ("path", "E006", "names /envbuild/src/here"),
        ("rpath", "E002", "/envbuild/cuda/lib64"),
        ("glibc", "E001", "needs GLIBC_2.99 of libm.so.6, for toy_new"),
    ],
)
def test_a_wheel_that_breaks_a_rule_is_named_and_not_kept(
    make: Make, envbuild: Envbuild, fault: str, code: str, message: str
) -> None:
    project = make(f'variables = {{ TOY_FAULT = "{fault}" }}\n')
    done = build(project, envbuild, code=1)
    assert (
        "error: " in done.err
        and f"building {cuda.NAME} 1.0 for toy: the wheel breaks the relocation rules" in done.err
    )
    assert f"error {code}" in done.err
    assert message in done.err
    assert list((project.folder / ".envs" / ".envbuild").glob("wheels/*/*/*")) == []


def test_a_killed_build_goes_on_where_it_was(make: Make, envbuild: Envbuild) -> None:
    project = make('variables = { TOY_HOLD = "1" }\n')
    command = [sys.executable, "-m", "envbuild", "wheel", cuda.NAME, "--env", "toy"]
    root = str(Path(__file__).parents[2])
    with subprocess.Popen(
        command,
        cwd=project.folder,
        env={**os.environ, "PYTHONPATH": root},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        builds = project.folder / ".envs" / ".envbuild" / "builds"
        end = time.monotonic() + 120
        while not list(builds.glob("*/build/src/held")):
            assert process.poll() is None
            assert time.monotonic() < end
            time.sleep(0.1)
        process.send_signal(signal.SIGKILL)
    (steps,) = builds.glob("*/build/log/steps.jsonl")
    before = steps.read_bytes()
    assert before.count(b"kernel1.cu") == 1
    done = build(project, envbuild, "--json")
    told = msgspec.json.decode(done.out)["receipt"]
    assert told["steps"]["compiled"] == 3
    # the first run's object was taken, not made again
    (steps,) = (project.folder / ".envs" / ".envbuild").glob("wheels/*/*/steps.jsonl")
    after = steps.read_bytes()
    assert after.startswith(before)
    assert after.count(b"kernel1.cu") == 1


def test_nvcc_and_torch_of_different_cuda_stop_before_anything_is_compiled(
    make: Make, envbuild: Envbuild, index: SimpleIndex
) -> None:
    files = {"torch/__init__.py": "", "torch/version.py": "cuda: Optional[str] = '12.8'\n"}
    wheels.make_wheel(index.folder, "torch", "2.8.0", files=files)
    project = make('match-runtime = ["torch"]\n', requirements=("torch",))
    done = build(project, envbuild, code=3)
    assert "nvcc and torch are of different CUDA major versions\n" in done.err
    assert (
        "  expected: nvcc 12.x, since torch-2.8.0-py3-none-any.whl is of CUDA 12.8\n"
        "  found: nvcc 13.0.88 (" in done.err
    )
    assert list((project.folder / ".envs").glob(".envbuild/builds/*/build/log/steps.jsonl")) == []


def test_an_edit_that_does_not_fit_stops_the_build(make: Make, envbuild: Envbuild) -> None:
    project = make(
        '[[build.toy-kernels.edits]]\nfile = "module.c"\nreplace = "toy_2"\nby = "toy_3"\n'
    )
    done = build(project, envbuild, code=2)
    assert done.err.endswith(
        "error: envs/toy.toml: build.toy-kernels.edits[0]: the edit does not fit module.c of "
        "toy_kernels-1.0.tar.gz\n"
        "  expected: 'toy_2' once\n"
        "  found: 2 times\n"
        "  mend: look what the file says now, and correct the edit\n"
    )


def test_the_first_error_is_shown_not_the_last_line(make: Make, envbuild: Envbuild) -> None:
    project = make(
        '[[build.toy-kernels.edits]]\nfile = "kernel2.cu"\nreplace = "x[threadIdx.x]"\n'
        'by = "y[threadIdx.x]"\n'
    )
    done = build(project, envbuild, code=4)
    assert "compile failed\n" in done.err
    assert '| /envbuild/src/kernel2.cu(2): error: identifier "y" is undefined' in done.err
    # what was compiled stays for the next run
    assert list((project.folder / ".envs").glob(".envbuild/builds/*/build/src/build/temp/*1.cu.o"))


def test_without_namespaces_it_is_built_where_it_is_and_said(make: Make, tmp_path: Path) -> None:
    project = make()
    strace = str(require("strace", "strace"))
    done = subprocess.run(
        [
            *(strace, "-f", "-qq", "-o", "/dev/null", "-e", "trace=unshare"),
            *("-e", "inject=unshare:error=EPERM", sys.executable, "-m", "envbuild", "wheel"),
            *(cuda.NAME, "--env", "toy", "--json"),
        ],
        cwd=project.folder,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert (
        f"building {cuda.NAME} 1.0 for toy: without namespaces of its own: Operation not permitted"
        in done.stderr
    )
    told = msgspec.json.decode(done.stdout)["receipt"]
    assert told["isolation"] == "Operation not permitted"
    wheel = Path(msgspec.json.decode(done.stdout)["wheel"])
    # the folder is in no string of it
    assert str(tmp_path).encode() not in wheel.read_bytes()


@pytest.mark.parametrize("kind", ["module", "path"])
def test_a_site_brings_its_own_toolkit(
    index: SimpleIndex, tmp_path: Path, envbuild: Envbuild, kind: str
) -> None:
    cuda.sdist(index.folder)
    recipe = RECIPE.replace('toolchain = "wheels"\nrequires = ["toy-cuda"]\n', "")
    site = projects.LOCAL
    if kind == "module":
        require("modulecmd", "environment-modules")
        file = tmp_path / "modules" / "cuda" / "13.0"
        file.parent.mkdir(parents=True)
        file.write_text(f"#%Module1.0\nprepend-path PATH {cuda.ROOT}/bin\n")
        site += f'modules = ["cuda/13.0"]\nmodule-path = ["{tmp_path}/modules"]\n'
    else:
        site += f'cuda-home = "{cuda.ROOT}"\n'
    toy = projects.environment(cuda.NAME, extra=recipe)
    project = projects.project(tmp_path / "project", {"toy": toy}, {"local": site})
    assert envbuild("lock", cwd=project.folder).code == 0
    told = msgspec.json.decode(build(project, envbuild, "--json").out)["receipt"]
    assert told["version"] == "1.0+cu130sm90"
    assert told["nvcc"]["version"] == "13.0.88"
    if kind == "module":
        assert told["nvcc"]["source"] == "cuda/13.0 of sites/local.toml"
        assert told["inputs"]["modules"] == ["cuda/13.0"]
    else:
        assert told["nvcc"]["source"] == "cuda-home of sites/local.toml"

    # a site that compiles at each create does so, by what ccache kept
    sites = project.folder / "sites" / "local.toml"
    sites.write_text(site + 'rebuild = "always"\n')
    for _ in range(2):
        done = envbuild("create", cwd=project.folder)
        assert done.code == 0, done.err
        assert "(the site compiles its wheels at each create)" in done.err
        assert f"building {cuda.NAME} 1.0 for toy: " in done.err
    # one that must be as old as a node's glibc is not compiled here
    sites.write_text(site + 'glibc = "2.17"\n')
    done = build(project, envbuild, code=3)
    assert done.err.startswith(
        "error: site local: what is linked here would not load at the site: this glibc is newer\n"
        "  expected: glibc 2.17 or older, by the site's file\n"
    )
