"""Fixtures of all tests: a clean environment, and a way to run the real command."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from tests.servers import SimpleIndex

# A person's settings must not reach the tests, nor a test's what a person has.
_SETTINGS = ("UV_", "PIP_", "ENVBUILD_", "PYTHON", "PBS_")


class Result(msgspec.Struct, frozen=True):
    """What a run of the command gave."""

    code: int
    out: str
    err: str


Envbuild = Callable[..., Result]


@pytest.fixture(autouse=True)
def clean_settings(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Take away settings of the one who runs the tests, and give uv a cache of the test's own.

    Large tests work with the index and the interpreters that are really there.
    """
    if request.node.get_closest_marker("large") is not None:
        return
    for name in list(os.environ):
        if name.startswith(_SETTINGS) and name != "PYTHONPYCACHEPREFIX":
            monkeypatch.delenv(name)
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv-cache"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    # the Python that runs the tests is one that can be found
    path = os.pathsep.join([str(Path(sys.base_prefix) / "bin"), os.environ.get("PATH", "")])
    monkeypatch.setenv("PATH", path)


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleIndex]:
    """An index on loopback that uv and envbuild find by the user's configuration."""
    folder = tmp_path / "index"
    folder.mkdir()
    with SimpleIndex(folder) as server:
        monkeypatch.setenv("UV_DEFAULT_INDEX", server.url)
        # interpreters come from nowhere: a closed port answers at once
        monkeypatch.setenv("UV_PYTHON_INSTALL_MIRROR", "http://127.0.0.1:9/none")
        yield server


@pytest.fixture
def envbuild() -> Envbuild:
    """Run the command in a process of its own, as a person does."""

    def run(*arguments: str, cwd: Path, env: dict[str, str] | None = None) -> Result:
        done = subprocess.run(
            [sys.executable, "-m", "envbuild", *arguments],
            cwd=cwd,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1]), **(env or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert not done.stderr.startswith("Traceback"), done.stderr
        assert "\nTraceback" not in done.stderr, done.stderr
        return Result(done.returncode, done.stdout, done.stderr)

    return run
