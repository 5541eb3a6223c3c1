"""Where the ``envbuild`` command begins: a plain ``envbuild exec`` goes without click.

`envbuild exec` stands wherever a program is run from a prefix, so it must cost next to nothing, and
importing click takes as long as everything else that it does.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from envbuild.errors import EnvbuildError

if TYPE_CHECKING:
    from envbuild.prefix.runnable import Request

_SETTINGS = frozenset({"--project", "--site", "--root", "--user"})


def run() -> None:
    """Run the command line and exit with its status."""
    # importing leaves no garbage, and looking for it takes 2 ms of the 50 that `exec` may cost
    gc.disable()
    plain = plain_exec(sys.argv[1:], os.environ)
    if plain is not None:
        _exec(*plain)
    gc.enable()
    from envbuild.cli import main

    main.run()


def plain_exec(
    arguments: Sequence[str], environ: Mapping[str, str]
) -> tuple[Path | None, Request] | None:
    """Read the arguments of an `envbuild exec` that leaves nothing to ask or to complain of.

    There is no second grammar here: what is not written in one of the usual ways is left to click,
    whose reading of these the tests hold this one to.

    Args:
        arguments: those of the command line.
        environ: the variables that stand for options.

    Returns:
        The project's folder if it is given, and the request; None if click has to see to it.
    """
    if "exec" not in arguments or "--" not in arguments:
        return None
    at = arguments.index("--")
    words, program = _words(arguments[:at]), tuple(arguments[at + 1 :])
    if words is None or not program:
        return None
    name, given = words
    project = given.get("--project") or environ.get("ENVBUILD_PROJECT")
    root = given.get("--root")
    if not all(folder is None or _is_usable(folder) for folder in (project or None, root)):
        return None
    from envbuild.prefix.runnable import Request

    wait = given.get("--wait")
    request = Request(
        name=name,
        program=program,
        site_name=given.get("--site") or environ.get("ENVBUILD_SITE") or "local",
        root=None if root is None else Path(root),
        user=given.get("--user") or environ.get("ENVBUILD_USER") or None,
        wait=None if wait is None else float(wait),
    )
    return Path(project) if project else None, request


def _words(words: Sequence[str]) -> tuple[str, dict[str, str]] | None:
    """Read ``[--project DIR] exec ENV`` and its options; None for anything else."""
    names: list[str] = []
    given: dict[str, str] = {}
    rest = list(words)
    while rest:
        option, equals, value = rest.pop(0).partition("=")
        if not option.startswith("-"):
            names.append(option + equals + value)
        elif option == "--wait" and names:
            if equals and not (value.isascii() and value.isdigit()):
                return None
            given[option] = value or "inf"
        elif option in _SETTINGS and (option == "--project") == (not names):
            value = value if equals else (rest.pop(0) if rest else "")
            if not value or value.startswith("-"):
                return None
            given[option] = value
        else:
            return None
    return (names[1], given) if len(names) == 2 and names[0] == "exec" and names[1] else None


def _is_usable(folder: str) -> bool:
    return Path(folder).is_dir() and os.access(folder, os.R_OK)


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")


def _exec(project: Path | None, request: Request) -> NoReturn:
    from envbuild.catalog.project import find
    from envbuild.prefix import run

    try:
        umask = os.umask(0o022)
        here = find((project or Path.cwd()).resolve())
        here.select([request.name])
        layout = here.layout(request.site_name, user=request.user, root=request.root)
        run.start(
            request,
            layout,
            callers=run.callers_environment(),
            umask=umask,
            say=_say,
        )
    except (EnvbuildError, OSError, KeyboardInterrupt) as error:
        from envbuild.cli import main

        main.end(error)
