"""Looking at this machine as a site's file says it should be: findings, and what was seen.

Nothing is changed but for probe folders, which are removed at once, and the receipt. Of the
personal folder, where credentials are, only names, owners and modes are looked at.
"""

from __future__ import annotations

import bisect
import datetime
import fcntl
import grp
import os
import platform
import pwd
import re
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import msgspec

from envbuild import durable, process
from envbuild.catalog.environment import Environment
from envbuild.catalog.project import Project
from envbuild.catalog.site import Layout
from envbuild.errors import StepError
from envbuild.findings import Finding
from envbuild.lock import interpreters as pins
from envbuild.lock.interpreters import Pin
from envbuild.prefix import aside, interpreter, preflight
from envbuild.prefix.receipt import Host

SCHEMA = "envbuild.site-check/1"
NAME = "site-check"

# worth a warning before anything is to be built; a build counts what it will take itself
_FREE_BYTES = 10_000_000_000
_FREE_INODES = 100_000

_VARIABLES = ("TMPDIR", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "UV_CACHE_DIR")

# #!/bin/sh, written with ever more slashes, up to a page
_SHEBANG_LENGTHS = range(len("#!/bin/sh"), 4097)

_FICLONE = 0x40049409  # ioctl_ficlone(2)

_NVIDIA_SMI_SECONDS = 30.0

_REPLACED = {
    "renames": (
        "between the two renames that replace a prefix there is none for a moment",
        "create while no job is about to start",
    ),
    "in place": (
        "while a new prefix is built there is none at its path",
        "ask for user namespaces (user.max_user_namespaces), or create while no job is running",
    ),
}


class Probe(msgspec.Struct, frozen=True):
    """One thing that was looked at, and what was seen.

    Attributes:
        what: its name.
        where: the path, folder or environment it was looked at in.
        answer: what was seen; a number for bytes, inodes and lengths.
    """

    what: str
    where: str
    answer: str | int


class Report(msgspec.Struct, frozen=True):
    """What is known of a site from one look at it.

    Attributes:
        site: its name.
        root: the site's root, or that of the rehearsal.
        user: who stood for ``{user}``.
        rehearsal: whether the root is another than the site's own.
        host: the machine.
        probes: what was seen.
        findings: what is not as it should be.
        notes: what was not looked at, and why.
        created: when, in UTC.
        schema: of this report.
    """

    site: str
    root: str
    user: str
    rehearsal: bool
    host: Host
    probes: tuple[Probe, ...]
    findings: tuple[Finding, ...]
    notes: tuple[str, ...]
    created: str
    schema: str = SCHEMA


Severity = Literal["error", "warning"]

# what a check yields: something seen, something wrong, or a note in words
Result = Probe | Finding | str


class _Mount(msgspec.Struct, frozen=True):
    """A mount point and the kind of its file system."""

    point: Path
    kind: str


def look(project: Project, layout: Layout, wheelhouse: Path) -> Report:
    """Look at everything that a site's file speaks of.

    Args:
        project: the project.
        layout: the site.
        wheelhouse: the folder of artifacts.

    Raises:
        InputError: an environment's file, or that of the pins, is wrong.
    """
    environments = {name: project.environment(name) for name in sorted(layout.folders)}
    results = list(_results(project, layout, environments, wheelhouse))
    return Report(
        site=layout.name,
        root=str(layout.root),
        user=layout.user,
        rehearsal=layout.rehearsal,
        host=preflight.host(),
        probes=tuple(one for one in results if isinstance(one, Probe)),
        findings=tuple(one for one in results if isinstance(one, Finding)),
        notes=tuple(one for one in results if isinstance(one, str)),
        created=datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
    )


def record(layout: Layout, report: Report) -> tuple[Report, Path | None]:
    """Write the report as the site's receipt, if its root can be written.

    Returns:
        The report, with a finding more if it could not be written, and where it was written.
    """
    path = layout.bookkeeping / f"{NAME}.json"
    if not _is_folder(layout.root) or _cannot_be_written(report, layout.bookkeeping):
        return report, None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        data = msgspec.json.format(msgspec.json.encode(report, order="sorted"), indent=2)
        durable.write(path, data + b"\n")
    except OSError as error:
        findings = (*report.findings, preflight.unwritable(path.parent, error))
        return msgspec.structs.replace(report, findings=findings), None
    return report, path


def _cannot_be_written(report: Report, folder: Path) -> bool:
    return any(one.code == "S005" and one.where == str(folder) for one in report.findings)


def _results(
    project: Project, layout: Layout, environments: Mapping[str, Environment], wheelhouse: Path
) -> Iterator[Result]:
    yield from preflight.unseen(layout)
    yield from preflight.letters(layout)
    yield from preflight.variables(layout, _VARIABLES)
    yield from _glibc(layout, environments)
    yield from _gpus(layout)
    if not layout.rehearsal:
        yield from _mounts(layout)
    if any(preflight.missing_mounts(layout)):
        yield "a mount is missing: the site's other folders were not looked at"
        return
    if not layout.rehearsal:
        yield from _aliases(layout)
        yield from personal(project, layout)
    pinned = pins.read(project.interpreters_file)
    yield from _interpreters(layout, environments, pinned, wheelhouse)
    yield from _root(layout, environments)


def _root(layout: Layout, environments: Iterable[str]) -> Iterator[Result]:
    """Look at the root: its name, its owner, its file system."""
    yield from preflight.names(layout)
    yield from preflight.links([layout.root, *map(layout.prefix, environments)])
    yield from _writers(layout.root)
    yield from _space(layout)
    if _is_folder(layout.root):
        yield _seen_folder("root", layout.root)
        yield from preflight.foreign_root(layout)
        yield from _probed(layout)
    else:
        yield from _absent(layout)


def _absent(layout: Layout) -> Iterator[Result]:
    """Say that there is no root yet, or that there can be none."""
    yield "the root is not there: what has to be tried there was not"
    above = _nearest(layout.root)
    if _is_folder(above) and os.access(above, os.W_OK | os.X_OK):
        yield Finding(
            "S004",
            "warning",
            where=str(layout.root),
            message="the root is not there yet",
            expected="a folder",
            found=f"nothing below {above}",
            mend=f"run `mkdir -p {layout.root}` and check again, or create an environment",
        )
    else:
        yield Finding(
            "S005",
            "error",
            where=str(above),
            message=f"the root {layout.root} cannot be made here",
            expected="a folder that you may write",
            found=_owner_and_mode(above.stat()),
            mend="have the root made for you, or rehearse elsewhere with --root DIR",
        )


# Where things are


def _mounts(layout: Layout) -> Iterator[Result]:
    """Look at the site's mounts: whether they are there, and are mounted."""
    yield from preflight.missing_mounts(layout)
    table = _mount_table()
    for path in map(layout.path, layout.site.mounts):
        if not _is_folder(path):
            continue
        mount = _mount_of(path, table)
        yield _seen_folder("mount", path, f"on {mount.point} ({mount.kind})")
        if mount.point == Path("/"):
            yield Finding(
                "S002",
                "warning",
                where=str(path),
                message="a mount of the site is a folder of the system's own file system",
                expected="a mount point, or a folder on one",
                found=f"a folder on / ({mount.kind})",
                mend="mount it, or take it out of `mounts` in the site's file",
            )


def _mount_table() -> list[_Mount]:
    """Read what this process sees mounted (proc_pid_mountinfo(5)), the newest first."""
    table = []
    text = Path("/proc/self/mountinfo").read_text(errors="surrogateescape")
    for line in text.splitlines():
        fields = line.split(" ")
        # spaces in it are written as \040
        point = re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), fields[4])
        table.append(_Mount(Path(point), fields[fields.index("-") + 1]))
    return table[::-1]


def _mount_of(path: Path, table: Iterable[_Mount]) -> _Mount:
    """Return the mount that a folder is on; of several at one point the newest."""
    real = Path(os.path.realpath(path))
    fitting = [mount for mount in table if real.is_relative_to(mount.point)]
    # below a chroot(2) there may be none at /
    unknown = _Mount(Path("/"), "unknown")
    return max(fitting, key=lambda mount: len(mount.point.parts), default=unknown)


def _aliases(layout: Layout) -> Iterator[Result]:
    """Look for other names of the root, or of a folder above it, that the site must not use."""
    above = [folder for folder in (layout.root, *layout.root.parents) if _is_folder(folder)]
    known = {_identity(folder): folder for folder in above}
    for alias in map(layout.path, layout.site.aliases):
        if not _is_folder(alias):
            yield Probe("alias", str(alias), "not there")
            continue
        yield _seen_folder("alias", alias)
        same = known.get(_identity(alias))
        if same is not None and same != alias:
            yield Finding(
                "P001",
                "warning",
                where=str(alias),
                message="this is another name for a folder of the root's path",
                expected=f"{same} alone",
                found=f"the same folder: {_device_and_inode(alias.stat())}",
                mend=f"name it {same} in jobs and settings, never {alias}",
            )


def _identity(folder: Path) -> tuple[int, int]:
    status = folder.stat()
    return status.st_dev, status.st_ino


def _device_and_inode(status: os.stat_result) -> str:
    device = f"{os.major(status.st_dev)}:{os.minor(status.st_dev)}"
    return f"device {device}, inode {status.st_ino}"


def _seen_folder(what: str, folder: Path, besides: str = "") -> Probe:
    parts = [_device_and_inode(folder.stat()), *([besides] if besides else [])]
    return Probe(what, str(folder), ", ".join(parts))


def _is_folder(path: Path) -> bool:
    """Whether a folder can be seen there, by one who may not see all."""
    try:
        return stat.S_ISDIR(path.stat().st_mode)
    except OSError:
        return False


def _nearest(path: Path) -> Path:
    """Return a path, or the nearest one above it that can be seen."""
    return next(one for one in (path, *path.parents) if os.access(one, os.F_OK))


# Who may do what


def _owner_and_mode(status: os.stat_result) -> str:
    return f"owner {status.st_uid}, mode {stat.S_IMODE(status.st_mode):04o}"


def _writers(root: Path) -> Iterator[Finding]:
    """Yield the root or folders above it in which others may put something else at its path."""
    for folder in (root, *root.parents):
        if not _is_folder(folder):
            continue
        status = folder.stat()
        if status.st_mode & stat.S_ISVTX:
            continue
        if status.st_mode & stat.S_IWOTH:
            yield _others_write("error", folder, status, "everybody", "o-w")
        elif status.st_mode & stat.S_IWGRP and not _is_private(status):
            yield _others_write("warning", folder, status, f"group {_group(status)}", "g-w")


def _others_write(
    severity: Severity, folder: Path, status: os.stat_result, who: str, change: str
) -> Finding:
    return Finding(
        "P002",
        severity,
        where=str(folder),
        message=f"{who} may rename what stands in this folder, and so replace the root",
        expected="no writing by group and others, or the sticky bit",
        found=_owner_and_mode(status),
        mend=f"run `chmod {change} {folder}`, or `chmod +t {folder}`",
    )


def _group(status: os.stat_result) -> str:
    try:
        return grp.getgrgid(status.st_gid).gr_name
    except KeyError:
        return str(status.st_gid)


def _is_private(status: os.stat_result) -> bool:
    """Whether a folder's group is the owner's own, as many systems give each user one."""
    try:
        group = grp.getgrgid(status.st_gid)
        owner = pwd.getpwuid(status.st_uid).pw_name
    except KeyError:
        return False
    return group.gr_name == owner and set(group.gr_mem) <= {owner}


class _Private(msgspec.Struct, frozen=True):
    """A folder or file of credentials: where it is, and the mode that it should have."""

    path: Path
    kind: Literal["folder", "file"]
    mode: int

    def is_right(self, status: os.stat_result) -> bool:
        """Whether kind and mode are as they should be; a file may be closed to its owner too."""
        mode = status.st_mode & 0o777
        if self.kind == "folder":
            return stat.S_ISDIR(status.st_mode) and mode == self.mode
        return stat.S_ISREG(status.st_mode) and not mode & ~self.mode


def personal(project: Project, layout: Layout) -> Iterator[Result]:
    """Look at the folder of credentials and the file in it, from outside: neither is opened (R004).

    Nothing is yielded where the site's file names none, nor in a rehearsal, whose user has none.
    """
    declared = layout.site.personal
    if declared is None or layout.rehearsal:
        return
    public = {"the site's root": layout.root, "the repository": _repository(project.folder)}
    folder = layout.path(declared.folder)
    yield from _private(_Private(folder, "folder", int(declared.mode, 8)), public)
    yield from _private(_Private(folder / declared.env_file, "file", 0o600), public)


def _private(private: _Private, public: Mapping[str, Path]) -> Iterator[Result]:
    """Look at a folder or file of credentials: kind, mode, owner and place (R004)."""
    path, kind = private.path, private.kind
    make = f"mkdir -m {private.mode:04o}" if kind == "folder" else "install -m 0600 /dev/null"
    try:
        status = path.stat()
    except OSError as error:
        message = f"the personal {kind} is not to be seen"
        found = error.strerror or str(error)
        yield _exposed("warning", private, message, found, f"run `{make} {path}`")
        return
    seen = _owner_and_mode(status)
    yield Probe(f"personal {kind}", str(path), seen)
    if not private.is_right(status):
        message = f"the personal {kind} is not closed to others as the site says"
        yield _exposed("error", private, message, seen, f"run `chmod {private.mode:04o} {path}`")
    if status.st_uid != os.geteuid():
        message = f"the personal {kind} belongs to another user"
        mend = "run this as its owner, or name your own with --user"
        yield _exposed("warning" if os.geteuid() == 0 else "error", private, message, seen, mend)
    real = Path(os.path.realpath(path))
    for name, place in public.items():
        if real.is_relative_to(os.path.realpath(place)):
            message = f"the personal {kind} lies in {name}"
            mend = "move it to where nothing is published, and name that in `personal`"
            yield _exposed("error", private, message, str(real), mend)


def _exposed(severity: Severity, private: _Private, message: str, found: str, mend: str) -> Finding:
    return Finding(
        "R004",
        severity,
        where=str(private.path),
        message=message,
        expected=f"a {private.kind} of yours alone, mode {private.mode:04o}, outside the "
        "repository and the site's root",
        found=found,
        mend=mend,
    )


def _repository(folder: Path) -> Path:
    """Return the repository that the project's folder belongs to; the folder itself if to none."""
    return next((one for one in (folder, *folder.parents) if (one / ".git").exists()), folder)


# What the machine has


def _space(layout: Layout) -> Iterator[Result]:
    """Count free bytes and inodes, where the root is or will be."""
    folder = _nearest(layout.root)
    status = os.statvfs(folder)
    yield Probe("free bytes", str(folder), status.f_bavail * status.f_frsize)
    yield Probe("free inodes", str(folder), status.f_favail if status.f_files else "not limited")
    yield from preflight.space(
        folder,
        size=_FREE_BYTES,
        files=_FREE_INODES,
        environment="a large environment",
        severity="warning",
    )


def _glibc(layout: Layout, environments: Mapping[str, Environment]) -> Iterator[Result]:
    """Compare the system's C library, the one that the site declares, and its environments'."""
    found, declared = preflight.glibc(), layout.site.glibc
    yield Probe("glibc", platform.node(), found or "another C library")
    if declared is not None and not layout.rehearsal:
        yield from compare_glibc(layout.name, found, declared)
    for name, environment in environments.items():
        minor = environment.glibc_minor
        yield from preflight.c_library(layout, minor, name)
        if declared is not None and _version(declared) < (2, minor):
            yield Finding(
                "S011",
                "error",
                where=f"site {layout.name}",
                message=f"the wheels of {name} are for a newer C library than the site declares",
                expected=f"a platform of glibc {declared} or older",
                found=f"glibc 2.{minor}",
                mend=f"lower `platform` in envs/{name}.toml and run `envbuild lock {name}`",
            )


def compare_glibc(site: str, found: str, declared: str) -> Iterator[Finding]:
    """Yield whether the system's C library is another one than the site declares (S010).

    Args:
        site: the site's name.
        found: the system's version; empty for another C library than glibc.
        declared: the site's.
    """
    if found == declared:
        return
    older = _version(found) < _version(declared)
    yield Finding(
        "S010",
        "error" if older else "warning",
        where=f"site {site}",
        message=f"the system's C library is {'older' if older else 'newer'} than the site declares",
        expected=f"glibc {declared}",
        found=f"glibc {found}" if found else "another C library",
        mend="see whether this machine is the site's; if so, correct `glibc` in the site's file",
    )


def _version(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split("."))) if text else ()


def _gpus(layout: Layout) -> Iterator[Result]:
    """Look for the NVIDIA driver, and ask it for the GPUs' architectures."""
    driver = preflight.driver()
    if driver is None:
        yield "no NVIDIA driver here: GPU architectures were not compared"
        return
    yield Probe("NVIDIA driver", platform.node(), driver)
    query = ["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader"]
    try:
        answer = process.run(query, doing="asking for GPUs", timeout=_NVIDIA_SMI_SECONDS)
    except StepError as error:
        yield f"GPU architectures were not compared: {error.what}"
        return
    found = architectures(answer.stdout)
    yield Probe("GPU architectures", platform.node(), ", ".join(found) or "none")
    yield from compare_architectures(layout.name, found, layout.site.gpu_architectures)


def architectures(capabilities: str) -> list[str]:
    """Turn compute capabilities, such as ``9.0``, one a line, into architectures: ``sm_90``."""
    numbers = {line.strip() for line in capabilities.splitlines()}
    return sorted(f"sm_{one.replace('.', '')}" for one in numbers if re.fullmatch(r"\d+\.\d", one))


def compare_architectures(
    site: str, found: Iterable[str], declared: Sequence[str]
) -> Iterator[Finding]:
    """Yield the architectures of GPUs here that the site does not declare (S014)."""
    for one in found:
        if declared and one not in declared:
            yield Finding(
                "S014",
                "warning",
                where=f"site {site}",
                message=f"a GPU here is of an architecture that the site does not declare: {one}",
                expected=" or ".join(declared),
                found=one,
                mend="add it to `gpu-architectures` in the site's file: source builds have no "
                "code for it",
            )


def _interpreters(
    layout: Layout,
    environments: Mapping[str, Environment],
    pinned: Mapping[str, Pin],
    wheelhouse: Path,
) -> Iterator[Result]:
    """See whether the pinned interpreters are at hand."""
    users: dict[str, list[str]] = {}
    for name, environment in environments.items():
        users.setdefault(environment.python, []).append(name)
    for version, names in users.items():
        pin = pinned.get(version)
        if pin is None:
            yield _not_pinned(layout, version, names)
            continue
        where = _whereabouts(pin, layout, wheelhouse)
        yield Probe(f"Python {version}", ", ".join(names), where or "not at hand")
        if where is None:
            yield _not_at_hand(layout, pin, names, wheelhouse)


def _whereabouts(pin: Pin, layout: Layout, wheelhouse: Path) -> str | None:
    installed = interpreter.installed(pin, layout.interpreters)
    if installed is not None:
        return f"installed at {installed.path}"
    return f"in {wheelhouse}" if os.access(wheelhouse / pin.file, os.R_OK) else None


def _not_pinned(layout: Layout, version: str, names: Sequence[str]) -> Finding:
    return Finding(
        "S015",
        "error",
        where=f"site {layout.name}",
        message=f"Python {version} of {', '.join(names)} is not pinned",
        expected="its hash in locks/interpreters.toml",
        found="no pin of that version",
        mend=f"run `envbuild lock {' '.join(names)}`",
    )


def _not_at_hand(layout: Layout, pin: Pin, names: Sequence[str], wheelhouse: Path) -> Finding:
    allowed = layout.site.unpinned_interpreter or layout.rehearsal
    fetch = f"run `envbuild fetch {' '.join(names)}` where the network reaches it"
    return Finding(
        "S015",
        "warning",
        where=f"site {layout.name}",
        message=f"the pinned Python {pin.version} of {', '.join(names)} is not at hand",
        expected=f"{pin.file} in {wheelhouse}, or installed in {layout.interpreters}",
        found="neither",
        mend=f"{fetch}; till then an installed CPython stands in" if allowed else fetch,
    )


# What has to be tried


def _probed(layout: Layout) -> Iterator[Result]:
    """Try in the root's bookkeeping folder, and where prefixes stand, what a build relies on."""
    found = []
    for folder in (layout.bookkeeping, *_prefix_folders(layout)):
        unusable = list(preflight.usable(folder, make=folder == layout.bookkeeping))
        yield Probe("file locks", str(folder), _answer(unusable))
        found += unusable
    yield from found
    if any(one.code == "S005" for one in found):
        yield "nothing more was tried, since there is a folder that cannot be written"
        return
    try:
        for check in (_file_mode, _shebang, _replacement, _uv_cache):
            yield from check(layout)
    except OSError as error:
        # what could be written a moment ago is full now
        yield preflight.unwritable(layout.bookkeeping, error)


def _prefix_folders(layout: Layout) -> list[Path]:
    """Return the folders that prefixes stand in, as far as they are there."""
    return sorted({_nearest(layout.prefix(name).parent) for name in layout.folders})


def _answer(findings: Sequence[Finding]) -> str:
    return findings[0].message if findings else "work"


@contextmanager
def _probe_folder(folder: Path) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix=".envbuild-probe-", dir=folder) as name:
        yield Path(name)


def _file_mode(layout: Layout) -> Iterator[Result]:
    """Make a file: umask, default ACLs and the mount decide which mode it has (P002)."""
    with _probe_folder(layout.bookkeeping) as folder:
        descriptor = os.open(folder / "file", os.O_CREAT | os.O_WRONLY, 0o666)
        mode = stat.S_IMODE(os.fstat(descriptor).st_mode)
        os.close(descriptor)
    yield Probe("mode of a new file", str(layout.bookkeeping), f"{mode:04o}")
    # who may run a file is decided by its installer, not by the umask alone
    wanted = int(layout.site.file_mode, 8) & 0o666
    if wanted & ~mode:
        yield Finding(
            "P002",
            "error",
            where=str(layout.bookkeeping),
            message="new files are not open to those whom the site's `file-mode` lets read them",
            expected=f"mode {wanted:04o} at least",
            found=f"mode {mode:04o}",
            mend="give the root a default ACL (`setfacl -d`), correct its mount's options, or "
            "set `file-mode` in the site's file",
        )


def _shebang(layout: Layout) -> Iterator[Result]:
    """Run scripts with ever longer first lines, to find the kernel's limit."""
    where = str(layout.bookkeeping)
    if os.statvfs(layout.bookkeeping).f_flag & os.ST_NOEXEC:
        yield Finding(
            "S013",
            "error",
            where=where,
            message="no program can be run from here",
            expected="a file system that is mounted without noexec",
            found="noexec",
            mend="mount it without noexec, or set `root` to a folder on another file system",
        )
        return
    with _probe_folder(layout.bookkeeping) as folder:
        fails = bisect.bisect_left(
            _SHEBANG_LENGTHS, True, key=lambda length: not _runs(folder / "script", length)
        )
    longest = _SHEBANG_LENGTHS[0] + fails - 1
    yield Probe("longest #! line", where, longest)
    if longest < layout.site.shebang_limit:
        yield Finding(
            "S012",
            "error",
            where=f"site {layout.name}",
            message="the kernel reads less of a #! line than the site declares",
            expected=f"{layout.site.shebang_limit} bytes",
            found=f"{longest} bytes",
            mend=f"set `shebang-limit` to {longest} in the site's file",
        )


def _runs(script: Path, length: int) -> bool:
    """Whether a script runs whose first line has that many bytes, line end aside."""
    script.write_text(f"#!{'/bin/sh'.rjust(length - 2, '/')}\n")
    script.chmod(0o700)
    try:
        process.run([script], doing=f"running a script with a #! line of {length} bytes")
    except StepError:
        return False
    return True


def _replacement(layout: Layout) -> Iterator[Result]:
    """Find out how a new prefix takes the old one's place."""
    probe = aside.probe(layout.bookkeeping)
    yield Probe("replacing a prefix", str(layout.bookkeeping), probe.mode)
    if layout.site.link_mode != "copy":
        yield f"link-mode {layout.site.link_mode}: prefixes are built in place in any case"
    if probe.mode != "exchange":
        message, mend = _REPLACED[probe.mode]
        yield Finding(
            "S008",
            "warning",
            where=str(layout.bookkeeping),
            message=message,
            expected="private mount namespaces, and exchanges of two folders (RENAME_EXCHANGE)",
            found=probe.why,
            mend=mend,
        )


def _uv_cache(layout: Layout) -> Iterator[Result]:
    """Try uv's cache: file locks, and links from there to the prefixes."""
    cache, setting = _cache_folder(layout)
    folder = _nearest(cache)
    unusable = list(preflight.usable(folder, setting=setting))
    yield Probe("file locks of uv's cache", str(folder), _answer(unusable))
    # with copies, prefixes are built without it
    linked = layout.site.link_mode != "copy"
    for one in unusable:
        yield one if linked else msgspec.structs.replace(one, severity="warning")
    if unusable:
        return
    for target in _prefix_folders(layout):
        yield from _links(layout, folder, target)


def _cache_folder(layout: Layout) -> tuple[Path, str]:
    """Return the folder of uv's cache, and the setting or variable that names it."""
    if layout.site.uv_cache is not None:
        return layout.path(layout.site.uv_cache), "uv-cache"
    given = os.environ.get("UV_CACHE_DIR")
    return (Path(given).absolute() if given else Path.home() / ".cache" / "uv"), "UV_CACHE_DIR"


def _links(layout: Layout, cache: Path, target: Path) -> Iterator[Result]:
    """Try each way in which a file gets from uv's cache into a prefix."""
    with _probe_folder(cache) as one, _probe_folder(target) as other:
        source = one / "file"
        source.write_bytes(b"probe")
        refused = {mode: _refused(link, source, other / mode) for mode, link in _LINKS.items()}
    for mode, why in refused.items():
        yield Probe(f"link-mode {mode}", f"{cache} to {target}", why or "works")
    declared = layout.site.link_mode
    if refused[declared] is not None:
        yield Finding(
            "S007",
            "warning",
            where=str(target),
            message=f"link-mode {declared} does not work here: uv copies instead",
            expected=f"links from {cache}",
            found=refused[declared],
            mend="set `uv-cache` to a folder on the prefixes' file system, or `link-mode` to "
            '"copy"',
        )


def _refused(link: Callable[[Path, Path], object], source: Path, target: Path) -> str | None:
    try:
        link(source, target)
    except OSError as error:
        return error.strerror or str(error)
    return None


def _clone(source: Path, target: Path) -> None:
    """Make a file that shares another's blocks till one of them is written (FICLONE)."""
    with source.open("rb") as old, target.open("xb") as new:
        fcntl.ioctl(new, _FICLONE, old.fileno())


_LINKS: Mapping[str, Callable[[Path, Path], object]] = {
    "copy": shutil.copyfile,
    "hardlink": os.link,
    "clone": _clone,
}
