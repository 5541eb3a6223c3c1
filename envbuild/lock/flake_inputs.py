"""The inputs that a ``flake.nix`` declares: read where it is simple, else evaluated by Nix."""

from __future__ import annotations

import re
import shutil
import tempfile
from pathlib import Path
from typing import Any

import msgspec

from envbuild import process, typed
from envbuild.errors import InputError

# The attributes of each input, as JSON has them.
Inputs = dict[str, dict[str, str | int | bool | dict[str, Any]]]

# What `outputs` takes is an input too, declared or not; the flake itself is none.
_EXPRESSION = (
    "{ file }: let flake = import (/. + file); in builtins.mapAttrs (_: _: { }) "
    '(removeAttrs (builtins.functionArgs flake.outputs) [ "self" ]) // flake.inputs or { }'
)

_SPACE = r"(?: [ \t\r\n] | \#[^\r\n]*(?=[\r\n]|\Z) | /\*(?:(?!\*/).)*\*/ )*"
_TOKEN = re.compile(
    rf"""{_SPACE} ( [a-zA-Z_][a-zA-Z0-9_'-]* | [0-9]+ | "[^"\\$\x00-\x1f]*" | . | \Z )""",
    re.VERBOSE | re.DOTALL,
)
# What `outputs` takes: a name, names in braces, or both.
_TAKEN = re.compile(
    rf"""{_SPACE} (?: (?:[\w'-]+ \s* @ \s*)? \{{ ([^{{}}]*) \}} \s* (?:@ \s* [\w'-]+ \s*)?
    | [\w'-]+ \s* ) :""",
    re.VERBOSE | re.DOTALL,
)
# What can declare an input, in what `outputs` does or after it.
_MORE = re.compile(
    rf"""(?<![\w'.-]) inputs (?![\w'-]) "? {_SPACE}
    (?: \. {_SPACE} (?: [\w'-]+ | "(?:[^"\\]|\\.)*" ) {_SPACE} )* = (?!=)""",
    re.VERBOSE | re.DOTALL,
)


class UnclearError(Exception):
    """What is written in another form than the ones that are understood here."""


def declared(path: Path) -> Inputs:
    """Return the inputs of a ``flake.nix``; Nix is asked only for what is not simple.

    Raises:
        InputError: it cannot be read, or has no such inputs.
        UnclearError: it is not simple, and there is no Nix.
        StepError: Nix says that it cannot be evaluated, or cannot be run.
    """
    data = typed.read(path, "flake")
    try:
        return read(data.decode())
    except (UnclearError, UnicodeDecodeError) as error:
        if shutil.which("nix-instantiate") is None:
            why = "not UTF-8" if isinstance(error, UnicodeDecodeError) else str(error)
            raise UnclearError(why) from error
    return ask(path)


def ask(path: Path) -> Inputs:
    """Have Nix evaluate a ``flake.nix``: without network, store, or a trace at home.

    Raises:
        StepError: Nix says that it cannot be evaluated, or cannot be run.
        InputError: what comes out are no inputs.
    """
    file = path.resolve()
    with tempfile.TemporaryDirectory(prefix="envbuild-nix-") as home:
        done = process.run(
            [
                *("nix-instantiate", "--eval", "--strict", "--json", "--store", "dummy://"),
                # nothing is fetched, and nothing is read but the flake's folder
                *("--option", "restrict-eval", "true", "-I", f"flake={file.parent}"),
                *("-E", _EXPRESSION, "--argstr", "file", file),
            ],
            doing=f"evaluating {path.name}",
            env=process.environment({"HOME": home, "NIX_CONF_DIR": home}),
            timeout=60,
        )
    try:
        return msgspec.json.decode(done.stdout, type=Inputs)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise InputError(f"no inputs of a flake: {error}", where=path) from error


def read(text: str) -> Inputs:
    """Read the inputs of a ``flake.nix`` that is written in simple forms.

    The forms are attributes with dots or in braces, strings without escapes or interpolation, and
    then ``outputs`` as a function of these inputs. What it does is not looked at.

    Raises:
        UnclearError: something is written in another way, which Nix may understand.
    """
    try:
        return _Reader(text).inputs()
    except (msgspec.ValidationError, RecursionError) as error:
        raise UnclearError(f"no inputs of a flake: {error}") from error


class _Reader:
    """Reads tokens one after the other, and gives up on the first that it does not expect."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def inputs(self) -> Inputs:
        tree: dict[str, Any] = {}
        self._expect("{")
        while (path := self._path()) != ["outputs"]:
            if path[:1] != ["inputs"] and path != ["description"]:
                raise self._unclear("inputs, outputs or a description was expected")
            self._value(tree, path)
        inputs = msgspec.convert(tree.get("inputs", {}), Inputs)
        taken = _TAKEN.match(self._text, self._at)
        names = [] if taken is None else (taken[1] or "").split(",")
        known = {"", "...", "self", *inputs}
        if taken is None or not {name.strip() for name in names} <= known:
            raise self._unclear("outputs is not written as a function of the inputs above")
        if more := _MORE.search(self._text, taken.end()):
            self._at = more.start()
            raise self._unclear("this can be an input, and is not above outputs")
        return inputs

    def _unclear(self, what: str) -> UnclearError:
        return UnclearError(f"line {self._text.count(chr(10), 0, self._at) + 1}: {what}")

    def _next(self) -> str:
        token = _TOKEN.match(self._text, self._at)
        assert token is not None
        self._at = token.end()
        return token[1]

    def _expect(self, *texts: str) -> str:
        text = self._next()
        if text not in texts:
            raise self._unclear(f"{' or '.join(texts)} was expected")
        return text

    def _path(self) -> list[str]:
        """Read the name of an attribute, with its dots; empty where the set ends."""
        path: list[str] = []
        while (text := self._next()) != "}" or path:
            if re.match(r'[a-zA-Z_]|".', text) is None:
                raise self._unclear("the name of an attribute was expected")
            path.append(text.strip('"'))
            if self._expect(".", "=") == "=":
                break
        return path

    def _value(self, tree: dict[str, Any], path: list[str]) -> None:
        """Read a value that is no expression to its place; sets at the same place are one."""
        text = self._next()
        *above, last = [*path, ""] if text == "{" else path
        for name in above:
            tree = tree.setdefault(name, {})
            if not isinstance(tree, dict):
                raise self._unclear(f"{name} is defined twice")
        if text == "{":
            while path := self._path():
                self._value(tree, path)
        elif last in tree:
            raise self._unclear(f"{last} is defined twice")
        else:
            try:
                # strings without escapes, whole numbers, true and false are written alike
                tree[last] = msgspec.json.decode(text)
            except msgspec.DecodeError:
                raise self._unclear("a plain string or a set was expected") from None
        self._expect(";")
