from __future__ import annotations

from pathlib import Path

import pytest

from envbuild.catalog import facts
from envbuild.catalog.project import Project, find
from envbuild.errors import InputError
from tests import projects

HERE = Path(__file__).parents[2]


def test_found_from_below(tmp_path: Path) -> None:
    projects.project(tmp_path, {}, {})
    below = tmp_path / "envs" / "a" / "b"
    below.mkdir(parents=True)
    assert find(below).folder == tmp_path


def test_not_found(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        find(tmp_path)
    assert str(caught.value) == (
        f"{tmp_path}: no envbuild project here\n"
        "  expected: a folder, this or one above it, that holds envs/ and sites/\n"
        "  mend: change to the project's folder, or name it with --project or ENVBUILD_PROJECT"
    )


def test_an_unknown_environment_names_the_nearest(tmp_path: Path) -> None:
    toy = projects.environment("six")
    project = projects.project(tmp_path, {"nemo-gym": toy, "core": toy}, {})
    with pytest.raises(InputError) as caught:
        project.select(["nemogym"])
    assert str(caught.value) == (
        "no environment named nemogym\n  expected: did you mean nemo-gym?\n"
        f"  mend: environments are the files of {tmp_path}/envs"
    )


def test_none_given_means_all_and_none_twice(tmp_path: Path) -> None:
    toy = projects.environment("six")
    project = projects.project(tmp_path, {"b": toy, "a": toy}, {})
    assert project.select([]) == ["a", "b"]
    assert project.select(["b", "b"]) == ["b"]


def test_a_name_must_be_one_that_a_lock_can_have(tmp_path: Path) -> None:
    project = projects.project(tmp_path, {"v1.2": projects.environment("six")}, {})
    with pytest.raises(InputError, match=r"file name: not a name that a lock can have"):
        project.environment("v1.2")


def test_files_of_editors_and_systems_are_no_environments(tmp_path: Path) -> None:
    toy = projects.environment("six")
    project = projects.project(tmp_path, {"toy": toy}, {"local": projects.LOCAL})
    for name in (".#toy.toml", "._toy.toml"):
        for folder in ("envs", "sites"):
            (tmp_path / folder / name).write_bytes(b"\xff\0")
    (tmp_path / "envs" / ".#link.toml").symlink_to("gone")
    assert project.environment_names == ["toy"]
    assert list(project.site_files) == ["local"]


def test_bases_of_what_can_be_read(tmp_path: Path) -> None:
    derived = 'summary = "more"\nbase = "toy"\nrequirements = ["six"]\n'
    toy = projects.environment("six")
    project = projects.project(tmp_path, {"toy": toy, "more": derived, "toy.bak": "x"}, {})
    assert project.bases == {"more": "toy"}


def test_what_this_project_declares_can_be_read() -> None:
    project = Project(HERE)
    for name in project.environment_names:
        assert project.environment(name).summary
    assert set(project.site_files) == {"berzelius", "jaif", "local"}


@pytest.mark.parametrize("name", ["berzelius", "jaif"])
def test_every_setting_of_a_cluster_has_a_source(name: str) -> None:
    layout = Project(HERE).layout(name, user="ada")
    unsourced = [s.key for s in facts.settings(layout) if s.source == "no source given"]
    assert unsourced == []
