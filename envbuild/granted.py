"""The CPUs and the memory that this process has really been granted; seldom all of the machine's.

A compiler for each core of the machine takes what other jobs were promised, or is killed: a job of
a cluster and a container have less, and who gave it says so in different places. The least counts.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from operator import itemgetter
from pathlib import Path

import msgspec

# Version 1 says "no limit" by the greatest multiple of the page size below 2**63.
_UNLIMITED = 1 << 62

# Lines of /proc/self: of mountinfo, a hierarchy of cgroups: what of it is mounted, where, and its
# type and options; of cgroup, the controllers of a hierarchy, none for version 2, and the path
_MOUNT = re.compile(r"(?am)^\S+ \S+ \S+ (\S+) (\S+) \S+ (?:\S+ )*- (cgroup2?) \S* (\S+)$")
_OWN = re.compile(r"(?m)^[0-9]+:([^:\n]*):(/.*)$")

# What version 1 says of memory, and version 2: limits, usage, and how the facts of memory.stat
# begin that count the cgroups below too, as the usage does
_V1 = (("memory.limit_in_bytes",), "memory.usage_in_bytes", "total_")
_V2 = (("memory.max", "memory.high"), "memory.current", "")

_Figure = tuple[int, str]  # CPUs or bytes, and what says so


class Granted(msgspec.Struct, frozen=True):
    """What this process may use.

    Attributes:
        cpus: how many CPUs, at least 1.
        cpus_from: what says so, for people.
        memory: how much more memory, in bytes; 0 if nothing says how much.
        memory_from: what says so, for people.
    """

    cpus: int
    cpus_from: str
    memory: int
    memory_from: str


class _Cgroup(msgspec.Struct, frozen=True):
    """A cgroup around this process, of version 1 or 2, by its folder below the root."""

    root: Path
    folder: str
    version: int

    def read(self, name: str) -> str:
        """Return what a setting of it is, nothing if it has none."""
        return _read(self.root, f"{self.folder}/{name}")

    def figure(self, value: int, why: str) -> _Figure:
        """Return a figure that it gives; its name need not be UTF-8, but what is told must be."""
        folder = self.folder.encode(errors="surrogateescape").decode(errors="replace")
        return value, f"the cgroup {folder} ({why})"


def granted(root: Path = Path("/")) -> Granted:
    """Say what CPUs and memory this process may use, and what says so.

    For CPUs the least of the affinity, of the quotas of all cgroups around this process
    (Documentation/admin-guide/cgroup-v2.rst, "cpu.max"; Documentation/scheduler/sched-bwc.rst for
    version 1) and of Slurm's SLURM_CPUS_PER_TASK or, without it, SLURM_CPUS_ON_NODE (sbatch(1)).

    For memory the least of what is available on the machine, of what the cgroups' limits leave
    beside what they use and cannot give back (cgroup-v2.rst, "memory.max", "memory.high";
    Documentation/admin-guide/cgroup-v1/memory.rst) and of Slurm's SLURM_MEM_PER_NODE and
    SLURM_MEM_PER_CPU (sbatch(1)), megabytes that are 2**20 bytes.

    What is missing, cannot be read or makes no sense limits nothing.

    Args:
        root: the root of the file system that has /proc and the cgroups.
    """
    cgroups = list(_cgroups(root))
    first = itemgetter(0)
    # of equals the first is named: what was asked for, rather than what came of it
    affinity = (len(os.sched_getaffinity(0)), "the CPU affinity")
    cpus, cpus_from = min((*_slurm_cpus(), *_quotas(cgroups), affinity), key=first)
    memory, memory_from = min(
        (*_slurm_memory(cpus), *_limits(cgroups), *_available(root)),
        key=first,
        default=(0, "nothing says how much memory there is"),
    )
    return Granted(cpus, cpus_from, memory, memory_from)


def jobs(granted: Granted, memory_per_job: int, *, reserve: int = 1 << 30) -> int:
    """Say how many jobs to run at once: one at least, which may need less than it is thought to.

    Args:
        granted: what this process may use.
        memory_per_job: bytes that a job takes at its peak.
        reserve: bytes for what is no job, such as this process.
    """
    return max(1, min(granted.cpus, (granted.memory - reserve) // memory_per_job))


def _slurm_cpus() -> Iterator[_Figure]:
    for name in ("SLURM_CPUS_PER_TASK", "SLURM_CPUS_ON_NODE"):
        if cpus := _number(os.environ.get(name, "")):
            yield cpus, name
            return


def _slurm_memory(cpus: int) -> Iterator[_Figure]:
    # 0 is how all of a node's memory is asked for
    if node := _number(os.environ.get("SLURM_MEM_PER_NODE", "")):
        yield node << 20, "SLURM_MEM_PER_NODE"
    if each := _number(os.environ.get("SLURM_MEM_PER_CPU", "")):
        yield (each << 20) * cpus, "SLURM_MEM_PER_CPU times the CPUs granted"


def _quotas(cgroups: list[_Cgroup]) -> Iterator[_Figure]:
    for cgroup in cgroups:
        if cgroup.version == 2:
            quota, _, period = cgroup.read("cpu.max").partition(" ")
            why = f"cpu.max {quota} {period}"
        else:
            quota, period = cgroup.read("cpu.cfs_quota_us"), cgroup.read("cpu.cfs_period_us")
            why = f"cpu.cfs_quota_us {quota}, cpu.cfs_period_us {period}"
        if (time := _number(quota)) and (of := _number(period)):
            yield cgroup.figure(max(1, time // of), why)


def _limits(cgroups: list[_Cgroup]) -> Iterator[_Figure]:
    for cgroup in cgroups:
        names, usage, total = _V2 if cgroup.version == 2 else _V1
        settings = ((_number(cgroup.read(name)), name) for name in names)
        limits = [(limit, name) for limit, name in settings if limit is not None]
        limit, name = min(limits, default=(_UNLIMITED, ""))
        if limit >= _UNLIMITED:
            continue
        cache = rf"^{total}(?:in)?active_file ([0-9]{{1,19}})$"
        reclaimable = sum(map(int, re.findall(cache, cgroup.read("memory.stat"), re.MULTILINE)))
        # not below 0: the two are not of one moment
        used = max(0, (_number(cgroup.read(usage)) or 0) - reclaimable)
        yield cgroup.figure(max(0, limit - used), f"{name} {limit}, {used} in use")


def _available(root: Path) -> Iterator[_Figure]:
    found = re.search(r"^MemAvailable: +(\S+) kB$", _read(root, "/proc/meminfo"), re.MULTILINE)
    if found and (kilobytes := _number(found[1])) is not None:
        yield kilobytes << 10, "what is available on the machine"


def _cgroups(root: Path) -> Iterator[_Cgroup]:
    """Yield the cgroups around this process that can be seen, from its own up (cgroups(7))."""
    mounts = [
        (_unescaped(top), _unescaped(point), version, frozenset(options.split(",")))
        for top, point, version, options in _MOUNT.findall(_read(root, "/proc/self/mountinfo"))
    ]
    for listed, path in _OWN.findall(_read(root, "/proc/self/cgroup")):
        controllers = set(filter(None, listed.split(",")))
        if controllers and controllers.isdisjoint(("cpu", "memory")):
            continue
        kind = "cgroup" if controllers else "cgroup2"
        seen = [mount[:2] for mount in mounts if mount[2] == kind and controllers <= mount[3]]
        own = [(point, below) for top, point in seen if (below := _below(path, top)) is not None]
        # what a container sees may be mounted from a place that is nowhere around its cgroup
        for point, below in own or [(point, "") for _, point in seen]:
            folder = point + below
            while len(folder) >= len(point):
                yield _Cgroup(root, folder, 1 if controllers else 2)
                folder = folder.rpartition("/")[0]


def _below(path: str, top: str) -> str | None:
    """Return where a cgroup is below the one that is mounted, or None if it is not there."""
    path, top = path.rstrip("/"), top.rstrip("/")
    below = path.removeprefix(top)
    there = f"{path}/".startswith(f"{top}/") and ".." not in below.split("/")
    return below if there else None


def _unescaped(field: str) -> str:
    """Return a path of mountinfo: spaces in it are written as \\040 (proc_pid_mountinfo(5))."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), field)


def _number(text: str) -> int | None:
    """Return a whole number that is not below 0; what is no such number is none."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 20 else None


def _read(root: Path, path: str) -> str:
    try:
        return os.fsdecode((root / path.lstrip("/")).read_bytes()).rstrip("\n")
    except (OSError, ValueError):  # a name that holds a NUL
        return ""
