"""``envbuild create``."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from envbuild.cli import common

if TYPE_CHECKING:
    from envbuild.prefix.create import Outcome


@click.command(cls=common.Waiting, epilog="Without ENV, all environments of the site are created.")
@common.environments
@common.site
@common.wheelhouse
@click.option("--offline", is_flag=True, help="Take everything from the wheelhouse.")
@click.option("--dry-run", is_flag=True, help="Say what would be built, and why.")
@click.option("--rebuild", is_flag=True, help="Build even what is as it should be.")
@common.wait
@click.option(
    "--replace-in-use",
    is_flag=True,
    help="Replace a prefix under its users: a program that imports late mixes old and new.",
)
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
    wait: float | None,
    replace_in_use: bool,
    json_output: bool,
) -> None:
    """Build the prefixes of a site, at their final paths.

    A prefix that its receipt and a quick look confirm is kept as it is.
    """
    from envbuild import owner
    from envbuild.prefix import create as creating
    from envbuild.prefix.supply import Supply
    from envbuild.prefix.usage import Patience

    project = common.project(ctx)
    for number in (signal.SIGTERM, signal.SIGHUP):
        # as an interrupt: what is under way is put right before the process ends
        signal.signal(number, _end)
    layout = project.layout(site_name, user=user, root=root)
    selected = project.select(names) if names else sorted(layout.folders)
    folder = wheelhouse_folder or project.wheelhouse_at(layout)
    outcomes = creating.create(
        project,
        layout,
        selected,
        Supply(project.folder, folder, offline=offline),
        me=owner.current(f"envbuild create {' '.join(names)}".rstrip()),
        patience=Patience(wait, replace_in_use),
        rebuild=rebuild,
        dry_run=dry_run,
        say=common.say,
    )
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
            # the only one's failure is the error itself, below
            if outcome.error is None or len(outcomes) > 1:
                click.echo(_line(outcome))
    common.raise_failures({o.name: o.error for o in outcomes if o.error}, len(outcomes))


def _end(number: int, _frame: object) -> None:
    sys.exit(128 + number)


def _line(outcome: Outcome) -> str:
    line = f"{outcome.name}: {outcome.state} {outcome.prefix}"
    receipt = outcome.receipt
    if outcome.state == "built" and receipt is not None:
        line += (
            f" in {outcome.seconds:.1f} s: {len(receipt.distributions)} packages, "
            f"Python {receipt.interpreter.version} ({receipt.interpreter.origin}), "
            f"{receipt.checks.imports} imports and {receipt.checks.commands} commands checked, "
            f"{receipt.audit.files} files audited"
        )
        warnings = len(receipt.audit.findings)
        if warnings:
            line += f"\n  {warnings} warning{'' if warnings == 1 else 's'}: see `envbuild verify`"
        if outcome.archived is not None:
            line += f"\n  the prefix that stood there is now {outcome.archived}"
    elif outcome.state != "kept":
        line += f": {outcome.reason}"
    return line


def _document(outcome: Outcome) -> dict[str, Any]:
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
