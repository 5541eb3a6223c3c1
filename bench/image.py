"""Images, against the bound of the work and against umoci, buildah and docker build.

    python bench/image.py WORK [ROUNDS]
    python bench/image.py WORK ROUNDS ENV WHEELHOUSE

WORK is a folder with about 12 GB free, 40 for gpu; what is downloaded stays there. The environment
is torch for CPUs, as pip finds it, and what is often beside it; or ENV of the project. All programs
put the same installed files into an image; ours from wheels, the others from a virtual environment
that is there already, which costs them nothing here. Nobody's image has a base.

The bound is what cannot be left out: hashing the wheels, inflating what is in them by the quickest
library at hand, hashing what comes out, hashing what was written; in as many processes.

umoci needs its program, buildah its own, docker a daemon (DOCKER_HOST); what is not there is said.
"""

from __future__ import annotations

import hashlib
import os
import resource
import shutil
import statistics
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import common
import msgspec
from isal import isal_zlib

from envbuild import forked, uvtool
from envbuild.artifacts import Artifact, wheel
from envbuild.catalog.project import Project
from envbuild.digest import sha256_file
from envbuild.lock import lockfile
from envbuild.lock.lockfile import Lock, LockedPackage
from envbuild.prefix import interpreter
from envbuild.prefix.install import derived_lock
from envbuild.prefix.supply import Supply

NAME = "torch-cpu"
ENVIRONMENT = """\
summary = "torch for CPUs and what is often beside it"
requires-python = ">=3.11.2,<3.12"
python = "3.11.17"
platform = "x86_64-manylinux_2_28"
requirements = [
    # what torch requires; torch itself is added below
    "filelock", "typing-extensions", "sympy", "networkx", "jinja2", "fsspec", "setuptools<82",
    "pandas", "scikit-learn", "matplotlib", "pyarrow", "transformers", "datasets", "fastapi",
    "uvicorn", "rich", "numba", "polars", "opencv-python-headless",
]
"""
TORCH = "torch==2.13.0"


def main(image: _Image, rounds: int) -> None:
    """Print the ratios."""
    _against_the_bound(image, rounds)
    first = statistics.median(image.cold() for _ in range(rounds))
    again = statistics.median(image.run() for _ in range(rounds))
    print(f"nothing changed: {again:.2f} s, 1/{first / again:.0f} of {first:.2f} s (goal: 1/50)")
    _one_changed(image, first)
    _readers(image)
    _peers(image, rounds)


class _Image:
    """An image that is built again and again.

    Args:
        project: whose.
        lock: of what.
        name: the environment.
        wheelhouse: where its wheels are.
        work: where it is written.
    """

    def __init__(
        self, project: Project, lock: Lock, name: str, wheelhouse: Path, work: Path
    ) -> None:
        self.project = project
        self.lock = lock
        self.name = name
        self.wheelhouse = wheelhouse
        self.work = work
        self.out = work / "out"
        self._cache = work / "cache"
        self._command: list[str | Path] = [sys.executable, "-m", "envbuild"]
        self._command += ["--project", project.folder, "image", name, "--base", "scratch"]
        self._command += ["--interpreter", "none", "--offline", "--wheelhouse", wheelhouse]
        self._command += ["-o", self.out, "--cache", self._cache]

    @property
    def wheels(self) -> list[Path]:
        """The wheels in it."""
        return [self.wheelhouse / package.artifact.file for package in self.lock.installable()]

    def run(self) -> float:
        """Build it from what is cached; return the seconds."""
        return common.run(self._command)

    def cold(self) -> float:
        """Build it from nothing; return the seconds."""
        for folder in (self.out, self._cache):
            shutil.rmtree(folder, ignore_errors=True)
        return self.run()


def _against_the_bound(image: _Image, rounds: int) -> None:
    wheels = image.wheels
    image.cold()
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    blobs = sum(path.stat().st_size for path in (image.out / "blobs/sha256").iterdir())
    size = sum(path.stat().st_size for path in wheels)
    print(f"{len(wheels)} wheels, {size / 1e6:.0f} MB; image {blobs / 1e6:.0f} MB")
    print(f"size: {blobs / size:.3f} times the wheels (goal: 1.03)")
    print(f"peak memory of a process: {peak / 1024:.0f} MB (goal: 300)")
    bound: list[str | Path] = [sys.executable, __file__, "--bound", image.out, *wheels]
    common.compare(
        "cold against the bound", image.cold, partial(common.run, bound), rounds=rounds, most=1.3
    )


def _project(work: Path) -> tuple[Project, Lock]:
    """Declare and lock the environment, and bring its wheels together."""
    folder = work / "project"
    if not (folder / "locks").is_dir():
        for name in ("envs", "sites", "locks"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        (folder / "envs" / f"{NAME}.toml").write_text(ENVIRONMENT)
        common.run([sys.executable, "-m", "envbuild", "--project", folder, "lock", NAME])
    project = Project(folder)
    path = project.lock_file(NAME)
    lock = lockfile.read(path, NAME)
    if all(package.name != "torch" for package in lock.packages):
        download = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", TORCH]
        download += [
            "--python-version",
            "3.11",
            "--only-binary",
            ":all:",
            "-d",
            str(work / "torch"),
        ]
        common.run(download)
        (found,) = (work / "torch").glob("*.whl")
        project.wheelhouse.mkdir(exist_ok=True)
        shutil.copy(found, project.wheelhouse)
        artifact = Artifact(found.name, found.stat().st_size, sha256_file(found), "torch")
        torch = LockedPackage("torch", found.name.split("-")[1], artifact)
        packages = sorted((*lock.packages, torch), key=lambda package: package.name)
        lock = msgspec.structs.replace(lock, packages=tuple(packages))
        path.write_bytes(lockfile.serialize(lock))
    Supply(folder, project.wheelhouse).fetch([lock])
    return project, lock


def _installed(image: _Image) -> Path:
    """Install the lock as the other programs want it."""
    venv = image.work / f"venv-{image.name}"
    if not (venv / "whole").exists():
        shutil.rmtree(venv, ignore_errors=True)
        uv = uvtool.executable()
        python = interpreter.find((3, 11))[0].path
        common.run([uv, "venv", "-q", "--python", python, venv])
        derived = image.work / f"pylock.{image.name}.toml"
        derived.write_bytes(derived_lock(image.lock, image.wheelhouse))
        sync: list[str | Path] = [uv, "pip", "sync", "-q", "--offline", "--link-mode", "hardlink"]
        common.run([*sync, "--python", venv / "bin/python", derived])
        (venv / "whole").touch()
    return venv


def _one_changed(image: _Image, cold: float) -> None:
    """Let one small wheel be another file, and build again."""
    with changed(image.project, image.name, image.wheelhouse):
        seconds = image.run()
    print(f"one small wheel changed: {seconds:.2f} s, 1/{cold / seconds:.0f} (goal: 1/15)")


@contextmanager
def changed(project: Project, name: str, wheelhouse: Path) -> Iterator[None]:
    """Let one small wheel of a lock be another file for a while.

    Args:
        project: whose lock is written.
        name: the environment.
        wheelhouse: where its wheels are, and where the other one is put.
    """
    locked = project.lock_file(name)
    before = locked.read_bytes()
    lock = lockfile.parse(before, locked, name)
    small = next(package for package in lock.packages if package.name == "idna")
    path = wheelhouse / small.artifact.file
    other = path.with_name(path.name.replace("-py3", "-9-py3"))  # a build number
    with zipfile.ZipFile(path) as source, zipfile.ZipFile(other, "w") as target:
        for entry in source.infolist():
            # the same content, stored
            target.writestr(zipfile.ZipInfo(entry.filename), source.read(entry))
    artifact = Artifact(other.name, other.stat().st_size, sha256_file(other), "idna")
    packages = (
        msgspec.structs.replace(one, artifact=artifact) if one is small else one
        for one in lock.packages
    )
    try:
        locked.write_bytes(
            lockfile.serialize(msgspec.structs.replace(lock, packages=tuple(packages)))
        )
        yield
    finally:
        locked.write_bytes(before)
        other.unlink()


def _peers(image: _Image, rounds: int) -> None:
    """Put the installed files into an image by other programs, in turn with ours."""
    venv = _installed(image)
    peers = {"umoci insert": (_umoci, 4), "buildah": (_buildah, 7), "docker build": (_docker, 7)}
    for title, (peer, least) in peers.items():
        if shutil.which(title.split()[0]) is None:
            print(f"{title}: the program is not here")
            continue
        if title == "docker build" and "DOCKER_HOST" not in os.environ:
            print(f"{title}: no daemon (DOCKER_HOST)")
            continue
        pairs = [(image.cold(), peer(image.work, venv)) for _ in range(rounds)]
        ratio = statistics.median(theirs / ours for ours, theirs in pairs)
        ours, theirs = (statistics.median(column) for column in zip(*pairs, strict=True))
        print(f"{title}: {theirs:.1f} s against {ours:.1f} s, {ratio:.1f} times (goal: {least})")


def _umoci(work: Path, venv: Path) -> float:
    layout = work / "umoci"
    common.run(["umoci", "init", "--layout", layout])
    common.run(["umoci", "new", "--image", f"{layout}:x"])
    seconds = common.run(["umoci", "insert", "--image", f"{layout}:x", venv, "/opt/envs/x"])
    shutil.rmtree(layout)
    return seconds


def _buildah(work: Path, venv: Path) -> float:
    buildah: list[str | Path] = ["buildah", "--root", work / "buildah"]
    buildah += ["--runroot", work / "buildah-run", "--storage-driver", "vfs"]
    begun = time.perf_counter()
    container = subprocess.run(
        [*map(str, buildah), "from", "scratch"], capture_output=True, text=True, check=True
    ).stdout.strip()
    common.run([*buildah, "copy", "-q", container, venv, "/opt/envs/x"])
    target = f"oci:{work}/buildah-out:x"
    common.run([*buildah, "commit", "-q", "--disable-compression=true", container, target])
    seconds = time.perf_counter() - begun
    common.run([*buildah, "rm", container])
    for name in ("buildah", "buildah-run", "buildah-out"):
        shutil.rmtree(work / name)
    return seconds


def _docker(work: Path, venv: Path) -> float:
    context = work / "context"
    context.mkdir()
    common.run(["cp", "-al", venv, context / "venv"])
    (context / "Dockerfile").write_text("FROM scratch\nCOPY venv /opt/envs/x\n")
    build: list[str | Path] = ["docker", "build", "-q", "--no-cache", "--network", "none"]
    build += ["-t", "bench", context]
    seconds = common.run(build)
    common.run(["docker", "rmi", "-f", "bench"])
    shutil.rmtree(context)
    return seconds


def _readers(image: _Image) -> None:
    """Read the largest layer as it is, and as a gzip file of one member."""
    ours = max((image.out / "blobs/sha256").iterdir(), key=lambda path: path.stat().st_size)
    single = image.work / "single.gz"
    with single.open("wb") as file:
        unpack = subprocess.Popen(["gzip", "-dc", ours], stdout=subprocess.PIPE)
        subprocess.run(["gzip", "-6"], stdin=unpack.stdout, stdout=file, check=True)
        unpack.wait()
    for program in ("gzip", "unpigz"):
        if shutil.which(program) is None:
            print(f"{program}: the program is not here")
            continue
        command = ["sh", "-c", f"{program} -t < $0"]
        common.compare(
            f"{program} -t of our largest layer against one member",
            partial(common.run, [*command, ours]),
            partial(common.run, [*command, single]),
            rounds=3,
            most=1.3,
        )
    single.unlink()


def bound(out: Path, wheels: list[Path]) -> None:
    """Do what cannot be left out."""
    blobs = [path for path in (out / "blobs/sha256").iterdir() if path.stat().st_size > 1 << 16]
    work = sorted([*wheels, *blobs], key=lambda path: -path.stat().st_size)
    with forked.over(_bound, work, doing="the bound", batch=1) as results:
        for _ in results:
            pass


def _bound(path: Path) -> int:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        hashlib.file_digest(file, "sha256")
        if path.suffix != ".whl":
            return 0
        for entry in wheel.scan(path).entries:
            inflater = isal_zlib.decompressobj(-15) if entry.deflated else None
            for at in range(0, entry.stored_size, 1 << 18):
                size = min(1 << 18, entry.stored_size - at)
                data = os.pread(file.fileno(), size, entry.start + at)
                digest.update(data if inflater is None else inflater.decompress(data))
    return len(digest.digest())


def _of_project(work: Path, name: str, wheelhouse: Path) -> _Image:
    project = Project(common.PROJECT)
    lock = lockfile.read(project.lock_file(name), name)
    # a copy, whose lock can be changed
    folder = work / "project"
    for kind in ("envs", "sites", "locks"):
        shutil.copytree(project.folder / kind, folder / kind, dirs_exist_ok=True)
    return _Image(Project(folder), lock, name, wheelhouse.absolute(), work)


def _of_bench(work: Path) -> _Image:
    project, lock = _project(work)
    return _Image(project, lock, NAME, project.wheelhouse, work)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--bound"]:
        bound(Path(sys.argv[2]), list(map(Path, sys.argv[3:])))
    elif len(sys.argv) > 1:
        its_work = Path(sys.argv[1]).absolute()
        named = len(sys.argv) > 3
        its_image = (
            _of_project(its_work, sys.argv[3], Path(sys.argv[4])) if named else _of_bench(its_work)
        )
        main(its_image, int(sys.argv[2]) if len(sys.argv) > 2 else 3)
    else:
        # `make bench` runs every script: this one needs a folder that somebody names
        print("image: python bench/image.py WORK [ROUNDS [ENV WHEELHOUSE]]")
