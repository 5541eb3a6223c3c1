"""Real Nix, with a store, settings and caches of its own below one folder."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.programs import require

# Builds are sandboxed or fail; nothing is asked of anybody, and no users are needed for builds.
_SETTINGS = """\
experimental-features = nix-command flakes
build-users-group =
sandbox = true
sandbox-fallback = false
sandbox-paths =
substituters =
fsync-metadata = false
flake-registry = {registry}
"""
# seconds after which something has gone wrong
_LIMIT = 600


class Nix:
    """Nix, as `nix` below gives it.

    Attributes:
        env: variables with which any program finds this store and no other.
    """

    def __init__(self, folder: Path) -> None:
        self._store = folder / "store"
        registry = folder / "registry.json"
        registry.write_text('{"flakes": [], "version": 2}')
        for name in ("home", "tmp"):
            (folder / name).mkdir()
        self.env = {
            "HOME": str(folder / "home"),
            "NIX_CONFIG": _SETTINGS.format(registry=registry),
            # neither the machine's settings nor the user's
            "NIX_CONF_DIR": str(folder),
            "NIX_USER_CONF_FILES": "",
            "NIX_REMOTE": str(self._store),
            # where some of its programs leave what they wrote
            "TMPDIR": str(folder / "tmp"),
        }

    def run(
        self,
        program: str,
        *arguments: str | Path,
        code: int = 0,
        env: Mapping[str, str] | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run one of Nix's programs to its end, which must be the one that is expected.

        Args:
            program: its name.
            arguments: its arguments.
            code: the exit code.
            env: further variables.
        """
        foreign = ("NIX_", "XDG_")
        inherited = {
            name: text for name, text in os.environ.items() if not name.startswith(foreign)
        }
        done = subprocess.run(
            [program, *arguments],
            env={**inherited, **self.env, **(env or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_LIMIT,
            check=False,
        )
        assert done.returncode == code, done.stderr
        return done

    def build(self, *arguments: str | Path) -> Path:
        """Build one thing, and return where its output really is."""
        done = self.run("nix", "build", "--no-link", "--json", "--print-build-logs", *arguments)
        (built,) = json.loads(done.stdout)
        return self.real(built["outputs"]["out"])

    def real(self, path: str | Path) -> Path:
        """Return where something in the store really is: a path that it has, or a link in it."""
        return self._store / str(path).removeprefix("/")


@contextmanager
def nix(folder: Path) -> Iterator[Nix]:
    """Set Nix up in an empty folder, whose content is removed at the end.

    Skips the test where Nix is not installed.
    """
    require("nix", "nix-bin")
    try:
        yield Nix(folder)
    finally:
        remove(folder)


def remove(folder: Path) -> None:
    """Remove a folder with all that is in it, though nobody may write to what is in a store."""
    for parent, _, _ in os.walk(folder):
        Path(parent).chmod(stat.S_IRWXU)
    shutil.rmtree(folder)
