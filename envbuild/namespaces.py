"""Private mounts, networks and processes: the kernel calls that Python offers late or not at all.

unshare(2), mount(2), renameat2(2), syncfs(2), by the C library.
"""

from __future__ import annotations

import ctypes
import errno
import os
from pathlib import Path

MOUNTS = 0x00020000
PROCESSES = 0x20000000
NETWORK = 0x40000000
_USERS = 0x10000000

_BIND = 0x1000
_RECURSIVE = 0x4000
_PRIVATE = 0x40000

_libc = ctypes.CDLL(None, use_errno=True)


def call(name: str, *arguments: object) -> None:
    """Call a function of the C library that returns 0 or sets errno.

    Raises:
        OSError: it failed, or the library does not have it.
    """
    function = getattr(_libc, name, None)
    if function is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    if function(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def leave(kinds: int) -> None:
    """Give this process namespaces of its own, whose mounts nobody else sees.

    For a process of one thread. Where it is not root's, or root may not, a user namespace gives it
    the right. One's own identity is kept: what is made belongs to the same user outside.

    Args:
        kinds: `MOUNTS` and what else, by ``|``; of processes it is the children that are alone.

    Raises:
        OSError: namespaces are not to be had here.
    """
    uid, gid = os.geteuid(), os.getegid()
    refused = uid != 0
    if not refused:
        try:
            call("unshare", kinds)
        except PermissionError:
            refused = True
    if refused:
        call("unshare", kinds | _USERS)
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
        Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")
    call("mount", None, b"/", None, _RECURSIVE | _PRIVATE, None)


def bind(source: str | Path, target: str | Path, *, deep: bool = False) -> None:
    """Let a folder or file stand at another place, too.

    Args:
        source: what is to appear.
        target: an existing folder or file that it hides.
        deep: with all that is mounted below it.

    Raises:
        OSError: it may not.
    """
    flags = _BIND | _RECURSIVE if deep else _BIND
    call("mount", os.fsencode(source), os.fsencode(target), None, flags, None)


def empty(target: Path) -> None:
    """Mount an empty file system in memory on a folder.

    Raises:
        OSError: it may not.
    """
    call("mount", b"envbuild", os.fsencode(target), b"tmpfs", 0, b"mode=0755")
