"""Files on their way into a wheelhouse: whole under their own name, or not there."""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
import threading
import time
from pathlib import Path

from envbuild.artifacts import Artifact, Unpacked
from envbuild.artifacts.parallel import Cancelled
from envbuild.artifacts.wheel import scan
from envbuild.errors import StepError

_SUFFIX = ".part"

# Seconds after which a part is the leftover of a killed run, and no other's work.
_STALE = 24 * 60 * 60


class Part:
    """A file that is being written under a temporary name; made by `Parts.begin`.

    Attributes:
        artifact: what it is to become.
        size: bytes written so far.
    """

    def __init__(self, artifact: Artifact, descriptor: int, path: Path) -> None:
        self.artifact = artifact
        self.size = 0
        self.path = path
        self._file = os.fdopen(descriptor, "wb", buffering=0)
        self._hash = hashlib.sha256()

    def write(self, data: bytes) -> None:
        """Append bytes.

        Raises:
            OSError: they cannot be written.
        """
        view = memoryview(data)
        while view:
            view = view[self._file.write(view) :]
        self._hash.update(data)
        self.size += len(data)

    def restart(self) -> None:
        """Forget what was written."""
        self._file.seek(0)
        self._file.truncate()
        self._hash = hashlib.sha256()
        self.size = 0

    def verify(self, origin: str) -> Unpacked:
        """Check that this is the artifact, and a wheel that may be installed if it is one.

        Args:
            origin: where the bytes came from, as it may be shown.

        Returns:
            What it takes when it is installed.

        Raises:
            StepError: it has another size or SHA-256.
            InputError: it is a wheel that is not admitted.
            OSError: it cannot be read.
        """
        digest = self._hash.hexdigest()
        if digest != self.artifact.sha256 or self.artifact.size not in (0, self.size):
            raise self.other_bytes(origin, f"SHA-256 {digest}, {self.size} bytes")
        return admit(self.path, self.artifact)

    def other_bytes(self, origin: str, found: str) -> StepError:
        """Make the error for bytes that are not the artifact's."""
        return StepError(
            f"other bytes than those that are locked came from {origin}",
            where=named(self.artifact),
            expected=self.artifact.described,
            found=found,
            mend="nothing was kept; compare with the published file, or use another index",
        )

    def stat(self) -> os.stat_result:
        """Return what the file system says of the file, under whatever name it is now."""
        return os.fstat(self._file.fileno())

    def close(self) -> None:
        """Close the file; its name is not touched."""
        self._file.close()


class Parts:
    """The parts of one call: kept one by one, given up all at once.

    Args:
        folder: where they lie, in the same file system as their final names.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._open: set[Part] = set()
        self._given_up = threading.Event()

    def begin(self, artifact: Artifact) -> Part:
        """Make an empty part.

        Raises:
            Cancelled: everything was given up.
            OSError: it cannot be made.
        """
        with self._lock:
            self.check()
            descriptor, name = tempfile.mkstemp(
                prefix=f"{artifact.sha256[:16]}.", suffix=_SUFFIX, dir=self._folder
            )
            part = Part(artifact, descriptor, Path(name))
            self._open.add(part)
        return part

    def keep(self, part: Part, final: Path) -> os.stat_result:
        """Give a verified part its final name, in place of a file that has it.

        Raises:
            Cancelled: everything was given up.
            OSError: it cannot be renamed.
        """
        with self._lock:
            self.check()
            part.path.chmod(0o644)  # made readable to its owner only
            part.path.replace(final)
            self._open.remove(part)
        # renaming set the ctime; by the descriptor, as another process may have replaced it already
        return part.stat()

    def drop(self, part: Part) -> None:
        """Close a part, and remove it if it was not kept."""
        part.close()
        with self._lock:
            if part in self._open:
                self._open.remove(part)
                part.path.unlink(missing_ok=True)

    def give_up(self) -> None:
        """Remove all parts; whoever works on one will be told by `Cancelled`."""
        self._given_up.set()
        with self._lock:
            for part in self._open:
                part.path.unlink(missing_ok=True)
            self._open.clear()

    def check(self) -> None:
        """Return if the work is still wanted.

        Raises:
            Cancelled: it is not.
        """
        if self._given_up.is_set():
            raise Cancelled

    def pause(self, seconds: float) -> None:
        """Wait.

        Raises:
            Cancelled: everything was given up, before or meanwhile.
        """
        self._given_up.wait(seconds)
        self.check()


def remove_stale(folder: Path) -> None:
    """Remove what killed runs left more than a day ago.

    Raises:
        OSError: the folder cannot be read.
    """
    oldest = time.time() - _STALE
    with os.scandir(folder) as entries:
        for entry in entries:
            # another process may do the same at the same time
            with contextlib.suppress(FileNotFoundError, PermissionError):
                if entry.name.endswith(_SUFFIX) and entry.stat().st_mtime < oldest:
                    Path(entry).unlink()


def admit(path: Path, artifact: Artifact) -> Unpacked:
    """Scan a file if it is a wheel.

    Returns:
        What it takes when it is installed.

    Raises:
        InputError: the wheel is not admitted.
        OSError: it cannot be read.
    """
    if not artifact.file.endswith(".whl"):
        return Unpacked()
    contents = scan(path, file=artifact.file)
    return Unpacked(contents.unpacked_size, len(contents.entries))


def named(artifact: Artifact) -> str:
    """Name an artifact in a message: its project, if it has one, and its file."""
    return f"{artifact.project}: {artifact.file}" if artifact.project else artifact.file
