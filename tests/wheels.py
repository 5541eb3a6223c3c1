"""Small wheels and sdists for tests: right ones, and ones with a planted fault.

The zip is written here byte by byte, since no library writes a wrong one. Equal arguments give
equal bytes.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import struct
import tarfile
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypedDict, Unpack

import msgspec

# 1980-01-01 00:00:00, the first moment that a zip can hold
_TIME, _DATE = 0, 0x21
_FULL16, _FULL32 = 0xFFFF, 0xFFFFFFFF

Row = tuple[str, ...]


class Said(msgspec.Struct, frozen=True):
    """What one of the two headers says of a member, where it is not the truth."""

    name: bytes | None = None
    flags: int | None = None
    method: int | None = None
    crc: int | None = None
    stored_size: int | None = None
    size: int | None = None
    offset: int | None = None


class Member(msgspec.Struct, frozen=True):
    """A member of a zip.

    Attributes:
        name: as it stands in both headers.
        content: what it inflates to.
        deflate: whether it is compressed.
        flags: general purpose bits, besides that of the descriptor.
        mode: Unix mode with the file's type.
        descriptor: CRC and sizes stand behind the content: a `struct` layout such as ``<4s3L``.
        zip64: both headers hold the sizes in an extra field.
        extra: further extra fields of both headers.
        padding: bytes behind the content that belong to nothing.
        local: what the local header says instead of the truth.
        central: what the directory says instead of the truth.
    """

    name: bytes
    content: bytes = b""
    deflate: bool = True
    flags: int = 0
    mode: int = 0o100644
    descriptor: str = ""
    zip64: bool = False
    extra: bytes = b""
    padding: bytes = b""
    local: Said = Said()
    central: Said = Said()


Plant = Callable[[list[Member]], list[Member]]


def change(name: str, **changes: object) -> Plant:
    """Plant a change of one member: its attributes by keyword."""

    def plant(members: list[Member]) -> list[Member]:
        assert any(member.name == name.encode() for member in members), name
        return [
            msgspec.structs.replace(member, **changes) if member.name == name.encode() else member
            for member in members
        ]

    return plant


def append(*more: Member) -> Plant:
    """Plant further members, of which RECORD says nothing."""
    return lambda members: [*members, *more]


class ZipOptions(TypedDict, total=False):
    """How a zip is written, besides its members.

    Attributes:
        before: bytes before the first member; all offsets are right.
        after: bytes behind the end record.
        comment: of the end record.
        zip64: whether it has a zip64 end record.
        count: the number of members that the end record claims.
    """

    before: bytes
    after: bytes
    comment: bytes
    zip64: bool
    count: int


def make_zip(members: Iterable[Member], **options: Unpack[ZipOptions]) -> bytes:
    """Write a zip of members, in their order."""
    comment = options.get("comment", b"")
    body = bytearray(options.get("before", b""))
    directory = bytearray()
    total = 0
    for member in members:
        offset = len(body)
        local, stored = _local(member)
        body += local + stored + member.padding
        directory += _central(member, offset, len(stored) - _descriptor_size(member))
        total += 1
    count = options.get("count", total)
    start = len(body)
    body += directory
    end = (count, count, len(directory), start)
    if options.get("zip64"):
        record = struct.pack("<4sQ2H2L4Q", b"PK\6\6", 44, 45, 45, 0, 0, *end)
        body += record + struct.pack("<4sLQL", b"PK\6\7", 0, len(body), 1)
        end = (_FULL16, _FULL16, _FULL32, _FULL32)
    body += struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, *end, len(comment)) + comment
    return bytes(body) + options.get("after", b"")


def make_wheel(
    folder: Path,
    name: str,
    version: str,
    *,
    files: Mapping[str, str | bytes] | None = None,
    data: Mapping[str, str | bytes] | None = None,
    requires: Sequence[str] = (),
    requires_python: str | None = None,
    entry_points: str | None = None,
    python_tag: str = "py3",
    abi_tag: str = "none",
    platform_tag: str = "any",
    build_tag: str = "",
    modes: Mapping[str, int] | None = None,
    metadata: str | None = None,
    wheel: str | None = None,
    record: Callable[[list[Row]], list[Row]] | None = None,
    plant: Plant | None = None,
    file: str | None = None,
    **zip_options: Unpack[ZipOptions],
) -> Path:
    """Write a wheel and return its path.

    Args:
        folder: where to; it is made if need be.
        name: the project's name; ``-`` and ``.`` become ``_`` in file names.
        version: its version.
        files: content by path; one module with the version if not given.
        data: content by path below the ``.data`` folder.
        requires: ``Requires-Dist`` lines.
        requires_python: the ``Requires-Python`` line.
        entry_points: the text of entry_points.txt.
        python_tag: the first of the three tags; the others follow.
        abi_tag: the second.
        platform_tag: the third; dots separate several.
        build_tag: the optional build number.
        modes: Unix permission bits by path; 0644 else.
        metadata: the text of METADATA in place of the right one.
        wheel: the text of WHEEL in place of the right one.
        record: changes the rows of RECORD.
        plant: changes the members of the zip, after RECORD was written.
        file: the file's name in place of the right one.
        zip_options: how the zip is written.
    """
    stem = f"{name.replace('-', '_').replace('.', '_')}-{version}"
    info = f"{stem}.dist-info"
    module = stem.partition("-")[0].lower()
    content = dict(files) if files is not None else {f"{module}.py": f'VERSION = "{version}"\n'}
    content |= {f"{stem}.data/{path}": text for path, text in (data or {}).items()}
    tag = f"{python_tag}-{abi_tag}-{platform_tag}"
    content[f"{info}/METADATA"] = (
        _metadata(name, version, requires, requires_python) if metadata is None else metadata
    )
    content[f"{info}/WHEEL"] = (
        f"Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: {str(abi_tag == 'none').lower()}\n"
        f"Tag: {tag}\n"
        if wheel is None
        else wheel
    )
    if entry_points is not None:
        content[f"{info}/entry_points.txt"] = entry_points
    encoded = {path: _encoded(text) for path, text in content.items()}
    rows: list[Row] = [(path, digest(data), str(len(data))) for path, data in encoded.items()]
    rows.append((f"{info}/RECORD", "", ""))
    if record is not None:
        rows = record(rows)
    encoded[f"{info}/RECORD"] = "".join(",".join(row) + "\n" for row in rows).encode()
    members = [
        Member(
            path.encode(),
            data,
            flags=0 if path.isascii() else 0x800,
            mode=0o100000 | (modes or {}).get(path, 0o644),
        )
        for path, data in encoded.items()
    ]
    build = f"-{build_tag}" if build_tag else ""
    path = folder / (file or f"{stem}{build}-{tag}.whl")
    folder.mkdir(parents=True, exist_ok=True)
    path.write_bytes(make_zip(plant(members) if plant else members, **zip_options))
    return path


def make_sdist(
    folder: Path,
    name: str,
    version: str,
    *,
    files: Mapping[str, str | bytes] | None = None,
    requires: Sequence[str] = (),
    setup: str | None = None,
    pyproject: str | None = "",
) -> Path:
    """Write an sdist that setuptools can build and return its path.

    Args:
        folder: where to; it is made if need be.
        name: the project's name.
        version: its version.
        files: content by path; one module with the version if not given.
        requires: what it depends on.
        setup: the text of setup.py; one that calls setuptools with name, version and modules if not
            given.
        pyproject: the text of pyproject.toml; one that asks for setuptools if empty, no such file
            if None (an old sdist).
    """
    stem = f"{name.replace('-', '_').replace('.', '_')}-{version}"
    module = stem.partition("-")[0].lower()
    content = dict(files) if files is not None else {f"{module}.py": f'VERSION = "{version}"\n'}
    modules = sorted(path.removesuffix(".py") for path in content if path.endswith(".py"))
    content["setup.py"] = (
        "from setuptools import setup\n\n"
        f"setup(name={name!r}, version={version!r}, py_modules={modules!r}, "
        f"install_requires={list(requires)!r})\n"
        if setup is None
        else setup
    )
    if pyproject is not None:
        content["pyproject.toml"] = pyproject or (
            '[build-system]\nrequires = ["setuptools"]\nbuild-backend = "setuptools.build_meta"\n'
        )
    content["PKG-INFO"] = _metadata(name, version, requires, None)
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for path, text in sorted(content.items()):
            data = _encoded(text)
            member = tarfile.TarInfo(f"{stem}/{path}")
            member.size, member.mode = len(data), 0o644
            archive.addfile(member, io.BytesIO(data))
    folder.mkdir(parents=True, exist_ok=True)
    result = folder / f"{stem}.tar.gz"
    result.write_bytes(gzip.compress(raw.getvalue(), mtime=0))
    return result


def digest(data: bytes, algorithm: str = "sha256") -> str:
    """Return a digest as RECORD writes it."""
    raw = hashlib.new(algorithm, data).digest()
    return f"{algorithm}={base64.urlsafe_b64encode(raw).rstrip(b'=').decode()}"


def _encoded(text: str | bytes) -> bytes:
    return text.encode() if isinstance(text, str) else text


def _metadata(name: str, version: str, requires: Sequence[str], requires_python: str | None) -> str:
    lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
    if requires_python is not None:
        lines.append(f"Requires-Python: {requires_python}")
    lines += [f"Requires-Dist: {requirement}" for requirement in requires]
    return "\n".join(lines) + "\n"


def _stored(member: Member) -> bytes:
    if not member.deflate:
        return member.content
    compressor = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
    return compressor.compress(member.content) + compressor.flush()


def _descriptor_size(member: Member) -> int:
    return struct.calcsize(member.descriptor) if member.descriptor else 0


def _said(member: Member, said: Said, facts: Said) -> Said:
    own = {name: value for name, value in msgspec.structs.asdict(said).items() if value is not None}
    return msgspec.structs.replace(facts, **own)


def _facts(member: Member, stored_size: int, offset: int) -> Said:
    return Said(
        name=member.name,
        flags=member.flags | (0x8 if member.descriptor else 0),
        method=8 if member.deflate else 0,
        crc=zlib.crc32(member.content),
        stored_size=stored_size,
        size=len(member.content),
        offset=offset,
    )


def _local(member: Member) -> tuple[bytes, bytes]:
    stored = _stored(member)
    facts = _facts(member, len(stored), 0)
    extra = member.extra
    if member.descriptor:
        values = (facts.crc, facts.stored_size, facts.size)
        signature = (b"PK\7\10",) if "s" in member.descriptor else ()
        stored += struct.pack(member.descriptor, *signature, *values)
        facts = msgspec.structs.replace(facts, crc=0, stored_size=0, size=0)
    elif member.zip64:
        extra = struct.pack("<2H2Q", 1, 16, facts.size, facts.stored_size) + extra
        facts = msgspec.structs.replace(facts, stored_size=_FULL32, size=_FULL32)
    said = _said(member, member.local, facts)
    assert said.name is not None
    header = struct.pack(
        "<4s5H3L2H",
        b"PK\3\4",
        20,
        said.flags,
        said.method,
        _TIME,
        _DATE,
        said.crc,
        said.stored_size,
        said.size,
        len(said.name),
        len(extra),
    )
    return header + said.name + extra, stored


def _central(member: Member, offset: int, stored_size: int) -> bytes:
    facts = _facts(member, stored_size, offset)
    extra = member.extra
    if member.zip64:
        extra = struct.pack("<2H3Q", 1, 24, facts.size, facts.stored_size, facts.offset) + extra
        facts = msgspec.structs.replace(facts, stored_size=_FULL32, size=_FULL32, offset=_FULL32)
    said = _said(member, member.central, facts)
    assert said.name is not None
    header = struct.pack(
        "<4s4B4H3L5H2L",
        b"PK\1\2",
        20,
        3,
        20,
        0,
        said.flags,
        said.method,
        _TIME,
        _DATE,
        said.crc,
        said.stored_size,
        said.size,
        len(said.name),
        len(extra),
        0,
        0,
        0,
        member.mode << 16,
        said.offset,
    )
    return header + said.name + extra
