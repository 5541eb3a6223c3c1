"""Leases: notes that a process uses a prefix, which nothing has to take back.

A lease is the owner's file in a folder of the prefix's own. `envbuild exec` writes one and becomes
the program it starts: pid and start time stay, so the lease holds as long as that process lives and
lapses by proof of its death. What the program leaves running behind it has none.

To be sure, each side writes before it looks: who uses a prefix takes the lease and then sees
whether the prefix's lock is held; who changes it takes the lock and then sees who has a lease.
"""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

from envbuild import owner as owners
from envbuild.errors import PreflightError
from envbuild.owner import Owner

# Seconds after which a lease that was never finished is removed; writing one takes less than one
_UNFINISHED = 86400.0


def take(folder: Path, owner: Owner) -> Path:
    """Note that a process uses a prefix.

    Nothing is forced to the disk: a crash of the machine ends the process too.

    Args:
        folder: the prefix's leases; made if it is not there.
        owner: who uses it; its token is the lease's name.

    Returns:
        The lease, for `drop`.

    Raises:
        OSError: it cannot be written; nothing is left.
    """
    unfinished = folder / f".{owner.token}"
    data = owners.encode(owner)
    try:
        owners.write_new(unfinished, data, durable=False)
    except FileNotFoundError:
        folder.mkdir(parents=True, exist_ok=True)
        owners.write_new(unfinished, data, durable=False)
    lease = folder / f"{owner.token}.json"
    try:
        unfinished.rename(lease)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise
    return lease


def drop(lease: Path) -> None:
    """End a lease; it may have been removed already."""
    lease.unlink(missing_ok=True)


def holders(folder: Path) -> list[Owner]:
    """Say who uses a prefix or may do so, the first first; leases of the dead are removed.

    Args:
        folder: the prefix's leases.

    Raises:
        PreflightError: a lease cannot be read, so that nobody knows whose it is.
    """
    leases = {file: owner for file in _files(folder) if (owner := _read(file)) is not None}
    verdicts = dict(zip(leases, owners.verdicts(leases.values()), strict=True))
    for file, verdict in verdicts.items():
        if verdict == "dead":
            # in a shared folder another user's may be there to stay
            with contextlib.suppress(PermissionError):
                drop(file)
    using = [owner for file, owner in leases.items() if verdicts[file] != "dead"]
    return sorted(using, key=lambda owner: (owner.since, owner.token))


def _files(folder: Path) -> list[Path]:
    """List the leases, and remove those that were never finished."""
    try:
        files = list(folder.iterdir())
    except FileNotFoundError:
        return []
    for file in files:
        if file.name.startswith("."):
            with contextlib.suppress(OSError):
                if time.time() - file.stat().st_mtime > _UNFINISHED:
                    file.unlink()
    return [file for file in files if not file.name.startswith(".") and file.suffix == ".json"]


def _read(file: Path) -> Owner | None:
    try:
        data = file.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _unreadable(file, error.strerror or str(error)) from error
    owner = owners.parse(data)
    if owner is None:
        raise _unreadable(file, f"{len(data)} bytes of something else" if data else "an empty file")
    return owner


def _unreadable(file: Path, found: str) -> PreflightError:
    return PreflightError(
        "a lease does not say who uses the prefix",
        where=file,
        expected="an owner, as envbuild writes it",
        found=found,
        mend="make sure that nothing runs from the prefix, then remove this file",
    )
