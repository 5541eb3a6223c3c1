from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from envbuild.artifacts import debian as mirrors
from envbuild.artifacts.control import Archives
from envbuild.artifacts.store import Wheelhouse
from envbuild.catalog.environment import Environment, Image
from envbuild.errors import InputError
from envbuild.lock import debian, debian_resolve
from envbuild.lock.debian import BASE, PYTHON, Package
from envbuild.lock.debian_resolve import Change
from tests import projects
from tests.conftest import Envbuild
from tests.debian import Archive

ALPHA = Package(
    "alpha", "1:2.0-1", "alpha_2.0-1_amd64.deb", "pool/main/a/alpha", 10, "a" * 64, ("beta",)
)
BETA = Package("beta", "3", "beta_3_all.deb", "pool/updates/main/b/beta", 20, "b" * 64)


@pytest.fixture
def archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Archive:
    archive = Archive(tmp_path / "mirror")
    monkeypatch.setenv("ENVBUILD_DEBIAN_KEYRING", "")
    monkeypatch.setenv("ENVBUILD_DEBIAN_MIRROR", archive.url)
    return archive


def offered(archive: Archive) -> Archives:
    archive.publish()
    return mirrors.archives("bookworm")


def resolved(archive: Archive, *names: str) -> dict[str, Package]:
    asked: dict[str, tuple[str, ...]] = dict.fromkeys(names, ())
    return {one.name: one for one in debian_resolve.resolve(asked, offered(archive))}


def test_the_canonical_form(tmp_path: Path) -> None:
    path = tmp_path / "image-base.toml"
    path.write_bytes(debian.serialize([BETA, ALPHA]))
    assert path.read_text() == (
        "# Written by `envbuild lock --base` from Debian's package indexes.\n"
        'schema = 1\nrelease = "bookworm"\n'
        'base = ["base-files", "ca-certificates", "libc-bin", "libc6", "libgcc-s1", "libstdc++6", '
        '"netbase", "tzdata", "zlib1g"]\npython = ["python3.11"]\n'
        '\n[[packages]]\nname = "alpha"\nversion = "1:2.0-1"\nfile = "alpha_2.0-1_amd64.deb"\n'
        f'pool = "pool/main/a/alpha"\nsize = 10\nsha256 = "{"a" * 64}"\ndepends = ["beta"]\n'
        '\n[[packages]]\nname = "beta"\nversion = "3"\nfile = "beta_3_all.deb"\n'
        f'pool = "pool/updates/main/b/beta"\nsize = 20\nsha256 = "{"b" * 64}"\ndepends = []\n'
    )
    assert debian.read(path) == {"alpha": ALPHA, "beta": BETA}
    assert ALPHA.artifact.described == f"SHA-256 {'a' * 64}, 10 bytes"
    assert debian.read(tmp_path / "none.toml") == {}


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "schema = 1",
            "schema = 2",
            "schema: not one that this envbuild reads\n  expected: 1\n  found: 2\n"
            "  mend: use the envbuild that wrote it, or remove the file and run "
            "`envbuild lock --base`",
        ),
        (
            '"bookworm"',
            '"trixie"',
            "release: not one that this envbuild reads\n  expected: bookworm\n  found: trixie\n"
            "  mend: use the envbuild that wrote it, or remove the file and run "
            "`envbuild lock --base`",
        ),
        (
            'python = ["python3.11"]',
            'python = ["python3.12"]',
            "python: not one that this envbuild reads\n  expected: python3.11\n"
            "  found: python3.12\n  mend: use the envbuild that wrote it, or remove the file and "
            "run `envbuild lock --base`",
        ),
        ("size = 10\n", "size = 10\nurl = 1\n", "packages[0].url: unknown key"),
        ('sha256 = "a', 'sha256 = "A', "alpha: sha256: wrong value"),
        ("size = 10", "size = 0", "alpha: size: wrong value"),
        ("alpha_2.0-1_amd64", "../alpha_2.0-1_amd64", "alpha: file: wrong value"),
        ("alpha_2.0-1_amd64", "alpha_2.0-1_i386", "alpha: file: wrong value"),
        ("pool/main/a/alpha", "pool/main/../alpha", "alpha: pool: wrong value"),
        ("pool/main/a/alpha", "http://host/pool", "alpha: pool: wrong value"),
        ('"1:2.0-1"', '"two"', "alpha: version: wrong value"),
        ('["beta"]', '["gamma"]', "alpha: depends: wrong value"),
        ('["beta"]', '["beta", "alpha"]', "alpha: depends: wrong value"),
        ('name = "alpha"', 'name = "zeta"', "packages: not sorted by name, each once"),
        ('name = "alpha"', 'name = "Alpha"', "Alpha: name: wrong value"),
    ],
)
def test_refuses_pins_that_are_none(tmp_path: Path, old: str, new: str, message: str) -> None:
    path = tmp_path / "image-base.toml"
    text = debian.serialize([ALPHA, BETA]).decode()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(InputError) as caught:
        debian.read(path)
    assert str(caught.value).startswith(f"{path}: {message}")


def test_a_wrong_value_says_what_is_right(tmp_path: Path) -> None:
    path = tmp_path / "image-base.toml"
    path.write_bytes(debian.serialize([msgspec.structs.replace(ALPHA, file="x.deb"), BETA]))
    with pytest.raises(InputError) as caught:
        debian.read(path)
    assert str(caught.value) == (
        f"{path}: alpha: file: wrong value\n  expected: alpha_2.0-1_amd64.deb or _all.deb\n"
        "  found: 'x.deb'\n  mend: run `envbuild lock --base`"
    )


def test_what_must_be_pinned() -> None:
    plain = Environment("plain")
    more = Environment("more", image=Image(packages=("libgl1", "tzdata", "libgl1")))
    asked = debian.required({"plain": plain, "more": more, "other": more})
    assert asked == {**dict.fromkeys((*BASE, *PYTHON), ()), "libgl1": ("more", "other")}


def test_a_closure_holds_what_is_needed_once() -> None:
    pins = {
        "alpha": ALPHA,
        "beta": msgspec.structs.replace(BETA, depends=("alpha",)),
        "gamma": Package("gamma", "1", "gamma_1_all.deb", "pool/main/g/gamma", 1, "c" * 64),
    }
    assert [one.name for one in debian.closure(["beta"], pins)] == ["alpha", "beta"]
    with pytest.raises(InputError) as caught:
        debian.closure(["alpha", "delta"], pins)
    assert str(caught.value) == (
        "the Debian package delta is not pinned\n  expected: it in locks/image-base.toml\n"
        "  mend: run `envbuild lock --base`"
    )


def test_dependencies_are_resolved(archive: Archive) -> None:
    archive.add("alpha", depends="gone | beta (>= 2) | gamma, cycle, letter", pre_depends="zeta")
    archive.add("beta", "1")
    archive.add("gamma")
    archive.add("cycle", depends="alpha")
    archive.add("delta", provides="letter")
    archive.add("epsilon", provides="letter")
    archive.add("zeta", "2:1-1")
    archive.add("unneeded")
    pins = resolved(archive, "alpha")
    assert {name: one.depends for name, one in pins.items()} == {
        "alpha": ("cycle", "delta", "gamma", "zeta"),
        "cycle": ("alpha",),
        "delta": (),
        "gamma": (),
        "zeta": (),
    }
    zeta = pins["zeta"]
    path = archive.root / "pool/main/z/zeta/zeta_1-1_all.deb"
    assert (zeta.version, zeta.file, zeta.pool) == ("2:1-1", path.name, "pool/main/z/zeta")
    assert zeta.size == path.stat().st_size


def test_what_only_scripts_need_is_passed_over(archive: Archive) -> None:
    archive.add("ca-certificates", depends="openssl, debconf (>= 0.5) | debconf-2.0")
    archive.add("base-files", pre_depends="awk")
    archive.add("alpha", depends="openssl, adduser")
    for name in ("openssl", "debconf", "adduser"):
        archive.add(name)
    archive.add("mawk", provides="awk")
    pins = resolved(archive, "base-files", "ca-certificates")
    assert {name: one.depends for name, one in pins.items()} == {
        "base-files": (),
        "ca-certificates": (),
    }
    # what is asked for, or needed when something runs, is there
    assert list(resolved(archive, "ca-certificates", "adduser")) == ["adduser", "ca-certificates"]
    assert list(resolved(archive, "alpha")) == ["alpha", "openssl"]


def test_a_virtual_package_of_a_version(archive: Archive) -> None:
    archive.add("alpha", depends="letter (>= 2)")
    archive.add("beta", provides="letter")
    archive.add("delta", provides="letter (= 1)")
    archive.add("gamma", provides="letter (= 2)")
    assert list(resolved(archive, "alpha")) == ["alpha", "gamma"]


def test_a_dependency_that_cannot_be_had(archive: Archive) -> None:
    archive.add("alpha", depends="beta (>= 2) | gamma")
    archive.add("beta", "1")
    with pytest.raises(InputError) as caught:
        resolved(archive, "alpha")
    assert str(caught.value) == (
        "alpha 1.0 needs beta | gamma, which no configured archive has in a version that fits\n"
        "  mend: configure all of Debian's archives: the main one, its updates and those of "
        "security"
    )


def test_a_package_that_does_not_exist(archive: Archive) -> None:
    archive.add("libgl1")
    archive.add("mawk", provides="awk")
    archives = offered(archive)
    with pytest.raises(InputError) as caught:
        debian_resolve.resolve({"libgl": ("one", "two")}, archives)
    assert str(caught.value) == (
        "envs/one.toml, envs/two.toml: image.packages: no package libgl in Debian's bookworm, "
        "main, amd64\n  expected: did you mean libgl1?\n"
        "  mend: correct the name, or take it out"
    )
    with pytest.raises(InputError, match=r"expected: did you mean mawk\?"):
        debian_resolve.resolve({"awk": ("one",)}, archives)
    with pytest.raises(InputError, match="no package zzzz in"):
        debian_resolve.resolve({"zzzz": ()}, archives)


def test_refreshing_says_what_changed_and_writes_only_then(tmp_path: Path) -> None:
    path = tmp_path / "locks" / "image-base.toml"
    assert debian_resolve.refresh(path, [ALPHA, BETA]) == [
        Change("alpha", None, "1:2.0-1"),
        Change("beta", None, "3"),
    ]
    before = path.stat()
    assert debian_resolve.refresh(path, [ALPHA, BETA]) == []
    assert path.stat().st_mtime_ns == before.st_mtime_ns
    newer = msgspec.structs.replace(BETA, version="4", file="beta_4_all.deb")
    assert debian_resolve.refresh(path, [newer]) == [
        Change("alpha", "1:2.0-1", None),
        Change("beta", "3", "4"),
    ]
    assert debian.read(path) == {"beta": newer}


def test_the_debs_are_fetched_and_missed_when_gone(archive: Archive, tmp_path: Path) -> None:
    archive.add("alpha", depends="beta")
    archive.add("beta")
    pins = list(resolved(archive, "alpha").values())
    house = Wheelhouse(tmp_path / "house")
    done = house.fetch([pin.artifact for pin in pins], debian.source(pins))
    assert (done.downloaded, done.bytes) == (2, sum(pin.size for pin in pins))
    assert debian.gone(pins, offered(archive)) == []
    archive.forget()
    archive.add("beta", "2")
    assert debian.gone(pins, offered(archive)) == pins


@pytest.fixture
def project(archive: Archive, tmp_path: Path) -> Path:
    """A project whose base and Python are had from a mirror."""
    for name in (*BASE, *PYTHON, "libgl1"):
        archive.add(name)
    archive.publish()
    extra = '[image]\npackages = ["libgl1"]\n'
    folder = tmp_path / "project"
    toy = projects.environment("alpha", extra=extra)
    projects.project(folder, {"toy": toy}, {"local": projects.LOCAL})
    return folder


def test_the_command_pins_and_says_what_changed(
    project: Path, archive: Archive, envbuild: Envbuild
) -> None:
    done = envbuild("lock", "--base", cwd=project)
    assert done.code == 0, done.err
    lines = done.out.splitlines()
    assert lines[0].split() == ["package", "old", "new"]
    assert [line.split() for line in lines[2:-1]] == [
        [name, "-", "1.0"] for name in sorted((*BASE, *PYTHON, "libgl1"))
    ]
    assert lines[-1].startswith(f"locks/image-base.toml: {len((*BASE, *PYTHON)) + 1} packages, ")
    assert lines[-1].endswith(f" kB: {len((*BASE, *PYTHON)) + 1} changed")
    assert done.err.splitlines()[0] == (
        "warning: the mirror's signature was not verified: ENVBUILD_DEBIAN_KEYRING is empty"
    )
    assert "http" not in (project / "locks" / "image-base.toml").read_text()

    done = envbuild("lock", "--base", cwd=project)
    assert (done.code, len(done.out.splitlines())) == (0, 1)
    assert done.out.endswith(": nothing changed\n")

    archive.add("zlib1g", "1.1")
    archive.publish()
    report = json.loads(envbuild("lock", "--base", "--json", cwd=project).out)
    assert report["schema"] == "envbuild.lock-base/1"
    assert report["changes"] == [{"name": "zlib1g", "old": "1.0", "new": "1.1"}]
    assert report["packages"] == len((*BASE, *PYTHON)) + 1
    assert len(report["warnings"]) == 3


@pytest.mark.parametrize(
    "arguments",
    [
        ("toy",),
        ("--check",),
        ("--resolve",),
        ("--index",),
        ("--upgrade", "alpha"),
        ("--exclude-newer", "2026-11-30T00:00:00Z"),
    ],
)
def test_the_command_pins_for_all_images_as_of_now(
    project: Path, envbuild: Envbuild, arguments: tuple[str, ...]
) -> None:
    done = envbuild("lock", "--base", *arguments, cwd=project)
    assert (done.code, done.out) == (2, "")
    assert done.err.endswith(
        "Error: --base is for all images, and as of now: no ENV, and no option but --json\n"
    )
    assert not (project / "locks").exists()
