from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CODE = (
    "import sys; from envbuild import progress\n"
    "with progress.bar('counting', int(sys.argv[1]), unit='sheep') as advance: advance(1)\n"
)


LATER = (
    "from envbuild import progress\n"
    "with progress.bar('counting', None, unit='sheep') as advance: advance(3, total=7)\n"
)


def shown(term: str, total: int, code: str = CODE) -> str:
    """Return what a bar writes to a terminal."""
    ours, theirs = pty.openpty()
    try:
        subprocess.run(
            [sys.executable, "-c", code, str(total)],
            env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "TERM": term},
            stderr=theirs,
            check=True,
        )
        os.write(theirs, b"end")
        text = b""
        while not text.endswith(b"end"):
            text += os.read(ours, 4096)
    finally:
        os.close(ours)
        os.close(theirs)
    return text.decode()


def test_a_bar_on_a_terminal() -> None:
    assert "counting" in shown("xterm", 2)


def test_a_total_may_become_known_while_it_runs() -> None:
    assert "3/7" in shown("xterm", 0, LATER)


@pytest.mark.parametrize(("term", "total"), [("dumb", 2), ("xterm", 0)])
def test_no_bar_where_it_cannot_be_or_nothing_is_to_be_done(term: str, total: int) -> None:
    assert shown(term, total) == "end"
