"""Who a process is, told so that others can prove its death, or see that they cannot.

A process that holds a lock or uses a prefix writes down who it is, where others on the same shared
file system read it. Whoever finds such a note long after may act only on proof. A proof is wanted,
not a likelihood: what a wrong guess costs is two builders in one prefix.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from envbuild.errors import StepError

Verdict = Literal["alive", "dead", "unknown"]

# The inode of the first pid namespace of every Linux machine, a constant of the kernel
# (PROC_PID_INIT_INO). Docker and Kubernetes give a container another one.
_FIRST_PID_NAMESPACE = 0xEFFFFFFC

# What Slurm calls a job of which no process is left. NODE_FAIL is not among them: of a node that
# nobody can reach, nobody knows what it still writes.
_OVER = frozenset(
    {
        "BOOT_FAIL",
        "CANCELLED",
        "COMPLETED",
        "DEADLINE",
        "FAILED",
        "OUT_OF_MEMORY",
        "PREEMPTED",
        "TIMEOUT",
    }
)
_SLURM_SECONDS = 5.0
_SLURM_JOB = re.compile(r"\d+(_\d+)?")
_SLURM_CONFIG = re.compile(r"^(ClusterName|PrivateData)\s*=\s*(\S+)", re.MULTILINE)


class Job(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A scheduler's name for what a process runs in.

    Attributes:
        system: the scheduler.
        id: the job, ``ARRAY_TASK`` for a task of a Slurm array; Determined's task.
        cluster: the cluster that the id belongs to, where it is told.
        node: the node that the scheduler started it on; None for a shell on a login node that
            only carries the job's variables.
    """

    system: Literal["slurm", "determined"]
    id: str
    cluster: str | None = None
    node: str | None = None

    def __str__(self) -> str:
        return f"Slurm job {self.id}" if self.system == "slurm" else f"Determined task {self.id}"


class Owner(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One process, on one start of one machine; what could not be learned is None.

    Attributes:
        user: the name of its real user.
        host: the name of the host, which containers and clones may share.
        machine_id: the installation (machine-id(5)), which images may share.
        boot_id: this start of the kernel, which all containers on it share.
        pid_namespace: the inode of its pid namespace, unique on a running kernel.
        time_namespace: the inode of its time namespace, by which start times are counted.
        pid: its number in its own pid namespace.
        start_time: when it was started, in clock ticks since boot (proc_pid_stat(5), field 22).
        job: what a scheduler knows it as.
        token: 128 random bits in hex, the name of this very note.
        since: when the note was made, in UTC by that host's clock.
        command: what it does, in a few words.
    """

    user: str
    host: str
    machine_id: str | None
    boot_id: str | None
    pid_namespace: int | None
    time_namespace: int | None
    # A note is read from folders that others may write to: a pid of 0 or -1 is not one process,
    # and the token becomes a part of file names.
    pid: Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]
    start_time: int | None
    job: Job | None
    token: Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{32}\Z")]
    since: Annotated[datetime, msgspec.Meta(tz=True)]
    command: str


class _Stat(msgspec.Struct, frozen=True):
    state: str
    threads: int
    start_time: int


class _Slurm(msgspec.Struct, frozen=True):
    cluster: str
    private: bool


def current(command: str) -> Owner:
    """Say who this process is.

    Args:
        command: what it does, such as ``envbuild create core``; others read it: no secrets.
    """
    # by way of "self": /proc may be that of an outer namespace, where our pid is another's
    stat = _stat("self")
    return Owner(
        user=_user(),
        host=os.uname().nodename,
        machine_id=_line(Path("/etc/machine-id")),
        boot_id=_line(Path("/proc/sys/kernel/random/boot_id")),
        pid_namespace=_namespace("pid"),
        time_namespace=_namespace("time"),
        pid=os.getpid(),
        start_time=stat.start_time if stat else None,
        job=_job(os.environ),
        token=new_token(),
        since=now(),
        command=command,
    )


def new_token() -> str:
    """Return 128 random bits in hex."""
    return os.urandom(16).hex()


def now() -> datetime:
    """Return the time in UTC, by this host's clock."""
    return datetime.now(UTC)


def encode(owner: Owner) -> bytes:
    """Write an owner as a line of JSON."""
    return msgspec.json.encode(owner) + b"\n"


def parse(data: bytes) -> Owner | None:
    """Read what `encode` wrote; None if it is anything else.

    Keys that this version does not know are refused: what a newer one notes down may be what a
    proof depends on.
    """
    try:
        return msgspec.json.decode(data, type=Owner)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def write_new(path: Path, data: bytes, *, durable: bool) -> None:
    """Write a file that was not there, for everybody to read, whatever the umask.

    Args:
        path: its name.
        data: the whole content.
        durable: whether the content must be on the disk before this returns.

    Raises:
        FileExistsError: there is something of that name.
        OSError: it cannot be written; nothing is left.
    """
    descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o644)
    try:
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(descriptor, 0o644)
            file.write(data)
            file.flush()
            if durable:
                os.fsync(descriptor)
    except BaseException:
        path.unlink(missing_ok=True)
        raise


def describe(owner: Owner) -> str:
    """Tell a person who an owner is, where it runs, since when and what it does."""
    parts = [f"{owner.user} on {owner.host}", f"pid {owner.pid}"]
    if owner.job is not None:
        parts.insert(1, str(owner.job))
    since = f"since {owner.since.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"
    text = f"{', '.join(parts)}, {since} ({_duration(owner)}): {owner.command}"
    # somebody else wrote it: no control sequences to the terminal
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def proved_dead(owner: Owner) -> bool:
    """Whether it is proved that a process has ended; False where nobody here can tell.

    The proofs are those of `verdicts`, Slurm's answer included.
    """
    return verdict(owner) == "dead"


def verdict(owner: Owner, *, ask: bool = True) -> Verdict:
    """Judge one owner as `verdicts` does."""
    return verdicts([owner], ask=ask)[0]


def verdicts(owners: Iterable[Owner], *, ask: bool = True) -> list[Verdict]:
    """Judge whether processes live, from what can be seen from this one.

    On the same start of the same host and in the same pid namespace, a process is dead if there is
    no such pid, if the pid has another start time, or if it is a zombie. Another pid namespace is
    as good as another host. An earlier start of this machine is recognised outside containers
    only, see `_restarted`. Where all this does not decide, Slurm is asked for jobs of its own.

    Two clones of one machine that were resumed from one snapshot of its memory have everything in
    common, boot id included; they cannot be told apart, and should share no file system.

    Args:
        owners: whom to judge.
        ask: whether Slurm may be asked, two questions of 5 s each where it hangs.
    """
    here = current("")
    asked = list(owners)
    found = [_seen(owner, here) for owner in asked]
    undecided = [owner for owner, seen in zip(asked, found, strict=True) if seen == "unknown"]
    over = _over(undecided, here) if ask else frozenset()
    return ["dead" if owner in over else seen for owner, seen in zip(asked, found, strict=True)]


def _seen(owner: Owner, here: Owner) -> Verdict:
    if owner.host != here.host or owner.boot_id is None or here.boot_id is None:
        return "unknown"
    if owner.boot_id != here.boot_id:
        return "dead" if _restarted(owner, here) else "unknown"
    if owner.pid_namespace is None or owner.pid_namespace != here.pid_namespace:
        return "unknown"
    return _process(owner, here)


def _restarted(owner: Owner, here: Owner) -> bool:
    """Whether another boot id proves that this machine was started anew since.

    It would not, if the owner ran on another machine of the same name. Containers are often such:
    the name is given, and /etc/machine-id, if any, was baked into their image, on each machine the
    same. So neither side may be in one. Of machines, those of one image (diskless nodes) can have
    one machine id but not one name, and clones that kept both are found out as soon as one of them
    wrote after the other was started.
    """
    started = _boot_time()
    return (
        owner.machine_id is not None
        and owner.machine_id == here.machine_id
        and owner.pid_namespace == here.pid_namespace == _FIRST_PID_NAMESPACE
        and owner.time_namespace == here.time_namespace
        and started is not None
        and owner.since.timestamp() < started
    )


def _process(owner: Owner, here: Owner) -> Verdict:
    """Judge a process of this pid namespace."""
    try:
        # the kernel's own answer: /proc can be mounted so that it hides what others run (hidepid)
        os.kill(owner.pid, 0)
    except ProcessLookupError:
        return "dead"
    except PermissionError:
        pass
    if owner.time_namespace != here.time_namespace or not _proc_is_ours():
        return "unknown"
    stat = _stat(str(owner.pid))
    if stat is None or owner.start_time is None:
        return "unknown"
    # a first thread that ended looks like a zombie while others of the process go on
    ended = stat.state in "ZX" and stat.threads <= 1
    return "dead" if ended or stat.start_time != owner.start_time else "alive"


def _proc_is_ours() -> bool:
    """Whether /proc shows this pid namespace, and not an outer one with the same numbers.

    NSpid lists our number in the namespace of /proc and in each one below, down to our own.
    """
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        return False
    return any(line.startswith("NSpid:") and len(line.split()) == 2 for line in status.splitlines())


def _stat(pid: str) -> _Stat | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    # the second field is the program's name in parentheses, and may hold both of them and spaces
    fields = text.rpartition(")")[2].split()
    return _Stat(state=fields[0], threads=int(fields[17]), start_time=int(fields[19]))


def _namespace(kind: str) -> int | None:
    try:
        return Path(f"/proc/self/ns/{kind}").stat().st_ino
    except OSError:
        return None


def _boot_time() -> int | None:
    """Return when this kernel was started, in seconds since 1970."""
    try:
        lines = Path("/proc/stat").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) for line in lines if line.startswith("btime ")), None)


def _line(path: Path) -> str | None:
    try:
        return path.read_text().strip() or None
    except OSError:
        return None


def _user() -> str:
    # not $USER, which says what it was told
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return f"user {os.getuid()}"


def _job(environ: Mapping[str, str]) -> Job | None:
    if "SLURM_JOB_ID" in environ:
        array = (environ.get("SLURM_ARRAY_JOB_ID"), environ.get("SLURM_ARRAY_TASK_ID"))
        return Job(
            system="slurm",
            id=f"{array[0]}_{array[1]}" if all(array) else environ["SLURM_JOB_ID"],
            cluster=environ.get("SLURM_CLUSTER_NAME"),
            node=environ.get("SLURMD_NODENAME"),
        )
    if "DET_TASK_ID" in environ:
        return Job(
            system="determined",
            id=environ["DET_TASK_ID"],
            cluster=environ.get("DET_CLUSTER_ID"),
            node=environ.get("DET_AGENT_ID"),
        )
    return None


def _over(owners: list[Owner], here: Owner) -> frozenset[Owner]:
    """Ask Slurm which owners' jobs are over, and return these owners.

    A job is asked for once, and nothing more after a question that got no answer.
    """
    asked = [(owner, job) for owner in owners if (job := _ends_with(owner)) is not None]
    if not asked:
        return frozenset()
    over: dict[Job, bool] = {}
    ended: set[Owner] = set()
    with contextlib.suppress(StepError):
        slurm = _slurm()
        for owner, job in asked:
            # Another cluster knows nothing of the job, and may have one of the same number. With
            # PrivateData=jobs, what other users run is told as if it were not there.
            if job.cluster != slurm.cluster or (slurm.private and owner.user != here.user):
                continue
            if job not in over:
                over[job] = _is_over(job)
            if over[job]:
                ended.add(owner)
    return frozenset(ended)


def _ends_with(owner: Owner) -> Job | None:
    """Return the Slurm job that a process is ended with, if Slurm started it where it runs.

    A shell of salloc on a login node has the job's variables, and so has what is started from a
    terminal that once was in a job; both outlive it.
    """
    job = owner.job
    if (
        job is not None
        and job.system == "slurm"
        and _SLURM_JOB.fullmatch(job.id) is not None
        and job.cluster is not None
        and job.node is not None
        and job.node.partition(".")[0] == owner.host.partition(".")[0]
    ):
        return job
    return None


def _slurm() -> _Slurm:
    """Ask which cluster this is.

    Raises:
        StepError: there is no Slurm here, or it does not answer.
    """
    said = dict(_SLURM_CONFIG.findall(_ask_slurm("scontrol", "show", "config")))
    private = said.get("PrivateData", "all").split(",")
    return _Slurm(
        cluster=said.get("ClusterName", ""),
        private=not {"jobs", "all"}.isdisjoint(private),
    )


def _is_over(job: Job) -> bool:
    """Ask whether nothing of a job is left.

    Raises:
        StepError: Slurm does not answer.
    """
    try:
        # --all: partitions can be hidden; --states: else a job on a lost node is not shown
        states = _ask_slurm(
            *("squeue", "--all", "--states=all", "--noheader", "--format=%T", f"--jobs={job.id}")
        )
    except StepError as error:
        if "Invalid job id" in (error.detail or ""):
            return True
        raise
    return all(state.strip() in _OVER for state in states.splitlines())


def _ask_slurm(*command: str) -> str:
    # starting programs takes 10 ms to import, which `envbuild exec` does not have to pay
    from envbuild import process

    settings = {name: os.environ[name] for name in ("SLURM_CONF",) if name in os.environ}
    return process.run(
        command,
        doing="asking Slurm",
        env=process.environment(settings),
        timeout=_SLURM_SECONDS,
    ).stdout


def _duration(owner: Owner) -> str:
    """Tell how long ago a note was made; clocks of hosts differ, so never less than nothing."""
    minutes, seconds = divmod(max(0, int((now() - owner.since).total_seconds())), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    parts = [(days, "d"), (hours, "h"), (minutes, "min"), (seconds, "s")]
    first = next((at for at, (amount, _) in enumerate(parts) if amount), 3)
    return " ".join(f"{amount} {unit}" for amount, unit in parts[first : first + 2])
