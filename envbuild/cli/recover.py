"""``envbuild recover``."""

from __future__ import annotations

from pathlib import Path

import click

from envbuild.cli import common


@click.command(cls=common.Waiting)
@common.site
@common.wait
@click.pass_context
def command(
    ctx: click.Context,
    *,
    site_name: str,
    root: Path | None,
    user: str | None,
    wait: float | None,
) -> None:
    """Put right what was interrupted at a site; create does it by itself.

    After it, each prefix is the old one or the new one, whole.
    """
    from envbuild import owner
    from envbuild.prefix import journal
    from envbuild.prefix.locked import locked
    from envbuild.prefix.usage import Patience

    project = common.project(ctx)
    layout = project.layout(site_name, user=user, root=root)
    names = journal.interrupted(layout.bookkeeping)
    for name in names:
        with locked(layout, name, owner.current("envbuild recover"), Patience(wait), click.echo):
            pass
    if not names:
        click.echo("nothing was interrupted")
