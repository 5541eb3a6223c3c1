"""envbuild exec, against running the same program bare: the difference in milliseconds.

    python bench/exec.py [SITE ROOT ENV]

With a site, the root of a rehearsal and an environment, that prefix is used, which must have been
created before; else a virtual environment with a receipt is made in a temporary folder. Both start
the prefix's Python, which does nothing and ends; whole processes in turn.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import venv
from collections.abc import Sequence
from pathlib import Path

import common

from envbuild.prefix import receipt
from envbuild.prefix.interpreter import Interpreter
from envbuild.prefix.receipt import Receipt

_ROUNDS = 21
_GOAL = 50
_NOTHING = ["-c", "pass"]
# as the script does that is installed
_ENVBUILD = [sys.executable, "-c", "from envbuild.entry import run; run()", "--project"]
# what is installed has byte code, whatever whoever runs this prefers for a checkout
_INSTALLED = {"PYTHONDONTWRITEBYTECODE": ""}


def main(arguments: list[str]) -> None:
    """Print the difference for a prefix that is there, or for one that is made."""
    if arguments:
        site, root, name = arguments
        command = [*_ENVBUILD, str(common.PROJECT), "exec", name, "--site", site, "--root", root]
        _compare(name, command, Path(root))
        return
    with tempfile.TemporaryDirectory(prefix="envbuild-bench-") as folder:
        project = Path(folder).resolve()
        _make(project)
        _compare("toy", [*_ENVBUILD, str(project), "exec", "toy"], project / ".envs")


def _compare(name: str, command: Sequence[str], root: Path) -> None:
    ours = [*command, "--", "python", *_NOTHING]
    said = receipt.read(root / ".envbuild", name)
    assert said is not None
    bare = [f"{said.prefix}/bin/python", *_NOTHING]
    pairs = [
        (common.run(ours, _INSTALLED), common.run(bare, _INSTALLED)) for _ in range(_ROUNDS + 1)
    ][1:]
    first = statistics.median(a for a, _ in pairs) * 1000
    second = statistics.median(b for _, b in pairs) * 1000
    more = statistics.median(a - b for a, b in pairs) * 1000
    print(
        f"envbuild exec {name}: {first:.0f} ms against {second:.0f} ms, "
        f"{more:.0f} ms more (goal: {_GOAL})"
    )


def _make(project: Path) -> None:
    """Lay out a project whose one environment is made, as far as running it can see."""
    for kind in ("envs", "sites"):
        (project / kind).mkdir()
    (project / "envs" / "toy.toml").write_text("")
    (project / "sites" / "local.toml").write_text('summary = "here"\nroot = ".envs"\n')
    root = project / ".envs"
    prefix = root / "toy"
    venv.create(prefix, symlinks=True)
    receipt.write(root / ".envbuild", _receipt(root, prefix))


def _receipt(root: Path, prefix: Path) -> Receipt:
    return Receipt(
        environment="toy",
        site="local",
        root=str(root),
        prefix=str(prefix),
        rehearsal=False,
        lock_sha256="",
        declared_sha256="",
        interpreter=Interpreter(sys.executable, "", "fallback"),
        distributions=(),
        host=receipt.Host("", "", ""),
        audit=receipt.Audit(0, 0, (), (), 0.0),
        checks=receipt.Checks(0, 0, 0.0),
        seconds={},
        tools={},
        created="",
        mode="in place",
        manifest_sha256="",
        written={},
        modes={},
        notes=(),
        look={},
    )


if __name__ == "__main__":
    main(sys.argv[1:])
