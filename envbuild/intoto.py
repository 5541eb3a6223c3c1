"""Receipts as in-toto Statements v1 (https://in-toto.io/Statement/v1): of whom, and what."""

from __future__ import annotations

from pathlib import Path
from typing import Generic, TypeVar

import msgspec

from envbuild import durable

P = TypeVar("P")

_TYPE = "https://in-toto.io/Statement/v1"


class Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A part of a receipt: frozen, closed."""


class Subject(Record, frozen=True):
    """What a statement is about, by its digest."""

    name: str
    digest: dict[str, str]


class Statement(
    Record,
    Generic[P],
    frozen=True,
    rename={"type_": "_type", "predicate_type": "predicateType"},
):
    """A statement about one subject.

    Attributes:
        subject: what it is about.
        predicate: what it says.
        predicate_type: the URN of what kind of predicate that is.
    """

    subject: tuple[Subject, ...]
    predicate: P
    predicate_type: str
    type_: str = _TYPE


def statement(name: str, sha256: str, predicate: P, predicate_type: str) -> Statement[P]:
    """Say something of a subject, by its name and SHA-256."""
    return Statement((Subject(name, {"sha256": sha256}),), predicate, predicate_type)


def encode(stated: Statement[P]) -> bytes:
    """Write a statement as people can read it, too."""
    return msgspec.json.format(msgspec.json.encode(stated), indent=2) + b"\n"


def write(path: Path, stated: Statement[P]) -> None:
    """Write a statement, whole and durable.

    Raises:
        OSError: the file that was there, if any, is unchanged.
    """
    durable.write(path, encode(stated))
