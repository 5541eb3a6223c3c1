"""The documents of an image and the folder that holds it (OCI image-spec 1.1)."""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from envbuild import durable
from envbuild.digest import is_sha256, sha256_bytes, sha256_file
from envbuild.errors import InputError, PreflightError
from envbuild.image.layer import Compression

T = TypeVar("T", bound=msgspec.Struct)

_LAYOUT = b'{"imageLayoutVersion":"1.0.0"}'
_INDEX = "application/vnd.oci.image.index.v1+json"
_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
_CONFIG = "application/vnd.oci.image.config.v1+json"
_LAYER = "application/vnd.oci.image.layer.v1.tar"
# of what a base image may have; ours are of the first two
_LAYERS = (_LAYER, f"{_LAYER}+gzip", f"{_LAYER}+zstd")
_REF = "org.opencontainers.image.ref.name"
# what tells an image of ours from others
ENVIRONMENT = "envbuild.environment"
# what runs work in, at the top of the layout: its beginning tells what a killed one left
_WORK = ".envbuild-"
# Seconds that a killed run's processes, which hold its lock, too, may take to end.
_DYING = 2.0
_FILES = frozenset({"oci-layout", "index.json", "blobs"})
_WANTED = "a new or empty folder, or one that `envbuild image` wrote"
# the largest document that is read of a base image, in bytes; registries allow 4 MiB
_MOST = 8 << 20
_DIGEST = re.compile(r"sha256:([0-9a-f]{64})")


class Descriptor(msgspec.Struct, frozen=True):
    """A blob as a manifest names it.

    Attributes:
        media_type: what it is.
        digest: SHA-256 of its bytes, 64 hexadecimal digits.
        size: of them.
        diff_id: of a layer, SHA-256 of the tar archive inside.
    """

    media_type: str
    digest: str
    size: int
    diff_id: str = ""

    @property
    def document(self) -> dict[str, Any]:
        """As it stands in a manifest."""
        return {"mediaType": self.media_type, "digest": f"sha256:{self.digest}", "size": self.size}


class Settings(msgspec.Struct, frozen=True):
    """What a container is started with.

    Attributes:
        user: number of its user and group.
        workdir: absolute path.
        volumes: absolute paths.
        entrypoint: program and arguments.
        command: the arguments that a person may replace.
        environment: its variables.
        labels: what the image says of itself.
        created: RFC 3339.
    """

    user: int
    workdir: str
    volumes: tuple[str, ...]
    entrypoint: tuple[str, ...]
    command: tuple[str, ...]
    environment: dict[str, str]
    labels: dict[str, str]
    created: str


class Base(msgspec.Struct, frozen=True):
    """An image that another one stands on.

    Attributes:
        folder: the layout that holds it.
        digest: of its manifest, 64 hexadecimal digits.
        layers: its layers, the lowest first.
        environment: its variables.
        history: as its configuration has it.
        holds: the environment of ours that it has, if any.
    """

    folder: Path
    digest: str
    layers: tuple[Descriptor, ...]
    environment: dict[str, str]
    history: tuple[dict[str, Any], ...]
    holds: str = ""


def layer(digest: str, size: int, diff_id: str, compression: Compression) -> Descriptor:
    """Return the descriptor of a layer of ours."""
    kind = _LAYER + "+gzip" if compression == "gzip" else _LAYER
    return Descriptor(kind, digest, size, diff_id)


def configuration(
    settings: Settings, layers: Sequence[Descriptor], history: Sequence[Mapping[str, Any]]
) -> bytes:
    """Write an image's configuration."""
    config: dict[str, Any] = {
        "User": f"{settings.user}:{settings.user}",
        "Env": [f"{name}={value}" for name, value in sorted(settings.environment.items())],
        "WorkingDir": settings.workdir,
        "Labels": dict(settings.labels),
    }
    if settings.entrypoint:
        config["Entrypoint"] = list(settings.entrypoint)
    if settings.command:
        config["Cmd"] = list(settings.command)
    if settings.volumes:
        config["Volumes"] = {path: {} for path in settings.volumes}
    return _json(
        {
            "created": settings.created,
            "architecture": "amd64",
            "os": "linux",
            "config": config,
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{one.diff_id}" for one in layers]},
            "history": list(history),
        }
    )


def manifest(config: bytes, layers: Sequence[Descriptor], annotations: Mapping[str, str]) -> bytes:
    """Write an image's manifest; its SHA-256 is the image's digest."""
    return _json(
        {
            "schemaVersion": 2,
            "mediaType": _MANIFEST,
            "config": Descriptor(_CONFIG, sha256_bytes(config), len(config)).document,
            "layers": [one.document for one in layers],
            "annotations": dict(annotations),
        }
    )


def _json(document: object) -> bytes:
    return json.dumps(document, ensure_ascii=False, sort_keys=True, separators=(",", ":")).encode()


def check_place(folder: Path) -> None:
    """Refuse a folder that holds something else than an image of ours.

    What a killed run left is ours, too.

    Raises:
        PreflightError: it does.
    """
    if not folder.exists():
        return
    if not folder.is_dir():
        raise PreflightError("not a folder", where=folder, expected=_WANTED)
    names = {path.name for path in folder.iterdir()}
    begun = {name for name in names if name.startswith(_WORK)}
    foreign = names - _FILES - begun
    foreign |= {path.name for path in (folder / "blobs", blobs(folder)) if path.is_symlink()}
    images = _images(folder)
    if images is None:
        raise PreflightError(
            "the folder holds an image that envbuild did not write",
            where=folder,
            expected=_WANTED,
            mend="name another folder with -o",
        )
    if not images and not begun and _holds_files(folder / "blobs"):
        foreign.add("blobs")
    if foreign:
        raise PreflightError(
            "the folder holds something else",
            where=folder,
            expected=_WANTED,
            found=", ".join(sorted(foreign)[:5]),
            mend="name another folder with -o",
        )


def check_apart(base: Path, out: Path) -> None:
    """Refuse to write an image over the one that it stands on.

    Raises:
        PreflightError: it is the same folder.
    """
    if base.samefile(out):
        raise PreflightError(
            "the base image is in the folder that the image would be written to",
            where=out,
            expected="another folder: what is there is removed",
            mend="name another folder with -o",
        )


def _images(folder: Path) -> list[str] | None:
    """Return the environments that a layout has images of; None if any is not ours."""
    try:
        document = json.loads((folder / "index.json").read_bytes())
        return [str(one["annotations"][ENVIRONMENT]) for one in document["manifests"]]
    except FileNotFoundError:
        return []
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


def _holds_files(folder: Path) -> bool:
    return any(names for _, _, names in os.walk(folder))


@contextmanager
def place(folder: Path) -> Iterator[Path]:
    """Make a layout's folder ready for another image; the one that is there stays whole.

    When something goes wrong, nothing is left in a folder that held no image before. Two runs at
    once exclude each other where the file system has flock.

    Args:
        folder: of the layout.

    Yields:
        A folder in it for what is not finished yet. It is on the same file system.

    Raises:
        PreflightError: the folder holds something else, or another run writes to it.
        OSError: it cannot be written.
    """
    check_place(folder)
    new = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with _excluded(folder):
            check_place(folder)
            try:
                # first: it tells that what is there from now on is ours
                work = Path(tempfile.mkdtemp(prefix=_WORK, dir=folder))
                blobs(folder).mkdir(parents=True, exist_ok=True)
                yield work
            except BaseException:
                if not _images(folder):
                    shutil.rmtree(folder / "blobs", ignore_errors=True)
                    (folder / "oci-layout").unlink(missing_ok=True)
                raise
            finally:
                # also what killed runs left
                for left in folder.glob(f"{_WORK}*"):
                    shutil.rmtree(left, ignore_errors=True)
    finally:
        if new and not any(folder.iterdir()):
            folder.rmdir()


@contextmanager
def _excluded(folder: Path) -> Iterator[None]:
    """Keep other runs away from a layout."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        ending = time.monotonic() + _DYING
        while not _locked(descriptor):
            if time.monotonic() > ending:
                raise PreflightError(
                    "another run of `envbuild image` writes to this folder",
                    where=folder,
                    mend="wait until it has ended, or name another folder with -o",
                )
            time.sleep(0.05)
        yield
    finally:
        os.close(descriptor)


def _locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        pass  # there is no flock: two at once are for those who start them to avoid
    return True


def blobs(folder: Path) -> Path:
    """Return where a layout has its blobs."""
    return folder / "blobs" / "sha256"


def write(
    folder: Path,
    work: Path,
    config: bytes,
    written: bytes,
    *,
    environment: str,
    digests: Iterable[str],
) -> None:
    """Write an image's documents into a layout whose layers are there, and drop all else.

    The image that was there before stays whole until the new one is: its place in the index is
    taken in one step, and what only it had is removed after that.

    Args:
        folder: the layout.
        work: as `place` yields it.
        config: the configuration.
        written: the manifest.
        environment: the name that the image gets in the layout.
        digests: its layers' digests.

    Raises:
        OSError: it cannot be written.
    """
    wanted = set(digests)
    for document in (config, written):
        name = sha256_bytes(document)
        _put(document, work, blobs(folder) / name)
        wanted.add(name)
    described = {
        **Descriptor(_MANIFEST, sha256_bytes(written), len(written)).document,
        "annotations": {_REF: environment, ENVIRONMENT: environment},
        "platform": {"architecture": "amd64", "os": "linux"},
    }
    _put(_LAYOUT, work, folder / "oci-layout")
    index = {"schemaVersion": 2, "mediaType": _INDEX, "manifests": [described]}
    _put(_json(index), work, folder / "index.json")
    for path in blobs(folder).iterdir():
        if path.name not in wanted and not path.is_dir():
            path.unlink()


def _put(data: bytes, work: Path, target: Path) -> None:
    """Write a file durably; nothing half written gets among those of the layout."""
    durable.write(work / target.name, data)
    (work / target.name).replace(target)
    durable.fsync_folder(target.parent)


def parse_base(text: str) -> tuple[Path, str]:
    """Read ``FOLDER@sha256:DIGEST``.

    Raises:
        InputError: it names no digest; a tag can mean another image tomorrow.
    """
    folder, at, name = text.rpartition("@")
    match = _DIGEST.fullmatch(name)
    if not at or match is None:
        raise InputError(
            "--base: an image must be named by its digest; a tag can mean another one tomorrow",
            expected="debian, scratch, or FOLDER@sha256:DIGEST, FOLDER an OCI layout",
            found=text,
            mend="`skopeo inspect oci:FOLDER` prints the digest; "
            "`skopeo copy docker://IMAGE oci:FOLDER` brings an image there",
        )
    return Path(folder), match[1]


class _Platform(msgspec.Struct):
    architecture: str = ""
    os: str = ""


class _Named(msgspec.Struct, rename="camel"):
    media_type: str
    digest: str
    size: int
    platform: _Platform | None = None


class _Any(msgspec.Struct):
    manifests: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


class _Index(msgspec.Struct):
    manifests: list[_Named]


class _Manifest(msgspec.Struct):
    config: _Named
    layers: list[_Named]


class _Rootfs(msgspec.Struct):
    diff_ids: list[str]


class _Run(msgspec.Struct):
    environment: list[str] | None = msgspec.field(default=None, name="Env")
    labels: dict[str, str] | None = msgspec.field(default=None, name="Labels")


class _Config(msgspec.Struct):
    architecture: str
    os: str
    rootfs: _Rootfs
    config: _Run | None = None
    history: list[dict[str, Any]] | None = None


def read_base(folder: Path, digest: str) -> Base:
    """Read an image from a local layout; its layers are not looked at yet.

    Args:
        folder: the layout.
        digest: of a manifest, or of an index that has one for linux/amd64.

    Raises:
        InputError: it is not there, or not an image for linux/amd64 with layers that can be used.
    """
    data = _blob(folder, digest)
    if _is_index(data):
        fitting = [
            one.digest
            for one in _document(data, _Index, folder, digest).manifests
            if one.platform is not None and one.platform == _Platform("amd64", "linux")
        ]
        if len(fitting) != 1:
            raise _no_image(folder, digest, "not exactly one manifest for linux/amd64")
        digest = fitting[0].removeprefix("sha256:")
        data = _blob(folder, digest)
    manifest = _document(data, _Manifest, folder, digest)
    named = manifest.config.digest.removeprefix("sha256:")
    config = _document(_blob(folder, named), _Config, folder, digest)
    if (config.os, config.architecture) != ("linux", "amd64"):
        raise _no_image(folder, digest, f"one for {config.os}/{config.architecture}")
    if len(config.rootfs.diff_ids) != len(manifest.layers):
        found = f"{len(manifest.layers)} layers, of which {len(config.rootfs.diff_ids)} are known"
        raise _no_image(folder, digest, found)
    for one, diff_id in zip(manifest.layers, config.rootfs.diff_ids, strict=True):
        if one.media_type not in _LAYERS:
            raise _no_image(folder, digest, f"a layer of type {one.media_type}")
        for text in (one.digest, diff_id):
            if _DIGEST.fullmatch(text) is None:
                raise _no_image(folder, digest, f"a layer whose digest is {text!r}")
    run = config.config or _Run()
    return Base(
        folder,
        digest,
        tuple(
            Descriptor(
                one.media_type,
                one.digest.removeprefix("sha256:"),
                one.size,
                diff_id.removeprefix("sha256:"),
            )
            for one, diff_id in zip(manifest.layers, config.rootfs.diff_ids, strict=True)
        ),
        dict(_variable(one) for one in run.environment or ()),
        tuple(config.history or ()),
        (run.labels or {}).get(ENVIRONMENT, ""),
    )


def _variable(text: str) -> tuple[str, str]:
    name, _, value = text.partition("=")
    return name, value


def _blob(folder: Path, digest: str) -> bytes:
    """Read a document of a base image and hold it to its digest."""
    path = blobs(folder) / digest
    if not is_sha256(digest) or not path.is_file():
        raise _no_image(folder, digest, "no such blob")
    if path.stat().st_size > _MOST:
        raise _no_image(folder, digest, f"a document of {path.stat().st_size} bytes")
    data = path.read_bytes()
    if sha256_bytes(data) != digest:
        raise _no_image(folder, digest, f"a blob whose SHA-256 is {sha256_bytes(data)}")
    return data


def _is_index(data: bytes) -> bool:
    try:
        return msgspec.json.decode(data, type=_Any).manifests is not msgspec.UNSET
    except msgspec.DecodeError:
        return False  # said when it is read as a manifest


def _document(data: bytes, shape: type[T], folder: Path, digest: str) -> T:
    try:
        return msgspec.json.decode(data, type=shape)
    except (msgspec.DecodeError, RecursionError) as error:
        raise _no_image(folder, digest, f"a document that is none: {error}") from error


def _no_image(folder: Path, digest: str, found: str) -> InputError:
    return InputError(
        "not an image that another can stand on",
        where=f"{folder}@sha256:{digest}",
        expected="the digest of an OCI image for linux/amd64 in that layout",
        found=found,
        mend="`skopeo inspect oci:FOLDER` prints the digest of what is there",
    )


def copy_blob(source: Path, layer: Descriptor, work: Path, target: Path) -> None:
    """Copy a base image's layer and hold it to its digest.

    Args:
        source: the layout that it is in.
        layer: which.
        work: a folder on the target's file system for what is not verified yet.
        target: where to.

    Raises:
        InputError: it is not there, or is not what its name says.
        OSError: it cannot be written.
    """
    digest = layer.digest
    if target.exists() and sha256_file(target) == digest:
        return
    path = blobs(source) / digest
    if not path.is_file():
        raise _no_image(source, digest, "no such blob")
    part = work / digest
    shutil.copyfile(path, part)
    found = sha256_file(part)
    if found != digest:
        raise _no_image(source, digest, f"a blob whose SHA-256 is {found}")
    if part.stat().st_size != layer.size:
        raise _no_image(source, digest, f"{part.stat().st_size} bytes, where {layer.size} are said")
    part.replace(target)
