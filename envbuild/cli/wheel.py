"""``envbuild wheel``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from envbuild import durable
from envbuild.cli import common
from envbuild.errors import InputError

if TYPE_CHECKING:
    from envbuild.prefix.compiled import Made


@click.command(cls=common.Waiting, epilog="The wheel's path is the only line on standard output.")
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
@common.site
@click.option("--offline", is_flag=True, help="Take everything from the wheelhouse.")
@click.option("--rebuild", is_flag=True, help="Compile every file anew, whatever there is.")
@common.wheelhouse
@common.wait
@common.as_json
@click.pass_context
def command(
    ctx: click.Context,
    package: str,
    *,
    name: str,
    out: Path | None,
    site_name: str,
    root: Path | None,
    user: str | None,
    offline: bool,
    rebuild: bool,
    wheelhouse_folder: Path | None,
    wait: float | None,
    json_output: bool,
) -> None:
    """Build the wheel of PACKAGE, an sdist of the lock.

    One of pure Python is held to the lock's hash. One that is compiled on the target system is
    held to the rules and kept in the site's store, from which later runs take it.
    """
    from packaging.utils import canonicalize_name

    from envbuild import owner
    from envbuild.lock import lockfile
    from envbuild.prefix import create
    from envbuild.prefix.supply import Supply
    from envbuild.prefix.usage import Patience

    project = common.project(ctx)
    environment = project.environment(name)
    lock = lockfile.read(project.lock_file(name), name)
    package = canonicalize_name(package)
    locked = next((one for one in lock.packages if one.name == package), None)
    if locked is None or not locked.is_sdist:
        sdists = sorted(one.name for one in lock.packages if one.is_sdist)
        raise InputError(
            f"{package}: no sdist in the lock of {name}",
            where=project.lock_file(name),
            expected="one of " + ", ".join(sdists) if sdists else None,
            found=locked.artifact.file if locked else "no such package",
        )
    if package in lock.built:
        supply = Supply(project.folder, wheelhouse_folder or project.wheelhouse, offline=offline)
        artifact = lock.built[package].artifact
        wheel = supply.wheelhouse.path_of(artifact)
        if rebuild or supply.wheelhouse.missing([artifact]):
            requires = lock.specification.builds[package].partition(": ")[2]
            supply.artifacts([locked.artifact, *lock.build_wheels.get(requires, ())])
            supply.build_sdists(lock, environment.minor, only=package)
        report: dict[str, Any] = {"state": "pure", "receipt": None}
    else:
        layout = project.layout(site_name, user=user, root=root)
        folder = wheelhouse_folder or project.wheelhouse_at(layout)
        made = create.wheel(
            project,
            layout,
            name,
            package,
            Supply(project.folder, folder, offline=offline),
            me=owner.current(f"envbuild wheel {package} --env {name}"),
            patience=Patience(wait),
            rebuild=rebuild,
            say=common.say,
        )
        wheel = made.stored.path
        state = "compiled" if made.fresh else "kept"
        report = {"state": state, "receipt": msgspec.to_builtins(made.stored.receipt)}
        common.say(f"{package}: {_line(made)}")
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        if not (out / wheel.name).exists() or not wheel.samefile(out / wheel.name):
            durable.write(out / wheel.name, wheel.read_bytes(), mode=0o644)
        wheel = out / wheel.name
    if json_output:
        common.print_json("wheel", {"package": package, "wheel": str(wheel), **report})
    else:
        click.echo(wheel)


def _line(made: Made) -> str:
    receipt = made.stored.receipt
    if not made.fresh:
        return f"from the store, built {receipt.created} on {receipt.host[0]}"
    steps, seconds = receipt.steps, receipt.seconds
    return (
        f"{steps.compiled} files compiled in {seconds['build']:.0f} s, "
        f"{steps.peak_memory / 2**30:.1f} GiB at the most in one; verified in "
        f"{seconds['verification']:.1f} s, SHA-256 {receipt.sha256}"
    )
