"""What an image says of itself and how its containers are started, from what it is made of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from envbuild.digest import sha256_bytes
from envbuild.image import oci
from envbuild.image.request import Request
from envbuild.lock import lockfile
from envbuild.lock.interpreters import Pin

_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def settings(request: Request) -> oci.Settings:
    """Return what containers of the image are started with."""
    image = request.declared.image
    variables: dict[str, str] = {}
    path = _PATH
    if isinstance(request.base, oci.Base):
        variables.update(request.base.environment)
        path = variables.get("PATH", path)
    elif request.base == "debian":
        variables["SSL_CERT_FILE"] = "/etc/ssl/certs/ca-certificates.crt"
    variables["PATH"] = f"{request.target.prefix}/bin:{path}"
    variables["PYTHONNOUSERSITE"] = "1"
    if any(package.name.startswith("nvidia-") for package in request.lock.packages):
        # what NVIDIA's container toolkit reads: the driver's libraries come from the host
        variables["NVIDIA_VISIBLE_DEVICES"] = "all"
        variables["NVIDIA_DRIVER_CAPABILITIES"] = "compute,utility"
    variables.update(image.environment)
    python = () if image.entrypoint else (f"{request.target.prefix}/bin/python",)
    return oci.Settings(
        user=image.user,
        workdir=image.workdir,
        volumes=image.volumes,
        entrypoint=image.entrypoint,
        command=python,
        environment=variables,
        labels={**told(request), **image.labels, **_own(request)},
        created=request.lock.exclude_newer,
    )


def _own(request: Request) -> dict[str, str]:
    """Return what no setting may say otherwise."""
    return {name: text for name, text in told(request).items() if name.startswith("envbuild.")}


def told(request: Request) -> dict[str, str]:
    """Return what the image says of itself, in its manifest and in its labels."""
    texts = {
        "org.opencontainers.image.title": request.environment,
        "org.opencontainers.image.description": request.declared.summary,
        "org.opencontainers.image.created": request.lock.exclude_newer,
        oci.ENVIRONMENT: request.environment,
        "envbuild.lock": f"sha256:{sha256_bytes(lockfile.serialize(request.lock))}",
        "envbuild.interpreter": request.program
        if request.interpreter == "none"
        else f"{request.program} {request.version}",
    }
    if isinstance(request.base, oci.Base):
        texts["org.opencontainers.image.base.digest"] = f"sha256:{request.base.digest}"
    elif request.base == "debian":
        packages = sorted(
            f"{one.sha256}  {one.file}\n" for task in request.debs for one in task.packages
        )
        # what sha256sum would say of the .debs
        texts["envbuild.base"] = f"sha256:{sha256_bytes(''.join(packages).encode())}"
    if isinstance(request.interpreter, Pin):
        texts["envbuild.interpreter.archive"] = f"sha256:{request.interpreter.sha256}"
    for artifact in request.built:
        # not pinned by the lock alone: another build of it is another image
        texts[f"envbuild.built.{artifact.project}"] = f"sha256:{artifact.sha256}"
    return texts


def history(request: Request, contents: Sequence[str]) -> list[dict[str, Any]]:
    """Return a line for every layer, those of a base image first.

    Args:
        request: what the image is made of.
        contents: what is in each layer of ours.
    """
    ours = [
        {"created": request.lock.exclude_newer, "created_by": f"envbuild image: {what}"}
        for what in contents
    ]
    return [*_before(request.base), *ours] if isinstance(request.base, oci.Base) else ours


def _before(base: oci.Base) -> Sequence[dict[str, Any]]:
    """Return a base image's history, or one in its place if it does not tell of every layer."""
    told = [one for one in base.history if not one.get("empty_layer")]
    if len(told) == len(base.layers):
        return base.history
    return [{"created_by": "base image"} for _ in base.layers]
