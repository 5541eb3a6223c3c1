"""What stands in for the compilers during a build: it adds flags, waits for its turn, and records.

    python -IS compiler.py NAME ARGUMENT...

Build systems call compilers in their own ways, seldom with the flags that make two builds equal,
and start as many as they like. So the compilers that they find are this program, copied into the
build's folder and run by the environment's own Python: it needs the standard library alone, of
Python 3.10 or newer. ``compiler.json`` beside it says what to run.
"""

from __future__ import annotations

import fcntl
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

# Set while a compiler runs: the host compiler that nvcc starts is part of the same turn
_INSIDE = "ENVBUILD_COMPILER"
_SOURCES = (".c", ".cc", ".cpp", ".cxx", ".c++", ".C", ".cu", ".s", ".S")
_COMPILING = {"-c", "--compile", "-dc", "--device-c", "-dw", "--device-w"}
# asked for what it is or would do: nothing comes out
_ASKING = {"-E", "-M", "-MM", "--version", "--help", "-v", "-V", "-dumpversion", "-dumpmachine"}
_HOST_COMPILER = ("-ccbin", "--compiler-bindir")
_DEVICE_LINK = {"-dlink", "--device-link"}
_SAID = 1 << 16  # bytes of a failure's words that are kept


def main(name: str, arguments: list[str]) -> int:
    """Run one compiler as ``compiler.json`` says.

    Args:
        name: ``nvcc``, ``gcc`` or ``g++``.
        arguments: what the build system gives it.

    Returns:
        Its exit status.
    """
    settings = json.loads(Path(__file__).with_name("compiler.json").read_bytes())
    real = settings["programs"][name]
    output = _output(arguments)
    sources = [one for one in arguments if one.endswith(_SOURCES) and not one.startswith("-")]
    compiling = not _COMPILING.isdisjoint(arguments)
    asking = any(one in _ASKING or one.startswith("-print-") for one in arguments)
    linking = not (compiling or asking or output is None)
    if _INSIDE in os.environ or not (compiling or linking):
        os.execv(real, [real, *arguments])
    command = [real, *arguments]
    if sources:
        # of a name that is the same in every build: else it is drawn anew
        command += [*settings["flags"][name], f"-frandom-seed={output or sources[0]}"]
    if linking and _DEVICE_LINK.isdisjoint(arguments):
        command += settings["link"][name]
    if name == "nvcc" and not any(one.startswith(_HOST_COMPILER) for one in arguments):
        command += ["-ccbin", settings["programs"]["g++"]]
    if compiling and settings["ccache"]:
        command.insert(0, settings["ccache"])
    log = Path(settings["log"])
    with _turn(log / "turns", settings["jobs"]):
        begun = time.time()
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env={**os.environ, _INSIDE: name},
            check=False,
        )
        seconds = time.time() - begun
    sys.stderr.buffer.write(done.stderr)
    sys.stderr.buffer.flush()
    step = {
        "step": "link" if linking else "compile",
        "file": sources[0] if sources else output,
        "begun": round(begun, 3),
        "seconds": round(seconds, 3),
        "memory": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024,
        "status": done.returncode,
    }
    if done.returncode != 0:
        step["said"] = done.stderr[:_SAID].decode(errors="replace")
    _append(log / "steps.jsonl", step)
    # a shell's way to say that a signal ended it
    return done.returncode if done.returncode >= 0 else 128 - done.returncode


def _output(arguments: list[str]) -> str | None:
    for at, one in enumerate(arguments[:-1]):
        if one in ("-o", "--output-file"):
            return arguments[at + 1]
    return None


@contextmanager
def _turn(folder: Path, jobs: int) -> Iterator[None]:
    """Wait until fewer than ``jobs`` are at work; whoever dies gives the turn back."""
    while True:
        for number in range(jobs):
            descriptor = os.open(folder / str(number), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(descriptor)
                continue
            try:
                yield
            finally:
                os.close(descriptor)
            return
        time.sleep(0.05)


def _append(path: Path, step: Mapping[str, object]) -> None:
    """Add a line, whole, whoever else adds one at the same time."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        os.write(descriptor, json.dumps(step).encode() + b"\n")
    finally:
        os.close(descriptor)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
