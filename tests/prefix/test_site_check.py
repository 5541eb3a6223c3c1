"""This machine held to a site's file: with real folders, mounts, modes and kernel refusals."""

from __future__ import annotations

import ctypes
import errno
import json
import os
import platform
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from envbuild import findings as printer
from envbuild.catalog.project import Project
from envbuild.catalog.site import Layout
from envbuild.lock import interpreters as pins
from envbuild.lock.interpreters import Pin
from envbuild.prefix import preflight, site_check
from envbuild.prefix.site_check import Report
from tests import projects

HERE = Path(__file__).parents[2]
# read before the fixtures take settings away
REQUIRE_ALL = os.environ.get("ENVBUILD_REQUIRE_ALL") == "1"

ARCHIVE = (
    f"cpython-{projects.PINNED}+20260101-x86_64-unknown-linux-gnu-install_only_stripped.tar.gz"
)
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
    toy = projects.environment("six").replace(
        "manylinux_2_28", named.get("platform", "manylinux_2_17")
    )
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


def make_layout(folder: Path) -> Layout:
    """Return the site of the project that `make` wrote."""
    return Project(folder / "p").layout("far", user="ada")


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
    before = set(tmp_path.rglob("*"))
    report = look(project)
    assert set(tmp_path.rglob("*")) == {*before, root / ".envbuild"}
    same, receipt = site_check.record(make_layout(tmp_path), report)
    assert (same, receipt) == (report, root / ".envbuild" / "site-check.json")
    assert receipt is not None
    assert msgspec.json.decode(receipt.read_bytes(), type=Report) == report
    assert stat.S_IMODE(receipt.stat().st_mode) == 0o644
    assert set(root.rglob("*")) == {receipt, receipt.parent}


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
            f"  expected: the folder {tmp_path}/p/envs/toy.toml\n"
            f"  found: another thing than a folder\n{mend}"
        )
        assert report.notes[-1] == (
            "a mount is missing: the site's other folders were not looked at"
        )
        assert not list(root.iterdir())

    def test_a_folder_of_the_system(self, tmp_path: Path, root: Path) -> None:
        report = look(make(tmp_path, 'mounts = ["/etc", "/proc"]'))
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


@contextmanager
def watched(*paths: Path) -> Iterator[Callable[[], bytes]]:
    """Watch whether anybody opens or reads files or folders (inotify(7))."""
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor = libc.inotify_init1(os.O_NONBLOCK)
    assert descriptor >= 0

    def events() -> bytes:
        try:
            return os.read(descriptor, 65536)
        except BlockingIOError:
            return b""

    try:
        for path in paths:
            assert libc.inotify_add_watch(descriptor, os.fsencode(path), 0x1 | 0x20) >= 0
        yield events
    finally:
        os.close(descriptor)


class TestVariables:
    """R001: folders of the environment."""

    @pytest.fixture(autouse=True)
    def unset(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in ("TMPDIR", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "UV_CACHE_DIR"):
            monkeypatch.delenv(name, raising=False)

    def test_elsewhere(self, tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        project = make(tmp_path, f'temporary = ["{tmp_path}/{{user}}"]\nuv-cache = "uv"')
        assert told(look(project), "R001") == ""
        for name in ("TMPDIR", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "UV_CACHE_DIR"):
            monkeypatch.setenv(name, str(tmp_path))
        report = look(project)
        for name in ("TMPDIR", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR"):
            assert (
                f"site far: error R001: {name} lies where the site does not allow it\n"
                f"  expected: a folder in {tmp_path}/ada\n  found: {tmp_path}\n"
                f"  mend: export {name}={tmp_path}/ada, or unset it\n"
            ) in told(report, "R001")
        assert told(report, "R001").endswith(
            "site far: error R001: UV_CACHE_DIR lies where the site does not allow it\n"
            f"  expected: a folder in {root}/uv or {tmp_path}/ada\n  found: {tmp_path}\n"
            f"  mend: export UV_CACHE_DIR={root}/uv, or unset it"
        )

    def test_allowed(self, tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        project = make(tmp_path, f'temporary = ["{tmp_path}/ada"]\nuv-cache = "uv"')
        monkeypatch.setenv("TRITON_CACHE_DIR", f"{tmp_path}/ada/triton")
        monkeypatch.setenv("UV_CACHE_DIR", f"{root}/uv")
        assert told(look(project), "R001") == ""

    @pytest.mark.parametrize("way", ["ada/link", "ada/../other"])
    def test_roundabout(
        self, tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch, way: str
    ) -> None:
        (tmp_path / "ada").mkdir()
        (tmp_path / "ada" / "link").symlink_to(tmp_path)
        monkeypatch.setenv("TRITON_CACHE_DIR", f"{tmp_path}/{way}")
        report = look(make(tmp_path, f'temporary = ["{tmp_path}/ada"]'))
        seen = f"{tmp_path}/{way}"
        if way.endswith("link"):
            seen += f", which is {tmp_path}"
        assert f"  found: {seen}\n" in told(report, "R001")


class TestFileLocks:
    """S006: flock, which uv needs."""

    def test_not_offered(self, tmp_path: Path, root: Path) -> None:
        cache = tmp_path / "uv-cache"
        cache.mkdir()
        report = refused(make(tmp_path), FLOCK, errno.ENOSYS)
        said = "file locks do not work here: Function not implemented"
        expected = "  expected: a file system with flock, which uv needs\n"
        mend = "  mend: mount it with locking, or set `{}` to a folder on another file system"
        assert told(report, "S006") == (
            f"{root}/.envbuild: error S006: {said}\n{expected}{mend.format('root')}\n"
            f"{root}: error S006: {said}\n{expected}{mend.format('root')}\n"
            f"{cache}: warning S006: {said}\n{expected}{mend.format('UV_CACHE_DIR')}"
        )
        assert seen(report, "file locks") == [said, said]
        assert seen(report, "link-mode copy") == []

    def test_not_offered_where_prefixes_link_from(self, tmp_path: Path, root: Path) -> None:
        project = make(tmp_path, f'uv-cache = "{tmp_path}/cache/uv"\nlink-mode = "hardlink"')
        (tmp_path / "cache").mkdir()
        report = refused(project, FLOCK, errno.ENOLCK)
        assert told(report, "S006").splitlines()[-3:] == [
            f"{tmp_path}/cache: error S006: file locks do not work here: No locks available",
            "  expected: a file system with flock, which uv needs",
            "  mend: mount it with locking, or set `uv-cache` to a folder on another file system",
        ]

    def test_other_refusals(self, tmp_path: Path, root: Path) -> None:
        report = refused(make(tmp_path), FLOCK, errno.EACCES)
        assert told(report, "S005").startswith(
            f"{root}/.envbuild: error S005: cannot write: Permission denied\n"
        )


class TestLinks:
    """S007: how files get from uv's cache into a prefix."""

    @pytest.mark.parametrize("mode", ["hardlink", "clone"])
    def test_to_another_file_system(self, tmp_path: Path, root: Path, mode: str) -> None:
        project = make(tmp_path, f'link-mode = "{mode}"\nuv-cache = "{tmp_path}/uv"')
        report = mounted(project, f"mount -t tmpfs none '{root}'")
        assert told(report, "S007") == (
            f"{root}: warning S007: link-mode {mode} does not work here: uv copies instead\n"
            f"  expected: links from {tmp_path}\n  found: Invalid cross-device link\n"
            "  mend: set `uv-cache` to a folder on the prefixes' file system, or `link-mode` to "
            '"copy"'
        )
        assert seen(report, "link-mode copy") == ["works"]
        assert seen(report, "link-mode hardlink") == ["Invalid cross-device link"]
        assert f"link-mode {mode}: prefixes are built in place in any case" in report.notes

    def test_reflinks_that_a_file_system_does_not_have(self, tmp_path: Path, root: Path) -> None:
        project = make(tmp_path, 'link-mode = "clone"\nuv-cache = "uv"')
        report = mounted(project, f"mount -t tmpfs none '{root}'")
        assert seen(report, "link-mode hardlink") == ["works"]
        (why,) = seen(report, "link-mode clone")
        assert why in {"Operation not supported", "Inappropriate ioctl for device"}
        assert f"  expected: links from {root}\n  found: {why}\n" in told(report, "S007")

    def test_a_cache_that_cannot_be_written(self, tmp_path: Path, root: Path) -> None:
        cache = tmp_path / "cache"
        cache.mkdir()
        project = make(tmp_path, f'link-mode = "hardlink"\nuv-cache = "{cache}"')
        report = mounted(
            project, f"mount --bind '{cache}' '{cache}'", f"mount -o remount,bind,ro '{cache}'"
        )
        assert told(report, "S005") == (
            f"{cache}: error S005: cannot write: Read-only file system\n"
            "  expected: a folder that you may write\n"
            "  mend: check the folder's owner and mount, or set `uv-cache` to another folder"
        )


class TestReplacing:
    """S008: how a new prefix takes the old one's place."""

    EXPECTED = (
        "  expected: private mount namespaces, and exchanges of two folders (RENAME_EXCHANGE)\n"
    )

    def test_without_namespaces(self, tmp_path: Path, root: Path) -> None:
        report = refused(make(tmp_path), UNSHARE, errno.EPERM)
        assert seen(report, "replacing a prefix") == ["in place"]
        assert told(report, "S008") == (
            f"{root}/.envbuild: warning S008: while a new prefix is built there is none at its "
            f"path\n{self.EXPECTED}"
            "  found: no private mount namespace: Operation not permitted\n"
            "  mend: ask for user namespaces (user.max_user_namespaces), or create while no job "
            "is running"
        )

    def test_without_exchange(self, tmp_path: Path, root: Path) -> None:
        report = refused(make(tmp_path), RENAMEAT2, errno.EINVAL)
        if seen(report, "replacing a prefix") == ["in place"]:
            missing("mount namespaces")
        assert told(report, "S008") == (
            f"{root}/.envbuild: warning S008: between the two renames that replace a prefix there "
            f"is none for a moment\n{self.EXPECTED}"
            "  found: no exchange of two folders: Invalid argument\n"
            "  mend: create while no job is about to start"
        )


class TestFileSystem:
    """What the root's file system lets be done, and how much of it."""

    def test_few_inodes(self, tmp_path: Path, root: Path) -> None:
        report = mounted(make(tmp_path), f"mount -t tmpfs -o size=1g,nr_inodes=100 none '{root}'")
        assert told(report, "S009") == (
            f"{root}: warning S009: too little space for a large environment\n"
            "  expected: 10000.0 MB free\n  found: 1073.7 MB free\n"
            "  mend: free some space, or build it elsewhere with --root DIR\n"
            f"{root}: warning S009: too few inodes for a large environment\n"
            "  expected: 100000 free\n  found: 99 free\n"
            "  mend: remove files there, or ask for a larger quota"
        )
        assert seen(report, "free bytes") == [1 << 30]
        assert seen(report, "free inodes") == [99]

    def test_no_inodes_left(self, tmp_path: Path, root: Path) -> None:
        project = make(tmp_path)
        report = mounted(project, f"mount -t tmpfs -o nr_inodes=3 none '{root}'")
        assert told(report, "S005") == (
            f"{root}/.envbuild: error S005: cannot write: No space left on device\n"
            "  expected: a folder that you may write\n"
            "  mend: remove files there, ask for a larger quota, or rehearse elsewhere with "
            "--root DIR"
        )

    def test_read_only(self, tmp_path: Path, root: Path) -> None:
        bind = f"mount --bind '{root}' '{root}'", f"mount -o remount,bind,ro '{root}'"
        report = mounted(make(tmp_path), *bind)
        assert f"{root}: error S005: cannot write: Read-only file system\n" in told(report, "S005")
        assert not list(root.iterdir())

    def test_noexec(self, tmp_path: Path, root: Path) -> None:
        report = mounted(make(tmp_path), f"mount -t tmpfs -o noexec none '{root}'")
        assert told(report, "S013") == (
            f"{root}/.envbuild: error S013: no program can be run from here\n"
            "  expected: a file system that is mounted without noexec\n  found: noexec\n"
            "  mend: mount it without noexec, or set `root` to a folder on another file system"
        )
        assert seen(report, "longest #! line") == []

    def test_shebang(self, tmp_path: Path, root: Path) -> None:
        report = look(make(tmp_path, "shebang-limit = 5000"))
        (longest,) = seen(report, "longest #! line")
        assert told(report, "S012") == (
            "site far: error S012: the kernel reads less of a #! line than the site declares\n"
            f"  expected: 5000 bytes\n  found: {longest} bytes\n"
            f"  mend: set `shebang-limit` to {longest} in the site's file"
        )
        assert isinstance(longest, int)
        script = root / "script"
        for length, runs in ((longest, True), (longest + 1, False)):
            script.write_text("#!" + "/bin/sh".rjust(length - 2, "/") + "\nexit 0\n")
            script.chmod(0o755)
            try:
                ran = subprocess.run([script], check=False).returncode == 0
            except OSError:
                ran = False
            assert ran == runs


class TestRootNotThere:
    def test_yet(self, tmp_path: Path) -> None:
        report = look(make(tmp_path, root=tmp_path / "a" / "b"))
        assert told(report, "S004") == (
            f"{tmp_path}/a/b: warning S004: the root is not there yet\n"
            f"  expected: a folder\n  found: nothing below {tmp_path}\n"
            f"  mend: run `mkdir -p {tmp_path}/a/b` and check again, or create an environment"
        )
        assert report.notes[-1] == "the root is not there: what has to be tried there was not"
        assert not (tmp_path / "a").exists()

    def test_and_cannot_be(self, tmp_path: Path) -> None:
        root = tmp_path / "root"
        root.touch(mode=0o644)
        report = look(make(tmp_path))
        assert told(report, "S005") == (
            f"{root}: error S005: the root {root} cannot be made here\n"
            f"  expected: a folder that you may write\n  found: owner {os.geteuid()}, mode 0644\n"
            "  mend: have the root made for you, or rehearse elsewhere with --root DIR"
        )
        layout = make_layout(tmp_path)
        assert site_check.record(layout, report) == (report, None)

    def test_and_a_link_leads_nowhere(self, tmp_path: Path) -> None:
        (tmp_path / "root").symlink_to("nowhere")
        report = look(make(tmp_path))
        assert f"{tmp_path}/root: error P001: a symbolic link" in told(report, "P001")
        assert told(report, "S004") != ""


def test_a_receipt_that_cannot_be_written(tmp_path: Path, root: Path) -> None:
    report = look(make(tmp_path))
    (root / ".envbuild" / "site-check.json").mkdir()
    more, receipt = site_check.record(make_layout(tmp_path), report)
    assert receipt is None
    assert more.findings[:-1] == report.findings
    assert told(more, "S005") == (
        f"{root}/.envbuild: error S005: cannot write: Is a directory\n"
        "  expected: a folder that you may write\n"
        "  mend: check the folder's owner and mount, or rehearse elsewhere with --root DIR"
    )


class TestCLibrary:
    FOUND = preflight.glibc()
    MEND = (
        "  mend: see whether this machine is the site's; if so, correct `glibc` in the site's file"
    )

    def test_newer_than_declared(self, tmp_path: Path, root: Path) -> None:
        project = make(tmp_path, 'glibc = "2.17"')
        assert told(look(project), "S010") == (
            "site far: warning S010: the system's C library is newer than the site declares\n"
            f"  expected: glibc 2.17\n  found: glibc {self.FOUND}\n{self.MEND}"
        )
        assert told(look(project, root=tmp_path), "S010") == ""

    def test_older_than_declared(self) -> None:
        found = list(site_check.compare_glibc("far", "2.9", "2.28"))
        assert printer.text(found) == (
            "site far: error S010: the system's C library is older than the site declares\n"
            f"  expected: glibc 2.28\n  found: glibc 2.9\n{self.MEND}"
        )
        (other,) = site_check.compare_glibc("far", "", "2.28")
        assert (other.severity, other.found) == ("error", "another C library")
        assert list(site_check.compare_glibc("far", "2.28", "2.28")) == []

    def test_older_than_a_lock_needs(self, tmp_path: Path, root: Path) -> None:
        project = make(tmp_path, f'glibc = "{self.FOUND}"', platform="manylinux_2_99")
        report = look(project)
        assert told(report, "S010") == (
            "site far: error S010: the wheels of toy need a newer C library than this system has\n"
            f"  expected: glibc 2.99 or newer\n  found: glibc {self.FOUND}\n"
            "  mend: lower `platform` in the environment's file and lock it again"
        )
        assert told(report, "S011") == (
            "site far: error S011: the wheels of toy are for a newer C library than the site "
            "declares\n"
            f"  expected: a platform of glibc {self.FOUND} or older\n  found: glibc 2.99\n"
            "  mend: lower `platform` in envs/toy.toml and run `envbuild lock toy`"
        )


class TestGpus:
    # what the kernel modules say of themselves, the closed and the open ones
    CLOSED = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.129.03  Thu Oct 19 18:56:32 UTC\n"
    OPEN = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build\n"

    def test_versions(self) -> None:
        gcc = "GCC version:  gcc version 12.2.0 (Debian 12.2.0-14)\n"
        assert preflight.driver_version(self.CLOSED + gcc) == "535.129.03"
        assert preflight.driver_version(self.OPEN + gcc) == "570.86.15"
        assert preflight.driver_version(gcc) is None

    def test_no_driver(self, tmp_path: Path, root: Path) -> None:
        if Path("/proc/driver/nvidia").exists():
            missing("a machine without NVIDIA driver")
        report = look(make(tmp_path, 'gpu-architectures = ["sm_90"]'))
        assert report.host.driver is None
        assert "no NVIDIA driver here: GPU architectures were not compared" in report.notes
        assert seen(report, "GPU architectures") == []

    def test_driver_and_gpus(self, tmp_path: Path, root: Path) -> None:
        """No GPU is to be had here: a /proc and an nvidia-smi that answer as theirs do."""
        project = make(tmp_path, 'gpu-architectures = ["sm_80"]')
        programs, proc = tmp_path / "bin", tmp_path / "nvidia"
        programs.mkdir()
        proc.mkdir()
        (proc / "version").write_text(self.OPEN)
        smi = programs / "nvidia-smi"
        smi.write_text("#!/bin/sh\nprintf '9.0\\n8.0\\n9.0\\n'\n")
        smi.chmod(0o755)
        # the kernel lets no folder be made in /proc/driver: another one takes its place
        driver = f"mount --bind '{tmp_path}' /proc/driver"
        path = f"{programs}:{os.environ['PATH']}"
        report = mounted(project, driver, PATH=path)
        assert report.host.driver == "570.86.15"
        assert seen(report, "NVIDIA driver") == ["570.86.15"]
        assert seen(report, "GPU architectures") == ["sm_80, sm_90"]
        assert told(report, "S014") == (
            "site far: warning S014: a GPU here is of an architecture that the site does not "
            "declare: sm_90\n"
            "  expected: sm_80\n  found: sm_90\n"
            "  mend: add it to `gpu-architectures` in the site's file: source builds have no code "
            "for it"
        )
        smi.write_text("#!/bin/sh\nexit 9\n")
        report = mounted(project, driver, PATH=path)
        assert report.notes[-1] == (
            "GPU architectures were not compared: asking for GPUs failed with exit code 9"
        )

    def test_architectures(self) -> None:
        assert site_check.architectures("9.0\n8.6\n9.0\n[N/A]\n") == ["sm_86", "sm_90"]
        assert list(site_check.compare_architectures("far", ["sm_90"], ())) == []


class TestInterpreters:
    """S015: the pinned ones."""

    @pytest.mark.parametrize("unpinned", [False, True])
    def test_not_at_hand(self, tmp_path: Path, root: Path, unpinned: bool) -> None:
        project = make(tmp_path, f"unpinned-interpreter = {str(unpinned).lower()}")
        (project.wheelhouse / ARCHIVE).unlink()
        report = look(project)
        assert seen(report, f"Python {projects.PINNED}") == ["not at hand"]
        assert told(report, "S015") == (
            f"site far: warning S015: the pinned Python {projects.PINNED} of toy is not at hand\n"
            f"  expected: {ARCHIVE} in {project.wheelhouse}, or installed in "
            f"{root}/.envbuild/interpreters\n  found: neither\n"
            "  mend: run `envbuild fetch toy` where the network reaches it"
            + ("; till then an installed CPython stands in" if unpinned else "")
        )

    def test_installed(self, tmp_path: Path, root: Path) -> None:
        project = make(tmp_path)
        home = root / ".envbuild" / "interpreters" / f"{projects.PINNED}+20260101"
        home.mkdir(parents=True)
        receipt = {"archive": ARCHIVE, "archive_sha256": "ab" * 32, "path": sys.executable}
        receipt["manifest_sha256"] = "cd" * 32
        (home / "receipt.json").write_text(json.dumps(receipt))
        assert seen(look(project), f"Python {projects.PINNED}") == [
            f"installed at {sys.executable}"
        ]

    def test_not_pinned(self, tmp_path: Path, root: Path) -> None:
        project = make(tmp_path)
        project.interpreters_file.unlink()
        assert told(look(project), "S015") == (
            f"site far: error S015: Python {projects.PINNED} of toy is not pinned\n"
            "  expected: its hash in locks/interpreters.toml\n  found: no pin of that version\n"
            "  mend: run `envbuild lock toy`"
        )


def test_a_rehearsal(tmp_path: Path, root: Path) -> None:
    project = make(
        tmp_path,
        f'mounts = ["/gone"]\naliases = ["{root}"]\n[personal]\nfolder = "{root}"\n',
        root=tmp_path / "registered",
    )
    report = look(project, root=root)
    assert report.rehearsal
    assert report.notes[0] == "rehearsal: mounts, aliases, personal of the site were not looked at"
    for what in ("mount", "alias", "personal folder"):
        assert seen(report, what) == []
    assert told(report, "R004") + told(report, "S001") == ""
