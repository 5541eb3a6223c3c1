"""``envbuild nix``."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from envbuild import progress
from envbuild.cli import common
from envbuild.errors import PreflightError

if TYPE_CHECKING:
    from envbuild.catalog.project import Project
    from envbuild.image.request import Request

_FOLDER = click.Path(path_type=Path, file_okay=False)
_THERE = click.Path(path_type=Path, exists=True, file_okay=False)
_FILE = click.Path(path_type=Path, exists=True, dir_okay=False)


@click.group()
def command() -> None:
    """Prepare what the flake builds from."""


@command.command(epilog="Without ENV, what all images are made of that need no build on a target.")
@common.environments
@click.option(
    "--interpreter",
    type=click.Choice(["managed", "debian"]),
    default="managed",
    show_default=True,
    help="Whose interpreter the images have, as in `envbuild image`.",
)
@click.option("--store", metavar="URL", help="Which store, as Nix's --store has it.")
@click.option("--offline", is_flag=True, help="Take everything from the wheelhouse.")
@common.wheelhouse
@common.as_json
@click.pass_context
def preload(
    ctx: click.Context,
    names: tuple[str, ...],
    *,
    interpreter: str,
    store: str | None,
    offline: bool,
    wheelhouse_folder: Path | None,
    json_output: bool,
) -> None:
    """Put what images are made of into the Nix store, by hash: `nix build` then fetches nothing."""
    from envbuild.nix.store import File, Store, own_wheels
    from envbuild.prefix.supply import Supply

    project = common.project(ctx)
    there = Store(store)
    supply = Supply(project.folder, wheelhouse_folder or project.wheelhouse, offline=offline)
    own = own_wheels()
    wanted = {artifact.file: artifact for artifact in own}
    for request in _requests(project, names, interpreter):
        wanted |= {artifact.file: artifact for artifact in supply.flake(request)}
        if request.lock.unbuilt:
            unbuilt = ", ".join(request.lock.unbuilt)
            common.say(f"{request.environment}: without {unbuilt}, which the target system builds")
    supply.artifacts(own)
    files = [
        File(path, artifact.sha256, path.stat().st_size)
        for artifact in wanted.values()
        for path in (supply.wheelhouse.path_of(artifact),)
    ]
    missing = there.missing(files)
    size = sum(file.size for file in missing)
    with progress.bar("filling the Nix store", size) as advance:
        there.add(missing, advance=advance)
    if json_output:
        paths = {file.path.name: file.store_path for file in files}
        common.print_json("nix-preload", {"paths": paths, "added": len(missing), "bytes": size})
        return
    click.echo(
        f"{len(missing)} files ({common.size(size)}) put into the Nix store, "
        f"{len(files) - len(missing)} were there"
    )


def _requests(project: Project, names: Sequence[str], interpreter: str) -> list[Request]:
    """Return the images; without names, those that are outputs of the flake."""
    from envbuild.image.request import read
    from envbuild.lock import images

    selected = project.select(names)
    if interpreter == "debian" and not names:
        recorded = {one.environment for one in images.read(images.file(project)) if one.debian}
        selected = [name for name in selected if name in recorded]
    found = [
        read(project, name, base="debian", interpreter=interpreter, compression="gzip")
        for name in selected
    ]
    return [one for one in found if names or not one.lock.unbuilt]


@command.command("stand-in")
@click.argument("folder", type=_FOLDER)
def stand_in(folder: Path) -> None:
    """Write a stand-in for nixpkgs into FOLDER, made of what this machine has.

    For machines that cannot reach nixpkgs: `nix build .#core-image --override-input nixpkgs
    path:FOLDER`.
    """
    from urllib.parse import quote

    from envbuild.nix import standin

    folder = Path(os.path.realpath(folder))  # also when it is the current one, and replaced
    standin.write(folder)
    click.echo(f"give it to nix: --override-input nixpkgs path:{quote(str(folder))}")


@command.command(hidden=True)
@click.option("--pins", type=_FILE, required=True, help="Pins of Debian packages.")
@click.option("--python", is_flag=True, help="With Debian's Python.")
@click.option("--package", "packages", multiple=True, help="A Debian package that is asked for.")
@click.option("-o", "--output", "out", type=_FOLDER, required=True, help="Folder to write.")
@click.option("-j", "--jobs", type=click.IntRange(min=1), help="Processes; one a core by default.")
@click.option("--wheelhouse", "wheelhouse_folder", type=_THERE, required=True, help="The .debs.")
def layers(
    *,
    pins: Path,
    python: bool,
    packages: tuple[str, ...],
    out: Path,
    jobs: int | None,
    wheelhouse_folder: Path,
) -> None:
    """Write layers of Debian packages for `envbuild image --layers`; the flake does so."""
    from envbuild.image import plan
    from envbuild.image.build import debian_layers
    from envbuild.image.cache import Cache
    from envbuild.lock import debian

    if out.exists() and any(out.iterdir()):
        raise PreflightError(
            "the folder for layers holds something",
            where=out,
            expected="an empty folder, or none",
            mend="name another one",
        )
    pinned = debian.read(pins)
    tasks = plan.debs(
        debian.closure(debian.BASE, pinned),
        debian.closure(debian.PYTHON, pinned) if python else [],
        debian.closure(packages, pinned),
    )
    cache = Cache(out)
    debian_layers(tasks, wheelhouse_folder, cache, jobs=jobs)
    cache.strip()
