"""A lock's file: PEP 751, mirror-neutral, one canonical form for one content."""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import msgspec

from envbuild import typed
from envbuild.artifacts import Artifact
from envbuild.digest import is_sha256, sha256_bytes
from envbuild.errors import InputError
from envbuild.lock.specification import Specification
from envbuild.typed import Table

SCHEMA = 1
LOCK_VERSION = "1.0"
WHEELHOUSE = "../wheelhouse/"
# What every lock of ours is for; DESIGN: Linux x86-64 only, one lock per environment.
_ENVIRONMENTS = (
    "implementation_name == 'cpython' and platform_machine == 'x86_64' and sys_platform == 'linux'",
)
_FILE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.!+-]*\.(whl|tar\.gz|zip)")
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_INSTANT = re.compile(r"\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}Z")


class LockedPackage(msgspec.Struct, frozen=True):
    """One package of a lock and the one file that it is installed from.

    Attributes:
        name: normalised (PEP 503).
        version: as the index gives it, normalised (PEP 440).
        artifact: a wheel, or an sdist where no wheel fits.
        marker: when it is installed (PEP 508); None means always.
    """

    name: str
    version: str
    artifact: Artifact
    marker: str | None = None

    @property
    def is_sdist(self) -> bool:
        """Whether it must be built before it can be installed."""
        return not self.artifact.file.endswith(".whl")


class BuiltWheel(msgspec.Struct, frozen=True):
    """The wheel that a pure-Python sdist of the lock gives.

    Attributes:
        version: the package's version, that of the sdist.
        artifact: the wheel.
    """

    version: str
    artifact: Artifact


class Lock(msgspec.Struct, frozen=True):
    """What a lock says.

    Attributes:
        environment: the environment's name.
        specification: what it was made from.
        exclude_newer: only files uploaded before this instant were considered; UTC, ending in Z.
        exclude_newer_package: later instants for single packages.
        resolver: the program that resolved it, with its version.
        packages: sorted by name.
        built: package name to the wheel built from its sdist.
        build_wheels: set of build requirements, by its name (see `specification.build_set`), to
            the wheels that it stands for.
    """

    environment: str
    specification: Specification
    exclude_newer: str
    resolver: str
    packages: tuple[LockedPackage, ...]
    exclude_newer_package: dict[str, str] = msgspec.field(default_factory=dict)
    built: dict[str, BuiltWheel] = msgspec.field(default_factory=dict)
    build_wheels: dict[str, tuple[Artifact, ...]] = msgspec.field(default_factory=dict)

    @property
    def packages_sha256(self) -> str:
        """The digest of the packages alone: what an environment that stands on this one keeps."""
        return sha256_bytes(msgspec.json.encode(self.packages))

    def installable(self) -> Iterator[LockedPackage]:
        """Yield the packages with built wheels in place of their sdists."""
        for package in self.packages:
            built = self.built.get(package.name)
            if built is not None and package.is_sdist:
                yield msgspec.structs.replace(
                    package, version=built.version, artifact=built.artifact
                )
            else:
                yield package

    @property
    def unbuilt(self) -> list[str]:
        """The packages without a wheel: they are built from source on the target system."""
        return [package.name for package in self.installable() if package.is_sdist]

    def installed(self, environment: dict[str, str]) -> list[LockedPackage]:
        """Return what is installed: the packages whose markers hold, sorted by name.

        Args:
            environment: what markers are evaluated with (PEP 508).
        """
        from packaging.markers import Marker

        return sorted(
            (
                package
                for package in self.installable()
                if package.marker is None or Marker(package.marker).evaluate(environment)
            ),
            key=lambda package: package.name,
        )

    def files(self) -> Iterator[Artifact]:
        """Yield every file that an index gives: packages' and build requirements'."""
        for package in self.packages:
            yield package.artifact
        for wheels in self.build_wheels.values():
            yield from wheels


class _Hashes(Table, frozen=True):
    sha256: str


class _File(Table, frozen=True):
    path: str
    size: int
    hashes: _Hashes


class _Package(Table, frozen=True):
    name: str
    version: str
    marker: str | None = None
    wheels: tuple[_File, ...] = ()
    sdist: _File | None = None


class _Built(Table, frozen=True):
    version: str
    wheel: _File


class _BuildEnvironment(Table, frozen=True):
    requires: str
    wheels: tuple[_File, ...]


class _Envbuild(Table, frozen=True):
    schema: int
    environment: str
    specification_sha256: str
    exclude_newer: str
    resolver: str
    specification: Specification
    exclude_newer_package: dict[str, str] = msgspec.field(default_factory=dict)
    built: dict[str, _Built] = msgspec.field(default_factory=dict)
    build_environments: tuple[_BuildEnvironment, ...] = ()


class _Tool(Table, frozen=True):
    envbuild: _Envbuild


class _Document(Table, frozen=True):
    lock_version: str
    requires_python: str
    created_by: str
    tool: _Tool
    environments: tuple[str, ...] = ()
    packages: tuple[_Package, ...] = ()


def instant(text: str) -> str:
    """Hold a point in time to the one form that locks take: UTC, seconds, ending in ``Z``.

    Raises:
        ValueError: it is a date, a duration, another zone or not a time at all.
    """
    if _INSTANT.fullmatch(text) is None:
        raise ValueError(text)
    datetime.datetime.strptime(text, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=datetime.UTC)
    return text


def read(path: Path, environment: str) -> Lock:
    """Read an environment's lock.

    Raises:
        InputError: it is not there, or `parse` refuses it.
    """
    if not path.exists():
        raise InputError(
            f"{environment} has no lock", where=path, mend=f"run `envbuild lock {environment}`"
        )
    return parse(typed.read(path, "lock"), path, environment)


def parse(data: bytes, path: Path, environment: str) -> Lock:
    """Read a lock strictly.

    PEP 751 allows more than is safe or neutral: URLs, other folders, hashes of any kind, no size.
    All of that is refused.

    Args:
        data: the file's content.
        path: the file, for messages.
        environment: whose lock it must be.

    Raises:
        InputError: the place in the file, what is wrong and what was expected.
    """
    try:
        return _parse(data, path, environment)
    except InputError as error:
        error.mend = error.mend or restoring(environment)
        raise


def _parse(data: bytes, path: Path, environment: str) -> Lock:
    document = typed.parse(data, path)
    check_versions(document, path)
    for key, known, found in _versions(document):
        if found is None:
            raise InputError(f"{key}: missing: not a lock of envbuild", where=path, expected=known)
    content = typed.convert(document, _Document, path)
    tool = content.tool.envbuild
    if tool.environment != environment:
        raise InputError(
            "tool.envbuild.environment: another environment's lock",
            where=path,
            expected=environment,
            found=tool.environment,
        )
    if tool.specification_sha256 != tool.specification.sha256:
        raise InputError(
            "tool.envbuild.specification-sha256: not the digest of the specification beside it",
            where=path,
            expected=tool.specification.sha256,
            found=tool.specification_sha256,
        )
    if content.requires_python != tool.specification.requires_python:
        raise InputError(
            "requires-python: differs from tool.envbuild.specification.requires-python",
            where=path,
            expected=tool.specification.requires_python,
            found=content.requires_python,
        )
    for key, text in (
        ("exclude-newer", tool.exclude_newer),
        *((f"exclude-newer-package.{k}", v) for k, v in tool.exclude_newer_package.items()),
    ):
        _check_instant(text, f"tool.envbuild.{key}", path)
    packages = tuple(
        _package(package, f"packages[{index}]", path)
        for index, package in enumerate(content.packages)
    )
    names = [package.name for package in packages]
    if names != sorted(set(names)):
        raise InputError("packages: not sorted by name, each once", where=path)
    lock = Lock(
        environment=environment,
        specification=tool.specification,
        exclude_newer=tool.exclude_newer,
        exclude_newer_package=tool.exclude_newer_package,
        resolver=tool.resolver,
        packages=packages,
        built={
            name: BuiltWheel(
                built.version,
                _artifact(built.wheel, f"tool.envbuild.built.{name}.wheel", name, path),
            )
            for name, built in tool.built.items()
        },
        build_wheels={
            one.requires: tuple(
                _artifact(
                    wheel,
                    f"tool.envbuild.build-environments[{index}].wheels[{position}]",
                    None,
                    path,
                )
                for position, wheel in enumerate(one.wheels)
            )
            for index, one in enumerate(tool.build_environments)
        },
    )
    _check_consistent(lock, path)
    return lock


def restoring(environment: str) -> str:
    """Say how a lock that cannot be read is mended: its instant must not be lost unseen."""
    return (
        f"restore it from version control, or resolve anew: `envbuild lock --upgrade {environment}`"
        f" as of today, `envbuild lock --exclude-newer INSTANT {environment}` as of then"
    )


def check_versions(document: Mapping[str, object], path: Path) -> None:
    """Refuse a lock of another format before anything else is said about it.

    Args:
        document: the parsed file.
        path: the file, for messages.

    Raises:
        InputError: it says that it is of another version than this envbuild reads and writes.
    """
    for key, known, found in _versions(document):
        if found not in (None, known):
            raise InputError(
                f"{key}: not a version that this envbuild reads",
                where=path,
                expected=known,
                found=found,
                mend="use the envbuild that wrote it; this one does not write over it",
            )


def _versions(document: Mapping[str, object]) -> Iterator[tuple[str, object, object]]:
    """Yield the keys of versions, each with what is known and what is there, if anything."""
    tool = document.get("tool")
    ours = tool.get("envbuild") if isinstance(tool, dict) else None
    yield "lock-version", LOCK_VERSION, document.get("lock-version")
    yield "tool.envbuild.schema", SCHEMA, ours.get("schema") if isinstance(ours, dict) else None


def _check_instant(text: str, key: str, path: Path) -> None:
    try:
        instant(text)
    except ValueError as error:
        raise InputError(
            f"{key}: not an instant",
            where=path,
            expected="UTC, such as 2026-11-30T00:00:00Z",
            found=text,
        ) from error


def _package(package: _Package, key: str, path: Path) -> LockedPackage:
    files = [(f"{key}.wheels[{i}]", wheel) for i, wheel in enumerate(package.wheels)]
    if package.sdist is not None:
        files.append((f"{key}.sdist", package.sdist))
    if len(files) != 1:
        raise InputError(
            f"{key}: {package.name} does not have exactly one file",
            where=path,
            expected="one wheel or one sdist",
            found=len(files),
        )
    place, file = files[0]
    artifact = _artifact(file, place, package.name, path)
    _check_file_name(artifact.file, package, place, path)
    return LockedPackage(package.name, package.version, artifact, package.marker)


def _artifact(file: _File, key: str, project: str | None, path: Path) -> Artifact:
    name = file.path.removeprefix(WHEELHOUSE)
    if name == file.path or _FILE.fullmatch(name) is None:
        raise InputError(
            f"{key}.path: not a file of the wheelhouse",
            where=path,
            expected=f"{WHEELHOUSE}FILE",
            found=file.path,
        )
    if not is_sha256(file.hashes.sha256):
        raise InputError(
            f"{key}.hashes.sha256: not a SHA-256",
            where=path,
            expected="64 lower-case hexadecimal digits",
            found=file.hashes.sha256,
        )
    if file.size <= 0:
        raise InputError(f"{key}.size: not a size", where=path, expected="bytes", found=file.size)
    if project is None:
        project = re.sub(r"[-_.]+", "-", name.partition("-")[0]).lower()
    return Artifact(name, file.size, file.hashes.sha256, project)


def _check_file_name(file: str, package: _Package, key: str, path: Path) -> None:
    """Hold a file's name to the package's: a lock with the two at odds was edited by hand."""
    stem = file.removesuffix(".tar.gz").removesuffix(".zip").removesuffix(".whl")
    parts = stem.split("-")
    name, version = (
        (parts[0], parts[1] if len(parts) > 1 else "")
        if file.endswith(".whl")
        else ("-".join(parts[:-1]), parts[-1])
    )
    if re.sub(r"[-_.]+", "-", name).lower() != package.name or not _same(version, package.version):
        raise InputError(
            f"{key}.path: the file of another package or version",
            where=path,
            expected=f"{package.name} {package.version}",
            found=file,
        )


def _same(one: str, other: str) -> bool:
    if one == other or one.replace("_", "+") == other:
        return True
    from packaging.version import InvalidVersion, Version

    try:
        return Version(one) == Version(other)
    except InvalidVersion:
        return False


def _check_consistent(lock: Lock, path: Path) -> None:
    """Hold the built wheels to the packages, so that nothing is built or pinned beside the lock."""
    pure = {
        package.name
        for package in lock.packages
        if package.is_sdist
        and lock.specification.builds.get(package.name, "").partition(":")[0] == "pure"
    }
    for name in sorted(pure ^ set(lock.built)):
        what = "is missing" if name in pure else "belongs to no pure-Python sdist of the lock"
        raise InputError(f"tool.envbuild.built.{name}: {what}", where=path)
    if tuple(sorted(lock.build_wheels)) != lock.specification.build_requires:
        raise InputError(
            "tool.envbuild.build-environments: not those of the specification",
            where=path,
            expected=", ".join(lock.specification.build_requires) or "none",
            found=", ".join(sorted(lock.build_wheels)) or "none",
        )


def serialize(lock: Lock) -> bytes:
    """Write a lock in its one canonical form: sorted, LF, nothing of the time of writing."""
    return ("\n".join(_lines(lock)) + "\n").encode()


def difference(before: LockedPackage, after: LockedPackage) -> str:
    """Say in a few words how a package changed."""
    if before.version != after.version:
        return f"{before.name} {before.version} -> {after.version}"
    if before.artifact != after.artifact:
        return f"{before.name} {before.version}: {before.artifact.file} -> {after.artifact.file}"
    return f"{before.name} {before.version}: marker {before.marker} -> {after.marker}"


def _lines(lock: Lock) -> Iterator[str]:
    specification = lock.specification
    yield f"# Written by `envbuild lock {lock.environment}`; do not edit: change the environment."
    yield f"lock-version = {string(LOCK_VERSION)}"
    yield f"environments = {_array(_ENVIRONMENTS)}"
    yield f"requires-python = {string(specification.requires_python)}"
    yield 'created-by = "envbuild"'
    for package in lock.packages:
        yield ""
        yield "[[packages]]"
        yield f"name = {string(package.name)}"
        yield f"version = {string(package.version)}"
        if package.marker is not None:
            yield f"marker = {string(package.marker)}"
        if package.is_sdist:
            yield f"sdist = {_file(package.artifact)}"
        else:
            yield f"wheels = [{_file(package.artifact)}]"
    yield ""
    yield "[tool.envbuild]"
    yield f"schema = {SCHEMA}"
    yield f"environment = {string(lock.environment)}"
    yield f"specification-sha256 = {string(specification.sha256)}"
    yield f"exclude-newer = {string(lock.exclude_newer)}"
    yield f"resolver = {string(lock.resolver)}"
    if lock.exclude_newer_package:
        yield ""
        yield "[tool.envbuild.exclude-newer-package]"
        for name, time in sorted(lock.exclude_newer_package.items()):
            yield f"{_key(name)} = {string(time)}"
    yield from _specification_lines(specification)
    for name, built in sorted(lock.built.items()):
        yield ""
        yield f"[tool.envbuild.built.{_key(name)}]"
        yield f"version = {string(built.version)}"
        yield f"wheel = {_file(built.artifact)}"
    for requires, wheels in sorted(lock.build_wheels.items()):
        yield ""
        yield "[[tool.envbuild.build-environments]]"
        yield f"requires = {string(requires)}"
        yield "wheels = ["
        yield from (f"    {_file(wheel)}," for wheel in sorted(wheels))
        yield "]"


def _specification_lines(specification: Specification) -> Iterator[str]:
    yield ""
    yield "[tool.envbuild.specification]"
    yield f"requires-python = {string(specification.requires_python)}"
    yield f"platform = {string(specification.platform)}"
    for key in ("requirements", "overrides", "excludes", "build_requires"):
        values = getattr(specification, key)
        if values:
            yield f"{key.replace('_', '-')} = {_array(values)}"
    if specification.base is not None:
        yield f"base = {string(specification.base)}"
    if specification.base_sha256 is not None:
        yield f"base-sha256 = {string(specification.base_sha256)}"
    if specification.builds:
        yield ""
        yield "[tool.envbuild.specification.builds]"
        for name, build in sorted(specification.builds.items()):
            yield f"{_key(name)} = {string(build)}"
    for name, metadata in sorted(specification.static_metadata.items()):
        yield ""
        yield f"[tool.envbuild.specification.static-metadata.{_key(name)}]"
        if metadata.version is not None:
            yield f"version = {string(metadata.version)}"
        yield f"requires-dist = {_array(metadata.requires_dist)}"


def _file(artifact: Artifact) -> str:
    return (
        f"{{ path = {string(WHEELHOUSE + artifact.file)}, size = {artifact.size}, "
        f"hashes = {{ sha256 = {string(artifact.sha256)} }} }}"
    )


def _array(values: Iterable[str]) -> str:
    items = [string(value) for value in values]
    if len(items) < 2:
        return f"[{''.join(items)}]"
    return "[\n" + "".join(f"    {item},\n" for item in items) + "]"


def _key(name: str) -> str:
    return name if _BARE_KEY.fullmatch(name) else string(name)


def string(text: str) -> str:
    """Write a text as TOML's basic string."""
    # JSON's escapes are all escapes of TOML's basic strings, DEL aside, which JSON leaves alone
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
