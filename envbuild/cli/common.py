"""What commands share: arguments, completion, and how results are printed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click
from click.shell_completion import CompletionItem

from envbuild.catalog.project import Project, find
from envbuild.errors import EnvbuildError, InputError

_WIDTH = 100
_WORD = 12

Function = TypeVar("Function", bound=Callable[..., Any])


def project(ctx: click.Context) -> Project:
    """Return the project that the command is about.

    Raises:
        InputError: there is none here.
    """
    return _found(ctx.obj if isinstance(ctx.obj, Path) else None)


def _found(given: Path | None) -> Project:
    try:
        return find((given or Path.cwd()).resolve())
    except FileNotFoundError as error:
        raise InputError(
            "the current folder is no longer there",
            mend="change to one that is, such as the project's",
        ) from error


def complete(kind: str) -> Callable[[click.Context, click.Parameter, str], list[CompletionItem]]:
    """Return what completes the names of a kind: ``environment`` or ``site``."""

    def names(
        ctx: click.Context, _parameter: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        try:
            here = _found(ctx.find_root().params.get("project"))
        except EnvbuildError:
            return []  # a message would stand in the middle of what is being typed
        known = here.environment_names if kind == "environment" else list(here.site_files)
        return [CompletionItem(name) for name in known if name.startswith(incomplete)]

    return names


def environments(function: Function) -> Function:
    """Add the argument ``ENV…``."""
    argument = click.argument(
        "names", metavar="[ENV]...", nargs=-1, shell_complete=complete("environment")
    )
    return argument(function)


def site(function: Function) -> Function:
    """Add ``--site``, ``--root`` and ``--user``."""
    options = (
        click.option(
            "--site",
            "site_name",
            default="local",
            show_default=True,
            envvar="ENVBUILD_SITE",
            shell_complete=complete("site"),
            help="A site's name, or the file of one.",
        ),
        click.option(
            "--root",
            type=click.Path(path_type=Path, file_okay=False),
            help="Rehearse the site below this folder instead of its own root.",
        ),
        click.option("--user", envvar="ENVBUILD_USER", help="Who stands for {user} in paths."),
    )
    for option in reversed(options):
        function = option(function)
    return function


def wheelhouse(function: Function) -> Function:
    """Add ``--wheelhouse``."""
    option = click.option(
        "--wheelhouse",
        "wheelhouse_folder",
        type=click.Path(path_type=Path, file_okay=False),
        envvar="ENVBUILD_WHEELHOUSE",
        help="Folder of artifacts; the site's, or wheelhouse/ of the project, by default.",
    )
    return option(function)


def as_json(function: Function) -> Function:
    """Add ``--json``."""
    option = click.option("--json", "json_output", is_flag=True, help="Report as JSON.")
    return option(function)


class Waiting(click.Command):
    """A command with ``--wait[=SECONDS]``, whose seconds are never the next word.

    click would take the environment of ``--wait core`` for them.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the arguments, a bare ``--wait`` being one without end."""
        end = args.index("--") if "--" in args else len(args)
        plain = ["--wait=inf" if word == "--wait" else word for word in args[:end]]
        return super().parse_args(ctx, [*plain, *args[end:]])


def wait(function: Function) -> Function:
    """Add ``--wait``, for a command of the class `Waiting`."""
    option = click.option(
        "--wait",
        type=click.FloatRange(min=0),
        metavar="[=SECONDS]",
        help="Wait while another run is at work or a prefix is in use, instead of refusing.",
    )
    return option(function)


def say(line: str) -> None:
    """Tell a person what is going on, on stderr."""
    click.echo(line, err=True)


def print_json(kind: str, content: dict[str, Any]) -> None:
    """Print a report for machines: one object with the name and version of its schema."""
    click.echo(json.dumps({"schema": f"envbuild.{kind}/1", **content}, indent=2, sort_keys=True))


def width() -> int:
    """Return how wide output may be, in columns: the terminal's width, and 100 at most."""
    return min(_WIDTH, shutil.get_terminal_size((_WIDTH, 24)).columns)


def print_table(
    headings: Sequence[str], rows: Sequence[Sequence[str]], *, err: bool = False
) -> None:
    """Print a table of at most 100 columns; cells that do not fit are folded.

    Args:
        headings: of the columns.
        rows: their cells.
        err: whether it goes to stderr.
    """
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False, width=width())
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    # names are looked for down the first column: they stay in one piece unless they are very long
    whole = all(len(row[0]) <= _WIDTH // 3 for row in rows)
    for number, heading in enumerate(headings):
        cells = [row[number] for row in rows]
        kept = whole if number == 0 else _in_one_piece(heading, cells)
        table.add_column(heading, overflow="fold", no_wrap=kept)
    for row in rows:
        table.add_row(*map(Text, row))
    # rich itself ends the process with 1 when the reader is gone
    with console.capture() as text:
        console.print(table)
    click.echo(text.get(), nl=False, err=err)


def _in_one_piece(heading: str, cells: Sequence[str]) -> bool:
    """Whether a column holds short words, which are not folded where the terminal is narrow."""
    longest = max(map(len, cells), default=0)
    return len(heading) <= longest <= _WORD and not any(" " in cell for cell in cells)


def size(count: float) -> str:
    """Write a number of bytes for people, in decimal units."""
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}"
        count /= 1000
    return f"{count:.2f} GB"


def raise_failures(failures: Mapping[str, EnvbuildError], total: int) -> None:
    """Report what failed of several environments, after what went well was printed.

    Args:
        failures: environment to what went wrong.
        total: how many environments there were.

    Raises:
        EnvbuildError: there was a failure; the only one itself, else one that counts them, with
            the exit code of the first.
    """
    if not failures:
        return
    first = next(iter(failures.values()))
    if total == 1:
        raise first
    for name, error in failures.items():
        click.echo(f"\n{name}: {error}", err=True)
    kind = next(one for one in EnvbuildError.__subclasses__() if isinstance(first, one))
    raise kind(f"{len(failures)} of {total} environments failed: {', '.join(failures)}")
