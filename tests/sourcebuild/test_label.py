from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from envbuild.artifacts import wheel
from envbuild.errors import StepError
from envbuild.sourcebuild import label
from tests import wheels


@pytest.mark.parametrize(
    ("cuda", "torch", "architectures", "text"),
    [
        ((12, 9), "2.8.0", ["90"], "cu129torch2.8sm90"),
        ((13, 0), "2.14.1", ["90a"], "cu130torch2.14sm90a"),
        ((13, 0), None, ["80", "90"], "cu130sm80.90"),
    ],
)
def test_it_says_what_it_was_built_for(
    cuda: tuple[int, int], torch: str | None, architectures: list[str], text: str
) -> None:
    assert label.label(cuda, torch, architectures) == text


def test_a_wheel_keeps_all_but_its_version(tmp_path: Path) -> None:
    made = wheels.make_wheel(
        tmp_path,
        "toy",
        "1.0.post2",
        files={"toy.so": b"\x7fELF"},
        data={"scripts/toy": "#!python\n"},
        python_tag="cp311",
        abi_tag="cp311",
        platform_tag="linux_x86_64",
    )
    out = tmp_path / "out"
    out.mkdir()
    new = label.relabel(made, "cu130sm90", out)
    assert new.name == "toy-1.0.post2+cu130sm90-cp311-cp311-linux_x86_64.whl"
    contents = wheel.scan(new)
    assert (contents.version, contents.data) == (
        "1.0.post2+cu130sm90",
        "toy-1.0.post2+cu130sm90.data",
    )
    with zipfile.ZipFile(new) as archive:
        assert archive.read("toy.so") == b"\x7fELF"
        said = archive.read(f"{contents.dist_info}/METADATA").decode().splitlines()
    assert "Version: 1.0.post2+cu130sm90" in said
    # the same again, and over a label that is there
    again = label.relabel(new, "cu130sm90", made.parent)
    assert again.read_bytes() == new.read_bytes()


def test_pure_python_is_nothing_compiled(tmp_path: Path) -> None:
    made = wheels.make_wheel(tmp_path, "toy", "1.0")
    with pytest.raises(StepError, match="it compiled nothing"):
        label.relabel(made, "cu130sm90", tmp_path)
