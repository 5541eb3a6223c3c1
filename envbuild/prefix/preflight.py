"""What must hold of a place before anything is built there."""

from __future__ import annotations

import errno
import fcntl
import os
import tempfile
from pathlib import Path

from envbuild.catalog.site import Layout
from envbuild.errors import PreflightError


def glibc() -> str:
    """Return the version of this system's C library, such as ``2.36``; empty if it is not glibc."""
    name, _, version = (os.confstr("CS_GNU_LIBC_VERSION") or "").partition(" ")
    return version if name == "glibc" else ""


def check_site(layout: Layout) -> list[str]:
    """Hold this machine to what the site's file says of its folders.

    Returns:
        What was not looked at, in words, since this is a rehearsal.

    Raises:
        PreflightError: a mount is missing, the root is reached by another name, or TMPDIR lies
            where the site does not allow it.
    """
    notes = []
    if layout.rehearsal:
        unseen = [key for key in ("mounts", "aliases", "personal") if getattr(layout.site, key)]
        if unseen:
            notes.append(f"rehearsal: {', '.join(unseen)} of the site were not looked at")
    else:
        for text in layout.site.mounts:
            if not layout.path(text).is_dir():
                raise PreflightError(
                    "a mount of the site is not there",
                    where=f"site {layout.name}",
                    expected=f"the folder {layout.path(text)}",
                    found="nothing of that name",
                    mend="run this on the site, with its file systems mounted; elsewhere, rehearse "
                    "it with --root DIR",
                )
    _check_letters(layout)
    _check_names(layout)
    _check_temporary(layout)
    return notes


def _check_letters(layout: Layout) -> None:
    """Refuse paths that scripts, shells or uv cannot write down."""
    text = os.fsencode(layout.root).decode(errors="replace")
    if not text.isprintable() or "\N{REPLACEMENT CHARACTER}" in text:
        raise PreflightError(
            "the root's path holds a character that no script can name",
            where=repr(str(layout.root)),
            expected="printable characters, encoded as UTF-8",
            mend="choose another folder",
        )


def _check_names(layout: Layout) -> None:
    """Refuse a root that is another name for the registered folder: paths would bind it."""
    real = Path(os.path.realpath(layout.root))
    if real != layout.root:
        raise PreflightError(
            "the root is reached by another name than its own",
            where=layout.root,
            expected=real,
            found=layout.root,
            mend=f"use {real} itself: a prefix works at one path alone",
        )
    for text in layout.site.aliases:
        alias = layout.path(text)
        if layout.root.is_relative_to(alias):
            raise PreflightError(
                "the root lies below a name that the site must not use",
                where=layout.root,
                expected=layout.registered_root,
                found=alias,
            )


def _check_temporary(layout: Layout) -> None:
    allowed = [layout.path(text) for text in layout.site.temporary]
    given = os.environ.get("TMPDIR")
    if not allowed or given is None:
        return  # without TMPDIR, `temporary` chooses an allowed folder
    if not any(Path(given).absolute().is_relative_to(folder) for folder in allowed):
        raise PreflightError(
            "TMPDIR lies where the site does not allow it",
            where=f"site {layout.name}",
            expected="a folder in " + " or ".join(map(str, allowed)),
            found=given,
            mend=f"export TMPDIR={allowed[0]}, or unset it",
        )


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
    found = glibc()
    if not found or tuple(map(int, found.split("."))) < (2, minor):
        raise PreflightError(
            f"the wheels of {environment} need a newer C library than this system has",
            where=f"site {layout.name}",
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
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder) as probe:
                _probe_lock(probe.fileno(), folder)
        except OSError as error:
            raise PreflightError(
                f"cannot write: {error.strerror}",
                where=folder,
                expected="a folder that you may write",
                mend="check the folder's owner and mount, or rehearse elsewhere with --root DIR",
            ) from error
    for place in (layout.root, prefix):
        if place.is_symlink():
            raise PreflightError(
                "a symbolic link stands where a folder must be",
                where=place,
                found=f"a link to {place.readlink()}",
                mend="remove the link: a prefix works at one path alone",
            )
    owner = layout.root.stat().st_uid
    if owner != os.geteuid() and os.geteuid() != 0:
        raise PreflightError(
            "the root belongs to another user",
            where=layout.root,
            expected=f"owner {os.geteuid()}, who runs this",
            found=f"owner {owner}",
            mend="build as the owner, or give the site a root of your own",
        )


def _probe_lock(descriptor: int, folder: Path) -> None:
    """See that flock works, which uv relies on."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in {errno.ENOSYS, errno.ENOTSUP, errno.ENOLCK, errno.EINVAL}:
            raise
        raise PreflightError(
            f"file locks do not work here: {error.strerror}",
            where=folder,
            expected="a file system with flock, which uv needs",
            mend="mount it with locking, or set `root` to a folder on another file system",
        ) from error


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
    status = os.statvfs(folder)
    free = status.f_bavail * status.f_frsize
    if free < size:
        raise PreflightError(
            f"too little space for {environment}",
            where=folder,
            expected=f"{size / 1e6:.1f} MB free",
            found=f"{free / 1e6:.1f} MB free",
            mend="free some space, or build it elsewhere with --root DIR",
        )
    # file systems without a fixed number of inodes (btrfs) say 0 of 0
    if status.f_files and status.f_favail < files:
        raise PreflightError(
            f"too few inodes for {environment}",
            where=folder,
            expected=f"{files} free",
            found=f"{status.f_favail} free",
            mend="remove files there, or ask for a larger quota",
        )
