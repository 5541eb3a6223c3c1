"""Layers that were built before, kept by what they are made of and verified when they are used."""

from __future__ import annotations

import contextlib
import errno
import gzip
import io
import os
import shutil
import stat
import tempfile
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, TypeVar

import msgspec

from envbuild import durable
from envbuild.artifacts.wheel import SCAN_VERSION
from envbuild.digest import CHUNK, is_sha256, sha256_file
from envbuild.image.hashing import Hashing, drain
from envbuild.image.layer import Blob
from envbuild.image.wheels import Held

T = TypeVar("T")

# What was not used for so long is removed, in seconds.
_UNUSED = 30 * 24 * 3600
# What runs work in, and when one that has not changed for so long was left by a killed run.
_WORK = ".work-"
_LEFT = 24 * 3600
# How much is read of what somebody else says of a layer, in bytes
_MOST_TOLD = 4096
_GZIP = b"\x1f\x8b"


class _Kept(msgspec.Struct, frozen=True):
    """A blob as it was when its bytes were hashed: what the file system says of it."""

    size: int
    mtime_ns: int
    ctime_ns: int
    inode: int


class Cache:
    """A folder of layers.

    ``blobs/`` holds the layers by their digests, ``layers/`` says which digest came of what,
    ``wheels/`` what wheels hold, ``images/`` which layers an image had.

    Args:
        folder: where; it is made when something is kept.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def usable(self) -> bool:
        """Whether nobody else can write there: what lies there is believed."""
        try:
            facts = self.folder.stat()
        except FileNotFoundError:
            return True
        return (
            stat.S_ISDIR(facts.st_mode)
            and facts.st_uid == os.geteuid()
            and not facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        )

    def prepare(self) -> None:
        """Make the folder, for its owner alone, and remove what was not used for a month."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for left in self.folder.glob(f"{_WORK}*"):
            if _older(left, _LEFT):
                shutil.rmtree(left, ignore_errors=True)
        for name in ("blobs", "layers", "wheels", "images"):
            (self.folder / name).mkdir(mode=0o700, exist_ok=True)
            self._prune(self.folder / name)

    @contextmanager
    def work(self) -> Iterator[Path]:
        """Yield a folder for layers that are being written."""
        with tempfile.TemporaryDirectory(prefix=_WORK, dir=self.folder) as folder:
            yield Path(folder)

    def layer(self, key: str) -> Blob | None:
        """Return the layer that was made of something, if it is there and as it was."""
        blob = self._read("layers", key, Blob)
        if blob is None:
            return None
        path = self.blob(blob.digest)
        try:
            facts = path.stat()
            if self._read("blobs", f"{blob.digest}.json", _Kept) != _kept(facts):
                if sha256_file(path) != blob.digest:
                    path.unlink()
                    return None
                self.confirm(blob.digest)
        except OSError:
            return None
        return blob

    def keep(self, key: str, blob: Blob, file: Path) -> None:
        """Take a layer in that was just written and hashed."""
        file.replace(self.blob(blob.digest))
        self.confirm(blob.digest)
        self._write("layers", key, blob)

    def confirm(self, digest: str) -> None:
        """Remember how a blob looks now: its bytes are known to be right."""
        self._write("blobs", f"{digest}.json", _kept(self.blob(digest).stat()))

    def strip(self) -> None:
        """Leave the layers alone, as they would be wherever they were made.

        What is removed concerns this file system: another one hashes each layer before its use.
        """
        for path in (self.folder / "blobs").glob("*.json"):
            path.unlink()
        for name in ("wheels", "images"):
            shutil.rmtree(self.folder / name)

    def link(self, digest: str, part: Path, target: Path) -> None:
        """Give a blob another name, which changes what the file system says of it.

        Args:
            digest: of the blob.
            part: a name on the way to the last one, which may be taken.
            target: the other name.

        Raises:
            OSError: the other name is on another file system, or there are no hard links.
        """
        path = self.blob(digest)
        unchanged = self._read("blobs", f"{digest}.json", _Kept) == _kept(path.stat())
        part.hardlink_to(path)
        part.replace(target)
        if unchanged:
            self.confirm(digest)

    def blob(self, digest: str) -> Path:
        """Return where a blob is."""
        return self.folder / "blobs" / digest

    def wheel(self, sha256: str) -> Held | None:
        """Return what a wheel holds, if it was read before."""
        return self._read("wheels", _wheel(sha256), Held)

    def keep_wheel(self, sha256: str, packed: bytes) -> None:
        """Remember what a wheel holds: a `Held`, packed by msgpack."""
        self._write_bytes("wheels", _wheel(sha256), packed)

    def image(self, inputs: str, kind: type[T]) -> T | None:
        """Return what was remembered of an image made of these inputs."""
        return self._read("images", inputs, kind)

    def keep_image(self, inputs: str, image: msgspec.Struct) -> None:
        """Remember an image."""
        self._write("images", inputs, image)

    def _read(self, kind: str, name: str, shape: type[T]) -> T | None:
        path = self.folder / kind / name
        try:
            value = msgspec.msgpack.decode(path.read_bytes(), type=shape)
            os.utime(path)  # it is in use
        except (OSError, msgspec.DecodeError):
            return None
        return value

    def _write(self, kind: str, name: str, value: msgspec.Struct) -> None:
        self._write_bytes(kind, name, msgspec.msgpack.encode(value))

    def _write_bytes(self, kind: str, name: str, data: bytes) -> None:
        durable.write(self.folder / kind / name, data, sync=False)

    def _prune(self, folder: Path) -> None:
        for path in folder.iterdir():
            # a blob is as old as what is remembered of it
            told = path if folder.name != "blobs" else folder / f"{path.stem}.json"
            if _older(told if told.exists() else path, _UNUSED):
                path.unlink(missing_ok=True)


class Handed:
    """Layers in a folder of somebody else's, such as one in the Nix store: it is only read.

    A layer is taken as it is read, in one go: what it is said to be is what was copied. That it
    was made of what it is said to be made of, is believed.

    Args:
        folder: a cache's, or as `Cache.strip` leaves it.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def take(self, key: str, target: Path) -> Blob | None:
        """Copy the layer that was made of something, if it is there and what it is said to be.

        Args:
            key: what it is known by.
            target: where to; what is there if None is returned, is not to be used.
        """
        with (
            contextlib.suppress(OSError, EOFError, zlib.error, msgspec.DecodeError),
            _regular(self.folder / "layers" / key) as told,
        ):
            blob = msgspec.msgpack.decode(told.read(_MOST_TOLD), type=Blob)
            if not is_sha256(blob.digest):
                return None
            with _regular(self.folder / "blobs" / blob.digest) as source, target.open("wb") as copy:
                if blob == _copied(source, copy, blob):
                    return blob
        return None


@contextmanager
def _regular(path: Path) -> Iterator[BinaryIO]:
    """Open a regular file, and nothing that one would wait for."""
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), str(path))
        yield file


def _copied(source: BinaryIO, target: BinaryIO, said: Blob) -> Blob | None:
    """Copy a layer, and return what it is; None if it is longer than it is said to be."""
    if os.fstat(source.fileno()).st_size != said.size:
        return None
    packed = Hashing(source, target)
    whole = io.BufferedReader(packed, CHUNK)
    if whole.peek(len(_GZIP)).startswith(_GZIP):
        inside = Hashing(gzip.GzipFile(fileobj=whole))
        archive = io.BufferedReader(inside, CHUNK)
        while archive.read(CHUNK):
            if inside.size > said.unpacked:
                return None
        return Blob(packed.digest, packed.size, inside.digest, inside.size)
    drain(whole)
    return Blob(packed.digest, packed.size, packed.digest, packed.size)


def _older(path: Path, seconds: float) -> bool:
    """Whether something was left alone for so long; another run may have removed it meanwhile."""
    with contextlib.suppress(FileNotFoundError):
        return path.stat().st_mtime < time.time() - seconds
    return False


def _wheel(sha256: str) -> str:
    return f"{sha256}.{SCAN_VERSION}"


def _kept(facts: os.stat_result) -> _Kept:
    return _Kept(facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns, facts.st_ino)
