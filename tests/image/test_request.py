from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from envbuild.artifacts import Artifact
from envbuild.errors import InputError
from envbuild.image import oci, request
from envbuild.image.request import Request
from envbuild.lock import debian as pins
from tests.image import toys
from tests.image.toys import Toy
from tests.wheels import make_wheel

BASE = oci.Base(Path("base"), "b" * 64, (), {}, ())


@pytest.fixture
def toy(tmp_path: Path) -> Toy:
    return toys.make(tmp_path / "project", more=["libgl1"])


def refusal(work: Callable[[], object]) -> str:
    with pytest.raises(InputError) as caught:
        work()
    return str(caught.value)


def read(
    toy: Toy,
    *,
    base: str | oci.Base = "debian",
    interpreter: str = "managed",
    compression: str = "gzip",
) -> Request:
    return request.read(
        toy.project, "toy", base=base, interpreter=interpreter, compression=compression
    )


def with_sdist(toy: Toy, folder: Path) -> Request:
    """A request whose lock holds an sdist without a wheel."""
    more = toys.sdist(folder)
    lock = msgspec.structs.replace(toy.lock, packages=(*toy.lock.packages, more))
    return msgspec.structs.replace(toy.request, lock=lock)


def test_wheels_are_those_whose_markers_hold_in_the_image(toy: Toy, tmp_path: Path) -> None:
    markers = {
        "a1": "python_full_version == '3.11.17'",
        "a2": "python_full_version < '3.11.17'",
        "a3": "platform_machine == 'x86_64' and sys_platform == 'linux'",
        "a4": "platform_machine == 'aarch64' or sys_platform == 'win32'",
        "a5": "platform_release == '' and platform_version == ''",
        "a6": "implementation_name == 'cpython'",
    }
    packages = [
        toys.package(make_wheel(tmp_path, name, "1.0"), marker=marker)
        for name, marker in markers.items()
    ]
    lock = toys.lock(toy.project.environment("toy"), packages)
    made = msgspec.structs.replace(toy.request, lock=lock)
    assert [one.project for one in made.wheels] == ["a1", "a3", "a5", "a6"]
    debian = msgspec.structs.replace(made, interpreter="debian")
    assert debian.version == "3.11.2"
    assert [one.project for one in debian.wheels] == ["a2", "a3", "a5", "a6"]


def test_a_package_without_a_wheel_needs_one(toy: Toy, tmp_path: Path) -> None:
    made = with_sdist(toy, tmp_path)
    assert refusal(lambda: made.wheels) == (
        "locks/pylock.toy.toml: zeta 1.0 has no wheel in the lock: it is built from source\n"
        "  expected: the wheel that was built of it\n  mend: give it with --wheel FILE"
    )
    given = request.built_wheel(make_wheel(tmp_path, "zeta", "1.0"))
    made = msgspec.structs.replace(made, built=(given,))
    assert made.wheels[-1] == given


@pytest.mark.parametrize("version", ["1.0+cu128", "1.0.0"])
def test_a_given_wheel_of_the_locks_version(toy: Toy, tmp_path: Path, version: str) -> None:
    given = request.built_wheel(make_wheel(tmp_path, "zeta", version))
    made = msgspec.structs.replace(with_sdist(toy, tmp_path), built=(given,))
    assert made.wheels[-1] == given


def test_a_given_wheel_of_another_version(toy: Toy, tmp_path: Path) -> None:
    given = request.built_wheel(make_wheel(tmp_path, "zeta", "1.1"))
    made = msgspec.structs.replace(with_sdist(toy, tmp_path), built=(given,))
    assert refusal(lambda: made.wheels) == (
        "zeta-1.1-py3-none-any.whl: --wheel: of another version than the lock's\n"
        "  expected: 1.0\n  found: 1.1"
    )


def test_a_given_wheel_that_is_not_needed(toy: Toy, tmp_path: Path) -> None:
    given = request.built_wheel(make_wheel(tmp_path, "alpha", "1.0"))
    made = msgspec.structs.replace(toy.request, built=(given,))
    assert refusal(lambda: made.wheels) == (
        "--wheel: the lock has a wheel of alpha, or does not install it\n"
        "  found: alpha-1.0-py3-none-any.whl\n  mend: leave it out"
    )


def test_two_given_wheels_of_one_project(toy: Toy, tmp_path: Path) -> None:
    given = tuple(
        request.built_wheel(make_wheel(tmp_path, "zeta", "1.0", build_tag=tag))
        for tag in ("1", "2")
    )
    made = msgspec.structs.replace(with_sdist(toy, tmp_path), built=given)
    assert refusal(lambda: made.wheels) == (
        "--wheel: two wheels of zeta\n"
        "  found: zeta-1.0-1-py3-none-any.whl and zeta-1.0-2-py3-none-any.whl\n"
        "  mend: leave one of them out"
    )


def test_a_given_file_that_is_no_wheel(tmp_path: Path) -> None:
    path = tmp_path / "zeta.whl"
    path.write_bytes(b"")
    assert refusal(lambda: request.built_wheel(path)) == (
        f"{path}: --wheel: not a wheel's file name\n"
        "  expected: NAME-VERSION(-BUILD)-PYTHON-ABI-PLATFORM.whl"
    )


def test_debians_python_must_be_one_that_the_environment_wants(toy: Toy) -> None:
    path = toy.project.environment_file("toy")
    path.write_text(path.read_text().replace(">=3.11.2", ">=3.11.3"))
    assert refusal(lambda: read(toy, interpreter="debian")) == (
        "envs/toy.toml: requires-python: Debian's Python is not one for toy\n"
        "  expected: >=3.11.3,<3.12\n  found: Python 3.11.2\n"
        "  mend: build it with --interpreter managed"
    )
    read(toy)


@pytest.mark.parametrize("base", ["scratch", BASE])
def test_debians_python_needs_debians_base(toy: Toy, base: str | oci.Base) -> None:
    assert refusal(lambda: read(toy, base=base, interpreter="debian")) == (
        "Debian's Python needs Debian's base\n  expected: --base debian; or --interpreter managed, "
        "or none for the base's own Python"
    )


def test_what_is_not_pinned(toy: Toy) -> None:
    toy.project.interpreters_file.unlink()
    assert refusal(lambda: read(toy)) == (
        f"{toy.project.interpreters_file}: Python 3.11.17 of toy has no pin\n"
        "  mend: run `envbuild lock`"
    )
    pins.pins_file(toy.project).unlink()
    assert refusal(lambda: read(toy, interpreter="debian")) == (
        "the Debian package python3.11 is not pinned\n"
        "  expected: it in locks/image-base.toml\n  mend: run `envbuild lock --base`"
    )
    none = read(toy, interpreter="none")
    assert refusal(lambda: none.debs) == (
        "the Debian package zlib1g is not pinned\n"
        "  expected: it in locks/image-base.toml\n  mend: run `envbuild lock --base`"
    )


def test_without_a_lock(toy: Toy) -> None:
    toy.project.lock_file("toy").unlink()
    assert refusal(lambda: read(toy)) == (
        f"{toy.project.lock_file('toy')}: toy has no lock\n  mend: run `envbuild lock toy`"
    )


def test_the_kind_of_an_image(toy: Toy) -> None:
    assert read(toy).kind == ("toy", "managed", "debian", "gzip")
    made = read(toy, base=BASE, interpreter="none", compression="none")
    assert made.kind == ("toy", "none", f"sha256:{'b' * 64}", "none")
    assert read(toy, base="scratch").kind == ("toy", "managed", "scratch", "gzip")
    assert read(toy, interpreter="debian").kind == ("toy", "debian", "debian", "gzip")


def test_where_things_are_in_the_image(toy: Toy) -> None:
    made = read(toy)
    assert (made.target.prefix, made.target.minor) == ("/opt/envs/toy", "3.11")
    assert (made.program, made.version) == ("/python/bin/python3.11", "3.11.17")
    debian = read(toy, interpreter="debian")
    assert (debian.program, debian.version) == ("/usr/bin/python3.11", "3.11.2")
    assert read(toy, interpreter="none").version == "3.11.17"


def test_debian_packages_are_of_debians_base_alone(tmp_path: Path) -> None:
    toy = toys.make(tmp_path, extra='[image]\npackages = ["libgl1"]\n', more=["libgl1"])
    assert [one.what for one in read(toy).debs] == [
        "Debian base (9 packages)",
        "Debian packages, part 1 of 1 (1 packages)",
    ]
    assert [one.what for one in read(toy, interpreter="debian").debs] == [
        "Debian base (9 packages)",
        "Debian's Python, part 1 of 1 (1 packages)",
        "Debian packages, part 1 of 1 (1 packages)",
    ]
    assert read(toy, base="scratch").debs == []


def declared(made: Request, **changes: object) -> Request:
    return msgspec.structs.replace(made, declared=msgspec.structs.replace(made.declared, **changes))


def image(made: Request, **changes: object) -> Request:
    return declared(made, image=msgspec.structs.replace(made.declared.image, **changes))


def locked(made: Request, **changes: object) -> Request:
    return msgspec.structs.replace(made, lock=msgspec.structs.replace(made.lock, **changes))


def repackaged(made: Request, name: str, **changes: object) -> Request:
    package = msgspec.structs.replace(made.packages[name], **changes)
    return msgspec.structs.replace(made, packages={**made.packages, name: package})


def changed(made: Request, **changes: object) -> Request:
    return msgspec.structs.replace(made, **changes)


@pytest.mark.parametrize(
    "change",
    [
        lambda one: changed(one, environment="other"),
        lambda one: changed(one, compression="none"),
        lambda one: changed(one, base="scratch"),
        lambda one: changed(one, base=BASE),
        lambda one: changed(one, interpreter="debian"),
        lambda one: changed(one, interpreter="none"),
        lambda one: changed(
            one, interpreter=msgspec.structs.replace(one.interpreter, sha256="1" * 64)
        ),
        lambda one: declared(one, summary="another"),
        lambda one: image(one, user=1),
        lambda one: image(one, workdir="/work"),
        lambda one: image(one, volumes=()),
        lambda one: image(one, entrypoint=("toy",)),
        lambda one: image(one, environment={"A": "1"}),
        lambda one: image(one, labels={"a": "1"}),
        lambda one: image(one, packages=("libgl1",)),
        lambda one: repackaged(one, "libc6", sha256="1" * 64),
        lambda one: locked(one, packages=one.lock.packages[1:]),
        lambda one: locked(one, exclude_newer="2026-01-02T00:00:00Z"),
    ],
)
def test_inputs_change_with_what_decides_the_image(
    toy: Toy, change: Callable[[Request], Request]
) -> None:
    assert request.inputs(change(toy.request)) != request.inputs(toy.request)


def test_inputs_change_with_an_interpreters_version_that_is_not_in_the_image(toy: Toy) -> None:
    # it stands in pyvenv.cfg all the same
    one = changed(toy.request, interpreter="none")
    assert request.inputs(declared(one, python="3.11.16")) != request.inputs(one)


def test_inputs_change_with_a_given_wheel(toy: Toy, tmp_path: Path) -> None:
    made = with_sdist(toy, tmp_path)
    first, second = (
        request.inputs(
            changed(made, built=(Artifact("zeta-1.0-py3-none-any.whl", 1, digit * 64, "zeta"),))
        )
        for digit in "12"
    )
    assert first != second


@pytest.mark.parametrize(
    "change",
    [
        lambda one: declared(one, python="3.11.16", requirements=("other",), checks=None),
        lambda one: repackaged(one, "python3.11", sha256="1" * 64),
        lambda one: repackaged(one, "libgl1", sha256="1" * 64),
        lambda one: image(one, volumes=("/results", "/results")),
        lambda one: changed(one, packages=dict(reversed(one.packages.items()))),
    ],
)
def test_inputs_do_not_change_with_anything_else(
    toy: Toy, change: Callable[[Request], Request]
) -> None:
    assert request.inputs(change(toy.request)) == request.inputs(toy.request)


def test_inputs_do_not_depend_on_an_order_that_does_not_matter(toy: Toy) -> None:
    first, second = (
        request.inputs(
            image(
                toy.request,
                environment=dict(some),
                labels=dict(some),
                volumes=tuple(name for name, _ in some),
                packages=("libgl1", "tzdata")[:: 1 if some[0][0] == "/a" else -1],
            )
        )
        for some in ([("/a", "1"), ("/b", "2")], [("/b", "2"), ("/a", "1")])
    )
    assert first == second


def test_a_request_is_read_from_files_alone(toy: Toy) -> None:
    assert read(toy) == toy.request


def test_a_base_that_holds_the_environment_is_refused(toy: Toy) -> None:
    base = msgspec.structs.replace(BASE, holds="toy")
    assert refusal(lambda: read(toy, base=base, interpreter="none")) == (
        f"base@sha256:{'b' * 64}: the base image holds toy already: what is not in the lock any "
        "more would stay\n"
        "  expected: an image without it\n"
        "  mend: name the base that it was built on"
    )
    other = msgspec.structs.replace(BASE, holds="other")
    assert read(toy, base=other, interpreter="none").base == other
