"""``envbuild site``."""

from __future__ import annotations

import click

from envbuild.cli import common, site_check


@click.group()
def command() -> None:
    """Show what is known of a site, or compare this machine with it."""


command.add_command(site_check.command, "check")


@command.command()
@click.argument("names", metavar="[SITE]...", nargs=-1, shell_complete=common.complete("site"))
@click.option("--user", envvar="ENVBUILD_USER", help="Who stands for {user} in paths.")
@common.as_json
@click.pass_context
def show(
    ctx: click.Context, *, names: tuple[str, ...], user: str | None, json_output: bool
) -> None:
    """Print a site's settings: each with its source and the day it was verified."""
    from envbuild.catalog import facts

    project = common.project(ctx)
    layouts = [project.layout(name, user=user) for name in names or project.site_files]
    if json_output:
        common.print_json(
            "site",
            {"sites": [facts.document(layout) for layout in layouts]},
        )
        return
    for layout in layouts:
        click.secho(f"{layout.name}: {layout.site.summary}", bold=True)
        settings = list(facts.settings(layout))
        sources = list(dict.fromkeys(setting.source for setting in settings))
        common.print_table(
            ("setting", "value", "source", "verified on the site"),
            [
                (s.key, s.value, f"[{sources.index(s.source) + 1}]", s.verified or "never")
                for s in settings
            ],
        )
        for number, source in enumerate(sources, start=1):
            click.echo(f"[{number}] {source}")
        click.echo()
