"""Work over several processes: all of it once, whatever goes wrong, and nothing left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envbuild.errors import EnvbuildError
from envbuild.forked import cores, over
from envbuild.granted import granted

ROOT = Path(__file__).parents[1]


def run(code: str, tmp_path: Path, *, timeout: float = 60) -> subprocess.CompletedProcess[str]:
    """Run code in a process of its own: the tests' own has threads, and so would not fork."""
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(code))
    return subprocess.run(
        [sys.executable, script],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def children(process: int) -> list[int]:
    tasks = Path(f"/proc/{process}/task/{process}/children")
    return [int(child) for child in tasks.read_text().split()]


@pytest.mark.parametrize("jobs", [1, 2, 3, 8])
@pytest.mark.parametrize(
    ("count", "batch"), [(0, 1), (1, 1), (7, 3), (100, 1), (100, 48), (5, 100)]
)
def test_everything_once(tmp_path: Path, jobs: int, count: int, batch: int) -> None:
    done = run(
        f"""
        import os
        from envbuild.forked import over
        with over(lambda n: (n * n, os.getpid()), range({count}), doing="x", jobs={jobs},
                  batch={batch}) as results:
            lists = list(results)
        for some in lists:
            assert 1 <= len(some) <= {batch}
        found = [one for some in lists for one in some]
        assert sorted(square for square, _ in found) == [n * n for n in range({count})]
        # where there is one batch at most, it is not worth a process
        here = {jobs} == 1 or {count} <= {batch}
        for _, process in found:
            assert (process == os.getpid()) == here
        """,
        tmp_path,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@settings(max_examples=25)
@given(st.lists(st.integers(), max_size=50), st.integers(1, 60), st.integers(1, 4))
def test_in_this_process_where_it_has_threads(items: list[int], batch: int, jobs: int) -> None:
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait)
    thread.start()
    try:
        with over(lambda n: (n, os.getpid()), items, doing="x", jobs=jobs, batch=batch) as lists:
            found = [one for some in lists for one in some]
    finally:
        stop.set()
        thread.join()
    assert found == [(n, os.getpid()) for n in items]


def test_the_cores_granted(monkeypatch: pytest.MonkeyPatch) -> None:
    assert cores() == granted().cpus
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", "1")
    assert cores() == 1


def test_an_error_in_this_process() -> None:
    def fail(_item: int) -> int:
        raise EnvbuildError("wrong")

    with (
        pytest.raises(EnvbuildError, match="wrong"),
        over(fail, [1], doing="x", jobs=1, batch=1) as lists,
    ):
        list(lists)


@pytest.mark.parametrize(
    ("raised", "caught"),
    [
        (
            'CheckFailedError("wrong", where="w", expected="e", found="f", mend="m", detail="d")',
            "CheckFailedError|wrong|w|e|f|m|d",
        ),
        ('StepError("wrong")', "StepError|wrong|None|None|None|None|None"),
        ('FileNotFoundError(2, "gone", "/f")', "FileNotFoundError|[Errno 2] gone: '/f'"),
        ('PermissionError(13, "kept out", "/f")', "PermissionError|[Errno 13] kept out: '/f'"),
    ],
)
def test_what_went_wrong_in_a_process(tmp_path: Path, raised: str, caught: str) -> None:
    done = run(
        f"""
        import multiprocessing
        from envbuild.errors import CheckFailedError, EnvbuildError, StepError
        from envbuild.forked import over
        def work(n):
            if n == 13:
                raise {raised}
            return n
        try:
            with over(work, range(50), doing="x", jobs=2, batch=1) as lists:
                for some in lists:
                    pass
        except EnvbuildError as error:
            facts = (error.what, error.where, error.expected, error.found, error.mend,
                     error.detail)
            print(type(error).__name__, *facts, sep="|")
        except OSError as error:
            print(type(error).__name__, error, sep="|")
        assert multiprocessing.active_children() == []
        """,
        tmp_path,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{caught}\n", "")


@pytest.mark.parametrize(
    ("death", "found"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", "killed by SIGKILL"),
        ("os.kill(os.getpid(), signal.SIGSEGV)", "killed by SIGSEGV"),
        ("os._exit(7)", "exit status 7"),
        ("raise KeyError(n)", "exit status 1"),
    ],
)
def test_a_process_that_dies(tmp_path: Path, death: str, found: str) -> None:
    done = run(
        f"""
        import multiprocessing, os, signal
        from envbuild.errors import StepError
        from envbuild.forked import over
        def work(n):
            if n == 13:
                {death}
            return n
        try:
            with over(work, range(500), doing="reading", jobs=3, batch=1) as lists:
                for some in lists:
                    pass
        except StepError as error:
            print(error)
        assert multiprocessing.active_children() == []
        """,
        tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == (
        f"reading: a process of it died\n  found: {found}\n"
        "  mend: see whether memory ran out, or whether files changed meanwhile\n"
    )


def test_leaving_early_ends_all(tmp_path: Path) -> None:
    done = run(
        """
        import multiprocessing, time
        from envbuild.forked import over
        begun = time.monotonic()
        with over(time.sleep, [0.01, *[100] * 50], doing="x", jobs=3, batch=1) as lists:
            print(next(lists))
        assert multiprocessing.active_children() == []
        assert time.monotonic() - begun < 50
        """,
        tmp_path,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "[None]\n", "")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_interrupted_and_nothing_left(tmp_path: Path, number: signal.Signals) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent(
            """
            import time
            from envbuild.forked import over
            with over(lambda n: n and time.sleep(100), range(50), doing="x", jobs=3,
                      batch=1) as lists:
                for some in lists:
                    print(some, flush=True)
            """
        )
    )
    with subprocess.Popen(
        [sys.executable, script],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "[0]\n"
        workers = children(process.pid)
        assert len(workers) == 3
        # a terminal's Ctrl-C goes to all of them, a kill to the one alone
        if number == signal.SIGINT:
            os.killpg(process.pid, number)
        else:
            process.kill()
        out, err = process.communicate(timeout=30)
    assert out == ""
    assert process.returncode in (-number, 128 + number, 1)
    assert err.count("Traceback") == (1 if number == signal.SIGINT else 0)
    assert err.endswith("KeyboardInterrupt\n") or number != signal.SIGINT
    for worker in workers:
        wait_until_gone(worker)


def wait_until_gone(process: int) -> None:
    """Wait for the end of a process that is not this one's child."""
    try:
        descriptor = os.pidfd_open(process)
    except ProcessLookupError:
        return
    try:
        state = Path(f"/proc/{process}/stat")
        signal.pidfd_send_signal(descriptor, 0)
        for _ in range(3000):
            if not state.exists() or state.read_text().rpartition(")")[2].split()[0] in "ZX":
                return
            threading.Event().wait(0.01)
    except (ProcessLookupError, FileNotFoundError):
        return
    finally:
        os.close(descriptor)
    raise AssertionError(f"{process} is still there")
