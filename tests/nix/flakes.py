"""Toy projects that are flakes, as this project is one."""

from __future__ import annotations

import shutil
from importlib import metadata
from pathlib import Path

import uv

from envbuild.digest import sha256_file
from tests.image import toys
from tests.image.toys import Toy
from tests.programs import require
from tests.wheels import make_wheel

_ROOT = Path(__file__).parents[2]
# the versions that envbuild pins
UV = metadata.version("uv")
PBS_INSTALLER = metadata.version("pbs-installer")


def require_stand_in() -> None:
    """Skip the test where what a stand-in for nixpkgs is made with is not installed."""
    require("bash-static", "bash-static")
    require("busybox", "busybox-static")
    require("patchelf", "patchelf")


def copy(folder: Path, *names: str) -> None:
    """Copy files and folders of this project into another one."""
    folder.mkdir(exist_ok=True)
    for name in names:
        if (_ROOT / name).is_dir():
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(_ROOT / name, folder / name, ignore=ignored)
        else:
            shutil.copy(_ROOT / name, folder)


def make(folder: Path) -> Toy:
    """Lay out a toy project that is a flake, with a copy of envbuild.

    That copy is what `python -m envbuild` runs in the folder: its own wheels, which Nix needs, are
    small ones of the test's.
    """
    toy = toys.make(folder, extra='[image]\npackages = ["bash"]\n', more=["bash"])
    copy(folder, "flake.nix", "flake.lock", "nix", "envbuild")
    (folder / "envbuild/nix/wheels.toml").write_text(_own_wheels(toy.wheelhouse))
    return toy


def _own_wheels(wheelhouse: Path) -> str:
    """Pack wheels of what nixpkgs does not have, and return their pins.

    uv's program is not run for an image; its version is what locks are held to.
    """
    module = Path(uv.__file__).parent
    files = {f"uv/{path.name}": path.read_bytes() for path in module.glob("*.py")}
    data = {"scripts/uv": "#!/bin/sh\n"}
    made = [
        make_wheel(wheelhouse, "uv", UV, files=files, data=data),
        make_wheel(wheelhouse, "pbs-installer", PBS_INSTALLER),
    ]
    tables = [
        f'\n[[wheels]]\nfile = "{path.name}"\nsha256 = "{sha256_file(path)}"\n' for path in made
    ]
    return "schema = 1\n" + "".join(tables)
