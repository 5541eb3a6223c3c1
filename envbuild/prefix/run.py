"""Running a program from a prefix: its environment, and becoming it.

`envbuild exec` stands wherever ``PREFIX/bin/python`` could, so it imports little: what takes long
is imported where something is wrong.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NoReturn

from envbuild import leases
from envbuild.catalog.site import Layout
from envbuild.errors import EnvbuildError, PreflightError
from envbuild.prefix import runnable
from envbuild.prefix.runnable import Request

# What an activated environment, or one that is run, leaves for its programs. A program that is
# told of two environments takes modules from the wrong one.
_OF_ANOTHER = frozenset(
    {
        "PYTHONHOME",
        "PYTHONPATH",
        "PYTHONPLATLIBDIR",
        "PYTHONEXECUTABLE",
        "VIRTUAL_ENV",
        "VIRTUAL_ENV_PROMPT",
        "CONDA_DEFAULT_ENV",
        "CONDA_PROMPT_MODIFIER",
        "CONDA_SHLVL",
    }
)
# CONDA_PREFIX, and CONDA_PREFIX_1 and so on of those that are stacked
_CONDA_PREFIX = "CONDA_PREFIX"


class CommandNotFoundError(EnvbuildError):
    """There is no program of that name; the exit code is that of shells and env(1)."""

    exit_code = 127


class CommandNotExecutableError(EnvbuildError):
    """The program is there but cannot be started; the exit code is that of shells and env(1)."""

    exit_code = 126


def environment(callers: Mapping[str, str], layout: Layout, prefix: Path) -> dict[str, str]:
    """Decide the environment of a program that is run from a prefix.

    The caller's, but that the prefix's programs come first, nothing of another Python environment
    is told, and temporary files and caches lie where the site allows them (rules R001 and R003).
    VIRTUAL_ENV names the prefix: uv, CMake and editors ask it which environment this is.

    Args:
        callers: the caller's environment.
        layout: the site.
        prefix: the environment's prefix.
    """
    kept = {
        name: value
        for name, value in callers.items()
        if name not in _OF_ANOTHER and not name.startswith(_CONDA_PREFIX)
    }
    programs = str(prefix / "bin")
    path = [folder for folder in _search_path(callers) if folder != programs]
    return {
        **kept,
        "PATH": os.pathsep.join([programs, *path]),
        "VIRTUAL_ENV": str(prefix),
        "PYTHONNOUSERSITE": "1",
        **_folders_of_uv(layout),
        **_temporary_folders(callers, layout),
    }


def start(
    request: Request,
    layout: Layout,
    *,
    callers: Mapping[str, str],
    umask: int,
    say: Callable[[str], None],
) -> NoReturn:
    """Leave a lease on a prefix and become a program.

    Process number and start time stay, so that the lease holds until the program has ended; and
    signals, standard input and the exit code are the program's own.

    Args:
        request: what to run.
        layout: the site.
        callers: the caller's environment.
        umask: the caller's.
        say: is told who is waited for.

    Raises:
        InputError: the site does not build the environment.
        PreflightError: there is no prefix that can be run; or no lease can be left, or the
            temporary folder made.
        CommandNotFoundError: there is no such program.
        CommandNotExecutableError: it cannot be started.
    """
    prefix = layout.prefix(request.name)
    variables = environment(callers, layout, prefix)
    lease = runnable.take(request, layout, prefix, say)
    try:
        _make_temporary(layout, variables)
        file = executable(request.program[0], prefix, variables)
        os.umask(umask)
        _become(file, request.program, variables)
    except BaseException:
        leases.drop(lease)
        raise


def callers_environment() -> dict[str, str]:
    """Return the environment that this process was given.

    Python adds LC_CTYPE to its own where the locale is "C" (PEP 538).
    """
    given = dict(os.environ)
    if "LC_CTYPE" in given:
        with contextlib.suppress(OSError):
            entries = Path("/proc/self/environ").read_bytes().split(b"\0")
            if not any(entry.startswith(b"LC_CTYPE=") for entry in entries):
                del given["LC_CTYPE"]
    return given


def executable(command: str, prefix: Path, variables: Mapping[str, str]) -> Path:
    """Find a program as a shell does, on the PATH that it will have.

    Args:
        command: a name to look for, or a path, which has a slash.
        prefix: the prefix, for messages.
        variables: the program's environment.

    Raises:
        CommandNotFoundError: there is none.
        CommandNotExecutableError: there is something of that name that cannot be executed.
    """
    there = _candidates(command, variables)
    for file in there:
        if file.is_file() and os.access(file, os.X_OK):
            return file
    if not there:
        raise _not_found(command, prefix)
    raise CommandNotExecutableError(
        f"{command} cannot be executed",
        where=there[0],
        expected="a file that this user may execute",
        found="a folder" if there[0].is_dir() else f"mode {there[0].stat().st_mode & 0o7777:04o}",
        mend="set its mode with chmod +x, or run it by its interpreter: -- python FILE",
    )


def _candidates(command: str, variables: Mapping[str, str]) -> list[Path]:
    """Return what a command can mean, the first first; what is looked for on PATH is no folder."""
    if "/" in command:
        return [Path(command)] if os.access(command, os.F_OK) else []
    found = [Path(folder, command) for folder in _search_path(variables) if command]
    return [file for file in found if os.access(file, os.F_OK) and not file.is_dir()]


def _search_path(variables: Mapping[str, str]) -> list[str]:
    return variables.get("PATH", os.defpath).split(os.pathsep)


def _folders_of_uv(layout: Layout) -> dict[str, str]:
    folders = {"UV_PYTHON_INSTALL_DIR": str(layout.interpreters)}
    if layout.site.uv_cache is not None:
        folders["UV_CACHE_DIR"] = str(layout.path(layout.site.uv_cache))
    return folders


def _temporary_folders(callers: Mapping[str, str], layout: Layout) -> dict[str, str]:
    """Return where temporary files and caches of compiled kernels go; nothing if it is all one."""
    allowed = [layout.path(text) for text in layout.site.temporary]
    if not allowed:
        return {}
    # for each user one, as PyTorch's own default has it: the folder may be everybody's
    chosen = {
        "TMPDIR": allowed[0],
        "TRITON_CACHE_DIR": allowed[0] / f"triton_{layout.user}",
        "TORCHINDUCTOR_CACHE_DIR": allowed[0] / f"torchinductor_{layout.user}",
    }
    return {
        name: callers[name] if _lies_in(callers.get(name), allowed) else str(folder)
        for name, folder in chosen.items()
    }


def _lies_in(folder: str | None, allowed: list[Path]) -> bool:
    if not folder:
        return False
    real = Path(os.path.realpath(folder))
    return any(real.is_relative_to(os.path.realpath(one)) for one in allowed)


def _make_temporary(layout: Layout, variables: Mapping[str, str]) -> None:
    """Make the TMPDIR of a site that has one: where it is missing, programs take /tmp instead."""
    if not layout.site.temporary:
        return
    folder = Path(variables["TMPDIR"])
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        allowed = " or ".join(str(layout.path(text)) for text in layout.site.temporary)
        raise PreflightError(
            f"the temporary folder cannot be made: {error.strerror}",
            where=folder,
            expected=f"a folder in {allowed}",
            mend="run this on the site, or set TMPDIR to such a folder that is there",
        ) from error


def _not_found(command: str, prefix: Path) -> CommandNotFoundError:
    what = f"no such program: {command!r}"
    if "/" in command:
        return CommandNotFoundError(what, expected="a file of that name")
    import difflib

    programs = [file.name for file in (prefix / "bin").glob("*")]
    near = difflib.get_close_matches(command, programs, n=1)
    return CommandNotFoundError(
        what,
        expected=f"a program in {prefix / 'bin'} or another folder of PATH",
        mend=f"did you mean {near[0]}?" if near else None,
    )


def _become(file: Path, program: tuple[str, ...], variables: Mapping[str, str]) -> NoReturn:
    # Python ignores these for itself, and what is ignored stays ignored: the first program of a
    # pipe would not end when the last one does
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execve(file, program, variables)
    except OSError as error:
        raise _not_started(file, error) from error


def _not_started(file: Path, error: OSError) -> EnvbuildError:
    if error.errno == errno.ENOENT:
        # the file itself is there
        return CommandNotFoundError(
            "the program cannot be started: its interpreter is not there",
            where=file,
            found=_first_line(file),
            mend="correct its first line, or run it by an interpreter: -- python FILE",
        )
    return CommandNotExecutableError(
        f"the program cannot be started: {error.strerror}",
        where=file,
        expected="a program for this machine, or a script whose first line begins with #!",
        mend="run a script by its interpreter: -- python FILE or -- sh FILE"
        if error.errno == errno.ENOEXEC
        else None,
    )


def _first_line(file: Path) -> str | None:
    """Return the first line of a script; None for what is none."""
    try:
        with file.open("rb") as script:
            line = script.readline(256)
    except OSError:
        return None
    return line.decode(errors="replace").rstrip() if line.startswith(b"#!") else None
