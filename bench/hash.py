"""Digests of a folder: envbuild hash against Nix, and against hashlib with one process.

    python bench/hash.py [GIGABYTES] [ROUNDS]

The input is made anew in a temporary folder, 2 GB by default: half of it in files of 256 MB at
most, as models have them, the rest from a few bytes to 8 MB. It is hashed from memory, and once
more from storage, after the kernel was told to forget it (in vain if the folder is a tmpfs). A NAR
is one SHA-256 stream, so for one path none can be faster than one core hashes; several paths use
several cores.
"""

from __future__ import annotations

import os
import random
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import common

_PARTS = 4
_LARGE = 256_000_000
_BLOCK = 1_000_000

# The bytes of all files through one SHA-256, in no format: as little as can be done
_HASHLIB = """
import hashlib, os, sys
sha256 = hashlib.sha256()
block = memoryview(bytearray(1 << 20))
for root in sys.argv[1:]:
    for folder, folders, names in os.walk(root):
        folders.sort()
        for name in sorted(names):
            with open(os.path.join(folder, name), "rb", buffering=0) as file:
                while count := file.readinto(block):
                    sha256.update(block[:count])
print(sha256.hexdigest())
"""


def main(gigabytes: float, rounds: int) -> None:
    """Print the ratios."""
    with tempfile.TemporaryDirectory(prefix="envbuild-bench-") as name:
        work = Path(name)
        tree = work / "tree"
        parts = [tree / f"part{number}" for number in range(_PARTS)]
        files = sum(_fill(part, int(gigabytes * 1e9 / _PARTS)) for part in parts)
        print(f"{gigabytes:g} GB in {files} files, {len(os.sched_getaffinity(0))} cores")

        settings = {
            "HOME": str(work),
            "NIX_STATE_DIR": str(work / "state"),
            "NIX_CONFIG": "experimental-features = nix-command",
        }
        peers = {"hashlib": [sys.executable, "-c", _HASHLIB], "nix": ["nix", "hash", "path"]}
        if shutil.which("nix") is None:
            print("nix hash path: not compared, nix is not installed (Debian package nix-bin)")
            del peers["nix"]
        for peer, command in peers.items():
            for title, paths, prepare, most in (
                ("1 path, from memory", [tree], _nothing, 1.15),
                ("1 path, from storage", [tree], _forget, 1.0),
                (f"{_PARTS} paths, from memory", parts, _nothing, 0.75),
            ):
                common.compare(
                    f"{title}, against {peer}",
                    _timed([*common.ENVBUILD, "hash", *paths], prepare, tree),
                    _timed([*command, *paths], prepare, tree, settings),
                    rounds=rounds,
                    most=most,
                )


def _timed(
    command: Sequence[str | Path],
    prepare: Callable[[Path], None],
    tree: Path,
    env: Mapping[str, str] | None = None,
) -> Callable[[], float]:
    def timed() -> float:
        prepare(tree)
        return common.run(command, env)

    return timed


def _nothing(_tree: Path) -> None:
    pass


def _forget(tree: Path) -> None:
    """Have the kernel drop what it holds of the files' contents."""
    for path in tree.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _fill(folder: Path, size: int) -> int:
    """Write files of mixed sizes, ``size`` bytes together, and return how many."""
    source = random.Random(size)
    block = source.randbytes(_BLOCK)
    folder.mkdir(parents=True)
    left, count = size, 0
    while left:
        large = left > size // 2
        wanted = _LARGE if large else int(10 ** source.uniform(1, 6.9))
        length = min(wanted, left - size // 2 if large else left)
        place = folder / f"{count // 100:04}"
        place.mkdir(exist_ok=True)
        with (place / f"{count}").open("wb") as file:
            for offset in range(0, length, _BLOCK):
                file.write(block[: length - offset])
        left -= length
        count += 1
    return count


if __name__ == "__main__":
    main(
        float(sys.argv[1]) if len(sys.argv) > 1 else 2,
        int(sys.argv[2]) if len(sys.argv) > 2 else 3,
    )
