"""``envbuild site check``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from envbuild.cli import common

if TYPE_CHECKING:
    from envbuild.prefix.site_check import Probe, Report


@click.command()
@click.argument(
    "site_name",
    metavar="[NAME|FILE]",
    default="local",
    envvar="ENVBUILD_SITE",
    shell_complete=common.complete("site"),
)
@click.option(
    "--root",
    type=click.Path(path_type=Path, file_okay=False),
    help="Rehearse the site below this folder instead of its own root.",
)
@click.option("--user", envvar="ENVBUILD_USER", help="Who stands for {user} in paths.")
@common.wheelhouse
@common.as_json
@click.pass_context
def command(
    ctx: click.Context,
    site_name: str,
    *,
    root: Path | None,
    user: str | None,
    wheelhouse_folder: Path | None,
    json_output: bool,
) -> None:
    """Compare this machine with a site's file.

    Without NAME it is the site local. What builds rely on is tried in folders that are removed
    again; a receipt is left below the root. The codes are explained in docs/site-check.md.
    """
    from envbuild import findings
    from envbuild.errors import CheckFailedError
    from envbuild.prefix import site_check

    project = common.project(ctx)
    layout = project.layout(site_name, user=user, root=root)
    wheelhouse = wheelhouse_folder or project.wheelhouse_at(layout)
    looked = site_check.look(project, layout, wheelhouse.absolute())
    report, receipt = site_check.record(layout, looked)
    if json_output:
        common.print_json(site_check.NAME, msgspec.to_builtins(report))
    else:
        _print(report, receipt)
    if findings.failed(report.findings):
        raise CheckFailedError(
            f"site {layout.name} is not as its file says: {_count(report, 'error')}"
        )


def _print(report: Report, receipt: Path | None) -> None:
    from envbuild import findings

    common.print_table(
        ("looked at", "where", "seen"),
        [(probe.what, probe.where, _answer(probe)) for probe in report.probes],
    )
    for note in report.notes:
        click.echo(f"note: {note}")
    if report.findings:
        click.echo(findings.text(report.findings))
    counted = f"{_count(report, 'error')}, {_count(report, 'warning')}"
    click.echo(f"site {report.site}, root {report.root}: {counted}", err=True)
    if receipt is not None:
        click.echo(f"receipt: {receipt}", err=True)


def _answer(probe: Probe) -> str:
    if probe.what == "free bytes" and isinstance(probe.answer, int):
        return common.size(probe.answer)
    return str(probe.answer)


def _count(report: Report, severity: str) -> str:
    number = sum(finding.severity == severity for finding in report.findings)
    return f"{number or 'no'} {severity}{'' if number == 1 else 's'}"
