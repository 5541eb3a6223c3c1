"""The Python of a prefix: the pinned one, installed by uv from its archive, or one that is here."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal

import msgspec

from envbuild import durable, process, uvtool
from envbuild.errors import PreflightError, StepError
from envbuild.lock.interpreters import Pin
from envbuild.prefix import aside
from envbuild.relocation import audit

_QUERY = """
import json, os, platform, sys
print(json.dumps([
    sys.implementation.name, platform.python_version(), platform.machine(),
    os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable),
]))
"""


class Interpreter(msgspec.Struct, frozen=True):
    """An interpreter that a prefix stands on.

    Attributes:
        path: its absolute path, no link.
        version: such as ``3.11.17``.
        origin: ``managed`` for the pinned archive, ``fallback`` for an installed one.
        archive: the archive's file name; None for a fallback.
        archive_sha256: its SHA-256; None for a fallback.
    """

    path: str
    version: str
    origin: Literal["managed", "fallback"]
    archive: str | None = None
    archive_sha256: str | None = None


class _Receipt(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What stands beside an installed interpreter, written last."""

    archive: str
    archive_sha256: str
    path: str
    manifest_sha256: str


def changed(pin: Pin, folder: Path) -> bool:
    """Whether files of the pinned interpreter are not as they were when it was installed.

    Byte code is not looked at: Python writes it when it finds none.

    Args:
        pin: which one; it is installed.
        folder: the site's folder of interpreters.

    Raises:
        OSError: a file cannot be read.
    """
    receipt = msgspec.json.decode(_receipt_path(pin, folder).read_bytes(), type=_Receipt)
    return audit.manifest_of(_root(Path(receipt.path))) != receipt.manifest_sha256


def _root(path: Path) -> Path:
    """Return the folder that holds an interpreter's ``bin`` and ``lib``."""
    return path.parent.parent


def installed(pin: Pin, folder: Path) -> Interpreter | None:
    """Return the pinned interpreter if it was installed whole into ``folder``."""
    try:
        receipt = msgspec.json.decode(_receipt_path(pin, folder).read_bytes(), type=_Receipt)
    except (OSError, msgspec.DecodeError):
        return None
    if receipt.archive_sha256 != pin.sha256 or not os.access(receipt.path, os.X_OK):
        return None
    return _managed(pin, Path(receipt.path))


def install(pin: Pin, archive: Path, folder: Path) -> Interpreter:
    """Install the pinned interpreter from its archive; the caller holds a lock for it.

    uv does it, from a list with this one archive: it checks the hash, unpacks safely and mends
    the build-time paths in the interpreter's own configuration.

    Args:
        pin: which one.
        archive: its archive, already verified.
        folder: the site's folder of interpreters.

    Raises:
        StepError: uv could not install it.
    """
    major, minor, patch = map(int, pin.version.split("."))
    key = f"cpython-{pin.version}-linux-x86_64-gnu"
    entry = {
        "name": "cpython",
        "arch": {"family": "x86_64", "variant": None},
        "os": "linux",
        "libc": "gnu",
        "major": major,
        "minor": minor,
        "patch": patch,
        "prerelease": "",
        "url": archive.absolute().as_uri(),
        "sha256": pin.sha256,
        "variant": None,
        "build": pin.build,
    }
    home = _home(pin, folder)
    aside.remove(home)  # of a run that was killed: without a receipt nobody uses it
    home.mkdir(parents=True)
    with tempfile.TemporaryDirectory(prefix=".cache-", dir=home) as cache:
        downloads = Path(cache) / "downloads.json"
        downloads.write_text(json.dumps({key: entry}))
        process.run(
            [
                *(uvtool.executable(), "python", "install", pin.version),
                *("--install-dir", home, "--no-bin", "--no-config", "--cache-dir", cache),
                *("--python-downloads-json-url", downloads),
            ],
            doing=f"installing Python {pin.version}",
            env=uvtool.environment(extra={"UV_PYTHON_DOWNLOADS": "manual", "UV_OFFLINE": "0"}),
            mend=f"remove {archive.name} from the wheelhouse and fetch it again",
        )
    path = home / key / "bin" / f"python{major}.{minor}"
    found = query(path)
    if found is None or found.version != pin.version:
        raise StepError(
            f"{pin.file} holds another Python than its name says",
            where=path,
            expected=pin.version,
            found=found.version if found else "no interpreter that runs",
        )
    aside.syncfs(home)
    receipt = _Receipt(pin.file, pin.sha256, str(path), audit.manifest_of(_root(path)))
    durable.write(_receipt_path(pin, folder), msgspec.json.encode(receipt))
    return _managed(pin, path)


def _managed(pin: Pin, path: Path) -> Interpreter:
    return Interpreter(str(path), pin.version, "managed", pin.file, pin.sha256)


def _home(pin: Pin, folder: Path) -> Path:
    """Return the folder of one build of one version: another build never takes its place."""
    return folder / f"{pin.version}+{pin.build}"


def _receipt_path(pin: Pin, folder: Path) -> Path:
    return _home(pin, folder) / "receipt.json"


def query(path: Path) -> Interpreter | None:
    """Ask an executable whether it is a CPython for x86-64, and where it really lies.

    Returns:
        The interpreter, that below it if it is a virtual environment's; None if it is not one.
    """
    try:
        answer = process.run([path, "-I", "-c", _QUERY], doing=f"asking {path}", timeout=20)
        name, version, machine, real = json.loads(answer.stdout)
    except (StepError, ValueError):
        return None
    if name != "cpython" or machine != "x86_64":
        return None
    return Interpreter(real, version, "fallback")


def candidates(minor: tuple[int, int]) -> Iterator[Path]:
    """Yield executables that may be a CPython of a minor version: on PATH, then pyenv's."""
    folders = [Path(entry) for entry in os.environ.get("PATH", "").split(os.pathsep) if entry]
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    folders += sorted(pyenv.glob(f"versions/{minor[0]}.{minor[1]}.*/bin"))
    for folder in folders:
        for name in (f"python{minor[0]}.{minor[1]}", f"python{minor[0]}", "python"):
            path = folder / name
            if os.access(path, os.X_OK) and path.is_file():
                yield path


def find(minor: tuple[int, int]) -> list[Interpreter]:
    """Find the installed CPythons of a minor version, the newest first."""
    found: dict[str, Interpreter] = {}
    asked: set[Path] = set()
    for path in candidates(minor):
        real = path.resolve()
        if real in asked:
            continue
        asked.add(real)
        interpreter = query(path)
        if interpreter is not None and _release(interpreter)[:2] == minor:
            found.setdefault(interpreter.path, interpreter)
    return sorted(found.values(), key=_release, reverse=True)


def fallback(
    installed: Iterable[Interpreter], requires_python: str, *, environment: str, why: str
) -> Interpreter:
    """Choose an installed CPython in place of the pinned one.

    Args:
        installed: what `find` gave.
        requires_python: the interval of the environment.
        environment: for whom, in messages.
        why: why the pinned one cannot be had.

    Raises:
        PreflightError: none of them lies in the interval; what was found is named.
    """
    from packaging.specifiers import SpecifierSet

    allowed = SpecifierSet(requires_python)
    seen = list(installed)
    for interpreter in seen:
        if allowed.contains(interpreter.version, prereleases=False):
            return interpreter
    raise PreflightError(
        f"{environment} needs Python {requires_python}, and none is at hand",
        expected=f"the pinned interpreter ({why}), or an installed CPython {requires_python}",
        found=", ".join(f"{one.version} at {one.path}" for one in seen)
        or "no installed CPython of that minor version",
        mend="put the pinned archive into the wheelhouse (`envbuild fetch` says where it is "
        "from), or install such a CPython and put it on PATH",
    )


def _release(interpreter: Interpreter) -> tuple[int, ...]:
    """Order versions; a pre-release sorts by its number alone and is never chosen."""
    parts = interpreter.version.split(".")
    return tuple(int("".join(c for c in part if c.isdigit()) or 0) for part in parts)
