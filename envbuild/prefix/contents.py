"""What a prefix must hold: read from verified wheels, never from what is installed."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import msgspec

from envbuild import forked
from envbuild.artifacts import wheel
from envbuild.lock.lockfile import Lock
from envbuild.prefix import receipt
from envbuild.relocation import installed, scripts
from envbuild.relocation.subject import Contents, Distribution, EntryPoint, Expected

_BATCH = 4


class _Held(msgspec.Struct, frozen=True):
    """What one wheel gives a prefix, by relative paths."""

    files: dict[str, Expected]
    scripts: dict[str, EntryPoint]


def distributions(lock: Lock, version: str) -> tuple[receipt.Distribution, ...]:
    """Return what of a lock is installed: the packages whose markers hold, sorted by name.

    Args:
        lock: the lock.
        version: of the interpreter, such as ``3.11.17``.
    """
    return tuple(
        receipt.Distribution(
            package.name, package.version, package.artifact.file, package.artifact.sha256
        )
        for package in lock.installed(installed.marker_environment(version))
    )


def contents(
    wheels: Sequence[receipt.Distribution],
    wheelhouse: Path,
    *,
    minor: str,
    own: frozenset[str] = frozenset(),
) -> Contents:
    """Read what a prefix must hold from the wheels that are installed in it.

    Args:
        wheels: what is installed, in the order of the lock.
        wheelhouse: the folder of their wheels, all verified.
        minor: of the prefix's Python, such as ``3.11``.
        own: names of packages whose compiled code was built here.

    Raises:
        InputError: a wheel is not one that is admitted.
        OSError: it cannot be read.
    """
    files: dict[str, Expected] = {}
    scripts: dict[str, EntryPoint] = {}
    paths = [wheelhouse / one.file for one in wheels if one.file is not None]
    held: dict[str, _Held] = {}

    def read(path: Path) -> tuple[str, _Held]:
        return path.name, _held(path, minor)

    with forked.over(read, paths, doing="reading wheels", batch=_BATCH) as results:
        for some in results:
            held.update(some)
    # in the lock's order, in which installers let a later package overwrite an earlier one
    for path in paths:
        files.update(held[path.name].files)
        scripts.update(held[path.name].scripts)
    return Contents(
        distributions=tuple(
            Distribution(one.name, one.version, one.file, own=one.name in own) for one in wheels
        ),
        files=files,
        scripts=scripts,
    )


def with_projects(held: Contents, prefix: Path, projects: Sequence[Distribution]) -> Contents:
    """Add projects that were just installed in editable form: their own RECORDs list their files.

    Args:
        held: what wheels give.
        prefix: where they were installed.
        projects: which.
    """
    if not projects:
        return held
    names = {one.name for one in projects}
    said = installed.recorded(prefix)
    files = {
        path: msgspec.structs.replace(one, digest="")
        for path, one in said.files.items()
        if installed.owner(one.origin) in names
    }
    points = {
        path: one for path, one in said.scripts.items() if installed.owner(one.origin) in names
    }
    return msgspec.structs.replace(
        held,
        distributions=(*held.distributions, *projects),
        files={**files, **held.files},
        scripts={**points, **held.scripts},
    )


def _held(path: Path, minor: str) -> _Held:
    """Read what a wheel gives a prefix: RECORD, in the places where installers put things."""
    admitted = wheel.scan(path)
    rewritten = wheel.read(
        path,
        [
            entry
            for entry in admitted.entries
            if not entry.is_folder and admitted.landing(entry.name)[0] == "scripts"
        ],
        begin=scripts.PLACEHOLDER,
    )
    named = f"{admitted.dist_info}/entry_points.txt"
    told = wheel.read(path, [entry for entry in admitted.entries if entry.name == named])
    text = told.get(named, b"").decode("utf-8", "replace")
    points = installed.entry_points(path.name, text)
    files: dict[str, Expected] = {}
    for one in admitted.record:
        folder, _, name = one.path.rpartition("/")
        if folder == admitted.dist_info and name in installed.ADDED:
            continue  # what installers write takes its place
        place = admitted.place(one.path, minor)
        script = admitted.landing(one.path)[0] == "scripts"
        if script and scripts.stands_for(place) in points:
            continue
        if one.path in rewritten:
            _, _, rest = rewritten[one.path].partition(b"\n")
            digest = hashlib.sha256(rest).hexdigest()
            files[place] = Expected(path.name, "sha256", digest, body=True)
        else:
            files[place] = Expected(path.name, one.algorithm, one.digest, one.size)
    return _Held(files, points)
