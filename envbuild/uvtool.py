"""The uv that envbuild pins: where it is, and the environment that it is given."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from envbuild import process
from envbuild.errors import PreflightError


def executable() -> Path:
    """Return the uv that was installed with envbuild, never another one on PATH.

    Raises:
        PreflightError: it is not there.
    """
    import uv

    try:
        return Path(uv.find_uv_bin())
    except FileNotFoundError as error:
        raise PreflightError(
            "uv is not installed beside envbuild", mend="install envbuild again, with `make create`"
        ) from error


def resolver() -> str:
    """Name the resolver with its version, as locks record it: ``uv 0.13.9``."""
    from importlib.metadata import version

    return f"uv {version('uv')}"


def environment(
    indexes: Sequence[str] = (), *, extra: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Return the environment for uv: our settings, and none of the caller's but its cache folder.

    Args:
        indexes: index URLs in the order in which they are asked, the default index last; without
            any, uv is kept off the network.
        extra: further variables.
    """
    settings = {"UV_PYTHON_DOWNLOADS": "never", "UV_PREVIEW_FEATURES": "pylock"}
    cache = os.environ.get("UV_CACHE_DIR")
    if cache is not None:
        settings["UV_CACHE_DIR"] = cache
    if indexes:
        # by variable and not by argument: URLs may hold passwords, which `ps` would show
        settings["UV_DEFAULT_INDEX"] = indexes[-1]
        settings["UV_INDEX"] = " ".join(indexes[:-1])
    else:
        settings["UV_OFFLINE"] = "1"
    return process.environment({**settings, **(extra or {})}, network=bool(indexes))
