"""Progress for people: bars with rates and estimates on a terminal, silence elsewhere."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol


class Advance(Protocol):
    """Tells a bar how much was just done and, where it becomes known later, of how much."""

    def __call__(self, done: int, /, *, total: int | None = None) -> None:
        """Tell it; from any thread."""


def _nothing(_done: int, /, *, total: int | None = None) -> None:
    pass


@contextmanager
def bar(what: str, total: int | None, *, unit: str = "bytes") -> Iterator[Advance]:
    """Show a bar on stderr while the block runs, if stderr is a terminal that can.

    Nix gives its builds a terminal, whose text goes into a log: ``TERM=dumb`` says so.

    Args:
        what: what is being done, a few words.
        total: how much there is to do, in ``unit``; None where it is not known.
        unit: ``bytes`` (shown as MB and MB/s) or the name of the things counted.

    Yields:
        A function to call with the amount just done, from any thread.
    """
    if not sys.stderr.isatty() or os.environ.get("TERM") == "dumb" or total == 0:
        yield _nothing
        return
    # rich takes 60 ms to import, which only a person at a terminal should pay
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    amount = (
        (DownloadColumn(), TransferSpeedColumn()) if unit == "bytes" else (MofNCompleteColumn(),)
    )
    # a total may become known later
    left = (TimeRemainingColumn(),) if total is not None or unit != "bytes" else ()
    passed = (TimeElapsedColumn(),) if total is None else ()
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        *amount,
        *passed,
        *left,
        console=Console(stderr=True),
        transient=True,
    ) as display:
        task = display.add_task(what, total=total)
        lock = threading.Lock()

        def advance(done: int, /, *, total: int | None = None) -> None:
            with lock:
                if total is not None:
                    display.update(task, total=total)
                display.advance(task, done)

        yield advance
