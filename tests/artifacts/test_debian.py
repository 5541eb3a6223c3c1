from __future__ import annotations

import shutil
import subprocess
import tempfile
import urllib.parse
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envbuild.artifacts import Artifact, control, debian
from envbuild.artifacts.client import Client
from envbuild.artifacts.control import Relation
from envbuild.artifacts.debian import Debs, Suite
from envbuild.artifacts.store import Wheelhouse
from envbuild.digest import sha256_file
from envbuild.errors import InputError, StepError
from tests.debian import Archive, serve
from tests.programs import require

MEND = (
    "set ENVBUILD_DEBIAN_MIRROR to the URLs of Debian archives, the folders that hold dists/ and "
    "pool/, separated by spaces: the main one and that of the security updates"
)
NOT_VERIFIED = "the mirror's signature was not verified: ENVBUILD_DEBIAN_KEYRING is empty"
VERSION = st.from_regex(r"\A([0-9]:)?[0-9][a-zA-Z0-9.+~]{0,5}(-[a-zA-Z0-9.+~]{1,3})?\Z")


@pytest.fixture
def unsigned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENVBUILD_DEBIAN_KEYRING", "")


@pytest.fixture
def archive(tmp_path: Path, unsigned: None) -> Archive:
    return Archive(tmp_path / "mirror")


def test_the_order_of_versions() -> None:
    ordered = ["1~~", "1~", "1-0~b1", "1", "1-1", "1a", "1+", "1.0", "1.9", "1.10", "0:2", "1:0~"]
    assert sorted(ordered[5:] + ordered[:5], key=control.version_key) == ordered
    assert (
        control.version_key("1.0") == control.version_key("0:1.0-0") == control.version_key("1.00")
    )


@settings(max_examples=150, deadline=None)
@given(VERSION, VERSION)
def test_versions_are_ordered_as_dpkg_orders_them(one: str, other: str) -> None:
    dpkg = require("dpkg", "dpkg")
    for word in ("<<", "=", ">>"):
        done = subprocess.run([dpkg, "--compare-versions", one, word, other], check=False)
        assert Relation("x", word, other).allows(one) == (done.returncode == 0)


def test_relations() -> None:
    assert control.relations("a (>= 1:2), b:any | c (<<3~) ,d,") == [
        [Relation("a", ">=", "1:2")],
        [Relation("b"), Relation("c", "<<", "3~")],
        [Relation("d")],
    ]
    with pytest.raises(ValueError, match=r"^b \[amd64\]$"):
        control.relations("a, b [amd64]")


def test_the_highest_version_of_all_suites_counts(archive: Archive) -> None:
    archive.add("alpha", "1.9", depends="beta", pre_depends="gamma (>= 1) | delta")
    archive.add("alpha", "1.10", suite="bookworm-security", provides="letter (= 3), sign")
    archive.add("beta", suite="bookworm-updates", provides="sign")
    archive.publish()
    found = debian.archives("bookworm", given=archive.url)
    offer = found.find("alpha")
    assert offer is not None
    assert (offer.version, offer.path) == ("1.10", "pool/main/a/alpha/alpha_1.10_all.deb")
    assert offer.sha256 == sha256_file(archive.root / offer.path)
    assert offer.size == (archive.root / offer.path).stat().st_size
    assert offer.provides == {"letter": "3", "sign": ""}
    assert [one.name for one in found.providers("sign")] == ["alpha", "beta"]
    assert found.find("omega") is None
    assert found.warnings == (NOT_VERIFIED,)
    assert found.has("alpha", offer.sha256)
    assert not found.has("alpha", "0" * 64)


def test_dependencies_before_others_come_first(archive: Archive) -> None:
    archive.add("alpha", depends="beta", pre_depends="gamma")
    archive.publish()
    offer = debian.archives("bookworm", given=archive.url).find("alpha")
    assert offer is not None
    assert offer.depends == [[Relation("gamma")], [Relation("beta")]]


def test_suites_that_are_nowhere_are_told(archive: Archive) -> None:
    archive.publish()
    assert debian.archives("bookworm", given=archive.url).warnings == (
        NOT_VERIFIED,
        f"bookworm-updates is at none of {archive.url}/: what it updates is not pinned",
        f"bookworm-security is at none of {archive.url}/: what it updates is not pinned",
    )


def test_a_mirror_without_the_release(archive: Archive) -> None:
    archive.root.mkdir()
    with pytest.raises(StepError) as caught:
        debian.archives("bookworm", given=archive.url)
    assert str(caught.value) == (
        f"{archive.url}/: no mirror has Debian's bookworm\n"
        f"  expected: dists/bookworm/InRelease\n  mend: {MEND}"
    )


def test_several_mirrors_over_http(archive: Archive, tmp_path: Path, unsigned: None) -> None:
    archive.add("alpha", "1")
    archive.publish("Acquire-By-Hash: yes\n", by_hash=True)
    security = Archive(tmp_path / "security")
    security.add("alpha", "2", suite="bookworm-security")
    # one that announces names by hash, and does not have them
    security.publish("Acquire-By-Hash: yes\n")
    (security.root / "dists" / "bookworm" / "InRelease").unlink()
    with serve(archive.root) as (one, _), serve(security.root) as (other, asked):
        found = debian.archives("bookworm", given=f"{one}/ {other}")
    offer = found.find("alpha")
    assert offer is not None
    assert offer.version == "2"
    assert asked[:2] == ["/dists/bookworm/InRelease", "/dists/bookworm-updates/InRelease"]
    assert asked[-1] == "/dists/bookworm-security/main/binary-amd64/Packages.xz"


def test_an_index_that_is_not_the_announced_one(archive: Archive) -> None:
    archive.publish()
    path = archive.root / "dists" / "bookworm" / "main" / "binary-amd64" / "Packages.xz"
    announced, size = sha256_file(path), path.stat().st_size
    path.write_bytes(b"other")
    with pytest.raises(StepError) as caught:
        debian.archives("bookworm", given=archive.url)
    where = f"{archive.url}/dists/bookworm/main/binary-amd64/Packages.xz"
    assert str(caught.value) == (
        f"{where}: the mirror's index is not the one that it announces\n"
        f"  expected: SHA-256 {announced}\n  found: SHA-256 {sha256_file(path)}\n"
        "  mend: try again: the mirror may be in the middle of an update"
    )
    path.unlink()
    with pytest.raises(StepError, match="found: nothing"):
        debian.archives("bookworm", given=archive.url)
    release = archive.root / "dists" / "bookworm" / "InRelease"
    release.write_text(release.read_text().replace(f" {announced} {size:>8}", " "))
    with pytest.raises(StepError) as caught:
        debian.archives("bookworm", given=archive.url)
    assert str(caught.value) == (
        f"{archive.url}/dists/bookworm/InRelease: the mirror announces no "
        "main/binary-amd64/Packages.xz\n  expected: its SHA256"
    )


def test_an_index_that_is_none(archive: Archive) -> None:
    archive.publish()
    path = archive.root / "dists" / "bookworm" / "main" / "binary-amd64" / "Packages.xz"
    release = archive.root / "dists" / "bookworm" / "InRelease"
    before = sha256_file(path)
    path.write_bytes(b"plain")
    release.write_text(release.read_text().replace(before, sha256_file(path)))
    with pytest.raises(StepError, match="the mirror's index cannot be read: Input format not"):
        debian.archives("bookworm", given=archive.url)


def test_a_stanza_that_is_no_package(archive: Archive) -> None:
    archive.add("alpha", depends="beta (~ 1)")
    archive.publish()
    found = debian.archives("bookworm", given=archive.url)
    with pytest.raises(StepError) as caught:
        found.find("alpha")
    assert str(caught.value) == (
        "Package: alpha: the mirror's index says what is no package\n"
        "  expected: Package, Version, Filename, Size, SHA256 and relations (deb-control(5))\n"
        "  found: beta (~ 1)"
    )


@pytest.mark.parametrize(("until", "late"), [("Thu, 01 Jan 2026 00:00:00 UTC", True), ("?", False)])
def test_a_mirror_that_is_out_of_date(archive: Archive, until: str, late: bool) -> None:
    archive.publish(f"Valid-Until: {until}\n")
    told = f"{archive.url}/dists/bookworm/ is out of date: it was valid until {until}"
    assert (told in debian.archives("bookworm", given=archive.url).warnings) == late


def test_a_mirror_that_refuses(archive: Archive) -> None:
    archive.publish()
    with (
        serve(archive.root, {"/dists/bookworm/InRelease": 403}) as (url, _),
        pytest.raises(StepError) as caught,
    ):
        debian.archives("bookworm", given=url.replace("://", "://me:secret@"))
    shown = url.replace("://", "://***@")
    assert str(caught.value) == (
        f"{shown}/dists/bookworm/InRelease: the mirror answered with HTTP status 403\n"
        f"  expected: 200\n  mend: try again later, check the credentials, or {MEND}"
    )


@pytest.mark.parametrize(
    ("url", "found"),
    [
        ("/srv/mirror", "neither http, https nor file"),
        ("ftp://me:secret@host/debian", "neither http, https nor file"),
        ("http://[", "its host or port cannot be read"),
    ],
)
def test_what_is_no_url_of_an_archive(url: str, found: str) -> None:
    with pytest.raises(InputError) as caught:
        debian.configured("bookworm", given=url)
    assert caught.value.what == "not the URL of a Debian archive"
    assert (caught.value.found, caught.value.mend) == (found, MEND)
    assert "secret" not in str(caught.value)


def test_the_variable_names_roots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENVBUILD_DEBIAN_MIRROR", " https://me:se%20cret@a.test/debian  file:///b/ ")
    names = ["bookworm", "bookworm-updates", "bookworm-security"]
    suites = debian.configured("bookworm")
    assert suites == [
        *(Suite("https://me:se%20cret@a.test/debian/", name) for name in names),
        *(Suite("file:///b/", name) for name in names),
    ]
    assert repr(suites[0]) == "Suite('https://***@a.test/debian/dists/bookworm/')"


def target(
    uri: str = "http://a.test/debian/",
    release: str = "bookworm",
    origin: str = "Debian",
    component: str = "main",
    architecture: str = "amd64",
) -> str:
    return (
        f"Repo-URI: {uri}\nRelease: {release}\nOrigin: {origin}\nComponent: {component}\n"
        f"Architecture: {architecture}\n"
    )


@pytest.fixture
def apt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Put an apt-get of our own before all else; without a call there is none."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))

    def says(text: str) -> None:
        path = folder / "apt-get"
        path.write_text(
            f"#!/bin/sh\n[ \"$*\" = 'indextargets Created-By: Packages' ] || exit 1\n"
            f"echo '{text}'\n"
        )
        path.chmod(0o755)

    return says


def test_what_apt_uses_is_asked_where_the_variable_says_nothing(
    apt: Callable[[str], None],
) -> None:
    listed = [
        target(),
        target(release="bookworm-security", uri="http://a.test/security"),
        target(release="trixie"),
        target(origin="Somebody", uri="http://b.test/"),
        target(component="contrib"),
        target(architecture="i386"),
        target(uri="cdrom://disk/"),
        target(release="bookworm-updates").replace("Origin: Debian\n", ""),
        target(),
    ]
    apt("\n".join(listed))
    assert debian.configured("bookworm") == [
        Suite("http://a.test/debian/", "bookworm"),
        Suite("http://a.test/security/", "bookworm-security"),
        Suite("http://a.test/debian/", "bookworm-updates"),
    ]


@pytest.mark.parametrize("listed", [None, "", target(release="noble", origin="Ubuntu")])
def test_a_machine_without_an_archive_of_debian(
    apt: Callable[[str], None], listed: str | None
) -> None:
    if listed is not None:
        apt(listed)
    assert debian.configured("bookworm", needed=False) == []
    with pytest.raises(InputError) as caught:
        debian.archives("bookworm")
    assert str(caught.value) == (
        "no archive of Debian's bookworm is configured\n"
        "  expected: ENVBUILD_DEBIAN_MIRROR, or an apt that uses one (component main, amd64)\n"
        f"  mend: {MEND}"
    )


@pytest.fixture(scope="module")
def gpg() -> Iterator[Callable[..., bytes]]:
    """A gpg with a key of its own; its home is short, as that of a socket must be."""
    program = require("gpg", "gpg")
    home = Path(tempfile.mkdtemp(prefix="gpg-"))

    def run(*arguments: str, data: bytes = b"") -> bytes:
        return subprocess.run(
            [program, "--homedir", home, "--batch", "--quiet", "--passphrase", "", *arguments],
            input=data,
            capture_output=True,
            check=True,
        ).stdout

    run("--quick-generate-key", "toy", "ed25519", "sign", "never")
    yield run
    subprocess.run(["gpgconf", "--homedir", home, "--kill", "all"], check=True)
    shutil.rmtree(home, ignore_errors=True)


@pytest.fixture
def signed(gpg: Callable[..., bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Archive:
    require("gpgv", "gpgv")
    keyring = tmp_path / "keyring.gpg"
    keyring.write_bytes(gpg("--export"))
    monkeypatch.setenv("ENVBUILD_DEBIAN_KEYRING", str(keyring))
    archive = Archive(tmp_path / "mirror", lambda data: gpg("--clear-sign", data=data))
    archive.add("alpha")
    archive.publish()
    return archive


def test_a_good_signature(signed: Archive) -> None:
    found = debian.archives("bookworm", given=signed.url)
    assert found.find("alpha") is not None
    assert not [line for line in found.warnings if "not verified" in line]


def test_what_stands_outside_of_the_signed_text_does_not_count(signed: Archive) -> None:
    path = signed.root / "dists" / "bookworm" / "InRelease"
    path.write_text("Valid-Until: Thu, 01 Jan 2026 00:00:00 UTC\n\n" + path.read_text())
    try:
        warnings = debian.archives("bookworm", given=signed.url).warnings
    except StepError as error:
        assert error.what == "the mirror's signature is not good"
    else:
        assert not [line for line in warnings if "out of date" in line]


@pytest.mark.parametrize("how", ["changed", "unsigned", "another key"])
def test_a_bad_signature_is_refused(
    signed: Archive, how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = signed.root / "dists" / "bookworm" / "InRelease"
    keyring = tmp_path / "keyring.gpg"
    if how == "changed":
        path.write_text(path.read_text().replace("Origin: Debian", "Origin: Nobody"))
    elif how == "unsigned":
        Archive(signed.root).publish()
    else:
        keyring.write_bytes(b"")
    with pytest.raises(StepError) as caught:
        debian.archives("bookworm", given=signed.url)
    assert str(caught.value).startswith(
        f"{signed.url}/dists/bookworm/InRelease: the mirror's signature is not good\n"
        f"  expected: one by a key of {keyring}\n"
        "  mend: use another mirror; for one with keys of its own set ENVBUILD_DEBIAN_KEYRING to "
        "the path of its keyring, for one without to nothing\n"
    )


def test_a_keyring_that_is_not_there(
    archive: Archive, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    archive.publish()
    monkeypatch.setenv("ENVBUILD_DEBIAN_KEYRING", str(tmp_path / "none"))
    with pytest.raises(InputError) as caught:
        debian.archives("bookworm", given=archive.url)
    assert str(caught.value) == (
        "ENVBUILD_DEBIAN_KEYRING: no keyring\n"
        f"  expected: the path of a file\n  found: {tmp_path / 'none'}"
    )


def test_without_gpgv_the_signature_is_not_verified_and_that_is_said(
    archive: Archive, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    archive.publish()
    keyring = tmp_path / "keyring"
    keyring.touch()
    monkeypatch.setenv("ENVBUILD_DEBIAN_KEYRING", str(keyring))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert debian.archives("bookworm", given=archive.url).warnings[0] == (
        "the mirror's signature was not verified: gpgv is not there"
    )


def artifact(path: Path) -> Artifact:
    return Artifact(path.name, path.stat().st_size, sha256_file(path))


def test_debs_are_fetched_from_the_first_archive_that_has_them(
    archive: Archive, tmp_path: Path
) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    path = archive.add("alpha", "1.0+x~1")
    wanted = artifact(path)
    pools = {path.name: "pool/main/a/alpha"}
    house = Wheelhouse(tmp_path / "house")
    with serve(empty) as (one, none), serve(archive.root) as (other, asked):
        suites = [Suite(f"{url}/", "bookworm") for url in (one, one, other)]
        done = house.fetch([wanted], Debs(suites, pools, Client()))
    assert (done.downloaded, done.bytes) == (1, wanted.size)
    assert house.path_of(wanted).read_bytes() == path.read_bytes()
    quoted = urllib.parse.quote(f"/pool/main/a/alpha/{path.name}")
    assert none == [quoted]
    assert asked == [quoted, quoted]
    local = Debs([Suite(f"{archive.url}/", "bookworm")], pools, Client())
    assert Wheelhouse(tmp_path / "other").fetch([wanted], local).downloaded == 1


def test_a_deb_that_is_gone(archive: Archive) -> None:
    path = archive.add("alpha")
    wanted = artifact(path)
    pools = {path.name: "pool/main/a/alpha"}
    archive.forget()
    with serve(archive.root) as (url, _):
        root = f"{url.replace('://', '://me:secret@')}/"
        suites = [Suite(root, "bookworm"), Suite(f"{archive.url}/", "bookworm")]
        with pytest.raises(StepError) as caught:
            Debs(suites, pools, Client()).locate(wanted)
    shown = f"{url.replace('://', '://***@')}/, {archive.url}/"
    assert str(caught.value) == (
        "alpha_1.0_all.deb: gone from the mirror: Debian keeps only the current version in its "
        f"pool\n  expected: pool/main/a/alpha/alpha_1.0_all.deb\n  found: nothing at {shown}\n"
        "  mend: run `envbuild lock --base`, which pins the present one; or copy the .deb into the "
        "wheelhouse"
    )


def test_a_mirror_that_refuses_has_not_lost_the_deb(archive: Archive) -> None:
    path = archive.add("alpha")
    asked = "/pool/main/a/alpha/alpha_1.0_all.deb"
    with serve(archive.root, {asked: 403}) as (url, _):
        debs = Debs([Suite(f"{url}/", "bookworm")], {path.name: "pool/main/a/alpha"}, Client())
        with pytest.raises(StepError, match="the mirror answered with HTTP status 403"):
            debs.locate(artifact(path))
