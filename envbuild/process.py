"""Starting programs: one way, with an environment that is listed and output that is redacted."""

from __future__ import annotations

import logging
import os
import re
import shlex
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from urllib.parse import unquote

import msgspec

from envbuild.errors import StepError

log = logging.getLogger("envbuild")

# What a program may see of the caller's environment. Nothing else gets through: not PYTHONPATH,
# not UV_* or PIP_* settings, not a token.
_ALLOWED = frozenset({"PATH", "HOME", "USER", "LOGNAME", "LANG", "TMPDIR", "XDG_RUNTIME_DIR"})

# What clients of an index need besides: certificates, proxies, and where credentials are kept.
_NETWORK = frozenset(
    {"SSL_CERT_FILE", "SSL_CERT_DIR", "SSL_CLIENT_CERT", "NETRC", "ALL_PROXY", "all_proxy"}
    | {f"{name}_PROXY" for name in ("HTTP", "HTTPS", "NO")}
    | {f"{name}_proxy" for name in ("http", "https", "no")}
)

_PR_SET_PDEATHSIG = 1

# Lines of a failed program's output that are shown
_FIRST, _LAST = 5, 30

# User and password, between :// and @. People write passwords as they are, so what begins with a
# name and a colon is taken for a secret up to the last @ of the line, unless a port follows.
_PORT = r"""\d* (?: [/\s"'`?\#,;)\]] | $ )"""
_USERINFO = re.compile(
    rf"""(?<=://) (?: [^/\s"]* | [^/\s"@:\[]* : (?! {_PORT} ) (?: (?! ://) [^\n] )* ) @""",
    re.VERBOSE | re.MULTILINE,
)

# Variables that say where packages and interpreters come from: what stands before the last @ of a
# URL of theirs is a secret, whatever it looks like.
_LOCATIONS = re.compile(
    r"UV_.*INDEX.*|UV_PYTHON_INSTALL_MIRROR|PBS_INSTALLER_BASE_URL|ENVBUILD_DEBIAN_MIRROR"
)
_SECRET = re.compile(r"(?<=://) (?: (?! ://) . )+ (?=@)", re.VERBOSE | re.DOTALL)


class Completed(msgspec.Struct, frozen=True):
    """A program that ended well.

    Attributes:
        stdout: what it printed.
        stderr: what it said besides.
        seconds: how long it took, in seconds of wall time.
    """

    stdout: str
    stderr: str
    seconds: float


def _shortened(output: str) -> str:
    """Keep the first and the last lines: a resolver can explain itself in twenty thousand."""
    lines = output.splitlines()
    left_out = len(lines) - _FIRST - _LAST
    if left_out <= 1:
        return output
    said = f"... {left_out} lines left out; `envbuild --verbose` shows them ..."
    return "\n".join([*lines[:_FIRST], said, *lines[-_LAST:]])


def die_with_parent() -> None:
    """Have this process killed when its parent dies: nothing goes on behind its back."""
    _tie()()


def _tie() -> Callable[[], None]:
    """Return what makes the process that calls it die with its parent (prctl(2))."""
    import ctypes  # 10 ms, which few commands need

    prctl = ctypes.CDLL(None).prctl

    def tie() -> None:
        prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))

    return tie


def redact(text: str) -> str:
    """Replace the user and password of every URL in ``text`` by ``***``."""
    for secret in _secrets(os.environ):
        text = text.replace(f"://{secret}@", "://***@")
    return _USERINFO.sub("***@", text)


def _secrets(variables: Mapping[str, str]) -> Iterator[str]:
    """Yield what the caller's own variables hold before an @, as it is and decoded."""
    for name, value in variables.items():
        if "@" in value and _LOCATIONS.fullmatch(name):
            for secret in _SECRET.findall(value):
                yield secret
                yield unquote(secret)


def environment(extra: Mapping[str, str] | None = None, *, network: bool = False) -> dict[str, str]:
    """Return the environment for a program: a short allow-list, then ``extra``.

    Args:
        extra: variables to set, over what is inherited.
        network: whether the program talks to an index and may see proxies and certificates.
    """
    allowed = _ALLOWED | _NETWORK if network else _ALLOWED
    inherited = {name: value for name, value in os.environ.items() if name in allowed}
    return {**inherited, "LC_ALL": "C.UTF-8", **(extra or {})}


def run(
    command: Sequence[str | Path],
    *,
    doing: str,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    timeout: float | None = None,
    tied: bool = False,
    mend: str | None = None,
) -> Completed:
    """Run a program to its end and keep what it says.

    Args:
        command: the program and its arguments; no shell sees them.
        doing: what it is run for, as in "installing core": the failure's first words.
        env: the whole environment, from `environment`; that function's default if not given.
        cwd: the folder to run in.
        timeout: seconds after which it is killed.
        tied: kill it when this process dies, however that dies; for a process with one thread,
            since something is run between fork and exec.
        mend: what a person can do when it fails.

    Raises:
        StepError: it cannot be started, ran out of time, or exited with another status than 0;
            the command and its output are in the message, without credentials.
    """
    arguments = [str(part) for part in command]
    shown = shlex.join(map(redact, arguments))  # before quoting, which would hide a password's end
    log.debug("run: %s", shown)
    begun = time.monotonic()
    try:
        done = subprocess.run(
            arguments,
            env=environment() if env is None else dict(env),
            cwd=cwd,
            timeout=timeout,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            preexec_fn=_tie() if tied else None,
        )
    except subprocess.TimeoutExpired as error:
        raise StepError(
            f"{doing} did not end in {timeout:g} s", mend=mend, detail=f"$ {shown}"
        ) from error
    except OSError as error:
        raise StepError(
            f"{doing}: {arguments[0]} cannot be started: {error.strerror}",
            mend=mend,
            detail=f"$ {shown}",
        ) from error
    seconds = time.monotonic() - begun
    log.debug("ended: %s after %.2f s", done.returncode, seconds)
    if done.returncode != 0:
        output = redact("\n".join(part for part in (done.stdout, done.stderr) if part))
        status = (
            f"was killed by signal {-done.returncode}"
            if done.returncode < 0
            else f"failed with exit code {done.returncode}"
        )
        log.debug("%s", output)
        raise StepError(f"{doing} {status}", mend=mend, detail=f"$ {shown}\n{_shortened(output)}")
    return Completed(done.stdout, done.stderr, seconds)
