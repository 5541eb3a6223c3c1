from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from envbuild.cli.main import COMMANDS
from tests import projects
from tests.conftest import Envbuild


def test_help_lists_every_command(tmp_path: Path, envbuild: Envbuild) -> None:
    done = envbuild("--help", cwd=tmp_path)
    assert done.code == 0
    for name, words in COMMANDS.items():
        assert name in done.out
        assert words.split()[0] in done.out


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_every_command_has_help_that_fits(tmp_path: Path, envbuild: Envbuild, command: str) -> None:
    done = envbuild(command, "--help", cwd=tmp_path)
    assert done.code == 0
    assert done.out.startswith(f"Usage: envbuild {command} ")
    assert max(map(len, done.out.splitlines())) <= 100


def test_bad_usage_is_two(tmp_path: Path, envbuild: Envbuild) -> None:
    for arguments in (["nonsense"], ["create", "--nonsense"], ["status", "extra"]):
        done = envbuild(*arguments, cwd=tmp_path)
        assert done.code == 2
        assert "Error: " in done.err


def test_outside_of_a_project(tmp_path: Path, envbuild: Envbuild) -> None:
    done = envbuild("status", cwd=tmp_path)
    assert done.code == 2
    assert done.err.startswith(f"error: {tmp_path}: no envbuild project here\n")


def test_the_project_is_found_from_below_by_option_and_by_variable(
    tmp_path: Path, envbuild: Envbuild
) -> None:
    folder = tmp_path / "a project"
    projects.project(folder, {"toy": projects.environment("six")}, {"local": projects.LOCAL})
    here = envbuild("status", cwd=folder / "envs").out
    assert "toy" in here
    assert envbuild("--project", str(folder), "status", cwd=tmp_path).out == here
    env = {"ENVBUILD_PROJECT": str(folder)}
    assert envbuild("status", cwd=tmp_path, env=env).out == here


def test_a_reader_that_goes_away_is_no_error(tmp_path: Path) -> None:
    projects.project(tmp_path, {"toy": projects.environment("six")}, {"local": projects.LOCAL})
    command = f"{sys.executable} -m envbuild status --json | head -1"
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=tmp_path,
        env={"PYTHONPATH": str(Path(__file__).parents[2]), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert (done.stdout, done.stderr) == ("{\n", "")


@pytest.mark.parametrize("shell", ["bash", "fish", "zsh"])
def test_completion_scripts(tmp_path: Path, envbuild: Envbuild, shell: str) -> None:
    done = envbuild("completion", shell, cwd=tmp_path)
    assert done.code == 0
    assert "_ENVBUILD_COMPLETE" in done.out


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("envbuild create t", ["toy", "two"]),
        ("envbuild create --site l", ["local"]),
        ("envbuild cr", ["create"]),
        ("envbuild site sh", ["show"]),
    ],
)
def test_what_is_completed(
    tmp_path: Path, envbuild: Envbuild, words: str, expected: list[str]
) -> None:
    toy = projects.environment("six")
    projects.project(tmp_path, {"toy": toy, "two": toy}, {"local": projects.LOCAL})
    env = {
        "_ENVBUILD_COMPLETE": "bash_complete",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split()) - 1),
    }
    done = envbuild(cwd=tmp_path, env=env)
    assert [line.partition(",")[2] for line in done.out.splitlines()] == expected
