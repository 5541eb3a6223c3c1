"""Who uses a prefix, and how that is kept from meeting its replacement.

Whoever starts a program from a prefix leaves a lease and then looks for the mark of a swap; whoever
swaps leaves the mark and then looks for leases. Each writes before it looks, so one of them sees
the other, whatever the order.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from envbuild import leases
from envbuild import owner as owners
from envbuild.errors import PreflightError
from envbuild.owner import Owner

# Seconds between two looks
_PAUSE = 0.2


class Patience(msgspec.Struct, frozen=True):
    """What to do while a prefix is in use.

    Attributes:
        wait: seconds to wait for its users to end, `math.inf` for as long as it takes; None to
            refuse at once.
        replace: replace it under its users.
    """

    wait: float | None = None
    replace: bool = False


def folder(bookkeeping: Path, environment: str) -> Path:
    """Return the folder of a prefix's leases."""
    return bookkeeping / "leases" / environment


def refuse_if_used(bookkeeping: Path, environment: str, patience: Patience) -> None:
    """Refuse to begin what could not be finished.

    Raises:
        PreflightError: the prefix is in use, and is neither to be waited for nor replaced.
    """
    users = leases.holders(folder(bookkeeping, environment))
    if users and patience.wait is None and not patience.replace:
        raise _used(bookkeeping, environment, users)


@contextmanager
def swapping(
    bookkeeping: Path,
    environment: str,
    me: Owner,
    patience: Patience,
    say: Callable[[str], None],
) -> Iterator[None]:
    """Keep new users away while the block runs, once those that are there have ended.

    Args:
        bookkeeping: the site's folder for it.
        environment: its name.
        me: who swaps, and holds the environment's lock.
        patience: what to do while it is in use.
        say: is told who is waited for.

    Raises:
        PreflightError: it is in use, and patience is at its end.
    """
    place = folder(bookkeeping, environment)
    place.mkdir(parents=True, exist_ok=True)
    mark = _mark(place)
    mark.unlink(missing_ok=True)  # of a process that was killed: the lock is ours now
    until = None if patience.wait is None else time.monotonic() + patience.wait
    told: set[str] = set()
    try:
        while True:
            owners.write_new(mark, owners.encode(me), durable=False)
            users = leases.holders(place)
            if not users or patience.replace:
                break
            mark.unlink()
            if until is None or time.monotonic() >= until:
                raise _used(bookkeeping, environment, users)
            for user in users:
                if user.token not in told:
                    told.add(user.token)
                    say(f"{environment}: waiting for {owners.describe(user)}")
            time.sleep(min(_PAUSE, max(0.0, until - time.monotonic())) or 0.01)
        yield
    finally:
        mark.unlink(missing_ok=True)


def take(bookkeeping: Path, environment: str, me: Owner, *, wait: float = math.inf) -> Path:
    """Leave a lease, once no swap is under way.

    Args:
        bookkeeping: the site's folder for it.
        environment: its name.
        me: who uses the prefix.
        wait: seconds to wait for a swap to end.

    Returns:
        The lease, for `leases.drop`.

    Raises:
        PreflightError: a swap did not end in that time.
        OSError: the lease cannot be written.
    """
    place = folder(bookkeeping, environment)
    until = time.monotonic() + wait
    while True:
        lease = leases.take(place, me)
        swapper = _swapper(place)
        if swapper is None:
            return lease
        leases.drop(lease)
        if time.monotonic() >= until:
            raise PreflightError(
                f"{environment} is being replaced",
                where=place,
                found=owners.describe(swapper),
                mend="try again when it has ended",
            )
        time.sleep(_PAUSE)


def _swapper(place: Path) -> Owner | None:
    """Return who is swapping, if anybody alive is."""
    try:
        data = _mark(place).read_bytes()
    except FileNotFoundError:
        return None
    swapper = owners.parse(data)
    return None if swapper is None or owners.proved_dead(swapper) else swapper


def _mark(place: Path) -> Path:
    return place.with_name(f"{place.name}.swap")


def _used(bookkeeping: Path, environment: str, users: list[Owner]) -> PreflightError:
    return PreflightError(
        f"{environment} is in use",
        where=folder(bookkeeping, environment),
        expected="nobody who runs from the prefix that is to be replaced",
        found="; ".join(owners.describe(user) for user in users),
        mend="wait with --wait, or replace it with --replace-in-use: a program that imports late "
        "then mixes the old environment and the new",
    )
