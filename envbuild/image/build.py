"""Building an image: writing the layers that are not there yet, then its documents."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from envbuild import forked, progress
from envbuild.artifacts import Artifact
from envbuild.digest import sha256_bytes
from envbuild.errors import StepError
from envbuild.findings import Finding
from envbuild.image import archive, debian, documents, oci, plan, wheels
from envbuild.image.cache import Cache, Handed
from envbuild.image.layer import Blob, Compression, Layer
from envbuild.image.plan import Archive, Debs, Own, Task, Wheels
from envbuild.image.request import Request, inputs
from envbuild.image.wheels import File, Held, Planned
from envbuild.lock.debian import Package
from envbuild.lock.interpreters import Pin


class Built(msgspec.Struct, frozen=True):
    """A layer of an image.

    Attributes:
        what: what is in it, for people.
        key: what it is known by in the cache; empty if it came with a base image.
        blob: what it became.
        media_type: empty for the usual one.
        cached: whether it was there before.
    """

    what: str
    key: str
    blob: Blob
    media_type: str = ""
    cached: bool = False


class Image(msgspec.Struct, frozen=True):
    """An image that was built.

    Attributes:
        environment: whose.
        inputs: SHA-256 of everything that decides it.
        digest: SHA-256 of its manifest, 64 hexadecimal digits.
        layers: the lowest first.
        findings: what a person should know.
    """

    environment: str
    inputs: str
    digest: str
    layers: tuple[Built, ...]
    findings: tuple[Finding, ...]


_Facts = tuple[int, int, int, int]


class _Remembered(msgspec.Struct, frozen=True):
    """The layers of an image, as the cache remembers them."""

    layers: tuple[Built, ...]
    findings: tuple[Finding, ...]


def build(
    request: Request,
    wheelhouse: Path,
    out: Path | None,
    *,
    cache: Cache | None,
    handed: Sequence[Handed] = (),
    jobs: int | None = None,
    verify_record: bool = False,
) -> Image:
    """Build an image into an OCI layout.

    Args:
        request: what of.
        wheelhouse: where everything is that it is made of.
        out: the layout's folder: new, empty, or of another image of ours. None to learn what the
            image would be; its layers are then in the cache. An image that is there stays whole
            until the new one is.
        cache: layers of other runs; None to build all of them.
        handed: layers of others' runs, which are only read.
        jobs: how many processes; the cores granted if not given.
        verify_record: whether each file's digest in RECORD is checked, too.

    Raises:
        InputError: a wheel or a package is not what it must be.
        PreflightError: the folder holds something else.
        StepError: a file is not the one that is locked.
        OSError: something cannot be read or written.
    """
    known = inputs(request)
    if out is not None and isinstance(request.base, oci.Base) and out.exists():
        oci.check_apart(request.base.folder, out)
    with contextlib.ExitStack() as stack:
        place = None if out is None else stack.enter_context(oci.place(out))
        if cache is not None:
            cache.prepare()
        remembered = None if cache is None or verify_record else _remembered(cache, known)
        if remembered is None:
            if cache is not None:
                work = stack.enter_context(cache.work())
            else:
                work = place or Path(stack.enter_context(tempfile.TemporaryDirectory()))
            remembered = _Building(
                request.compression,
                wheelhouse,
                cache,
                handed,
                work,
                jobs,
                verify_record=verify_record,
            ).build(request)
            if cache is not None:
                cache.keep_image(known, remembered)
        layers = [_descriptor(one, request.compression) for one in remembered.layers]
        history = documents.history(request, [one.what for one in remembered.layers if one.key])
        config = oci.configuration(documents.settings(request), layers, history)
        manifest = oci.manifest(config, layers, documents.told(request))
        if out is not None and place is not None:
            for one, layer in zip(remembered.layers, layers, strict=True):
                _collect(request, one, layer, cache, place, oci.blobs(out) / layer.digest)
            digests = [one.digest for one in layers]
            oci.write(
                out, place, config, manifest, environment=request.environment, digests=digests
            )
    return Image(
        request.environment,
        known,
        sha256_bytes(manifest),
        remembered.layers,
        remembered.findings,
    )


def debian_layers(
    tasks: Sequence[Debs],
    wheelhouse: Path,
    cache: Cache,
    *,
    compression: Compression = "gzip",
    jobs: int | None = None,
) -> list[Built]:
    """Build layers of Debian packages alone, into a cache that can be handed to other runs.

    They are all that takes long of an image that changes with its lock.

    Args:
        tasks: the layers.
        wheelhouse: where the .debs are.
        cache: takes them in.
        compression: of the layers.
        jobs: how many processes; the cores granted if not given.

    Raises:
        InputError: a package is not what it must be.
        StepError: a file is not the one that is pinned.
        OSError: something cannot be read or written.
    """
    cache.prepare()
    with cache.work() as work:
        return _Building(compression, wheelhouse, cache, (), work, jobs).layers(tasks)


def _remembered(cache: Cache, known: str) -> _Remembered | None:
    """Return what is known of an image of these inputs, if all its layers are still there."""
    found = cache.image(known, _Remembered)
    if found is None or any(one.key and cache.layer(one.key) != one.blob for one in found.layers):
        return None
    layers = tuple(msgspec.structs.replace(one, cached=True) for one in found.layers)
    return _Remembered(layers, found.findings)


def _collect(
    request: Request,
    built: Built,
    layer: oci.Descriptor,
    cache: Cache | None,
    work: Path,
    target: Path,
) -> None:
    """Bring a layer into the image's layout."""
    if not built.key:
        assert isinstance(request.base, oci.Base)  # no other layer comes without a key
        oci.copy_blob(request.base.folder, layer, work, target)
    elif cache is not None:
        _place(cache, layer.digest, work / layer.digest, target)
    else:
        (work / built.key).replace(target)


def _place(cache: Cache, digest: str, part: Path, target: Path) -> None:
    """Put a layer of the cache into a layout: as a link, or as a copy from another file system."""
    source = cache.blob(digest)
    try:
        if target.samefile(source):
            return
    except FileNotFoundError:
        pass
    try:
        cache.link(digest, part, target)
    except OSError:
        shutil.copyfile(source, part)
        part.replace(target)


class _Building:
    """One run: what its layers need is known here, also to the processes that write them."""

    def __init__(
        self,
        compression: Compression,
        wheelhouse: Path,
        cache: Cache | None,
        handed: Sequence[Handed],
        work: Path,
        jobs: int | None,
        *,
        verify_record: bool = False,
    ) -> None:
        self._compression = compression
        self._wheelhouse = wheelhouse
        self._cache = cache
        self._handed = handed
        self._work = work
        self._jobs = jobs
        self._verify_record = verify_record
        self._held: dict[str, Held] = {}
        # of wheels that were just read: the file as it was then, and what it holds, packed
        self._fresh: dict[str, tuple[_Facts, bytes]] = {}
        self._files: dict[str, list[File]] = {}

    def build(self, request: Request) -> _Remembered:
        """Write the layers of an image that are not there yet."""
        artifacts = request.wheels
        self._read(artifacts)
        for file, held in self._held.items():
            self._files[file] = wheels.files(held, request.target)
        planned, findings = wheels.plan(artifacts, self._held, self._files, request.target)
        layers = self.layers(self._tasks(request, planned))
        base = request.base
        if isinstance(base, oci.Base):
            layers = [
                Built("base image", "", Blob(one.digest, one.size, one.diff_id, 0), one.media_type)
                for one in base.layers
            ] + layers
        return _Remembered(tuple(layers), tuple(findings))

    def layers(self, tasks: Sequence[Task]) -> list[Built]:
        """Write the layers that are not there yet."""
        keys = [plan.key(task, self._compression) for task in tasks]
        there = dict(self._there(tasks, keys))
        missing = [(task, key) for task, key in zip(tasks, keys, strict=True) if key not in there]
        new = self._write(missing)
        return [
            Built(task.what, key, new[key] if key in new else there[key], cached=key not in new)
            for task, key in zip(tasks, keys, strict=True)
        ]

    def _read(self, artifacts: Sequence[Artifact]) -> None:
        """Learn what wheels hold."""
        unknown = []
        for artifact in artifacts:
            held = None if self._cache is None else self._cache.wheel(artifact.sha256)
            if held is None:
                unknown.append(artifact)
            else:
                self._held[artifact.file] = held

        def read(artifact: Artifact) -> tuple[Artifact, _Facts, bytes]:
            path = self._wheelhouse / artifact.file
            facts = _facts(path)
            # packed, it takes a tenth of the time from one process to another
            return artifact, facts, msgspec.msgpack.encode(wheels.read(path))

        unknown.sort(key=lambda artifact: -artifact.size)
        with forked.over(
            read, unknown, doing="reading wheels", jobs=self._jobs, batch=1
        ) as results:
            for some in results:
                for artifact, facts, packed in some:
                    self._held[artifact.file] = msgspec.msgpack.decode(packed, type=Held)
                    self._fresh[artifact.file] = facts, packed

    def _tasks(self, request: Request, planned: Sequence[Planned]) -> list[Task]:
        settings = request.declared.image
        tasks: list[Task] = list(request.debs)
        if isinstance(request.interpreter, Pin):
            path = self._wheelhouse / request.interpreter.file
            tasks.append(Archive(request.interpreter, path.stat().st_size))
        taken = len(request.base.layers) if isinstance(request.base, oci.Base) else 0
        tasks += plan.deal(planned, request.target, taken=taken)
        tasks.append(
            plan.own(
                request.environment,
                request.target,
                interpreter=request.program,
                version=request.version,
                writable=sorted({settings.workdir, *settings.volumes}),
                user=settings.user,
                system=debian.system(settings.user, home=settings.workdir)
                if request.base == "debian"
                else (),
            )
        )
        return tasks

    def _there(self, tasks: Sequence[Task], keys: Sequence[str]) -> Iterator[tuple[str, Blob]]:
        for task, key in zip(tasks, keys, strict=True):
            if self._verify_record and isinstance(task, Wheels):
                continue
            blob = None if self._cache is None else self._cache.layer(key)
            blob = blob or self._take(key)
            if blob is not None:
                yield key, blob

    def _take(self, key: str) -> Blob | None:
        """Take a layer over that was handed in, if it was."""
        for handed in self._handed:
            blob = handed.take(key, self._work / key)
            if blob is not None:
                if self._cache is not None:
                    self._cache.keep(key, blob, self._work / key)
                return blob
        return None

    def _write(self, missing: Sequence[tuple[Task, str]]) -> dict[str, Blob]:
        order = sorted(missing, key=lambda one: -one[0].weight)
        tasks = {key: task for task, key in missing}
        written: dict[str, Blob] = {}
        with (
            forked.over(
                self._layer, order, doing="writing layers", jobs=self._jobs, batch=1
            ) as results,
            progress.bar("writing layers", sum(task.weight for task in tasks.values())) as advance,
        ):
            for some in results:
                for key, blob in some:
                    if self._cache is not None:
                        self._cache.keep(key, blob, self._work / key)
                        self._keep_wheels(self._cache, tasks[key])
                    written[key] = blob
                    advance(tasks[key].weight)
        return written

    def _keep_wheels(self, cache: Cache, task: Task) -> None:
        """Remember what wheels hold whose bytes were found right when their layer was written."""
        for wheel in task.wheels if isinstance(task, Wheels) else ():
            if wheel.artifact.file in self._fresh:
                cache.keep_wheel(wheel.artifact.sha256, self._fresh[wheel.artifact.file][1])

    def _layer(self, one: tuple[Task, str]) -> tuple[str, Blob]:
        """Write one layer, in a process of its own."""
        task, key = one
        with (self._work / key).open("wb") as file:
            if isinstance(task, Archive):
                path = self._wheelhouse / task.pin.file
                return key, archive.copy(task.pin, path, file, self._compression)
            writer = Layer(file, self._compression)
            match task:
                case Debs(packages=packages, lowest=lowest):
                    verified = [(package, self._deb(package)) for package in packages]
                    for item in debian.tree(verified, base=lowest):
                        writer.add(item)
                case Wheels(wheels=some, target=target):
                    for wheel in some:
                        file_name = wheel.artifact.file
                        wheels.write(
                            writer,
                            wheel,
                            self._held[file_name],
                            self._files[file_name],
                            self._wheelhouse / file_name,
                            target,
                            verify_record=self._verify_record,
                        )
                        self._check_unchanged(file_name)
                case Own(items=items):
                    for item in items:
                        writer.add(item)
            return key, writer.close()

    def _check_unchanged(self, file: str) -> None:
        """Refuse a wheel that is not the file any more of which is known what it holds."""
        path = self._wheelhouse / file
        if file in self._fresh and _facts(path) != self._fresh[file][0]:
            raise StepError(
                "the wheel changed while it was read",
                where=path,
                mend="see who writes to the wheelhouse, and run it again",
            )

    def _deb(self, package: Package) -> Path:
        """Return a copy of a .deb that nobody else can change, held to its pin."""
        path = self._wheelhouse / package.file
        data = path.read_bytes()
        found = sha256_bytes(data)
        if found != package.sha256:
            raise StepError(
                "the package is not the one that is pinned",
                where=path,
                expected=package.artifact.described,
                found=f"SHA-256 {found}",
                mend="run it again with the network allowed, which replaces the file",
            )
        copy = self._work / package.file
        copy.write_bytes(data)
        return copy


def _facts(path: Path) -> _Facts:
    facts = path.stat()
    return facts.st_ino, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns


def _descriptor(built: Built, compression: Compression) -> oci.Descriptor:
    blob = built.blob
    if built.media_type:
        return oci.Descriptor(built.media_type, blob.digest, blob.size, blob.diff_id)
    return oci.layer(blob.digest, blob.size, blob.diff_id, compression)
