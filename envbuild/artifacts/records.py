"""What a wheelhouse remembers of files that were verified, so that they are hashed once."""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Mapping
from pathlib import Path

import msgspec

from envbuild import durable
from envbuild.artifacts import Artifact, Unpacked
from envbuild.artifacts.wheel import SCAN_VERSION

log = logging.getLogger("envbuild")

_SCHEMA = 1


class Record(msgspec.Struct, frozen=True):
    """A file as it was when its content was verified.

    Attributes:
        sha256: of its content, 64 hexadecimal digits.
        size: in bytes.
        mtime_ns: the time of its last change, in nanoseconds.
        ctime_ns: the time of its last change or renaming, in nanoseconds; nobody can set it.
        inode: its number in the file system.
        uid: its owner.
        scan: the version of the checks by which it was admitted.
        unpacked: what it takes when it is installed.
    """

    sha256: str
    size: int
    mtime_ns: int
    ctime_ns: int
    inode: int
    uid: int
    scan: int
    unpacked: Unpacked


class _Document(msgspec.Struct, frozen=True):
    schema: int
    files: dict[str, Record]


def record(artifact: Artifact, facts: os.stat_result, unpacked: Unpacked) -> Record:
    """Return the record of a file whose content was just verified.

    Args:
        artifact: what it is.
        facts: what the file system said of it *before* it was read, or after its last renaming.
        unpacked: what it takes when it is installed.
    """
    return Record(
        sha256=artifact.sha256,
        size=facts.st_size,
        mtime_ns=facts.st_mtime_ns,
        ctime_ns=facts.st_ctime_ns,
        inode=facts.st_ino,
        uid=facts.st_uid,
        scan=SCAN_VERSION,
        unpacked=unpacked,
    )


def trusted(known: Record | None, artifact: Artifact, facts: os.stat_result) -> bool:
    """Whether a file needs no hashing: it is recorded, unchanged, and no other user's."""
    if known is None or facts.st_uid not in _trusted_users():
        return False
    return known == record(artifact, facts, known.unpacked)


def load(path: Path) -> dict[str, Record]:
    """Return the records by file name.

    Records that are missing, damaged, of another version, or that another user could have written
    count as none: the files are hashed again, which is all that a record saves.
    """
    try:
        # without waiting, should it be a named pipe
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
            facts = os.fstat(file.fileno())
            if facts.st_uid not in _trusted_users() or facts.st_mode & (
                stat.S_IWGRP | stat.S_IWOTH
            ):
                return {}
            document = msgspec.json.decode(file.read(), type=_Document)
    except (OSError, msgspec.DecodeError):
        return {}
    return document.files if document.schema == _SCHEMA else {}


def merge(path: Path, new: Mapping[str, Record]) -> None:
    """Add records to those that are there, and drop those of files that no longer are.

    Of two processes that do so at once one may lose its records, which costs a hashing.

    Args:
        path: the file of records; it lies in a folder of the wheelhouse.
        new: records by file name.
    """
    try:
        present = {file.name for file in path.parent.parent.iterdir()}
        known = {**load(path), **new}
        files = {name: known[name] for name in sorted(known) if name in present}
        data = msgspec.json.encode(_Document(_SCHEMA, files))
        path.parent.mkdir(exist_ok=True)
        durable.write(path, msgspec.json.format(data, indent=1) + b"\n")
    except OSError as error:
        # a wheelhouse that only others may write to serves as well, if more slowly
        log.debug("%s: not written: %s", path, error.strerror)


def _trusted_users() -> tuple[int, int]:
    return 0, os.geteuid()
