"""Nothing is half made and nothing is lost: killed at every step, at random, on a full disk."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from tests.programs import require

HERE = Path(__file__).parents[2]
MODES = ["exchange", "renames", "in place"]
UNSHARE = ["unshare", "--user", "--map-root-user", "--mount"]


def crash(*arguments: str, wrapper: tuple[str, ...] = ()) -> dict[str, int]:
    """Play rounds; return how often which state was found, after no violation was."""
    done = subprocess.run(
        [*wrapper, sys.executable, "-m", "tests.prefix.crash", *arguments],
        cwd=HERE,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    *violations, counts = done.stdout.splitlines()
    assert violations == []
    found = ast.literal_eval(counts)
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize("mode", MODES)
def test_killed_after_every_named_step(tmp_path: Path, mode: str) -> None:
    found = crash("steps", mode, str(tmp_path), "4", "7")
    assert found["old, interrupted"] > 0
    assert found["new, interrupted"] > 0


@pytest.mark.parametrize("seed", ["1", "2"])
@pytest.mark.parametrize("mode", MODES)
def test_killed_at_a_hundred_random_moments(tmp_path: Path, mode: str, seed: str) -> None:
    found = crash("random", mode, str(tmp_path), "100", seed)
    assert sum(found.values()) == 100
    assert sum(count for state, count in found.items() if "interrupted" in state) > 20


@pytest.mark.parametrize("mode", MODES)
def test_a_disk_that_is_full_at_every_write(tmp_path: Path, mode: str) -> None:
    require("unshare", "util-linux")
    # a file system of its own, 1 MB large, which nobody else sees
    script = f'mount -t tmpfs -o size=1m tmpfs {tmp_path} && exec "$@"'
    found = crash(
        "full", mode, str(tmp_path), "40", "0", wrapper=(*UNSHARE, "sh", "-c", script, "sh")
    )
    assert found["old, interrupted"] > 5
    assert found["new"] > 5
