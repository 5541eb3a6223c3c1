"""Verifying prefixes: quickly against their receipts, or in full against the verified wheels."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from envbuild import exclusion, owner
from envbuild.artifacts import Artifact
from envbuild.artifacts.store import Wheelhouse
from envbuild.catalog.environment import Environment
from envbuild.catalog.project import Project
from envbuild.catalog.site import Layout
from envbuild.digest import sha256_bytes
from envbuild.errors import InputError, PreflightError
from envbuild.findings import Finding
from envbuild.lock import drift, interpreters, lockfile
from envbuild.lock.interpreters import Pin
from envbuild.lock.lockfile import Lock
from envbuild.prefix import contents, create, locked, receipt, subjects
from envbuild.prefix.receipt import Receipt
from envbuild.relocation import audit, place, text
from envbuild.relocation.subject import Contents, Distribution, Subject


class Verified(msgspec.Struct, frozen=True):
    """What is known of a prefix now.

    Attributes:
        name: the environment; None for a prefix that the site does not register.
        prefix: its path.
        full: whether every file was read.
        findings: what is not as it should be.
        notes: what a person should know besides.
        files: how many files, folders and links were looked at; 0 for a quick look.
        size: of the files that were read, in bytes.
        seconds: how long it took.
    """

    name: str | None
    prefix: str
    full: bool
    findings: tuple[Finding, ...]
    notes: tuple[str, ...] = ()
    files: int = 0
    size: int = 0
    seconds: float = 0.0


class _Known(msgspec.Struct, frozen=True):
    """What is known of an environment before its prefix is looked at."""

    name: str
    environment: Environment
    lock: Lock | None
    pin: Pin | None
    receipt: Receipt | None
    stale: str | None


def registered(
    project: Project,
    layout: Layout,
    name: str,
    *,
    full: bool,
    wheelhouse: Path,
    watch: audit.Watch,
    path: Path | None = None,
) -> Verified:
    """Verify an environment's prefix at a site.

    Args:
        project: the project.
        layout: the site.
        name: the environment.
        full: read every file and hold it to the wheel that it came from.
        wheelhouse: the folder of wheels, for a full verification.
        watch: see `audit.audit`.
        path: another path to look at in place of the registered one.

    Raises:
        InputError: the site does not build the environment, or a file of the project is wrong.
        PreflightError: there is no prefix; or wheels are missing for a full verification.
        OSError: a file cannot be read.
        StepError: a process of it died.
    """
    begun = time.monotonic()
    known = _known(project, layout, name)
    prefix = layout.prefix(name) if path is None else path
    if not prefix.is_dir():
        raise PreflightError(
            f"{name} is not built here",
            where=prefix,
            expected="a prefix",
            found="nothing" if not prefix.exists() else "no folder",
            mend=subjects.again(layout, name, rebuild=False),
        )
    python = None
    if known.receipt is not None and known.pin is not None:
        python = subjects.base(layout, known.receipt.interpreter, known.pin, full=full)
    subject = subjects.of(
        layout,
        name,
        known.environment,
        site_file=str(project.site_files.get(layout.name, f"site {layout.name}")),
        base=python,
    )
    findings = list(_receipted(layout, known, full=full))
    if str(prefix) != subject.prefix:
        # everything else is held to the registered path, which is the same folder
        findings += place.standing(msgspec.structs.replace(subject, prefix=str(prefix)))
    notes: tuple[str, ...] = ()
    if subject.unfinished:
        run = exclusion.read(locked.path(layout, name))
        if run is not None and not owner.proved_dead(run):
            notes = (f"a run is at work on it: {owner.describe(run)}",)
            subject = msgspec.structs.replace(subject, unfinished=())
    held = _contents(known, layout, wheelhouse if full else None)
    subject = msgspec.structs.replace(subject, contents=held)
    return _looked(begun, name, prefix, subject, findings, notes, full, watch, known.receipt)


def stranger(prefix: Path, layout: Layout | None, *, full: bool, watch: audit.Watch) -> Verified:
    """Verify a prefix that envbuild did not make: a virtual environment, or conda's.

    Args:
        prefix: its path, absolute.
        layout: the site whose limits count; this machine's own without one.
        full: read every file.
        watch: see `audit.audit`.

    Raises:
        InputError: there is no prefix.
        OSError: a file cannot be read.
        StepError: a process of it died.
    """
    begun = time.monotonic()
    if not (prefix / "bin").is_dir() or not (
        (prefix / "pyvenv.cfg").is_file() or (prefix / "conda-meta").is_dir()
    ):
        raise InputError(
            "not a prefix",
            where=prefix,
            expected="a virtual environment (pyvenv.cfg and bin/) or a conda one (conda-meta/)",
            found="no such folder" if not prefix.is_dir() else "a folder with neither",
            mend="name the folder that holds bin/python",
        )
    subject = subjects.stranger(prefix, layout)
    # under another name of the folder it is that name alone that is wrong
    said = text.said(prefix)
    named = list(place.standing(subject)) or list(place.another_name(subject, said))
    if named:
        subject = msgspec.structs.replace(subject, prefix=str(named[0].expected))
    else:
        named = list(place.moved(subject, said))
    return _looked(begun, None, prefix, subject, named, (), full, watch, None)


def _looked(
    begun: float,
    name: str | None,
    prefix: Path,
    subject: Subject,
    findings: list[Finding],
    notes: tuple[str, ...],
    full: bool,
    watch: audit.Watch,
    made: Receipt | None,
) -> Verified:
    """Look at a prefix, and add what is found to what is known already."""
    files = size = 0
    if full:
        found = audit.audit(subject, watch=watch)
        findings += found.findings
        notes += found.notes
        files, size = found.files, found.size
        if made is not None and found.manifest_sha256 != made.manifest_sha256:
            findings += _unexplained(subject, made, found, findings)
    else:
        findings += audit.quick(subject)
    return Verified(
        name=name,
        prefix=str(prefix),
        full=full,
        findings=tuple(sorted(findings, key=lambda one: (one.code, one.where, one.message))),
        notes=notes,
        files=files,
        size=size,
        seconds=round(time.monotonic() - begun, 3),
    )


def environment_at(layout: Layout, prefix: Path) -> str | None:
    """Return the environment whose registered prefix a folder is, under this or another name."""
    for name in layout.folders:
        place = layout.prefix(name)
        try:
            if place == prefix or place.samefile(prefix):
                return name
        except OSError:
            continue
    return None


def _known(project: Project, layout: Layout, name: str) -> _Known:
    layout.prefix(name)  # refuses what the site does not build
    environment = project.environment(name)
    locks, drifted = drift.check(project, [name])
    pins = interpreters.read(project.interpreters_file)
    return _Known(
        name=name,
        environment=environment,
        lock=locks.get(name),
        pin=pins.get(environment.python),
        receipt=receipt.read(layout.bookkeeping, name),
        stale=next((one.message for one in drifted if one.severity == "error"), None),
    )


def _contents(known: _Known, layout: Layout, wheelhouse: Path | None) -> Contents | None:
    """Return what the prefix must hold: by its receipt, since the lock may have moved on.

    Of two receipts with the same lock one may have been tampered with, so that the lock itself is
    asked where it is the one that the receipt names.
    """
    made = known.receipt
    if made is None:
        return None
    editable = tuple(
        Distribution(one.name, one.version, folder=one.editable)
        for one in made.distributions
        if one.editable is not None
    )
    wheels = tuple(one for one in made.distributions if one.editable is None)
    if known.lock is not None and made.lock_sha256 == _sha256(known.lock):
        compiled = {one.name: one for one in wheels if one.name in known.lock.unbuilt}
        wheels = tuple(
            # which wheel an sdist gave on this system the lock does not say
            compiled.get(one.name, one)
            for one in contents.distributions(known.lock, made.interpreter.version)
        )
    if wheelhouse is None:
        plain = (Distribution(one.name, one.version, one.file) for one in wheels)
        return Contents((*plain, *editable), {}, {}, made.written, made.modes)
    _fetched(known.name, layout, wheels, wheelhouse)
    held = contents.contents(
        wheels,
        wheelhouse,
        minor=".".join(made.interpreter.version.split(".")[:2]),
        own=frozenset(one.name for one in known.lock.packages if one.is_sdist)
        if known.lock is not None
        else frozenset(),
    )
    return msgspec.structs.replace(
        held,
        distributions=(*held.distributions, *editable),
        written=made.written,
        modes=made.modes,
    )


def _fetched(
    name: str, layout: Layout, wheels: tuple[receipt.Distribution, ...], folder: Path
) -> None:
    """See that the wheels are there, and are those that the prefix came from."""
    artifacts = [
        Artifact(file=one.file, size=0, sha256=one.sha256, project=one.name)
        for one in wheels
        if one.file is not None and one.sha256 is not None
    ]
    try:
        Wheelhouse(folder).fetch(artifacts, None)
    except PreflightError as error:
        raise PreflightError(
            f"{name} cannot be verified in full: {error.what}",
            where=error.where,
            expected=error.expected,
            found=error.found,
            mend=f"run `envbuild fetch {name} --wheelhouse {folder}`, or verify without --full",
        ) from error


def _sha256(lock: Lock) -> str:
    return sha256_bytes(lockfile.serialize(lock))


def _receipted(layout: Layout, known: _Known, *, full: bool) -> Iterator[Finding]:
    """P005: the receipt speaks of this prefix, of the lock and of the files as they are."""
    name = known.name
    prefix = layout.prefix(name)
    again = subjects.again(layout, name, rebuild=False)
    file = str(receipt.path(layout.bookkeeping, name))
    if known.receipt is None:
        said = "there is none" if not Path(file).exists() else "one that cannot be read"
        yield Finding(
            "P005",
            "error",
            str(prefix),
            "no receipt says what it was built from",
            expected=file,
            found=said,
            mend=again,
        )
        return
    if known.lock is None or known.pin is None:
        yield Finding(
            "P005",
            "error",
            str(prefix),
            "there is no lock to compare it with",
            expected=f"locks/pylock.{name}.toml and the pin of its interpreter",
            found=known.stale,
            mend=f"run `envbuild lock {name}`",
        )
        return
    if known.receipt.prefix != str(prefix):
        yield Finding(
            "P005",
            "error",
            str(prefix),
            "its receipt is of another path",
            expected=str(prefix),
            found=known.receipt.prefix,
            mend=again,
        )
        return
    if known.stale is not None:
        yield Finding(
            "P005",
            "warning",
            str(prefix),
            f"the lock is stale: {known.stale}",
            expected=f"a lock of envs/{name}.toml as it is",
            mend=f"run `envbuild lock {name}`, and create it anew",
        )
    why = create.judge(
        known.receipt,
        prefix,
        lock_sha256=_sha256(known.lock),
        declared_sha256=create.declared_sha256(known.environment, layout, known.pin),
    )
    if why is None or (full and why == create.CHANGED):
        return  # a full verification says what was changed, if anything was
    yield Finding(
        "P005",
        "error",
        str(prefix),
        why,
        expected="as its receipt says",
        found=f"a receipt of {known.receipt.created}",
        mend=again
        if why != create.CHANGED
        else f"see what was changed: add --full; if that is good, {again}, which ends this",
    )


def _unexplained(
    subject: Subject, made: Receipt, found: audit.Audit, findings: list[Finding]
) -> Iterator[Finding]:
    """P005 where the manifest is another and no rule has said why."""
    if any(one.code in ("M002", "P002", "P005") for one in findings):
        return
    yield Finding(
        "P005",
        "error",
        subject.prefix,
        "it is not as it was when it was created, in a way that no rule names",
        expected=f"the manifest {made.manifest_sha256}",
        found=found.manifest_sha256,
        mend=subject.again,
    )
