"""What the prefixes of a site are held to, in the words of the relocation rules."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from envbuild.catalog.environment import Environment
from envbuild.catalog.site import Layout, Site
from envbuild.errors import InputError
from envbuild.findings import Ignored
from envbuild.lock.interpreters import Pin
from envbuild.prefix import interpreter, journal, preflight
from envbuild.prefix.interpreter import Interpreter
from envbuild.relocation import elf, rules
from envbuild.relocation.subject import Base, Ceilings, Subject
from envbuild.sourcebuild.sandbox import HERE

_LIBRARIES = ("/usr/lib64", "/lib64", "/usr/lib/x86_64-linux-gnu", "/lib/x86_64-linux-gnu")
_FAMILIES = ("GLIBCXX", "CXXABI")


def of(
    layout: Layout,
    name: str,
    environment: Environment,
    *,
    site_file: str,
    base: Base | None,
) -> Subject:
    """Return what an environment's prefix is held to at a site; its contents are added later.

    Args:
        layout: the site.
        name: the environment.
        environment: what its file says.
        site_file: the site's file, for messages.
        base: the interpreter that it must stand on; None where no receipt says.
    """
    site = layout.site
    prefix = layout.prefix(name)
    return Subject(
        prefix=str(prefix),
        owner=os.geteuid(),
        ceilings=ceilings(site, site_file),
        registered=str(prefix),
        root=str(layout.root),
        others={str(layout.prefix(other)): other for other in layout.folders if other != name},
        interpreters=str(layout.interpreters),
        system=site.system_paths,
        caches=tuple(_caches(layout)),
        foreign=_foreign(layout, prefix),
        file_mode=int(site.file_mode, 8),
        shebang_limit=site.shebang_limit,
        links=site.link_mode != "copy",
        base=base,
        overrides=environment.overrides,
        excludes=environment.excludes,
        libraries=site.system_libraries,
        # own device code is compiled for what its recipe says
        architectures=tuple(f"sm_{one}" for one in environment.gpu_architectures)
        or site.gpu_architectures,
        builders=(HERE, str(layout.bookkeeping / "builds")),
        unfinished=tuple(_unfinished(layout.bookkeeping, name)),
        again=again(layout, name),
    )


def again(layout: Layout, name: str, *, rebuild: bool = True) -> str:
    """Return how a prefix is built anew, for people.

    Args:
        layout: the site.
        name: the environment.
        rebuild: whether what is there would be kept otherwise.
    """
    option = " --rebuild" if rebuild else ""
    root = f" --root {layout.root}" if layout.rehearsal else ""
    return f"run `envbuild create {name}{option} --site {layout.name}{root}`"


def stranger(prefix: Path, layout: Layout | None) -> Subject:
    """Return what a prefix is held to that no site registers: what it says of itself.

    Args:
        prefix: its path, absolute.
        layout: the site whose limits count; this machine's own without one.
    """
    site = layout.site if layout is not None else Site(summary="", root="/")
    name = f"sites/{layout.name}.toml" if layout is not None else ""
    others = {}
    if layout is not None:
        others = {str(layout.prefix(other)): other for other in layout.folders}
    return Subject(
        prefix=str(prefix),
        owner=os.geteuid(),
        ceilings=ceilings(site, name),
        root=None if layout is None else str(layout.root),
        others=others,
        interpreters=None if layout is None else str(layout.interpreters),
        system=site.system_paths,
        caches=() if layout is None else tuple(_caches(layout)),
        file_mode=int(site.file_mode, 8),
        shebang_limit=site.shebang_limit,
        links=layout is not None and site.link_mode != "copy",
        libraries=site.system_libraries,
        architectures=site.gpu_architectures,
    )


def ignored(layout: Layout) -> tuple[Ignored, ...]:
    """Return what of the findings about a site's prefixes does not count.

    Raises:
        InputError: the site's file names a rule that there is not.
    """
    for index, one in enumerate(layout.site.ignore):
        if one.code not in rules.rules():
            raise InputError(
                f"ignore[{index}].code: no such rule",
                where=f"site {layout.name}",
                expected="one of " + ", ".join(rules.rules()),
                found=repr(one.code),
            )
    return layout.site.ignore


def base(layout: Layout, python: Interpreter, pin: Pin, *, full: bool) -> Base:
    """Return the interpreter that a prefix must stand on.

    Args:
        layout: the site.
        python: what its receipt says, or what it is built on.
        pin: the pinned one.
        full: whether the files of the pinned one are read, to see that they are as installed.

    Raises:
        OSError: a file of it cannot be read.
    """
    pinned = python.origin == "managed" and python.archive_sha256 == pin.sha256
    fault = None
    known = interpreter.installed(pin, layout.interpreters) if pinned else None
    if pinned and (known is None or known.path != python.path):
        fault = "its interpreter's installation has no record that fits the pin"
    elif pinned and full and interpreter.changed(pin, layout.interpreters):
        fault = "files of its interpreter were changed since it was installed"
    return Base(
        path=python.path,
        version=python.version,
        pinned=pinned,
        wanted=pin.version,
        allowed=layout.site.unpinned_interpreter or layout.rehearsal,
        fault=fault,
    )


def ceilings(site: Site, source: str) -> Ceilings:
    """Return the newest versions of system libraries that a site has, or this machine.

    Args:
        site: what its file says; where it says nothing of glibc, this machine is the site.
        source: the site's file, for messages.
    """
    if site.glibc is None:
        return Ceilings("this machine", _machine())
    named: Mapping[str, str | None] = {
        "GLIBC": site.glibc,
        "GLIBCXX": site.glibcxx,
        "CXXABI": site.cxxabi,
    }
    versions = {family: _numbers(text) for family, text in named.items() if text is not None}
    return Ceilings(source, versions)


def _machine() -> dict[str, tuple[int, ...]]:
    """Ask this machine's own libraries for their versions."""
    found = {"GLIBC": _numbers(preflight.glibc())} if preflight.glibc() else {}
    for folder in _LIBRARIES:
        try:
            data = Path(folder, "libstdc++.so.6").read_bytes()
            versions = elf.defined_versions(data)
        except (OSError, elf.ElfError):
            continue
        for family in _FAMILIES:
            numbers = [
                _numbers(match[1])
                for text in versions
                if (match := re.fullmatch(rf"{family}_(\d+(?:\.\d+)*)", text))
            ]
            if numbers:
                found[family] = max(numbers)
        break
    return found


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


def _caches(layout: Layout) -> list[str]:
    caches = [str(Path.home() / ".cache")]
    if layout.site.uv_cache is not None:
        caches.append(str(layout.path(layout.site.uv_cache)))
    return caches


def _foreign(layout: Layout, prefix: Path) -> dict[str, str]:
    """Return the paths that were right while it was built, and never are afterwards."""
    paths = {str(layout.bookkeeping / "work"): "a folder that is there while a prefix is built"}
    temporary = [str(layout.path(text)) for text in layout.site.temporary]
    if "TMPDIR" in os.environ:
        temporary.append(os.path.normpath(os.environ["TMPDIR"]))
    for path in temporary:
        # a folder that others use for other things, such as /tmp, is named by many files
        if len(Path(path).parts) > 2 and not prefix.is_relative_to(path):
            paths[path] = "a temporary folder"
    return paths


def _unfinished(bookkeeping: Path, name: str) -> list[str]:
    found = journal.path(bookkeeping, name)
    left = sorted((bookkeeping / "work").glob(f"{name}@*"))
    return [str(path) for path in ([found] if found.exists() else []) + left]
