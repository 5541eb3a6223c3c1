from __future__ import annotations

from random import Random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from envbuild.artifacts import Artifact
from envbuild.errors import InputError
from envbuild.image import plan
from envbuild.image.plan import Archive, Debs, Own, Wheels
from envbuild.image.tar import Item
from envbuild.image.wheels import Planned, Target
from envbuild.lock.debian import Package
from envbuild.lock.interpreters import Pin

TARGET = Target("/opt/envs/toy", "3.11")
MB = 1 << 20
# base, interpreter and four parts of packages at most, and the environment's own
OTHERS = 10


def wheel(name: str, size: int, sha256: str = "0") -> Planned:
    return Planned(Artifact(f"{name}-1.0-py3-none-any.whl", size, sha256 * 64, name))


def package(name: str, size: int = 1) -> Package:
    return Package(name, "1", f"{name}_1_all.deb", f"pool/{name}", size, "0" * 64)


def contents(layers: list[Wheels]) -> set[tuple[Planned, ...]]:
    return {layer.wheels for layer in layers}


sizes = st.one_of(st.integers(1, 8 * MB), st.integers(1, 3 * 10**9), st.just(4 * MB))
wheels = st.lists(sizes, max_size=400).map(
    lambda listed: [wheel(f"package-{number}", size) for number, size in enumerate(listed)]
)


@given(wheels, st.integers(0, 88))
def test_at_most_a_hundred_layers_each_wheel_once_the_largest_alone(
    some: list[Planned], taken: int
) -> None:
    layers = plan.deal(some, TARGET, taken=taken)
    assert len(layers) + OTHERS + taken <= plan.MOST_LAYERS
    dealt = [one for layer in layers for one in layer.wheels]
    assert sorted(dealt, key=lambda one: one.artifact) == sorted(some, key=lambda one: one.artifact)
    assert all(layer.wheels and layer.target == TARGET for layer in layers)
    alone = {layer.wheels[0] for layer in layers if len(layer.wheels) == 1}
    largest = max(some, key=lambda one: one.artifact.size, default=None)
    if largest is not None and largest.artifact.size >= 4 * MB:
        assert any(one.artifact.size == largest.artifact.size for one in alone)


@given(wheels, st.randoms(use_true_random=False), st.integers(0, 88))
def test_the_order_of_the_wheels_does_not_matter(
    some: list[Planned], random: Random, taken: int
) -> None:
    shuffled = list(some)
    random.shuffle(shuffled)
    assert plan.deal(shuffled, TARGET, taken=taken) == plan.deal(some, TARGET, taken=taken)


@given(wheels, st.integers(1, 4 * MB - 1), st.integers(1, 4 * MB - 1))
def test_a_small_wheel_more_less_or_changed_is_one_layer(
    some: list[Planned], size: int, other: int
) -> None:
    without = contents(plan.deal(some, TARGET))
    first = contents(plan.deal([*some, wheel("six", size)], TARGET))
    second = contents(plan.deal([*some, wheel("six", other, "1")], TARGET))
    assert len(first - without) == 1
    assert len(without - first) <= 1
    assert len(first - second) == len(second - first) == 1


@given(st.lists(st.integers(4 * MB, 10**9), min_size=1, max_size=58))
def test_a_big_wheel_that_changes_is_one_layer(some: list[int]) -> None:
    before = [wheel(f"package-{number}", size) for number, size in enumerate(some)]
    after = [wheel("package-0", some[0] + 1, "1"), *before[1:]]
    assert contents(plan.deal(before, TARGET)) - contents(plan.deal(after, TARGET)) == {
        (before[0],)
    }


def test_three_hundred_packages_the_largest_alone() -> None:
    some = [wheel(f"package-{number}", number * MB) for number in range(1, 301)]
    layers = plan.deal(some, TARGET)
    assert len(layers) == plan.MOST_LAYERS - OTHERS
    alone = sorted(layer.wheels[0].artifact.size for layer in layers[32:])
    assert alone == [number * MB for number in range(243, 301)]


def test_a_base_image_takes_from_the_budget() -> None:
    some = [wheel(f"package-{number}", 9 * MB) for number in range(200)]
    assert len(plan.deal(some, TARGET, taken=60)) == 30
    assert len(plan.deal(some, TARGET, taken=88)) == 2
    with pytest.raises(InputError) as caught:
        plan.deal(some, TARGET, taken=89)
    assert str(caught.value) == (
        "the base image has too many layers\n"
        "  expected: at most 88, so that 100 are enough\n  found: 89\n"
        "  mend: squash the base image"
    )


def test_what_is_in_a_layer_for_people() -> None:
    some = tuple(wheel(name, 1) for name in ("alpha", "beta", "gamma"))
    assert Wheels(some[:1], TARGET).what == "alpha-1.0"
    assert Wheels(some, TARGET).what == "alpha-1.0, beta-1.0 and 1 more"
    assert Wheels(some, TARGET).weight == 3
    pin = Pin("3.11.17", "20260101", "file", "0" * 64)
    assert Archive(pin, 7).what == "Python 3.11.17, the pinned archive"
    assert Archive(pin, 7).weight == 7
    assert Debs("x", (package("a", 3),)).weight == 24
    assert Own((Item("a", content=b"12"),)).weight == 2


def test_debian_packages_are_dealt_once_and_evenly() -> None:
    base = [package("a"), package("b")]
    python = [package("b"), *(package(f"p{number}", 10 - number) for number in range(9))]
    more = [package("a"), package("p1"), package("z")]
    layers = plan.debs(base, python, more)
    assert [layer.what for layer in layers] == [
        "Debian base (2 packages)",
        *(f"Debian's Python, part {n} of 4 ({c} packages)" for n, c in enumerate((3, 2, 2, 2), 1)),
        "Debian packages, part 1 of 1 (1 packages)",
    ]
    assert [layer.lowest for layer in layers] == [True, *[False] * 5]
    dealt = [one.name for layer in layers for one in layer.packages]
    assert sorted(dealt) == sorted({one.name for one in (*base, *python, *more)})
    assert all(list(layer.packages) == sorted(layer.packages, key=_name) for layer in layers)
    assert plan.debs([], [], []) == []


def _name(package: Package) -> str:
    return package.name


@given(st.lists(st.integers(1, 10**8), max_size=60), st.randoms(use_true_random=False))
def test_parts_do_not_depend_on_the_order(some: list[int], random: Random) -> None:
    packages = [package(f"p{number}", size) for number, size in enumerate(some)]
    shuffled = list(packages)
    random.shuffle(shuffled)
    layers = plan.debs([], packages, [])
    assert layers == plan.debs([], shuffled, [])
    assert len(layers) == min(4, len(some))


def test_the_key_is_of_everything_that_decides_the_bytes() -> None:
    one = Wheels((wheel("alpha", 1),), TARGET)
    hidden = msgspec.structs.replace(one.wheels[0], hidden=("x",))
    keys = {
        plan.key(one, "gzip"),
        plan.key(one, "none"),
        plan.key(Wheels((hidden,), TARGET), "gzip"),
        plan.key(Wheels((wheel("alpha", 1, "1"),), TARGET), "gzip"),
        plan.key(Wheels(one.wheels, Target("/opt/envs/other", "3.11")), "gzip"),
        plan.key(Wheels(one.wheels, Target("/opt/envs/toy", "3.12")), "gzip"),
        plan.key(Debs("x", (package("a"),)), "gzip"),
        plan.key(Debs("x", (package("a"),), lowest=True), "gzip"),
        plan.key(Own((Item("a"),)), "gzip"),
        plan.key(Own((Item("a", mode=0o755),)), "gzip"),
        plan.key(Own((Item("a", owner=1),)), "gzip"),
        plan.key(Archive(Pin("3.11.17", "1", "f", "0" * 64), 1), "gzip"),
    }
    assert len(keys) == 12
    again = Wheels((wheel("alpha", 1),), Target("/opt/envs/toy", "3.11"))
    assert plan.key(again, "gzip") == plan.key(one, "gzip")


def test_the_environments_own_files() -> None:
    made = plan.own(
        "toy",
        TARGET,
        interpreter="/python/bin/python3.11",
        version="3.11.17",
        writable=["/results", "/data/in"],
        user=10001,
        system=[Item("etc/passwd", content=b"root")],
    )
    assert [(item.path, item.kind, item.target, item.owner) for item in made.items] == [
        ("data/in", "folder", "", 10001),
        ("etc/passwd", "file", "", 0),
        ("opt/envs/toy/bin/python", "link", "/python/bin/python3.11", 0),
        ("opt/envs/toy/bin/python3", "link", "python", 0),
        ("opt/envs/toy/bin/python3.11", "link", "python", 0),
        ("opt/envs/toy/lib64", "link", "lib", 0),
        ("opt/envs/toy/pyvenv.cfg", "file", "", 0),
        ("results", "folder", "", 10001),
    ]
    assert made.items[6].content == (
        b"home = /python/bin\nimplementation = CPython\nversion_info = 3.11.17\n"
        b"include-system-site-packages = false\nprompt = toy\n"
    )
