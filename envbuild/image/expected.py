"""Holding images to those that are recorded."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path

from envbuild import typed
from envbuild.catalog.project import Project
from envbuild.errors import EnvbuildError, InputError
from envbuild.findings import Finding
from envbuild.image import oci
from envbuild.image import request as requests
from envbuild.image.build import Image
from envbuild.image.request import Request
from envbuild.lock import drift as locks
from envbuild.lock import images
from envbuild.lock.images import Expected

DIGEST = "G002"


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
    path = images.file(project)
    restoring = "restore it from version control, or remove it and record the images anew"
    try:
        recorded = images.read(path)
        written = typed.read(path, "expected images") if recorded else b""
    except InputError as error:
        mend = error.mend or restoring
        return [_finding(locks.UNREADABLE, error.what, error.expected, error.found, mend)]
    if recorded and images.serialize(recorded) != written.replace(b"\r\n", b"\n"):
        what = "not in canonical form: edited by hand"
        return [_finding(locks.UNREADABLE, what, mend=restoring)]
    declared = project.environment_names
    findings = []
    for one in recorded:
        if one.environment not in declared:
            if set(names) != set(declared):
                continue  # what others have left is not asked for
            what = f"an image of {one.environment}, which is not declared"
            findings.append(_finding(locks.IMAGE, what, mend="take it out of the file"))
        elif one.environment in names:
            found = _drift_of(project, one)
            if found is not None:
                findings.append(found)
    return findings


def _drift_of(project: Project, recorded: Expected) -> Finding | None:
    mend = f"run `envbuild image --record {recorded.environment}` with these options"
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
        what = f"the recorded image of {recorded.environment} ({_spelled(recorded)}) cannot be "
        what += f"built any more: {error.what}"
        return _finding(locks.IMAGE, what, error.expected, error.found, error.mend or mend)
    if not changed:
        return None
    what = f"the recorded image of {recorded.environment} ({_spelled(recorded)}) is of another "
    return _finding(locks.IMAGE, what + "lock, pin or setting", mend=mend)


def _finding(
    code: str,
    message: str,
    expected: str | None = None,
    found: str | None = None,
    mend: str | None = None,
) -> Finding:
    return Finding(code, "error", images.FILE, message, expected, found, mend)
