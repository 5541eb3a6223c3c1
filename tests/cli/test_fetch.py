from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from envbuild.catalog.project import Project
from tests import projects, wheels
from tests.conftest import Envbuild
from tests.servers import Fault, SimpleIndex


@pytest.fixture
def project(index: SimpleIndex, tmp_path: Path, envbuild: Envbuild) -> Project:
    for name in ("alpha", "beta"):
        wheels.make_wheel(index.folder, name, "1.0", files={f"{name}.py": "x = 1\n" * 5000})
    made = projects.project(
        tmp_path / "project", {"toy": projects.environment("alpha", "beta")}, {}
    )
    assert envbuild("lock", cwd=made.folder).code == 0
    return made


def test_fetched_once_and_never_asked_for_again(
    project: Project, index: SimpleIndex, envbuild: Envbuild
) -> None:
    done = envbuild("fetch", "--json", "--no-interpreters", cwd=project.folder)
    assert done.code == 0, done.err
    report = json.loads(done.out)
    assert report["schema"] == "envbuild.fetch/1"
    assert (report["downloaded"], report["present"]) == (2, 0)
    asked = len(index.requests)
    done = envbuild("fetch", "--no-interpreters", cwd=project.folder)
    assert done.out == f"0 files fetched (0 B), 2 were there: {project.wheelhouse}\n"
    assert len(index.requests) == asked


def test_an_interpreter_that_cannot_be_had_is_a_warning_with_its_address(
    project: Project, envbuild: Envbuild
) -> None:
    done = envbuild("fetch", cwd=project.folder)
    assert done.code == 0
    assert "warning: interpreter not fetched: cpython-" in done.err
    assert "no answer from 127.0.0.1; get it from http://127.0.0.1:9/none/" in done.err


@pytest.mark.parametrize("secret", ["me:s3cret", "me:s3/cret", "s3'c\"r et"])
@pytest.mark.parametrize("option", [(), ("--json",)])
def test_a_password_of_the_mirror_is_not_shown(
    project: Project, envbuild: Envbuild, secret: str, option: tuple[str, ...]
) -> None:
    env = {"UV_PYTHON_INSTALL_MIRROR": f"http://{secret}@127.0.0.1:9/none"}
    done = envbuild("--verbose", "fetch", *option, cwd=project.folder, env=env)
    assert done.code == 0, done.err
    assert "get it from http://***@127.0.0.1:9/none/" in done.out + done.err
    assert "s3" not in done.out + done.err


def test_an_interpreter_without_a_pin(
    project: Project, index: SimpleIndex, envbuild: Envbuild
) -> None:
    asked = len(index.requests)
    project.interpreters_file.unlink()
    done = envbuild("fetch", cwd=project.folder)
    assert (done.code, done.err) == (
        2,
        f"error: {project.interpreters_file}: Python {projects.PINNED} of toy has no pin\n"
        "  mend: run `envbuild lock`, or leave the interpreters out with --no-interpreters\n",
    )
    assert len(index.requests) == asked
    assert envbuild("fetch", "--no-interpreters", cwd=project.folder).code == 0


def test_a_pipe_in_the_wheelhouse_is_not_waited_for(project: Project, envbuild: Envbuild) -> None:
    project.wheelhouse.mkdir()
    os.mkfifo(project.wheelhouse / "alpha-1.0-py3-none-any.whl")
    done = envbuild("fetch", "--no-interpreters", cwd=project.folder)
    assert done.code == 3
    assert "  found: a named pipe\n" in done.err


def test_the_wheelhouse_can_be_elsewhere(
    project: Project, tmp_path: Path, envbuild: Envbuild
) -> None:
    for number, how in enumerate(("option", "variable")):
        folder = tmp_path / f"wheels {number}"
        arguments = ["--wheelhouse", str(folder)] if how == "option" else []
        env = {} if how == "option" else {"ENVBUILD_WHEELHOUSE": str(folder)}
        done = envbuild("fetch", "--no-interpreters", *arguments, cwd=project.folder, env=env)
        assert done.code == 0, done.err
        assert sorted(path.name for path in folder.glob("*.whl")) == [
            "alpha-1.0-py3-none-any.whl",
            "beta-1.0-py3-none-any.whl",
        ]


def test_a_download_cut_twice_is_whole_or_not_there(
    project: Project, index: SimpleIndex, envbuild: Envbuild
) -> None:
    file = "alpha-1.0-py3-none-any.whl"
    index.plant(index.file_path(file), Fault(cut=100), times=2)
    done = envbuild("fetch", "--no-interpreters", cwd=project.folder)
    assert done.code == 0, done.err
    assert (project.wheelhouse / file).read_bytes() == (index.folder / file).read_bytes()


def test_a_file_that_is_gone(project: Project, index: SimpleIndex, envbuild: Envbuild) -> None:
    file = "alpha-1.0-py3-none-any.whl"
    index.plant(index.file_path(file), Fault(status=404), times=9)
    done = envbuild("fetch", "--no-interpreters", cwd=project.folder)
    assert done.code == 4
    assert done.err.startswith(
        f"error: alpha: {file}: the server answered with HTTP status 404\n  expected: 200 from "
    )
    assert not (project.wheelhouse / file).exists()


def test_without_a_lock(project: Project, envbuild: Envbuild) -> None:
    project.lock_file("toy").unlink()
    done = envbuild("fetch", cwd=project.folder)
    assert (done.code, done.err) == (
        2,
        f"error: {project.lock_file('toy')}: toy has no lock\n  mend: run `envbuild lock toy`\n",
    )
