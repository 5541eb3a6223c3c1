"""Making locks: resolve, build what must be built once, write what has changed."""

from __future__ import annotations

import datetime
import difflib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal

import msgspec

from envbuild import durable, typed, uvtool
from envbuild.artifacts import Artifact
from envbuild.catalog.environment import Environment
from envbuild.catalog.project import Project
from envbuild.errors import EnvbuildError, InputError
from envbuild.lock import interpreters, lockfile
from envbuild.lock.interpreters import Pin
from envbuild.lock.lockfile import BuiltWheel, Lock, LockedPackage, difference
from envbuild.lock.resolve import Request, resolve, resolve_build_requires
from envbuild.lock.specification import not_locked, requirement_set, specify

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


class Instants(msgspec.Struct, frozen=True):
    """As of when a lock is resolved, as it records it.

    Attributes:
        exclude_newer: only files uploaded before this instant count.
        packages: later instants for single packages.
    """

    exclude_newer: str
    packages: dict[str, str] = msgspec.field(default_factory=dict)

    @classmethod
    def of(cls, lock: Lock) -> Instants:
        """Return those that a lock records."""
        return cls(lock.exclude_newer, lock.exclude_newer_package)


class _Making(msgspec.Struct, frozen=True):
    """What locks are made with, the same for all of them."""

    project: Project
    times: Times
    indexes: Sequence[str]
    builder: Builder


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

    Nothing is written before all of them are resolved.

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
        InputError: a package to upgrade is in none of the locks; or the file of interpreters'
            pins is wrong.
    """
    making = _Making(project, times, indexes, builder)
    pins = interpreters.read(project.interpreters_file)
    failures: dict[str, EnvbuildError] = {}
    olds: dict[str, Lock | None] = {}
    news: dict[str, Lock] = {}

    def one(name: str) -> None:
        try:
            environment = project.environment(name)
            _pin(name, environment, {} if times.upgrade else pins)
            olds[name] = _existing(project, name, times)
            news[name] = _renewed(making, name, environment, olds[name], news)
        except EnvbuildError as error:
            failures[name] = error
        finally:
            advance(1)

    derived = project.bases
    with ThreadPoolExecutor(max_workers=4) as pool:
        for group in ((n for n in names if n not in derived), (n for n in names if n in derived)):
            list(pool.map(one, group))
    if not failures:
        _check_upgraded(times.upgrade_packages, [*olds.values(), *news.values()])
    _write_pins(project, {} if times.upgrade else pins, pins)
    done = [_write(project, olds[name], news[name]) for name in sorted(news)]
    return done, dict(sorted(failures.items()))


def _renewed(
    making: _Making,
    name: str,
    environment: Environment,
    old: Lock | None,
    news: Mapping[str, Lock],
) -> Lock:
    """Resolve an environment as of the instants that are asked for, and that it needs."""
    base = news.get(environment.base or "") or base_of(making.project, environment)
    instants = _instants(name, old, base, making.times)
    while True:
        new = relock(
            name,
            environment,
            instants,
            old=old,
            base=base,
            indexes=making.indexes,
            builder=making.builder,
        )
        # An instant of a package that the lock does not hold would be recorded for ever. It may
        # have mattered all the same, so what is recorded is resolved anew without it.
        held = {artifact.project for artifact in new.files()}
        kept = {package: time for package, time in instants.packages.items() if package in held}
        if kept == instants.packages:
            return new
        instants = Instants(instants.exclude_newer, kept)


def relock(
    name: str,
    environment: Environment,
    instants: Instants,
    *,
    old: Lock | None,
    base: Lock | None,
    indexes: Sequence[str],
    builder: Builder,
) -> Lock:
    """Resolve an environment anew: a function of its specification and the instants alone.

    The old lock gives the hashes of what was built before from the same sdist in the same way; its
    versions play no part, so that resolving again gives the same bytes.
    """
    specification = specify(environment, base_sha256=base.packages_sha256 if base else None)
    request = Request(
        environment=name,
        specification=specification,
        exclude_newer=instants.exclude_newer,
        exclude_newer_package=instants.packages,
        lower_python=environment.lower_python,
        minor=environment.minor,
        glibc_minor=environment.glibc_minor,
        base=base,
    )
    packages = resolve(request, indexes)
    pure = _pure_sdists(name, environment, packages)
    _check_match_runtime(name, environment, packages)
    build_wheels = {
        requires: resolve_build_requires(request, requires, packages, indexes)
        for requires in specification.build_requires
    }
    lock = Lock(
        environment=name,
        specification=specification,
        exclude_newer=instants.exclude_newer,
        exclude_newer_package=instants.packages,
        resolver=uvtool.resolver(),
        packages=packages,
        build_wheels=build_wheels,
    )
    built = {
        package.name: _build(environment, package, lock, (old, base), builder) for package in pure
    }
    return msgspec.structs.replace(lock, built=built)


def _existing(project: Project, name: str, times: Times) -> Lock | None:
    """Read the lock that is there; one that is damaged only counts as none when that is asked for.

    Raises:
        InputError: it cannot be read, and its instant would be lost unseen; or it is of another
            version of the format, which is never written over.
    """
    path = project.lock_file(name)
    if not path.exists():
        return None
    data = typed.read(path, "lock")
    try:
        return lockfile.parse(data, path, name)
    except InputError:
        if not (times.upgrade or times.exclude_newer):
            raise
    try:
        document = typed.parse(data, path)
    except InputError:
        return None
    lockfile.check_versions(document, path)
    return None


def base_of(project: Project, environment: Environment) -> Lock | None:
    """Read the lock that an environment stands on, if it stands on any.

    Raises:
        InputError: it is not there, or cannot be read.
    """
    if environment.base is None:
        return None
    return lockfile.read(project.lock_file(environment.base), environment.base)


def _instants(name: str, old: Lock | None, base: Lock | None, times: Times) -> Instants:
    """Work out as of when to resolve.

    A base is kept version by version, which can only be had as of its own instants or later. They
    count when its packages are others than those that the old lock keeps.
    """
    exclude_newer = times.exclude_newer or midnight()
    packages: dict[str, str] = {}
    if old is not None and not times.upgrade and times.exclude_newer is None:
        exclude_newer = old.exclude_newer
        packages = old.exclude_newer_package | dict.fromkeys(times.upgrade_packages, midnight())
    if base is not None and (old is None or _moved(old, base, exclude_newer)):
        exclude_newer = _not_before(base, exclude_newer, name, times)
        for package, instant in base.exclude_newer_package.items():
            packages[package] = max(instant, packages.get(package, instant))
    later = {package: time for package, time in packages.items() if time > exclude_newer}
    return Instants(exclude_newer, later)


def _moved(old: Lock, base: Lock, exclude_newer: str) -> bool:
    """Whether a base is another than the old lock kept, or the instant another than its own."""
    return (
        old.specification.base_sha256 != base.packages_sha256 or exclude_newer != old.exclude_newer
    )


def _not_before(base: Lock, exclude_newer: str, name: str, times: Times) -> str:
    if times.exclude_newer is not None and exclude_newer < base.exclude_newer:
        raise InputError(
            f"--exclude-newer: {name} cannot be older than the base that it stands on",
            where=f"locks/pylock.{base.environment}.toml",
            expected=f"{base.exclude_newer} or later",
            found=exclude_newer,
            mend=f"lock {base.environment} as of that instant too",
        )
    return max(exclude_newer, base.exclude_newer)


def _check_upgraded(packages: Sequence[str], locks: Sequence[Lock | None]) -> None:
    """Hold the packages to upgrade to those of the locks as they were or will be."""
    held = {artifact.project for lock in locks if lock is not None for artifact in lock.files()}
    for package in packages:
        if package not in held:
            near = difflib.get_close_matches(package, held, n=1)
            raise InputError(
                f"--upgrade: no lock holds a package named {package}",
                expected=f"did you mean {near[0]}?" if near else "a package of one of the locks",
                mend="name a package, or an environment to upgrade all of it",
            )


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


def _check_match_runtime(
    name: str, environment: Environment, packages: Sequence[LockedPackage]
) -> None:
    """Hold what CUDA builds need of the environment to what it has."""
    names = {package.name for package in packages}
    for key, package in not_locked(environment, names):
        near = difflib.get_close_matches(package, names, n=1)
        raise InputError(
            f"{key}: the lock holds no package {package}",
            where=f"envs/{name}.toml",
            expected=f"did you mean {near[0]}?" if near else "a package of the environment",
            mend=f"correct the name, or add {package} to requirements",
        )


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


def _pin(name: str, environment: Environment, pins: Mapping[str, Pin]) -> Pin:
    """Return the pin of an environment's interpreter, looked up where there is none yet."""
    try:
        return pins.get(environment.python) or interpreters.find(environment.python)
    except InputError as error:
        raise InputError(
            f"python: {error.what}",
            where=f"envs/{name}.toml",
            expected=error.expected,
            found=error.found,
            mend=error.mend,
        ) from error


def _write_pins(project: Project, pins: Mapping[str, Pin], there: Mapping[str, Pin]) -> None:
    """Pin every declared environment's interpreter.

    Args:
        project: the project.
        pins: those to keep as they are; builds change only when asked to.
        there: those of the file, all of which stay while an environment cannot be read.
    """
    wanted: dict[str, Pin] = {}
    for name in project.environment_names:
        try:
            pin = _pin(name, project.environment(name), pins)
        except InputError:
            wanted = {**there, **wanted}
        else:
            wanted[pin.version] = pin
    path = project.interpreters_file
    path.parent.mkdir(exist_ok=True)
    _write_changed(path, interpreters.serialize(wanted.values()))


def _write(project: Project, old: Lock | None, new: Lock) -> Change:
    written = _write_changed(project.lock_file(new.environment), lockfile.serialize(new))
    return _change(old, new, written=written)


def _write_changed(path: Path, data: bytes) -> bool:
    """Write a file unless it is as it should be; return whether it was written."""
    if path.exists() and path.read_bytes() == data:
        return False
    durable.write(path, data)
    return True


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
