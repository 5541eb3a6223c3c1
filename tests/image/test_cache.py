from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from envbuild.digest import sha256_bytes
from envbuild.image import build as build_module
from envbuild.image.build import Image, build
from envbuild.image.cache import Cache, Handed
from envbuild.image.layer import Blob
from tests.image import toys
from tests.image.toys import Toy

MONTH = 30 * 24 * 3600
ROOT = Path(__file__).parents[2]


@pytest.fixture
def toy(tmp_path: Path) -> Toy:
    return toys.make(tmp_path / "project")


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "cache")


def made(toy: Toy, cache: Cache, out: Path | None = None) -> Image:
    return build(toy.request, toy.wheelhouse, out, cache=cache)


def built(image: Image) -> list[str]:
    return [one.what for one in image.layers if not one.cached]


def largest(image: Image) -> str:
    return max((one.blob for one in image.layers), key=lambda blob: blob.size).digest


def test_what_was_built_is_not_built_again(toy: Toy, cache: Cache, tmp_path: Path) -> None:
    first = made(toy, cache, tmp_path / "one")
    assert len(built(first)) == len(first.layers)
    second = made(toy, cache, tmp_path / "two")
    assert (built(second), second.digest) == ([], first.digest)
    # layers of another image that are the same are taken, too
    (cache.folder / "images" / first.inputs).unlink()
    third = made(toy, cache, tmp_path / "three")
    assert (built(third), third.digest) == ([], first.digest)
    assert toys.layout(tmp_path / "one") == toys.layout(tmp_path / "three")
    assert [path.name for path in (cache.folder / "images").iterdir()] == [first.inputs]


def test_a_blob_that_was_edited_is_noticed(toy: Toy, cache: Cache, tmp_path: Path) -> None:
    first = made(toy, cache)
    path = cache.blob(largest(first))
    facts = path.stat()
    with path.open("r+b") as file:
        file.seek(facts.st_size // 2)
        byte = file.read(1)
        file.seek(facts.st_size // 2)
        file.write(bytes((byte[0] ^ 1,)))
    os.utime(path, ns=(facts.st_atime_ns, facts.st_mtime_ns))
    assert (path.stat().st_size, path.stat().st_mtime_ns) == (facts.st_size, facts.st_mtime_ns)
    second = made(toy, cache, tmp_path / "out")
    assert (len(built(second)), second.digest) == (1, first.digest)
    toys.read(tmp_path / "out")


def test_a_blob_that_was_edited_through_the_layouts_link_is_noticed(
    toy: Toy, cache: Cache, tmp_path: Path
) -> None:
    first = made(toy, cache, tmp_path / "out")
    path = tmp_path / "out" / "blobs" / "sha256" / largest(first)
    assert path.samefile(cache.blob(path.name))
    path.write_bytes(b"edited")
    second = made(toy, cache, tmp_path / "out")
    assert (len(built(second)), second.digest) == (1, first.digest)
    toys.read(tmp_path / "out")


@pytest.mark.parametrize("change", ["truncated", "removed", "emptied"])
def test_a_blob_that_is_not_whole_is_built_again(
    toy: Toy, cache: Cache, tmp_path: Path, change: str
) -> None:
    first = made(toy, cache)
    path = cache.blob(largest(first))
    if change == "truncated":
        os.truncate(path, path.stat().st_size - 1)
    elif change == "emptied":
        path.write_bytes(b"")
    else:
        path.unlink()
    second = made(toy, cache, tmp_path / "out")
    assert (len(built(second)), second.digest) == (1, first.digest)
    toys.read(tmp_path / "out")


@pytest.mark.parametrize("damage", [b"", b"\xc1", b"\x90", bytes(1000)])
@pytest.mark.parametrize("kind", ["layers", "wheels", "images", "blobs/*.json"])
def test_damaged_records_count_as_none(
    toy: Toy, cache: Cache, tmp_path: Path, kind: str, damage: bytes
) -> None:
    first = made(toy, cache)
    folder, _, pattern = kind.partition("/")
    paths = list((cache.folder / folder).glob(pattern or "*"))
    assert paths
    for path in paths:
        path.write_bytes(damage)
    second = made(toy, cache, tmp_path / "out")
    assert second.digest == first.digest
    toys.read(tmp_path / "out")
    assert built(made(toy, cache)) == []


def test_links_that_come_and_go_do_not_make_a_blob_suspect(
    toy: Toy, cache: Cache, tmp_path: Path
) -> None:
    first = made(toy, cache, tmp_path / "one")
    made(toy, cache, tmp_path / "two")
    # a blob that is believed is not read: what its record says is not written anew
    records = {path: path.read_bytes() for path in (cache.folder / "blobs").glob("*.json")}
    inodes = {path: path.stat().st_ino for path in records}
    assert built(made(toy, cache)) == []
    assert {path: path.stat().st_ino for path in records} == inodes
    assert cache.blob(first.layers[0].blob.digest).stat().st_nlink == 3


def test_a_blob_that_was_edited_before_it_was_linked_stays_suspect(
    cache: Cache, tmp_path: Path
) -> None:
    cache.prepare()
    digest = sha256_bytes(b"layer")
    written = tmp_path / "written"
    written.write_bytes(b"layer")
    cache.keep("key", Blob(digest, 5, "0" * 64, 5), written)
    cache.blob(digest).write_bytes(b"other")
    cache.link(digest, tmp_path / "part", tmp_path / "link")
    assert cache.layer("key") is None
    assert not cache.blob(digest).exists()


def test_a_layout_on_another_file_system_gets_copies(
    toy: Toy, cache: Cache, tmp_path: Path
) -> None:
    here = tmp_path.stat().st_dev
    shared = next(one for one in map(Path, ("/dev/shm", "/var/tmp")) if one.stat().st_dev != here)
    first = made(toy, cache, tmp_path / "out")
    other = shared / f"envbuild-{os.getpid()}-{tmp_path.name}"
    try:
        second = made(toy, cache, other)
        assert (built(second), second.digest) == ([], first.digest)
        assert toys.layout(other) == toys.layout(tmp_path / "out")
        assert {path.stat().st_nlink for path in other.rglob("*") if path.is_file()} == {1}
        assert built(made(toy, cache, other)) == []
        cache_there = Cache(other / ".." / f"{other.name}-cache")
        try:
            assert made(toy, cache_there, tmp_path / "out").digest == first.digest
        finally:
            subprocess.run(["rm", "-r", cache_there.folder], check=True)
    finally:
        subprocess.run(["rm", "-r", other], check=True)


def test_what_was_not_used_for_a_month_is_removed(toy: Toy, cache: Cache, tmp_path: Path) -> None:
    first = made(toy, cache)
    for path in cache.folder.rglob("*"):
        os.utime(path, (0, time.time() - MONTH + 60))
    assert built(made(toy, cache)) == []
    before = {path for path in cache.folder.rglob("*") if path.is_file()}
    used = {path for path in before if time.time() - path.stat().st_mtime < 3600}
    assert {path.parent.name for path in used} == {"blobs", "layers", "images"}
    for path in before - used:
        os.utime(path, (0, time.time() - MONTH - 60))
    # a blob is as old as the last use of it
    cache.prepare()
    blobs = {cache.blob(one.blob.digest) for one in first.layers}
    assert blobs < {path for path in cache.folder.rglob("*") if path.is_file()}
    assert not list((cache.folder / "wheels").iterdir())
    for path in cache.folder.rglob("*"):
        os.utime(path, (0, time.time() - MONTH - 60))
    cache.prepare()
    assert [path for path in cache.folder.rglob("*") if path.is_file()] == []
    second = made(toy, cache, tmp_path / "out")
    assert (len(built(second)), second.digest) == (len(first.layers), first.digest)


def test_a_blob_of_which_nothing_is_remembered_goes_after_a_month(cache: Cache) -> None:
    cache.prepare()
    for name, age in (("young", 0), ("old", MONTH + 60)):
        cache.blob(name).write_bytes(b"")
        os.utime(cache.blob(name), (0, time.time() - age))
    cache.prepare()
    assert [path.name for path in (cache.folder / "blobs").iterdir()] == ["young"]


def test_what_killed_runs_left_goes_after_a_day(cache: Cache) -> None:
    cache.prepare()
    for name, age in (("young", 0), ("old", 24 * 3600 + 60)):
        left = cache.folder / f".work-{name}"
        left.mkdir()
        (left / "layer").write_bytes(b"half")
        os.utime(left, (0, time.time() - age))
    cache.prepare()
    assert [path.name for path in cache.folder.glob(".work-*")] == [".work-young"]
    with cache.work() as work:
        assert work.parent == cache.folder
    assert not work.exists()


def test_a_new_cache_is_its_owners_alone(tmp_path: Path) -> None:
    before = os.umask(0o002)
    try:
        cache = Cache(tmp_path / "above" / "cache")
        cache.prepare()
    finally:
        os.umask(before)
    assert cache.folder.stat().st_mode & 0o777 == 0o700
    assert cache.usable


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o1777])
def test_a_cache_that_others_may_write_to_is_not_usable(tmp_path: Path, mode: int) -> None:
    cache = Cache(tmp_path / "cache")
    linked = Cache(tmp_path / "link")
    linked.folder.symlink_to(cache.folder)
    # nothing is there yet; then one's own; then everybody's
    for change, usable in ((None, True), (0o755, True), (mode, False)):
        if change is not None:
            cache.folder.mkdir(exist_ok=True)
            cache.folder.chmod(change)
        assert (cache.usable, linked.usable) == (usable, usable)


def test_a_cache_that_is_no_folder_or_of_another_user_is_not_usable(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    assert not Cache(tmp_path / "file").usable
    if os.geteuid() != 0:
        return
    (tmp_path / "other").mkdir()
    os.chown(tmp_path / "other", 12345, -1)
    assert not Cache(tmp_path / "other").usable


RUN = """\
import sys
from pathlib import Path
from envbuild.image.build import build
from envbuild.image.cache import Cache, Handed
from envbuild.catalog.project import Project
from tests.image.toys import Toy
project = Project(Path(sys.argv[1]))
toy = Toy(project, project.wheelhouse)
print(build(toy.request, toy.wheelhouse, Path(sys.argv[3]), cache=Cache(Path(sys.argv[2]))).digest)
"""


def test_several_at_once_share_a_cache(toy: Toy, cache: Cache, tmp_path: Path) -> None:
    command: list[str | Path] = [sys.executable, "-c", RUN, toy.project.folder, cache.folder]
    runs = [
        subprocess.Popen(
            [*command, tmp_path / f"out{number}"],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(4)
    ]
    digests = {run.communicate(timeout=300)[0] for run in runs}
    assert [run.returncode for run in runs] == [0] * 4
    expected = build(toy.request, toy.wheelhouse, tmp_path / "alone", cache=None).digest
    assert digests == {f"{expected}\n"}
    for number in range(4):
        assert toys.layout(tmp_path / f"out{number}") == toys.layout(tmp_path / "alone")
    assert built(made(toy, cache)) == []
    assert not list(cache.folder.glob(".work-*"))


def debian_layers(toy: Toy, folder: Path) -> Handed:
    """Return layers of a toy's Debian packages, as they are handed to other runs."""
    cache = Cache(folder)
    build_module.debian_layers(toy.request.debs, toy.wheelhouse, cache)
    cache.strip()
    return Handed(folder)


def test_layers_that_were_handed_in_are_not_built(toy: Toy, cache: Cache, tmp_path: Path) -> None:
    handed = debian_layers(toy, tmp_path / "handed")
    plain = build(toy.request, toy.wheelhouse, tmp_path / "plain", cache=None)
    for one in (None, cache):
        out = tmp_path / ("with" if one else "without")
        image = build(toy.request, toy.wheelhouse, out, cache=one, handed=[handed])
        there = [layer.what for layer in image.layers if layer.cached]
        assert there == [task.what for task in toy.request.debs]
        assert image.digest == plain.digest
        assert toys.layout(out) == toys.layout(tmp_path / "plain")
    # they have become the cache's own
    shutil.rmtree(tmp_path / "handed")
    assert built(made(toy, cache)) == []


def test_layers_are_the_same_wherever_they_were_made(toy: Toy, tmp_path: Path) -> None:
    debian_layers(toy, tmp_path / "one")
    time.sleep(0.01)
    debian_layers(toy, tmp_path / "two")
    assert toys.layout(tmp_path / "one") == toys.layout(tmp_path / "two")
    assert sorted(path.name for path in (tmp_path / "one").iterdir()) == ["blobs", "layers"]


def test_a_folder_that_was_handed_in_is_only_read(toy: Toy, tmp_path: Path) -> None:
    handed = debian_layers(toy, tmp_path / "handed")
    before = {path: path.stat() for path in handed.folder.rglob("*")}
    build(toy.request, toy.wheelhouse, tmp_path / "out", cache=None, handed=[handed])
    after = {path: path.stat() for path in handed.folder.rglob("*")}
    assert {path: (one.st_mtime_ns, one.st_ctime_ns) for path, one in before.items()} == {
        path: (one.st_mtime_ns, one.st_ctime_ns) for path, one in after.items()
    }


def spoilt(kind: str, folder: Path) -> None:
    """Spoil layers that are to be handed in."""
    for path in (folder / "layers").iterdir():
        told = msgspec.msgpack.decode(path.read_bytes(), type=Blob)
        blob = folder / "blobs" / told.digest
        match kind:
            case "other bytes":
                blob.write_bytes(blob.read_bytes()[:-1] + b"x")
            case "shorter":
                blob.write_bytes(blob.read_bytes()[:-1])
            case "gone":
                blob.unlink()
            case "a pipe":
                blob.unlink()
                os.mkfifo(blob)
            case "a device":
                blob.unlink()
                blob.symlink_to("/dev/zero")
            case "another size":
                path.write_bytes(msgspec.msgpack.encode(replace(told, size=told.size + 1)))
            case "another diffID":
                path.write_bytes(msgspec.msgpack.encode(replace(told, diff_id="0" * 64)))
            case "longer inside":
                path.write_bytes(msgspec.msgpack.encode(replace(told, unpacked=10)))
            case "elsewhere":
                other = f"../../{folder.name}/blobs/{told.digest}"
                path.write_bytes(msgspec.msgpack.encode(replace(told, digest=other)))
            case "nothing said":
                path.write_bytes(b"")
            case "too much said":
                path.write_bytes(b"\xc6\xff\xff\xff\xff" * 10_000)
            case "said by a pipe":
                path.unlink()
                os.mkfifo(path)
            case "said for ever":
                path.unlink()
                path.symlink_to("/dev/zero")
            case "no gzip":
                data = b"\x1f\x8bno gzip"
                said = Blob(sha256_bytes(data), len(data), told.diff_id, told.unpacked)
                (folder / "blobs" / said.digest).write_bytes(data)
                path.write_bytes(msgspec.msgpack.encode(said))


KINDS = (
    *("other bytes", "shorter", "gone", "a pipe", "a device", "another size", "another diffID"),
    *("longer inside", "elsewhere", "nothing said", "too much said", "said by a pipe"),
    *("said for ever", "no gzip"),
)


@pytest.mark.parametrize("kind", KINDS)
def test_a_layer_that_was_handed_in_and_is_not_what_is_said_is_built(
    toy: Toy, cache: Cache, tmp_path: Path, kind: str
) -> None:
    handed = debian_layers(toy, tmp_path / "handed")
    spoilt(kind, handed.folder)
    image = build(toy.request, toy.wheelhouse, tmp_path / "out", cache=cache, handed=[handed])
    assert len(built(image)) == len(image.layers)
    assert image.digest == build(toy.request, toy.wheelhouse, tmp_path / "x", cache=None).digest
    # nor has it become the cache's own
    assert made(toy, cache, tmp_path / "again").digest == image.digest
    assert toys.layout(tmp_path / "again") == toys.layout(tmp_path / "x")
