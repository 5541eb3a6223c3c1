"""Credentials: no value of theirs stands where others read it (R004).

A finding gives the name of a variable and never its value.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from urllib.parse import quote

from envbuild.errors import InputError
from envbuild.findings import Finding

# shorter values stand in many files that know nothing of them
_SHORTEST_SECRET = 8

_CHUNK = 1 << 20


_ENTRY = re.compile(
    r"""
    ^ [^\S\n]* (?: export [^\S\n]+ )? (?P<name> [A-Za-z_][A-Za-z0-9_]* ) [^\S\n]* = [^\S\n]*
    (?: '(?P<single> [^']* )' | "(?P<double> (?: [^"\\] | \\. )* )" | (?P<bare> [^\n]*? ) )
    (?: [^\S\n]+ \#[^\n]* )? [^\S\n]* $
    """,
    re.VERBOSE | re.MULTILINE | re.DOTALL,
)


def read_secrets(env_file: Path) -> dict[str, str]:
    """Read lines of ``NAME=VALUE``, with or without ``export``, quotes and comments.

    What is no such line is passed over; of several values for a name the last one counts.

    Raises:
        InputError: the file cannot be read. What stands in it is in no message.
    """
    try:
        data = env_file.read_bytes()
    except OSError as error:
        raise InputError(f"credentials cannot be read: {error.strerror}", where=env_file) from error
    text = data.decode("utf-8", "surrogateescape").removeprefix("\ufeff").replace("\r\n", "\n")
    return {match["name"]: _value(match) for match in _ENTRY.finditer(text)}


def _value(match: re.Match[str]) -> str:
    if match["double"] is not None:
        return re.sub(r'\\(["\\$`])', r"\1", match["double"])
    return str(match["bare"] if match["single"] is None else match["single"])


def leaks(secrets: Mapping[str, str], files: Iterable[Path]) -> Iterator[Finding]:
    """Yield files in which, or in whose names, a credential stands (R004).

    Values are looked for as they are, and as JSON and URLs have them. Values of less than eight
    characters are not looked for, nor paths of what there is, such as a CA bundle: neither is a
    secret.

    Args:
        secrets: values by the names of their variables. No value gets into a finding.
        files: what is looked through; what is gone or is no file is passed over.
    """
    forms = _forms(secrets)
    for path in files if forms else ():
        where = _redacted(str(path), forms)
        for name in _standing_in(os.fsencode(path), forms):
            yield _leak(f"the value of {name} stands in the name of this file", where)
        try:
            offsets = _offsets(path, forms)
        except FileNotFoundError:
            continue
        except OSError as error:
            yield _unread(where, error)
            continue
        for name, offset in offsets.items():
            message = f"the value of {name} stands in this file"
            yield _leak(message, where, found=f"at byte {offset}")


def arguments(secrets: Mapping[str, str], cmdline: Sequence[str], where: str) -> Iterator[Finding]:
    """Yield arguments of a process in which a credential stands: every user sees them (R004).

    Args:
        secrets: as for `leaks`.
        cmdline: the program and its arguments.
        where: the process.
    """
    forms = _forms(secrets)
    for index, argument in enumerate(cmdline):
        for name in _standing_in(argument.encode("utf-8", "surrogateescape"), forms):
            message = f"the value of {name} stands in an argument, which every user can see"
            yield _leak(message, _redacted(where, forms), found=f"in argument {index}")


def _leak(message: str, where: str, found: str | None = None) -> Finding:
    return Finding(
        "R004",
        "error",
        where=where,
        message=message,
        expected="credentials in the personal folder alone",
        found=found,
        mend="take it out, and have a new one issued: this one is known",
    )


def _unread(where: str, error: OSError) -> Finding:
    return Finding(
        "R004",
        "warning",
        where=where,
        message="this file was not looked through for credentials",
        expected="a file that can be read",
        found=error.strerror or type(error).__name__,
        mend="check again as a user who may read it",
    )


def _forms(secrets: Mapping[str, str]) -> dict[str, tuple[bytes, ...]]:
    """Return what is looked for, by the names of variables in their order."""
    forms: dict[str, tuple[bytes, ...]] = {}
    for name, value in sorted(secrets.items()):
        if len(value) < _SHORTEST_SECRET or _is_there(value):
            continue
        data = value.encode("utf-8", "surrogateescape")
        json_form = json.dumps(value, ensure_ascii=False)[1:-1].encode("utf-8", "surrogateescape")
        written = (data, json_form, quote(data, safe="").encode(), quote(data).encode())
        forms[name] = tuple(dict.fromkeys(written))
    return forms


def _is_there(value: str) -> bool:
    """Whether a value is the absolute path of something."""
    try:
        return value.startswith("/") and bool(Path(value).lstat())
    except (OSError, ValueError):
        return False


def _standing_in(data: bytes, forms: Mapping[str, Sequence[bytes]]) -> list[str]:
    return [name for name, written in forms.items() if any(form in data for form in written)]


def _redacted(text: str, forms: Mapping[str, Sequence[bytes]]) -> str:
    data = text.encode("utf-8", "surrogateescape")
    # the longest first, lest a part of it be taken out and the rest shown
    for form in sorted(itertools.chain(*forms.values()), key=len, reverse=True):
        data = data.replace(form, b"***")
    return data.decode("utf-8", "surrogateescape")


def _offsets(path: Path, forms: Mapping[str, Sequence[bytes]]) -> dict[str, int]:
    """Return where in a file each value stands first, by the names of variables.

    Raises:
        OSError: the file cannot be read.
    """
    if not stat.S_ISREG(path.stat().st_mode):
        # to open a pipe is to wait for somebody who writes to it
        return {}
    found: dict[str, int] = {}
    overlap = max(len(form) for written in forms.values() for form in written) - 1
    begin, kept = 0, b""
    with path.open("rb") as stream:
        # logs may be larger than the memory
        while chunk := stream.read(_CHUNK):
            window = kept + chunk
            for name, written in forms.items():
                at = min((at for form in written if (at := window.find(form)) >= 0), default=-1)
                if name not in found and at >= 0:
                    found[name] = begin + at
            kept = window[-overlap:]
            begin += len(window) - len(kept)
    return {name: found[name] for name in forms if name in found}
