from __future__ import annotations

from pathlib import Path

import pytest

from envbuild.errors import InputError
from envbuild.image import debian
from envbuild.image.tar import Item, folder, link
from envbuild.lock.debian import Package
from tests.debian import Entry, control, deb
from tests.debian import folder as shipped
from tests.debian import link as linked


def made(where: Path, name: str, *entries: Entry) -> tuple[Package, Path]:
    """A package with its pin, of which the layout needs the name alone."""
    path = deb(where, name, entries=entries)
    return Package(name, "1.0", path.name, "pool", 1, "0" * 64), path


def status(name: str) -> Item:
    return Item(f"var/lib/dpkg/status.d/{name}", content=control(name, "1.0"))


def parents(*paths: str) -> list[Item]:
    return [folder(path) for path in paths]


STATUS_PARENTS = parents("var", "var/lib", "var/lib/dpkg", "var/lib/dpkg/status.d")


def test_a_layer_holds_its_own_paths_and_the_folders_above_once(tmp_path: Path) -> None:
    alpha = made(tmp_path, "alpha", Entry("./usr/lib/x/alpha", b"a"), Entry("./usr/lib-a", b"b"))
    beta = made(tmp_path, "beta", shipped("./usr/lib/"), Entry("./usr/lib/beta", b"c"))
    assert debian.tree([beta, alpha]) == [
        *parents("usr", "usr/lib"),
        Item("usr/lib/beta", content=b"c"),
        folder("usr/lib/x"),
        Item("usr/lib/x/alpha", content=b"a"),
        # by the parts of paths: a folder's contents come before a name that goes on with "-"
        Item("usr/lib-a", content=b"b"),
        *STATUS_PARENTS,
        status("alpha"),
        status("beta"),
    ]


def test_what_is_below_the_old_folders_moves_to_usr(tmp_path: Path) -> None:
    package = made(
        tmp_path,
        "alpha",
        shipped("./lib/"),
        Entry("./lib/x86_64-linux-gnu/libc.so.6", b"c"),
        linked("./lib64/ld.so", "/lib/x86_64-linux-gnu/ld.so"),
        Entry("./bin/sh", b"s", 0o755),
        Entry("./lib32/libc.so.6", b"3"),
        Entry("./var/run/x", b"r"),
        linked("./sbin", "usr/sbin"),
    )
    items = {item.path: item for item in debian.tree([package])}
    assert [path for path in items if not path.startswith("var")] == [
        "lib32",
        "run",
        "run/x",
        "usr",
        "usr/bin",
        "usr/bin/sh",
        "usr/lib",
        "usr/lib/x86_64-linux-gnu",
        "usr/lib/x86_64-linux-gnu/libc.so.6",
        "usr/lib32",
        "usr/lib32/libc.so.6",
        "usr/lib64",
        "usr/lib64/ld.so",
    ]
    assert items["lib32"] == link("lib32", "usr/lib32")
    assert items["usr/lib64/ld.so"].target == "/lib/x86_64-linux-gnu/ld.so"


def test_the_base_has_what_scripts_would_have_made(tmp_path: Path) -> None:
    package = made(
        tmp_path,
        "alpha",
        shipped("./tmp/", 0o1777),
        shipped("./root/", 0o700),
        shipped("./var/lock/", 0o1777),
        Entry("./usr/share/zoneinfo/Etc/UTC", b"TZif"),
        Entry("./usr/share/ca-certificates/mozilla/b.crt", b"B"),
        Entry("./usr/share/ca-certificates/mozilla/a.crt", b"A\n"),
        Entry("./usr/share/ca-certificates/mozilla/note", b"no certificate"),
    )
    tree = debian.tree([package], base=True, also=debian.system(10001, home="/home"))
    items = {item.path: item for item in tree}
    assert {path: one.target for path, one in items.items() if one.kind == "link"} == {
        "bin": "usr/bin",
        "etc/localtime": "/usr/share/zoneinfo/Etc/UTC",
        "lib": "usr/lib",
        "lib64": "usr/lib64",
        "sbin": "usr/sbin",
        "usr/lib/ssl/cert.pem": "/etc/ssl/certs/ca-certificates.crt",
        "usr/lib/ssl/certs": "/etc/ssl/certs",
        "var/lock": "/run/lock",
        "var/run": "/run",
    }
    assert items["etc/ssl/certs/ca-certificates.crt"].content == b"A\nB\n"
    assert items["etc/timezone"].content == b"Etc/UTC\n"
    assert items["etc/nsswitch.conf"].content.startswith(b"passwd: files\n")
    assert items["etc/passwd"].content.startswith(b"root:")
    modes = {path: one.mode for path, one in items.items() if one.kind == "folder"}
    assert {path: mode for path, mode in modes.items() if mode != 0o755} == {
        "root": 0o700,
        "run/lock": 0o1777,
        "tmp": 0o1777,
    }
    assert {"usr/bin", "usr/sbin", "usr/lib", "usr/lib64", "run"} <= modes.keys()
    paths = [item.path.split("/") for item in tree]
    assert paths == sorted(paths)


def test_a_base_without_certificates_and_time_zones(tmp_path: Path) -> None:
    made_of = {item.path for item in debian.tree([made(tmp_path, "alpha")], base=True)}
    assert "etc/nsswitch.conf" in made_of
    assert not {"etc/ssl", "etc/localtime", "etc/timezone", "usr/lib/ssl"} & made_of


def test_modes_are_normalised(tmp_path: Path) -> None:
    entries = [
        Entry("./a", mode=0o600),
        Entry("./b", mode=0o4711),
        Entry("./c", mode=0o664),
        shipped("./d/", 0o2775),
    ]
    items = debian.tree([made(tmp_path, "alpha", *entries)])
    assert [(item.path, oct(item.mode)) for item in items[:4]] == [
        ("a", "0o644"),
        ("b", "0o755"),
        ("c", "0o644"),
        ("d", "0o755"),
    ]


def test_manuals_and_translations_are_left_out_and_licences_are_not(tmp_path: Path) -> None:
    share = "./usr/share"
    package = made(
        tmp_path,
        "alpha",
        shipped(f"{share}/man/"),
        Entry(f"{share}/man/man1/alpha.1.gz"),
        Entry(f"{share}/locale/de/LC_MESSAGES/alpha.mo"),
        Entry(f"{share}/lintian/overrides/alpha"),
        shipped(f"{share}/doc/empty/"),
        Entry(f"{share}/doc/alpha/changelog.gz"),
        Entry(f"{share}/doc/alpha/copyright", b"MIT"),
        Entry(f"{share}/doc/alpha/examples/copyright"),
        linked(f"{share}/doc/alpha/NEWS", "README"),
        linked(f"{share}/doc/beta", "alpha"),
        Entry(f"{share}/manual", b"kept"),
    )
    paths = [item.path for item in debian.tree([package]) if item.path.startswith("usr/share/")]
    assert paths == [
        "usr/share/doc",
        "usr/share/doc/alpha",
        "usr/share/doc/alpha/copyright",
        "usr/share/doc/beta",
        "usr/share/manual",
    ]


def test_two_packages_may_bring_the_same_and_not_something_else(tmp_path: Path) -> None:
    alpha = made(tmp_path, "alpha", Entry("./lib/x", b"same"))
    beta = made(tmp_path, "beta", Entry("./usr/lib/x", b"same"))
    gamma = made(tmp_path, "gamma", Entry("./usr/lib/x", b"other"))
    assert [item.path for item in debian.tree([alpha, beta])][2] == "usr/lib/x"
    with pytest.raises(InputError) as caught:
        debian.tree([alpha, gamma])
    assert str(caught.value) == (
        "/usr/lib/x: two packages bring one path with different content\n"
        "  found: one of alpha, one of gamma\n  mend: leave one of the two packages out"
    )


@pytest.mark.parametrize("through", [linked("./usr/a", "/etc"), Entry("./usr/a", b"file")])
def test_a_path_leads_through_folders(tmp_path: Path, through: Entry) -> None:
    alpha = made(tmp_path, "alpha", through)
    beta = made(tmp_path, "beta", Entry("./usr/a/b/c"))
    with pytest.raises(InputError) as caught:
        debian.tree([alpha, beta])
    kind = "link" if through.target else "file"
    assert str(caught.value) == (
        f"/usr/a/b/c: a path of beta leads through a {kind}\n"
        "  expected: /usr/a to be a folder\n  found: that of alpha\n"
        "  mend: leave one of the two packages out"
    )


def test_users_and_groups() -> None:
    group, passwd = debian.system(10001, home="/results")
    assert (group.path, passwd.path) == ("etc/group", "etc/passwd")
    assert passwd.content.decode().splitlines() == [
        "root:x:0:0::/root:/usr/sbin/nologin",
        "envbuild:x:10001:10001::/results:/usr/sbin/nologin",
        "nobody:x:65534:65534::/nonexistent:/usr/sbin/nologin",
    ]
    assert group.content.decode().splitlines() == [
        "root:x:0:",
        "envbuild:x:10001:",
        "nogroup:x:65534:",
    ]


@pytest.mark.parametrize("user", [0, 65534])
def test_a_user_that_is_there_already_is_listed_once(user: int) -> None:
    group, passwd = debian.system(user, home="/results")
    assert passwd.content.count(b"\n") == group.content.count(b"\n") == 2
