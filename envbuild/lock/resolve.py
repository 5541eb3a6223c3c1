"""From a specification and an instant to packages: one run of the resolver, one file a package."""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import tomli
import tomli_w
from packaging.pylock import Package, PackageSdist, PackageWheel, Pylock
from packaging.tags import Tag
from packaging.utils import canonicalize_name

from envbuild import process, uvtool
from envbuild.artifacts import Artifact
from envbuild.errors import EnvbuildError, InputError, StepError
from envbuild.lock import wheels
from envbuild.lock.lockfile import Lock, LockedPackage
from envbuild.lock.specification import Specification, requirements_of

_NO_TIMES = "missing an upload date"

# What uv says, besides that it found no solution, when an index kept its answer to itself.
_UNANSWERED = re.compile(r"hint: An index|network was disabled|" + _NO_TIMES)

# uv asks an sdist's build backend for what the sdist does not say by itself. Every interpreter that
# it starts for that ends before its first line, since this is not where a Python has its library;
# only the one that it asks about the interpreter itself is isolated, and does not look (-I).
_NO_BUILDS = {"PYTHONHOME": "/dev/null"}
_BUILD_FAILED = re.compile(
    r"Failed to (?:download and )?build `(?P<name>[^`=]+)==(?P<version>[^`]+)`\n"
    r"\s*cause: The build backend returned an error"
)


class Request(msgspec.Struct, frozen=True):
    """Everything that a resolution is a function of.

    Attributes:
        environment: the environment's name.
        specification: what is asked for.
        exclude_newer: the instant; see `envbuild.lock.lockfile.instant`.
        exclude_newer_package: later instants for single packages.
        lower_python: the oldest Python that must be served.
        minor: its minor version, such as ``(3, 11)``.
        glibc_minor: the minor version of the oldest glibc 2.
        base: the lock that must be kept, if any.
    """

    environment: str
    specification: Specification
    exclude_newer: str
    exclude_newer_package: dict[str, str]
    lower_python: str
    minor: tuple[int, int]
    glibc_minor: int
    base: Lock | None = None


def resolve(request: Request, indexes: Sequence[str]) -> tuple[LockedPackage, ...]:
    """Resolve an environment's packages.

    Args:
        request: what to resolve.
        indexes: index URLs, the default one last.

    Raises:
        StepError: the resolver found no solution (see `unsolvable`) or could not reach the index;
            its words are kept.
        InputError: a package has no file that a lock can hold, or an sdist would have to be run to
            learn what it requires; or there is no package at all.
    """
    specification = request.specification
    constraints: list[str] = []
    if request.base is not None:
        constraints = [f"{package.name}=={package.version}" for package in request.base.packages]
    try:
        document = _compile(
            request,
            specification.requirements,
            indexes,
            constraints=constraints,
            doing=f"resolving {request.environment}",
        )
    except StepError as error:
        refusal = _not_static(error, request)
        if refusal is None:
            raise
        raise refusal from error
    if not document.packages:
        raise InputError(
            f"requirements: {request.environment} resolves to no package",
            where=f"envs/{request.environment}.toml",
            expected="at least one whose marker holds for the platform and requires-python",
            found=", ".join(specification.requirements),
            mend="correct the markers or the excludes",
        )
    tag_ranks = wheels.ranks(request.minor, request.glibc_minor)
    packages = [
        _lock_package(package, tag_ranks, request.environment) for package in document.packages
    ]
    if request.base is not None:
        packages = _keep_base(packages, request.base, request.environment)
    return tuple(sorted(packages, key=lambda package: package.name))


def resolve_build_requires(
    request: Request,
    requires: str,
    packages: Sequence[LockedPackage],
    indexes: Sequence[str],
) -> tuple[Artifact, ...]:
    """Resolve one set of build requirements; see `specification.build_set`.

    Args:
        request: the environment's.
        requires: the set's name.
        packages: what the environment resolved to: one that a CUDA build requires, too, has that
            version and that file, since both are installed into one environment.
        indexes: index URLs, the default one last.

    Raises:
        StepError: as `resolve`.
        InputError: a build requirement has no wheel.
    """
    requirements, beside = requirements_of(requires)
    kept = {package.name: package for package in packages} if beside else {}
    constraints = [f"{package.name}=={package.version}" for package in kept.values()]
    doing = f"resolving build requirements of {request.environment} ({requires})"
    bare = msgspec.structs.replace(
        request,
        specification=msgspec.structs.replace(
            request.specification, overrides=(), excludes=(), static_metadata={}
        ),
    )
    try:
        document = _compile(bare, requirements, indexes, constraints=constraints, doing=doing)
    except StepError as error:
        unbuilt = _BUILD_FAILED.search(error.detail or "")
        if unbuilt is None:
            raise
        raise _no_build_wheel(unbuilt["name"], unbuilt["version"], request) from error
    tag_ranks = wheels.ranks(request.minor, request.glibc_minor)
    resolved = [
        _lock_package(package, tag_ranks, request.environment) for package in document.packages
    ]
    # a base's own file may differ from the one that would be chosen now
    resolved = [kept.get(package.name, package) for package in resolved]
    for package in resolved:
        if package.is_sdist:
            raise _no_build_wheel(package.name, package.version, request)
    return tuple(sorted(package.artifact for package in resolved))


def unsolvable(error: EnvbuildError) -> bool:
    """Whether a resolution failed because nothing satisfies what is asked for.

    An index that refused or did not answer is no such reason, though uv finds no solution either.
    """
    said = error.detail or ""
    return "No solution found" in said and _UNANSWERED.search(said) is None


def _not_static(error: StepError, request: Request) -> InputError | None:
    """Say what to declare if uv failed since it could not run an sdist's build backend."""
    unbuilt = _BUILD_FAILED.search(error.detail or "")
    if unbuilt is None:
        return None
    name, version = unbuilt["name"], unbuilt["version"]
    declared = request.specification.static_metadata.get(name)
    other = f"[static-metadata.{name}] is of version {declared.version}" if declared else None
    return InputError(
        f"{name} {version} has only an sdist, whose requirements are not static",
        where=f"envs/{request.environment}.toml",
        expected=f"a table [static-metadata.{name}] with its version and requires-dist, as no code "
        "of an sdist is run while locking",
        found=other,
        mend=f"add it, and [build.{name}] that says how it is built; or ask for a version that "
        "has a wheel",
    )


def _no_build_wheel(name: str, version: str, request: Request) -> InputError:
    return InputError(
        f"build requirement {name} {version} has no wheel that fits",
        where=f"envs/{request.environment}.toml",
        mend=f"ask for a version of {name} that has one",
    )


def _compile(
    request: Request,
    requirements: Sequence[str],
    indexes: Sequence[str],
    *,
    constraints: Sequence[str],
    doing: str,
) -> Pylock:
    specification = request.specification

    with tempfile.TemporaryDirectory(prefix="envbuild-lock-") as name:
        folder = Path(name)
        output = folder / f"pylock.{request.environment}.toml"
        command: list[str | Path] = [
            uvtool.executable(),
            *("pip", "compile", _lines(folder / "requirements.in", requirements)),
            *("--config-file", _config(folder / "uv.toml", specification)),
            *("--format", "pylock.toml", "--output-file", output, "--no-header"),
            *("--python", sys.executable, "--python-version", request.lower_python),
            *("--python-platform", specification.platform),
            *("--exclude-newer", request.exclude_newer),
            # without an environment to build in, there is nothing to install into it either
            "--no-build-isolation",
        ]
        for package, instant in sorted(request.exclude_newer_package.items()):
            command += ["--exclude-newer-package", f"{package}={instant}"]
        for option, lines in (
            ("--overrides", specification.overrides),
            ("--excludes", specification.excludes),
            ("--constraints", constraints),
        ):
            if lines:
                command += [option, _lines(folder / f"{option[2:]}.txt", lines)]
        variables = uvtool.environment(indexes, extra=_NO_BUILDS)
        try:
            process.run(command, doing=doing, env=variables, cwd=folder)
        except StepError as error:
            if _NO_TIMES in (error.detail or ""):
                error.mend = (
                    "the index gives no upload times (PEP 700), without which nothing can be "
                    "resolved as of an instant: configure one that does"
                )
            raise
        return Pylock.from_dict(tomli.loads(output.read_text()))


def _lines(path: Path, lines: Sequence[str]) -> Path:
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def _config(path: Path, specification: Specification) -> Path:
    """Write the only configuration that uv reads; static metadata can be given in no other way."""
    entries: list[Mapping[str, object]] = [
        {"name": name, "requires-dist": list(metadata.requires_dist)}
        | ({} if metadata.version is None else {"version": metadata.version})
        for name, metadata in specification.static_metadata.items()
    ]
    path.write_text(tomli_w.dumps({"dependency-metadata": entries}))
    return path


def _lock_package(package: Package, tag_ranks: dict[Tag, int], environment: str) -> LockedPackage:
    """Choose the one file of a resolved package."""
    where = f"envs/{environment}.toml"
    if package.version is None or package.vcs or package.directory or package.archive:
        raise InputError(
            f"{package.name} does not come from an index, which a lock cannot hold for every "
            "mirror",
            where=where,
        )
    by_name = {wheel.filename: wheel for wheel in package.wheels or ()}
    chosen = wheels.choose(by_name, tag_ranks)
    file: PackageWheel | PackageSdist
    if chosen is not None:
        file = by_name[chosen]
    elif package.sdist is not None:
        file = package.sdist
    else:
        raise InputError(
            f"{package.name} {package.version} has no wheel that fits and no sdist",
            where=where,
            expected="a wheel for one of the platform's tags",
            found=", ".join(sorted(by_name)) or "no file",
        )
    sha256 = file.hashes.get("sha256")
    if sha256 is None or file.size is None:
        raise InputError(
            f"the index gives no {'size' if sha256 else 'SHA-256'} for {file.filename}",
            where=where,
            mend="configure an index that gives sizes and hashes (PEP 691, PEP 700)",
        )
    name = str(canonicalize_name(package.name))
    return LockedPackage(
        name=name,
        version=str(package.version),
        artifact=Artifact(file.filename, file.size, sha256, name),
        marker=None if package.marker is None else str(package.marker),
    )


def _keep_base(
    packages: Sequence[LockedPackage], base: Lock, environment: str
) -> list[LockedPackage]:
    """Take the base's own files for the base's packages; files may have been added since."""
    kept = {package.name: package for package in base.packages}
    for name in sorted(set(kept) - {package.name for package in packages}):
        raise InputError(
            f"{name} {kept[name].version} of the base {base.environment} would be dropped",
            where=f"envs/{environment}.toml",
            expected="every package of the base",
            mend="remove the override or exclude that drops it",
        )
    result = []
    for package in packages:
        of_base = kept.get(package.name)
        if of_base is not None and of_base.version != package.version:
            raise InputError(
                f"{package.name} would differ from the base {base.environment}",
                where=f"envs/{environment}.toml",
                expected=of_base.version,
                found=package.version,
            )
        result.append(of_base or package)
    return result
