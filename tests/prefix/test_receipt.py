from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from envbuild.prefix import create, receipt
from envbuild.prefix.interpreter import Interpreter
from envbuild.prefix.receipt import Receipt


@pytest.fixture
def prefix(tmp_path: Path) -> Path:
    folder = tmp_path / "toy"
    (folder / "bin").mkdir(parents=True)
    (folder / "lib" / "python3.11" / "site-packages" / "six-1.dist-info").mkdir(parents=True)
    (folder / "pyvenv.cfg").write_text("home = /usr\n")
    (tmp_path / "python").write_text("an interpreter\n")
    return folder


@pytest.fixture
def known(prefix: Path) -> Receipt:
    python = prefix.parent / "python"
    return Receipt(
        environment="toy",
        site="local",
        root=str(prefix.parent),
        prefix=str(prefix),
        rehearsal=False,
        lock_sha256="a" * 64,
        declared_sha256="b" * 64,
        interpreter=Interpreter(str(python), "3.11.17", "fallback"),
        distributions=(receipt.Distribution("six", "1", "six-1-py3-none-any.whl", "c" * 64),),
        host=receipt.Host("node", "6.1", "2.36"),
        audit=receipt.Audit(3, 20, (), ("a note",), 0.1),
        checks=receipt.Checks(1, 0, 0.5),
        seconds={"install": 1.5},
        tools={"uv": "0"},
        created="2026-11-30T00:00:00Z",
        mode="exchange",
        manifest_sha256="d" * 64,
        written={"bin/tool": "e" * 64},
        modes={},
        notes=(),
        look=receipt.look(prefix, python),
    )


def judge(known: Receipt | None, prefix: Path, lock: str = "a", declared: str = "b") -> str | None:
    return create.judge(known, prefix, lock_sha256=lock * 64, declared_sha256=declared * 64)


def test_what_was_written_reads_the_same(tmp_path: Path, known: Receipt) -> None:
    assert receipt.read(tmp_path, "toy") is None
    path = receipt.write(tmp_path, known)
    assert path == tmp_path / "receipts" / "toy.json"
    assert receipt.read(tmp_path, "toy") == known


@pytest.mark.parametrize("text", ["", "{}", '{"schema": 1}', "not json", "\0"])
def test_what_is_no_receipt_counts_as_none(tmp_path: Path, known: Receipt, text: str) -> None:
    receipt.write(tmp_path, known).write_text(text)
    assert receipt.read(tmp_path, "toy") is None


def test_a_receipt_of_another_schema_counts_as_none(tmp_path: Path, known: Receipt) -> None:
    receipt.write(tmp_path, msgspec.structs.replace(known, schema=1))
    assert receipt.read(tmp_path, "toy") is None


def test_right_as_it_is(prefix: Path, known: Receipt) -> None:
    assert judge(known, prefix) is None


def test_each_reason_in_words(prefix: Path, known: Receipt) -> None:
    assert judge(known, prefix.parent / "none") == "there is no prefix yet"
    assert judge(None, prefix) == "the prefix has no receipt"
    moved = msgspec.structs.replace(known, prefix="/elsewhere")
    assert judge(moved, prefix) == "the prefix has no receipt"
    assert judge(known, prefix, lock="x") == "the lock has changed"
    assert judge(known, prefix, declared="x") == (
        "its checks, projects, interpreter or site have changed"
    )


@pytest.mark.parametrize(
    "change",
    [
        lambda prefix: (prefix / "bin" / "new").touch(),
        lambda prefix: (prefix / "lib/python3.11/site-packages/new.py").touch(),
        lambda prefix: (prefix / "lib/python3.11/site-packages/six-1.dist-info").rmdir(),
        lambda prefix: (prefix / "pyvenv.cfg").write_text("home = /tmp\n"),
        lambda prefix: (prefix / "pyvenv.cfg").unlink(),
        lambda prefix: (prefix.parent / "python").write_text("another\n"),
        lambda prefix: (prefix.parent / "python").unlink(),
        lambda prefix: os.utime(prefix / "bin", ns=(1, 1)),
    ],
)
def test_a_changed_prefix_is_noticed(prefix: Path, known: Receipt, change: object) -> None:
    assert callable(change)
    change(prefix)
    assert judge(known, prefix) == "the prefix was changed since it was checked"


def test_a_copy_in_its_place_is_noticed(prefix: Path, known: Receipt) -> None:
    other = prefix.with_name("other")
    prefix.rename(other)
    os.system(f"cp -a '{other}' '{prefix}'")
    assert judge(known, prefix) == "the prefix was changed since it was checked"
