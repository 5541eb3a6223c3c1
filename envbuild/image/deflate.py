"""A DEFLATE encoder whose output is a function of its input alone (RFC 1951).

Layers are made of the compressed streams that wheels hold already. What lies between them - tar
headers, scripts, RECORD - and what comes compressed in another way - Debian's packages - goes
through this encoder. The bytes that a library gives change with its version, its build, even with
the processor; these never do, so that they may decide a digest. `VERSION` stands for them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import cache, lru_cache
from itertools import chain, islice

import msgspec

# Raised whenever the same input gives other bytes than before.
VERSION = 1

# An empty block of fixed codes that is marked as the last one.
LAST = b"\x03\x00"

_WINDOW = 32768
_LONGEST = 258
_STORED = 65535
# Codes are fitted anew after so many literal runs and matches: about 100 kB of text.
_TOKENS = 16384
_END = 256  # the symbol that ends a block
# The order in which a block's header gives the lengths of the code for code lengths (3.2.7).
_ORDER = (16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15)

# What came before is forgotten after so many bytes.
_PIECE = 8 * _WINDOW
# A match of so many bytes is taken without looking for a longer one.
_LAZY = 32
# How many earlier places are tried, and how far into a match places are remembered.
_TRIED, _INSIDE = 4, 8
# From so many bytes on a part of a header is worth a match, which takes up to four.
_WORTH = 8
# In so few bytes of a header nothing is looked for, unless it begins with what fills fields.
_SHORT = 64
# Matches are compared in parts, since most of them are short.
_STEPS = (12, 52, 194)

_RUN = re.compile(rb"(.)\1{3,}", re.DOTALL)


# Bytes as they are; or so many bytes as they were so many bytes before.
_Token = bytes | tuple[int, int]


def encode(data: bytes) -> bytes:
    """Compress data to blocks none of which is marked as the last, up to a byte boundary.

    Further blocks, of another encoder too, may follow.

    Args:
        data: any number of bytes; the work takes a few times as much memory.
    """
    if not data:
        return b""
    return _encoded(data, chain.from_iterable(map(_matches, _pieces(data))))


def encode_lines(data: bytes, mark: bytes) -> bytes:
    """Compress lines as `encode` does, but quickly: only what each has of the one before is found.

    Args:
        data: lines that are sorted, so that most begin as the one before.
        mark: what stands in each of them.
    """
    return _encoded(data, _lines(data, mark))


def encode_parts(parts: Iterable[bytes], recent: dict[bytes, int], at: int) -> bytes:
    """Compress a little data as `encode` does, but quickly.

    Runs are found, and parts that were there before: most parts of tar headers were.

    Args:
        parts: the data, cut where it repeats what was cut before.
        recent: where in the stream parts were last; it is kept up to date.
        at: where in the stream this begins, in bytes of plain data from its begin.
    """
    bits = ["010"]
    for part in parts:
        size = len(part)
        if size >= _WORTH and part[0]:
            before = recent.get(part, -_WINDOW - 1)
            recent[part] = at
            bits.append(_again(size, at - before) if at - before <= _WINDOW else _fixed(part))
        else:
            bits.append(_fixed(part))
        at += size
    bits.append("0000000000")
    return _packed("".join(bits)) + b"\0\0\xff\xff"


def stored(size: int) -> Iterator[tuple[bytes, int]]:
    """Yield the headers of stored blocks for a content, each with how many bytes follow it.

    The first one must be written at a byte boundary; each ends at one (3.2.4).

    Args:
        size: of the content, in bytes.
    """
    while size:
        part = min(size, _STORED)
        yield b"\0" + part.to_bytes(2, "little") + (part ^ 0xFFFF).to_bytes(2, "little"), part
        size -= part


def _encoded(data: bytes, tokens: Iterable[_Token]) -> bytes:
    out = bytearray()
    bits = ""  # what does not fill a byte yet
    at = 0
    for block, size in _blocks(tokens):
        symbols = _Symbols.of(block)
        codes = min(_FIXED, symbols.codes(), key=symbols.cost)
        if symbols.cost(codes) < 8 * (size + 5):
            bits += _coded(block, codes)
            whole = len(bits) // 8 * 8
            out += _packed(bits[:whole])
            bits = bits[whole:]
        else:
            for header, part in stored(size):
                # "000" begins a stored block, at the next byte boundary (3.2.4)
                out += _packed(bits + "000") + header[1:] + data[at : at + part]
                at += part
                bits = ""
            at -= size
        at += size
    out += _packed(bits + "000") + b"\0\0\xff\xff"
    return bytes(out)


def _packed(bits: str) -> bytes:
    """Write bits, the first of which is the lowest of the first byte (3.1.1)."""
    return int("0" + bits[::-1], 2).to_bytes((len(bits) + 7) // 8, "little")


def _runs(data: bytes) -> Iterator[_Token]:
    """Find the runs of one byte."""
    at = 0
    for run in _RUN.finditer(data):
        yield data[at : run.start() + 1]
        left = run.end() - run.start() - 1
        while left:
            # a match has three bytes at least: what is left must be nothing or that much
            length = min(left, _LONGEST if left - _LONGEST not in (1, 2) else _LONGEST - 2)
            yield length, 1
            left -= length
        at = run.end()
    if at < len(data):
        yield data[at:]


def _pieces(data: bytes) -> Iterator[bytes]:
    """Cut data, so that what is remembered of it does not grow with it."""
    for at in range(0, len(data), _PIECE):
        yield data[at : at + _PIECE]


def _matches(data: bytes) -> Iterator[_Token]:
    """Find what was there before, at most a window ago.

    Places are known by the four bytes that stand there, each with the place before it of the same
    four: the last few are tried.
    """
    last: dict[bytes, int] = {}
    earlier: dict[int, int] = {}
    none = -_WINDOW - 1
    size = len(data)
    data += bytes(_LONGEST)  # so that all comparisons are of one length

    def longest(at: int, before: int, length: int) -> tuple[int, int]:
        """Return length and distance of the best match that is longer than ``length``."""
        distance = 0
        for _ in range(_TRIED):
            if at - before > _WINDOW:
                break
            if data[before + length] == data[at + length]:
                found = _common(data, before, at)
                if found > length:
                    length, distance = found, at - before
                    if length >= _LAZY:
                        break
            before = earlier.get(before, none)
        return length, distance

    at = literal = missed = 0
    while at < size - 4:
        key = data[at : at + 4]
        before = last.get(key, none)
        last[key] = at
        if at - before > _WINDOW:
            # the longer nothing is found, the less it is looked for
            missed += 1
            at += 1 + (missed >> 4)
            continue
        missed = 0
        earlier[at] = before
        length, distance = longest(at, before, 3)
        if length < _LAZY:
            # a byte later there may be a longer one, which is worth a literal
            key = data[at + 1 : at + 5]
            before = last.get(key, none)
            later = longest(at + 1, before, length)
            if later[1]:
                at += 1
                length, distance = later
                last[key], earlier[at] = at, before
        length = min(length, size - at)
        if at > literal:
            yield data[literal:at]
        yield length, distance
        for inside in range(at + 1, at + min(length, _INSIDE), 2):
            key = data[inside : inside + 4]
            earlier[inside] = last.get(key, none)
            last[key] = inside
        at += length
        literal = at
    if literal < size:
        yield data[literal:size]


def _lines(data: bytes, mark: bytes) -> Iterator[_Token]:
    """Find how far each line is as the one before, and its mark."""
    previous = b""
    behind = 0  # where in the line before its mark is, from its end
    for line in data.splitlines(keepends=True):
        most = min(len(line), len(previous), _LONGEST)
        different = int.from_bytes(line[:most]) ^ int.from_bytes(previous[:most])
        at = most - (different.bit_length() + 7) // 8
        if at >= 4 and len(previous) <= _WINDOW:
            yield at, len(previous)
        else:
            at = 0
        found = line.find(mark, at)
        if behind and found > at and found + behind <= _WINDOW:
            yield line[at:found]
            yield len(mark), found + behind
            at = found + len(mark)
        if at < len(line):
            yield line[at:]
        previous, behind = line, len(line) - found if found >= 0 else 0


def _common(data: bytes, before: int, at: int) -> int:
    """Return how many bytes, up to the longest match, are alike at two places."""
    size = 0
    for part in _STEPS:
        different = int.from_bytes(data[before + size : before + size + part]) ^ int.from_bytes(
            data[at + size : at + size + part]
        )
        if different:
            return size + part - (different.bit_length() + 7) // 8
        size += part
    return size


def _blocks(tokens: Iterable[_Token]) -> Iterator[tuple[list[_Token], int]]:
    """Cut tokens into blocks; yield each with the size of what it stands for, in bytes."""
    remaining = iter(tokens)
    while block := list(islice(remaining, _TOKENS)):
        yield block, sum(len(one) if isinstance(one, bytes) else one[0] for one in block)


@cache
def _length(length: int) -> tuple[int, str]:
    """Return the symbol of a match's length, and its extra bits (3.2.5)."""
    if length == _LONGEST:
        return 285, ""
    return _spread(length - 3, 4, 257)


@cache
def _distance(distance: int) -> tuple[int, str]:
    """Return the symbol of a match's distance, and its extra bits (3.2.5)."""
    return _spread(distance - 1, 2, 0)


def _spread(value: int, ways: int, first: int) -> tuple[int, str]:
    """Number a value as 3.2.5 does: ``ways`` symbols for each power of two."""
    extra = max(0, value.bit_length() - ways.bit_length())
    symbol = first + ways * extra + (value >> extra)
    return symbol, format(value, "b")[::-1][:extra] if extra else ""


class _Codes(msgspec.Struct, frozen=True):
    """What a block is written with.

    Attributes:
        header: the bits before the first symbol.
        literals: the code of each literal, of the end and of each length.
        distances: the code of each distance.
    """

    header: str
    literals: Sequence[str]
    distances: Sequence[str]


class _Symbols(msgspec.Struct, frozen=True):
    """How often a block's symbols occur."""

    literals: Counter[int]
    distances: Counter[int]

    @classmethod
    def of(cls, block: Iterable[_Token]) -> _Symbols:
        runs: list[bytes] = []
        lengths, far = [_END], []
        for token in block:
            if isinstance(token, bytes):
                runs.append(token)
            else:
                lengths.append(_length(token[0])[0])
                far.append(_distance(token[1])[0])
        literals = Counter(b"".join(runs))
        literals.update(lengths)
        return cls(literals, Counter(far))

    def cost(self, codes: _Codes) -> int:
        """Return how many bits a block takes, but for extra bits, which are always the same."""
        return (
            len(codes.header)
            + sum(count * len(codes.literals[symbol]) for symbol, count in self.literals.items())
            + sum(count * len(codes.distances[symbol]) for symbol, count in self.distances.items())
        )

    def codes(self) -> _Codes:
        """Fit codes to the symbols, and write them as a block's header does (3.2.7)."""
        literals = _lengths(self.literals, 286, 15)
        # one code of one bit where there are no distances (3.2.7)
        distances = _lengths(self.distances or Counter([0]), 30, 15)
        literals = literals[: 1 + max(n for n, size in enumerate(literals) if size)]
        distances = distances[: 1 + max(n for n, size in enumerate(distances) if size)]
        told = list(_repeated(literals + distances))
        sizes = _lengths(Counter(symbol for symbol, _ in told), 19, 7)
        codes = _canonical(sizes)
        given = [sizes[symbol] for symbol in _ORDER]
        count = max(4, 1 + max(n for n, size in enumerate(given) if size))
        header = "".join(
            (
                "001",
                _number(len(literals) - 257, 5),
                _number(len(distances) - 1, 5),
                _number(count - 4, 4),
                *(_number(size, 3) for size in given[:count]),
                *(codes[symbol] + extra for symbol, extra in told),
            )
        )
        return _Codes(header, _canonical(literals), _canonical(distances))


def _coded(block: Iterable[_Token], codes: _Codes) -> str:
    """Return the bits of a block."""
    literals, distances = codes.literals, codes.distances
    bits = [codes.header]
    for token in block:
        if isinstance(token, bytes):
            bits += map(literals.__getitem__, token)
        else:
            length, more = _length(token[0])
            distance, further = _distance(token[1])
            bits.append(literals[length] + more + distances[distance] + further)
    bits.append(literals[_END])
    return "".join(bits)


@lru_cache(maxsize=1 << 12)
def _fixed(part: bytes) -> str:
    """Return the bits of some bytes in the fixed codes, with nothing but runs taken together."""
    if len(part) <= _SHORT and part[:1] != b"\0":
        return "".join(map(_FIXED.literals.__getitem__, part))
    bits: list[str] = []
    for token in _runs(part):
        if isinstance(token, bytes):
            bits += map(_FIXED.literals.__getitem__, token)
        else:
            (length, more), (distance, further) = _length(token[0]), _distance(token[1])
            bits.append(_FIXED.literals[length] + more + _FIXED.distances[distance] + further)
    return "".join(bits)


def _again(size: int, distance: int) -> str:
    """Return the bits of matches for bytes that were there before, in the fixed codes."""
    symbol, further = _distance(distance)
    bits = ""
    while size:
        # a match has three bytes at least
        part = min(size, _LONGEST if size - _LONGEST not in (1, 2) else _LONGEST - 2)
        length, more = _length(part)
        bits += _FIXED.literals[length] + more + _FIXED.distances[symbol] + further
        size -= part
    return bits


def _number(value: int, size: int) -> str:
    """Return a number's bits, the lowest first (3.1.1)."""
    return format(value, f"0{size}b")[::-1]


def _lengths(counts: Counter[int], size: int, most: int) -> list[int]:
    """Return the lengths of the best code for symbols, none longer than ``most`` bits.

    By package-merge (Larmore and Hirschberg, 1990): of all codes so limited there is none shorter.
    """
    single = sorted((count, (symbol,)) for symbol, count in counts.items())
    if len(single) == 1:
        # a decoder needs two codes, or one of one bit; counted, since what weighs nothing could be
        # packed with the other one for nothing
        single.append((1, (0 if single[0][1] != (0,) else 1,)))
    merged: list[tuple[int, tuple[int, ...]]] = []
    for _ in range(most):
        pairs = zip(merged[::2], merged[1::2], strict=False)
        packages = [(one[0] + two[0], one[1] + two[1]) for one, two in pairs]
        merged = sorted(single + packages)
    chosen = Counter(symbol for _, symbols in merged[: 2 * len(single) - 2] for symbol in symbols)
    return [chosen[symbol] for symbol in range(size)]


def _canonical(lengths: Sequence[int]) -> list[str]:
    """Return the codes that follow from their lengths (3.2.2)."""
    codes = [""] * len(lengths)
    code = previous = 0
    for length, symbol in sorted((length, n) for n, length in enumerate(lengths) if length):
        code <<= length - previous
        codes[symbol] = format(code, f"0{length}b")
        code += 1
        previous = length
    return codes


def _repeated(lengths: Sequence[int]) -> Iterator[tuple[int, str]]:
    """Yield lengths of codes as symbols that can stand for several, with extra bits (3.2.7)."""
    at = 0
    while at < len(lengths):
        value = lengths[at]
        end = at
        while end < len(lengths) and lengths[end] == value:
            end += 1
        left = end - at
        at = end
        if value:
            yield value, ""
            left -= 1
        while left >= 3:
            if value:
                count = min(left, 6)
                yield 16, _number(count - 3, 2)
            elif left <= 10:
                count = left
                yield 17, _number(count - 3, 3)
            else:
                count = min(left, 138)
                yield 18, _number(count - 11, 7)
            left -= count
        for _ in range(left):
            yield value, ""


# 3.2.6
_FIXED = _Codes(
    "010",
    _canonical([8] * 144 + [9] * 112 + [7] * 24 + [8] * 8),
    _canonical([5] * 32),
)
