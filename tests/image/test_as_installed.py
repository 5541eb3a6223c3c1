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
from tests.wheels import digest

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

# What is there in uv's environment alone: what `uv venv` writes for shells and for itself, and uv's
# notes of when it saw a wheel.
THEIRS = re.compile(
    r"""
    \.gitignore | \.lock | CACHEDIR\.TAG
    | bin/(?: activate(?:\.\w+)? | activate_this\.py | deactivate\.bat | pydoc\.bat )
    | lib/python3\.\d+/site-packages/_virtualenv\.(?: py | pth )
    | .*\.dist-info/uv_cache\.json
    """,
    re.VERBOSE,
)
# What both have and what differs: the interpreter's place and version, and the installer's name.
DIFFERENT = re.compile(r"pyvenv\.cfg|bin/python|.*\.dist-info/INSTALLER")
# What counts in the script of an entry point, the rest of which each installer words on its own.
LAUNCHER = re.compile(
    rb"x(#!\S+/bin/python)\n.*^from (\S+) import (\w+)$.*^    sys\.exit\((\S+)\(\)\)$",
    re.MULTILINE | re.DOTALL,
)

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


def rows(found: dict[str, str | bytes], record: str) -> dict[str, tuple[str, str]]:
    """Return what a RECORD says, by places in the prefix; each place must have one line."""
    content = found[record]
    assert isinstance(content, bytes)
    listed = list(csv.reader(io.StringIO(content[1:].decode())))
    packages = record.rsplit("/", 2)[0]
    said = {os.path.normpath(f"{packages}/{path}"): (sha, size) for path, sha, size in listed}
    assert len(said) == len(listed)
    return said


def row(content: str | bytes) -> tuple[str, str]:
    """Return what RECORD must say of a file."""
    assert isinstance(content, bytes)
    return digest(content[1:]), str(len(content) - 1)


def launcher(content: str | bytes) -> tuple[bytes, ...] | None:
    """Return what counts in a script of an entry point; None if it is none."""
    found = LAUNCHER.fullmatch(content.rstrip(b"\n")) if isinstance(content, bytes) else None
    return found.groups() if found else None


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

    assert ours.keys() - theirs.keys() == set()
    more = theirs.keys() - ours.keys()
    assert [place for place in more if THEIRS.fullmatch(place) is None] == []
    records = [place for place in ours if place.endswith(".dist-info/RECORD")]
    assert len(records) == len(lock.packages)
    worded = set()
    for place in ours.keys() - set(records):
        if ours[place] == theirs[place] or DIFFERENT.fullmatch(place):
            continue
        assert launcher(ours[place]) == launcher(theirs[place]) is not None, place
        worded.add(place)
    assert worded  # there are scripts

    listed = {}
    for record in records:
        said, uvs = rows(ours, record), rows(theirs, record)
        assert {place for place in uvs if place not in more} == said.keys()
        for place in said:
            if place not in worded and not place.endswith(".dist-info/INSTALLER"):
                assert said[place] == uvs[place]
        listed.update(said)
    # all that is there but the environment itself, and each line is true
    links = {place for place in ours if isinstance(ours[place], str)}
    assert ours.keys() - listed.keys() == links | {"pyvenv.cfg"}
    assert [
        place for place in listed.keys() - set(records) if listed[place] != row(ours[place])
    ] == []
