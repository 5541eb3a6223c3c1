"""The documents of an image and the folder that holds it (OCI image-spec 1.1)."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from envbuild import durable
from envbuild.digest import is_sha256, sha256_bytes, sha256_file
from envbuild.errors import InputError, PreflightError
from envbuild.image.layer import Compression

_LAYOUT = b'{"imageLayoutVersion":"1.0.0"}'
_INDEX = "application/vnd.oci.image.index.v1+json"
_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
_CONFIG = "application/vnd.oci.image.config.v1+json"
_LAYER = "application/vnd.oci.image.layer.v1.tar"
_REF = "org.opencontainers.image.ref.name"
# what tells an image of ours from others
ENVIRONMENT = "envbuild.environment"
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
    """

    folder: Path
    digest: str
    layers: tuple[Descriptor, ...]
    environment: dict[str, str]
    history: tuple[dict[str, Any], ...]


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

    Raises:
        PreflightError: it does.
    """
    if not folder.exists():
        return
    wanted = "a new or empty folder, or one that `envbuild image` wrote"
    if not folder.is_dir():
        raise PreflightError("not a folder", where=folder, expected=wanted)
    names = {path.name for path in folder.iterdir()}
    if names - {"oci-layout", "index.json", "blobs"}:
        raise PreflightError(
            "the folder holds something else",
            where=folder,
            expected=wanted,
            found=", ".join(sorted(names)[:5]),
            mend="name another folder with -o",
        )
    if "index.json" not in names:
        return
    try:
        index = json.loads((folder / "index.json").read_bytes())
        foreign = [one for one in index["manifests"] if ENVIRONMENT not in one["annotations"]]
    except (ValueError, KeyError, TypeError):
        foreign = [None]
    if foreign:
        raise PreflightError(
            "the folder holds an image that envbuild did not write",
            where=folder,
            expected=wanted,
            mend="name another folder with -o",
        )


def write(
    folder: Path, config: bytes, written: bytes, environment: str, digests: Iterable[str]
) -> None:
    """Write an image's documents into a layout whose layers are there, and drop all else.

    Args:
        folder: the layout.
        config: the configuration.
        written: the manifest.
        environment: the name that the image gets in the layout.
        digests: its layers' digests.

    Raises:
        OSError: it cannot be written; an image that was there before may have lost nothing but
            its place in the index.
    """
    blobs = folder / "blobs" / "sha256"
    wanted = set(digests)
    for document in (config, written):
        name = sha256_bytes(document)
        durable.write(blobs / name, document)
        wanted.add(name)
    described = {
        **Descriptor(_MANIFEST, sha256_bytes(written), len(written)).document,
        "annotations": {_REF: environment, ENVIRONMENT: environment},
        "platform": {"architecture": "amd64", "os": "linux"},
    }
    durable.write(folder / "oci-layout", _LAYOUT)
    index = {"schemaVersion": 2, "mediaType": _INDEX, "manifests": [described]}
    durable.write(folder / "index.json", _json(index))
    for path in blobs.iterdir():
        if path.name not in wanted:
            path.unlink()


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


def read_base(folder: Path, digest: str) -> Base:
    """Read an image from a local layout; its layers are not looked at yet.

    Args:
        folder: the layout.
        digest: of a manifest, or of an index that has one for linux/amd64.

    Raises:
        InputError: it is not there, or not an image for linux/amd64 with layers that can be used.
    """
    document = _document(folder, digest)
    if "manifests" in document:
        fitting = [
            one["digest"]
            for one in document["manifests"]
            if one.get("platform", {}).get("architecture") == "amd64"
            and one.get("platform", {}).get("os") == "linux"
        ]
        if len(fitting) != 1:
            raise _no_image(folder, digest, "not exactly one manifest for linux/amd64")
        digest = str(fitting[0]).removeprefix("sha256:")
        document = _document(folder, digest)
    try:
        config = _document(folder, document["config"]["digest"].removeprefix("sha256:"))
        diff_ids = [one.removeprefix("sha256:") for one in config["rootfs"]["diff_ids"]]
        layers = tuple(
            Descriptor(one["mediaType"], one["digest"].removeprefix("sha256:"), one["size"], diff)
            for one, diff in zip(document["layers"], diff_ids, strict=True)
        )
        variables = [one.partition("=") for one in config.get("config", {}).get("Env") or []]
        platform = (config["os"], config["architecture"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise _no_image(folder, digest, f"a document without {error}") from error
    if platform != ("linux", "amd64"):
        raise _no_image(folder, digest, "/".join(platform))
    for one in layers:
        if not one.media_type.startswith(_LAYER) or not is_sha256(one.digest):
            raise _no_image(folder, digest, f"a layer of type {one.media_type}")
    return Base(
        folder,
        digest,
        layers,
        {name: value for name, _, value in variables},
        tuple(config.get("history") or ()),
    )


def _document(folder: Path, digest: str) -> dict[str, Any]:
    path = folder / "blobs" / "sha256" / digest
    if not is_sha256(digest) or not path.is_file():
        raise _no_image(folder, digest, "no such blob")
    if path.stat().st_size > _MOST:
        raise _no_image(folder, digest, f"a document of {path.stat().st_size} bytes")
    data = path.read_bytes()
    if sha256_bytes(data) != digest:
        raise _no_image(folder, digest, f"a blob whose SHA-256 is {sha256_bytes(data)}")
    try:
        document = json.loads(data)
    except ValueError as error:
        raise _no_image(folder, digest, "no JSON") from error
    if not isinstance(document, dict):
        raise _no_image(folder, digest, "no JSON object")
    return document


def _no_image(folder: Path, digest: str, found: str) -> InputError:
    return InputError(
        "not an image that another can stand on",
        where=f"{folder}@sha256:{digest}",
        expected="the digest of an OCI image for linux/amd64 in that layout",
        found=found,
        mend="`skopeo inspect oci:FOLDER` prints the digest of what is there",
    )


def copy_blob(source: Path, digest: str, blobs: Path) -> None:
    """Copy a base image's layer and hold it to its digest.

    Raises:
        InputError: it is not there, or is not what its name says.
        OSError: it cannot be written.
    """
    target = blobs / digest
    if target.exists() and sha256_file(target) == digest:
        return
    path = source / "blobs" / "sha256" / digest
    if not path.is_file():
        raise _no_image(source, digest, "no such blob")
    part = blobs / f".{digest}.{os.getpid()}"
    try:
        shutil.copyfile(path, part)
        found = sha256_file(part)
        if found != digest:
            raise _no_image(source, digest, f"a blob whose SHA-256 is {found}")
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)
