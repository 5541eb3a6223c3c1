from __future__ import annotations

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.tags import Tag
from packaging.utils import parse_wheel_filename

from envbuild.lock import wheels

RANKS = wheels.ranks((3, 11), 28)


@pytest.mark.parametrize(
    ("files", "chosen"),
    [
        (["a-1-py3-none-any.whl"], "a-1-py3-none-any.whl"),
        (["a-1-py3-none-any.whl", "a-1-cp311-cp311-manylinux_2_28_x86_64.whl"], 1),
        (["a-1-cp311-abi3-linux_x86_64.whl", "a-1-cp311-cp311-linux_x86_64.whl"], 1),
        (["a-1-cp39-abi3-manylinux2014_x86_64.whl", "a-1-py3-none-any.whl"], 0),
        (
            [
                "a-1-cp311-cp311-manylinux_2_17_x86_64.manylinux2014_x86_64.whl",
                "a-1-cp311-cp311-manylinux_2_27_x86_64.whl",
            ],
            1,
        ),
        (["a-1-1-py3-none-any.whl", "a-1-10-py3-none-any.whl", "a-1-9-py3-none-any.whl"], 1),
        (["a-1-py3-none-any.whl", "a-1-1-py3-none-any.whl"], 1),
        (["a-1-py2.py3-none-any.whl", "a-1-py2-none-any.whl"], 0),
        # what does not fit: a newer glibc, another machine, another Python, another ABI
        (["a-1-cp311-cp311-manylinux_2_34_x86_64.whl"], None),
        (["a-1-cp311-cp311-manylinux_2_28_aarch64.whl"], None),
        (["a-1-cp312-cp312-manylinux_2_28_x86_64.whl"], None),
        (["a-1-cp311-cp311t-manylinux_2_28_x86_64.whl"], None),
        (["a-1-cp312-abi3-manylinux_2_28_x86_64.whl"], None),
        (["a-1-cp311-cp311-musllinux_1_2_x86_64.whl"], None),
        (["a-1-pp311-pypy311_pp73-manylinux_2_28_x86_64.whl"], None),
        (["a-1-py3-none-win_amd64.whl", "not-a-wheel.whl"], None),
        ([], None),
    ],
)
def test_chooses_what_an_installer_would(files: list[str], chosen: str | int | None) -> None:
    expected = files[chosen] if isinstance(chosen, int) else chosen
    assert wheels.choose(files, RANKS) == expected
    assert wheels.choose(reversed(files), RANKS) == expected


def test_platforms_name_the_legacy_tags_beside_their_versions() -> None:
    names = list(wheels.platforms(17))
    assert names[:3] == ["manylinux_2_17_x86_64", "manylinux2014_x86_64", "manylinux_2_16_x86_64"]
    assert names[-3:] == ["manylinux_2_5_x86_64", "manylinux1_x86_64", "linux_x86_64"]


_part = st.sampled_from(["cp311", "cp310", "cp312", "py3", "py2", "py311", "pp311"])
_abi = st.sampled_from(["cp311", "abi3", "none", "cp312"])
_platform = st.sampled_from(
    ["any", "linux_x86_64", "manylinux_2_28_x86_64", "manylinux_2_35_x86_64", "win_amd64"]
)
_build = st.one_of(st.just(""), st.integers(0, 20).map(lambda n: f"-{n}"))


@given(st.lists(st.tuples(_build, _part, _abi, _platform), max_size=8))
def test_the_choice_is_the_best_and_does_not_depend_on_order(
    parts: list[tuple[str, str, str, str]],
) -> None:
    files = [f"a-1{b}-{p}-{a}-{o}.whl" for b, p, a, o in parts]
    chosen = wheels.choose(files, RANKS)
    assert chosen == wheels.choose(sorted(files), RANKS)

    def rank(file: str) -> int | None:
        tags: frozenset[Tag] = parse_wheel_filename(file)[3]
        return min((RANKS[tag] for tag in tags if tag in RANKS), default=None)

    fitting = [found for file in files if (found := rank(file)) is not None]
    assert (chosen is None) == (not fitting)
    if chosen is not None:
        assert rank(chosen) == min(fitting)


@given(st.text(string.printable, max_size=30))
def test_any_name_is_passed_over_or_chosen(name: str) -> None:
    assert wheels.choose([name], RANKS) in (None, name)
