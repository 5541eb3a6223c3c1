"""Prefixes that were replaced, or refused: kept until somebody says otherwise."""

from __future__ import annotations

import datetime
import errno
import os
from collections.abc import Sequence
from pathlib import Path

import msgspec

from envbuild import durable
from envbuild.errors import InputError
from envbuild.findings import Finding
from envbuild.prefix import aside, receipt
from envbuild.prefix.receipt import Receipt

_STAMP = "%Y%m%dT%H%M%S%fZ"
# what the name of a refused prefix's folder ends with
_REFUSED = ".refused"


class Entry(msgspec.Struct, frozen=True):
    """A prefix in the archive.

    Attributes:
        name: ``ENVIRONMENT-TIME``, the name of its folder.
        environment: whose prefix it was.
        path: where it is now.
        archived: when it was replaced, in UTC.
        created: when it was created, in UTC; None if its receipt is not known.
        refused: how many errors the relocation rules found in it; None for one that was in use.
    """

    name: str
    environment: str
    path: Path
    archived: str
    created: str | None
    refused: int | None = None


class _Findings(msgspec.Struct, frozen=True):
    """What stands beside a prefix that was refused."""

    environment: str
    findings: tuple[Finding, ...]
    schema: str = "envbuild.refused/1"


def folder(bookkeeping: Path) -> Path:
    """Return the folder of replaced prefixes."""
    return bookkeeping / "archive"


def new(bookkeeping: Path, environment: str) -> Path:
    """Return a place for a prefix that is about to be replaced."""
    now = datetime.datetime.now(datetime.UTC)
    return folder(bookkeeping) / f"{environment}-{now.strftime(_STAMP)}"


def entries(bookkeeping: Path, environments: Sequence[str] = ()) -> list[Entry]:
    """List the archive, the oldest first.

    Args:
        bookkeeping: the site's folder for it.
        environments: only theirs; all if none is given.
    """
    found = []
    for place in folder(bookkeeping).glob("*"):
        environment, _, stamp = place.name.removesuffix(_REFUSED).rpartition("-")
        try:
            archived = datetime.datetime.strptime(stamp, _STAMP).replace(tzinfo=datetime.UTC)
        except ValueError:
            continue  # nothing that was put here by `new`
        if environments and environment not in environments:
            continue
        refused = place.name.endswith(_REFUSED)
        known = None if refused else known_receipt(bookkeeping, environment, place)
        found.append(
            Entry(
                place.name,
                environment,
                place,
                archived.strftime("%Y-%m-%dT%H:%M:%SZ"),
                known.created if known else None,
                _errors(place) if refused else None,
            )
        )
    return sorted(found, key=lambda entry: (entry.archived, entry.name))


def _errors(place: Path) -> int:
    try:
        data = (place / "findings.json").read_bytes()
        found = msgspec.json.decode(data, type=_Findings).findings
    except (OSError, msgspec.DecodeError):
        return 0
    return sum(one.severity == "error" for one in found)


def keep_refused(
    bookkeeping: Path, environment: str, built: Path, findings: Sequence[Finding]
) -> Path:
    """Keep a prefix that broke the rules, to be looked at.

    `forget_refused` then removes the one before it: a run that is tried again and again must not
    fill the disk.

    Args:
        bookkeeping: the site's folder for it.
        environment: its name.
        built: where it was built.
        findings: what the rules found.

    Returns:
        The folder that holds ``prefix`` and ``findings.json``.

    Raises:
        OSError: it cannot be kept.
    """
    place = new(bookkeeping, environment)
    place = place.with_name(f"{place.name}{_REFUSED}")
    place.mkdir(parents=True)
    document = msgspec.json.encode(_Findings(environment, tuple(findings)))
    durable.write(place / "findings.json", msgspec.json.format(document, indent=2) + b"\n")
    try:
        built.rename(place / "prefix")
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        # a prefix on another file system than the root is not copied only to be looked at
    return place


def forget_refused(bookkeeping: Path, environment: str, *, but: Path) -> None:
    """Remove the refused prefixes of an environment but one.

    Args:
        bookkeeping: the site's folder for it.
        environment: its name.
        but: the one that stays.

    Raises:
        OSError: something cannot be removed.
    """
    for other in entries(bookkeeping, [environment]):
        if other.refused is not None and other.path != but:
            aside.remove(other.path)


def known_receipt(bookkeeping: Path, environment: str, place: Path) -> Receipt | None:
    """Return the receipt of a prefix that stands at another path now, by the folder's identity."""
    status = place.stat()
    identity = (status.st_mtime_ns, status.st_ino, 0)
    for file in sorted(receipt.history(bookkeeping).glob(f"{environment}-*.json"), reverse=True):
        known = receipt.load(file)
        if known is not None and known.look.get(".") == identity:
            return known
    return None


def choose(bookkeeping: Path, environment: str, name: str | None) -> Entry:
    """Return the entry to restore: the one named, else the youngest.

    Raises:
        InputError: there is none.
    """
    found = entries(bookkeeping, [environment])
    found = [entry for entry in found if entry.refused is None]
    chosen = [entry for entry in found if name in (None, entry.name)]
    if not chosen:
        raise InputError(
            f"nothing of {environment} is in the archive" + (f" as {name}" if name else ""),
            where=folder(bookkeeping),
            expected="one of " + ", ".join(entry.name for entry in found) if found else None,
            mend="see `envbuild archive list`",
        )
    return chosen[-1]


def restore(bookkeeping: Path, entry: Entry, prefix: Path) -> Path | None:
    """Put an archived prefix back at its path; what stands there goes to the archive.

    The caller holds the environment's lock, and nobody uses the prefix. Nothing is lost wherever
    this is interrupted: both prefixes are there, and doing it again ends it.

    Args:
        bookkeeping: the site's folder for it.
        entry: which one.
        prefix: the path that it was built for.

    Returns:
        Where the prefix that stood there is now; None if there was none.

    Raises:
        InputError: it was built for another path.
        OSError: something cannot be renamed.
    """
    known = known_receipt(bookkeeping, entry.environment, entry.path)
    if known is not None and known.prefix != str(prefix):
        raise InputError(
            f"{entry.name} was built for another path",
            where=entry.path,
            expected=prefix,
            found=known.prefix,
            mend="create the environment anew: a prefix works at one path alone",
        )
    archived = None
    if prefix.exists():
        archived = new(bookkeeping, entry.environment)
        try:
            aside.exchange(entry.path, prefix)
            entry.path.rename(archived)
        except OSError:
            # no exchange here; between these two there is no prefix
            prefix.rename(archived)
            entry.path.rename(prefix)
    else:
        entry.path.rename(prefix)
    durable.fsync_folder(prefix.parent)
    durable.fsync_folder(entry.path.parent)
    if known is None:
        receipt.path(bookkeeping, entry.environment).unlink(missing_ok=True)
    else:
        receipt.write(bookkeeping, known)
    return archived


def prune(
    bookkeeping: Path, environments: Sequence[str], *, keep: int, dry_run: bool
) -> list[tuple[Entry, int]]:
    """Remove what is archived beyond the youngest few of each environment.

    Args:
        bookkeeping: the site's folder for it.
        environments: only theirs; all if none is given.
        keep: how many of each stay.
        dry_run: only say what would go.

    Returns:
        What is gone, each with its size in bytes.
    """
    gone = []
    found = entries(bookkeeping, environments)
    # those that were refused are counted by themselves: none of them is kept in place of a good one
    for kind in sorted({(entry.environment, entry.refused is None) for entry in found}):
        of_it = [entry for entry in found if (entry.environment, entry.refused is None) == kind]
        for entry in of_it[: max(0, len(of_it) - keep)]:
            gone.append((entry, size(entry.path)))
            if not dry_run:
                # renamed first: what is half removed is no prefix to restore
                doomed = entry.path.with_name(f".removed-{entry.name}")
                entry.path.rename(doomed)
                aside.remove(doomed)
    if not dry_run:
        for left in folder(bookkeeping).glob(".removed-*"):
            aside.remove(left)
    return gone


def size(place: Path) -> int:
    """Return the sum of the sizes of a folder's files, in bytes."""
    return sum(
        os.lstat(f"{parent}/{name}").st_size
        for parent, _, names in os.walk(place)
        for name in names
    )
