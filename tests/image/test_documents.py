from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from envbuild.catalog.environment import Image
from envbuild.digest import sha256_bytes
from envbuild.image import documents, oci
from envbuild.image.build import build
from envbuild.image.request import Request
from envbuild.lock import lockfile
from tests.image import toys
from tests.image.toys import Toy
from tests.wheels import make_wheel

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
BASE = oci.Base(Path("base"), "b" * 64, (), {"PATH": "/bin", "A": "1"}, ())
LAYERS = tuple(oci.layer(digit * 64, 1, digit * 64, "gzip") for digit in "12")


@pytest.fixture
def toy(tmp_path: Path) -> Toy:
    return toys.make(tmp_path / "project")


def with_image(request: Request, image: Image) -> Request:
    declared = msgspec.structs.replace(request.declared, image=image)
    return msgspec.structs.replace(request, declared=declared)


def check_descriptor(one: dict[str, Any], media_type: str) -> None:
    """Hold a descriptor to the specification."""
    assert one["mediaType"] == media_type
    assert DIGEST.fullmatch(one["digest"])
    assert isinstance(one["size"], int)
    assert one["size"] > 0


@pytest.mark.parametrize("compression", ["gzip", "none"])
def test_an_image_is_what_the_specification_asks_for(
    toy: Toy, tmp_path: Path, compression: str
) -> None:
    out = tmp_path / "out"
    request = msgspec.structs.replace(toy.request, compression=compression)
    image = build(request, toy.wheelhouse, out, cache=None)
    layout = toys.layout(out)
    assert layout["oci-layout"] == b'{"imageLayoutVersion":"1.0.0"}'
    index = msgspec.json.decode(layout["index.json"])
    assert index["schemaVersion"] == 2
    assert index["mediaType"] == "application/vnd.oci.image.index.v1+json"
    (named,) = index["manifests"]
    check_descriptor(named, "application/vnd.oci.image.manifest.v1+json")
    assert named["digest"] == f"sha256:{image.digest}"
    assert named["platform"] == {"architecture": "amd64", "os": "linux"}
    assert named["annotations"]["org.opencontainers.image.ref.name"] == "toy"

    manifest, config = toys.read(out)
    assert manifest["schemaVersion"] == 2
    assert manifest["mediaType"] == "application/vnd.oci.image.manifest.v1+json"
    check_descriptor(manifest["config"], "application/vnd.oci.image.config.v1+json")
    kind = "application/vnd.oci.image.layer.v1.tar" + ("+gzip" if compression == "gzip" else "")
    for one in manifest["layers"]:
        check_descriptor(one, kind)
    assert all(isinstance(value, str) for value in manifest["annotations"].values())

    assert (config["architecture"], config["os"]) == ("amd64", "linux")
    assert config["created"] == toys.INSTANT
    assert config["rootfs"]["type"] == "layers"
    diff_ids = config["rootfs"]["diff_ids"]
    assert diff_ids == [f"sha256:{one.blob.diff_id}" for one in image.layers]
    assert len(diff_ids) == len(manifest["layers"]) == len(config["history"])
    assert config["history"][0] == {
        "created": toys.INSTANT,
        "created_by": "envbuild image: Debian base (9 packages)",
    }
    if compression == "none":
        assert diff_ids == [one["digest"] for one in manifest["layers"]]
    # nothing else is in the layout
    blobs = {manifest["config"]["digest"], named["digest"]}
    blobs |= {one["digest"] for one in manifest["layers"]}
    assert layout.keys() == {"oci-layout", "index.json"} | {
        "blobs/" + one.replace(":", "/") for one in blobs
    }


def test_what_containers_are_started_with(toy: Toy) -> None:
    settings = documents.settings(toy.request)
    config = msgspec.json.decode(oci.configuration(settings, LAYERS, []))["config"]
    assert {key: config[key] for key in config if key != "Labels"} == {
        "User": "10001:10001",
        "WorkingDir": "/results",
        "Volumes": {"/results": {}},
        "Cmd": ["/opt/envs/toy/bin/python"],
        "Env": [
            f"PATH=/opt/envs/toy/bin:{PATH}",
            "PYTHONNOUSERSITE=1",
            "SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt",
        ],
    }


def test_what_an_environment_declares_is_kept(toy: Toy) -> None:
    image = Image(
        user=7,
        workdir="/work",
        volumes=("/b", "/a"),
        entrypoint=("toy", "--serve"),
        environment={"Z": "1=2", "PATH": "/other"},
        labels={"org.opencontainers.image.title": "another", "mine": "ü"},
    )
    request = with_image(toy.request, image)
    config = msgspec.json.decode(oci.configuration(documents.settings(request), LAYERS, []))[
        "config"
    ]
    assert config["User"] == "7:7"
    assert config["WorkingDir"] == "/work"
    assert config["Volumes"] == {"/a": {}, "/b": {}}
    assert config["Entrypoint"] == ["toy", "--serve"]
    assert "Cmd" not in config
    assert config["Env"] == [
        "PATH=/other",
        "PYTHONNOUSERSITE=1",
        "SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt",
        "Z=1=2",
    ]
    assert config["Labels"]["org.opencontainers.image.title"] == "another"
    assert config["Labels"]["mine"] == "ü"
    bare = with_image(toy.request, Image(volumes=()))
    config = msgspec.json.decode(oci.configuration(documents.settings(bare), LAYERS, []))["config"]
    assert "Volumes" not in config


def test_nvidias_variables_are_there_with_its_packages_alone(toy: Toy, tmp_path: Path) -> None:
    settings = documents.settings(toy.request)
    assert not any(name.startswith("NVIDIA") for name in settings.environment)
    more = toys.package(make_wheel(tmp_path, "nvidia-cublas-cu12", "1.0"))
    more = msgspec.structs.replace(more, name="nvidia-cublas-cu12")
    lock = msgspec.structs.replace(toy.lock, packages=(*toy.lock.packages, more))
    request = msgspec.structs.replace(toy.request, lock=lock)
    variables = documents.settings(request).environment
    assert variables["NVIDIA_VISIBLE_DEVICES"] == "all"
    assert variables["NVIDIA_DRIVER_CAPABILITIES"] == "compute,utility"
    own = with_image(request, Image(environment={"NVIDIA_VISIBLE_DEVICES": "none"}))
    assert documents.settings(own).environment["NVIDIA_VISIBLE_DEVICES"] == "none"


def test_a_base_images_variables_are_kept(toy: Toy) -> None:
    request = msgspec.structs.replace(toy.request, base=BASE, interpreter="none")
    assert documents.settings(request).environment == {
        "A": "1",
        "PATH": "/opt/envs/toy/bin:/bin",
        "PYTHONNOUSERSITE": "1",
    }
    bare = msgspec.structs.replace(BASE, environment={})
    request = msgspec.structs.replace(request, base=bare)
    assert documents.settings(request).environment["PATH"] == f"/opt/envs/toy/bin:{PATH}"
    scratch = msgspec.structs.replace(toy.request, base="scratch")
    assert "SSL_CERT_FILE" not in documents.settings(scratch).environment


def test_an_image_says_what_it_was_made_of(toy: Toy, tmp_path: Path) -> None:
    request = toy.request
    lock = f"sha256:{sha256_bytes(lockfile.serialize(toy.lock))}"
    packages = "".join(
        f"{one.sha256}  {one.file}\n"
        for one in sorted(request.debs[0].packages, key=lambda one: one.sha256)
    )
    assert documents.told(request) == {
        "org.opencontainers.image.title": "toy",
        "org.opencontainers.image.description": "a toy",
        "org.opencontainers.image.created": toys.INSTANT,
        "envbuild.environment": "toy",
        "envbuild.lock": lock,
        "envbuild.interpreter": "/python/bin/python3.11 3.11.17",
        "envbuild.interpreter.archive": f"sha256:{toy.pin.sha256}",
        "envbuild.base": f"sha256:{sha256_bytes(packages.encode())}",
    }
    more = toys.sdist(tmp_path)
    built = toys.artifact(make_wheel(tmp_path, "zeta", "1.0"))
    on_base = msgspec.structs.replace(
        request,
        base=BASE,
        interpreter="none",
        lock=msgspec.structs.replace(toy.lock, packages=(*toy.lock.packages, more)),
        built=(built,),
    )
    told = documents.told(on_base)
    assert told["org.opencontainers.image.base.digest"] == f"sha256:{'b' * 64}"
    assert told["envbuild.built.zeta"] == f"sha256:{built.sha256}"
    assert told["envbuild.interpreter"] == "/usr/bin/python3.11"
    assert not {"envbuild.base", "envbuild.interpreter.archive"} & told.keys()
    debian = documents.told(msgspec.structs.replace(request, interpreter="debian"))
    assert debian["envbuild.interpreter"] == "/usr/bin/python3.11 3.11.2"


def test_history_has_a_line_for_every_layer(toy: Toy) -> None:
    ours = [{"created": toys.INSTANT, "created_by": "envbuild image: x"}]
    assert documents.history(toy.request, ["x"]) == ours
    told: list[dict[str, Any]] = [
        {"created_by": "one"},
        {"created_by": "nothing", "empty_layer": True},
        {"created_by": "two"},
    ]
    base = msgspec.structs.replace(BASE, layers=LAYERS, history=tuple(told))
    request = msgspec.structs.replace(toy.request, base=base)
    assert documents.history(request, ["x"]) == [*told, *ours]
    # it is optional
    for history in ((), tuple(told[:2])):
        base = msgspec.structs.replace(BASE, layers=LAYERS, history=history)
        request = msgspec.structs.replace(toy.request, base=base)
        assert documents.history(request, ["x"]) == [{"created_by": "base image"}] * 2 + ours
