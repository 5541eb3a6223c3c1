"""What is being done to a prefix, written down before anything moves, and how it is put right."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec

from envbuild import durable
from envbuild.errors import PreflightError
from envbuild.prefix import aside, receipt
from envbuild.prefix.aside import Mode
from envbuild.prefix.receipt import Receipt

SCHEMA = 1

Outcome = Literal["nothing had changed", "the old prefix is back", "the new prefix is in place"]


class Journal(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The intent to replace a prefix.

    Attributes:
        environment: its name.
        prefix: the final path.
        mode: how the new one gets there.
        work: the folder of this transaction: what is staged, and the receipt once all is checked.
        archive: where the old prefix goes.
        old: the inode of the prefix that stood there; None if there was none.
        new: the inode of the staged one; None where it is built in place.
        since: when it was begun, in UTC.
        schema: of this file.
    """

    environment: str
    prefix: str
    mode: Mode
    work: str
    archive: str
    old: int | None
    new: int | None
    since: str
    schema: int = SCHEMA

    @property
    def staging(self) -> Path:
        """Where the new prefix is written when it is built aside."""
        return Path(self.work) / "prefix"

    @property
    def pending(self) -> Path:
        """The folder with the receipt of a new prefix that is whole, checked and durable."""
        return Path(self.work) / "pending"


def path(bookkeeping: Path, environment: str) -> Path:
    """Return where an environment's journal stands."""
    return bookkeeping / "journal" / f"{environment}.json"


def write(bookkeeping: Path, journal: Journal) -> None:
    """Write a journal, durable when this returns.

    Raises:
        OSError: there is none.
    """
    target = path(bookkeeping, journal.environment)
    target.parent.mkdir(parents=True, exist_ok=True)
    durable.write(target, msgspec.json.format(msgspec.json.encode(journal), indent=2) + b"\n")


def read(bookkeeping: Path, environment: str) -> Journal | None:
    """Return what is under way or was interrupted; None if nothing is.

    Raises:
        PreflightError: there is a journal that this envbuild cannot read.
    """
    target = path(bookkeeping, environment)
    try:
        data = target.read_bytes()
    except FileNotFoundError:
        return None
    try:
        journal = msgspec.json.decode(data, type=Journal)
    except msgspec.DecodeError as error:
        raise PreflightError(
            "the journal cannot be read",
            where=target,
            expected=f"a journal of schema {SCHEMA}",
            found=str(error),
            mend="use the envbuild that wrote it; it names the prefix and where the old one is",
        ) from error
    return journal


def finish(bookkeeping: Path, journal: Journal) -> None:
    """Remove a journal, what it spoke of being done or undone, and then its folder.

    In this order: a journal without its pending receipt would be taken for that of a half-built
    prefix. A folder without a journal is removed by the next run.
    """
    target = path(bookkeeping, journal.environment)
    target.unlink(missing_ok=True)
    durable.fsync_folder(target.parent)
    aside.remove(Path(journal.work))


def interrupted(bookkeeping: Path) -> list[str]:
    """Return the environments with a journal, sorted."""
    return sorted(file.stem for file in (bookkeeping / "journal").glob("*.json"))


def recover(bookkeeping: Path, environment: str) -> Outcome | None:
    """Put right what was interrupted; the caller holds the environment's lock.

    The new prefix is taken if it had already got to its place, or if there is nothing else there;
    it was whole, checked and durable before the old one was touched. Else the old one stays, or
    comes back from the archive. Doing it twice, or being interrupted in it, changes nothing.

    Args:
        bookkeeping: the site's folder for it.
        environment: its name.

    Returns:
        What is there now; None if nothing was interrupted.

    Raises:
        PreflightError: the journal cannot be read.
        OSError: something cannot be renamed or removed; it can be tried again.
    """
    journal = read(bookkeeping, environment)
    if journal is None:
        return None
    pending = receipt.read(journal.pending, environment)
    if journal.mode == "in place":
        outcome = _recover_in_place(journal, pending)
    else:
        outcome = _recover_aside(journal, pending)
    if outcome == "the new prefix is in place":
        assert pending is not None
        receipt.publish(bookkeeping, journal.pending, pending)
    finish(bookkeeping, journal)
    return outcome


def _recover_aside(journal: Journal, pending: Receipt | None) -> Outcome:
    prefix, archive = Path(journal.prefix), Path(journal.archive)
    here = inode(prefix)
    if here == journal.new and pending is not None:
        # exchanged, or renamed into place; what was exchanged is still to be archived
        if inode(journal.staging) == journal.old is not None:
            archive.parent.mkdir(parents=True, exist_ok=True)
            journal.staging.rename(archive)
        return "the new prefix is in place"
    if here is None and journal.old is not None and inode(archive) == journal.old:
        # between two renames
        if pending is not None and inode(journal.staging) == journal.new:
            journal.staging.rename(prefix)
            return "the new prefix is in place"
        archive.rename(prefix)
        return "the old prefix is back"
    if journal.old is None and here is not None and here != journal.new:
        # the empty folder that stood in for a prefix
        prefix.rmdir()
    return "nothing had changed"


def _recover_in_place(journal: Journal, pending: Receipt | None) -> Outcome:
    prefix, archive = Path(journal.prefix), Path(journal.archive)
    if journal.old is not None and inode(prefix) == journal.old:
        return "nothing had changed"
    if pending is not None:
        return "the new prefix is in place"
    if prefix.exists():
        # out of the way by a rename first: removing it takes a while and may be interrupted
        half_built = Path(journal.work) / "half-built"
        aside.remove(half_built)
        prefix.rename(half_built)
    if journal.old is None:
        return "nothing had changed"
    archive.rename(prefix)
    return "the old prefix is back"


def inode(path: Path) -> int | None:
    """Return the inode of what stands at a path, a link itself; None if nothing does."""
    try:
        return path.lstat().st_ino
    except FileNotFoundError:
        return None
