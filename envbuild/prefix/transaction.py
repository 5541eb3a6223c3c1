"""Putting a prefix in place: the old one aside before, back again if the new one fails."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(prefix: Path, archive: Path) -> Iterator[None]:
    """Let the block build at ``prefix``, with what stood there before kept in ``archive``.

    The prefix is built in place, since paths bind. If the block fails, what it made is removed and
    the old prefix is renamed back; killed in between, the old one stands in the archive.

    Args:
        prefix: the final path.
        archive: where the old prefix goes, on the same file system; not there yet.

    Raises:
        OSError: the old prefix cannot be renamed; nothing was changed.
    """
    old = prefix.exists() or prefix.is_symlink()
    if old:
        archive.parent.mkdir(parents=True, exist_ok=True)
        prefix.rename(archive)
    try:
        yield
    except BaseException:
        shutil.rmtree(prefix, ignore_errors=True)
        if old:
            archive.rename(prefix)
        raise
