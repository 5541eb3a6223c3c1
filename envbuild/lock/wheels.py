"""Which wheel of several an installer would choose (PEP 425, PEP 600)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from packaging.tags import Tag, compatible_tags, cpython_tags
from packaging.utils import InvalidWheelFilename, parse_wheel_filename

# PEP 600: the older names of three glibc versions
_LEGACY = {17: "manylinux2014", 12: "manylinux2010", 5: "manylinux1"}


def platforms(glibc_minor: int) -> Iterator[str]:
    """Yield the platform tags of x86-64 Linux with glibc 2.``glibc_minor``, best first."""
    for minor in range(glibc_minor, 4, -1):
        yield f"manylinux_2_{minor}_x86_64"
        if minor in _LEGACY:
            yield f"{_LEGACY[minor]}_x86_64"
    yield "linux_x86_64"


def ranks(minor: tuple[int, int], glibc_minor: int) -> dict[Tag, int]:
    """Return every tag that CPython ``minor`` takes with its rank; 0 is the best.

    Args:
        minor: the Python version, such as ``(3, 11)``.
        glibc_minor: the minor version of glibc 2.
    """
    names = list(platforms(glibc_minor))
    tags = (
        *cpython_tags(minor, platforms=names),
        *compatible_tags(minor, interpreter=f"cp{minor[0]}{minor[1]}", platforms=names),
    )
    return {tag: rank for rank, tag in reversed(list(enumerate(tags)))}


def choose(files: Iterable[str], tag_ranks: dict[Tag, int]) -> str | None:
    """Choose the wheel that an installer would: best tag, then highest build number.

    Args:
        files: names of wheel files of one version of one package.
        tag_ranks: what `ranks` gave.

    Returns:
        The file's name, or None where none fits.
    """
    best: tuple[int, tuple[int, str], str] | None = None
    for file in files:
        try:
            _, _, build, tags = parse_wheel_filename(file)
        except InvalidWheelFilename:
            continue  # installers pass over such names too
        fitting = [tag_ranks[tag] for tag in tags if tag in tag_ranks]
        if not fitting:
            continue
        number, rest = build or (-1, "")
        candidate = (-min(fitting), (number, rest), file)
        if best is None or candidate > best:
            best = candidate
    return None if best is None else best[2]
