"""TOML files read into frozen values, with errors that name the file, the key and what is near."""

from __future__ import annotations

import copy
import difflib
import re
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import msgspec.inspect
import tomli

from envbuild.errors import InputError

T = TypeVar("T", bound=msgspec.Struct)

# msgspec's way to name a place inside a document: "Expected `int`, got `str` - at `$.image.user`"
_AT = re.compile(r"(?P<message>.*) - at `(?P<path>[^`]*)`", re.DOTALL)


class Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="kebab"):
    """A table of a file: frozen, closed, keys in kebab case."""


def read(path: Path, kind: str) -> bytes:
    """Read a file that a person gave.

    Args:
        path: where it should be.
        kind: what it is, such as "environment".

    Raises:
        InputError: it cannot be read.
    """
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"{kind} cannot be read: {error.strerror}", where=path) from error


def parse(data: bytes, path: Path) -> dict[str, Any]:
    """Parse TOML 1.0; CRLF line ends are taken as LF, and a byte order mark is passed over.

    Raises:
        InputError: the bytes are not UTF-8 or not TOML, or are nested too deeply.
    """
    try:
        return tomli.loads(data.decode("utf-8-sig").replace("\r\n", "\n"))
    except UnicodeDecodeError as error:
        raise InputError(f"not UTF-8 at byte {error.start}", where=path) from error
    except tomli.TOMLDecodeError as error:
        raise InputError(f"not TOML: {error}", where=path) from error
    except RecursionError as error:
        raise InputError(
            "nested too deeply", where=path, mend="no key here needs more than a few levels"
        ) from error


def check_text(document: object, path: Path) -> None:
    """Refuse NUL characters, which no path, argument or name of a person's file can have.

    Raises:
        InputError: there is one; the key is named.
    """
    todo = [("", document)]
    while todo:
        key, value = todo.pop()
        if isinstance(value, str) and "\0" in value:
            raise InputError(f"{key}: holds a NUL character", where=path, mend="remove it")
        if isinstance(value, dict):
            todo += [(_join(key, name), one) for name, one in value.items()]
        elif isinstance(value, list):
            todo += [(f"{key}[{index}]", one) for index, one in enumerate(value)]


def convert(document: object, shape: type[T], path: Path, *, at: str = "") -> T:
    """Turn a parsed document into a value of type ``shape``.

    Args:
        document: what `parse` gave, or a part of it.
        shape: a `msgspec.Struct` type; keys that it does not have are errors.
        path: the file, for messages.
        at: the key of ``document`` inside the file, such as ``tool.envbuild``.

    Raises:
        InputError: an unknown key (the nearest known one is named), a missing key or a wrong type.
    """
    unknown = _unknown_key(document, msgspec.inspect.type_info(shape), at)
    if unknown is not None:
        place, known = unknown
        near = difflib.get_close_matches(place.rpartition(".")[2], known, n=1)
        raise InputError(
            f"{place}: unknown key",
            where=path,
            expected=f"did you mean {near[0]}?" if near else "one of " + ", ".join(sorted(known)),
        )
    try:
        return msgspec.convert(document, shape)
    except msgspec.ValidationError as error:
        raise _input_error(error, document, shape, path, at) from error


def load(path: Path, shape: type[T], kind: str) -> T:
    """Read, parse and convert a TOML file.

    Raises:
        InputError: as `read`, `parse`, `check_text` and `convert`.
    """
    document = parse(read(path, kind), path)
    check_text(document, path)
    return convert(document, shape, path)


def _input_error(
    error: msgspec.ValidationError,
    document: object,
    shape: type[msgspec.Struct],
    path: Path,
    at: str,
) -> InputError:
    match = _AT.fullmatch(str(error))
    message, place = (match["message"], match["path"]) if match else (str(error), "$")
    steps = _steps(place, document, shape)
    key = at
    for step in steps:
        key = f"{key}[{step}]" if isinstance(step, int) else _join(key, step)
    missing = re.fullmatch(r"Object missing required field `(.+)`", message)
    if missing:
        return InputError(f"{_join(key, missing[1])}: missing key", where=path)
    wrong = re.fullmatch(r"Expected (.+?), got (.+)", message)
    if wrong:
        return InputError(
            f"{key}: wrong type",
            where=path,
            expected=wrong[1].replace("`", ""),
            found=wrong[2].replace("`", ""),
        )
    choice = re.fullmatch(r"Invalid enum value (.+)", message)
    kind = _kind_at(msgspec.inspect.type_info(shape), steps)
    if choice and isinstance(kind, msgspec.inspect.LiteralType):
        return InputError(
            f"{key}: not a value that it can have",
            where=path,
            expected=" or ".join(map(str, kind.values)),
            found=choice[1],
        )
    return InputError(f"{key}: {message}", where=path)


def _steps(place: str, document: object, shape: type[msgspec.Struct]) -> list[str | int]:
    """Split msgspec's name of a place into keys and positions.

    msgspec writes ``[...]`` for a key of a table of free keys, so the key is looked for: the one
    that fails when it stands there alone.
    """
    steps: list[str | int] = []
    for name, index in re.findall(r"\.([^.\[]+)|\[(\d+|\.\.\.)\]", place):
        if index != "...":
            steps.append(int(index) if index else name)
            continue
        table = _value_at(document, steps)
        assert isinstance(table, dict)
        steps.append(next(k for k in table if _fails(document, steps, k, shape)))
    return steps


def _value_at(document: object, steps: list[str | int]) -> object:
    for step in steps:
        if isinstance(document, dict):
            document = document[step]
        elif isinstance(document, list):
            document = document[int(step)]
    return document


def _fails(document: object, steps: list[str | int], key: str, shape: type[msgspec.Struct]) -> bool:
    """Whether a document is still wrong when a table of it is left with one key alone."""
    alone = copy.deepcopy(document)
    table = _value_at(alone, steps)
    assert isinstance(table, dict)
    value = table[key]
    table.clear()
    table[key] = value
    try:
        msgspec.convert(alone, shape)
    except msgspec.ValidationError:
        return True
    return False


def _kind_at(kind: msgspec.inspect.Type, steps: list[str | int]) -> msgspec.inspect.Type | None:
    """Follow keys and positions into a type."""
    for step in steps:
        if isinstance(kind, msgspec.inspect.UnionType):
            kind = next(k for k in kind.types if not isinstance(k, msgspec.inspect.NoneType))
        if isinstance(kind, msgspec.inspect.StructType):
            fields = {field.encode_name: field.type for field in kind.fields}
            if step not in fields:
                return None
            kind = fields[str(step)]
        elif isinstance(kind, msgspec.inspect.DictType):
            kind = kind.value_type
        elif isinstance(kind, msgspec.inspect.VarTupleType):
            kind = kind.item_type
        else:
            return None
    return kind


def _join(key: str, name: str) -> str:
    return f"{key}.{name}" if key else name


def _unknown_key(
    document: object, shape: msgspec.inspect.Type, key: str
) -> tuple[str, list[str]] | None:
    """Find the first key that a shape does not know, with the keys known beside it.

    msgspec reports unknown keys too, but neither their full path nor their neighbours.
    """
    if isinstance(shape, msgspec.inspect.UnionType):
        structured = [one for one in shape.types if not isinstance(one, msgspec.inspect.NoneType)]
        return _unknown_key(document, structured[0], key) if len(structured) == 1 else None
    if isinstance(shape, msgspec.inspect.StructType) and isinstance(document, dict):
        fields = {field.encode_name: field.type for field in shape.fields}
        for name, value in document.items():
            if name not in fields:
                return _join(key, name), list(fields)
            deeper = _unknown_key(value, fields[name], _join(key, name))
            if deeper is not None:
                return deeper
    elif isinstance(shape, msgspec.inspect.DictType) and isinstance(document, dict):
        for name, value in document.items():
            deeper = _unknown_key(value, shape.value_type, _join(key, name))
            if deeper is not None:
                return deeper
    elif isinstance(shape, msgspec.inspect.VarTupleType) and isinstance(document, list):
        for index, value in enumerate(document):
            deeper = _unknown_key(value, shape.item_type, f"{key}[{index}]")
            if deeper is not None:
                return deeper
    return None
