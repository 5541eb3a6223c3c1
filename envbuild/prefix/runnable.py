"""Whether a prefix can be run, and a lease on one that can.

As `run`, this imports little as long as nothing is wrong.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from envbuild import leases
from envbuild import owner as owners
from envbuild.catalog.site import Layout
from envbuild.errors import PreflightError
from envbuild.owner import Owner
from envbuild.prefix import usage

# The schema of receipts that are understood here; the tests hold it to that of receipt.py
SCHEMA = 2

# Seconds that a replacement under way gets, even where nobody asked to wait: a prefix that was
# built aside is exchanged in a moment, and a job should not fail for that
_MOMENT = 2.0
# Seconds between two looks
_PAUSE = 0.1


class Request(msgspec.Struct, frozen=True):
    """What a person asked to run, and where.

    Attributes:
        name: the environment.
        program: the command and its arguments; at least the command.
        site_name: a site's name or file, as given.
        root: the root of a rehearsal.
        user: who stands for ``{user}``.
        wait: seconds to wait for a replacement that is under way, `math.inf` for as long as it
            takes; None for no longer than a moment.
    """

    name: str
    program: tuple[str, ...]
    site_name: str
    root: Path | None
    user: str | None
    wait: float | None

    def mend(self, *words: str) -> str:
        """Tell a person to give a command of envbuild about the same site."""
        import shlex

        site = ["--site", self.site_name]
        site += ["--root", str(self.root)] if self.root is not None else []
        site += ["--user", self.user] if self.user is not None else []
        return f"run `{shlex.join(['envbuild', *words, *site])}`"


class _Built(msgspec.Struct, frozen=True):
    """What running needs to know of a `receipt.Receipt`."""

    prefix: str
    schema: int


class _Statement(msgspec.Struct, frozen=True):
    """The statement that a receipt stands in."""

    predicate: _Built


def take(request: Request, layout: Layout, prefix: Path, say: Callable[[str], None]) -> Path:
    """Leave a lease on a prefix that can be run.

    One that cannot is waited for while somebody is at work on it, as long as was asked for.

    Args:
        request: what is to be run.
        layout: the site.
        prefix: the environment's prefix there.
        say: is told who is waited for.

    Returns:
        The lease, for `leases.drop`.

    Raises:
        PreflightError: there is no prefix that can be run, or no lease can be left.
    """
    me = owners.current(f"envbuild exec {request.name} -- {request.program[0]}")
    until = time.monotonic() + max(request.wait or 0.0, _MOMENT)
    told = request.wait is None
    while True:
        try:
            return _take(request, layout, prefix, me)
        except PreflightError as error:
            builder = _builder(layout, request.name)
            if builder is None:
                raise
            if time.monotonic() >= until:
                raise _under_way(error, builder) from error
        if not told:
            say(f"{request.name}: waiting for {owners.describe(builder)}")
            told = True
        time.sleep(_PAUSE)


def _take(request: Request, layout: Layout, prefix: Path, me: Owner) -> Path:
    """Leave a lease and look at the prefix again: from the one on, nobody replaces the other."""
    _refuse_unfit(request, layout, prefix)
    try:
        lease = usage.take(layout.bookkeeping, request.name, me, wait=0)
    except OSError as error:
        raise PreflightError(
            f"no note can be left that {request.name} is in use: {error.strerror}",
            where=usage.folder(layout.bookkeeping, request.name),
            expected="a folder where this user may write",
            mend="ask its owner for that; or run the program by its path in "
            f"{prefix / 'bin'}, and no replacement will wait for it",
        ) from error
    try:
        _refuse_unfit(request, layout, prefix)
    except BaseException:
        leases.drop(lease)
        raise
    return lease


def _refuse_unfit(request: Request, layout: Layout, prefix: Path) -> None:
    """Refuse a prefix that is not there, not finished, or not the one its receipt speaks of."""
    name, receipt = request.name, _receipt(layout, request.name)
    if _journal(layout, name).exists():
        _refuse_half_built(request, layout, prefix)
    if not prefix.is_dir():
        raise PreflightError(
            f"there is no prefix of {name}", where=prefix, mend=request.mend("create", name)
        )
    built = _built(receipt)
    if built is None:
        raise PreflightError(
            f"the prefix of {name} has no receipt: nobody knows whether it is whole",
            where=prefix,
            expected=f"a receipt that this envbuild can read, {receipt}",
            mend=request.mend("create", name),
        )
    if built.prefix != str(prefix):
        raise PreflightError(
            f"the receipt of {name} is of another prefix",
            where=receipt,
            expected=prefix,
            found=built.prefix,
            mend=request.mend("create", name),
        )


def _refuse_half_built(request: Request, layout: Layout, prefix: Path) -> None:
    """Refuse what a journal says is neither the whole old prefix nor the whole new one."""
    from envbuild.prefix import journal as journals

    name, file = request.name, _journal(layout, request.name)
    under_way = journals.read(layout.bookkeeping, name)
    if under_way is None:
        return  # done meanwhile
    if _builder(layout, name) is None and file.exists():
        raise PreflightError(
            f"a replacement of {name} was interrupted",
            where=file,
            expected="no journal, or somebody at work",
            mend=f"{request.mend('recover')}; creating {name} does that first, too",
        )
    here = journals.inode(prefix)
    if here is None or here not in (under_way.old, under_way.new):
        raise PreflightError(f"{name} is being replaced", where=prefix)


# receipt.py and journal.py know all of these two files, and take longer to import than all this


def _receipt(layout: Layout, name: str) -> Path:
    return layout.bookkeeping / "receipts" / f"{name}.json"


def _journal(layout: Layout, name: str) -> Path:
    return layout.bookkeeping / "journal" / f"{name}.json"


def _built(receipt: Path) -> _Built | None:
    """Read what a receipt says of its prefix; None if there is none that can be read."""
    try:
        built = msgspec.json.decode(receipt.read_bytes(), type=_Statement).predicate
    except (OSError, msgspec.DecodeError):
        return None
    return built if built.schema == SCHEMA else None


def _builder(layout: Layout, name: str) -> Owner | None:
    """Return who holds an environment's lock and is not proved dead."""
    from envbuild import exclusion
    from envbuild.prefix import locked

    holder = exclusion.read(locked.path(layout, name))
    return None if holder is None or owners.proved_dead(holder) else holder


def _under_way(error: PreflightError, builder: Owner) -> PreflightError:
    return PreflightError(
        error.what,
        where=error.where,
        expected=error.expected,
        found=f"at work on it: {owners.describe(builder)}",
        mend="wait for it with --wait, or try again when it has ended",
    )
