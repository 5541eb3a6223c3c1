"""What the flake needs the real index for: other Pythons in the stand-in, and the real uv."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from envbuild import uvtool
from envbuild.catalog.project import Project
from envbuild.lock import lockfile
from envbuild.nix.store import File, Store, own_wheels
from envbuild.prefix import interpreter
from envbuild.prefix.supply import Supply
from tests.conftest import Envbuild
from tests.image import toys
from tests.nix import flakes
from tests.nix.nixtool import Nix, nix

pytestmark = pytest.mark.large
ROOT = Path(__file__).parents[2]


@pytest.fixture
def tool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nix]:
    flakes.require_stand_in()
    with nix(tmp_path_factory.mktemp("nix")) as found:
        yield found


def stand_in(python: str, folder: Path) -> Path:
    """Write a stand-in for nixpkgs from another Python than that of the tests."""
    venv, uv = folder / "venv", uvtool.executable()
    requirements = ROOT / "requirements" / "run.txt"
    install: list[str | Path] = [uv, "pip", "install", "-q", "--python", venv / "bin" / "python"]
    commands: list[list[str | Path]] = [
        [uv, "venv", "-q", "--python", python, venv],
        [*install, "--require-hashes", "--only-binary=:all:", f"--requirement={requirements}"],
        [*install, "--no-deps", "--no-build-isolation", "--editable", ROOT],
        [venv / "bin" / "envbuild", "nix", "stand-in", folder / "nixpkgs"],
    ]
    for command in commands:
        subprocess.run(command, check=True, cwd=folder, env={**os.environ, "HOME": str(folder)})
    return folder / "nixpkgs"


def test_the_python_that_runs_envbuild_does_not_matter(
    tool: Nix, tmp_path: Path, envbuild: Envbuild
) -> None:
    toy = flakes.make(tmp_path / "project")
    project = toy.project.folder
    env = {**tool.env, "PYTHONPATH": str(project)}
    assert envbuild("nix", "preload", "--offline", cwd=project, env=env).code == 0
    built = []
    for minor in ((3, 11), (3, 12), (3, 13)):
        found = interpreter.find(minor)
        if found:
            (tmp_path / str(minor[1])).mkdir()
            standin = stand_in(found[0].path, tmp_path / str(minor[1]))
            override = ("--override-input", "nixpkgs", f"path:{standin}", "--no-write-lock-file")
            built.append(tool.build(*override, f"path:{project}#toy-image"))
    assert len(set(built)) == len(built) > 1
    assert all(toys.layout(one) == toys.layout(built[0]) for one in built)


def test_an_sdist_of_pure_python_is_built_in_the_sandbox(
    tool: Nix, tmp_path: Path, envbuild: Envbuild, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = lockfile.read(Project(ROOT).lock_file("nemo-gym"), "nemo-gym")
    (package,) = (one for one in lock.packages if one.is_sdist)
    wanted = [package.artifact, *own_wheels()]
    wanted += [wheel for wheels in lock.build_wheels.values() for wheel in wheels]
    supply = Supply(ROOT, tmp_path / "wheelhouse")
    supply.artifacts(wanted)
    for name, text in tool.env.items():
        monkeypatch.setenv(name, text)
    paths = [(supply.wheelhouse.path_of(one), one.sha256) for one in wanted]
    Store().add([File(path, sha256, path.stat().st_size) for path, sha256 in paths])
    assert envbuild("nix", "stand-in", "nixpkgs", cwd=tmp_path).code == 0
    folder = tmp_path / "project"
    flakes.copy(folder, "flake.nix", "flake.lock", "nix", "envbuild", "envs", "locks")
    override = ("--override-input", "nixpkgs", f"path:{tmp_path}/nixpkgs", "--no-write-lock-file")
    output = f"path:{folder}#nemo-gym-image.built.{package.name}"
    # a fixed-output derivation: another wheel than the lock's would be refused
    assert tool.build(*override, output).is_file()
