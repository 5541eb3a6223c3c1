"""Real environments from the configured index: gigabytes, minutes. Run by ``make test-large``."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from envbuild import uvtool
from envbuild.catalog.project import Project
from envbuild.lock import lockfile
from envbuild.prefix import install, interpreter
from tests.conftest import Envbuild

HERE = Project(Path(__file__).parents[1])

pytestmark = pytest.mark.large


def files(prefix: Path) -> dict[str, bytes | str]:
    """Return what is in a prefix, without byte code and what names its own path."""
    found: dict[str, bytes | str] = {}
    for folder, _, names in os.walk(prefix):
        for name in names:
            path = Path(folder) / name
            place = str(path.relative_to(prefix))
            if name.endswith(".pyc") or place == "pyvenv.cfg":
                continue
            if path.is_symlink():
                found[place] = str(path.readlink())
                continue
            content = path.read_bytes().replace(str(prefix).encode(), b"PREFIX")
            found[place] = b"" if name == "RECORD" else content
    return found


@pytest.mark.parametrize("name", ["core", "openenv"])
def test_a_prefix_holds_what_uv_alone_installs(
    name: str, tmp_path: Path, envbuild: Envbuild
) -> None:
    root, wheelhouse = tmp_path / "root", tmp_path / "wheelhouse"
    arguments = ["--site", "jaif", "--root", str(root), "--wheelhouse", str(wheelhouse)]
    done = envbuild("create", name, *arguments, cwd=HERE.folder)
    assert done.code == 0, done.err
    prefix = HERE.layout("jaif", root=root).prefix(name)

    lock = lockfile.read(HERE.lock_file(name), name)
    derived = tmp_path / f"pylock.{name}.toml"
    derived.write_bytes(install.derived_lock(lock, wheelhouse))
    other = tmp_path / "other"
    python = interpreter.find(HERE.environment(name).minor)[0].path
    uv = uvtool.executable()
    env = uvtool.environment()
    prompt = ["--prompt", name]
    subprocess.run([uv, "venv", "-q", "--python", python, *prompt, other], env=env, check=True)
    subprocess.run(
        [uv, "pip", "sync", "-q", "--python", other / "bin" / "python", derived],
        env=env,
        check=True,
    )
    ours, theirs = files(prefix), files(other)
    assert sorted(ours) == sorted(theirs)
    assert [place for place in ours if ours[place] != theirs[place]] == []


@pytest.mark.parametrize(
    ("site", "name"),
    [
        ("jaif", "gpu"),
        ("berzelius", "decmem"),
        ("berzelius", "live-eval"),
        ("berzelius", "geometry-forcing-eval"),
    ],
)
def test_gigabytes(site: str, name: str, tmp_path: Path, envbuild: Envbuild) -> None:
    wheelhouse = tmp_path / "wheelhouse"
    arguments = ["--site", site, "--root", str(tmp_path / "root"), "--wheelhouse", str(wheelhouse)]
    done = envbuild("create", name, *arguments, cwd=HERE.folder)
    assert done.code == 0, done.err
    again = envbuild("create", name, "--offline", *arguments, cwd=HERE.folder)
    assert again.out.startswith(f"{name}: kept ")
