from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from envbuild.catalog import site as sites
from envbuild.catalog.site import Layout, Site
from envbuild.prefix import run

ROOT = Path("/nonexistent/root")
PREFIX = ROOT / "toy"
FIXED = {
    "PATH": f"{PREFIX}/bin:/usr/bin:/bin",
    "VIRTUAL_ENV": str(PREFIX),
    "PYTHONNOUSERSITE": "1",
    "UV_PYTHON_INSTALL_DIR": f"{ROOT}/.envbuild/interpreters",
}
TEMPORARY = ["tmp/{user}", "/nonexistent/scratch"]
CACHES = {
    "TMPDIR": f"{ROOT}/tmp/ann",
    "TRITON_CACHE_DIR": f"{ROOT}/tmp/ann/triton_ann",
    "TORCHINDUCTOR_CACHE_DIR": f"{ROOT}/tmp/ann/torchinductor_ann",
}


def layout(settings: dict[str, object], root: Path = ROOT) -> Layout:
    site = msgspec.convert({"summary": "here", "root": str(root), **settings}, Site)
    return sites.layout("local", site, project=Path("/"), environments=["toy"], user="ann")


@pytest.mark.parametrize(
    ("settings", "callers", "expected"),
    [
        pytest.param({}, {}, {"PATH": f"{PREFIX}/bin:/bin:/usr/bin"}, id="no PATH at all"),
        pytest.param(
            {},
            {"PATH": f"/usr/bin:{PREFIX}/bin:", "HOME": "/home/ann", "X": "a b\n", "LANG": ""},
            {"PATH": f"{PREFIX}/bin:/usr/bin:", "HOME": "/home/ann", "X": "a b\n", "LANG": ""},
            id="kept as it is, the prefix once and first",
        ),
        pytest.param(
            {},
            {
                "PATH": "/usr/bin:/bin",
                "PYTHONPATH": "/a",
                "PYTHONHOME": "/b",
                "PYTHONPLATLIBDIR": "lib64",
                "PYTHONEXECUTABLE": "/c",
                "VIRTUAL_ENV": "/d",
                "VIRTUAL_ENV_PROMPT": "d",
                "CONDA_PREFIX": "/e",
                "CONDA_PREFIX_1": "/f",
                "CONDA_DEFAULT_ENV": "e",
                "CONDA_PROMPT_MODIFIER": "(e) ",
                "CONDA_SHLVL": "2",
            },
            {},
            id="of another environment",
        ),
        pytest.param(
            {},
            {
                "PATH": "/usr/bin:/bin",
                "PYTHONNOUSERSITE": "",
                "PYTHONUNBUFFERED": "1",
                "PYTHONHASHSEED": "0",
                "CONDA_PKGS_DIRS": "/g",
                "LD_LIBRARY_PATH": "/h",
                "TMPDIR": "/i",
                "UV_CACHE_DIR": "/j",
                "TRITON_CACHE_DIR": "/k",
            },
            {
                "PYTHONUNBUFFERED": "1",
                "PYTHONHASHSEED": "0",
                "CONDA_PKGS_DIRS": "/g",
                "LD_LIBRARY_PATH": "/h",
                "TMPDIR": "/i",
                "UV_CACHE_DIR": "/j",
                "TRITON_CACHE_DIR": "/k",
            },
            id="settings that a site without folders of its own leaves alone",
        ),
        pytest.param(
            {"uv-cache": "caches/{user}/uv", "interpreters": "/nonexistent/pythons"},
            {"PATH": "/usr/bin:/bin", "UV_CACHE_DIR": "/j", "UV_PYTHON_INSTALL_DIR": "/k"},
            {
                "UV_CACHE_DIR": f"{ROOT}/caches/ann/uv",
                "UV_PYTHON_INSTALL_DIR": "/nonexistent/pythons",
            },
            id="folders of uv",
        ),
        pytest.param(
            {"temporary": TEMPORARY}, {"PATH": "/usr/bin:/bin"}, CACHES, id="temporary, not set"
        ),
        pytest.param(
            {"temporary": TEMPORARY},
            {
                "PATH": "/usr/bin:/bin",
                "TMPDIR": "",
                "TRITON_CACHE_DIR": "/tmp/triton",
                "TORCHINDUCTOR_CACHE_DIR": "/nonexistent/scratch/../elsewhere",
            },
            CACHES,
            id="temporary, not allowed",
        ),
        pytest.param(
            {"temporary": TEMPORARY},
            {
                "PATH": "/usr/bin:/bin",
                "TMPDIR": "/nonexistent/scratch/7",
                "TRITON_CACHE_DIR": "/nonexistent/scratch",
                "TORCHINDUCTOR_CACHE_DIR": f"{ROOT}/tmp/ann/mine",
            },
            {
                "TMPDIR": "/nonexistent/scratch/7",
                "TRITON_CACHE_DIR": "/nonexistent/scratch",
                "TORCHINDUCTOR_CACHE_DIR": f"{ROOT}/tmp/ann/mine",
            },
            id="temporary, allowed",
        ),
    ],
)
def test_the_environment_of_a_program(
    settings: dict[str, object], callers: dict[str, str], expected: dict[str, str]
) -> None:
    given = dict(callers)
    assert run.environment(callers, layout(settings), PREFIX) == {**FIXED, **expected}
    assert callers == given


def test_a_link_out_of_an_allowed_folder_is_not_allowed(tmp_path: Path) -> None:
    (tmp_path / "scratch").mkdir()
    (tmp_path / "scratch" / "out").symlink_to("/")
    here = layout({"temporary": ["scratch"]}, tmp_path)
    callers = {"TMPDIR": f"{tmp_path}/scratch/out/tmp"}
    assert run.environment(callers, here, PREFIX)["TMPDIR"] == f"{tmp_path}/scratch"


def test_what_python_adds_for_itself_is_not_the_callers() -> None:
    ask = "from envbuild.prefix import run; print(sorted(run.callers_environment()))"
    given = {"PATH": os.defpath, "PYTHONPATH": str(Path(__file__).parents[2])}
    for more in ({}, {"LC_CTYPE": "C.UTF-8"}):
        said = subprocess.run(
            [sys.executable, "-c", ask], env={**given, **more}, capture_output=True, check=True
        )
        assert said.stdout.decode() == f"{sorted({**given, **more})}\n"


def program(file: Path, text: str = "#!/bin/sh\n", mode: int = 0o755) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    file.chmod(mode)
    return file


def test_a_program_is_looked_up_as_a_shell_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    program(first / "tool", mode=0o644)
    (first / "other").mkdir()
    expected = {
        "tool": program(second / "tool"),
        "other": program(second / "other"),
        "./second/tool": Path("second/tool"),
        str(second / "tool"): second / "tool",
    }
    monkeypatch.chdir(tmp_path)
    # what is no folder, or not there, is passed over
    path = f"{second / 'tool'}:{tmp_path / 'none'}:{first}:{second}"
    for command, file in expected.items():
        assert run.executable(command, tmp_path, {"PATH": path}) == file
    assert run.executable("tool", tmp_path, {"PATH": f"{first}:second"}) == Path("second/tool")
    monkeypatch.chdir(second)
    assert run.executable("tool", tmp_path, {"PATH": f"{first}:"}) == Path("tool")


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (
            "pyhton",
            "no such program: 'pyhton'\n"
            "  expected: a program in {prefix}/bin or another folder of PATH\n"
            "  mend: did you mean python?",
        ),
        (
            "zzz",
            "no such program: 'zzz'\n"
            "  expected: a program in {prefix}/bin or another folder of PATH",
        ),
        (
            "",
            "no such program: ''\n  expected: a program in {prefix}/bin or another folder of PATH",
        ),
        ("./python", "no such program: './python'\n  expected: a file of that name"),
    ],
)
def test_no_such_program(tmp_path: Path, command: str, message: str) -> None:
    program(tmp_path / "bin" / "python")
    with pytest.raises(run.CommandNotFoundError) as raised:
        run.executable(command, tmp_path, {"PATH": f"{tmp_path}/bin"})
    assert str(raised.value) == message.format(prefix=tmp_path)
    assert raised.value.exit_code == 127


def test_a_program_that_cannot_be_executed(tmp_path: Path) -> None:
    file = program(tmp_path / "bin" / "tool", mode=0o640)
    for command in ("tool", str(file)):
        with pytest.raises(run.CommandNotExecutableError) as raised:
            run.executable(command, tmp_path, {"PATH": f"{tmp_path}/bin"})
        assert str(raised.value) == (
            f"{file}: {command} cannot be executed\n"
            "  expected: a file that this user may execute\n"
            "  found: mode 0640\n"
            "  mend: set its mode with chmod +x, or run it by its interpreter: -- python FILE"
        )
        assert raised.value.exit_code == 126
    assert stat.S_IMODE(file.stat().st_mode) == 0o640


def test_a_folder_is_no_program(tmp_path: Path) -> None:
    (tmp_path / "tool").mkdir()
    with pytest.raises(run.CommandNotExecutableError, match=r"(?m)^  found: a folder$"):
        run.executable(f"{tmp_path}/tool", tmp_path, {"PATH": ""})
    with pytest.raises(run.CommandNotFoundError):
        run.executable("tool", tmp_path, {"PATH": str(tmp_path)})
