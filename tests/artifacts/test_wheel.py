"""Right wheels are admitted, old and odd ones too; what would do harm is refused."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envbuild.artifacts.archive import MEND
from envbuild.artifacts.wheel import Recorded, WheelContents, scan
from envbuild.errors import InputError
from tests.wheels import Member, Row, Said, append, change, digest, make_wheel

FILE = "toy-1.0-py3-none-any.whl"
INFO = "toy-1.0.dist-info"


def refusal(path: Path) -> str:
    with pytest.raises(InputError) as caught:
        scan(path)
    assert caught.value.exit_code == 2
    assert caught.value.mend == MEND
    return str(caught.value).removesuffix(f"\n  mend: {MEND}")


def test_what_a_wheel_holds(tmp_path: Path) -> None:
    path = make_wheel(
        tmp_path,
        "Toy.App",
        "1.0",
        files={"toy/__init__.py": "x = 1\n", "toy/native.so": b"\x7fELF"},
        data={"scripts/run.sh": "#!/bin/sh\n", "data/share/toy/x": "", "headers/toy.h": ""},
        entry_points="[console_scripts]\ntoy = toy:main\n\n[gui_scripts]\ntoyw = toy:main [gui]\n",
        modes={"toy/native.so": 0o755},
        build_tag="7",
        platform_tag="manylinux1_x86_64.manylinux_2_5_x86_64",
    )
    contents = scan(path)
    assert (contents.file, contents.name, contents.version) == (path.name, "toy-app", "1.0")
    assert (contents.dist_info, contents.data) == ("Toy_App-1.0.dist-info", "Toy_App-1.0.data")
    assert contents.record[0] == Recorded(
        "toy/__init__.py", "sha256", hashlib.sha256(b"x = 1\n").hexdigest(), 6
    )
    assert [entry.name for entry in contents.entries] == [
        *(line.path for line in contents.record),
        "Toy_App-1.0.dist-info/RECORD",
    ]
    assert contents.unpacked_size == sum(entry.size for entry in contents.entries)
    assert {entry.name: entry.mode for entry in contents.entries}["toy/native.so"] == 0o755


def test_where_entries_are_installed(tmp_path: Path) -> None:
    contents = scan(make_wheel(tmp_path, "toy", "1.0"))
    assert contents.landing("toy.py") == ("purelib", "toy.py")
    assert contents.landing("toy-1.0.data/scripts/run") == ("scripts", "run")
    assert contents.landing("toy-1.0.data/data/share/x") == ("data", "share/x")
    assert contents.landing("other.data/scripts/run") == ("purelib", "other.data/scripts/run")


def test_a_wheel_under_a_temporary_name(tmp_path: Path) -> None:
    path = make_wheel(tmp_path, "toy", "1.0").rename(tmp_path / "abc.part")
    assert scan(path, file=FILE).file == FILE


def change_row(path: str, *fields: str) -> Callable[[list[Row]], list[Row]]:
    return lambda rows: [(path, *fields) if row[0] == path else row for row in rows]


@pytest.mark.parametrize("algorithm", ["sha256", "sha384", "sha512"])
def test_digests_that_the_format_allows(tmp_path: Path, algorithm: str) -> None:
    text = b"VERSION = 1\n"
    row = change_row("toy.py", digest(text, algorithm), "12")
    contents = scan(make_wheel(tmp_path, "toy", "1.0", files={"toy.py": text}, record=row))
    assert contents.record[0] == Recorded(
        "toy.py", algorithm, hashlib.new(algorithm, text).hexdigest(), 12
    )


def test_signatures_need_no_line_in_record(tmp_path: Path) -> None:
    scan(make_wheel(tmp_path, "toy", "1.0", plant=append(Member(f"{INFO}/RECORD.jws".encode()))))


def test_folders_need_no_line_in_record(tmp_path: Path) -> None:
    folder = Member(b"toy_data/", mode=0o040755, deflate=False)
    scan(make_wheel(tmp_path, "toy", "1.0", plant=append(folder)))


def test_hexadecimal_digests_as_gmsh_has_them(tmp_path: Path) -> None:
    hexadecimal = hashlib.sha256(b"x").hexdigest()
    row = change_row("toy.py", f"sha256={hexadecimal}", "1")
    contents = scan(make_wheel(tmp_path, "toy", "1.0", files={"toy.py": "x"}, record=row))
    assert contents.record[0] == Recorded("toy.py", "sha256", hexadecimal, 1)


def test_a_file_signed_after_record_was_written_as_in_debugpy(tmp_path: Path) -> None:
    row = change_row("toy.py", digest(b"unsigned"), "8")
    contents = scan(make_wheel(tmp_path, "toy", "1.0", files={"toy.py": "signed"}, record=row))
    signed = hashlib.sha256(b"signed").hexdigest()
    assert contents.record[0] == Recorded("toy.py", "sha256", signed, 6, amended=True)


@pytest.mark.parametrize(
    "data",
    [
        "scripts/activate-global-python-argcomplete",
        "scripts/python-argcomplete-check-easy-install-script",
        "scripts/python3-config",
        "scripts/pydoc",
        "data/share/pyvenv.cfg",
        "data/lib/python3.11/site-packages/other.pth",
        "data/libexec/python",
        "data/etc/activate",
        "purelib/pyvenv.cfg",
        "platlib/bin/python",
        "headers/python",
    ],
)
def test_names_that_only_look_like_the_environments_own(tmp_path: Path, data: str) -> None:
    scan(make_wheel(tmp_path, "toy", "1.0", data={data: "x"}))


@pytest.mark.parametrize(
    ("data", "found"),
    [
        ("data/pyvenv.cfg", "pyvenv.cfg"),
        ("data/pyvenv.cfg/x", "pyvenv.cfg/x"),
        ("data/CACHEDIR.TAG", "CACHEDIR.TAG"),
        ("data/.gitignore", ".gitignore"),
        ("data/bin/python", "bin/python"),
        ("data/bin/python3", "bin/python3"),
        ("data/bin/pyvenv.cfg", "bin/pyvenv.cfg"),
        ("data/lib64", "lib64"),
        ("data/lib64/python3.11/site-packages/x.py", "lib64/python3.11/site-packages/x.py"),
        ("data/lib", "lib"),
        ("data/bin", "bin"),
        ("data/lib/python3.11/site-packages", "lib/python3.11/site-packages"),
        (
            "data/lib/python3.11/site-packages/_virtualenv.pth",
            "lib/python3.11/site-packages/_virtualenv.pth",
        ),
        ("scripts/python", "bin/python"),
        ("scripts/python3.11", "bin/python3.11"),
        ("scripts/python3.13t", "bin/python3.13t"),
        ("scripts/python/x", "bin/python/x"),
        ("scripts/activate", "bin/activate"),
        ("scripts/activate.fish", "bin/activate.fish"),
        ("scripts/activate_this.py", "bin/activate_this.py"),
        ("scripts/deactivate.bat", "bin/deactivate.bat"),
        ("scripts/pyvenv.cfg", "bin/pyvenv.cfg"),
        ("purelib/_virtualenv.py", "lib/python3/site-packages/_virtualenv.py"),
    ],
)
def test_what_the_environment_owns_is_not_overwritten(
    tmp_path: Path, data: str, found: str
) -> None:
    path = make_wheel(tmp_path, "toy", "1.0", data={data: "x"})
    assert refusal(path) == (
        f"{FILE}: toy-1.0.data/{data}: would overwrite what the environment owns\n  found: {found}"
    )


@pytest.mark.parametrize("name", ["_virtualenv.pth", "_virtualenv.py"])
def test_what_the_environment_owns_in_site_packages(tmp_path: Path, name: str) -> None:
    path = make_wheel(tmp_path, "toy", "1.0", files={name: "x"})
    assert refusal(path) == (
        f"{FILE}: {name}: would overwrite what the environment owns\n"
        f"  found: lib/python3/site-packages/{name}"
    )


@pytest.mark.parametrize(
    ("entry_points", "message"),
    [
        (
            "[console_scripts]\npython3 = toy:main\n",
            "would overwrite what the environment owns\n  found: bin/python3",
        ),
        (
            "[gui_scripts]\nactivate = toy:main\n",
            "would overwrite what the environment owns\n  found: bin/activate",
        ),
        (
            "[console_scripts]\n../evil = toy:main\n",
            "not a name for a script\n  found: ../evil",
        ),
        ("[console_scripts]\n.. = toy:main\n", "not a name for a script\n  found: .."),
        ("toy = toy:main\n", "cannot be read: File contains no section headers."),
        (
            "[console_scripts]\na = b:c\na = d:e\n",
            "cannot be read: While reading from '<string>' [line  3]: option 'a' in section "
            "'console_scripts' already exists",
        ),
    ],
)
def test_scripts_of_entry_points(tmp_path: Path, entry_points: str, message: str) -> None:
    path = make_wheel(tmp_path, "toy", "1.0", entry_points=entry_points)
    assert refusal(path) == f"{FILE}: {INFO}/entry_points.txt: {message}"


def test_other_entry_points_may_have_any_name(tmp_path: Path) -> None:
    points = "[pytest11]\npython = toy\n\n[console_scripts]\nPython = toy:main\n"
    scan(make_wheel(tmp_path, "toy", "1.0", entry_points=points))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (
            "toy-1.0.data/lib/x",
            "toy-1.0.data/lib/x: not in a folder that installers know\n"
            "  expected: purelib, platlib, scripts, headers, data",
        ),
        (
            "toy-1.0.data/scripts",
            "toy-1.0.data/scripts: not in a folder that installers know\n"
            "  expected: purelib, platlib, scripts, headers, data",
        ),
        (
            "toy-2.0.data/scripts/x",
            "toy-2.0.data/scripts/x: a .data folder of another name\n  expected: toy-1.0.data",
        ),
    ],
)
def test_the_data_folder(tmp_path: Path, data: str, message: str) -> None:
    path = make_wheel(tmp_path, "toy", "1.0", files={data: "x"})
    assert refusal(path) == f"{FILE}: {message}"


def test_two_entries_for_one_place(tmp_path: Path) -> None:
    path = make_wheel(tmp_path, "toy", "1.0", files={"a.py": ""}, data={"platlib/a.py": "evil"})
    assert refusal(path) == (
        f"{FILE}: toy-1.0.data/platlib/a.py: is installed where another entry is\n  found: a.py"
    )


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (
            ("toy.py", "md5=1B2M2Y8AsgTpgAmY7PhCfg", "16"),
            "toy.py: no usable digest in RECORD\n"
            "  expected: sha256=, sha384= or sha512= and base64url\n"
            "  found: md5=1B2M2Y8AsgTpgAmY7PhCfg",
        ),
        (
            ("toy.py", "", ""),
            "toy.py: no usable digest in RECORD\n"
            "  expected: sha256=, sha384= or sha512= and base64url\n  found: none",
        ),
        (
            ("toy.py", "sha256=YWJj", "16"),
            "toy.py: no usable digest in RECORD\n"
            "  expected: sha256=, sha384= or sha512= and base64url\n  found: sha256=YWJj",
        ),
        (
            ("toy.py", "sha256=" + "zz" * 32, "16"),
            "toy.py: no usable digest in RECORD\n"
            "  expected: sha256=, sha384= or sha512= and base64url\n"
            f"  found: sha256={'zz' * 32}",
        ),
        (("other.py", "sha256=", "1"), "other.py: in RECORD, but not in the wheel"),
        (("toy.py",), f"{INFO}/RECORD: line 1 cannot be read\n  expected: PATH,DIGEST,SIZE"),
        ((f"{INFO}/WHEEL", "", ""), f"{INFO}/WHEEL: no usable digest in RECORD"),
    ],
)
def test_lines_of_record(tmp_path: Path, row: Row, message: str) -> None:
    path = make_wheel(tmp_path, "toy", "1.0", record=lambda rows: [row, *rows[1:]])
    assert refusal(path).startswith(f"{FILE}: {message}")


def test_a_file_that_record_does_not_list(tmp_path: Path) -> None:
    path = make_wheel(tmp_path, "toy", "1.0", plant=append(Member(b"extra.py", b"import os")))
    assert refusal(path) == f"{FILE}: extra.py: in the wheel, but not in RECORD"


def test_a_file_that_record_lists_twice(tmp_path: Path) -> None:
    path = make_wheel(tmp_path, "toy", "1.0", record=lambda rows: [*rows, rows[0]])
    assert refusal(path) == f"{FILE}: toy.py: in RECORD twice"


@pytest.mark.parametrize("missing", ["METADATA", "WHEEL", "RECORD"])
def test_a_missing_file_of_dist_info(tmp_path: Path, missing: str) -> None:
    path = make_wheel(
        tmp_path,
        "toy",
        "1.0",
        record=lambda rows: [row for row in rows if row[0] != f"{INFO}/{missing}"],
        plant=lambda members: [
            member for member in members if member.name != f"{INFO}/{missing}".encode()
        ],
    )
    assert refusal(path) == f"{FILE}: {INFO}/{missing}: not in the wheel"


@pytest.mark.parametrize(
    ("name", "version", "file", "message"),
    [
        (
            "toy",
            "1.0",
            "toy-2.0-py3-none-any.whl",
            "the .dist-info folder of another project or version\n"
            "  expected: toy-2.0.dist-info\n  found: toy-1.0.dist-info",
        ),
        (
            "toy",
            "1.0",
            "other-1.0-py3-none-any.whl",
            "the .dist-info folder of another project or version\n"
            "  expected: other-1.0.dist-info\n  found: toy-1.0.dist-info",
        ),
        (
            "toy",
            "1.0",
            "toy.whl",
            "not a wheel's file name\n  expected: NAME-VERSION(-BUILD)-PYTHON-ABI-PLATFORM.whl",
        ),
        (
            "toy",
            "1.0",
            "toy-x-py3-none-any.whl",
            "not a wheel's file name\n  expected: NAME-VERSION(-BUILD)-PYTHON-ABI-PLATFORM.whl",
        ),
    ],
)
def test_the_file_name(tmp_path: Path, name: str, version: str, file: str, message: str) -> None:
    path = make_wheel(tmp_path, name, version, file=file)
    assert refusal(path) == f"{file}: {message}"


def test_spellings_of_one_name_and_version(tmp_path: Path) -> None:
    path = make_wheel(
        tmp_path,
        "Toy_App",
        "1.0+cu.126",
        metadata="Name: toy.app\nVersion: 1.0+cu-126\n",
        file="toy_app-1.0+cu.126-py2.py3-none-any.whl",
    )
    assert scan(path).name == "toy-app"


@pytest.mark.parametrize(
    ("metadata", "found"),
    [
        ("Name: other\nVersion: 1.0\n", "other 1.0"),
        ("Name: toy\nVersion: 2\n", "toy 2"),
        ("Name: toy\nVersion: none\n", "toy none"),
        ("Name: toy\nName: other\nVersion: 1.0\n", "toy other 1.0"),
        ("Name: toy\n\nVersion: 1.0\n", "toy"),
        ("", "none"),
    ],
)
def test_metadata_must_agree(tmp_path: Path, metadata: str, found: str) -> None:
    path = make_wheel(tmp_path, "toy", "1.0", metadata=metadata)
    assert refusal(path) == (
        f"{FILE}: {INFO}/METADATA: its Name and Version are not those of the file name\n"
        f"  expected: toy 1.0\n  found: {found}"
    )


@pytest.mark.parametrize(
    ("wheel", "found"), [("Wheel-Version: 2.0\n", "2.0"), ("Tag: py3-none-any\n", "none")]
)
def test_another_wheel_version(tmp_path: Path, wheel: str, found: str) -> None:
    path = make_wheel(tmp_path, "toy", "1.0", wheel=wheel)
    assert refusal(path) == (
        f"{FILE}: {INFO}/WHEEL: unknown Wheel-Version\n  expected: 1.x\n  found: {found}"
    )


@pytest.mark.parametrize(
    ("files", "found"),
    [
        ({"other-1.0.dist-info/METADATA": ""}, "other-1.0.dist-info, toy-1.0.dist-info"),
        ({"toy-1.0-1.dist-info/x": ""}, "toy-1.0-1.dist-info, toy-1.0.dist-info"),
    ],
)
def test_two_dist_info_folders(tmp_path: Path, files: dict[str, str], found: str) -> None:
    path = make_wheel(tmp_path, "toy", "1.0", files=files)
    assert refusal(path) == (
        f"{FILE}: not exactly one .dist-info folder\n  expected: 1\n  found: {found}"
    )


def test_text_that_is_not_utf8(tmp_path: Path) -> None:
    name = f"{INFO}/METADATA"
    path = make_wheel(tmp_path, "toy", "1.0", plant=change(name, content=b"Name: \xff"))
    assert refusal(path) == f"{FILE}: {name}: not UTF-8 at byte 6"


def test_not_a_zip(tmp_path: Path) -> None:
    path = tmp_path / FILE
    path.write_bytes(b"<html>404</html>")
    assert refusal(path) == (
        f"{FILE}: not a whole zip\n  expected: a zip's end record as the last 22 bytes"
    )


def test_the_zip_is_checked(tmp_path: Path) -> None:
    path = make_wheel(tmp_path, "toy", "1.0", plant=change("toy.py", local=Said(name=b"sys.py")))
    assert refusal(path).startswith(
        f"{FILE}: toy.py: its local header disagrees with the zip's directory\n"
    )


def test_nothing_is_admitted_from_a_link(tmp_path: Path) -> None:
    path = make_wheel(tmp_path, "toy", "1.0", plant=change("toy.py", mode=0o120777))
    assert re.match(rf"{re.escape(FILE)}: toy.py: a link, ", refusal(path))


def facts(contents: WheelContents) -> object:
    """Everything that installing relies on."""
    modes = {entry.name: (entry.size, entry.start) for entry in contents.entries}
    return contents.name, contents.version, contents.record, modes


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = make_wheel(
        tmp_path_factory.mktemp("whole"), "toy", "1.0", data={"scripts/run": "#!python\n"}
    )
    return path.read_bytes()


@given(data=st.data())
def test_a_damaged_wheel_is_refused_or_says_the_same(
    tmp_path_factory: pytest.TempPathFactory, whole: bytes, data: st.DataObject
) -> None:
    """No traceback, and never another name, digest or size for a file.

    Bits that nobody reads (times, versions, permission bits) may flip, and the content of files
    whose digest RECORD holds: that is compared when they are installed.
    """
    damaged = bytearray(whole)
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[data.draw(st.integers(0, len(whole) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    cut = data.draw(st.sampled_from([0, 0, 0, 1, 22, 100, len(whole)]))
    folder = tmp_path_factory.getbasetemp()
    path = folder / FILE
    path.write_bytes(damaged[: len(damaged) - cut])
    try:
        contents = scan(path)
    except InputError:
        return
    path.write_bytes(whole)
    assert facts(contents) == facts(scan(path))
