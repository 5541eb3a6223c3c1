"""The ``envbuild`` command: finds the project, loads one command, turns failures into messages."""

from __future__ import annotations

import importlib
import logging
import os
import sys
from pathlib import Path

import click

from envbuild import __version__
from envbuild.errors import EnvbuildError

# Each command's module is imported when it is called: `--help` must not pay for all of them.
COMMANDS = {
    "completion": "Print the shell's completion script.",
    "create": "Build the prefixes of a site, at their final paths.",
    "fetch": "Download what locks name into the wheelhouse, verified.",
    "hash": "Print digests of paths as Nix has them, or check a list of them.",
    "lock": "Resolve environments into locks, or check locks for drift.",
    "site": "Show what is known of a site.",
    "status": "Show which environments are locked, built and checked.",
}


class _Commands(click.Group):
    """The commands by name, loaded one at a time."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"envbuild.cli.{cmd_name}")
        command = module.command
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(sorted(COMMANDS.items()))


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="envbuild")
@click.option(
    "--project",
    type=click.Path(path_type=Path),
    envvar="ENVBUILD_PROJECT",
    help="Folder that holds envs/ and sites/; this one or one above it by default.",
)
@click.option("--verbose", "-v", is_flag=True, help="Say which programs are run.")
@click.pass_context
def cli(ctx: click.Context, project: Path | None, *, verbose: bool) -> None:
    """One lock, many sites, one digest: Python environments for shared clusters."""
    if os.environ.get("NO_COLOR"):
        ctx.color = False
    if verbose:
        logging.basicConfig(stream=sys.stderr, format="%(message)s")
        logging.getLogger("envbuild").setLevel(logging.DEBUG)
    ctx.obj = project


def run() -> None:
    """Run the command line and exit with its status."""
    # what is built is for others to read, whatever the caller's umask
    os.umask(0o022)
    try:
        status = cli.main(prog_name="envbuild", standalone_mode=False)
    except EnvbuildError as error:
        _fail(str(error), error.exit_code)
    except click.ClickException as error:
        error.show()
        sys.exit(2)
    except (click.Abort, KeyboardInterrupt):
        _fail("interrupted", 130)
    except BrokenPipeError:
        # the reader went away; nothing can be said to it, and Python must not try at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
    except OSError as error:
        place = f"{error.filename}: " if error.filename else ""
        _fail(f"{place}{error.strerror or error}", EnvbuildError.exit_code)
    sys.exit(status if isinstance(status, int) else 0)


def _fail(message: str, status: int) -> None:
    color = False if os.environ.get("NO_COLOR") else None
    click.echo(click.style("error", fg="red", bold=True) + f": {message}", err=True, color=color)
    sys.exit(status)
