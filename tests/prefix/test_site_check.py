"""This machine held to a site's file: with real folders, mounts, modes and kernel refusals."""

from __future__ import annotations

import ctypes
import errno
import json
import os
import platform
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from envbuild import findings as printer
from envbuild.catalog.project import Project
from envbuild.findings import Finding
from envbuild.lock import interpreters as pins
from envbuild.lock.interpreters import Pin
from envbuild.prefix import preflight, site_check
from envbuild.prefix.site_check import Report
from tests import projects

HERE = Path(__file__).parents[2]
# read before the fixtures take settings away
REQUIRE_ALL = os.environ.get("ENVBUILD_REQUIRE_ALL") == "1"

ARCHIVE = f"cpython-{projects.PINNED}+20260101-x86_64-unknown-linux-gnu-install_only_stripped.tar.gz"
CHECK = [sys.executable, "-m", "envbuild", "site", "check", "far", "--user", "ada", "--json"]

# numbers of system calls on x86-64
FLOCK, UNSHARE, RENAMEAT2 = 73, 272, 316

# has the kernel refuse a system call by an error, and runs a program under that
REFUSING = """
import ctypes, os, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
number, error, *command = sys.argv[1:]
program = b"".join(
    struct.pack("HBBI", *line)
    for line in (
        (0x20, 0, 0, 0),  # load the number of the system call
        (0x15, 0, 1, int(number)),
        (0x06, 0, 0, 0x00050000 | int(error)),
        (0x06, 0, 0, 0x7FFF0000),
    )
)
text = ctypes.create_string_buffer(program)
filter = ctypes.create_string_buffer(struct.pack("HxxxxxxP", 4, ctypes.addressof(text)))
assert libc.prctl(38, 1, 0, 0, 0) == 0  # PR_SET_NO_NEW_PRIVS
assert libc.prctl(22, 2, filter) == 0  # PR_SET_SECCOMP, SECCOMP_MODE_FILTER
os.execv(command[0], command)
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "root"
    folder.mkdir(mode=0o755)
    return folder


def make(folder: Path, settings: str = "", *, root: Path | None = None, **named: str) -> Project:
    """Write a project of one environment, its interpreter at hand, and the site ``far``.

    Args:
        folder: the test's.
        settings: of the site, besides its root.
        root: the site's root; ``root`` in the folder by default.
        named: for the environment's file.
    """
    site = f'summary = "a cluster"\nroot = "{root or folder / "root"}"\n{settings}'
    toy = projects.environment("six").replace("manylinux_2_28", named.get("platform", "manylinux_2_17"))
    made = projects.project(folder / "p", {"toy": toy}, {"far": site})
    made.interpreters_file.parent.mkdir()
    pin = Pin(projects.PINNED, "20260101", ARCHIVE, "ab" * 32)
    made.interpreters_file.write_bytes(pins.serialize([pin]))
    made.wheelhouse.mkdir()
    (made.wheelhouse / ARCHIVE).touch()
    return made


def look(project: Project, *, root: Path | None = None) -> Report:
    layout = project.layout("far", user="ada", root=root)
    return site_check.look(project, layout, project.wheelhouse)


def told(report: Report, code: str) -> str:
    """Return the text of the findings of one code."""
    return printer.text([one for one in report.findings if one.code == code])


def seen(report: Report, what: str) -> list[str | int]:
    return [probe.answer for probe in report.probes if probe.what == what]


def run(command: Sequence[object], project: Project, **variables: str) -> Report:
    """Run the command as it is, under something, and return its report."""
    done = subprocess.run(
        list(map(str, command)),
        cwd=project.folder,
        env={**os.environ, "PYTHONPATH": str(HERE), **variables},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    if done.returncode == 77 or done.stderr.startswith("unshare:"):
        missing("user namespaces (util-linux)", done.stderr)
    assert "Traceback" not in done.stderr, done.stderr
    assert done.returncode in {0, 1}, done.stderr
    report = msgspec.json.decode(done.stdout, type=Report)
    assert done.returncode == printer.failed(report.findings)
    return report


def missing(what: str, why: str = "") -> None:
    if REQUIRE_ALL:
        pytest.fail(f"ENVBUILD_REQUIRE_ALL=1 asks for {what}: {why}")
    pytest.skip(f"needs {what}")


def needs_root() -> None:
    if os.geteuid() != 0:
        missing("root, to give files away")


def mounted(project: Project, *mounts: str, **variables: str) -> Report:
    """Run the check in a mount namespace of its own, after some mounts were made there."""
    lines = "".join(f"{mount} || exit 77; " for mount in mounts)
    unshare = ["unshare", "--user", "--map-root-user", "--mount"]
    return run([*unshare, "sh", "-c", f'{lines}exec "$@"', "-", *CHECK], project, **variables)


def refused(project: Project, call: int, error: int) -> Report:
    """Run the check where the kernel refuses a system call."""
    return run([sys.executable, "-c", REFUSING, call, error, *CHECK], project)


def as_user(project: Project) -> Report:
    """Run the check as user 1000 of a user namespace, to whom other users are nobody."""
    return run(["unshare", "--user", "--map-user=1000", *CHECK], project)


def test_a_site_as_it_should_be(tmp_path: Path, root: Path) -> None:
    project = make(tmp_path)
    report = look(project)
    # a small disk and a container that forbids namespaces are no fault of these tests
    assert {one.code for one in report.findings} <= {"S008", "S009"}
    status = root.stat()
    device = f"{os.major(status.st_dev)}:{os.minor(status.st_dev)}"
    assert seen(report, "root") == [f"device {device}, inode {status.st_ino}"]
    assert seen(report, "mode of a new file") == ["0644"]
    assert seen(report, "file locks") == ["work", "work"]
    assert seen(report, "file locks of uv's cache") == ["work"]
    assert seen(report, "link-mode copy") == ["works"]
    assert seen(report, "link-mode hardlink") == ["works"]
    assert seen(report, f"Python {projects.PINNED}") == [f"in {project.wheelhouse}"]
    (longest,) = seen(report, "longest #! line")
    assert isinstance(longest, int)
    assert longest >= 127
    (free,) = seen(report, "free bytes")
    assert isinstance(free, int)
    assert free > 0
    assert (report.site, report.root, report.user) == ("far", str(root), "ada")
    assert not report.rehearsal
    assert (report.host.name, report.host.kernel) == (platform.node(), platform.release())
    assert report.host.glibc == preflight.glibc()


def test_nothing_is_left_but_the_receipt(tmp_path: Path, root: Path) -> None:
    project = make(tmp_path)
    report = look(project)
    assert [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")] == [
        str(path.relative_to(tmp_path))
        for path in tmp_path.rglob("*")
        if "envbuild-probe" not in path.name
    ]
    assert list(root.rglob("*")) == [root / ".envbuild"]
    layout = project.layout("far", user="ada")
    same, receipt = site_check.record(layout, report)
    assert (same, receipt) == (report, root / ".envbuild" / "receipts" / "site-check.json")
    assert receipt is not None
    assert msgspec.json.decode(receipt.read_bytes(), type=Report) == report
    assert stat.S_IMODE(receipt.stat().st_mode) == 0o644
    assert set(root.rglob("*")) == {receipt, receipt.parent, receipt.parent.parent}


class TestMounts:
    def test_not_there(self, tmp_path: Path, root: Path) -> None:
        report = look(make(tmp_path, f'mounts = ["{tmp_path}/gone", "{tmp_path}/p/envs/toy.toml"]'))
        mend = (
            "  mend: run this on the site, with its file systems mounted; elsewhere, rehearse it "
            "with --root DIR"
        )
        assert told(report, "S001") == (
            "site far: error S001: a mount of the site is not there\n"
            f"  expected: the folder {tmp_path}/gone\n  found: nothing of that name\n{mend}\n"
            "site far: error S001: a mount of the site is not there\n"
            f"  expected: the folder {tmp_path}/p/envs/toy.toml\n  found: Not a directory\n{mend}"
        )
        assert report.notes[-1] == (
            "a mount is missing: the site's other folders were not looked at"
        )
        assert not list(root.iterdir())

    def test_a_folder_of_the_system(self, tmp_path: Path, root: Path) -> None:
        report = look(make(tmp_path, 'mounts = ["/etc", "/proc"]'))
        kind = subprocess.run(
            ["stat", "--file-system", "--format=%d", "/"], capture_output=True, check=True
        )
        assert kind.stdout
        etc, proc = seen(report, "mount")
        assert str(proc).endswith(", on /proc (proc)")
        file_system = str(etc).rpartition(", on / ")[2]
        assert told(report, "S002") == (
            "/etc: warning S002: a mount of the site is a folder of the system's own file system\n"
            f"  expected: a mount point, or a folder on one\n  found: a folder on / {file_system}\n"
            "  mend: mount it, or take it out of `mounts` in the site's file"
        )

    def test_really_mounted(self, tmp_path: Path, root: Path) -> None:
        place = tmp_path / "a mount"
        place.mkdir()
        project = make(tmp_path, f'mounts = ["{place}"]')
        report = mounted(project, f"mount -t tmpfs none '{place}'", f"mount -t tmpfs two '{place}'")
        (answer,) = seen(report, "mount")
        assert str(answer).endswith(f", on {place} (tmpfs)")
        assert "S002" not in {one.code for one in report.findings}


class TestNames:
    """P001: paths bind one name."""

    def test_aliases(self, tmp_path: Path, root: Path) -> None:
        other = tmp_path / "other"
        other.mkdir()
        project = make(tmp_path, f'aliases = ["{other}", "{tmp_path}/gone"]')
        report = look(project)
        answer, gone = seen(report, "alias")
        assert str(answer).endswith(f"inode {other.stat().st_ino}")
        assert gone == "not there"
        assert told(report, "P001") == ""

    @pytest.mark.parametrize("how", ["symlink", "mount", "mount above"])
    def test_an_alias_that_is_the_same_folder(self, tmp_path: Path, root: Path, how: str) -> None:
        other = tmp_path / "other"
        project = make(tmp_path, f'aliases = ["{other}"]')
        same = tmp_path if how == "mount above" else root
        if how == "symlink":
            other.symlink_to(root)
            report = look(project)
        else:
            other.mkdir()
            report = mounted(project, f"mount --bind '{same}' '{other}'")
        status = same.stat()
        device = f"{os.major(status.st_dev)}:{os.minor(status.st_dev)}"
        assert told(report, "P001") == (
            f"{other}: warning P001: this is another name for a folder of the root's path\n"
            f"  expected: {same} alone\n"
            f"  found: the same folder: device {device}, inode {status.st_ino}\n"
            f"  mend: name it {same} in jobs and settings, never {other}"
        )

    def test_a_root_behind_a_link(self, tmp_path: Path, root: Path) -> None:
        (tmp_path / "link").symlink_to(tmp_path)
        report = look(make(tmp_path, root=tmp_path / "link" / "root"))
        assert told(report, "P001") == (
            f"{tmp_path}/link/root: error P001: the root is reached by another name than its own\n"
            f"  expected: {root}\n  found: {tmp_path}/link/root\n"
            f"  mend: use {root} itself: a prefix works at one path alone"
        )

    def test_a_prefix_that_is_a_link(self, tmp_path: Path, root: Path) -> None:
        (root / "toy").symlink_to("elsewhere")
        assert told(look(make(tmp_path)), "P001") == (
            f"{root}/toy: error P001: a symbolic link stands where a folder must be\n"
            "  found: a link to elsewhere\n"
            "  mend: remove the link: a prefix works at one path alone"
        )


class TestOwnership:
    """P002: who may put something else at the root's path."""

    def test_everybody(self, tmp_path: Path, root: Path) -> None:
        root.chmod(0o777)
        assert told(look(make(tmp_path)), "P002") == (
            f"{root}: error P002: everybody may rename what stands in this folder, and so replace "
            "the root\n"
            "  expected: no writing by group and others, or the sticky bit\n"
            f"  found: owner {os.geteuid()}, mode 0777\n"
            f"  mend: run `chmod o-w {root}`, or `chmod +t {root}`"
        )

    def test_a_sticky_folder(self, tmp_path: Path, root: Path) -> None:
        root.chmod(0o1777)
        assert told(look(make(tmp_path)), "P002") == ""

    def test_a_group_of_an_ancestor(self, tmp_path: Path, root: Path) -> None:
        needs_root()
        above = tmp_path / "above"
        (above / "root").mkdir(parents=True)
        above.chmod(0o775)
        project = make(tmp_path, root=above / "root")
        assert told(look(project), "P002") == ""  # the group root is root's own
        os.chown(above, -1, 54321)
        assert told(look(project), "P002") == (
            f"{above}: warning P002: group 54321 may rename what stands in this folder, and so "
            "replace the root\n"
            "  expected: no writing by group and others, or the sticky bit\n"
            "  found: owner 0, mode 0775\n"
            f"  mend: run `chmod g-w {above}`, or `chmod +t {above}`"
        )

    def test_another_owner(self, tmp_path: Path, root: Path) -> None:
        needs_root()
        project = make(tmp_path)
        os.chown(root, 12345, -1)
        assert told(look(project), "P002") == (
            f"{root}: warning P002: the root belongs to another user\n"
            "  expected: owner 0, who runs this\n  found: owner 12345\n"
            "  mend: build as the owner, or give the site a root of your own"
        )
        report = as_user(project)
        assert told(report, "P002") == (
            f"{root}: error P002: the root belongs to another user\n"
            "  expected: owner 1000, who runs this\n  found: owner 65534\n"
            "  mend: build as the owner, or give the site a root of your own"
        )
        assert told(report, "S005") == (
            f"{root}/.envbuild: error S005: cannot write: Permission denied\n"
            "  expected: a folder that you may write\n"
            "  mend: check the folder's owner and mount, or rehearse elsewhere with --root DIR\n"
            f"{root}: error S005: cannot write: Permission denied\n"
            "  expected: a folder that you may write\n"
            "  mend: check the folder's owner and mount, or rehearse elsewhere with --root DIR"
        )
        assert report.notes[-1] == (
            "nothing more was tried, since there is a folder that cannot be written"
        )

    def test_a_root_that_may_not_be_looked_into(self, tmp_path: Path, root: Path) -> None:
        needs_root()
        project = make(tmp_path, f'[personal]\nfolder = "{root}/deep"', root=root / "deep")
        os.chown(root, 12345, -1)
        root.chmod(0o700)
        report = as_user(project)
        assert told(report, "S005") == (
            f"{root}: error S005: the root {root}/deep cannot be made here\n"
            "  expected: a folder that you may write\n  found: owner 65534, mode 0700\n"
            "  mend: have the root made for you, or rehearse elsewhere with --root DIR"
        )
        assert "  found: Permission denied\n" in told(report, "R004")

    def test_a_umask_that_closes_files(self, tmp_path: Path, root: Path) -> None:
        before = os.umask(0o077)
        try:
            report = look(make(tmp_path))
        finally:
            os.umask(before)
        assert told(report, "P002") == (
            f"{root}/.envbuild: error P002: new files are not open to those whom the site's "
            "`file-mode` lets read them\n"
            "  expected: mode 0644 at least\n  found: mode 0600\n"
            "  mend: give the root a default ACL (`setfacl -d`), correct its mount's options, or "
            "set `file-mode` in the site's file"
        )

    def test_a_mode_that_the_command_does_not_give(self, tmp_path: Path, root: Path) -> None:
        report = run(CHECK, make(tmp_path, 'file-mode = "0664"'))
        assert "  expected: mode 0664 at least\n  found: mode 0644\n" in told(report, "P002")


class TestPersonal:
    """R004: credentials are looked at from outside alone."""

    EXPECTED = (
        "  expected: a {} of yours alone, mode {}, outside the repository and the site's root\n"
    )

    @pytest.fixture
    def folder(self, tmp_path: Path, root: Path) -> Path:
        folder = tmp_path / "ada"
        folder.mkdir(mode=0o700)
        (folder / ".env").touch(mode=0o600)
        return folder

    @pytest.fixture
    def project(self, tmp_path: Path) -> Project:
        return make(tmp_path, f'[personal]\nfolder = "{tmp_path}/{{user}}"')

    def test_closed(self, folder: Path, project: Project) -> None:
        report = look(project)
        assert told(report, "R004") == ""
        me = os.geteuid()
        assert seen(report, "personal folder") == [f"owner {me}, mode 0700"]
        assert seen(report, "personal file") == [f"owner {me}, mode 0600"]
        (folder / ".env").chmod(0o400)
        folder.chmod(0o2700)  # as below a folder with the set-group-ID bit
        assert told(look(project), "R004") == ""

    def test_open(self, folder: Path, project: Project) -> None:
        folder.chmod(0o750)
        (folder / ".env").chmod(0o640)
        me = os.geteuid()
        assert told(look(project), "R004") == (
            f"{folder}: error R004: the personal folder is not closed to others as the site says\n"
            f"{self.EXPECTED.format('folder', '0700')}"
            f"  found: owner {me}, mode 0750\n  mend: run `chmod 0700 {folder}`\n"
            f"{folder}/.env: error R004: the personal file is not closed to others as the site "
            f"says\n{self.EXPECTED.format('file', '0600')}"
            f"  found: owner {me}, mode 0640\n  mend: run `chmod 0600 {folder}/.env`"
        )

    def test_not_there(self, folder: Path, project: Project) -> None:
        (folder / ".env").unlink()
        folder.rmdir()
        report = look(project)
        assert told(report, "R004") == (
            f"{folder}: warning R004: the personal folder is not to be seen\n"
            f"{self.EXPECTED.format('folder', '0700')}"
            f"  found: No such file or directory\n  mend: run `mkdir -m 0700 {folder}`\n"
            f"{folder}/.env: warning R004: the personal file is not to be seen\n"
            f"{self.EXPECTED.format('file', '0600')}"
            f"  found: No such file or directory\n"
            f"  mend: run `install -m 0600 /dev/null {folder}/.env`"
        )

    def test_another_user(self, folder: Path, project: Project) -> None:
        needs_root()
        os.chown(folder / ".env", 12345, -1)
        expected = (
            f"R004: the personal file belongs to another user\n"
            f"{self.EXPECTED.format('file', '0600')}  found: owner {{}}, mode 0600\n"
            "  mend: run this as its owner, or name your own with --user"
        )
        warning, error = f"{folder}/.env: warning ", f"{folder}/.env: error "
        assert told(look(project), "R004") == warning + expected.format(12345)
        assert told(as_user(project), "R004") == error + expected.format(65534)

    @pytest.mark.parametrize("git", [True, False])
    def test_in_the_repository(self, tmp_path: Path, root: Path, git: bool) -> None:
        folder = tmp_path / "ada" if git else tmp_path / "p" / "ada"
        project = make(tmp_path, f'[personal]\nfolder = "{folder}"')
        folder.mkdir(mode=0o700)
        (folder / ".env").touch(mode=0o600)
        if git:
            (tmp_path / ".git").mkdir()
        mend = "  mend: move it to where nothing is published, and name that in `personal`"
        assert told(look(project), "R004") == (
            f"{folder}: error R004: the personal folder lies in the repository\n"
            f"{self.EXPECTED.format('folder', '0700')}  found: {folder}\n{mend}\n"
            f"{folder}/.env: error R004: the personal file lies in the repository\n"
            f"{self.EXPECTED.format('file', '0600')}  found: {folder}/.env\n{mend}"
        )

    def test_behind_a_link_in_the_root(self, folder: Path, project: Project, root: Path) -> None:
        (folder / ".env").rename(root / "env")
        (folder / ".env").symlink_to(root / "env")
        assert told(look(project), "R004") == (
            f"{folder}/.env: error R004: the personal file lies in the site's root\n"
            f"{self.EXPECTED.format('file', '0600')}  found: {root}/env\n"
            "  mend: move it to where nothing is published, and name that in `personal`"
        )

    def test_never_opened(self, folder: Path, project: Project) -> None:
        with watched(folder, folder / ".env") as events:
            report = run(CHECK, project)
            assert seen(report, "personal file") != []
            assert events() == b""
            (folder / ".env").read_bytes()
            assert events() != b""


class watched:
    """Watch whether files or folders are opened or read by anybody (inotify(7))."""

    IN_ACCESS, IN_OPEN = 0x1, 0x20

    def __init__(self, *paths: Path) -> None:
        self.paths = paths

    def __enter__(self) -> Any:
        libc = ctypes.CDLL(None, use_errno=True)
        self.descriptor = libc.inotify_init1(os.O_NONBLOCK)
        assert self.descriptor >= 0
        for path in self.paths:
            watch = libc.inotify_add_watch(
                self.descriptor, os.fsencode(path), self.IN_ACCESS | self.IN_OPEN
            )
            assert watch >= 0
        return self.events

    def __exit__(self, *_: object) -> None:
        os.close(self.descriptor)

    def events(self) -> bytes:
        try:
            return os.read(self.descriptor, 65536)
        except BlockingIOError:
            return b""
