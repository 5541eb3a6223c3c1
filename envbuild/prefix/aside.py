"""Building at the final path while the old prefix stays in use: namespaces and exchanges."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Literal

import msgspec

from envbuild import namespaces

# How a new prefix gets to its final path.
#   exchange  built aside at the final path, then exchanged with the old one in one step
#   renames   built aside at the final path, then two renames; between them there is none
#   in place  the old one is archived first, and the new one built where it stood
Mode = Literal["exchange", "renames", "in place"]

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2


class Probe(msgspec.Struct, frozen=True):
    """What a place allows.

    Attributes:
        mode: the best way there is.
        why: what stands against a better one, in words; None where there is none better.
    """

    mode: Mode
    why: str | None = None


def exchange(one: Path, other: Path) -> None:
    """Let two paths change places in one step that nobody sees half done (renameat2(2)).

    Raises:
        OSError: the file system or the kernel does not offer it; nothing was changed.
    """
    paths = (_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other))
    namespaces.call("renameat2", *paths, _RENAME_EXCHANGE)


def syncfs(folder: Path) -> None:
    """Make everything that was written to a folder's file system durable (syncfs(2)).

    Raises:
        OSError: the file system could not write.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        namespaces.call("syncfs", descriptor)
    finally:
        os.close(descriptor)


def appear(staging: Path, final: Path) -> None:
    """Let ``staging`` stand at ``final`` too, for this process and its children alone.

    For a process of one thread. Where it is not root's, a user namespace gives it the right.

    Args:
        staging: the folder that is really written to.
        final: an existing folder, which others go on to see as it is.

    Raises:
        OSError: namespaces are not to be had here.
    """
    namespaces.leave(namespaces.MOUNTS)
    namespaces.bind(staging, final)


def probe(folder: Path) -> Probe:
    """Find out how a new prefix can get to its place in a folder, by trying.

    Args:
        folder: where prefixes stand; it can be written.

    Raises:
        OSError: it cannot be written.
    """
    with tempfile.TemporaryDirectory(prefix=".envbuild-probe-", dir=folder) as name:
        one, other = Path(name) / "one", Path(name) / "other"
        one.mkdir()
        other.mkdir()
        (one / "file").touch()
        refused = _namespaces_refused(one, other)
        if refused is not None:
            return Probe("in place", f"no private mount namespace: {refused}")
        try:
            exchange(one, other)
        except OSError as error:
            return Probe("renames", f"no exchange of two folders: {error.strerror}")
        return Probe("exchange")


def _namespaces_refused(staging: Path, final: Path) -> str | None:
    """Try a private mount in a process of its own; return what the kernel said if it refuses."""
    code = (
        "import sys; from pathlib import Path; from envbuild.prefix import aside\n"
        "try:\n"
        "    aside.appear(Path(sys.argv[1]), Path(sys.argv[2]))\n"
        "except OSError as error:\n"
        "    sys.exit(error.strerror)\n"
        "sys.exit(None if (Path(sys.argv[2]) / 'file').exists() else 'the mount shows nothing')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, staging, final],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )
    return None if done.returncode == 0 else done.stderr.strip() or f"status {done.returncode}"


def remove(folder: Path) -> None:
    """Remove a folder with all that is in it; nothing there is well too.

    Raises:
        OSError: something in it cannot be removed.
    """
    import shutil

    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(folder)
