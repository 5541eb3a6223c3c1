"""Files known by their SHA-256: where they come from and where they are kept."""

from __future__ import annotations

import msgspec


class Artifact(msgspec.Struct, frozen=True, order=True):
    """A file known by its SHA-256: a wheel, an sdist, an interpreter archive.

    Attributes:
        file: its own file name, without a folder.
        size: in bytes; 0 where it is not known before the file is there.
        sha256: 64 hexadecimal digits.
        project: the normalised name of the project on a package index; empty where it has none.
    """

    file: str
    size: int
    sha256: str
    project: str = ""

    @property
    def described(self) -> str:
        """What its bytes must be, for messages."""
        return f"SHA-256 {self.sha256}" + (f", {self.size} bytes" if self.size else "")


class Unpacked(msgspec.Struct, frozen=True):
    """What a wheel takes when it is installed.

    Attributes:
        size: of its files, in bytes.
        files: how many they are.
    """

    size: int = 0
    files: int = 0
