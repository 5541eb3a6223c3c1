"""The pinned interpreter as a layer: its archive is a gzipped tar already, and stays as it is.

So the layer's digest is the pin's, and nothing is compressed anew. All that is done is to hash
what is inside, and to see that it holds what a layer may hold.
"""

from __future__ import annotations

import gzip
import io
import posixpath
import tarfile
import zlib
from pathlib import Path
from typing import BinaryIO

from envbuild.digest import CHUNK
from envbuild.errors import InputError, StepError
from envbuild.image.hashing import Hashing, drain
from envbuild.image.layer import Blob, Compression
from envbuild.lock.interpreters import Pin

# the one folder that python-build-standalone's archives hold
_TOP = "python"


def copy(pin: Pin, path: Path, target: BinaryIO, compression: Compression) -> Blob:
    """Write the layer of a pinned interpreter.

    Args:
        pin: which.
        path: its archive.
        target: where to.
        compression: ``gzip`` for the archive as it is, ``none`` for the tar in it.

    Raises:
        StepError: the archive is not the pinned one.
        InputError: it holds something that does not belong into a layer.
        OSError: it cannot be read.
    """
    plain = compression == "none"
    failure: Exception | None = None
    with path.open("rb") as file:
        packed = Hashing(file, None if plain else target)
        whole = io.BufferedReader(packed, CHUNK)
        with gzip.GzipFile(fileobj=whole) as inside:
            unpacked = Hashing(inside, target if plain else None)
            archive = io.BufferedReader(unpacked, CHUNK)
            try:
                with tarfile.open(fileobj=archive, mode="r|") as members:
                    for member in members:
                        _check(member, path)
                drain(archive)
            except (tarfile.TarError, EOFError, gzip.BadGzipFile, zlib.error) as error:
                failure = error  # of a file that is damaged, another thing is to be said
        drain(whole)
    if packed.digest != pin.sha256:
        raise StepError(
            "the interpreter's archive is not the pinned one",
            where=path,
            expected=f"SHA-256 {pin.sha256}",
            found=f"SHA-256 {packed.digest}",
            mend="remove it from the wheelhouse and fetch it again",
        )
    if failure is not None:
        raise InputError(
            "not an archive of an interpreter",
            where=path,
            found=str(failure),
            mend="pin another one: `envbuild lock` takes pbs-installer's list",
        ) from failure
    written = unpacked if plain else packed
    return Blob(written.digest, written.size, unpacked.digest, unpacked.size)


def _check(member: tarfile.TarInfo, path: Path) -> None:
    kind = member.isfile() or member.isdir() or member.issym() or member.islnk()
    name = posixpath.normpath(member.name)
    inside = name == _TOP or name.startswith(f"{_TOP}/")
    if member.issym():
        target = posixpath.normpath(posixpath.join(posixpath.dirname(name), member.linkname))
        inside = inside and target.startswith(f"{_TOP}/")
    if member.islnk():
        inside = inside and posixpath.normpath(member.linkname).startswith(f"{_TOP}/")
    # the image's user is not its owner
    needed = 0o555 if member.isdir() else 0o444
    readable = member.issym() or member.mode & needed == needed
    if not (kind and inside and readable) or ".." in member.name.split("/") or "/.wh." in name:
        raise InputError(
            "the interpreter's archive holds what does not belong into an image",
            where=f"{path}: {member.name}",
            expected=f"files, folders and links in {_TOP}/ that everybody may read",
            found=f"type {member.type!r}, mode {member.mode:04o}, link {member.linkname!r}",
        )
