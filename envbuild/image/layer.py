"""Writing a layer: a tar archive whose files are generated or copied, compressed, out of wheels."""

from __future__ import annotations

import hashlib
import os
import zlib
from collections.abc import Iterator
from functools import lru_cache
from typing import BinaryIO, Literal, cast

import msgspec
from isal import isal_zlib

from envbuild.artifacts.archive import MEND, Entry
from envbuild.errors import InputError
from envbuild.image import deflate, gzip, tar
from envbuild.image.tar import Item

# Raised whenever the same content gives other bytes than before.
VERSION = (1, deflate.VERSION)

Compression = Literal["gzip", "none"]

# What is read at once. Inflated it is a thousand times as much at most, which has room in memory.
_PIECE = 1 << 16
# What is written at once.
_OUT = 1 << 18
# Up to these sizes, in bytes, an entry is looked at as a whole, so that it can join a member:
# compressors end a block long before them.
_JOINED_STREAM, _JOINED_CONTENT = 1 << 20, 16 << 20
# Headers, and generated files of so many bytes among them, are compressed quickly; files of more
# bytes are compressed well, and not more of them at once.
_SMALL, _TOGETHER = 256, 1 << 20
# Beyond this size, in bytes, and this ratio no honest file is compressed; DEFLATE allows 1032.
_BOMB_SIZE, _BOMB_RATIO = 64 << 20, 500

# the longest name and path of Linux, in bytes (limits.h); of a longer one so much is shown
_NAME, _PATH, _SHOWN = 255, 4095, 100

# the library's own types say that this is an exception, not a class of them
_IsalError = cast("type[Exception]", isal_zlib.IsalError)

# What comes of this tells how a stream of one block ended; see `_joinable`. It is a stored block of
# 248 bytes, the first of which is F8, and a last block; or else, with the first byte as the end of
# a block's header, the begin of a stored block of 1,792 bytes.
_PROBE = b"\xf8\0\x07\xff\xf8" + bytes(247) + deflate.LAST
_HERE, _NEXT = _PROBE[4:-2], _PROBE[5:]
_REST = bytes(1792 - len(_NEXT))


_zeros = lru_cache(bytes)


class Blob(msgspec.Struct, frozen=True):
    """A layer that was written.

    Attributes:
        digest: SHA-256 of its bytes, 64 hexadecimal digits.
        size: of them.
        diff_id: SHA-256 of the tar archive inside.
        unpacked: the size of that archive, in bytes.
    """

    digest: str
    size: int
    diff_id: str
    unpacked: int


class Layer:
    """A layer that is being written.

    Args:
        file: where to, open for writing.
        compression: ``gzip``, or ``none`` for the plain archive.
    """

    def __init__(self, file: BinaryIO, compression: Compression) -> None:
        self._file = file
        self._blob = hashlib.sha256()
        self._size = 0
        self._out = bytearray()
        self._tar = hashlib.sha256()
        self._unpacked = 0
        self._folders: set[str] = set()
        self._gzip = gzip.Gzip(self._write) if compression == "gzip" else None
        # headers, paddings and generated files, which are hashed and written together
        self._pending: list[bytes] = []
        self._waiting = 0  # bytes of generated files among them

    def add(self, item: Item, *, mark: bytes = b"") -> None:
        """Add a file, folder or link; the folders above it that are not there yet come first.

        Args:
            item: what.
            mark: if given, the content is of lines that are alike up to this mark in each; it is
                then compressed in a tenth of the time.
        """
        self._header(item)
        if item.kind != "file" or not item.content:
            return
        if mark:
            self._flush()
            self._count(item.content)
            if self._gzip is None:
                self._write(item.content)
            else:
                self._gzip.joined(deflate.encode_lines(item.content, mark), item.content)
        else:
            self._pending.append(item.content)
            self._waiting += len(item.content)
        self._pending.append(_zeros(tar.padding(len(item.content))))
        if self._waiting > _TOGETHER:
            self._flush()

    def splice(self, item: Item, entry: Entry, descriptor: int, label: str, digest: str) -> None:
        """Add a file as it lies in a zip: its stream is copied, and inflated only to be checked.

        Args:
            item: the file, without its content.
            entry: what is in the zip.
            descriptor: the zip, open for reading.
            label: its name, for messages.
            digest: algorithm and hexadecimal digest of the content, such as ``sha256:…``, if
                that is to be checked too; else empty.

        Raises:
            InputError: the content is not what the zip says of it; wheel and entry are named.
            OSError: the zip cannot be read.
        """
        self._header(item, entry.size)
        if not digest and self._joins(entry, descriptor):
            self._pending.append(_zeros(tar.padding(entry.size)))
            return
        copy = _Copy(entry, descriptor, label, digest)
        if entry.size == 0:
            copy.all()
        elif not entry.deflated:
            self._flush()
            self._stored(entry.size, copy)
        elif entry.stored_size <= _JOINED_STREAM and entry.size <= _JOINED_CONTENT:
            self._flush()
            self._whole(copy.stream(), copy)
        else:
            self._flush()
            self._streamed(entry, copy)
        self._pending.append(_zeros(tar.padding(entry.size)))

    def close(self) -> Blob:
        """End the layer and say what it became."""
        self._pending.append(tar.END)
        self._flush()
        if self._gzip is not None:
            self._gzip.close()
        self._write_out()
        return Blob(self._blob.hexdigest(), self._size, self._tar.hexdigest(), self._unpacked)

    def _header(self, item: Item, size: int | None = None) -> None:
        check_name(item.path, item.path)
        parent = item.path.rpartition("/")[0]
        if parent not in self._folders:
            parts = parent.split("/")
            for count in range(1, len(parts) + bool(parent)):
                self._folder(tar.folder("/".join(parts[:count])))
        if item.kind == "folder":
            self._folder(item)
        else:
            self._pending += tar.parts(item, size)

    def _folder(self, item: Item) -> None:
        if item.path not in self._folders:
            self._folders.add(item.path)
            self._pending += tar.parts(item)

    def _joins(self, entry: Entry, descriptor: int) -> bool:
        """Add a small entry if all is well with it: most are so, and this is quick."""
        small = entry.stored_size <= _JOINED_STREAM and 0 < entry.size <= _JOINED_CONTENT
        if not entry.deflated or not small:
            return False
        stream = os.pread(descriptor, entry.stored_size, entry.start)
        if len(stream) != entry.stored_size or not stream or not stream[0] & 1:
            return False
        joined, content = _joinable(stream, entry.size)
        if not joined or isal_zlib.crc32(content) != entry.crc:
            return False
        self._flush()
        self._count(content)
        if self._gzip is None:
            self._write(content)
        else:
            self._gzip.joined(joined, content)
        return True

    def _stored(self, size: int, copy: _Copy) -> None:
        def chunks() -> Iterator[bytes]:
            for chunk, _ in copy.pieces():
                self._count(chunk)
                yield chunk

        if self._gzip is not None:
            pieces = chunks()
            self._gzip.stored(size, pieces)
            # the checks at the end are made when more is asked for than there is
            next(pieces, None)
        else:
            for chunk in chunks():
                self._write(chunk)

    def _whole(self, stream: bytes, copy: _Copy) -> None:
        joined, content = copy.joinable(stream)
        self._count(content)
        if self._gzip is None:
            self._write(content)
        elif joined:
            self._gzip.joined(joined, content)
        else:
            self._gzip.member([stream], copy.entry.crc, copy.entry.size)

    def _streamed(self, entry: Entry, copy: _Copy) -> None:
        def streams() -> Iterator[bytes]:
            for chunk, content in copy.pieces():
                self._count(content)
                yield chunk

        if self._gzip is not None:
            self._gzip.member(streams(), entry.crc, entry.size)
        else:
            for _, content in copy.pieces():
                self._count(content)
                self._write(content)

    def _flush(self) -> None:
        if not self._pending:
            return
        parts, waiting = self._pending, self._waiting
        self._pending, self._waiting = [], 0
        data = b"".join(parts)
        self._count(data)
        if self._gzip is None:
            self._write(data)
        elif waiting <= _SMALL:
            self._gzip.parts(parts, data)
        else:
            self._gzip.data(data)

    def _count(self, content: bytes) -> None:
        self._tar.update(content)
        self._unpacked += len(content)

    def _write(self, data: bytes) -> None:
        self._out += data
        if len(self._out) > _OUT:
            self._write_out()

    def _write_out(self) -> None:
        self._file.write(self._out)
        self._blob.update(self._out)
        self._size += len(self._out)
        self._out = bytearray()


class _Copy:
    """An entry of a zip that is read and checked against what the zip says of it.

    Args:
        entry: which.
        descriptor: the zip.
        label: its name, for messages.
        digest: as `Layer.splice` takes it.
    """

    def __init__(self, entry: Entry, descriptor: int, label: str, digest: str) -> None:
        self.entry = entry
        self._descriptor = descriptor
        self._label = label
        algorithm, _, self._digest = digest.partition(":")
        self._hash = hashlib.new(algorithm) if digest else None
        self._crc = 0
        self._size = 0
        if entry.size > max(_BOMB_SIZE, _BOMB_RATIO * entry.stored_size):
            raise self._refused(
                "inflates to far more than an honest file does",
                f"at most {_BOMB_RATIO} times {entry.stored_size} bytes",
                f"{entry.size} bytes",
            )

    def all(self) -> None:
        """Read it to the end for its checks alone."""
        for _ in self.pieces():
            pass

    def stream(self) -> bytes:
        """Return the whole stream."""
        return self._read(0, self.entry.stored_size)

    def joinable(self, stream: bytes) -> tuple[bytes, bytes]:
        """Inflate a stream, and make of it blocks that others can follow.

        Returns:
            Blocks none of which is the last, up to a byte boundary; empty where the stream has
            several, so that the mark of the last is out of reach. And the content.
        """
        if stream and stream[0] & 1:
            joined, content = _joinable(stream, self.entry.size)
            if joined:
                if self._hash is not None:
                    self._read_strictly(stream)
                self._check(content)
                self._end()
                return joined, content
        chunks = (stream[at : at + _PIECE] for at in range(0, len(stream), _PIECE))
        return b"", b"".join(content for _, content in self._inflated(chunks))

    def _read_strictly(self, stream: bytes) -> None:
        try:
            zlib.decompressobj(-15).decompress(stream, self.entry.size)
        except zlib.error as error:
            raise self._refused(f"cannot be inflated: {error}") from error

    def pieces(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield the stream in pieces, each with the content that came of it."""
        entry = self.entry
        chunks = (
            self._read(at, min(_PIECE, entry.stored_size - at))
            for at in range(0, entry.stored_size, _PIECE)
        )
        if entry.deflated:
            yield from self._inflated(chunks)
            return
        for chunk in chunks:
            self._check(chunk)
            yield chunk, chunk
        self._end()

    def _inflated(self, chunks: Iterator[bytes]) -> Iterator[tuple[bytes, bytes]]:
        # zlib is as strict as what reads images; isal takes codes that it refuses
        inflater = isal_zlib.decompressobj(-15) if self._hash is None else zlib.decompressobj(-15)
        for chunk in chunks:
            try:
                content = inflater.decompress(chunk)
            except (_IsalError, zlib.error) as error:
                raise self._refused(f"cannot be inflated: {error}") from error
            self._check(content)
            yield chunk, content
        if not inflater.eof or inflater.unused_data:
            raise self._refused("its deflate stream has not the size that is said")
        self._end()

    def _check(self, content: bytes) -> None:
        self._crc = isal_zlib.crc32(content, self._crc)
        self._size += len(content)
        if self._hash is not None:
            self._hash.update(content)
        if self._size > self.entry.size:
            raise self._wrong()

    def _end(self) -> None:
        if (self._crc, self._size) != (self.entry.crc, self.entry.size):
            raise self._wrong()
        if self._hash is not None and self._hash.hexdigest() != self._digest:
            raise self._refused(
                "its content is not what RECORD says", self._digest, self._hash.hexdigest()
            )

    def _wrong(self) -> InputError:
        more = " or more" if self._size > self.entry.size else f", CRC-32 {self._crc:08x}"
        return self._refused(
            "its content is not what the zip's directory says",
            f"{self.entry.size} bytes, CRC-32 {self.entry.crc:08x}",
            f"{self._size} bytes{more}",
        )

    def _read(self, offset: int, size: int) -> bytes:
        data = os.pread(self._descriptor, size, self.entry.start + offset)
        if len(data) != size:
            raise self._refused("it ends too early", f"{size} bytes", f"{len(data)} bytes")
        return data

    def _refused(
        self, what: str, expected: str | None = None, found: str | None = None
    ) -> InputError:
        where = f"{self._label}: {self.entry.name}"
        return InputError(what, where=where, expected=expected, found=found, mend=MEND)


def check_name(path: str, where: str) -> None:
    """Refuse names that mean something else in a layer, and those that no file system holds.

    Args:
        path: the name.
        where: what it is the name of, for messages.

    Raises:
        InputError: it is such a name.
    """
    if "/.wh." in f"/{path}":
        raise InputError(
            "a name that makes container engines remove a file of the layers below",
            where=where,
            expected="no part that begins with .wh. (OCI image-spec, whiteouts)",
            mend=MEND,
        )
    if (len(path) > _NAME or not path.isascii()) and (
        len(path.encode()) > _PATH or max(map(len, path.encode().split(b"/"))) > _NAME
    ):
        raise InputError(
            "a name that no file system holds",
            where=where if len(where) <= _SHOWN else f"{where[:_SHOWN]}...",
            expected=f"at most {_NAME} bytes between two '/', and {_PATH} in all",
            found=f"{len(path.encode())} bytes",
            mend=MEND,
        )


def _joinable(stream: bytes, size: int) -> tuple[bytes, bytes]:
    """Take the mark of the last block from a stream of one block, and end it at a byte boundary.

    The block ends at some bit of the last byte; an empty stored block behind it (RFC 1951, 3.2.4)
    needs three bits, the rest of that byte, and ``00 00 FF FF``. Where fewer than three bits are
    left it begins in the byte that follows. Which it is cannot be seen, but a decoder can be
    asked, with bytes that are a stored block in both cases, of one length or of another. Behind
    it, a last block must be read as such: what fills the last byte may be something else than
    zeros.

    Returns:
        The blocks, and their content; the blocks are empty where no decoder would take them.
    """
    opened = bytes((stream[0] & 0xFE,)) + stream[1:]
    inflater = isal_zlib.decompressobj(-15)
    end = b"\0\0\xff\xff"
    try:
        # one byte more than there should be, to see whether there is more
        content = inflater.decompress(opened, size + 1)
        if len(content) != size:
            return b"", b""
        told = inflater.decompress(_PROBE)
        if told == _NEXT:
            end = b"\0\0\0\xff\xff"
            rest = inflater.decompress(_REST + deflate.LAST)
            told = _HERE if rest == _REST else b""
    except _IsalError:
        return b"", b""
    if told != _HERE or not inflater.eof or inflater.unused_data:
        return b"", b""
    return opened + end, content
