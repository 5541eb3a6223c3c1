from __future__ import annotations

import os
import pwd
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from msgspec.structs import replace

from envbuild import owner as owners
from envbuild.owner import Job, Owner, Verdict

HERE = Path(__file__).parents[1]
# read before the fixtures take settings away
REQUIRE_ALL = "ENVBUILD_REQUIRE_ALL" in os.environ

FIRST_PID_NAMESPACE = 4026531836

# says who it is, then stays until its input ends
STAYING = """
import sys
from envbuild import owner
print(owner.encode(owner.current("staying")).decode(), end="", flush=True)
sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def no_scheduler(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(("SLURM", "DET_")):
            monkeypatch.delenv(name)


def python(code: str, *arguments: object) -> list[str]:
    return [sys.executable, "-c", code, *map(str, arguments)]


@contextmanager
def started(command: Sequence[str]) -> Iterator[subprocess.Popen[str]]:
    """Start a program with pipes to and from it, and end it with the block."""
    with subprocess.Popen(
        command, cwd=HERE, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        try:
            yield child
        finally:
            child.kill()


def line(child: subprocess.Popen[str]) -> str:
    assert child.stdout is not None
    return child.stdout.readline().rstrip("\n")


def told(text: str) -> Owner:
    owner = owners.parse(text.encode())
    assert owner is not None, text
    return owner


def ended() -> Owner:
    """Return who a process was that has ended."""
    with started(python(STAYING)) as child:
        return told(line(child))


def own_pids(*, proc: bool = True) -> list[str]:
    """Return the command that starts another in a pid namespace of its own.

    Args:
        proc: whether it has the /proc of that namespace.
    """
    user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    # with unshare killed, the kernel kills what it started
    command = ["unshare", *user, "--fork", "--pid", "--kill-child"]
    command += ["--mount-proc"] if proc else []
    try:
        tried = subprocess.run([*command, "true"], capture_output=True, text=True, check=False)
        reason = tried.stderr if tried.returncode else None
    except FileNotFoundError as error:
        reason = str(error)
    if reason is not None:
        if REQUIRE_ALL:
            pytest.fail(f"pid namespaces are needed: {reason}")
        pytest.skip("needs pid namespaces, for others than root user namespaces too (util-linux)")
    return command


def install_slurm(
    monkeypatch: pytest.MonkeyPatch, folder: Path, squeue: str, private: str = "none"
) -> Path:
    """Put a squeue and a scontrol on PATH that answer as Slurm's do.

    A Slurm is not to be had here: these are real programs that give its answers (those of its
    24.11), and nothing of what envbuild makes of them.

    Args:
        monkeypatch: sets PATH.
        folder: where they go.
        squeue: what squeue does, in the words of sh.
        private: the cluster's PrivateData.

    Returns:
        Where the questions are noted, one a line.
    """
    programs, questions = folder / "slurm", folder / "questions"
    programs.mkdir()
    config = (
        "Configuration data as of 2026-11-30T12:00:00\n"
        "BatchStartTimeout       = 10 sec\n"
        "ClusterName             = berzelius\n"
        f"PrivateData             = {private}\n\n"
        "Slurmctld(primary) at head is UP\n"
    )
    for name, script in (("scontrol", f"cat <<'END'\n{config}END\n"), ("squeue", squeue)):
        program = programs / name
        program.write_text(f"#!/bin/sh\necho {name} \"$@\" >>'{questions}'\n{script}\n")
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    return questions


INVALID = "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1"


def on_a_node(job: str = "4711_3", *, user: str | None = None) -> Owner:
    """Return an owner that Slurm started on another host."""
    me = owners.current("envbuild create core")
    return replace(
        me,
        user=user or me.user,
        host="node7.cluster",
        token=owners.new_token(),
        job=Job(system="slurm", id=job, cluster="berzelius", node="node7"),
    )


def test_says_who_it_is() -> None:
    before = datetime.now(UTC)
    me = owners.current("envbuild create core")
    assert (me.user, me.host) == (pwd.getpwuid(os.getuid()).pw_name, os.uname().nodename)
    assert (me.pid, me.command, me.job) == (os.getpid(), "envbuild create core", None)
    assert me.boot_id == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert f"pid:[{me.pid_namespace}]" == str(Path("/proc/self/ns/pid").readlink())
    assert before <= me.since <= datetime.now(UTC)
    assert me.token != owners.current("envbuild create core").token
    assert owners.parse(owners.encode(me)) == me


@pytest.mark.parametrize(
    ("environ", "job", "text"),
    [
        (
            {"SLURM_JOB_ID": "12", "SLURM_CLUSTER_NAME": "berzelius", "SLURMD_NODENAME": "node7"},
            Job(system="slurm", id="12", cluster="berzelius", node="node7"),
            "Slurm job 12",
        ),
        (
            {"SLURM_JOB_ID": "15", "SLURM_ARRAY_JOB_ID": "12", "SLURM_ARRAY_TASK_ID": "0"},
            Job(system="slurm", id="12_0"),
            "Slurm job 12_0",
        ),
        (
            {"DET_TASK_ID": "5a1e", "DET_CLUSTER_ID": "c0", "DET_AGENT_ID": "a100-3"},
            Job(system="determined", id="5a1e", cluster="c0", node="a100-3"),
            "Determined task 5a1e",
        ),
    ],
)
def test_says_its_job(
    monkeypatch: pytest.MonkeyPatch, environ: dict[str, str], job: Job, text: str
) -> None:
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    assert owners.current("x").job == job
    assert str(job) == text


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"pid":', b'"pid":-'),
        (b'"pid":', b'"pid":99999999999'),
        (b'"token":"', b'"token":"../'),
        (b'Z","command"', b'","command"'),
        (b"{", b'{"more":1,'),
        (b'"user":"', b'"user":"\xff'),
        (b"}", b""),
    ],
)
def test_anything_else_is_no_owner(old: bytes, new: bytes) -> None:
    data = owners.encode(owners.current("x"))
    assert data.count(old) == 1
    assert owners.parse(data.replace(old, new)) is None
    assert owners.parse(b"") is None
    assert owners.parse(b"[]") is None


def test_a_new_file_is_for_everybody_to_read(tmp_path: Path) -> None:
    old = os.umask(0o077)
    try:
        owners.write_new(tmp_path / "file", b"content", durable=True)
    finally:
        os.umask(old)
    assert (tmp_path / "file").read_bytes() == b"content"
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o644
    with pytest.raises(FileExistsError):
        owners.write_new(tmp_path / "file", b"other", durable=False)
    assert (tmp_path / "file").read_bytes() == b"content"


@pytest.mark.parametrize(
    ("ago", "text"),
    [
        (timedelta(seconds=-90), "0 s"),
        (timedelta(seconds=7), "7 s"),
        (timedelta(minutes=3, seconds=20), "3 min 20 s"),
        (timedelta(hours=5, minutes=0, seconds=59), "5 h 0 min"),
        (timedelta(days=3, hours=2, minutes=9), "3 d 2 h"),
    ],
)
def test_told_to_a_person(ago: timedelta, text: str) -> None:
    since = datetime.now(UTC) - ago - timedelta(milliseconds=1)
    alice = replace(on_a_node(user="alice"), pid=812, since=since)
    assert owners.describe(alice) == (
        f"alice on node7.cluster, Slurm job 4711_3, pid 812, since {since:%Y-%m-%d %H:%M:%S} UTC "
        f"({text}): envbuild create core"
    )


def test_told_without_control_sequences() -> None:
    assert owners.describe(replace(ended(), command="\x1b[2J\n")).endswith(": ?[2J?")


class TestThisHost:
    """What can be seen of processes of the same kernel and pid namespace."""

    def test_alive_then_stopped_then_a_zombie_then_gone(self) -> None:
        with started(python(STAYING)) as child:
            owner = told(line(child))
            assert owner.pid == child.pid
            assert owners.verdict(owner) == "alive"
            child.send_signal(signal.SIGSTOP)
            os.waitid(os.P_PID, child.pid, os.WSTOPPED)
            assert owners.verdict(owner) == "alive"
            child.kill()
            os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
            assert owners.verdict(owner) == "dead"
            child.wait()
            assert owners.verdict(owner) == "dead"
            assert owners.proved_dead(owner)

    def test_a_pid_that_is_another_process_by_now(self) -> None:
        me = owners.current("x")
        assert me.start_time is not None
        assert owners.verdict(me) == "alive"
        assert owners.verdict(replace(me, start_time=me.start_time - 1)) == "dead"
        assert owners.verdict(replace(me, start_time=None)) == "unknown"
        # start times are told relative to a time namespace
        other = replace(me, start_time=me.start_time - 1, time_namespace=1)
        assert owners.verdict(other) == "unknown"

    def test_a_name_made_to_mislead(self) -> None:
        code = f"open('/proc/self/comm', 'w').write('a) Z 1 (b')\n{STAYING}"
        with started(python(code)) as child:
            assert owners.verdict(told(line(child))) == "alive"

    def test_a_first_thread_that_ended_is_not_the_process(self) -> None:
        # system call 60 of x86-64 ends one thread
        code = """
import ctypes, sys, threading
from envbuild import owner
print(owner.encode(owner.current("staying")).decode(), end="", flush=True)
threading.Thread(target=sys.stdin.read).start()
ctypes.CDLL(None).syscall(60, 0)
"""
        with started(python(code)) as child:
            owner = told(line(child))
            status = Path(f"/proc/{child.pid}/status")
            deadline = time.monotonic() + 10
            while "State:\tZ" not in status.read_text() and time.monotonic() < deadline:
                time.sleep(0.01)
            assert "State:\tZ" in status.read_text()
            assert owners.verdict(owner) == "alive"

    def test_proc_that_hides_others(self) -> None:
        """With hidepid=2 there is nothing in /proc of another user's process, alive as it is."""
        if os.geteuid() != 0:
            if REQUIRE_ALL:
                pytest.fail("root is needed, to become another user")
            pytest.skip("needs root, to become another user")
        code = """
import os, subprocess
from envbuild import owner
subprocess.run(["mount", "-o", "remount,hidepid=2", "/proc"], check=True)
me = owner.current("x")
if os.fork() == 0:
    os.setgroups([])
    os.setresgid(65534, 65534, 65534)
    os.setresuid(65534, 65534, 65534)
    print(os.path.exists(f"/proc/{me.pid}"), owner.verdict(me), flush=True)
    os._exit(0)
os.wait()
"""
        with started([*own_pids(), *python(code)]) as child:
            assert line(child) == "False unknown"


class TestElsewhere:
    """Where a missing pid says nothing."""

    def test_another_pid_namespace_is_another_host(self) -> None:
        with started([*own_pids(), *python(STAYING)]) as child:
            owner = told(line(child))
            assert owner.boot_id == owners.current("x").boot_id
            assert owners.verdict(owner) == "unknown"
            assert owners.verdict(replace(owner, pid=2**22 + 1)) == "unknown"
            child.kill()
            child.wait()
            assert owners.verdict(owner) == "unknown"

    def test_the_proc_of_an_outer_namespace_shows_other_processes(self) -> None:
        code = """
import subprocess, sys
from envbuild import owner
print(owner.verdict(owner.current("x")))
child = subprocess.run([sys.executable, "-c", sys.argv[1]], input=b"", stdout=subprocess.PIPE)
print(owner.verdict(owner.parse(child.stdout)), flush=True)
"""
        with started([*own_pids(proc=False), *python(code, STAYING)]) as child:
            # of its own pid it sees in /proc what belongs to another process
            assert line(child) == "unknown"
            # but a pid that there is not needs no /proc
            assert line(child) == "dead"

    def test_another_host(self) -> None:
        owner = replace(ended(), host="other")
        assert owners.verdict(owner) == "unknown"
        assert not owners.proved_dead(owner)

    def test_an_earlier_start_of_this_machine(self) -> None:
        me = owners.current("x")
        old = replace(me, boot_id="other", machine_id="a", since=datetime(2020, 1, 1, tzinfo=UTC))
        assert owners.verdict(old) == "unknown"  # another installation
        same = replace(old, machine_id=me.machine_id)
        outside = me.pid_namespace == FIRST_PID_NAMESPACE and me.machine_id is not None
        assert owners.verdict(same) == ("dead" if outside else "unknown")
        # written after this kernel was started: on another machine
        assert owners.verdict(replace(same, since=me.since)) == "unknown"
        # from a container, whose names came with its image
        assert owners.verdict(replace(same, pid_namespace=4026532200)) == "unknown"
        assert owners.verdict(replace(same, machine_id=None)) == "unknown"
        assert owners.verdict(replace(same, boot_id=None)) == "unknown"


class TestSlurm:
    """Across hosts, by what Slurm says of the job."""

    @pytest.mark.parametrize(
        ("answer", "expected"),
        [
            (INVALID, "dead"),
            ("", "dead"),
            ("echo COMPLETED", "dead"),
            ("echo TIMEOUT", "dead"),
            ("echo RUNNING", "unknown"),
            ("echo SUSPENDED", "unknown"),
            ("echo COMPLETING", "unknown"),
            # nobody knows what a lost node still does
            ("echo NODE_FAIL", "unknown"),
            # requeued, under the same number
            ("echo PENDING", "unknown"),
            ("echo COMPLETED; echo RUNNING", "unknown"),
            ("echo 'error: Unable to contact slurm controller' >&2; exit 1", "unknown"),
        ],
    )
    def test_answers(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: str, expected: Verdict
    ) -> None:
        questions = install_slurm(monkeypatch, tmp_path, answer)
        assert owners.verdict(on_a_node()) == expected
        assert questions.read_text().splitlines() == [
            "scontrol show config",
            "squeue --all --states=all --noheader --format=%T --jobs=4711_3",
        ]

    def test_a_controller_that_hangs_is_asked_once(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        questions = install_slurm(monkeypatch, tmp_path, "exec sleep 60")
        asked = [on_a_node("1"), on_a_node("2"), on_a_node("3")]
        begun = time.monotonic()
        assert owners.verdicts(asked) == ["unknown"] * 3
        assert time.monotonic() - begun < 30
        assert len(questions.read_text().splitlines()) == 2

    def test_a_job_is_asked_for_once(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        running = 'case "$*" in *--jobs=2) echo RUNNING;; esac'
        questions = install_slurm(monkeypatch, tmp_path, running)
        asked = [on_a_node("1"), on_a_node("2"), on_a_node("1"), owners.current("x"), ended()]
        assert owners.verdicts(asked) == ["dead", "unknown", "dead", "alive", "dead"]
        assert len(questions.read_text().splitlines()) == 3

    def test_not_asked_where_it_cannot_tell(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        questions = install_slurm(monkeypatch, tmp_path, INVALID)
        owner = on_a_node()
        assert owners.verdict(owner, ask=False) == "unknown"
        assert owner.job is not None
        for job in (
            None,
            replace(owner.job, cluster=None),
            replace(owner.job, id="4711,4712"),
            replace(owner.job, system="determined"),
            # a login node's shell, with the variables of a job that it does not end with
            replace(owner.job, node=None),
            replace(owner.job, node="node8"),
        ):
            assert owners.verdict(replace(owner, job=job)) == "unknown"
        assert owners.verdict(replace(owners.current("x"), job=owner.job)) == "alive"
        assert not questions.exists()

    def test_another_cluster_has_other_jobs(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        install_slurm(monkeypatch, tmp_path, INVALID)
        owner = on_a_node()
        assert owner.job is not None
        there = replace(owner, job=replace(owner.job, cluster="tetralith"))
        assert owners.verdicts([owner, there]) == ["dead", "unknown"]

    def test_jobs_of_others_can_be_hidden(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        install_slurm(monkeypatch, tmp_path, INVALID, private="accounts,jobs")
        assert owners.verdicts([on_a_node(), on_a_node(user="alice")]) == ["dead", "unknown"]

    def test_no_slurm(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PATH", str(tmp_path))
        assert owners.verdict(on_a_node()) == "unknown"
