"""Where a prefix stands: paths and links to it, owners and modes, what lies beside it."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envbuild.findings import Finding
from envbuild.relocation import place
from tests.relocation.corpus import subject


def test_the_registered_path_and_other_names_for_it(tmp_path: Path) -> None:
    prefix = tmp_path / "prefix"
    prefix.mkdir()
    assert list(place.standing(subject(prefix, registered=str(prefix)))) == []
    assert list(place.standing(subject(prefix))) == []
    (tmp_path / "link").symlink_to("prefix")
    (one,) = place.standing(subject(tmp_path / "link", registered=str(prefix)))
    assert one == Finding(
        "P001",
        "error",
        str(tmp_path / "link"),
        "is another name for the registered prefix",
        expected=str(prefix),
        found=f"{tmp_path}/link, the same folder",
        mend="call it by that path: its scripts and byte code name it",
    )
    # a site whose own path leads through a link
    (one,) = place.standing(subject(tmp_path / "link", registered=str(tmp_path / "link")))
    assert one == Finding(
        "P001",
        "error",
        str(tmp_path / "link"),
        "is reached through a link",
        expected=str(prefix),
        found=f"{tmp_path}/link is a link",
        mend="use the path without links, in the site's file too",
    )
    (tmp_path / "other").mkdir()
    (one,) = place.standing(subject(tmp_path / "other", registered=str(prefix)))
    assert one == Finding(
        "P001",
        "error",
        str(tmp_path / "other"),
        "is not where the site registers this prefix",
        expected=str(prefix),
        found=str(tmp_path / "other"),
        mend="make it anew at this path: an environment cannot be moved or copied",
    )
    # a registered path that is not there at all
    (one,) = place.standing(subject(prefix, registered=str(tmp_path / "gone")))
    assert one.message == "is not where the site registers this prefix"


def test_which_part_of_a_path_is_the_link(tmp_path: Path) -> None:
    (tmp_path / "real/deep/prefix").mkdir(parents=True)
    (tmp_path / "link").symlink_to("real")
    (one,) = place.standing(subject(tmp_path / "link/deep/prefix"))
    assert (one.expected, one.found) == (
        f"{tmp_path}/real/deep/prefix",
        f"{tmp_path}/link is a link",
    )


def test_what_a_prefix_says_of_itself(tmp_path: Path) -> None:
    prefix = tmp_path / "prefix"
    prefix.mkdir()
    (tmp_path / "link").symlink_to("prefix")
    (one,) = place.another_name(subject(tmp_path / "link"), str(prefix))
    assert (one.code, one.message, one.expected) == (
        "P001",
        "is another name for the prefix",
        str(prefix),
    )
    for said in (str(tmp_path / "link"), str(tmp_path), str(tmp_path / "gone")):
        assert list(place.another_name(subject(tmp_path / "link"), said)) == []


def test_owners_of_a_prefix_and_of_folders_above(tmp_path: Path) -> None:
    prefix = tmp_path / "above" / "prefix"
    prefix.mkdir(parents=True)
    assert list(place.ownership(subject(prefix))) == []
    (one,) = place.ownership(subject(prefix, owner=os.geteuid() + 1))
    assert one == Finding(
        "P002",
        "error",
        str(prefix),
        "belongs to another user",
        expected=f"uid {os.geteuid() + 1}",
        found=f"uid {os.geteuid()}",
        mend="verify it as the user who created it, or create one of your own",
    )
    (tmp_path / "above").chmod(0o777)
    (one,) = place.ownership(subject(prefix))
    assert one == Finding(
        "P002",
        "warning",
        str(tmp_path / "above"),
        "everyone can replace what is in a folder above the prefix",
        expected="a folder that others cannot write to, or a sticky one",
        found="mode 0777",
        mend=f"chmod o-w {tmp_path}/above",
    )
    (tmp_path / "above").chmod(0o1777)
    assert list(place.ownership(subject(prefix))) == []


def modes(
    path: Path, mode: int, *, needed: int = 0o644, program: bool = False
) -> list[tuple[str, str | None, str | None, str | None]]:
    path.chmod(mode)
    held = subject("/p", file_mode=needed)
    found = place.mode("/p/x", path.lstat(), held, owner=os.geteuid(), program=program)
    return [(one.message, one.expected, one.found, one.mend) for one in found]


@pytest.mark.parametrize(
    ("mode", "needed", "program", "said"),
    [
        (0o644, 0o644, False, None),
        (0o755, 0o644, False, None),
        (0o755, 0o644, True, None),
        (0o664, 0o644, False, None),
        (0o600, 0o600, False, None),
        (0o700, 0o600, True, None),
        (0o600, 0o644, False, ("others", "0644", "g+r,o+r")),
        (0o640, 0o644, False, ("others", "0644", "o+r")),
        (0o644, 0o664, False, ("others", "0664", "g+w")),
        (0o444, 0o644, False, ("its owner", "0644", "u+w")),
        (0o044, 0o644, False, ("its owner", "0644", "u+rw")),
        (0o744, 0o644, True, ("others", "0755", "g+x,o+x")),
        (0o644, 0o644, True, ("its owner", "0755", "u+x,g+x,o+x")),
        (0o640, 0o640, True, ("its owner", "0750", "u+x,g+x")),
    ],
)
def test_modes_of_files(
    tmp_path: Path, mode: int, needed: int, program: bool, said: tuple[str, str, str] | None
) -> None:
    path = tmp_path / "file"
    path.write_text("x")
    found = modes(path, mode, needed=needed, program=program)
    if said is None:
        assert found == []
        return
    who, expected, missing = said
    assert found == [
        (
            f"its mode keeps {who} out",
            f"at least {expected}",
            f"{mode:04o}",
            f"chmod {missing} /p/x; a umask of 022 makes them so",
        )
    ]


def test_files_and_folders_that_everyone_can_write_to(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "empty").write_text("")
    (tmp_path / "folder").mkdir()
    wrong = "everyone can write to it"
    mend = "chmod go-w /p/x, and see that it is as it was"
    assert modes(tmp_path / "file", 0o666) == [(wrong, "0644", "0666", mend)]
    assert modes(tmp_path / "folder", 0o777) == [(wrong, "0755", "0777", mend)]
    assert modes(tmp_path / "folder", 0o1777) == [(wrong, "1755", "1777", mend)]
    assert modes(tmp_path / "empty", 0o666) == [(wrong, "0644", "0666", mend)]
    # uv's lock, which it makes so
    status = (tmp_path / "empty").stat()
    found = place.mode("/p/.lock", status, subject("/p"), owner=os.geteuid(), program=False)
    assert list(found) == []


@given(st.integers(0, 0o7777), st.integers(0, 0o777), st.booleans(), st.booleans())
def test_what_chmod_is_told_mends_it(mode: int, needed: int, program: bool, folder: bool) -> None:
    kind = stat.S_IFDIR if folder else stat.S_IFREG
    status = os.stat_result((kind | mode, 0, 0, 1, os.geteuid(), 0, 1, 0, 0, 0))
    held = subject("/p", file_mode=needed)
    found = list(place.mode("/p/x", status, held, owner=os.geteuid(), program=program))
    if not found or not (found[0].mend or "").endswith("makes them so"):
        return
    for change in (found[0].mend or "").split()[1].rstrip(";").split(","):
        who, letters = change.split("+")
        shift = {"u": 6, "g": 3, "o": 0}[who]
        assert all(not mode >> shift & {"r": 4, "w": 2, "x": 1}[x] for x in letters)
        mode |= sum({"r": 4, "w": 2, "x": 1}[x] << shift for x in letters)
    status = os.stat_result((kind | mode, 0, 0, 1, os.geteuid(), 0, 1, 0, 0, 0))
    again = place.mode("/p/x", status, held, owner=os.geteuid(), program=program)
    assert [one.message for one in again if "keeps" in one.message] == []


def test_a_file_of_another_owner(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("x")
    path.chmod(0o644)
    me = os.geteuid()
    (one,) = place.mode("/p/x", path.stat(), subject("/p"), owner=me + 1, program=False)
    assert (one.code, one.message) == ("P002", "belongs to another user than the prefix")
    assert (one.expected, one.found) == (f"uid {me + 1}", f"uid {me}")
    assert one.mend == "make it anew at this path: an environment cannot be moved or copied"


def test_what_a_run_left() -> None:
    assert list(place.unfinished(subject("/p"))) == []
    assert list(place.unfinished(subject("/p", unfinished=("/r/j.json",)))) == [
        Finding(
            "P004",
            "error",
            "/r/j.json",
            "was left by a run that did not end",
            expected="nothing unfinished of /p",
            found="/r/j.json",
            mend="run `envbuild recover`",
        )
    ]
