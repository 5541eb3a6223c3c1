"""Locks between processes of several hosts, on file systems where flock is not to be trusted.

A lock is a file that says who holds it. It gets its name by link(), which fails where there is one:
complete from its first moment, and either there or not there on every host.

Only its owner removes a lock, unless the owner's death is proved. Of those who see that, one may
remove it, or the second of two would remove the lock that the first has taken meanwhile. The one
is chosen by a claim: a file named after the dead lock's token, by link() again. A token never comes
back, so whoever has the claim and still sees that lock is the only one who can remove it. If it
dies in the middle, its death is proved in turn, and the next level of the claim is open.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import itertools
import math
import os
import random
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import msgspec

from envbuild import owner as owners
from envbuild.errors import PreflightError, StepError
from envbuild.owner import Owner

How = Literal["link", "create"]

# What link() says where there are no hard links: FAT, some FUSE
_NO_LINKS = frozenset({errno.EPERM, errno.ENOTSUP, errno.ENOSYS})

# Seconds between two looks at a lock that is held
_SHORTEST, _LONGEST = 0.05, 2.0

# Seconds between two questions to Slurm about the same owner: a hundred array jobs may wait
_ASK_EVERY = 60.0

# Where a lock is created and then written, it may be seen half written; seconds to wait and see
_HALF_WRITTEN = (0.05, 0.15, 0.3)

# Seconds after which what a killed process left beside a lock is removed
_LEFT_OVER = 86400.0

_random = random.SystemRandom()


class ExclusiveLock(msgspec.Struct, frozen=True):
    """A lock that this process holds.

    Attributes:
        path: the lock.
        owner: what it says of its holder; token and time are this lock's own.
        how: how it was made, ``create`` where the file system has no hard links.
    """

    path: Path
    owner: Owner
    how: How


def _silent(_text: str) -> None:
    pass


@contextmanager
def exclusive(
    path: Path,
    owner: Owner,
    *,
    wait: float | None = None,
    say: Callable[[str], None] = _silent,
) -> Iterator[ExclusiveLock]:
    """Hold a lock while the block runs.

    Args:
        path: the lock; its folder must be there, and belong to locks.
        owner: who takes it; the lock has a token of its own, so threads exclude each other too.
        wait: seconds to wait for another holder, `math.inf` for as long as it takes; None to be
            refused at once.
        say: told once who is waited for, again when that changes, and when a lock is taken over
            from a dead process.

    Raises:
        PreflightError: another process holds it, or may hold it; or the folder cannot be used.
        StepError: the block ended, but someone removed the lock while it ran.
    """
    me = msgspec.structs.replace(owner, token=owners.new_token())
    try:
        lock = _acquire(path, me, wait, say)
        _sweep(path)
        yield lock
    except BaseException:
        # also what comes between the link and the block: an interrupt leaves no lock
        with contextlib.suppress(PreflightError, StepError):
            _remove(path, me.token)
        raise
    _release(lock)


def read(path: Path) -> Owner | None:
    """Say who holds a lock, dead or alive; None if nobody does.

    Raises:
        PreflightError: the lock does not say who holds it.
    """
    for pause in (*_HALF_WRITTEN, None):
        data = _data(path)
        if data is None:
            return None
        owner = owners.parse(data)
        if owner is not None:
            return owner
        if pause is not None:
            time.sleep(pause)
    raise PreflightError(
        "locked, but the lock does not say by whom",
        where=path,
        expected="an owner, as envbuild writes it",
        found="an empty file" if not data else f"{len(data)} bytes of something else",
        mend="make sure that nobody is at work there, then `envbuild unlock`",
    )


def unlock(path: Path, *, expected_token: str | None = None) -> Owner | None:
    """Remove a lock because a person knows that its holder is dead.

    Who takes over a lock but cannot be seen from here is taken for dead as well.

    Args:
        path: the lock.
        expected_token: the token of the lock that the person was shown, so that no later one is
            removed.

    Returns:
        Whose lock it was; None if it did not say.

    Raises:
        PreflightError: it is not locked, or by another than the one expected, or another process
            on this host is just removing the lock.
    """
    data = _data(path)
    if data is None:
        raise PreflightError("not locked", where=path, mend="nothing is to be done")
    holder = owners.parse(data)
    if expected_token is not None and (holder is None or holder.token != expected_token):
        raise PreflightError(
            "locked by another than was expected",
            where=path,
            expected=f"token {expected_token}",
            found="no token"
            if holder is None
            else f"token {holder.token}: {owners.describe(holder)}",
            mend="look again who holds it",
        )
    me = owners.current("envbuild unlock")
    cleared = _clear(path, _generation(data), me, ask=False, vouched=True)
    if cleared is True:
        return holder
    raise PreflightError(
        "another process is removing the lock, or has done so",
        where=path,
        found=None if cleared is False else owners.describe(cleared),
        mend="look again who holds it",
    )


class _Patience:
    """How much longer to wait, and how long until the next look."""

    def __init__(self, limit: float | None) -> None:
        self.limit = limit or 0.0
        self._end = time.monotonic() + self.limit
        self._pause = _SHORTEST

    def is_over(self) -> bool:
        return time.monotonic() >= self._end

    def pause(self) -> None:
        # no two of a hundred array jobs should look at the same moment
        seconds = self._pause * _random.uniform(0.5, 1.0)
        time.sleep(max(0.0, min(seconds, self._end - time.monotonic())))
        self._pause = min(_LONGEST, self._pause * 1.5)


def _acquire(
    path: Path, me: Owner, wait: float | None, say: Callable[[str], None]
) -> ExclusiveLock:
    patience = _Patience(wait)
    told = judged = ""
    asked = -math.inf
    while True:
        holder = read(path)
        if holder is None:
            mine = msgspec.structs.replace(me, since=owners.now())
            how = _place(path, path, mine)
            if how is not None:
                return ExclusiveLock(path, mine, how)
            continue
        ask = holder.token != judged or time.monotonic() - asked >= _ASK_EVERY
        if ask:
            judged, asked = holder.token, time.monotonic()
        if owners.verdict(holder, ask=ask) == "dead":
            cleared = _clear(path, holder.token, me, ask=ask)
            if cleared is True:
                say(f"taking over from a dead process: {owners.describe(holder)}")
            if isinstance(cleared, bool):
                continue
            holder = cleared
        if patience.is_over():
            raise _refusal(path, holder, patience.limit)
        if holder.token != told:
            told = holder.token
            say(f"waiting for {owners.describe(holder)}")
        patience.pause()


def _refusal(path: Path, holder: Owner, waited: float) -> PreflightError:
    alive = owners.verdict(holder, ask=False) == "alive"
    return PreflightError(
        f"still locked after {waited:g} s" if waited else "locked by another process",
        where=path,
        expected="nobody else at work there",
        found=owners.describe(holder),
        mend="wait until it ends"
        if alive
        else "wait until it ends; whether it still runs cannot be seen from here: "
        "if you know that it does not, `envbuild unlock`",
    )


def _place(lock: Path, name: Path, owner: Owner) -> How | None:
    """Write an owner under a name, if there is nothing of that name.

    Args:
        lock: the lock, beside which the owner is written first.
        name: the lock itself or a claim on it.
        owner: what to write.

    Raises:
        PreflightError: the folder does not take it.
    """
    temporary = _beside(lock, "new")
    try:
        # durable, so that no crash leaves a name without its owner
        owners.write_new(temporary, owners.encode(owner), durable=True)
        return _publish(temporary, name)
    except OSError as error:
        raise PreflightError(
            f"cannot be locked: {error.strerror}",
            where=lock,
            expected="a folder that is there, with room, where this user may write",
            mend=f"look at {lock.parent}",
        ) from error
    finally:
        temporary.unlink(missing_ok=True)


def _publish(source: Path, name: Path) -> How | None:
    """Give a file a name, if there is nothing of that name."""
    refused: OSError | None = None
    before = source.stat().st_nlink
    try:
        os.link(source, name)
    except OSError as error:
        refused = error
    # An answer of NFS can get lost, and what comes to the repeated question is that there is such
    # a name already: the number of names is what tells. Some FUSE do not count them.
    data = source.read_bytes()
    if source.stat().st_nlink > before or _data(name) == data:
        return "link"
    if refused is None or refused.errno == errno.EEXIST:
        return None
    if refused.errno not in _NO_LINKS:
        raise refused
    try:
        owners.write_new(name, data, durable=True)
    except FileExistsError:
        return None
    return "create"


def _clear(
    path: Path, generation: str, me: Owner, *, ask: bool, vouched: bool = False
) -> bool | Owner:
    """Remove a lock whose owner is dead, if nobody else is at it.

    The levels below ours belong to claimants that died, so their files stay until the lock is gone;
    the highest level has one owner. The lock is read again after our claim is made: what is read
    before can be old, and on NFS a change of our own in the folder is what makes it be looked up.

    Args:
        path: the lock.
        generation: which lock, as `_generation` says.
        me: who removes it.
        ask: whether Slurm may be asked about other claimants.
        vouched: whether a person says that whoever is not seen alive is dead.

    Returns:
        True if it was removed, False if it was gone already, or else who is about to remove it.
    """
    claims: list[Path] = []
    for level in itertools.count():
        claim = path.with_name(f".{path.name}.{generation}.{level}.claim")
        claims.append(claim)
        if _place(path, claim, me) is not None:
            break
        try:
            other = read(claim)
        except PreflightError:
            if not vouched:
                raise
            continue
        if other is None:
            return False
        seen = owners.verdict(other, ask=ask)
        if seen != "dead" and not (vouched and seen == "unknown"):
            return other
    try:
        removed = _remove(path, generation)
    except BaseException:
        claims[-1].unlink(missing_ok=True)
        raise
    for claim in claims:
        claim.unlink(missing_ok=True)
    return removed


def _remove(path: Path, generation: str) -> bool:
    """Remove a lock if it is still the one that is meant.

    That is looked at before and, as somebody may know better and use `rm`, again once the lock is
    out of the way.

    Returns:
        Whether it was removed; else it is gone, or there is another one.

    Raises:
        StepError: the file system does not let it; or two processes now hold the lock.
    """
    aside = _beside(path, "aside")
    try:
        if _generation_at(path) != generation:
            return False
        # a repeated rename of NFS finds nothing to rename: what counts is what is there now
        with contextlib.suppress(FileNotFoundError):
            path.rename(aside)
        moved = _generation_at(aside)
        if moved == generation:
            aside.unlink(missing_ok=True)
            return True
        if moved is not None:
            _put_back(aside, path)
    except OSError as error:
        raise StepError(
            f"the lock cannot be removed: {error.strerror}",
            where=path,
            mend="see who owns the folder and the lock, then `envbuild unlock`",
        ) from error
    return False


def _put_back(aside: Path, path: Path) -> None:
    if _publish(aside, path) is None:
        first, second = (_shown(file) for file in (aside, path))
        raise StepError(
            "two processes hold the lock, since it was removed by hand",
            where=path,
            expected="one of them",
            found=f"{first}; and {second}",
            mend="stop both, and see what they left",
        )
    aside.unlink()


def _release(lock: ExclusiveLock) -> None:
    if not _remove(lock.path, lock.owner.token):
        raise StepError(
            "the lock was removed while it was held",
            where=lock.path,
            expected=f"token {lock.owner.token}",
            found=_shown(lock.path),
            mend="another process may have been at work at the same time: check what was made",
        )


def _sweep(path: Path) -> None:
    """Remove what killed processes left beside a lock, once it is a day old.

    Called by who holds the lock, so that claims on any lock before it mean nothing any more. The
    age is that between two files, since the clock of a file server need not be ours.
    """
    left = re.compile(rf"\.{re.escape(path.name)}\.[0-9a-f]{{32}}(\.\d+\.claim|\.new|\.aside)")
    with contextlib.suppress(OSError):
        newest = path.stat().st_mtime
        for file in path.parent.iterdir():
            if left.fullmatch(file.name) and newest - file.stat().st_mtime > _LEFT_OVER:
                owner = owners.parse(file.read_bytes())
                if owner is None or owners.verdict(owner, ask=False) == "dead":
                    file.unlink()


def _beside(path: Path, kind: str) -> Path:
    return path.with_name(f".{path.name}.{owners.new_token()}.{kind}")


def _data(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        if not path.is_symlink():
            return None
        raise PreflightError("a symbolic link to nothing", where=path, mend="remove it") from None
    except OSError as error:
        # NFS: removed on another host after we had looked it up
        if error.errno == errno.ESTALE:
            return None
        raise PreflightError(
            f"the lock cannot be read: {error.strerror}",
            where=path,
            mend="see who owns the folder and the lock",
        ) from error


def _generation(data: bytes) -> str:
    """Name a lock that once was, by its token or, without one, by what it holds instead."""
    owner = owners.parse(data)
    return owner.token if owner is not None else hashlib.sha256(data).hexdigest()[:32]


def _generation_at(path: Path) -> str | None:
    data = _data(path)
    return None if data is None else _generation(data)


def _shown(path: Path) -> str:
    data = _data(path)
    if data is None:
        return "no lock"
    owner = owners.parse(data)
    return "a lock that does not say whose" if owner is None else owners.describe(owner)
