"""``envbuild verify`` as a person meets it: what it prints, and what its exit status says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from envbuild import uvtool
from envbuild.catalog.project import Project
from tests import projects, wheels
from tests.conftest import Envbuild
from tests.servers import SimpleIndex

PACKAGES = f"lib/python{projects.MINOR}/site-packages"


@pytest.fixture
def project(index: SimpleIndex, tmp_path: Path, envbuild: Envbuild) -> Project:
    """A project with a prefix that is good, on the Python that runs the tests."""
    wheels.make_wheel(index.folder, "alpha", "1.0")
    site = f'{projects.LOCAL}system-paths = ["{sys.base_prefix}", "/usr"]\n'
    made = projects.project(
        tmp_path / "project", {"toy": projects.environment("alpha")}, {"local": site}
    )
    assert envbuild("lock", cwd=made.folder).code == 0
    done = envbuild("create", cwd=made.folder)
    assert done.code == 0, done.err
    return made


def stands_in(project: Project) -> str:
    prefix = project.folder / ".envs" / "toy"
    found = Path(os.path.realpath(prefix / "bin" / "python"))
    version = ".".join(map(str, sys.version_info[:3]))
    return (
        f"{prefix}/bin/python: warning I003: an installed Python stands in for the pinned one\n"
        f"  expected: the pinned Python {projects.PINNED}\n"
        f"  found: Python {version} at {found}\n"
        "  mend: "
    )


def plant(project: Project) -> Path:
    path = project.folder / ".envs" / "toy" / PACKAGES / "alpha.py"
    path.write_text(path.read_text() + "# a line more\n")
    return path


def test_good(project: Project, envbuild: Envbuild) -> None:
    prefix = project.folder / ".envs" / "toy"
    done = envbuild("verify", cwd=project.folder)
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith(stands_in(project))
    assert done.out.endswith(
        f"toy: {prefix} looks good: no errors, 1 warning (a quick look; --full reads every file)\n"
    )
    done = envbuild("verify", "toy", "--full", cwd=project.folder)
    assert (done.code, done.err) == (0, "")
    assert done.out.splitlines()[-1].startswith(f"toy: {prefix} is good: no errors, 1 warning (")


def test_not_good(project: Project, envbuild: Envbuild) -> None:
    path = plant(project)
    done = envbuild("verify", "toy", "--full", cwd=project.folder)
    assert done.code == 1
    assert f"{path}: error M002: is not as alpha-1.0-py3-none-any.whl has it\n" in done.out
    assert "\n  mend: run `envbuild create toy --rebuild --site local`\n" in done.out
    assert done.err == ("error: 1 error, 1 warning; `envbuild verify --explain CODE` says more\n")


def test_for_machines(project: Project, envbuild: Envbuild) -> None:
    path = plant(project)
    done = envbuild("verify", "--full", "--json", cwd=project.folder)
    assert done.code == 1
    document = json.loads(done.out)
    assert document["schema"] == "envbuild.verify/1"
    assert document["site"] == "local"
    (prefix,) = document["prefixes"]
    assert (prefix["environment"], prefix["full"]) == ("toy", True)
    assert prefix["files"] > 20
    assert [(one["code"], one["where"]) for one in document["findings"]] == [
        ("I003", f"{project.folder}/.envs/toy/bin/python"),
        ("M002", str(path)),
    ]
    done = envbuild("verify", "--full", "--sarif", cwd=project.folder)
    assert done.code == 1
    log = json.loads(done.out)
    assert log["version"] == "2.1.0"
    (run,) = log["runs"]
    assert [one["ruleId"] for one in run["results"]] == ["I003", "M002"]
    places = [one["locations"][0]["physicalLocation"] for one in run["results"]]
    assert places[1]["artifactLocation"]["uri"] == path.as_uri()
    assert {rule["id"] for rule in run["tool"]["driver"]["rules"]} >= {"I003", "M002", "R004"}


def test_selected_and_passed_over(project: Project, envbuild: Envbuild) -> None:
    plant(project)
    done = envbuild("verify", "--full", "--select", "I,P", cwd=project.folder)
    assert done.code == 0
    assert "M002" not in done.out
    done = envbuild("verify", "--full", "--ignore", "M002:I did that", cwd=project.folder)
    assert done.code == 0
    assert "M002" not in done.out
    done = envbuild("verify", "--full", "--json", "--ignore", "M002:I did that", cwd=project.folder)
    (one,) = json.loads(done.out)["suppressed"]
    assert (one["code"], one["reason"]) == ("M002", "I did that")
    site = project.folder / "sites" / "local.toml"
    site.write_text(
        site.read_text()
        + '[[ignore]]\ncode = "M002"\nwhere = "*/alpha.py"\nreason = "patched here"\n'
    )
    assert envbuild("verify", "--full", "--select", "M", cwd=project.folder).code == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--ignore", "M002"), "ignore: not a code and a reason"),
        (
            ("--ignore", "M999:x"),
            "Invalid value for --ignore: no rule M999; did you mean one of M001, ",
        ),
        (
            ("--select", "Z"),
            "Invalid value for --select: no rule begins with Z; did you mean one of E, I, ",
        ),
        (("--explain", "Z"), "Invalid value for --explain: no rule Z; did you mean one of E, I, "),
        (("--select", "e"), "a quick look does not check E: it reads no packages. Add --full."),
        (("other",), "no environment named other"),
        (("envs",), "envs is a folder: did you mean --prefix envs?"),
        (("toy", "--prefix", "."), "either ENV or --prefix, not both"),
        (("--prefix", "nowhere"), "not a prefix"),
        (("--script", "nowhere.sh"), "script cannot be read: No such file or directory"),
        (("--process", "4194304"), "process 4194304 cannot be looked at"),
    ],
)
def test_bad_usage(
    project: Project, envbuild: Envbuild, arguments: tuple[str, ...], said: str
) -> None:
    done = envbuild("verify", *arguments, cwd=project.folder)
    assert done.code == 2
    assert said in " ".join(done.err.split())


def test_a_rule_is_explained(project: Project, envbuild: Envbuild) -> None:
    done = envbuild("verify", "--explain", "T005", cwd=project.folder)
    assert done.code == 0
    assert done.out.startswith("T005: ")
    assert "\nWrong:\n" in done.out
    assert "\nRight:\n" in done.out


def test_a_family_of_rules_is_listed(project: Project, envbuild: Envbuild) -> None:
    done = envbuild("verify", "--explain", "t", cwd=project.folder)
    assert done.code == 0
    assert [line.split()[0] for line in done.out.splitlines() if line.startswith("T0")] == [
        f"T00{number}" for number in range(1, 6)
    ]


def test_what_cannot_be_verified_is_told_to_machines_too(
    project: Project, envbuild: Envbuild
) -> None:
    done = envbuild("verify", "--prefix", "nowhere", "--json", cwd=project.folder)
    assert done.code == 2
    (failure,) = json.loads(done.out)["failures"].values()
    assert failure.startswith(f"{project.folder}/nowhere: not a prefix\n")
    done = envbuild("verify", "--prefix", "nowhere", "--sarif", cwd=project.folder)
    (invocation,) = json.loads(done.out)["runs"][0]["invocations"]
    assert invocation["executionSuccessful"] is False


def test_a_path_with_dots_is_no_other_name(project: Project, envbuild: Envbuild) -> None:
    done = envbuild("verify", "--prefix", "../.envs/./toy", cwd=project.folder / "envs")
    assert (done.code, done.err) == (0, "")
    assert "P001" not in done.out


def test_the_environment_was_edited_after_its_lock(project: Project, envbuild: Envbuild) -> None:
    project.environment_file("toy").write_text(projects.environment("alpha", "beta"))
    done = envbuild("verify", "--select", "P", cwd=project.folder)
    assert done.code == 0
    assert "warning P005: the lock is stale: requirement added: beta since" in done.out


def test_nothing_to_verify(project: Project, envbuild: Envbuild) -> None:
    other = str(project.folder / "other")
    done = envbuild("verify", "--root", other, cwd=project.folder)
    assert done.code == 3
    assert done.err == (
        f"error: site local, root {other}: nothing is built here\n"
        "  expected: a prefix of toy\n"
        "  mend: run `envbuild create`, or name a folder with --prefix\n"
    )
    done = envbuild("verify", "toy", "--root", other, cwd=project.folder)
    assert done.code == 3
    assert done.err == (
        f"error: {other}/toy: toy is not built here\n"
        "  expected: a prefix\n"
        "  found: nothing\n"
        f"  mend: run `envbuild create toy --site local --root {other}`\n"
    )


def test_without_the_wheels(project: Project, envbuild: Envbuild, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    done = envbuild("verify", "--full", "--wheelhouse", str(empty), cwd=project.folder)
    assert done.code == 3
    assert done.err == (
        f"error: {empty}: toy cannot be verified in full: 1 file is not in the wheelhouse, and "
        "nothing may be downloaded\n"
        "  found: alpha-1.0-py3-none-any.whl missing\n"
        f"  mend: run `envbuild fetch toy --wheelhouse {empty}`, or verify without --full\n"
    )


def test_the_lock_has_moved_on(project: Project, index: SimpleIndex, envbuild: Envbuild) -> None:
    """The prefix is still held to what it was built from."""
    wheels.make_wheel(index.folder, "beta", "1.0")
    project.environment_file("toy").write_text(projects.environment("alpha", "beta"))
    assert envbuild("lock", cwd=project.folder).code == 0
    done = envbuild("verify", "--full", "--select", "P,M", cwd=project.folder)
    assert done.code == 1
    prefix = project.folder / ".envs" / "toy"
    assert done.out.startswith(
        f"{prefix}: error P005: the lock has changed\n"
        "  expected: as its receipt says\n"
        "  found: a receipt of "
    )
    assert done.out.count(": error ") == 1


def test_a_virtual_environment_of_anybody(
    project: Project, envbuild: Envbuild, tmp_path: Path
) -> None:
    place = tmp_path / "venv"
    subprocess.run(
        [uvtool.executable(), "venv", "--quiet", "--python", sys.executable, place], check=True
    )
    done = envbuild("verify", "--prefix", str(place), "--full", cwd=project.folder)
    assert (done.code, done.err) == (0, "")
    assert f"{place} is good: no errors, no warnings (" in done.out
    moved = tmp_path / "moved"
    place.rename(moved)
    # from outside of any project, by a relative path, in a quick look
    done = envbuild("verify", "--prefix", "moved", "--select", "T", cwd=tmp_path)
    assert done.code == 1
    assert f"{moved}/bin/activate: error T003: activates another environment\n" in done.out
    assert f"  expected: {moved}\n  found: {place}\n" in done.out


def test_scripts_and_processes(project: Project, envbuild: Envbuild, tmp_path: Path) -> None:
    job = tmp_path / "job.sh"
    job.write_text("#!/bin/bash\nsource ~/.bashrc\npython train.py\nmpirun -np 4 python -m x\n")
    python = project.folder / ".envs" / "toy" / "bin" / "python"
    root = str(tmp_path / "nothing is built here")
    for more in ((), ("--root", root)):
        done = envbuild("verify", "--script", str(job), *more, cwd=project.folder)
        assert done.code == 1
        assert done.out.endswith(f"{job} is not good: 3 errors, no warnings\n")
    done = envbuild("verify", "toy", "--script", str(job), "--select", "R", cwd=project.folder)
    assert done.code == 1
    assert f"{job}:2: error R002: " in done.out
    assert f"{job}:3: error R002: python is called by its bare name\n" in done.out
    assert f"  expected: {python}\n" in done.out
    with subprocess.Popen(
        ["sleep", "60"], env={"PATH": os.environ["PATH"], "PYTHONPATH": "/somewhere"}
    ) as process:
        done = envbuild(
            "verify", "--process", str(process.pid), "--select", "R", cwd=project.folder
        )
        process.kill()
    assert done.code == 1
    assert f"/proc/{process.pid}: error R003: " in done.out


def test_a_run_that_is_at_work_leaves_nothing_unfinished(
    project: Project, envbuild: Envbuild
) -> None:
    killed = envbuild(
        "create", "--rebuild", cwd=project.folder, env={"ENVBUILD_KILL_AFTER": "journalled"}
    )
    assert killed.code < 0
    done = envbuild("verify", "--select", "P", cwd=project.folder)
    assert done.code == 1
    journal = project.folder / ".envs" / ".envbuild" / "journal" / "toy.json"
    assert f"{journal}: error P004: was left by a run that did not end\n" in done.out
    assert envbuild("recover", cwd=project.folder).code == 0
    assert envbuild("verify", "--select", "P", cwd=project.folder).code == 0
