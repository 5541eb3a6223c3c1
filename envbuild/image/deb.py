"""Debian binary packages read by themselves, deb(5): no dpkg is needed, and no script is run."""

from __future__ import annotations

import gzip
import io
import lzma
import tarfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from envbuild.errors import InputError
from envbuild.image.tar import Item, folder, link

_MAGIC = b"!<arch>\n"
_HEADER = 60
_READ = 1 << 20


def control(path: Path) -> bytes:
    """Return a package's control stanza, deb-control(5), with one line end at its end.

    Raises:
        InputError: the file cannot be read, or is no package.
    """
    with _reading(path) as file, _tar(file, path, "control.tar") as archive:
        for member in archive:
            content = archive.extractfile(member) if member.isreg() else None
            if content is not None and _normal(member.name, path) == "control":
                return content.read().strip(b"\n") + b"\n"
    raise InputError("not a Debian package", where=path, expected="control in control.tar")


def entries(path: Path) -> Iterator[Item]:
    """Yield what a package installs, in its own order, with its own permission bits.

    A hard link becomes a symbolic one: what Mesa has under twelve names is 24 MB each.

    Raises:
        InputError: the file cannot be read or is no package; a path leaves the root; or there is
            something else than files, folders and links in it.
    """
    files: set[str] = set()
    with _reading(path) as file, _tar(file, path, "data.tar") as archive:
        for member in archive:
            name = _normal(member.name, path)
            if not name:
                continue
            mode = member.mode & 0o7777
            content = archive.extractfile(member) if member.isreg() else None
            if member.isdir():
                yield folder(name, mode)
            elif member.issym():
                yield link(name, member.linkname)
            elif content is not None:
                files.add(name)
                yield Item(name, "file", mode, content.read())
            elif member.islnk() and (target := _normal(member.linkname, path)) in files:
                yield _linked(name, target)
            else:
                raise InputError(
                    "a Debian package holds what no image can have",
                    where=f"{path}: {member.name}",
                    expected="a file, a folder, a symbolic link, or a hard link to a file that "
                    "comes before it",
                    found=f"tar type {member.type.decode(errors='replace')!r}",
                )


def _linked(name: str, target: str) -> Item:
    """Link by the name alone in one folder; else from the root, wherever the two are moved."""
    where, _, plain = target.rpartition("/")
    return link(name, plain if where == name.rpartition("/")[0] else f"/{target}")


def _normal(name: str, path: Path) -> str:
    """Return a member's path without ``./`` before and ``/`` behind; empty for the root."""
    plain = name.removeprefix("./").rstrip("/") if name not in (".", "./") else ""
    if name.startswith("/") or (plain and not {"", ".", ".."}.isdisjoint(plain.split("/"))):
        raise InputError(
            "a Debian package holds a path that is none below the root",
            where=path,
            expected="names without '..', joined by '/'",
            found=repr(name),
        )
    return plain


@contextmanager
def _reading(path: Path) -> Iterator[BinaryIO]:
    """Open a package, and say which one it is that cannot be read."""
    try:
        with path.open("rb") as file:
            yield file
    except (tarfile.TarError, lzma.LZMAError, zlib.error, gzip.BadGzipFile, EOFError) as error:
        raise InputError(f"damaged Debian package: {error}", where=path) from error
    except UnicodeDecodeError as error:
        raise InputError(
            "a Debian package holds a name that is not UTF-8", where=path, found=error.object
        ) from error
    except OSError as error:
        raise InputError(f"Debian package cannot be read: {error.strerror}", where=path) from error


@contextmanager
def _tar(file: BinaryIO, path: Path, wanted: str) -> Iterator[tarfile.TarFile]:
    """Open the archive in a package whose name is ``wanted`` and a compression's."""
    members = dict(_members(file, path))
    found = next((name for name in members if name.startswith(wanted)), "nothing of that name")
    if found not in (wanted, f"{wanted}.gz", f"{wanted}.xz"):
        raise InputError(
            f"not a Debian package, or one whose {wanted} is compressed otherwise than Debian's",
            where=path,
            expected=f"{wanted}.xz, {wanted}.gz or {wanted}",
            found=found,
        )
    at, size = members[found]
    file.seek(at)
    data = io.BytesIO(file.read(size))
    # as a stream: in an archive with a position each step back decompresses all of it again
    with tarfile.open(
        fileobj=data, mode="r|*", bufsize=_READ, encoding="utf-8", errors="strict"
    ) as archive:
        yield archive


def _members(file: BinaryIO, path: Path) -> Iterator[tuple[str, tuple[int, int]]]:
    """Yield the members of an ar archive: each name, where it begins and how long it is."""
    end = path.stat().st_size
    if file.read(len(_MAGIC)) != _MAGIC:
        raise _no_package(path, "no ar archive")
    at = len(_MAGIC)
    while at < end:
        file.seek(at)
        header = file.read(_HEADER)
        name, size = header[:16].decode(errors="replace").rstrip(" /"), header[48:58].strip()
        begin = at + _HEADER
        if header[58:] != b"`\n" or not size.isdigit() or begin + int(size) > end:
            raise _no_package(path, f"no whole member at byte {at}")
        if at == len(_MAGIC) and (name, file.read(2)) != ("debian-binary", b"2."):
            raise _no_package(path, f"{name} at byte {at}")
        yield name, (begin, int(size))
        # members begin at even places
        at = begin + int(size) + int(size) % 2


def _no_package(path: Path, found: str) -> InputError:
    return InputError(
        "not a Debian package, or a damaged one",
        where=path,
        expected="an ar archive of whole members, the first debian-binary of version 2 (deb(5))",
        found=found,
    )
