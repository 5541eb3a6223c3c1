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


def in_bash(folder: Path, script: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-c", script.replace("envbuild", f"{sys.executable} -m envbuild", 1)],
        cwd=folder,
        env={"PYTHONPATH": str(Path(__file__).parents[2]), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )


OUTPUTS = ["status --json", "status", "site show", "--help", "--version", "completion bash"]


@pytest.mark.parametrize("arguments", OUTPUTS)
def test_a_reader_that_goes_away_is_no_error(tmp_path: Path, arguments: str) -> None:
    projects.project(tmp_path, {"toy": projects.environment("six")}, {"local": projects.LOCAL})
    done = in_bash(tmp_path, f"envbuild {arguments} 2>said | (exec true); echo ${{PIPESTATUS[0]}}")
    assert (done.stdout, done.stderr) == ("141\n", "")
    assert "rror" not in (tmp_path / "said").read_text()


@pytest.mark.parametrize("arguments", OUTPUTS)
def test_output_that_cannot_be_written(tmp_path: Path, arguments: str) -> None:
    projects.project(tmp_path, {"toy": projects.environment("six")}, {"local": projects.LOCAL})
    done = in_bash(tmp_path, f"envbuild {arguments} >/dev/full")
    assert (done.returncode, done.stderr) == (4, "error: No space left on device\n")


def test_a_folder_that_is_gone(tmp_path: Path) -> None:
    (tmp_path / "gone").mkdir()
    done = in_bash(tmp_path, "cd gone; rmdir ../gone; PYTHONSAFEPATH=1 envbuild status")
    assert (done.returncode, done.stderr) == (
        2,
        "error: the current folder is no longer there\n"
        "  mend: change to one that is, such as the project's\n",
    )


def test_a_password_in_a_file_is_not_shown(tmp_path: Path, envbuild: Envbuild) -> None:
    toy = projects.environment("six @ https://me:s3cret@host.invalid/six.whl")
    projects.project(tmp_path, {"toy": toy}, {"local": projects.LOCAL})
    done = envbuild("lock", cwd=tmp_path)
    assert done.code == 2
    assert "found: 'six @ https://***@host.invalid/six.whl'" in done.err


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
        ("envbuild site show l", ["local"]),
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


def test_nothing_is_said_while_a_word_is_completed_outside_of_a_project(
    tmp_path: Path, envbuild: Envbuild
) -> None:
    env = {
        "_ENVBUILD_COMPLETE": "bash_complete",
        "COMP_WORDS": "envbuild create t",
        "COMP_CWORD": "2",
    }
    done = envbuild(cwd=tmp_path, env=env)
    assert (done.out.strip(), done.err) == ("", "")
