from __future__ import annotations

import os
from pathlib import Path

import pytest

from envbuild import durable


def test_writes_whole_with_the_mode_asked_for(tmp_path: Path) -> None:
    old = os.umask(0o077)
    try:
        durable.write(tmp_path / "file", b"content", mode=0o644)
    finally:
        os.umask(old)
    assert (tmp_path / "file").read_bytes() == b"content"
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o644
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_failure_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "file").mkdir()
    with pytest.raises(OSError, match="Is a directory"):
        durable.write(tmp_path / "file", b"content")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_missing_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        durable.write(tmp_path / "no" / "file", b"content")
