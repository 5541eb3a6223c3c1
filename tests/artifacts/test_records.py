"""Of what is remembered, only that is trusted which nobody else could have written or changed."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from envbuild.artifacts import Artifact, Unpacked
from envbuild.artifacts.records import Record, load, merge, record, trusted

THIS = Artifact("a.tar.gz", 3, "ab" * 32)
SIZE = Unpacked(10, 2)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / THIS.file).write_bytes(b"abc")
    return tmp_path / ".envbuild" / "verified.json"


@pytest.fixture
def facts(path: Path) -> os.stat_result:
    return (path.parent.parent / THIS.file).stat()


def test_an_unchanged_file_is_trusted(facts: os.stat_result) -> None:
    assert trusted(record(THIS, facts, SIZE), THIS, facts)
    assert not trusted(None, THIS, facts)


@pytest.mark.parametrize("field", sorted(set(Record.__struct_fields__) - {"unpacked"}))
def test_any_difference_counts(facts: os.stat_result, field: str) -> None:
    known = record(THIS, facts, SIZE)
    value = getattr(known, field)
    other = "cd" * 32 if field == "sha256" else value + 1
    assert not trusted(msgspec.structs.replace(known, **{field: other}), THIS, facts)


def test_another_users_file_is_not_trusted(facts: os.stat_result) -> None:
    values = list(facts)
    values[4] = os.geteuid() + 1
    another = os.stat_result(values)
    assert not trusted(record(THIS, another, SIZE), THIS, another)


def test_a_round_trip(path: Path, facts: os.stat_result) -> None:
    known = record(THIS, facts, SIZE)
    merge(path, {THIS.file: known})
    assert load(path) == {THIS.file: known}


def test_what_another_process_recorded_stays(path: Path, facts: os.stat_result) -> None:
    (path.parent.parent / "b").touch()
    merge(path, {THIS.file: record(THIS, facts, SIZE)})
    merge(path, {"b": record(THIS, facts, SIZE)})
    assert sorted(load(path)) == [THIS.file, "b"]


def test_records_that_cannot_be_written_are_done_without(tmp_path: Path) -> None:
    (tmp_path / "house").mkdir()
    (tmp_path / "house" / ".envbuild").touch()
    merge(tmp_path / "house" / ".envbuild" / "verified.json", {})
    assert load(tmp_path / "house" / ".envbuild" / "verified.json") == {}
