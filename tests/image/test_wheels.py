"""Wheels become in a layer what the real uv makes of them at the same prefix."""

from __future__ import annotations

import csv
import hashlib
import io
import os
import posixpath
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envbuild import uvtool
from envbuild.artifacts import Artifact
from envbuild.artifacts.archive import MEND
from envbuild.digest import sha256_file
from envbuild.errors import EnvbuildError, InputError, StepError
from envbuild.findings import Finding
from envbuild.image import wheels
from envbuild.image.layer import Layer
from envbuild.image.wheels import Planned, Target
from envbuild.relocation import scripts
from tests.wheels import Member, Plant, Row, Said, append, change, digest, make_wheel

MINOR = f"{sys.version_info.major}.{sys.version_info.minor}"
PACKAGES = f"lib/python{MINOR}/site-packages"
TARGET = Target("/opt/env", MINOR)


class File(msgspec.Struct, frozen=True):
    """A file of an installed wheel."""

    content: bytes
    executable: bool


Files = dict[str, File]


def artifact(path: Path) -> Artifact:
    return Artifact(path.name, path.stat().st_size, sha256_file(path))


def planned(paths: Sequence[Path], target: Target) -> tuple[list[Planned], list[Finding]]:
    held = {path.name: wheels.read(path) for path in paths}
    brought = {name: wheels.files(one, target) for name, one in held.items()}
    return wheels.plan([artifact(path) for path in paths], held, brought, target)


def write(layer: Layer, plan: Planned, path: Path, target: Target, *, verify: bool) -> None:
    held = wheels.read(path)
    brought = wheels.files(held, target)
    wheels.write(layer, plan, held, brought, path, target, verify_record=verify)


def archive(paths: Sequence[Path], target: Target = TARGET, *, verify: bool = True) -> bytes:
    """Write wheels into one layer."""
    out = io.BytesIO()
    layer = Layer(out, "none")
    for path, plan in zip(paths, planned(paths, target)[0], strict=True):
        write(layer, plan, path, target, verify=verify)
    layer.close()
    return out.getvalue()


def laid(paths: Sequence[Path], target: Target = TARGET) -> Files:
    """Return the files that wheels become in an image, by their places in the prefix."""
    found: Files = {}
    with tarfile.open(fileobj=io.BytesIO(archive(paths, target))) as opened:
        for member in opened:
            if member.isdir():
                assert member.mode == 0o755
                continue
            place = posixpath.relpath(f"/{member.name}", target.prefix)
            assert place not in found
            assert member.mode in (0o644, 0o755)
            content = opened.extractfile(member)
            assert content is not None
            found[place] = File(content.read(), member.mode == 0o755)
    return found


def here(prefix: Path) -> Files:
    return {
        str(path.relative_to(prefix)): File(path.read_bytes(), bool(path.stat().st_mode & 0o100))
        for path in prefix.rglob("*")
        if path.is_file() and not path.is_symlink()
    }


def by_uv(prefix: Path, paths: Sequence[Path]) -> Files:
    """Return the files that uv makes of wheels, installed one by one."""
    uv = uvtool.executable()
    subprocess.run([uv, "venv", "-q", "-p", sys.executable, prefix], check=True)
    # uv locks an environment by this file
    before = {*here(prefix), ".lock"}
    for path in paths:
        requirement = path.name.split("-")[0]
        subprocess.run(
            [
                *(uv, "pip", "install", "--quiet", "--python", prefix / "bin" / "python"),
                *("--offline", "--no-config", "--no-cache", "--no-index", "--no-deps"),
                *("--find-links", path.parent, "--link-mode", "copy", requirement),
            ],
            check=True,
        )
    return {path: file for path, file in here(prefix).items() if path not in before}


def rows(files: Files, info: str) -> dict[str, tuple[str, str]]:
    text = files[f"{PACKAGES}/{info}/RECORD"].content.decode()
    # uv lists scripts that it did not install, where they are in the wheel
    data = info.removesuffix(".dist-info") + ".data/"
    found = [row for row in csv.reader(text.splitlines()) if not row[0].startswith(data)]
    assert len({row[0] for row in found}) == len(found)
    return {path: (said, size) for path, said, size in found}


def same(folder: Path, path: Path, points: Mapping[str, tuple[str, str]]) -> None:
    """Compare a wheel in an image with the same wheel in an environment of uv's.

    Args:
        folder: a folder for the environment.
        path: the wheel.
        points: module and attribute of scripts for entry points, by their places.
    """
    prefix = folder / "env"
    ours, theirs = laid([path], Target(str(prefix), MINOR)), by_uv(prefix, [path])
    info = "-".join(path.name.split("-")[:2]) + ".dist-info"
    apart = {f"{PACKAGES}/{info}/{name}" for name in ("INSTALLER", "RECORD", "uv_cache.json")}
    assert set(ours) - apart == set(theirs) - apart
    for place in sorted(set(ours) - apart - set(points)):
        assert (place, ours[place]) == (place, theirs[place])
    for place, (module, attribute) in points.items():
        for one in (ours[place], theirs[place]):
            script = scripts.shebang(one.content)
            assert script.interpreter in (f"{prefix}/bin/python", f"{prefix}/bin/python3")
            assert scripts.fault(script.body, module, attribute) is None
            assert one.executable
    assert ours[f"{PACKAGES}/{info}/INSTALLER"].content == b"envbuild\n"
    aside = {f"{info}/INSTALLER", f"{info}/uv_cache.json", *(f"../../../{one}" for one in points)}
    mine, its = (
        {place: row for place, row in rows(files, info).items() if place not in aside}
        for files in (ours, theirs)
    )
    assert mine == its
    # and every file but RECORD has its own digest there
    for place, row in rows(ours, info).items():
        content = ours[posixpath.normpath(f"{PACKAGES}/{place}")].content
        expected = ("", "") if place == f"{info}/RECORD" else (digest(content), str(len(content)))
        assert (place, row) == (place, expected)
    assert list(rows(ours, info)) == sorted(rows(ours, info))


def many(folder: Path) -> Path:
    stem = "Toy_App-1.0"
    long = "deep/" * 30 + "n" * 120 + ".txt"
    return make_wheel(
        folder,
        "Toy.App",
        "1.0",
        files={
            "toy/__init__.py": "def main():\n    return 0\n",
            "toy/private.py": "x = 1\n",
            "toy/native.so": b"\x7fELF" + bytes(5000),
            "toy/with,comma.txt": "a",
            'toy/with"quote.txt': "b",
            "toy/ünï cödé.txt": "é",
            f"toy/{long}": "deep",
            "toy/wide.txt": "zip64",
            "toy/streamed.txt": "descriptor",
            "toy/empty": "",
        },
        data={
            "purelib/pure.py": "p = 1\n",
            "platlib/plat.py": "q = 1\n",
            "headers/sub/toy.h": "#pragma once\n",
            "data/share/toy/table.csv": "1,2\n",
            "data/etc/toy.conf": "a = 1\n",
            "scripts/python-script": "#!python\nprint(1)\n",
            "scripts/window-script": "#!pythonw -O\nprint(2)\n",
            "scripts/other-script": "#!/bin/sh\necho\n",
            "scripts/binary": b"\x7fELF\x00\xff#!python",
            "scripts/none": "",
        },
        entry_points=(
            "[console_scripts]\ntoy = toy:main\nToy-Deep = toy.sub.mod : Tool.run [extra]\n\n"
            "[gui_scripts]\ntoy-gui = toy:main[gui,more]\n\n[other]\nx = toy:nothing\n"
        ),
        modes={
            "toy/private.py": 0o600,
            "toy/native.so": 0o755,
            "toy/empty": 0o664,
            f"{stem}.data/scripts/binary": 0o666,
            f"{stem}.data/scripts/none": 0o600,
        },
        record=quoted,
        plant=lambda members: append(
            Member(b"toy/", mode=0o040755, deflate=False),
            Member(b"toy/nothing/", mode=0o040700, deflate=False),
        )(change("toy/streamed.txt", descriptor="<4s3L")(wide(members))),
    )


def quoted(lines: list[Row]) -> list[Row]:
    """Write paths as CSV has them, where there is need."""
    return [
        ('"' + path.replace('"', '""') + '"' if set(path) & set(',"') else path, *rest)
        for path, *rest in lines
    ]


def wide(members: list[Member]) -> list[Member]:
    return [
        msgspec.structs.replace(
            one, zip64=one.name == b"toy/wide.txt", deflate=one.mode != 0o100664
        )
        for one in members
    ]


def test_a_wheel_of_everything(tmp_path: Path) -> None:
    same(
        tmp_path,
        many(tmp_path / "wheels"),
        {
            "bin/toy": ("toy", "main"),
            "bin/Toy-Deep": ("toy.sub.mod", "Tool.run"),
            "bin/toy-gui": ("toy", "main"),
        },
    )


def test_scripts_that_stand_for_entry_points_are_made_anew(tmp_path: Path) -> None:
    names = ("toy", "toy.exe", "toy-script.py", "gui", "gui.pya")
    others = ("TOY", "toy.EXE", "toy-script.pyw", "toy.py", "toy.exe.exe", "toy2")
    path = make_wheel(
        tmp_path / "wheels",
        "toy",
        "1.0",
        data={
            **{f"scripts/{name}": "#!python\nprint(1)\n" for name in names},
            **{f"scripts/{name}": "#!/bin/sh\necho\n" for name in others},
        },
        entry_points="[console_scripts]\ntoy = toy:main\n[gui_scripts]\ngui = toy:gui\n",
    )
    same(tmp_path, path, {"bin/toy": ("toy", "main"), "bin/gui": ("toy", "gui")})


def test_data_that_lies_where_a_script_for_an_entry_point_would(tmp_path: Path) -> None:
    points = "[console_scripts]\ntoy = toy:main\n"
    path = make_wheel(tmp_path, "toy", "1.0", data={"data/bin/toy": "x"}, entry_points=points)
    ours, theirs = laid([path]), by_uv(tmp_path / "env", [path])
    assert ours["bin/toy"] == theirs["bin/toy"] == File(b"x", executable=False)
    assert rows(ours, "toy-1.0.dist-info")["../../../bin/toy"] == (digest(b"x"), "1")


@pytest.mark.parametrize(
    "line",
    [
        *("#!python\n", "#!python -O\n", "#!python\r\n", "#!pythonw\r\n", "#!pythonw -E\n"),
        *("#!python", "#!python3\n", "#!python3.11 -I\n", "#! python\n", "#!/usr/bin/python\n"),
    ],
)
def test_the_first_line_of_scripts_is_that_of_uv(tmp_path: Path, line: str) -> None:
    data = {"scripts/toy": line, "scripts/more": line + "print(1)\n\nprint(2)\r\n"}
    same(tmp_path, make_wheel(tmp_path / "wheels", "toy", "1.0", data=data), {})


NAME = st.text("abcXYZ019_-+~ ünß,", min_size=1, max_size=12).filter(
    lambda text: text.strip() == text and not text.endswith((".py", "~"))
)
CONTENT = st.binary(max_size=200) | st.builds(
    lambda part, times: part * times, st.binary(max_size=20), st.integers(1, 3000)
)
TREE = st.dictionaries(
    st.lists(NAME, min_size=1, max_size=3).map(lambda parts: "toy/" + "/".join(parts)),
    CONTENT,
    max_size=5,
)
MODES = st.sampled_from((0o600, 0o644, 0o664, 0o666, 0o755))
POINTS = st.dictionaries(
    st.from_regex(r"[a-z][a-z0-9.]{0,8}", fullmatch=True),
    st.from_regex(r"[a-z]{1,4}(\.[a-z]{1,4})?:[a-z]{1,4}(\.[a-z]{1,4})?", fullmatch=True),
    max_size=3,
)


@settings(max_examples=12, deadline=None)
@given(
    TREE,
    st.dictionaries(
        st.builds(
            lambda scheme, name: f"{scheme}/own-{name}",
            st.sampled_from(("purelib", "platlib", "data", "headers", "scripts")),
            NAME,
        ),
        CONTENT | st.builds(lambda rest: b"#!python" + rest, CONTENT),
        max_size=4,
    ),
    POINTS,
    st.data(),
)
def test_any_wheel(
    files: dict[str, bytes], data: dict[str, bytes], points: dict[str, str], draw: st.DataObject
) -> None:
    folders = {name[:at] for name in files for at, letter in enumerate(name) if letter == "/"}
    files = {name: content for name, content in files.items() if name not in folders}
    names = [*files, *(f"toy-1.0.data/{name}" for name in data)]
    keywords = {"if", "is", "in", "or", "as", "and", "not", "def", "del", "try", "for", "None"}
    points = {
        name: value
        for name, value in points.items()
        if not keywords.intersection(value.replace(":", ".").split(".")) and name != "python"
    }

    def plant(members: list[Member]) -> list[Member]:
        changed = []
        for one in members:
            descriptor = draw.draw(st.sampled_from(("", "", "<4s3L", "<3L")))
            zip64 = not descriptor and draw.draw(st.booleans())
            packed = draw.draw(st.booleans())
            changed.append(
                msgspec.structs.replace(one, descriptor=descriptor, zip64=zip64, deflate=packed)
            )
        return changed

    with tempfile.TemporaryDirectory() as folder:
        path = make_wheel(
            Path(folder) / "wheels",
            "toy",
            "1.0",
            files=files,
            data=data,
            entry_points="[console_scripts]\n"
            + "".join(f"{name} = {value}\n" for name, value in points.items()),
            modes={name: draw.draw(MODES) for name in names},
            record=quoted,
            plant=plant,
        )
        said = {f"bin/{name}": value.split(":") for name, value in points.items()}
        same(Path(folder), path, {place: (one, two) for place, (one, two) in said.items()})


def toy(folder: Path, name: str, **files: str) -> Path:
    return make_wheel(
        folder, name, "1.0", files={one.replace("__", "/"): text for one, text in files.items()}
    )


def test_two_wheels_with_the_same_file(tmp_path: Path) -> None:
    one, two = (toy(tmp_path, name, shared__x="same") for name in ("one", "two"))
    plans, findings = planned([one, two], TARGET)
    assert findings == []
    assert [plan.hidden for plan in plans] == [(f"{PACKAGES}/shared/x",), ()]
    files = laid([one, two])
    assert files[f"{PACKAGES}/shared/x"].content == b"same"
    for info in ("one-1.0.dist-info", "two-1.0.dist-info"):
        assert rows(files, info)["shared/x"] == (digest(b"same"), "4")


def test_two_wheels_with_different_files_of_one_name(tmp_path: Path) -> None:
    one = toy(tmp_path, "one", shared__x="1", shared__y="1", own="1")
    two = toy(tmp_path, "two", shared__x="22", shared__y="22")
    plans, findings = planned([one, two], TARGET)
    assert findings == [
        Finding(
            "G001",
            "warning",
            f"{PACKAGES}/shared/x and 1 more",
            "one-1.0-py3-none-any.whl and two-1.0-py3-none-any.whl bring different files of one "
            "name",
            found="that of two-1.0-py3-none-any.whl, which comes later in the lock",
            mend="if the other one is needed, exclude that package in the environment's file",
        )
    ]
    assert plans[0].hidden == (f"{PACKAGES}/shared/x", f"{PACKAGES}/shared/y")
    files = laid([one, two])
    assert files[f"{PACKAGES}/shared/x"].content == b"22"
    # its RECORD says what it brought, as after an install
    assert rows(files, "one-1.0.dist-info")["shared/x"] == (digest(b"1"), "1")
    assert rows(files, "two-1.0.dist-info")["shared/x"] == (digest(b"22"), "2")
    theirs = by_uv(tmp_path / "env", [one, two])
    assert {place: theirs[place] for place in plans[0].hidden} == {
        place: files[place] for place in plans[0].hidden
    }
    assert rows(theirs, "one-1.0.dist-info")["shared/x"] == (digest(b"1"), "1")
    # the other way around the other one is there
    assert planned([two, one], TARGET)[1][0].where == f"{PACKAGES}/shared/x and 1 more"
    assert laid([two, one])[f"{PACKAGES}/shared/x"].content == b"1"


def test_three_wheels_with_one_file(tmp_path: Path) -> None:
    paths = [toy(tmp_path, name, shared=name[0]) for name in ("alpha", "beta", "gamma")]
    plans, findings = planned(paths, TARGET)
    place = f"{PACKAGES}/shared"
    assert [plan.hidden for plan in plans] == [(place,), (place,), ()]
    assert [(one.where, one.message.split()[0]) for one in findings] == [
        (place, "alpha-1.0-py3-none-any.whl"),
        (place, "beta-1.0-py3-none-any.whl"),
    ]
    assert laid(paths)[place].content == b"g"


def test_a_file_and_a_folder_of_one_name(tmp_path: Path) -> None:
    one, two = toy(tmp_path, "one", shared="1"), toy(tmp_path, "two", shared__x="2")
    message = (
        f"{PACKAGES}/shared: a file in one wheel, a folder in another\n"
        "  found: one-1.0-py3-none-any.whl and two-1.0-py3-none-any.whl\n"
        "  mend: exclude one of the two packages in the environment's file"
    )
    for paths in ([one, two], [two, one]):
        with pytest.raises(InputError) as caught:
            planned(paths, TARGET)
        assert str(caught.value) == message


def test_scripts_of_one_name(tmp_path: Path) -> None:
    points = "[console_scripts]\ntool = {name}:main\n"
    one, two = (
        make_wheel(tmp_path, name, "1.0", entry_points=points.format(name=name))
        for name in ("one", "two")
    )
    three = make_wheel(tmp_path, "three", "1.0", data={"scripts/tool": "#!/bin/sh\n"})
    plans, findings = planned([one, two, three], TARGET)
    assert [plan.hidden for plan in plans] == [("bin/tool",), ("bin/tool",), ()]
    assert [finding.where for finding in findings] == ["bin/tool", "bin/tool"]
    assert laid([one, two, three])["bin/tool"] == File(b"#!/bin/sh\n", executable=True)
    files = laid([three, two, one])
    assert b"from one import main\n" in files["bin/tool"].content
    for info in ("one-1.0.dist-info", "two-1.0.dist-info", "three-1.0.dist-info"):
        assert "../../../bin/tool" in rows(files, info)


def refused(
    path: Path, error: type[EnvbuildError] = InputError, *, known: Artifact | None = None
) -> EnvbuildError:
    """Write a wheel into a layer, and return what it is refused with."""
    plan = Planned(known or artifact(path))
    with pytest.raises(error) as caught:
        write(Layer(io.BytesIO(), "gzip"), plan, path, TARGET, verify=True)
    return caught.value


def test_a_wheel_changed_by_one_byte_after_locking(tmp_path: Path) -> None:
    path = toy(tmp_path, "toy", toy="x" * 1000)
    known = artifact(path)
    data = bytearray(path.read_bytes())
    data[data.index(b"toy") + 10] ^= 1
    path.write_bytes(data)
    held = wheels.read(toy(tmp_path / "other", "toy", toy="x" * 1000))
    layer = Layer(io.BytesIO(), "gzip")
    with pytest.raises(StepError) as caught:
        wheels.write(layer, Planned(known), held, wheels.files(held, TARGET), path, TARGET)
    assert str(caught.value) == (
        f"{path}: the wheel is not the one that is locked\n"
        f"  expected: SHA-256 {known.sha256}, {known.size} bytes\n"
        f"  found: SHA-256 {hashlib.sha256(data).hexdigest()}\n"
        "  mend: run `envbuild fetch`, which replaces it"
    )


def test_a_wheel_that_changes_while_it_is_read(tmp_path: Path) -> None:
    path = toy(tmp_path, "toy", toy="x" * 400_000)

    class Writing(io.BytesIO):
        def write(self, data: object, /) -> int:
            os.utime(path, ns=(0, 0))
            return 0

    held = wheels.read(path)
    layer = Layer(Writing(), "none")
    with pytest.raises(StepError) as caught:
        wheels.write(layer, Planned(artifact(path)), held, wheels.files(held, TARGET), path, TARGET)
    assert str(caught.value) == (
        f"{path}: the wheel changed while it was read\n"
        "  mend: see who writes to the wheelhouse, and run it again"
    )


def test_what_record_says_is_checked_if_that_is_asked_for(tmp_path: Path) -> None:
    path = make_wheel(
        tmp_path,
        "toy",
        "1.0",
        files={"toy.py": "abc"},
        record=lambda lines: [
            (row[0], digest(b"xyz"), "3") if row[0] == "toy.py" else row for row in lines
        ],
    )
    assert str(refused(path)) == (
        "toy-1.0-py3-none-any.whl: toy.py: its content is not what RECORD says\n"
        f"  expected: {hashlib.sha256(b'xyz').hexdigest()}\n"
        f"  found: {hashlib.sha256(b'abc').hexdigest()}\n"
        f"  mend: {MEND}"
    )
    archive([path], verify=False)


ENTRIES: dict[str, tuple[Plant, str]] = {
    "absolute": (
        append(Member(b"/etc/passwd", b"x")),
        "'/etc/passwd': a name that leaves its folder or reads differently elsewhere\n"
        "  expected: a relative path without empty, '.' or '..' parts, backslashes and control "
        "characters",
    ),
    "outside": (
        append(Member(b"toy/../../x", b"x")),
        "'toy/../../x': a name that leaves its folder or reads differently elsewhere\n"
        "  expected: a relative path without empty, '.' or '..' parts, backslashes and control "
        "characters",
    ),
    "link": (
        change("toy.py", mode=0o120777),
        "toy.py: a link, a device, or of a special mode\n"
        "  expected: a plain file or folder\n  found: lrwxrwxrwx",
    ),
    "flag bit 0": (
        change("toy.py", flags=0x1),
        "toy.py: flags that change how it is read (encryption and the like)\n"
        "  expected: none but 0x080e\n  found: 0x0001",
    ),
    "flag bit 13": (
        change("toy.py", flags=0x2000),
        "toy.py: flags that change how it is read (encryption and the like)\n"
        "  expected: none but 0x080e\n  found: 0x2000",
    ),
    "overlap": (
        change("toy.py", central=Said(stored_size=500), local=Said(stored_size=500)),
        "toy.py: overlaps what follows\n  expected: an end at byte 41\n  found: an end at byte 536",
    ),
    "headers disagree": (
        change("toy.py", local=Said(size=4)),
        "toy.py: its local header disagrees with the zip's directory\n"
        "  expected: toy.py, flags 0x0000, method 8, CRC-32 352441c2, 5 bytes stored, 3 bytes\n"
        "  found: toy.py, flags 0x0000, method 8, CRC-32 352441c2, 5 bytes stored, 4 bytes",
    ),
    "twice": (
        append(Member("caf\u00e9".encode(), flags=0x800), Member(b"cafe\xcc\x81", flags=0x800)),
        "cafe\u0301: in the zip twice",
    ),
    "ends early": (
        change("toy.py", central=Said(size=4), local=Said(size=4)),
        "toy.py: its content is not what the zip's directory says\n"
        "  expected: 4 bytes, CRC-32 352441c2\n  found: 3 bytes, CRC-32 352441c2",
    ),
    "wrong CRC": (
        change("toy.py", central=Said(crc=1), local=Said(crc=1)),
        "toy.py: its content is not what the zip's directory says\n"
        "  expected: 3 bytes, CRC-32 00000001\n  found: 3 bytes, CRC-32 352441c2",
    ),
    "bomb": (
        change("toy.py", central=Said(size=1 << 30), local=Said(size=1 << 30)),
        "toy.py: inflates to far more than an honest file does\n"
        "  expected: at most 500 times 5 bytes\n  found: 1073741824 bytes",
    ),
    "no bytes": (
        change(
            "toy.py",
            content=b"",
            deflate=False,
            central=Said(method=8, size=9),
            local=Said(method=8, size=9),
        ),
        "toy.py: its deflate stream has not the size that is said",
    ),
}


@pytest.mark.parametrize("fault", ENTRIES)
def test_wheels_that_do_harm(tmp_path: Path, fault: str) -> None:
    plant, message = ENTRIES[fault]
    size = {"bomb": str(1 << 30), "no bytes": "9", "ends early": "4"}.get(fault, "3")

    def record(lines: list[Row]) -> list[Row]:
        # where it says another size than the zip, the content is read when a wheel is admitted
        return [(*row[:2], size) if row[0] == "toy.py" else row for row in lines]

    path = make_wheel(tmp_path, "toy", "1.0", files={"toy.py": "abc"}, plant=plant, record=record)
    found = refused(path)
    assert str(found) == f"toy-1.0-py3-none-any.whl: {message}\n  mend: {MEND}"
    assert found.exit_code == 2


@pytest.mark.parametrize("length", [20, 124 - len("/bin/python"), 126 - len("/bin/python"), 400])
def test_scripts_run_below_prefixes_of_any_length(length: int, tmp_path: Path) -> None:
    path = make_wheel(
        tmp_path,
        "toy",
        "1.0",
        files={"toy.py": "class Tool:\n    @staticmethod\n    def run():\n        return 7\n"},
        data={
            "scripts/own": "#!pythonw -O\r\nimport sys\nprint(sys.argv[1:], __doc__)\n",
            "scripts/own-with-doc": '#!python\n"""Doc."""\nprint(1)\n',
        },
        entry_points="[console_scripts]\ntoy = toy:Tool.run\n",
    )
    # no part of a path is longer than 255 bytes
    parts = "p" * (length - 1) if length < 255 else "/".join(["p" * 199] * (length // 200))
    target = Target(f"/{parts}", MINOR)
    python = f"{target.prefix}/bin/python"
    files = laid([path], target)
    for name in ("toy", "own", "own-with-doc"):
        script = scripts.shebang(files[f"bin/{name}"].content)
        # a kernel takes 127 bytes of a line (execve(2))
        assert script.form == ("plain" if len(f"#!{python}") <= 127 else "sh")
        assert (script.interpreter, script.arguments) == (python, "")
    body = scripts.shebang(files["bin/toy"].content).body
    assert scripts.fault(body, "toy", "Tool.run") is None
    assert scripts.shebang(files["bin/own"].content).body.startswith(b"import sys\n")


def test_scripts_really_run_below_a_long_prefix(tmp_path: Path) -> None:
    path = make_wheel(
        tmp_path,
        "toy",
        "1.0",
        files={
            "toy.py": "import sys\n\nclass Tool:\n    def run():\n"
            "        print(sys.argv)\n        return 7\n"
        },
        data={"scripts/own": "#!pythonw -O\r\nimport sys\nprint(sys.argv[1:])\n"},
        entry_points="[console_scripts]\ntoy = toy:Tool.run\n",
    )
    prefix = tmp_path / ("p" * 120) / ("q" * 120)
    prefix.parent.mkdir()
    uv = uvtool.executable()
    subprocess.run([uv, "venv", "-q", "-p", sys.executable, prefix], check=True)
    for place, file in laid([path], Target(str(prefix), MINOR)).items():
        (prefix / place).parent.mkdir(parents=True, exist_ok=True)
        (prefix / place).write_bytes(file.content)
        (prefix / place).chmod(0o755 if file.executable else 0o644)
    done = subprocess.run([prefix / "bin" / "toy", "a b"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (7, "")
    assert done.stdout == f"{[str(prefix / 'bin' / 'toy'), 'a b']}\n"
    done = subprocess.run([prefix / "bin" / "own", "a b"], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "['a b']\n", "")


@pytest.mark.parametrize(
    ("point", "found"),
    [
        ("tool", "tool:"),
        ("tool:", "tool:"),
        ("os; import x:main", "os; import x:main"),
        ("tool:main()", "tool:main()"),
        ("to-ol:main", "to-ol:main"),
    ],
)
def test_entry_points_that_no_script_can_be_made_for(
    tmp_path: Path, point: str, found: str
) -> None:
    path = make_wheel(tmp_path, "tool", "1.0", entry_points=f"[console_scripts]\ntool = {point}\n")
    with pytest.raises(InputError) as caught:
        wheels.read(path)
    assert str(caught.value) == (
        "tool-1.0-py3-none-any.whl: tool-1.0.dist-info/entry_points.txt: no script can be made for "
        f"the entry point tool\n  expected: NAME = MODULE:ATTRIBUTE\n  found: {found}\n"
        f"  mend: {MEND}"
    )


WHITEOUT = (
    "a name that makes container engines remove a file of the layers below\n"
    "  expected: no part that begins with .wh. (OCI image-spec, whiteouts)\n"
    f"  mend: {MEND}"
)


@pytest.mark.parametrize("name", [".wh.alpha", "tool/.wh..wh..opq", ".wh.tool/x"])
def test_names_that_remove_files_are_refused(tmp_path: Path, name: str) -> None:
    path = make_wheel(tmp_path, "tool", "1.0", files={name: b""})
    with pytest.raises(InputError) as caught:
        wheels.read(path)
    assert str(caught.value) == f"{path.name}: {name}: {WHITEOUT}"


def test_scripts_that_remove_files_are_refused(tmp_path: Path) -> None:
    points = "[console_scripts]\n.wh.python = tool:main\n"
    path = make_wheel(tmp_path, "tool", "1.0", files={"tool.py": b""}, entry_points=points)
    with pytest.raises(InputError) as caught:
        wheels.read(path)
    assert str(caught.value) == f"{path.name}: bin/.wh.python: {WHITEOUT}"


def test_what_installers_say_of_a_wheel_can_be_another_wheels(tmp_path: Path) -> None:
    one = make_wheel(tmp_path, "alpha", "1.0", files={"alpha.py": b""})
    info = "alpha-1.0.dist-info"
    evil = {f"purelib/{info}/{name}": b"evil\n" for name in ("INSTALLER", "REQUESTED", "RECORD")}
    two = make_wheel(tmp_path, "zeta", "1.0", data=evil)
    plans, findings = planned([one, two], TARGET)
    assert plans[0].hidden == tuple(
        f"{PACKAGES}/{info}/{name}" for name in ("INSTALLER", "RECORD", "REQUESTED")
    )
    assert [finding.code for finding in findings] == ["G001"]
    # its own a wheel cannot bring: the installer writes it last
    own = make_wheel(tmp_path, "alpha", "2.0", data={"purelib/alpha-2.0.dist-info/INSTALLER": b"x"})
    held = wheels.read(own)
    assert not [one for one in wheels.files(held, TARGET) if one.place.endswith("INSTALLER")]


def test_what_installers_say_of_a_wheel_is_no_folder(tmp_path: Path) -> None:
    one = make_wheel(tmp_path, "alpha", "1.0", files={"alpha.py": b""})
    two = make_wheel(tmp_path, "zeta", "1.0", data={"purelib/alpha-1.0.dist-info/RECORD/x": b""})
    with pytest.raises(InputError) as caught:
        planned([one, two], TARGET)
    assert caught.value.what == "a file in one wheel, a folder in another"
