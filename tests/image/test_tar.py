"""Headers say to every reader what the item is."""

from __future__ import annotations

import io
import subprocess
import tarfile
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from envbuild.image import tar
from envbuild.image.tar import Item, folder, link
from tests.programs import require

# parts of paths, up to what file systems hold (NAME_MAX is 255 bytes)
PART = (
    st.text(st.characters(codec="utf-8", exclude_characters="/\0\n"), min_size=1, max_size=40)
    | st.builds(lambda letter, size: letter * size, st.sampled_from("ab.é"), st.integers(1, 255))
).filter(lambda part: part not in (".", "..") and len(part.encode()) <= 255)
PATH = st.lists(PART, min_size=1, max_size=8).map("/".join)
# exactly around what fits the fields of ustar
LIMIT = st.builds(
    lambda first, second: "/".join(("d" * first, "f" * second)),
    st.sampled_from((1, 54, 98, 99, 100, 101, 153, 154, 155, 156, 200)),
    st.sampled_from((1, 98, 99, 100, 101, 154, 155, 156, 255)),
)
TARGET = st.builds(lambda ups, path: "../" * ups + path, st.integers(0, 60), PATH | LIMIT)
SIZE = st.integers(0, 1 << 14) | st.sampled_from((8**11 - 1, 8**11, 8**11 + 1, 1 << 40))
FILES = st.builds(
    lambda path, mode, owner: Item(path, mode=mode, owner=owner),
    PATH | LIMIT,
    st.integers(0, 0o7777),
    st.sampled_from((0, 1, 10001, 65534, 8**7 - 1)),
)
FOLDERS = st.builds(folder, PATH | LIMIT, st.integers(0, 0o1777))
LINKS = st.builds(link, PATH | LIMIT, TARGET)
ITEMS = FILES | FOLDERS | LINKS
TYPES = {"file": tarfile.REGTYPE, "folder": tarfile.DIRTYPE, "link": tarfile.SYMTYPE}


def read(data: bytes) -> list[tarfile.TarInfo]:
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:", errors="strict") as archive:
        return archive.getmembers()


def check(item: Item, size: int, found: tarfile.TarInfo) -> None:
    assert (found.name, found.type, found.mode) == (item.path, TYPES[item.kind], item.mode)
    assert (found.size, found.linkname) == (size, item.target)
    assert (found.uid, found.gid, found.uname, found.gname) == (item.owner, item.owner, "", "")
    assert found.mtime == 315532800
    assert (found.devmajor, found.devminor) == (0, 0)


@settings(max_examples=300, deadline=None)
@given(ITEMS, SIZE)
@example(folder("d" * 99), 0)
@example(folder("d" * 100), 0)
@example(folder("d" * 155 + "/" + "f" * 99), 0)
@example(folder("d" * 155 + "/" + "f" * 100), 0)
@example(folder("d" * 256), 0)
@example(link("a", "t" * 100), 0)
@example(link("a", "t" * 101), 0)
@example(link("a", "é" * 50), 0)
def test_any_header_is_read_back(item: Item, size: int) -> None:
    size = size if item.kind == "file" else 0
    header = tar.header(item, size)
    assert len(header) % 512 == 0
    assert header == b"".join(tar.parts(item, size))
    with tarfile.open(fileobj=io.BytesIO(header), mode="r:") as archive:
        found = archive.next()
    assert found is not None
    check(item, size, found)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(ITEMS, st.binary(max_size=1100)), max_size=6))
def test_any_archive_is_read_back(some: list[tuple[Item, bytes]]) -> None:
    data = b""
    for item, content in some:
        data += tar.header(item, len(content) if item.kind == "file" else 0)
        if item.kind == "file":
            data += content + bytes(tar.padding(len(content)))
    for (item, content), found in zip(some, read(data + tar.END), strict=True):
        check(item, len(content) if item.kind == "file" else 0, found)


@settings(max_examples=100, deadline=None)
@given(
    st.builds(
        lambda parts: "/".join(parts),
        st.lists(
            st.sampled_from(["a" * n for n in (1, 20, 49, 50, 99, 100, 101)]),
            min_size=1,
            max_size=7,
        ),
    )
)
def test_names_that_ustar_holds_need_no_pax_record(path: str) -> None:
    # POSIX ustar: 100 bytes of name, behind 155 of prefix and a "/"
    fits = len(path) <= 100 or any(
        at <= 155 and 0 < len(path) - at - 1 <= 100 for at, c in enumerate(path) if c == "/"
    )
    assert (len(tar.header(Item(path))) == 512) == fits


@pytest.mark.parametrize(
    ("item", "records"),
    [
        (Item("é"), "11 path=é\n"),
        (folder("é"), "12 path=é/\n"),
        (link("a", "é"), "15 linkpath=é\n"),
        (link("é", "ü"), "11 path=é\n15 linkpath=ü\n"),
        # the number counts its own digits
        (Item("x" * 101), f"111 path={'x' * 101}\n"),
        (link("a", "t" * 986), None),
        (link("a", "t" * 985), None),
    ],
)
def test_pax_records_count_themselves(item: Item, records: str | None) -> None:
    (found,) = read(tar.header(item) + tar.END)
    assert found.linkname == item.target
    if records is not None:
        size = int(tar.header(item)[124:135], 8)
        assert tar.header(item)[512 : 512 + size].decode() == records


def test_a_reader_without_pax_takes_nothing_for_something_else() -> None:
    item = link("é" * 60, "t" * 120)
    plain = tar.header(item)[-512:]
    assert plain[:100].rstrip(b"\0") == b"pax/" + b"?" * 60
    assert plain[157:257] == b"t" * 100


def test_a_header_byte_by_byte() -> None:
    data = tar.header(Item("usr/a", mode=0o755, owner=8), 512)
    fields = (
        (b"usr/a", 100),
        (b"0000755", 8),
        (b"0000010", 8),
        (b"0000010", 8),
        (b"00000001000", 12),
        (b"02263523000", 12),
        (b"010204\0 ", 8),
        (b"0", 1),
        (b"", 100),
        (b"ustar\x0000", 8),
        (b"", 64),
        (b"0000000", 8),
        (b"0000000", 8),
        (b"", 155 + 12),
    )
    assert data == b"".join(text.ljust(size, b"\0") for text, size in fields)


@pytest.mark.parametrize("size", [0, 1, 511, 512, 513, 1 << 40])
def test_paddings_fill_a_block(size: int) -> None:
    assert (size + tar.padding(size)) % 512 == 0
    assert 0 <= tar.padding(size) < 512


def test_gnu_tar_reads_what_is_long_and_strange(tmp_path: Path) -> None:
    program = require("tar", "tar")
    deep = "/".join(["x" * 200] * 6)
    items = [
        folder("a"),
        folder("a/" + "b" * 99),
        Item("a/" + "c" * 255, mode=0o600, content=b"long"),
        Item("d" * 155 + "/" + "e" * 100, content=b"split"),
        Item(deep, mode=0o755, content=b"deep"),
        Item("ünï/Főtanúsítvány", content=b"strange"),
        link("a/link", "../" * 50 + "z" * 200),
        link("ünï/link", "Főtanúsítvány"),
    ]
    data = b""
    for item in items:
        data += tar.header(item) + item.content + bytes(tar.padding(len(item.content)))
    options: list[str | Path] = [
        "--extract",
        "--file",
        "-",
        "--directory",
        tmp_path,
        "--same-permissions",
    ]
    done = subprocess.run(
        [program, *options], input=data + tar.END, check=True, capture_output=True
    )
    assert done.stderr == b""
    for item in items:
        path = tmp_path / item.path
        if item.kind == "link":
            assert str(path.readlink()) == item.target
            continue
        assert path.stat().st_mode & 0o7777 == item.mode
        if item.kind == "file":
            assert path.stat().st_mtime == tar.TIME
            assert path.read_bytes() == item.content


def test_gnu_tar_reads_sizes_over_8_gib() -> None:
    program = require("tar", "tar")
    size = (8 << 30) + 3
    # it lists what it can read before it finds that the content is not there
    done = subprocess.run(
        [program, "--list", "--verbose", "--numeric-owner", "--utc", "--full-time", "--file", "-"],
        input=tar.header(Item("big", owner=10001), size),
        check=False,
        capture_output=True,
    )
    assert done.stdout.split() == (
        f"-rw-r--r-- 10001/10001 {size} 1980-01-01 00:00:00 big".encode().split()
    )
