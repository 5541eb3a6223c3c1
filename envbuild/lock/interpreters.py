"""Pins of managed interpreters: ``locks/interpreters.toml``, from python-build-standalone."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import unquote

from envbuild import typed
from envbuild.digest import is_sha256
from envbuild.errors import InputError
from envbuild.typed import Table

SCHEMA = 1
_FILE = re.compile(
    r"cpython-(?P<version>[0-9.]+)\+(?P<build>[0-9]{8})"
    r"-x86_64-unknown-linux-gnu-install_only_stripped\.tar\.gz"
)


class Pin(Table, frozen=True):
    """A managed interpreter, known by its hash.

    Attributes:
        version: such as ``3.11.17``.
        build: the day of its python-build-standalone release, such as ``20261021``.
        file: the archive's name.
        sha256: of the archive, 64 hexadecimal digits.
    """

    version: str
    build: str
    file: str
    sha256: str


class _Document(Table, frozen=True):
    schema: int
    interpreters: tuple[Pin, ...] = ()


def read(path: Path) -> dict[str, Pin]:
    """Read the pins by version; none where the file is not there.

    Raises:
        InputError: the file is of another schema, or a pin is no pin.
    """
    if not path.exists():
        return {}
    document = typed.load(path, _Document, "interpreter pins")
    if document.schema != SCHEMA:
        raise InputError(
            "schema: not a version that this envbuild reads",
            where=path,
            expected=SCHEMA,
            found=document.schema,
            mend="use the envbuild that wrote it, or remove the file and run `envbuild lock`",
        )
    for index, pin in enumerate(document.interpreters):
        _check(pin, f"{path}: interpreters[{index}]")
    return {pin.version: pin for pin in document.interpreters}


def _check(pin: Pin, where: str) -> None:
    match = _FILE.fullmatch(pin.file)
    if match is None or (match["version"], match["build"]) != (pin.version, pin.build):
        raise InputError(
            "file: not the archive of that version and build",
            where=where,
            expected=f"cpython-{pin.version}+{pin.build}-x86_64-unknown-linux-gnu-"
            "install_only_stripped.tar.gz",
            found=pin.file,
        )
    if not is_sha256(pin.sha256):
        raise InputError(
            "sha256: not a SHA-256; an interpreter without a hash is refused",
            where=where,
            expected="64 lower-case hexadecimal digits",
            found=repr(pin.sha256),
        )


def find(version: str) -> Pin:
    """Look a version up in the list that pbs-installer carries; no network is needed.

    Raises:
        InputError: it is not in the list, or has no hash there.
    """
    file, sha256 = _listed(version)[1:]
    match = _FILE.fullmatch(file)
    if sha256 is None or match is None:
        raise InputError(
            f"Python {version} has no archive with a hash in pbs-installer's list",
            expected="an install_only_stripped archive with its SHA-256",
            found=file,
            mend="choose another version",
        )
    return Pin(version, match["build"], file, sha256)


def url(pin: Pin) -> str:
    """Return where a pinned archive can be downloaded.

    The mirrors that uv's and pbs-installer's users know are honoured: UV_PYTHON_INSTALL_MIRROR
    stands for the address of the releases, PBS_INSTALLER_BASE_URL for the folder of archives.
    """
    link, file, _ = _listed(pin.version)
    mirror = os.environ.get("UV_PYTHON_INSTALL_MIRROR")
    if mirror is not None:
        return f"{mirror.rstrip('/')}/{pin.build}/{pin.file}"
    if file == pin.file:
        return link
    return f"{link.rsplit('/', 2)[0]}/{pin.build}/{pin.file.replace('+', '%2B')}"


def _listed(version: str) -> tuple[str, str, str | None]:
    """Return URL, file name and SHA-256 of a version's archive."""
    from pbs_installer import get_download_link

    try:
        _, (link, sha256) = get_download_link(version, arch="x86_64", platform="linux")
    except ValueError as error:
        raise InputError(
            f"Python {version} is not in pbs-installer's list",
            expected="a version of python-build-standalone",
            mend="choose another version, or update pbs-installer",
        ) from error
    return link, unquote(link.rsplit("/", 1)[1]), sha256


def serialize(pins: Iterable[Pin]) -> bytes:
    """Write pins in their one canonical form, sorted by version."""
    lines = [
        "# Written by `envbuild lock` from pbs-installer's list of python-build-standalone.",
        f"schema = {SCHEMA}",
    ]
    for pin in sorted(pins, key=lambda pin: tuple(map(int, pin.version.split(".")))):
        lines += [
            "",
            "[[interpreters]]",
            f'version = "{pin.version}"',
            f'build = "{pin.build}"',
            f'file = "{pin.file}"',
            f'sha256 = "{pin.sha256}"',
        ]
    return ("\n".join(lines) + "\n").encode()
