"""``envbuild fetch``."""

from __future__ import annotations

from pathlib import Path

import click

from envbuild.cli import common
from envbuild.errors import EnvbuildError


@click.command(epilog="Without ENV, what all of the project's locks name is fetched.")
@common.environments
@common.wheelhouse
@click.option("--no-interpreters", is_flag=True, help="Leave the interpreters' archives out.")
@common.as_json
@click.pass_context
def command(
    ctx: click.Context,
    names: tuple[str, ...],
    *,
    wheelhouse_folder: Path | None,
    no_interpreters: bool,
    json_output: bool,
) -> None:
    """Download what locks name into the wheelhouse, verified."""
    from envbuild.lock import interpreters, lockfile
    from envbuild.prefix.supply import Supply

    project = common.project(ctx)
    selected = project.select(names)
    locks = [lockfile.read(project.lock_file(name), name) for name in selected]
    supply = Supply(project.folder, wheelhouse_folder or project.wheelhouse)
    report = supply.fetch(locks)
    missing: list[str] = []
    if not no_interpreters:
        pins = interpreters.read(project.interpreters_file)
        for version in sorted({project.environment(name).python for name in selected}):
            try:
                supply.interpreter(pins[version])
            except EnvbuildError as error:
                address = interpreters.url(pins[version])
                missing.append(f"{pins[version].file}: {error.what}; get it from {address}")
    if json_output:
        common.print_json(
            "fetch",
            {
                "wheelhouse": str(supply.wheelhouse.path),
                "downloaded": report.downloaded,
                "bytes": report.bytes,
                "seconds": round(report.seconds, 3),
                "present": report.present,
                "interpreters_missing": missing,
            },
        )
        return
    amount = common.size(report.bytes)
    if report.downloaded:
        amount += f", {common.size(report.bytes / report.seconds)}/s"
    click.echo(
        f"{report.downloaded} files fetched ({amount}), {report.present} were there: "
        f"{supply.wheelhouse.path}"
    )
    for line in missing:
        click.echo(f"warning: interpreter not fetched: {line}", err=True)
