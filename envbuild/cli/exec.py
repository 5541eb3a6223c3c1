"""``envbuild exec``; its usual forms do not come here, see `envbuild.entry`."""

from __future__ import annotations

from pathlib import Path

import click
from click.shell_completion import CompletionItem

from envbuild.catalog.project import Project, find
from envbuild.catalog.site import Layout
from envbuild.cli import common
from envbuild.cli.main import CALLERS_UMASK
from envbuild.errors import EnvbuildError
from envbuild.prefix import run
from envbuild.prefix.runnable import Request


class _Exec(common.Waiting):
    """A command of which everything after the first ``--`` is another program's."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        at = args.index("--") if "--" in args else len(args)
        rest = super().parse_args(ctx, args[:at])
        program = tuple(args[at + 1 :])
        if (not program or ctx.params["program"]) and not ctx.resilient_parsing:
            raise click.UsageError("The program goes after --, as in: ENV -- python -V", ctx)
        ctx.params["program"] = program
        return rest


def _complete(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
    project = find((ctx.find_root().params.get("project") or Path.cwd()).resolve())
    return [CompletionItem(n) for n in project.environment_names if n.startswith(incomplete)]


@click.command(
    cls=_Exec,
    epilog="The exit code is the program's. Before it runs: 127 if it is not found, 126 if it "
    "cannot be executed, 3 if there is no prefix that can be run, 2 for bad usage.",
)
@click.argument("name", metavar="ENV", shell_complete=_complete)
@click.argument("program", metavar="-- CMD [ARG]...", nargs=-1, type=click.UNPROCESSED)
@common.site
@common.wait
@click.pass_context
def command(
    ctx: click.Context,
    name: str,
    *,
    program: tuple[str, ...],
    site_name: str,
    root: Path | None,
    user: str | None,
    wait: float | None,
) -> None:
    """Run a program from a prefix.

    The prefix's programs come first on PATH, nothing of another Python environment is passed on,
    and caches and temporary files lie where the site wants them. All else is the caller's. While
    the program runs, the prefix is not replaced.
    """
    request = Request(name, program, site_name, root, user, wait)
    project = common.project(ctx)
    project.select([name])
    layout = project.layout(site_name, user=user, root=root)
    if ctx.find_root().params["verbose"]:
        _warn(project, layout, name)
    run.start(
        request,
        layout,
        callers=run.callers_environment(),
        umask=ctx.meta[CALLERS_UMASK],
        say=common.say,
    )


def _warn(project: Project, layout: Layout, name: str) -> None:
    """Say what `envbuild create` would build the prefix anew for; it runs all the same."""
    from envbuild.prefix import create

    try:
        reason = create.plan(project, layout, name).reason
    except EnvbuildError as error:
        reason = error.what
    if reason is not None:
        common.say(f"{name}: runs, but is not what its files say: {reason}")
