"""Kernels and file systems that refuse, as strace makes them: each fall-back, said aloud."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from envbuild.catalog.project import Project
from tests import projects, wheels
from tests.conftest import Envbuild
from tests.programs import require
from tests.servers import SimpleIndex

HERE = Path(__file__).parents[2]


@pytest.fixture
def project(index: SimpleIndex, tmp_path: Path, envbuild: Envbuild) -> Project:
    """A project that is built once, and is to be built again."""
    wheels.make_wheel(index.folder, "alpha", "1")
    made = projects.project(
        tmp_path / "project",
        {"toy": projects.environment("alpha", extra='[checks]\nimports = ["alpha"]')},
        {"local": projects.LOCAL},
    )
    assert envbuild("lock", cwd=made.folder).code == 0
    assert envbuild("create", cwd=made.folder).code == 0
    return made


def create(project: Project, *refusals: str) -> subprocess.CompletedProcess[str]:
    """Create again while system calls fail, each given as ``CALL:ERROR``."""
    strace = str(require("strace", "strace"))
    injected = [
        option
        for call, _, error in (refusal.partition(":") for refusal in refusals)
        for option in ("-e", f"inject={call}:error={error}")
    ]
    calls = ",".join(refusal.partition(":")[0] for refusal in refusals)
    return subprocess.run(
        [
            *(strace, "-f", "-qq", "-o", "/dev/null", "-e", f"trace={calls}", *injected),
            *(sys.executable, "-m", "envbuild", "create", "--offline", "--rebuild"),
        ],
        cwd=project.folder,
        env={**os.environ, "PYTHONPATH": str(HERE)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


def mode(project: Project) -> str:
    """Return how the prefix got to its place, by its receipt; its note must say why."""
    file = project.folder / ".envs" / ".envbuild" / "receipts" / "toy.json"
    predicate = json.loads(file.read_text())["predicate"]
    assert predicate["mode"] == "exchange" or f"built {predicate['mode']}: " in "".join(
        predicate["notes"]
    )
    found = predicate["mode"]
    assert isinstance(found, str)
    return found


def test_without_an_exchange_there_are_two_renames(project: Project) -> None:
    done = create(project, "renameat2:EINVAL")
    assert done.returncode == 0, done.stderr
    assert "toy: built renames: no exchange of two folders: Invalid argument\n" in done.stderr
    assert mode(project) == "renames"


def test_without_namespaces_it_is_built_in_place(project: Project) -> None:
    done = create(project, "unshare:EPERM")
    assert done.returncode == 0, done.stderr
    said = "toy: built in place: no private mount namespace: Operation not permitted\n"
    assert said in done.stderr
    assert mode(project) == "in place"


def test_without_hard_links_files_are_copied(project: Project) -> None:
    done = create(project, "linkat:EPERM", "link:EPERM")
    assert done.returncode == 0, done.stderr
    assert mode(project) == "exchange"
    (module,) = (project.folder / ".envs" / "toy").rglob("alpha.py")
    assert module.stat().st_nlink == 1


def test_without_file_locks_it_refuses(project: Project) -> None:
    done = create(project, "flock:ENOSYS")
    assert done.returncode == 3
    assert (
        f"error: {project.folder}/.envs/.envbuild: file locks do not work here: "
        "Function not implemented\n"
        "  expected: a file system with flock, which uv needs\n"
    ) in done.stderr
    assert (project.folder / ".envs" / "toy" / "bin" / "python").exists()


def test_a_disk_that_cannot_be_forced_keeps_the_old_prefix(project: Project) -> None:
    before = (project.folder / ".envs" / "toy").stat().st_ino
    done = create(project, "syncfs:EIO")
    assert done.returncode == 4
    assert "Input/output error" in done.stderr
    assert (project.folder / ".envs" / "toy").stat().st_ino == before
    assert not list((project.folder / ".envs" / ".envbuild" / "journal").iterdir())
