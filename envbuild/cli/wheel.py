"""``envbuild wheel``."""

from __future__ import annotations

from pathlib import Path

import click

from envbuild import durable
from envbuild.cli import common
from envbuild.errors import InputError


@click.command(epilog="The wheel's path is the only line on standard output.")
@click.argument("package")
@click.option(
    "--env",
    "name",
    metavar="ENV",
    required=True,
    shell_complete=common.complete("environment"),
    help="The environment whose lock holds the sdist.",
)
@click.option(
    "-o",
    "--output",
    "out",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder for the wheel; it stays in the wheelhouse otherwise.",
)
@click.option("--offline", is_flag=True, help="Take everything from the wheelhouse.")
@common.wheelhouse
@click.pass_context
def command(
    ctx: click.Context,
    package: str,
    *,
    name: str,
    out: Path | None,
    offline: bool,
    wheelhouse_folder: Path | None,
) -> None:
    """Build the wheel of PACKAGE, an sdist of pure Python, and hold it to the lock's hash."""
    from packaging.utils import canonicalize_name

    from envbuild.lock import lockfile
    from envbuild.prefix.supply import Supply

    project = common.project(ctx)
    environment = project.environment(name)
    lock = lockfile.read(project.lock_file(name), name)
    package = canonicalize_name(package)
    locked = next((one for one in lock.packages if one.name == package), None)
    if locked is None or package not in lock.built:
        raise InputError(
            f"{package}: no sdist of pure Python in the lock of {name}",
            where=project.lock_file(name),
            expected="one of " + ", ".join(sorted(lock.built)) if lock.built else None,
            found=locked.artifact.file if locked else "no such package",
            mend="builds on the target system are not made by this command yet"
            if package in lock.unbuilt
            else None,
        )
    supply = Supply(project.folder, wheelhouse_folder or project.wheelhouse, offline=offline)
    artifact = lock.built[package].artifact
    wheel = supply.wheelhouse.path_of(artifact)
    if supply.wheelhouse.missing([artifact]):
        requires = lock.specification.builds[package].partition(": ")[2]
        supply.artifacts([locked.artifact, *lock.build_wheels.get(requires, ())])
        supply.build_sdists(lock, environment.minor, only=package)
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        if not (out / wheel.name).exists() or not wheel.samefile(out / wheel.name):
            durable.write(out / wheel.name, wheel.read_bytes(), mode=0o644)
        wheel = out / wheel.name
    click.echo(wheel)
