"""The same work on many things, over the cores granted, in processes that share what is known.

Processes, since reading ten thousands of small files is work for the interpreter, which threads
would do one after the other; by fork, since what the work needs is then there without being sent.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import connection
from typing import TYPE_CHECKING, TypeVar

from envbuild import process
from envbuild.errors import EnvbuildError, StepError, restored
from envbuild.granted import granted

if TYPE_CHECKING:
    from multiprocessing.sharedctypes import Synchronized

T = TypeVar("T")
R = TypeVar("R")

_CONTEXT = multiprocessing.get_context("fork")


def cores() -> int:
    """Return how many cores this process has been granted."""
    return granted().cpus


@contextmanager
def over(
    work: Callable[[T], R], items: Sequence[T], *, doing: str, jobs: int | None = None, batch: int
) -> Iterator[Iterator[list[R]]]:
    """Work on many things at once, each of them once.

    Where it is not worth it, or where this process has threads, which no fork takes along, all
    is done in this process. Fork first and show a progress bar then: bars are threads.

    Args:
        work: what is done with one of them; it may rely on everything that is known here.
        items: the things, the heaviest first.
        doing: what is being done, for messages.
        jobs: how many processes; the cores granted if not given.
        batch: how many things are given out at once.

    Yields:
        What came out, a list for each batch, in no order.

    Raises:
        EnvbuildError: as ``work``; or a process died.
        OSError: as ``work``.
    """
    jobs = min(jobs or cores(), -(-len(items) // batch))
    if jobs <= 1 or threading.active_count() > 1:
        yield (
            [work(item) for item in items[at : at + batch]] for at in range(0, len(items), batch)
        )
        return
    gc.collect()
    gc.freeze()  # what is collected would be copied, page by page
    counter = _CONTEXT.Value("q", 0)
    workers = {}
    try:
        with _uninterrupted():
            for _ in range(jobs):
                receiver, sender = _CONTEXT.Pipe(duplex=False)
                worker = _CONTEXT.Process(
                    target=_work,
                    args=(work, items, batch, counter, sender, os.getpid()),
                    daemon=True,
                )
                worker.start()
                sender.close()  # so that a worker that dies ends the pipe
                workers[receiver] = worker
        yield _results(workers, doing)
    finally:
        gc.unfreeze()
        for receiver, worker in workers.items():
            worker.kill()
            worker.join()
            receiver.close()


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Hold interrupts back: a worker that has just begun does not ignore them yet."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _work(
    work: Callable[[T], R],
    items: Sequence[T],
    batch: int,
    counter: Synchronized[int],
    sender: connection.Connection,
    parent: int,
) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends this
    process.die_with_parent()
    if os.getppid() != parent:
        return
    try:
        while True:
            with counter.get_lock():
                at = counter.value
                counter.value = at + batch
            if at >= len(items):
                sender.send(None)
                return
            sender.send([work(item) for item in items[at : at + batch]])
    except EnvbuildError as error:
        sender.send(error.document())
    except OSError as error:
        sender.send(error)


def _results(
    workers: dict[connection.Connection, multiprocessing.context.ForkProcess], doing: str
) -> Iterator[list[R]]:
    waiting = list(workers)
    while waiting:
        for ready in connection.wait(waiting):
            assert isinstance(ready, connection.Connection)
            try:
                told = ready.recv()
            except EOFError:
                worker = workers[ready]
                worker.join()
                raise StepError(
                    f"{doing}: a process of it died",
                    found=_ended(worker.exitcode),
                    mend="see whether memory ran out, or whether files changed meanwhile",
                ) from None
            if told is None:
                waiting.remove(ready)
            elif isinstance(told, dict):
                raise restored(told)
            elif isinstance(told, OSError):
                raise told
            else:
                yield told


def _ended(status: int | None) -> str:
    if status is not None and status < 0:
        return f"killed by {signal.Signals(-status).name}"
    return f"exit status {status}"
