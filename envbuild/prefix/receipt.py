"""Receipts: what was built, from what, and what was checked. Written last."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from envbuild import durable
from envbuild.prefix.aside import Mode
from envbuild.prefix.interpreter import Interpreter

SCHEMA = 1


class _Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A part of a receipt: frozen, closed."""


class Distribution(_Record, frozen=True):
    """An installed distribution: the wheel that it came from, or the folder it points to."""

    name: str
    version: str
    file: str | None = None
    sha256: str | None = None
    editable: str | None = None


class Host(_Record, frozen=True):
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


class Checks(_Record, frozen=True):
    """What the new prefix was made to do before it was called good."""

    imports: int
    commands: int
    seconds: float


class Receipt(_Record, frozen=True):
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
        checks: what was checked.
        seconds: what each step took, in seconds.
        tools: programs and their versions.
        created: when, in UTC.
        mode: how it got to its path; see `aside.Mode`.
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
    checks: Checks
    seconds: dict[str, float]
    tools: dict[str, str]
    created: str
    mode: Mode
    notes: tuple[str, ...]
    look: dict[str, tuple[int, int, int]]
    schema: int = SCHEMA


def path(bookkeeping: Path, environment: str) -> Path:
    """Return where an environment's receipt stands at a site."""
    return bookkeeping / "receipts" / f"{environment}.json"


def read(bookkeeping: Path, environment: str) -> Receipt | None:
    """Read a receipt; None if there is none that this envbuild can read."""
    try:
        receipt = msgspec.json.decode(path(bookkeeping, environment).read_bytes(), type=Receipt)
    except (OSError, msgspec.DecodeError):
        return None
    return receipt if receipt.schema == SCHEMA else None


def write(bookkeeping: Path, receipt: Receipt) -> Path:
    """Write a receipt, whole and durable.

    Raises:
        OSError: the old one, if any, is unchanged.
    """
    target = path(bookkeeping, receipt.environment)
    target.parent.mkdir(parents=True, exist_ok=True)
    durable.write(target, msgspec.json.format(msgspec.json.encode(receipt), indent=2) + b"\n")
    return target


def remove(bookkeeping: Path, environment: str) -> None:
    """Remove a receipt: what it speaks of is about to change."""
    path(bookkeeping, environment).unlink(missing_ok=True)


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
