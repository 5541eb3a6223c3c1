"""Building a prefix in a process of its own, which sees its staging folder at the final path.

    python -m envbuild.prefix.build JOB RESULT PARENT

A process of its own, since a private mount namespace can be had by a process of one thread only,
and since all that it started dies with it.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from envbuild import durable, process
from envbuild.catalog.environment import Checks, Editable
from envbuild.errors import EnvbuildError, StepError, restored
from envbuild.lock.lockfile import Lock
from envbuild.prefix import aside, checks, install, manifest, receipt
from envbuild.prefix.install import Settings
from envbuild.prefix.interpreter import Interpreter


class Project(msgspec.Struct, frozen=True):
    """A project to install in editable form, with the wheels of its build requirements."""

    editable: Editable
    folder: str
    wheels: tuple[str, ...]


class Job(msgspec.Struct, frozen=True):
    """What to build.

    Attributes:
        name: the environment's name.
        prefix: the final path.
        root: the site's root, out of which nothing may point.
        interpreter: what the prefix stands on.
        lock: what is installed.
        wheelhouse: the folder of its files, all verified.
        projects: what is installed in editable form.
        checks: what the prefix must be able to do.
        settings: how files get there.
        staging: the folder that is to appear at the path; None to build at the path itself.
    """

    name: str
    prefix: str
    root: str
    interpreter: Interpreter
    lock: Lock
    wheelhouse: str
    projects: tuple[Project, ...]
    checks: Checks
    settings: Settings
    staging: str | None = None


class Built(msgspec.Struct, frozen=True):
    """What was built.

    Attributes:
        distributions: what is installed, sorted by name.
        checks: what was checked.
        seconds: what each step took.
        look: see `receipt.look`.
        manifest_sha256: see `manifest.digest`.
    """

    distributions: tuple[receipt.Distribution, ...]
    checks: receipt.Checks
    seconds: dict[str, float]
    look: dict[str, tuple[int, int, int]]
    manifest_sha256: str


class _Result(msgspec.Struct, frozen=True):
    """What the process leaves behind: one of the two."""

    built: Built | None = None
    error: dict[str, str | None] | None = None


def run(job: Job, work: Path, staging: Path | None) -> Built:
    """Build in a process of its own and wait for it.

    Args:
        job: what to build.
        work: a folder for what is needed meanwhile.
        staging: the folder that is to appear at the final path; None to build there.

    Raises:
        EnvbuildError: what went wrong there.
    """
    job = msgspec.structs.replace(
        job,
        settings=msgspec.structs.replace(job.settings, work=str(work)),
        staging=None if staging is None else str(staging),
    )
    described, result = work / "job.json", work / "result.json"
    described.write_bytes(msgspec.json.encode(job))
    process.run(
        [sys.executable, "-m", "envbuild.prefix.build", described, result, str(os.getpid())],
        doing=f"building {job.name}",
        # the caller's own environment: what programs may see of it is chosen where they are started
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )
    told = msgspec.json.decode(result.read_bytes(), type=_Result)
    if told.error is not None:
        raise restored(told.error)
    assert told.built is not None
    return told.built


def build(job: Job) -> Built:
    """Install, then check: all by the final path.

    Raises:
        EnvbuildError: a step failed; what was made stays for the caller to remove.
    """
    prefix, root = Path(job.prefix), Path(job.root)
    clock = _Clock()
    with clock.step("environment"):
        install.make_empty(prefix, job.interpreter, job.name, job.settings)
    with clock.step("install"):
        install.install(prefix, job.lock, Path(job.wheelhouse), job.settings)
    values = install.marker_environment(prefix / "bin" / "python")
    distributions = list(install.distributions(prefix, job.lock, values))
    with clock.step("projects"):
        distributions += [
            install.install_editable(
                prefix,
                Path(project.folder),
                project.editable,
                job.lock,
                [Path(wheel) for wheel in project.wheels],
                root,
                job.settings,
            )
            for project in job.projects
        ]
    done = checks.run(prefix, job.checks, job.name)
    with clock.step("manifest"):
        manifest_sha256 = manifest.digest(prefix)
    return Built(
        distributions=tuple(sorted(distributions, key=lambda one: one.name)),
        checks=done,
        seconds={**clock.seconds, "checks": done.seconds},
        look=receipt.look(prefix, Path(job.interpreter.path)),
        manifest_sha256=manifest_sha256,
    )


class _Clock:
    """Seconds by step."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        begun = time.monotonic()
        yield
        self.seconds[name] = round(time.monotonic() - begun, 3)


def main(described: Path, result: Path, parent: int) -> None:
    """Build what a file describes and leave the outcome in another."""
    process.die_with_parent()
    if os.getppid() != parent:
        sys.exit("the process that asked for this is gone")
    job = msgspec.json.decode(described.read_bytes(), type=Job)
    try:
        if job.staging is not None:
            _appear(Path(job.staging), Path(job.prefix))
        told = _Result(built=build(job))
    except EnvbuildError as error:
        told = _Result(error=error.document())
    except OSError as error:
        told = _Result(error=_os_error(error, job).document())
    durable.write(result, msgspec.json.encode(told))


def _appear(staging: Path, prefix: Path) -> None:
    try:
        aside.appear(staging, prefix)
    except OSError as error:
        raise StepError(
            f"a private mount is not to be had: {error.strerror}", where=prefix
        ) from error


def _os_error(error: OSError, job: Job) -> StepError:
    return StepError(
        f"building {job.name}: {error.strerror or error}", where=error.filename or job.prefix
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
