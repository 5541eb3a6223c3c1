"""What the benchmarks share: two commands in turn, on the same input, and their ratio."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[1]
ENVBUILD = [sys.executable, "-m", "envbuild", "--project", str(PROJECT)]


def run(command: Sequence[str | Path], env: Mapping[str, str] | None = None) -> float:
    """Run a command and return its seconds; its output is shown if it fails."""
    begun = time.perf_counter()
    done = subprocess.run(
        list(map(str, command)),
        env={**os.environ, "PYTHONPATH": str(PROJECT), **(env or {})},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    seconds = time.perf_counter() - begun
    if done.returncode != 0:
        print(done.stdout, done.stderr, sep="\n", file=sys.stderr)
        sys.exit(f"failed: {' '.join(map(str, command))}")
    return seconds


def compare(
    title: str, ours: Callable[[], float], peer: Callable[[], float], *, rounds: int, most: float
) -> None:
    """Time two things in turn and print medians, the median of the ratios and the goal.

    Args:
        title: what is compared.
        ours: does the work once and returns its seconds.
        peer: likewise, the other way.
        rounds: how often each is done, after one round that is not counted.
        most: the ratio that we want to stay below.
    """
    pairs = [(ours(), peer()) for _ in range(rounds + 1)][1:]
    first = statistics.median(a for a, _ in pairs)
    second = statistics.median(b for _, b in pairs)
    ratio = statistics.median(a / b for a, b in pairs)
    print(f"{title}: {first:.2f} s against {second:.2f} s, ratio {ratio:.2f} (goal: {most})")


def absolute(title: str, command: Sequence[str | Path], *, rounds: int, most: float) -> None:
    """Time a whole process and print its median and its goal, in seconds."""
    run(command)
    seconds = [run(command) for _ in range(rounds)]
    print(f"{title}: {statistics.median(seconds):.3f} s (goal: {most})")
