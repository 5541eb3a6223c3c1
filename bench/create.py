"""Creating core, against what uv alone takes to install the same lock.

    python bench/create.py [ROUNDS]

Warm: the wheelhouse is full and uv's cache holds every wheel unpacked. Cold: neither is there, and
both download from the configured index. Both compile byte code and copy files. The checks of the
environment are left out of envbuild's time, since uv makes none; they are printed.
"""

from __future__ import annotations

import shutil
import statistics
import sys
import tempfile
from pathlib import Path

import common

from envbuild import uvtool
from envbuild.catalog.project import Project
from envbuild.lock import lockfile
from envbuild.prefix import install, interpreter, receipt

ENVIRONMENT = "core"


def main(rounds: int) -> None:
    """Print both ratios."""
    project = Project(common.PROJECT)
    lock = lockfile.read(project.lock_file(ENVIRONMENT), ENVIRONMENT)
    python = interpreter.find(project.environment(ENVIRONMENT).minor)[0].path
    uv = uvtool.executable()
    with tempfile.TemporaryDirectory(prefix="envbuild-bench-") as name:
        work = Path(name)
        site = work / "bench.toml"
        site.write_text(
            f'summary = "benchmark"\nroot = "{work}/root"\nunpinned-interpreter = true\n'
        )
        wheelhouse = work / "wheelhouse"
        create: list[str | Path] = [*common.ENVBUILD, "create", ENVIRONMENT, "--site", site]
        create += ["--rebuild", "--wheelhouse", wheelhouse]
        # a closed port: the pinned interpreter is not to be had, at once and on both roads
        nowhere = {"UV_PYTHON_INSTALL_MIRROR": "http://127.0.0.1:9"}
        checks: list[float] = []

        def ours() -> float:
            seconds = common.run([*create, "--offline"], nowhere)
            return _without_checks(seconds, work, checks)

        def ours_cold() -> float:
            shutil.rmtree(wheelhouse, ignore_errors=True)
            seconds = common.run(create, nowhere)
            return _without_checks(seconds, work, checks)

        derived = work / "pylock.core.toml"
        pinned = work / "requirements.txt"
        pinned.write_text(
            "".join(
                f"{p.name}=={p.version} --hash=sha256:{p.artifact.sha256}\n" for p in lock.packages
            )
        )
        sync: list[str | Path] = [
            "--no-config",
            "--link-mode",
            "copy",
            "--compile-bytecode",
            "--quiet",
        ]

        def peer(source: Path, cache: Path, *extra: str) -> float:
            prefix = work / "peer"
            shutil.rmtree(prefix, ignore_errors=True)
            common.run([uv, "venv", "--quiet", "--no-config", "--python", python, prefix])
            command: list[str | Path] = [uv, "pip", "sync", *sync, *extra, "--cache-dir", cache]
            return common.run([*command, "--python", prefix / "bin" / "python", source])

        def peer_cold() -> float:
            shutil.rmtree(work / "cold", ignore_errors=True)
            return peer(pinned, work / "cold", "--require-hashes")

        common.run([*common.ENVBUILD, "fetch", ENVIRONMENT, "--wheelhouse", wheelhouse], nowhere)
        derived.write_bytes(install.derived_lock(lock, wheelhouse))
        common.compare(
            f"create {ENVIRONMENT}, warm",
            ours,
            lambda: peer(derived, work / "warm", "--offline"),
            rounds=rounds,
            most=1.35,
        )
        common.compare(
            f"fetch and create {ENVIRONMENT}, cold", ours_cold, peer_cold, rounds=rounds, most=1.2
        )
        print(f"checks, left out above: {statistics.median(checks):.2f} s")


def _without_checks(seconds: float, work: Path, checks: list[float]) -> float:
    """Leave out the checks, and remove the prefix that was replaced."""
    bookkeeping = work / "root" / ".envbuild"
    known = receipt.read(bookkeeping, ENVIRONMENT)
    assert known is not None
    shutil.rmtree(bookkeeping / "archive", ignore_errors=True)
    checks.append(known.checks.seconds)
    return seconds - known.checks.seconds


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 3)
