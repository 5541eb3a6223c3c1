"""Programs of the system that some tests need."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

# Read when tests are collected: the fixtures take our settings away.
_REQUIRE_ALL = os.environ.get("ENVBUILD_REQUIRE_ALL") == "1"


def require(program: str, package: str) -> Path:
    """Return where a program is, or skip the test that needs it.

    With ENVBUILD_REQUIRE_ALL=1, which CI sets, the test fails instead.

    Args:
        program: its name, looked for on PATH.
        package: the Debian package that has it.
    """
    found = shutil.which(program)
    if found is not None:
        return Path(found)
    reason = f"{program} is not installed (Debian package {package})"
    if _REQUIRE_ALL:
        pytest.fail(f"{reason}, and ENVBUILD_REQUIRE_ALL=1 asks for it", pytrace=False)
    pytest.skip(reason)
