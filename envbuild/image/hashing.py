"""Reading once what is hashed and copied on the way."""

from __future__ import annotations

import gzip
import hashlib
import io
from typing import TYPE_CHECKING, BinaryIO

from envbuild.digest import CHUNK

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer


class Hashing(io.RawIOBase):
    """A file that is read once and hashed on the way.

    Args:
        file: where from.
        copy: where what is read is written, too.
    """

    def __init__(self, file: BinaryIO | gzip.GzipFile, copy: BinaryIO | None = None) -> None:
        self._file = file
        self._copy = copy
        self._hash = hashlib.sha256()
        self.size = 0

    @property
    def digest(self) -> str:
        """SHA-256 of what was read."""
        return self._hash.hexdigest()

    def readable(self) -> bool:
        """Whether it can be read: it can."""
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        """Read up to as many bytes as there is room for."""
        room = memoryview(buffer).cast("B")
        data = self._file.read(len(room))
        room[: len(data)] = data
        self._hash.update(data)
        self.size += len(data)
        if self._copy is not None:
            self._copy.write(data)
        return len(data)


def drain(file: io.BufferedIOBase) -> None:
    """Read what is left of a file."""
    while file.read(CHUNK):
        pass
