from __future__ import annotations

import socket
import sys
from pathlib import Path

import pytest

from envbuild.errors import StepError
from envbuild.sourcebuild import sandbox
from envbuild.sourcebuild.sandbox import HERE, Place

PROBE = """\
import os, socket
print(os.getcwd(), os.getpid(), sorted(os.environ))
try:
    socket.create_connection(("127.0.0.1", PORT), timeout=5)
except OSError as error:
    print(error.strerror)
"""


def place(tmp_path: Path, *, why: str | None = None) -> Place:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_text("bound\n")
    made = Place(str(tmp_path / "build"), {"bound": str(outside)}, why)
    made.lay_out()
    return made


def test_there_are_namespaces_here() -> None:
    assert sandbox.refused() is None


def test_a_build_has_one_path_and_no_network(tmp_path: Path) -> None:
    output = tmp_path / "output"
    with socket.create_server(("127.0.0.1", 0)) as server:
        code = PROBE.replace("PORT", str(server.getsockname()[1]))
        sandbox.run(
            place(tmp_path),
            [sys.executable, "-c", code],
            doing="probing",
            variables={"ONLY": "this"},
            cwd=HERE,
            output=output,
        )
    where, refused = output.read_text().splitlines()
    # Python itself sets LC_CTYPE where there is no locale (PEP 538)
    assert where == f"{HERE} 1 ['LC_CTYPE', 'ONLY']"
    assert refused in ("Network is unreachable", "Connection refused")


@pytest.mark.parametrize("why", [None, "namespaces are not to be had"])
def test_what_is_bound_stands_in_the_folder(tmp_path: Path, why: str | None) -> None:
    made = place(tmp_path, why=why)
    assert made.here == (HERE if why is None else str(tmp_path / "build"))
    output = tmp_path / "output"
    sandbox.run(
        made,
        ["/bin/sh", "-c", "cat bound/file; echo new > made"],
        doing="probing",
        variables={},
        cwd=made.here,
        output=output,
    )
    assert output.read_text() == "bound\n"
    assert (tmp_path / "build" / "made").read_text() == "new\n"
    assert not Path(HERE).exists()


def test_a_failure_is_told_and_its_words_are_in_the_file(tmp_path: Path) -> None:
    output = tmp_path / "output"
    with pytest.raises(StepError, match="probing failed with exit code 7"):
        sandbox.run(
            place(tmp_path),
            ["/bin/sh", "-c", "echo so; exit 7"],
            doing="probing",
            variables={},
            cwd=HERE,
            output=output,
        )
    assert output.read_text() == "so\n"


def test_namespaces_may_come_and_go(tmp_path: Path) -> None:
    made = place(tmp_path)
    for why in ("none", "none", None, None, "none"):
        Place(made.folder, made.binds, why).lay_out()
    assert (tmp_path / "build" / "bound" / "file").read_text() == "bound\n"
