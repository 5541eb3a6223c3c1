"""The wheelhouse: a folder of artifacts under their own names, each verified before it is there."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import msgspec

from envbuild import progress
from envbuild.artifacts import Artifact, Unpacked, parallel, records
from envbuild.artifacts.parts import Parts, admit, named, remove_stale
from envbuild.digest import sha256_file
from envbuild.errors import InputError, PreflightError, StepError
from envbuild.granted import granted

if TYPE_CHECKING:
    from envbuild.artifacts.client import Client
    from envbuild.artifacts.index import IndexFile

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_SHOWN = 5
_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


class Source(Protocol):
    """Knows where artifacts can be had: an index, or a table of URLs."""

    def locate(self, artifact: Artifact) -> IndexFile:
        """Return where an artifact can be had, or raise a StepError; any thread may ask."""


class Fetched(msgspec.Struct, frozen=True):
    """What a fetch did.

    Attributes:
        downloaded: files that were downloaded.
        bytes: their size, in bytes.
        seconds: how long all of it took, in seconds.
        present: files that were there already.
        rehashed: those of them that had to be hashed, as nothing trusted was recorded of them.
    """

    downloaded: int
    bytes: int
    seconds: float
    present: int
    rehashed: int


class _State(msgspec.Struct, frozen=True):
    """What was found in the folder.

    Attributes:
        absent: the artifacts that are not there.
        damaged: those in whose place is another file, and what that is.
        fresh: records of the files that were hashed and found right.
    """

    absent: tuple[Artifact, ...]
    damaged: Mapping[Artifact, str]
    fresh: Mapping[str, records.Record]

    @property
    def missing(self) -> list[Artifact]:
        return [*self.absent, *self.damaged]


class Wheelhouse:
    """A folder of artifacts under their own file names.

    What is verified is recorded in ``.envbuild/verified.json`` below it, and not hashed again as
    long as the file system says that the file has not changed.

    Args:
        path: the folder; it need not be there yet.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._own = path / ".envbuild"
        self._records = self._own / "verified.json"

    def path_of(self, artifact: Artifact) -> Path:
        """Return where an artifact is, or would be.

        Raises:
            InputError: its name is not that of a file in this folder.
        """
        if "/" in artifact.file or artifact.file.startswith(".") or not artifact.file:
            raise InputError(
                "not a file name for a wheelhouse",
                where=repr(artifact.file),
                expected="a name without '/' that does not begin with '.'",
            )
        return self.path / artifact.file

    def missing(self, artifacts: Iterable[Artifact]) -> list[Artifact]:
        """Return the artifacts that are not there, or whose file holds other bytes.

        Files of which nothing trusted is recorded are hashed, in several threads.

        Raises:
            InputError: two of them have one name; or a wheel that is there is not admitted.
            PreflightError: something else than a file stands in a file's place.
            StepError: a file cannot be read.
        """
        state = self._inspect(self._distinct(artifacts))
        self._remember(state.fresh)
        return state.missing

    def unpacked(self, artifacts: Iterable[Artifact]) -> Unpacked:
        """Return what artifacts take when they are installed, as their admission recorded it.

        Args:
            artifacts: files that are there and verified; others count as nothing.
        """
        known = records.load(self._records)
        found = [known[artifact.file].unpacked for artifact in artifacts if artifact.file in known]
        return Unpacked(sum(one.size for one in found), sum(one.files for one in found))

    def add(self, artifact: Artifact, chunks: Iterable[bytes], *, origin: str) -> Path:
        """Take a file in whose bytes the caller has, such as a wheel that was built.

        Args:
            artifact: what it must be.
            chunks: its bytes, in order.
            origin: where they came from, for messages.

        Returns:
            Where it is now.

        Raises:
            StepError: it has another size or SHA-256, or cannot be written; nothing is kept.
            InputError: it is a wheel that is not admitted; nothing is kept.
        """
        final = self.path_of(artifact)
        with self._writing(artifact.size):
            parts = self._prepare()
            part = parts.begin(artifact)
            try:
                for chunk in chunks:
                    part.write(chunk)
                unpacked = part.verify(origin)
                facts = parts.keep(part, final)
            finally:
                parts.drop(part)
        self._remember({artifact.file: records.record(artifact, facts, unpacked)})
        return final

    def fetch(
        self,
        artifacts: Iterable[Artifact],
        source: Source | None,
        *,
        client: Client | None = None,
        jobs: int = 16,
    ) -> Fetched:
        """Download what is missing, several files at once, and verify it while it streams in.

        Each file is whole and verified when it gets its name. When one fails, no other is begun,
        those under way are given up, and those that are whole stay.

        Args:
            artifacts: what must be there.
            source: where it can be had; None if nothing may be downloaded.
            client: makes the connections; one is made if none is given.
            jobs: how many files to download at once.

        Raises:
            InputError: two of them have one name; or a wheel is not admitted.
            PreflightError: something is missing and may not be downloaded; or there is no room; or
                something else than a file stands in a file's place.
            StepError: a download failed, or brought other bytes; or the folder cannot be written.
        """
        begun = time.monotonic()
        wanted = self._distinct(artifacts)
        state = self._inspect(wanted)
        missing = state.missing
        fresh = dict(state.fresh)
        try:
            if missing:
                if source is None:
                    raise self._offline(state)
                self._download(missing, source, client, jobs, fresh)
        finally:
            self._remember(fresh)
        return Fetched(
            downloaded=len(missing),
            bytes=sum(artifact.size for artifact in missing),
            seconds=time.monotonic() - begun,
            present=len(wanted) - len(missing),
            rehashed=len(state.fresh),
        )

    def _distinct(self, artifacts: Iterable[Artifact]) -> list[Artifact]:
        by_name: dict[str, Artifact] = {}
        for artifact in artifacts:
            self.path_of(artifact)
            other = by_name.setdefault(artifact.file, artifact)
            if (other.sha256, other.size) != (artifact.sha256, artifact.size):
                raise InputError(
                    "two different files of one name",
                    where=named(artifact),
                    expected=other.described,
                    found=artifact.described,
                    mend="lock again, so that both locks name the same file",
                )
        return list(by_name.values())

    def _inspect(self, artifacts: Sequence[Artifact]) -> _State:
        known = records.load(self._records)
        absent: list[Artifact] = []
        damaged: dict[Artifact, str] = {}
        fresh: dict[str, records.Record] = {}
        unsure: list[tuple[Artifact, Path, os.stat_result]] = []
        for artifact in artifacts:
            path = self.path_of(artifact)
            try:
                facts = path.stat()
            except FileNotFoundError:
                absent.append(artifact)
                continue
            except OSError as error:
                raise self._unreadable(path, error) from error
            if not stat.S_ISREG(facts.st_mode):
                raise PreflightError(
                    "what stands in the place of a file is none",
                    where=path,
                    expected="a regular file, or nothing",
                    found=_KINDS.get(stat.S_IFMT(facts.st_mode), "something else"),
                    mend="see who put it there, and remove it",
                )
            if not records.trusted(known.get(artifact.file), artifact, facts):
                unsure.append((artifact, path, facts))

        def verify(item: tuple[Artifact, Path, os.stat_result]) -> None:
            artifact, path, facts = item
            try:
                digest = sha256_file(path)
                if digest != artifact.sha256 or artifact.size not in (0, facts.st_size):
                    damaged[artifact] = f"SHA-256 {digest}, {facts.st_size} bytes"
                    return
                unpacked = admit(path, artifact)
            except OSError as error:
                raise self._unreadable(path, error) from error
            fresh[artifact.file] = records.record(artifact, facts, unpacked)
            advance(artifact.size)

        with progress.bar("verifying", sum(item[0].size for item in unsure)) as advance:
            parallel.run(verify, unsure, jobs=granted().cpus)
        return _State(tuple(absent), damaged, fresh)

    def _download(
        self,
        missing: Sequence[Artifact],
        source: Source,
        client: Client | None,
        jobs: int,
        fresh: dict[str, records.Record],
    ) -> None:
        """Download, and add a record to ``fresh`` for every file that is there, come what may."""
        # requests takes 100 ms to import, which only a download should pay
        from envbuild.artifacts.client import Client
        from envbuild.artifacts.download import download

        connections = client or Client(pool=jobs)
        total = sum(artifact.size for artifact in missing)
        self._check_room(total)
        with self._writing(total):
            parts = self._prepare()

        def fetch(artifact: Artifact) -> None:
            offer = source.locate(artifact)
            with self._writing(artifact.size):
                part = parts.begin(artifact)
                try:
                    download(part, offer, connections, parts.pause, advance)
                    unpacked = part.verify(offer.index)
                    facts = parts.keep(part, self.path_of(artifact))
                finally:
                    parts.drop(part)
            fresh[artifact.file] = records.record(artifact, facts, unpacked)

        # the largest first, so that none of them is begun when all else is done
        order = sorted(missing, key=lambda artifact: (-artifact.size, artifact))
        try:
            with progress.bar("downloading", total) as advance:
                parallel.run(fetch, order, jobs=jobs)
        finally:
            parts.give_up()
            if client is None:
                connections.close()

    def _prepare(self) -> Parts:
        self._own.mkdir(parents=True, exist_ok=True)
        remove_stale(self._own)
        return Parts(self._own)

    def _remember(self, fresh: Mapping[str, records.Record]) -> None:
        if fresh:
            # a copy: a thread that was given up may still add to it
            records.merge(self._records, dict(fresh))

    def _check_room(self, needed: int) -> None:
        there = next(folder for folder in (self.path, *self.path.parents) if folder.exists())
        free = shutil.disk_usage(there).free
        if needed > free:
            raise PreflightError(
                "not enough room for what is to be downloaded",
                where=self.path,
                expected=f"{needed} bytes free",
                found=f"{free} bytes free",
                mend="make room there, or choose another folder for the wheelhouse",
            )

    @contextmanager
    def _writing(self, needed: int) -> Iterator[None]:
        """Say what it means when the file system refuses."""
        try:
            yield
        except OSError as error:
            if error.errno not in _FULL:
                raise StepError(
                    f"the wheelhouse cannot be written: {error.strerror}",
                    where=error.filename or self.path,
                    mend="check its owner and its permissions, or choose another folder",
                ) from error
            free = os.statvfs(self.path)
            raise StepError(
                f"the wheelhouse is full: {error.strerror}",
                where=self.path,
                expected=f"room for {needed} bytes",
                found=f"{free.f_bavail * free.f_frsize} bytes and {free.f_favail} inodes free",
                mend="make room there (quotas count too), or choose another folder",
            ) from error

    def _unreadable(self, path: Path, error: OSError) -> StepError:
        return StepError(
            f"cannot be read: {error.strerror}",
            where=path,
            mend="check its owner and its permissions",
        )

    def _offline(self, state: _State) -> PreflightError:
        for artifact, found in state.damaged.items():
            return PreflightError(
                "the file in the wheelhouse is not the one that is locked",
                where=f"{named(artifact)} in {self.path}",
                expected=artifact.described,
                found=found,
                mend="run it with the network allowed, which replaces the file",
            )
        shown = [artifact.file for artifact in state.absent[:_SHOWN]]
        more = len(state.absent) - len(shown)
        count = len(state.absent)
        return PreflightError(
            f"{count} {'file is' if count == 1 else 'files are'} not in the wheelhouse, and "
            "nothing may be downloaded",
            where=self.path,
            found=", ".join(shown) + (f" and {more} more" if more else "") + " missing",
            mend="run it with the network allowed, or copy the files there",
        )
