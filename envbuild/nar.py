"""Digests of files, folders and symlinks as Nix has them, and lists of such digests.

What is hashed is the Nix archive (NAR) of a path: kinds, names, contents, targets of symlinks and
whether a file's owner may execute it; no times, owners or other permissions. The specification is
"Nix Archive (NAR) format" in the Nix manual, figure 5.2 of E. Dolstra's thesis. A digest is written
as ``nix hash path`` prints it: ``sha256-`` and the Base64 of a SHA-256, the form of W3C's
Subresource Integrity (SRI).
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import os
import re
import stat
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Literal, TypeVar

import msgspec

from envbuild.digest import CHUNK
from envbuild.errors import EnvbuildError, InputError, StepError
from envbuild.granted import granted

# A string too: `link/`, which a Path cannot say, is the folder that the link points to.
AnyPath = str | os.PathLike[str]
Advance = Callable[[int], None]
State = Literal["OK", "FAILED", "missing", "unreadable"]
T = TypeVar("T")
R = TypeVar("R")

# Batches of about CHUNK bytes that are read ahead of the hashing: 64 MiB for all paths together,
# but never fewer than 4 batches for each.
_AHEAD, _AHEAD_AT_LEAST = 64, 4
# Readers per path: they wait for storage more than for a core, above all for many small files.
_READERS = 4
# How long reading may wait for storage, as a part of the hashing thread's own work
_PATIENCE = 0.25


class Listed(msgspec.Struct, frozen=True):
    """A line of a list of digests.

    Attributes:
        name: the path as the list has it; bytes that are not UTF-8 as surrogates (PEP 383).
        path: the path to look at: relative names start at the list's folder.
        digest: what it was when the list was written, as SRI.
    """

    name: str
    path: str
    digest: str


class Checked(msgspec.Struct, frozen=True):
    """What became of a line of a list.

    Attributes:
        listed: the line.
        state: whether the path is as listed.
        found: its digest now, as SRI; None where it could not be had.
        problem: why it could not be had.
    """

    listed: Listed
    state: State
    found: str | None = None
    problem: str | None = None


class _Span(msgspec.Struct, frozen=True):
    """A part of a file's content, in bytes, and the file as it was when the walk came by."""

    path: bytes
    offset: int
    length: int
    seen: os.stat_result


class _Node(msgspec.Struct, frozen=True):
    """A path yet to be written, and what its folder has before and after it."""

    path: bytes
    before: bytes
    after: bytes


_Piece = bytes | _Span


def _string(text: bytes) -> bytes:
    """Write a string as a NAR has it: its length, itself, zeros up to a multiple of eight."""
    return len(text).to_bytes(8, "little") + text + bytes(-len(text) % 8)


def _strings(*texts: bytes) -> bytes:
    return b"".join(map(_string, texts))


_MAGIC = _strings(b"nix-archive-1")
_CLOSE = _strings(b")")
_REGULAR = _strings(b"(", b"type", b"regular", b"contents")
_EXECUTABLE = _strings(b"(", b"type", b"regular", b"executable", b"", b"contents")
_SYMLINK = _strings(b"(", b"type", b"symlink", b"target")
_DIRECTORY = _strings(b"(", b"type", b"directory")
_ENTRY = _strings(b"entry", b"(", b"name")
_ENTRY_NODE = _strings(b"node")

_KINDS = {
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFBLK: "a block device",
    stat.S_IFCHR: "a character device",
}


def digest(path: AnyPath, *, jobs: int = _READERS, advance: Advance | None = None) -> str:
    """Return the digest of a file, folder or symlink, as ``nix hash path`` prints it.

    A symlink is hashed itself, not what it points to. A NAR is one stream, so one thread hashes
    it; where storage keeps that one waiting, others read up to 64 MiB ahead.

    Args:
        path: what to hash.
        jobs: how many threads may read ahead.
        advance: called, from the hashing thread, with the bytes of the archive just hashed.

    Raises:
        InputError: there is nothing at ``path``, or something in it is a socket, FIFO or device.
        StepError: something cannot be read, or changed while it was.
    """
    with _readers(jobs) as readers:
        return _digest(path, readers, _AHEAD, advance or _nothing)


def digests(
    paths: Iterable[AnyPath], *, jobs: int | None = None, advance: Advance | None = None
) -> list[str]:
    """Return the digests of several paths, hashed at the same time.

    Args:
        paths: what to hash.
        jobs: how many paths to hash at once; as many as this process has cores by default.
        advance: called, from any thread, with the bytes of an archive just hashed.

    Raises:
        InputError: one of them is not what can be hashed; see `digest`.
        StepError: one of them cannot be read, or changed while it was.
    """
    return _at_once(_digest, list(paths), jobs, advance or _nothing)


def check(
    lines: Iterable[Listed], *, jobs: int | None = None, advance: Advance | None = None
) -> list[Checked]:
    """Hash what a list names and compare.

    Args:
        lines: the list, from `read_list`.
        jobs: how many paths to hash at once; as many as this process has cores by default.
        advance: called, from any thread, with the bytes of an archive just hashed.
    """
    return _at_once(_check, list(lines), jobs, advance or _nothing)


def content_size(paths: Iterable[AnyPath]) -> int:
    """Return how many bytes the archives of ``paths`` have, as far as they can be looked at."""
    total = 0
    for path in paths:
        # hashing will say what is wrong with it
        with contextlib.suppress(EnvbuildError):
            for piece in _pieces(os.fsencode(path)):
                total += len(piece) if isinstance(piece, bytes) else piece.length
    return total


def _nothing(_amount: int) -> None:
    pass


class _Abandoned(Exception):
    """Nobody waits for this digest any longer."""


@contextlib.contextmanager
def _readers(count: int) -> Iterator[ThreadPoolExecutor]:
    """Give threads for as long as the block runs; what has not begun by its end never does."""
    pool = ThreadPoolExecutor(count, thread_name_prefix="read")
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


def _at_once(
    work: Callable[[T, ThreadPoolExecutor, int, Advance], R],
    items: Sequence[T],
    jobs: int | None,
    advance: Advance,
) -> list[R]:
    """Hash several things at the same time; the first failure, or Ctrl-C, ends all of it."""
    # of this process: a job of a cluster has fewer than the machine
    count = max(1, min(jobs or granted().cpus, len(items)))
    ahead = max(_AHEAD // count, _AHEAD_AT_LEAST)
    abandoned = threading.Event()

    def step(amount: int) -> None:
        if abandoned.is_set():
            raise _Abandoned
        advance(amount)

    with _readers(_READERS * count) as readers, _readers(count) as hashers:
        futures = [hashers.submit(work, item, readers, ahead, step) for item in items]
        try:
            wait(futures, return_when=FIRST_EXCEPTION)
            for future in futures:
                if future.done():
                    future.result()
            return [future.result() for future in futures]
        finally:
            abandoned.set()


def _check(listed: Listed, readers: ThreadPoolExecutor, ahead: int, advance: Advance) -> Checked:
    try:
        os.lstat(listed.path)
        found = _digest(listed.path, readers, ahead, advance)
    except (FileNotFoundError, NotADirectoryError):
        return Checked(listed, "missing")
    except OSError as error:
        return Checked(listed, "unreadable", problem=error.strerror)
    except EnvbuildError as error:
        return Checked(listed, "unreadable", problem=str(error))
    return Checked(listed, "OK" if found == listed.digest else "FAILED", found)


def _digest(path: AnyPath, readers: ThreadPoolExecutor, ahead: int, advance: Advance) -> str:
    """Walk and hash, in order; read ahead once reading has kept the hashing waiting."""
    sha256 = hashlib.sha256()
    patience = _Patience()
    reading: deque[Future[bytes]] = deque()

    def take(data: bytes) -> None:
        sha256.update(data)
        advance(len(data))

    for batch in _batches(_pieces(os.fsencode(path))):
        if not patience.lost:
            with patience.tried():
                data = _read(batch)
            take(data)
            continue
        reading.append(readers.submit(_read, batch))
        if len(reading) == ahead:
            take(reading.popleft().result())
    while reading:
        take(reading.popleft().result())
    return "sha256-" + base64.b64encode(sha256.digest()).decode()


class _Patience:
    """Whether a thread waits too long for what it reads, next to what it has to do itself.

    Readers are no gain for what is in memory already: the hashing then finds it in the cache of
    another core, or in none, and several paths are hashed at half the speed.
    """

    def __init__(self) -> None:
        self.lost = False
        self._begun = time.thread_time()
        self._waited = 0.0

    @contextlib.contextmanager
    def tried(self) -> Iterator[None]:
        """Watch a read: what it takes beyond the thread's own work is waiting."""
        clock, work = time.perf_counter(), time.thread_time()
        yield
        now = time.thread_time()
        self._waited += time.perf_counter() - clock - (now - work)
        self.lost = self._waited > _PATIENCE * (now - self._begun)


def _batches(pieces: Iterable[_Piece]) -> Iterator[list[_Piece]]:
    """Gather pieces for the readers: a small file is not worth a hand-over of its own."""
    batch: list[_Piece] = []
    size = 0
    for piece in pieces:
        more = len(piece) if isinstance(piece, bytes) else piece.length
        if batch and size + more > CHUNK:
            yield batch
            batch, size = [], 0
        batch.append(piece)
        size += more
    yield batch


def _pieces(root: bytes) -> Iterator[_Piece]:
    """Write the archive of a path, with places for the contents of files.

    The stack is our own, since folders may be nested deeper than calls.
    """
    stack: list[_Node | bytes] = [_Node(root, _MAGIC, b"")]
    while stack:
        node = stack.pop()
        if isinstance(node, bytes):
            yield node
            continue
        status = _status(node.path, is_root=node.path is root)
        if stat.S_ISREG(status.st_mode):
            executable = status.st_mode & stat.S_IXUSR
            yield node.before + (_EXECUTABLE if executable else _REGULAR) + _length(status)
            yield from _spans(node.path, status)
            yield bytes(-status.st_size % 8) + _CLOSE + node.after
        elif stat.S_ISDIR(status.st_mode):
            yield node.before + _DIRECTORY
            stack.append(_CLOSE + node.after)
            stack += _children(node.path)
        else:
            yield node.before + _SYMLINK + _string(_target(node.path)) + _CLOSE + node.after


def _length(status: os.stat_result) -> bytes:
    return status.st_size.to_bytes(8, "little")


def _spans(path: bytes, seen: os.stat_result) -> Iterator[_Span]:
    """Cut a file into parts of at most CHUNK bytes; an empty one has a part to be opened, too."""
    for offset in range(0, max(seen.st_size, 1), CHUNK):
        yield _Span(path, offset, min(CHUNK, seen.st_size - offset), seen)


def _status(path: bytes, *, is_root: bool) -> os.stat_result:
    """Look at a path, and refuse what an archive cannot hold."""
    try:
        status = os.lstat(path)
    except OSError as error:
        if is_root and isinstance(error, FileNotFoundError | NotADirectoryError):
            raise InputError(
                "there is nothing to hash",
                where=os.fsdecode(path),
                expected="a file, folder or symlink",
                found=error.strerror,
                mend="name a path that exists",
            ) from error
        raise _unreadable(path, error) from error
    kind = _KINDS.get(stat.S_IFMT(status.st_mode))
    if kind is not None:
        raise InputError(
            "this kind of file has no digest",
            where=os.fsdecode(path),
            expected="a regular file, folder or symlink",
            found=kind,
            mend="remove it, or hash a folder without it",
        )
    return status


def _children(path: bytes) -> list[_Node]:
    """Return a folder's entries, the last by its bytes first, as a stack wants them."""
    try:
        with os.scandir(path) as entries:
            names = sorted((entry.name for entry in entries), reverse=True)
    except OSError as error:
        raise _unreadable(path, error) from error
    folder = path if path.endswith(b"/") else path + b"/"
    return [_Node(folder + name, _ENTRY + _string(name) + _ENTRY_NODE, _CLOSE) for name in names]


def _target(path: bytes) -> bytes:
    """Return a symlink's target byte for byte; `Path.readlink` would tidy it."""
    try:
        descriptor = os.open(path, os.O_PATH | os.O_NOFOLLOW)
        try:
            return os.readlink(b"", dir_fd=descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise _unreadable(path, error) from error


def _read(batch: list[_Piece]) -> bytes:
    return b"".join([piece if isinstance(piece, bytes) else _content(piece) for piece in batch])


def _content(span: _Span) -> bytes:
    """Read a part of a file, and see that the file is still the one that the walk saw."""
    try:
        # not blocking: if the file has become a FIFO meanwhile, nobody writes to it
        descriptor = os.open(span.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            content = _read_at(descriptor, span.offset, span.length)
            now = os.fstat(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise _unreadable(span.path, error) from error
    if len(content) != span.length or _identity(now) != _identity(span.seen):
        raise StepError(
            "it changed while it was read",
            where=os.fsdecode(span.path),
            expected=f"{span.seen.st_size} bytes, as at first",
            found=f"{now.st_size} bytes, or another file or time",
            mend="hash it again when nothing writes to it",
        )
    return content


def _identity(status: os.stat_result) -> tuple[int, int, int, int]:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def _read_at(descriptor: int, offset: int, length: int) -> bytes:
    """Read until all is there or the file ends: network file systems may give less at a time."""
    parts: list[bytes] = []
    while length and (part := os.pread(descriptor, length, offset)):
        parts.append(part)
        offset += len(part)
        length -= len(part)
    return b"".join(parts)


def _unreadable(path: bytes, error: OSError) -> StepError:
    return StepError(
        f"it cannot be read: {error.strerror}",
        where=os.fsdecode(path),
        mend="hash it as a user who may read it, while nothing else changes it",
    )


# A list of digests: `DIGEST  PATH` as sha256sum writes it, backslash and escapes included where a
# name has a backslash or the end of a line. 256 bits leave two bits of the last digit unused: 0.
_LINE = re.compile(rb"(\\?)(sha256-[A-Za-z0-9+/]{42}[AEIMQUYcgkosw048]=)  ([^\0]+)")
_ESCAPES = {b"\\": b"\\\\", b"\n": b"\\n", b"\r": b"\\r"}
_ESCAPED = {escaped: raw for raw, escaped in _ESCAPES.items()}


def escaped(name: str) -> bytes:
    """Write a path on one line, in the bytes that the file system has for it."""
    return re.sub(rb"[\\\n\r]", lambda match: _ESCAPES[match[0]], os.fsencode(name))


def list_line(digest: str, name: str) -> bytes:
    """Write a line of a list of digests, without its end.

    Args:
        digest: as SRI.
        name: the path; relative to the list's folder, or absolute.
    """
    written = escaped(name)
    mark = b"\\" if written != os.fsencode(name) else b""
    return mark + digest.encode() + b"  " + written


def read_list(file: Path) -> list[Listed]:
    """Read a list of digests: lines of `list_line`, blank lines, and comments that begin with #.

    Args:
        file: the list; lines may end in CR LF. Names are relative to its folder.

    Raises:
        InputError: a line is none of these, or nothing is listed.
        OSError: the list cannot be read.
    """
    lines = enumerate(file.read_bytes().split(b"\n"), start=1)
    listed = [
        _listed(file, number, line.removesuffix(b"\r"))
        for number, line in lines
        if line.strip() and not line.startswith(b"#")
    ]
    if not listed:
        raise InputError(
            "nothing is listed", where=file, expected="a line `sha256-…=  PATH`", mend=_MEND
        )
    return listed


_MEND = "write it with `envbuild hash --list PATH… > FILE`"


def _listed(file: Path, number: int, line: bytes) -> Listed:
    match = _LINE.fullmatch(line)
    name = _unescaped(match[3]) if match and match[1] else match and match[3]
    if match is None or name is None:
        raise InputError(
            "this is no line of a list of digests",
            where=f"{file}:{number}",
            expected="`sha256-BASE64=  PATH`, with two spaces",
            found=ascii(line.decode(errors="surrogateescape")),
            mend=_MEND,
        )
    text = os.fsdecode(name)
    path = text if text.startswith("/") else f"{file.parent}/{text}"
    return Listed(text, path, match[2].decode())


def _unescaped(name: bytes) -> bytes | None:
    """Undo `escaped`; None if a backslash is followed by what it never writes."""
    parts = re.split(rb"(\\.?)", name)
    if any(part.startswith(b"\\") and part not in _ESCAPED for part in parts):
        return None
    return b"".join(_ESCAPED.get(part, part) for part in parts)
