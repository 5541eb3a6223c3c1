"""Small ELF files: real ones, which gcc makes, and ones made by hand of any class and order."""

from __future__ import annotations

import struct
import subprocess
from pathlib import Path

from envbuild.relocation import elf
from tests.programs import require

STRTAB, SYMTAB, GNU_HASH, VERSYM = 5, 6, 0x6FFFFEF5, 0x6FFFFFF0


def compiled(output: Path, source: str, *options: str | Path, language: str = "c") -> Path:
    """Compile a C program, or with ``-shared`` or ``-c`` something else, and return where it is.

    Args:
        output: where to.
        source: text in the language.
        options: of the compiler.
        language: ``c``, or ``c++``.
    """
    compiler = require("g++", "g++") if language == "c++" else require("gcc", "gcc")
    done = subprocess.run(
        # -l options count for what stands before them
        [compiler, "-fPIC", "-o", output, "-x", language, "-", "-x", "none", *options],
        input=source,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return output


def with_machine(data: bytes, machine: int) -> bytes:
    """Make a little-endian file one for another machine, by its header."""
    return data[:18] + struct.pack("<H", machine) + data[20:]


def with_weak_need(data: bytes, version: str) -> bytes:
    """Mark a version that a little-endian file needs as one that may be missing."""
    value = 0
    for byte in version.encode():  # the hash of the System V gABI
        value = (value << 4) + byte
        value = (value ^ (value >> 24 & 0xF0)) & 0x0FFFFFFF
    strong, weak = struct.pack("<LH", value, 0), struct.pack("<LH", value, 2)
    assert data.count(strong) == 1
    return data.replace(strong, weak)


def without_sections(data: bytes) -> bytes:
    """Take the section headers away from a 64-bit file: what no program needs to run."""
    return data[:40] + bytes(8) + data[48:60] + bytes(4) + data[64:]


def with_dynamic(data: bytes, changes: dict[int, tuple[int, int]]) -> bytes:
    """Replace entries of a 64-bit file's dynamic section.

    Args:
        data: the file.
        changes: by tag, the new tag and value.
    """
    section = elf.section(data, ".dynamic")
    assert section is not None
    order = "<" if elf.header(data).little else ">"
    entries = [changes.get(tag, (tag, value)) for tag, value in struct.iter_unpack("<2Q", section)]
    start = data.index(bytes(section))
    dynamic = b"".join(struct.pack(f"{order}2Q", *entry) for entry in entries)
    return data[:start] + dynamic + data[start + len(dynamic) :]


def dynamic_value(data: bytes, tag: int) -> int:
    """Return the value of an entry of a 64-bit little-endian file's dynamic section."""
    section = elf.section(data, ".dynamic")
    assert section is not None
    found: dict[int, int] = dict(struct.iter_unpack("<2Q", section))
    return found[tag]


def handmade(*, bits: int, little: bool, machine: int) -> bytes:
    """Make a library that needs ``liba.so`` and ``libb.so`` and defines the symbol ``given``."""
    order = "<" if little else ">"
    wide = bits == 64
    address = "Q" if wide else "L"
    strings = b"\0liba.so\0libb.so\0own.so\0given\0"
    header_size, entry_size, symbol_size = (64, 56, 24) if wide else (52, 32, 16)
    dynamic_at = header_size + 2 * entry_size
    dynamic_size = 8 * 2 * struct.calcsize(f"{order}{address}")
    strings_at = dynamic_at + dynamic_size
    symbols_at = strings_at + len(strings)
    hash_at = symbols_at + 2 * symbol_size
    table = struct.pack(f"{order}6L", 1, 2, 1, 0, 0, 0)  # one bucket, in it symbol 1
    size = hash_at + len(table)
    bias = 0x10000  # addresses are not places in the file
    entries = [
        (1, 1),
        (1, 9),
        (14, 17),
        (STRTAB, bias + strings_at),
        (10, len(strings)),
        (SYMTAB, bias + symbols_at),
        (4, bias + hash_at),
        (0, 0),
    ]
    dynamic = b"".join(struct.pack(f"{order}2{address}", *entry) for entry in entries)
    if wide:
        symbol = struct.pack(f"{order}L2BH2Q", 24, 0x12, 0, 1, 0, 0)
        loaded = struct.pack(f"{order}2L6Q", 1, 5, 0, bias, bias, size, size, 4096)
        found = (2, 4, dynamic_at, bias + dynamic_at, 0, dynamic_size, dynamic_size, 8)
        segments = loaded + struct.pack(f"{order}2L6Q", *found)
    else:
        symbol = struct.pack(f"{order}3L2BH", 24, 0, 0, 0x12, 0, 1)
        loaded = struct.pack(f"{order}8L", 1, 0, bias, bias, size, size, 5, 4096)
        found = (2, dynamic_at, bias + dynamic_at, 0, dynamic_size, dynamic_size, 4, 8)
        segments = loaded + struct.pack(f"{order}8L", *found)
    ident = b"\x7fELF" + bytes((2 if wide else 1, 1 if little else 2, 1)) + bytes(9)
    counts = (header_size, entry_size, 2, 0, 0, 0)
    fields = (3, machine, 1, 0, header_size, 0, 0, *counts)
    header = ident + struct.pack(f"{order}2HL3{address}L6H", *fields)
    return header + segments + dynamic + strings + bytes(symbol_size) + symbol + table
