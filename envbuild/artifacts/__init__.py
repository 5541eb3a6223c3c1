"""Files known by their SHA-256: where they come from and where they are kept."""

from __future__ import annotations

import msgspec


class Artifact(msgspec.Struct, frozen=True, order=True):
    """A file known by its SHA-256: a wheel, an sdist, an interpreter archive.

    Attributes:
        file: its own file name, without a folder.
        size: in bytes.
        sha256: 64 hexadecimal digits.
        project: the normalised name of the project on a package index; empty where it has none.
    """

    file: str
    size: int
    sha256: str
    project: str = ""
