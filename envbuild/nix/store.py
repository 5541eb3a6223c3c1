"""The Nix store: files put there by hash, so that nothing has to be fetched for a build."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import msgspec

from envbuild import process, typed
from envbuild.artifacts import Artifact
from envbuild.digest import is_sha256
from envbuild.errors import PreflightError, StepError
from envbuild.typed import Table

FOLDER = "/nix/store"
_SCHEMA = 1
_MEND = "install Nix (Debian: apt-get install nix-bin)"
# The characters of Nix's base 32: no e, o, u, t
_DIGITS = "0123456789abcdfghijklmnpqrsvwxyz"
_HASH = 20
_FOREIGN = re.compile(r"[^a-zA-Z0-9+._?=-]+")
# How many bytes and files one run of nix-store takes in, so that progress shows
_BATCH = 256 << 20
_MOST = 50


class File(msgspec.Struct, frozen=True):
    """A file as the Nix store knows it.

    Attributes:
        path: where it is now.
        sha256: of its content, 64 hexadecimal digits.
        size: in bytes.
    """

    path: Path
    sha256: str
    size: int

    @property
    def name(self) -> str:
        """Its name in the store."""
        return store_name(self.path.name)

    @property
    def store_path(self) -> str:
        """Its path in the store, by name and hash."""
        return store_path(self.name, self.sha256)


class _Wheel(Table, frozen=True):
    file: str
    sha256: str


class _Document(Table, frozen=True):
    schema: int
    wheels: tuple[_Wheel, ...]


def own_wheels() -> list[Artifact]:
    """Return the wheels that the flake's envbuild itself is made with."""
    path = Path(__file__).with_name("wheels.toml")
    document = typed.load(path, _Document, "envbuild's own wheels")
    assert document.schema == _SCHEMA
    return [
        Artifact(one.file, 0, one.sha256, one.file.partition("-")[0].replace("_", "-").lower())
        for one in document.wheels
    ]


def store_name(file: str) -> str:
    """Return the name that a file has in the store, where fewer characters are allowed.

    Args:
        file: the name of a wheel, a .deb or an archive, which may hold ``~`` or ``!``.
    """
    return _FOREIGN.sub("-", file)


def store_path(name: str, sha256: str) -> str:
    """Return the path of a file that is known by its hash (the Nix manual, "store path").

    Args:
        name: in the store.
        sha256: of its content, 64 hexadecimal digits.

    Raises:
        ValueError: that is no SHA-256.
    """
    if not is_sha256(sha256):
        raise ValueError(sha256)
    inner = hashlib.sha256(f"fixed:out:sha256:{sha256}:".encode()).hexdigest()
    outer = hashlib.sha256(f"output:out:sha256:{inner}:{FOLDER}:{name}".encode()).digest()
    # folded to 160 bits
    folded = bytearray(_HASH)
    for index, byte in enumerate(outer):
        folded[index % _HASH] ^= byte
    number = int.from_bytes(folded, "little")
    length = (_HASH * 8 + 4) // 5
    digits = "".join(_DIGITS[number >> 5 * place & 31] for place in reversed(range(length)))
    return f"{FOLDER}/{digits}-{name}"


class Store:
    """A Nix store.

    Args:
        url: which one, as Nix's ``--store`` has it; the system's own if not given.

    Raises:
        PreflightError: Nix is not installed.
    """

    def __init__(self, url: str | None = None) -> None:
        program = shutil.which("nix-store")
        if program is None:
            raise PreflightError("nix-store is not on PATH", mend=_MEND)
        self._command = [program, *(("--store", url) if url else ())]

    def missing(self, files: Iterable[File]) -> list[File]:
        """Return the files that are not in the store yet.

        Raises:
            StepError: Nix failed.
        """
        by_path = {file.store_path: file for file in files}
        if not by_path:
            return []
        told = self._run(["--check-validity", "--print-invalid", *by_path], "asking the store")
        return [by_path[path] for path in told.split() if path in by_path]

    def add(
        self, files: Sequence[File], *, advance: Callable[[int], None] = lambda _done: None
    ) -> None:
        """Put files into the store.

        Args:
            files: what is put there.
            advance: called with bytes, as they are there.

        Raises:
            StepError: Nix failed, or a file is not the one that it must be.
        """
        with tempfile.TemporaryDirectory(prefix="envbuild-nix-") as folder:
            for batch in _batches(files):
                # the name in the store is that of the file
                paths = [self._named(file, Path(folder)) for file in batch]
                told = self._run(["--add-fixed", "sha256", *paths], "filling the store").split()
                for file, path in zip(batch, told, strict=True):
                    if path != file.store_path:
                        raise StepError(
                            "the file that went into the store is not the one that is locked",
                            where=file.path,
                            expected=file.store_path,
                            found=path,
                            mend="see who writes to the wheelhouse, and run it again",
                        )
                    advance(file.size)

    def _named(self, file: File, folder: Path) -> Path:
        """Return the file under its name in the store; Nix would take a link for the content."""
        if file.path.name == file.name and not file.path.is_symlink():
            return file.path
        return Path(shutil.copyfile(file.path, folder / file.name))

    def _run(self, arguments: Sequence[str | Path], doing: str) -> str:
        settings = {name: text for name, text in os.environ.items() if name.startswith("NIX_")}
        done = process.run(
            [*self._command, *arguments],
            doing=doing,
            env=process.environment(settings),
            mend="see what Nix said; docs/nix.md says how it is set up without a daemon",
        )
        return done.stdout


def _batches(files: Sequence[File]) -> Iterable[list[File]]:
    batch: list[File] = []
    for file in files:
        if batch and (len(batch) == _MOST or sum(one.size for one in batch) + file.size > _BATCH):
            yield batch
            batch = []
        batch.append(file)
    if batch:
        yield batch
