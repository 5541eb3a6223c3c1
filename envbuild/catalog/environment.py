"""An environment as declared in ``envs/NAME.toml``."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Any, Literal, TypeVar

import msgspec.structs

from envbuild import typed
from envbuild.errors import InputError
from envbuild.typed import Table

T = TypeVar("T")

# What envbuild sets for builds of kind "cuda", so that they come out the same everywhere: no
# recipe sets it. `reserved` knows the families besides.
RESERVED_VARIABLES = frozenset(
    {
        "CC",
        "CFLAGS",
        "CMAKE_BUILD_PARALLEL_LEVEL",
        "CUDA_HOME",
        "CUDA_PATH",
        "CXX",
        "HOME",
        "LANG",
        "LC_ALL",
        "LDCXXSHARED",
        "LDSHARED",
        "LD_LIBRARY_PATH",
        "LD_PRELOAD",
        "MAX_JOBS",
        "NVCC_APPEND_FLAGS",
        "NVCC_PREPEND_FLAGS",
        "PATH",
        "PYTHONHASHSEED",
        "PYTORCH_NVCC",
        "SOURCE_DATE_EPOCH",
        "TMPDIR",
        "TORCH_CUDA_ARCH_LIST",
        "TORCH_NO_COMPILER_WRAPPER",
        "TZ",
    }
)
RESERVED_PREFIXES = ("CCACHE_", "PIP_", "UV_")

# pylock.NAME.toml allows no dot in NAME (PEP 751), and the name is a folder's and an image's too
NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
# a file of the prefix's bin: not a path, and nothing that could be taken for an option
_PROGRAM = re.compile(r"[A-Za-z0-9_][^/\s]*")
_VARIABLE = re.compile(r"[^=\0]+")
# of a build's: names that a shell can say, too
_BUILD_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_ARCHITECTURE = re.compile(r"[1-9][0-9]{1,2}[af]?")
# nvcc's options that choose what is compiled for, in their long and short forms
_CHOOSES_ARCHITECTURE = re.compile(
    r"--?(?:arch|gpu-architecture|code|gpu-code|gencode|generate-code)(?:=.*)?", re.DOTALL
)
# keys of a build that both kinds have
_OF_EVERY_KIND = {"kind", "requires"}
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


class Edit(Table, frozen=True):
    """One replacement in a file of an sdist, made before it is built.

    Attributes:
        file: the file, relative to the sdist's own top folder.
        replace: the text that is there.
        by: the text that stands in its place.
        times: how often the text is there; any other count is an error.
    """

    file: str
    replace: str
    by: str
    times: int = 1


class Build(Table, frozen=True):
    """How a package without a fitting wheel is built.

    All keys but the first two are for ``cuda`` alone.

    Attributes:
        kind: ``pure`` gives a pure-Python wheel, built once and pinned by hash; ``cuda`` is
            compiled on the target system.
        requires: the build's own requirements, pinned by hash in the lock.
        toolchain: where CUDA comes from: ``site``, from what the site's file names; ``wheels``,
            from the pinned build requirements.
        match_runtime: packages of the environment's own lock that are there when it is built, in
            the lock's versions.
        architectures: the GPUs' architectures that are compiled for, such as ``90`` or ``90a``.
        memory_per_job: the memory that one job of a compiler may need, in GiB.
        variables: environment variables of the build.
        nvcc_flags: what is added to each command of nvcc.
        cxx_flags: what is added to each command of the C and C++ compilers.
        imports: modules that the verification of the finished wheel imports, one after the other
            in one interpreter.
        edits: what is replaced in the source, in this order.
    """

    kind: Literal["pure", "cuda"]
    requires: tuple[str, ...] = ()
    toolchain: Literal["site", "wheels"] = "site"
    match_runtime: tuple[str, ...] = ()
    architectures: tuple[str, ...] = ()
    memory_per_job: float = 4.0
    variables: dict[str, str] = msgspec.field(default_factory=dict)
    nvcc_flags: tuple[str, ...] = ()
    cxx_flags: tuple[str, ...] = ()
    imports: tuple[str, ...] = ()
    edits: tuple[Edit, ...] = ()


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

    @property
    def gpu_architectures(self) -> tuple[str, ...]:
        """The architectures that its CUDA builds are compiled for; none where it has no such."""
        # all of them name the same ones, as `load` holds them to
        return next((one.architectures for one in self.build.values() if one.kind == "cuda"), ())


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
    document = typed.parse(typed.read(path, "environment"), path)
    typed.check_text(document, path)
    environment = typed.convert(document, Environment, path)
    _check_kinds(document, path)
    environment = _normalised(environment, path)
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
    _check_builds(environment, path)
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
        build={
            name: msgspec.structs.replace(
                build, match_runtime=_packages(build, f"build.{name}.match-runtime", path)
            )
            for name, build in _by_package(environment.build, "build", path).items()
        },
    )


def _packages(build: Build, key: str, path: Path) -> tuple[str, ...]:
    from packaging.utils import InvalidName, canonicalize_name

    names: list[str] = []
    for index, name in enumerate(build.match_runtime):
        try:
            names.append(canonicalize_name(name, validate=True))
        except InvalidName as error:
            raise InputError(
                f"{key}[{index}]: not the name of a package",
                where=path,
                expected="a name alone: the lock says which version",
                found=repr(name),
            ) from error
    return tuple(names)


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


def _check_kinds(document: dict[str, Any], path: Path) -> None:
    """Refuse keys that a build of the other kind would have no use for, as they are written."""
    for name, build in document.get("build", {}).items():
        others = [key for key in build if key not in _OF_EVERY_KIND]
        if build["kind"] == "pure" and others:
            raise InputError(
                f'build.{name}.{others[0]}: is for builds of kind "cuda"',
                where=path,
                mend=f'remove it, or say kind = "cuda" if {name} has code to compile',
            )


def _check_builds(environment: Environment, path: Path) -> None:
    """Hold recipes of CUDA builds to what can be compiled, and to each other."""
    compiled = {name: one for name, one in environment.build.items() if one.kind == "cuda"}
    first: str | None = None
    for name, build in compiled.items():
        _check_build(build, f"build.{name}", path)
        for index, package in enumerate(build.match_runtime):
            if package in compiled:
                raise InputError(
                    f"build.{name}.match-runtime[{index}]: {package} is compiled on the target "
                    "system too",
                    where=path,
                    expected="packages that the lock has wheels of",
                )
        first = first or name
        wanted = environment.build[first].architectures
        if set(build.architectures) != set(wanted):
            raise InputError(
                f"build.{name}.architectures: differ from those of build.{first}",
                where=path,
                expected=", ".join(wanted),
                found=", ".join(build.architectures),
                mend="let all CUDA builds of an environment name the same ones",
            )


def _check_build(build: Build, key: str, path: Path) -> None:
    if not build.architectures:
        raise InputError(
            f"{key}.architectures: names none",
            where=path,
            expected='those that are compiled for, such as ["90"]',
        )
    for index, architecture in enumerate(build.architectures):
        if _ARCHITECTURE.fullmatch(architecture) is None:
            raise InputError(
                f"{key}.architectures[{index}]: not an architecture",
                where=path,
                expected="its number, such as 90 for sm_90, or 90a",
                found=repr(architecture),
            )
    if not 0 < build.memory_per_job < math.inf:
        raise InputError(
            f"{key}.memory-per-job: not an amount of memory",
            where=path,
            expected="GiB, more than 0",
            found=build.memory_per_job,
        )
    _check_variables(build.variables, f"{key}.variables", path)
    for kind, flags in (("nvcc-flags", build.nvcc_flags), ("cxx-flags", build.cxx_flags)):
        for index, flag in enumerate(flags):
            if not flag or _CHOOSES_ARCHITECTURE.fullmatch(flag) is not None:
                what = "chooses what is named by architectures" if flag else "empty"
                raise InputError(f"{key}.{kind}[{index}]: {what}", where=path, found=repr(flag))
    _check_modules(build.imports, f"{key}.imports", path)
    for index, edit in enumerate(build.edits):
        _check_edit(edit, f"{key}.edits[{index}]", path)


def reserved(variable: str) -> bool:
    """Whether an environment variable of a build is envbuild's own to set."""
    return (
        variable in RESERVED_VARIABLES
        or variable.startswith(RESERVED_PREFIXES)
        or variable.lower().endswith("_proxy")
    )


def _check_variables(variables: dict[str, str], key: str, path: Path) -> None:
    for name in variables:
        if _BUILD_VARIABLE.fullmatch(name) is None:
            raise InputError(
                f"{key}: not the name of a variable",
                where=path,
                expected="letters, digits and '_', no digit first",
                found=repr(name),
            )
        if reserved(name):
            raise InputError(
                f"{key}.{name}: envbuild sets it itself",
                where=path,
                mend="remove it",
            )


def _check_edit(edit: Edit, key: str, path: Path) -> None:
    file = PurePosixPath(edit.file)
    if file.is_absolute() or ".." in file.parts or not file.parts:
        raise InputError(
            f"{key}.file: not a file of the source",
            where=path,
            expected="a path relative to the sdist's top folder, without ..",
            found=repr(edit.file),
        )
    if not edit.replace:
        raise InputError(f"{key}.replace: empty", where=path, expected="a text that is there")
    if edit.replace == edit.by:
        raise InputError(f"{key}.by: what is there already", where=path, found=repr(edit.by))
    if edit.times < 1:
        raise InputError(
            f"{key}.times: not a count", where=path, expected="1 or more", found=edit.times
        )


def _check_modules(modules: Sequence[str], key: str, path: Path) -> None:
    for index, module in enumerate(modules):
        if not all(part.isidentifier() for part in module.split(".")):
            raise InputError(
                f"{key}[{index}]: not the name of a module",
                where=path,
                expected="names joined by '.', as an import statement takes them",
                found=repr(module),
            )


def _check_checks(checks: Checks, path: Path) -> None:
    """Hold imports to names of modules, and commands to programs that the prefix has."""
    _check_modules(checks.imports, "checks.imports", path)
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
