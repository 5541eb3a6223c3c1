"""Reading small files of a prefix, which may be anything: a pipe that nobody writes to, a disk."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

# Far more than what names a path or lists a package has
MOST = 64 << 20


def read(path: Path | str) -> bytes:
    """Return the content of a regular file of at most 64 MiB, links followed.

    Raises:
        OSError: it cannot be read, is no regular file, or is larger.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        if status.st_size > MOST:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), str(path))
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            return file.read()
    finally:
        os.close(descriptor)


def is_file(path: Path) -> bool:
    """Whether a path leads to a regular file; not where nobody may tell."""
    return stat.S_ISREG(_mode(path))


def is_folder(path: Path) -> bool:
    """Whether a path leads to a folder; not where nobody may tell."""
    return stat.S_ISDIR(_mode(path))


def is_link(path: Path) -> bool:
    """Whether a path is a link; not where nobody may tell."""
    try:
        return path.is_symlink()
    except OSError:
        return False


def _mode(path: Path) -> int:
    try:
        return path.stat().st_mode
    except (OSError, ValueError):
        return 0
