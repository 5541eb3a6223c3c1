from __future__ import annotations

import json
import os
import re
import shutil
import textwrap
from pathlib import Path

import msgspec
import pytest

from envbuild.digest import sha256_file
from envbuild.image.build import build
from envbuild.lock import images, lockfile
from tests.conftest import Envbuild, Result
from tests.image import toys
from tests.image.toys import Toy
from tests.servers import SimpleIndex
from tests.wheels import make_wheel

ALPHA = "alpha-1.0-py3-none-any.whl"
LINE = re.compile(r"sha256:[0-9a-f]{64}\n")


@pytest.fixture
def toy(tmp_path: Path) -> Toy:
    return toys.make(tmp_path / "project")


@pytest.fixture
def image(toy: Toy, tmp_path: Path, envbuild: Envbuild) -> Envbuild:
    """Run ``envbuild image toy`` with a cache of the test's own, offline."""

    def run(
        *arguments: str, cwd: Path = toy.project.folder, env: dict[str, str] | None = None
    ) -> Result:
        variables = {"ENVBUILD_CACHE": str(tmp_path / "cache"), **(env or {})}
        return envbuild("image", "toy", "--offline", *arguments, cwd=cwd, env=variables)

    return run


def out(tmp_path: Path) -> str:
    return str(tmp_path / "out")


def usage(done: Result) -> str:
    assert (done.code, done.out) == (2, "")
    return done.err.splitlines()[-1]


def with_sdist(toy: Toy, tmp_path: Path) -> Path:
    """Lock an sdist, and return the wheel that was built of it."""
    more = toys.sdist(tmp_path)
    shutil.copy(tmp_path / more.artifact.file, toy.wheelhouse)
    lock = msgspec.structs.replace(toy.lock, packages=(*toy.lock.packages, more))
    toy.project.lock_file("toy").write_bytes(lockfile.serialize(lock))
    return make_wheel(tmp_path / "built", "zeta", "1.0")


def test_standard_output_is_the_digest_alone(toy: Toy, tmp_path: Path, image: Envbuild) -> None:
    done = image("-o", out(tmp_path))
    assert done.code == 0, done.err
    expected = build(toy.request, toy.wheelhouse, None, cache=None)
    assert done.out == f"sha256:{expected.digest}\n"
    lines = done.err.splitlines()
    assert lines[0].split() == ["size", "layer", "state"]
    rows = [re.split(r"  +", line.strip()) for line in lines[2:-1]]
    assert [row[1:] for row in rows] == [[one.what, "built"] for one in expected.layers]
    count = len(expected.layers)
    assert re.fullmatch(
        rf"toy: {count} layers, [0-9]+ kB, {count} of them built, in [0-9.]+ s", lines[-1]
    )
    done = image("-o", out(tmp_path))
    assert done.out == f"sha256:{expected.digest}\n"
    assert done.err.count("cached") == count
    assert re.search(rf"{count} layers, [0-9]+ kB, 0 of them built, in ", done.err)


def test_the_table_fits_a_hundred_columns(tmp_path: Path, envbuild: Envbuild) -> None:
    toy = toys.make(tmp_path / "project")
    names = [f"a-package-of-a-name-that-is-really-rather-long-{number}" for number in range(80)]
    packages = [toys.package(make_wheel(toy.wheelhouse, name, "1.0")) for name in names]
    lock = toys.lock(toy.project.environment("toy"), packages)
    toy.project.lock_file("toy").write_bytes(lockfile.serialize(lock))
    done = envbuild(
        "image", "toy", "--offline", "--no-cache", "-o", out(tmp_path), cwd=toy.project.folder
    )
    assert LINE.fullmatch(done.out), done.err
    assert max(map(len, done.err.splitlines())) <= 100


def test_json(toy: Toy, tmp_path: Path, image: Envbuild) -> None:
    done = image("-o", out(tmp_path), "--json")
    assert (done.code, done.err) == (0, "")
    report = json.loads(done.out)
    expected = build(toy.request, toy.wheelhouse, None, cache=None)
    assert report.pop("seconds") >= 0
    assert report == {
        "schema": "envbuild.image/1",
        "environment": "toy",
        "digest": f"sha256:{expected.digest}",
        "findings": [],
        "layers": [
            {
                "what": one.what,
                "digest": f"sha256:{one.blob.digest}",
                "diff_id": f"sha256:{one.blob.diff_id}",
                "size": one.blob.size,
                "state": "built",
            }
            for one in expected.layers
        ],
    }
    report = json.loads(image("--check", "--json").out)
    assert report["findings"][0]["code"] == "G002"
    assert {one["state"] for one in report["layers"]} == {"cached"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "Error: -o DIR says where the image goes; or --check, or --record"),
        (
            ("--check", "--no-cache"),
            "Error: --no-cache needs -o DIR, where the layers are written",
        ),
        (("--check", "--record"), "Error: --check and --record exclude each other"),
        (("-o", "x", "--compression", "zstd"), "'zstd' is not one of 'gzip', 'none'."),
        (("-o", "x", "--interpreter", "conda"), "'conda' is not one of 'managed', 'debian'"),
        (("-o", "x", "-j", "0"), "0 is not in the range x>=1."),
        (("-o", "x", "--wheel", "none.whl"), "File 'none.whl' does not exist."),
        (("-o", "x", "more"), "Error: Got unexpected extra argument (more)"),
    ],
)
def test_usage(toy: Toy, image: Envbuild, arguments: tuple[str, ...], message: str) -> None:
    assert message in usage(image(*arguments))
    assert not (toy.project.folder / "x").exists()


def test_an_output_that_is_a_file(tmp_path: Path, image: Envbuild) -> None:
    (tmp_path / "out").write_bytes(b"")
    assert f"Directory '{out(tmp_path)}' is a file." in usage(image("-o", out(tmp_path)))


def test_an_output_below_a_file(tmp_path: Path, image: Envbuild) -> None:
    (tmp_path / "file").write_bytes(b"")
    done = image("-o", str(tmp_path / "file" / "out"))
    assert (done.code, done.out) == (4, "")
    assert done.err.endswith(f"{tmp_path}/file/out: Not a directory\n")


def test_an_output_that_holds_something_else(tmp_path: Path, image: Envbuild) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.tex").write_bytes(b"")
    done = image("-o", out(tmp_path))
    assert (done.code, done.out, done.err) == (
        3,
        "",
        f"error: {out(tmp_path)}: the folder holds something else\n"
        "  expected: a new or empty folder, or one that `envbuild image` wrote\n"
        "  found: thesis.tex\n  mend: name another folder with -o\n",
    )


def test_an_environment_of_another_name(toy: Toy, tmp_path: Path, envbuild: Envbuild) -> None:
    done = envbuild("image", "toi", "-o", out(tmp_path), cwd=toy.project.folder)
    assert (done.code, done.out) == (2, "")
    assert "toi" in done.err
    assert "toy" in done.err
    assert not (tmp_path / "out").exists()


def test_a_base_image_by_its_tag(tmp_path: Path, image: Envbuild) -> None:
    done = image("-o", out(tmp_path), "--base", "debian:bookworm")
    assert (done.code, done.out) == (2, "")
    assert done.err == (
        "error: --base: an image must be named by its digest; a tag can mean another one "
        "tomorrow\n  expected: debian, scratch, or FOLDER@sha256:DIGEST, FOLDER an OCI layout\n"
        "  found: debian:bookworm\n"
        "  mend: `skopeo inspect oci:FOLDER` prints the digest; "
        "`skopeo copy docker://IMAGE oci:FOLDER` brings an image there\n"
    )


def test_an_image_on_another_one(toy: Toy, tmp_path: Path, image: Envbuild) -> None:
    other = msgspec.structs.replace(toy.request, environment="other")
    digest = f"sha256:{build(other, toy.wheelhouse, tmp_path / 'base', cache=None).digest}"
    arguments = ("--base", f"{tmp_path / 'base'}@{digest}", "--interpreter", "none")
    done = image("-o", out(tmp_path), *arguments)
    assert LINE.fullmatch(done.out), done.err
    manifest, _ = toys.read(tmp_path / "out")
    assert manifest["annotations"]["org.opencontainers.image.base.digest"] == digest
    assert image("--record", *arguments).code == 0
    assert image("--check", *arguments).code == 0
    assert images.read(images.file(toy.project))[0].base == digest


def test_an_image_on_one_that_holds_the_environment(
    toy: Toy, tmp_path: Path, image: Envbuild
) -> None:
    digest = image("-o", str(tmp_path / "base")).out.strip()
    base = f"{tmp_path / 'base'}@{digest}"
    done = image("-o", out(tmp_path), "--base", base, "--interpreter", "none")
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith(f"error: {base}: the base image holds toy already: ")
    assert not (tmp_path / "out").exists()


def test_a_pinned_interpreter_that_cannot_be_had(
    toy: Toy, tmp_path: Path, image: Envbuild, envbuild: Envbuild
) -> None:
    path = toy.wheelhouse / toys.FILE
    path.unlink()
    mirror = {"UV_PYTHON_INSTALL_MIRROR": "http://me:s3cret@127.0.0.1:9/none"}
    expected = (
        f"  expected: SHA-256 {toy.pin.sha256}\n"
        f"  mend: get it from http://***@127.0.0.1:9/none/20260101/{toys.FILE} and put it there, "
        "or build with --interpreter debian\n"
    )
    done = image("-o", out(tmp_path), env=mirror)
    assert (done.code, done.out, done.err) == (
        3,
        "",
        f"error: {path}: the pinned interpreter cannot be had: 1 file is not in the wheelhouse, "
        f"and nothing may be downloaded\n{expected}",
    )
    done = envbuild("image", "toy", "-o", out(tmp_path), cwd=toy.project.folder, env=mirror)
    assert (done.code, done.out) == (3, "")
    assert done.err == (
        f"error: {path}: the pinned interpreter cannot be had: no answer from 127.0.0.1\n{expected}"
    )
    assert "s3cret" not in done.err
    assert not (tmp_path / "out").exists()
    assert LINE.fullmatch(image("-o", out(tmp_path), "--interpreter", "debian").out)
    assert LINE.fullmatch(image("-o", out(tmp_path), "--interpreter", "none").out)


def test_offline_with_wheels_missing(toy: Toy, tmp_path: Path, image: Envbuild) -> None:
    (toy.wheelhouse / ALPHA).unlink()
    done = image("-o", out(tmp_path))
    assert (done.code, done.out, done.err) == (
        3,
        "",
        f"error: {toy.wheelhouse}: 1 file is not in the wheelhouse, and nothing may be "
        f"downloaded\n  found: {ALPHA} missing\n"
        "  mend: run it with the network allowed, or copy the files there\n",
    )
    assert not (tmp_path / "out").exists()


def test_offline_with_a_wheel_damaged(toy: Toy, tmp_path: Path, image: Envbuild) -> None:
    assert image("-o", out(tmp_path)).code == 0
    path = toy.wheelhouse / ALPHA
    facts, right = path.stat(), sha256_file(path)
    data = bytearray(path.read_bytes())
    data[50] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(facts.st_atime_ns, facts.st_mtime_ns))
    before = toys.layout(tmp_path / "out")
    for arguments in (("--no-cache",), ()):
        done = image("-o", out(tmp_path), *arguments)
        assert (done.code, done.out) == (3, "")
        assert done.err == (
            f"error: alpha: {ALPHA} in {toy.wheelhouse}: the file in the wheelhouse is not the "
            f"one that is locked\n  expected: SHA-256 {right}, {len(data)} bytes\n"
            f"  found: SHA-256 {sha256_file(path)}, {len(data)} bytes\n"
            "  mend: run it with the network allowed, which replaces the file\n"
        )
        assert toys.layout(tmp_path / "out") == before


def test_what_is_missing_is_fetched(
    toy: Toy, tmp_path: Path, index: SimpleIndex, envbuild: Envbuild
) -> None:
    for name in toys.NAMES:
        file = f"{name}-1.0-py3-none-any.whl"
        (toy.wheelhouse / file).rename(index.folder / file)
    arguments = ("image", "toy", "-o", out(tmp_path), "--no-cache")
    done = envbuild(*arguments, cwd=toy.project.folder)
    assert LINE.fullmatch(done.out), done.err
    asked = len(index.requests)
    assert envbuild(*arguments, cwd=toy.project.folder).out == done.out
    assert len(index.requests) == asked


@pytest.mark.parametrize("kind", ["folder", "pipe", "socketless link"])
def test_something_else_in_a_wheels_place(
    toy: Toy, tmp_path: Path, image: Envbuild, kind: str
) -> None:
    path = toy.wheelhouse / ALPHA
    path.unlink()
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to(toy.wheelhouse / "nowhere")
    done = image("-o", out(tmp_path))
    assert (done.code, done.out) == (3, "")
    assert ALPHA in done.err
    assert not (tmp_path / "out").exists()


def test_a_wheelhouse_that_is_no_folder(tmp_path: Path, image: Envbuild) -> None:
    (tmp_path / "file").write_bytes(b"")
    house = str(tmp_path / "file")
    assert "is a file" in usage(image("-o", out(tmp_path), "--wheelhouse", house))
    house = str(tmp_path / "file" / "house")
    done = image("-o", out(tmp_path), "--wheelhouse", house)
    assert (done.code, done.out) == (4, "")
    assert not (tmp_path / "out").exists()


def test_a_package_without_a_wheel_is_given_one(toy: Toy, tmp_path: Path, image: Envbuild) -> None:
    wheel = with_sdist(toy, tmp_path)
    done = image("-o", out(tmp_path))
    assert (done.code, done.out, done.err) == (
        2,
        "",
        "error: locks/pylock.toy.toml: zeta 1.0 has no wheel in the lock: it is built from "
        "source\n  expected: the wheel that was built of it\n  mend: give it with --wheel FILE\n",
    )
    done = image("-o", out(tmp_path), "--wheel", str(wheel))
    assert LINE.fullmatch(done.out), done.err
    manifest, _ = toys.read(tmp_path / "out")
    assert manifest["annotations"]["envbuild.built.zeta"] == f"sha256:{sha256_file(wheel)}"
    assert image("--record", "--wheel", str(wheel)).code == 0
    (recorded,) = images.read(images.file(toy.project))
    assert [one.file for one in recorded.built] == [wheel.name]
    assert image("--check", "--wheel", str(wheel)).code == 0


def test_a_given_wheel_that_is_not_needed(toy: Toy, tmp_path: Path, image: Envbuild) -> None:
    done = image("-o", out(tmp_path), "--wheel", str(toy.wheelhouse / ALPHA))
    assert (done.code, done.err) == (
        2,
        "error: --wheel: the lock has a wheel of alpha, or does not install it\n"
        f"  found: {ALPHA}\n  mend: leave it out\n",
    )


def test_a_given_wheel_that_is_none(toy: Toy, tmp_path: Path, image: Envbuild) -> None:
    wheel = with_sdist(toy, tmp_path)
    wheel.write_bytes(b"PK")
    done = image("-o", out(tmp_path), "--wheel", str(wheel))
    assert (done.code, done.out) == (2, "")
    assert wheel.name in done.err
    assert not (toy.wheelhouse / wheel.name).exists()


def test_what_is_recorded_is_what_is_built(toy: Toy, tmp_path: Path, image: Envbuild) -> None:
    done = image("--check")
    digest = done.out.strip()
    assert done.code == 1
    assert done.err.endswith(
        "toy: error G002: no image of this kind is recorded\n"
        "  expected: one in locks/images.toml: interpreter managed, base debian, compression "
        f"gzip\n  found: {digest}\n"
        "  mend: run `envbuild image --record toy` with the same options, and commit it\n"
        "error: toy: not the image that is recorded\n"
    )
    done = image("--record")
    assert (done.code, done.out) == (0, f"{digest}\n")
    (recorded,) = images.read(images.file(toy.project))
    assert recorded.digest == digest
    for arguments in (("--check",), ("--check", "--no-cache", "-o", out(tmp_path))):
        done = image(*arguments)
        assert (done.code, done.out) == (0, f"{digest}\n")
    # of another kind there is none yet
    assert image("--check", "--compression", "none").code == 1
    assert image("--record", "--compression", "none").code == 0
    assert image("--check", "--compression", "none").code == 0
    assert image("--check").code == 0


def test_another_lock_is_another_image(toy: Toy, tmp_path: Path, image: Envbuild) -> None:
    digest = image("--record").out.strip()
    lock = toy.lock
    lock = msgspec.structs.replace(lock, packages=lock.packages[1:])
    toy.project.lock_file("toy").write_bytes(lockfile.serialize(lock))
    done = image("--check")
    now = done.out.strip()
    assert done.code == 1
    assert done.err.endswith(
        "toy: error G002: another image than the recorded one: "
        "alpha-1.0, epsilon-1.0 -> epsilon-1.0\n"
        f"  expected: {digest}\n  found: {now}\n"
        "  mend: run `envbuild image --record toy` with the same options, and commit it\n"
        "error: toy: not the image that is recorded\n"
    )
    # who does not check is told
    done = image("-o", out(tmp_path))
    assert (done.code, done.out) == (0, f"{now}\n")
    assert done.err.endswith(
        "locks/images.toml holds an image of another lock, pin or setting: --record\n"
    )
    assert image("--record").code == 0
    assert image("--check").code == 0


def test_the_same_inputs_that_give_other_bytes_are_always_told(
    toy: Toy, tmp_path: Path, image: Envbuild
) -> None:
    digest = image("--record").out.strip()
    path = images.file(toy.project)
    path.write_text(path.read_text().replace(digest, "sha256:" + "1" * 64))
    text = "the same inputs gave other bytes: find out what differs on this machine\n"
    done = image("-o", out(tmp_path))
    assert (done.code, done.out) == (1, f"{digest}\n")
    assert "toy: error G002: another image than the recorded one: " in done.err
    assert text in done.err
    done = image("--record")
    assert (done.code, done.out) == (0, f"{digest}\n")
    assert "toy: warning G002: another image than the recorded one: " in done.err
    assert image("--check").code == 0


def test_a_cache_that_others_may_write_to(tmp_path: Path, image: Envbuild) -> None:
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache").chmod(0o770)
    done = image("-o", out(tmp_path))
    assert (done.code, done.out, done.err) == (
        3,
        "",
        f"error: {tmp_path}/cache: the cache of layers is a folder that others may write to\n"
        "  expected: a folder of yours alone\n"
        "  mend: name another one with --cache or ENVBUILD_CACHE, or use --no-cache\n",
    )
    assert image("-o", out(tmp_path), "--no-cache").code == 0
    assert image("-o", out(tmp_path), "--cache", str(tmp_path / "own")).code == 0
    assert (tmp_path / "own" / "blobs").is_dir()


def test_where_layers_are_kept(toy: Toy, tmp_path: Path, envbuild: Envbuild) -> None:
    command = ("image", "toy", "--offline", "-o", out(tmp_path))
    for number, (variables, folder) in enumerate(
        [
            ({}, tmp_path / "home" / ".cache"),
            ({"XDG_CACHE_HOME": str(tmp_path / "xdg")}, tmp_path / "xdg"),
            ({"XDG_CACHE_HOME": "relative"}, tmp_path / "home" / ".cache"),
            ({"HOME": str(tmp_path / "other")}, tmp_path / "other" / ".cache"),
        ]
    ):
        shutil.rmtree(folder, ignore_errors=True)
        env = {"XDG_CACHE_HOME": "", **variables}
        done = envbuild(*command, cwd=toy.project.folder, env=env)
        assert done.code == 0, (number, done.err)
        assert (folder / "envbuild" / "blobs").is_dir()
    assert not (toy.project.folder / "relative").exists()


def test_what_wheels_share_is_a_warning(toy: Toy, tmp_path: Path, image: Envbuild) -> None:
    other = make_wheel(toy.wheelhouse, "omega", "1.0", files={"alpha/__init__.py": "other\n"})
    packages = (*toy.lock.packages, toys.package(other))
    lock = toys.lock(toy.project.environment("toy"), packages)
    toy.project.lock_file("toy").write_bytes(lockfile.serialize(lock))
    for _ in range(2):
        done = image("-o", out(tmp_path))
        assert done.code == 0
        assert "warning G001: " in done.err
        assert LINE.fullmatch(done.out)


def test_help_fits_and_names_every_option(toy: Toy, envbuild: Envbuild) -> None:
    done = envbuild("image", "--help", cwd=toy.project.folder)
    assert done.code == 0
    text = textwrap.dedent(done.out)
    assert max(map(len, text.splitlines())) <= 100
    for option in ("--output", "--base", "--wheel", "--verify-record", "--no-cache", "--offline"):
        assert option in text


def test_settings_that_no_layer_can_hold(toy: Toy, tmp_path: Path, image: Envbuild) -> None:
    path = toy.project.environment_file("toy")
    path.write_text(toys.environment(*toys.NAMES) + '[image]\nworkdir = "results"\n')
    done = image("-o", out(tmp_path))
    assert (done.code, done.out, done.err) == (
        2,
        "",
        f"error: {path}: image.workdir: not an absolute path\n"
        "  expected: a path such as /results, without '.', '..', ':' or '/' at its end\n"
        "  found: 'results'\n",
    )
