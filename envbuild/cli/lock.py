"""``envbuild lock``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from envbuild import findings as printer
from envbuild import progress
from envbuild.catalog.project import Project
from envbuild.cli import common
from envbuild.errors import CheckFailedError, InputError
from envbuild.findings import Finding

if TYPE_CHECKING:
    from envbuild.lock.update import Change

ALL = "*"


@click.command(epilog="Without ENV, all environments are locked.")
@common.environments
@click.option(
    "--upgrade",
    "-U",
    multiple=True,
    is_flag=False,
    flag_value=ALL,
    metavar="[PACKAGE]",
    help="Resolve as of today; with PACKAGE, let only that package be newer. Repeatable.",
)
@click.option("--exclude-newer", metavar="INSTANT", help="Resolve as of this instant (UTC, ...Z).")
@click.option("--base", is_flag=True, help="Pin the Debian packages of images as they are now.")
@click.option("--check", is_flag=True, help="Only say whether the locks are what is declared.")
@click.option("--resolve", is_flag=True, help="With --check: resolve again, compare the bytes.")
@click.option("--index", "ask_index", is_flag=True, help="With --check: ask for every file.")
@common.wheelhouse
@common.as_json
@click.pass_context
def command(
    ctx: click.Context,
    names: tuple[str, ...],
    upgrade: tuple[str, ...],
    exclude_newer: str | None,
    *,
    base: bool,
    check: bool,
    resolve: bool,
    ask_index: bool,
    wheelhouse_folder: Path | None,
    json_output: bool,
) -> None:
    """Resolve environments into locks, or check locks for drift."""
    project = common.project(ctx)
    if base:
        if names or upgrade or exclude_newer or check or resolve or ask_index:
            raise click.UsageError(
                "--base is for all images, and as of now: no ENV, and no option but --json"
            )
        _pin_debian(project, json_output=json_output)
        return
    if (resolve or ask_index) and not check:
        raise click.UsageError("--resolve and --index go with --check")
    if check:
        if upgrade or exclude_newer:
            raise click.UsageError("--check changes nothing: no --upgrade, no --exclude-newer")
        _check(
            project,
            project.select(names),
            resolve=resolve,
            ask_index=ask_index,
            wheelhouse=wheelhouse_folder or project.wheelhouse,
            json_output=json_output,
        )
        return
    _update(
        project,
        names,
        upgrade,
        exclude_newer,
        wheelhouse=wheelhouse_folder or project.wheelhouse,
        json_output=json_output,
    )


def _check(
    project: Project,
    names: list[str],
    *,
    resolve: bool,
    ask_index: bool,
    wheelhouse: Path,
    json_output: bool,
) -> None:
    from envbuild.lock import drift, images

    locks, found = drift.check(project, names)
    if images.file(project).exists():
        from envbuild.image import expected

        found += expected.drift(project, names)
    if resolve:
        from envbuild.prefix.supply import Supply

        supply = Supply(project.folder, wheelhouse)
        with progress.bar("resolving again", len(locks), unit="locks") as advance:
            found += drift.check_resolution(
                project,
                locks,
                indexes=supply.index_urls,
                builder=supply.build_for_lock,
                advance=advance,
            )
    if ask_index:
        from envbuild.prefix.supply import Supply

        total = len({artifact for lock in locks.values() for artifact in lock.files()})
        with progress.bar("asking the index", total, unit="files") as advance:
            found += drift.check_index(
                locks, Supply(project.folder, wheelhouse).index, advance=advance
            )
        found += _check_debian(project, found)
    levels = ["declared", *(["resolve"] if resolve else []), *(["index"] if ask_index else [])]
    _report(names, found, levels, json_output=json_output)


def _check_debian(project: Project, found: list[Finding]) -> list[Finding]:
    """Ask Debian's archives, if there are pins and they can be read."""
    from envbuild.artifacts import debian as mirrors
    from envbuild.lock import debian, drift

    if not debian.pins_file(project).exists() or any(
        (one.code, one.where) == (drift.UNREADABLE, debian.FILE) for one in found
    ):
        return []
    if not mirrors.configured(debian.RELEASE, needed=False):
        return drift.check_debian(project, None)
    archives = mirrors.archives(debian.RELEASE)
    _warn(archives.warnings)
    return drift.check_debian(project, archives)


def _warn(warnings: Sequence[str]) -> None:
    for warning in warnings:
        click.echo(f"warning: {warning}", err=True)


def _pin_debian(project: Project, *, json_output: bool) -> None:
    from envbuild.artifacts import debian as mirrors
    from envbuild.lock import debian, debian_resolve

    environments = {name: project.environment(name) for name in project.environment_names}
    archives = mirrors.archives(debian.RELEASE)
    _warn(archives.warnings)
    packages = debian_resolve.resolve(debian.required(environments), archives)
    changes = debian_resolve.refresh(debian.pins_file(project), packages)
    size = sum(package.size for package in packages)
    if json_output:
        common.print_json(
            "lock-base",
            {
                "changes": msgspec.to_builtins(changes),
                "packages": len(packages),
                "size": size,
                "warnings": list(archives.warnings),
            },
        )
        return
    if changes:
        common.print_table(
            ("package", "old", "new"),
            [(change.name, change.old or "-", change.new or "-") for change in changes],
        )
    counted = f"{len(changes)} changed" if changes else "nothing changed"
    click.echo(f"{debian.FILE}: {len(packages)} packages, {common.size(size)}: {counted}")


def _report(
    names: list[str], found: list[Finding], levels: list[str], *, json_output: bool
) -> None:
    from envbuild.lock import drift

    failed = printer.failed(found)
    if json_output:
        common.print_json(
            "lock-check",
            {
                "environments": names,
                "levels": levels,
                "drift": failed,
                "findings": printer.document(found),
            },
        )
    elif found:
        click.echo(printer.text(found))
    else:
        click.echo(f"{len(names)} locks: no drift ({', '.join(levels)})")
    if failed:
        raise CheckFailedError(drift.summary(found, names))


def _update(
    project: Project,
    names: tuple[str, ...],
    upgrade: tuple[str, ...],
    exclude_newer: str | None,
    *,
    wheelhouse: Path,
    json_output: bool,
) -> None:
    from envbuild.lock import lockfile
    from envbuild.lock.update import Times, update
    from envbuild.prefix.supply import Supply

    if exclude_newer is not None:
        if upgrade:
            raise click.UsageError("--upgrade and --exclude-newer exclude each other")
        try:
            lockfile.instant(exclude_newer)
        except ValueError as error:
            raise InputError(
                "--exclude-newer: not an instant",
                expected="UTC, such as 2026-11-30T00:00:00Z",
                found=exclude_newer,
            ) from error
    everything, packages, more = _read_upgrade(project, upgrade)
    selected = project.select((*names, *more))
    supply = Supply(project.folder, wheelhouse)
    with progress.bar("locking", len(selected), unit="environments") as advance:
        changes, failures = update(
            project,
            selected,
            times=Times(exclude_newer, everything, packages),
            indexes=supply.index_urls,
            builder=supply.build_for_lock,
            advance=advance,
        )
    if json_output:
        common.print_json(
            "lock",
            {
                "changes": msgspec.to_builtins(changes),
                "failures": {name: str(error) for name, error in failures.items()},
            },
        )
    else:
        _print_changes(changes)
    for name, base in project.bases.items():
        if base in selected and name not in selected:
            click.echo(f"{name} stands on one of these: run `envbuild lock {name}` too", err=True)
    common.raise_failures(failures, len(selected))


def _print_changes(changes: list[Change]) -> None:
    if not changes:
        return
    common.print_table(
        ("environment", "lock", "packages", "size", "added", "removed", "changed", "as of"),
        [
            (
                change.environment,
                change.state,
                str(change.packages),
                common.size(change.size),
                *(str(len(n)) for n in (change.added, change.removed, change.changed)),
                change.exclude_newer.removesuffix("T00:00:00Z"),
            )
            for change in changes
        ],
    )
    for change in changes:
        if change.state == "changed":
            for sign, packages in (
                ("+", change.added),
                ("-", change.removed),
                ("~", change.changed),
            ):
                for package in packages:
                    click.echo(f"{change.environment}: {sign} {package}")


def _read_upgrade(
    project: Project, values: tuple[str, ...]
) -> tuple[bool, tuple[str, ...], list[str]]:
    """Tell packages from environments: ``--upgrade core`` means the environment.

    Returns:
        Whether everything is upgraded, the packages, and environments found among the values.
    """
    known = set(project.environment_names)
    environments = [value for value in values if value in known]
    packages = tuple(_package(value) for value in values if value != ALL and value not in known)
    return bool(values) and not packages, packages, environments


def _package(value: str) -> str:
    """Return the normalised name of a package that is to be upgraded."""
    from packaging.utils import InvalidName, canonicalize_name

    try:
        return canonicalize_name(value, validate=True)
    except InvalidName as error:
        raise InputError(
            "--upgrade: not the name of a package or an environment",
            expected="a name alone; bounds on its version belong into envs/NAME.toml",
            found=repr(value),
        ) from error
