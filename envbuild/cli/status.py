"""``envbuild status``."""

from __future__ import annotations

from pathlib import Path

import click
import msgspec

from envbuild.cli import common


@click.command()
@common.site
@common.as_json
@click.pass_context
def command(
    ctx: click.Context,
    *,
    site_name: str,
    root: Path | None,
    user: str | None,
    json_output: bool,
) -> None:
    """Show which environments are locked, built and checked."""
    from envbuild.prefix import status

    project = common.project(ctx)
    layout = project.layout(site_name, user=user, root=root)
    states = status.states(project, layout)
    if json_output:
        common.print_json(
            "status",
            {
                "site": layout.name,
                "root": str(layout.root),
                "rehearsal": layout.rehearsal,
                "environments": msgspec.to_builtins(states),
            },
        )
        return
    common.print_table(
        ("environment", "locked", "prefix", "matches the lock", "Python", "checked (UTC)"),
        [
            (
                state.environment,
                state.locked,
                Path(state.prefix).name if state.built else "not built",
                state.matches,
                state.python or "",
                (state.checked or "").replace("T", " ").rpartition(":")[0],
            )
            for state in states
        ],
    )
    click.echo(f"site {layout.name}, root {layout.root}", err=True)
