"""The encoder's output inflates to what went in, everywhere, and never changes."""

from __future__ import annotations

import hashlib
import heapq
import random
import zlib
from collections import Counter
from collections.abc import Callable, Iterable
from itertools import accumulate, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from isal import isal_zlib

from envbuild.image import deflate
from envbuild.image.deflate import LAST, encode, encode_lines, encode_parts, stored

# around what the encoder counts in: the longest match, stored blocks, its window and its pieces
EDGES = (258, 2 * 258, 2048, 32768, 65535, 2 * 65535, 262144)

RUNS = st.builds(
    lambda byte, size: byte * size,
    st.binary(min_size=1, max_size=1),
    st.integers(0, 6)
    | st.builds(lambda n, more: 258 * n + more, st.integers(1, 4), st.integers(-3, 4)),
)
REPEATED = st.builds(lambda part, times: part * times, st.binary(max_size=300), st.integers(1, 12))
NARROW = st.sampled_from([b"a", b"ab", b"abc", bytes(range(32))]).flatmap(
    lambda alphabet: st.lists(st.sampled_from(alphabet), max_size=3000).map(bytes)
)
TEXT = st.text(max_size=2000).map(str.encode)
RANDOM = st.builds(
    lambda seed, size: random.Random(seed).randbytes(size), st.integers(0, 99), st.integers(0, 5000)
)
PARTS = st.binary(max_size=3000) | RUNS | REPEATED | NARROW | TEXT | RANDOM
DATA = st.lists(PARTS, max_size=6).map(b"".join)


def inflated(blocks: bytes) -> bytes:
    """Inflate blocks none of which is the last, by two libraries."""
    one, other = zlib.decompressobj(-15), isal_zlib.decompressobj(-15)
    content = one.decompress(blocks)
    assert not one.eof, "a block is marked as the last"
    assert content + one.decompress(LAST) == other.decompress(blocks + LAST)
    # a last block behind them is read as such, so they end at a byte boundary
    assert (one.eof, one.unused_data) == (other.eof, other.unused_data) == (True, b"")
    return content


def skewed(size: int, symbols: int, ratio: float) -> bytes:
    chosen = random.Random(size + symbols).choices(
        range(symbols), [ratio**-n for n in range(symbols)], k=size
    )
    return bytes(chosen)


def words(size: int) -> bytes:
    """Make something like a text: a few words, again and again."""
    source = random.Random(size)
    known = [source.randbytes(source.randrange(2, 12)) for _ in range(400)]
    return b" ".join(source.choices(known, k=size // 4))[:size]


@settings(max_examples=150, deadline=None)
@given(DATA)
def test_any_data(data: bytes) -> None:
    blocks = encode(data)
    assert inflated(blocks) == data
    assert encode(data) == blocks


@settings(max_examples=60, deadline=None)
@given(st.lists(DATA, max_size=5))
def test_encodings_follow_one_another(some: list[bytes]) -> None:
    assert inflated(b"".join(map(encode, some))) == b"".join(some)


@settings(max_examples=100, deadline=None)
@given(st.lists(PARTS, max_size=8))
def test_parts_whatever_they_are(parts: list[bytes]) -> None:
    blocks = encode_parts(parts, {}, 0)
    assert (
        inflated(blocks + encode_parts(parts, {}, 0) + encode(b"x")) == b"".join(parts) * 2 + b"x"
    )


@settings(max_examples=60, deadline=None)
@given(DATA, st.data())
def test_parts_are_cut_anywhere(data: bytes, draw: st.DataObject) -> None:
    cuts = sorted(draw.draw(st.lists(st.integers(0, len(data)), max_size=5)))
    parts = [data[one:two] for one, two in pairwise([0, *cuts, len(data)])]
    assert inflated(encode_parts(parts, {}, 0)) == data


LINE = st.builds(
    lambda path, middle, rest: path + middle + rest,
    st.sampled_from([b"", b"toy/", b"toy/sub/module", b"toy/sub/module/" * 30])
    | st.binary(max_size=9),
    st.sampled_from([b"", b",sha256=", b",sha256=,sha256="]),
    st.binary(max_size=50) | st.just(b"x" * 40_000),
)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(LINE, max_size=12), st.sampled_from([b"\n", b"\r\n", b"\r", b"\n\n"]), st.booleans()
)
def test_lines_whatever_they_are(some: list[bytes], end: bytes, ordered: bool) -> None:
    data = end.join(sorted(some) if ordered else some)
    for mark in (b",sha256=", b"toy/sub"):
        assert inflated(encode_lines(data, mark) + encode(b"x")) == data + b"x"


def test_lines_as_record_has_them() -> None:
    digests = (hashlib.sha256(b"%d" % n).hexdigest() for n in range(9000))
    lines = sorted(
        b"toy/part%d/module_%d.py,sha256=%s,%d\n" % (n % 7, n, one.encode(), n * n)
        for n, one in enumerate(digests)
    )
    data = b"".join(lines)
    blocks = encode_lines(data, b",sha256=")
    assert inflated(blocks) == data
    # hexadecimal digits take half a byte each
    assert len(blocks) < len(data) - 9000 * (32 + len(b"toy/part0/module_,sha256="))


@pytest.mark.parametrize("size", [edge + more for edge in EDGES for more in (-1, 0, 1)])
@pytest.mark.parametrize(
    "make",
    [
        bytes,
        words,
        lambda size: random.Random(size).randbytes(size),
        lambda size: skewed(size, 2, 1.0),
    ],
    ids=["one byte", "words", "random", "two bytes"],
)
def test_sizes_around_the_limits(size: int, make: Callable[[int], bytes]) -> None:
    data = make(size)
    assert inflated(encode(data)) == data


@pytest.mark.parametrize("length", [*range(1, 16), *range(254, 268), *range(512, 524), 774, 777])
def test_runs_of_every_length(length: int) -> None:
    run = b"ab" + b"c" * length + b"de"
    for data in (run, run + b"f" * 3000, run * 2):
        assert inflated(encode(data)) == data
        assert inflated(encode_parts([data], {}, 0)) == data


@pytest.mark.parametrize("distance", [1, 2, 3, 4, 5, 257, 24576, 24577, 32767, 32768, 32769, 40000])
@pytest.mark.parametrize("length", [3, 4, 5, 11, 257, 258, 259, 600])
def test_matches_of_every_distance(distance: int, length: int) -> None:
    source = random.Random(distance)
    part = source.randbytes(distance)
    data = part + (part * (1 + length // distance))[:length] + source.randbytes(5)
    assert inflated(encode(data)) == data


def test_content_that_does_not_deflate_is_stored() -> None:
    data = random.Random(0).randbytes(200_000)
    assert len(encode(data)) < len(data) + 100


def test_between_stored_blocks_and_others() -> None:
    parts = [random.Random(0).randbytes(70_000), bytes(70_000), words(70_000)]
    data = b"".join(parts) + b"".join(reversed(parts)) + parts[0]
    blocks = encode(data)
    assert inflated(blocks) == data
    assert len(blocks) < 3 * 70_000 + 2 * 35_000


@pytest.mark.parametrize("size", [1, 3000, 100_000])
def test_alphabets_of_one_two_and_all_bytes(size: int) -> None:
    for symbols, ratio in ((1, 1.0), (2, 1.0), (2, 50.0), (256, 1.0), (256, 1.02), (40, 1.6)):
        data = skewed(size, symbols, ratio)
        assert inflated(encode(data)) == data


def depth(counts: Iterable[int]) -> int:
    """Return how long the longest code of Huffman's is."""
    trees = [(count, 0) for count in counts]
    heapq.heapify(trees)
    while len(trees) > 1:
        (one, low), (two, high) = heapq.heappop(trees), heapq.heappop(trees)
        heapq.heappush(trees, (one + two, 1 + max(low, high)))
    return trees[0][1]


def test_frequencies_whose_best_code_has_more_than_15_bits() -> None:
    source = random.Random(0)
    data = bytearray(source.choices(range(64), k=30_000))
    # Fibonacci's numbers, together with the one symbol that ends the block
    frequencies = [1, 2]
    while len(frequencies) < 13:
        frequencies.append(sum(frequencies[-2:]))
    for symbol, frequency in enumerate(frequencies, 200):
        data += bytes((symbol,)) * frequency
    source.shuffle(data)
    assert depth([1, *Counter(data).values()]) > 15
    blocks = encode(bytes(data))
    assert inflated(blocks) == data
    # so little is to be found again that a code of six and a half bits must do it
    assert len(blocks) < len(data) * 6.5 / 8


def test_nothing_takes_nothing() -> None:
    assert encode(b"") == b""
    assert inflated(encode_parts([], {}, 0)) == b""


@given(
    st.lists(
        st.tuples(
            st.lists(st.sampled_from([b"a", b"opt/envs/core/", b"x" * 300, b"0" * 259, bytes(40)])),
            st.sampled_from([0, 1, 100, 32_000, 40_000]),
        ),
        max_size=8,
    )
)
def test_parts_that_were_there_before(calls: list[tuple[list[bytes], int]]) -> None:
    recent: dict[bytes, int] = {}
    blocks, plain = b"", b""
    for parts, between in calls:
        blocks += encode_parts(parts, recent, len(plain))
        plain += b"".join(parts)
        other = random.Random(between).randbytes(between)
        blocks += encode(other)
        plain += other
    assert inflated(blocks) == plain


def test_a_part_that_was_there_before_takes_a_few_bytes() -> None:
    recent: dict[bytes, int] = {}
    part = random.Random(2).randbytes(200)
    first = encode_parts([part], recent, 0)
    assert len(encode_parts([part], recent, 200)) < 12 < len(first)


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        (0, []),
        (1, [("00 0100 feff", 1)]),
        (65535, [("00 ffff 0000", 65535)]),
        (65536, [("00 ffff 0000", 65535), ("00 0100 feff", 1)]),
        (131071, [("00 ffff 0000", 65535), ("00 ffff 0000", 65535), ("00 0100 feff", 1)]),
    ],
)
def test_headers_of_stored_blocks(size: int, expected: list[tuple[str, int]]) -> None:
    assert list(stored(size)) == [(bytes.fromhex(header), part) for header, part in expected]


@pytest.mark.parametrize("size", [1, 1000, 65535, 65536, 200_000])
def test_stored_blocks_are_read(size: int) -> None:
    data = random.Random(size).randbytes(size)
    ends = accumulate(part for _, part in stored(size))
    blocks = b"".join(
        header + data[end - part : end]
        for (header, part), end in zip(stored(size), ends, strict=True)
    )
    assert inflated(encode(b"a") + blocks + encode(b"b")) == b"a" + data + b"b"


# These are the bytes of VERSION 1. Where this test fails, the digests of all images change: raise
# deflate.VERSION, which keeps layers of before from being taken for layers of now, and only then
# write down the new digests here.
def test_the_bytes_of_this_version() -> None:
    parts = [b"usr/bin/tool", bytes(88), b"0000644\0", b"0" * 11, b"ustar\x0000", bytes(300)]
    found = {
        "empty": encode(b""),
        "short": encode(b"#!/usr/bin/python3\nimport sys\n"),
        "zeros": encode(bytes(100_000)),
        "words": encode(words(300_000)),
        "random": encode(random.Random(1).randbytes(70_000)),
        "two": encode(skewed(50_000, 2, 3.0)),
        "skewed": encode(skewed(120_000, 60, 1.3)),
        "all": encode(bytes(range(256)) * 20),
        "parts": encode_parts(parts, {}, 0),
        "lines": encode_lines(
            b"".join(b"a/%d,sha256=%x,\n" % (n, n * n) for n in range(999)), b",sha"
        ),
    }
    assert deflate.VERSION == 1
    assert {name: digest(data) for name, data in found.items()} == {
        "empty": "e3b0c44298fc1c14",
        "short": "ca50563a80968c94",
        "zeros": "af2fdfb8cca7e64f",
        "words": "26b51a3b2c240519",
        "random": "1d338b4efa7f165e",
        "two": "56b70c71906a9c56",
        "skewed": "59fff818ab219edb",
        "all": "d2db6f8dbc5f5466",
        "parts": "676c138a6607835d",
        "lines": "2cb07a199eaa2b67",
    }


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]
