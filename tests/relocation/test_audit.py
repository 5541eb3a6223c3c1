"""The pass over a prefix: everything once, a manifest that can be computed by hand, a state."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envbuild.relocation import audit
from tests import manifest, projects
from tests.relocation.corpus import subject

PACKAGES = f"lib/python{projects.MINOR}/site-packages"
NAMES = st.text(
    st.characters(exclude_characters="\0/", codec="utf-8"), min_size=1, max_size=20
).filter(lambda name: name not in (".", "..") and len(name.encode()) < 200)


def lay_out(folder: Path) -> Path:
    for path, content in {
        "bin/tool": "#!/bin/sh\n",
        f"{PACKAGES}/pure/__init__.py": "X = 1\n",
        f"{PACKAGES}/pure/__pycache__/__init__.cpython-399.pyc": "x",
        f"{PACKAGES}/données\n.txt": "é",
    }.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(content)
    (folder / "lib64").symlink_to("lib")
    (folder / "gone").symlink_to("nowhere")
    return folder


def test_every_path_once_and_no_link_followed(tmp_path: Path) -> None:
    prefix = lay_out(tmp_path / "prefix")
    (prefix / "lib/round").symlink_to("..")
    paths = list(audit.walk(str(prefix)))
    expected = {
        os.path.relpath(f"{folder}/{name}", prefix)
        for folder, folders, files in os.walk(prefix)
        for name in (*folders, *files)
    }
    assert len(paths) == len(set(paths))
    assert set(paths) == expected


def test_the_manifest_is_the_one_of_the_description(tmp_path: Path) -> None:
    prefix = lay_out(tmp_path / "prefix")
    totals: list[int] = []
    calls: list[int] = []

    @contextmanager
    def watch(total: int) -> Iterator[Callable[[int], None]]:
        totals.append(total)
        yield calls.append

    found = audit.audit(subject(prefix), watch=watch, with_state=True)
    assert found.manifest_sha256 == manifest.digest(prefix)
    assert totals == [sum(calls)] == [found.files] == [len(list(audit.walk(str(prefix))))]
    assert found.state == audit.state(str(prefix))
    # another path, other times, other byte code: the same manifest
    subprocess.run(["cp", "-r", prefix, tmp_path / "copy"], check=True)
    (tmp_path / "copy" / f"{PACKAGES}/pure/__pycache__/more.pyc").write_text("")
    for path in prefix.rglob("*"):
        if not path.is_symlink():
            (tmp_path / "copy" / path.relative_to(prefix)).chmod(path.stat().st_mode)
    assert audit.audit(subject(tmp_path / "copy")).manifest_sha256 == found.manifest_sha256


@settings(max_examples=20)
@given(st.dictionaries(NAMES, st.binary(max_size=20), max_size=6))
def test_the_manifest_of_any_names(
    tmp_path_factory: pytest.TempPathFactory, files: dict[str, bytes]
) -> None:
    prefix = tmp_path_factory.mktemp("prefix")
    for name, content in files.items():
        (prefix / name).write_bytes(content)
    assert audit.audit(subject(prefix)).manifest_sha256 == manifest.digest(prefix)


def test_the_state_changes_with_what_is_there(tmp_path: Path) -> None:
    prefix = lay_out(tmp_path / "prefix")
    seen = {audit.state(str(prefix))}

    def another() -> bool:
        state = audit.state(str(prefix))
        new = state not in seen
        seen.add(state)
        return new

    assert not another()
    (prefix / f"{PACKAGES}/pure/__pycache__/more.pyc").write_text("")
    (prefix / "empty").mkdir()
    assert not another()
    os.utime(prefix / "bin/tool", (1, 1))  # the same at another time
    assert another()
    (prefix / "bin/tool").chmod(0o700)
    assert another()
    (prefix / "new").write_text("")
    assert another()
    (prefix / "new").rename(prefix / "newer")
    assert another()
    (prefix / "newer").unlink()
    (prefix / "lib64").unlink()
    assert another()


def test_the_same_in_one_process_and_in_many(tmp_path: Path) -> None:
    prefix = lay_out(tmp_path / "prefix")
    for number in range(200):
        (prefix / f"stray{number}.txt").write_text(str(number))
    one = audit.audit(subject(prefix), jobs=1)
    many = audit.audit(subject(prefix), jobs=4)
    assert one == many


def test_two_names_of_one_file(tmp_path: Path) -> None:
    prefix = lay_out(tmp_path / "prefix")
    (prefix / "again").hardlink_to(prefix / "bin/tool")
    codes = [one.code for one in audit.audit(subject(prefix)).findings]
    assert "M005" not in codes
    (tmp_path / "outside").hardlink_to(prefix / "bin/tool")
    (one,) = (one for one in audit.audit(subject(prefix)).findings if one.code == "M005")
    assert (one.where, one.expected, one.found) == (
        f"{prefix}/again",
        "2 names, in the prefix",
        "3 names",
    )
    assert audit.audit(subject(prefix, links=True)).findings != ()
    allowed = audit.audit(subject(prefix, links=True)).findings
    assert [one.code for one in allowed if one.code == "M005"] == []
