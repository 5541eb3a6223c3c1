"""What a process has been granted, by files as real systems have them, and by a real cgroup."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from envbuild.granted import Granted, granted, jobs

ROOT = Path(__file__).parents[1]
MIB, GIB = 1 << 20, 1 << 30

AFFINITY = len(os.sched_getaffinity(0))
MEMINFO = """\
MemTotal:       65536000 kB
MemFree:         1000000 kB
MemAvailable:   33554432 kB
Buffers:          500000 kB
"""
MACHINE = (32 * GIB, "what is available on the machine")

# What a system mounts besides, and how it mounts one hierarchy or several
MOUNTS = """\
22 27 0:21 / /proc rw,nosuid,nodev,noexec,relatime shared:14 - proc proc rw
23 27 0:22 / /sys rw,nosuid,nodev,noexec,relatime shared:7 - sysfs sysfs rw
27 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw,discard
"""
UNIFIED = (
    MOUNTS + "31 23 0:26 / /sys/fs/cgroup rw,nosuid,nodev,noexec,relatime shared:9"
    " - cgroup2 cgroup2 rw,nsdelegate,memory_recursiveprot\n"
)
LEGACY = (
    MOUNTS
    + """\
31 23 0:28 / /sys/fs/cgroup ro,nosuid,nodev,noexec shared:9 - tmpfs tmpfs ro,mode=755
32 31 0:29 / /sys/fs/cgroup/systemd rw,nosuid shared:10 - cgroup cgroup rw,xattr,name=systemd
33 31 0:30 / /sys/fs/cgroup/cpu,cpuacct rw,nosuid shared:11 - cgroup cgroup rw,cpu,cpuacct
34 31 0:31 / /sys/fs/cgroup/cpuset rw,nosuid shared:12 - cgroup cgroup rw,cpuset
35 31 0:32 / /sys/fs/cgroup/memory rw,nosuid shared:13 - cgroup cgroup rw,memory
"""
)
V1_STAT = """\
cache {own}
inactive_file {own}
active_file {own}
unevictable 0
hierarchical_memory_limit 9223372036854771712
total_cache 3221225472
total_inactive_anon 1073741824
total_inactive_file {inactive}
total_active_file {active}
total_unevictable 0
"""
V2_STAT = """\
anon 1073741824
file 3221225472
file_mapped 27516928
inactive_anon 1073741824
active_anon 8192
inactive_file {inactive}
active_file {active}
unevictable 0
"""

# Prints what it has been granted: before it is in the cgroups, in them, with 64 MiB more in memory,
# and with 64 MiB of a file in the page cache besides
CHILD = """
import os, sys
from pathlib import Path
import msgspec
from envbuild.granted import granted
if "AFFINITY" in os.environ:
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:1])
found = [granted()]
if sys.argv[1:]:
    *folders, file = sys.argv[1:]
    for folder in folders:
        Path(folder, "cgroup.procs").write_text("0")
    found.append(granted())
    kept = os.urandom(1 << 20) * 64
    found.append(granted())
    with open(file, "wb") as written:
        written.write(kept)
        written.flush()
        os.fsync(written.fileno())
    found.append(granted())
sys.stdout.buffer.write(msgspec.json.encode(found))
"""


@pytest.fixture(autouse=True)
def no_slurm(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("SLURM_"):
            monkeypatch.delenv(name)


def tree(root: Path, mountinfo: str, cgroup: str) -> Path:
    """Lay out a file system that has /proc and no cgroups yet."""
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/meminfo").write_text(MEMINFO)
    (root / "proc/self/mountinfo").write_text(mountinfo, errors="surrogateescape")
    (root / "proc/self/cgroup").write_text(cgroup, errors="surrogateescape")
    return root


def settle(root: Path, folder: str, **values: object) -> None:
    """Give a cgroup its settings; the first _ of their names is a point: cpu_max is cpu.max."""
    place = root / folder.lstrip("/")
    place.mkdir(parents=True, exist_ok=True)
    for name, value in values.items():
        (place / name.replace("_", ".", 1)).write_text(f"{value}\n")


def cpus(found: Granted) -> tuple[int, str]:
    return found.cpus, found.cpus_from


def memory(found: Granted) -> tuple[int, str]:
    return found.memory, found.memory_from


def test_the_machine_alone(tmp_path: Path) -> None:
    root = tree(tmp_path, UNIFIED, "0::/init.scope\n")
    settle(root, "/sys/fs/cgroup/init.scope", cpu_max="max 100000", memory_max="max")
    assert granted(root) == Granted(AFFINITY, "the CPU affinity", *MACHINE)


def test_nothing_at_all(tmp_path: Path) -> None:
    found = granted(tmp_path)
    assert found == Granted(
        AFFINITY, "the CPU affinity", 0, "nothing says how much memory there is"
    )
    assert jobs(found, GIB) == 1


def test_no_limit_is_no_figure(tmp_path: Path) -> None:
    root = tree(tmp_path, LEGACY, "11:memory:/\n")
    (root / "proc/meminfo").write_text("MemTotal:       65536000 kB\n")
    for none in (9223372036854771712, 9223372036854710272):  # with pages of 4 and 64 KiB
        settle(root, "/sys/fs/cgroup/memory", memory_limit_in_bytes=none)
        assert memory(granted(root)) == (0, "nothing says how much memory there is")


def test_version_2(tmp_path: Path) -> None:
    """A step of Slurm: its job is limited, above the cgroup of the process and below the root."""
    path = "/system.slice/slurmstepd.scope/job_4/step_0/user/task_0"
    root = tree(tmp_path, UNIFIED, f"0::{path}\n")
    own = f"/sys/fs/cgroup{path}"
    job = "/sys/fs/cgroup/system.slice/slurmstepd.scope/job_4"
    settle(root, own, cpu_max="max 100000", memory_max="max", memory_high="max", memory_current=5)
    settle(
        root,
        job,
        cpu_max="150000 100000",
        memory_max=8 * GIB,
        memory_high="max",
        memory_current=5 * GIB,
        memory_stat=V2_STAT.format(inactive=2 * GIB, active=1 * GIB),
    )
    settle(root, "/sys/fs/cgroup/system.slice", cpu_max="9000000 100000", memory_max=64 * GIB)
    found = granted(root)
    assert cpus(found) == (1, f"the cgroup {job} (cpu.max 150000 100000)")
    assert memory(found) == (
        6 * GIB,
        f"the cgroup {job} (memory.max 8589934592, 2147483648 in use)",
    )


def test_version_2_throttles_before_it_kills(tmp_path: Path) -> None:
    root = tree(tmp_path, UNIFIED, "0::/user.slice\n")
    folder = "/sys/fs/cgroup/user.slice"
    settle(root, folder, memory_max=8 * GIB, memory_high=6 * GIB, memory_current=1 * GIB)
    assert memory(granted(root)) == (
        5 * GIB,
        f"the cgroup {folder} (memory.high 6442450944, 1073741824 in use)",
    )


@pytest.mark.parametrize("path", ["/", "/../../session-2.scope", "/docker/2f1c (deleted)"])
def test_version_2_in_a_container(tmp_path: Path, path: str) -> None:
    """In a cgroup namespace of its own, and where the path is not to be found below the mount."""
    root = tree(tmp_path, UNIFIED, f"0::{path}\n")
    settle(root, "/sys/fs/cgroup", cpu_max="50000 100000", memory_max=2 * GIB, memory_current=GIB)
    # which is not in the container's file system
    settle(root, "/sys/session-2.scope", cpu_max="1000 100000", memory_max=1)
    assert granted(root) == Granted(
        1,
        "the cgroup /sys/fs/cgroup (cpu.max 50000 100000)",
        1 * GIB,
        "the cgroup /sys/fs/cgroup (memory.max 2147483648, 1073741824 in use)",
    )


def test_version_1(tmp_path: Path) -> None:
    """A job of Slurm on RHEL 8: memory is limited, and other hierarchies say nothing of it."""
    path = "/slurm/uid_1000/job_7/step_batch/task_0"
    own = f"11:memory:{path}\n5:cpu,cpuacct:/system.slice/slurmd.service\n4:cpuset:/slurm/job_7\n"
    root = tree(tmp_path, LEGACY, f"{own}1:name=systemd:/system.slice/slurmd.service\n")
    job = "/sys/fs/cgroup/memory/slurm/uid_1000/job_7"
    settle(
        root,
        job,
        memory_limit_in_bytes=8 * GIB,
        memory_usage_in_bytes=5 * GIB,
        memory_stat=V1_STAT.format(own=4096, inactive=2 * GIB, active=1 * GIB),
    )
    none = 9223372036854771712
    for folder in (f"/sys/fs/cgroup/memory{path}", "/sys/fs/cgroup/memory"):
        settle(root, folder, memory_limit_in_bytes=none, memory_usage_in_bytes=60 * GIB)
    # one of the same name in another hierarchy is another's
    settle(root, "/sys/fs/cgroup/memory/system.slice/slurmd.service", memory_limit_in_bytes=MIB)
    service = "/sys/fs/cgroup/cpu,cpuacct/system.slice/slurmd.service"
    settle(root, service, cpu_cfs_quota_us=-1, cpu_cfs_period_us=100000)
    slice_ = "/sys/fs/cgroup/cpu,cpuacct/system.slice"
    settle(root, slice_, cpu_cfs_quota_us=199999, cpu_cfs_period_us=100000)
    assert granted(root) == Granted(
        1,
        f"the cgroup {slice_} (cpu.cfs_quota_us 199999, cpu.cfs_period_us 100000)",
        6 * GIB,
        f"the cgroup {job} (memory.limit_in_bytes 8589934592, 2147483648 in use)",
    )


@pytest.mark.parametrize(
    ("top", "path"),
    [
        ("/docker/2f1c", "/docker/2f1c"),  # the container's own, mounted as if it were the root
        ("/docker/2f1c", "/docker/2f1c/init.scope"),
        ("/kubepods/pod1/2f1c", "/"),  # mounted by one who sees more than the container does
        ("/docker/2f1", "/docker/2f1c"),  # no cgroup above another, for all its name
        ("/..", "/"),
    ],
)
def test_version_1_in_a_container(tmp_path: Path, top: str, path: str) -> None:
    mountinfo = LEGACY.replace(" / /sys/fs/cgroup/", f" {top} /sys/fs/cgroup/")
    root = tree(tmp_path, mountinfo, f"11:memory:{path}\n5:cpu,cpuacct:{path}\n0::{path}\n")
    memories, processors = "/sys/fs/cgroup/memory", "/sys/fs/cgroup/cpu,cpuacct"
    settle(root, memories, memory_limit_in_bytes=4 * GIB, memory_usage_in_bytes=1 * GIB)
    settle(root, processors, cpu_cfs_quota_us=20000, cpu_cfs_period_us=100000)
    assert granted(root) == Granted(
        1,
        f"the cgroup {processors} (cpu.cfs_quota_us 20000, cpu.cfs_period_us 100000)",
        3 * GIB,
        f"the cgroup {memories} (memory.limit_in_bytes 4294967296, 1073741824 in use)",
    )


def test_others_that_are_mounted_do_not_count(tmp_path: Path) -> None:
    other = "40 27 0:26 /docker/77aa /var/lib/other rw,relatime - cgroup2 cgroup rw\n"
    root = tree(tmp_path, UNIFIED + other, "0::/docker/2f1c\n")
    settle(root, "/var/lib/other", cpu_max="1000 100000", memory_max=GIB)
    settle(root, "/sys/fs/cgroup/docker/77aa", cpu_max="1000 100000", memory_max=GIB)
    assert granted(root) == Granted(AFFINITY, "the CPU affinity", *MACHINE)


def test_both_versions(tmp_path: Path) -> None:
    """Hybrid: controllers in version 1, and the unified hierarchy without them."""
    unified = "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"
    own = "4:memory:/work\n1:cpu,cpuacct:/\n0::/work\n"
    root = tree(tmp_path, LEGACY + unified, own)
    settle(root, "/sys/fs/cgroup/unified/work", cpu_pressure="some avg10=0.00")
    folder = "/sys/fs/cgroup/memory/work"
    settle(root, folder, memory_limit_in_bytes=3 * GIB, memory_usage_in_bytes=GIB)
    found = granted(root)
    assert cpus(found) == (AFFINITY, "the CPU affinity")
    assert memory(found) == (
        2 * GIB,
        f"the cgroup {folder} (memory.limit_in_bytes 3221225472, 1073741824 in use)",
    )


@pytest.mark.parametrize(
    ("name", "written", "told"),
    [
        ("a b\\c", "a\\040b\\134c", "a b\\c"),
        ("a:b\u00a0c", "a:b\u00a0c", "a:b\u00a0c"),
        ("\udcff", "\udcff", "\N{REPLACEMENT CHARACTER}"),
    ],
)
def test_names(tmp_path: Path, name: str, written: str, told: str) -> None:
    mountinfo = UNIFIED.replace("/sys/fs/cgroup", f"/{written}")
    root = tree(tmp_path, mountinfo, f"0::/{name}/leaf\n")
    settle(root, f"/{name}/{name}", cpu_max="100 100", memory_max=MIB)
    assert granted(root) == Granted(
        1,
        f"the cgroup /{told}/{told} (cpu.max 100 100)",
        MIB,
        f"the cgroup /{told}/{told} (memory.max 1048576, 0 in use)",
    )


@given(
    quota=st.integers(1000, 10**7), period=st.integers(1000, 10**6), version=st.sampled_from("12")
)
@settings(max_examples=50, deadline=None)
def test_quotas(quota: int, period: int, version: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        if version == "2":
            root = tree(Path(folder), UNIFIED, "0::/\n")
            settle(root, "/sys/fs/cgroup", cpu_max=f"{quota} {period}")
        else:
            root = tree(Path(folder), LEGACY, "5:cpu,cpuacct:/\n")
            cpu = "/sys/fs/cgroup/cpu,cpuacct"
            settle(root, cpu, cpu_cfs_quota_us=quota, cpu_cfs_period_us=period)
        assert granted(root).cpus == max(1, min(AFFINITY, quota // period))


@given(st.integers(0, 1 << 61), st.integers(0, 1 << 61), st.integers(0, 1 << 61))
@settings(max_examples=50, deadline=None)
def test_what_can_be_reclaimed(limit: int, usage: int, cache: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = tree(Path(folder), UNIFIED, "0::/\n")
        stat = V2_STAT.format(inactive=cache // 3, active=cache - cache // 3)
        place = "/sys/fs/cgroup"
        settle(root, place, memory_max=limit, memory_current=usage, memory_stat=stat)
        left = max(0, limit - max(0, usage - cache))
        assert granted(root).memory == min(left, 32 * GIB)


@given(st.lists(st.text(st.characters(codec="utf-8")), min_size=6, max_size=6))
@example(["", "0::/a\0b", "", "", "", ""])
@settings(max_examples=50, deadline=None)
def test_whatever_the_files_hold(texts: list[str]) -> None:
    mountinfo, cgroup, meminfo, maximum, quota, stat = texts
    with tempfile.TemporaryDirectory() as folder:
        root = tree(Path(folder), f"{mountinfo}\n{UNIFIED}", f"{cgroup}\n0::/a\n")
        (root / "proc/meminfo").write_text(meminfo)
        settle(root, "/sys/fs/cgroup/a", cpu_max=quota, memory_max=maximum, memory_stat=stat)
        found = granted(root)
        assert 1 <= found.cpus <= AFFINITY
        assert found.memory >= 0


SLURM = "SLURM_CPUS_PER_TASK", "SLURM_CPUS_ON_NODE", "SLURM_MEM_PER_NODE", "SLURM_MEM_PER_CPU"
EACH = "SLURM_MEM_PER_CPU times the CPUs granted"
BAD = ["", "0", "-1", "1.5", "1K", "4(x2)", "\u0661", "9" * 5000]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (("1", "64", "4096", ""), (1, SLURM[0], 4 * GIB, SLURM[2])),
        (("", "1", "", "2048"), (1, SLURM[1], 2 * GIB, EACH)),
        (("1", "", "4096", "2048"), (1, SLURM[0], 2 * GIB, EACH)),
        (("100000", "1", "", ""), (AFFINITY, "the CPU affinity", *MACHINE)),
        (("x", "1", "", ""), (1, SLURM[1], *MACHINE)),
        (("", "", "1024000", ""), (AFFINITY, "the CPU affinity", *MACHINE)),
        (
            ("", "", "", "1024"),
            (AFFINITY, "the CPU affinity", *min(MACHINE, (AFFINITY * GIB, EACH))),
        ),
        *(((bad,) * 4, (AFFINITY, "the CPU affinity", *MACHINE)) for bad in BAD),
    ],
)
def test_slurm(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    values: tuple[str, ...],
    expected: tuple[int, str, int, str],
) -> None:
    for name, value in zip(SLURM, values, strict=True):
        monkeypatch.setenv(name, value)
    assert granted(tree(tmp_path, UNIFIED, "0::/\n")) == Granted(*expected)


@pytest.mark.parametrize(
    ("cpus", "memory", "each", "reserve", "expected"),
    [
        (8, 49 * GIB, 6 * GIB, GIB, 8),
        (8, 49 * GIB - 1, 6 * GIB, GIB, 7),
        (2, 49 * GIB, 6 * GIB, GIB, 2),
        (8, 13 * GIB, 6 * GIB, GIB, 2),
        (8, 12 * GIB, 6 * GIB, 0, 2),
        (8, 5 * GIB, 6 * GIB, GIB, 1),
        (8, 0, 6 * GIB, GIB, 1),
    ],
)
def test_jobs(cpus: int, memory: int, each: int, reserve: int, expected: int) -> None:
    have = Granted(cpus, "", memory, "")
    assert jobs(have, each, reserve=reserve) == expected
    if reserve == GIB:
        assert jobs(have, each) == expected


def child(*arguments: str | Path, **variables: str) -> list[Granted]:
    done = subprocess.run(
        [sys.executable, "-c", CHILD, *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT), **variables},
        stdout=subprocess.PIPE,
        timeout=120,
        check=True,
    )
    return msgspec.json.decode(done.stdout, type=list[Granted])


def test_the_affinity() -> None:
    (found,) = child(AFFINITY="1")
    assert cpus(found) == (1, "the CPU affinity")


@contextmanager
def real_cgroups(limit: int, quota: int, period: int) -> Iterator[tuple[list[Path], str, str]]:
    """Make a cgroup for each thing that is limited; give them, and what is to be said of both."""
    top, name = Path("/sys/fs/cgroup"), f"envbuild-test-{os.getpid()}"
    if (top / "cgroup.controllers").exists():
        processor = memories = top / name
        limits = {memories / "memory.max": limit, processor / "cpu.max": f"{quota} {period}"}
        told = f"cpu.max {quota} {period}", f"memory.max {limit}, "
    else:
        processor, memories = (top / "cpu").resolve() / name, top / "memory" / name
        limits = {
            memories / "memory.limit_in_bytes": limit,
            processor / "cpu.cfs_period_us": period,
            processor / "cpu.cfs_quota_us": quota,
        }
        told = (
            f"cpu.cfs_quota_us {quota}, cpu.cfs_period_us {period}",
            f"memory.limit_in_bytes {limit}, ",
        )
    folders = sorted({processor, memories})
    try:
        try:
            for folder in folders:
                folder.mkdir()
            for setting, value in limits.items():
                setting.write_text(str(value))
        except OSError as error:
            # no program that could be installed: containers have none for good
            pytest.skip(f"cgroups cannot be made here: {error}")
        yield folders, f"the cgroup {processor} ({told[0]})", f"the cgroup {memories} ({told[1]}"
    finally:
        for folder in folders:
            if folder.exists():
                folder.rmdir()


def test_a_real_cgroup() -> None:
    # what is written there goes to a disk, and not to a tmpfs, which cannot be reclaimed
    with (
        real_cgroups(limit=512 * MIB, quota=150000, period=100000) as (
            folders,
            processor,
            memories,
        ),
        tempfile.TemporaryDirectory(dir="/var/tmp") as scratch,
    ):
        outside, inside, filled, cached = child(*folders, Path(scratch, "file"))
    assert outside.cpus_from != processor
    assert not outside.memory_from.startswith(memories)
    for found in (inside, filled, cached):
        assert cpus(found) == (1, processor)
        assert found.memory_from.startswith(memories)
    assert 0 <= 512 * MIB - inside.memory < 32 * MIB
    assert abs(inside.memory - filled.memory - 64 * MIB) < 16 * MIB
    assert abs(filled.memory - cached.memory) < 16 * MIB
