"""The P rules: where a prefix stands, whose it is, and what lies beside it."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from envbuild.findings import Finding
from envbuild.relocation.subject import Subject


def standing(subject: Subject) -> Iterator[Finding]:
    """P001: the path given is the real one, and the one that the site registers.

    Another name for the registered folder, a link or a second mount, is found by device and inode.
    """
    prefix = Path(subject.prefix)
    registered = subject.registered
    mend = "call it by that path: its scripts and byte code name it"
    if registered is not None and registered != subject.prefix:
        if _same(prefix, Path(registered)):
            yield Finding(
                "P001",
                "error",
                subject.prefix,
                "is another name for the registered prefix",
                expected=registered,
                found=f"{subject.prefix}, the same folder",
                mend=mend,
            )
            return
        yield Finding(
            "P001",
            "error",
            subject.prefix,
            "is not where the site registers this prefix",
            expected=registered,
            found=subject.prefix,
            mend=subject.again,
        )
    real = prefix.resolve()
    if str(real) != subject.prefix:
        yield Finding(
            "P001",
            "error",
            subject.prefix,
            "is reached through a link",
            expected=str(real),
            found=f"{_link(prefix)} is a link",
            mend="use the path without links, in the site's file too",
        )


def _same(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other)
    except OSError:
        return False


def _link(path: Path) -> Path:
    """Return the first part of a path that is a link."""
    return next((one for one in (*reversed(path.parents), path) if one.is_symlink()), path)


def another_name(subject: Subject, said: str) -> Iterator[Finding]:
    """P001 for a prefix that no site registers: what it calls itself is another name of the folder.

    Args:
        subject: the prefix.
        said: the path that its own activation script names.
    """
    if said != subject.prefix and _same(Path(said), Path(subject.prefix)):
        yield Finding(
            "P001",
            "error",
            subject.prefix,
            "is another name for the prefix",
            expected=said,
            found=f"{subject.prefix}, the same folder",
            mend="call it by that path: its scripts and byte code name it",
        )


def moved(subject: Subject, said: str) -> Iterator[Finding]:
    """P001 for a prefix that no site registers: what it calls itself is another place.

    Args:
        subject: the prefix.
        said: the path that its own activation script names.
    """
    if said != subject.prefix:
        yield Finding(
            "P001",
            "error",
            subject.prefix,
            "was made at another path, and moved or copied here",
            expected=said,
            found=subject.prefix,
            mend="put it back at that path, or make it anew here: list what is in it with `uv pip "
            "list --format freeze --python PATH`, and install that into a new one",
        )


def ownership(subject: Subject) -> Iterator[Finding]:
    """P002 for the prefix itself and the folders above it.

    Folders above may be root's; a folder that others write to is right only where it is sticky, as
    /tmp is.
    """
    prefix = Path(subject.prefix)
    status = prefix.stat()
    if status.st_uid != subject.owner:
        yield Finding(
            "P002",
            "warning" if subject.owner == 0 else "error",  # root reads for others, in containers
            subject.prefix,
            "belongs to another user",
            expected=f"uid {subject.owner}",
            found=f"uid {status.st_uid}",
            mend="verify it as the user who created it, or create one of your own",
        )
    for folder in prefix.parents:
        try:
            above = folder.stat()
        except OSError:
            continue
        if above.st_uid not in (0, status.st_uid, _unmapped()):
            yield Finding(
                "P002",
                "warning",
                str(folder),
                "a folder above the prefix belongs to another user, who can replace the prefix",
                expected=f"uid {status.st_uid} or 0",
                found=f"uid {above.st_uid}",
                mend="use a root whose folders are yours or the system's",
            )
        elif above.st_mode & stat.S_IWOTH and not above.st_mode & stat.S_ISVTX:
            yield Finding(
                "P002",
                "warning",
                str(folder),
                "everyone can replace what is in a folder above the prefix",
                expected="a folder that others cannot write to, or a sticky one",
                found=f"mode {stat.S_IMODE(above.st_mode):04o}",
                mend=f"chmod o-w {folder}",
            )


def _unmapped() -> int | None:
    """Return the number that stands for users who have none in this user namespace, root too.

    None outside of one (user_namespaces(7)).
    """
    try:
        mapped = Path("/proc/self/uid_map").read_text().split()
        if mapped == ["0", "0", str(2**32 - 1)]:
            return None
        return int(Path("/proc/sys/kernel/overflowuid").read_text())
    except (OSError, ValueError):
        return None


def mode(
    where: str, status: os.stat_result, subject: Subject, *, owner: int, program: bool
) -> Iterator[Finding]:
    """P002 for one file or folder of a prefix.

    Args:
        where: its path.
        status: what the file system says of it.
        subject: what the prefix is held to.
        owner: whose the prefix is.
        program: whether it is a program of ``bin``.
    """
    needed = subject.file_mode
    if program or stat.S_ISDIR(status.st_mode):
        needed |= (needed & 0o444) >> 2  # who reads it, runs or enters it
    found = stat.S_IMODE(status.st_mode)
    if found & needed != needed:
        yield Finding(
            "P002",
            "error",
            where,
            "its mode keeps its owner out"
            if needed & ~found & 0o700
            else "its mode keeps others out",
            expected=f"at least {needed:04o}",
            found=f"{found:04o}",
            mend=f"chmod {_symbolic(needed & ~found)} {where}; a umask of 022 makes them so",
        )
    elif found & (stat.S_ISUID | stat.S_ISGID) and stat.S_ISREG(status.st_mode):
        yield Finding(
            "P002",
            "error",
            where,
            "runs with the rights of its owner or group",
            expected=f"{found & 0o777:04o}",
            found=f"{found:04o}",
            mend=f"chmod ug-s {where}, and see where it is from",
        )
    elif found & stat.S_IWOTH and not where.endswith("/.lock"):  # uv makes one so
        yield Finding(
            "P002",
            "error",
            where,
            "everyone can write to it",
            expected=f"{found & ~0o022:04o}",
            found=f"{found:04o}",
            mend=f"chmod go-w {where}, and see that it is as it was",
        )
    if status.st_uid != owner:
        yield Finding(
            "P002",
            "error",
            where,
            "belongs to another user than the prefix",
            expected=f"uid {owner}",
            found=f"uid {status.st_uid}",
            mend=subject.again,
        )


def _symbolic(bits: int) -> str:
    """Write missing permissions as chmod(1) takes them."""
    parts = []
    for who, shift in (("u", 6), ("g", 3), ("o", 0)):
        letters = "".join(x for x, bit in (("r", 4), ("w", 2), ("x", 1)) if bits >> shift & bit)
        if letters:
            parts.append(f"{who}+{letters}")
    return ",".join(parts)


def unfinished(subject: Subject) -> Iterator[Finding]:
    """P004: no journal of an interrupted run, no half-made folder."""
    for path in subject.unfinished:
        yield Finding(
            "P004",
            "error",
            path,
            "was left by a run that did not end",
            expected=f"nothing unfinished of {subject.prefix}",
            found=path,
            mend="run `envbuild recover`",
        )
