"""The ``envbuild`` command: finds the project, loads one command, turns failures into messages."""

from __future__ import annotations

import importlib
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import click

from envbuild import __version__, process
from envbuild.errors import EnvbuildError

# Each command's module is imported when it is called: `--help` must not pay for all of them.
COMMANDS = {
    "archive": "List, restore or prune prefixes that were replaced.",
    "completion": "Print the shell's completion script.",
    "create": "Build the prefixes of a site, at their final paths.",
    "exec": "Run a program from a prefix.",
    "fetch": "Download what locks name into the wheelhouse, verified.",
    "hash": "Print digests of paths as Nix has them, or check a list of them.",
    "image": "Build an environment's container image, with the same digest everywhere.",
    "lock": "Resolve environments into locks, or check locks for drift.",
    "nix": "Prepare what the flake builds from: the Nix store, and a stand-in for nixpkgs.",
    "recover": "Put right what was interrupted at a site.",
    "site": "Show what is known of a site.",
    "status": "Show which environments are locked, built and checked.",
    "verify": "Say whether prefixes are good at their paths.",
    "unlock": "Remove the lock of a process that you know to be dead.",
    "wheel": "Build the wheel of an sdist, as the lock pins it.",
}

# Where commands find the umask of the caller in the context's `meta`
CALLERS_UMASK = "envbuild.callers_umask"


@contextmanager
def _reader_may_go() -> Iterator[None]:
    """End quietly when nobody reads any more: click would make 1 of it, a check's word here."""
    try:
        yield
    except BrokenPipeError as error:
        _drop_output()
        raise click.exceptions.Exit(141) from error


class _Commands(click.Group):
    """The commands by name, loaded one at a time."""

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: object,
    ) -> click.Context:
        with _reader_may_go():
            return super().make_context(info_name, args, parent, **extra)

    def invoke(self, ctx: click.Context) -> object:
        with _reader_may_go():
            return super().invoke(ctx)

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
    # what is built is for others to read, whatever the caller's umask
    ctx.meta[CALLERS_UMASK] = os.umask(0o022)
    ctx.obj = project


def run() -> None:
    """Run the command line and exit with its status."""
    try:
        status = cli.main(prog_name="envbuild", standalone_mode=False)
    except (EnvbuildError, click.ClickException, click.Abort, OSError, KeyboardInterrupt) as error:
        end(error)
    sys.exit(status if isinstance(status, int) else 0)


def end(error: BaseException) -> NoReturn:
    """Say what went wrong, and exit with its status."""
    if isinstance(error, EnvbuildError):
        _fail(str(error), error.exit_code)
    if isinstance(error, click.ClickException):
        error.show()
        sys.exit(2)
    if isinstance(error, OSError):
        _drop_output()
        place = f"{error.filename}: " if error.filename else ""
        _fail(f"{place}{error.strerror or error}", EnvbuildError.exit_code)
    _fail("interrupted", 130)


def _drop_output() -> None:
    """Let Python not try at exit to write what standard output did not take."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _fail(message: str, status: int) -> NoReturn:
    color = False if os.environ.get("NO_COLOR") else None
    title = click.style("error", fg="red", bold=True)
    click.echo(f"{title}: {process.redact(message)}", err=True, color=color)
    sys.exit(status)
