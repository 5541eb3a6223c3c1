"""Reading ELF files: what a program or library needs and gives, by the tables that the loader uses.

A prefix holds tens of thousands of files and some of a gigabyte, so that only the bytes of the
tables themselves are read. Everything is found by the program headers, since sections can be
stripped. The format is the System V gABI, chapters 4 and 5; symbol versions and the GNU hash table
are those of the Linux Standard Base 5.0 (Core, "Symbol Versioning") and of glibc's dl-lookup.c.
"""

from __future__ import annotations

import array
import mmap
import struct
import sys
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import msgspec

Buffer = bytes | mmap.mmap | memoryview

_MAGIC = b"\x7fELF"
_LOAD, _DYNAMIC, _INTERP = 1, 2, 3  # p_type
_NOBITS = 8  # sh_type
_LARGE_COUNT = 0xFFFF  # where a count or an index does not fit 16 bits

# d_tag of the dynamic section
_NEEDED, _HASH, _STRTAB, _SYMTAB, _STRSZ, _SONAME, _RPATH = 1, 4, 5, 6, 10, 14, 15
_RUNPATH, _GNU_HASH, _VERSYM = 29, 0x6FFFFEF5, 0x6FFFFFF0
_VERDEF, _VERDEFNUM, _VERNEED, _VERNEEDNUM = 0x6FFFFFFC, 0x6FFFFFFD, 0x6FFFFFFE, 0x6FFFFFFF
# Those whose value is an address: where one table begins, the one before it has ended. PLTGOT,
# HASH, STRTAB, SYMTAB, RELA, INIT, FINI, REL, JMPREL, the arrays, RELR and the GNU tables.
_ADDRESSES = (3, 4, 5, 6, 7, 12, 13, 17, 23, 25, 26, 32, 36, _GNU_HASH, _VERSYM, _VERDEF, _VERNEED)

_EXPORTED_BINDINGS = frozenset((1, 2, 10))  # STB_GLOBAL, STB_WEAK, STB_GNU_UNIQUE
_WEAK = 2
_OPEN_VISIBILITIES = frozenset((0, 3))  # STV_DEFAULT, STV_PROTECTED; the loader skips all others
_VERSION_INDEX = 0x7FFF  # the bit above it marks a version that is not the default
_BASE, _WEAK_NEED = 1, 2  # VER_FLG_BASE, VER_FLG_WEAK

# Bounds that no real file comes near, so that a damaged one costs neither minutes nor gigabytes.
_MOST_DYNAMIC = 1 << 20  # bytes
_MOST_PATH = 1 << 12  # bytes of the interpreter's path
_MOST_SECTIONS = 1 << 20
_MOST_VERSIONS = 1 << 16
_MOST_SYMBOLS = 1 << 22
_MOST_CHAIN = 1 << 20  # symbols of one hash bucket
_MOST_TEXT = 1 << 29  # bytes of all names together

_VERDEF_ENTRY, _VERDEF_NAME, _VERNEED_ENTRY, _VERNEED_NAME = "4H3L", "2L", "2H3L", "LHHLL"


class ElfError(ValueError):
    """The file begins as ELF, but a table of it is damaged or leads outside of the file."""


class Header(msgspec.Struct, frozen=True):
    """The part of an ELF file's header that says what it is.

    Attributes:
        bits: 32 or 64.
        little: whether it is little-endian.
        machine: e_machine; 62 is x86-64, 190 a GPU by NVIDIA.
        kind: e_type, as `Elf` has it.
        flags: e_flags, whose meaning is the machine's own.
        has_sections: whether it has section headers, which a program can run without.
    """

    bits: int
    little: bool
    machine: int
    kind: int
    flags: int
    has_sections: bool


class VersionNeed(msgspec.Struct, frozen=True):
    """A symbol version that another library must have.

    Attributes:
        file: the SONAME of that library.
        version: such as ``GLIBC_2.34``.
        index: its number among this file's versions.
        weak: whether the loader only warns if the version is missing (VER_FLG_WEAK).
    """

    file: str
    version: str
    index: int
    weak: bool


class Elf(msgspec.Struct, frozen=True):
    """What an ELF file says of itself to the loader.

    Attributes:
        bits: 32 or 64.
        little: whether it is little-endian.
        machine: e_machine; 62 is x86-64, 190 a GPU by NVIDIA.
        kind: e_type; 1 an object file, 2 a program at a fixed address, 3 a library or program at
            any address.
        soname: the name by which others need it.
        needed: the names of the libraries that it needs, in its order.
        rpath: the entries of DT_RPATH, None without one; an empty entry is ``""``.
        runpath: the entries of DT_RUNPATH likewise. With it, the loader ignores DT_RPATH.
        interpreter: the path of the loader; programs have one.
        version_needs: the symbol versions that it needs, in its order.
    """

    bits: int
    little: bool
    machine: int
    kind: int
    soname: str | None
    needed: tuple[str, ...]
    rpath: tuple[str, ...] | None
    runpath: tuple[str, ...] | None
    interpreter: str | None
    version_needs: tuple[VersionNeed, ...]


class Symbol(msgspec.Struct, frozen=True):
    """A symbol that others must define.

    Attributes:
        name: as it stands there, mangled.
        version: the version needed of it, such as ``GLIBC_2.34``; None where any will do.
        library: the SONAME of the library that must have that version.
        weak: whether the file can be loaded without it.
    """

    name: str
    version: str | None
    library: str | None
    weak: bool


def is_elf(data: Buffer) -> bool:
    """Return whether a file begins as ELF files do."""
    return bytes(data[:4]) == _MAGIC


def header(data: Buffer) -> Header:
    """Return what an ELF file is, by its header alone.

    Raises:
        ElfError: it is not ELF, or ends within its header.
    """
    layout, (kind, machine, _, sections, flags, *_) = _read_header(data)
    return Header(8 * layout.word, layout.order == "<", machine, kind, flags, sections != 0)


def read(data: Buffer) -> Elf:
    """Return what an ELF file says of itself to the loader.

    Args:
        data: the whole file, best a map of it. Object files and static programs have no dynamic
            section, and so need nothing.

    Raises:
        ElfError: it is not ELF, or a table of it is damaged.
    """
    file = _File(data)
    dynamic = file.dynamic
    soname = dynamic.get(_SONAME)
    return Elf(
        file.bits,
        file.little,
        file.machine,
        file.kind,
        None if soname is None else file.text(soname, "DT_SONAME"),
        tuple([file.text(index, "DT_NEEDED") for index in file.needed]),
        file.folders(_RPATH, "DT_RPATH"),
        file.folders(_RUNPATH, "DT_RUNPATH"),
        file.interpreter(),
        tuple(file.version_needs()),
    )


def defines(data: Buffer, name: str) -> bool:
    """Return whether a library exports a symbol, found as the loader finds it: by hash.

    Args:
        data: the whole file, best a map of it.
        name: of the symbol, mangled, of any version.

    Raises:
        ElfError: it is not ELF, or a table of it is damaged.
    """
    file = _File(data)
    wanted = name.encode("utf-8", "surrogateescape") + b"\0"
    if _GNU_HASH in file.dynamic:
        indices = file.gnu_candidates(wanted[:-1])
    elif _HASH in file.dynamic:
        indices = file.sysv_candidates(wanted[:-1])
    else:
        return name in exported(data)
    return file.exports_any(indices, wanted)


def undefined(data: Buffer) -> tuple[Symbol, ...]:
    """Return the symbols that a file takes from others, with the version it needs of each.

    Args:
        data: the whole file, best a map of it.

    Raises:
        ElfError: it is not ELF, or a table of it is damaged.
    """
    file = _File(data)
    needs = {need.index: need for need in file.version_needs()}
    versions = file.symbol_versions()
    found = []
    for number, (name, info, _, section_index) in enumerate(file.symbols()):
        if section_index == 0 and name and info >> 4 in _EXPORTED_BINDINGS:
            need = needs.get(versions[number] & _VERSION_INDEX) if versions else None
            text = file.text(name, "a symbol's name")
            version, library = (None, None) if need is None else (need.version, need.file)
            found.append(Symbol(text, version, library, info >> 4 == _WEAK))
    return tuple(found)


def exported(data: Buffer) -> frozenset[str]:
    """Return the names of the symbols that others can take from a file, of whatever version.

    Args:
        data: the whole file, best a map of it.

    Raises:
        ElfError: it is not ELF, or a table of it is damaged.
    """
    file = _File(data)
    return frozenset(
        [file.text(symbol[0], "a symbol's name") for symbol in file.symbols() if _exports(*symbol)]
    )


def needing(data: Buffer, version: str) -> tuple[str, ...]:
    """Return the names of the symbols for which a file needs a version, sorted.

    There can be none: ``GLIBC_ABI_DT_RELR``, say, stands for an ability of the loader.

    Args:
        data: the whole file, best a map of it.
        version: such as ``GLIBC_2.34``.

    Raises:
        ElfError: it is not ELF, or a table of it is damaged.
    """
    file = _File(data)
    indices = {need.index for need in file.version_needs() if need.version == version}
    if not indices:
        return ()
    versions = file.symbol_versions()
    # also symbols that a program has as a copy, such as stdout: those are not undefined
    return tuple(
        sorted(
            {
                file.text(symbol[0], "a symbol's name")
                for symbol, index in zip(file.symbols(), versions, strict=False)
                if index & _VERSION_INDEX in indices
            }
        )
    )


def defined_versions(data: Buffer) -> tuple[str, ...]:
    """Return the symbol versions that a library has, in its order, such as ``GLIBCXX_3.4.30``.

    Args:
        data: the whole file, best a map of it.

    Raises:
        ElfError: it is not ELF, or a table of it is damaged.
    """
    return tuple(_File(data).version_definitions())


def section(data: Buffer, name: str) -> memoryview | None:
    """Return the content of a section, without a copy of it.

    Args:
        data: the whole file, best a map of it; a map cannot be closed before the view is released.
        name: such as ``.nv_fatbin``; of several of that name, the first is returned.

    Returns:
        None if there is no such section, or its content is not in the file (SHT_NOBITS).

    Raises:
        ElfError: it is not ELF, or its section headers are damaged.
    """
    place = _File(data).find_section(name.encode("utf-8", "surrogateescape") + b"\0")
    if place is None:
        return None
    start, size = place
    return memoryview(data)[start : start + size]


def _exports(name: int, info: int, other: int, section_index: int) -> bool:
    return (
        section_index != 0
        and name != 0
        and info >> 4 in _EXPORTED_BINDINGS
        and other & 3 in _OPEN_VISIBILITIES
    )


class _Layout(NamedTuple):
    """How the tables lie in files of one class and byte order; fields that nobody needs are pads.

    Attributes:
        order: the struct module's mark for the byte order.
        word: the size of an address, in bytes.
        header: e_type, e_machine, e_phoff, e_shoff, e_flags, e_phentsize, e_phnum, e_shentsize,
            e_shnum, e_shstrndx.
        program: p_type, p_offset, p_vaddr, p_filesz.
        dynamic: d_tag, d_val.
        symbol: st_name, st_info, st_other, st_shndx.
        section: sh_name, sh_type, sh_offset, sh_size, sh_link.
        definition: vd_version, vd_flags, vd_ndx, vd_cnt, vd_hash, vd_aux, vd_next.
        definition_name: vda_name, vda_next.
        need: vn_version, vn_cnt, vn_file, vn_aux, vn_next.
        need_name: vna_hash, vna_flags, vna_other, vna_name, vna_next.
        hash: the first words of DT_HASH: nbucket, nchain.
        gnu_hash: those of DT_GNU_HASH: buckets, the first symbol's number, words of the filter.
        number: a word of hash tables.
    """

    order: str
    word: int
    header: struct.Struct
    program: struct.Struct
    dynamic: struct.Struct
    symbol: struct.Struct
    section: struct.Struct
    definition: struct.Struct
    definition_name: struct.Struct
    need: struct.Struct
    need_name: struct.Struct
    hash: struct.Struct
    gnu_hash: struct.Struct
    number: struct.Struct


def _layout(order: str, *formats: str) -> _Layout:
    common = (_VERDEF_ENTRY, _VERDEF_NAME, _VERNEED_ENTRY, _VERNEED_NAME, "2L", "3L4x", "L")
    made = [struct.Struct(order + one) for one in (*formats, *common)]
    word = 8 if made[2].size == 16 else 4
    return _Layout(order, word, *made)


_FORMATS = {
    1: ("16x2H8x3L2x5H", "3L4xL12x", "2L", "L8x2BH", "2L8x3L12x"),
    2: ("16x2H12x2QL2x5H", "L4x2Q8xQ16x", "2Q", "L2BH16x", "2L16x2QL20x"),
}
_LAYOUTS = {
    bytes((elf_class, encoding)): _layout(order, *formats)
    for elf_class, formats in _FORMATS.items()
    for encoding, order in ((1, "<"), (2, ">"))
}


def _read_header(data: Buffer) -> tuple[_Layout, tuple[int, ...]]:
    start = bytes(data[:6])
    if start[:4] != _MAGIC:
        raise ElfError("not an ELF file")
    layout = _LAYOUTS.get(start[4:])
    if layout is None:
        raise ElfError("ELF header: unknown class or byte order")
    if len(data) < layout.header.size:
        raise ElfError("ELF header: outside of the file")
    return layout, layout.header.unpack_from(data)


class _File:
    """An ELF file's header, program headers and dynamic section, and ways into its tables."""

    def __init__(self, data: Buffer) -> None:
        self.data = data
        self.size = len(data)
        layout, fields = _read_header(data)
        self.layout = layout
        self.bits = 8 * layout.word
        self.little = layout.order == "<"
        self.kind, self.machine, programs, sections, _, *counts = fields
        self._section_fields = (sections, *counts[2:])
        self._segments: list[tuple[int, int, int]] = []
        self._interpreter: tuple[int, int] | None = None
        self.dynamic: dict[int, int] = {}
        self.needed: list[int] = []
        dynamic = (0, 0)
        for kind, offset, address, size in self._program_headers(programs, *counts[:2]):
            if kind == _LOAD:
                self._segments.append((address, offset, size))
            elif kind == _DYNAMIC:
                dynamic = (offset, size)
            elif kind == _INTERP:
                self._interpreter = (offset, size)
        self._read_dynamic(*dynamic)
        self._strings = self._strings_end = 0
        if _STRTAB in self.dynamic:
            self._strings, room = self._place(self.dynamic[_STRTAB], "string table")
            self._strings_end = self._strings + min(room, self.dynamic.get(_STRSZ, room))
        # Names can share bytes, as "puts" and "fputs" do. Without a bound, a table could be made
        # whose names are a thousand times longer than itself.
        self._text_left = min(_MOST_TEXT, (1 << 20) + 4 * (self._strings_end - self._strings))

    def text(self, index: int, what: str) -> str:
        """Return a text of the dynamic string table; what is not UTF-8 in it is escaped."""
        start = self._strings + index
        length = 128
        while start < self._strings_end:
            piece = bytes(self.data[start : min(start + length, self._strings_end)])
            end = piece.find(b"\0")
            if end >= 0:
                self._text_left -= end
                if self._text_left < 0:
                    raise ElfError("string table: more text than can be in it")
                return piece[:end].decode("utf-8", "backslashreplace")
            if len(piece) < length or length > self._text_left:
                break
            length *= 8
        raise ElfError(f"string table: {what} is not in it")

    def folders(self, tag: int, what: str) -> tuple[str, ...] | None:
        """Return the entries of a search path of the dynamic section."""
        index = self.dynamic.get(tag)
        return None if index is None else tuple(self.text(index, what).split(":"))

    def interpreter(self) -> str | None:
        """Return the path that PT_INTERP holds."""
        if self._interpreter is None:
            return None
        start, size = self._interpreter
        if size > min(_MOST_PATH, self.size - start):
            raise ElfError("PT_INTERP: outside of the file, or too long")
        path = bytes(self.data[start : start + size])
        return path.partition(b"\0")[0].decode("utf-8", "backslashreplace")

    def version_needs(self) -> Iterator[VersionNeed]:
        """Read DT_VERNEED."""
        layout = self.layout
        what = "version needs"
        for at, _, count, file, names, _ in self._versions(
            _VERNEED, _VERNEEDNUM, layout.need, what
        ):
            library = self.text(file, what)
            at += names
            for _ in range(count):
                _, flags, index, name, step = self._unpack(layout.need_name, at, what)
                yield VersionNeed(
                    library,
                    self.text(name, what),
                    index & _VERSION_INDEX,
                    bool(flags & _WEAK_NEED),
                )
                at += step
                if step == 0:
                    break

    def version_definitions(self) -> Iterator[str]:
        """Read DT_VERDEF, without the entry that only repeats the library's name."""
        what = "version definitions"
        entry = self.layout.definition
        for at, _, flags, _, _, _, names, _ in self._versions(_VERDEF, _VERDEFNUM, entry, what):
            if not flags & _BASE:
                name, _ = self._unpack(self.layout.definition_name, at + names, what)
                yield self.text(name, what)

    def symbols(self) -> Iterator[tuple[int, int, int, int]]:
        """Read the dynamic symbols, as the layout has them; the one of number 0 is a dummy."""
        count = self._symbol_count()
        if count == 0:
            return iter(())
        entry = self.layout.symbol
        table = self._table(_SYMTAB, count * entry.size, "symbol table")
        return entry.iter_unpack(table)

    def symbol_versions(self) -> array.array[int]:
        """Read DT_VERSYM, the number of each symbol's version; empty if there is none."""
        if _VERSYM not in self.dynamic:
            return array.array("H")
        return self._numbers("H", self._table(_VERSYM, 2 * self._symbol_count(), "symbol versions"))

    def exports_any(self, indices: Iterable[int], name: bytes) -> bool:
        """Return whether one of some symbols has a name, NUL included, and is exported."""
        entry = self.layout.symbol
        start, room = self._place(self.dynamic.get(_SYMTAB, 0), "symbol table")
        for index in indices:
            if (index + 1) * entry.size > room:
                raise ElfError("symbol table: shorter than the hash table says")
            symbol = entry.unpack_from(self.data, start + index * entry.size)
            at = self._strings + symbol[0]
            if (
                _exports(*symbol)
                and bytes(self.data[at : min(at + len(name), self._strings_end)]) == name
            ):
                return True
        return False

    def gnu_candidates(self, name: bytes) -> Iterator[int]:
        """Return the numbers of the symbols whose hash in DT_GNU_HASH is that of a name."""
        what = "GNU hash table"
        buckets, bucket_count, first, chains = self._gnu_hash()
        if bucket_count == 0:
            return
        value = 5381
        for byte in name:
            value = (value * 33 + byte) & 0xFFFFFFFF
        number = self.layout.number
        (index,) = self._unpack(number, buckets + 4 * (value % bucket_count), what)
        if index < first:
            return
        for step in range(_MOST_CHAIN):
            (entry,) = self._unpack(number, chains + 4 * (index - first + step), what)
            if entry | 1 == value | 1:
                yield index + step
            if entry & 1:
                return
        raise ElfError(f"{what}: a chain without end")

    def sysv_candidates(self, name: bytes) -> Iterator[int]:
        """Return the numbers of the symbols in the bucket of DT_HASH that is a name's."""
        what = "hash table"
        start, bucket_count, count = self._sysv_hash()
        if bucket_count == 0:
            return
        value = 0
        for byte in name:
            value = (value << 4) + byte
            value = (value ^ (value >> 24 & 0xF0)) & 0x0FFFFFFF
        number = self.layout.number
        (index,) = self._unpack(number, start + 4 * (value % bucket_count), what)
        for _ in range(min(count, _MOST_CHAIN)):
            if index == 0:
                return
            if index >= count:
                raise ElfError(f"{what}: a symbol's number that is too large")
            yield index
            (index,) = self._unpack(number, start + 4 * (bucket_count + index), what)
        if index != 0:
            raise ElfError(f"{what}: a chain without end")

    def find_section(self, name: bytes) -> tuple[int, int] | None:
        """Return offset and size of a section's content by its name, NUL included."""
        what = "section headers"
        offset, entry_size, count, names_index = self._section_fields
        entry = self.layout.section
        if offset == 0:
            return None
        if entry_size != entry.size:
            raise ElfError(f"{what}: entries of {entry_size} bytes")
        _, _, _, first_size, first_link = self._unpack(entry, offset, what)
        count = count or first_size
        if names_index == _LARGE_COUNT:
            names_index = first_link
        if count > _MOST_SECTIONS or count * entry.size > self.size - offset:
            raise ElfError(f"{what}: outside of the file, or too many")
        if not 0 < names_index < count:
            return None
        _, _, names, names_size, _ = self._unpack(entry, offset + names_index * entry.size, what)
        for number in range(count):
            index, kind, start, size, _ = entry.unpack_from(self.data, offset + number * entry.size)
            at = names + index
            if (
                index + len(name) <= names_size
                and kind != _NOBITS
                and bytes(self.data[at : at + len(name)]) == name
            ):
                if size > self.size - start:
                    raise ElfError(f"{what}: a section outside of the file")
                return start, size
        return None

    def _unpack(self, form: struct.Struct, at: int, what: str) -> tuple[int, ...]:
        if at + form.size > self.size:
            raise ElfError(f"{what}: outside of the file")
        return form.unpack_from(self.data, at)

    def _program_headers(
        self, offset: int, entry_size: int, count: int
    ) -> Iterator[tuple[int, ...]]:
        if count == 0:
            return iter(())
        entry = self.layout.program
        size = count * entry.size
        if entry_size != entry.size or count == _LARGE_COUNT or size > self.size - offset:
            raise ElfError("program headers: outside of the file, or of another size")
        return entry.iter_unpack(self.data[offset : offset + size])

    def _read_dynamic(self, offset: int, size: int) -> None:
        entry = self.layout.dynamic
        if size == 0:  # also in files of debug information, wherever their headers point
            return
        if size > self.size - offset:
            raise ElfError("dynamic section: outside of the file")
        size = min(size, _MOST_DYNAMIC) // entry.size * entry.size
        for tag, value in entry.iter_unpack(self.data[offset : offset + size]):
            if tag == _NEEDED:
                self.needed.append(value)
            elif tag == 0:
                return
            else:
                self.dynamic[tag] = value
        if size == _MOST_DYNAMIC:
            raise ElfError("dynamic section: too long")

    def _place(self, address: int, what: str) -> tuple[int, int]:
        """Return where an address lies in the file, and how many bytes of its segment follow."""
        for start, offset, size in self._segments:
            if start <= address < start + size:
                at = offset + address - start
                if at < self.size:
                    return at, min(start + size - address, self.size - at)
        raise ElfError(f"{what}: outside of the file's segments")

    def _table(self, tag: int, size: int, what: str) -> Buffer:
        start, room = self._place(self.dynamic.get(tag, 0), what)
        if size > room:
            raise ElfError(f"{what}: longer than its segment")
        return self.data[start : start + size]

    def _numbers(self, code: str, table: Buffer) -> array.array[int]:
        numbers = array.array(code)
        numbers.frombytes(table)
        if self.little != (sys.byteorder == "little"):
            numbers.byteswap()
        return numbers

    def _versions(
        self, tag: int, count_tag: int, form: struct.Struct, what: str
    ) -> Iterator[tuple[int, ...]]:
        """Go through a chain of version entries: where each lies, and its fields."""
        if tag not in self.dynamic:
            return
        at, _ = self._place(self.dynamic[tag], what)
        total = 0
        for _ in range(self.dynamic.get(count_tag, 0)):
            fields = self._unpack(form, at, what)
            # the second field of needs and the fourth of definitions count what hangs on the entry
            total += 1 + fields[1 if tag == _VERNEED else 3]
            if total > _MOST_VERSIONS:
                raise ElfError(f"{what}: too many")
            yield (at, *fields)
            if fields[-1] == 0:
                return
            at += fields[-1]

    def _sysv_hash(self) -> tuple[int, int, int]:
        """Return where the buckets of DT_HASH lie, their count and that of the symbols."""
        start, room = self._place(self.dynamic[_HASH], "hash table")
        bucket_count, count = self._unpack(self.layout.hash, start, "hash table")
        if 8 + 4 * (bucket_count + count) > room:
            raise ElfError("hash table: longer than its segment")
        return start + 8, bucket_count, count

    def _gnu_hash(self) -> tuple[int, int, int, int]:
        """Return where the buckets of DT_GNU_HASH lie, their count, the first symbol, the chains.

        Chains tell of symbols from the first one on; those before it are of no use to others.
        """
        what = "GNU hash table"
        start, room = self._place(self.dynamic[_GNU_HASH], what)
        bucket_count, first, filter_size = self._unpack(self.layout.gnu_hash, start, what)
        buckets = 16 + self.layout.word * filter_size
        chains = buckets + 4 * bucket_count
        if chains > room or bucket_count > _MOST_SYMBOLS:
            raise ElfError(f"{what}: longer than its segment")
        return start + buckets, bucket_count, first, start + chains

    def _symbol_count(self) -> int:
        """Return how many dynamic symbols there are, which stands nowhere as such."""
        if _SYMTAB not in self.dynamic:
            return 0
        count = 0
        if _HASH in self.dynamic:
            _, _, count = self._sysv_hash()
        elif _GNU_HASH in self.dynamic:
            count = self._last_of_gnu_hash() + 1
        # of a file that exports nothing, GNU ld's table tells nothing, not even of what it needs
        count = count or self._symbols_up_to_next_table()
        if count > _MOST_SYMBOLS:
            raise ElfError("symbol table: too long")
        return count

    def _last_of_gnu_hash(self) -> int:
        """Return the number of the last symbol, -1 where the table has none."""
        buckets, bucket_count, first, chains = self._gnu_hash()
        numbers = self._numbers("I", self.data[buckets : buckets + 4 * bucket_count])
        last = max(numbers, default=0)
        if last < first:
            return -1
        number = self.layout.number
        for step in range(_MOST_CHAIN):
            (entry,) = self._unpack(number, chains + 4 * (last - first + step), "GNU hash table")
            if entry & 1:
                return last + step
        raise ElfError("GNU hash table: a chain without end")

    def _symbols_up_to_next_table(self) -> int:
        start = self.dynamic[_SYMTAB]
        _, room = self._place(start, "symbol table")
        tables = [self.dynamic[tag] for tag in _ADDRESSES if tag in self.dynamic]
        end = min([start + room, *(table for table in tables if table > start)])
        return (end - start) // self.layout.symbol.size
