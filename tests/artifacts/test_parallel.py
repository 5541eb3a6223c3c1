"""Work is done once each, in order of its begin, and given up without waiting."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from envbuild.artifacts.parallel import Cancelled, run
from envbuild.errors import StepError


def test_everything_is_done_once() -> None:
    done: list[int] = []
    run(done.append, range(100), jobs=8)
    assert sorted(done) == list(range(100))
    run(done.append, [], jobs=8)
    assert len(done) == 100


def test_one_thread_keeps_the_order() -> None:
    done: list[int] = []
    run(done.append, range(10), jobs=1)
    assert done == list(range(10))


def test_the_first_failure_ends_it_at_once() -> None:
    stalled = threading.Event()
    begun: list[int] = []

    def work(item: int) -> None:
        begun.append(item)
        if item == 0:
            stalled.wait()
        raise StepError(f"failure {item}")

    try:
        with pytest.raises(StepError, match="failure 1"):
            run(work, range(9), jobs=2)
        assert begun == [0, 1]
    finally:
        stalled.set()


def test_operating_system_errors_are_passed_on() -> None:
    with pytest.raises(FileNotFoundError):
        run(lambda path: path.unlink(), [Path("/nonexistent/file")], jobs=1)


@pytest.mark.parametrize("items", [1, 9])
@pytest.mark.parametrize("error", [ZeroDivisionError, Cancelled])
def test_work_that_ends_otherwise_is_no_success(
    error: type[Exception], items: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[threading.Thread | None] = []
    monkeypatch.setattr(threading, "excepthook", lambda args: ended.append(args.thread))
    before = set(threading.enumerate())

    def work(_item: int) -> None:
        raise error

    with pytest.raises(RuntimeError, match="a thread ended before its work was done"):
        run(work, range(items), jobs=2)
    for thread in set(threading.enumerate()) - before:
        thread.join()
    assert bool(ended) == (error is ZeroDivisionError)
