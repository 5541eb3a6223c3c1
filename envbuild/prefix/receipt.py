"""Receipts: what was built, from what, and what was checked. Written last.

A receipt is an in-toto Statement v1 (https://in-toto.io/Statement/v1): the subject is the prefix
with the digest of its manifest, the predicate is the `Receipt`.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable
from pathlib import Path

import msgspec

from envbuild import durable, intoto
from envbuild.findings import Finding
from envbuild.intoto import Record, Statement
from envbuild.prefix.aside import Mode
from envbuild.prefix.interpreter import Interpreter

SCHEMA = 2
# The type of the statement's predicate: a receipt of a prefix, as docs/receipts.md describes it
PREDICATE = "urn:envbuild:prefix-receipt:2"


class Distribution(Record, frozen=True):
    """An installed distribution: the wheel that it came from, or the folder it points to."""

    name: str
    version: str
    file: str | None = None
    sha256: str | None = None
    editable: str | None = None


class Host(Record, frozen=True):
    """Where it was built.

    Attributes:
        name: the host's name.
        kernel: its kernel's release.
        glibc: its C library.
        driver: the NVIDIA driver's version, where there is one.
    """

    name: str
    kernel: str
    glibc: str
    driver: str | None = None


class Checks(Record, frozen=True):
    """What the new prefix was made to do before it was called good."""

    imports: int
    commands: int
    seconds: float


class Audit(Record, frozen=True):
    """What the relocation rules said of the new prefix.

    Attributes:
        files: how many files, folders and links were looked at.
        size: of the files, in bytes.
        findings: warnings; an error would have kept the prefix from its place.
        notes: what a person should know besides.
        seconds: how long it took.
    """

    files: int
    size: int
    findings: tuple[Finding, ...]
    notes: tuple[str, ...]
    seconds: float


class Receipt(Record, frozen=True):
    """Everything that is known of a prefix.

    Attributes:
        schema: of this file.
        environment: its name.
        site: the site's name.
        root: the site's root, or that of the rehearsal.
        prefix: absolute.
        rehearsal: whether the root is another than the site's own.
        lock_sha256: of the lock's file.
        declared_sha256: of what besides the lock decides what the prefix is and is checked for.
        interpreter: what it stands on.
        distributions: what is installed, sorted by name.
        host: where it was built.
        audit: what the relocation rules said.
        checks: what was checked.
        seconds: what each step took, in seconds.
        tools: programs and their versions.
        created: when, in UTC.
        mode: how it got to its path; see `aside.Mode`.
        manifest_sha256: what the prefix holds; see `relocation.audit.manifest`.
        written: files and links that come from no wheel as they are, with the SHA-256 of their
            contents, or ``-> TARGET``: what installers wrote.
        modes: permissions of the files that have others than 0644, as numbers.
        notes: what a person was told: fall-backs, things passed over.
        look: times and identities of the prefix's folders, for a quick look later.
    """

    environment: str
    site: str
    root: str
    prefix: str
    rehearsal: bool
    lock_sha256: str
    declared_sha256: str
    interpreter: Interpreter
    distributions: tuple[Distribution, ...]
    host: Host
    audit: Audit
    checks: Checks
    seconds: dict[str, float]
    tools: dict[str, str]
    created: str
    mode: Mode
    manifest_sha256: str
    written: dict[str, str]
    modes: dict[str, int]
    notes: tuple[str, ...]
    look: dict[str, tuple[int, int, int]]
    schema: int = SCHEMA


def path(bookkeeping: Path, environment: str) -> Path:
    """Return where an environment's receipt stands at a site."""
    return bookkeeping / "receipts" / f"{environment}.json"


def read(bookkeeping: Path, environment: str) -> Receipt | None:
    """Read a receipt; None if there is none that this envbuild can read."""
    return load(path(bookkeeping, environment))


def load(file: Path) -> Receipt | None:
    """Read a receipt from a file, and hold its statement to itself.

    Returns:
        The receipt; None if the file is none, or of another schema, or says of another prefix or
        digest than its subject is.
    """
    try:
        statement = msgspec.json.decode(file.read_bytes(), type=Statement[Receipt])
    except (OSError, msgspec.DecodeError):
        return None
    receipt = statement.predicate
    right = receipt.schema == SCHEMA and statement == _stated(receipt)
    return receipt if right else None


def _stated(receipt: Receipt) -> Statement[Receipt]:
    return intoto.statement(receipt.prefix, receipt.manifest_sha256, receipt, PREDICATE)


def write(bookkeeping: Path, receipt: Receipt) -> Path:
    """Write a receipt, whole and durable.

    Raises:
        OSError: the old one, if any, is unchanged.
    """
    target = path(bookkeeping, receipt.environment)
    target.parent.mkdir(parents=True, exist_ok=True)
    intoto.write(target, _stated(receipt))
    return target


def publish(bookkeeping: Path, pending: Path, receipt: Receipt) -> None:
    """Give a receipt that was written elsewhere its place, and one by time beside the others.

    By links, since they need no room: a disk that is full does not stop it. The pending file stays
    until all is done.

    Args:
        bookkeeping: the site's folder for it.
        pending: the bookkeeping folder that it was written to.
        receipt: what it says.

    Raises:
        OSError: it has no place yet; it can be tried again.
    """
    source = path(pending, receipt.environment)
    target = path(bookkeeping, receipt.environment)
    kept = history(bookkeeping) / f"{receipt.environment}-{receipt.created}.json"
    kept.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.name}.new")
    try:
        temporary.unlink(missing_ok=True)
        os.link(source, temporary)
        kept.unlink(missing_ok=True)
        os.link(source, kept)
    except OSError:
        # no hard links here
        write(bookkeeping, receipt)
        durable.write(kept, source.read_bytes())
        return
    temporary.replace(target)
    durable.fsync_folder(kept.parent)
    durable.fsync_folder(target.parent)


def hand_out(receipts: Iterable[Receipt], pattern: str) -> Path:
    """Write receipts into a new folder, besides where they belong: one folder for each run.

    Args:
        receipts: those of one run.
        pattern: the folder's path, in which ``{number}`` stands for the first number from 01 on
            that no folder has yet.

    Raises:
        OSError: the folder or a file cannot be made.
    """
    for number in itertools.count(1):
        folder = Path(pattern.replace("{number}", f"{number:02d}"))
        folder.parent.mkdir(parents=True, exist_ok=True)
        try:
            folder.mkdir()
        except FileExistsError:
            if "{number}" in pattern:
                continue
        for one in receipts:
            data = msgspec.json.encode(_stated(one))
            target = folder / f"{one.environment}.json"
            durable.write(target, msgspec.json.format(data, indent=2) + b"\n")
        return folder
    raise AssertionError  # the numbers do not end


def history(bookkeeping: Path) -> Path:
    """Return the folder of all receipts that ever were, by environment and time."""
    return bookkeeping / "receipts" / "history"


def look(prefix: Path, interpreter: Path) -> dict[str, tuple[int, int, int]]:
    """Look at a prefix without reading it: a handful of stats, not one a file.

    A package that is installed, removed or replaced changes the times of the folders it stands in;
    what is edited inside a file is for a full verification to find.

    Returns:
        Path relative to the prefix (absolute for the interpreter), to modification time in
        nanoseconds, inode and size (0 for folders); without the paths that are not there.
    """
    places = [prefix, prefix / "pyvenv.cfg", prefix / "bin", interpreter]
    places += sorted(prefix.glob("lib/python*/site-packages"))
    seen = {}
    for place in places:
        try:
            status = place.stat()
        except OSError:
            continue
        name = os.path.relpath(place, prefix) if place.is_relative_to(prefix) else str(place)
        size = 0 if place.is_dir() else status.st_size
        seen[name] = (status.st_mtime_ns, status.st_ino, size)
    return seen
