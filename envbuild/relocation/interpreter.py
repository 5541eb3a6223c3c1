"""The I rules: the interpreter that a prefix stands on. Nothing of it is run."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterator
from pathlib import Path

import msgspec

from envbuild.findings import Finding
from envbuild.relocation import files
from envbuild.relocation.subject import Subject

_ELSEWHERE = (
    "make it with an interpreter of the site or the system, or name that one's folder in "
    "system-paths of the site's file"
)
_NAME = re.compile(r"python(?:3|(?P<version>3\.\d+))?[tw]?")
_PREFIX_LINE = re.compile(
    r"""^\s*(?P<name>prefix|exec_prefix)\s*=\s*["']?(?P<path>/[^\s"'$]*)""", re.M
)
# what `build_time_vars` says of places that extensions are built with
_PLACES = ("prefix", "exec_prefix", "BINDIR", "LIBDIR")


class Found(msgspec.Struct, frozen=True):
    """The interpreter that a prefix's ``bin/python`` leads to.

    Attributes:
        path: of the executable, without links.
        minor: such as ``3.11``; None if its name and its library do not say.
        version: such as ``3.11.7``, where its headers say so.
    """

    path: Path
    minor: str | None
    version: str | None

    @property
    def home(self) -> Path:
        """The folder that holds its ``bin`` and ``lib``."""
        return self.path.parent.parent


def find(prefix: Path) -> Found | None:
    """Follow ``bin/python`` of a prefix; None if it leads nowhere."""
    path = Path(os.path.realpath(prefix / "bin" / "python"))
    if not path.is_file():
        return None
    match = _NAME.fullmatch(path.name)
    minor = match["version"] if match else None
    # conda links python3.1 to python3.11, for programs that cut the version short
    found = path.parent.parent.glob("lib/python3.*/os.py")
    libraries = sorted(one for one in found if not one.parent.is_symlink())
    if minor is None and len(libraries) == 1:
        minor = libraries[0].parent.name.removeprefix("python")
    version = None
    if minor is not None:
        header = path.parent.parent / "include" / f"python{minor}" / "patchlevel.h"
        try:
            said = re.search(r'#define\s+PY_VERSION\s+"([^"]+)"', header.read_text())
        except OSError:
            said = None  # Debian keeps headers in a package of their own
        version = said[1] if said else None
    return Found(path, minor, version)


def is_conda(prefix: Path) -> bool:
    """Whether a prefix is conda's: its interpreter is a package of its own."""
    return (prefix / "conda-meta").is_dir()


def configuration(prefix: Path) -> dict[str, str]:
    """Read ``pyvenv.cfg`` as Python's site module does (PEP 405); empty if there is none."""
    try:
        text = files.read(prefix / "pyvenv.cfg").decode(errors="replace")
    except OSError:
        return {}
    values = {}
    for line in text.splitlines():
        key, equals, value = line.partition("=")
        if equals:
            values[key.strip().lower()] = value.strip()
    return values


def check(subject: Subject) -> Iterator[Finding]:
    """I001 to I004."""
    prefix = Path(subject.prefix)
    yield from _links(subject, prefix)
    found = find(prefix)
    if not is_conda(prefix):
        yield from _configured(subject, prefix, found)
    if found is None:
        return
    yield from _pinned(subject, found)
    yield from _build_time(found)


def _links(subject: Subject, prefix: Path) -> Iterator[Finding]:
    """I001: every link from ``bin/python*`` stays inside what is allowed."""
    try:
        names = sorted(one.name for one in (prefix / "bin").iterdir() if _NAME.fullmatch(one.name))
    except OSError:
        names = []
    if "python" not in names:
        yield Finding(
            "I001",
            "error",
            f"{prefix}/bin/python",
            "is not there",
            expected="the prefix's interpreter",
            mend=subject.again,
        )
    said: set[str] = set()
    for name in names:
        path = prefix / "bin" / name
        for finding in _hops(subject, path):
            # python3 and python3.11 lead to python: what is wrong there is said once
            if finding.found not in said:
                said.add(finding.found or "")
                yield finding


def _hops(subject: Subject, path: Path) -> Iterator[Finding]:
    at = path
    real = Path(os.path.realpath(path))
    if not files.is_file(real) or not os.access(real, os.X_OK):
        yield Finding(
            "I001",
            "error",
            str(path),
            "leads to nothing that runs",
            expected="an executable file",
            found=str(real),
            mend=subject.again,
        )
        return
    for _ in range(40):  # as many as the kernel follows (path_resolution(7))
        if not files.is_link(at):
            break
        at = Path(os.path.normpath(at.parent / at.readlink()))
        if _outside(subject, at) is not None:
            break
    wrong = _outside(subject, at)
    if wrong is None:
        at = real
        wrong = _outside(subject, real)
    if wrong is not None:
        yield Finding(
            "I001",
            "error",
            str(path),
            f"leads to {wrong}",
            expected="links inside " + ", ".join(_allowed(subject)),
            found=str(at),
            mend=_ELSEWHERE,
        )


def _allowed(subject: Subject) -> list[str]:
    places = [subject.prefix]
    if subject.interpreters is not None:
        places.append(subject.interpreters)
    if subject.base is not None:
        # a fall-back that the receipt declares is I003's to judge
        places.append(str(Path(subject.base.path).parent.parent))
    return [*places, *subject.system]


def _outside(subject: Subject, path: Path) -> str | None:
    """Say what a path outside of what is allowed lies in; None if it is inside."""
    for other, environment in subject.others.items():
        if other != subject.prefix and path.is_relative_to(other):
            return f"the prefix of {environment}"
    if any(path.is_relative_to(place) for place in _allowed(subject)):
        return None
    if _beside_base(subject, path):
        return None
    for cache in subject.caches:
        if path.is_relative_to(cache):
            return "a cache"
    home = Path.home()
    if path.is_relative_to(home) or path.parts[1:2] in (("home",), ("root",)):
        return "a home folder"
    return "a folder that the site does not declare"


def _beside_base(subject: Subject, path: Path) -> bool:
    """Whether a path is an installer's own link to the interpreter, such as uv's from 3.11."""
    if subject.base is None or os.path.realpath(path) != subject.base.path:
        return False
    return path.is_relative_to(Path(subject.base.path).parents[2])


def _configured(subject: Subject, prefix: Path, found: Found | None) -> Iterator[Finding]:
    """I002: ``pyvenv.cfg`` names the folder of the interpreter, and its version."""
    where = f"{prefix}/pyvenv.cfg"
    values = configuration(prefix)
    if "home" not in values:
        yield Finding(
            "I002",
            "error",
            where,
            "does not say where the interpreter is",
            expected="home = the folder of the interpreter",
            found="no such line" if values else "no such file",
            mend=subject.again,
        )
        return
    home = Path(values["home"])
    if not _is_there(home):
        yield Finding(
            "I002",
            "error",
            where,
            "names a folder that is not there",
            expected="the folder of the interpreter",
            found=f"home = {home}",
            mend=subject.again,
        )
    if found is None:
        return
    if not _is_there(home):
        pass
    elif found.path.is_relative_to(os.path.realpath(prefix)):
        # a copy (`python -m venv --copies`): its library is where `home` says
        wrong = _outside(subject, Path(os.path.realpath(home)))
        if wrong is not None:
            yield Finding(
                "I001",
                "error",
                where,
                f"leads to {wrong}",
                expected="a folder inside " + ", ".join(_allowed(subject)),
                found=f"home = {home}",
                mend=_ELSEWHERE,
            )
    elif not home.samefile(found.path.parent) and not _leads(home, found):
        yield Finding(
            "I002",
            "error",
            where,
            "names another folder than that of the interpreter",
            expected=f"home = {found.path.parent}",
            found=f"home = {home}",
            mend=subject.again,
        )
    said = values.get("version_info") or values.get("version") or ""
    minor = ".".join(said.split(".")[:2])
    if found.minor is not None and minor not in ("", found.minor):
        yield Finding(
            "I002",
            "error",
            where,
            "is of another Python than the interpreter",
            expected=found.version or found.minor,
            found=said,
            mend=subject.again,
        )
    elif found.version is not None and said.count(".") >= 2 and not _same(said, found.version):
        yield Finding(
            "I002",
            "warning",
            where,
            "the interpreter was replaced by another release of it",
            expected=said,
            found=found.version,
            mend=subject.again,
        )
    if values.get("include-system-site-packages", "false").lower() == "true":
        yield Finding(
            "I002",
            "error",
            where,
            "lets in the packages of the interpreter itself",
            expected="include-system-site-packages = false",
            found="include-system-site-packages = true",
            mend="set it to false",
        )


def _is_there(path: Path) -> bool:
    """Whether something is there; of a name that no file can have, nothing is."""
    try:
        return path.exists()
    except OSError:
        return False


def _leads(home: Path, found: Found) -> bool:
    """Whether a folder holds a link to the interpreter: /usr/bin/python3 to python3.11."""
    return any(
        os.path.realpath(home / name) == str(found.path)
        for name in ("python", "python3", found.path.name)
    )


def _same(said: str, version: str) -> bool:
    """Compare ``3.11.7.final.0`` or ``3.11.7`` with a version."""
    return ".".join(said.split(".")[:3]) == version.rstrip("+")


def _pinned(subject: Subject, found: Found) -> Iterator[Finding]:
    """I003: the interpreter is the pinned one, or one that may stand in."""
    base = subject.base
    if base is None:
        return
    where = f"{subject.prefix}/bin/python"
    if str(found.path) != base.path:
        yield Finding(
            "I003",
            "error",
            where,
            "is another interpreter than the prefix was created with",
            expected=base.path,
            found=str(found.path),
            mend=subject.again,
        )
    elif base.fault is not None:
        yield Finding(
            "I003",
            "error",
            where,
            base.fault,
            expected=f"the pinned Python {base.wanted}, installed from its archive",
            found=base.path,
            mend=f"remove that interpreter, and {subject.again}",
        )
    elif not base.pinned:
        yield Finding(
            "I003",
            "warning" if base.allowed else "error",
            where,
            "an installed Python stands in for the pinned one",
            expected=f"the pinned Python {base.wanted}",
            found=f"Python {base.version} at {base.path}",
            mend="put the pinned archive into the wheelhouse (`envbuild site check` says which), "
            f"and {subject.again}",
        )


def _build_time(found: Found) -> Iterator[Finding]:
    """I004: what extensions are built with names places that are there."""
    for file in _build_files(found):
        try:
            text = file.read_text(errors="replace")
        except OSError:
            continue
        named = _sysconfig(text) if file.suffix == ".py" else _lines(text)
        for key, path in named:
            if not _is_there(Path(path)):
                yield Finding(
                    "I004",
                    "error",
                    str(file),
                    "names a folder of the interpreter's own build, which is not here",
                    expected=f"{key} in {found.home}",
                    found=f"{key} = {path}",
                    mend="install the interpreter anew, with uv, which mends these files",
                )
                break


def _build_files(found: Found) -> Iterator[Path]:
    minor = found.minor
    if minor is None:
        return
    yield from sorted(found.home.glob(f"lib/python{minor}/_sysconfigdata_*.py"))
    yield from sorted(found.home.glob("lib/pkgconfig/python*.pc"))
    yield from sorted(found.home.glob(f"bin/python{minor}*-config"))


def _sysconfig(text: str) -> Iterator[tuple[str, str]]:
    """Read the places of ``build_time_vars``: a dictionary of literals, which is not run."""
    _, equals, values = text.partition("build_time_vars = ")
    try:
        document = ast.literal_eval(values) if equals else {}
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return
    if not isinstance(document, dict):
        return
    for key in _PLACES:
        value = document.get(key)
        if isinstance(value, str) and value.startswith("/"):
            yield key, value


def _lines(text: str) -> Iterator[tuple[str, str]]:
    for match in _PREFIX_LINE.finditer(text):
        yield match["name"], match["path"]
