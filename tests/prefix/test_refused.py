"""A new prefix that breaks the rules: it never gets to its place, and is kept to be looked at."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from envbuild.catalog.project import Project
from tests import projects, wheels
from tests.conftest import Envbuild
from tests.servers import SimpleIndex

PACKAGES = f"lib/python{projects.MINOR}/site-packages"
LINKED = 'link-mode = "hardlink"\nuv-cache = "../cache"\n'


@pytest.fixture
def project(index: SimpleIndex, tmp_path: Path, envbuild: Envbuild) -> Project:
    """A project whose site trusts uv's cache, with a prefix that is good."""
    wheels.make_wheel(index.folder, "alpha", "1.0")
    made = projects.project(
        tmp_path / "project",
        {"toy": projects.environment("alpha", extra='[checks]\nimports = ["alpha"]\n')},
        {"local": projects.LOCAL + LINKED},
    )
    assert envbuild("lock", cwd=made.folder).code == 0
    done = envbuild("create", cwd=made.folder)
    assert done.code == 0, done.err
    return made


def poison(project: Project) -> Path:
    """Append a line in uv's cache, which uv installs without a word."""
    (path,) = (project.folder / "cache").rglob("alpha.py")
    path.write_text(path.read_text() + "raise SystemExit('poison was run')\n")
    return path


def refused(project: Project) -> list[Path]:
    return sorted((project.folder / ".envs" / ".envbuild" / "archive").glob("*.refused"))


def test_a_poisoned_cache_is_found_before_its_code_is_run(
    project: Project, envbuild: Envbuild
) -> None:
    prefix = project.folder / ".envs" / "toy"
    before = prefix.stat().st_ino
    poison(project)
    # the prefix that is there shares its files with the cache: make it whole again
    good = (prefix / PACKAGES / "alpha.py").read_text().replace("raise", "# raise")
    (prefix / PACKAGES / "alpha.py").unlink()
    (prefix / PACKAGES / "alpha.py").write_text(good)
    done = envbuild("create", "--rebuild", cwd=project.folder)
    assert done.code == 1
    assert done.out == ""
    assert "poison was run" not in done.err
    (kept,) = refused(project)
    said = done.err[done.err.index("error: ") :]
    lines = said.splitlines()
    assert lines[0] == f"error: {kept}: the new prefix of toy breaks the relocation rules: 1 error"
    assert lines[1] == (
        "  mend: see docs/rules.md, or `envbuild verify --explain CODE`; nothing was replaced"
    )
    assert lines[3] == (
        f"  | {prefix}/{PACKAGES}/alpha.py: error M002: is not as alpha-1.0-py3-none-any.whl has it"
    )
    assert lines[4].startswith("  |   expected: SHA-256 ")
    assert lines[5].startswith("  |   found: SHA-256 ")

    # the old prefix is where it was, and works
    assert prefix.stat().st_ino == before
    assert (prefix / PACKAGES / "alpha.py").read_text() == good
    assert not (project.folder / ".envs" / ".envbuild" / "journal" / "toy.json").exists()

    # the new one is kept with all that was found
    assert (kept / "prefix" / PACKAGES / "alpha.py").read_text().endswith("was run')\n")
    document = json.loads((kept / "findings.json").read_text())
    assert document["schema"] == "envbuild.refused/1"
    assert document["environment"] == "toy"
    assert [one["code"] for one in document["findings"]] == ["I003", "M002"]


def test_only_the_last_one_is_kept_and_none_can_be_restored(
    project: Project, envbuild: Envbuild
) -> None:
    poison(project)
    assert envbuild("create", "--rebuild", cwd=project.folder).code == 1
    (first,) = refused(project)
    assert envbuild("create", "--rebuild", cwd=project.folder).code == 1
    (second,) = refused(project)
    assert first != second
    done = envbuild("archive", "list", "--json", cwd=project.folder)
    (entry,) = json.loads(done.out)["entries"]
    assert (entry["name"], entry["refused"], entry["created"]) == (second.name, 1, None)
    done = envbuild("archive", "list", cwd=project.folder)
    assert "refused: 1 error" in done.out
    done = envbuild("archive", "restore", "toy", second.name, cwd=project.folder)
    assert done.code == 2
    assert "nothing of toy is in the archive" in done.err
    done = envbuild("archive", "prune", "--keep", "0", cwd=project.folder)
    assert done.out.startswith(f"removed {second.name}, ")
    assert refused(project) == []


def test_a_first_prefix_that_is_refused_leaves_nothing_at_its_place(
    project: Project, envbuild: Envbuild
) -> None:
    poison(project)
    done = envbuild("create", "--root", str(project.folder / "new"), cwd=project.folder)
    assert done.code == 1
    assert not (project.folder / "new" / "toy").exists()


def test_a_site_may_pass_over_what_a_rule_finds(project: Project, envbuild: Envbuild) -> None:
    site = project.folder / "sites" / "local.toml"
    plain = site.read_text()
    path = poison(project)
    path.write_text(path.read_text().partition("raise")[0] + "HARMLESS = True\n")
    site.write_text(plain + '[[ignore]]\ncode = "M002"\nreason = "patched here, see the wiki"\n')
    done = envbuild("create", "--rebuild", cwd=project.folder)
    assert done.code == 0, done.err
    receipt = project.folder / ".envs" / ".envbuild" / "receipts" / "toy.json"
    audit = json.loads(receipt.read_text())["predicate"]["audit"]
    assert [one["code"] for one in audit["findings"]] == ["I003"]
    place = project.folder / ".envs" / "toy" / PACKAGES / "alpha.py"
    assert audit["notes"] == [f"{place}: M002 is passed over: patched here, see the wiki"]

    site.write_text(plain + '[[ignore]]\ncode = "M999"\nreason = "a slip of the finger"\n')
    done = envbuild("create", "--rebuild", cwd=project.folder)
    assert done.code == 2
    assert "site local: ignore[0].code: no such rule" in done.err


def test_a_check_that_writes_into_the_prefix_is_audited_too(
    project: Project, envbuild: Envbuild
) -> None:
    code = (
        "import pathlib, sys; "
        "pathlib.Path(sys.prefix, 'lib', 'python' + sys.version[:4], 'site-packages', 'left.py')"
        ".write_text('')"
    )
    project.environment_file("toy").write_text(
        projects.environment("alpha", extra=f'[checks]\ncommands = [["python", "-c", "{code}"]]\n')
    )
    assert sys.version[:4] == projects.MINOR
    done = envbuild("create", cwd=project.folder)
    assert done.code == 1
    assert f"{PACKAGES}/left.py: error M002: belongs to no installed package" in done.err
