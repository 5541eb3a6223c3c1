"""``envbuild unlock``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from envbuild.cli import common
from envbuild.errors import PreflightError

if TYPE_CHECKING:
    from envbuild.owner import Owner


@click.command()
@click.argument("environment", metavar="ENV")
@common.site
@click.option("--force", is_flag=True, help="Remove it although its holder is seen alive.")
@click.pass_context
def command(
    ctx: click.Context,
    environment: str,
    *,
    site_name: str,
    root: Path | None,
    user: str | None,
    force: bool,
) -> None:
    """Remove the lock of an environment whose holder you know to be dead.

    Locks of processes that are provably dead are taken over without this.
    """
    from envbuild import exclusion, owner
    from envbuild.prefix import locked

    project = common.project(ctx)
    layout = project.layout(site_name, user=user, root=root)
    path = locked.path(layout, environment)
    holder = _holder(path)
    if holder is not None and owner.verdict(holder) == "alive" and not force:
        raise PreflightError(
            f"the lock of {environment} is held by a process that is alive",
            where=path,
            found=owner.describe(holder),
            mend="wait for it, or end it; --force if you know better",
        )
    removed = exclusion.unlock(path, expected_token=holder.token if holder else None)
    if removed is None:
        click.echo(f"{environment}: a lock that did not say whose it was is removed")
    else:
        click.echo(f"{environment}: the lock of {owner.describe(removed)} is removed")


def _holder(path: Path) -> Owner | None:
    """Return who holds a lock; None if it does not say."""
    from envbuild import exclusion

    try:
        return exclusion.read(path)
    except PreflightError:
        return None
