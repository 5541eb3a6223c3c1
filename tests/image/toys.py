"""A project whose image takes a second: a lock, pins and a wheelhouse, and nothing to download."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from envbuild.artifacts import Artifact
from envbuild.catalog.environment import Environment
from envbuild.catalog.environment import load as load_environment
from envbuild.catalog.project import Project
from envbuild.digest import sha256_file
from envbuild.image.request import Request
from envbuild.lock import debian as pins
from envbuild.lock import interpreters, lockfile
from envbuild.lock.debian import BASE, PYTHON, Package
from envbuild.lock.interpreters import Pin
from envbuild.lock.lockfile import Lock, LockedPackage
from envbuild.lock.specification import specify
from tests import debian, projects
from tests.wheels import make_sdist, make_wheel

INSTANT = "2026-01-01T00:00:00Z"
# fixed: no Python is run for an image, so that of the tests does not matter
PYTHON_VERSION = "3.11.17"
INTERVAL = ">=3.11.2,<3.12"
FILE = "cpython-3.11.17+20260101-x86_64-unknown-linux-gnu-install_only_stripped.tar.gz"
NAMES = ("alpha", "beta", "gamma", "delta", "epsilon")


class Toy(msgspec.Struct, frozen=True):
    """A project and where its files are.

    Attributes:
        project: with one environment, ``toy``.
        wheelhouse: everything that its images are made of.
    """

    project: Project
    wheelhouse: Path

    @property
    def lock(self) -> Lock:
        return lockfile.read(self.project.lock_file("toy"), "toy")

    @property
    def pin(self) -> Pin:
        return interpreters.read(self.project.interpreters_file)[PYTHON_VERSION]

    @property
    def request(self) -> Request:
        """That of the image as the command builds it without an option."""
        return Request(
            "toy",
            self.project.environment("toy"),
            self.lock,
            interpreter=self.pin,
            packages=pins.read(pins.pins_file(self.project)),
        )


def artifact(path: Path) -> Artifact:
    """Return what a file of a project is known by."""
    name = path.name.rpartition("-")[0] if path.suffix == ".gz" else path.name.partition("-")[0]
    return Artifact(path.name, path.stat().st_size, sha256_file(path), name.replace("_", "-"))


def package(path: Path, *, version: str = "1.0", marker: str | None = None) -> LockedPackage:
    """Return a package whose file is in a folder, as a lock has it."""
    made = artifact(path)
    return LockedPackage(made.project, version, made, marker)


def declared(folder: Path, *requirements: str, extra: str = "") -> Environment:
    """Return an environment as it is read from a file."""
    path = folder / "toy.toml"
    path.write_text(environment(*requirements or NAMES, extra=extra))
    return load_environment(path)


def environment(*requirements: str, extra: str = "") -> str:
    return projects.environment(
        *requirements, extra=extra, interval=INTERVAL, python=PYTHON_VERSION
    )


def lock(environment: Environment, packages: Sequence[LockedPackage]) -> Lock:
    """Return a lock of an environment."""
    return Lock(
        environment="toy",
        specification=specify(environment),
        exclude_newer=INSTANT,
        resolver="none",
        packages=tuple(sorted(packages, key=lambda package: package.name)),
    )


def wheels(folder: Path) -> list[Path]:
    """Write a few wheels: scripts, entry points, data, a file of its own for each."""
    made = [
        make_wheel(
            folder,
            name,
            "1.0",
            files={f"{name}/__init__.py": f"NAME = {name!r}\n", f"{name}/data.txt": name * 500},
            entry_points=f"[console_scripts]\n{name} = {name}:main\n",
            data={f"scripts/{name}-script": f"#!python\nprint({name!r})\n"},
        )
        for name in NAMES[:-1]
    ]
    files = {f"epsilon/{number:03}.py": f"x = {number}\n" * number for number in range(40)}
    return [*made, make_wheel(folder, "epsilon", "1.0", files=files)]


def interpreter(folder: Path) -> Pin:
    """Write an archive as python-build-standalone has it, of a few bytes, and return its pin."""
    path = folder / FILE
    with tarfile.open(path, "w:gz", compresslevel=1) as archive:
        for name, content, mode in (
            ("python/bin/python3.11", b"\x7fELF", 0o755),
            ("python/lib/python3.11/os.py", b"import sys\n", 0o644),
        ):
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(content), mode
            archive.addfile(member, io.BytesIO(content))
    return Pin(PYTHON_VERSION, "20260101", FILE, sha256_file(path))


def debs(folder: Path, *more: str) -> dict[str, Package]:
    """Write small Debian packages, those of every image and others, and return their pins."""
    found = {}
    for name in sorted({*BASE, *PYTHON, *more}):
        version = "3.11.2-6" if name in PYTHON else "1.0-1"
        entry = debian.Entry(f"./usr/share/{name}/file", name.encode() * 100)
        path = debian.deb(folder, name, version, [entry])
        found[name] = Package(
            name,
            version,
            path.name,
            f"pool/main/{name[0]}/{name}",
            path.stat().st_size,
            sha256_file(path),
            ("libc6",) if name in PYTHON else (),
        )
    return found


def make(folder: Path, *, extra: str = "", more: Sequence[str] = ()) -> Toy:
    """Lay out a project with everything that its images are made of.

    Args:
        folder: where to.
        extra: further lines of the environment's file.
        more: Debian packages that are pinned besides those of every image.
    """
    project = projects.project(
        folder, {"toy": environment(*NAMES, extra=extra)}, {"local": projects.LOCAL}
    )
    wheelhouse = project.wheelhouse
    made = lock(project.environment("toy"), [package(path) for path in wheels(wheelhouse)])
    project.lock_file("toy").parent.mkdir()
    project.lock_file("toy").write_bytes(lockfile.serialize(made))
    project.interpreters_file.write_bytes(interpreters.serialize([interpreter(wheelhouse)]))
    pins.pins_file(project).write_bytes(pins.serialize(debs(wheelhouse, *more).values()))
    return Toy(project, wheelhouse)


def sdist(folder: Path, name: str = "zeta") -> LockedPackage:
    """Write an sdist, and return it as a lock has it."""
    return package(make_sdist(folder, name, "1.0"))


def layout(folder: Path) -> dict[str, bytes]:
    """Return the files of an image's layout by their places."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def read(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return an image's manifest and its configuration, with every digest checked."""
    index = json.loads((folder / "index.json").read_bytes())
    (named,) = index["manifests"]
    manifest = json.loads(blob(folder, named))
    for one in manifest["layers"]:
        blob(folder, one)
    return manifest, json.loads(blob(folder, manifest["config"]))


def blob(folder: Path, descriptor: dict[str, Any]) -> bytes:
    """Return what a descriptor names; it must be whole."""
    digest = str(descriptor["digest"]).removeprefix("sha256:")
    path = folder / "blobs" / "sha256" / digest
    assert sha256_file(path) == digest
    assert path.stat().st_size == descriptor["size"]
    return path.read_bytes()


def files(folder: Path) -> dict[str, tarfile.TarInfo]:
    """Return what an image has at each path: the topmost layer's."""
    found = {}
    for descriptor in read(folder)[0]["layers"]:
        with tarfile.open(fileobj=io.BytesIO(blob(folder, descriptor))) as archive:
            found.update({member.name: member for member in archive})
    return found
