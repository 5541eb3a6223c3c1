"""Creating prefixes for real: uv, wheels, an index on loopback, an interpreter from its archive."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import msgspec
import pytest

from envbuild.catalog.project import Project
from envbuild.lock import interpreters as pins
from tests import backend, interpreters, manifest, projects, wheels
from tests.conftest import Envbuild
from tests.servers import Fault, SimpleIndex

VERSION = platform.python_version()
MINOR = f"python{projects.MINOR}"
INFORM = 'def main():\n    import alpha\n    print("alpha", alpha.__file__)\n'
CHECKS = '[checks]\nimports = ["alpha", "tool"]\ncommands = [["tool"], ["python", "-c", "1"]]\n'


@pytest.fixture
def project(index: SimpleIndex, tmp_path: Path, envbuild: Envbuild) -> Project:
    """A project with a locked environment of two packages, one of which has a command."""
    wheels.make_wheel(index.folder, "alpha", "1.0")
    wheels.make_wheel(
        index.folder,
        "tool",
        "2.0",
        files={"tool.py": INFORM},
        requires=["alpha"],
        entry_points="[console_scripts]\ntool = tool:main\n",
    )
    made = projects.project(
        tmp_path / "project",
        {"toy": projects.environment("tool", extra=CHECKS)},
        {"local": projects.LOCAL},
    )
    done = envbuild("lock", cwd=made.folder)
    assert done.code == 0, done.err
    return made


def receipt(project: Project, name: str = "toy") -> dict[str, Any]:
    path = project.folder / ".envs" / ".envbuild" / "receipts" / f"{name}.json"
    document: dict[str, Any] = json.loads(path.read_text())["predicate"]
    return document


def relock(project: Project, envbuild: Envbuild, text: str, name: str = "toy") -> None:
    project.environment_file(name).write_text(text)
    done = envbuild("lock", cwd=project.folder)
    assert done.code == 0, done.err


def test_created_kept_and_created_again_when_the_lock_changes(
    project: Project, index: SimpleIndex, envbuild: Envbuild
) -> None:
    prefix = project.folder / ".envs" / "toy"
    done = envbuild("create", "toy", cwd=project.folder)
    assert done.code == 0, done.err
    assert done.out.startswith(f"toy: built {prefix} in ")
    assert "2 packages" in done.out
    assert "2 imports and 2 commands checked" in done.out
    said = subprocess.run([prefix / "bin" / "tool"], capture_output=True, text=True, check=True)
    assert said.stdout.startswith(f"alpha {prefix}/lib/{MINOR}/site-packages/alpha.py")
    assert list(prefix.glob(f"lib/{MINOR}/site-packages/__pycache__/alpha.*.pyc"))

    asked = len(index.requests)
    again = envbuild("create", "toy", cwd=project.folder)
    assert (again.code, again.out, again.err) == (0, f"toy: kept {prefix}\n", "")
    assert len(index.requests) == asked

    relock(project, envbuild, projects.environment("alpha", extra='[checks]\nimports = ["alpha"]'))
    changed = envbuild("create", "toy", cwd=project.folder)
    assert changed.code == 0, changed.err
    assert "(the lock has changed)" in changed.err
    assert not (prefix / "bin" / "tool").exists()
    (archived,) = (project.folder / ".envs" / ".envbuild" / "archive").iterdir()
    assert f"the prefix that stood there is now {archived}" in changed.out
    assert (archived / "bin" / "tool").exists()


def test_the_receipt_says_what_was_built_from_what(
    project: Project, index: SimpleIndex, envbuild: Envbuild
) -> None:
    assert envbuild("create", cwd=project.folder).code == 0
    known = receipt(project)
    assert known["schema"] == 2
    assert (known["environment"], known["site"], known["rehearsal"]) == ("toy", "local", False)
    assert known["prefix"] == str(project.folder / ".envs" / "toy")
    assert known["interpreter"]["origin"] == "fallback"
    assert known["interpreter"]["version"].startswith(f"{projects.MINOR}.")
    assert [(one["name"], one["version"]) for one in known["distributions"]] == [
        ("alpha", "1.0"),
        ("tool", "2.0"),
    ]
    assert known["distributions"][0]["file"] == "alpha-1.0-py3-none-any.whl"
    assert len(known["distributions"][0]["sha256"]) == 64
    assert (known["checks"]["imports"], known["checks"]["commands"]) == (2, 2)
    assert known["host"]["name"] == platform.node()
    assert known["host"]["kernel"] == os.uname().release
    assert known["tools"]["uv"]
    assert {"environment", "install", "checks"} <= set(known["seconds"])
    assert known["notes"][0].startswith("the pinned Python ")
    assert known["mode"] == "exchange"
    statement = json.loads(
        (project.folder / ".envs" / ".envbuild" / "receipts" / "toy.json").read_text()
    )
    assert statement["_type"] == "https://in-toto.io/Statement/v1"
    assert statement["predicateType"] == "urn:envbuild:prefix-receipt:2"
    assert statement["subject"] == [
        {"name": known["prefix"], "digest": {"sha256": known["manifest_sha256"]}}
    ]
    assert manifest.digest(Path(known["prefix"])) == known["manifest_sha256"]


def test_the_pinned_interpreter_when_its_archive_can_be_had(
    project: Project, tmp_path: Path, envbuild: Envbuild
) -> None:
    mirror = tmp_path / "mirror"
    pin = interpreters.pack(mirror)
    project.interpreters_file.write_bytes(pins.serialize([pin]))
    project.environment_file("toy").write_text(
        projects.environment("tool", extra=CHECKS, python=VERSION)
    )
    env = {"UV_PYTHON_INSTALL_MIRROR": mirror.as_uri()}
    done = envbuild("create", cwd=project.folder, env=env)
    assert done.code == 0, done.err
    known = receipt(project)
    assert known["interpreter"] == {
        "path": str(
            project.folder
            / f".envs/.envbuild/interpreters/{VERSION}+{pin.build}"
            / f"cpython-{VERSION}-linux-x86_64-gnu/bin/{MINOR}"
        ),
        "version": VERSION,
        "origin": "managed",
        "archive": pin.file,
        "archive_sha256": pin.sha256,
    }
    assert known["notes"] == []
    prefix = project.folder / ".envs" / "toy"
    # every link of the interpreter stays inside the site
    assert (prefix / "bin" / "python").resolve().is_relative_to(project.folder / ".envs")
    home = (prefix / "pyvenv.cfg").read_text()
    assert f"home = {project.folder}/.envs/.envbuild/interpreters/" in home


def test_a_pinned_interpreter_with_another_hash_is_refused(
    project: Project, tmp_path: Path, envbuild: Envbuild
) -> None:
    mirror = tmp_path / "mirror"
    pin = interpreters.pack(mirror)
    wrong = msgspec.structs.replace(pin, sha256="0" * 64)
    project.interpreters_file.write_bytes(pins.serialize([wrong]))
    project.environment_file("toy").write_text(
        projects.environment("tool", extra=CHECKS, python=VERSION)
    )
    site = tmp_path / "strict.toml"
    site.write_text(f'summary = "strict"\nroot = "{tmp_path}/strict"\n')
    env = {"UV_PYTHON_INSTALL_MIRROR": mirror.as_uri()}
    done = envbuild("create", "--site", str(site), cwd=project.folder, env=env)
    assert done.code == 3
    assert done.err.startswith(
        f"error: site strict: toy needs the pinned Python {VERSION}, which cannot be had\n"
        f"  expected: {pin.file} in {project.wheelhouse}\n"
        "  found: other bytes than those that are locked came from "
    )
    assert pin.sha256 in done.err
    assert "0" * 64 in done.err
    assert not list(project.wheelhouse.glob("cpython*"))
    assert not (tmp_path / "strict" / "toy").exists()


def test_a_strict_site_takes_no_other_interpreter_but_a_rehearsal_does(
    project: Project, tmp_path: Path, envbuild: Envbuild
) -> None:
    site = tmp_path / "strict.toml"
    site.write_text(
        f'summary = "strict"\nroot = "{tmp_path}/strict"\nmounts = ["/nonexistent/mount"]\n'
    )
    done = envbuild("create", "--site", str(site), cwd=project.folder)
    assert done.code == 3
    assert done.err == (
        "error: site strict: a mount of the site is not there\n"
        "  expected: the folder /nonexistent/mount\n  found: nothing of that name\n"
        "  mend: run this on the site, with its file systems mounted; elsewhere, rehearse it with "
        "--root DIR\n"
    )
    root = tmp_path / "try"
    done = envbuild("create", "--site", str(site), "--root", str(root), cwd=project.folder)
    assert done.code == 0, done.err
    known = json.loads((root / ".envbuild" / "receipts" / "toy.json").read_text())["predicate"]
    assert known["rehearsal"] is True
    assert known["notes"][0] == "rehearsal: mounts of the site were not looked at"
    assert known["interpreter"]["origin"] == "fallback"


def test_offline_with_everything_at_hand_and_with_something_missing(
    project: Project, index: SimpleIndex, envbuild: Envbuild
) -> None:
    done = envbuild("create", "--offline", cwd=project.folder)
    assert done.code == 3
    assert "2 files are not in the wheelhouse, and nothing may be downloaded" in done.err
    assert not (project.folder / ".envs" / "toy").exists()
    assert envbuild("fetch", "--no-interpreters", cwd=project.folder).code == 0
    asked = len(index.requests)
    done = envbuild("create", "--offline", cwd=project.folder)
    assert done.code == 0, done.err
    assert len(index.requests) == asked


def test_dry_run_changes_nothing(project: Project, envbuild: Envbuild) -> None:
    done = envbuild("create", "--dry-run", cwd=project.folder)
    assert done.code == 0
    assert done.out == f"toy: would build {project.folder}/.envs/toy: there is no prefix yet\n"
    assert not (project.folder / ".envs").exists()
    assert not project.wheelhouse.exists()


def test_a_stale_lock_is_refused(project: Project, envbuild: Envbuild) -> None:
    project.environment_file("toy").write_text(projects.environment("tool", "six", extra=CHECKS))
    done = envbuild("create", cwd=project.folder)
    assert (done.code, done.err) == (
        2,
        "error: envs/toy.toml: the lock of toy is stale: requirement added: six since the lock "
        "was made\n  mend: run `envbuild lock toy`\n",
    )
    assert not (project.folder / ".envs").exists()


def test_a_missing_lock_and_an_unknown_environment(project: Project, envbuild: Envbuild) -> None:
    project.lock_file("toy").unlink()
    done = envbuild("create", cwd=project.folder)
    assert (done.code, done.err) == (
        2,
        "error: locks/pylock.toy.toml: the lock of toy is stale: toy has no lock\n"
        "  mend: run `envbuild lock toy`\n",
    )
    done = envbuild("create", "tyo", cwd=project.folder)
    assert (done.code, done.err) == (
        2,
        "error: no environment named tyo\n  expected: did you mean toy?\n"
        f"  mend: environments are the files of {project.folder}/envs\n",
    )
    done = envbuild("create", "--site", "jaif", cwd=project.folder)
    assert done.code == 2
    assert done.err.startswith("error: no site named jaif\n")


def test_a_failed_check_leaves_the_old_prefix_and_says_what_failed(
    project: Project, envbuild: Envbuild
) -> None:
    prefix = project.folder / ".envs" / "toy"
    assert envbuild("create", cwd=project.folder).code == 0
    before = receipt(project)
    identity = prefix.stat().st_ino
    bad = '[checks]\nimports = ["alpha", "no_such_module", "tool"]\n'
    project.environment_file("toy").write_text(projects.environment("tool", extra=bad))
    done = envbuild("create", cwd=project.folder)
    assert done.code == 1
    assert done.err.splitlines()[2:5] == [
        f"error: {prefix}: toy cannot import no_such_module",
        "  found: importing failed with exit code 1",
        "  mend: change the environment's requirements or its [checks], then lock and create again",
    ]
    assert "ModuleNotFoundError: No module named 'no_such_module'" in done.err
    assert prefix.stat().st_ino == identity
    assert receipt(project) == before
    assert not list((project.folder / ".envs" / ".envbuild" / "archive").glob("*"))
    assert not list((project.folder / ".envs" / ".envbuild" / "work").iterdir())

    project.environment_file("toy").write_text(projects.environment("tool", extra=CHECKS))
    assert envbuild("create", cwd=project.folder).out == f"toy: kept {prefix}\n"


def test_a_failing_command_is_shown(project: Project, envbuild: Envbuild) -> None:
    bad = '[checks]\ncommands = [["python", "-c", "import sys; sys.exit(7)"]]\n'
    project.environment_file("toy").write_text(projects.environment("tool", extra=bad))
    done = envbuild("create", cwd=project.folder)
    assert done.code == 1
    assert "toy fails its check `python -c import sys; sys.exit(7)`" in done.err
    assert "found: the command failed with exit code 7" in done.err
    assert not (project.folder / ".envs" / "toy").exists()


def test_checks_run_isolated_from_the_caller(
    project: Project, tmp_path: Path, envbuild: Envbuild
) -> None:
    user = tmp_path / "home" / ".local" / "lib" / MINOR / "site-packages"
    user.mkdir(parents=True)
    (user / "alpha.py").write_text("raise SystemExit('the user site was imported')\n")
    (tmp_path / "path").mkdir()
    (tmp_path / "path" / "tool.py").write_text("raise SystemExit('PYTHONPATH was followed')\n")
    (project.folder / "alpha.py").write_text("raise SystemExit('the folder was imported')\n")
    path = f"{tmp_path / 'path'}{os.pathsep}{Path(__file__).parents[2]}"
    done = envbuild("create", cwd=project.folder, env={"PYTHONPATH": path})
    assert done.code == 0, done.err


def test_several_environments_one_of_which_fails(
    project: Project, index: SimpleIndex, envbuild: Envbuild
) -> None:
    bad = '[checks]\nimports = ["no_such_module"]\n'
    (project.folder / "envs" / "bad.toml").write_text(projects.environment("alpha", extra=bad))
    assert envbuild("lock", cwd=project.folder).code == 0
    done = envbuild("create", cwd=project.folder)
    assert done.code == 1
    lines = done.out.splitlines()
    assert lines[0] == f"bad: failed {project.folder}/.envs/bad: bad cannot import no_such_module"
    assert lines[1].startswith("toy: built ")
    assert done.err.endswith("error: 1 of 2 environments failed: bad\n")
    report = json.loads(envbuild("create", "--json", cwd=project.folder).out)
    assert report["schema"] == "envbuild.create/1"
    states = {one["name"]: (one["state"], one["exit_code"]) for one in report["environments"]}
    assert states == {"bad": ("failed", 1), "toy": ("kept", 0)}


def test_what_was_installed_by_hand_is_noticed(project: Project, envbuild: Envbuild) -> None:
    assert envbuild("create", cwd=project.folder).code == 0
    prefix = project.folder / ".envs" / "toy"
    site_packages = prefix / "lib" / MINOR / "site-packages"
    (site_packages / "extra.py").write_text("")
    done = envbuild("create", cwd=project.folder)
    assert "(the prefix was changed since it was checked)" in done.err
    assert not (site_packages / "extra.py").exists()


def test_a_prefix_without_a_receipt_is_kept_in_the_archive(
    project: Project, envbuild: Envbuild
) -> None:
    prefix = project.folder / ".envs" / "toy"
    prefix.mkdir(parents=True)
    (prefix / "precious").write_text("work")
    done = envbuild("create", cwd=project.folder)
    assert done.code == 0
    assert "(the prefix has no receipt)" in done.err
    (archived,) = (project.folder / ".envs" / ".envbuild" / "archive").iterdir()
    assert (archived / "precious").read_text() == "work"


@pytest.mark.parametrize("mode", ["copy", "hardlink"])
def test_files_are_shared_only_where_the_site_says_so(
    project: Project, tmp_path: Path, envbuild: Envbuild, mode: str
) -> None:
    site = project.folder / "sites" / "local.toml"
    site.write_text(projects.LOCAL + f'link-mode = "{mode}"\n')
    assert envbuild("create", cwd=project.folder).code == 0
    module = project.folder / ".envs" / "toy" / "lib" / MINOR / "site-packages" / "alpha.py"
    assert module.stat().st_nlink == {"copy": 1, "hardlink": 2}[mode]
    assert not list((project.folder / ".envs" / "toy").glob(".unpacked-*"))


def test_a_poisoned_uv_cache_reaches_no_copy(
    project: Project, tmp_path: Path, envbuild: Envbuild
) -> None:
    """A line appended in uv's unpacked cache is what uv alone would install without a word."""
    site = project.folder / "sites" / "local.toml"
    cache = tmp_path / "shared-cache"
    linked = projects.LOCAL + f'uv-cache = "{cache}"\n'
    site.write_text(linked + 'link-mode = "hardlink"\n')
    assert envbuild("create", cwd=project.folder).code == 0
    poisoned = list(cache.rglob("alpha.py"))
    assert poisoned
    for path in poisoned:
        path.write_text(path.read_text() + "POISON = True\n")
    site.write_text(linked + 'link-mode = "copy"\n')
    assert envbuild("create", cwd=project.folder).code == 0
    module = project.folder / ".envs" / "toy" / "lib" / MINOR / "site-packages" / "alpha.py"
    assert "POISON" not in module.read_text()


def test_other_bytes_than_the_locks_are_not_installed(
    project: Project, index: SimpleIndex, envbuild: Envbuild
) -> None:
    file = "alpha-1.0-py3-none-any.whl"
    index.plant(index.file_path(file), Fault(body=b"not a wheel"), times=9)
    done = envbuild("create", cwd=project.folder)
    assert done.code == 4
    assert (
        f"alpha: {file}: other bytes than those that are locked came from {index.url}" in done.err
    )
    assert "expected: SHA-256 " in done.err
    assert "found: SHA-256 " in done.err
    assert not (project.wheelhouse / file).exists()
    assert not (project.folder / ".envs" / "toy").exists()


def test_a_file_damaged_in_the_wheelhouse_is_fetched_again(
    project: Project, index: SimpleIndex, envbuild: Envbuild
) -> None:
    assert envbuild("fetch", "--no-interpreters", cwd=project.folder).code == 0
    wheel = project.wheelhouse / "alpha-1.0-py3-none-any.whl"
    good = wheel.read_bytes()
    wheel.write_bytes(good[:-1])
    done = envbuild("create", "--offline", cwd=project.folder)
    assert done.code == 3
    assert "the file in the wheelhouse is not the one that is locked" in done.err
    assert envbuild("create", cwd=project.folder).code == 0
    assert wheel.read_bytes() == good


def test_a_wheel_that_would_overwrite_the_environment_is_not_admitted(
    project: Project, index: SimpleIndex, envbuild: Envbuild
) -> None:
    wheels.make_wheel(index.folder, "evil", "1", data={"data/pyvenv.cfg": "home = /tmp\n"})
    relock(project, envbuild, projects.environment("evil"))
    done = envbuild("create", cwd=project.folder)
    assert done.code == 2
    assert "evil-1-py3-none-any.whl" in done.err
    assert "pyvenv.cfg" in done.err
    assert not (project.folder / ".envs" / "toy").exists()


def test_an_sdist_is_built_and_held_to_the_locks_hash(
    project: Project, index: SimpleIndex, tmp_path: Path, envbuild: Envbuild
) -> None:
    backend.wheel(index.folder)
    backend.sdist(index.folder, "old-one", "1.0")
    extra = (
        '[static-metadata.old-one]\nversion = "1.0"\nrequires-dist = []\n'
        '[build.old-one]\nkind = "pure"\nrequires = ["toybackend"]\n'
        '[checks]\nimports = ["old_one"]\n'
    )
    relock(project, envbuild, projects.environment("old-one", extra=extra))
    elsewhere = tmp_path / "elsewhere"
    there = ["--wheelhouse", str(elsewhere), "--site", "local", "--root", str(tmp_path / "root")]
    done = envbuild("create", *there, cwd=project.folder)
    assert done.code == 0, done.err
    built = elsewhere / "old_one-1.0-py3-none-any.whl"
    assert built.read_bytes() == (project.wheelhouse / built.name).read_bytes()
    assert not list((tmp_path / "root").rglob("direct_url.json"))

    lock = project.lock_file("toy")
    text = lock.read_text()
    (wheel_line,) = (line for line in text.splitlines() if line.startswith("wheel = "))
    sha256 = wheel_line.rpartition('sha256 = "')[2][:64]
    lock.write_text(text.replace(sha256, "0" * 64))
    done = envbuild("create", *there, cwd=project.folder)
    assert done.code == 4
    assert "building old-one 1.0 gave another wheel than the lock says" in done.err
    assert f"expected: {built.name}, SHA-256 {'0' * 64}" in done.err
    assert f"found: {built.name}, SHA-256 {sha256}" in done.err


def test_compilers_are_looked_for_before_anything_is_fetched(
    project: Project, index: SimpleIndex, envbuild: Envbuild
) -> None:
    backend.sdist(index.folder, "kernels", "1.0")
    extra = (
        '[static-metadata.kernels]\nversion = "1.0"\nrequires-dist = []\n'
        '[build.kernels]\nkind = "cuda"\narchitectures = ["90"]\n'
    )
    relock(project, envbuild, projects.environment("kernels", extra=extra))
    asked = len(index.requests)
    done = envbuild("create", cwd=project.folder)
    assert done.code == 3
    assert done.err == (
        "error: sites/local.toml: site local names no CUDA toolkit to compile with\n"
        "  expected: modules, or cuda-home\n"
        '  mend: name one there; or let the recipe bring its own: toolchain = "wheels"\n'
    )
    assert len(index.requests) == asked


def editable(project: Project, index: SimpleIndex, envbuild: Envbuild, more: str) -> Path:
    """Declare an editable project at the root and lay it out there."""
    backend.wheel(index.folder)
    extra = '[[editable]]\npath = "mine"\nextras = ["dev"]\nrequires = ["toybackend"]\n'
    relock(project, envbuild, projects.environment("tool", extra=extra))
    return backend.project(project.folder / ".envs" / "mine", "mine", more=more)


def test_a_project_below_the_root_is_installed_in_editable_form(
    project: Project, index: SimpleIndex, envbuild: Envbuild
) -> None:
    more = (
        'dependencies = ["alpha>=1", "six; python_version < \'3\'"]\n'
        '[project.optional-dependencies]\ndev = ["tool==2.0"]\nother = ["nowhere"]\n'
    )
    folder = editable(project, index, envbuild, more)
    done = envbuild("create", cwd=project.folder)
    assert done.code == 0, done.err
    prefix = project.folder / ".envs" / "toy"
    said = subprocess.run(
        [prefix / "bin" / "python", "-I", "-c", "import mine; print(mine.WHERE)"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert said.stdout == f"{folder}/mine.py\n"
    (direct,) = prefix.rglob("direct_url.json")
    assert json.loads(direct.read_text()) == {
        "url": folder.as_uri(),
        "dir_info": {"editable": True},
    }
    (one,) = (d for d in receipt(project)["distributions"] if d["name"] == "mine")
    assert one["editable"] == str(folder)


@pytest.mark.parametrize(
    ("more", "code", "message"),
    [
        (
            'dependencies = ["alpha>=2"]\n[project.optional-dependencies]\ndev = ["missing-one"]\n',
            1,
            "the lock of toy lacks what mine requires\n"
            "  expected: every requirement of the project in the lock\n"
            "  found: alpha>=2: the lock holds 1.0; missing-one; extra == 'dev': not in the lock\n"
            "  mend: add them to envs/toy.toml and run `envbuild lock toy`\n",
        ),
        (
            '[project.urls]\npath = "/usr/lib"\n',
            1,
            "mine adds a folder outside the root to the path\n",
        ),
    ],
)
def test_an_editable_project_must_fit_lock_and_root(
    project: Project,
    index: SimpleIndex,
    envbuild: Envbuild,
    more: str,
    code: int,
    message: str,
) -> None:
    editable(project, index, envbuild, more)
    done = envbuild("create", cwd=project.folder)
    assert done.code == code
    assert message in done.err
    assert not (project.folder / ".envs" / "toy").exists()


def test_an_editable_project_that_is_not_there(
    project: Project, index: SimpleIndex, envbuild: Envbuild
) -> None:
    folder = editable(project, index, envbuild, "")
    (folder / "pyproject.toml").unlink()
    done = envbuild("create", cwd=project.folder)
    assert done.code == 3
    assert f"{folder}: an editable project is not there" in done.err
    text = project.environment_file("toy").read_text()
    project.environment_file("toy").write_text(text.replace("extras", "optional = true\nextras"))
    done = envbuild("create", cwd=project.folder)
    assert done.code == 0, done.err
    assert receipt(project)["notes"][-1] == f"no project at {folder}: passed over"


def test_a_root_that_cannot_be_written(
    project: Project, tmp_path: Path, envbuild: Envbuild
) -> None:
    (tmp_path / "file").write_text("")
    root = str(tmp_path / "file" / "root")
    done = envbuild("create", "--root", root, cwd=project.folder)
    assert done.code == 3
    assert "cannot write: Not a directory" in done.err
    assert "mend: check the folder's owner and mount, or rehearse elsewhere with --root DIR" in (
        done.err
    )


def test_a_link_is_no_root_and_no_prefix(
    project: Project, tmp_path: Path, envbuild: Envbuild
) -> None:
    (project.folder / "real").mkdir()
    (project.folder / ".envs").symlink_to("real")
    done = envbuild("create", cwd=project.folder)
    assert done.code == 3
    assert done.err.startswith(
        f"error: {project.folder}/.envs: the root is reached by another name than its own\n"
        f"  expected: {project.folder}/real\n"
    )


def test_what_is_built_is_readable_whatever_the_umask(project: Project, envbuild: Envbuild) -> None:
    old = os.umask(0o077)
    try:
        assert envbuild("create", cwd=project.folder).code == 0
    finally:
        os.umask(old)
    prefix = project.folder / ".envs" / "toy"
    unreadable = [path for path in (prefix, *prefix.rglob("*")) if not path.stat().st_mode & 0o004]
    assert unreadable == []


def test_the_interpreter_that_is_needed_is_named(project: Project, envbuild: Envbuild) -> None:
    interval = f">={projects.MINOR}.90,<{projects.NEXT}"
    text = projects.environment(
        "alpha", interval=interval, python=f"{projects.MINOR}.99", extra=CHECKS
    )
    project.environment_file("toy").write_text(text)
    pin = pins.Pin(
        f"{projects.MINOR}.99",
        "20260101",
        f"cpython-{projects.MINOR}.99+20260101-x86_64-unknown-linux-gnu-"
        "install_only_stripped.tar.gz",
        "0" * 64,
    )
    project.interpreters_file.write_bytes(pins.serialize([pin]))
    done = envbuild("lock", cwd=project.folder)
    assert done.code == 0, done.err
    done = envbuild("create", cwd=project.folder)
    assert done.code == 3
    assert done.err.startswith(f"error: toy needs Python {interval}, and none is at hand\n")
    assert f"found: {projects.MINOR}." in done.err


def test_a_long_prefix_with_a_space_runs(
    project: Project, tmp_path: Path, envbuild: Envbuild
) -> None:
    root = tmp_path / "a folder" / ("x" * 120)
    done = envbuild("create", "--root", str(root), cwd=project.folder)
    assert done.code == 0, done.err
    said = subprocess.run([root / "toy" / "bin" / "tool"], capture_output=True, check=True)
    assert said.stdout.startswith(b"alpha ")


def test_one_file_that_is_gone_stops_one_environment(
    project: Project, index: SimpleIndex, envbuild: Envbuild
) -> None:
    wheels.make_wheel(index.folder, "lonely", "1")
    other = projects.environment("lonely")
    (project.folder / "envs" / "other.toml").write_text(other)
    assert envbuild("lock", cwd=project.folder).code == 0
    file = "lonely-1-py3-none-any.whl"
    index.plant(index.file_path(file), Fault(status=404), times=9)
    done = envbuild("create", cwd=project.folder)
    assert done.code == 4
    lines = done.out.splitlines()
    assert lines[0].startswith(f"other: failed {project.folder}/.envs/other: the server answered")
    assert lines[1].startswith("toy: built ")


def test_a_stale_lock_stops_one_environment(project: Project, envbuild: Envbuild) -> None:
    (project.folder / "envs" / "other.toml").write_text(projects.environment("alpha"))
    done = envbuild("create", cwd=project.folder)
    assert done.code == 2
    lines = done.out.splitlines()
    assert lines[0].endswith("the lock of other is stale: other has no lock")
    assert lines[1].startswith("toy: built ")


def test_two_environments_at_once_share_one_interpreter(
    project: Project, tmp_path: Path, envbuild: Envbuild
) -> None:
    mirror = tmp_path / "mirror"
    pin = interpreters.pack(mirror)
    project.interpreters_file.write_bytes(pins.serialize([pin]))
    for name in ("toy", "other"):
        text = projects.environment("tool", extra=CHECKS, python=VERSION)
        (project.folder / "envs" / f"{name}.toml").write_text(text)
    assert envbuild("lock", cwd=project.folder).code == 0
    env = {**os.environ, "UV_PYTHON_INSTALL_MIRROR": mirror.as_uri()}
    command = [sys.executable, "-m", "envbuild", "create"]
    running = [
        subprocess.Popen(
            [*command, name],
            cwd=project.folder,
            env={**env, "PYTHONPATH": str(Path(__file__).parents[2])},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for name in ("toy", "other")
    ]
    told = [(*one.communicate(), one.returncode) for one in running]
    assert [code for _, _, code in told] == [0, 0], told
    assert receipt(project)["interpreter"] == receipt(project, "other")["interpreter"]


def test_another_build_of_the_same_version_stands_beside_the_first(
    project: Project, tmp_path: Path, envbuild: Envbuild
) -> None:
    mirror = tmp_path / "mirror"
    pin = interpreters.pack(mirror)
    text = projects.environment("tool", extra=CHECKS, python=VERSION)
    project.environment_file("toy").write_text(text)
    env = {"UV_PYTHON_INSTALL_MIRROR": mirror.as_uri()}
    homes = set()
    for build in (pin.build, "20260202"):
        other = msgspec.structs.replace(pin, build=build, file=pin.file.replace(pin.build, build))
        (mirror / build).mkdir(exist_ok=True)
        if build != pin.build:
            os.link(mirror / pin.build / pin.file, mirror / build / other.file)
        project.interpreters_file.write_bytes(pins.serialize([other]))
        done = envbuild("create", cwd=project.folder, env=env)
        assert done.code == 0, done.err
        homes.add(receipt(project)["interpreter"]["path"])
    assert len(homes) == 2
    assert all(Path(home).exists() for home in homes)


def test_a_strict_site_does_not_keep_what_it_would_not_build(
    project: Project, envbuild: Envbuild
) -> None:
    assert envbuild("create", cwd=project.folder).code == 0
    site = project.folder / "sites" / "local.toml"
    site.write_text(projects.LOCAL.replace("unpinned-interpreter = true", ""))
    done = envbuild("create", "--dry-run", cwd=project.folder)
    assert done.out.endswith(": it stands on an interpreter that the site does not allow\n")
    done = envbuild("create", cwd=project.folder)
    assert done.code == 3
    assert "toy needs the pinned Python" in done.err
    assert (project.folder / ".envs" / "toy" / "bin" / "tool").exists()


@pytest.mark.parametrize("name", ["emoji 😀", "quo'te", 'double"quote', "ünï", "$(x) %s #?"])
def test_folders_of_any_name(
    project: Project, tmp_path: Path, envbuild: Envbuild, name: str
) -> None:
    root, wheelhouse = tmp_path / name, tmp_path / f"wheels {name}"
    arguments = ["--root", str(root), "--wheelhouse", str(wheelhouse)]
    done = envbuild("create", *arguments, cwd=project.folder)
    assert done.code == 0, done.err
    said = subprocess.run([root / "toy" / "bin" / "tool"], capture_output=True, check=True)
    assert said.stdout.startswith(b"alpha ")


@pytest.mark.parametrize(
    "name", ["line\nend", "\x1b[31m", b"\xff".decode(errors="surrogateescape")]
)
def test_folders_that_no_script_can_name(
    project: Project, tmp_path: Path, envbuild: Envbuild, name: str
) -> None:
    done = envbuild("create", "--root", str(tmp_path / name), cwd=project.folder)
    assert done.code == 3
    assert "the root's path holds a character that no script can name" in done.err


def test_an_editable_project_may_not_replace_a_locked_package(
    project: Project, index: SimpleIndex, envbuild: Envbuild
) -> None:
    editable(project, index, envbuild, "")
    backend.project(project.folder / ".envs" / "mine", "alpha")
    done = envbuild("create", cwd=project.folder)
    assert done.code == 1
    assert "alpha is a package of the lock too" in done.err
    assert "found: alpha 1.0 in the lock of toy" in done.err
    assert not (project.folder / ".envs" / "toy").exists()


def test_an_editable_project_may_not_lie_outside_the_root(
    project: Project, index: SimpleIndex, tmp_path: Path, envbuild: Envbuild
) -> None:
    folder = editable(project, index, envbuild, "")
    folder.rename(tmp_path / "elsewhere")
    folder.symlink_to(tmp_path / "elsewhere")
    done = envbuild("create", cwd=project.folder)
    assert done.code == 3
    assert f"{folder}: an editable project lies outside the root" in done.err


def test_receipts_go_where_the_site_wants_them_too(project: Project, envbuild: Envbuild) -> None:
    site = project.folder / "sites" / "local.toml"
    site.write_text(projects.LOCAL + 'receipts = "runs/setup-{number}"\n')
    for number in ("01", "02"):
        done = envbuild("create", "--rebuild", cwd=project.folder)
        assert done.code == 0, done.err
        folder = project.folder / ".envs" / "runs" / f"setup-{number}"
        assert f"receipts: {folder}\n" in done.err
        copied = json.loads((folder / "toy.json").read_text())["predicate"]
        assert copied == receipt(project)
    assert envbuild("create", cwd=project.folder).err == ""


def test_a_prefix_on_another_file_system_than_the_root(
    project: Project, envbuild: Envbuild
) -> None:
    """It is built in place, and not replaced: no rename leads from there to the archive."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as elsewhere:
        assert Path(elsewhere).stat().st_dev != project.folder.stat().st_dev
        site = project.folder / "sites" / "local.toml"
        site.write_text(f'{projects.LOCAL}prefix = "{elsewhere}/{{env}}"\n')
        done = envbuild("create", cwd=project.folder)
        assert done.code == 0, done.err
        assert f"toy: built in place: {elsewhere} is on another file system" in done.err
        done = envbuild("create", "--rebuild", cwd=project.folder)
        assert done.code == 3
        assert done.err.endswith(
            f"error: {elsewhere}/toy: what stands there cannot be archived: it is on another file "
            "system than the root\n"
            f"  expected: a prefix on the file system of {project.folder}/.envs\n"
            f"  found: {elsewhere} on another one\n"
            "  mend: put `prefix` below the root in the site's file, or move that prefix away\n"
        )
