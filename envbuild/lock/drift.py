"""Whether locks are still what the environments declare, in levels from quick to thorough."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Protocol

from envbuild import typed, uvtool
from envbuild.artifacts import Artifact
from envbuild.catalog.environment import Environment
from envbuild.catalog.project import Project
from envbuild.errors import InputError, StepError
from envbuild.findings import Finding
from envbuild.lock import debian, images, interpreters, lockfile
from envbuild.lock.lockfile import Lock, difference
from envbuild.lock.specification import Specification, not_locked, requirements_of, specify

if TYPE_CHECKING:
    from envbuild.artifacts.control import Archives
    from envbuild.artifacts.index import Absent, IndexFile
    from envbuild.lock.update import Builder

# The codes, each with what it means; docs/drift.md explains them.
MISSING = "D001"
UNREADABLE = "D002"
SPECIFICATION = "D003"
BASE = "D004"
INTERPRETER = "D005"
RESOLVER = "D006"
ORPHAN = "D007"
RESOLUTION = "D008"
INDEX = "D009"
DEBIAN = "D010"
DEBIAN_GONE = "D011"
IMAGE = "D012"
FLAKE = "D013"


class Source(Protocol):
    """An index that can be asked for a file."""

    def look_up(self, artifact: Artifact) -> IndexFile | Absent:
        """Return the file of that name and hash, or that it is not offered."""


def check(project: Project, names: Sequence[str]) -> tuple[dict[str, Lock], list[Finding]]:
    """Compare locks with the environments' files; milliseconds, no network, no resolver.

    Args:
        project: the project.
        names: the environments to check.

    Returns:
        The locks that could be read, and the findings.

    Raises:
        InputError: an environment's own file is wrong.
    """
    pins = interpreters.read(project.interpreters_file)
    environments = {name: project.environment(name) for name in names}
    bases = {one.base for one in environments.values() if one.base is not None}
    read = {name: _read(project, name) for name in {*names, *bases}}
    findings: list[Finding] = []
    for name, environment in environments.items():
        if environment.python not in pins:
            findings.append(_without_pin(name, environment.python))
        lock = read[name]
        if isinstance(lock, Finding):
            findings.append(lock)
        else:
            base = None if environment.base is None else read[environment.base]
            findings += _declared_drift(lock, environment, base)
    findings += _debian_drift(project, environments)
    if set(names) == set(project.environment_names):
        findings += _orphans(project)
        findings += _flake_drift(project)
    return {n: lock for n in names if isinstance(lock := read[n], Lock)}, findings


def _without_pin(name: str, python: str) -> Finding:
    return Finding(
        INTERPRETER,
        "error",
        _declared(name),
        f"Python {python} of {name} has no pin",
        expected="one in locks/interpreters.toml",
        mend="run `envbuild lock`",
    )


def _declared_drift(
    lock: Lock, environment: Environment, base: Lock | Finding | None
) -> Iterator[Finding]:
    """Find what differs between a lock and what its environment and its base say now."""
    name = lock.environment
    if isinstance(base, Finding):
        yield Finding(
            BASE,
            "error",
            _where(name),
            f"the lock of the base {environment.base} cannot be kept: {base.message}",
            mend=base.mend,
        )
        return
    if base is not None:
        yield from _base_drift(lock, base)
    base_sha256 = None if base is None else base.packages_sha256
    declared = specify(environment, base_sha256=base_sha256)
    yield from _specification_drift(lock, declared)
    if lock.specification == declared:
        yield from _runtime_drift(lock, environment)
    if lock.resolver != uvtool.resolver():
        yield Finding(
            RESOLVER,
            "warning",
            _where(name),
            "made by another resolver than the one that envbuild pins",
            expected=uvtool.resolver(),
            found=lock.resolver,
            mend=f"run `envbuild lock {name}`",
        )


def _debian_drift(project: Project, environments: Mapping[str, Environment]) -> Iterator[Finding]:
    """Find Debian packages that images need and nothing pins; and pins that are none."""
    path = debian.pins_file(project)
    there = path.exists()
    try:
        pins = debian.read(path)
    except InputError as error:
        mend = error.mend or f"restore it from version control, or remove it and {debian.MEND}"
        yield Finding(
            UNREADABLE, "error", debian.FILE, error.what, error.expected, error.found, mend
        )
        return
    written = typed.read(path, "Debian pins").replace(b"\r\n", b"\n") if there else b""
    if there and debian.serialize(pins.values()) != written:
        yield Finding(
            UNREADABLE,
            "error",
            debian.FILE,
            "not in canonical form: edited by hand",
            mend=debian.MEND,
        )
    for name, users in debian.required(environments).items():
        # a project that has no pins and asks for no package builds no images yet
        if name not in pins and (there or users):
            yield Finding(
                DEBIAN,
                "error",
                ", ".join(map(_declared, users)) or debian.FILE,
                f"the Debian package {name}, which an image needs, is not pinned",
                expected=f"it in {debian.FILE}",
                mend=debian.MEND,
            )


def check_debian(project: Project, archives: Archives | None) -> list[Finding]:
    """Ask whether Debian's archives still offer every pinned package.

    Args:
        project: the project.
        archives: what they offer; None where none is configured.

    Raises:
        InputError: the pins cannot be read.
    """
    pins = debian.read(debian.pins_file(project)).values()
    if archives is None:
        what = f"no archive of Debian's {debian.RELEASE} is configured: none was asked for the pins"
        mend = "set ENVBUILD_DEBIAN_MIRROR, as docs/drift.md says"
        return [Finding(DEBIAN_GONE, "warning", debian.FILE, what, mend=mend)] if pins else []
    findings = []
    for package in debian.gone(pins, archives):
        now = archives.find(package.name)
        findings.append(
            Finding(
                DEBIAN_GONE,
                "warning",
                debian.FILE,
                f"{package.name} {package.version} has gone from the mirror",
                found=None if now is None else now.version,
                mend=f"{debian.MEND}, or keep {package.file} in the wheelhouse",
            )
        )
    return findings


def check_resolution(
    project: Project,
    locks: Mapping[str, Lock],
    *,
    indexes: Sequence[str],
    builder: Builder,
    advance: Callable[[int], None] = lambda _done: None,
) -> list[Finding]:
    """Resolve again at the recorded instants: the same bytes must come out.

    Args:
        project: the project.
        locks: the locks, as `check` read them.
        indexes: index URLs, the default one last.
        builder: builds pure-Python sdists that the locks do not pin yet.
        advance: called with 1 after each lock.

    Raises:
        StepError: the index did not answer or refused, or something else failed: no drift.
    """
    # what resolving imports takes longer than the whole of `check`
    from envbuild.lock.resolve import unsolvable
    from envbuild.lock.update import Instants, base_of, relock

    def one(name: str) -> list[Finding]:
        lock, environment = locks[name], project.environment(name)
        mend = f"run `envbuild lock {name}`"
        try:
            again = relock(
                name,
                environment,
                Instants.of(lock),
                old=lock,
                base=base_of(project, environment),
                indexes=indexes,
                builder=builder,
            )
        except (InputError, StepError) as error:
            if isinstance(error, StepError) and not unsolvable(error):
                raise
            return [Finding(RESOLUTION, "error", _where(name), str(error), mend=mend)]
        finally:
            advance(1)
        return [
            Finding(RESOLUTION, "error", _where(name), f"resolved anew: {what}", mend=mend)
            for what in _differences(lock, again)
        ]

    with ThreadPoolExecutor(max_workers=4) as pool:
        return [finding for findings in pool.map(one, locks) for finding in findings]


def check_index(
    locks: Mapping[str, Lock],
    source: Source,
    *,
    advance: Callable[[int], None] = lambda _done: None,
) -> list[Finding]:
    """Ask the index for every file: still offered, with the same hash, not yanked.

    Args:
        locks: the locks, as `check` read them.
        source: the index.
        advance: called with 1 after each file.

    Raises:
        StepError: the index did not answer or refused, which says nothing of the files.
    """
    from envbuild.artifacts.index import Absent

    users: dict[Artifact, list[str]] = {}
    for name, lock in locks.items():
        for artifact in lock.files():
            users.setdefault(artifact, []).append(name)

    def one(item: tuple[Artifact, list[str]]) -> Finding | None:
        artifact, names = item
        where = ", ".join(_where(name) for name in names)
        try:
            answer = source.look_up(artifact)
        finally:
            advance(1)
        if isinstance(answer, Absent):
            what = f"{artifact.file}: {answer.what}"
            return Finding(INDEX, "error", where, what, answer.expected, answer.found, answer.mend)
        if answer.yanked is None:
            return None
        reason = f": {answer.yanked}" if answer.yanked else ""
        mend = f"run `envbuild lock --upgrade {artifact.project} {' '.join(names)}`"
        return Finding(INDEX, "error", where, f"{artifact.file} was yanked{reason}", mend=mend)

    with ThreadPoolExecutor(max_workers=16) as pool:
        return [finding for finding in pool.map(one, sorted(users.items())) if finding]


def summary(findings: Iterable[Finding], names: Sequence[str]) -> str:
    """Count the environments that errors concern; and name what concerns none of them."""
    errors = [finding for finding in findings if finding.severity == "error"]
    orphans = {finding.where for finding in errors if finding.code == ORPHAN}
    places = {place for one in errors if one.code != ORPHAN for place in one.where.split(", ")}
    drifted = [name for name in names if places & {_where(name), _declared(name)}]
    counted = f"drift in {len(drifted)} of {len(names)} environments"
    others = []
    if debian.FILE in places:
        others.append("the pins of Debian packages")
    if images.FILE in places:
        others.append("the recorded images")
    if any(one.code == FLAKE for one in errors):
        others.append("the flake's lock")
    if orphans:
        word = "lock" if len(orphans) == 1 else "locks"
        others.append(f"{len(orphans)} {word} without an environment")
    if not others:
        return counted
    *most, last = others
    listed = f"{', '.join(most)} and {last}" if most else last
    return f"{counted}, and {listed}" if drifted else f"drift: {listed}"


def _declared(name: str) -> str:
    return f"envs/{name}.toml"


def _where(name: str) -> str:
    return f"locks/pylock.{name}.toml"


def _read(project: Project, name: str) -> Lock | Finding:
    """Read a lock, and hold it to its canonical form: one edited by hand is found."""
    path = project.lock_file(name)
    mend = f"run `envbuild lock {name}`"
    if not path.exists():
        return Finding(MISSING, "error", _where(name), f"{name} has no lock", mend=mend)
    try:
        data = typed.read(path, "lock")
        lock = lockfile.parse(data, path, name)
    except InputError as error:
        return Finding(
            UNREADABLE,
            "error",
            _where(name),
            error.what,
            error.expected,
            error.found,
            error.mend or mend,
        )
    if lockfile.serialize(lock) != data.replace(b"\r\n", b"\n"):
        return Finding(
            UNREADABLE, "error", _where(name), "not in canonical form: edited by hand", mend=mend
        )
    return lock


def _specification_drift(lock: Lock, declared: Specification) -> Iterator[Finding]:
    if lock.specification == declared:
        return
    for message in _in_words(lock.specification, declared):
        yield Finding(
            SPECIFICATION,
            "error",
            _declared(lock.environment),
            f"{message} since the lock was made",
            mend=f"run `envbuild lock {lock.environment}`",
        )


def _runtime_drift(lock: Lock, environment: Environment) -> Iterator[Finding]:
    """Find what CUDA builds need of the environment that the lock does not hold."""
    for key, package in not_locked(environment, {package.name for package in lock.packages}):
        yield Finding(
            SPECIFICATION,
            "error",
            _declared(lock.environment),
            f"{key}: the lock holds no package {package}",
            mend=f"correct the name, or add {package} to requirements",
        )


def _in_words(locked: Specification, declared: Specification) -> Iterator[str]:
    """Say what changed between two specifications, as the person who changed it would."""
    if locked.requires_python != declared.requires_python:
        yield f"Python changed from {locked.requires_python} to {declared.requires_python}"
    if locked.platform != declared.platform:
        yield f"platform changed from {locked.platform} to {declared.platform}"
    for word, key in (
        ("requirement", "requirements"),
        ("override", "overrides"),
        ("exclude", "excludes"),
        ("build requirements", "build_requires"),
    ):
        yield from _list_in_words(word, getattr(locked, key), getattr(declared, key))
    for word, key in (("static metadata of", "static_metadata"), ("build of", "builds")):
        before, after = getattr(locked, key), getattr(declared, key)
        for name in sorted(before.keys() | after.keys()):
            if name not in before:
                yield f"{word} {name} added"
            elif name not in after:
                yield f"{word} {name} removed"
            elif before[name] != after[name]:
                yield f"{word} {name} changed"
    if locked.base != declared.base:
        yield f"base changed from {locked.base or 'none'} to {declared.base or 'none'}"
    elif locked.base_sha256 != declared.base_sha256:
        yield f"the lock of the base {declared.base} changed"


def _list_in_words(word: str, before: Sequence[str], after: Sequence[str]) -> Iterator[str]:
    gone, come = set(before) - set(after), set(after) - set(before)
    for name, old in sorted((_name(text), text) for text in gone):
        new = next((text for text in come if _name(text) == name), None)
        if new is None:
            yield f"{word} removed: {old}"
        else:
            come.discard(new)
            yield f"{word} changed: {old} -> {new}"
    for text in sorted(come):
        yield f"{word} added: {text}"


def _name(requirement: str) -> str:
    from packaging.requirements import Requirement

    # sets of both kinds may have the same names
    requirements, beside = requirements_of(requirement)
    return f"{beside} {' & '.join(Requirement(part).name for part in requirements)}"


def _base_drift(lock: Lock, base: Lock) -> Iterator[Finding]:
    """Find packages of the base that the lock does not keep, version and hash."""
    own = {package.name: package for package in lock.packages}
    for package in base.packages:
        kept = own.get(package.name)
        if kept != package:
            what = "is missing" if kept is None else "differs: " + difference(package, kept)
            yield Finding(
                BASE,
                "error",
                _where(lock.environment),
                f"{package.name} {package.version} of the base {base.environment} {what}",
                mend=f"run `envbuild lock {lock.environment}`",
            )


def _orphans(project: Project) -> Iterator[Finding]:
    names = set(project.environment_names)
    for path in sorted((project.folder / "locks").glob("pylock.*.toml")):
        name = path.name.removeprefix("pylock.").removesuffix(".toml")
        if name not in names:
            yield Finding(
                ORPHAN,
                "error",
                _where(name),
                "a lock without an environment",
                expected=_declared(name),
                mend=f"remove the lock, or declare {name}",
            )


def _flake_drift(project: Project) -> list[Finding]:
    # few projects are flakes
    if not any((project.folder / name).exists() for name in ("flake.nix", "flake.lock")):
        return []
    from envbuild.lock import flake

    return flake.drift(project.folder)


def _differences(lock: Lock, again: Lock) -> Iterator[str]:
    if lockfile.serialize(lock) == lockfile.serialize(again):
        return
    before = {package.name: package for package in lock.packages}
    after = {package.name: package for package in again.packages}
    said = False
    for name in sorted(before.keys() | after.keys()):
        if name not in after:
            yield f"{name} {before[name].version} is no longer needed"
        elif name not in before:
            yield f"{name} {after[name].version} is needed too"
        elif before[name] != after[name]:
            yield difference(before[name], after[name])
        else:
            continue
        said = True
    for requires in lock.build_wheels.keys() | again.build_wheels.keys():
        if lock.build_wheels.get(requires) != again.build_wheels.get(requires):
            yield f"build requirements {requires} differ"
            said = True
    if not said:
        yield "the bytes differ"
