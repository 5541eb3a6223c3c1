"""The command as a person runs it: what it prints, its exit codes and its receipt."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from envbuild.catalog.project import Project
from tests import projects
from tests.conftest import Envbuild

FAR = """\
summary = "a cluster"
root = "{root}"
temporary = ["{root}/tmp"]
shebang-limit = 100
"""


@pytest.fixture
def project(tmp_path: Path) -> Project:
    root = tmp_path / "root"
    root.mkdir(mode=0o755)
    return projects.project(
        tmp_path / "p",
        {"toy": projects.environment("six")},
        {"local": projects.LOCAL, "far": FAR.format(root=root)},
    )


@pytest.fixture(autouse=True)
def allowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "root" / "tmp" / "uv"))
    monkeypatch.delenv("TMPDIR", raising=False)


@pytest.fixture
def receipt(tmp_path: Path) -> Path:
    return tmp_path / "root" / ".envbuild" / "site-check.json"


def pinned(project: Project) -> None:
    """Pin the environment's interpreter, which is not at hand: a warning."""
    project.interpreters_file.parent.mkdir()
    archive = f"cpython-{projects.PINNED}+20260101-x86_64-unknown-linux-gnu"
    project.interpreters_file.write_text(
        f'schema = 1\n[[interpreters]]\nversion = "{projects.PINNED}"\nbuild = "20260101"\n'
        f'file = "{archive}-install_only_stripped.tar.gz"\nsha256 = "{"ab" * 32}"\n'
    )


def test_warnings_alone_are_no_failure(project: Project, receipt: Path, envbuild: Envbuild) -> None:
    pinned(project)
    done = envbuild("site", "check", "far", cwd=project.folder)
    assert done.code == 0, done.out + done.err
    lines = done.out.splitlines()
    assert lines[0].split() == ["looked", "at", "where", "seen"]
    assert any(line.startswith("longest #! line") for line in lines)
    assert (
        f"site far: warning S015: the pinned Python {projects.PINNED} of toy is not at hand\n"
        in done.out
    )
    said = done.err.splitlines()
    assert said[0].startswith(f"site far, root {receipt.parents[1]}: no errors, ")
    assert said[1:] == [f"receipt: {receipt}"]
    assert receipt.is_file()


def test_an_error_is_one(
    project: Project, tmp_path: Path, receipt: Path, envbuild: Envbuild
) -> None:
    pinned(project)
    outside = {"TRITON_CACHE_DIR": str(tmp_path)}
    allowed = tmp_path / "root" / "tmp"
    done = envbuild("site", "check", "far", cwd=project.folder, env=outside)
    assert done.code == 1
    assert (
        "site far: error R001: TRITON_CACHE_DIR lies where the site does not allow it\n"
        f"  expected: a folder in {allowed}\n  found: {tmp_path}\n"
        f"  mend: export TRITON_CACHE_DIR={allowed}, or unset it\n"
    ) in done.out
    assert done.err.splitlines()[-1] == "error: site far is not as its file says: 1 error"
    assert json.loads(receipt.read_text())["findings"][0]["code"] == "R001"


def test_as_json_and_as_receipt(project: Project, receipt: Path, envbuild: Envbuild) -> None:
    done = envbuild("site", "check", "far", "--json", "--user", "ada", cwd=project.folder)
    assert done.code == 1  # the interpreter has no pin
    report = json.loads(done.out)
    assert json.loads(receipt.read_text()) == report
    assert report["schema"] == "envbuild.site-check/1"
    assert (report["site"], report["user"], report["rehearsal"]) == ("far", "ada", False)
    assert set(report["host"]) == {"name", "kernel", "glibc", "driver"}
    assert report["created"].endswith("Z")
    assert {"what", "where", "answer"} == set(report["probes"][0])
    assert "S015" in {finding["code"] for finding in report["findings"]}


def test_which_site(project: Project, envbuild: Envbuild) -> None:
    done = envbuild("site", "check", "--json", cwd=project.folder)
    assert json.loads(done.out)["site"] == "local"
    done = envbuild("site", "check", "--json", cwd=project.folder, env={"ENVBUILD_SITE": "far"})
    assert json.loads(done.out)["site"] == "far"
    file = project.site_files["far"].rename(project.folder / "lab.toml")
    done = envbuild("site", "check", "--json", str(file), cwd=project.folder)
    assert json.loads(done.out)["site"] == "lab"
    done = envbuild("site", "check", "fra", cwd=project.folder)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("error: no site named fra\n")


def test_which_wheelhouse(project: Project, tmp_path: Path, envbuild: Envbuild) -> None:
    pinned(project)
    house = {"ENVBUILD_WHEELHOUSE": str(tmp_path / "wheels")}
    done = envbuild("site", "check", cwd=project.folder, env=house)
    assert f".tar.gz in {tmp_path}/wheels, or installed in " in done.out
    file = project.site_files["far"]
    file.write_text(file.read_text() + 'wheelhouse = "house"\n')
    done = envbuild("site", "check", "far", cwd=project.folder)
    assert f".tar.gz in {tmp_path / 'root' / 'house'}, or installed in " in done.out


def test_a_rehearsal(project: Project, tmp_path: Path, receipt: Path, envbuild: Envbuild) -> None:
    pinned(project)
    file = project.site_files["far"]
    file.write_text('mounts = ["/gone"]\n' + file.read_text())
    assert envbuild("site", "check", "far", cwd=project.folder).code == 1
    other = tmp_path / "try"
    other.mkdir()
    cache = {"UV_CACHE_DIR": f"{other}/tmp/uv"}
    done = envbuild("site", "check", "far", "--root", str(other), cwd=project.folder, env=cache)
    assert done.code == 0, done.out + done.err
    assert "note: rehearsal: mounts of the site were not looked at\n" in done.out
    assert json.loads((other / ".envbuild/site-check.json").read_text())["rehearsal"]


def test_no_root_no_receipt(project: Project, tmp_path: Path, envbuild: Envbuild) -> None:
    pinned(project)
    done = envbuild("site", "check", cwd=project.folder)
    assert done.code == 0, done.out + done.err
    root = project.folder / ".envs"
    assert f"{root}: warning S004: the root is not there yet\n" in done.out
    assert not root.exists()
    assert done.err == f"site local, root {root}: no errors, {_warnings(done.out)}\n"


def _warnings(out: str) -> str:
    number = out.count(": warning ")
    return f"{number} warning{'' if number == 1 else 's'}"
