"""The images that are expected: ``locks/images.toml``, written by ``envbuild image --record``."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

from envbuild import durable, typed
from envbuild.artifacts import Artifact
from envbuild.catalog.project import Project
from envbuild.digest import is_sha256
from envbuild.errors import InputError
from envbuild.lock.lockfile import string
from envbuild.typed import Table

SCHEMA = 1
FILE = "locks/images.toml"

Interpreter = Literal["managed", "debian", "none"]

_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


class Built(Table, frozen=True):
    """A wheel in an image that was built from source: not pinned by the lock alone."""

    project: str
    file: str
    size: int
    sha256: str

    @property
    def artifact(self) -> Artifact:
        """The wheel."""
        return Artifact(self.file, self.size, self.sha256, self.project)


class Expected(Table, frozen=True):
    """An image as it was recorded.

    Attributes:
        environment: whose.
        interpreter: ``managed``, ``debian`` or ``none``.
        base: ``debian``, ``scratch``, or ``sha256:`` and the digest of an image.
        compression: of its layers.
        inputs: SHA-256 of everything that decides it, 64 hexadecimal digits.
        digest: of its manifest, with ``sha256:`` before it.
        layers: its layers' diffIDs, the lowest first, each with what is in it.
        built: wheels in it that were built from source.
    """

    environment: str
    interpreter: Interpreter
    base: str
    compression: Literal["gzip", "none"]
    inputs: str
    digest: str
    layers: tuple[tuple[str, str], ...]
    built: tuple[Built, ...] = ()

    @property
    def debian(self) -> bool:
        """Whether it stands on Debian's packages and has Debian's Python."""
        return (self.base, self.interpreter) == ("debian", "debian")

    @property
    def kind(self) -> tuple[str, str, str, str]:
        """What tells it from other images; one of each is expected."""
        return self.environment, self.interpreter, self.base, self.compression


class _Document(Table, frozen=True):
    schema: int
    images: tuple[Expected, ...] = ()


def file(project: Project) -> Path:
    """Return where a project's expected images stand."""
    return project.folder / FILE


def read(path: Path) -> list[Expected]:
    """Read the expected images; none where the file is not there.

    Raises:
        InputError: the file is of another schema, or was edited by hand.
    """
    if not path.exists():
        return []
    document = typed.load(path, _Document, "expected images")
    if document.schema != SCHEMA:
        raise InputError(
            "schema: not a version that this envbuild reads",
            where=path,
            expected=SCHEMA,
            found=document.schema,
            mend="use the envbuild that wrote it, or remove the file and record the images anew",
        )
    for index, image in enumerate(document.images):
        _check(image, f"{path}: images[{index}]")
    kinds = [image.kind for image in document.images]
    if kinds != sorted(set(kinds)):
        raise InputError(
            "images: not sorted, each once", where=path, mend="restore it from version control"
        )
    return list(document.images)


def _check(image: Expected, where: str) -> None:
    digest = "sha256: and 64 lower-case hexadecimal digits"
    hexadecimal = "64 lower-case hexadecimal digits"
    right = image.base in ("debian", "scratch") or _DIGEST.fullmatch(image.base) is not None
    checks = [
        ("base", image.base, f"debian, scratch, or {digest}", right),
        ("inputs", image.inputs, hexadecimal, is_sha256(image.inputs)),
        ("digest", image.digest, digest, _DIGEST.fullmatch(image.digest) is not None),
    ]
    checks += [
        (f"layers[{index}]", diff_id, digest, _DIGEST.fullmatch(diff_id) is not None)
        for index, (diff_id, _) in enumerate(image.layers)
    ]
    checks += [
        (f"built[{index}].sha256", one.sha256, hexadecimal, is_sha256(one.sha256))
        for index, one in enumerate(image.built)
    ]
    for key, found, expected, right in checks:
        if not right:
            raise InputError(
                f"{key}: wrong value",
                where=where,
                expected=expected,
                found=repr(found),
                mend=f"restore the file, or remove it and record the images anew: "
                f"`envbuild image --record {image.environment}`",
            )


def serialize(images: Iterable[Expected]) -> bytes:
    """Write expected images in their one canonical form."""
    lines = [
        "# Written by `envbuild image --record`; `envbuild image --check` builds them again.",
        f"schema = {SCHEMA}",
    ]
    for image in images:
        lines += ["", "[[images]]"]
        lines += [
            f"{key} = {string(getattr(image, key))}"
            for key in ("environment", "interpreter", "base", "compression", "inputs", "digest")
        ]
        lines += ["layers = ["]
        lines += [f"    [{string(diff_id)}, {string(what)}]," for diff_id, what in image.layers]
        lines += ["]"]
        if image.built:
            lines += [
                "# not pinned by the lock alone: wheels that were built from source",
                "built = [",
            ]
            lines += [
                f"    {{ project = {string(one.project)}, file = {string(one.file)}, "
                f"size = {one.size}, sha256 = {string(one.sha256)} }},"
                for one in image.built
            ]
            lines += ["]"]
    return ("\n".join(lines) + "\n").encode()


def built(artifact: Artifact) -> Built:
    """Return how a wheel that was built from source is recorded."""
    return Built(artifact.project, artifact.file, artifact.size, artifact.sha256)


def write(project: Project, new: Expected) -> None:
    """Record an image in the place of the one of its kind.

    Raises:
        InputError: what is recorded cannot be read.
        OSError: it cannot be written.
    """
    path = file(project)
    path.parent.mkdir(exist_ok=True)
    others = [image for image in read(path) if image.kind != new.kind]
    durable.write(path, serialize(sorted([*others, new], key=lambda image: image.kind)))
