"""Replacing a prefix: nothing is half made and nothing is lost, whatever is killed when.

What counts is the order: the journal, the build, its checks, everything durable, the pending
receipt, the swap, the old prefix in the archive, the receipt, and last the journal removed.
`journal.recover` knows what to do between any two of these.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import signal
import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import msgspec

from envbuild import durable
from envbuild.prefix import archive, aside, receipt
from envbuild.prefix import journal as journals
from envbuild.prefix.aside import Mode
from envbuild.prefix.journal import Journal
from envbuild.prefix.receipt import Receipt
from envbuild.prefix.refused import Refused

# The steps after which the tests kill, in order.
STEPS = (
    "staged",
    "journalled",
    "archived",
    "built",
    "pending",
    "exchanged",
    "swapped",
    "receipted",
    "done",
)


def reached(step: str) -> None:
    """Mark a step as done. Tests name one by ENVBUILD_KILL_AFTER, and the process dies there."""
    assert step in STEPS
    if os.environ.get("ENVBUILD_KILL_AFTER") == step:
        os.kill(os.getpid(), signal.SIGKILL)


class Replacement(msgspec.Struct, frozen=True):
    """What is known of a finished replacement.

    Attributes:
        receipt: what was written.
        archived: where the old prefix is; None if there was none.
    """

    receipt: Receipt
    archived: Path | None


def replace(
    bookkeeping: Path,
    environment: str,
    prefix: Path,
    *,
    mode: Mode,
    build: Callable[[Path, Path | None], Receipt],
    swapping: Callable[[], AbstractContextManager[None]],
) -> Replacement:
    """Build a prefix and put it in the place of the one that is there.

    The caller holds the environment's lock and has recovered what was interrupted. If anything
    fails, the old prefix is where it was.

    Args:
        bookkeeping: the site's folder for it.
        environment: its name.
        prefix: the final path.
        mode: how the new one gets there.
        build: builds and checks it, given a folder to work in and the folder that is to appear at
            the final path (None to build there), and returns its receipt.
        swapping: keeps users away while its block runs; waits or refuses while there are any.

    Raises:
        EnvbuildError: as ``build`` and ``swapping``.
        OSError: something cannot be written or renamed.
    """
    journal = _begin(bookkeeping, environment, prefix, mode)
    try:
        if mode == "in place":
            with swapping():
                made = _build_in_place(journal, bookkeeping, build)
        else:
            made = _build_aside(journal, bookkeeping, build, swapping)
    except Refused as refused:
        built = Path(journal.prefix) if mode == "in place" else journal.staging
        kept = None
        with contextlib.suppress(OSError):  # such as a full disk: what counts is the old prefix
            kept = archive.keep_refused(bookkeeping, environment, built, refused.findings)
        journals.recover(bookkeeping, environment)
        if kept is not None:
            archive.forget_refused(bookkeeping, environment, but=kept)
        raise Refused(environment, refused.findings, kept=kept) from None
    except BaseException:
        journals.recover(bookkeeping, environment)
        raise
    receipt.publish(bookkeeping, journal.pending, made)
    reached("receipted")
    journals.finish(bookkeeping, journal)
    reached("done")
    return Replacement(made, None if journal.old is None else Path(journal.archive))


def _build_in_place(
    journal: Journal, bookkeeping: Path, build: Callable[[Path, Path | None], Receipt]
) -> Receipt:
    prefix = Path(journal.prefix)
    if journal.old is not None:
        _archive(prefix, journal)
    reached("archived")
    made = build(Path(journal.work), None)
    reached("built")
    _make_durable(journal, bookkeeping, made)
    reached("swapped")
    return made


def _build_aside(
    journal: Journal,
    bookkeeping: Path,
    build: Callable[[Path, Path | None], Receipt],
    swapping: Callable[[], AbstractContextManager[None]],
) -> Receipt:
    prefix = Path(journal.prefix)
    if journal.old is None:
        # something for the staged prefix to appear on
        prefix.mkdir(parents=True)
    made = build(Path(journal.work), journal.staging)
    reached("built")
    _make_durable(journal, bookkeeping, made)
    with swapping():
        if journal.old is None:
            # over the empty folder, in one step
            journal.staging.rename(prefix)
        elif journal.mode == "exchange":
            aside.exchange(journal.staging, prefix)
            reached("exchanged")
            _archive(journal.staging, journal)
        else:
            _archive(prefix, journal)
            reached("archived")
            journal.staging.rename(prefix)
        durable.fsync_folder(prefix.parent)
        reached("swapped")
    return made


def _make_durable(journal: Journal, bookkeeping: Path, made: Receipt) -> None:
    """Force everything to the disk before the old prefix is given up for it."""
    aside.syncfs(Path(journal.prefix).parent)
    aside.syncfs(bookkeeping)
    receipt.write(journal.pending, made)
    reached("pending")


def _archive(old: Path, journal: Journal) -> None:
    place = Path(journal.archive)
    place.parent.mkdir(parents=True, exist_ok=True)
    old.rename(place)
    durable.fsync_folder(place.parent)
    durable.fsync_folder(Path(journal.prefix).parent)


def _begin(bookkeeping: Path, environment: str, prefix: Path, mode: Mode) -> Journal:
    """Stage and write down the intent; before that, nothing has been touched."""
    now = datetime.datetime.now(datetime.UTC)
    parent = bookkeeping / "work"
    parent.mkdir(parents=True, exist_ok=True)
    _sweep(parent, environment)
    work = Path(tempfile.mkdtemp(prefix=f"{environment}@", dir=parent))
    staging = work / "prefix"
    if mode != "in place":
        staging.mkdir()
        staging.chmod(0o755)
    reached("staged")
    journal = Journal(
        environment=environment,
        prefix=str(prefix),
        mode=mode,
        work=str(work),
        archive=str(archive.new(bookkeeping, environment)),
        old=journals.inode(prefix),
        new=journals.inode(staging),
        since=now.strftime("%Y-%m-%dT%H:%M:%SZ"),
    )
    journals.write(bookkeeping, journal)
    reached("journalled")
    return journal


def _sweep(parent: Path, environment: str) -> None:
    """Remove what was staged by runs that were killed before they wrote a journal."""
    for folder in parent.glob(f"{environment}@*"):
        aside.remove(folder)
