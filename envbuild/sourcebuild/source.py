"""The source of a build: an sdist unpacked, with the edits that its recipe declares."""

from __future__ import annotations

import shutil
import tarfile
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import IO

from envbuild.catalog.environment import Edit
from envbuild.errors import InputError, StepError

# What a source is unpacked as; its own top folder is named for the version, which is no matter here
_EXECUTABLE = 0o111


def unpack(sdist: Path, folder: Path, edits: Sequence[Edit], *, where: str) -> None:
    """Unpack an sdist and edit it; the folder is whole or not there.

    Args:
        sdist: the archive, already verified.
        folder: where its content is put, without the archive's own top folder.
        edits: what is replaced.
        where: the table of the recipe, for messages.

    Raises:
        StepError: the archive holds what no sdist does.
        InputError: an edit does not fit the source.
        OSError: it cannot be written.
    """
    half = folder.with_name(f"{folder.name}.new")
    if half.exists():
        shutil.rmtree(half)
    half.mkdir()
    for name, executable, content in _files(sdist):
        target = half / name
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("wb") as file:
            shutil.copyfileobj(content, file)
        target.chmod(0o755 if executable else 0o644)
    for index, edit in enumerate(edits):
        _apply(edit, half, f"{where}.edits[{index}]", sdist.name)
    half.rename(folder)


def _apply(edit: Edit, folder: Path, key: str, sdist: str) -> None:
    path = folder / edit.file
    if not path.is_file():
        raise InputError(
            f"the source has no file {edit.file}",
            where=key,
            expected=f"a file of {sdist}",
            mend="correct the edit's `file`",
        )
    text = path.read_bytes()
    replaced, by = edit.replace.encode(), edit.by.encode()
    times = text.count(replaced)
    if times != edit.times:
        raise InputError(
            f"the edit does not fit {edit.file} of {sdist}",
            where=key,
            expected=f"{edit.replace!r} {_times(edit.times)}",
            found=_times(times),
            mend="look what the file says now, and correct the edit",
        )
    path.write_bytes(text.replace(replaced, by))


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _files(sdist: Path) -> Iterator[tuple[PurePosixPath, bool, IO[bytes]]]:
    """Yield an archive's files: the path below its top folder, whether it is a program, content."""
    if sdist.name.endswith(".zip"):
        with zipfile.ZipFile(sdist) as archive:
            for info in archive.infolist():
                if not info.is_dir():
                    executable = bool(info.external_attr >> 16 & _EXECUTABLE)
                    with archive.open(info) as content:
                        yield _below(info.filename, sdist.name), executable, content
        return
    with tarfile.open(sdist) as packed:
        for member in packed:
            if member.isdir():
                continue
            content_of = packed.extractfile(member) if member.isreg() else None
            if content_of is None:
                raise StepError(
                    f"the sdist holds what is neither a file nor a folder: {member.name}",
                    where=sdist.name,
                    mend="its build cannot be reproduced: ask for another version",
                )
            yield _below(member.name, sdist.name), bool(member.mode & _EXECUTABLE), content_of


def _below(name: str, sdist: str) -> PurePosixPath:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or len(path.parts) < 2:
        raise StepError(
            f"the sdist holds a file beside its top folder: {name}",
            where=sdist,
            expected="paths in one folder (PEP 625)",
        )
    return PurePosixPath(*path.parts[1:])
