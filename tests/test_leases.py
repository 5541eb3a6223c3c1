from __future__ import annotations

import os
import time
from datetime import timedelta
from pathlib import Path

import pytest
from msgspec.structs import replace

from envbuild import leases
from envbuild import owner as owners
from envbuild.errors import PreflightError
from tests.test_owner import INVALID, ended, install_slurm, line, on_a_node, python, started

# takes a lease and becomes another program, as `envbuild exec` does
RUNNING = """
import os, sys
from pathlib import Path
from envbuild import leases, owner
leases.take(Path(sys.argv[1]), owner.current("envbuild exec core"))
os.execvp("sh", ["sh", "-c", "echo running; read end"])
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "leases" / "core"


def test_taken_and_dropped(folder: Path) -> None:
    assert leases.holders(folder) == []
    me = owners.current("envbuild exec core")
    lease = leases.take(folder, me)
    assert lease == folder / f"{me.token}.json"
    assert list(folder.iterdir()) == [lease]
    assert lease.stat().st_mode & 0o777 == 0o644
    assert leases.holders(folder) == [me]
    leases.drop(lease)
    leases.drop(lease)
    assert leases.holders(folder) == []


def test_holds_while_the_program_runs_that_the_process_became(folder: Path) -> None:
    with started(python(RUNNING, folder)) as child:
        assert line(child) == "running"
        (holder,) = leases.holders(folder)
        assert (holder.pid, holder.command) == (child.pid, "envbuild exec core")
        assert Path(f"/proc/{child.pid}/comm").read_text() == "sh\n"
        child.kill()
        child.wait()
        assert leases.holders(folder) == []
        assert list(folder.iterdir()) == []


def test_the_undecidable_hold_and_the_dead_do_not(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = f'case "$*" in *--jobs=1) echo RUNNING;; *) {INVALID};; esac'
    install_slurm(monkeypatch, tmp_path, running)
    me = owners.current("x")
    elsewhere = replace(me, token=owners.new_token(), host="other", since=me.since + timedelta(1))
    first = replace(on_a_node("1"), since=me.since - timedelta(1))
    for owner in (elsewhere, first, me, on_a_node("2"), ended()):
        leases.take(folder, owner)
    assert leases.holders(folder) == [first, me, elsewhere]
    assert len(list(folder.iterdir())) == 3


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (b"", "an empty file"),
        (b"{}", "2 bytes of something else"),
    ],
)
def test_a_lease_of_nobody(folder: Path, data: bytes, found: str) -> None:
    leases.take(folder, ended())
    lease = folder / f"{'1' * 32}.json"
    lease.write_bytes(data)
    with pytest.raises(PreflightError) as caught:
        leases.holders(folder)
    assert str(caught.value).splitlines() == [
        f"{lease}: a lease does not say who uses the prefix",
        "  expected: an owner, as envbuild writes it",
        f"  found: {found}",
        "  mend: make sure that nothing runs from the prefix, then remove this file",
    ]
    assert lease.read_bytes() == data


def test_what_was_never_finished_goes_after_a_day(folder: Path) -> None:
    folder.mkdir(parents=True)
    young, old = folder / f".{'1' * 32}", folder / f".{'2' * 32}"
    young.touch()
    old.touch()
    os.utime(old, (time.time() - 86500, time.time() - 86500))
    assert leases.holders(folder) == []
    assert list(folder.iterdir()) == [young]


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError):
        leases.take(tmp_path / "file" / "core", owners.current("x"))


def test_taking_one_is_cheap(folder: Path) -> None:
    """`envbuild exec` has 50 ms for everything: no programs, no logs, no network."""
    code = """
import sys
before = set(sys.modules)
from pathlib import Path
from envbuild import leases, owner
leases.take(Path(sys.argv[1]), owner.current("x"))
heavy = {"subprocess", "logging", "tempfile", "random", "shutil", "socket", "ssl", "click", "rich"}
print(sorted(heavy & (set(sys.modules) - before)), flush=True)
"""
    with started(python(code, folder)) as child:
        assert line(child) == "[]"
    begun = time.monotonic()
    for _ in range(100):
        leases.take(folder, owners.current("x"))
    assert time.monotonic() - begun < 5
