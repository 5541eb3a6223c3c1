from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from envbuild.digest import sha256_file
from envbuild.image.build import build
from envbuild.image.cache import Handed
from envbuild.lock import debian, lockfile
from envbuild.nix import store
from tests.conftest import Envbuild, Result
from tests.image import toys
from tests.image.toys import Toy
from tests.nix import flakes
from tests.nix.nixtool import Nix, nix

ALPHA = "alpha-1.0-py3-none-any.whl"


@pytest.fixture
def toy(tmp_path: Path) -> Toy:
    return flakes.make(tmp_path / "project")


@pytest.fixture
def tool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nix]:
    with nix(tmp_path_factory.mktemp("nix")) as found:
        yield found


@pytest.fixture
def preload(toy: Toy, tool: Nix, envbuild: Envbuild) -> Envbuild:
    """Run ``envbuild nix preload``."""

    def run(*arguments: str) -> Result:
        # the toy's own copy of envbuild, whose own wheels are small
        env = {**tool.env, "PYTHONPATH": str(toy.project.folder)}
        return envbuild("nix", "preload", *arguments, cwd=toy.project.folder, env=env)

    return run


def test_what_images_are_made_of_goes_into_the_store(
    toy: Toy, tool: Nix, preload: Envbuild
) -> None:
    done = preload("--offline", "--json")
    assert (done.code, done.err) == (0, "")
    told = json.loads(done.out)
    paths = told.pop("paths")
    size = sum(tool.real(path).stat().st_size for path in paths.values())
    assert told == {"schema": "envbuild.nix-preload/1", "added": len(paths), "bytes": size}
    there = {path.name: path for path in toy.wheelhouse.iterdir() if path.is_file()}
    # without Debian's Python, which the managed interpreter stands for
    assert sorted(paths) == sorted(name for name in there if not name.startswith("python3.11"))
    for name, path in paths.items():
        assert path == store.store_path(store.store_name(name), sha256_file(there[name]))
    done = preload("toy", "--offline", "--interpreter", "debian")
    assert (done.code, done.err) == (0, "")
    (deb,) = (path for name, path in there.items() if name.startswith("python3.11"))
    assert done.out == (
        f"1 files ({deb.stat().st_size} B) put into the Nix store, {len(paths) - 1} were there\n"
    )


def test_what_is_missing_is_named(toy: Toy, preload: Envbuild) -> None:
    (toy.wheelhouse / ALPHA).unlink()
    done = preload("toy", "--offline")
    assert (done.code, done.out) == (3, "")
    assert done.err == (
        f"error: {toy.wheelhouse}: 1 file is not in the wheelhouse, and nothing may be "
        "downloaded\n"
        f"  found: {ALPHA} missing\n"
        "  mend: run it with the network allowed, or copy the files there\n"
    )


def test_what_is_built_on_a_target_is_left_out_unless_it_is_asked_for(
    toy: Toy, preload: Envbuild
) -> None:
    more = toys.sdist(toy.wheelhouse)
    lock = msgspec.structs.replace(toy.lock, packages=(*toy.lock.packages, more))
    toy.project.lock_file("toy").write_bytes(lockfile.serialize(lock))
    done = preload("--offline", "--json")
    assert sorted(json.loads(done.out)["paths"]) == [
        f"pbs_installer-{flakes.PBS_INSTALLER}-py3-none-any.whl",
        f"uv-{flakes.UV}-py3-none-any.whl",
    ]
    done = preload("toy", "--offline", "--json")
    assert (done.code, done.err) == (0, "toy: without zeta, which the target system builds\n")
    paths = json.loads(done.out)["paths"]
    assert ALPHA in paths
    assert more.artifact.file not in paths


def test_a_wheelhouse_of_links(toy: Toy, tool: Nix, preload: Envbuild, tmp_path: Path) -> None:
    links = tmp_path / "links"
    links.mkdir()
    for path in toy.wheelhouse.iterdir():
        (links / path.name).symlink_to(path)
    done = preload("toy", "--offline", "--wheelhouse", str(links), "--json")
    assert (done.code, done.err) == (0, "")
    path = json.loads(done.out)["paths"][ALPHA]
    assert tool.real(path).read_bytes() == (toy.wheelhouse / ALPHA).read_bytes()


def test_all_images_with_debians_python_are_those_that_are_recorded(
    toy: Toy, preload: Envbuild, tmp_path: Path, envbuild: Envbuild
) -> None:
    done = preload("--offline", "--interpreter", "debian", "--json")
    assert ALPHA not in json.loads(done.out)["paths"]
    done = envbuild(
        *("image", "toy", "--record", "--offline", "--interpreter", "debian"),
        cwd=toy.project.folder,
        env={"ENVBUILD_CACHE": str(tmp_path / "cache")},
    )
    assert done.code == 0, done.err
    done = preload("--offline", "--interpreter", "debian", "--json")
    assert ALPHA in json.loads(done.out)["paths"]


def test_without_nix(toy: Toy, tmp_path: Path, envbuild: Envbuild) -> None:
    done = envbuild("nix", "preload", cwd=toy.project.folder, env={"PATH": str(tmp_path)})
    assert (done.code, done.out) == (3, "")
    assert done.err == (
        "error: nix-store is not on PATH\n  mend: install Nix (Debian: apt-get install nix-bin)\n"
    )


def test_layers_of_debian_packages_for_an_image(
    toy: Toy, tmp_path: Path, envbuild: Envbuild
) -> None:
    folder = tmp_path / "layers"
    done = envbuild(
        *("nix", "layers", "--pins", str(debian.pins_file(toy.project)), "--package", "bash"),
        *("--wheelhouse", str(toy.wheelhouse), "-o", str(folder)),
        cwd=tmp_path,
    )
    assert (done.code, done.out, done.err) == (0, "", "")
    handed = Handed(folder)
    image = build(toy.request, toy.wheelhouse, tmp_path / "out", cache=None, handed=[handed])
    assert [one.what for one in image.layers if one.cached] == [
        task.what for task in toy.request.debs
    ]


def test_layers_go_into_an_empty_folder(toy: Toy, tmp_path: Path, envbuild: Envbuild) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "images").write_text("mine")
    options = ("--pins", str(debian.pins_file(toy.project)))
    done = envbuild(
        *("nix", "layers", *options, "--wheelhouse", str(toy.wheelhouse), "-o", "full"),
        cwd=tmp_path,
    )
    assert (done.code, done.out) == (3, "")
    assert done.err == (
        "error: full: the folder for layers holds something\n"
        "  expected: an empty folder, or none\n  mend: name another one\n"
    )
    done = envbuild("nix", "layers", *options, "-o", "other", cwd=tmp_path)
    assert done.code == 2
    assert "Missing option '--wheelhouse'" in done.err


def test_a_stand_in_is_not_written_over_something_else(tmp_path: Path, envbuild: Envbuild) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").write_text("mine")
    done = envbuild("nix", "stand-in", "mine", cwd=tmp_path)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith(f"error: {tmp_path / 'mine'}: ")
    assert (tmp_path / "mine" / "file").read_text() == "mine"


def test_a_stand_in_says_how_it_is_given_to_nix(tmp_path: Path, envbuild: Envbuild) -> None:
    flakes.require_stand_in()
    done = envbuild("nix", "stand-in", "nixpkgs", cwd=tmp_path)
    assert done.code == 0, done.err
    assert done.out == f"give it to nix: --override-input nixpkgs path:{tmp_path / 'nixpkgs'}\n"
    assert (tmp_path / "nixpkgs" / "flake.nix").exists()
