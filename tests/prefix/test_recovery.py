"""The real command, killed, raced and ended: old or new, whole, and nothing lost."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from envbuild.catalog.project import Project
from envbuild.prefix.transaction import STEPS
from tests import manifest, projects, wheels
from tests.conftest import Envbuild
from tests.servers import SimpleIndex

HERE = Path(__file__).parents[2]
TOOL = "def main():\n    import alpha, late\n    print(alpha.VERSION, late.VERSION)\n"
CHECKS = '[checks]\nimports = ["alpha"]\ncommands = [["tool"]]\n'


@pytest.fixture
def project(index: SimpleIndex, tmp_path: Path, envbuild: Envbuild) -> Project:
    """A project whose environment is built as version 1, and locked as version 2."""
    for version in ("1", "2"):
        source = f"VERSION = {version}\n"
        wheels.make_wheel(index.folder, "alpha", version, files={"alpha.py": source})
        wheels.make_wheel(index.folder, "late", version, files={"late.py": source})
        wheels.make_wheel(
            index.folder,
            "tool",
            version,
            files={"tool.py": TOOL},
            requires=[f"alpha=={version}", f"late=={version}"],
            entry_points="[console_scripts]\ntool = tool:main\n",
        )
    folder = tmp_path / "project"
    made = projects.project(
        folder,
        {"toy": projects.environment("tool==1", extra=CHECKS)},
        {"local": projects.LOCAL},
    )
    assert envbuild("lock", cwd=folder).code == 0
    assert envbuild("create", cwd=folder).code == 0
    made.environment_file("toy").write_text(projects.environment("tool==2", extra=CHECKS))
    assert envbuild("lock", cwd=folder).code == 0
    assert envbuild("fetch", "--no-interpreters", cwd=folder).code == 0
    return made


def bookkeeping(project: Project) -> Path:
    return project.folder / ".envs" / ".envbuild"


def start(project: Project, *arguments: str, **env: str) -> subprocess.Popen[str]:
    """Start the command and go on."""
    return subprocess.Popen(
        [sys.executable, "-m", "envbuild", *arguments],
        cwd=project.folder,
        env={**os.environ, "PYTHONPATH": str(HERE), **env},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def version(project: Project) -> str:
    """Run the tool of the prefix, and return which environment it found."""
    tool = project.folder / ".envs" / "toy" / "bin" / "tool"
    done = subprocess.run([tool], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def commands(word: str) -> list[bytes]:
    """Return the command lines of processes that hold a word."""
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            line = file.read_bytes()
            if word.encode() in line:
                found.append(line)
    return found


def receipt(project: Project) -> dict[str, str]:
    document = json.loads((bookkeeping(project) / "receipts" / "toy.json").read_text())
    predicate = document["predicate"]
    assert isinstance(predicate, dict)
    return predicate


def whole(project: Project) -> str:
    """Hold what stands at the path to its receipt, byte for byte; return its version."""
    prefix = project.folder / ".envs" / "toy"
    assert manifest.digest(prefix) == receipt(project)["manifest_sha256"]
    found = version(project)
    assert found in ("1 1", "2 2")
    archived = list((bookkeeping(project) / "archive").glob("*"))
    assert len(archived) == (found == "2 2")
    return found


@pytest.mark.parametrize("mode", ["copy", "hardlink"])
def test_killed_after_every_step(project: Project, envbuild: Envbuild, mode: str) -> None:
    site = project.folder / "sites" / "local.toml"
    site.write_text(projects.LOCAL + f'link-mode = "{mode}"\n')
    found = set()
    for step in STEPS:
        killed = start(project, "create", "--offline", ENVBUILD_KILL_AFTER=step)
        killed.communicate()
        if killed.returncode != -signal.SIGKILL:
            continue  # a step of the other mode
        done = envbuild("recover", cwd=project.folder)
        assert done.code == 0, done.err
        found.add(whole(project))
        if found == {"1 1", "2 2"}:
            # back to the old one, from the archive, for the next step
            assert envbuild("archive", "restore", "toy", cwd=project.folder).code == 0
            assert version(project) == "1 1"
            assert envbuild("archive", "prune", "--keep", "0", cwd=project.folder).code == 0
            found.discard("2 2")
    assert envbuild("create", "--offline", cwd=project.folder).code == 0
    assert version(project) == "2 2"


def test_killed_at_random_moments(project: Project, envbuild: Envbuild) -> None:
    chance = random.Random(3)
    for _ in range(6):
        running = start(project, "create", "--offline", "--rebuild")
        time.sleep(chance.uniform(0.1, 1.2))
        running.kill()
        running.communicate()
        done = envbuild("recover", cwd=project.folder)
        assert done.code == 0, done.err
        prefix = project.folder / ".envs" / "toy"
        assert manifest.digest(prefix) == receipt(project)["manifest_sha256"]
        assert version(project) in ("1 1", "2 2")
    assert not list((bookkeeping(project) / "journal").glob("*"))


def test_create_mends_by_itself(project: Project, envbuild: Envbuild) -> None:
    killed = start(project, "create", "--offline", ENVBUILD_KILL_AFTER="exchanged")
    killed.communicate()
    assert killed.returncode == -signal.SIGKILL
    done = envbuild("create", "--offline", cwd=project.folder)
    assert done.code == 0, done.err
    assert "toy: an earlier run was interrupted: the new prefix is in place\n" in done.err
    assert done.out == f"toy: kept {project.folder}/.envs/toy\n"
    assert whole(project) == "2 2"
    done = envbuild("recover", cwd=project.folder)
    assert (done.code, done.out) == (0, "nothing was interrupted\n")


def test_eight_at_once_build_once(project: Project) -> None:
    running = [start(project, "create", "--offline", "--wait") for _ in range(8)]
    told = [(*one.communicate(), one.returncode) for one in running]
    assert [code for _, _, code in told] == [0] * 8, told
    built = [out for out, _, _ in told if out.startswith("toy: built ")]
    assert len(built) == 1
    assert whole(project) == "2 2"


def test_a_second_one_is_refused_with_who_is_at_work(project: Project, envbuild: Envbuild) -> None:
    slow = projects.environment(
        "tool==2", extra='[checks]\ncommands = [["python", "-c", "import time; time.sleep(2)"]]\n'
    )
    project.environment_file("toy").write_text(slow)
    first = start(project, "create", "--offline")
    lock = bookkeeping(project) / "owners" / "toy.lock"
    while not lock.exists():
        time.sleep(0.02)
    done = envbuild("create", "--offline", cwd=project.folder)
    assert done.code == 3
    assert f"pid {first.pid}" in done.err
    assert "envbuild create" in done.err
    refused = envbuild("unlock", "toy", cwd=project.folder)
    assert refused.code == 3
    assert "the lock of toy is held by a process that is alive" in refused.err
    first.communicate()
    assert first.returncode == 0
    assert whole(project) == "2 2"


def test_processes_started_through_a_swap_find_a_whole_environment(project: Project) -> None:
    running = start(project, "create", "--offline")
    seen = []
    while running.poll() is None:
        seen.append(version(project))
    running.communicate()
    assert running.returncode == 0
    seen.append(version(project))
    assert set(seen) <= {"1 1", "2 2"}
    assert seen == sorted(seen)
    assert (seen[0], seen[-1]) == ("1 1", "2 2")
    assert len(seen) > 5


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
@pytest.mark.parametrize("mode", ["copy", "hardlink"])
def test_ended_in_the_middle(project: Project, number: signal.Signals, mode: str) -> None:
    site = project.folder / "sites" / "local.toml"
    site.write_text(projects.LOCAL + f'link-mode = "{mode}"\n')
    mark = project.folder / "started"
    wait = f"import pathlib, time; pathlib.Path('{mark}').touch(); time.sleep(60)"
    checks = f'[checks]\ncommands = [["python", "-c", "{wait}"]]\n'
    project.environment_file("toy").write_text(projects.environment("tool==2", extra=checks))
    running = start(project, "create", "--offline")
    while not mark.exists():
        assert running.poll() is None
        time.sleep(0.02)
    running.send_signal(number)
    running.communicate(timeout=30)
    assert running.returncode == (130 if number == signal.SIGINT else 128 + number)
    assert whole(project) == "1 1"
    assert not list((bookkeeping(project) / "journal").glob("*"))
    assert not list((bookkeeping(project) / "work").glob("*"))
    # the check's own process ends with it, as soon as the kernel gets to it
    until = time.monotonic() + 10
    while commands(str(mark)):
        assert time.monotonic() < until
        time.sleep(0.02)


def test_archive_list_restore_and_prune(project: Project, envbuild: Envbuild) -> None:
    folder = project.folder
    first = receipt(project)
    assert envbuild("create", "--offline", cwd=folder).code == 0
    listed = json.loads(envbuild("archive", "list", "--json", cwd=folder).out)
    (entry,) = listed["entries"]
    assert (entry["environment"], entry["created"]) == ("toy", first["created"])

    done = envbuild("archive", "restore", "toy", cwd=folder)
    assert done.code == 0, done.err
    assert done.out.startswith(f"toy: {entry['name']} is back at {folder}/.envs/toy\n")
    assert version(project) == "1 1"
    assert receipt(project) == first
    # it does not fit the lock any more, which create would mend
    dry = envbuild("create", "--dry-run", cwd=folder)
    assert dry.out.endswith(": the lock has changed\n")

    done = envbuild("archive", "restore", "toy", cwd=folder)
    assert version(project) == "2 2"
    assert envbuild("create", "--offline", cwd=folder).out == f"toy: kept {folder}/.envs/toy\n"

    (entry,) = json.loads(envbuild("archive", "list", "--json", cwd=folder).out)["entries"]
    done = envbuild("archive", "prune", "--keep", "0", "--dry-run", cwd=folder)
    assert done.out.startswith(f"would remove {entry['name']}, ")
    done = envbuild("archive", "prune", "--keep", "0", cwd=folder)
    assert done.out.startswith(f"removed {entry['name']}, ")
    assert envbuild("archive", "prune", "--keep", "0", cwd=folder).out == "nothing to remove\n"
    assert not list((bookkeeping(project) / "archive").iterdir())
    done = envbuild("archive", "restore", "toy", cwd=folder)
    assert (done.code, done.err) == (
        2,
        f"error: {bookkeeping(project)}/archive: nothing of toy is in the archive\n"
        "  mend: see `envbuild archive list`\n",
    )


def test_a_lock_that_says_nothing_is_for_a_person(project: Project, envbuild: Envbuild) -> None:
    lock = bookkeeping(project) / "owners" / "toy.lock"
    lock.write_text("garbage")
    done = envbuild("create", "--offline", cwd=project.folder)
    assert done.code == 3
    assert "locked, but the lock does not say by whom" in done.err
    done = envbuild("unlock", "toy", cwd=project.folder)
    assert done.out == "toy: a lock that did not say whose it was is removed\n"
    assert envbuild("create", "--offline", cwd=project.folder).code == 0


def test_receipts_are_kept_by_time(project: Project, envbuild: Envbuild) -> None:
    time.sleep(1.1)  # receipts are told apart by the second
    assert envbuild("create", "--offline", cwd=project.folder).code == 0
    history = sorted((bookkeeping(project) / "receipts" / "history").glob("toy-*.json"))
    assert len(history) == 2
    assert history[-1].name == f"toy-{receipt(project)['created']}.json"
