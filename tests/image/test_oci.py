from __future__ import annotations

import fcntl
import json
import os
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest

from envbuild.digest import sha256_bytes
from envbuild.errors import InputError, PreflightError
from envbuild.image import oci

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar"
WANTED = "  expected: a new or empty folder, or one that `envbuild image` wrote\n"
MEND = (
    "  expected: the digest of an OCI image for linux/amd64 in that layout\n"
    "  found: {}\n"
    "  mend: `skopeo inspect oci:FOLDER` prints the digest of what is there"
)


class Layout:
    """A layout that another program wrote."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.blobs = folder / "blobs" / "sha256"
        self.blobs.mkdir(parents=True)

    def put(self, document: object) -> dict[str, Any]:
        data = document if isinstance(document, bytes) else json.dumps(document).encode()
        digest = sha256_bytes(data)
        (self.blobs / digest).write_bytes(data)
        return {"mediaType": MANIFEST, "digest": f"sha256:{digest}", "size": len(data)}

    def image(
        self,
        *layers: bytes,
        media_type: str = f"{LAYER}+gzip",
        config: dict[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Put an image there and return its descriptor."""
        described = {
            "architecture": "amd64",
            "os": "linux",
            "config": {"Env": ["A=1=2", "PATH=/bin"]},
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{'d' * 64}" for _ in layers]},
            "history": [{"created_by": "someone"} for _ in layers],
            **(config or {}),
        }
        return self.put(
            {
                "schemaVersion": 2,
                "config": self.put(described),
                "layers": [{**self.put(one), "mediaType": media_type} for one in layers],
            }
        )


def digest(descriptor: dict[str, Any]) -> str:
    return str(descriptor["digest"]).removeprefix("sha256:")


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    return Layout(tmp_path / "base")


def refusal(folder: Path, name: str) -> str:
    with pytest.raises(InputError) as caught:
        oci.read_base(folder, name)
    head = f"{folder}@sha256:"
    assert str(caught.value).startswith(head)
    return str(caught.value).removeprefix(head)


def found(text: str) -> str:
    return text.partition("  found: ")[2].partition("\n")[0]


@pytest.mark.parametrize(
    "text",
    ["ubuntu", "folder:latest", "folder", "folder@sha256:12", "folder@sha512:" + "a" * 64, ""],
)
def test_a_base_image_is_named_by_its_digest(text: str) -> None:
    with pytest.raises(InputError) as caught:
        oci.parse_base(text)
    assert str(caught.value) == (
        "--base: an image must be named by its digest; a tag can mean another one tomorrow\n"
        "  expected: debian, scratch, or FOLDER@sha256:DIGEST, FOLDER an OCI layout\n"
        f"  found: {text}\n"
        "  mend: `skopeo inspect oci:FOLDER` prints the digest; "
        "`skopeo copy docker://IMAGE oci:FOLDER` brings an image there"
    )


def test_a_digest_is_read_with_its_folder() -> None:
    assert oci.parse_base(f"a@b/c@sha256:{'a' * 64}") == (Path("a@b/c"), "a" * 64)


def test_a_base_image_is_read(layout: Layout) -> None:
    named = layout.image(b"one", b"two")
    base = oci.read_base(layout.folder, digest(named))
    assert base == oci.Base(
        layout.folder,
        digest(named),
        tuple(
            oci.Descriptor(f"{LAYER}+gzip", sha256_bytes(one), 3, "d" * 64)
            for one in (b"one", b"two")
        ),
        {"A": "1=2", "PATH": "/bin"},
        ({"created_by": "someone"}, {"created_by": "someone"}),
    )


@pytest.mark.parametrize("suffix", ["", "+gzip", "+zstd"])
def test_layers_of_every_usual_type_are_taken(layout: Layout, suffix: str) -> None:
    named = layout.image(b"one", media_type=LAYER + suffix)
    (layer,) = oci.read_base(layout.folder, digest(named)).layers
    assert layer.document["mediaType"] == LAYER + suffix


def test_what_is_optional_can_be_left_out(layout: Layout) -> None:
    configs: list[dict[str, Any]] = [
        {"config": None, "history": None},
        {"config": {}, "history": []},
    ]
    for config in configs:
        base = oci.read_base(layout.folder, digest(layout.image(b"one", config=config)))
        assert (base.environment, base.history) == ({}, ())


def test_of_an_index_the_one_for_this_platform_is_taken(layout: Layout) -> None:
    image = layout.image(b"one")
    other = {**layout.image(b"two"), "platform": {"architecture": "arm64", "os": "linux"}}
    unknown = {**layout.image(b"3"), "platform": {"architecture": "unknown", "os": "unknown"}}
    ours = {**image, "platform": {"architecture": "amd64", "os": "linux"}}
    index = {"schemaVersion": 2, "manifests": [other, ours, unknown]}
    base = oci.read_base(layout.folder, digest(layout.put(index)))
    assert base.digest == digest(image)
    for manifests in ([], [other], [ours, ours], [image]):
        named = digest(layout.put({"manifests": manifests}))
        assert refusal(layout.folder, named) == f"{named}: " + (
            "not an image that another can stand on\n"
            + MEND.format("not exactly one manifest for linux/amd64")
        )


def test_another_platform_is_refused(layout: Layout) -> None:
    for config in ({"architecture": "arm64"}, {"os": "windows"}):
        named = layout.image(b"one", config=config)
        spelled = f"{config.get('os', 'linux')}/{config.get('architecture', 'amd64')}"
        assert found(refusal(layout.folder, digest(named))) == f"one for {spelled}"


@pytest.mark.parametrize(
    "media_type",
    [
        "application/vnd.docker.image.rootfs.diff.tar.gzip",
        "application/vnd.oci.image.layer.nondistributable.v1.tar+gzip",
        f"{LAYER}+encrypted",
        "",
    ],
)
def test_another_type_of_layer_is_refused(layout: Layout, media_type: str) -> None:
    named = layout.image(b"one", media_type=media_type)
    assert found(refusal(layout.folder, digest(named))) == f"a layer of type {media_type}"


def test_a_digest_of_nothing(layout: Layout) -> None:
    layout.image(b"one")
    assert found(refusal(layout.folder, "a" * 64)) == "no such blob"
    assert found(refusal(layout.folder / "other", "a" * 64)) == "no such blob"


def test_a_blob_that_is_not_what_its_name_says(layout: Layout) -> None:
    named = digest(layout.image(b"one"))
    (layout.blobs / named).write_bytes(b"{}")
    assert found(refusal(layout.folder, named)) == f"a blob whose SHA-256 is {sha256_bytes(b'{}')}"
    (layout.blobs / named).write_bytes(bytes((8 << 20) + 1))
    assert found(refusal(layout.folder, named)) == f"a document of {(8 << 20) + 1} bytes"


GOOD = {"digest": f"sha256:{'a' * 64}", "size": 1, "mediaType": LAYER}


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (b"", "a document that is none: Input data was truncated"),
        (b"\xff", "a document that is none: JSON is malformed: invalid character (byte 0)"),
        (b"[" * 100_000, "a document that is none: Expected `object`, got `array`"),
        ([], "a document that is none: Expected `object`, got `array`"),
        ({}, "a document that is none: Object missing required field `config`"),
        (
            {"config": GOOD},
            "a document that is none: Object missing required field `layers`",
        ),
        (
            {"config": GOOD, "layers": {}},
            "a document that is none: Expected `array`, got `object` - at `$.layers`",
        ),
        (
            {"config": GOOD, "layers": [1]},
            "a document that is none: Expected `object`, got `int` - at `$.layers[0]`",
        ),
        (
            {"config": GOOD, "layers": [{**GOOD, "size": "1"}]},
            "a document that is none: Expected `int`, got `str` - at `$.layers[0].size`",
        ),
        ({"config": GOOD, "layers": []}, "no such blob"),
        ({"config": {**GOOD, "digest": "../../x"}, "layers": []}, "no such blob"),
        (
            {"manifests": 1},
            "a document that is none: Expected `array`, got `int` - at `$.manifests`",
        ),
        (
            {"manifests": [1]},
            "a document that is none: Expected `object`, got `int` - at `$.manifests[0]`",
        ),
        (
            {"manifests": [{**GOOD, "platform": {"architecture": "amd64", "os": "linux"}}]},
            "no such blob",
        ),
    ],
)
def test_documents_that_are_none(layout: Layout, document: object, message: str) -> None:
    assert found(refusal(layout.folder, digest(layout.put(document)))) == message


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"rootfs": {"diff_ids": []}}, "1 layers, of which 0 are known"),
        ({"rootfs": {"diff_ids": ["sha256:12"]}}, "a layer whose digest is 'sha256:12'"),
        (
            {"rootfs": {}},
            "a document that is none: Object missing required field `diff_ids` - at `$.rootfs`",
        ),
        ({"config": {"Env": 1}}, "a document that is none: Expected `array | null`, got `int`"),
        ({"history": {}}, "a document that is none: Expected `array | null`, got `object`"),
    ],
)
def test_configurations_that_are_none(layout: Layout, config: dict[str, Any], message: str) -> None:
    assert found(refusal(layout.folder, digest(layout.image(b"one", config=config)))).startswith(
        message
    )


def test_a_base_images_layer_is_held_to_its_digest_and_size(layout: Layout, tmp_path: Path) -> None:
    layout.image(b"layer")
    target = tmp_path / "target"
    right = oci.layer(sha256_bytes(b"layer"), 5, "d" * 64, "gzip")

    def refused(layer: oci.Descriptor) -> str:
        with pytest.raises(InputError) as caught:
            oci.copy_blob(layout.folder, layer, tmp_path, target)
        assert not target.exists()
        return found(str(caught.value))

    assert refused(msgspec.structs.replace(right, digest="a" * 64)) == "no such blob"
    assert refused(msgspec.structs.replace(right, size=6)) == "5 bytes, where 6 are said"
    (layout.blobs / right.digest).write_bytes(b"other")
    assert refused(right) == f"a blob whose SHA-256 is {sha256_bytes(b'other')}"
    layout.put(b"layer")
    oci.copy_blob(layout.folder, right, tmp_path, target)
    assert target.read_bytes() == b"layer"
    # what is there and right is left alone
    (layout.blobs / right.digest).unlink()
    oci.copy_blob(layout.folder, right, tmp_path, target)
    target.write_bytes(b"damaged")
    with pytest.raises(InputError):
        oci.copy_blob(layout.folder, right, tmp_path, target)


def wrote(folder: Path, *layers: bytes, config: bytes = b"{}") -> None:
    """Write an image into a layout."""
    with oci.place(folder) as work:
        for one in layers:
            (oci.blobs(folder) / sha256_bytes(one)).write_bytes(one)
        described = [oci.layer(sha256_bytes(one), len(one), "d" * 64, "gzip") for one in layers]
        manifest = oci.manifest(config, described, {"a": "b"})
        digests = [one.digest for one in described]
        oci.write(folder, work, config, manifest, environment="toy", digests=digests)


def refused_place(folder: Path) -> str:
    with pytest.raises(PreflightError) as caught:
        oci.check_place(folder)
    with pytest.raises(PreflightError), oci.place(folder):
        pass
    return str(caught.value)


def names(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def test_a_place_that_is_new_empty_or_ours(tmp_path: Path) -> None:
    out = tmp_path / "a" / "out"
    oci.check_place(out)
    wrote(out, b"one")
    oci.check_place(out)
    wrote(out, b"two")
    empty = tmp_path / "empty"
    (empty / "blobs" / "sha256").mkdir(parents=True)
    wrote(empty, b"one")


def test_a_file_is_no_place(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"")
    assert refused_place(path) == f"{path}: not a folder\n{WANTED.rstrip()}"


def test_a_place_with_something_else(tmp_path: Path) -> None:
    wrote(tmp_path, b"one")
    for name in "gfedcba":
        (tmp_path / name).write_bytes(b"")
    before = names(tmp_path)
    assert refused_place(tmp_path) == (
        f"{tmp_path}: the folder holds something else\n{WANTED}  found: a, b, c, d, e\n"
        "  mend: name another folder with -o"
    )
    assert names(tmp_path) == before


@pytest.mark.parametrize("index", [None, b'{"manifests": []}'])
def test_blobs_that_nobody_knows_are_left_alone(layout: Layout, index: bytes | None) -> None:
    layout.image(b"one")
    if index is not None:
        (layout.folder / "index.json").write_bytes(index)
    assert refused_place(layout.folder) == (
        f"{layout.folder}: the folder holds something else\n{WANTED}  found: blobs\n"
        "  mend: name another folder with -o"
    )


@pytest.mark.parametrize(
    "index",
    [
        b'{"manifests": [{"annotations": {"org.opencontainers.image.ref.name": "x"}}]}',
        b'{"manifests": [{}]}',
        b'{"manifests": 1}',
        b"[]",
        b"",
        b"\xff",
        b"[" * 100_000,
    ],
)
def test_an_image_of_another_program_is_left_alone(layout: Layout, index: bytes) -> None:
    (layout.folder / "index.json").write_bytes(index)
    assert refused_place(layout.folder) == (
        f"{layout.folder}: the folder holds an image that envbuild did not write\n{WANTED}"
        "  mend: name another folder with -o"
    )


def test_two_at_once_exclude_each_other(tmp_path: Path) -> None:
    wrote(tmp_path, b"one")
    descriptor = os.open(tmp_path, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        with pytest.raises(PreflightError) as caught, oci.place(tmp_path):
            pass
    finally:
        os.close(descriptor)
    assert str(caught.value) == (
        f"{tmp_path}: another run of `envbuild image` writes to this folder\n"
        "  mend: wait until it has ended, or name another folder with -o"
    )
    wrote(tmp_path, b"two")


def test_another_image_drops_what_only_the_old_one_had(tmp_path: Path) -> None:
    wrote(tmp_path, b"one", b"both")
    wrote(tmp_path, b"two", b"both", config=b"[]")
    assert {sha256_bytes(one) for one in (b"two", b"both", b"[]")} < {
        path.name for path in oci.blobs(tmp_path).iterdir()
    }
    assert len(names(oci.blobs(tmp_path))) == 4


def test_what_a_killed_run_left_is_removed(tmp_path: Path) -> None:
    out = tmp_path / "out"
    for index in (False, True):
        if index:
            wrote(out, b"one")
        left = out / ".envbuild-x"
        left.mkdir(parents=True)
        (left / "layer").write_bytes(b"half")
        oci.blobs(out).mkdir(parents=True, exist_ok=True)
        (oci.blobs(out) / sha256_bytes(b"stray")).write_bytes(b"stray")
        wrote(out, b"two")
        listed = names(out)
        assert len(listed) == 2 + 2 + 3, listed


def test_nothing_is_left_of_an_image_that_failed(tmp_path: Path) -> None:
    class Failed(Exception):
        pass

    def fail(folder: Path) -> None:
        with oci.place(folder) as work:
            (work / "layer").write_bytes(b"half")
            (oci.blobs(folder) / sha256_bytes(b"new")).write_bytes(b"new")
            raise Failed

    new = tmp_path / "new"
    with pytest.raises(Failed):
        fail(new)
    assert not new.exists()
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(Failed):
        fail(empty)
    assert names(empty) == []
    old = tmp_path / "old"
    wrote(old, b"one")
    before = {path.name: path.read_bytes() for path in old.rglob("*") if path.is_file()}
    with pytest.raises(Failed):
        fail(old)
    after = {path.name: path.read_bytes() for path in old.rglob("*") if path.is_file()}
    assert before.items() <= after.items()
    assert not list(old.glob(".envbuild-*"))
    wrote(old, b"one")
    assert {path.name for path in old.rglob("*") if path.is_file()} == before.keys()


@pytest.mark.parametrize("link", ["blobs", "blobs/sha256"])
def test_blobs_that_lie_elsewhere_are_left_alone(tmp_path: Path, link: str) -> None:
    place, other = tmp_path / "out", tmp_path / "other"
    wrote(place, b"layer")
    shutil.move(place / link, other)
    (place / link).symlink_to(other)
    assert refused_place(place).startswith(f"{place}: the folder holds something else\n")
    assert list(other.iterdir())


def test_an_image_is_not_written_over_its_base(tmp_path: Path) -> None:
    wrote(tmp_path / "out", b"layer")
    with pytest.raises(PreflightError) as caught:
        oci.check_apart(tmp_path / "out", tmp_path / "." / "out")
    assert str(caught.value) == (
        f"{tmp_path}/out: the base image is in the folder that the image would be written to\n"
        "  expected: another folder: what is there is removed\n"
        "  mend: name another folder with -o"
    )
    oci.check_apart(tmp_path / "out", tmp_path)
