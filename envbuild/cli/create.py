"""``envbuild create``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import msgspec

from envbuild.cli import common
from envbuild.errors import EnvbuildError


@click.command(epilog="Without ENV, all environments of the site are created.")
@common.environments
@common.site
@common.wheelhouse
@click.option("--offline", is_flag=True, help="Take everything from the wheelhouse.")
@click.option("--dry-run", is_flag=True, help="Say what would be built, and why.")
@click.option("--rebuild", is_flag=True, help="Build even what is as it should be.")
@common.as_json
@click.pass_context
def command(
    ctx: click.Context,
    names: tuple[str, ...],
    *,
    site_name: str,
    root: Path | None,
    user: str | None,
    wheelhouse_folder: Path | None,
    offline: bool,
    dry_run: bool,
    rebuild: bool,
    json_output: bool,
) -> None:
    """Build the prefixes of a site, at their final paths.

    A prefix that its receipt and a quick look confirm is kept as it is.
    """
    from envbuild.prefix import create as creating
    from envbuild.prefix.supply import Supply

    project = common.project(ctx)
    layout = project.layout(site_name, user=user, root=root)
    selected = project.select(names) if names else sorted(layout.folders)
    site_wheelhouse = layout.site.wheelhouse
    folder = wheelhouse_folder or (
        layout.path(site_wheelhouse) if site_wheelhouse else project.wheelhouse
    )
    outcomes = creating.create(
        project,
        layout,
        selected,
        Supply(folder.absolute(), offline=offline),
        rebuild=rebuild,
        dry_run=dry_run,
        say=lambda line: click.echo(line, err=True),
    )
    failures = [outcome for outcome in outcomes if outcome.error is not None]
    if json_output:
        common.print_json(
            "create",
            {
                "site": layout.name,
                "root": str(layout.root),
                "rehearsal": layout.rehearsal,
                "environments": [_document(outcome) for outcome in outcomes],
            },
        )
    else:
        for outcome in outcomes:
            click.echo(_line(outcome))
    if len(outcomes) == 1 and failures and failures[0].error is not None:
        raise failures[0].error
    if failures:
        for outcome in failures:
            click.echo(f"\n{outcome.name}: {outcome.error}", err=True)
        raise _all_failed(failures, len(outcomes))


def _all_failed(failures: list[Any], total: int) -> EnvbuildError:
    """Return one error for several, with the exit code of the first."""
    names = ", ".join(outcome.name for outcome in failures)
    kind: type[EnvbuildError] = type(failures[0].error)
    return kind(f"{len(failures)} of {total} environments failed: {names}")


def _line(outcome: Any) -> str:  # noqa: ANN401
    line = f"{outcome.name}: {outcome.state}"
    if outcome.state == "built":
        receipt = outcome.receipt
        line += (
            f" {outcome.prefix} in {outcome.seconds:.1f} s: {len(receipt.distributions)} packages, "
            f"Python {receipt.interpreter.version} ({receipt.interpreter.origin}), "
            f"{receipt.checks.imports} imports and {receipt.checks.commands} commands checked"
        )
        if outcome.archived is not None:
            line += f"\n  the prefix that stood there is now {outcome.archived}"
    elif outcome.state == "kept":
        line += f" {outcome.prefix}"
    else:
        line += f" {outcome.prefix}: {outcome.reason}"
    return line


def _document(outcome: Any) -> dict[str, Any]:  # noqa: ANN401
    return {
        "name": outcome.name,
        "prefix": str(outcome.prefix),
        "state": outcome.state,
        "reason": outcome.reason,
        "seconds": outcome.seconds,
        "archived": None if outcome.archived is None else str(outcome.archived),
        "receipt": msgspec.to_builtins(outcome.receipt),
        "error": None if outcome.error is None else str(outcome.error),
        "exit_code": 0 if outcome.error is None else outcome.error.exit_code,
    }
