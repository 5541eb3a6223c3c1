"""Files that are whole or not there, whatever is killed in between."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def fsync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write(path: Path, data: bytes, *, mode: int = 0o644, sync: bool = True) -> None:
    """Write a file beside its final name, make it durable, and rename it into place.

    Args:
        path: the final name; its folder must be there.
        data: the whole content.
        mode: the file's permissions, whatever the umask.
        sync: whether it must survive a loss of power; without, it is whole or not there all the
            same for everybody who runs, and takes a tenth of the time.

    Raises:
        OSError: nothing was changed at ``path``, and nothing is left beside it.
    """
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    temporary = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fchmod(file.fileno(), mode)
            if sync:
                os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    if sync:
        fsync_folder(path.parent)
