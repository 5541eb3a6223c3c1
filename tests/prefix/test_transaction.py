from __future__ import annotations

from pathlib import Path

import pytest

from envbuild.prefix.transaction import replacing


def build(prefix: Path, text: str) -> None:
    prefix.mkdir()
    (prefix / "file").write_text(text)


def test_the_old_one_goes_to_the_archive(tmp_path: Path) -> None:
    prefix, archive = tmp_path / "toy", tmp_path / "archive" / "toy-1"
    build(prefix, "old")
    with replacing(prefix, archive):
        assert not prefix.exists()
        build(prefix, "new")
    assert (prefix / "file").read_text() == "new"
    assert (archive / "file").read_text() == "old"


def test_without_an_old_one_there_is_no_archive(tmp_path: Path) -> None:
    with replacing(tmp_path / "toy", tmp_path / "archive" / "toy-1"):
        build(tmp_path / "toy", "new")
    assert [path.name for path in tmp_path.iterdir()] == ["toy"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
@pytest.mark.parametrize("old", [True, False])
def test_a_failure_brings_the_old_one_back(
    tmp_path: Path, error: type[BaseException], old: bool
) -> None:
    prefix, archive = tmp_path / "toy", tmp_path / "archive" / "toy-1"
    if old:
        build(prefix, "old")
    with pytest.raises(error), replacing(prefix, archive):
        build(prefix, "new")
        raise error
    assert not archive.exists()
    assert prefix.exists() == old
    if old:
        assert (prefix / "file").read_text() == "old"
