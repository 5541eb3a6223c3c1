"""Looking at one file of a prefix, once: what it is decides which rules look at its content."""

from __future__ import annotations

import hashlib
import mmap
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path

import msgspec

from envbuild.findings import Finding
from envbuild.relocation import elf, fatbin, files, installed, place, scripts, text
from envbuild.relocation.elf import Elf
from envbuild.relocation.fatbin import DeviceCode
from envbuild.relocation.subject import EntryPoint, Expected, Subject
from envbuild.relocation.text import PathLine, Place

# Larger files are hashed piece by piece; what is read of them besides are their tables
_WHOLE = 4 << 20
_CHUNK = 1 << 18

_HASHES = {"sha256": hashlib.sha256, "sha384": hashlib.sha384, "sha512": hashlib.sha512}

_PACKAGES = re.compile(r"lib/python3\.\d+t?/site-packages")


class Compiled(msgspec.Struct, frozen=True):
    """A file of compiled code.

    Attributes:
        path: relative to the prefix.
        elf: its tables; None where they cannot be read.
        fault: why they cannot be.
        published: whether it stands so in a published wheel.
        own: whether its code was built here.
        module: whether it is an extension module, which Python loads by import.
        device: device code in it; looked for in own files only.
    """

    path: str
    elf: Elf | None
    fault: str | None
    published: bool
    own: bool
    module: bool
    device: tuple[DeviceCode, ...] = ()


class Seen(msgspec.Struct, frozen=True, gc=False):
    """What was seen of a file, folder or link.

    Attributes:
        path: relative to the prefix.
        mode: of the file, with its type.
        size: in bytes.
        changed: the times of its last changes of content and of anything, in nanoseconds.
        sha256: of its content, or of a link's target; None for folders and byte code.
        node: device and inode of a file that has further names, with their number.
        findings: what is not as it should be.
        lines: of ``.pth`` files, those that are run.
        kept: its content, where other rules need it; of a link, its target.
        compiled: what it is if it is compiled code.
    """

    path: str
    mode: int
    size: int
    changed: tuple[int, int]
    sha256: str | None = None
    node: tuple[int, int, int] | None = None
    findings: tuple[Finding, ...] = ()
    lines: tuple[PathLine, ...] = ()
    kept: bytes | None = None
    compiled: Compiled | None = None


class Looker:
    """Looks at the files of a prefix.

    Args:
        subject: what the prefix is held to.
        expected: what files must be, by their relative paths.
        points: the entry points of scripts, by their relative paths.
        owner: whose the prefix is.
        own: names of distributions' folders and files of own builds, relative to the prefix.
    """

    def __init__(
        self,
        subject: Subject,
        expected: dict[str, Expected],
        points: dict[str, EntryPoint],
        *,
        owner: int,
        own: frozenset[str] = frozenset(),
    ) -> None:
        self._subject = subject
        self._files = expected
        self._points = points
        self._owner = owner
        self._own = own
        self._written: dict[str, str] = {}
        self._modes: dict[str, int] | None = None
        if subject.contents is not None and subject.contents.written is not None:
            self._written = subject.contents.written
            self._modes = subject.contents.modes
        self._foreign = text.foreign(subject)

    def look(self, path: str, *, listed: bool = False) -> Seen | None:
        """Look at a file, folder or link; None if it is gone, as Python's temporary files are.

        Args:
            path: relative to the prefix.
            listed: whether a distribution lists the file, where it is not known which files are.

        Raises:
            OSError: it cannot be read.
        """
        where = f"{self._subject.prefix}/{path}"
        try:
            status = os.lstat(where)
        except FileNotFoundError:
            return None
        changed = (status.st_mtime_ns, status.st_ctime_ns)
        if stat.S_ISLNK(status.st_mode):
            return self._link(path, status, str(Path(where).readlink()))
        if stat.S_ISDIR(status.st_mode):
            modes = place.mode(where, status, self._subject, owner=self._owner, program=False)
            return Seen(path, status.st_mode, 0, changed, findings=tuple(modes))
        if stat.S_ISREG(status.st_mode):
            try:
                return self._file(path, status, listed=listed)
            except FileNotFoundError:
                return None
            except OSError as error:
                unread = (*self._unread(where, status, error),)
                return Seen(path, status.st_mode, status.st_size, changed, findings=unread)
        strange = (self._strange(where, status),)
        return Seen(path, status.st_mode, status.st_size, changed, findings=strange)

    def _link(self, path: str, status: os.stat_result, target: str) -> Seen:
        where = f"{self._subject.prefix}/{path}"
        findings: tuple[Finding, ...] = ()
        written = self._written.get(path)
        if written is not None and written != link(target):
            findings = (
                Finding(
                    "M002",
                    "error",
                    where,
                    "is another link than when the prefix was created",
                    expected=written,
                    found=link(target),
                    mend=self._subject.again,
                ),
            )
        return Seen(
            path,
            status.st_mode,
            status.st_size,
            (status.st_mtime_ns, status.st_ctime_ns),
            hashlib.sha256(os.fsencode(target)).hexdigest(),
            findings=findings,
            kept=os.fsencode(target),
        )

    def _file(self, path: str, status: os.stat_result, *, listed: bool) -> Seen:
        findings: list[Finding] = []
        subject = self._subject
        at = Place(subject.prefix, path)
        expected = self._files.get(path)
        byte_code = path.endswith(".pyc") and "/__pycache__/" in path
        algorithm = "sha256" if expected is None else expected.algorithm
        descriptor = os.open(str(at), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            read_whole = byte_code or (expected is not None and expected.body)
            small = status.st_size <= (files.MOST if read_whole else _WHOLE)
            data = _whole(descriptor, status.st_size) if small else os.pread(descriptor, 64, 0)
            sums = {}
            if expected is not None or not byte_code:
                names = ("sha256",) if algorithm == "sha256" else ("sha256", algorithm)
                for name in names:
                    sums[name] = (
                        _HASHES[name](data).hexdigest() if small else _digest(descriptor, name)
                    )
            code = elf.is_elf(data)
            program = path.startswith("bin/") and (code or data.startswith(b"#!"))
            modes = list(place.mode(str(at), status, subject, owner=self._owner, program=program))
            findings += modes or ([] if byte_code else self._mode_changed(at, status))
            same = self._as_expected(at, expected, sums, data, findings)
            published = same and not self._is_own(path)
            if subject.contents is None and path.startswith("bin/") and not code:
                published = False  # its RECORD lists what an installer wrote
            compiled = None
            if code:
                content = data if small else None
                own = self._is_own(at.path)
                compiled = read_code(at.path, descriptor, content, published=published, own=own)
        finally:
            os.close(descriptor)
        lines: list[PathLine] = []
        if small:
            listed = listed or expected is not None or path in self._written
            for one in self._text(at, data, published=published, listed=listed):
                if isinstance(one, Finding):
                    findings.append(one)
                else:
                    lines.append(one)
        return Seen(
            path,
            status.st_mode,
            status.st_size,
            (status.st_mtime_ns, status.st_ctime_ns),
            None if byte_code else sums["sha256"],
            (status.st_dev, status.st_ino, status.st_nlink) if status.st_nlink > 1 else None,
            tuple(findings),
            tuple(lines),
            _kept(path, data),
            compiled,
        )

    def _mode_changed(self, at: Place, status: os.stat_result) -> Iterator[Finding]:
        """P002 for a file that the receipt knows: its mode is as it was."""
        known = self._files.get(at.path) or self._points.get(at.path) or self._written.get(at.path)
        if self._modes is None or known is None:
            return
        was = self._modes.get(at.path, 0o644)
        now = stat.S_IMODE(status.st_mode)
        if now != was:
            yield Finding(
                "P002",
                "error",
                str(at),
                "has another mode than when the prefix was created",
                expected=f"{was:04o}",
                found=f"{now:04o}",
                mend=f"chmod {was:04o} {at}",
            )

    def _as_expected(
        self,
        at: Place,
        expected: Expected | None,
        sums: dict[str, str],
        data: bytes,
        findings: list[Finding],
    ) -> bool:
        """M002 for one file: hold its content to the wheel's. Return whether it is the same."""
        point = self._points.get(at.path)
        if point is not None:
            wrong = scripts.fault(scripts.shebang(data).body, point.module, point.attribute)
            if wrong is not None:
                findings.append(
                    Finding(
                        "M002",
                        "error",
                        str(at),
                        f"is not what an installer writes for an entry point: it {wrong}",
                        expected=f"a call of {point.module}:{point.attribute}, by {point.origin}",
                        found=f"SHA-256 {sums['sha256']}",
                        mend=self._subject.again,
                    )
                )
        elif expected is not None and expected.digest:
            if expected.body:
                body = scripts.shebang(data).body
                found = _HASHES[expected.algorithm](body).hexdigest()
            else:
                found = sums[expected.algorithm]
            if found != expected.digest and at.path.endswith(".pyc") and "/__pycache__/" in at.path:
                return False  # byte code that a wheel brings along is compiled anew: numpy's
            if found != expected.digest:
                name = expected.algorithm.upper().replace("SHA", "SHA-")
                findings.append(
                    Finding(
                        "M002",
                        "error",
                        str(at),
                        f"is not as {expected.origin} has it",
                        expected=f"{name} {expected.digest}",
                        found=f"{name} {found}",
                        mend=self._subject.again,
                    )
                )
                return False
            if not expected.body:
                return True
        written = self._written.get(at.path)
        if written is not None and "sha256" in sums and sums["sha256"] != written:
            findings.append(
                Finding(
                    "M002",
                    "error",
                    str(at),
                    "was changed since the prefix was created",
                    expected=f"SHA-256 {written}",
                    found=f"SHA-256 {sums['sha256']}",
                    mend=self._subject.again,
                )
            )
        return False

    def _text(
        self, at: Place, data: bytes, *, published: bool, listed: bool
    ) -> Iterator[Finding | PathLine]:
        path = at.path
        folder, _, name = path.rpartition("/")
        subject = self._subject
        if path.endswith(".pyc"):
            if folder.endswith("__pycache__") and not published:
                yield from text.byte_code(at, data, subject)
            return
        if folder == "bin":
            yield from text.script(at, data, subject, published=published)
            if text.is_activation(at):
                yield from text.activation(at, data, subject)
        elif name.endswith((".pth", ".egg-link")) and _PACKAGES.fullmatch(folder):
            yield from text.path_file(at, data, subject, listed=listed)
        elif name.startswith("__editable__") and name.endswith(".py"):
            yield from installed.finder(str(at), data, subject)
        if self._foreign is not None and not published:
            yield from text.names_foreign(at, data, subject, self._foreign)

    def _is_own(self, path: str) -> bool:
        return path in self._own

    def _unread(self, where: str, status: os.stat_result, error: OSError) -> Iterator[Finding]:
        yield from place.mode(where, status, self._subject, owner=self._owner, program=False)
        yield Finding(
            "M002",
            "error",
            where,
            f"cannot be read: {error.strerror}",
            expected="a file that can be read",
            found=stat.filemode(status.st_mode),
            mend="verify it as the user who created it",
        )

    def _strange(self, where: str, status: os.stat_result) -> Finding:
        return Finding(
            "M002",
            "error",
            where,
            "is neither a file nor a folder nor a link",
            expected="files of installed packages, and what installers write",
            found=stat.filemode(status.st_mode),
            mend="remove it",
        )


def read_code(
    path: str, descriptor: int, data: bytes | None, *, published: bool, own: bool
) -> Compiled:
    """Read what the rules ask of a file of compiled code.

    Args:
        path: relative to the prefix.
        descriptor: the file, open.
        data: its content, if it was read.
        published: whether it stands so in a published wheel.
        own: whether its code was built here.
    """
    mapped = None
    if data is None:
        mapped = mmap.mmap(descriptor, 0, prot=mmap.PROT_READ)
    content = data if mapped is None else mapped
    assert content is not None
    name = path.rpartition("/")[2]
    try:
        tables = elf.read(content)
        stem = name.partition(".")[0]
        module = name.endswith(".so") and any(
            elf.defines(content, f"{begin}_{stem}") for begin in ("PyInit", "PyInitU")
        )
        device = fatbin.device_code(content) if own else ()
        return Compiled(path, tables, None, published, own, module, device)
    except elf.ElfError as error:
        return Compiled(path, None, str(error), published, own, module=False)
    finally:
        if mapped is not None:
            mapped.close()


def link(target: str) -> str:
    """Write a link as receipts do."""
    return f"-> {target}"


def _whole(descriptor: int, size: int) -> bytes:
    data = os.read(descriptor, size + 1)
    if len(data) >= size:
        return data
    pieces = [data]
    while piece := os.read(descriptor, _CHUNK):
        pieces.append(piece)
    return b"".join(pieces)


def _digest(descriptor: int, algorithm: str) -> str:
    digest = _HASHES[algorithm]()
    at = 0
    while piece := os.pread(descriptor, _CHUNK, at):
        digest.update(piece)
        at += len(piece)
    return digest.hexdigest()


def _kept(path: str, data: bytes) -> bytes | None:
    """Keep what the rules for distributions need: metadata without its description, addresses."""
    folder, _, name = path.rpartition("/")
    if not folder.endswith((".dist-info", ".egg-info")) or not _PACKAGES.fullmatch(
        folder.rpartition("/")[0]
    ):
        return None  # packages carry others' metadata inside them, which Python does not look at
    if name in ("METADATA", "PKG-INFO"):
        return re.split(rb"\r?\n\r?\n", data, maxsplit=1)[0]
    return data if name == "direct_url.json" else None
