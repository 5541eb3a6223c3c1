"""Writing gzip around streams that were compressed elsewhere (RFC 1952).

A gzip file is a sequence of members, each with one DEFLATE stream. Whoever reads one reads all of
them, but each costs a little, so that as much as can be goes into one: what is generated, what is
stored, and streams of one block, whose mark of the last block is taken away. A stream of several
blocks has that mark somewhere inside; it gets a member of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from isal.isal_zlib import crc32

from envbuild.image import deflate

# no flags, no time, no name; of no known system, which RFC 1952 numbers 255
_HEADER = b"\x1f\x8b\x08\0\0\0\0\0\0\xff"


class Gzip:
    """A gzip file that is being written.

    Args:
        write: takes the bytes, in order.
    """

    def __init__(self, write: Callable[[bytes], object]) -> None:
        self._write = write
        self._open = False
        self._crc = 0
        self._size = 0
        # where parts of headers are in the member
        self._recent: dict[bytes, int] = {}

    def data(self, data: bytes) -> None:
        """Add plain bytes, compressed by our own encoder."""
        self.joined(deflate.encode(data), data)

    def parts(self, parts: Sequence[bytes], data: bytes) -> None:
        """Add a few plain bytes, compressed quickly.

        Args:
            parts: them, as `deflate.encode_parts` takes them.
            data: them, joined.
        """
        self.joined(deflate.encode_parts(parts, self._recent, self._size), data)

    def stored(self, size: int, chunks: Iterable[bytes]) -> None:
        """Add a content as it is.

        Args:
            size: of all of it, in bytes.
            chunks: its bytes, in pieces of any size.
        """
        self._begin()
        waiting = bytearray()
        remaining = iter(chunks)
        for header, part in deflate.stored(size):
            while len(waiting) < part:
                waiting += next(remaining)
            self._write(header)
            self._write(bytes(waiting[:part]))
            self._count(bytes(waiting[:part]))
            del waiting[:part]

    def joined(self, stream: bytes, content: bytes) -> None:
        """Add blocks none of which is the last, and which end at a byte boundary.

        Args:
            stream: the blocks.
            content: what they stand for.
        """
        self._begin()
        self._write(stream)
        self._count(content)

    def member(self, chunks: Iterable[bytes], crc: int, size: int) -> None:
        """Add a whole DEFLATE stream as a member of its own.

        Args:
            chunks: its bytes, in pieces of any size.
            crc: CRC-32 of what it stands for.
            size: of that, in bytes.
        """
        self._end()
        self._write(_HEADER)
        for chunk in chunks:
            self._write(chunk)
        self._write(_trailer(crc, size))

    def close(self) -> None:
        """End the file."""
        self._end()

    def _begin(self) -> None:
        if not self._open:
            self._write(_HEADER)
            self._open = True

    def _end(self) -> None:
        if self._open:
            self._write(deflate.LAST + _trailer(self._crc, self._size))
            self._open = False
            self._crc = self._size = 0
            self._recent.clear()

    def _count(self, content: bytes) -> None:
        self._crc = crc32(content, self._crc)
        self._size += len(content)


def _trailer(crc: int, size: int) -> bytes:
    return crc.to_bytes(4, "little") + (size & 0xFFFFFFFF).to_bytes(4, "little")
