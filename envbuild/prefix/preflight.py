"""What must hold of a place before anything is built there.

The functions that yield findings are shared: `envbuild site check` reports all that they find, and
the ``check_…`` functions, which come before a build, raise the first error among it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import platform
import re
import stat
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Literal

from envbuild.catalog.site import Layout
from envbuild.errors import PreflightError
from envbuild.findings import Finding
from envbuild.prefix.receipt import Host
from envbuild.relocation import running

_DRIVER = Path("/proc/driver/nvidia/version")

# what the kernel says of file locks that a file system does not have
_NO_LOCKS = frozenset({errno.ENOSYS, errno.ENOTSUP, errno.ENOLCK, errno.EINVAL})


def glibc() -> str:
    """Return the version of this system's C library, such as ``2.36``; empty if it is not glibc."""
    name, _, version = (os.confstr("CS_GNU_LIBC_VERSION") or "").partition(" ")
    return version if name == "glibc" else ""


def host() -> Host:
    """Return what receipts say of this machine."""
    return Host(name=platform.node(), kernel=os.uname().release, glibc=glibc(), driver=driver())


def driver() -> str | None:
    """Return the version of the NVIDIA driver, such as ``570.86.15``; None where there is none."""
    try:
        return driver_version(_DRIVER.read_text())
    except OSError:
        return None


def driver_version(text: str) -> str | None:
    """Find the version in what ``/proc/driver/nvidia/version`` says.

    It is "x86_64 Kernel Module  535.129.03" for the closed modules, and "Open Kernel Module for
    x86_64  570.86.15" for the open ones.
    """
    match = re.search(r"Kernel Module\s+(?:for \S+\s+)?(\d+(?:\.\d+)+)", text)
    return match[1] if match else None


def check_site(layout: Layout) -> list[str]:
    """Hold this machine to what the site's file says of its folders.

    Returns:
        What was not looked at, in words, since this is a rehearsal.

    Raises:
        PreflightError: a mount is missing, the root is reached by another name, or TMPDIR lies
            where the site does not allow it.
    """
    found = [missing_mounts(layout), letters(layout), names(layout)]
    _refuse(chain(*found, variables(layout, ["TMPDIR"])))
    return unseen(layout)


def unseen(layout: Layout) -> list[str]:
    """Say in words what of a site is not looked at, since this is a rehearsal."""
    keys = [key for key in ("mounts", "aliases", "personal") if getattr(layout.site, key)]
    if not layout.rehearsal or not keys:
        return []
    return [f"rehearsal: {', '.join(keys)} of the site were not looked at"]


def missing_mounts(layout: Layout) -> Iterator[Finding]:
    """Yield the site's mounts that are not there (S001); none in a rehearsal."""
    for text in () if layout.rehearsal else layout.site.mounts:
        folder = layout.path(text)
        instead = _instead_of_folder(folder)
        if instead is not None:
            yield Finding(
                "S001",
                "error",
                where=f"site {layout.name}",
                message="a mount of the site is not there",
                expected=f"the folder {folder}",
                found=instead,
                mend="run this on the site, with its file systems mounted; elsewhere, rehearse "
                "it with --root DIR",
            )


def _instead_of_folder(path: Path) -> str | None:
    """Say what stands where a folder should be; None if it is one."""
    with contextlib.suppress(OSError):
        (path / "..").stat()  # a step beyond it makes an automounter mount it
    try:
        return None if stat.S_ISDIR(path.stat().st_mode) else "another thing than a folder"
    except FileNotFoundError:
        return "nothing of that name"
    except OSError as error:
        return error.strerror


def letters(layout: Layout) -> Iterator[Finding]:
    """Yield whether the root's path is one that scripts, shells or uv cannot write down (S003)."""
    text = os.fsencode(layout.root).decode(errors="replace")
    if not text.isprintable() or "\N{REPLACEMENT CHARACTER}" in text:
        yield Finding(
            "S003",
            "error",
            where=repr(str(layout.root)),
            message="the root's path holds a character that no script can name",
            expected="printable characters, encoded as UTF-8",
            mend="choose another folder",
        )


def names(layout: Layout) -> Iterator[Finding]:
    """Yield whether the root is another name for the registered folder: paths bind it (P001)."""
    real = Path(os.path.realpath(layout.root))
    if real != layout.root:
        yield Finding(
            "P001",
            "error",
            where=str(layout.root),
            message="the root is reached by another name than its own",
            expected=str(real),
            found=str(layout.root),
            mend=f"use {real} itself: a prefix works at one path alone",
        )
    for text in layout.site.aliases:
        alias = layout.path(text)
        if layout.root.is_relative_to(alias):
            yield Finding(
                "P001",
                "error",
                where=str(layout.root),
                message="the root lies below a name that the site must not use",
                expected=str(layout.registered_root),
                found=str(alias),
            )


def links(places: Iterable[Path]) -> Iterator[Finding]:
    """Yield symbolic links that stand where a root or a prefix must be (P001)."""
    for place in places:
        try:
            target = place.readlink()
        except OSError:
            continue  # not a link, or not to be seen, which others find out
        yield Finding(
            "P001",
            "error",
            where=str(place),
            message="a symbolic link stands where a folder must be",
            found=f"a link to {target}",
            mend="remove the link: a prefix works at one path alone",
        )


def variables(layout: Layout, wanted: Sequence[str]) -> Iterator[Finding]:
    """Yield variables of the environment that name folders which the site does not allow (R001).

    Args:
        layout: the site; without `temporary` it allows any folder.
        wanted: the variables; what is not set is well.
    """
    for name in wanted if layout.site.temporary else ():
        folders = _allowed(layout, name)
        given = os.environ.get(name)
        if given is not None:
            yield from running.cache(name, given, folders, f"site {layout.name}")


def _allowed(layout: Layout, variable: str) -> list[Path]:
    """Return the folders that a variable may name one in; uv's cache has one of its own too."""
    own = layout.site.uv_cache if variable == "UV_CACHE_DIR" else None
    return [layout.path(text) for text in (own, *layout.site.temporary) if text is not None]


def temporary(layout: Layout) -> Path | None:
    """Return the folder that programs get as TMPDIR; None to leave it as it is."""
    if not layout.site.temporary or "TMPDIR" in os.environ:
        return None
    return layout.path(layout.site.temporary[0])


def check_glibc(layout: Layout, minor: int, environment: str) -> None:
    """Hold the system's C library to the oldest one that the lock's wheels are for.

    Args:
        layout: the site.
        minor: the minor version of glibc 2 that the lock's platform names.
        environment: for whom, in messages.

    Raises:
        PreflightError: it is older, or not glibc.
    """
    _refuse(c_library(layout, minor, environment))


def c_library(layout: Layout, minor: int, environment: str) -> Iterator[Finding]:
    """Yield whether the system's C library is older than an environment needs (S010)."""
    found = glibc()
    if not found or tuple(map(int, found.split("."))) < (2, minor):
        yield Finding(
            "S010",
            "error",
            where=f"site {layout.name}",
            message=f"the wheels of {environment} need a newer C library than this system has",
            expected=f"glibc 2.{minor} or newer",
            found=f"glibc {found}" if found else "another C library",
            mend="lower `platform` in the environment's file and lock it again",
        )


def check_root(layout: Layout, prefix: Path) -> None:
    """Make the root's bookkeeping folder and see that it can be written and locked.

    Raises:
        PreflightError: the root or the prefix's folder cannot be written, is not the caller's, or
            file locks do not work there.
    """
    for folder in (layout.bookkeeping, prefix.parent):
        _refuse(usable(folder, make=True))
    _refuse(links([layout.root, prefix]))
    _refuse(foreign_root(layout))


def foreign_root(layout: Layout) -> Iterator[Finding]:
    """Yield whether the root is another user's: an error, but for the superuser (P002)."""
    owner = layout.root.stat().st_uid
    caller = os.geteuid()
    if owner != caller:
        yield Finding(
            "P002",
            "warning" if caller == 0 else "error",
            where=str(layout.root),
            message="the root belongs to another user",
            expected=f"owner {caller}, who runs this",
            found=f"owner {owner}",
            mend="build as the owner, or give the site a root of your own",
        )


def usable(folder: Path, *, make: bool = False, setting: str = "root") -> Iterator[Finding]:
    """Yield why a folder cannot be written (S005) or has no file locks (S006), by trying.

    Args:
        folder: the folder; nothing is left in it.
        make: whether to make it where it is not there.
        setting: what names another folder in place of it.
    """
    try:
        if make:
            folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as probe:
            refused = _lock_refused(probe.fileno())
    except OSError as error:
        yield unwritable(folder, error, setting=setting)
        return
    if refused is not None:
        yield Finding(
            "S006",
            "error",
            where=str(folder),
            message=f"file locks do not work here: {refused}",
            expected="a file system with flock, which uv needs",
            mend=f"mount it with locking, or set `{setting}` to a folder on another file system",
        )


def unwritable(folder: Path, error: OSError, *, setting: str = "root") -> Finding:
    """Say that a folder cannot be written, as the kernel refused it (S005)."""
    elsewhere = f"set `{setting}` to another folder"
    if setting == "root":
        elsewhere = "rehearse elsewhere with --root DIR"
    full = error.errno in {errno.ENOSPC, errno.EDQUOT}
    return Finding(
        "S005",
        "error",
        where=str(folder),
        message=f"cannot write: {error.strerror}",
        expected="a folder that you may write",
        mend="remove files there, ask for a larger quota, or " + elsewhere
        if full
        else "check the folder's owner and mount, or " + elsewhere,
    )


def _lock_refused(descriptor: int) -> str | None:
    """Try flock, which uv relies on; return what the kernel says where there is none."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        return error.strerror
    return None


def check_space(folder: Path, *, size: int, files: int, environment: str) -> None:
    """Hold free bytes and inodes to what a prefix will take.

    Args:
        folder: a folder of the file system.
        size: bytes that will be written.
        files: files and folders that will be made.
        environment: for whom, in messages.

    Raises:
        PreflightError: there is too little of either; both numbers are named.
    """
    _refuse(space(folder, size=size, files=files, environment=environment))


def space(
    folder: Path,
    *,
    size: int,
    files: int,
    environment: str,
    severity: Literal["error", "warning"] = "error",
) -> Iterator[Finding]:
    """Yield what a folder's file system has too little of: bytes, inodes (S009).

    Args:
        folder: a folder of the file system.
        size: bytes that will be written.
        files: files and folders that will be made.
        environment: for whom, in messages.
        severity: how bad that is.
    """
    status = os.statvfs(folder)
    free = status.f_bavail * status.f_frsize
    if free < size:
        yield Finding(
            "S009",
            severity,
            where=str(folder),
            message=f"too little space for {environment}",
            expected=f"{size / 1e6:.1f} MB free",
            found=f"{free / 1e6:.1f} MB free",
            mend="free some space, or build it elsewhere with --root DIR",
        )
    # file systems without a fixed number of inodes (btrfs) say 0 of 0
    if status.f_files and status.f_favail < files:
        yield Finding(
            "S009",
            severity,
            where=str(folder),
            message=f"too few inodes for {environment}",
            expected=f"{files} free",
            found=f"{status.f_favail} free",
            mend="remove files there, or ask for a larger quota",
        )


def _refuse(findings: Iterable[Finding]) -> None:
    """Raise the first error; what comes after it is not looked at."""
    for finding in findings:
        if finding.severity == "error":
            raise PreflightError(
                finding.message,
                where=finding.where,
                expected=finding.expected,
                found=finding.found,
                mend=finding.mend,
            )
