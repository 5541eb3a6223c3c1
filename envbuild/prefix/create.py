"""Creating a site's prefixes: what is right is kept, what is not is built anew."""

from __future__ import annotations

import datetime
import os
import platform
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import msgspec

from envbuild import __version__, progress, uvtool
from envbuild.catalog.environment import Environment
from envbuild.catalog.project import Project
from envbuild.catalog.site import Layout
from envbuild.digest import sha256_bytes
from envbuild.errors import EnvbuildError, InputError, PreflightError
from envbuild.lock import drift, interpreters, lockfile
from envbuild.lock.interpreters import Pin
from envbuild.lock.lockfile import Lock
from envbuild.prefix import checks, install, interpreter, preflight, receipt, transaction
from envbuild.prefix.install import Settings
from envbuild.prefix.interpreter import Interpreter
from envbuild.prefix.receipt import Receipt
from envbuild.prefix.supply import Supply

_DRIVER = Path("/proc/driver/nvidia/version")


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
    """

    name: str
    environment: Environment
    lock: Lock
    lock_sha256: str
    pin: Pin
    prefix: Path
    reason: str | None


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
    lock_sha256 = sha256_bytes(lockfile.serialize(locks[name]))
    pin = interpreters.read(project.interpreters_file)[environment.python]
    return Plan(
        name=name,
        environment=environment,
        lock=locks[name],
        lock_sha256=lock_sha256,
        pin=pin,
        prefix=prefix,
        reason="asked for with --rebuild"
        if rebuild
        else judge(
            receipt.read(layout.bookkeeping, name),
            prefix,
            lock_sha256=lock_sha256,
            declared_sha256=declared_sha256(environment, layout, pin),
        ),
    )


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
        return "its checks, projects, interpreter or link mode have changed"
    if known.look != receipt.look(prefix, Path(known.interpreter.path)):
        return "the prefix was changed since it was checked"
    return None


def declared_sha256(environment: Environment, layout: Layout, pin: Pin) -> str:
    """Return the digest of what decides a prefix besides its lock."""
    declared = (environment.checks, environment.editable, layout.site.link_mode, pin)
    return sha256_bytes(msgspec.json.encode(declared, order="deterministic"))


def create(
    project: Project,
    layout: Layout,
    names: Sequence[str],
    supply: Supply,
    *,
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
        outcomes |= _build_all(layout, todo, supply, say)
    return [outcomes[name] for name in names]


def _build_all(
    layout: Layout, plans: Sequence[Plan], supply: Supply, say: Callable[[str], None]
) -> dict[str, Outcome]:
    """Build what is to be built, each on its own, after one download of all that they need."""
    notes = preflight.check_site(layout)
    outcomes: dict[str, Outcome] = {}
    pythons: dict[str, tuple[Interpreter, list[str]]] = {}
    for one in plans:
        # before anything large is downloaded: what can refuse, refuses now
        try:
            _refuse_cuda(one)
            preflight.check_glibc(layout, one.environment.glibc_minor, one.name)
            preflight.check_root(layout, one.prefix)
            pythons[one.name] = _interpreter(one, layout, supply, say)
        except EnvbuildError as error:
            outcomes[one.name] = _failed(one.name, one.prefix, error)
    builds = [one for one in plans if one.name in pythons]
    if builds:
        supply.fetch([one.lock for one in builds])
    for one in builds:
        python, more = pythons[one.name]
        say(f"{one.name}: building {one.prefix} ({one.reason})")
        try:
            with progress.bar(f"building {one.name}", None):
                outcomes[one.name] = _build(one, layout, python, supply, [*notes, *more])
        except EnvbuildError as error:
            outcomes[one.name] = _failed(one.name, one.prefix, error)
    return outcomes


def _kept(layout: Layout, one: Plan) -> Outcome:
    return Outcome(one.name, one.prefix, "kept", receipt=receipt.read(layout.bookkeeping, one.name))


def _failed(name: str, prefix: Path, error: EnvbuildError) -> Outcome:
    return Outcome(name, prefix, "failed", error.what, error=error)


def _refuse_cuda(one: Plan) -> None:
    cuda = [
        f"{package.name} {package.version}"
        for package in one.lock.packages
        if package.is_sdist and package.name not in one.lock.built
    ]
    if cuda:
        raise PreflightError(
            f"{one.name} needs wheels compiled on the target system, which create cannot do yet",
            expected="wheels for " + ", ".join(cuda),
            found="sdists alone: no index has wheels that fit",
            mend="create the other environments by name",
        )


def _interpreter(
    one: Plan, layout: Layout, supply: Supply, say: Callable[[str], None]
) -> tuple[Interpreter, list[str]]:
    """Return the pinned interpreter, installed if need be, or what may stand in for it."""
    folder = layout.interpreters
    managed = interpreter.installed(one.pin, folder)
    if managed is not None:
        return managed, []
    try:
        archive = supply.interpreter(one.pin)
    except EnvbuildError as error:
        if not (layout.site.unpinned_interpreter or layout.rehearsal):
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
        say(f"{one.name}: {note}")
        return chosen, [note]
    return interpreter.install(one.pin, archive, folder), []


class _Clock:
    """Seconds by step."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        begun = time.monotonic()
        yield
        self.seconds[name] = round(time.monotonic() - begun, 3)


def _build(
    one: Plan, layout: Layout, python: Interpreter, supply: Supply, notes: list[str]
) -> Outcome:
    begun = time.monotonic()
    clock = _Clock()
    settings = Settings(
        link_mode=layout.site.link_mode,
        uv_cache=layout.path(layout.site.uv_cache) if layout.site.uv_cache else None,
        bookkeeping=layout.bookkeeping,
        temporary=preflight.temporary(layout),
    )
    if settings.temporary is not None:
        settings.temporary.mkdir(parents=True, exist_ok=True)
    with clock.step("sdists"):
        supply.build_sdists(one.lock, Path(python.path))
    size, files = supply.unpacked(one.lock)
    preflight.check_space(layout.root, size=size, files=files, environment=one.name)
    stamp = datetime.datetime.now(datetime.UTC)
    archive = layout.bookkeeping / "archive" / f"{one.name}-{stamp:%Y%m%dT%H%M%S%fZ}"
    existed = one.prefix.exists()
    with transaction.replacing(one.prefix, archive):
        with clock.step("environment"):
            install.make_empty(one.prefix, python, one.name, settings)
        with clock.step("install"):
            install.install(one.prefix, one.lock, supply.wheelhouse.path, settings)
        values = install.marker_environment(one.prefix / "bin" / "python")
        distributions = list(install.distributions(one.prefix, one.lock, values))
        with clock.step("projects"):
            for editable in one.environment.editable:
                folder = install.project_folder(layout.root, editable)
                if folder is None:
                    notes.append(f"no project at {layout.root / editable.path}: passed over")
                    continue
                distributions.append(
                    install.install_editable(
                        one.prefix,
                        folder,
                        editable,
                        one.lock,
                        supply.build_wheels(one.lock, editable.requires),
                        layout.root,
                        settings,
                    )
                )
        done = checks.run(one.prefix, one.environment.checks, one.name)
        written = Receipt(
            environment=one.name,
            site=layout.name,
            root=str(layout.root),
            prefix=str(one.prefix),
            rehearsal=layout.rehearsal,
            lock_sha256=one.lock_sha256,
            declared_sha256=declared_sha256(one.environment, layout, one.pin),
            interpreter=python,
            distributions=tuple(sorted(distributions, key=lambda d: d.name)),
            host=host(),
            checks=done,
            seconds={**clock.seconds, "checks": done.seconds},
            tools={"envbuild": __version__, "uv": uvtool.resolver().removeprefix("uv ")},
            created=stamp.strftime("%Y-%m-%dT%H:%M:%SZ"),
            notes=tuple(notes),
            look=receipt.look(one.prefix, Path(python.path)),
        )
        receipt.write(layout.bookkeeping, written)
    return Outcome(
        one.name,
        one.prefix,
        "built",
        one.reason or "",
        round(time.monotonic() - begun, 3),
        written,
        archive if existed else None,
    )


def host() -> receipt.Host:
    """Return what a receipt says of this machine."""
    driver = None
    if _DRIVER.exists():
        match = re.search(r"Kernel Module\D*([0-9.]+)", _DRIVER.read_text())
        driver = match[1] if match else None
    return receipt.Host(
        name=platform.node(), kernel=os.uname().release, glibc=preflight.glibc(), driver=driver
    )
