"""Layers hold what wheels hold, whichever compressor made it; what is wrong is refused."""

from __future__ import annotations

import gzip
import hashlib
import io
import random
import tarfile
import tempfile
import tracemalloc
import zlib
from collections.abc import Iterator, Sequence
from typing import BinaryIO, Literal, cast

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from isal import isal_zlib

from envbuild.artifacts.archive import MEND, Entry
from envbuild.errors import InputError
from envbuild.image.layer import Blob, Compression, Layer
from envbuild.image.tar import Item, folder, link
from tests.image.test_gzip import members

STRATEGIES = (
    zlib.Z_DEFAULT_STRATEGY,
    zlib.Z_FILTERED,
    zlib.Z_HUFFMAN_ONLY,
    zlib.Z_RLE,
    zlib.Z_FIXED,
)
FLUSHES = (zlib.Z_SYNC_FLUSH, zlib.Z_FULL_FLUSH, zlib.Z_BLOCK, zlib.Z_PARTIAL_FLUSH)
BOTH: tuple[Compression, ...] = ("gzip", "none")


class Part(msgspec.Struct, frozen=True):
    """What is in a zip: its bytes there, and what they stand for."""

    stream: bytes
    content: bytes
    deflated: bool = True

    @property
    def joins(self) -> bool:
        """Whether its stream has one block alone."""
        return not self.deflated or not self.content or bool(self.stream[0] & 1)


def stored(content: bytes) -> Part:
    return Part(content, content, deflated=False)


def deflated(
    content: bytes, level: int = 9, strategy: int = 0, flushes: Sequence[int] = ()
) -> Part:
    """Compress a content by zlib, to a block at least for every flush."""
    compressor = zlib.compressobj(level, zlib.DEFLATED, -15, 9, strategy)
    stream = b""
    size = len(content) // (len(flushes) + 1)
    for count, flush in enumerate(flushes):
        stream += compressor.compress(content[count * size : (count + 1) * size])
        stream += compressor.flush(flush)
    stream += compressor.compress(content[len(flushes) * size :]) + compressor.flush()
    return Part(stream, content)


def by_isal(content: bytes, level: int) -> Part:
    compressor = isal_zlib.compressobj(level, isal_zlib.DEFLATED, -15)
    return Part(compressor.compress(content) + compressor.flush(), content)


def packed(bits: str) -> bytes:
    """Write bits as RFC 1951 (3.1.1) numbers them."""
    return int("0" + bits[::-1], 2).to_bytes((len(bits) + 7) // 8, "little")


def literals(content: bytes) -> str:
    """Return bytes in the fixed codes (3.2.6)."""
    return "".join(f"{48 + b:08b}" if b < 144 else f"{256 + b:09b}" for b in content)


# the last block, of fixed codes; and what ends it
LAST, END = "110", "0000000"
# the longest match, 258 bytes, at distance 1
MATCH = "11000101" + "00000"


def zeros(matches: int) -> Part:
    """Make one block of a few bytes for a hundred times as many zeros."""
    stream = packed(LAST + literals(b"\0") + MATCH * matches + END)
    return Part(stream, bytes(1 + 258 * matches))


TEXT = st.text(max_size=400).map(str.encode)
CONTENT = (
    st.binary(max_size=400)
    | TEXT
    | st.builds(lambda part, times: part * times, st.binary(max_size=30), st.integers(1, 2000))
    | st.builds(
        lambda seed, size: random.Random(seed).randbytes(size),
        st.integers(0, 9),
        st.sampled_from((1, 2, 100, 70_000)),
    )
)
PARTS = (
    st.builds(stored, CONTENT)
    | st.builds(deflated, CONTENT, st.integers(0, 9), st.sampled_from(STRATEGIES))
    | st.builds(
        deflated,
        CONTENT,
        st.integers(0, 9),
        st.sampled_from(STRATEGIES),
        st.lists(st.sampled_from(FLUSHES), max_size=3),
    )
    | st.builds(by_isal, CONTENT, st.integers(0, 3))
)


def entry(part: Part, start: int = 0) -> Entry:
    return Entry(
        "toy/a.py",
        len(part.content),
        len(part.stream),
        start,
        part.deflated,
        zlib.crc32(part.content),
        0o644,
    )


def spliced(parts: Sequence[Part], compression: Compression) -> tuple[bytes, Blob]:
    """Write a layer of parts that lie in one file, one behind the other."""
    out = io.BytesIO()
    with tempfile.TemporaryFile() as file:
        layer = Layer(out, compression)
        for number, part in enumerate(parts):
            start = file.tell()
            file.write(part.stream)
            file.flush()
            item = Item(f"lib/{number % 3}/{number}", mode=0o755 if number % 2 else 0o644)
            digest = f"sha256:{hashlib.sha256(part.content).hexdigest()}" if number % 5 == 4 else ""
            layer.splice(item, entry(part, start), file.fileno(), "toy.whl", digest)
        blob = layer.close()
    return out.getvalue(), blob


def read(archive: bytes) -> dict[str, bytes | None]:
    """Read a tar archive: contents by path, None for what is no file."""
    found: dict[str, bytes | None] = {}
    with tarfile.open(fileobj=io.BytesIO(archive), mode="r:") as opened:
        for member in opened:
            assert member.name not in found
            content = opened.extractfile(member) if member.isfile() else None
            found[member.name] = content.read() if content is not None else None
    return found


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def check(parts: Sequence[Part]) -> list[bytes]:
    """Write parts in both compressions, read them back, and return the members of the first."""
    (data, blob), (plain, other) = (spliced(parts, compression) for compression in BOTH)
    assert blob == Blob(sha256(data), len(data), sha256(plain), len(plain))
    assert other == Blob(sha256(plain), len(plain), sha256(plain), len(plain))
    contents = members(data)
    assert b"".join(contents) == plain
    files = {path: content for path, content in read(plain).items() if content is not None}
    assert files == {f"lib/{n % 3}/{n}": part.content for n, part in enumerate(parts)}
    return contents


@settings(max_examples=250, deadline=None)
@given(st.lists(PARTS, max_size=8))
def test_any_streams(parts: list[Part]) -> None:
    contents = check(parts)
    # each that does not join is a member, between those of headers
    assert len(contents) == 1 + 2 * sum(not part.joins for part in parts)


@pytest.mark.parametrize("level", range(10))
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_level_and_strategy(level: int, strategy: int) -> None:
    source = random.Random(level)
    some = [
        b"",
        b"a",
        b"ab" * 500,
        source.randbytes(300),
        bytes(source.choices(b"abcd\xff", k=9000)),
    ]
    parts = [deflated(content, level, strategy) for content in some]
    assert len(check(parts)) == 1 + 2 * sum(not part.joins for part in parts)
    check([deflated(content, level, strategy, FLUSHES) for content in some])


@pytest.mark.parametrize("byte", [0, 1, 0x61, 0x8F, 0x90, 0xFF])
def test_contents_of_one_byte(byte: int) -> None:
    content = bytes((byte,))
    parts = [stored(content), deflated(content), deflated(content, 0), by_isal(content, 1)]
    assert len(check(parts * 2)) == 1 + 4 * sum(not part.joins for part in parts)


def endings() -> Iterator[tuple[int, int, bytes, str]]:
    """Yield every way in which the last byte can be filled: how many bits, their value."""
    for nines in range(8):
        content = b"\xff" * nines  # each of nine bits
        bits = LAST + literals(content) + END
        left = -len(bits) % 8
        for value in range(1 << left):
            yield left, value, content, bits + (f"{value:0{left}b}"[::-1] if left else "")


def test_streams_that_end_at_every_bit() -> None:
    seen = set()
    for left, value, content, bits in endings():
        if value == 0:
            part = Part(packed(bits), content)
            assert len(check([part, stored(b"x"), part])) == 1
            seen.add(left)
    assert seen == set(range(8))


def test_whatever_fills_the_last_byte() -> None:
    # no compressor leaves anything but zeros there, but who makes a wheel by hand can
    counts = set()
    for left, value, content, bits in endings():
        part = Part(packed(bits), content)
        assert zlib.decompress(part.stream, -15) == content
        if content:
            # what would be read as the begin of something else is not joined
            count = len(check([part, deflated(b"behind" * 9)]))
            assert count == 1 or value != 0, left
            counts.add(count)
    assert counts == {1, 3}


def test_a_stored_block_within_a_stream() -> None:
    content = random.Random(0).randbytes(1000)
    part = Part(b"\1\xe8\x03\x17\xfc" + content, content)
    assert zlib.decompress(part.stream, -15) == content
    assert len(check([part, part])) == 1


@pytest.mark.parametrize(
    "part",
    [
        deflated(random.Random(1).randbytes(1_200_000), 1),
        deflated(random.Random(1).randbytes(1_040_000), 0),
        deflated(b"0123456789abcdef" * (17 << 16), 9),
        zeros(66_000),
        stored(random.Random(2).randbytes(200_000)),
        stored(random.Random(2).randbytes(65_535)),
    ],
    ids=[
        "large stream",
        "stored blocks",
        "large content",
        "one block",
        "stored",
        "one stored block",
    ],
)
def test_large_entries(part: Part) -> None:
    contents = check([part, deflated(b"small"), part])
    assert len(contents) == (5 if part.deflated else 1)


def test_what_is_added_is_read_back() -> None:
    long = b"".join(b"pkg/module_%d.py,sha256=%064x,%d\n" % (n, n, n) for n in range(5000))
    items = [
        folder("etc"),
        Item("etc/passwd", content=b"root:x:0:0::/:\n", mode=0o600, owner=7),
        Item("etc/empty"),
        link("usr/bin/tool", "../lib/tool"),
        Item("usr/lib/large", content=random.Random(0).randbytes(3 << 20)),
        Item("usr/lib/text", content=b"some text\n" * 3000),
        folder("usr/lib/empty", 0o1777),
        Item("top", content=b"x"),
    ]
    archives = []
    for compression in BOTH:
        out = io.BytesIO()
        layer = Layer(out, compression)
        for item in items:
            layer.add(item)
        layer.add(Item("usr/lib/RECORD", content=long), mark=b",sha256=")
        blob = layer.close()
        data = out.getvalue()
        assert (blob.digest, blob.size) == (sha256(data), len(data))
        archives.append(gzip.decompress(data) if compression == "gzip" else data)
        assert (blob.diff_id, blob.unpacked) == (sha256(archives[-1]), len(archives[-1]))
        if compression == "gzip":
            assert len(members(data)) == 1
    assert archives[0] == archives[1]
    found = read(archives[0])
    assert list(found) == [
        *("etc", "etc/passwd", "etc/empty", "usr", "usr/bin", "usr/bin/tool", "usr/lib"),
        *("usr/lib/large", "usr/lib/text", "usr/lib/empty", "top", "usr/lib/RECORD"),
    ]
    assert found["usr/lib/RECORD"] == long
    for item in items:
        assert found[item.path] == (item.content if item.kind == "file" else None)
    with tarfile.open(fileobj=io.BytesIO(archives[0])) as opened:
        modes = {member.name: (member.mode, member.uid) for member in opened}
    assert (modes["etc/passwd"], modes["usr"]) == ((0o600, 7), (0o755, 0))
    assert (modes["usr/bin/tool"], modes["usr/lib/empty"]) == ((0o777, 0), (0o1777, 0))


NAMES = st.lists(st.sampled_from(["a", "b", "c"]), min_size=1, max_size=4).map("/".join)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["file", "folder"]), NAMES), max_size=12))
def test_folders_come_once_and_before_what_is_in_them(
    some: list[tuple[Literal["file", "folder"], str]],
) -> None:
    out = io.BytesIO()
    layer = Layer(out, "none")
    files: list[str] = []
    folders: set[str] = set()
    for kind, path in some:
        parents = {path[:at] for at, character in enumerate(path) if character == "/"}
        if path in files or parents.intersection(files) or (kind == "file" and path in folders):
            continue
        layer.add(Item(path, kind, 0o755 if kind == "folder" else 0o644))
        folders |= parents | ({path} if kind == "folder" else set())
        files += [path] if kind == "file" else []
    layer.close()
    found = read(out.getvalue())
    assert found.keys() == {*files, *folders}
    assert [path for path, content in found.items() if content is not None] == files
    places = list(found)
    for at, path in enumerate(places):
        parent = path.rpartition("/")[0]
        assert not parent or parent in places[:at]


def refusal(
    part: Part, compression: Compression, file: BinaryIO, digest: str = "", **changes: int
) -> str:
    """Splice an entry of which the zip says something else, and return the message."""
    file.write(b"before" + part.stream)
    file.flush()
    wrong = msgspec.structs.replace(entry(part, 6), **changes)
    layer = Layer(io.BytesIO(), compression)
    with pytest.raises(InputError) as caught:
        layer.splice(Item("toy/a.py"), wrong, file.fileno(), "toy.whl", digest)
    assert caught.value.mend == MEND
    message = str(caught.value).removesuffix(f"\n  mend: {MEND}")
    assert message.startswith("toy.whl: toy/a.py: ")
    return message.removeprefix("toy.whl: toy/a.py: ")


ONE, MANY = b"some text " * 9, random.Random(0).randbytes(1_300_000)
KINDS = {
    "one block": deflated(ONE),
    "several blocks": deflated(ONE, 9, 0, [zlib.Z_FULL_FLUSH]),
    "stored": stored(ONE),
    "large": deflated(MANY),
    "large, stored": stored(MANY),
}


@pytest.fixture(params=BOTH)
def compression(request: pytest.FixtureRequest) -> Compression:
    return cast("Compression", request.param)


@pytest.fixture(params=KINDS)
def part(request: pytest.FixtureRequest) -> Part:
    return KINDS[request.param]


@pytest.fixture
def file() -> Iterator[BinaryIO]:
    with tempfile.TemporaryFile() as opened:
        yield opened


def said(part: Part, size: int = 0, crc: int | None = None) -> str:
    crc = zlib.crc32(part.content) if crc is None else crc
    return f"{len(part.content) + size} bytes, CRC-32 {crc:08x}"


def test_a_wrong_crc(part: Part, compression: Compression, file: BinaryIO) -> None:
    assert refusal(part, compression, file, crc=0x01234567) == (
        "its content is not what the zip's directory says\n"
        f"  expected: {said(part, crc=0x01234567)}\n  found: {said(part)}"
    )


def test_a_wrong_crc_of_nothing(compression: Compression, file: BinaryIO) -> None:
    for empty in (stored(b""), deflated(b"")):
        assert refusal(empty, compression, file, crc=1) == (
            "its content is not what the zip's directory says\n"
            "  expected: 0 bytes, CRC-32 00000001\n  found: 0 bytes, CRC-32 00000000"
        )
        file.seek(0)


def test_more_said_than_there_is(part: Part, compression: Compression, file: BinaryIO) -> None:
    if part.deflated:
        assert refusal(part, compression, file, size=len(part.content) + 1) == (
            "its content is not what the zip's directory says\n"
            f"  expected: {said(part, 1)}\n  found: {said(part)}"
        )


def test_less_said_than_there_is(part: Part, compression: Compression, file: BinaryIO) -> None:
    if part.deflated:
        message = refusal(part, compression, file, size=len(part.content) - 1)
        assert message == (
            "its content is not what the zip's directory says\n"
            f"  expected: {said(part, -1)}\n  found: {len(part.content)} bytes or more"
        )


def test_content_said_to_be_nothing(compression: Compression, file: BinaryIO) -> None:
    assert refusal(deflated(b"abc"), compression, file, size=0, crc=0) == (
        "its content is not what the zip's directory says\n"
        "  expected: 0 bytes, CRC-32 00000000\n  found: 3 bytes or more"
    )


SIZE = "its deflate stream has not the size that is said"


def test_a_stream_that_ends_early(part: Part, compression: Compression, file: BinaryIO) -> None:
    if part.deflated:
        assert refusal(part, compression, file, stored_size=len(part.stream) - 3) == SIZE


def test_bytes_behind_a_stream(part: Part, compression: Compression, file: BinaryIO) -> None:
    if part.deflated:
        longer = msgspec.structs.replace(part, stream=part.stream + b"\0")
        assert refusal(longer, compression, file) == SIZE


@pytest.mark.parametrize("size", [0, 1, 5])
def test_a_stream_of_no_bytes(size: int, compression: Compression, file: BinaryIO) -> None:
    assert refusal(Part(b"", bytes(size)), compression, file) == SIZE


def test_a_stream_that_is_none(compression: Compression, file: BinaryIO) -> None:
    for stream in (b"\7", b"\6", b"\1\1\0\0\0x"):
        message = refusal(Part(stream, b"x"), compression, file)
        assert message.startswith("cannot be inflated: Error -1 Invalid"), message
        file.seek(0)


def test_a_match_of_what_another_entry_holds(compression: Compression, file: BinaryIO) -> None:
    # alone it has nothing to copy; behind something else in one member it would have
    stream = packed(LAST + literals(b"a") + "0000001" + "00011" + literals(b"b") + END)
    message = refusal(Part(stream, b"a???b"), compression, file)
    assert message.startswith("cannot be inflated: Error -3 Invalid lookback distance"), message


@pytest.mark.parametrize("algorithm", ["sha256", "sha512"])
def test_a_digest_that_is_not_that_of_record(
    part: Part, compression: Compression, file: BinaryIO, algorithm: str
) -> None:
    wrong = hashlib.new(algorithm, b"").hexdigest()
    assert refusal(part, compression, file, digest=f"{algorithm}:{wrong}") == (
        "its content is not what RECORD says\n"
        f"  expected: {wrong}\n  found: {hashlib.new(algorithm, part.content).hexdigest()}"
    )


def test_a_file_that_ends_too_early(part: Part, compression: Compression, file: BinaryIO) -> None:
    cut = msgspec.structs.replace(part, stream=part.stream[:-3])
    large = len(part.stream) > 1 << 20
    size = len(part.stream) % 65536 if large else len(part.stream)
    if not part.deflated:
        size = len(part.stream) % 65536
    assert refusal(cut, compression, file, stored_size=len(part.stream)) == (
        f"it ends too early\n  expected: {size} bytes\n  found: {size - 3} bytes"
    )


def test_a_bomb_by_what_is_said(compression: Compression, file: BinaryIO) -> None:
    size = (64 << 20) + 1
    assert refusal(deflated(b"x"), compression, file, size=size, stored_size=134_217) == (
        "inflates to far more than an honest file does\n"
        f"  expected: at most 500 times 134217 bytes\n  found: {size} bytes"
    )


@pytest.mark.parametrize("flushes", [0, 100], ids=["one block", "several blocks"])
def test_a_bomb_is_not_inflated_to_its_end(
    compression: Compression, file: BinaryIO, flushes: int
) -> None:
    """Whoever makes it small in the directory is found out before memory is full."""
    if flushes:
        compressor = zlib.compressobj(9, zlib.DEFLATED, -15)
        piece = compressor.compress(bytes(4 << 20)) + compressor.flush(zlib.Z_FULL_FLUSH)
        bomb = Part(piece * flushes + b"\3\0", b"")
    else:
        bomb = Part(zeros(600_000).stream, b"")
    assert 0 < len(bomb.stream) < 1 << 20
    tracemalloc.start()
    try:
        message = refusal(bomb, compression, file, size=1000, crc=0)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert message.startswith(
        "its content is not what the zip's directory says\n"
        "  expected: 1000 bytes, CRC-32 00000000\n  found: "
    )
    assert message.endswith(" bytes or more")
    # 64 KiB of a stream give 66 MB at most, which are there once more while they are put together
    assert peak < 140 << 20


@pytest.mark.parametrize("path", [".wh.usr", "usr/.wh..wh..opq", "a/.wh.b/c"])
def test_names_that_remove_files_of_other_layers(path: str) -> None:
    with pytest.raises(InputError) as caught:
        Layer(io.BytesIO(), "gzip").add(Item(path))
    assert str(caught.value) == (
        f"{path}: a name that makes container engines remove a file of the layers below\n"
        "  expected: no part that begins with .wh. (OCI image-spec, whiteouts)\n"
        f"  mend: {MEND}"
    )


@pytest.mark.parametrize("path", ["x" * 256, "é" * 128, "/".join(["x" * 200] * 21)])
def test_names_that_no_file_system_holds(path: str) -> None:
    with pytest.raises(InputError) as caught:
        Layer(io.BytesIO(), "gzip").add(Item(path))
    assert str(caught.value) == (
        f"{path[:100]}...: a name that no file system holds\n"
        "  expected: at most 255 bytes between two '/', and 4095 in all\n"
        f"  found: {len(path.encode())} bytes\n"
        f"  mend: {MEND}"
    )
    Layer(io.BytesIO(), "gzip").add(Item("x" * 255))
