"""The digest of a prefix: of its paths, modes and files, without byte code.

Byte code is left out since it holds the times of its sources; what it was made from is counted.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from envbuild.digest import sha256_file

_BYTE_CODE = "__pycache__"


def digest(prefix: Path) -> str:
    """Return the SHA-256 of a prefix's manifest, 64 hexadecimal digits.

    The manifest has a line for each file and link, sorted by path: the mode in octal (of a link
    ``link``), the SHA-256 of the content (of a link its target), and the path relative to the
    prefix, its bytes outside ASCII and its line ends escaped. It reads every file once, over the
    cores granted.

    Raises:
        OSError: a file cannot be read.
    """
    with ThreadPoolExecutor(max_workers=len(os.sched_getaffinity(0))) as pool:
        lines = sorted(pool.map(_line, _files(str(prefix))))
    manifest = hashlib.sha256()
    for place, line in lines:
        manifest.update(f"{line} {place!a}\n".encode())
    return manifest.hexdigest()


def _files(prefix: str) -> Iterator[tuple[str, str]]:
    """Yield path and relative path of every file and link."""
    for folder, folders, names in os.walk(prefix):
        if _BYTE_CODE in folders:
            folders.remove(_BYTE_CODE)
        links = [name for name in folders if Path(f"{folder}/{name}").is_symlink()]
        for name in (*names, *links):
            path = f"{folder}/{name}"
            yield path, path[len(prefix) + 1 :]


def _line(file: tuple[str, str]) -> tuple[str, str]:
    path, place = file
    mode = os.lstat(path).st_mode
    if stat.S_ISLNK(mode):
        target = hashlib.sha256(os.fsencode(Path(path).readlink())).hexdigest()
        return place, f"link {target}"
    return place, f"{stat.S_IMODE(mode):04o} {sha256_file(Path(path))}"
