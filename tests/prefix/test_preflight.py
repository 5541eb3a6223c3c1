from __future__ import annotations

import os
import re
from pathlib import Path

import msgspec
import pytest

from envbuild.catalog.site import Layout
from envbuild.errors import PreflightError
from envbuild.prefix import preflight
from tests import projects

SITE = """\
summary = "a cluster"
root = "{root}"
temporary = ["{root}/caches", "/scratch/{{user}}"]
"""


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    root = tmp_path / "root"
    root.mkdir()
    toy = projects.environment("six")
    made = projects.project(tmp_path / "p", {"toy": toy}, {"far": SITE.format(root=root)})
    return made.layout("far", user="ada")


def refusal(function: object, *arguments: object, **named: object) -> str:
    assert callable(function)
    with pytest.raises(PreflightError) as caught:
        function(*arguments, **named)
    assert caught.value.exit_code == 3
    return str(caught.value)


def test_a_site_as_it_should_be(layout: Layout) -> None:
    assert preflight.check_site(layout) == []
    preflight.check_root(layout, layout.prefix("toy"))
    preflight.check_space(layout.root, size=1, files=1, environment="toy")
    preflight.check_glibc(layout, 17, "toy")


@pytest.mark.parametrize("folder", ["caches", "caches/mine"])
def test_tmpdir_where_the_site_allows_it(
    layout: Layout, monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    monkeypatch.setenv("TMPDIR", str(layout.root / folder))
    assert preflight.check_site(layout) == []
    assert preflight.temporary(layout) is None


def test_tmpdir_elsewhere(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", "/tmp")
    assert refusal(preflight.check_site, layout) == (
        "site far: TMPDIR lies where the site does not allow it\n"
        f"  expected: a folder in {layout.root}/caches or /scratch/ada\n"
        "  found: /tmp\n"
        f"  mend: export TMPDIR={layout.root}/caches, or unset it"
    )
    monkeypatch.delenv("TMPDIR")
    assert preflight.temporary(layout) == layout.root / "caches"


def test_the_root_must_not_be_another_name(layout: Layout, tmp_path: Path) -> None:
    (tmp_path / "alias").symlink_to(layout.root)
    other = msgspec.structs.replace(layout, root=tmp_path / "alias")
    assert refusal(preflight.check_site, other) == (
        f"{tmp_path}/alias: the root is reached by another name than its own\n"
        f"  expected: {layout.root}\n  found: {tmp_path}/alias\n"
        f"  mend: use {layout.root} itself: a prefix works at one path alone"
    )


def test_the_root_must_not_lie_below_an_alias(layout: Layout, tmp_path: Path) -> None:
    site = msgspec.structs.replace(layout.site, aliases=(str(tmp_path),))
    assert refusal(preflight.check_site, msgspec.structs.replace(layout, site=site)) == (
        f"{layout.root}: the root lies below a name that the site must not use\n"
        f"  expected: {layout.root}\n  found: {tmp_path}"
    )


def test_a_prefix_that_is_a_link(layout: Layout) -> None:
    layout.prefix("toy").symlink_to("elsewhere")
    assert refusal(preflight.check_root, layout, layout.prefix("toy")) == (
        f"{layout.prefix('toy')}: a symbolic link stands where a folder must be\n"
        "  found: a link to elsewhere\n"
        "  mend: remove the link: a prefix works at one path alone"
    )


def test_a_folder_that_cannot_be_written(layout: Layout) -> None:
    # a file where a folder must be stops root as well
    layout.bookkeeping.write_text("")
    assert refusal(preflight.check_root, layout, layout.prefix("toy")) == (
        f"{layout.bookkeeping}: cannot write: File exists\n"
        "  expected: a folder that you may write\n"
        "  mend: check the folder's owner and mount, or rehearse elsewhere with --root DIR"
    )


def test_too_little_space_and_too_few_inodes(layout: Layout) -> None:
    status = os.statvfs(layout.root)
    told = refusal(preflight.check_space, layout.root, size=10**18, files=1, environment="toy")
    assert told.startswith(
        f"{layout.root}: too little space for toy\n  expected: 1000000000000.0 MB"
    )
    assert re.search(r"\n  found: [0-9]+\.[0-9] MB free\n  mend: free some space", told)
    if status.f_files:
        told = refusal(preflight.check_space, layout.root, size=1, files=10**15, environment="toy")
        assert told.startswith(
            f"{layout.root}: too few inodes for toy\n  expected: 1000000000000000 free\n  found: "
        )


def test_an_older_c_library(layout: Layout) -> None:
    assert refusal(preflight.check_glibc, layout, 99, "toy") == (
        "site far: the wheels of toy need a newer C library than this system has\n"
        f"  expected: glibc 2.99 or newer\n  found: glibc {preflight.glibc()}\n"
        "  mend: lower `platform` in the environment's file and lock it again"
    )
