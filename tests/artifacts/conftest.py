"""What several tests of this room need."""

from __future__ import annotations

from pathlib import Path

import pytest
from uv import find_uv_bin


@pytest.fixture(scope="session")
def uv() -> Path:
    """The uv that envbuild depends on."""
    return Path(find_uv_bin())
