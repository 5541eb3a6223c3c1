"""What an image is made of: a lock, a base, an interpreter, settings."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import msgspec
from packaging.utils import InvalidWheelFilename, parse_wheel_filename
from packaging.version import InvalidVersion, Version

from envbuild.artifacts import Artifact
from envbuild.catalog.environment import Environment
from envbuild.catalog.project import Project
from envbuild.digest import sha256_file
from envbuild.errors import InputError
from envbuild.image import layer, oci, plan
from envbuild.image.layer import Compression
from envbuild.image.plan import Debs
from envbuild.image.wheels import Target
from envbuild.lock import debian as pins
from envbuild.lock import images, interpreters, lockfile
from envbuild.lock.debian import Package
from envbuild.lock.interpreters import Pin
from envbuild.lock.lockfile import Lock
from envbuild.relocation import installed

# Raised whenever the same request gives another manifest than before.
VERSION = 2

PREFIXES = "/opt/envs"
_DEBIAN_PYTHON = pins.PYTHON[0]


class Request(msgspec.Struct, frozen=True):
    """What an image is made of.

    Attributes:
        environment: its name.
        declared: what its file says.
        lock: its lock.
        base: what it stands on: Debian's packages, nothing, or another image.
        interpreter: the pinned archive, Debian's, or none.
        packages: the pinned Debian packages, by name.
        compression: of the layers.
        built: wheels built from source, for packages of which the lock holds no wheel.
    """

    environment: str
    declared: Environment
    lock: Lock
    base: Literal["debian", "scratch"] | oci.Base = "debian"
    interpreter: Pin | Literal["debian", "none"] = "debian"
    packages: Mapping[str, Package] = {}
    compression: Compression = "gzip"
    built: tuple[Artifact, ...] = ()

    @property
    def kind(self) -> tuple[str, images.Interpreter, str, Compression]:
        """What tells the image from others of the project, as `lock.images` has it."""
        interpreter: images.Interpreter = (
            "managed" if isinstance(self.interpreter, Pin) else self.interpreter
        )
        base = f"sha256:{self.base.digest}" if isinstance(self.base, oci.Base) else self.base
        return self.environment, interpreter, base, self.compression

    @property
    def target(self) -> Target:
        """Where the environment is in the image."""
        major, minor = self.declared.minor
        return Target(f"{PREFIXES}/{self.environment}", f"{major}.{minor}")

    @property
    def version(self) -> str:
        """The interpreter's version."""
        if isinstance(self.interpreter, Pin):
            return self.interpreter.version
        if self.interpreter == "debian":
            return _upstream(self.packages[_DEBIAN_PYTHON].version)
        return self.declared.python

    @property
    def program(self) -> str:
        """The interpreter's absolute path in the image."""
        if isinstance(self.interpreter, Pin):
            return f"/python/bin/python{self.target.minor}"
        return f"/usr/bin/python{self.target.minor}"

    @property
    def wheels(self) -> list[Artifact]:
        """The wheels that are installed, in the order of the lock.

        Raises:
            InputError: one must be built from source, and was not given.
        """
        given = {artifact.project: artifact for artifact in self.built}
        for artifact in self.built:
            if given[artifact.project] is not artifact:
                raise InputError(
                    f"--wheel: two wheels of {artifact.project}",
                    found=f"{artifact.file} and {given[artifact.project].file}",
                    mend="leave one of them out",
                )
        # on every machine the same
        environment = {
            **installed.marker_environment(self.version),
            "platform_machine": "x86_64",
            "platform_release": "",
            "platform_version": "",
        }
        chosen = []
        for package in self.lock.installed(environment):
            if not package.is_sdist:
                chosen.append(package.artifact)
            elif package.name in given:
                chosen.append(_of_version(given.pop(package.name), package.version))
            else:
                raise InputError(
                    f"{package.name} {package.version} has no wheel in the lock: it is built from "
                    "source",
                    where=f"locks/pylock.{self.environment}.toml",
                    expected="the wheel that was built of it",
                    mend="give it with --wheel FILE",
                )
        for name, artifact in given.items():
            raise InputError(
                f"--wheel: the lock has a wheel of {name}, or does not install it",
                found=artifact.file,
                mend="leave it out",
            )
        return chosen

    @property
    def debs(self) -> list[Debs]:
        """The layers of Debian packages."""
        base, python = [], []
        if self.base == "debian":
            base = pins.closure(pins.BASE, self.packages)
        if self.interpreter == "debian":
            python = pins.closure(pins.PYTHON, self.packages)
        asked = self.declared.image.packages if self.base == "debian" else ()
        return plan.debs(base, python, pins.closure(asked, self.packages))


def read(
    project: Project,
    name: str,
    *,
    base: str | oci.Base,
    interpreter: str,
    compression: str,
    built: tuple[Artifact, ...] = (),
) -> Request:
    """Read what an environment's image is made of.

    Args:
        project: the project.
        name: the environment.
        base: ``debian``, ``scratch``, or an image.
        interpreter: ``managed``, ``debian`` or ``none``.
        compression: ``gzip`` or ``none``.
        built: wheels built from source.

    Raises:
        InputError: the environment, its lock or a pin is missing or wrong; or it cannot become
            such an image.
    """
    declared = project.environment(name)
    chosen: Pin | Literal["debian", "none"] = "debian" if interpreter == "debian" else "none"
    if interpreter == "managed":
        pinned = interpreters.read(project.interpreters_file)
        if declared.python not in pinned:
            raise InputError(
                f"Python {declared.python} of {name} has no pin",
                where=project.interpreters_file,
                mend="run `envbuild lock`",
            )
        chosen = pinned[declared.python]
    request = Request(
        name,
        declared,
        lockfile.read(project.lock_file(name), name),
        base if isinstance(base, oci.Base) else "scratch" if base == "scratch" else "debian",
        chosen,
        pins.read(pins.pins_file(project)),
        "none" if compression == "none" else "gzip",
        built,
    )
    check(request)
    return request


def built_wheel(path: Path) -> Artifact:
    """Return a wheel that a person gives as what it is known by.

    Raises:
        InputError: its name is not a wheel's.
        OSError: it cannot be read.
    """
    try:
        project = parse_wheel_filename(path.name)[0]
    except (InvalidWheelFilename, InvalidVersion) as error:
        raise InputError(
            "--wheel: not a wheel's file name",
            where=path,
            expected="NAME-VERSION(-BUILD)-PYTHON-ABI-PLATFORM.whl",
        ) from error
    return Artifact(path.name, path.stat().st_size, sha256_file(path), project)


def check(request: Request) -> None:
    """Refuse what cannot become an image, before anything is fetched.

    Raises:
        InputError: Debian's Python is of another version than the environment wants, or base and
            interpreter do not go together.
    """
    if isinstance(request.base, oci.Base) and request.base.holds == request.environment:
        raise InputError(
            f"the base image holds {request.environment} already: what is not in the lock any "
            "more would stay",
            where=f"{request.base.folder}@sha256:{request.base.digest}",
            expected="an image without it",
            mend="name the base that it was built on",
        )
    if request.interpreter != "debian":
        return
    if request.base != "debian":
        raise InputError(
            "Debian's Python needs Debian's base",
            expected="--base debian; or --interpreter managed, or none for the base's own Python",
        )
    if _DEBIAN_PYTHON not in request.packages:
        raise InputError(
            f"the Debian package {_DEBIAN_PYTHON} is not pinned",
            expected=f"it in {pins.FILE}",
            mend=pins.MEND,
        )
    from packaging.specifiers import SpecifierSet

    if request.version not in SpecifierSet(request.declared.requires_python):
        raise InputError(
            f"Debian's Python is not one for {request.environment}",
            where=f"envs/{request.environment}.toml: requires-python",
            expected=request.declared.requires_python,
            found=f"Python {request.version}",
            mend="build it with --interpreter managed",
        )


def inputs(request: Request) -> str:
    """Return the SHA-256 of everything that decides an image; nothing is read."""
    image = request.declared.image
    content = (
        VERSION,
        layer.VERSION,
        request.environment,
        request.declared.summary,
        # what order does not matter in; the packages are those of `debs`
        msgspec.structs.replace(image, volumes=tuple(sorted(set(image.volumes))), packages=()),
        request.target,
        request.version,
        lockfile.serialize(request.lock),
        request.base.digest if isinstance(request.base, oci.Base) else request.base,
        request.interpreter,
        request.debs,
        request.compression,
        request.wheels,
    )
    encoded = msgspec.json.encode(content, order="deterministic")
    return hashlib.sha256(encoded).hexdigest()


def _of_version(artifact: Artifact, version: str) -> Artifact:
    found = parse_wheel_filename(artifact.file)[1]
    # what a build adds for its CUDA is no other version
    if Version(version) not in (found, Version(found.public)):
        raise InputError(
            "--wheel: of another version than the lock's",
            where=artifact.file,
            expected=version,
            found=found,
        )
    return artifact


def _upstream(version: str) -> str:
    """Return the upstream part of a Debian version (deb-version(7))."""
    return version.rpartition(":")[2].rpartition("-")[0] or version
