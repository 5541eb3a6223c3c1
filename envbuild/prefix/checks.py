"""What an environment must be able to do: its imports and commands, run for real."""

from __future__ import annotations

import time
from pathlib import Path

from envbuild import process
from envbuild.catalog.environment import Checks
from envbuild.errors import CheckFailedError, StepError
from envbuild.prefix import receipt

# names each module before it imports it, so that one that kills the interpreter is known too
_IMPORT = """
import importlib, sys
for name in sys.argv[1:]:
    print(name, flush=True)
    importlib.import_module(name)
"""


def run(prefix: Path, checks: Checks, environment: str) -> receipt.Checks:
    """Run an environment's checks: by absolute path, from ``/``, isolated from the caller.

    Args:
        prefix: the environment, at its final path.
        checks: what its file asks for.
        environment: its name, for messages.

    Raises:
        CheckFailedError: an import or a command failed; its output is kept.
    """
    begun = time.monotonic()
    python = prefix / "bin" / "python"
    variables = process.environment({"PYTHONNOUSERSITE": "1"})
    variables["PATH"] = f"{prefix / 'bin'}:{variables.get('PATH', '/usr/bin:/bin')}"
    if checks.imports:
        try:
            process.run(
                [python, "-I", "-c", _IMPORT, *checks.imports],
                doing="importing",
                env=variables,
                cwd=Path("/"),
                tied=True,
            )
        except StepError as error:
            module = _last_named(error.detail or "", checks.imports)
            raise _failed(f"{environment} cannot import {module}", prefix, error) from error
    for command in checks.commands:
        program = [python, "-I"] if command[0] == "python" else [prefix / "bin" / command[0]]
        try:
            process.run(
                [*program, *command[1:]],
                doing="the command",
                env=variables,
                cwd=Path("/"),
                tied=True,
            )
        except StepError as error:
            shown = " ".join(command)
            raise _failed(f"{environment} fails its check `{shown}`", prefix, error) from error
    return receipt.Checks(
        imports=len(checks.imports),
        commands=len(checks.commands),
        seconds=round(time.monotonic() - begun, 3),
    )


def _last_named(output: str, modules: tuple[str, ...]) -> str:
    named = [line for line in output.splitlines() if line in modules]
    return named[-1] if named else modules[0]


def _failed(what: str, prefix: Path, error: StepError) -> CheckFailedError:
    return CheckFailedError(
        what,
        where=prefix,
        found=error.what,
        mend="change the environment's requirements or its [checks], then lock and create again",
        detail=error.detail,
    )
