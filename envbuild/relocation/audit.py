"""Auditing a prefix: every rule for what lies in it, in one pass that reads each file once."""

from __future__ import annotations

import hashlib
import os
import stat
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import msgspec

from envbuild import forked
from envbuild.digest import sha256_bytes, sha256_file
from envbuild.findings import Finding
from envbuild.relocation import files, installed, interpreter, place
from envbuild.relocation.compiled import Code
from envbuild.relocation.installed import Metadata
from envbuild.relocation.look import Looker, Seen, link
from envbuild.relocation.subject import Contents, Subject

_BATCH = 48
# What a quick look reads at most of a file, in bytes
_QUICK = 1 << 20


Watch = Callable[[int], AbstractContextManager[Callable[[int], None]]]


@contextmanager
def _unwatched(_total: int) -> Iterator[Callable[[int], None]]:
    yield lambda _done: None


class Audit(msgspec.Struct, frozen=True):
    """What an audit found.

    Attributes:
        findings: what is not as it should be, sorted by code and place.
        notes: what a person should know besides: lines of ``.pth`` files that are run.
        manifest_sha256: the digest of the prefix's manifest.
        modes: relative path to the permissions of files that have others than 0644.
        files: how many files, folders and links were looked at.
        size: of the files, in bytes.
        written: relative path to the SHA-256 of files, and to the target of links, that no wheel
            holds as they are.
        state: what the prefix was like, if that was asked for; see `state`.
    """

    findings: tuple[Finding, ...]
    notes: tuple[str, ...]
    manifest_sha256: str
    modes: dict[str, int]
    files: int
    size: int
    written: dict[str, str]
    state: str | None


def quick(subject: Subject) -> Iterator[Finding]:
    """Check what needs no reading of files: P001, P002 of the folders, P004, I001 to I004, M001."""
    prefix = Path(subject.prefix)
    yield from place.standing(subject)
    yield from place.ownership(subject)
    yield from place.unfinished(subject)
    yield from interpreter.check(subject)
    packages = installed.packages_folder(prefix)
    folders = prefix.glob(f"{packages}/*.dist-info") if packages else ()
    yield from installed.locked(
        [
            one
            for folder in sorted(folders)
            if (one := _by_name(folder, str(folder.relative_to(prefix)))) is not None
        ],
        subject,
    )
    yield from _binding(subject, packages)


def _binding(subject: Subject, packages: str | None) -> Iterator[Finding]:
    """Look at what binds a prefix to its path and is small: scripts, ``.pth`` files, addresses."""
    prefix = Path(subject.prefix)
    looker = Looker(subject, {}, {}, owner=prefix.stat().st_uid)
    places = [*prefix.glob("bin/*"), prefix / "pyvenv.cfg"]
    if packages:
        places += prefix.glob(f"{packages}/*.pth")
        places += prefix.glob(f"{packages}/*.egg-link")
    kept = []
    for path in sorted(places):
        if path.is_symlink() or (path.is_file() and path.stat().st_size <= _QUICK):
            seen = looker.look(str(path.relative_to(prefix)), listed=True)
            yield from seen.findings if seen is not None else ()
    for info in sorted(prefix.glob(f"{packages}/*.dist-info/direct_url.json")) if packages else []:
        folder = str(info.parent.relative_to(prefix))
        try:
            address = files.read(info)
        except OSError:
            address = b""  # what cannot be read is no address of this prefix
        kept.append(_by_name(info.parent, folder, address))
    yield from installed.pointing([one for one in kept if one is not None], subject)


def _by_name(folder: Path, place: str = "", direct_url: bytes | None = None) -> Metadata | None:
    """Tell name and version by the name of a ``.dist-info`` folder."""
    name, _, version = folder.name.removesuffix(".dist-info").rpartition("-")
    header = f"Name: {name}\nVersion: {version.replace('_', '+')}\n\n"
    return installed.metadata(place or folder.name, header.encode(), direct_url)


def audit(
    subject: Subject,
    *,
    jobs: int | None = None,
    watch: Watch = _unwatched,
    with_state: bool = False,
) -> Audit:
    """Check every rule for a prefix and what is in it.

    Args:
        subject: the prefix, and what it is held to.
        jobs: how many processes; the cores granted if not given.
        watch: is given the number of files, and yields what to call with those just looked at.
        with_state: whether the prefix's state is told.

    Raises:
        OSError: a file cannot be read.
        StepError: a process died.
    """
    prefix = Path(subject.prefix)
    contents = subject.contents
    listed = contents if contents is not None else installed.recorded(prefix)
    expected = listed.files
    looker = Looker(
        subject,
        expected,
        listed.scripts,
        owner=prefix.stat().st_uid,
        own=_own(listed),
    )
    paths = list(walk(subject.prefix))
    # the largest first, as far as wheels say, so that none is begun when all else is done
    paths.sort(key=lambda path: -(_size(listed, path)))
    seen: list[Seen] = []
    reading = forked.over(looker.look, paths, doing="reading the prefix", jobs=jobs, batch=_BATCH)
    # in this order: a bar is a thread, which no fork takes along
    with reading as results, watch(len(paths)) as advance:
        for some in results:
            seen += [one for one in some if one is not None]
            advance(len(some))
    seen.sort(key=lambda one: one.path)
    found = _judge(subject, listed, seen)
    if with_state:
        now = _state((one.path, one.mode, one.size, one.changed) for one in seen)
        found = msgspec.structs.replace(found, state=now)
    return found


def _size(listed: Contents, path: str) -> int:
    expected = listed.files.get(path)
    return 0 if expected is None or expected.size is None else expected.size


def _own(listed: Contents) -> frozenset[str]:
    """Return the files of distributions that were built here."""
    origins = {one.origin for one in listed.distributions if one.own}
    if not origins:
        return frozenset()
    return frozenset(path for path, one in listed.files.items() if one.origin in origins)


def walk(prefix: str) -> Iterator[str]:
    """Yield the relative paths of all folders, files and links, without following links."""
    todo = [""]
    while todo:
        folder = todo.pop()
        try:
            entries = list(os.scandir(f"{prefix}/{folder}"))
        except OSError:
            continue  # gone since, too deep, or closed to us: its own mode says so
        for entry in entries:
            path = f"{folder}{entry.name}"
            yield path
            if entry.is_dir(follow_symlinks=False):
                todo.append(f"{path}/")


def state(prefix: str) -> str:
    """Return a digest of what a prefix is like without reading it: names, modes, sizes, times.

    Byte code and folders are left out: Python writes it whenever it finds none.

    Args:
        prefix: its path.
    """
    seen = []
    for path in walk(prefix):
        status = os.lstat(f"{prefix}/{path}")
        times = (status.st_mtime_ns, status.st_ctime_ns)
        seen.append((path, status.st_mode, status.st_size, times))
    return _state(seen)


def _state(seen: Iterable[tuple[str, int, int, tuple[int, int]]]) -> str:
    digest = hashlib.sha256()
    for path, mode, size, changed in sorted(seen):
        if not stat.S_ISDIR(mode) and "/__pycache__/" not in path:
            digest.update(f"{path!a} {mode} {size} {changed}\n".encode())
    return digest.hexdigest()


def _judge(subject: Subject, listed: Contents, seen: list[Seen]) -> Audit:
    prefix = Path(subject.prefix)
    findings: list[Finding] = []
    findings += place.standing(subject)
    findings += place.ownership(subject)
    findings += place.unfinished(subject)
    findings += interpreter.check(subject)
    for one in seen:
        findings += one.findings
    paths = [one.path for one in seen if not stat.S_ISDIR(one.mode)]
    distributions = list(_distributions(seen))
    python = interpreter.find(prefix)
    said = interpreter.configuration(prefix)
    version = (
        subject.base.version
        if subject.base is not None
        else (python and python.version) or said.get("version_info") or said.get("version")
    )
    findings += installed.locked(distributions, subject)
    findings += installed.pointing(distributions, subject)
    if version:
        environment = installed.marker_environment(".".join(version.split(".")[:3]))
        findings += installed.satisfied(distributions, subject, environment)
    findings += installed.missing(paths, subject, listed)
    links = {one.path for one in seen if stat.S_ISLNK(one.mode)}
    findings += installed.unlisted(paths, links, subject, listed)
    findings += _linked(subject, seen)
    compiled = [one.compiled for one in seen if one.compiled is not None]
    minor = python.minor if python is not None else None
    findings += Code(subject, compiled, set(paths), minor).check()
    wheels = listed.files
    return Audit(
        findings=tuple(sorted(findings, key=lambda one: (one.code, one.where, one.message))),
        notes=tuple(
            f"{line.place} runs whenever Python starts: {_short(line.line)}"
            for one in seen
            for line in one.lines
        ),
        manifest_sha256=manifest(seen),
        modes={
            one.path: stat.S_IMODE(one.mode)
            for one in seen
            if stat.S_ISREG(one.mode)
            and stat.S_IMODE(one.mode) != 0o644
            and "/__pycache__/" not in one.path
        },
        files=len(seen),
        size=sum(one.size for one in seen if stat.S_ISREG(one.mode)),
        written={
            one.path: one.sha256
            if not stat.S_ISLNK(one.mode)
            else link(os.fsdecode(one.kept or b""))
            for one in seen
            if one.sha256 is not None
            and "/__pycache__/" not in one.path
            and (one.path not in wheels or not wheels[one.path].digest or wheels[one.path].body)
        },
        state=None,
    )


def _short(line: str) -> str:
    return line if len(line) <= 70 else f"{line[:70]}..."


def _distributions(seen: list[Seen]) -> Iterator[Metadata]:
    addresses = {
        one.path.rpartition("/")[0]: one.kept
        for one in seen
        if stat.S_ISREG(one.mode) and one.kept and one.path.endswith("/direct_url.json")
    }
    for one in seen:
        if stat.S_ISREG(one.mode) and one.kept and one.path.endswith(("/METADATA", "/PKG-INFO")):
            folder = one.path.rpartition("/")[0]
            read = installed.metadata(folder, one.kept, addresses.get(folder))
            if read is not None:
                yield read


def _linked(subject: Subject, seen: list[Seen]) -> Iterator[Finding]:
    """M005: no file has a name outside the prefix too."""
    if subject.links:
        return
    names: dict[tuple[int, int], list[str]] = defaultdict(list)
    counts: dict[tuple[int, int], int] = {}
    for one in seen:
        if one.node is not None:
            device, inode, number = one.node
            names[device, inode].append(one.path)
            counts[device, inode] = number
    for node, paths in names.items():
        if counts[node] > len(paths):
            yield Finding(
                "M005",
                "error",
                f"{subject.prefix}/{paths[0]}",
                "is one file with another outside the prefix: who edits that, edits this",
                expected=f"{len(paths)} name{'' if len(paths) == 1 else 's'}, in the prefix",
                found=f"{counts[node]} names",
                mend='give it files of its own, by link-mode = "copy" in the site\'s file or by '
                f"UV_LINK_MODE=copy, and {subject.again}",
            )


def manifest_of(folder: Path) -> str:
    """Return the digest of the manifest of a folder that no rule is for, an interpreter's.

    Raises:
        OSError: a file cannot be read.
    """

    def hashed(path: str) -> Seen:
        where = folder / path
        status = where.lstat()
        content = None
        if stat.S_ISLNK(status.st_mode):
            content = sha256_bytes(os.fsencode(where.readlink()))
        elif stat.S_ISREG(status.st_mode):
            content = sha256_file(where)
        return Seen(path, status.st_mode, status.st_size, (0, 0), content)

    paths = [path for path in walk(str(folder)) if "/__pycache__/" not in path]
    seen: list[Seen] = []
    with forked.over(hashed, paths, doing="reading the interpreter", batch=_BATCH) as results:
        for some in results:
            seen += some
    return manifest(seen)


def manifest(seen: list[Seen]) -> str:
    """Return the digest of a prefix's manifest.

    The manifest has a line for each file and link, sorted by path: the mode in octal (of a link
    ``link``), the SHA-256 of the content (of a link its target), and the path relative to the
    prefix, its bytes outside ASCII and its line ends escaped. Byte code is left out, since it
    holds the times of its sources.

    Args:
        seen: what is in the prefix.

    Returns:
        64 hexadecimal digits.
    """
    digest = hashlib.sha256()
    for one in sorted(seen, key=lambda one: one.path):
        if one.sha256 is None or "/__pycache__/" in one.path:
            continue
        kind = "link" if stat.S_ISLNK(one.mode) else f"{stat.S_IMODE(one.mode):04o}"
        digest.update(f"{kind} {one.sha256} {one.path!a}\n".encode())
    return digest.hexdigest()
