"""An environment as declared in ``envs/NAME.toml``."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal, TypeVar

import msgspec.structs

from envbuild import typed
from envbuild.errors import InputError
from envbuild.typed import Table

T = TypeVar("T")

# pylock.NAME.toml allows no dot in NAME (PEP 751), and the name is a folder's and an image's too
NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
# a file of the prefix's bin: not a path, and nothing that could be taken for an option
_PROGRAM = re.compile(r"[A-Za-z0-9_][^/\s]*")
_VARIABLE = re.compile(r"[^=\0]+")
# Debian's policy, 5.6.7
_DEBIAN = re.compile(r"[a-z0-9][a-z0-9+.-]+")
# seven octal digits, in the header of a tar archive
_MOST_USER = 8**7 - 1
_PLATFORM = re.compile(r"x86_64-manylinux_2_(?P<minor>[0-9]+)")


# folders of an image that are others', and those whose mode is their purpose
_SYSTEM = re.compile(
    r"/(?:(?:bin|boot|dev|etc|lib|lib32|lib64|libx32|opt/envs|proc|python|sbin|sys|usr)(?:/|\Z)"
    r"|(?:home|media|mnt|opt|root|run|srv|tmp|var|var/tmp)\Z)"
)


class StaticMetadata(Table, frozen=True):
    """What an old sdist requires, so that none of its code runs while locking."""

    requires_dist: tuple[str, ...]
    version: str | None = None


class Build(Table, frozen=True):
    """How a package without a fitting wheel is built.

    Attributes:
        kind: ``pure`` gives a pure-Python wheel, built once and pinned by hash; ``cuda`` is
            compiled on the target system.
        requires: the build's own requirements, pinned by hash in the lock.
    """

    kind: Literal["pure", "cuda"]
    requires: tuple[str, ...] = ()


class Checks(Table, frozen=True):
    """What a new prefix must be able to do.

    Attributes:
        imports: modules that its interpreter imports.
        commands: programs with arguments; the first word names a script of the prefix's ``bin``.
    """

    imports: tuple[str, ...] = ()
    commands: tuple[tuple[str, ...], ...] = ()


class Image(Table, frozen=True):
    """Settings of the environment's container image."""

    user: int = 10001
    workdir: str = "/results"
    volumes: tuple[str, ...] = ("/results",)
    entrypoint: tuple[str, ...] = ()
    environment: dict[str, str] = msgspec.field(default_factory=dict)
    labels: dict[str, str] = msgspec.field(default_factory=dict)
    packages: tuple[str, ...] = ()


class Editable(Table, frozen=True):
    """A project below the site's root, installed in editable form.

    Attributes:
        path: its folder, relative to the site's root.
        extras: the extras of it that the lock must satisfy.
        optional: whether it is passed over where the folder holds no project.
        requires: its build requirements, pinned by hash in the lock.
    """

    path: str
    extras: tuple[str, ...] = ()
    optional: bool = False
    requires: tuple[str, ...] = ()


class Environment(Table, frozen=True):
    """An environment: requirements, a Python, and what is checked and shipped.

    Attributes:
        summary: one line for people.
        requires_python: an interval within one minor version, such as ``>=3.11.2,<3.12``.
        python: the managed interpreter's version, inside the interval.
        platform: the oldest glibc among the sites that build it: ``x86_64-manylinux_2_28``.
        requirements: what is asked for (PEP 508).
        overrides: requirements that replace what packages ask for, as uv's overrides do.
        excludes: names of packages never to be installed.
        base: an environment whose lock this one keeps, version by version and hash by hash.
    """

    summary: str
    requires_python: str = ""
    python: str = ""
    platform: str = ""
    requirements: tuple[str, ...] = ()
    overrides: tuple[str, ...] = ()
    excludes: tuple[str, ...] = ()
    base: str | None = None
    static_metadata: dict[str, StaticMetadata] = msgspec.field(default_factory=dict)
    build: dict[str, Build] = msgspec.field(default_factory=dict)
    editable: tuple[Editable, ...] = ()
    checks: Checks = Checks()
    image: Image = Image()

    @property
    def minor(self) -> tuple[int, int]:
        """The Python minor version of the interval, such as ``(3, 11)``."""
        major, minor = self.python.split(".")[:2]
        return int(major), int(minor)

    @property
    def lower_python(self) -> str:
        """The interval's lower bound: the Python that the resolver is given."""
        return _bounds(self.requires_python)[0]

    @property
    def glibc_minor(self) -> int:
        """The minor version of the oldest glibc: 28 for ``manylinux_2_28``."""
        match = _PLATFORM.fullmatch(self.platform)
        assert match is not None  # held by `load`
        return int(match["minor"])


def _bounds(interval: str) -> tuple[str, str]:
    """Split ``>=LOW,<HIGH``."""
    match = re.fullmatch(r">=\s*([0-9.]+)\s*,\s*<\s*([0-9.]+)", interval)
    if match is None:
        raise ValueError(interval)
    return match[1], match[2]


def load(path: Path, base: Environment | None = None) -> Environment:
    """Read ``envs/NAME.toml`` and hold it to what a lock can be made of.

    Args:
        path: the file; its stem is the environment's name.
        base: the environment that the file's ``base`` names, for what it inherits.

    Raises:
        InputError: the file, the key, what is wrong and what was expected.
    """
    environment = _normalised(typed.load(path, Environment, "environment"), path)
    if base is not None:
        environment = _inherit(environment, base, path)
    _check_python(environment, path)
    if _PLATFORM.fullmatch(environment.platform) is None:
        raise InputError(
            "platform: not a platform that envbuild locks for",
            where=path,
            expected="x86_64-manylinux_2_N, N the minor version of the oldest glibc",
            found=repr(environment.platform),
        )
    _check_requirements(environment, path)
    _check_checks(environment.checks, path)
    _check_image(environment.image, path)
    for index, editable in enumerate(environment.editable):
        parts = Path(editable.path).parts
        if Path(editable.path).is_absolute() or ".." in parts:
            raise InputError(
                f"editable[{index}].path: leaves the site's root",
                where=path,
                expected="a path relative to the site's root, without ..",
                found=editable.path,
            )
    return environment


def _normalised(environment: Environment, path: Path) -> Environment:
    """Write the packages that tables are named for as everything else names them (PEP 503)."""
    return msgspec.structs.replace(
        environment,
        static_metadata=_by_package(environment.static_metadata, "static-metadata", path),
        build=_by_package(environment.build, "build", path),
    )


def _by_package(tables: dict[str, T], key: str, path: Path) -> dict[str, T]:
    from packaging.utils import InvalidName, canonicalize_name

    spelled: dict[str, str] = {}
    for name in tables:
        try:
            normal = canonicalize_name(name, validate=True)
        except InvalidName as error:
            raise InputError(
                f"{key}.{name}: not the name of a package", where=path, found=repr(name)
            ) from error
        if spelled.setdefault(normal, name) != name:
            raise InputError(
                f"{key}.{name}: names the same package as {key}.{spelled[normal]}",
                where=path,
                mend=f"keep one of the two tables, {key}.{normal}",
            )
    return {normal: tables[name] for normal, name in spelled.items()}


def _check_checks(checks: Checks, path: Path) -> None:
    """Hold imports to names of modules, and commands to programs that the prefix has."""
    for index, module in enumerate(checks.imports):
        if not all(part.isidentifier() for part in module.split(".")):
            raise InputError(
                f"checks.imports[{index}]: not the name of a module",
                where=path,
                expected="names joined by '.', as an import statement takes them",
                found=repr(module),
            )
    for index, command in enumerate(checks.commands):
        if not command:
            raise InputError(
                f"checks.commands[{index}]: empty",
                where=path,
                expected="a program and its arguments",
            )
        if _PROGRAM.fullmatch(command[0]) is None:
            raise InputError(
                f"checks.commands[{index}][0]: not the name of a program",
                where=path,
                expected="a script of the prefix's bin, or python",
                found=repr(command[0]),
            )


def _check_image(image: Image, path: Path) -> None:
    """Hold settings to what a layer and a container's configuration can say."""
    if not 0 <= image.user <= _MOST_USER:
        raise InputError(
            "image.user: not the number of a user",
            where=path,
            expected=f"0 to {_MOST_USER}, which is what a layer can hold",
            found=image.user,
        )
    folders = {"workdir": image.workdir}
    folders |= {f"volumes[{index}]": volume for index, volume in enumerate(image.volumes)}
    for key, folder in folders.items():
        parts = folder.split("/")
        plain = folder.isprintable() and ":" not in folder
        whiteout = any(part.startswith(".wh.") for part in parts)
        if parts[0] or len(parts) < 2 or {"", ".", ".."} & set(parts[1:]) or not plain or whiteout:
            raise InputError(
                f"image.{key}: not an absolute path",
                where=path,
                expected="a path such as /results, without '.', '..', ':' or '/' at its end",
                found=repr(folder),
            )
        if _SYSTEM.match(folder):
            raise InputError(
                f"image.{key}: a folder of the system, which the image's user would own",
                where=path,
                expected="a folder of the user's own, such as /results",
                found=repr(folder),
            )
    for name in image.environment:
        if _VARIABLE.fullmatch(name) is None:
            raise InputError(
                "image.environment: not the name of a variable",
                where=path,
                expected="characters other than '=' and NUL",
                found=repr(name),
            )
    for index, package in enumerate(image.packages):
        if _DEBIAN.fullmatch(package) is None:
            raise InputError(
                f"image.packages[{index}]: not the name of a Debian package",
                where=path,
                expected="lower-case letters, digits, '+', '-' and '.', two or more of them",
                found=repr(package),
            )


def _inherit(environment: Environment, base: Environment, path: Path) -> Environment:
    """Take interval, interpreter and platform from the base; its requirements come first."""
    for field in ("requires_python", "python", "platform"):
        own, inherited = getattr(environment, field), getattr(base, field)
        if own not in ("", inherited):
            raise InputError(
                f"{field.replace('_', '-')}: differs from that of the base",
                where=path,
                expected=f"{inherited}, or leave the key out",
                found=own,
            )
    return msgspec.structs.replace(
        environment,
        requires_python=base.requires_python,
        python=base.python,
        platform=base.platform,
        requirements=base.requirements + environment.requirements,
        overrides=base.overrides + environment.overrides,
        excludes=base.excludes + environment.excludes,
        static_metadata=base.static_metadata | environment.static_metadata,
        build=base.build | environment.build,
        editable=base.editable + environment.editable,
    )


def _check_python(environment: Environment, path: Path) -> None:
    from packaging.specifiers import SpecifierSet
    from packaging.version import InvalidVersion, Version

    form = "an interval within one minor version, such as >=3.11.2,<3.12"
    try:
        low, high = map(Version, _bounds(environment.requires_python))
    except (ValueError, InvalidVersion) as error:
        raise InputError(
            "requires-python: not an interval",
            where=path,
            expected=form,
            found=repr(environment.requires_python),
        ) from error
    if high.release[:2] != (low.major, low.minor + 1) or any(high.release[2:]):
        raise InputError(
            "requires-python: covers more or less than one minor version",
            where=path,
            expected=form,
            found=repr(environment.requires_python),
        )
    inside = re.fullmatch(r"[0-9]+\.[0-9]+\.[0-9]+", environment.python) is not None and (
        environment.python in SpecifierSet(environment.requires_python)
    )
    if not inside:
        raise InputError(
            "python: not a full version inside requires-python",
            where=path,
            expected=f"MAJOR.MINOR.PATCH in {environment.requires_python}",
            found=repr(environment.python),
        )


def _check_requirements(environment: Environment, path: Path) -> None:
    from packaging.requirements import InvalidRequirement, Requirement

    lists: dict[str, tuple[str, ...]] = {
        "requirements": environment.requirements,
        "overrides": environment.overrides,
        "excludes": environment.excludes,
        **{f"build.{name}.requires": build.requires for name, build in environment.build.items()},
        **{
            f"static-metadata.{name}.requires-dist": metadata.requires_dist
            for name, metadata in environment.static_metadata.items()
        },
        **{
            f"editable[{index}].requires": editable.requires
            for index, editable in enumerate(environment.editable)
        },
    }
    for key, requirements in lists.items():
        for index, text in enumerate(requirements):
            try:
                requirement = Requirement(text)
            except InvalidRequirement as error:
                raise InputError(
                    f"{key}[{index}]: not a requirement: {str(error).splitlines()[0]}",
                    where=path,
                    expected="a name with version bounds (PEP 508)",
                    found=repr(text),
                ) from error
            if requirement.url is not None:
                raise InputError(
                    f"{key}[{index}]: names a URL, which a lock cannot hold for every mirror",
                    where=path,
                    expected="a name with version bounds (PEP 508)",
                    found=repr(text),
                )
            if key == "excludes" and text != requirement.name:
                raise InputError(
                    f"{key}[{index}]: more than a name", where=path, expected=requirement.name
                )
    if not environment.requirements:
        raise InputError("requirements: empty", where=path, expected="at least one requirement")
