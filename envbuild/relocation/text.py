"""The T rules, and P003: text and byte code that bind paths. On contents, one file at a time."""

from __future__ import annotations

import itertools
import os
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from envbuild.findings import Finding
from envbuild.relocation import files, scripts
from envbuild.relocation.subject import Subject

_ACTIVATION = re.compile(r"(?:de)?activate(?:\.\w+)?|Activate\.ps1|activate_this\.py")

# Where activation scripts say what they activate: `VIRTUAL_ENV=`, `let virtual_env =` (nu),
# `setenv VIRTUAL_ENV` (csh), `set -gx VIRTUAL_ENV` (fish), by way of cygpath, and cmd's `for`.
_NAMED = re.compile(
    rb"""
    (?: \b(?: VIRTUAL_ENV | virtual_env ) (?: ["']\] )? \s* = \s*
        (?: r\#* | \$\(cygpath\s+ (?:-u\s+)? )?
      | ^ [ \t]* (?: setenv | set\s+-gx ) \s+ VIRTUAL_ENV \s+
      | ^ @? for \s+ %%\w \s+ in \s+ \(  (?= [^\n]* VIRTUAL_ENV= )
    )
    (?: '(?P<single>/[^'\n]*)' | "(?P<double>/[^"\n]*)" | (?P<bare>/[^\s'"();]*) )
    """,
    re.VERBOSE | re.MULTILINE,
)

# a string of marshal's, before a path: its type, with the flag for references or without, and size
_SHORT = frozenset(b"zZ\xfa\xda")
_LONG = frozenset(b"aAut\xe1\xc1\xf5\xf4")

# how virtualenv writes bytes that are not ASCII for the shell
_PRINTF = re.compile(
    rb"\"\$\(unset -f printf 2>/dev/null \|\| :; \\printf '%b' '((?:\\0[0-7]{3})+)'\)\""
)
# what ends a path that an activation script names
_ENDS = re.compile(rb"/?(?:['\"\s;)]|\Z)")

# what a path is ended by, so that /x/core is not found in /x/core2
_PATH_ENDS = rb"(?![\w.-])"


class Place(NamedTuple):
    """A file of a prefix.

    Attributes:
        prefix: the prefix's path.
        path: relative to it.
    """

    prefix: str
    path: str

    def __str__(self) -> str:
        return f"{self.prefix}/{self.path}"

    @property
    def name(self) -> str:
        """The file's own name."""
        return self.path.rpartition("/")[2]


def is_activation(place: Place) -> bool:
    """Whether a file of ``bin`` activates an environment in some shell."""
    return _ACTIVATION.fullmatch(place.name) is not None


def script(place: Place, data: bytes, subject: Subject, *, published: bool) -> Iterator[Finding]:
    """T001 and P003: a script is run by this prefix's interpreter, and the kernel can do so.

    Args:
        place: a file of ``bin``.
        data: its content.
        subject: what the prefix is held to.
        published: whether it stands so in a published wheel.
    """
    found = scripts.shebang(data)
    wanted = f"{subject.prefix}/bin/python"
    # of such a line the kernel, and what reads it as the kernel does, sees a part of the path
    spaced = " " in wanted and found.line[2:].strip().startswith(os.fsencode(wanted))
    if not (spaced or found.form == "sh" or (found.form == "plain" and found.is_python)):
        return
    own = re.fullmatch(r"[\w.]*", found.interpreter.removeprefix(wanted)) is not None
    own = own and found.interpreter.startswith(wanted)
    if found.form == "sh" and found.interpreter.startswith("$("):
        own = True  # found by the script's own place (uv's relocatable environments)
    if own and found.form == "plain" and len(found.line) > subject.shebang_limit:
        yield Finding(
            "P003",
            "error",
            str(place),
            "the kernel cuts its first line off",
            expected=f"at most {subject.shebang_limit} bytes, or the form that starts with "
            "#!/bin/sh",
            found=f"{len(found.line)} bytes",
            mend="install it again: pip and uv write the other form where a path is long",
        )
    if own:
        return
    if spaced:
        yield Finding(
            "P003",
            "error",
            str(place),
            "the kernel ends its interpreter's path at the space",
            expected="the form that starts with #!/bin/sh",
            found=_shown(found.line),
            mend="install it again: pip and uv write the other form where a path has a space",
        )
        return
    by_path = found.interpreter.rpartition("/")[2] == "env"
    shown = _shown(found.line) if found.form == "plain" else found.interpreter or "nothing"
    yield Finding(
        "T001",
        "warning" if published or (by_path and found.form == "plain") else "error",
        str(place),
        "is run by whatever Python comes first on PATH"
        if by_path
        else "is run by another interpreter",
        expected=f"{wanted}",
        found=shown,
        mend=f"call it as `{wanted} {place}`" if published else subject.again,
    )


def activation(place: Place, data: bytes, subject: Subject) -> Iterator[Finding]:
    """T003: an activation script names this prefix, or none.

    Args:
        place: a file of ``bin``; others than activation scripts are passed over.
        data: its content.
        subject: what the prefix is held to.
    """
    prefix = subject.prefix
    data = _PRINTF.sub(lambda match: bytes(int(x, 8) for x in match[1].split(b"\\0")[1:]), data)
    wrong = set()
    for match in _NAMED.finditer(data):
        path = os.fsdecode(match["single"] or match["double"] or match["bare"])
        # a path with quotes in it ends too early; each shell has its own way to write those
        here = data[match.start(match.lastgroup or 0) - 1 :]
        if path.rstrip("/") != prefix and not _begins(here, prefix):
            wrong.add(path)
    if wrong:
        yield Finding(
            "T003",
            "error",
            str(place),
            "activates another environment",
            expected=prefix,
            found=", ".join(sorted(wrong)),
            mend=subject.again,
        )


def said(prefix: Path) -> str:
    """Return the path that a prefix's own ``activate`` names; its own path if it names none.

    Args:
        prefix: the prefix.
    """
    try:
        data = files.read(prefix / "bin" / "activate")
    except OSError:
        return str(prefix)
    data = _PRINTF.sub(lambda match: bytes(int(x, 8) for x in match[1].split(b"\\0")[1:]), data)
    match = _NAMED.search(data)
    if match is None:
        return str(prefix)
    if _begins(data[match.start(match.lastgroup or 0) - 1 :], str(prefix)):
        return str(prefix)
    return os.fsdecode(match["single"] or match["double"] or match["bare"])


def _begins(here: bytes, prefix: str) -> bool:
    """Whether a prefix stands here, as it is or as a shell quotes it, and nothing more of a path.

    Args:
        here: text from the quote on that the path begins with.
        prefix: the path.
    """
    written = [here[:1] + os.fsencode(prefix), os.fsencode(shlex.quote(prefix))]
    # fish's own way, and that of virtualenv for all shells but one
    written += [os.fsencode("'" + prefix.replace("'", by) + "'") for by in ("\\'", "'\\''")]
    return any(here.startswith(one) and _ENDS.match(here, len(one)) for one in written)


class PathLine(NamedTuple):
    """A line of a ``.pth`` file that is run, not a folder."""

    place: Place
    line: str


def path_file(
    place: Place, data: bytes, subject: Subject, *, listed: bool
) -> Iterator[Finding | PathLine]:
    """T002: the lines of a ``.pth`` or ``.egg-link`` file point inside the prefix or the root.

    Args:
        place: the file, in site-packages.
        data: its content.
        subject: what the prefix is held to.
        listed: whether a distribution lists it: lines of others that are run are findings.
    """
    folder = Path(str(place)).parent
    inside = [Path(subject.prefix)] + ([Path(subject.root)] if subject.root else [])
    for number, raw in enumerate(data.decode("utf-8-sig", "replace").splitlines(), 1):
        line = raw.strip()
        if not line or line.startswith("#"):
            continue
        where = f"{place}:{number}"
        if line.startswith(("import ", "import\t")):
            yield PathLine(place, line)
            if not listed:
                yield Finding(
                    "T002",
                    "error",
                    where,
                    "runs code whenever Python starts, and no distribution lists it",
                    expected="folders inside the prefix or the root",
                    found=_shown(line.encode()),
                    mend="remove it, or install what it belongs to",
                )
            continue
        # no folder has a name with a NUL in it
        target = os.path.realpath(folder / line.replace("\0", ""))
        if not any(Path(target).is_relative_to(os.path.realpath(top)) for top in inside):
            yield Finding(
                "T002",
                "error",
                where,
                "adds a folder outside the prefix and the root to the path",
                expected=" or ".join(f"a folder in {top}" for top in inside),
                found=line,
                mend="move what is there below the root, or remove the line",
            )


def byte_code(place: Place, data: bytes, subject: Subject) -> Iterator[Finding]:
    """T005: byte code names its source in this prefix, as ``co_filename``.

    Not unmarshalled: another version's byte code could not be, and a search is quick. The name is
    in each file once, as a string after its size.

    Args:
        place: a file of a ``__pycache__`` folder.
        data: its content.
        subject: what the prefix is held to.
    """
    if int.from_bytes(data[4:8], "little") & 0b11 == 0b01:  # PEP 552
        yield Finding(
            "T005",
            "error",
            str(place),
            "its byte code is used without a look at its source",
            expected="byte code that is held to its source's time or hash",
            found="an unchecked hash",
            mend=f"remove it: Python writes it anew, or {subject.again}",
        )
    folder, _, name = place.path.rpartition("/")
    stem = name.partition(".")[0]
    package = folder.rpartition("/")[0]
    source = f"{package}/{stem}.py" if package else f"{stem}.py"
    if os.fsencode(f"{subject.prefix}/{source}") in data:
        return
    found = _file_name(data, os.fsencode(f"{stem}.py"))
    yield Finding(
        "T005",
        "error",
        str(place),
        "its byte code names another source",
        expected=f"{subject.prefix}/{source}",
        found=found or "no source of its name",
        mend=subject.again,
    )


def _file_name(data: bytes, end: bytes) -> str | None:
    """Find the string that ends with a source's name in marshalled code."""
    for match in itertools.islice(re.finditer(re.escape(end), data), 100):
        for begin in range(max(5, match.start() - 4096), match.start() + 1):
            size = match.end() - begin
            short = data[begin - 2] in _SHORT and data[begin - 1] == size
            long = data[begin - 5] in _LONG and data[begin - 4 : begin] == size.to_bytes(
                4, "little"
            )
            if short or long:
                return os.fsdecode(data[begin : match.end()])
    return None


def foreign(subject: Subject) -> re.Pattern[bytes] | None:
    """Return what finds the paths that no file may name (T004); None if there are none."""
    paths = [*subject.foreign, *(path for path in subject.others if path != subject.prefix)]
    if not paths:
        return None
    longest = sorted(set(paths), key=lambda path: (-len(path), path))
    names = b"|".join(re.escape(os.fsencode(path)) for path in longest)
    return re.compile(b"(?:" + names + b")" + _PATH_ENDS)


def names_foreign(
    place: Place, data: bytes, subject: Subject, pattern: re.Pattern[bytes]
) -> Iterator[Finding]:
    """T004: a text file holds no path that is known to be wrong.

    Args:
        place: a file that is not as its wheel has it.
        data: its content.
        subject: what the prefix is held to.
        pattern: what `foreign` gave.
    """
    match = pattern.search(data)
    if match is None or b"\0" in data[:8192]:
        return
    path = os.fsdecode(match[0])
    what = subject.foreign.get(path) or f"the prefix of {subject.others[path]}"
    line = data.count(b"\n", 0, match.start()) + 1
    yield Finding(
        "T004",
        "error",
        f"{place}:{line}",
        f"names {what}",
        expected=f"paths in {subject.prefix}",
        found=path,
        mend=subject.again,
    )


def _shown(line: bytes) -> str:
    text = line.decode(errors="backslashreplace")
    return text if len(text) <= 160 else f"{text[:160]}..."
