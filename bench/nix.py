"""The Nix road to an image, against the direct one.

    python bench/nix.py WORK WHEELHOUSE [ROUNDS [ENV]]

WORK is a folder with 3 GB free, 20 for gpu; WHEELHOUSE holds what images of ENV (core) with
Debian's Python are made of. Needs Nix and what `envbuild nix stand-in` asks for. Filling the store
and building envbuild itself are left out: both are done once, before the first round.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
from pathlib import Path

import common
from image import changed

from envbuild.catalog.project import Project

_CONFIGURATION = """\
experimental-features = nix-command flakes
build-users-group =
sandbox = true
sandbox-fallback = false
substituters =
sandbox-paths =
warn-dirty = false
"""


class _Road:
    """An image that Nix builds, in a store of the benchmark's own.

    Args:
        work: where all is written.
        wheelhouse: where artifacts are.
        name: the environment.
    """

    def __init__(self, work: Path, wheelhouse: Path, name: str) -> None:
        self.project = Project(work / "project")
        self.name = name
        self.wheelhouse = wheelhouse
        self._store = work / "store"
        self._out = work / "out"
        self._standin = work / "nixpkgs"
        registry = work / "registry.json"
        for path in ("envs", "sites", "locks", "nix", "envbuild"):
            shutil.copytree(
                common.PROJECT / path,
                self.project.folder / path,
                dirs_exist_ok=True,
                ignore=shutil.ignore_patterns("__pycache__"),
            )
        for path in ("flake.nix", "flake.lock"):
            shutil.copy(common.PROJECT / path, self.project.folder)
        registry.write_text('{"flakes": [], "version": 2}')
        os.environ["NIX_CONFIG"] = f"{_CONFIGURATION}flake-registry = {registry}\n"
        self._envbuild("nix", "stand-in", self._standin)
        self.preload()
        self._build("envbuild")

    def _envbuild(self, *arguments: str | Path) -> float:
        command: list[str | Path] = [sys.executable, "-m", "envbuild"]
        command += ["--project", self.project.folder]
        return common.run([*command, *arguments])

    def preload(self) -> float:
        """Fill the store; return the seconds."""
        options: list[str | Path] = ["--interpreter", "debian", "--offline"]
        options += ["--wheelhouse", self.wheelhouse, "--store", self._store]
        return self._envbuild("nix", "preload", self.name, *options)

    def _build(self, output: str) -> float:
        flake = f"path:{self.project.folder}#{output}"
        return common.run(["nix", "build", *self._nix(), flake, "-o", self._store / "result"])

    def _nix(self) -> list[str | Path]:
        return ["--store", self._store, "--override-input", "nixpkgs", f"path:{self._standin}"]

    def direct(self) -> float:
        """Build the image by the command, from nothing; return the seconds."""
        shutil.rmtree(self._out, ignore_errors=True)
        options: list[str | Path] = ["--interpreter", "debian", "--offline", "--no-cache"]
        options += ["--wheelhouse", self.wheelhouse, "-o", self._out]
        return self._envbuild("image", self.name, *options)

    def build(self) -> float:
        """Build the image by Nix from what is in the store; return the seconds."""
        return self._build(f"{self.name}-debian-image")

    def cold(self) -> float:
        """Build the image by Nix as if it and its layers had never been; return the seconds."""
        (self._store / "result").unlink(missing_ok=True)
        for part in ("", ".layers", ".wheelhouse"):
            output = f"path:{self.project.folder}#{self.name}-debian-image{part}.outPath"
            path = self._told("nix", "eval", "--raw", *self._nix(), output)
            if (self._store / path.lstrip("/")).exists():
                self._told("nix-store", "--store", self._store, "--delete", path)
        return self.build()

    def _told(self, *command: str | Path) -> str:
        return subprocess.run(
            list(map(str, command)), stdout=subprocess.PIPE, text=True, check=True
        ).stdout


def main(road: _Road, rounds: int) -> None:
    """Print the ratios."""
    common.compare(
        "cold, by Nix against the command", road.cold, road.direct, rounds=rounds, most=1.3
    )
    cold = statistics.median(road.cold() for _ in range(rounds))
    again = statistics.median(road.build() for _ in range(rounds))
    print(f"nothing changed: {again:.2f} s, 1/{cold / again:.0f} of {cold:.2f} s")
    with changed(road.project, road.name, road.wheelhouse):
        filled = road.preload()
        seconds = road.build()
    print(
        f"one small wheel changed: {seconds:.2f} s, 1/{cold / seconds:.1f} (goal: 1/5); "
        f"preloaded before that in {filled:.2f} s"
    )


if __name__ == "__main__":
    if len(sys.argv) < 3:
        # `make bench` runs every script: this one needs folders that somebody names
        print("nix: python bench/nix.py WORK WHEELHOUSE [ROUNDS [ENV]]")
    elif shutil.which("nix") is None:
        print("nix: the program is not here")
    else:
        its_work, its_wheelhouse = (Path(text).absolute() for text in sys.argv[1:3])
        its_work.mkdir(parents=True, exist_ok=True)
        its_name = sys.argv[4] if len(sys.argv) > 4 else "core"
        main(
            _Road(its_work, its_wheelhouse, its_name), int(sys.argv[3]) if len(sys.argv) > 3 else 3
        )
