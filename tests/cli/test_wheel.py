from __future__ import annotations

from pathlib import Path

import pytest

from envbuild.catalog.project import Project
from envbuild.digest import sha256_file
from envbuild.lock import lockfile
from tests import backend, projects, wheels
from tests.conftest import Envbuild
from tests.servers import SimpleIndex

BUILT = "old_one-1.0-py3-none-any.whl"


@pytest.fixture
def project(index: SimpleIndex, tmp_path: Path, envbuild: Envbuild) -> Project:
    """A project with a wheel, an sdist of pure Python, and one that is built on the target."""
    wheels.make_wheel(index.folder, "alpha", "1.0")
    backend.wheel(index.folder)
    backend.sdist(index.folder, "old-one", "1.0")
    backend.sdist(index.folder, "kernels", "1.0")
    extra = "".join(
        f'[static-metadata.{name}]\nversion = "1.0"\nrequires-dist = []\n'
        for name in ("old-one", "kernels")
    )
    extra += '[build.old-one]\nkind = "pure"\nrequires = ["toybackend"]\n'
    extra += '[build.kernels]\nkind = "cuda"\narchitectures = ["90"]\n'
    toy = projects.environment("alpha", "old-one", "kernels", extra=extra)
    made = projects.project(tmp_path / "project", {"toy": toy}, {})
    assert envbuild("lock", cwd=made.folder).code == 0
    return made


def test_it_is_the_wheel_that_the_lock_pins(
    project: Project, index: SimpleIndex, tmp_path: Path, envbuild: Envbuild
) -> None:
    house, out = tmp_path / "house", tmp_path / "out"
    there = ("--env", "toy", "--wheelhouse", str(house))
    done = envbuild("wheel", "Old.One", *there, "-o", str(out), cwd=project.folder)
    assert (done.code, done.out, done.err) == (0, f"{out / BUILT}\n", "")
    locked = lockfile.read(project.lock_file("toy"), "toy").built["old-one"].artifact
    assert sha256_file(out / BUILT) == locked.sha256
    # nothing else of the lock was fetched
    assert sorted(path.name for path in house.glob("*.*")) == [
        ".envbuild",
        BUILT,
        "old_one-1.0.tar.gz",
        "toybackend-1-py3-none-any.whl",
    ]
    # it is there now
    asked = len(index.requests)
    done = envbuild("wheel", "old-one", *there, "--offline", cwd=project.folder)
    assert (done.code, done.out, len(index.requests)) == (0, f"{house / BUILT}\n", asked)


@pytest.mark.parametrize(
    ("package", "message"),
    [
        (
            "alpha",
            "alpha: no sdist in the lock of toy\n"
            "  expected: one of kernels, old-one\n"
            "  found: alpha-1.0-py3-none-any.whl\n",
        ),
        (
            "nothing",
            "nothing: no sdist in the lock of toy\n"
            "  expected: one of kernels, old-one\n"
            "  found: no such package\n",
        ),
    ],
)
def test_what_is_not_built_so_is_refused(
    project: Project, envbuild: Envbuild, package: str, message: str
) -> None:
    done = envbuild("wheel", package, "--env", "toy", cwd=project.folder)
    lock = project.lock_file("toy")
    assert (done.code, done.out, done.err) == (2, "", f"error: {lock}: {message}")


def test_without_network_what_is_missing_is_named(
    project: Project, tmp_path: Path, envbuild: Envbuild
) -> None:
    house = tmp_path / "house"
    options = ("--env", "toy", "--wheelhouse", str(house), "--offline")
    done = envbuild("wheel", "old-one", *options, cwd=project.folder)
    assert done.code == 3
    assert "old_one-1.0.tar.gz, toybackend-1-py3-none-any.whl missing" in done.err
