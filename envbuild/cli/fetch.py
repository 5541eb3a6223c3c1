"""``envbuild fetch``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from envbuild import process
from envbuild.catalog.project import Project
from envbuild.cli import common
from envbuild.errors import EnvbuildError, InputError

if TYPE_CHECKING:
    from envbuild.lock.interpreters import Pin


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
    pins = [] if no_interpreters else _pins(project, selected)
    supply = Supply(project.folder, wheelhouse_folder or project.wheelhouse)
    report = supply.fetch(locks)
    missing: list[str] = []
    for pin in pins:
        try:
            supply.interpreter(pin)
        except EnvbuildError as error:
            address = process.redact(interpreters.url(pin))
            missing.append(f"{pin.file}: {error.what}; get it from {address}")
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


def _pins(project: Project, names: list[str]) -> list[Pin]:
    """Return the pins of the environments' interpreters, by version."""
    from envbuild.lock import interpreters

    there = interpreters.read(project.interpreters_file)
    wanted = {project.environment(name).python: name for name in names}
    for version, name in wanted.items():
        if version not in there:
            raise InputError(
                f"Python {version} of {name} has no pin",
                where=project.interpreters_file,
                mend="run `envbuild lock`, or leave the interpreters out with --no-interpreters",
            )
    return [there[version] for version in sorted(wanted)]
