"""What is in an image, held to what uv installs at the same path. Run by ``make test-large``."""

from __future__ import annotations

import csv
import io
import os
import re
import subprocess
import tarfile
from pathlib import Path

import pytest

from envbuild import uvtool
from envbuild.catalog.project import Project
from envbuild.lock import lockfile
from envbuild.prefix import install, interpreter
from tests import programs
from tests.conftest import Envbuild
from tests.image import toys

HERE = Project(Path(__file__).parents[2])

# A view of the file system in which /opt/envs is new and nobody else's: what else is in /opt stays.
# All of it is gone when this ends.
ISOLATED = """\
mkdir "$WORK/opt"
for path in /opt/*/; do
    [ -d "$path" ] || continue
    mkdir "$WORK$path" && mount --rbind "$path" "$WORK$path" || exit
done
mkdir -p "$WORK/opt/envs"
mount --rbind "$WORK/opt" /opt || exit
"$UV" venv --quiet --python "$PYTHON" --prompt "$NAME" "/opt/envs/$NAME" || exit
"$UV" pip sync --quiet --offline --link-mode copy --python "/opt/envs/$NAME/bin/python" "$LOCK"
"""

# What `uv venv` writes for shells and for itself, which an image has no use for.
VENV = re.compile(
    r"""
    \.gitignore | \.lock | CACHEDIR\.TAG
    | bin/(?: activate(?:\.\w+)? | activate_this\.py | deactivate\.bat | pydoc\.bat )
    | lib/python3\.\d+/site-packages/_virtualenv\.(?: py | pth )
    """,
    re.VERBOSE,
)
# What both have, each in its own words.
WORDED = re.compile(r"pyvenv\.cfg|bin/python|.*\.dist-info/(?:INSTALLER|RECORD)")
# Where a wheel came from and when, which is not in the wheel.
NOTED = re.compile(r".*\.dist-info/(?:uv_cache\.json|direct_url\.json)")
REQUESTED = re.compile(r".*\.dist-info/REQUESTED")

pytestmark = pytest.mark.large


def unpacked(out: Path, target: Path) -> Path:
    """Unpack an image's layers, the lowest first."""
    for descriptor in toys.read(out)[0]["layers"]:
        with tarfile.open(fileobj=io.BytesIO(toys.blob(out, descriptor))) as archive:
            archive.extractall(target, filter="fully_trusted")
    return target


def files(prefix: Path) -> dict[str, str | bytes]:
    """Return what is in a prefix: where links point, files' contents and whether they run."""
    found: dict[str, str | bytes] = {}
    for folder, folders, names in os.walk(prefix):
        for name in (*folders, *names):
            path = Path(folder) / name
            place = str(path.relative_to(prefix))
            if path.is_symlink():
                found[place] = str(path.readlink())
            elif path.is_file():
                runs = b"x" if path.stat().st_mode & 0o111 else b"-"
                found[place] = runs + path.read_bytes()
    return found


def rows(record: str | bytes) -> dict[str, tuple[str, ...]]:
    assert isinstance(record, bytes)
    listed = list(csv.reader(io.StringIO(record[1:].decode())))
    found = {row[0]: tuple(row[1:]) for row in listed}
    assert len(found) == len(listed)
    return found


@pytest.mark.parametrize("name", ["core", "openenv"])
def test_an_image_holds_what_uv_installs(name: str, tmp_path: Path, envbuild: Envbuild) -> None:
    programs.require("unshare", "util-linux")
    wheelhouse, out = tmp_path / "wheelhouse", tmp_path / "out"
    arguments = ["--wheelhouse", str(wheelhouse), "--no-cache", "-o", str(out)]
    arguments += ["--interpreter", "none", "--base", "scratch"]
    done = envbuild("image", name, *arguments, cwd=HERE.folder)
    assert done.code == 0, done.err
    ours = files(unpacked(out, tmp_path / "ours") / "opt" / "envs" / name)

    lock = lockfile.read(HERE.lock_file(name), name)
    derived = tmp_path / f"pylock.{name}.toml"
    derived.write_bytes(install.derived_lock(lock, wheelhouse))
    work = tmp_path / "work"
    work.mkdir()
    variables = {
        "WORK": str(work),
        "UV": str(uvtool.executable()),
        "PYTHON": interpreter.find(HERE.environment(name).minor)[0].path,
        "NAME": name,
        "LOCK": str(derived),
        "UV_CACHE_DIR": str(tmp_path / "uv-cache"),
    }
    subprocess.run(
        ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", ISOLATED],
        env=uvtool.environment(extra=variables),
        check=True,
    )
    theirs = files(work / "opt" / "envs" / name)
    import pickle
    Path("/tmp/cmp.%s.pickle" % name).write_bytes(pickle.dumps((ours, theirs)))
