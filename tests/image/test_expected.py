from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from envbuild.errors import InputError
from envbuild.image import expected, oci
from envbuild.image.build import build
from envbuild.image.request import Request
from envbuild.lock import debian as pins
from envbuild.lock import images, interpreters, lockfile
from envbuild.lock.images import Expected
from tests.conftest import Envbuild
from tests.image import toys
from tests.image.toys import Toy
from tests.wheels import make_wheel

OLD = Expected(
    "toy",
    "managed",
    "debian",
    "gzip",
    "1" * 64,
    "sha256:" + "2" * 64,
    tuple((f"sha256:{digit * 64}", f"layer {digit}") for digit in "345"),
)
KIND = "interpreter managed, base debian, compression gzip"


@pytest.fixture
def toy(tmp_path: Path) -> Toy:
    return toys.make(tmp_path / "project")


def record(toy: Toy, request: Request | None = None) -> Expected:
    request = request or toy.request
    made = expected.of(request, build(request, toy.wheelhouse, None, cache=None))
    images.write(toy.project, made)
    return made


def test_what_is_recorded_of_an_image(toy: Toy, tmp_path: Path) -> None:
    more = toys.sdist(tmp_path)
    built = toys.artifact(make_wheel(toy.wheelhouse, "zeta", "1.0"))
    lock = msgspec.structs.replace(toy.lock, packages=(*toy.lock.packages, more))
    request = msgspec.structs.replace(toy.request, lock=lock, built=(built,), base="scratch")
    image = build(request, toy.wheelhouse, None, cache=None)
    assert expected.of(request, image) == Expected(
        "toy",
        "managed",
        "scratch",
        "gzip",
        image.inputs,
        f"sha256:{image.digest}",
        tuple((f"sha256:{one.blob.diff_id}", one.what) for one in image.layers),
        (images.built(built),),
    )


def test_the_image_of_a_kind_is_found(toy: Toy) -> None:
    assert expected.find(toy.project, toy.request) is None
    made = record(toy)
    assert expected.find(toy.project, toy.request) == made
    other = msgspec.structs.replace(toy.request, compression="none")
    assert expected.find(toy.project, other) is None


def test_the_same_image_is_as_expected() -> None:
    assert expected.compare(OLD, OLD) == []
    # a digest is what counts
    assert expected.compare(OLD, msgspec.structs.replace(OLD, inputs="9" * 64)) == []


def test_an_image_that_is_not_recorded() -> None:
    (finding,) = expected.compare(OLD, None)
    assert msgspec.to_builtins(finding) == {
        "code": "G002",
        "severity": "error",
        "where": "toy",
        "message": "no image of this kind is recorded",
        "expected": f"one in locks/images.toml: {KIND}",
        "found": OLD.digest,
        "mend": "run `envbuild image --record toy` with the same options, and commit it",
    }


@pytest.mark.parametrize(
    ("layers", "told"),
    [
        (
            OLD.layers,
            "its layers are the same, its settings, its lock or its layers' compression are not",
        ),
        (OLD.layers[:2], "layer 5 -> no layer"),
        ((*OLD.layers, ("sha256:" + "6" * 64, "layer 6")), "no layer -> layer 6"),
        (
            tuple((f"sha256:{digit * 64}", f"layer {digit}") for digit in "6789a"),
            "layer 3 -> layer 6; layer 4 -> layer 7; layer 5 -> layer 8 and 2 more",
        ),
    ],
)
def test_another_image_is_told_by_its_layers(
    layers: tuple[tuple[str, str], ...], told: str
) -> None:
    now = msgspec.structs.replace(OLD, digest="sha256:" + "9" * 64, inputs="9" * 64, layers=layers)
    (finding,) = expected.compare(now, OLD)
    assert finding.message == f"another image than the recorded one: {told}"
    assert (finding.expected, finding.found) == (OLD.digest, now.digest)
    assert finding.mend == "run `envbuild image --record toy` with the same options, and commit it"


def test_other_bytes_of_the_same_inputs_are_not_mended_by_recording() -> None:
    now = msgspec.structs.replace(OLD, digest="sha256:" + "9" * 64)
    (finding,) = expected.compare(now, OLD)
    assert finding.mend == (
        "the same inputs gave other bytes: find out what differs on this machine"
    )


def drifted(toy: Toy) -> list[tuple[str, str]]:
    found = expected.drift(toy.project, ["toy"])
    assert {(one.severity, one.where) for one in found} <= {("error", "locks/images.toml")}
    return [(one.code, one.message) for one in found]


def test_no_drift(toy: Toy, tmp_path: Path) -> None:
    assert drifted(toy) == []
    record(toy)
    record(toy, msgspec.structs.replace(toy.request, compression="none", base="scratch"))
    record(toy, msgspec.structs.replace(toy.request, interpreter="debian"))
    base = oci.Base(tmp_path, "a" * 64, (), {}, ())
    record(toy, msgspec.structs.replace(toy.request, interpreter="none", base=base))
    assert len(images.read(images.file(toy.project))) == 4
    # nothing of what it was made of must be there
    for path in toy.wheelhouse.iterdir():
        path.unlink()
    assert drifted(toy) == []
    path = images.file(toy.project)
    path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    assert drifted(toy) == []


def other_lock(toy: Toy) -> None:
    lock = msgspec.structs.replace(toy.lock, packages=toy.lock.packages[1:])
    toy.project.lock_file("toy").write_bytes(lockfile.serialize(lock))


def other_pin(toy: Toy) -> None:
    pin = msgspec.structs.replace(toy.pin, sha256="1" * 64)
    toy.project.interpreters_file.write_bytes(interpreters.serialize([pin]))


def other_package(toy: Toy) -> None:
    packages = toy.request.packages
    other = msgspec.structs.replace(packages["libc6"], sha256="1" * 64)
    path = pins.pins_file(toy.project)
    path.write_bytes(pins.serialize({**packages, "libc6": other}.values()))


def other_setting(toy: Toy) -> None:
    path = toy.project.environment_file("toy")
    path.write_text(path.read_text() + "[image]\nuser = 7\n")


@pytest.mark.parametrize("change", [other_lock, other_pin, other_package, other_setting])
def test_drift_is_found_without_building(toy: Toy, change: Callable[[Toy], None]) -> None:
    record(toy)
    change(toy)
    assert drifted(toy) == [
        ("D012", f"the recorded image of toy ({KIND}) is of another lock, pin or setting")
    ]
    (finding,) = expected.drift(toy.project, ["toy"])
    assert finding.mend == "run `envbuild image --record toy` with these options"


def test_an_image_that_cannot_be_built_any_more(toy: Toy) -> None:
    record(toy)
    toy.project.interpreters_file.unlink()
    assert drifted(toy) == [
        (
            "D012",
            f"the recorded image of toy ({KIND}) cannot be built any more: "
            "Python 3.11.17 of toy has no pin",
        )
    ]


def test_an_image_of_no_environment(toy: Toy) -> None:
    images.write(toy.project, msgspec.structs.replace(OLD, environment="gone"))
    assert drifted(toy) == [("D012", "an image of gone, which is not declared")]
    # what nobody asks for is not said
    other = toy.project.environment_file("other")
    other.write_text(toy.project.environment_file("toy").read_text())
    assert drifted(toy) == []


def test_a_file_that_is_none(toy: Toy) -> None:
    record(toy)
    path = images.file(toy.project)
    text = path.read_text()
    path.write_text(text.replace("layers = [\n", "layers = [\n\n"))
    assert drifted(toy) == [("D002", "not in canonical form: edited by hand")]
    path.write_text(text.replace("schema = 1", "schema = 2"))
    assert drifted(toy) == [("D002", "schema: not a version that this envbuild reads")]
    path.write_text("<<<<<<< HEAD\n")
    ((code, message),) = drifted(toy)
    assert code == "D002"
    assert message.startswith("not TOML: ")
    (finding,) = expected.drift(toy.project, ["toy"])
    assert (
        finding.mend == "restore it from version control, or remove it and record the images anew"
    )
    with pytest.raises(InputError):
        expected.find(toy.project, toy.request)


def test_checking_locks_checks_images(toy: Toy, envbuild: Envbuild) -> None:
    # a resolver that is this one: nothing else drifts
    record(toy)
    done = envbuild("lock", "--check", "--json", cwd=toy.project.folder)
    before = json.loads(done.out)["findings"]
    assert [one["code"] for one in before] == ["D006"]
    other_setting(toy)
    done = envbuild("lock", "--check", cwd=toy.project.folder)
    assert done.code == 1
    assert done.out.endswith(
        f"locks/images.toml: error D012: the recorded image of toy ({KIND}) is of another lock, "
        "pin or setting\n  mend: run `envbuild image --record toy` with these options\n"
    )
    assert done.err == "error: drift: the recorded images\n"
    path = toy.project.environment_file("toy")
    path.write_text(path.read_text().replace('"epsilon"', '"epsilon", "six"'))
    pins.pins_file(toy.project).unlink()
    done = envbuild("lock", "--check", cwd=toy.project.folder)
    assert done.err == "error: drift in 1 of 1 environments, and the recorded images\n"
