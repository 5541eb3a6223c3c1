"""A build's place: the machine's own files, its own folder at one path everywhere, and no network.

    python -m envbuild.sourcebuild.sandbox JOB PARENT

Paths get into what is compiled: a source's path into the names of its symbols, a header's into its
messages. In a private mount namespace the build's folder stands at `HERE` whatever it is outside,
so that builds in two folders give the same bytes. The build has a network namespace of its own
without any device, and a process namespace, so that nothing that it started outlives it.

A process of its own, since namespaces can be had by a process of one thread only, and since the
mounts go away with it.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from envbuild import namespaces, process
from envbuild.errors import StepError

# Where a build stands in its own namespace: below the root, where no system has a folder so named
HERE = "/envbuild"
_REFUSED = 125


class Place(msgspec.Struct, frozen=True):
    """A build's folder, and how it is seen by the build.

    Attributes:
        folder: outside.
        binds: folders and files outside that are to stand in it, by their names there.
        why: why there are no private namespaces; None where there are.
    """

    folder: str
    binds: dict[str, str]
    why: str | None = None

    @property
    def here(self) -> str:
        """The path by which the build sees the folder."""
        return HERE if self.why is None else self.folder

    def lay_out(self) -> None:
        """Make the folders and links that binding needs.

        Raises:
            OSError: it cannot be written.
        """
        folder = Path(self.folder)
        folder.mkdir(parents=True, exist_ok=True)
        for name, source in self.binds.items():
            target = folder / name
            if self.why is not None:
                if target.is_symlink():
                    target.unlink()
                elif target.exists():
                    target.rmdir()  # of a run that had namespaces
                target.symlink_to(source)
            else:
                target.mkdir(exist_ok=True)


class _Job(msgspec.Struct, frozen=True):
    place: Place
    root: str
    command: tuple[str, ...]
    variables: dict[str, str]
    cwd: str
    output: str


def run(
    place: Place,
    command: Sequence[str],
    *,
    doing: str,
    variables: Mapping[str, str],
    cwd: str,
    output: Path,
) -> None:
    """Run a program in a build's place, its output added to a file.

    Args:
        place: where; `Place.lay_out` was called.
        command: the program and its arguments, by the paths inside.
        doing: what it is run for: the first words of a failure.
        variables: its whole environment.
        cwd: the folder to run in, as it is seen inside.
        output: the file.

    Raises:
        StepError: it failed; what it said is in the file.
    """
    with tempfile.TemporaryDirectory(prefix="envbuild-sandbox-") as folder:
        root = Path(folder, "root")
        root.mkdir()
        job = _Job(place, str(root), tuple(command), dict(variables), cwd, str(output))
        described = Path(folder, "job.json")
        described.write_bytes(msgspec.json.encode(job))
        process.run(
            [sys.executable, "-m", "envbuild.sourcebuild.sandbox", described, str(os.getpid())],
            doing=doing,
            env={**process.environment(), "PYTHONPATH": str(Path(__file__).parents[2])},
        )


def refused() -> str | None:
    """Say why there are no private namespaces here; None if there are."""
    with tempfile.TemporaryDirectory(prefix="envbuild-probe-") as folder:
        place = Place(f"{folder}/build", {"bound": folder})
        place.lay_out()
        try:
            run(
                place,
                ["/bin/sh", "-c", f"test -d {HERE}/bound/build"],
                doing="trying private namespaces",
                variables={},
                cwd=HERE,
                output=Path(folder, "output"),
            )
        except StepError as error:
            return (error.detail or error.what).strip().splitlines()[-1]
    return None


def _enter(job: _Job) -> None:
    """Let the rest of this process and its children be in the place.

    Raises:
        OSError: namespaces are not to be had, or a mount was refused.
    """
    namespaces.leave(namespaces.MOUNTS | namespaces.NETWORK | namespaces.PROCESSES)
    folder, root = Path(job.place.folder), Path(job.root)
    for name, source in job.place.binds.items():
        namespaces.bind(source, folder / name, deep=True)
    namespaces.empty(root)
    for entry in os.scandir("/"):
        place = root / entry.name
        if entry.is_symlink():
            place.symlink_to(Path(entry.path).readlink())
        elif entry.is_dir():
            place.mkdir()
            namespaces.bind(entry.path, place, deep=True)
    inside = root / HERE[1:]
    inside.mkdir(exist_ok=True)
    namespaces.bind(folder, inside, deep=True)
    os.chroot(root)


def _main(described: Path, parent: int) -> int:
    process.die_with_parent()
    if os.getppid() != parent:
        return _REFUSED  # the process that asked for this is gone
    job = msgspec.json.decode(described.read_bytes(), type=_Job)
    output = os.open(job.output, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    if job.place.why is None:
        try:
            _enter(job)
        except OSError as error:
            sys.stderr.write(f"{error.strerror}\n")
            return _REFUSED
    alive, hold = os.pipe()
    child = os.fork()
    if child == 0:
        _become(job, alive, hold, output)
    os.close(alive)
    os.write(hold, b"!")
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _become(job: _Job, alive: int, hold: int, output: int) -> None:
    """Turn this process into the program, if its parent is still there to die with."""
    os.close(hold)
    process.die_with_parent()
    if not os.read(alive, 1):
        os._exit(_REFUSED)
    os.chdir(job.cwd)
    null = os.open("/dev/null", os.O_RDONLY)
    for descriptor, standard in ((null, 0), (output, 1), (output, 2)):
        os.dup2(descriptor, standard)
    try:
        os.execve(job.command[0], job.command, job.variables)
    except OSError as error:
        os.write(2, f"{job.command[0]}: {error.strerror}\n".encode())
        os._exit(_REFUSED)


if __name__ == "__main__":
    status = _main(Path(sys.argv[1]), int(sys.argv[2]))
    sys.exit(status if status >= 0 else 128 - status)
