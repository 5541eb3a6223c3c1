from __future__ import annotations

import os
import platform
import sys
from pathlib import Path

import msgspec
import pytest

from envbuild.errors import PreflightError, StepError
from envbuild.prefix import interpreter
from envbuild.prefix.interpreter import Interpreter
from tests import interpreters

VERSION = platform.python_version()
MINOR = (sys.version_info.major, sys.version_info.minor)


@pytest.mark.usefixtures("clean_settings")
def test_the_pinned_interpreter_is_installed_from_its_archive(tmp_path: Path) -> None:
    pin = interpreters.pack(tmp_path / "mirror")
    archive = tmp_path / "mirror" / pin.build / pin.file
    folder = tmp_path / "site" / "interpreters"
    assert interpreter.installed(pin, folder) is None

    made = interpreter.install(pin, archive, folder)
    assert made == Interpreter(
        path=str(
            folder
            / f"{VERSION}+{pin.build}/cpython-{VERSION}-linux-x86_64-gnu"
            / f"bin/python{MINOR[0]}.{MINOR[1]}"
        ),
        version=VERSION,
        origin="managed",
        archive=pin.file,
        archive_sha256=pin.sha256,
    )
    assert interpreter.installed(pin, folder) == made
    asked = interpreter.query(Path(made.path))
    assert asked is not None
    assert (asked.path, asked.version) == (made.path, VERSION)
    # another archive of the same version is another pin, and stands beside it
    assert interpreter.installed(msgspec.structs.replace(pin, sha256="0" * 64), folder) is None
    # an interpreter that went away is not installed any more
    Path(made.path).unlink()
    assert interpreter.installed(pin, folder) is None

    archive.write_bytes(archive.read_bytes() + b"x")
    with pytest.raises(StepError) as caught:
        interpreter.install(pin, archive, tmp_path / "other")
    assert caught.value.what.startswith(f"installing Python {VERSION} failed with exit code")
    assert pin.sha256 in (caught.value.detail or "")
    assert interpreter.installed(pin, tmp_path / "other") is None


def test_a_virtual_environment_leads_to_what_it_stands_on() -> None:
    found = interpreter.query(Path(sys.executable))
    assert found is not None
    assert found.version == VERSION
    assert Path(found.path) == Path(found.path).resolve()
    assert not (Path(found.path).parents[1] / "pyvenv.cfg").exists()


@pytest.mark.parametrize(
    "text", ["#!/bin/sh\nexit 127\n", "#!/bin/sh\necho '[1]'\n", "#!/bin/sh\necho hello\n"]
)
def test_what_is_no_interpreter_is_none(tmp_path: Path, text: str) -> None:
    path = tmp_path / "python"
    path.write_text(text)
    path.chmod(0o755)
    assert interpreter.query(path) is None


def test_found_on_path_and_below_pyenv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = interpreter.query(Path(sys.executable))
    assert real is not None
    name = f"python{MINOR[0]}.{MINOR[1]}"
    folder = tmp_path / "pyenv" / "versions" / VERSION / "bin"
    folder.mkdir(parents=True)
    (folder / name).symlink_to(real.path)
    broken = tmp_path / "shims"
    broken.mkdir()
    (broken / name).write_text("#!/bin/sh\nexit 127\n")
    (broken / name).chmod(0o755)
    monkeypatch.setenv("PATH", os.pathsep.join([str(broken), "/nonexistent", ""]))
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path / "nowhere"))
    assert interpreter.find(MINOR) == []
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path / "pyenv"))
    assert interpreter.find(MINOR) == [real]
    assert interpreter.find((MINOR[0], MINOR[1] + 50)) == []


SEEN = [
    Interpreter("/opt/b/python", "3.13.9", "fallback"),
    Interpreter("/opt/a/python", "3.13.0", "fallback"),
]


def test_the_first_that_fits_stands_in() -> None:
    chosen = interpreter.fallback(SEEN, ">=3.13,<3.13.5", environment="toy", why="offline")
    assert chosen.path == "/opt/a/python"


def test_none_that_fits_is_told_with_all_that_was_seen() -> None:
    with pytest.raises(PreflightError) as caught:
        interpreter.fallback(SEEN, ">=3.13.14,<3.14", environment="nemo-gym", why="no network")
    assert caught.value.exit_code == 3
    assert str(caught.value) == (
        "nemo-gym needs Python >=3.13.14,<3.14, and none is at hand\n"
        "  expected: the pinned interpreter (no network), or an installed CPython "
        ">=3.13.14,<3.14\n"
        "  found: 3.13.9 at /opt/b/python, 3.13.0 at /opt/a/python\n"
        "  mend: put the pinned archive into the wheelhouse (`envbuild fetch` says where it is "
        "from), or install such a CPython and put it on PATH"
    )


def test_a_pre_release_is_never_chosen() -> None:
    seen = [Interpreter("/opt/python", "3.13.0rc1", "fallback")]
    with pytest.raises(PreflightError, match="found: 3\\.13\\.0rc1 at /opt/python"):
        interpreter.fallback(seen, ">=3.13,<3.14", environment="toy", why="offline")
