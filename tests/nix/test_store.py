from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envbuild.digest import sha256_bytes, sha256_file
from envbuild.errors import PreflightError, StepError
from envbuild.nix import store
from envbuild.nix.store import File, Store
from tests.nix.nixtool import Nix, nix

ROOT = Path(__file__).parents[2]
# what file names of artifacts are made of, and what stores have no place for
NAMES = st.text("abcXYZ019._+-~!%: ", min_size=1, max_size=30).map(lambda text: f"a{text}z")


def made(path: Path, content: bytes) -> File:
    """Write a file, and return it as the store will know it."""
    path.write_bytes(content)
    return File(path, sha256_file(path), len(content))


@pytest.fixture
def tool(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Nix]:
    """Real Nix with a store of its own, which `Store` finds by its variables."""
    with nix(tmp_path_factory.mktemp("nix")) as found:
        for name, text in found.env.items():
            monkeypatch.setenv(name, text)
        yield found


def test_files_are_put_where_their_hashes_say(tool: Nix, tmp_path: Path) -> None:
    files = [
        made(tmp_path / name, name.encode() * 100)
        for name in (
            "alpha-1.0-py3-none-any.whl",
            "ca-certificates_20250419~deb12u2_all.deb",
            "thing-1!2.0-py3-none-any.whl",
            "cpython-3.11.17+20261021-x86_64.tar.gz",
        )
    ]
    there = Store()
    assert there.missing(files) == files
    done: list[int] = []
    there.add(files[:3], advance=done.append)
    assert done == [file.size for file in files[:3]]
    assert there.missing(files) == files[3:]
    there.add(files)
    assert there.missing(files) == []
    for file in files:
        assert tool.real(file.store_path).read_bytes() == file.path.read_bytes()
    assert [file.name for file in files[1:3]] == [
        "ca-certificates_20250419-deb12u2_all.deb",
        "thing-1-2.0-py3-none-any.whl",
    ]


def test_many_files_go_in_batches(tool: Nix, tmp_path: Path) -> None:
    files = [made(tmp_path / f"file-{number}", b"%d" % number) for number in range(120)]
    there = Store()
    there.add(files)
    assert there.missing(files) == []


def test_a_store_can_be_named(tool: Nix, tmp_path: Path) -> None:
    file = made(tmp_path / "file", b"content")
    other = tmp_path / "other"
    Store(str(other)).add([file])
    assert (other / file.store_path.lstrip("/")).read_bytes() == b"content"
    assert Store().missing([file]) == [file]


def test_a_file_that_changed_meanwhile_is_noticed(tool: Nix, tmp_path: Path) -> None:
    file = made(tmp_path / "file", b"content")
    file.path.write_bytes(b"changed")
    found = store.store_path("file", sha256_bytes(b"changed"))
    with pytest.raises(StepError) as caught:
        Store().add([file])
    assert str(caught.value) == (
        f"{file.path}: the file that went into the store is not the one that is locked\n"
        f"  expected: {file.store_path}\n"
        f"  found: {found}\n"
        "  mend: see who writes to the wheelhouse, and run it again"
    )


def test_what_nix_says_is_shown(tool: Nix, tmp_path: Path) -> None:
    (tmp_path / "store").write_text("no folder")
    with pytest.raises(StepError) as caught:
        Store(str(tmp_path / "store")).add([made(tmp_path / "file", b"content")])
    assert str(caught.value).startswith("filling the store failed with exit code 1\n  mend: see ")
    assert "error: " in str(caught.value)


def test_nix_is_not_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(PreflightError) as caught:
        Store()
    assert str(caught.value) == (
        "nix-store is not on PATH\n  mend: install Nix (Debian: apt-get install nix-bin)"
    )


def test_names_are_formed_as_the_flake_forms_them(tool: Nix, tmp_path: Path) -> None:
    found: set[str] = set()

    @given(st.lists(NAMES, max_size=50))
    def collect(names: list[str]) -> None:
        found.update(names)

    collect()
    names = sorted(found)
    file = ROOT / "nix" / "store-name.nix"
    (tmp_path / "names.json").write_text(json.dumps(names))
    listed = f"builtins.fromJSON (builtins.readFile {tmp_path}/names.json)"
    told = tool.run(
        *("nix-instantiate", "--eval", "--strict", "--json", "--expr"),
        f"map (import {file}) ({listed})",
    )
    assert json.loads(told.stdout) == [store.store_name(name) for name in names]
    assert all(re.fullmatch("[a-zA-Z0-9+._?=-]+", store.store_name(name)) for name in names)


def test_only_a_digest_has_a_path() -> None:
    with pytest.raises(ValueError, match="abc"):
        store.store_path("file", "abc")


def test_envbuilds_own_wheels_are_those_that_its_requirements_pin() -> None:
    pinned = (ROOT / "requirements" / "run.txt").read_text()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    own = store.own_wheels()
    assert [artifact.project for artifact in own] == ["uv", "pbs-installer"]
    for artifact in own:
        version = artifact.file.split("-")[1]
        start = pinned.index(f"{artifact.project}=={version} ")
        # among the hashes of that version, which end where the next requirement begins
        assert f"sha256:{artifact.sha256}" in re.split(r"\n(?=\S)", pinned[start:])[0]
    assert f"uv=={own[0].file.split('-')[1]}" in project["dependencies"]
