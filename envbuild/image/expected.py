"""Holding images to those that are recorded."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path

from envbuild.catalog.project import Project
from envbuild.errors import EnvbuildError, InputError
from envbuild.findings import Finding
from envbuild.image import oci
from envbuild.image import request as requests
from envbuild.image.build import Image
from envbuild.image.request import Request
from envbuild.lock import images
from envbuild.lock.images import Expected

DIGEST = "G002"
INPUTS = "D012"


def of(request: Request, image: Image) -> Expected:
    """Return how an image is recorded."""
    environment, interpreter, base, compression = request.kind
    return Expected(
        environment,
        interpreter,
        base,
        compression,
        image.inputs,
        f"sha256:{image.digest}",
        tuple((f"sha256:{one.blob.diff_id}", one.what) for one in image.layers),
        tuple(map(images.built, request.built)),
    )


def find(project: Project, request: Request) -> Expected | None:
    """Return the recorded image of the kind of a request."""
    recorded = images.read(images.file(project))
    return next((one for one in recorded if one.kind == request.kind), None)


def compare(now: Expected, recorded: Expected | None) -> list[Finding]:
    """Say how an image differs from the recorded one.

    Args:
        now: the image as it was just built.
        recorded: the one of its kind in ``locks/images.toml``, if any.
    """
    mend = f"run `envbuild image --record {now.environment}` with the same options, and commit it"
    if recorded is None:
        return [
            Finding(
                DIGEST,
                "error",
                now.environment,
                "no image of this kind is recorded",
                expected=f"one in {images.FILE}: {_spelled(now)}",
                found=now.digest,
                mend=mend,
            )
        ]
    if recorded.digest == now.digest:
        return []
    if recorded.inputs == now.inputs:
        mend = "the same inputs gave other bytes: find out what differs on this machine"
    return [
        Finding(
            DIGEST,
            "error",
            now.environment,
            f"another image than the recorded one: {_differences(now, recorded)}",
            expected=recorded.digest,
            found=now.digest,
            mend=mend,
        )
    ]


def _spelled(image: Expected) -> str:
    return f"interpreter {image.interpreter}, base {image.base}, compression {image.compression}"


def _differences(now: Expected, recorded: Expected) -> str:
    pairs = zip_longest(recorded.layers, now.layers, fillvalue=("", "no layer"))
    differing = [f"{old[1]} -> {new[1]}" for old, new in pairs if old[0] != new[0]]
    if not differing:
        return "its layers are the same, its settings, its lock or its layers' compression are not"
    more = f" and {len(differing) - 3} more" if len(differing) > 3 else ""
    return "; ".join(differing[:3]) + more


def drift(project: Project, names: Sequence[str]) -> list[Finding]:
    """Find recorded images whose environment, lock or pins changed since; nothing is built.

    Args:
        project: the project.
        names: the environments to check.
    """
    try:
        recorded = images.read(images.file(project))
    except InputError as error:
        return [_finding(images.FILE, error.what, error.expected, error.found, error.mend)]
    findings = []
    for one in recorded:
        if one.environment not in project.environment_names:
            findings.append(
                _finding(images.FILE, f"an image of {one.environment}, which is not declared")
            )
        elif one.environment in names:
            found = _drift_of(project, one)
            if found is not None:
                findings.append(found)
    return findings


def _drift_of(project: Project, recorded: Expected) -> Finding | None:
    try:
        base = recorded.base
        now = requests.read(
            project,
            recorded.environment,
            # what else is in a base image its digest decides
            base=oci.Base(Path(), base.removeprefix("sha256:"), (), {}, ())
            if ":" in base
            else base,
            interpreter=recorded.interpreter,
            compression=recorded.compression,
            built=tuple(one.artifact for one in recorded.built),
        )
        changed = requests.inputs(now) != recorded.inputs
    except EnvbuildError as error:
        # said of the lock or the pins themselves
        return _finding(images.FILE, f"{recorded.environment}: {error.what}", mend=error.mend)
    if not changed:
        return None
    return _finding(
        f"{images.FILE}: {recorded.environment}",
        f"the recorded image ({_spelled(recorded)}) is of another lock, pin or setting",
        mend=f"run `envbuild image --record {recorded.environment}` with these options",
    )


def _finding(
    where: str,
    message: str,
    expected: str | None = None,
    found: str | None = None,
    mend: str | None = None,
) -> Finding:
    return Finding(INPUTS, "error", where, message, expected, found, mend)
