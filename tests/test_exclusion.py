from __future__ import annotations

import contextlib
import errno
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace

from envbuild import exclusion
from envbuild import owner as owners
from envbuild.errors import PreflightError, StepError
from envbuild.owner import Owner
from tests.test_owner import (
    INVALID,
    ended,
    install_slurm,
    line,
    on_a_node,
    own_pids,
    python,
    started,
)

SECONDS = 30.0

# holds the lock until its input ends
HOLDING = """
import sys
from pathlib import Path
from envbuild import exclusion, owner
me = owner.current("envbuild create core")
with exclusion.exclusive(Path(sys.argv[1]), me, wait=float(sys.argv[2])) as lock:
    print("held", lock.how, flush=True)
    sys.stdin.read()
"""

# adds one to a number, many times; "inside" is there while somebody does
COUNTING = """
import sys
from pathlib import Path
from envbuild import exclusion, owner
folder = Path(sys.argv[1])
me = owner.current("counting")
for _ in range(int(sys.argv[2])):
    with exclusion.exclusive(folder / "lock", me, wait=60):
        (folder / "inside").touch(exist_ok=False)
        number = int((folder / "number").read_text())
        (folder / "number").write_text(str(number + 1))
        (folder / "inside").unlink()
"""

# tries every lock at its appointed time, and keeps those that it gets until its input ends
CLAIMING = """
import sys, time
from contextlib import ExitStack
from pathlib import Path
from envbuild import exclusion, owner
from envbuild.errors import PreflightError
me = owner.current("claiming")
print("ready", flush=True)
begin = float(sys.stdin.readline())
won = []
with ExitStack() as held:
    for number in range(int(sys.argv[2])):
        while time.monotonic() < begin + number * 0.01:
            pass
        try:
            held.enter_context(exclusion.exclusive(Path(sys.argv[1]) / f"lock{number}", me))
        except PreflightError:
            continue
        won.append(number)
    print(*won, flush=True)
    sys.stdin.read()
"""

# starts three processes that take a lock again and again, kills them one by one, takes the lock,
# and so on; whoever is inside must be alone there or among the dead
KILLING = """
import math, os, random, signal, sys, time
from pathlib import Path
from envbuild import exclusion, owner

folder = Path(sys.argv[1])
inside = folder / "inside"

def enter(me, wait):
    with exclusion.exclusive(folder / "lock", me, wait=wait):
        other = owner.parse(inside.read_bytes()) if inside.exists() else None
        if other is not None and not owner.proved_dead(other):
            print("two inside", flush=True)
        inside.write_bytes(owner.encode(me))
        inside.unlink()

def start():
    pid = os.fork()
    if pid == 0:
        me = owner.current("being killed")
        while True:
            enter(me, math.inf)
    return pid

for number in range(int(sys.argv[2])):
    for pid in [start() for _ in range(3)]:
        time.sleep(random.uniform(0, 0.03))
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    enter(owner.current("killing"), 30)
for file in folder.iterdir():
    file.unlink()  # what the killed left, for a day
print(number + 1, "rounds", flush=True)
"""

# Neither an NFS that loses answers nor a FUSE that does not count links is to be had here; their
# answers are. NFS does what is asked, asks again, and is told that it is done already.
LOSING_ANSWERS = """
import os
def losing(call, error):
    def asked(*names):
        call(*names)
        raise error
    return asked
os.link = losing(os.link, FileExistsError(17, "File exists"))
os.rename = losing(os.rename, FileNotFoundError(2, "No such file or directory"))
"""
NOT_COUNTING = """
import os
def link(source, name):
    with open(source, "rb") as old, open(name, "xb") as new:
        new.write(old.read())
os.link = link
"""

# stands for a slow file system: before its first link or rename it waits for a line of input
SLOWLY = """
import os, sys
call = getattr(os, sys.argv[3])
def slowly(*names):
    setattr(os, sys.argv[3], call)
    print("at", sys.argv[3], flush=True)
    sys.stdin.readline()
    call(*names)
setattr(os, sys.argv[3], slowly)
"""

# has the kernel refuse hard links by an error, as some file systems do; the rest is as it was
WITHOUT_LINKS = """
import ctypes, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
LINK, LINKAT, ALLOW, ERRNO = 86, 265, 0x7FFF0000, 0x00050000
program = b"".join(
    struct.pack("HBBI", *line)
    for line in (
        (0x20, 0, 0, 0),  # load the number of the system call
        (0x15, 1, 0, LINK),
        (0x15, 0, 1, LINKAT),
        (0x06, 0, 0, ERRNO | int(sys.argv[3])),
        (0x06, 0, 0, ALLOW),
    )
)
text = ctypes.create_string_buffer(program)
filter = ctypes.create_string_buffer(struct.pack("HxxxxxxP", 5, ctypes.addressof(text)))
assert libc.prctl(38, 1, 0, 0, 0) == 0  # PR_SET_NO_NEW_PRIVS
assert libc.prctl(22, 2, filter) == 0  # PR_SET_SECCOMP, SECCOMP_MODE_FILTER
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    folder = tmp_path / "locks"
    folder.mkdir()
    return folder / "core"


@pytest.fixture
def me(monkeypatch: pytest.MonkeyPatch) -> Owner:
    for name in ("SLURM_JOB_ID", "DET_TASK_ID"):
        monkeypatch.delenv(name, raising=False)
    return owners.current("envbuild create core")


@contextmanager
def holding(path: Path, *before: str) -> Iterator[subprocess.Popen[str]]:
    """Have another process hold a lock."""
    with started([*before, *python(HOLDING, path, SECONDS)]) as child:
        assert line(child) == "held link"
        yield child


def held_by(path: Path) -> Owner:
    owner = exclusion.read(path)
    assert owner is not None
    return owner


def write(path: Path, owner: Owner) -> None:
    path.write_bytes(owners.encode(owner))


def names(path: Path) -> list[str]:
    return sorted(file.name for file in path.parent.iterdir())


def quietly(command: list[str]) -> list[str]:
    """Return the command without what it says on its end by an interrupt."""
    return ["sh", "-c", 'exec "$@" 2>/dev/null', "-", *command]


def go_on(child: subprocess.Popen[str]) -> None:
    assert child.stdin is not None
    child.stdin.write("\n")
    child.stdin.flush()


def finish(child: subprocess.Popen[str]) -> None:
    """Let a process that waits for its input go on to its end."""
    assert child.stdin is not None
    child.stdin.close()
    assert child.wait(timeout=SECONDS) == 0


def test_held_then_free(path: Path, me: Owner) -> None:
    assert exclusion.read(path) is None
    with exclusion.exclusive(path, me) as lock:
        assert (lock.path, lock.how) == (path, "link")
        assert exclusion.read(path) == lock.owner
        assert replace(lock.owner, token=me.token, since=me.since) == me
        assert lock.owner.token != me.token
        assert names(path) == ["core"]
        assert path.stat().st_mode & 0o777 == 0o644
    assert names(path) == []


def test_free_after_a_failure(path: Path, me: Owner) -> None:
    with pytest.raises(ZeroDivisionError), exclusion.exclusive(path, me):
        raise ZeroDivisionError
    assert names(path) == []


def test_one_process_can_exclude_itself(path: Path, me: Owner) -> None:
    with exclusion.exclusive(path, me):
        with pytest.raises(PreflightError), exclusion.exclusive(path, me):
            pytest.fail("held twice")
        assert names(path) == ["core"]


def test_four_processes_count(tmp_path: Path) -> None:
    (tmp_path / "number").write_text("0")
    with contextlib.ExitStack() as stack:
        command = python(COUNTING, tmp_path, 50)
        children = [stack.enter_context(started(command)) for _ in range(4)]
        for child in children:
            finish(child)
    assert (tmp_path / "number").read_text() == "200"
    assert [file.name for file in tmp_path.iterdir()] == ["number"]


class TestRefusal:
    """What a person is told who cannot have the lock."""

    def test_by_a_process_seen_alive(self, path: Path, me: Owner) -> None:
        with holding(path) as child:
            holder = held_by(path)
            with pytest.raises(PreflightError) as caught, exclusion.exclusive(path, me):
                pytest.fail("held twice")
            assert holder.pid == child.pid
            what, expected, found, mend = str(caught.value).splitlines()
            assert what == f"{path}: locked by another process"
            assert expected == "  expected: nobody else at work there"
            since = f"{holder.since:%Y-%m-%d %H:%M:%S} UTC"
            assert found.startswith(
                f"  found: {me.user} on {me.host}, pid {child.pid}, since {since} ("
            )
            assert found.endswith(" s): envbuild create core")
            assert mend == "  mend: wait until it ends"
            assert names(path) == ["core"]

    def test_by_one_that_cannot_be_seen(self, path: Path, me: Owner) -> None:
        write(path, on_a_node(user="alice"))
        with pytest.raises(PreflightError) as caught, exclusion.exclusive(path, me, wait=0.1):
            pytest.fail("held twice")
        what, _, found, mend = str(caught.value).splitlines()
        assert what == f"{path}: still locked after 0.1 s"
        assert found.startswith("  found: alice on node7.cluster, Slurm job 4711_3, pid ")
        assert mend == (
            "  mend: wait until it ends; whether it still runs cannot be seen from here: "
            "if you know that it does not, `envbuild unlock`"
        )

    @pytest.mark.parametrize(
        ("data", "found"),
        [
            (b"", "an empty file"),
            (b"{'host'}", "8 bytes of something else"),
        ],
    )
    def test_by_what_says_nothing(self, path: Path, me: Owner, data: bytes, found: str) -> None:
        path.write_bytes(data)
        with pytest.raises(PreflightError) as caught, exclusion.exclusive(path, me, wait=SECONDS):
            pytest.fail("held twice")
        assert str(caught.value).splitlines() == [
            f"{path}: locked, but the lock does not say by whom",
            "  expected: an owner, as envbuild writes it",
            f"  found: {found}",
            "  mend: make sure that nobody is at work there, then `envbuild unlock`",
        ]
        assert path.read_bytes() == data
        assert names(path) == ["core"]

    def test_by_what_is_no_file(self, path: Path, me: Owner) -> None:
        path.symlink_to("nothing")
        with pytest.raises(PreflightError) as caught, exclusion.exclusive(path, me, wait=SECONDS):
            pytest.fail("held twice")
        assert str(caught.value).splitlines() == [
            f"{path}: a symbolic link to nothing",
            "  mend: remove it",
        ]
        path.unlink()
        path.mkdir()
        with pytest.raises(PreflightError) as caught, exclusion.exclusive(path, me, wait=SECONDS):
            pytest.fail("held twice")
        assert str(caught.value).splitlines() == [
            f"{path}: the lock cannot be read: Is a directory",
            "  mend: see who owns the folder and the lock",
        ]

    def test_without_a_folder(self, tmp_path: Path, me: Owner) -> None:
        path = tmp_path / "no" / "core"
        with pytest.raises(PreflightError) as caught, exclusion.exclusive(path, me):
            pytest.fail("held nowhere")
        assert str(caught.value).splitlines() == [
            f"{path}: cannot be locked: No such file or directory",
            "  expected: a folder that is there, with room, where this user may write",
            f"  mend: look at {path.parent}",
        ]


class TestWaiting:
    """Whoever waits knows for whom, and gets the lock as soon as it can be had."""

    def test_until_it_is_free(self, path: Path, me: Owner) -> None:
        with holding(path) as child:
            said: list[str] = []

            def say(text: str) -> None:
                said.append(text)
                assert child.stdin is not None
                child.stdin.close()

            with exclusion.exclusive(path, me, wait=SECONDS, say=say) as lock:
                assert held_by(path) == lock.owner
            assert len(said) == 1
            start = f"waiting for {me.user} on {me.host}, pid {child.pid}, since "
            assert said[0].startswith(start)
            assert said[0].endswith("): envbuild create core")

    def test_says_when_it_is_another(self, path: Path, me: Owner) -> None:
        write(path, on_a_node(user="alice"))
        said: list[str] = []

        def say(text: str) -> None:
            said.append(text.split(",")[0])
            if len(said) == 1:
                write(path, on_a_node(user="bob"))
            else:
                path.unlink()

        with exclusion.exclusive(path, me, wait=SECONDS, say=say):
            assert said == [
                "waiting for alice on node7.cluster",
                "waiting for bob on node7.cluster",
            ]

    def test_interrupted_leaves_nothing(self, path: Path, me: Owner) -> None:
        code = """
import math, sys
from pathlib import Path
from envbuild import exclusion, owner
me = owner.current("waiting")
with exclusion.exclusive(Path(sys.argv[1]), me, wait=math.inf, say=lambda _: print(1, flush=True)):
    pass
"""
        with (
            exclusion.exclusive(path, me) as lock,
            started(quietly(python(code, path))) as child,
        ):
            assert line(child) == "1"
            child.send_signal(signal.SIGINT)
            assert child.wait(timeout=SECONDS) != 0
            assert names(path) == ["core"]
            assert held_by(path) == lock.owner

    def test_a_lock_seen_half_written(self, path: Path, me: Owner) -> None:
        path.touch()
        holder = on_a_node(user="alice")
        writing = threading.Timer(0.1, write, (path, holder))
        writing.start()
        with pytest.raises(PreflightError) as caught, exclusion.exclusive(path, me):
            pytest.fail("held twice")
        writing.join()
        assert (caught.value.found or "").startswith("alice on node7.cluster, ")


class TestTakingOver:
    """A lock is taken from the dead, and from nobody else."""

    def test_killed(self, path: Path, me: Owner) -> None:
        with holding(path) as child:
            holder = held_by(path)
            child.kill()
            child.wait()
            assert held_by(path) == holder
            said: list[str] = []
            with exclusion.exclusive(path, me, say=said.append) as lock:
                assert held_by(path) == lock.owner
                assert names(path) == ["core"]
            assert len(said) == 1
            start = f"taking over from a dead process: {me.user} on {me.host}, pid {child.pid}, "
            assert said[0].startswith(start)

    def test_not_from_a_stopped_process(self, path: Path, me: Owner) -> None:
        with holding(path) as child:
            holder = held_by(path)
            child.send_signal(signal.SIGSTOP)
            os.waitid(os.P_PID, child.pid, os.WSTOPPED)
            with pytest.raises(PreflightError), exclusion.exclusive(path, me, wait=0.2):
                pytest.fail("held twice")
            assert held_by(path) == holder
            child.send_signal(signal.SIGCONT)
            finish(child)
        assert names(path) == []

    def test_not_from_another_pid_namespace(self, path: Path, me: Owner) -> None:
        with holding(path, *own_pids()) as child:
            holder = held_by(path)
            with pytest.raises(PreflightError), exclusion.exclusive(path, me):
                pytest.fail("held twice")
            child.kill()
            child.wait()
            with pytest.raises(PreflightError) as caught, exclusion.exclusive(path, me, wait=0.2):
                pytest.fail("nobody knows that it is dead")
            assert "cannot be seen from here" in (caught.value.mend or "")
            assert exclusion.unlock(path, expected_token=holder.token) == holder
        with exclusion.exclusive(path, me):
            pass

    def test_from_a_pid_that_is_another_process_by_now(self, path: Path, me: Owner) -> None:
        assert me.start_time is not None
        write(path, replace(me, start_time=me.start_time - 1))
        with exclusion.exclusive(path, me):
            assert names(path) == ["core"]

    def test_from_a_job_that_slurm_has_ended(
        self, path: Path, me: Owner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        install_slurm(monkeypatch, tmp_path, INVALID)
        write(path, on_a_node())
        with exclusion.exclusive(path, me):
            assert names(path) == ["core"]

    def test_slurm_is_not_asked_at_every_look(
        self, path: Path, me: Owner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        questions = install_slurm(monkeypatch, tmp_path, "echo RUNNING")
        write(path, on_a_node())
        with pytest.raises(PreflightError), exclusion.exclusive(path, me, wait=0.5):
            pytest.fail("held twice")
        assert len(questions.read_text().splitlines()) == 2

    def test_one_of_several_gets_it(self, tmp_path: Path) -> None:
        rounds = 60
        dead = ended()
        for number in range(rounds):
            write(tmp_path / f"lock{number}", replace(dead, token=owners.new_token()))
        with contextlib.ExitStack() as stack:
            command = python(CLAIMING, tmp_path, rounds)
            children = [stack.enter_context(started(command)) for _ in range(3)]
            assert [line(child) for child in children] == ["ready"] * 3
            for child in children:
                assert child.stdin is not None
                child.stdin.write(f"{time.monotonic() + 0.1}\n")
                child.stdin.flush()
            won = [line(child).split() for child in children]
            locks = [held_by(tmp_path / f"lock{number}") for number in range(rounds)]
            for child in children:
                finish(child)
        assert sorted(int(number) for numbers in won for number in numbers) == [*range(rounds)]
        for child, numbers in zip(children, won, strict=True):
            assert {locks[int(number)].pid for number in numbers} <= {child.pid}
        assert list(tmp_path.iterdir()) == []

    def test_killed_at_any_moment(self, tmp_path: Path) -> None:
        """Among those killed are some that were just taking over from another that was."""
        with started(python(KILLING, tmp_path, 40)) as child:
            assert line(child) == "40 rounds"
            finish(child)
        assert list(tmp_path.iterdir()) == []


class TestClaims:
    """Of those who may remove a dead lock one does, even if others died before it."""

    @pytest.fixture
    def dead(self, path: Path) -> Owner:
        owner = ended()
        write(path, owner)
        return owner

    def test_keep_others_off_while_the_lock_is_removed(
        self, path: Path, me: Owner, dead: Owner
    ) -> None:
        with started(python(SLOWLY + HOLDING, path, SECONDS, "rename")) as child:
            assert line(child) == "at rename"
            with pytest.raises(PreflightError) as caught, exclusion.exclusive(path, me, wait=0.1):
                pytest.fail("the other would then remove our lock")
            assert f"pid {child.pid}, " in (caught.value.found or "")
            assert held_by(path) == dead
            go_on(child)
            assert line(child) == "held link"
            assert held_by(path).pid == child.pid
            assert names(path) == ["core"]

    def test_come_too_late_for_what_is_gone(self, path: Path, me: Owner, dead: Owner) -> None:
        with started(python(SLOWLY + HOLDING, path, SECONDS, "link")) as child:
            assert line(child) == "at link"
            with exclusion.exclusive(path, me) as lock:
                assert held_by(path) == lock.owner
                go_on(child)
                time.sleep(0.1)
                assert held_by(path) == lock.owner
            assert line(child) == "held link"
            assert names(path) == ["core"]

    @pytest.mark.parametrize("call", ["link", "rename"])
    def test_end_with_their_process(self, path: Path, me: Owner, dead: Owner, call: str) -> None:
        with started(python(SLOWLY + HOLDING, path, SECONDS, call)) as child:
            assert line(child) == f"at {call}"
            child.kill()
            child.wait()
            with exclusion.exclusive(path, me) as lock:
                assert held_by(path) == lock.owner

    def test_are_given_back_when_interrupted(self, path: Path, dead: Owner) -> None:
        with started(quietly(python(SLOWLY + HOLDING, path, SECONDS, "rename"))) as child:
            assert line(child) == "at rename"
            child.send_signal(signal.SIGINT)
            assert child.wait(timeout=SECONDS) != 0
            assert names(path) == ["core"]
            assert held_by(path) == dead

    def claim(self, path: Path, dead: Owner, level: int) -> Path:
        return path.with_name(f".core.{dead.token}.{level}.claim")

    def test_of_the_dead_are_passed(self, path: Path, me: Owner, dead: Owner) -> None:
        for level in range(3):
            write(self.claim(path, dead, level), ended())
        with exclusion.exclusive(path, me):
            assert names(path) == ["core"]

    def test_of_the_living_are_not(self, path: Path, me: Owner, dead: Owner) -> None:
        write(self.claim(path, dead, 0), ended())
        write(self.claim(path, dead, 1), on_a_node(user="alice"))
        with pytest.raises(PreflightError) as caught, exclusion.exclusive(path, me, wait=0.1):
            pytest.fail("another is at it")
        assert (caught.value.found or "").startswith("alice on node7.cluster, ")
        assert held_by(path) == dead
        assert len(names(path)) == 3

    def test_that_say_nothing(self, path: Path, me: Owner, dead: Owner) -> None:
        self.claim(path, dead, 0).touch()
        with pytest.raises(PreflightError) as caught, exclusion.exclusive(path, me):
            pytest.fail("nobody knows who is at it")
        assert caught.value.where == str(self.claim(path, dead, 0))
        assert exclusion.unlock(path) == dead
        assert names(path) == []

    def test_a_person_passes_those_that_cannot_be_seen(
        self, path: Path, me: Owner, dead: Owner
    ) -> None:
        write(self.claim(path, dead, 0), on_a_node())
        write(self.claim(path, dead, 1), me)
        with pytest.raises(PreflightError) as caught:
            exclusion.unlock(path)
        assert str(caught.value).splitlines() == [
            f"{path}: another process is removing the lock, or has done so",
            f"  found: {owners.describe(me)}",
            "  mend: look again who holds it",
        ]
        self.claim(path, dead, 1).unlink()
        assert exclusion.unlock(path) == dead
        assert names(path) == []


class TestUnlock:
    """For a person who knows better."""

    def test_not_locked(self, path: Path) -> None:
        with pytest.raises(PreflightError) as caught:
            exclusion.unlock(path)
        assert str(caught.value).splitlines() == [
            f"{path}: not locked",
            "  mend: nothing is to be done",
        ]

    def test_only_the_one_that_was_meant(self, path: Path) -> None:
        holder = on_a_node(user="alice")
        write(path, holder)
        with pytest.raises(PreflightError) as caught:
            exclusion.unlock(path, expected_token="0" * 32)
        assert str(caught.value).splitlines() == [
            f"{path}: locked by another than was expected",
            f"  expected: token {'0' * 32}",
            f"  found: token {holder.token}: {owners.describe(holder)}",
            "  mend: look again who holds it",
        ]
        assert held_by(path) == holder
        assert exclusion.unlock(path, expected_token=holder.token) == holder
        assert names(path) == []

    def test_a_lock_that_says_nothing(self, path: Path) -> None:
        path.touch()
        with pytest.raises(PreflightError, match="locked by another than was expected"):
            exclusion.unlock(path, expected_token="0" * 32)
        assert exclusion.unlock(path) is None
        assert names(path) == []

    def test_who_held_it_is_told_and_removes_no_other(self, path: Path, me: Owner) -> None:
        other = on_a_node(user="alice")
        with pytest.raises(StepError) as caught, exclusion.exclusive(path, me) as lock:
            assert exclusion.unlock(path) == lock.owner
            write(path, other)
        assert str(caught.value).splitlines() == [
            f"{path}: the lock was removed while it was held",
            f"  expected: token {lock.owner.token}",
            f"  found: {owners.describe(other)}",
            "  mend: another process may have been at work at the same time: check what was made",
        ]
        assert held_by(path) == other
        assert names(path) == ["core"]

    def test_what_was_moved_by_mistake_is_put_back(self, path: Path) -> None:
        """Somebody's `rm` and a new lock between two looks cannot be had at will: the last step."""
        first, second = on_a_node(user="alice"), on_a_node(user="bob")
        aside = path.with_name("aside")
        write(aside, first)
        exclusion._put_back(aside, path)
        assert held_by(path) == first
        assert names(path) == ["core"]
        write(aside, second)
        aside.with_name("temporary").hardlink_to(aside)  # its owner was just about to remove it
        with pytest.raises(StepError) as caught:
            exclusion._put_back(aside, path)
        assert str(caught.value).splitlines() == [
            f"{path}: two processes hold the lock, since it was removed by hand",
            "  expected: one of them",
            f"  found: {owners.describe(second)}; and {owners.describe(first)}",
            "  mend: stop both, and see what they left",
        ]


class TestFileSystems:
    """Not all of them can do, or tell, what ext4 does."""

    @pytest.mark.parametrize("error", [errno.EPERM, errno.ENOTSUP, errno.ENOSYS])
    def test_without_hard_links(self, path: Path, me: Owner, error: int) -> None:
        write(path, ended())
        with started(python(WITHOUT_LINKS + HOLDING, path, SECONDS, error)) as child:
            assert line(child) == "held create"
            assert held_by(path).pid == child.pid
            assert names(path) == ["core"]
            with pytest.raises(PreflightError), exclusion.exclusive(path, me):
                pytest.fail("held twice")
            with started(python(WITHOUT_LINKS + HOLDING, path, SECONDS, error)) as other:
                finish(child)
                assert line(other) == "held create"
                finish(other)
        assert names(path) == []

    def test_other_errors_of_links(self, path: Path) -> None:
        command = python(WITHOUT_LINKS + HOLDING, path, SECONDS, errno.EDQUOT)
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 1
        assert f"{path}: cannot be locked: Disk quota exceeded" in done.stderr
        assert names(path) == []

    @pytest.mark.parametrize("code", [LOSING_ANSWERS, NOT_COUNTING])
    def test_what_is_there_counts_and_not_what_is_answered(self, path: Path, code: str) -> None:
        with started(python(code + HOLDING, path, SECONDS)) as child:
            assert line(child) == "held link"
            assert held_by(path).pid == child.pid
            with started(quietly(python(code + HOLDING, path, 0))) as other:
                assert other.wait(timeout=SECONDS) == 1
            finish(child)
        assert names(path) == []


class TestLeftOvers:
    """What a killed process left is removed a day later."""

    def test_of_the_dead_only(self, path: Path, me: Owner) -> None:
        dead = ended()
        kept = {
            f".core.{'1' * 32}.new": me,
            f".core.{'2' * 32}.new": on_a_node(),
            f".core.more.{'3' * 32}.new": dead,  # another lock's
            ".core.notes": dead,
        }
        removed = {
            f".core.{'4' * 32}.new": dead,
            f".core.{'5' * 32}.aside": dead,
            f".core.{'6' * 32}.0.claim": dead,
        }
        unfinished = path.with_name(f".core.{'7' * 32}.new")
        unfinished.touch()
        for name, owner in (kept | removed).items():
            write(path.with_name(name), owner)
        with exclusion.exclusive(path, me):
            assert len(names(path)) == 9
        yesterday = time.time() - 86500
        for name in names(path):
            os.utime(path.with_name(name), (yesterday, yesterday))
        with exclusion.exclusive(path, me):
            assert names(path) == sorted([*kept, "core"])
