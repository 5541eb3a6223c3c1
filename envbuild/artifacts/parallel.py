"""Work done by several threads that nobody has to wait for once it is given up."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable
from typing import TypeVar

from envbuild.errors import EnvbuildError

T = TypeVar("T")


class Cancelled(Exception):
    """The work that this thread does is no longer wanted."""


def run(work: Callable[[T], None], items: Iterable[T], *, jobs: int) -> None:
    """Call ``work`` with every item, in the given order, several at once.

    When one call fails, or the caller is interrupted, no further one starts and this returns at
    once, without waiting for those that have begun. An executor would wait, and so would Python's
    exit: for a minute, if a server is silent. The threads are daemons instead, so ``work`` must
    leave nothing behind when it is cut off, and may raise `Cancelled` when it learns of it.

    Args:
        work: what to do; it may raise EnvbuildError or OSError.
        items: what to do it with.
        jobs: how many threads to use at most.

    Raises:
        EnvbuildError: the first that ``work`` raised.
        OSError: likewise.
    """
    todo: queue.SimpleQueue[T] = queue.SimpleQueue()
    ended: queue.SimpleQueue[Exception | None] = queue.SimpleQueue()
    for item in items:
        todo.put(item)
    stop = threading.Event()

    def serve() -> None:
        # what stands if an exception comes that is a defect: the thread prints its traceback
        outcome: Exception | None = RuntimeError("a thread ended before its work was done")
        try:
            while not stop.is_set():
                try:
                    item = todo.get_nowait()
                except queue.Empty:
                    outcome = None
                    return
                work(item)
        except (EnvbuildError, OSError) as error:
            outcome = error
        except Cancelled:
            return
        finally:
            ended.put(outcome)

    threads = [threading.Thread(target=serve, daemon=True) for _ in range(min(jobs, todo.qsize()))]
    try:
        for thread in threads:
            thread.start()
        for _ in threads:
            outcome = ended.get()
            if outcome is not None:
                raise outcome
    finally:
        stop.set()
