"""Bringing together what locks name: wheels, build requirements, interpreters, built wheels."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from envbuild import process, uvtool
from envbuild.artifacts import Artifact
from envbuild.artifacts.store import Fetched, Wheelhouse
from envbuild.catalog.environment import Environment
from envbuild.digest import CHUNK, sha256_file
from envbuild.errors import PreflightError, StepError
from envbuild.lock import interpreters
from envbuild.lock.interpreters import Pin
from envbuild.lock.lockfile import Lock, LockedPackage
from envbuild.lock.specification import requirement_set

if TYPE_CHECKING:
    from envbuild.artifacts.index import Index, IndexLocation
    from envbuild.image.request import Request
    from envbuild.lock.debian import Package


class Supply:
    """A wheelhouse and, unless offline, the index that fills it.

    Args:
        project: the project's folder, whose configuration of uv names the index.
        wheelhouse: the folder of artifacts.
        offline: whether nothing may be downloaded.
    """

    def __init__(self, project: Path, wheelhouse: Path, *, offline: bool = False) -> None:
        self.wheelhouse = Wheelhouse(wheelhouse.absolute())
        self._project = project
        self._offline = offline

    @cached_property
    def _locations(self) -> tuple[IndexLocation, ...]:
        from envbuild.artifacts.index import configured

        return configured(uvtool.executable(), cwd=self._project)

    @property
    def index_urls(self) -> list[str]:
        """The configured indexes' URLs, the default one last; they may hold passwords."""
        return [location.url for location in self._locations]

    @cached_property
    def index(self) -> Index:
        """The configured indexes."""
        from envbuild.artifacts.client import Client
        from envbuild.artifacts.index import Index

        return Index(self._locations, Client())

    def fetch(self, locks: Iterable[Lock]) -> Fetched:
        """Bring everything that locks name into the wheelhouse, verified.

        Raises:
            StepError, PreflightError, InputError: as `Wheelhouse.fetch`.
        """
        return self.artifacts({artifact for lock in locks for artifact in lock.files()})

    def artifacts(self, wanted: Iterable[Artifact]) -> Fetched:
        """Bring files of the index into the wheelhouse, verified.

        Raises:
            StepError, PreflightError, InputError: as `Wheelhouse.fetch`.
        """
        artifacts = sorted(wanted)
        # which index is configured takes uv 0.1 s to say: asked only when it matters
        ask = not self._offline and bool(self.wheelhouse.missing(artifacts))
        return self.wheelhouse.fetch(artifacts, self.index if ask else None)

    def interpreter(self, pin: Pin) -> Path:
        """Bring a pinned interpreter's archive into the wheelhouse.

        Raises:
            StepError, PreflightError: it is not there and cannot be had.
        """
        artifact = Artifact(pin.file, 0, pin.sha256)
        if self.wheelhouse.missing([artifact]):
            from envbuild.artifacts.client import Client
            from envbuild.artifacts.index import Urls

            source = None if self._offline else Urls({pin.file: interpreters.url(pin)})
            # one try: where its host cannot be reached, something else often stands in
            self.wheelhouse.fetch([artifact], source, client=Client(connect=5.0, tries=1))
        return self.wheelhouse.path_of(artifact)

    def debs(self, packages: Iterable[Package]) -> None:
        """Bring Debian packages into the wheelhouse.

        Raises:
            StepError, PreflightError, InputError: as `Wheelhouse.fetch`.
            InputError: no archive of Debian's is configured.
        """
        from envbuild.lock import debian

        wanted = list(packages)
        artifacts = [package.artifact for package in wanted]
        if self.wheelhouse.missing(artifacts):
            source = None if self._offline else debian.source(wanted)
            self.wheelhouse.fetch(artifacts, source)

    def take(self, artifact: Artifact, path: Path) -> None:
        """Take a file into the wheelhouse that a person gives.

        Raises:
            StepError, PreflightError, InputError: as `Wheelhouse.add`.
        """
        if self.wheelhouse.missing([artifact]):
            with path.open("rb") as file:
                self.wheelhouse.add(artifact, iter(lambda: file.read(CHUNK), b""), origin=str(path))

    def image(self, request: Request, given: Sequence[Path] = ()) -> None:
        """Bring everything into the wheelhouse that an image is made of.

        Args:
            request: the image.
            given: the wheels that `request.built` stands for.

        Raises:
            InputError, StepError, PreflightError: something cannot be had, or must be built first.
        """
        wheels = request.wheels  # before anything is fetched: it may be refused
        self._foundation(request)
        for artifact, path in zip(request.built, given, strict=True):
            self.take(artifact, path)
        if self.wheelhouse.missing(wheels):
            self.fetch([request.lock])
            self.build_sdists(request.lock, request.declared.minor)

    def flake(self, request: Request) -> list[Artifact]:
        """Bring everything into the wheelhouse that the flake may ask for, and return it.

        That is more than an image is made of: also packages whose markers do not hold, which are
        not evaluated there, and what sdists of pure Python are built from.

        Args:
            request: the image; what is built on the target system is left out.

        Raises:
            InputError, StepError, PreflightError: something cannot be had.
        """
        lock = request.lock
        pinned = [one for one in lock.files() if one.project not in lock.unbuilt]
        found = self._foundation(request) + pinned
        self.artifacts(pinned)
        self.build_sdists(lock, request.declared.minor)
        return found + [built.artifact for built in lock.built.values()]

    def _foundation(self, request: Request) -> list[Artifact]:
        """Bring together what an image has below its wheels."""
        packages = [package for layer in request.debs for package in layer.packages]
        self.debs(packages)
        found = [package.artifact for package in packages]
        if isinstance(request.interpreter, Pin):
            self._image_interpreter(request.interpreter)
            found.append(Artifact(request.interpreter.file, 0, request.interpreter.sha256))
        return found

    def _image_interpreter(self, pin: Pin) -> None:
        try:
            self.interpreter(pin)
        except (StepError, PreflightError) as error:
            address = process.redact(interpreters.url(pin))
            raise PreflightError(
                f"the pinned interpreter cannot be had: {error.what}",
                where=self.wheelhouse.path_of(Artifact(pin.file, 0, pin.sha256)),
                expected=f"SHA-256 {pin.sha256}",
                mend=f"get it from {address} and put it there, or build with --interpreter debian",
            ) from error

    def build_wheels(self, lock: Lock, requires: Sequence[str]) -> list[Path]:
        """Return the wheels of a set of build requirements."""
        pinned = lock.build_wheels.get(requirement_set(requires), ())
        return [self.wheelhouse.path_of(artifact) for artifact in pinned]

    def build_sdists(
        self, lock: Lock, python: Path | tuple[int, int], *, only: str | None = None
    ) -> None:
        """Build the pure-Python sdists whose wheels are not in the wheelhouse yet.

        Args:
            lock: what names them; its files have been fetched.
            python: the interpreter that runs their build backends, or its minor version.
            only: the one package to build; all of them if not given.

        Raises:
            StepError: a build failed, or gave another wheel than the lock says.
        """
        for package in lock.packages:
            built = lock.built.get(package.name) if only in (None, package.name) else None
            if built is None or not self.wheelhouse.missing([built.artifact]):
                continue
            if isinstance(python, tuple):
                python = _python(python)
            requires = lock.specification.builds[package.name].partition(": ")[2]
            wheels = lock.build_wheels.get(requires, ())
            with tempfile.TemporaryDirectory(prefix="envbuild-built-") as folder:
                wheel = self._build(package, wheels, python, Path(folder), lock.environment)
                if sha256_file(wheel) != built.artifact.sha256:
                    raise StepError(
                        f"building {package.name} {package.version} gave another wheel than the "
                        "lock says",
                        where=f"{lock.environment}: {package.artifact.file}",
                        expected=f"{built.artifact.file}, SHA-256 {built.artifact.sha256}",
                        found=f"{wheel.name}, SHA-256 {sha256_file(wheel)}",
                        mend=f"copy {built.artifact.file} from where the lock was made into "
                        f"{self.wheelhouse.path}, or lock again",
                    )
                self.take(built.artifact, wheel)

    def build_for_lock(
        self, environment: Environment, package: LockedPackage, wheels: tuple[Artifact, ...]
    ) -> Artifact:
        """Build a pure-Python sdist for the first time: the wheel's hash goes into the lock.

        The wheel stays in the wheelhouse, under the name that the lock gives it.

        Raises:
            StepError: it cannot be fetched or built.
        """
        self.wheelhouse.fetch([package.artifact, *wheels], self.index)
        python = _python(environment.minor)
        with tempfile.TemporaryDirectory(prefix="envbuild-built-") as folder:
            wheel = self._build(package, wheels, python, Path(folder), package.name)
            artifact = Artifact(wheel.name, wheel.stat().st_size, sha256_file(wheel), package.name)
            self.take(artifact, wheel)
        return artifact

    def _build(
        self,
        package: LockedPackage,
        wheels: Sequence[Artifact],
        python: Path,
        folder: Path,
        environment: str,
    ) -> Path:
        from envbuild.sourcebuild import pure

        return pure.build(
            self.wheelhouse.path_of(package.artifact),
            [self.wheelhouse.path_of(wheel) for wheel in wheels],
            python=python,
            folder=folder,
            environment=environment,
        )

    def unpacked(self, lock: Lock) -> tuple[int, int]:
        """Return how many bytes and files a lock's wheels take when they are installed.

        Byte code is counted with its sources: about a third of their size, and a file for each.
        """
        files = [package.artifact for package in lock.installable()]
        unpacked = self.wheelhouse.unpacked(files)
        return round(unpacked.size * 1.35), 2 * unpacked.files


def _python(minor: tuple[int, int]) -> Path:
    """Return an installed Python of a minor version, or at least the one that runs this."""
    from envbuild.prefix import interpreter

    found = interpreter.find(minor)
    return Path(found[0].path) if found else Path(sys.executable)
