"""Scripts: the line that names their interpreter, and what entry points may do."""

from __future__ import annotations

import ast
import configparser
import re
import shlex
import warnings
from typing import Literal

import msgspec

# Scripts that installers give the environment's own interpreter begin so (PEP 427)
PLACEHOLDER = b"#!python"

_SHELL = b"#!/bin/sh"
# the second line of a script that the shell hands to Python, to which it is a string
_EXEC = b"'''exec' "
# what stands for the interpreter where it is looked for beside the script: uv's relocatable form
_BESIDE = re.compile(
    rb"""'''exec' "\$\(dirname -- "\$\(realpath -- "\$0"\)"\)"/'?(python[\w.]*)'? "\$0" "\$@["]"""
)
# how Python finds a source's encoding (PEP 263)
_ENCODING = re.compile(rb"[ \t\f]*#.*?coding[:=][ \t]*([-\w.]+)")
# what scripts for entry points call besides the entry point
_USUAL = ("sys.exit", "exit", "re.sub", "sys.argv[0].endswith", "sys.argv[0].removesuffix")
_ATTRIBUTES = ("argv", "exit", "sub", "endswith", "removesuffix")


# What setuptools once packed for entry points; installers make their own in its place
_WRAPPER = re.compile(r"(\.exe|-script\.py|\.pya)\Z")


def stands_for(script: str) -> str:
    """Return the entry point's script that a script of a wheel would stand for.

    Args:
        script: its name or its path. Where the wheel has such an entry point, installers leave the
            script out.
    """
    return _WRAPPER.sub("", script)


class Shebang(msgspec.Struct, frozen=True):
    """What runs a script.

    Attributes:
        form: ``plain`` for ``#!PATH``, ``sh`` for the shell that starts Python, ``none``.
        line: the first line, without its end.
        interpreter: the program; of the form ``sh`` the one that the shell starts. Empty if it
            cannot be told.
        arguments: what follows it on a plain line.
        body: what follows.
    """

    form: Literal["plain", "sh", "none"]
    line: bytes
    interpreter: str
    arguments: str
    body: bytes

    @property
    def is_python(self) -> bool:
        """Whether Python runs it, by ``env`` too."""
        words = self.arguments.split()
        name = self.interpreter.rpartition("/")[2]
        if name == "env":
            name = next((word for word in words if not word.startswith("-")), "")
            name = name.rpartition("/")[2]
        return name.startswith(("python", "pypy"))


def shebang(data: bytes) -> Shebang:
    """Read what runs a script (execve(2), and the form of pip and uv for long paths).

    Args:
        data: the script's content.
    """
    if not data.startswith(b"#!"):
        return Shebang("none", b"", "", "", data)
    line, _, rest = data.partition(b"\n")
    line = line.removesuffix(b"\r")
    if line == _SHELL and rest.startswith(_EXEC):
        command, _, rest = rest.partition(b"\n")
        end, _, body = rest.partition(b"\n")
        started = _started(command) if end == b"' '''" else ""
        return Shebang("sh", line, started, "", body)
    words = line[2:].decode(errors="surrogateescape").strip().split(None, 1)
    interpreter = words[0] if words else ""
    return Shebang("plain", line, interpreter, words[1] if len(words) > 1 else "", rest)


def _started(command: bytes) -> str:
    """Return the program of ``'''exec' PROGRAM "$0" "$@"``."""
    beside = _BESIDE.fullmatch(command)
    if beside is not None:
        return f"$(dirname)/{beside[1].decode()}"
    try:
        words = shlex.split(command.decode(errors="surrogateescape"))
    except ValueError:
        return ""
    return words[1] if words[0] == "exec" and words[2:] == ["$0", "$@"] else ""


def fault(body: bytes, module: str, attribute: str) -> str | None:
    """Say what a script does that the script of an entry point has no reason to do.

    Installers word these scripts differently. All of them import the entry point, put
    ``sys.argv[0]`` right and end with what the entry point returns.

    Args:
        body: the script after its first line.
        module: what it must import.
        attribute: what it must call, a dotted name.

    Returns:
        What is wrong, or None.
    """
    for line in body.splitlines()[:2]:
        declared = _ENCODING.match(line)
        if declared and declared[1].lower() not in (b"utf-8", b"utf8", b"ascii", b"us-ascii"):
            return "is written in another encoding than UTF-8"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of odd escapes in strings, which are not ours
            tree = ast.parse(body.decode())
        return _fault(tree, module, attribute)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return "is not Python"  # or nested deeper than anybody writes


def _ends(call: ast.Call, attribute: str) -> bool:
    """Whether an exit hands on what the entry point returns."""
    return [ast.unparse(one) for one in call.args] == [f"{attribute}()"]


def _fault(tree: ast.Module, module: str, attribute: str) -> str | None:
    name, *deeper = attribute.split(".")
    imported = called = False
    for node in ast.walk(tree):
        match node:
            case ast.ImportFrom(module=found, level=0, names=[ast.alias(name=one, asname=None)]):
                if (found, one) == (module, name):
                    imported = True
                elif found != "sys":
                    return f"imports {one} from {found}"
            case ast.Import(names=[ast.alias(name="sys" | "re", asname=None)]):
                pass
            case ast.Call(args=arguments, keywords=keywords):
                function = ast.unparse(node.func)
                own = function == attribute and not arguments and not keywords
                ends = function in ("sys.exit", "exit")
                if (not own and function not in _USUAL) or (ends and not _ends(node, attribute)):
                    return f"calls `{ast.unparse(node)}`"
                called |= own
            case ast.Name(id=found) if found not in ("sys", "re", "exit", "__name__", name):
                return f"names `{found}`"
            case ast.Attribute(attr=found) if found not in (*_ATTRIBUTES, *deeper):
                return f"names `{ast.unparse(node)}`"
            case ast.Name(ctx=ast.Store()) | ast.stmt():
                if not isinstance(node, ast.If | ast.Expr | ast.Raise) and not _sets_argv(node):
                    return f"runs `{ast.unparse(node).splitlines()[0]}`"
    if not imported:
        return f"does not import {name} from {module}"
    return None if called else f"does not call {attribute}"


class _EntryPoints(configparser.RawConfigParser):
    def optionxform(self, optionstr: str) -> str:
        return optionstr  # the names of scripts are told apart by case


def entry_points(text: str) -> dict[str, str]:
    """Read the scripts that an ``entry_points.txt`` asks for, by their names.

    Args:
        text: its content, as the entry points specification of PyPA has it.

    Raises:
        configparser.Error: it cannot be read.
    """
    points = _EntryPoints(delimiters=("=",))
    points.read_string(text)
    found: dict[str, str] = {}
    for group in ("console_scripts", "gui_scripts"):
        found.update(points[group] if points.has_section(group) else {})
    return found


def _sets_argv(node: ast.AST) -> bool:
    return isinstance(node, ast.Assign) and [ast.unparse(one) for one in node.targets] == [
        "sys.argv[0]"
    ]
