"""Admitting a wheel: what is checked once, before anything is installed or copied from it.

A wheel is a zip whose names end up in an environment, so it could name anything there. Installers
check little of that. Prefix and image rely on what holds here: no name leaves the place where it
belongs, every file has a digest in RECORD, nothing overwrites what the environment itself owns.
"""

from __future__ import annotations

import base64
import configparser
import csv
import email.parser
import hashlib
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from email.message import Message
from pathlib import Path
from typing import NamedTuple

import msgspec
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import InvalidVersion, Version

from envbuild.artifacts.archive import Archive, Entry
from envbuild.relocation import scripts

# Raised whenever a check is added: files that were admitted by fewer checks are scanned again.
SCAN_VERSION = 1

_SCHEMES = ("purelib", "platlib", "scripts", "headers", "data")

# RECORD cannot hold its own digest, nor that of the signatures of it (PEP 427).
_SIGNATURES = ("RECORD.jws", "RECORD.p7s")

# What PEP 427 allows, SHA-256 or better, and the size of such a digest in bytes.
_ALGORITHMS = {"sha256": 32, "sha384": 48, "sha512": 64}

# What `uv venv` makes, and what Python reads before any package: to replace one of these is to
# replace the environment. The names are exact: argcomplete's real scripts are called
# activate-global-python-argcomplete and python-argcomplete-check-easy-install-script. Python's site
# module prefers a pyvenv.cfg in bin to the one above.
_OWNED = re.compile(
    r"""
    (?: (?: bin/ )? pyvenv\.cfg | CACHEDIR\.TAG | \.gitignore | \.lock | lib64
      | bin/python(?: w | \d+(?:\.\d+)?t? )?
      | bin/(?: activate(?:\.\w+)? | activate_this\.py | deactivate(?:\.bat)? | pydoc\.bat )
      | lib/python[^/]*/site-packages/_virtualenv\.(?: py | pth )
      | lib/python[^/]*/site-packages/__pycache__/_virtualenv\.[^/]*
    ) (?: /.* )?
    | bin | include | lib | lib/python[^/]* | lib/python[^/]*/site-packages
    """,
    re.VERBOSE | re.DOTALL,
)


class Recorded(msgspec.Struct, frozen=True):
    """What is known of one file of a wheel, from RECORD.

    Attributes:
        path: the entry's name in the wheel.
        algorithm: ``sha256``, ``sha384`` or ``sha512``.
        digest: in hexadecimal digits.
        size: in bytes.
        amended: whether RECORD is wrong about it and the digest was taken from the wheel instead.
    """

    path: str
    algorithm: str
    digest: str
    size: int
    amended: bool = False


class WheelContents(msgspec.Struct, frozen=True):
    """What an admitted wheel holds.

    Attributes:
        file: the wheel's file name.
        name: the distribution's normalised name (PEP 503).
        version: its normalised version (PEP 440).
        dist_info: the name of its ``.dist-info`` folder.
        entries: files and folders, in the order in which they lie in the wheel.
        record: a line for every file but RECORD itself and its signatures.
    """

    file: str
    name: str
    version: str
    dist_info: str
    entries: tuple[Entry, ...]
    record: tuple[Recorded, ...]

    @property
    def unpacked_size(self) -> int:
        """The sum of the files' sizes, in bytes."""
        return sum(entry.size for entry in self.entries)

    @property
    def data(self) -> str:
        """The name that its ``.data`` folder has if there is one (PEP 427)."""
        return self.dist_info.removesuffix(".dist-info") + ".data"

    def landing(self, entry: str) -> tuple[str, str]:
        """Return the scheme and the path below it to which an entry is installed (PEP 427).

        Args:
            entry: the name of a file in the wheel. What is not in ``.data`` goes to ``purelib``:
                in a virtual environment that is the same folder as ``platlib``.
        """
        head, _, rest = entry.partition("/")
        if head != self.data:
            return "purelib", entry
        scheme, _, path = rest.partition("/")
        return scheme, path

    def place(self, entry: str, minor: str) -> str:
        """Return where in a virtual environment an entry is installed (sysconfig's ``venv``).

        Args:
            entry: the name of a file in the wheel.
            minor: the environment's Python, such as ``3.11``.
        """
        scheme, path = self.landing(entry)
        match scheme:
            case "data":
                return path
            case "scripts":
                return f"bin/{path}"
            case "headers":
                return f"include/site/python{minor}/{self.name}/{path}"
        return f"lib/python{minor}/site-packages/{path}"


def scan(path: Path, *, file: str | None = None) -> WheelContents:
    """Check a wheel and return what it holds.

    The zip's directory and local headers are read, and the few files that describe the wheel; the
    content of the others is not: their digests stand in RECORD. A digest there can be wrong, as in
    published wheels whose libraries were signed afterwards; where the size shows it, the digest of
    what is in the wheel takes its place.

    Args:
        path: the wheel.
        file: its file name, if it lies under a temporary one.

    Raises:
        InputError: it is not a wheel as PEP 427 has it, two programs could read it differently, or
            it would overwrite what an environment owns. The message names wheel and entry.
        OSError: it cannot be read.
    """
    file = path.name if file is None else file
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return _scan(Archive(descriptor, file), file)
    finally:
        os.close(descriptor)


def read(path: Path, entries: Iterable[Entry], *, begin: bytes = b"") -> dict[str, bytes]:
    """Return the contents of some entries of an admitted wheel, by their names.

    Args:
        path: the wheel.
        entries: which of those that `scan` gave.
        begin: only of those whose content begins so.

    Raises:
        InputError: an entry's content is not what the zip's directory says.
        OSError: the wheel cannot be read.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        archive = Archive(descriptor, path.name)
        return {
            entry.name: archive.content(entry) for entry in entries if archive.begins(entry, begin)
        }
    finally:
        os.close(descriptor)


class _Wheel(NamedTuple):
    archive: Archive
    files: Mapping[str, Entry]

    def text(self, name: str) -> str:
        entry = self.files.get(name)
        if entry is None:
            raise self.archive.refused("not in the wheel", name)
        try:
            return self.archive.content(entry).decode()
        except UnicodeDecodeError as error:
            raise self.archive.refused(f"not UTF-8 at byte {error.start}", name) from error

    def headers(self, name: str) -> Message:
        return email.parser.Parser().parsestr(self.text(name), headersonly=True)


def _scan(archive: Archive, file: str) -> WheelContents:
    try:
        name, version, _, _ = parse_wheel_filename(file)
    except (InvalidWheelFilename, InvalidVersion) as error:
        raise archive.refused(
            "not a wheel's file name", expected="NAME-VERSION(-BUILD)-PYTHON-ABI-PLATFORM.whl"
        ) from error
    entries = archive.entries()
    wheel = _Wheel(archive, {entry.name: entry for entry in entries if not entry.is_folder})
    dist_info = _find_dist_info(wheel, name, version)
    _check_metadata(wheel, f"{dist_info}/METADATA", name, version)
    _check_format(wheel, f"{dist_info}/WHEEL")
    record = tuple(_read_record(wheel, dist_info))
    contents = WheelContents(file, name, str(version), dist_info, entries, record)
    _check_places(wheel, contents)
    _check_scripts(wheel, f"{dist_info}/entry_points.txt")
    return contents


def _find_dist_info(wheel: _Wheel, name: str, version: Version) -> str:
    tops = {path.partition("/")[0] for path in wheel.files if "/" in path}
    found = sorted(top for top in tops if top.endswith(".dist-info"))
    if len(found) != 1:
        raise wheel.archive.refused(
            "not exactly one .dist-info folder", expected=1, found=", ".join(found) or "none"
        )
    its_name, _, its_version = found[0].removesuffix(".dist-info").partition("-")
    if canonicalize_name(its_name) != name or not _same_version(its_version, version):
        raise wheel.archive.refused(
            "the .dist-info folder of another project or version",
            expected=f"{name}-{version}.dist-info",
            found=found[0],
        )
    return found[0]


def _check_metadata(wheel: _Wheel, where: str, name: str, version: Version) -> None:
    headers = wheel.headers(where)
    names = [text.strip() for text in headers.get_all("Name", [])]
    versions = [text.strip() for text in headers.get_all("Version", [])]
    if (
        list(map(canonicalize_name, names)) != [name]
        or len(versions) != 1
        or not _same_version(versions[0], version)
    ):
        raise wheel.archive.refused(
            "its Name and Version are not those of the file name",
            where,
            expected=f"{name} {version}",
            found=" ".join(names + versions) or "none",
        )


def _same_version(text: str, version: Version) -> bool:
    try:
        return Version(text) == version
    except InvalidVersion:
        return False


def _check_format(wheel: _Wheel, where: str) -> None:
    found = [text.strip() for text in wheel.headers(where).get_all("Wheel-Version", [])]
    if len(found) != 1 or re.fullmatch(r"1\.\d+", found[0]) is None:
        raise wheel.archive.refused(
            "unknown Wheel-Version", where, expected="1.x", found=", ".join(found) or "none"
        )


def _read_record(wheel: _Wheel, dist_info: str) -> Iterator[Recorded]:
    where = f"{dist_info}/RECORD"
    exempt = {where, *(f"{dist_info}/{name}" for name in _SIGNATURES)}
    listed: set[str] = set()
    for path, digest, size in _lines(wheel, where):
        if path in listed:
            raise wheel.archive.refused("in RECORD twice", path)
        listed.add(path)
        if path not in exempt:
            if path not in wheel.files:
                raise wheel.archive.refused("in RECORD, but not in the wheel", path)
            yield _recorded(wheel, wheel.files[path], digest, size)
    for path in wheel.files:
        if path not in listed and path not in exempt:
            raise wheel.archive.refused("in the wheel, but not in RECORD", path)


def _lines(wheel: _Wheel, where: str) -> Iterator[tuple[str, str, str]]:
    reader = csv.reader(wheel.text(where).splitlines(keepends=True), strict=True)
    try:
        for row in filter(None, reader):
            path, digest, size = row
            yield path, digest, size
    except (csv.Error, ValueError) as error:
        raise wheel.archive.refused(
            f"line {reader.line_num} cannot be read", where, expected="PATH,DIGEST,SIZE"
        ) from error


def _recorded(wheel: _Wheel, entry: Entry, text: str, size: str) -> Recorded:
    algorithm, _, encoded = text.partition("=")
    digest = _decode(encoded, _ALGORITHMS.get(algorithm, 0))
    if not digest:
        raise wheel.archive.refused(
            "no usable digest in RECORD",
            entry.name,
            expected="sha256=, sha384= or sha512= and base64url",
            found=text or "none",
        )
    if size != str(entry.size):
        # debugpy 1.6.3 (DLLs signed after RECORD was written) and decord 0.6.0 are such wheels. The
        # lock's digest covers the wheel, so that what is in it is what its publisher gave out.
        digest = hashlib.new(algorithm, wheel.archive.content(entry)).digest()
        return Recorded(entry.name, algorithm, digest.hex(), entry.size, amended=True)
    return Recorded(entry.name, algorithm, digest.hex(), entry.size)


def _decode(encoded: str, size: int) -> bytes:
    """Return a digest of ``size`` bytes; nothing if it is not one."""
    try:
        if len(encoded) == 2 * size:  # gmsh 4.15.2 has them in hexadecimal digits
            return bytes.fromhex(encoded)
        digest = base64.b64decode(encoded + "=" * (-len(encoded) % 4), b"-_", validate=True)
    except ValueError:
        return b""
    return digest if len(digest) == size else b""


def _check_places(wheel: _Wheel, contents: WheelContents) -> None:
    """Refuse files that are installed where another file is, or where nobody can tell."""
    landed: dict[str, str] = {}
    for name in wheel.files:
        top, _, rest = name.partition("/")
        if top.endswith(".data") and rest:
            if top != contents.data:
                # pip installs from any .data folder, uv from this one
                raise wheel.archive.refused(
                    "a .data folder of another name", name, expected=contents.data
                )
            if rest.partition("/")[0] not in _SCHEMES or "/" not in rest:
                raise wheel.archive.refused(
                    "not in a folder that installers know", name, expected=", ".join(_SCHEMES)
                )
        path = contents.place(name, "3")
        if _OWNED.fullmatch(path):
            raise wheel.archive.refused(
                "would overwrite what the environment owns", name, found=path
            )
        other = landed.setdefault(path, name)
        if other != name:
            raise wheel.archive.refused("is installed where another entry is", name, found=other)


def _check_scripts(wheel: _Wheel, where: str) -> None:
    if where not in wheel.files:
        return
    try:
        points = scripts.entry_points(wheel.text(where))
    except configparser.Error as error:
        first = str(error).splitlines()[0]
        raise wheel.archive.refused(f"cannot be read: {first}", where) from error
    for script in points:
        if "/" in script or script in (".", ".."):
            raise wheel.archive.refused("not a name for a script", where, found=script)
        if _OWNED.fullmatch(f"bin/{script}"):
            raise wheel.archive.refused(
                "would overwrite what the environment owns", where, found=f"bin/{script}"
            )
