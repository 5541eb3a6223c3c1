"""``envbuild archive``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from envbuild.cli import common

if TYPE_CHECKING:
    from envbuild.prefix.archive import Entry


@click.group()
def command() -> None:
    """List, restore or prune prefixes that were replaced or refused."""


@command.command("list")
@common.environments
@common.site
@common.as_json
@click.pass_context
def list_(
    ctx: click.Context,
    names: tuple[str, ...],
    *,
    site_name: str,
    root: Path | None,
    user: str | None,
    json_output: bool,
) -> None:
    """List the prefixes that were replaced or refused at a site, the oldest first."""
    from envbuild.prefix import archive

    project = common.project(ctx)
    layout = project.layout(site_name, user=user, root=root)
    entries = archive.entries(layout.bookkeeping, names)
    if json_output:
        documents = [
            {
                "name": entry.name,
                "environment": entry.environment,
                "path": str(entry.path),
                "archived": entry.archived,
                "created": entry.created,
                "refused": entry.refused,
            }
            for entry in entries
        ]
        common.print_json("archive", {"site": layout.name, "entries": documents})
        return
    common.print_table(
        ("archived prefix", "created (UTC)", "archived (UTC)"),
        [(entry.name, _created(entry), entry.archived) for entry in entries],
    )


def _created(entry: Entry) -> str:
    if entry.refused is not None:
        return f"refused: {entry.refused} error{'' if entry.refused == 1 else 's'}"
    return entry.created or "no receipt"


@command.command(cls=common.Waiting)
@click.argument("environment", metavar="ENV")
@click.argument("name", metavar="[NAME]", required=False)
@common.site
@common.wait
@click.option("--replace-in-use", is_flag=True, help="Replace the prefix under its users.")
@click.pass_context
def restore(
    ctx: click.Context,
    environment: str,
    name: str | None,
    *,
    site_name: str,
    root: Path | None,
    user: str | None,
    wait: float | None,
    replace_in_use: bool,
) -> None:
    """Put a replaced prefix back: the youngest, or the one of that NAME."""
    from envbuild import owner
    from envbuild.prefix import archive, usage
    from envbuild.prefix.locked import locked
    from envbuild.prefix.usage import Patience

    project = common.project(ctx)
    layout = project.layout(site_name, user=user, root=root)
    prefix = layout.prefix(environment)
    me = owner.current(f"envbuild archive restore {environment}")
    patience = Patience(wait, replace_in_use)
    with locked(layout, environment, me, patience, common.say):
        entry = archive.choose(layout.bookkeeping, environment, name)
        with usage.swapping(layout.bookkeeping, environment, me, patience, common.say):
            archived = archive.restore(layout.bookkeeping, entry, prefix)
    click.echo(f"{environment}: {entry.name} is back at {prefix}")
    if archived is not None:
        click.echo(f"  the prefix that stood there is now {archived}")


@command.command()
@common.environments
@common.site
@click.option("--keep", type=click.IntRange(min=0), required=True, help="How many of each to keep.")
@click.option("--dry-run", is_flag=True, help="Only say what would be removed.")
@click.pass_context
def prune(
    ctx: click.Context,
    names: tuple[str, ...],
    *,
    site_name: str,
    root: Path | None,
    user: str | None,
    keep: int,
    dry_run: bool,
) -> None:
    """Remove replaced prefixes but the youngest few of each environment."""
    from envbuild.prefix import archive

    project = common.project(ctx)
    layout = project.layout(site_name, user=user, root=root)
    gone = archive.prune(layout.bookkeeping, names, keep=keep, dry_run=dry_run)
    for entry, size in gone:
        click.echo(f"{'would remove' if dry_run else 'removed'} {entry.name}, {common.size(size)}")
    if not gone:
        click.echo("nothing to remove")
