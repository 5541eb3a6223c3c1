"""``envbuild image``."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec.structs

from envbuild import findings as printer
from envbuild.cli import common
from envbuild.errors import CheckFailedError, PreflightError

if TYPE_CHECKING:
    from envbuild.catalog.project import Project
    from envbuild.findings import Finding
    from envbuild.image.build import Image
    from envbuild.image.cache import Cache
    from envbuild.image.request import Request

_FILE = click.Path(path_type=Path, exists=True, dir_okay=False)
_FOLDER = click.Path(path_type=Path, file_okay=False)
_THERE = click.Path(path_type=Path, file_okay=False, exists=True)


@click.command(epilog="The image's digest is the only line on standard output.")
@click.argument("name", metavar="ENV", shell_complete=common.complete("environment"))
@click.option("-o", "--output", "out", type=_FOLDER, help="Folder of the OCI layout to write.")
@click.option(
    "--interpreter",
    type=click.Choice(["managed", "debian", "none"]),
    default="managed",
    show_default=True,
    help="The pinned archive, Debian's hash-pinned Python, or none.",
)
@click.option(
    "--base",
    default="debian",
    show_default=True,
    metavar="BASE",
    help="debian, scratch, or FOLDER@sha256:DIGEST: an image of a local OCI layout.",
)
@click.option(
    "--compression", type=click.Choice(["gzip", "none"]), default="gzip", show_default=True
)
@click.option(
    "--wheel", "given", type=_FILE, multiple=True, help="A wheel that was built from source."
)
@click.option("--check", is_flag=True, help="Fail if it is not the image in locks/images.toml.")
@click.option("--record", is_flag=True, help="Write it into locks/images.toml.")
@click.option("--verify-record", is_flag=True, help="Hold every file to its wheel's RECORD, too.")
@click.option(
    "--cache",
    "cache_folder",
    type=_FOLDER,
    envvar="ENVBUILD_CACHE",
    help="Folder of layers built before; ~/.cache/envbuild by default.",
)
@click.option("--no-cache", is_flag=True, help="Build every layer, and keep none.")
@click.option(
    "--layers",
    "handed",
    type=_THERE,
    multiple=True,
    help="A folder of layers built before by others, such as another cache; only read.",
)
@click.option("-j", "--jobs", type=click.IntRange(min=1), help="Processes; one a core by default.")
@click.option("--offline", is_flag=True, help="Take everything from the wheelhouse.")
@common.wheelhouse
@common.as_json
@click.pass_context
def command(
    ctx: click.Context,
    name: str,
    *,
    out: Path | None,
    interpreter: str,
    base: str,
    compression: str,
    given: tuple[Path, ...],
    check: bool,
    record: bool,
    verify_record: bool,
    cache_folder: Path | None,
    no_cache: bool,
    handed: tuple[Path, ...],
    jobs: int | None,
    offline: bool,
    wheelhouse_folder: Path | None,
    json_output: bool,
) -> None:
    """Build an environment's container image: an OCI layout with the same digest everywhere."""
    from envbuild.image import oci
    from envbuild.image import request as requests
    from envbuild.image.build import build
    from envbuild.image.cache import Handed
    from envbuild.prefix.supply import Supply

    if out is None and not (check or record):
        raise click.UsageError("-o DIR says where the image goes; or --check, or --record")
    if out is None and no_cache:
        raise click.UsageError("--no-cache needs -o DIR, where the layers are written")
    if check and record:
        raise click.UsageError("--check and --record exclude each other")
    begun = time.monotonic()
    project = common.project(ctx)
    supply = Supply(project.folder, wheelhouse_folder or project.wheelhouse, offline=offline)
    named = base in ("debian", "scratch")
    request = requests.read(
        project,
        name,
        base=base if named else oci.read_base(*oci.parse_base(base)),
        interpreter=interpreter,
        compression=compression,
        built=tuple(requests.built_wheel(path) for path in given),
    )
    if out is not None:
        oci.check_place(out)
    supply.image(request, given)
    image = build(
        request,
        supply.wheelhouse.path,
        out,
        cache=None if no_cache else _cache(cache_folder),
        handed=[Handed(folder) for folder in handed],
        jobs=jobs,
        verify_record=verify_record,
    )
    _report(
        project,
        request,
        image,
        time.monotonic() - begun,
        check=check,
        record=record,
        json_output=json_output,
    )


def _cache(folder: Path | None) -> Cache:
    from envbuild.image.cache import Cache

    cache = Cache(folder or _home() / "envbuild")
    if not cache.usable:
        raise PreflightError(
            "the cache of layers is a folder that others may write to",
            where=cache.folder,
            expected="a folder of yours alone",
            mend="name another one with --cache or ENVBUILD_CACHE, or use --no-cache",
        )
    return cache


def _home() -> Path:
    """Return the folder of the user's caches (the XDG base directory specification)."""
    given = os.environ.get("XDG_CACHE_HOME", "")
    if Path(given).is_absolute():
        return Path(given)
    try:
        return Path.home() / ".cache"
    except RuntimeError as error:
        raise PreflightError(
            "there is no home folder to keep layers in",
            mend="name a folder with --cache or ENVBUILD_CACHE, or use --no-cache",
        ) from error


def _report(
    project: Project,
    request: Request,
    image: Image,
    seconds: float,
    *,
    check: bool,
    record: bool,
    json_output: bool,
) -> None:
    """Say what was built, and hold it to what is expected."""
    from envbuild.image import expected
    from envbuild.lock import images

    now = expected.of(request, image)
    recorded = expected.find(project, request)
    found = list(image.findings)
    # without being asked to check, only the same inputs must give the same image
    if check or (recorded is not None and recorded.inputs == now.inputs):
        found += expected.compare(now, recorded)
    if record:
        # what is recorded from now on, though that the same inputs gave other bytes must be seen
        found = [msgspec.structs.replace(one, severity="warning") for one in found]
        images.write(project, now)
    if json_output:
        common.print_json("image", _document(image, found, now.digest, seconds))
    else:
        _print_layers(image, seconds)
        if found:
            common.say(printer.text(found))
        if not check and not record and recorded is not None and recorded.inputs != now.inputs:
            common.say(f"{images.FILE} holds an image of another lock, pin or setting: --record")
        click.echo(now.digest)
    if printer.failed(found):
        raise CheckFailedError(f"{request.environment}: not the image that is recorded")


def _print_layers(image: Image, seconds: float) -> None:
    rows = [
        (common.size(one.blob.size), one.what, "cached" if one.cached else "built")
        for one in image.layers
    ]
    total = sum(one.blob.size for one in image.layers)
    common.print_table(("size", "layer", "state"), rows, err=True)
    built = sum(not one.cached for one in image.layers)
    common.say(
        f"{image.environment}: {len(rows)} layers, {common.size(total)}, {built} of them built, "
        f"in {seconds:.1f} s"
    )


def _document(
    image: Image, findings: Sequence[Finding], digest: str, seconds: float
) -> dict[str, Any]:
    return {
        "environment": image.environment,
        "digest": digest,
        "seconds": round(seconds, 3),
        "layers": [
            {
                "what": one.what,
                "digest": f"sha256:{one.blob.digest}",
                "diff_id": f"sha256:{one.blob.diff_id}",
                "size": one.blob.size,
                "state": "cached" if one.cached else "built",
            }
            for one in image.layers
        ],
        "findings": printer.document(findings),
    }
