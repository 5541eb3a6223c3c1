"""Pins of Debian packages: ``locks/image-base.toml``, what images have below their Python."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from envbuild import typed
from envbuild.artifacts import Artifact
from envbuild.catalog.environment import Environment
from envbuild.catalog.project import Project
from envbuild.digest import is_sha256
from envbuild.errors import InputError
from envbuild.typed import Table

if TYPE_CHECKING:
    from envbuild.artifacts.control import Archives
    from envbuild.artifacts.debian import Debs

SCHEMA = 1
RELEASE = "bookworm"
FILE = "locks/image-base.toml"
# What every image stands on: glibc and the libraries that wheels may take from the system
# (manylinux), its locales and ldconfig (which Triton runs), time zones, certificates, and the
# names of services and protocols.
BASE = (
    "base-files",
    "ca-certificates",
    "libc-bin",
    "libc6",
    "libgcc-s1",
    "libstdc++6",
    "netbase",
    "tzdata",
    "zlib1g",
)
PYTHON = ("python3.11",)

_NAME = re.compile(r"[a-z0-9][a-z0-9+.-]+")
_VERSION = re.compile(r"(?:[0-9]+:)?(?P<plain>[0-9][A-Za-z0-9.+~-]*)")
_POOL = re.compile(r"pool(/[A-Za-z0-9+~-][A-Za-z0-9.+~-]*)+")
MEND = "run `envbuild lock --base`"


class Package(Table, frozen=True):
    """A Debian package, known by its hash.

    Attributes:
        name: of the binary package.
        version: Debian's, such as ``2.36-9+deb12u7``.
        file: the name of its .deb.
        pool: the .deb's folder, relative to an archive's root.
        size: of the .deb, in bytes.
        sha256: of the .deb, 64 hexadecimal digits.
        depends: the pinned packages that it needs when it runs, sorted.
    """

    name: str
    version: str
    file: str
    pool: str
    size: int
    sha256: str
    depends: tuple[str, ...] = ()

    @property
    def artifact(self) -> Artifact:
        """Its .deb."""
        return Artifact(self.file, self.size, self.sha256)


class _Document(Table, frozen=True):
    schema: int
    release: str
    base: tuple[str, ...] = ()
    python: tuple[str, ...] = ()
    packages: tuple[Package, ...] = ()


def pins_file(project: Project) -> Path:
    """Return the path of a project's pins."""
    return project.folder / FILE


def read(path: Path) -> dict[str, Package]:
    """Read the pins by name; none where the file is not there.

    Raises:
        InputError: the file is of another schema or release, or a pin is no pin.
    """
    if not path.exists():
        return {}
    document = typed.load(path, _Document, "Debian pins")
    for key, found, expected in (
        ("schema", document.schema, SCHEMA),
        ("release", document.release, RELEASE),
        # other readers than this one learn from the file what images need
        ("base", ", ".join(document.base), ", ".join(BASE)),
        ("python", ", ".join(document.python), ", ".join(PYTHON)),
    ):
        if found != expected:
            raise InputError(
                f"{key}: not one that this envbuild reads",
                where=path,
                expected=expected,
                found=found,
                mend=f"use the envbuild that wrote it, or remove the file and {MEND}",
            )
    packages = {package.name: package for package in document.packages}
    if list(packages) != sorted(package.name for package in document.packages):
        raise InputError("packages: not sorted by name, each once", where=path, mend=MEND)
    for package in document.packages:
        check(package, packages, f"{path}: {package.name}")
    return packages


def check(package: Package, packages: Mapping[str, Package], where: str) -> None:
    """Hold a pin to what can be asked of a mirror and written to a file.

    Args:
        package: the pin.
        packages: all of them, by name.
        where: what to name in the message.

    Raises:
        InputError: what is wrong of it.
    """
    version = _VERSION.fullmatch(package.version)
    plain = version["plain"] if version else ""
    checks = (
        ("name", package.name, "the name of a Debian package", _NAME.fullmatch(package.name)),
        ("version", package.version, "a version of Debian's", version),
        (
            "file",
            package.file,
            f"{package.name}_{plain}_amd64.deb or _all.deb",
            package.file in {f"{package.name}_{plain}_{kind}.deb" for kind in ("amd64", "all")},
        ),
        (
            "pool",
            package.pool,
            "a folder such as pool/main/g/glibc",
            _POOL.fullmatch(package.pool),
        ),
        ("size", package.size, "a number of bytes", package.size > 0),
        ("sha256", package.sha256, "64 lower-case hexadecimal digits", is_sha256(package.sha256)),
        (
            "depends",
            ", ".join(package.depends),
            "names of pinned packages, sorted, each once",
            list(package.depends) == sorted(set(package.depends) & packages.keys()),
        ),
    )
    for key, found, expected, right in checks:
        if not right:
            raise InputError(
                f"{key}: wrong value", where=where, expected=expected, found=repr(found), mend=MEND
            )


def serialize(packages: Iterable[Package]) -> bytes:
    """Write pins in their one canonical form, sorted by name."""
    lines = [
        "# Written by `envbuild lock --base` from Debian's package indexes.",
        f"schema = {SCHEMA}",
        f'release = "{RELEASE}"',
        f"base = {_array(BASE)}",
        f"python = {_array(PYTHON)}",
    ]
    for package in sorted(packages, key=lambda package: package.name):
        lines += [
            "",
            "[[packages]]",
            f'name = "{package.name}"',
            f'version = "{package.version}"',
            f'file = "{package.file}"',
            f'pool = "{package.pool}"',
            f"size = {package.size}",
            f'sha256 = "{package.sha256}"',
            f"depends = {_array(package.depends)}",
        ]
    return ("\n".join(lines) + "\n").encode()


def _array(names: Iterable[str]) -> str:
    quoted = ", ".join(f'"{name}"' for name in names)
    return f"[{quoted}]"


def required(environments: Mapping[str, Environment]) -> dict[str, tuple[str, ...]]:
    """Return what must be pinned for the images of environments, without what it depends on.

    Args:
        environments: by name; all of a project, if its pins are to be written.

    Returns:
        The packages' names, each with the environments that ask for it in ``[image] packages``;
        with none where every image needs it.
    """
    asked: dict[str, tuple[str, ...]] = dict.fromkeys((*BASE, *PYTHON), ())
    for environment, declared in environments.items():
        for name in dict.fromkeys(declared.image.packages):
            if name not in (*BASE, *PYTHON):
                asked[name] = (*asked.get(name, ()), environment)
    return asked


def closure(names: Iterable[str], packages: Mapping[str, Package]) -> list[Package]:
    """Return packages with all that they need when they run, sorted by name.

    Args:
        names: the packages asked for.
        packages: the pins by name.

    Raises:
        InputError: one that is asked for is not pinned.
    """
    found: dict[str, Package] = {}
    todo = list(names)
    while todo:
        name = todo.pop()
        if name in found:
            continue
        if name not in packages:
            raise InputError(
                f"the Debian package {name} is not pinned",
                expected=f"it in {FILE}",
                mend=MEND,
            )
        found[name] = packages[name]
        todo += packages[name].depends
    return [found[name] for name in sorted(found)]


def source(packages: Iterable[Package]) -> Debs:
    """Return where the .debs of pinned packages can be had, for `Wheelhouse.fetch`.

    Raises:
        InputError: no archive is configured.
        StepError: apt, which was asked for them, failed.
    """
    from envbuild.artifacts.client import Client
    from envbuild.artifacts.debian import Debs, configured

    pools = {package.file: package.pool for package in packages}
    return Debs(configured(RELEASE), pools, Client())


def gone(packages: Iterable[Package], archives: Archives) -> list[Package]:
    """Return the pinned packages that no archive offers any more."""
    return [package for package in packages if not archives.has(package.name, package.sha256)]
