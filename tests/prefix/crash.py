"""Replace a toy prefix, stop that at some moment, recover, and look at what is left.

    python -m tests.prefix.crash steps|random|full MODE FOLDER ROUNDS SEED

A program of its own with one thread, so that it can fork: a round takes milliseconds. Prints a
line for each violation, then how often which state was found.
"""

from __future__ import annotations

import collections
import contextlib
import errno
import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

from envbuild.prefix import journal, receipt, transaction
from envbuild.prefix.aside import Mode
from envbuild.prefix.interpreter import Interpreter
from envbuild.prefix.receipt import Receipt

ENVIRONMENT = "toy"
FILES = 12


def made(prefix: Path, text: str) -> Receipt:
    """Return a receipt that says which prefix it speaks of."""
    return Receipt(
        environment=ENVIRONMENT,
        site="local",
        root="/",
        prefix=str(prefix),
        rehearsal=False,
        lock_sha256=text,
        declared_sha256="",
        interpreter=Interpreter("/usr/bin/python3", "3", "fallback"),
        distributions=(),
        host=receipt.Host("", "", ""),
        audit=receipt.Audit(0, 0, (), (), 0.0),
        checks=receipt.Checks(0, 0, 0.0),
        seconds={},
        tools={},
        created="",
        mode="exchange",
        manifest_sha256="d" * 64,
        written={},
        modes={},
        notes=(),
        look={},
    )


def fill(folder: Path, text: str) -> None:
    """Write the files of a prefix, one after the other."""
    (folder / "bin").mkdir(parents=True, exist_ok=True)
    for number in range(FILES):
        (folder / "bin" / str(number)).write_text(text)


def content(folder: Path) -> str | None:
    """Return which prefix stands at a path: its text, None if there is none, or that it is torn."""
    if not folder.exists():
        return None
    texts = [path.read_text() for path in sorted((folder / "bin").glob("*"))]
    whole = len(texts) == FILES and len(set(texts)) == 1
    return texts[0] if whole else f"torn: {texts}"


def replace(root: Path, mode: Mode, text: str) -> None:
    """Do what `envbuild create` does, with a build of a few files."""

    def build(_work: Path, staging: Path | None) -> Receipt:
        fill(staging or root / "toy", text)
        return made(root / "toy", text)

    @contextlib.contextmanager
    def alone() -> Iterator[None]:
        yield

    bookkeeping = root / ".envbuild"
    journal.recover(bookkeeping, ENVIRONMENT)
    transaction.replace(
        bookkeeping, ENVIRONMENT, root / "toy", mode=mode, build=build, swapping=alone
    )


def killed(work: Callable[[], object], after: float | None) -> bool:
    """Run something in a process of its own, killed after some seconds; say whether it was."""
    status = forked(work, after)
    if os.WIFEXITED(status) and os.WEXITSTATUS(status) != 0:
        sys.exit("the replacement failed by itself")
    return os.WIFSIGNALED(status)


def forked(work: Callable[[], object], after: float | None = None) -> int:
    """Run something in a process of its own and return its wait status; 3 is a full disk."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            work()
            status = 0
        except OSError as error:
            status = 3 if error.errno == errno.ENOSPC else 1
        finally:
            os._exit(status)
    if after is not None:
        time.sleep(after)
        os.kill(pid, signal.SIGKILL)
    return os.waitpid(pid, 0)[1]


def judge(root: Path, *, old: bool) -> tuple[str, list[str]]:
    """Look at what is left after recovery: the state's name, and what is wrong with it."""
    bookkeeping = root / ".envbuild"
    here = content(root / "toy")
    archived = [content(path) for path in (bookkeeping / "archive").glob("*")]
    known = receipt.read(bookkeeping, ENVIRONMENT)
    wrong = []
    if here not in ("new", "old" if old else None):
        wrong.append(f"at the path: {here}")
    if here == "new" and archived != (["old"] if old else []):
        wrong.append(f"the old prefix is lost: {archived}")
    if here == "old" and archived:
        wrong.append(f"archived although it is in place: {archived}")
    if (known.lock_sha256 if known else None) != here:
        wrong.append(f"the receipt speaks of {known and known.lock_sha256}, not of {here}")
    if journal.interrupted(bookkeeping):
        wrong.append("a journal is left")
    return str(here), wrong


def prepare(root: Path, *, old: bool) -> None:
    """Lay out a root with an old prefix, or without one."""
    shutil.rmtree(root, ignore_errors=True)
    (root / ".envbuild").mkdir(parents=True)
    if old:
        fill(root / "toy", "old")
        receipt.write(root / ".envbuild", made(root / "toy", "old"))


def play(root: Path, mode: Mode, step: str, chance: random.Random, whole: float) -> list[str]:
    """Kill once, after a step or at a random moment; return state and violations."""
    old = chance.random() < 0.7
    prepare(root, old=old)
    os.environ["ENVBUILD_KILL_AFTER"] = step
    after = None if step else chance.uniform(0, 1.1 * whole)
    died = killed(lambda: replace(root, mode, "new"), after)
    os.environ["ENVBUILD_KILL_AFTER"] = ""
    if chance.random() < 0.5:
        # recovery is killed too
        pause = chance.uniform(0, 0.3 * whole)
        killed(lambda: journal.recover(root / ".envbuild", ENVIRONMENT), pause)
    return ended(root, mode, f"killed after {step or after}", old=old, died=died)


def ended(root: Path, mode: Mode, what: str, *, old: bool, died: bool) -> list[str]:
    """Recover, look at what is left, and let the next run finish what was asked for."""
    journal.recover(root / ".envbuild", ENVIRONMENT)
    state, wrong = judge(root, old=old)
    replace(root, mode, "new")
    if content(root / "toy") != "new" or any((root / ".envbuild" / "work").iterdir()):
        wrong.append("the next run left something undone")
    for line in wrong:
        print(f"{mode}, {what}, old={old}: {line}")
    return [f"{state}{', interrupted' if died else ''}"]


def fill_disk(root: Path, mode: Mode, pages: int) -> list[str]:
    """Leave some pages of the disk free and replace; then make room again."""
    prepare(root, old=True)
    ballast = root / "ballast"
    free = os.statvfs(root)
    with ballast.open("wb") as file, contextlib.suppress(OSError):
        file.write(bytes(max(0, (free.f_bavail - pages) * free.f_frsize)))
    status = forked(lambda: replace(root, mode, "new"))
    ballast.unlink()
    if os.WEXITSTATUS(status) not in (0, 3):
        print(f"{mode}, {pages} pages: status {status}")
    full = os.WEXITSTATUS(status) == 3
    if full and content(root / "toy") != "old":
        print(f"{mode}, {pages} pages: a full disk left {content(root / 'toy')}")
    return ended(root, mode, f"{pages} pages free", old=True, died=full)


def main(how: str, mode: Mode, folder: Path, rounds: int, seed: int) -> None:
    """Play the rounds and print what was found."""
    root = folder / "root"
    chance = random.Random(seed)
    found: collections.Counter[str] = collections.Counter()
    prepare(root, old=True)
    begun = time.monotonic()
    killed(lambda: replace(root, mode, "new"), None)
    whole = time.monotonic() - begun
    if how == "full":
        for pages in range(rounds):
            found.update(fill_disk(root, mode, pages))
    else:
        steps = transaction.STEPS if how == "steps" else ("",)
        for _ in range(rounds):
            for step in steps:
                found.update(play(root, mode, step, chance, whole))
    print(dict(sorted(found.items())))


if __name__ == "__main__":
    main(sys.argv[1], cast("Mode", sys.argv[2]), Path(sys.argv[3]), *map(int, sys.argv[4:6]))
