"""Reading a zip's directory so strictly that no two readers of it can disagree.

A wheel is read by several programs: envbuild, uv, pip, a person's unzip. Zips can be made that each
of them reads differently, so that what was checked is not what is installed. Here everything that
is said twice must be said alike, and every byte belongs to one entry or to the directory. The
format is PKWARE's APPNOTE 6.3.10, sections 4.3 and 4.4; section numbers below are of that.
"""

from __future__ import annotations

import os
import re
import stat
import struct
import unicodedata
import zlib
from collections.abc import Iterable, Iterator

import msgspec

from envbuild.errors import InputError

MEND = "take another release of it, or the same from another index; it is not safe to install"

# The largest file that is read from a wheel: the RECORD of 10,000 files has about 1.5 MB.
_MOST_CONTENT = 64 << 20

_STORED, _DEFLATED = 0, 8
_DESCRIPTOR, _UTF8 = 0x0008, 0x0800
# Bits 1 and 2 tell how hard the compressor tried. All others change how the bytes are to be read:
# bit 0 is encryption, bit 13 hides the values of local headers (4.4.4).
_HARMLESS_FLAGS = 0x0006 | _DESCRIPTOR | _UTF8
_FULL16, _FULL32 = 0xFFFF, 0xFFFFFFFF
# What the zip64 extra field can hold, in its order: the value that says so, and the size in bytes.
_WIDE = ((_FULL32, 8), (_FULL32, 8), (_FULL32, 8), (_FULL16, 4))

_END = struct.Struct("<4s4H2LH")  # 4.3.16
_END64_LOCATOR = struct.Struct("<4sLQL")  # 4.3.15
_END64 = struct.Struct("<4sQ2H2L4Q")  # 4.3.14
_CENTRAL = struct.Struct("<4s4B4H3L5H2L")  # 4.3.12
_LOCAL = struct.Struct("<4s5H3L2H")  # 4.3.7
_EXTRA = struct.Struct("<2H")  # 4.5.1

_ZIP64_EXTRA = 0x0001  # 4.5.3
_UNICODE_PATH_EXTRA = 0x7075  # 4.6.9

_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


class Entry(msgspec.Struct, frozen=True):
    """A file or folder of a zip, as its directory and its local header both say.

    Attributes:
        name: the path in the archive, ``/`` between its parts; a folder's ends in one.
        size: of the content, in bytes.
        stored_size: of what lies in the archive, in bytes.
        start: where in the archive that lies, in bytes from its begin.
        deflated: whether that is a raw deflate stream (RFC 1951); else it is the content itself.
        crc: CRC-32 of the content.
        mode: its Unix permission bits, 0 where the archive has none.
    """

    name: str
    size: int
    stored_size: int
    start: int
    deflated: bool
    crc: int
    mode: int

    @property
    def is_folder(self) -> bool:
        """Whether it is a folder."""
        return self.name.endswith("/")


class _Header(msgspec.Struct, frozen=True):
    """An entry of the central directory, before its local header was compared with it."""

    name: str
    raw_name: bytes
    flags: int
    method: int
    crc: int
    stored_size: int
    size: int
    offset: int
    mode: int

    @property
    def facts(self) -> tuple[int, int, int]:
        return self.crc, self.stored_size, self.size


class _Directory(msgspec.Struct, frozen=True):
    """Where the central directory lies: how many entries, bytes, and bytes from the begin."""

    count: int
    size: int
    offset: int


class Archive:
    """A zip that is open for reading.

    Args:
        descriptor: the open file; it is read at given offsets, so its position does not matter.
        label: the file's name in messages.
    """

    def __init__(self, descriptor: int, label: str) -> None:
        self._descriptor = descriptor
        self.label = label
        self._size = os.fstat(descriptor).st_size

    def entries(self) -> tuple[Entry, ...]:
        """Return the entries, in the order in which they lie in the archive.

        Raises:
            InputError: the file is no zip, or one that two programs could read differently.
            OSError: it cannot be read.
        """
        directory = self._find_directory()
        headers = sorted(self._read_directory(directory), key=lambda header: header.offset)
        self._check_tree(header.name for header in headers)
        starts = [header.offset for header in headers] + [directory.offset]
        if starts[0] != 0:
            raise self.refused("bytes before the first entry", expected="none", found=starts[0])
        return tuple(map(self._confirm, headers, starts[1:]))

    def content(self, entry: Entry) -> bytes:
        """Return an entry's whole content.

        Raises:
            InputError: it has not the size or the CRC-32 that the directory says, or is too large.
            OSError: the archive cannot be read.
        """
        if max(entry.size, entry.stored_size) > _MOST_CONTENT:
            raise self.refused(
                "too large", entry.name, expected=f"at most {_MOST_CONTENT} bytes", found=entry.size
            )
        data = self._read(entry.stored_size, entry.start, entry.name)
        if entry.deflated:
            inflater = zlib.decompressobj(-zlib.MAX_WBITS)
            try:
                # one byte more than there should be, to see whether there is more
                data = inflater.decompress(data, entry.size + 1)
            except zlib.error as error:
                raise self.refused(f"cannot be inflated: {error}", entry.name) from error
            if not inflater.eof or inflater.unused_data:
                raise self.refused("its deflate stream has not the size that is said", entry.name)
        if len(data) != entry.size or zlib.crc32(data) != entry.crc:
            raise self.refused(
                "its content is not what the zip's directory says",
                entry.name,
                expected=f"{entry.size} bytes, CRC-32 {entry.crc:08x}",
                found=f"{len(data)} bytes, CRC-32 {zlib.crc32(data):08x}",
            )
        return data

    def begins(self, entry: Entry, text: bytes) -> bool:
        """Whether an entry's content begins with something, without reading much more of it.

        Raises:
            InputError: it cannot be inflated.
            OSError: the archive cannot be read.
        """
        # of a deflate stream, enough for its tables of codes (RFC 1951, 3.2.7)
        size = min(entry.stored_size, len(text) + (1024 if entry.deflated else 0))
        data = self._read(size, entry.start, entry.name)
        if entry.deflated:
            try:
                data = zlib.decompressobj(-zlib.MAX_WBITS).decompress(data, len(text))
            except zlib.error as error:
                raise self.refused(f"cannot be inflated: {error}", entry.name) from error
        return data.startswith(text)

    def refused(
        self, what: str, name: str | None = None, *, expected: object = None, found: object = None
    ) -> InputError:
        """Make the error for an archive, or one entry of it, that is not as it must be."""
        where = self.label if name is None else f"{self.label}: {name}"
        return InputError(what, where=where, expected=expected, found=found, mend=MEND)

    def _read(self, size: int, offset: int, name: str | None = None) -> bytes:
        data = os.pread(self._descriptor, size, offset) if offset < self._size else b""
        if len(data) != size:
            raise self.refused(
                "it ends too early",
                name,
                expected=f"{size} bytes at {offset}",
                found=f"{self._size} bytes in all",
            )
        return data

    def _find_directory(self) -> _Directory:
        """Read the end record, which must be the file's last bytes.

        4.3.16 allows a comment there, which could hide a second end record; no wheel has one.
        """
        at = self._size - _END.size
        fields = _END.unpack(self._read(_END.size, at)) if at >= 0 else (b"",)
        if fields[0] != b"PK\5\6" or fields[7] != 0:
            raise self.refused(
                "not a whole zip", expected="a zip's end record as the last 22 bytes"
            )
        _, disk, first_disk, here, count, size, offset, _ = fields
        where64 = at - _END64_LOCATOR.size
        locator = self._read(_END64_LOCATOR.size, where64) if where64 >= 0 else b""
        if locator.startswith(b"PK\6\7"):
            at, wide = self._find_directory64(locator, where64)
            narrow = (disk, first_disk, here, count, size, offset)
            limits = (_FULL16, _FULL16, _FULL16, _FULL16, _FULL32, _FULL32)
            if any(n not in (w, top) for n, w, top in zip(narrow, wide, limits, strict=True)):
                raise self.refused("its two end records disagree", expected=wide, found=narrow)
            disk, first_disk, here, count, size, offset = wide
        if (disk, first_disk) != (0, 0) or here != count:
            raise self.refused("one of several volumes", expected="a zip of one file")
        if offset + size != at:
            raise self.refused(
                "its directory is not where the end record says",
                expected=f"an end at byte {at}",
                found=f"an end at byte {offset + size}",
            )
        return _Directory(count, size, offset)

    def _find_directory64(self, locator: bytes, at: int) -> tuple[int, tuple[int, ...]]:
        _, disk, offset, disks = _END64_LOCATOR.unpack(locator)
        if disk != 0 or disks > 1:
            raise self.refused("one of several volumes", expected="a zip of one file")
        if offset + _END64.size != at:
            raise self.refused(
                "its zip64 end record is not where its locator says",
                expected=f"byte {at - _END64.size}",
                found=f"byte {offset}",
            )
        signature, length, _, _, *fields = _END64.unpack(self._read(_END64.size, offset))
        if signature != b"PK\6\6" or length != _END64.size - 12:
            raise self.refused("its zip64 end record is damaged")
        return offset, tuple(fields)

    def _read_directory(self, directory: _Directory) -> Iterator[_Header]:
        data = self._read(directory.size, directory.offset)
        at = 0
        for _ in range(directory.count):
            if len(data) - at < _CENTRAL.size:
                break
            fields = _CENTRAL.unpack_from(data, at)
            name_size, extra_size, comment_size = fields[12:15]
            begin = at + _CENTRAL.size
            middle = begin + name_size
            end = middle + extra_size
            at = end + comment_size
            if fields[0] != b"PK\1\2" or at > len(data):
                break
            yield self._header(fields, data[begin:middle], data[middle:end])
        else:
            if at == directory.size:
                return
        raise self.refused(
            "its directory has not the entries that the end record counts",
            expected=f"{directory.count} in {directory.size} bytes",
        )

    def _header(self, fields: tuple[int, ...], raw_name: bytes, extra: bytes) -> _Header:
        flags, method = fields[5:7]
        crc, stored_size, size = fields[9:12]
        disk, offset = fields[15], fields[18]
        name = self._name(raw_name, flags)
        if flags & ~_HARMLESS_FLAGS:
            raise self.refused(
                "flags that change how it is read (encryption and the like)",
                name,
                expected=f"none but {_HARMLESS_FLAGS:#06x}",
                found=f"{flags:#06x}",
            )
        if method not in (_STORED, _DEFLATED):
            raise self.refused(
                "unknown compression", name, expected="0 (stored) or 8 (deflate)", found=method
            )
        size, stored_size, offset, disk = self._widen(name, extra, size, stored_size, offset, disk)
        if disk != 0:
            raise self.refused("on another volume", name, expected=0, found=disk)
        if method == _STORED and size != stored_size:
            raise self.refused("stored, yet of two sizes", name, expected=size, found=stored_size)
        if name.endswith("/") and size != 0:
            raise self.refused("a folder with content", name, expected="0 bytes", found=size)
        return _Header(
            name, raw_name, flags, method, crc, stored_size, size, offset, self._mode(name, fields)
        )

    def _name(self, raw: bytes, flags: int) -> str:
        try:
            name = raw.decode("utf-8" if flags & _UTF8 else "ascii")
        except UnicodeDecodeError as error:
            raise self.refused(
                "a name that is not UTF-8, or not marked as such (flag bit 11)",
                repr(raw)[1:],
            ) from error
        parts = name.removesuffix("/").split("/")
        if _CONTROL.search(name) or "\\" in name or not {"", ".", ".."}.isdisjoint(parts):
            raise self.refused(
                "a name that leaves its folder or reads differently elsewhere",
                repr(name),
                expected="a relative path without empty, '.' or '..' parts, backslashes and "
                "control characters",
            )
        return name

    def _widen(
        self, name: str, extra: bytes, size: int, stored: int, offset: int, disk: int
    ) -> tuple[int, int, int, int]:
        """Take the values that do not fit 32 bits from the extra field (4.5.3), in its order."""
        wide: bytes | None = None
        for kind, value in self._extras(name, extra):
            if kind == _UNICODE_PATH_EXTRA or (kind == _ZIP64_EXTRA and wide is not None):
                # of two names or sizes, some readers take one, some the other
                raise self.refused("an extra field that says again what was said", name)
            if kind == _ZIP64_EXTRA:
                wide = value
        values = [size, stored, offset, disk]
        at = 0
        for index, (top, width) in enumerate(_WIDE):
            if values[index] == top:
                part = (wide or b"")[at : at + width]
                if len(part) != width:
                    raise self.refused("a size or place that stands nowhere", name)
                values[index] = int.from_bytes(part, "little")
                at += width
        size, stored, offset, disk = values
        return size, stored, offset, disk

    def _extras(self, name: str, extra: bytes) -> Iterator[tuple[int, bytes]]:
        at = 0
        while at < len(extra):
            if len(extra) - at < _EXTRA.size:
                raise self.refused("a damaged extra field", name)
            kind, size = _EXTRA.unpack_from(extra, at)
            at += _EXTRA.size
            if at + size > len(extra):
                raise self.refused("a damaged extra field", name)
            yield kind, extra[at : at + size]
            at += size

    def _mode(self, name: str, fields: tuple[int, ...]) -> int:
        mode = fields[17] >> 16
        kind = stat.S_IFMT(mode)
        fitting = stat.S_IFDIR if name.endswith("/") else stat.S_IFREG
        if kind not in (0, fitting) or mode & (stat.S_ISUID | stat.S_ISGID | stat.S_ISVTX):
            raise self.refused(
                "a link, a device, or of a special mode",
                name,
                expected="a plain file or folder",
                found=stat.filemode(mode),
            )
        return stat.S_IMODE(mode)

    def _check_tree(self, names: Iterable[str]) -> None:
        """Refuse two entries of one path, and a file where another entry needs a folder."""
        files: set[str] = set()
        folders: set[str] = set()
        for name in names:
            path = name.removesuffix("/")
            # some file systems hold é in one spelling only
            path = unicodedata.normalize("NFC", path)
            seen = folders if name.endswith("/") else files
            if path in seen:
                raise self.refused("in the zip twice", name)
            seen.add(path)
        parents = {path.rpartition("/")[0] for path in files | folders}
        while parents:
            folders |= parents
            parents = {path.rpartition("/")[0] for path in parents} - folders
        for name in sorted(files & folders):
            raise self.refused("a file, and a folder of other entries", name)

    def _confirm(self, header: _Header, end: int) -> Entry:
        """Compare an entry with its local header and with what lies up to ``end``."""
        name = header.name
        size = _LOCAL.size + len(header.raw_name)
        data = self._read(size, header.offset, name)
        fields = _LOCAL.unpack_from(data)
        signature, _, flags, method, _, _, crc, stored_size, full_size, _, extra_size = fields
        if signature != b"PK\3\4":
            raise self.refused("no local header where the directory says", name)
        if extra_size:
            extra = self._read(extra_size, header.offset + size, name)
            full_size, stored_size, _, _ = self._widen(name, extra, full_size, stored_size, 0, 0)
        facts = (crc, stored_size, full_size)
        if flags & _DESCRIPTOR and facts == (0, 0, 0):
            # they stand behind the content (4.4.4, bit 3); some writers give them here as well
            facts = header.facts
        local = (data[_LOCAL.size :], flags, method, *facts)
        central = (header.raw_name, header.flags, header.method, *header.facts)
        if local != central:
            raise self.refused(
                "its local header disagrees with the zip's directory",
                name,
                expected=_spelled(*central),
                found=_spelled(*local),
            )
        start = header.offset + size + extra_size
        after = end - start - header.stored_size
        if flags & _DESCRIPTOR and after >= 12:
            after -= self._confirm_descriptor(header, end - after, after)
        if after != 0:
            raise self.refused(
                "overlaps what follows" if after < 0 else "bytes that belong to no entry follow it",
                name,
                expected=f"an end at byte {end}",
                found=f"an end at byte {end - after}",
            )
        return Entry(
            name,
            header.size,
            header.stored_size,
            start,
            header.method == _DEFLATED,
            header.crc,
            header.mode,
        )

    def _confirm_descriptor(self, header: _Header, at: int, room: int) -> int:
        """Return the size of the data descriptor (4.3.9), if it says what the directory says.

        It may have a signature, and sizes of 32 or 64 bits; nothing but the room tells which.
        """
        data = self._read(min(room, 24), at, header.name)
        for layout in ("<3L", "<4sL2L", "<L2Q", "<4sL2Q"):
            if struct.calcsize(layout) == room:
                *signature, crc, stored_size, size = struct.unpack(layout, data)
                if (crc, stored_size, size) == header.facts and signature in ([], [b"PK\7\10"]):
                    return room
        raise self.refused(
            "its data descriptor disagrees with the zip's directory",
            header.name,
            expected=f"CRC-32 {header.crc:08x}, {header.stored_size} and {header.size} bytes",
        )


def _spelled(name: bytes, flags: int, method: int, crc: int, stored_size: int, size: int) -> str:
    return (
        f"{name.decode(errors='backslashreplace')}, flags {flags:#06x}, method {method}, "
        f"CRC-32 {crc:08x}, {stored_size} bytes stored, {size} bytes"
    )
