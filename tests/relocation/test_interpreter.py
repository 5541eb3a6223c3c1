"""The interpreter below a prefix: links, pyvenv.cfg, the pin, what extensions are built with."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envbuild import uvtool
from envbuild.relocation import interpreter
from envbuild.relocation.subject import Base
from tests import projects
from tests.relocation.corpus import subject

MINOR = f"python{projects.MINOR}"


def base(folder: Path, *, version: str | None = None) -> Path:
    """Lay out an interpreter: something that runs, a library, headers if a version is given."""
    (folder / "bin").mkdir(parents=True)
    shutil.copy2("/bin/sh", folder / "bin" / MINOR)
    (folder / "lib" / MINOR).mkdir(parents=True)
    (folder / "lib" / MINOR / "os.py").write_text("")
    if version is not None:
        headers = folder / "include" / MINOR
        headers.mkdir(parents=True)
        (headers / "patchlevel.h").write_text(
            f'#define PY_MAJOR_VERSION 3\n#define PY_VERSION      \t"{version}"\n'
        )
    return folder


def prefix(folder: Path, home: Path, config: str | None = None) -> Path:
    (folder / "bin").mkdir(parents=True)
    (folder / "bin/python").symlink_to(home / "bin" / MINOR)
    (folder / "bin/python3").symlink_to("python")
    text = f"home = {home}/bin\nversion = {projects.MINOR}.1\n" if config is None else config
    (folder / "pyvenv.cfg").write_text(text)
    return folder


def said(path: Path, home: Path, **more: object) -> list[tuple[str, str, str, str | None]]:
    found = interpreter.check(subject(path, system=(str(home),), **more))
    return [(one.code, one.severity, one.message, one.found) for one in found]


@pytest.mark.parametrize("tool", ["uv", "venv"])
def test_prefixes_of_real_tools(tmp_path: Path, tool: str) -> None:
    path = tmp_path / "prefix"
    if tool == "uv":
        command: list[str | Path] = [uvtool.executable(), "venv", "-q", "-p", sys.executable, path]
    else:
        command = [sys.executable, "-m", "venv", "--without-pip", path]
    subprocess.run(command, check=True)
    found = interpreter.find(path)
    assert found is not None
    assert found.path == Path(sys.base_prefix, "bin", MINOR).resolve()
    assert found.minor == projects.MINOR
    assert found.version in (None, sys.version.split()[0])
    assert said(path, found.home) == []
    assert interpreter.configuration(path)["home"] == str(Path(sys.base_prefix, "bin"))


@pytest.mark.parametrize(
    ("text", "values"),
    [
        (
            "home = /x\nVERSION_INFO=3.11.7.final.0\n",
            {"home": "/x", "version_info": "3.11.7.final.0"},
        ),
        ("command = a = b\n\n# x\nnonsense\n", {"command": "a = b"}),
        ("home =\n", {"home": ""}),
        ("", {}),
    ],
)
def test_configuration(tmp_path: Path, text: str, values: dict[str, str]) -> None:
    (tmp_path / "pyvenv.cfg").write_text(text)
    assert interpreter.configuration(tmp_path) == values


@given(st.binary(max_size=200))
def test_any_configuration_is_no_error(
    tmp_path_factory: pytest.TempPathFactory, data: bytes
) -> None:
    folder = tmp_path_factory.mktemp("any")
    home = base(folder / "base")
    path = prefix(folder / "prefix", home)
    for text in (data, b"home = /" + b"x" * 5000, b"home = " + data, b"version = " + data):
        (path / "pyvenv.cfg").write_bytes(text)
        assert {code for code, *_ in said(path, home)} <= {"I001", "I002"}


def test_links_step_by_step(tmp_path: Path) -> None:
    home = base(tmp_path / "base")
    path = prefix(tmp_path / "prefix", home)
    assert said(path, home) == []
    # an allowed folder by way of one that is not: who owns that, owns the prefix
    (path / "bin/python").unlink()
    (tmp_path / "between").symlink_to(home / "bin" / MINOR)
    (path / "bin/python").symlink_to("../../between")
    (one,) = said(path, home)
    where = "leads to a folder that the site does not declare"
    assert one == ("I001", "error", where, str(tmp_path / "between"))
    assert said(path, home, caches=(str(tmp_path),)) == [
        ("I001", "error", "leads to a cache", str(tmp_path / "between"))
    ]
    assert said(path, home, others={str(tmp_path / "between"): "other"}) == [
        ("I001", "error", "leads to the prefix of other", str(tmp_path / "between"))
    ]


def test_a_folder_on_the_way_that_is_a_link(tmp_path: Path) -> None:
    home = base(tmp_path / "elsewhere/base")
    (tmp_path / "alias").symlink_to("elsewhere/base")
    path = prefix(tmp_path / "prefix", tmp_path / "alias")
    # the alias is allowed, what it leads to is not
    assert said(path, tmp_path / "alias") == [
        (
            "I001",
            "error",
            "leads to a folder that the site does not declare",
            str(home / "bin" / MINOR),
        )
    ]


def test_no_bin_at_all(tmp_path: Path) -> None:
    assert said(tmp_path, tmp_path) == [
        ("I001", "error", "is not there", None),
        ("I002", "error", "does not say where the interpreter is", "no such file"),
    ]
    assert interpreter.find(tmp_path) is None


def test_an_interpreter_that_may_not_be_run(tmp_path: Path) -> None:
    home = base(tmp_path / "base")
    path = prefix(tmp_path / "prefix", home)
    (home / "bin" / MINOR).chmod(0o644)
    (one,) = said(path, home)
    assert one == ("I001", "error", "leads to nothing that runs", str(home / "bin" / MINOR))


@pytest.mark.parametrize(
    ("version", "config", "found"),
    [
        (None, "version = {minor}.1", []),
        ("{minor}.1", "version = {minor}.1", []),
        ("{minor}.1", "version_info = {minor}.1.final.0", []),
        ("{minor}.1+", "version = {minor}.1", []),
        ("{minor}.1", "version = {minor}", []),
        ("{minor}.1", "", []),
        (
            "{minor}.2",
            "version = {minor}.1",
            [("warning", "the interpreter was replaced by another release of it", "{minor}.2")],
        ),
        (
            None,
            "version = 3.2.1",
            [("error", "is of another Python than the interpreter", "3.2.1")],
        ),
        (
            None,
            "Include-System-Site-Packages = TRUE",
            [
                (
                    "error",
                    "lets in the packages of the interpreter itself",
                    "include-system-site-packages = true",
                )
            ],
        ),
        (None, "include-system-site-packages = false", []),
    ],
)
def test_versions(
    tmp_path: Path, version: str | None, config: str, found: list[tuple[str, str, str]]
) -> None:
    minor = projects.MINOR
    home = base(tmp_path / "base", version=version and version.format(minor=minor))
    text = f"home = {home}/bin\n{config.format(minor=minor)}\n"
    path = prefix(tmp_path / "prefix", home, text)
    assert said(path, home) == [
        ("I002", severity, message, value.format(minor=minor)) for severity, message, value in found
    ]


def test_homes(tmp_path: Path) -> None:
    home = base(tmp_path / "base")
    other = base(tmp_path / "other")
    path = prefix(tmp_path / "prefix", home, f"home = {other}/bin\n")
    message = "names another folder than that of the interpreter"
    assert said(path, home) == [("I002", "error", message, f"home = {other}/bin")]
    # a folder with a link to it, as /usr/bin/python3 is one to python3.11
    (other / "bin/python3").symlink_to(home / "bin" / MINOR)
    assert said(path, home) == []
    (path / "pyvenv.cfg").write_text("home = /gone/bin\n")
    assert said(path, home) == [
        ("I002", "error", "names a folder that is not there", "home = /gone/bin")
    ]
    # a file is no folder of programs
    (path / "pyvenv.cfg").write_text(f"home = {home}/lib/{MINOR}/os.py\n")
    (one,) = said(path, home)
    assert one[2] == "names another folder than that of the interpreter"
    (path / "pyvenv.cfg").unlink()
    assert said(path, home) == [
        ("I002", "error", "does not say where the interpreter is", "no such file")
    ]
    # conda has none, and an interpreter of its own
    (path / "conda-meta").mkdir()
    assert said(path, home) == []


def test_a_copied_interpreter_has_its_library_at_home(tmp_path: Path) -> None:
    home = base(tmp_path / "base")
    path = prefix(tmp_path / "prefix", home)
    (path / "bin/python").unlink()
    shutil.copy2(home / "bin" / MINOR, path / "bin/python")
    assert said(path, home) == []
    found = list(interpreter.check(subject(path)))
    assert [(one.code, one.where, one.message, one.found) for one in found] == [
        (
            "I001",
            f"{path}/pyvenv.cfg",
            "leads to a folder that the site does not declare",
            f"home = {home}/bin",
        )
    ]


def test_the_pinned_interpreter(tmp_path: Path) -> None:
    home = base(tmp_path / "base")
    path = prefix(tmp_path / "prefix", home)
    right = Base(path=str(home / "bin" / MINOR), version="3.11.7", pinned=True, wanted="3.11.17")

    def with_base(**changes: object) -> list[tuple[str, str, str, str | None]]:
        values = {name: getattr(right, name) for name in right.__struct_fields__} | changes
        return said(path, home, base=Base(**values))

    assert with_base() == []
    assert with_base(path="/x/python") == [
        (
            "I003",
            "error",
            "is another interpreter than the prefix was created with",
            right.path,
        )
    ]
    assert with_base(fault="has no record") == [("I003", "error", "has no record", right.path)]
    message = "an installed Python stands in for the pinned one"
    found = f"Python 3.11.7 at {right.path}"
    assert with_base(pinned=False) == [("I003", "error", message, found)]
    assert with_base(pinned=False, allowed=True) == [("I003", "warning", message, found)]


BUILD = """\
# system configuration generated and used by the sysconfig module
build_time_vars = {{'BINDIR': '{path}/bin',
 'CC': 'gcc -pthread',
 'LIBDIR': '{path}/lib',
 'SIZEOF': 8,
 'prefix': '{path}'}}
"""


@pytest.mark.parametrize(
    ("file", "text", "found"),
    [
        ("lib/{minor}/_sysconfigdata__x.py", BUILD, "prefix = /install"),
        (
            "lib/pkgconfig/python-3.1.pc",
            "# x\nprefix=/install\nlibdir=/none\n",
            "prefix = /install",
        ),
        ("lib/pkgconfig/python3.pc", "exec_prefix = /install\n", "exec_prefix = /install"),
        ("bin/{minor}-config", '#!/bin/sh\nprefix="/install"\n', "prefix = /install"),
        ("bin/{minor}d-config", "#!/bin/sh\nprefix='/install'\n", "prefix = /install"),
        ("lib/{minor}/_sysconfigdata__x.py", "build_time_vars = {{'prefix': open('/x')}}", None),
        ("lib/{minor}/_sysconfigdata__x.py", "build_time_vars = {{", None),
        ("lib/{minor}/_sysconfigdata__x.py", "build_time_vars = [1]", None),
        ("lib/{minor}/_sysconfigdata__x.py", "nothing of the kind", None),
        ("lib/{minor}/_sysconfigdata__x.py", "build_time_vars = {{'prefix': 1}}", None),
        ("lib/{minor}/_sysconfigdata__x.py", BUILD.replace("{path}", "{home}"), None),
        ("bin/{minor}-config", "prefix=$(dirname $0)\nexec_prefix=${{prefix}}\n", None),
        ("lib/pkgconfig/other.pc", "prefix=/install\n", None),
    ],
)
def test_what_extensions_are_built_with(
    tmp_path: Path, file: str, text: str, found: str | None
) -> None:
    home = base(tmp_path / "base")
    path = prefix(tmp_path / "prefix", home)
    target = home / file.format(minor=MINOR)
    target.parent.mkdir(exist_ok=True)
    target.write_text(text.format(path="/install", home=home))
    all = list(interpreter.check(subject(path, system=(str(home),))))
    if found is None:
        assert all == []
        return
    (one,) = all
    assert (one.code, one.severity, one.where) == ("I004", "error", str(target))
    assert one.message == "names a folder of the interpreter's own build, which is not here"
    assert one.found == found
    assert one.expected == f"{found.partition(' ')[0]} in {home}"
    assert one.mend == "install the interpreter anew, with uv, which mends these files"
