"""Tar headers in one canonical form: POSIX ustar, with pax records where that does not suffice.

The format is that of POSIX.1-2017, pax. Nobody's name and one time for every entry, so that
nothing of the machine that writes a layer gets into it.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Literal

import msgspec

BLOCK = 512
# the end of an archive: two blocks of zeros
END = bytes(2 * BLOCK)

# 1980-01-01T00:00:00Z in seconds: the earliest time that zip knows, so that what Python packs from
# an image's files (zipapps, wheels) can be packed
TIME = 315532800

_KINDS = {"file": b"0", "link": b"2", "folder": b"5"}
# the largest size that the 11 octal digits of a header hold
_MOST = 8**11 - 1


class Item(msgspec.Struct, frozen=True):
    """A file, folder or link of an image.

    Attributes:
        path: relative to the image's root, ``/`` between its parts, none at the end.
        kind: what it is; a link is a symbolic one.
        mode: its permission bits.
        content: a file's content.
        target: where a link points.
        owner: the number of the user and the group that own it.
    """

    path: str
    kind: Literal["file", "folder", "link"] = "file"
    mode: int = 0o644
    content: bytes = b""
    target: str = ""
    owner: int = 0


def folder(path: str, mode: int = 0o755) -> Item:
    """Return a folder of an image."""
    return Item(path, "folder", mode)


def link(path: str, target: str) -> Item:
    """Return a symbolic link of an image."""
    return Item(path, "link", 0o777, target=target)


def padding(size: int) -> int:
    """Return how many zeros fill a content of ``size`` bytes up to the next block."""
    return -size % BLOCK


def header(item: Item, size: int | None = None) -> bytes:
    """Return the header blocks of an entry, as `parts` has them."""
    return b"".join(parts(item, size))


def parts(item: Item, size: int | None = None) -> tuple[bytes, ...]:
    """Return the header blocks of an entry, cut where headers are alike.

    Args:
        item: the entry.
        size: of its content, in bytes, if that is not in ``item``.
    """
    name = item.path.encode() + (b"/" if item.kind == "folder" else b"")
    linked = item.target.encode()
    size = len(item.content) if size is None else size
    records = b""
    prefix = b""
    if len(name) > 100 or not name.isascii():
        prefix, short = (b"", b"") if not name.isascii() else _split(name)
        if not short:
            records += _record(b"path", name)
            # what a reader without pax would see; never the whole name of something else
            prefix, short = b"", b"pax/" + name.decode().encode("ascii", "replace")[:90]
        name = short
    if len(linked) > 100 or not linked.isascii():
        records += _record(b"linkpath", linked)
        linked = linked.decode().encode("ascii", "replace")[:100]
    if size > _MOST:
        records += _record(b"size", b"%d" % size)
        size = 0
    extended: tuple[bytes, ...] = ()
    if records:
        extended = _block(b"pax/header", b"x", 0o644, len(records))
        extended += (records, bytes(padding(len(records))))
    return extended + _block(name, _KINDS[item.kind], item.mode, size, linked, prefix, item.owner)


def _split(name: bytes) -> tuple[bytes, bytes]:
    """Split a long name at a ``/`` into ustar's prefix and name; both empty if none fits."""
    at = name.rfind(b"/", 0, 156)
    # a folder's own "/" is no place to split
    if at == len(name) - 1:
        at = name.rfind(b"/", 0, at)
    if at <= 0 or len(name) - at - 1 > 100:
        return b"", b""
    return name[:at], name[at + 1 :]


def _record(key: bytes, value: bytes) -> bytes:
    """Return a pax record, which begins with its own length in decimal digits."""
    body = b" " + key + b"=" + value + b"\n"
    size = len(body) + 1
    while len(b"%d" % size) + len(body) != size:
        size = len(b"%d" % size) + len(body)
    return b"%d" % size + body


def _block(
    name: bytes,
    kind: bytes,
    mode: int,
    size: int,
    linked: bytes = b"",
    prefix: bytes = b"",
    owner: int = 0,
) -> tuple[bytes, ...]:
    # a folder is named again and again
    at = name.rfind(b"/", 0, -1) + 1
    before = (name[:at], name[at:], _zeros(100 - len(name)), _modes(mode, owner))
    sized = b"%011o\0" % size
    last = kind + linked.ljust(100, b"\0") + _MAGIC + prefix.ljust(155, b"\0") + bytes(12)
    # where the checksum goes counts as spaces
    total = sum(name) + _sum(before[3]) + sum(sized) + _TIME_SUM + 8 * 32 + _sum(last)
    return (*before, sized, _TIME, b"%06o\0 " % total, last)


# nobody has a name, which only the machine that reads could know
_MAGIC = b"ustar\x0000" + bytes(32 + 32) + b"0000000\0" * 2
_TIME = b"%011o\0" % TIME
_TIME_SUM = sum(_TIME)
_zeros = lru_cache(bytes)


@lru_cache
def _modes(mode: int, owner: int) -> bytes:
    return b"%07o\0" % mode + b"%07o\0" % owner * 2


_sum = lru_cache(maxsize=1 << 10)(sum)
