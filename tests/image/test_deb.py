from __future__ import annotations

import subprocess
import tarfile
from pathlib import Path

import pytest

from envbuild.errors import InputError
from envbuild.image import deb
from envbuild.image.tar import Item, folder, link
from tests import debian
from tests.debian import Entry
from tests.programs import require


@pytest.mark.parametrize("compression", ["", ".gz", ".xz"])
def test_what_a_package_installs_in_its_own_order(tmp_path: Path, compression: str) -> None:
    entries = [
        debian.folder("./usr/"),
        Entry("./usr/tool", b"#!", 0o4755),
        debian.link("./usr/alias", "tool"),
        Entry("usr/Főtanúsítvány.crt", b"x" * 70_000),
    ]
    path = debian.deb(tmp_path, "alpha", entries=entries, compression=compression)
    assert list(deb.entries(path)) == [
        folder("usr"),
        Item("usr/tool", mode=0o4755, content=b"#!"),
        link("usr/alias", "tool"),
        Item("usr/Főtanúsítvány.crt", content=b"x" * 70_000),
    ]


def test_the_control_stanza(tmp_path: Path) -> None:
    path = debian.deb(tmp_path, "alpha", "1.0", depends="beta")
    assert deb.control(path) == (
        b"Package: alpha\nVersion: 1.0\nArchitecture: all\nDescription: a toy\nDepends: beta\n"
    )


def test_a_package_that_dpkg_wrote(tmp_path: Path) -> None:
    require("dpkg-deb", "dpkg")
    tree = tmp_path / "tree"
    (tree / "DEBIAN").mkdir(parents=True)
    (tree / "DEBIAN" / "control").write_text(
        "Package: alpha\nVersion: 1\nArchitecture: all\nMaintainer: me\nDescription: a toy\n"
    )
    (tree / "usr" / "lib").mkdir(parents=True)
    (tree / "usr" / "lib" / "a").write_text("a")
    (tree / "usr" / "lib" / "b").hardlink_to(tree / "usr" / "lib" / "a")
    path = tmp_path / "alpha.deb"
    subprocess.run(
        ["dpkg-deb", "--root-owner-group", "-Zxz", "--build", tree, path],
        check=True,
        capture_output=True,
    )
    assert deb.control(path).startswith(b"Package: alpha\nVersion: 1\n")
    found = {item.path: item for item in deb.entries(path)}
    assert list(found) == ["usr", "usr/lib", "usr/lib/a", "usr/lib/b"]
    assert found["usr/lib/a"].content == b"a"
    assert found["usr/lib/b"] == link("usr/lib/b", "a")


def test_a_hard_link_becomes_a_symbolic_one(tmp_path: Path) -> None:
    hard = [
        Entry("./usr/lib/b", type=tarfile.LNKTYPE, target="./usr/lib/a"),
        Entry("./bin/b", type=tarfile.LNKTYPE, target="./usr/lib/a"),
    ]
    path = debian.deb(tmp_path, "alpha", entries=[Entry("./usr/lib/a", b"a"), *hard])
    assert list(deb.entries(path))[1:] == [link("usr/lib/b", "a"), link("bin/b", "/usr/lib/a")]


@pytest.mark.parametrize(
    "name", ["/etc/passwd", "../etc/passwd", "./usr/../../etc/passwd", "usr//lib", "./usr/./lib"]
)
def test_paths_that_leave_the_root_are_refused(tmp_path: Path, name: str) -> None:
    path = debian.deb(tmp_path, "alpha", entries=[Entry(name)])
    with pytest.raises(InputError) as caught:
        list(deb.entries(path))
    assert str(caught.value) == (
        f"{path}: a Debian package holds a path that is none below the root\n"
        f"  expected: names without '..', joined by '/'\n  found: {name!r}"
    )


@pytest.mark.parametrize(
    ("entry", "kind"),
    [
        (Entry("./dev/null", type=tarfile.CHRTYPE), "3"),
        (Entry("./run/pipe", type=tarfile.FIFOTYPE), "6"),
        (Entry("./usr/a", type=tarfile.LNKTYPE, target="./etc/shadow"), "1"),
    ],
)
def test_devices_and_links_to_elsewhere_are_refused(
    tmp_path: Path, entry: Entry, kind: str
) -> None:
    path = debian.deb(tmp_path, "alpha", entries=[entry])
    with pytest.raises(InputError) as caught:
        list(deb.entries(path))
    assert str(caught.value) == (
        f"{path}: {entry.path}: a Debian package holds what no image can have\n"
        "  expected: a file, a folder, a symbolic link, or a hard link to a file that comes before "
        f"it\n  found: tar type '{kind}'"
    )


def test_another_compression_is_refused(tmp_path: Path) -> None:
    path = debian.deb(tmp_path, "alpha", compression=".zst")
    with pytest.raises(InputError) as caught:
        list(deb.entries(path))
    assert str(caught.value) == (
        f"{path}: not a Debian package, or one whose data.tar is compressed otherwise than "
        "Debian's\n  expected: data.tar.xz, data.tar.gz or data.tar\n  found: data.tar.zst"
    )


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (b"", "no ar archive"),
        (b"PK\x03\x04", "no ar archive"),
        (debian.ar([("other", b"2.0\n")]), "other at byte 8"),
        (debian.ar([("debian-binary", b"3.0\n")]), "debian-binary at byte 8"),
        (debian.ar([("debian-binary", b"2.0\n")]) + b"x" * 60, "no whole member at byte 72"),
        (
            debian.ar([("debian-binary", b"2.0\n"), ("data.tar", bytes(512))])[:-1],
            "no whole member at byte 72",
        ),
    ],
)
def test_what_is_no_package(tmp_path: Path, data: bytes, found: str) -> None:
    path = tmp_path / "alpha.deb"
    path.write_bytes(data)
    with pytest.raises(InputError) as caught:
        list(deb.entries(path))
    assert str(caught.value) == (
        f"{path}: not a Debian package, or a damaged one\n"
        "  expected: an ar archive of whole members, the first debian-binary of version 2 "
        f"(deb(5))\n  found: {found}"
    )


def test_a_damaged_package(tmp_path: Path) -> None:
    path = debian.deb(tmp_path, "alpha", entries=[Entry("./usr/a", bytes(range(256)) * 99)])
    data = bytearray(path.read_bytes())
    data[-60] ^= 0xFF
    path.write_bytes(data)
    with pytest.raises(InputError, match="damaged Debian package: "):
        list(deb.entries(path))


def test_a_package_without_data_or_control(tmp_path: Path) -> None:
    path = tmp_path / "alpha.deb"
    path.write_bytes(debian.ar([("debian-binary", b"2.0\n"), ("control.tar", debian.tar([]))]))
    with pytest.raises(InputError, match=r"found: nothing of that name"):
        list(deb.entries(path))
    with pytest.raises(InputError) as caught:
        deb.control(path)
    assert str(caught.value) == (
        f"{path}: not a Debian package\n  expected: control in control.tar"
    )


def test_a_package_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        list(deb.entries(tmp_path / "alpha.deb"))
    assert str(caught.value) == (
        f"{tmp_path / 'alpha.deb'}: Debian package cannot be read: No such file or directory"
    )
