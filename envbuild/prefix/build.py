"""Building a prefix in a process of its own, which sees its staging folder at the final path.

    python -m envbuild.prefix.build JOB RESULT PARENT

A process of its own, since a private mount namespace can be had by a process of one thread only,
and since all that it started dies with it.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec
from packaging.utils import canonicalize_name

from envbuild import durable, process
from envbuild.catalog.environment import Checks, Editable
from envbuild.errors import EnvbuildError, StepError, restored
from envbuild.findings import Finding, Ignored, chosen, failed
from envbuild.lock.lockfile import Lock
from envbuild.prefix import aside, checks, contents, install, receipt
from envbuild.prefix.install import Settings
from envbuild.prefix.interpreter import Interpreter
from envbuild.prefix.refused import Refused
from envbuild.relocation import audit
from envbuild.relocation.subject import Distribution, Subject


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
        subject: what the prefix is held to.
        ignored: what the rules find and does not count.
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
    subject: Subject
    ignored: tuple[Ignored, ...]
    settings: Settings
    staging: str | None = None


class Built(msgspec.Struct, frozen=True):
    """What was built.

    Attributes:
        distributions: what is installed, sorted by name.
        audit: what the relocation rules said of it.
        checks: what was checked.
        seconds: what each step took.
        look: see `receipt.look`.
        manifest_sha256: see `relocation.audit.manifest`.
        written: files that come from no wheel as they are.
        modes: permissions of files that have others than 0644.
    """

    distributions: tuple[receipt.Distribution, ...]
    audit: receipt.Audit
    checks: receipt.Checks
    seconds: dict[str, float]
    look: dict[str, tuple[int, int, int]]
    manifest_sha256: str
    written: dict[str, str]
    modes: dict[str, int]


class _Result(msgspec.Struct, frozen=True):
    """What the process leaves behind: one of the three."""

    built: Built | None = None
    refused: tuple[Finding, ...] | None = None
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
    if told.refused is not None:
        raise Refused(job.name, told.refused)
    assert told.built is not None
    return told.built


def build(job: Job) -> Built:
    """Install, hold it to the rules, then check what it can do: all by the final path.

    Its code is not run before the rules have found every file to be the wheel's.

    Raises:
        Refused: the rules found errors.
        EnvbuildError: a step failed; what was made stays for the caller to remove.
    """
    prefix, root = Path(job.prefix), Path(job.root)
    clock = _Clock()
    with clock.step("environment"):
        install.make_empty(prefix, job.interpreter, job.name, job.settings)
    with clock.step("install"):
        install.install(prefix, job.lock, Path(job.wheelhouse), job.settings)
    version = job.interpreter.version
    wheels = contents.distributions(job.lock, version)
    with clock.step("projects"):
        projects = [
            install.install_editable(
                prefix,
                Path(project.folder),
                project.editable,
                job.lock,
                [Path(wheel) for wheel in project.wheels],
                root,
                job.settings,
                version,
            )
            for project in job.projects
        ]
    with clock.step("audit"):
        subject = _subject(job, wheels, projects)
        found = _audited(subject, job)
    done = checks.run(prefix, job.checks, job.name)
    with clock.step("checked again"):
        if audit.state(job.prefix) != found.state:
            found = _audited(subject, job)  # a check wrote into the prefix
    return Built(
        distributions=tuple(sorted([*wheels, *projects], key=lambda one: one.name)),
        audit=receipt.Audit(
            files=found.files,
            size=found.size,
            findings=found.findings,
            notes=found.notes,
            seconds=clock.seconds["audit"],
        ),
        checks=done,
        seconds={**clock.seconds, "checks": done.seconds},
        look=receipt.look(prefix, Path(job.interpreter.path)),
        manifest_sha256=found.manifest_sha256,
        written=found.written,
        modes=found.modes,
    )


def _subject(
    job: Job, wheels: Sequence[receipt.Distribution], projects: Sequence[receipt.Distribution]
) -> Subject:
    held = contents.contents(
        wheels,
        Path(job.wheelhouse),
        minor=".".join(job.interpreter.version.split(".")[:2]),
        own=frozenset(job.lock.built),
    )
    held = contents.with_projects(
        held,
        Path(job.prefix),
        [
            Distribution(str(canonicalize_name(one.name)), one.version, folder=one.editable)
            for one in projects
        ],
    )
    return msgspec.structs.replace(job.subject, contents=held)


def _audited(subject: Subject, job: Job) -> audit.Audit:
    found = audit.audit(subject, with_state=True)
    counted = chosen(found.findings, (), job.ignored)
    if failed(counted.findings):
        raise Refused(job.name, counted.findings)
    passed = (
        f"{one.where}: {one.code} is passed over: {reason}" for one, reason in counted.suppressed
    )
    return msgspec.structs.replace(found, findings=counted.findings, notes=(*found.notes, *passed))


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
    except Refused as refused:
        told = _Result(refused=refused.findings)
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
