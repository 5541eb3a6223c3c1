"""The pinned interpreter's archive is a layer as it is, if it holds what a layer may hold."""

from __future__ import annotations

import gzip
import hashlib
import io
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from envbuild.errors import InputError, StepError
from envbuild.image import archive
from envbuild.image.layer import Blob
from envbuild.lock.interpreters import Pin
from tests import interpreters
from tests.programs import require

FILE = "cpython-3.11.9+20260101-x86_64-unknown-linux-gnu-install_only_stripped.tar.gz"


class Member(tarfile.TarInfo):
    """A member of an archive, with what differs from a file that everybody may read."""

    def __init__(self, name: str, content: bytes = b"", **fields: object) -> None:
        super().__init__(name)
        self.content = content
        self.size = len(content)
        for field, value in fields.items():
            setattr(self, field, value)


def link(name: str, target: str, kind: bytes = tarfile.SYMTYPE) -> Member:
    return Member(name, type=kind, linkname=target)


GOOD = (
    Member("python/", type=tarfile.DIRTYPE, mode=0o755),
    Member("python/bin/python3.11", b"\x7fELF" * 900, mode=0o755),
    link("python/bin/python3", "python3.11"),
    link("python/lib/python", "../bin/python3"),
    link("python/bin/hard", "python/bin/python3.11", tarfile.LNKTYPE),
    Member("./python/lib/x.py", b"x = 1\n"),
)


def plain(*members: Member) -> bytes:
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as opened:
        for member in members:
            opened.addfile(member, io.BytesIO(member.content))
    return raw.getvalue()


def pin(folder: Path, data: bytes) -> tuple[Pin, Path]:
    path = folder / FILE
    path.write_bytes(data)
    return Pin("3.11.9", "20260101", FILE, hashlib.sha256(data).hexdigest()), path


def check(known: Pin, path: Path) -> None:
    packed = path.read_bytes()
    unpacked = gzip.decompress(packed)
    diff_id = hashlib.sha256(unpacked).hexdigest()
    out = io.BytesIO()
    blob = archive.copy(known, path, out, "gzip")
    assert blob == Blob(known.sha256, len(packed), diff_id, len(unpacked))
    assert out.getvalue() == packed
    out = io.BytesIO()
    blob = archive.copy(known, path, out, "none")
    assert blob == Blob(diff_id, len(unpacked), diff_id, len(unpacked))
    assert out.getvalue() == unpacked


def test_an_interpreter_stays_as_it_is(tmp_path: Path) -> None:
    known = interpreters.pack(tmp_path)
    check(known, tmp_path / interpreters.BUILD / known.file)


def in_members(data: bytes) -> bytes:
    return b"".join(gzip.compress(data[at : at + 700]) for at in range(0, len(data), 700))


@pytest.mark.parametrize(
    "pack",
    [
        gzip.compress,
        in_members,
        # GNU tar fills what it writes up to 10 KiB; what is behind the end belongs to the layer
        lambda data: gzip.compress(data + bytes(70_000)),
        lambda data: gzip.compress(data[: len(data) // 512 * 512]),
    ],
)
def test_archives_packed_in_other_ways(tmp_path: Path, pack: Callable[[bytes], bytes]) -> None:
    check(*pin(tmp_path, pack(plain(*GOOD))))


def test_an_archive_of_gnu_tar(tmp_path: Path) -> None:
    top = tmp_path / "python"
    (top / ("long" * 40)).mkdir(parents=True)
    (top / ("long" * 40) / "ünï.py").write_text("x = 1\n")
    (top / "link").symlink_to("long" * 40 + "/ünï.py")
    out = tmp_path / "raw.tar.gz"
    subprocess.run([require("tar", "tar"), "-C", tmp_path, "-czf", out, "python"], check=True)
    check(*pin(tmp_path, out.read_bytes()))


WHAT = "the interpreter's archive holds what does not belong into an image"
EXPECTED = "files, folders and links in python/ that everybody may read"


@pytest.mark.parametrize(
    ("member", "found"),
    [
        (Member("/etc/passwd"), "type b'0', mode 0644, link ''"),
        (Member("python/../etc/passwd"), "type b'0', mode 0644, link ''"),
        (Member("python/lib/../x"), "type b'0', mode 0644, link ''"),
        (Member("other/x"), "type b'0', mode 0644, link ''"),
        (Member("pythonic"), "type b'0', mode 0644, link ''"),
        (Member("python/tty", type=tarfile.CHRTYPE), "type b'3', mode 0644, link ''"),
        (Member("python/sda", type=tarfile.BLKTYPE), "type b'4', mode 0644, link ''"),
        (Member("python/fifo", type=tarfile.FIFOTYPE), "type b'6', mode 0644, link ''"),
        (link("python/x", "/etc/passwd"), "type b'2', mode 0644, link '/etc/passwd'"),
        (link("python/x", "../y"), "type b'2', mode 0644, link '../y'"),
        (link("python/lib/x", "a/../../../y"), "type b'2', mode 0644, link 'a/../../../y'"),
        (
            link("python/x", "etc/passwd", tarfile.LNKTYPE),
            "type b'1', mode 0644, link 'etc/passwd'",
        ),
        (
            link("python/x", "python/../y", tarfile.LNKTYPE),
            "type b'1', mode 0644, link 'python/../y'",
        ),
        (Member("python/x", mode=0o640), "type b'0', mode 0640, link ''"),
        (Member("python/x", type=tarfile.DIRTYPE, mode=0o700), "type b'5', mode 0700, link ''"),
    ],
)
def test_what_does_not_belong_into_an_image(tmp_path: Path, member: Member, found: str) -> None:
    known, path = pin(tmp_path, gzip.compress(plain(*GOOD, member)))
    with pytest.raises(InputError) as caught:
        archive.copy(known, path, io.BytesIO(), "gzip")
    assert str(caught.value) == (
        f"{path}: {member.name}: {WHAT}\n  expected: {EXPECTED}\n  found: {found}"
    )


def test_another_archive_than_the_pinned_one(tmp_path: Path) -> None:
    known, path = pin(tmp_path, gzip.compress(plain(*GOOD)))
    other = gzip.compress(plain(*GOOD[:-1]))
    path.write_bytes(other)
    with pytest.raises(StepError) as caught:
        archive.copy(known, path, io.BytesIO(), "gzip")
    assert str(caught.value) == (
        f"{path}: the interpreter's archive is not the pinned one\n"
        f"  expected: SHA-256 {known.sha256}\n"
        f"  found: SHA-256 {hashlib.sha256(other).hexdigest()}\n"
        "  mend: remove it from the wheelhouse and fetch it again"
    )


@pytest.mark.parametrize(
    ("make", "found"),
    [
        (
            lambda data: gzip.compress(data)[:-9],
            "Compressed file ended before the end-of-stream marker was reached",
        ),
        (
            lambda data: gzip.compress(data)[:40],
            "Compressed file ended before the end-of-stream marker was reached",
        ),
        (lambda data: gzip.compress(data[:1500]), "unexpected end of data"),
        (lambda data: data, "Not a gzipped file (b'py')"),
        (lambda data: gzip.compress(b"x" * 2000), "invalid header"),
        (lambda data: gzip.compress(data)[:-8] + bytes(8), "CRC check failed 0x0 != "),
        (lambda data: gzip.compress(data) + b"more", "Not a gzipped file (b'mo')"),
        (lambda data: gzip.compress(b""), "empty file"),
    ],
)
def test_what_is_no_archive(tmp_path: Path, make: Callable[[bytes], bytes], found: str) -> None:
    known, path = pin(tmp_path, make(plain(*GOOD)))
    for compression in ("gzip", "none"):
        with pytest.raises(InputError) as caught:
            archive.copy(known, path, io.BytesIO(), "gzip" if compression == "gzip" else "none")
        message = f"{path}: not an archive of an interpreter\n  found: {found}"
        # what follows is CRC-32 of the content
        assert str(caught.value)[: len(message)] == message
