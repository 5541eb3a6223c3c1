"""Creating a site's prefixes: what is right is kept, what is not is built anew."""

from __future__ import annotations

import datetime
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Literal

import msgspec

from envbuild import __version__, progress, uvtool
from envbuild.catalog.environment import Environment
from envbuild.catalog.project import Project
from envbuild.catalog.site import Layout
from envbuild.digest import sha256_bytes
from envbuild.errors import EnvbuildError, InputError, PreflightError, StepError
from envbuild.lock import drift, interpreters, lockfile
from envbuild.lock.interpreters import Pin
from envbuild.lock.lockfile import Lock
from envbuild.owner import Owner
from envbuild.prefix import (
    aside,
    compiled,
    install,
    interpreter,
    locked,
    preflight,
    receipt,
    subjects,
    transaction,
    usage,
)
from envbuild.prefix import build as building
from envbuild.prefix import journal as journals
from envbuild.prefix.aside import Mode, Probe
from envbuild.prefix.install import Settings
from envbuild.prefix.interpreter import Interpreter
from envbuild.prefix.receipt import Receipt
from envbuild.prefix.supply import Supply
from envbuild.prefix.usage import Patience

# why a prefix is not what it should be when a quick look is all that says so
CHANGED = "the prefix was changed since it was checked"


class Plan(msgspec.Struct, frozen=True):
    """What is to be done for one environment.

    Attributes:
        name: the environment's name.
        environment: what its file says.
        lock: its lock.
        lock_sha256: of the lock's file.
        pin: its pinned interpreter.
        prefix: the final path.
        reason: why it must be built; None where what is there is right.
        rebuild: whether it is built even if what is there is right.
    """

    name: str
    environment: Environment
    lock: Lock
    lock_sha256: str
    pin: Pin
    prefix: Path
    reason: str | None
    rebuild: bool


class Outcome(msgspec.Struct, frozen=True):
    """What became of one environment.

    Attributes:
        name: the environment's name.
        prefix: its path.
        state: what was done.
        reason: why it was built, or why it failed.
        seconds: how long that took.
        receipt: what is known of the prefix now, if it is good.
        archived: where the prefix that stood there before is now.
        error: what went wrong.
    """

    name: str
    prefix: Path
    state: Literal["kept", "built", "would build", "failed"]
    reason: str = ""
    seconds: float = 0.0
    receipt: Receipt | None = None
    archived: Path | None = None
    error: EnvbuildError | None = None


def plan(project: Project, layout: Layout, name: str, *, rebuild: bool = False) -> Plan:
    """Decide whether an environment's prefix is right: by its receipt and a quick look.

    Args:
        project: the project.
        layout: the site.
        name: the environment.
        rebuild: build it whatever is there.

    Raises:
        InputError: it has no lock, the lock is stale, or the site does not build it.
    """
    prefix = layout.prefix(name)
    environment = project.environment(name)
    locks, findings = drift.check(project, [name])
    stale = [one for one in findings if one.severity == "error" and one.code != drift.ORPHAN]
    if stale:
        first = stale[0]
        raise InputError(
            f"the lock of {name} is stale: {first.message}",
            where=first.where,
            expected=first.expected,
            found=first.found,
            mend=first.mend,
        )
    one = Plan(
        name=name,
        environment=environment,
        lock=locks[name],
        lock_sha256=sha256_bytes(lockfile.serialize(locks[name])),
        pin=interpreters.read(project.interpreters_file)[environment.python],
        prefix=prefix,
        reason=None,
        rebuild=rebuild,
    )
    reason = "asked for with --rebuild" if rebuild else judged(layout, one)
    return msgspec.structs.replace(one, reason=reason)


def judged(layout: Layout, one: Plan) -> str | None:
    """Say why what stands at a plan's prefix is not what it should be; None if it is."""
    if journals.path(layout.bookkeeping, one.name).exists():
        return "an earlier run was interrupted"
    if layout.site.rebuild == "always" and compiled.packages(one.lock):
        return "the site compiles its wheels at each create"
    known = receipt.read(layout.bookkeeping, one.name)
    if known is not None and known.interpreter.origin == "fallback" and not _unpinned(layout):
        return "it stands on an interpreter that the site does not allow"
    return judge(
        known,
        one.prefix,
        lock_sha256=one.lock_sha256,
        declared_sha256=declared_sha256(one.environment, layout, one.pin),
    )


def _unpinned(layout: Layout) -> bool:
    """Whether an installed CPython may stand in for the pinned one."""
    return layout.site.unpinned_interpreter or layout.rehearsal


def judge(
    known: Receipt | None, prefix: Path, *, lock_sha256: str, declared_sha256: str
) -> str | None:
    """Say why a prefix is not what it should be; None if it is.

    Args:
        known: its receipt, if there is one.
        prefix: its path.
        lock_sha256: of the lock that it should be built from.
        declared_sha256: of what is declared besides; see `declared_sha256`.
    """
    if not prefix.exists():
        return "there is no prefix yet"
    if known is None or known.prefix != str(prefix):
        return "the prefix has no receipt"
    if known.lock_sha256 != lock_sha256:
        return "the lock has changed"
    if known.declared_sha256 != declared_sha256:
        return "its checks, projects, interpreter or site have changed"
    if known.look != receipt.look(prefix, Path(known.interpreter.path)):
        return CHANGED
    return None


def declared_sha256(environment: Environment, layout: Layout, pin: Pin) -> str:
    """Return the digest of what decides a prefix besides its lock."""
    declared = (
        environment.checks,
        environment.editable,
        {name: build for name, build in environment.build.items() if build.kind == "cuda"},
        layout.site.link_mode,
        layout.name,
        layout.rehearsal,
        pin,
    )
    return sha256_bytes(msgspec.json.encode(declared, order="deterministic"))


def create(
    project: Project,
    layout: Layout,
    names: Sequence[str],
    supply: Supply,
    *,
    me: Owner,
    patience: Patience,
    rebuild: bool = False,
    dry_run: bool = False,
    say: Callable[[str], None] = lambda _line: None,
) -> list[Outcome]:
    """Bring prefixes to what their locks say.

    One that fails leaves the others alone, and its own old prefix where it was.

    Args:
        project: the project.
        layout: the site.
        names: the environments.
        supply: where artifacts come from.
        me: who does it, for locks.
        patience: what to do while another run is at work, or a prefix is in use.
        rebuild: build even what is right.
        dry_run: only say what would be done.
        say: is told what is going on, a line at a time.

    Raises:
        InputError: the site does not build an environment.
        PreflightError: the place is not the site that it should be.
        StepError: what several need could not be downloaded.
    """
    outcomes: dict[str, Outcome] = {}
    plans: list[Plan] = []
    for name in names:
        prefix = layout.prefix(name)
        try:
            plans.append(plan(project, layout, name, rebuild=rebuild))
        except EnvbuildError as error:
            outcomes[name] = _failed(name, prefix, error)
    outcomes |= {one.name: _kept(layout, one) for one in plans if one.reason is None}
    todo = [one for one in plans if one.reason is not None]
    if dry_run:
        outcomes |= {
            one.name: Outcome(one.name, one.prefix, "would build", one.reason or "") for one in todo
        }
    elif todo:
        outcomes |= _build_all(Run(layout, supply, me, patience, say), todo)
        _hand_out(layout, outcomes, say)
    return [outcomes[name] for name in names]


class Run(msgspec.Struct, frozen=True):
    """Where and how prefixes are built, the same for all of one run."""

    layout: Layout
    supply: Supply
    me: Owner
    patience: Patience
    say: Callable[[str], None]

    def locked(self, name: str) -> AbstractContextManager[None]:
        """Return the lock of an environment."""
        return locked.locked(self.layout, name, self.me, self.patience, self.say)


def _build_all(run: Run, plans: Sequence[Plan]) -> dict[str, Outcome]:
    """Build what is to be built, each on its own, after one download of all that they need."""
    layout = run.layout
    notes = preflight.check_site(layout)
    outcomes: dict[str, Outcome] = {}
    pythons: dict[str, tuple[Interpreter, list[str]]] = {}
    for one in plans:
        # before anything large is downloaded: what can refuse, refuses now
        with _caught(outcomes, one):
            compiled.check(layout, one.environment, one.lock)
            preflight.check_glibc(layout, one.environment.glibc_minor, one.name)
            preflight.check_root(layout, one.prefix)
            usage.refuse_if_used(layout.bookkeeping, one.name, run.patience)
            _projects(one, run)
            pythons[one.name] = _interpreter(one, run)
    builds = [one for one in plans if one.name in pythons]
    for one in _fetched(builds, run, outcomes):
        python, more = pythons[one.name]
        with _caught(outcomes, one), run.locked(one.name):
            outcomes[one.name] = _build_locked(one, run, python, [*notes, *more])
    return outcomes


@contextmanager
def _caught(outcomes: dict[str, Outcome], one: Plan) -> Iterator[None]:
    """Let what goes wrong with one environment be its outcome, and no other's."""
    try:
        yield
    except EnvbuildError as error:
        outcomes[one.name] = _failed(one.name, one.prefix, error)
    except OSError as error:
        failure = StepError(error.strerror or str(error), where=error.filename or one.prefix)
        outcomes[one.name] = _failed(one.name, one.prefix, failure)


def _hand_out(layout: Layout, outcomes: Mapping[str, Outcome], say: Callable[[str], None]) -> None:
    """Put the receipts of what was built where the site wants them too."""
    built = [one.receipt for one in outcomes.values() if one.state == "built" and one.receipt]
    if built and layout.site.receipts is not None:
        folder = receipt.hand_out(built, str(layout.path(layout.site.receipts)))
        say(f"receipts: {folder}")


def _fetched(plans: list[Plan], run: Run, outcomes: dict[str, Outcome]) -> list[Plan]:
    """Download what all need at once; if that fails, find out which of them can go on."""
    try:
        run.supply.fetch([one.lock for one in plans])
    except EnvbuildError:
        for one in plans:
            with _caught(outcomes, one):
                run.supply.fetch([one.lock])
        return [one for one in plans if one.name not in outcomes]
    return plans


def _build_locked(one: Plan, run: Run, python: Interpreter, notes: list[str]) -> Outcome:
    """See whether another run, or one that was interrupted, has built it; else build it."""
    layout = run.layout
    if not one.rebuild and judged(layout, one) is None:
        return _kept(layout, one)
    probe = _probe(layout, one.prefix)
    if probe.why is not None:
        note = f"built {probe.mode}: {probe.why}"
        run.say(f"{one.name}: {note}")
        notes = [*notes, note]
    one = msgspec.structs.replace(one, lock=_compiled(one, run, python))
    run.say(f"{one.name}: building {one.prefix} ({one.reason})")
    with progress.bar(f"building {one.name}", None):
        return _build(one, run, python, notes, probe.mode)


def _compiled(one: Plan, run: Run, python: Interpreter) -> Lock:
    """Return the lock with compiled wheels in place of the sdists that are compiled here."""
    if not compiled.packages(one.lock):
        return one.lock
    return compiled.complete(_target(one, run, python), run.layout.site.rebuild)


def _target(one: Plan, run: Run, python: Interpreter) -> compiled.Target:
    return compiled.Target(
        layout=run.layout,
        name=one.name,
        environment=one.environment,
        lock=one.lock,
        python=python,
        supply=run.supply,
        me=run.me,
        patience=run.patience,
        say=run.say,
    )


def wheel(
    project: Project,
    layout: Layout,
    name: str,
    package: str,
    supply: Supply,
    *,
    me: Owner,
    patience: Patience,
    rebuild: bool = False,
    say: Callable[[str], None] = lambda _line: None,
) -> compiled.Made:
    """Compile the wheel of a package as `create` would, or take it from the root's store.

    Args:
        project: the project.
        layout: the site.
        name: the environment.
        package: a package of its lock that is compiled on the target system.
        supply: where artifacts come from.
        me: who does it, for locks.
        patience: what to do while another run is at work.
        rebuild: compile every file anew.
        say: is told what is going on, a line at a time.

    Raises:
        InputError, PreflightError, StepError, CheckFailedError: as `create` and
            `compiled.complete`.
    """
    one = plan(project, layout, name)
    run = Run(layout, supply, me, patience, say)
    preflight.check_site(layout)
    compiled.check(layout, one.environment, one.lock)
    preflight.check_glibc(layout, one.environment.glibc_minor, name)
    preflight.check_root(layout, one.prefix)
    python, _ = _interpreter(one, run)
    policy: compiled.Policy = "anew" if rebuild else layout.site.rebuild
    return compiled.wheel(_target(one, run, python), package, policy)


def _probe(layout: Layout, prefix: Path) -> Probe:
    """Find out how a new prefix can get to its place."""
    if layout.site.link_mode != "copy":
        return Probe("in place", "no link leads from a cache into a private mount")
    if layout.bookkeeping.stat().st_dev != prefix.parent.stat().st_dev:
        if prefix.exists():
            raise PreflightError(
                "what stands there cannot be archived: it is on another file system than the root",
                where=prefix,
                expected=f"a prefix on the file system of {layout.root}",
                found=f"{prefix.parent} on another one",
                mend="put `prefix` below the root in the site's file, or move that prefix away",
            )
        return Probe("in place", f"{prefix.parent} is on another file system than the root")
    return aside.probe(layout.bookkeeping)


def _kept(layout: Layout, one: Plan) -> Outcome:
    return Outcome(one.name, one.prefix, "kept", receipt=receipt.read(layout.bookkeeping, one.name))


def _failed(name: str, prefix: Path, error: EnvbuildError) -> Outcome:
    return Outcome(name, prefix, "failed", error.what, error=error)


def _interpreter(one: Plan, run: Run) -> tuple[Interpreter, list[str]]:
    """Return the pinned interpreter, installed if need be, or what may stand in for it."""
    layout, supply = run.layout, run.supply
    folder = layout.interpreters
    managed = interpreter.installed(one.pin, folder)
    if managed is not None:
        return managed, []
    try:
        archive = supply.interpreter(one.pin)
    except EnvbuildError as error:
        if not _unpinned(layout):
            raise PreflightError(
                f"{one.name} needs the pinned Python {one.pin.version}, which cannot be had",
                where=f"site {layout.name}",
                expected=f"{one.pin.file} in {supply.wheelhouse.path}",
                found=error.what,
                mend="fetch it where the network reaches it and copy it into that folder",
                detail=str(error),
            ) from error
        chosen = interpreter.fallback(
            interpreter.find(one.environment.minor),
            one.environment.requires_python,
            environment=one.name,
            why=error.what,
        )
        note = (
            f"the pinned Python {one.pin.version} cannot be had ({error.what}); "
            f"{chosen.version} at {chosen.path} stands in"
        )
        run.say(f"{one.name}: {note}")
        return chosen, [note]
    # waited for in any case: another environment's run may be installing it, which takes seconds
    lasting = Patience(math.inf)
    with locked.locked(layout, f"cpython-{one.pin.version}", run.me, lasting, run.say):
        managed = interpreter.installed(one.pin, folder)
        return managed or interpreter.install(one.pin, archive, folder), []


def _build(one: Plan, run: Run, python: Interpreter, notes: list[str], mode: Mode) -> Outcome:
    begun = time.monotonic()
    layout, supply = run.layout, run.supply
    temporary = preflight.temporary(layout)
    if temporary is not None:
        temporary.mkdir(parents=True, exist_ok=True)
    supply.build_sdists(one.lock, Path(python.path))
    size, files = supply.unpacked(one.lock)
    preflight.check_space(layout.root, size=size, files=files, environment=one.name)
    projects, passed_over = _projects(one, run)
    job = building.Job(
        name=one.name,
        prefix=str(one.prefix),
        root=str(layout.root),
        interpreter=python,
        lock=one.lock,
        wheelhouse=str(supply.wheelhouse.path),
        projects=projects,
        checks=one.environment.checks,
        subject=msgspec.structs.replace(
            subjects.of(
                layout,
                one.name,
                one.environment,
                site_file=f"site {layout.name}",
                base=subjects.base(layout, python, one.pin, full=True),
            ),
            unfinished=(),  # this very run
        ),
        ignored=subjects.ignored(layout),
        settings=Settings(
            link_mode=layout.site.link_mode,
            work="",
            uv_cache=str(layout.path(layout.site.uv_cache)) if layout.site.uv_cache else None,
            temporary=None if temporary is None else str(temporary),
        ),
    )

    def build(work: Path, staging: Path | None) -> Receipt:
        built = building.run(job, work, staging)
        return Receipt(
            environment=one.name,
            site=layout.name,
            root=str(layout.root),
            prefix=str(one.prefix),
            rehearsal=layout.rehearsal,
            lock_sha256=one.lock_sha256,
            declared_sha256=declared_sha256(one.environment, layout, one.pin),
            interpreter=python,
            distributions=built.distributions,
            host=preflight.host(),
            audit=built.audit,
            checks=built.checks,
            seconds=built.seconds,
            tools={"envbuild": __version__, "uv": uvtool.resolver().removeprefix("uv ")},
            created=datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            mode=mode,
            manifest_sha256=built.manifest_sha256,
            written=built.written,
            modes=built.modes,
            notes=(*notes, *passed_over),
            look=built.look,
        )

    done = transaction.replace(
        layout.bookkeeping,
        one.name,
        one.prefix,
        mode=mode,
        build=build,
        swapping=lambda: usage.swapping(
            layout.bookkeeping, one.name, run.me, run.patience, run.say
        ),
    )
    return Outcome(
        one.name,
        one.prefix,
        "built",
        one.reason or "",
        round(time.monotonic() - begun, 3),
        done.receipt,
        done.archived,
    )


def _projects(one: Plan, run: Run) -> tuple[tuple[building.Project, ...], list[str]]:
    """Return the editable projects that are there, and notes about those that are not."""
    projects, notes = [], []
    for editable in one.environment.editable:
        folder = install.project_folder(run.layout.root, editable)
        if folder is None:
            notes.append(f"no project at {run.layout.root / editable.path}: passed over")
            continue
        wheels = run.supply.build_wheels(one.lock, editable.requires)
        projects.append(building.Project(editable, str(folder), tuple(map(str, wheels))))
    return tuple(projects), notes
