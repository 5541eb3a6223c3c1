from __future__ import annotations

import io
import os
import random
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from envbuild import uvtool
from envbuild.digest import sha256_bytes, sha256_file
from envbuild.errors import EnvbuildError, InputError, PreflightError, StepError
from envbuild.image import oci
from envbuild.image.build import Image, build
from envbuild.image.cache import Cache
from envbuild.image.request import Request
from envbuild.prefix import interpreter
from tests.conftest import Envbuild
from tests.image import toys
from tests.image.toys import Toy
from tests.wheels import make_wheel

ROOT = Path(__file__).parents[2]
ALPHA = "alpha-1.0-py3-none-any.whl"


@pytest.fixture
def toy(tmp_path: Path) -> Toy:
    return toys.make(tmp_path / "project")


def made(toy: Toy, out: Path | None, *, request: Request | None = None) -> Image:
    return build(request or toy.request, toy.wheelhouse, out, cache=None)


def failure(toy: Toy, out: Path | None, request: Request | None = None) -> str:
    with pytest.raises(EnvbuildError) as caught:
        made(toy, out, request=request)
    return str(caught.value)


def remade(toy: Toy, name: str, data: bytes) -> Request:
    """Put another file into the wheelhouse in a wheel's place, and lock it."""
    path = toy.wheelhouse / f"{name}-1.0-py3-none-any.whl"
    path.write_bytes(data)
    packages = tuple(
        msgspec.structs.replace(one, artifact=toys.artifact(path)) if one.name == name else one
        for one in toy.lock.packages
    )
    lock = msgspec.structs.replace(toy.lock, packages=packages)
    return msgspec.structs.replace(toy.request, lock=lock)


def whole(out: Path) -> str:
    """Return the digest of an image, every blob of which must be there and right."""
    toys.read(out)
    index = msgspec.json.decode((out / "index.json").read_bytes())
    return str(index["manifests"][0]["digest"]).removeprefix("sha256:")


def perturbed(tmp_path: Path) -> Iterator[tuple[list[str], dict[str, str], dict[str, int], str]]:
    """Yield arguments, variables, process settings and the folder of a run."""
    cache = ["--cache", str(tmp_path / "cache")]
    yield ["--no-cache", "-j1"], {}, {"umask": 0o077}, "envs"
    yield ["--no-cache", "-j2"], {"TZ": "Asia/Kathmandu", "LC_ALL": "C"}, {"umask": 0}, "."
    yield [*cache, "-j2"], {"LC_ALL": "tr_TR.UTF-8", "PYTHONHASHSEED": "1"}, {}, "sites"
    yield cache, {"PYTHONHASHSEED": "2", "PYTHONOPTIMIZE": "2", "TMPDIR": str(tmp_path)}, {}, "."
    yield ["--no-cache", "--verify-record"], {"HOME": str(tmp_path / "ü")}, {}, "locks"
    yield ["-j3"], {"XDG_CACHE_HOME": str(tmp_path / "xdg")}, {"umask": 0o077}, "."


@pytest.mark.parametrize("compression", ["gzip", "none"])
def test_one_digest_and_the_same_bytes_everywhere(
    toy: Toy, tmp_path: Path, compression: str
) -> None:
    seen = {}
    for number, (arguments, variables, process, folder) in enumerate(perturbed(tmp_path)):
        # another order of the files, other times and modes
        paths = sorted(toy.wheelhouse.iterdir())
        random.Random(number).shuffle(paths)
        for path in paths:
            if path.is_file():
                data = path.read_bytes()
                path.unlink()
                path.write_bytes(data)
                path.chmod((0o600, 0o664, 0o444)[number % 3])
                os.utime(path, (number, 10**9 * number))
        out = tmp_path / f"out{number}"
        command = [sys.executable, "-m", "envbuild", "image", "toy", "--offline"]
        done = subprocess.run(
            [*command, f"--output={out}", f"--compression={compression}", *arguments],
            cwd=toy.project.folder / folder,
            env={**os.environ, "PYTHONPATH": str(ROOT), **variables},
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
            umask=process.get("umask", -1),
        )
        assert done.returncode == 0, done.stderr
        seen[done.stdout, frozenset(toys.layout(out).items())] = number
        assert {path.stat().st_mode & 0o777 for path in out.rglob("*") if path.is_file()} == {0o644}
    assert len(seen) == 1
    (digest, _) = next(iter(seen))
    request = msgspec.structs.replace(toy.request, compression=compression)
    assert digest == f"sha256:{made(toy, None, request=request).digest}\n"


def test_both_compressions_hold_the_same(toy: Toy, tmp_path: Path) -> None:
    plain = msgspec.structs.replace(toy.request, compression="none")
    one, two = made(toy, tmp_path / "one"), made(toy, tmp_path / "two", request=plain)
    assert one.digest != two.digest
    assert [layer.blob.diff_id for layer in one.layers] == [
        layer.blob.diff_id for layer in two.layers
    ]


@pytest.mark.large
def test_every_python_that_the_tool_runs_on_gives_one_digest(tmp_path: Path) -> None:
    toy = toys.make(tmp_path / "project")
    expected = f"sha256:{made(toy, None).digest}\n"
    env = uvtool.environment()
    env.pop("UV_OFFLINE")
    tried = []
    for minor in ((3, 11), (3, 12), (3, 13)):
        found = interpreter.find(minor)
        if not found:
            continue
        tool = tmp_path / f"tool{minor[1]}"
        uv = uvtool.executable()
        subprocess.run([uv, "venv", "-q", "--python", found[0].path, tool], env=env, check=True)
        python = tool / "bin" / "python"
        requirements = ROOT / "requirements" / "run.txt"
        options = ["--require-hashes", "--only-binary=:all:", f"--requirement={requirements}"]
        subprocess.run(
            [uv, "pip", "install", "-q", f"--python={python}", *options],
            env={**os.environ, "UV_CACHE_DIR": str(tmp_path / "uv-cache")},
            check=True,
        )
        done = subprocess.run(
            [
                *(python, "-m", "envbuild", "image", "toy", "--offline", "--no-cache"),
                *("--output", tmp_path / f"out{minor[1]}"),
            ],
            cwd=toy.project.folder,
            env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "HOME": str(tmp_path)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode, done.stdout) == (0, expected), done.stderr
        tried.append(toys.layout(tmp_path / f"out{minor[1]}"))
    assert len(tried) > 1
    assert all(one == tried[0] for one in tried)


def test_each_layer_holds_its_own_paths_and_the_folders_above(toy: Toy, tmp_path: Path) -> None:
    image = made(toy, tmp_path / "out")
    owners: dict[str, str] = {}
    for one in image.layers:
        blob = (tmp_path / "out" / "blobs" / "sha256" / one.blob.digest).read_bytes()
        with tarfile.open(fileobj=io.BytesIO(blob)) as archive:
            members = archive.getmembers()
        names = [member.name for member in members]
        assert len(names) == len(set(names))
        files = {member.name for member in members if not member.isdir()}
        for member in members:
            if member.isdir():
                inside = any(name.startswith(f"{member.name}/") for name in files)
                assert inside or one.what.startswith(("Debian base", "the environment"))
            else:
                assert owners.setdefault(member.name, one.what) == one.what


def test_what_is_built_runs_as_it_is_declared(toy: Toy, tmp_path: Path) -> None:
    made(toy, tmp_path / "out")
    files = toys.files(tmp_path / "out")
    assert (files["results"].uid, files["results"].gid) == (10001, 10001)
    assert {one.uid for name, one in files.items() if name != "results"} == {0}
    assert files["opt/envs/toy/bin/python"].linkname == "/python/bin/python3.11"
    assert files["opt/envs/toy/bin/alpha"].mode == 0o755
    assert {"bin", "etc/passwd", "python/bin/python3.11", "usr/share/libc6/file"} < files.keys()


def test_a_wheel_changed_by_one_byte_is_refused(toy: Toy, tmp_path: Path) -> None:
    path = toy.wheelhouse / ALPHA
    data = bytearray(path.read_bytes())
    expected = sha256_bytes(bytes(data))
    # the name of the zip's first entry's maker: nothing that a zip reader looks at
    data[data.rindex(b"PK\1\2") + 4] ^= 1
    path.write_bytes(bytes(data))
    assert failure(toy, tmp_path / "out") == (
        f"{path}: the wheel is not the one that is locked\n"
        f"  expected: SHA-256 {expected}, {len(data)} bytes\n"
        f"  found: SHA-256 {sha256_bytes(bytes(data))}\n"
        "  mend: run `envbuild fetch`, which replaces it"
    )
    assert not (tmp_path / "out").exists()


def test_what_a_wrong_wheel_holds_is_not_remembered_for_the_right_one(
    toy: Toy, tmp_path: Path
) -> None:
    expected = made(toy, None).digest
    path = toy.wheelhouse / ALPHA
    right = path.read_bytes()
    cache = Cache(tmp_path / "cache")
    make_wheel(
        toy.wheelhouse,
        "alpha",
        "1.0",
        entry_points="[console_scripts]\nother = alpha:other\n",
    )
    with pytest.raises(StepError):
        build(toy.request, toy.wheelhouse, None, cache=cache)
    path.write_bytes(right)
    assert build(toy.request, toy.wheelhouse, None, cache=cache).digest == expected


def test_a_package_that_is_not_the_pinned_one(toy: Toy, tmp_path: Path) -> None:
    package = toy.request.packages["libc6"]
    path = toy.wheelhouse / package.file
    path.write_bytes(path.read_bytes() + b"\n")
    assert failure(toy, tmp_path / "out") == (
        f"{path}: the package is not the one that is pinned\n"
        f"  expected: SHA-256 {package.sha256}, {package.size} bytes\n"
        f"  found: SHA-256 {sha256_file(path)}\n"
        "  mend: run it again with the network allowed, which replaces the file"
    )
    assert not (tmp_path / "out").exists()


def test_an_interpreter_that_is_not_the_pinned_one(toy: Toy, tmp_path: Path) -> None:
    path = toy.wheelhouse / toys.FILE
    other = tmp_path / "other"
    other.mkdir()
    toys.interpreter(other)
    data = (other / toys.FILE).read_bytes() + bytes(512)
    path.write_bytes(data)
    assert f"{path}: the interpreter's archive is not the pinned one" in failure(toy, None)


def test_a_wrong_line_of_record_is_found_when_that_is_asked_for(toy: Toy, tmp_path: Path) -> None:
    where = tmp_path / "other"
    path = make_wheel(
        where,
        "alpha",
        "1.0",
        record=lambda rows: [
            (name, "sha256=" + "A" * 43, size) if name == "alpha.py" else (name, digest, size)
            for name, digest, size in rows
        ],
    )
    request = remade(toy, "alpha", path.read_bytes())
    cache = Cache(tmp_path / "cache")
    first = build(request, toy.wheelhouse, None, cache=cache)
    assert build(request, toy.wheelhouse, None, cache=cache).digest == first.digest
    content = sha256_bytes(b'VERSION = "1.0"\n')
    with pytest.raises(InputError) as caught:
        build(request, toy.wheelhouse, None, cache=cache, verify_record=True)
    assert str(caught.value).startswith(
        f"{ALPHA}: alpha.py: its content is not what RECORD says\n"
        f"  expected: {'0' * 64}\n  found: {content}"
    )
    # of right wheels, every layer of theirs is built again
    image = build(toy.request, restored(toy), None, cache=cache)
    again = build(toy.request, toy.wheelhouse, None, cache=cache, verify_record=True)
    assert again.digest == image.digest
    wheels = [one for one in again.layers if one.what.partition("-")[0] in toys.NAMES]
    assert wheels
    assert {one.cached for one in wheels} == {False}
    assert {one.cached for one in again.layers if one not in wheels} == {True}


def restored(toy: Toy) -> Path:
    toys.wheels(toy.wheelhouse)
    return toy.wheelhouse


def test_two_wheels_with_one_path_are_warned_of_every_time(toy: Toy, tmp_path: Path) -> None:
    files = {"beta/__init__.py": "other\n"}
    request = remade(toy, "alpha", make_wheel(tmp_path, "alpha", "1.0", files=files).read_bytes())
    cache = Cache(tmp_path / "cache")
    first = build(request, toy.wheelhouse, tmp_path / "out", cache=cache)
    (finding,) = first.findings
    assert (finding.code, finding.severity) == ("G001", "warning")
    assert "alpha-1.0" in finding.message
    assert "beta-1.0" in finding.message
    assert build(request, toy.wheelhouse, None, cache=cache).findings == first.findings


def test_an_image_stands_on_another(toy: Toy, tmp_path: Path) -> None:
    base = made(toy, tmp_path / "base")
    more = toys.package(make_wheel(toy.wheelhouse, "six", "1.0"))
    request = msgspec.structs.replace(
        toy.request,
        base=oci.read_base(tmp_path / "base", base.digest),
        interpreter="none",
        lock=toys.lock(toy.request.declared, [more]),
    )
    for cache in (None, Cache(tmp_path / "cache"), Cache(tmp_path / "cache")):
        image = build(request, toy.wheelhouse, tmp_path / "out", cache=cache)
        assert [one.what for one in image.layers] == [
            *["base image"] * len(base.layers),
            "six-1.0",
            "the environment's own files",
        ]
        assert whole(tmp_path / "out") == image.digest
        files = toys.files(tmp_path / "out")
        assert {"python/bin/python3.11", f"opt/envs/toy/{SIX}"} < files.keys()
        assert oci.read_base(tmp_path / "out", image.digest).history[-1]["created_by"] == (
            "envbuild image: the environment's own files"
        )
    # it cannot be built over its own base's loss, and the image that is there stays
    shutil.rmtree(tmp_path / "base" / "blobs")
    shutil.rmtree(tmp_path / "new", ignore_errors=True)
    assert "found: no such blob" in failure(toy, tmp_path / "new", request)
    assert not (tmp_path / "new").exists()
    assert whole(tmp_path / "out") == image.digest


SIX = "lib/python3.11/site-packages/six.py"


def test_a_base_image_with_too_many_layers(toy: Toy, tmp_path: Path) -> None:
    layers = tuple(oci.layer("a" * 64, 1, "b" * 64, "gzip") for _ in range(89))
    base = oci.Base(tmp_path, "c" * 64, layers, {}, ())
    request = msgspec.structs.replace(toy.request, base=base, interpreter="none")
    assert failure(toy, tmp_path / "out", request).startswith(
        "the base image has too many layers\n"
    )


def test_a_folder_with_something_else_is_left_alone(toy: Toy, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "thesis.tex").write_bytes(b"")
    with pytest.raises(PreflightError):
        made(toy, out)
    assert [path.name for path in out.iterdir()] == ["thesis.tex"]


def other(toy: Toy, tmp_path: Path) -> Request:
    """A request of another image: a wheel less, a setting more."""
    lock = msgspec.structs.replace(toy.lock, packages=toy.lock.packages[:-1])
    return msgspec.structs.replace(toy.request, lock=lock)


@pytest.mark.parametrize("cached", [False, True])
def test_an_image_that_fails_leaves_the_old_one_whole(
    toy: Toy, tmp_path: Path, cached: bool
) -> None:
    out = tmp_path / "out"
    old = made(toy, out).digest
    before = toys.layout(out)
    (toy.wheelhouse / ALPHA).write_bytes(b"PK")
    cache = Cache(tmp_path / "cache") if cached else None
    with pytest.raises(EnvbuildError):
        build(other(toy, tmp_path), toy.wheelhouse, out, cache=cache)
    assert whole(out) == old
    assert toys.layout(out) == before
    assert sorted(path.name for path in out.iterdir()) == ["blobs", "index.json", "oci-layout"]


RUN = """\
import sys
from pathlib import Path
from envbuild.catalog.project import Project
from envbuild.image.build import build
from envbuild.image.cache import Cache
from tests.image import test_build
from tests.image.toys import Toy
project = Project(Path(sys.argv[1]))
toy = Toy(project, project.wheelhouse)
out = Path(sys.argv[2])
cache = Cache(Path(sys.argv[3])) if sys.argv[3] else None
requests = [toy.request, test_build.other(toy, out)]
print("begun", flush=True)
while True:
    for request in requests:
        build(request, toy.wheelhouse, out, cache=cache)
"""


@pytest.mark.parametrize("cached", [False, True])
@pytest.mark.parametrize("new", [False, True])
def test_killed_at_any_moment_there_is_the_old_image_or_the_new_one(
    toy: Toy, tmp_path: Path, cached: bool, new: bool
) -> None:
    requests = [toy.request, other(toy, tmp_path)]
    digests = {made(toy, None, request=one).digest for one in requests}
    out, cache = tmp_path / "out", str(tmp_path / "cache") if cached else ""
    if not new:
        made(toy, out)
    moments = random.Random(f"{cached}{new}")
    for _ in range(8):
        with subprocess.Popen(
            [sys.executable, "-c", RUN, toy.project.folder, out, cache],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
        ) as run:
            assert run.stdout is not None
            run.stdout.readline()
            time.sleep(moments.random() * 0.2)
            run.send_signal(signal.SIGKILL)
        if new and not (out / "index.json").exists():
            oci.check_place(out)
            continue
        assert whole(out) in digests
    # whatever was left, the next run gives the image and nothing else
    last = build(
        toy.request, toy.wheelhouse, out, cache=Cache(Path(cache)) if cached else None
    ).digest
    assert whole(out) == last
    made(toy, tmp_path / "again")
    assert toys.layout(out) == toys.layout(tmp_path / "again")
    assert sorted(path.name for path in out.iterdir()) == ["blobs", "index.json", "oci-layout"]


def test_killed_between_two_steps_the_next_run_goes_on(toy: Toy, tmp_path: Path) -> None:
    """As above, at the moments that are hard to hit: what each step leaves is laid out here."""
    out = tmp_path / "out"
    old = made(toy, out).digest
    left = out / ".envbuild-left"
    left.mkdir()
    for name in ("index.json", "0" * 64, ".index.json.x"):
        (left / name).write_bytes(b"half")
    (oci.blobs(out) / ("1" * 64)).write_bytes(b"of a new image that nobody names yet")
    assert whole(out) == old
    new = made(toy, out, request=other(toy, tmp_path)).digest
    assert whole(out) == new
    made(toy, tmp_path / "again", request=other(toy, tmp_path))
    assert toys.layout(out) == toys.layout(tmp_path / "again")


def test_an_interrupt_leaves_nothing_that_looks_like_an_image(toy: Toy, tmp_path: Path) -> None:
    out = tmp_path / "new" / "out"
    with subprocess.Popen(
        [
            *(sys.executable, "-m", "envbuild", "image", "toy", "--offline"),
            *("--output", out, "--no-cache"),
        ],
        cwd=toy.project.folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as run:
        while not out.exists() and run.poll() is None:
            time.sleep(0.001)
        run.send_signal(signal.SIGINT)
        _, err = run.communicate(timeout=60)
    if run.returncode == 0:
        whole(out)  # it was quicker
    else:
        assert (run.returncode, err.splitlines()[-1]) == (130, "error: interrupted")
        assert not (out / "index.json").exists()
        assert made(toy, out).digest == whole(out)


def test_a_wheel_of_the_lock_that_is_not_there(toy: Toy, tmp_path: Path) -> None:
    (toy.wheelhouse / ALPHA).unlink()
    with pytest.raises(FileNotFoundError) as caught:
        made(toy, tmp_path / "out")
    assert Path(str(caught.value.filename)).name == ALPHA
    assert not (tmp_path / "out").exists()


def test_a_wheel_is_known_by_its_bytes_alone(toy: Toy, tmp_path: Path, envbuild: Envbuild) -> None:
    """The wheelhouse can be any folder, and what else is in it does not matter."""
    elsewhere = tmp_path / "elsewhere ü"
    shutil.copytree(toy.wheelhouse, elsewhere)
    (elsewhere / "alpha-2.0-py3-none-any.whl").write_bytes(b"")
    arguments = ["--wheelhouse", str(elsewhere), "--no-cache", "-o", str(tmp_path / "out")]
    done = envbuild("image", "toy", "--offline", *arguments, cwd=toy.project.folder)
    assert done.out == f"sha256:{made(toy, None).digest}\n"


def test_what_is_asked_of_an_image_is_not_kept_without_a_cache(toy: Toy) -> None:
    before = set(toy.project.folder.rglob("*"))
    image = made(toy, None)
    assert {one.cached for one in image.layers} == {False}
    assert set(toy.project.folder.rglob("*")) == before
