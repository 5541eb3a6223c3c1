"""``envbuild hash`` as a person and a script use it."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path
from typing import IO

import pytest

from tests.conftest import Envbuild

# Of nix hash path
HELLO = "sha256-HDfQGvQL4ugGkd48w99EN3ppmvuxfGjwgJZLL9Bx/BM="
EMPTY = "sha256-d6xi4mKdjkX2JFicDIv5niSzpyI0m/Hnm8GGAIU04kY="


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """A folder with a file, a folder and a link."""
    folder = tmp_path / "here"
    (folder / "models").mkdir(parents=True)
    (folder / "models" / "a").write_text("hello\n")
    (folder / "empty").touch()
    (folder / "link").symlink_to("models")
    return folder


def start(
    *arguments: str, cwd: Path, stdout: int | IO[bytes], stderr: int | None = None
) -> subprocess.Popen[str]:
    """Start the command where the fixture is not enough: output as bytes, a terminal, Ctrl-C."""
    return subprocess.Popen(
        [sys.executable, "-m", "envbuild", "hash", *arguments],
        cwd=cwd,
        env={**os.environ, "TERM": "xterm", "PYTHONPATH": str(Path(__file__).parents[2])},
        stdout=stdout,
        stderr=stderr,
        text=True,
    )


def test_one_path_gives_its_digest_alone(here: Path, envbuild: Envbuild) -> None:
    done = envbuild("hash", "empty", cwd=here)
    assert (done.code, done.out, done.err) == (0, f"{EMPTY}\n", "")
    assert envbuild("hash", "--list", "empty", cwd=here).out == f"{EMPTY}  empty\n"


def test_a_slash_follows_a_link(here: Path, envbuild: Envbuild) -> None:
    lines = envbuild("hash", "models", "link", "link/", cwd=here).out.splitlines()
    digests, names = zip(*(line.split("  ") for line in lines), strict=True)
    assert names == ("models", "link", "link/")
    assert digests[0] == digests[2] != digests[1]


def test_json(here: Path, envbuild: Envbuild) -> None:
    done = envbuild("hash", "--json", "empty", "models/a", cwd=here)
    assert json.loads(done.out) == {
        "schema": "envbuild.hash/1",
        "paths": [{"path": "empty", "digest": EMPTY}, {"path": "models/a", "digest": HELLO}],
    }


AWKWARD = (b"a b ", b" ", b"#", b"-", b"\xff", b"new\nline", b"back\\slash", b"cr\r", b"sha256-  x")


def test_what_is_written_can_be_checked(here: Path, envbuild: Envbuild, tmp_path: Path) -> None:
    names = [os.fsdecode(name) for name in AWKWARD]
    for name in names:
        (here / name).write_text(name, errors="surrogateescape")
    with (here / "LIST").open("wb") as file:
        running = start("--", *names, "link", "link/", "models", cwd=here, stdout=file)
        assert running.wait() == 0
    # from another folder: names are relative to the list's
    done = envbuild("hash", "--check", str(here / "LIST"), "--json", cwd=tmp_path)
    assert (done.code, done.err) == (0, "")
    report = json.loads(done.out)
    assert [one["path"] for one in report["paths"]] == [*names, "link", "link/", "models"]
    assert {one["state"] for one in report["paths"]} == {"OK"}


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_check_says_what_is_not_as_listed(end: str, here: Path, envbuild: Envbuild) -> None:
    os.mkfifo(here / "fifo")
    names = ("empty", "models/a", "gone", "fifo")
    lines = ["# what we train from", "", *(f"{EMPTY}  {name}" for name in names)]
    (here / "LIST").write_bytes(end.join(lines).encode())
    done = envbuild("hash", "--check", "LIST", cwd=here)
    assert done.code == 1
    assert done.out == (
        "empty: OK\n"
        "models/a: FAILED\n"
        f"  expected: {EMPTY}\n"
        f"  found: {HELLO}\n"
        "gone: missing\n"
        "fifo: unreadable\n"
        "  ./fifo: this kind of file has no digest\n"
        "    expected: a regular file, folder or symlink\n"
        "    found: a FIFO\n"
        "    mend: remove it, or hash a folder without it\n"
    )
    assert done.err == (
        "error: LIST: 3 of 4 paths are not as listed\n"
        "  mend: fetch them again, or write the list anew if the change is wanted\n"
    )


def test_check_as_json_fails_too(here: Path, envbuild: Envbuild) -> None:
    (here / "LIST").write_text(f"{EMPTY}  gone\n")
    done = envbuild("hash", "--check", "LIST", "--json", cwd=here)
    assert done.code == 1
    assert json.loads(done.out) == {
        "schema": "envbuild.hash/1",
        "list": "LIST",
        "paths": [
            {
                "path": "gone",
                "state": "missing",
                "expected": EMPTY,
                "found": None,
                "problem": None,
            }
        ],
    }


def test_a_malformed_list(here: Path, envbuild: Envbuild) -> None:
    (here / "LIST").write_text(f"{EMPTY}  empty\n{EMPTY}\n")
    done = envbuild("hash", "--check", "LIST", cwd=here)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("error: LIST:2: this is no line of a list of digests\n")


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        ([], 2, "name a PATH to hash"),
        (["missing"], 2, "error: missing: there is nothing to hash"),
        (["/dev/null"], 2, "error: /dev/null: this kind of file has no digest"),
        (["--check", "missing"], 2, "'missing' does not exist"),
        (["--check", "empty"], 2, "error: empty: nothing is listed"),
        (["--check", "empty", "models"], 2, "--check takes neither PATH nor --list"),
        (["--check", "empty", "--list"], 2, "--check takes neither PATH nor --list"),
        (["--jobs", "0", "empty"], 2, "0 is not in the range"),
    ],
)
def test_bad_usage(
    arguments: list[str], code: int, said: str, here: Path, envbuild: Envbuild
) -> None:
    done = envbuild("hash", *arguments, cwd=here)
    assert (done.code, done.out) == (code, "")
    assert said in done.err


def test_a_terminal_sees_how_it_advances(here: Path) -> None:
    (here / "big").touch()
    os.truncate(here / "big", 1 << 30)
    ours, theirs = pty.openpty()
    running = start("big", cwd=here, stdout=subprocess.PIPE, stderr=theirs)
    os.close(theirs)
    shown = b""
    while chunk := _read(ours):
        shown += chunk
    os.close(ours)
    out, _ = running.communicate()
    assert running.returncode == 0
    assert out.startswith("sha256-")
    assert b"hashing" in shown
    assert b"/1.1 GB" in shown


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 1 << 16)
    except OSError:  # the other side is closed
        return b""


def test_an_interrupt_ends_it_at_once(here: Path) -> None:
    for name in ("one", "two"):
        (here / name).touch()
        os.truncate(here / name, 1 << 40)
    ours, theirs = pty.openpty()
    with start("one", "two", cwd=here, stdout=subprocess.PIPE, stderr=theirs) as running:
        os.close(theirs)
        _read(ours)  # the bar: it has begun
        running.send_signal(signal.SIGINT)
        shown = b""
        while chunk := _read(ours):
            shown += chunk
        os.close(ours)
        assert running.wait(timeout=60) == 130
    assert b"interrupted" in shown
    assert b"Traceback" not in shown
