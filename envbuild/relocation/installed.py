"""The M rules: what is installed, by the metadata of distributions and by verified wheels."""

from __future__ import annotations

import base64
import configparser
import csv
import email.parser
import json
import os
import platform
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from urllib.parse import unquote, urlsplit

import msgspec
from packaging.markers import UndefinedComparison, UndefinedEnvironmentName
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name, canonicalize_version
from packaging.version import InvalidVersion, Version

from envbuild.findings import Finding
from envbuild.relocation import files, interpreter, scripts
from envbuild.relocation.subject import Contents, EntryPoint, Expected, Subject

# What installers add to a distribution's metadata, which no wheel holds: RECORD, the signatures of
# which no longer fit; PEP 376, 610 and 639; uv's own notes.
ADDED = frozenset(
    {"INSTALLER", "RECORD", "RECORD.jws", "RECORD.p7s", "REQUESTED", "direct_url.json"}
    | {"uv_cache.json", "uv_build.json"}
)
# What `uv venv`, virtualenv and `python -m venv` write besides
_ENVIRONMENT = re.compile(
    r"""
    pyvenv\.cfg | CACHEDIR\.TAG | \.gitignore | \.lock | lib64
    | bin/python(?: w | \d+(?:\.\d+)?t? )?
    | bin/(?: activate(?:\.\w+)? | Activate\.ps1 | activate_this\.py | deactivate(?:\.\w+)?
        | pydoc\.bat )
    | lib/python[^/]*/site-packages/_virtualenv\.(?: py | pth )
    """,
    re.VERBOSE,
)
_PACKAGES = re.compile(r"lib/python3\.\d+t?/site-packages")
# Files by which a stray package, module or path comes into effect when Python looks for modules
_IMPORTED = (".py", ".so", ".pth", ".pyc", ".egg-link", ".pyd")
_ALGORITHMS = {"sha256": 32, "sha384": 48, "sha512": 64}
# a marker that holds for an extra alone
_EXTRA = re.compile(r"[^;]*;(?![^;]*\bor\b)[^;]*\bextra\s*==")
_FINDER = re.compile(r"""["'](/[^"'\n\0]+)["']""")


class Metadata(msgspec.Struct, frozen=True):
    """What an installed distribution says of itself.

    Attributes:
        folder: its ``.dist-info`` folder, relative to the prefix.
        name: normalised (PEP 503).
        version: as it stands there.
        requires: its requirements, as they stand there (PEP 508).
        origin: the address that it was installed from (PEP 610), if it was from one.
        editable: whether it is in editable form.
    """

    folder: str
    name: str
    version: str
    requires: tuple[str, ...] = ()
    origin: str | None = None
    editable: bool = False

    @property
    def source(self) -> Path | None:
        """The folder or file that it was installed from, if that is on this machine."""
        try:
            parts = urlsplit(self.origin or "")
        except ValueError:
            return None
        path = unquote(parts.path)
        try:
            os.fsencode(path)
        except UnicodeEncodeError:
            return None
        return Path(path) if parts.scheme == "file" and "\0" not in path else None


def packages_folder(prefix: Path) -> str | None:
    """Return where packages are installed, relative to the prefix.

    Such as ``lib/python3.11/site-packages``; None if there is none. Of several it is the one of
    the version that ``pyvenv.cfg`` names.
    """
    found = prefix.glob("lib/python3.*/site-packages")
    # conda links python3.1 to python3.11, for programs that cut the version short
    places = sorted(one for one in found if not one.parent.is_symlink())
    if len(places) > 1:
        said = interpreter.configuration(prefix)
        version = said.get("version_info") or said.get("version") or ""
        minor = "python" + ".".join(version.split(".")[:2])
        places = [one for one in places if one.parent.name == minor]
    return str(places[0].relative_to(prefix)) if len(places) == 1 else None


def metadata(folder: str, header: bytes, direct_url: bytes | None) -> Metadata | None:
    """Read what a distribution says of itself.

    Args:
        folder: its ``.dist-info`` folder, relative to the prefix.
        header: the fields of its METADATA.
        direct_url: the content of its ``direct_url.json``, if it has one.

    Returns:
        What it says; None if it has no name and version.
    """
    fields = email.parser.HeaderParser().parsestr(header.decode("utf-8", "replace"))
    name, version = fields["Name"], fields["Version"]
    if name is None or version is None:
        return None
    origin, editable = None, False
    if direct_url is not None:
        try:
            document = json.loads(direct_url)
            origin = str(document["url"])
            editable = bool(document.get("dir_info", {}).get("editable", False))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            origin = "cannot be read"
    return Metadata(
        folder=folder,
        name=str(canonicalize_name(str(name).strip())),
        version=str(version).strip(),
        requires=tuple(str(one) for one in fields.get_all("Requires-Dist", [])),
        origin=origin,
        editable=editable,
    )


def locked(installed: Sequence[Metadata], subject: Subject) -> Iterator[Finding]:
    """M001: what is installed is what must be, name and version, each once.

    Args:
        installed: what is there.
        subject: what the prefix is held to; without contents, what is there twice is found alone.
    """
    contents, prefix = subject.contents, subject.prefix
    seen: dict[str, Metadata] = {}
    for one in installed:
        other = seen.setdefault(one.name, one)
        if other is not one:
            yield Finding(
                "M001",
                "error",
                f"{prefix}/{one.folder}",
                f"{one.name} is installed twice",
                expected="one version",
                found=f"{other.version} and {one.version}",
                mend=subject.again,
            )
    if contents is None:
        return
    wanted = {one.name: one for one in contents.distributions}
    for name in sorted(wanted.keys() | seen.keys()):
        must, there = wanted.get(name), seen.get(name)
        where = f"{prefix}/{there.folder}" if there else prefix
        if there is None and must is not None:
            yield _m001(subject, where, f"{name} is not installed", must.version, "nothing")
        elif must is None and there is not None:
            yield _m001(subject, where, f"{name} is not in the lock", "nothing", there.version)
        elif (
            must
            and there
            and canonicalize_version(there.version) != canonicalize_version(must.version)
        ):
            message = f"{name} is of another version than the lock says"
            yield _m001(subject, where, message, must.version, there.version)


def _m001(subject: Subject, where: str, message: str, expected: str, found: str) -> Finding:
    return Finding("M001", "error", where, message, expected, found, subject.again)


def satisfied(
    installed: Sequence[Metadata], subject: Subject, environment: Mapping[str, str]
) -> Iterator[Finding]:
    """M004: the requirements of what is installed are satisfied, or declared overrides are.

    Requirements of extras count where another distribution asks for the extra.

    Args:
        installed: what is there.
        subject: what the prefix is held to, for its overrides and excludes.
        environment: what markers are evaluated with.
    """
    versions = {one.name: one.version for one in installed}
    overrides: dict[str, list[Requirement]] = {}
    for text in subject.overrides:
        override = Requirement(text)
        overrides.setdefault(canonicalize_name(override.name), []).append(override)
    excluded = {canonicalize_name(name) for name in subject.excludes}
    asked = _extras(installed, environment)
    for one in installed:
        for text in one.requires:
            if not asked[one.name] and _EXTRA.match(text):
                continue  # most requirements of most packages, and parsing is what takes time
            requirement = _requirement(text)
            if requirement is None:
                continue  # published metadata can be older than the standard; pip passes it over
            name = canonicalize_name(requirement.name)
            if name in excluded or not _applies(requirement, environment, asked[one.name]):
                continue
            held = [requirement]
            if name in overrides:
                held = [one for one in overrides[name] if _applies(one, environment, frozenset())]
            version = versions.get(name)
            if held and not any(_fits(version, other) for other in held):
                wanted = " or ".join(str(other.specifier) or "any version" for other in held)
                yield Finding(
                    "M004",
                    "error",
                    f"{subject.prefix}/{one.folder}",
                    f"{one.name} {one.version} requires {name}, which is "
                    + ("not installed" if version is None else "of another version"),
                    expected=f"{name} {wanted}",
                    found="nothing" if version is None else f"{name} {version}",
                    mend="install what it requires, or declare an override of it",
                )


def _requirement(text: str) -> Requirement | None:
    try:
        return Requirement(text)
    except InvalidRequirement:
        return None


def _extras(
    installed: Sequence[Metadata], environment: Mapping[str, str]
) -> dict[str, frozenset[str]]:
    """Return the extras that are asked for, by distribution."""
    asked: dict[str, frozenset[str]] = {one.name: frozenset() for one in installed}
    parsed = {
        one.name: [
            requirement
            for text in one.requires
            if "[" in text.partition(";")[0] and (requirement := _requirement(text)) is not None
        ]
        for one in installed
    }
    changed = True
    while changed:
        changed = False
        for name, requirements in parsed.items():
            for requirement in requirements:
                target = canonicalize_name(requirement.name)
                if target not in asked or not _applies(requirement, environment, asked[name]):
                    continue
                more = asked[target] | {str(canonicalize_name(e)) for e in requirement.extras}
                changed |= more != asked[target]
                asked[target] = more
    return asked


def _applies(
    requirement: Requirement, environment: Mapping[str, str], extras: frozenset[str]
) -> bool:
    if requirement.marker is None:
        return True
    try:
        return any(
            requirement.marker.evaluate({**environment, "extra": extra}) for extra in ("", *extras)
        )
    except (UndefinedEnvironmentName, UndefinedComparison):
        return False


def _fits(version: str | None, requirement: Requirement) -> bool:
    if version is None:
        return False
    try:
        return requirement.specifier.contains(Version(version), prereleases=True)
    except InvalidVersion:
        return True


def marker_environment(version: str) -> dict[str, str]:
    """Return what markers are evaluated with (PEP 508) for CPython on this machine; it is not run.

    Args:
        version: of the interpreter, such as ``3.11.17``.
    """
    return {
        "implementation_name": "cpython",
        "implementation_version": version,
        "os_name": "posix",
        "platform_machine": platform.machine(),
        "platform_python_implementation": "CPython",
        "platform_release": platform.release(),
        "platform_system": platform.system(),
        "platform_version": platform.version(),
        "python_full_version": version,
        "python_version": ".".join(version.split(".")[:2]),
        "sys_platform": "linux",
    }


def pointing(installed: Sequence[Metadata], subject: Subject) -> Iterator[Finding]:
    """M003: what is installed in editable form is the expected project, inside the root."""
    tops = [subject.prefix] + ([subject.root] if subject.root else [])
    expected = {}
    if subject.contents is not None:
        expected = {one.name: one.folder for one in subject.contents.distributions}
    for one in installed:
        if one.origin is None:
            continue
        where = f"{subject.prefix}/{one.folder}/direct_url.json"
        source = one.source
        must = expected.get(one.name)
        real = None if source is None else Path(os.path.realpath(source))
        if one.editable and must is not None and str(real) != os.path.realpath(must):
            yield Finding(
                "M003",
                "error",
                where,
                f"{one.name} is another project than the environment declares",
                expected=must,
                found=one.origin if source is None else str(source),
                mend=subject.again,
            )
        elif one.editable and (
            real is None or not any(real.is_relative_to(os.path.realpath(top)) for top in tops)
        ):
            yield Finding(
                "M003",
                "error",
                where,
                f"{one.name} is installed in editable form from outside",
                expected=" or ".join(f"a folder in {top}" for top in tops),
                found=one.origin if source is None else str(source),
                mend="move the project below the root and install it from there",
            )
        elif one.editable and real is not None and not files.is_folder(real):
            yield Finding(
                "M003",
                "error",
                where,
                f"the project of {one.name} is not there",
                expected=str(source),
                found="no such folder",
                mend="put the project back, or create the prefix without it",
            )
        elif not one.editable and subject.contents is not None:
            yield Finding(
                "M003",
                "error",
                where,
                f"{one.name} was installed from elsewhere than the lock's wheel",
                expected="no direct_url.json",
                found=one.origin,
                mend=subject.again,
            )


def finder(where: str, data: bytes, subject: Subject) -> Iterator[Finding]:
    """M003 for the finder modules of editable installs, which hold folders as literals.

    Args:
        where: the path of an ``__editable__…`` module.
        data: its content.
        subject: what the prefix is held to.
    """
    tops = [subject.prefix] + ([subject.root] if subject.root else [])
    for match in _FINDER.finditer(data.decode("utf-8", "replace")):
        path = Path(os.path.realpath(match[1]))
        if not any(path.is_relative_to(os.path.realpath(top)) for top in tops):
            yield Finding(
                "M003",
                "error",
                where,
                "finds modules outside the prefix and the root",
                expected=" or ".join(f"folders in {top}" for top in tops),
                found=match[1],
                mend="move the project below the root and install it from there",
            )
            return


def recorded(prefix: Path) -> Contents:
    """Read what a prefix says of itself: the RECORDs of its distributions, or conda's.

    Files that a RECORD lists without a digest are listed with an empty one: their content may be
    anything.
    """
    listed: dict[str, Expected] = {}
    points: dict[str, EntryPoint] = {}
    packages = packages_folder(prefix)
    for info in sorted(prefix.glob(f"{packages}/*.dist-info")) if packages else []:
        listed.update(_record(prefix, info))
        points.update(entry_points(info.name, _read(info / "entry_points.txt")))
    for document in sorted((prefix / "conda-meta").glob("*")):
        if document.suffix == ".json":
            listed.update(_conda(document))
        # its history, pins and state too
        listed[str(document.relative_to(prefix))] = Expected("conda-meta", "sha256", "")
    return Contents((), listed, {path: one for path, one in points.items() if path not in listed})


def owner(origin: str) -> str:
    """Return the distribution, normalised, that a ``.dist-info`` folder's name is of."""
    return str(canonicalize_name(origin.removesuffix(".dist-info").rpartition("-")[0]))


def _read(path: Path) -> str:
    try:
        return files.read(path).decode(errors="replace")
    except OSError:
        return ""


def _record(prefix: Path, info: Path) -> Iterator[tuple[str, Expected]]:
    """Read an installed RECORD (PEP 376); lines that cannot be read are passed over."""
    try:
        rows = list(csv.reader(_read(info / "RECORD").splitlines()))
    except csv.Error:
        return
    for row in rows:
        if len(row) < 2:
            continue
        path = os.path.normpath(info.parent / row[0])
        place = os.path.relpath(path, prefix)
        algorithm, _, encoded = row[1].partition("=")
        try:
            digest = base64.urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4)).hex()
        except ValueError:
            digest = ""
        known = len(digest) == 2 * _ALGORITHMS.get(algorithm, -1)
        yield place, Expected(info.name, algorithm if known else "sha256", digest if known else "")


def _conda(document: Path) -> Iterator[tuple[str, Expected]]:
    try:
        said = json.loads(files.read(document))
        for one in said["paths_data"]["paths"]:
            digest = one.get("sha256_in_prefix") or one.get("sha256") or ""
            yield str(one["_path"]), Expected(document.stem, "sha256", str(digest))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return


def entry_points(origin: str, text: str) -> dict[str, EntryPoint]:
    """Read the scripts that an ``entry_points.txt`` asks for, by their paths in a prefix.

    Args:
        origin: what it belongs to, for messages.
        text: its content.
    """
    try:
        points = scripts.entry_points(text)
    except configparser.Error:
        return {}
    found = {}
    for name, value in points.items():
        module, _, attribute = value.partition("[")[0].strip().partition(":")
        found[f"bin/{name}"] = EntryPoint(origin, module.strip(), attribute.strip())
    return found


def unlisted(
    paths: Iterable[str], links: Collection[str], subject: Subject, contents: Contents
) -> Iterator[Finding]:
    """M002: files and links that no distribution lists and no installer writes.

    Args:
        paths: of all files and links, relative to the prefix.
        links: those that are links.
        subject: what the prefix is held to.
        contents: what must be there.
    """
    there = set(paths)
    written = None if subject.contents is None else subject.contents.written
    infos = {
        path.rpartition("/")[0] for path in contents.files if path.endswith(".dist-info/METADATA")
    }
    for path in sorted(there - contents.files.keys() - contents.scripts.keys()):
        folder, _, name = path.rpartition("/")
        usual = _ENVIRONMENT.fullmatch(path) or (folder in infos and name in ADDED)
        if usual and (written is None or path in written):
            continue
        if name.endswith(".pyc") and _source(path) in there and path not in links:
            continue
        if written is not None and path in written and _of_project(path, subject):
            continue
        # what Python may come upon when it looks for modules, distributions and settings
        packages = _PACKAGES.match(path) is not None
        imported = packages and (name.endswith(_IMPORTED) or path in links)
        imported = imported or name.endswith((".dist-info", ".egg-info"))
        yield Finding(
            "M002",
            "error" if imported or path.startswith("bin/") else "warning",
            f"{subject.prefix}/{path}",
            "belongs to no installed package",
            expected="files of installed packages, and what installers write",
            found="a file of something else",
            mend="remove it; packages that are to stay are declared in the environment's file",
        )


def _of_project(path: str, subject: Subject) -> bool:
    """Whether a file may be one that a project in editable form has in a prefix."""
    distributions = subject.contents.distributions if subject.contents is not None else ()
    projects = {one.name for one in distributions if one.folder is not None}
    if not projects:
        return False
    _, _, name = path.rpartition("/")
    info = re.search(r"/([^/]+)\.dist-info/", path)
    if info is not None and owner(f"{info[1]}.dist-info") in projects:
        return True
    return path.startswith("bin/") or name.startswith("__editable__") or name.endswith(".pth")


def _source(path: str) -> str:
    """Return the source of a byte code file in ``__pycache__`` (PEP 3147)."""
    folder, _, name = path.rpartition("/")
    parent, _, cache = folder.rpartition("/")
    if (cache or folder) != "__pycache__":
        return ""
    return f"{parent}/{name.partition('.')[0]}.py".removeprefix("/")


def missing(paths: Iterable[str], subject: Subject, contents: Contents) -> Iterator[Finding]:
    """M002: files that must be there and are not.

    Args:
        paths: of all files, relative to the prefix.
        subject: what the prefix is held to.
        contents: what must be there.
    """
    there = set(paths)
    for path, expected in contents.files.items():
        # byte code is written anew: virtualenv lists what is not there yet
        if path not in there and not path.startswith("../") and not _compiled(path, contents):
            yield _gone(subject, path, expected.origin)
    for path, point in contents.scripts.items():
        if path not in there:
            yield _gone(subject, path, point.origin)
    for path in contents.written or {}:
        if path not in there and path not in contents.files and path not in contents.scripts:
            yield _gone(subject, path, "the receipt")


def _compiled(path: str, contents: Contents) -> bool:
    """Whether a file is byte code of a listed source, or the folder for it."""
    folder, _, name = path.rpartition("/")
    beside = f"{folder}/{name.partition('.')[0]}.py"
    source = _source(path) or beside
    return name == "__pycache__" or (name.endswith(".pyc") and source in contents.files)


def _gone(subject: Subject, path: str, origin: str) -> Finding:
    return Finding(
        "M002",
        "error",
        f"{subject.prefix}/{path}",
        "is missing",
        expected=f"as {origin} has it",
        found="nothing",
        mend=subject.again,
    )
