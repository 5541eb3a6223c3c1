from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest

from envbuild.catalog.environment import Edit
from envbuild.errors import InputError, StepError
from envbuild.sourcebuild import source
from tests import wheels

WHERE = "envs/toy.toml: build.toy"


def test_edits_replace_what_is_there_as_often_as_they_say(tmp_path: Path) -> None:
    files = {"setup.cfg": "-std=c++17 -std=c++17 /std:c++17\n", "src/a.c": "int a;\n"}
    sdist = wheels.make_sdist(tmp_path, "toy", "1.0", files=files)
    edit = Edit(file="setup.cfg", replace="-std=c++17", by="-std=c++20", times=2)
    source.unpack(sdist, tmp_path / "src", [edit], where=WHERE)
    assert (tmp_path / "src" / "setup.cfg").read_text() == "-std=c++20 -std=c++20 /std:c++17\n"
    assert (tmp_path / "src" / "src" / "a.c").read_text() == "int a;\n"


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (
            Edit(file="setup.cfg", replace="c++17", by="c++20", times=2),
            f"{WHERE}.edits[0]: the edit does not fit setup.cfg of toy-1.0.tar.gz\n"
            "  expected: 'c++17' 2 times\n"
            "  found: once\n"
            "  mend: look what the file says now, and correct the edit",
        ),
        (
            Edit(file="other.cfg", replace="a", by="b"),
            f"{WHERE}.edits[0]: the source has no file other.cfg\n"
            "  expected: a file of toy-1.0.tar.gz\n"
            "  mend: correct the edit's `file`",
        ),
    ],
)
def test_an_edit_that_does_not_fit_leaves_no_source(
    tmp_path: Path, edit: Edit, message: str
) -> None:
    sdist = wheels.make_sdist(tmp_path, "toy", "1.0", files={"setup.cfg": "c++17\n"})
    with pytest.raises(InputError) as caught:
        source.unpack(sdist, tmp_path / "src", [edit], where=WHERE)
    assert str(caught.value) == message
    assert not (tmp_path / "src").exists()


@pytest.mark.parametrize(
    ("name", "kind", "message"),
    [
        ("toy-1.0/link", tarfile.SYMTYPE, "holds what is neither a file nor a folder"),
        ("toy-1.0/../up", tarfile.REGTYPE, "holds a file beside its top folder"),
        ("/etc/toy", tarfile.REGTYPE, "holds a file beside its top folder"),
    ],
)
def test_what_leaves_its_folder_is_refused(
    tmp_path: Path, name: str, kind: bytes, message: str
) -> None:
    sdist = tmp_path / "toy-1.0.tar.gz"
    with tarfile.open(sdist, "w:gz") as archive:
        member = tarfile.TarInfo(name)
        member.type, member.linkname = kind, "/etc/passwd"
        archive.addfile(member, io.BytesIO())
    with pytest.raises(StepError, match=message):
        source.unpack(sdist, tmp_path / "src", [], where=WHERE)
    assert not (tmp_path / "src").exists()
