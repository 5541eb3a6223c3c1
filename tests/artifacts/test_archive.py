"""Zips that two readers could read differently are refused, and right ones of any kind are read."""

from __future__ import annotations

import os
import struct
import zipfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envbuild.artifacts.archive import MEND, Archive, Entry
from envbuild.errors import InputError
from tests.wheels import Member, Said, ZipOptions, make_zip

TEXT = b"some text that deflates: aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
ONE = Member(b"a.txt", TEXT)
TWO = Member(b"b/c.txt", b"c", deflate=False)


def read(folder: Path, data: bytes) -> tuple[Entry, ...]:
    path = folder / "x.zip"
    path.write_bytes(data)
    descriptor = os.open(path, os.O_RDONLY)
    try:
        archive = Archive(descriptor, path.name)
        entries = archive.entries()
        for entry in entries:
            archive.content(entry)
        return entries
    finally:
        os.close(descriptor)


def refusal(folder: Path, data: bytes) -> str:
    with pytest.raises(InputError) as caught:
        read(folder, data)
    assert caught.value.mend == MEND
    return str(caught.value).removesuffix(f"\n  mend: {MEND}")


@pytest.mark.parametrize(
    "members",
    [
        [],
        [ONE, TWO],
        [Member(b"b/", mode=0o040755, deflate=False), TWO],
        [Member("\u00e9.txt".encode(), TEXT, flags=0x800)],
        [Member(b"a.txt", TEXT, zip64=True), Member(b"b.txt", TEXT, zip64=True)],
        [Member(b"a.txt", TEXT, descriptor="<4s3L"), TWO],
        [Member(b"a.txt", TEXT, descriptor="<3L"), TWO],
        [Member(b"a.txt", TEXT, descriptor="<4sL2Q"), TWO],
        [Member(b"a.txt", TEXT, descriptor="<L2Q")],
        [Member(b"empty", b""), Member(b"stored", b"", deflate=False)],
        [Member(b"a.txt", TEXT, extra=struct.pack("<2H4s", 0xCAFE, 4, b"java"))],
        [Member(b"a.txt", TEXT, mode=0), Member(b"b.txt", TEXT, mode=0o600)],
    ],
)
@pytest.mark.parametrize("zip64", [False, True])
def test_right_zips_are_read_as_zipfile_reads_them(
    tmp_path: Path, members: list[Member], zip64: bool
) -> None:
    data = make_zip(members, zip64=zip64)
    entries = read(tmp_path, data)
    with zipfile.ZipFile(tmp_path / "x.zip") as archive:
        expected = [
            (info.filename, info.file_size, info.compress_size, info.CRC)
            for info in archive.infolist()
        ]
    assert [(e.name, e.size, e.stored_size, e.crc) for e in entries] == expected
    assert [e.mode for e in entries] == [member.mode & 0o777 for member in members]


def test_an_entry_says_where_its_bytes_are(tmp_path: Path) -> None:
    data = make_zip([ONE, TWO])
    first, second = read(tmp_path, data)
    assert (first.deflated, second.deflated) == (True, False)
    assert data[second.start : second.start + second.stored_size] == b"c"
    assert not first.is_folder


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"before": b"#!/bin/sh\n"},
            "x.zip: bytes before the first entry\n  expected: none\n  found: 10",
        ),
        (
            {"after": b"\n"},
            "x.zip: not a whole zip\n  expected: a zip's end record as the last 22 bytes",
        ),
        (
            {"comment": b"hello"},
            "x.zip: not a whole zip\n  expected: a zip's end record as the last 22 bytes",
        ),
        (
            {"count": 1},
            "x.zip: its directory has not the entries that the end record counts\n"
            "  expected: 1 in 104 bytes",
        ),
        (
            {"count": 3},
            "x.zip: its directory has not the entries that the end record counts\n"
            "  expected: 3 in 104 bytes",
        ),
    ],
)
def test_what_hides_a_second_directory_is_refused(
    tmp_path: Path, options: ZipOptions, message: str
) -> None:
    assert refusal(tmp_path, make_zip([ONE, TWO], **options)) == message


def test_a_second_zip_behind_the_first_is_refused(tmp_path: Path) -> None:
    data = make_zip([ONE]) + make_zip([TWO])
    assert refusal(tmp_path, data).startswith(
        "x.zip: its directory is not where the end record says\n"
    )


def test_two_end_records_must_agree(tmp_path: Path) -> None:
    data = bytearray(make_zip([ONE, TWO], zip64=True))
    data[-14:-10] = struct.pack("<2H", 1, 1)
    assert refusal(tmp_path, bytes(data)) == (
        "x.zip: its two end records disagree\n"
        f"  expected: (0, 0, 2, 2, 104, {data.index(b'PK' + bytes([1, 2]))})\n"
        "  found: (0, 0, 1, 1, 4294967295, 4294967295)"
    )


@pytest.mark.parametrize(("zip64", "from_the_end"), [(False, 18), (True, 26)])
def test_one_of_several_volumes(tmp_path: Path, zip64: bool, from_the_end: int) -> None:
    data = bytearray(make_zip([ONE, TWO], zip64=zip64))
    data[-from_the_end] += 1
    assert refusal(tmp_path, bytes(data)) == (
        "x.zip: one of several volumes\n  expected: a zip of one file"
    )


def test_an_entry_on_another_volume(tmp_path: Path) -> None:
    data = bytearray(make_zip([ONE]))
    data[data.index(b"PK\1\2") + 34] = 1
    assert refusal(tmp_path, bytes(data)) == (
        "x.zip: a.txt: on another volume\n  expected: 0\n  found: 1"
    )


@pytest.mark.parametrize(
    ("member", "message"),
    [
        (
            Member(b"m", TEXT, flags=1),
            "x.zip: m: flags that change how it is read (encryption and the like)\n"
            "  expected: none but 0x080e\n  found: 0x0001",
        ),
        (
            Member(b"m", TEXT, flags=1 << 13),
            "x.zip: m: flags that change how it is read (encryption and the like)\n"
            "  expected: none but 0x080e\n  found: 0x2000",
        ),
        (
            Member(b"m", TEXT, local=Said(method=12), central=Said(method=12)),
            "x.zip: m: unknown compression\n  expected: 0 (stored) or 8 (deflate)\n  found: 12",
        ),
        (
            Member(b"m", TEXT, mode=0o120777),
            "x.zip: m: a link, a device, or of a special mode\n"
            "  expected: a plain file or folder\n  found: lrwxrwxrwx",
        ),
        (
            Member(b"m", TEXT, mode=0o104755),
            "x.zip: m: a link, a device, or of a special mode\n"
            "  expected: a plain file or folder\n  found: -rwsr-xr-x",
        ),
        (
            Member(b"m", TEXT, mode=0o040755),
            "x.zip: m: a link, a device, or of a special mode\n"
            "  expected: a plain file or folder\n  found: drwxr-xr-x",
        ),
        (
            Member(b"m/", b"x", mode=0o040755, deflate=False),
            "x.zip: m/: a folder with content\n  expected: 0 bytes\n  found: 1",
        ),
        (
            Member(b"m", TEXT, deflate=False, central=Said(size=5)),
            "x.zip: m: stored, yet of two sizes\n  expected: 5\n  found: 61",
        ),
        (
            Member(b"m", TEXT, extra=struct.pack("<2H5s", 0x7075, 5, b"other")),
            "x.zip: m: an extra field that says again what was said",
        ),
        (
            Member(b"m", TEXT, zip64=True, extra=struct.pack("<2H8s", 1, 8, b"")),
            "x.zip: m: an extra field that says again what was said",
        ),
        (
            Member(b"m", TEXT, extra=b"\1\0"),
            "x.zip: m: a damaged extra field",
        ),
        (
            Member(b"m", TEXT, extra=b"\1\0\377\377"),
            "x.zip: m: a damaged extra field",
        ),
        (
            Member(b"m", TEXT, central=Said(size=0xFFFFFFFF)),
            "x.zip: m: a size or place that stands nowhere",
        ),
        (
            Member(b"m", TEXT, padding=b"hidden"),
            "x.zip: m: bytes that belong to no entry follow it\n"
            "  expected: an end at byte 67\n  found: an end at byte 61",
        ),
        (
            Member(b"m", b"x", local=Said(name=b"n")),
            "x.zip: m: its local header disagrees with the zip's directory\n"
            "  expected: m, flags 0x0000, method 8, CRC-32 8cdc1683, 3 bytes stored, 1 bytes\n"
            "  found: n, flags 0x0000, method 8, CRC-32 8cdc1683, 3 bytes stored, 1 bytes",
        ),
    ],
)
def test_wrong_members_are_refused(tmp_path: Path, member: Member, message: str) -> None:
    data = make_zip([member])
    assert refusal(tmp_path, data) == message


@pytest.mark.parametrize(
    "local",
    [
        Said(flags=2),
        Said(method=0),
        Said(crc=1),
        Said(size=1),
        Said(stored_size=1),
    ],
)
def test_the_two_headers_must_agree(tmp_path: Path, local: Said) -> None:
    data = make_zip([Member(b"m", TEXT, local=local)])
    assert refusal(tmp_path, data).startswith(
        "x.zip: m: its local header disagrees with the zip's directory\n"
    )


@pytest.mark.parametrize("layout", ["<4s3L", "<3L", "<4sL2Q", "<L2Q"])
def test_a_descriptor_must_agree(tmp_path: Path, layout: str) -> None:
    data = bytearray(make_zip([Member(b"m", TEXT, descriptor=layout)]))
    data[data.index(b"PK\1\2") - 1] ^= 1
    assert refusal(tmp_path, bytes(data)).startswith(
        "x.zip: m: its data descriptor disagrees with the zip's directory\n"
    )


def test_overlapping_entries_are_refused(tmp_path: Path) -> None:
    twice = [Member(b"m", TEXT), Member(b"n", TEXT, central=Said(name=b"m2", offset=0))]
    assert refusal(tmp_path, make_zip(twice)).startswith("x.zip: m: overlaps what follows\n")
    longer = Said(size=90, stored_size=90)
    data = make_zip([Member(b"m", TEXT, deflate=False, local=longer, central=longer), TWO])
    assert refusal(tmp_path, data).startswith("x.zip: m: overlaps what follows\n")


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["a", "a"], "x.zip: a: in the zip twice"),
        (["a/", "a/"], "x.zip: a/: in the zip twice"),
        (["a", "a/b"], "x.zip: a: a file, and a folder of other entries"),
        (["a/b/c/d", "a/b"], "x.zip: a/b: a file, and a folder of other entries"),
        (["a/", "a"], "x.zip: a: a file, and a folder of other entries"),
        (["\u00e9", "e\u0301"], "x.zip: e\u0301: in the zip twice"),
    ],
)
def test_names_must_make_a_tree(tmp_path: Path, names: list[str], message: str) -> None:
    members = [
        Member(name.encode(), flags=0x800, mode=0o040755 if name.endswith("/") else 0o100644)
        for name in names
    ]
    assert refusal(tmp_path, make_zip(members)) == message


@pytest.mark.parametrize(
    "name",
    ["/etc/passwd", "../x", "a/../../x", "a/./b", "./a", "a//b", "", "/", "a\\b", "a\0b", "a\nb"],
)
def test_names_that_leave_their_folder_are_refused(tmp_path: Path, name: str) -> None:
    assert refusal(tmp_path, make_zip([Member(name.encode())])) == (
        f"x.zip: {name!r}: a name that leaves its folder or reads differently elsewhere\n"
        "  expected: a relative path without empty, '.' or '..' parts, backslashes and control "
        "characters"
    )


@pytest.mark.parametrize(("name", "flags"), [(b"\xe9", 0x800), (b"\xc3\xa9", 0)])
def test_names_that_are_not_utf8_are_refused(tmp_path: Path, name: bytes, flags: int) -> None:
    assert refusal(tmp_path, make_zip([Member(name, flags=flags)])) == (
        f"x.zip: {repr(name)[1:]}: a name that is not UTF-8, or not marked as such (flag bit 11)"
    )


def test_content_must_be_what_the_directory_says(tmp_path: Path) -> None:
    wrong = Said(crc=7)
    assert refusal(tmp_path, make_zip([Member(b"m", b"x", local=wrong, central=wrong)])) == (
        "x.zip: m: its content is not what the zip's directory says\n"
        "  expected: 1 bytes, CRC-32 00000007\n  found: 1 bytes, CRC-32 8cdc1683"
    )
    for size in (1, 60, 62):
        wrong = Said(size=size)
        data = make_zip([Member(b"m", TEXT, local=wrong, central=wrong)])
        assert refusal(tmp_path, data).startswith("x.zip: m: its ")
    garbage = make_zip([Member(b"m", b"\xff" * 9, deflate=False)]).replace(
        b"\0\0\0\0\0\0\x21\0", b"\0\0\x08\0\0\0\x21\0"
    )
    assert refusal(tmp_path, garbage).startswith("x.zip: m: cannot be inflated: ")


def test_a_bomb_is_not_inflated(tmp_path: Path) -> None:
    huge = Said(size=1 << 31)
    data = make_zip([Member(b"m", TEXT, local=huge, central=huge)])
    assert refusal(tmp_path, data) == (
        "x.zip: m: too large\n  expected: at most 67108864 bytes\n  found: 2147483648"
    )


@given(name=st.text(st.characters(codec="utf-8"), min_size=1, max_size=20))
def test_every_name_is_safe_or_refused(tmp_path_factory: pytest.TempPathFactory, name: str) -> None:
    folder = tmp_path_factory.getbasetemp()
    try:
        (entry,) = read(folder, make_zip([Member(name.encode(), flags=0x800, mode=0)]))
    except InputError:
        return
    inside = Path(os.path.normpath(folder / entry.name))
    assert inside.is_relative_to(folder)
    assert inside != folder
    assert entry.name == name


@given(cut=st.integers(0, 400), flips=st.lists(st.tuples(st.integers(0, 400), st.integers(0, 7))))
def test_damage_is_refused_or_changes_nothing_that_is_read(
    tmp_path_factory: pytest.TempPathFactory, cut: int, flips: list[tuple[int, int]]
) -> None:
    folder = tmp_path_factory.getbasetemp()
    whole = make_zip([ONE, TWO, Member(b"d", TEXT, descriptor="<4s3L")], zip64=True)
    data = bytearray(whole[: len(whole) - cut] if cut < 50 else whole)
    for at, bit in flips:
        if at < len(data):
            data[at] ^= 1 << bit
    try:
        entries = read(folder, bytes(data))
    except InputError:
        return
    known = {entry.name: entry.crc for entry in read(folder, whole)}
    assert sorted(known.values()) == sorted(entry.crc for entry in entries)
