"""What wheels become in an image: the files that an installer would make of them, at one prefix."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import os
import posixpath
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from envbuild.artifacts import Artifact, wheel
from envbuild.artifacts.archive import MEND, Archive, Entry
from envbuild.artifacts.wheel import Recorded, WheelContents
from envbuild.errors import InputError, StepError
from envbuild.findings import Finding
from envbuild.image.layer import Layer, check_name
from envbuild.image.tar import Item
from envbuild.relocation import installed, scripts
from envbuild.relocation.subject import EntryPoint

COLLISION = "G001"

# The longest `#!` line that every kernel takes whole, in bytes (execve(2)).
_SHEBANG = 127
_DOTTED = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")
_LAUNCHER = """\
{shebang}
import re
import sys
from {module} import {name}
if __name__ == "__main__":
    sys.argv[0] = re.sub(r"(-script\\.pyw|\\.exe)?$", "", sys.argv[0])
    sys.exit({attribute}())
"""


class Target(msgspec.Struct, frozen=True):
    """Where wheels are installed.

    Attributes:
        prefix: the environment's absolute path in the image.
        minor: its Python, such as ``3.11``.
    """

    prefix: str
    minor: str

    @property
    def packages(self) -> str:
        """The folder of packages, relative to the prefix."""
        return f"lib/python{self.minor}/site-packages"

    def path(self, place: str) -> str:
        """Return the path in the image, relative to its root, of a place in the prefix."""
        return f"{self.prefix[1:]}/{place}"


class Held(msgspec.Struct, frozen=True):
    """What is known of a wheel once its directory was read.

    Attributes:
        contents: what it holds.
        points: the scripts that its entry points ask for, by their places in a prefix.
    """

    contents: WheelContents
    points: dict[str, EntryPoint]


class File(NamedTuple):
    """A file of a wheel that is installed.

    Attributes:
        entry: what it is in the wheel.
        place: where it goes in a prefix.
        said: its line in RECORD.
        script: whether it is a script of the wheel's own.
    """

    entry: Entry
    place: str
    said: Recorded
    script: bool


class Planned(msgspec.Struct, frozen=True):
    """A wheel as it goes into a layer.

    Attributes:
        artifact: the wheel.
        hidden: places in the prefix where a later wheel puts a file of its own.
    """

    artifact: Artifact
    hidden: tuple[str, ...] = ()


def read(path: Path) -> Held:
    """Read a wheel's directory and its entry points.

    Raises:
        InputError: it is not admitted; wheel and entry are named.
        OSError: it cannot be read.
    """
    contents = wheel.scan(path)
    name = f"{contents.dist_info}/entry_points.txt"
    found = wheel.read(path, [entry for entry in contents.entries if entry.name == name])
    text = found.get(name, b"").decode("utf-8", "replace")
    points = installed.entry_points(path.name, text)
    for one in (*(entry.name for entry in contents.entries), *points):
        check_name(one, f"{path.name}: {one}")
    for place, point in points.items():
        if not all(map(_DOTTED.fullmatch, (point.module, point.attribute))):
            raise InputError(
                f"no script can be made for the entry point {posixpath.basename(place)}",
                where=f"{path.name}: {name}",
                expected="NAME = MODULE:ATTRIBUTE",
                found=f"{point.module}:{point.attribute}",
                mend=MEND,
            )
    return Held(contents, points)


def files(held: Held, target: Target) -> list[File]:
    """Return the files of a wheel that are installed, but those that installers write anew.

    Args:
        held: what the wheel holds.
        target: where it is installed.
    """
    contents = held.contents
    recorded = {one.path: one for one in contents.record}
    own = set(_generated(held, target))
    found = []
    for entry in contents.entries:
        folder, _, name = entry.name.rpartition("/")
        written = folder == contents.dist_info and name in installed.ADDED
        if not entry.is_folder and not written:
            place = contents.place(entry.name, target.minor)
            script = place.startswith("bin/") and contents.landing(entry.name)[0] == "scripts"
            if place not in own and (not script or scripts.stands_for(place) not in held.points):
                found.append(File(entry, place, recorded[entry.name], script))
    return found


def _generated(held: Held, target: Target) -> list[str]:
    """Return where installers write what they say of an installed wheel."""
    info = f"{target.packages}/{held.contents.dist_info}"
    return [f"{info}/{name}" for name in ("INSTALLER", "REQUESTED", "RECORD")]


def plan(
    wheels: Sequence[Artifact],
    held: Mapping[str, Held],
    brought: Mapping[str, Sequence[File]],
    target: Target,
) -> tuple[list[Planned], list[Finding]]:
    """Settle which wheel a file is from where several bring it: the last one, as in an install.

    Args:
        wheels: in the order of the lock.
        held: what each holds, by file name.
        brought: its files, likewise.
        target: where they are installed.

    Returns:
        What of each wheel goes into the image, and a warning for every two that bring different
        content to one place.

    Raises:
        InputError: one brings a file where another needs a folder.
    """
    owners: dict[str, int] = {}
    hidden: list[list[str]] = [[] for _ in wheels]
    differing: dict[tuple[str, str], list[str]] = {}
    digests: dict[str, str] = {}
    for number, artifact in enumerate(wheels):
        places = [(place, "") for place in held[artifact.file].points]
        places += [(one.place, one.said.digest) for one in brought[artifact.file]]
        places += [(place, "") for place in _generated(held[artifact.file], target)]
        for place, digest in places:
            other = owners.get(place)
            if other is not None and other != number:
                hidden[other].append(place)
                if not digest or digest != digests[place]:
                    both = (wheels[other].file, artifact.file)
                    differing.setdefault(both, []).append(place)
            owners[place] = number
            digests[place] = digest
    _check_folders(owners, wheels)
    planned = [
        Planned(artifact, tuple(sorted(places)))
        for artifact, places in zip(wheels, hidden, strict=True)
    ]
    return planned, [_collision(both, places) for both, places in sorted(differing.items())]


def _check_folders(owners: Mapping[str, int], wheels: Sequence[Artifact]) -> None:
    """Refuse a file where another wheel needs a folder: an install of both fails, too."""
    folders: dict[str, int] = {}
    for place, number in owners.items():
        folder = posixpath.dirname(place)
        while folder and folder not in folders:
            folders[folder] = number
            folder = posixpath.dirname(folder)
    for place in sorted(owners.keys() & folders.keys()):
        raise InputError(
            "a file in one wheel, a folder in another",
            where=place,
            found=f"{wheels[owners[place]].file} and {wheels[folders[place]].file}",
            mend="exclude one of the two packages in the environment's file",
        )


def _collision(both: tuple[str, str], places: Sequence[str]) -> Finding:
    more = f" and {len(places) - 1} more" if len(places) > 1 else ""
    return Finding(
        COLLISION,
        "warning",
        places[0] + more,
        f"{both[0]} and {both[1]} bring different files of one name",
        found=f"that of {both[1]}, which comes later in the lock",
        mend="if the other one is needed, exclude that package in the environment's file",
    )


def write(
    layer: Layer,
    planned: Planned,
    held: Held,
    brought: Sequence[File],
    path: Path,
    target: Target,
    *,
    verify_record: bool = False,
) -> None:
    """Install a wheel into a layer.

    Args:
        layer: the layer.
        planned: the wheel, and what of it is not wanted.
        held: what is in it.
        brought: its files.
        path: where it lies.
        target: where it is installed.
        verify_record: whether each file's digest in RECORD is checked, too.

    Raises:
        InputError: an entry is not what the zip or RECORD says; wheel and entry are named.
        StepError: the wheel is not the one that is locked, or changed while it was read.
        OSError: it cannot be read.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        before = _state(descriptor)
        _check_artifact(descriptor, planned.artifact, path)
        rows = _Rows(layer, target, frozenset(planned.hidden))
        archive = Archive(descriptor, planned.artifact.file)
        _write_files(archive, brought, descriptor, rows, verify_record=verify_record)
        for place, point in sorted(held.points.items()):
            # data that a wheel has there takes the place of a script for an entry point
            if not rows.there(place):
                rows.add(place, _launcher(target, point), mode=0o755)
        installer, requested, record = _generated(held, target)
        rows.add(installer, b"envbuild\n")
        rows.add(requested, b"")
        rows.close(record)
        if _state(descriptor) != before:
            raise StepError(
                "the wheel changed while it was read",
                where=path,
                mend="see who writes to the wheelhouse, and run it again",
            )
    finally:
        os.close(descriptor)


def _write_files(
    archive: Archive, brought: Sequence[File], descriptor: int, rows: _Rows, *, verify_record: bool
) -> None:
    for entry, place, said, script in brought:
        if script and archive.begins(entry, scripts.PLACEHOLDER):
            rows.add(place, _rewritten(rows.target, archive.content(entry)), mode=0o755)
        elif rows.list(place, said.algorithm, said.digest, entry.size):
            mode = 0o755 if script or entry.mode & 0o111 else 0o644
            digest = f"{said.algorithm}:{said.digest}" if verify_record else ""
            item = Item(rows.target.path(place), mode=mode)
            rows.layer.splice(item, entry, descriptor, archive.label, digest)


def _state(descriptor: int) -> tuple[int, int, int]:
    facts = os.fstat(descriptor)
    return facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns


def _check_artifact(descriptor: int, artifact: Artifact, path: Path) -> None:
    with os.fdopen(os.dup(descriptor), "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != artifact.sha256:
        raise StepError(
            "the wheel is not the one that is locked",
            where=path,
            expected=artifact.described,
            found=f"SHA-256 {digest}",
            mend="run `envbuild fetch`, which replaces it",
        )


class _Rows:
    """The files of one wheel that go into a layer, and their lines in RECORD (PEP 376 and 427).

    Args:
        layer: where the files go.
        target: where they are installed.
        hidden: places of files that only get a line.
    """

    def __init__(self, layer: Layer, target: Target, hidden: frozenset[str]) -> None:
        self.layer = layer
        self.target = target
        self._hidden = hidden
        self._rows: dict[str, tuple[str, str]] = {}

    def add(self, place: str, content: bytes, mode: int = 0o644) -> None:
        """Add a file that is generated."""
        if self.list(place, "sha256", hashlib.sha256(content).hexdigest(), len(content)):
            self.layer.add(Item(self.target.path(place), mode=mode, content=content))

    def list(self, place: str, algorithm: str, digest: str, size: int) -> bool:
        """Add a file's line, and say whether the file is wanted."""
        encoded = base64.urlsafe_b64encode(bytes.fromhex(digest)).rstrip(b"=").decode()
        self._rows[self._relative(place)] = (f"{algorithm}={encoded}", str(size))
        return place not in self._hidden

    def there(self, place: str) -> bool:
        """Whether a file has a line."""
        return self._relative(place) in self._rows

    def close(self, place: str) -> None:
        """Add RECORD itself, which has a line without a digest there."""
        rows = {**self._rows, self._relative(place): ("", "")}
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerows((path, *rows[path]) for path in sorted(rows))
        if place not in self._hidden:
            record = Item(self.target.path(place), content=text.getvalue().encode())
            self.layer.add(record, mark=b",sha256=")

    def _relative(self, place: str) -> str:
        inside = place.removeprefix(self.target.packages + "/")
        return posixpath.relpath(place, self.target.packages) if inside == place else inside


def _launcher(target: Target, point: EntryPoint) -> bytes:
    return _LAUNCHER.format(
        shebang=_shebang(target),
        module=point.module,
        name=point.attribute.partition(".")[0],
        attribute=point.attribute,
    ).encode()


def _rewritten(target: Target, script: bytes) -> bytes:
    """Put the environment's interpreter in the place of a script's first line (PEP 427)."""
    # all of it, as uv and pip do: "#!pythonw -O\r\n" too, which tells windows apart elsewhere
    first = script.splitlines(keepends=True)[0]
    return f"{_shebang(target)}\n".encode() + script.removeprefix(first)


def _shebang(target: Target) -> str:
    path = f"{target.prefix}/bin/python"
    if len(path) + 2 <= _SHEBANG:
        return f"#!{path}"
    # the shell starts Python, to which its line is a string
    return f"#!/bin/sh\n'''exec' {path} \"$0\" \"$@\"\n' '''"
