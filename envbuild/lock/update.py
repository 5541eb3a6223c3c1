"""Making locks: resolve, build what must be built once, write what has changed."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Literal

import msgspec

from envbuild import durable, uvtool
from envbuild.artifacts import Artifact
from envbuild.catalog.environment import Environment
from envbuild.catalog.project import Project
from envbuild.errors import EnvbuildError, InputError
from envbuild.lock import interpreters, lockfile
from envbuild.lock.lockfile import BuiltWheel, Lock, LockedPackage, difference
from envbuild.lock.resolve import Request, resolve, resolve_build_requires
from envbuild.lock.specification import requirement_set, specify

# Builds a pure-Python sdist with the given build requirements' wheels and returns its wheel.
# Handed in from above: building needs a wheelhouse and an interpreter, a lock needs neither.
Builder = Callable[[Environment, LockedPackage, tuple[Artifact, ...]], Artifact]


class Times(msgspec.Struct, frozen=True):
    """As of when to resolve.

    Attributes:
        exclude_newer: the instant asked for; the recorded one, or last midnight, where None.
        upgrade: resolve as of last midnight instead of the recorded instant.
        upgrade_packages: packages that alone may be newer than the recorded instant.
    """

    exclude_newer: str | None = None
    upgrade: bool = False
    upgrade_packages: tuple[str, ...] = ()


class Change(msgspec.Struct, frozen=True):
    """What locking changed.

    Attributes:
        environment: whose lock.
        state: what became of the file.
        packages: how many the lock holds.
        size: of all their files, in bytes.
        added: packages that are new, as ``name version``.
        removed: packages that are gone, as ``name version``.
        changed: packages with another version or file, as ``name old -> new``.
        exclude_newer: the instant of the lock.
    """

    environment: str
    state: Literal["new", "changed", "unchanged"]
    packages: int
    size: int
    added: tuple[str, ...]
    removed: tuple[str, ...]
    changed: tuple[str, ...]
    exclude_newer: str


def midnight() -> str:
    """Return the last midnight, UTC: all who lock on one day get the same bytes."""
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT00:00:00Z")


def update(
    project: Project,
    names: Sequence[str],
    *,
    times: Times,
    indexes: Sequence[str],
    builder: Builder,
    advance: Callable[[int], None] = lambda _done: None,
) -> tuple[list[Change], dict[str, EnvbuildError]]:
    """Lock environments, several at once, each after the base that it stands on.

    Args:
        project: the project.
        names: the environments.
        times: as of when.
        indexes: index URLs, the default one last.
        builder: builds pure-Python sdists.
        advance: called with 1 after each environment.

    Returns:
        What changed, and what went wrong by environment: one that fails leaves the others alone.

    Raises:
        InputError: an environment's file is wrong, or its Python is in no list.
    """
    _write_pins(project, upgrade=times.upgrade)
    environments = {name: project.environment(name) for name in names}

    failures: dict[str, EnvbuildError] = {}

    def one(name: str) -> Change | None:
        try:
            return _update(project, name, environments[name], times, indexes, builder)
        except EnvbuildError as error:
            failures[name] = error
            return None
        finally:
            advance(1)

    bases = [name for name in names if environments[name].base is None]
    derived = [name for name in names if environments[name].base is not None]
    changes: list[Change | None] = []
    with ThreadPoolExecutor(max_workers=4) as pool:
        for group in (bases, derived):
            changes += pool.map(one, group)
    done = sorted((c for c in changes if c is not None), key=lambda c: c.environment)
    return done, dict(sorted(failures.items()))


def _update(
    project: Project,
    name: str,
    environment: Environment,
    times: Times,
    indexes: Sequence[str],
    builder: Builder,
) -> Change:
    old = _existing(project, name)
    new = relock(project, name, environment, old, times, indexes, builder)
    path, data = project.lock_file(name), lockfile.serialize(new)
    written = not path.exists() or path.read_bytes() != data
    if written:
        durable.write(path, data)
    return _change(old, new, written=written)


def relock(
    project: Project,
    name: str,
    environment: Environment,
    old: Lock | None,
    times: Times,
    indexes: Sequence[str],
    builder: Builder,
) -> Lock:
    """Resolve an environment anew: a function of its specification and the instant alone.

    The old lock gives the instant and the hashes of what was built before from the same sdist in
    the same way; its versions play no part, so that resolving again gives the same bytes.
    """
    base = None
    if environment.base is not None:
        base = lockfile.read(project.lock_file(environment.base), environment.base)
    specification = specify(environment, base_sha256=base.packages_sha256 if base else None)
    exclude_newer, per_package = _instants(old, times)
    request = Request(
        environment=name,
        specification=specification,
        exclude_newer=exclude_newer,
        exclude_newer_package=per_package,
        lower_python=environment.lower_python,
        minor=environment.minor,
        glibc_minor=environment.glibc_minor,
        base=base,
    )
    packages = resolve(request, indexes)
    build_wheels = {
        requires: resolve_build_requires(request, requires, indexes)
        for requires in specification.build_requires
    }
    lock = Lock(
        environment=name,
        specification=specification,
        exclude_newer=exclude_newer,
        exclude_newer_package=per_package,
        resolver=uvtool.resolver(),
        packages=packages,
        build_wheels=build_wheels,
    )
    built = {
        package.name: _build(environment, package, lock, (old, base), builder)
        for package in _pure_sdists(name, environment, packages)
    }
    return msgspec.structs.replace(lock, built=built)


def _existing(project: Project, name: str) -> Lock | None:
    """Read the lock that is there; one that cannot be read is made anew."""
    try:
        return lockfile.read(project.lock_file(name), name)
    except InputError:
        return None


def _instants(old: Lock | None, times: Times) -> tuple[str, dict[str, str]]:
    if times.exclude_newer is not None:
        return times.exclude_newer, {}
    if old is None or times.upgrade:
        return midnight(), {}
    newer = dict.fromkeys(times.upgrade_packages, midnight())
    per_package = old.exclude_newer_package | newer
    return old.exclude_newer, {
        name: instant for name, instant in per_package.items() if instant > old.exclude_newer
    }


def _pure_sdists(
    name: str, environment: Environment, packages: Sequence[LockedPackage]
) -> list[LockedPackage]:
    """Hold sdists and declared builds to each other; return those that are built here."""
    where = f"envs/{name}.toml"
    sdists = {package.name: package for package in packages if package.is_sdist}
    for package in sdists.values():
        if package.name not in environment.build:
            raise InputError(
                f"{package.name} {package.version} has no wheel that fits",
                where=where,
                expected=f"a table [build.{package.name}] that says how it is built",
                found=package.artifact.file,
                mend='add it, with kind = "pure" for a package without compiled code',
            )
    for declared in environment.build:
        if declared not in sdists:
            raise InputError(
                f"build.{declared}: the lock holds no sdist of that name",
                where=where,
                mend=f"remove the table [build.{declared}]",
            )
    return [sdists[n] for n in sorted(sdists) if environment.build[n].kind == "pure"]


def _build(
    environment: Environment,
    package: LockedPackage,
    lock: Lock,
    known: Sequence[Lock | None],
    builder: Builder,
) -> BuiltWheel:
    """Take the wheel that an older lock pins if nothing it is made of has changed; else build."""
    requires = requirement_set(environment.build[package.name].requires)
    wheels = lock.build_wheels.get(requires, ())
    for other in known:
        if other is None or package.name not in other.built:
            continue
        same_sdist = any(package.artifact == one.artifact for one in other.packages)
        if same_sdist and other.build_wheels.get(requires, ()) == wheels:
            return other.built[package.name]
    return BuiltWheel(package.version, builder(environment, package, wheels))


def _write_pins(project: Project, *, upgrade: bool) -> None:
    """Pin every declared environment's interpreter; builds change only when asked to."""
    old = {} if upgrade else interpreters.read(project.interpreters_file)
    versions = {project.environment(name).python for name in project.environment_names}
    data = interpreters.serialize(
        old.get(version) or interpreters.find(version) for version in versions
    )
    path = project.interpreters_file
    path.parent.mkdir(exist_ok=True)
    if not path.exists() or path.read_bytes() != data:
        durable.write(path, data)


def _change(old: Lock | None, new: Lock, *, written: bool) -> Change:
    before = {package.name: package for package in old.packages} if old else {}
    after = {package.name: package for package in new.packages}
    return Change(
        environment=new.environment,
        state="new" if old is None else "changed" if written else "unchanged",
        packages=len(new.packages),
        size=sum(package.artifact.size for package in new.packages),
        added=tuple(f"{n} {after[n].version}" for n in sorted(after.keys() - before.keys())),
        removed=tuple(f"{n} {before[n].version}" for n in sorted(before.keys() - after.keys())),
        changed=tuple(
            difference(before[name], after[name])
            for name in sorted(before.keys() & after.keys())
            if before[name] != after[name]
        ),
        exclude_newer=new.exclude_newer,
    )
