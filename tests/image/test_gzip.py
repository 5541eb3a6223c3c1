"""What is written is read by everybody, and streams that can join a member do."""

from __future__ import annotations

import gzip
import random
import subprocess
import zlib
from collections.abc import Callable, Sequence

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from envbuild.image.gzip import Gzip
from tests.programs import require

CONTENT = st.binary(max_size=300) | st.builds(
    lambda part, times: part * times, st.binary(min_size=1, max_size=9), st.integers(1, 9000)
)
PLAIN = st.sampled_from(["data", "parts", "stored", "joined"])
STEPS = st.lists(st.tuples(PLAIN | st.just("member"), CONTENT), min_size=1, max_size=12)
Step = tuple[str, bytes]

READERS = [("gzip", "gzip"), ("pigz", "pigz"), ("igzip", "isal")]


def cut(data: bytes) -> list[bytes]:
    """Cut data into pieces of all sizes, none of it too."""
    source = random.Random(len(data))
    pieces = []
    while data:
        size = source.choice((0, 1, 7, 1000, 70_000))
        pieces.append(data[:size])
        data = data[size:]
    return pieces


def deflated(content: bytes, *, last: bool) -> bytes:
    compressor = zlib.compressobj(6, zlib.DEFLATED, -15)
    return compressor.compress(content) + compressor.flush(
        zlib.Z_FINISH if last else zlib.Z_SYNC_FLUSH
    )


def written(steps: Sequence[Step]) -> bytes:
    out = bytearray()
    file = Gzip(out.extend)
    for kind, content in steps:
        if kind == "data":
            file.data(content)
        elif kind == "parts":
            file.parts(cut(content), content)
        elif kind == "stored":
            file.stored(len(content), cut(content))
        elif kind == "joined":
            file.joined(deflated(content, last=False), content)
        else:
            stream = deflated(content, last=True)
            file.member(cut(stream), zlib.crc32(content), len(content))
    file.close()
    return bytes(out)


def members(data: bytes) -> list[bytes]:
    """Return the contents of members, each checked against its trailer."""
    found = []
    while data:
        inflater = zlib.decompressobj(31)
        found.append(inflater.decompress(data))
        assert inflater.eof
        data = inflater.unused_data
    return found


def expected(steps: Sequence[Step]) -> list[bytes]:
    contents: list[bytes] = []
    before = "member"
    for kind, content in steps:
        if kind != "member" != before:
            contents[-1] += content
        else:
            contents.append(content)
        before = kind
    return contents


@settings(max_examples=150, deadline=None)
@given(STEPS)
@example([("stored", b"x" * 200_000), ("member", b""), ("member", b"y"), ("data", b"")])
@example([("stored", b""), ("parts", b""), ("joined", b""), ("data", b"")])
def test_any_sequence_is_read_member_by_member(steps: list[Step]) -> None:
    data = written(steps)
    assert members(data) == expected(steps)
    assert gzip.decompress(data) == b"".join(content for _, content in steps)


@pytest.mark.parametrize(("program", "package"), READERS)
def test_any_sequence_is_read_by_programs(program: str, package: str) -> None:
    path = require(program, package)

    @settings(max_examples=15, deadline=None)
    @given(STEPS)
    def read(steps: list[Step]) -> None:
        data = written(steps)
        subprocess.run([path, "-t"], input=data, check=True)
        done = subprocess.run([path, "-d", "-c"], input=data, check=True, capture_output=True)
        assert done.stdout == b"".join(content for _, content in steps)
        assert done.stderr == b""

    read()


def test_what_joins_opens_no_member() -> None:
    steps = [(kind, b"abc" * 100) for kind in ("data", "parts", "stored", "joined") * 20]
    assert len(members(written(steps))) == 1
    assert len(members(written([*steps, ("member", b"x"), *steps]))) == 3
    assert len(members(written([("member", b"x")] * 3))) == 3


def test_headers_tell_nothing() -> None:
    header = bytes.fromhex("1f8b0800 00000000 00ff")
    for kind in ("data", "member"):
        assert written([(kind, b"x")]).startswith(header)


def test_nothing_is_written_for_nothing() -> None:
    assert written([]) == b""


def test_bytes_are_the_same_however_contents_come() -> None:
    content = random.Random(0).randbytes(200_000)
    pieces: list[Callable[[bytes], list[bytes]]] = [
        cut,
        lambda data: [data],
        lambda data: [b"", data],
    ]
    found = set()
    for cutting in pieces:
        out = bytearray()
        file = Gzip(out.extend)
        file.stored(len(content), cutting(content))
        file.close()
        found.add(bytes(out))
    assert len(found) == 1


@pytest.mark.parametrize(
    ("size", "said"),
    [(0xFFFFFFFF, "ffffffff"), (1 << 32, "00000000"), ((5 << 32) + 0x01020304, "04030201")],
)
def test_sizes_are_told_modulo_4_gib(size: int, said: str) -> None:
    out = bytearray()
    Gzip(out.extend).member([], 0x0A0B0C0D, size)
    assert out[10:] == bytes.fromhex(f"0d0c0b0a {said}")
