"""Which GPUs a file's device code is for, read without CUDA's tools.

nvcc puts device code into fat binaries: containers of one entry per architecture, whose header
tells the architecture even where the content is compressed. NVIDIA does not document them. What is
read here was seen in what nvcc 13.0 and ptxas 12.4 make, and agrees with what cuobjdump 13.5 lists
of published CUDA 12 libraries.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Literal

import msgspec

from envbuild.relocation import elf
from envbuild.relocation.elf import Buffer, ElfError

# of code that is linked already, and of code that waits for the device linker (nvcc -rdc=true)
_SECTIONS = (".nv_fatbin", "__nv_relfatbin")

_MAGIC = struct.pack("<L", 0xBA55ED50)
_CONTAINER = struct.Struct("<4s2HQ")  # magic, version, size of this header, size of the entries
_VERSION = 1
# kind, size of this header, size of the content, architecture, flags
_ENTRY = struct.Struct("<H2xLQ12xL8xQ")
_KINDS: dict[int, tuple[Literal["cubin", "ptx"], str]] = {1: ("ptx", "compute"), 2: ("cubin", "sm")}
_LAST_ARCHITECTURE = 999
_SPECIFIC, _FAMILY = 1 << 20, 1 << 21  # code such as sm_90a and sm_100f

_CUDA_MACHINE = 190
_COMPATIBILITY = struct.Struct("<2BH")  # an entry of .nv.compat: form, attribute, value
_ACCELERATORS = (2, 9, 1)  # the entry there that says sm_90a; 0 stands there in others
_OLD_ACCELERATORS = 0x800  # EF_CUDA_ACCELERATORS_V1, before .nv.compat

_PADDING = 256  # bytes that are looked at for zeros at a time; mostly there are at most 32
_PIECE = 1 << 20  # bytes that are searched at a time


class DeviceCode(msgspec.Struct, frozen=True, order=True):
    """A kind of code for a GPU.

    Attributes:
        kind: ``cubin``, which runs on one architecture as it is, or ``ptx``, which the driver
            compiles for it and later ones.
        architecture: such as ``sm_90`` or ``sm_90a`` of cubins, ``compute_90`` of PTX.
    """

    kind: Literal["cubin", "ptx"]
    architecture: str


def device_code(data: Buffer) -> tuple[DeviceCode, ...]:
    """Return the kinds of device code in a file, sorted; none in a file for the CPU alone.

    Other entries, such as NVVM's code for link-time optimization (kind 8), run nowhere as they are
    and are left out.

    Args:
        data: the whole file, best a map of it: a library, program or object file, a cubin, or a
            fat binary by itself. Without section headers it is searched for containers from begin
            to end.

    Raises:
        ElfError: it is none of these, its section headers are damaged, or a container is.
    """
    with memoryview(data) as view:
        return tuple(sorted(set(_all_code(view))))


def _all_code(data: memoryview) -> Iterator[DeviceCode]:
    if data[: len(_MAGIC)] == _MAGIC:
        yield from _containers(data)
        return
    header = elf.header(data)
    if header.machine == _CUDA_MACHINE:
        yield _cubin(data, header.flags)
    elif header.has_sections:
        for name in _SECTIONS:
            content = elf.section(data, name)
            if content is not None:
                with content:
                    yield from _containers(content)
    else:
        for start in _search(data):
            yield from _container(data, start)


def _containers(data: memoryview) -> Iterator[DeviceCode]:
    """Read containers that lie one behind the other, with nothing but zeros between them."""
    at = 0
    while at < len(data):
        piece = bytes(data[at : at + _PADDING])
        zeros = len(piece) - len(piece.lstrip(b"\0"))
        if zeros:
            at += zeros
            continue
        yield from _container(data, at)
        at += _container_size(data, at)


def _container_size(data: memoryview, at: int) -> int:
    """Return a container's size with its header, 0 if none begins there."""
    if at + _CONTAINER.size > len(data):
        return 0
    magic, version, header_size, size = _CONTAINER.unpack_from(data, at)
    whole: int = header_size + size
    fits = header_size >= _CONTAINER.size and whole <= len(data) - at
    return whole if magic == _MAGIC and version == _VERSION and fits else 0


def _container(data: memoryview, at: int) -> Iterator[DeviceCode]:
    end = at + _container_size(data, at)
    if end == at:
        raise ElfError(f"fat binary: no whole container at byte {at}")
    at += _CONTAINER.unpack_from(data, at)[2]
    while at < end:
        if at + _ENTRY.size > end:
            raise ElfError(f"fat binary: an entry at byte {at} leads out of its container")
        kind, header_size, size, architecture, flags = _ENTRY.unpack_from(data, at)
        if header_size < _ENTRY.size or header_size + size > end - at:
            raise ElfError(f"fat binary: an entry at byte {at} leads out of its container")
        if kind in _KINDS:
            if architecture > _LAST_ARCHITECTURE:
                raise ElfError(f"fat binary: an entry at byte {at} is for no architecture")
            name, prefix = _KINDS[kind]
            suffix = "a" if flags & _SPECIFIC else "f" if flags & _FAMILY else ""
            yield DeviceCode(name, f"{prefix}_{architecture}{suffix}")
        at += header_size + size


def _search(data: memoryview) -> Iterator[int]:
    """Find containers anywhere; programs that read fat binaries hold the mere magic, too."""
    at = 0
    while at < len(data):
        following = at + _PIECE
        # the magic may lie across the end of the piece
        piece = bytes(data[at : following + len(_MAGIC) - 1])
        found = piece.find(_MAGIC)
        while found >= 0:
            size = _container_size(data, at + found)
            if size:
                yield at + found
                following = max(following, at + found + size)
            found = piece.find(_MAGIC, found + max(size, len(_MAGIC)))
        at = following


def _cubin(data: memoryview, flags: int) -> DeviceCode:
    """Read the architecture of a cubin from e_flags, whose layout changed with CUDA 13."""
    if bytes(data[8:9]) < b"\x08":  # EI_ABIVERSION
        specific = bool(flags & _OLD_ACCELERATORS)
        return DeviceCode("cubin", f"sm_{flags & 0xFF}{'a' if specific else ''}")
    compatibility = elf.section(data, ".nv.compat")
    specific = False
    if compatibility is not None:
        with compatibility:
            whole = len(compatibility) // _COMPATIBILITY.size * _COMPATIBILITY.size
            specific = _ACCELERATORS in _COMPATIBILITY.iter_unpack(compatibility[:whole])
    return DeviceCode("cubin", f"sm_{flags >> 8 & 0xFF}{'a' if specific else ''}")
