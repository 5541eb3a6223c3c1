"""Text and byte code that bind paths: as tools really write them, for odd paths too."""

from __future__ import annotations

import importlib.util
import py_compile
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envbuild import uvtool
from envbuild.findings import Finding
from envbuild.relocation import text
from envbuild.relocation.text import PathLine, Place
from tests.relocation.corpus import subject

# names of a folder above the prefix
NAMES = [
    "plain",
    "a b",
    "it's",
    'a"b',
    "$HOME",
    "ünï-日本",
    "n" * 128,
    "a;b",
    "back\\slash",
    "(x)",
    "a&b",
]


def byte_code(prefix: Path, path: str, data: bytes) -> list[Finding]:
    return list(text.byte_code(Place(str(prefix), path), data, subject(prefix)))


@pytest.mark.parametrize("name", [*NAMES, "/".join(["deep" * 20] * 4)])
@pytest.mark.parametrize("optimize", [0, 2])
def test_byte_code_names_its_source(tmp_path: Path, name: str, optimize: int) -> None:
    prefix = tmp_path / name / "prefix"
    source = prefix / "lib/pack age/möd.py"
    source.parent.mkdir(parents=True)
    source.write_text("def f():\n    class C:\n        def g(self): return lambda: 1\n")
    compiled = Path(str(py_compile.compile(str(source), optimize=optimize, doraise=True)))
    data = compiled.read_bytes()
    assert byte_code(prefix, str(compiled.relative_to(prefix)), data) == []
    # a prefix whose path is the beginning of this one's, and one that is this one's and more
    for other in (prefix.with_name("prefi"), prefix.with_name("prefix2")):
        (found,) = byte_code(other, str(compiled.relative_to(prefix)), data)
        assert found == Finding(
            "T005",
            "error",
            f"{other}/{compiled.relative_to(prefix)}",
            "its byte code names another source",
            expected=f"{other}/lib/pack age/möd.py",
            found=str(source),
            mend="make it anew at this path: an environment cannot be moved or copied",
        )


@pytest.mark.parametrize(
    ("dfile", "found"),
    [
        ("pack/mod.py", "pack/mod.py"),
        ("/x/mod.py", "/x/mod.py"),
        ("mod.py", "mod.py"),
        ("/" + "x" * 300 + "/mod.py", "/" + "x" * 300 + "/mod.py"),
        ("/é/mod.py", "/é/mod.py"),
        ("/tmp/other.py", "no source of its name"),
        ("/tmp/mod.pyx", "no source of its name"),
    ],
)
def test_byte_code_of_another_name(tmp_path: Path, dfile: str, found: str) -> None:
    source = tmp_path / "mod.py"
    source.write_text("def f(): return 1\n")
    compiled = Path(str(py_compile.compile(str(source), dfile=dfile, doraise=True)))
    (one,) = byte_code(tmp_path, str(compiled.relative_to(tmp_path)), compiled.read_bytes())
    assert (one.expected, one.found) == (str(source), found)


def test_a_source_at_the_top_of_a_prefix(tmp_path: Path) -> None:
    source = tmp_path / "mod.py"
    source.write_text("X = 1\n")
    compiled = Path(str(py_compile.compile(str(source), doraise=True)))
    place = str(compiled.relative_to(tmp_path))
    assert place == f"__pycache__/{Path(importlib.util.cache_from_source('mod.py')).name}"
    assert byte_code(tmp_path, place, compiled.read_bytes()) == []


@given(st.binary(max_size=400))
def test_any_byte_code_is_no_error(data: bytes) -> None:
    for some in (data, data + b"mod.py", b"mod.py" + data, data + b"z\x06mod.py" + data):
        found = byte_code(Path("/p"), "__pycache__/mod.cpython-311.pyc", some)
        assert {one.code for one in found} <= {"T005"}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("tool", ["uv", "uv relocatable", "venv"])
def test_activation_scripts_of_real_tools(tmp_path: Path, tool: str, name: str) -> None:
    prefix = tmp_path / name / "prefix"
    prefix.parent.mkdir()
    command: list[str | Path] = [sys.executable, "-m", "venv", "--without-pip", prefix]
    if tool != "venv":
        command = [uvtool.executable(), "venv", "-q", "--python", sys.executable, prefix]
        if tool == "uv relocatable":
            command.insert(2, "--relocatable")
    subprocess.run(command, check=True, cwd=tmp_path)
    scripts = sorted(path.name for path in (prefix / "bin").iterdir() if path.name[0] in "aAd")
    assert {"activate", "activate.fish"} <= set(scripts)
    named = set()
    for script in scripts:
        place = Place(str(prefix), f"bin/{script}")
        assert text.is_activation(place)
        data = (prefix / "bin" / script).read_bytes()
        assert list(text.activation(place, data, subject(prefix))) == [], script
        # at another path those that name one are found
        for other in text.activation(place, data, subject("/elsewhere")):
            named.add(script)
            assert (other.code, other.where) == ("T003", str(place))
            assert other.message == "activates another environment"
    if tool == "uv":
        assert named >= {"activate", "activate.csh", "activate.fish", "activate.nu"}
    elif tool == "venv":
        assert named >= {"activate", "activate.csh", "activate.fish"}
    else:
        assert named == set()


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("activate", "VIRTUAL_ENV=/other"),
        ("activate", "    VIRTUAL_ENV=$(cygpath /other)"),
        ("activate", "    export VIRTUAL_ENV=$(cygpath -u '/other')"),
        ("activate", 'VIRTUAL_ENV="/other"'),
        ("activate.csh", 'setenv VIRTUAL_ENV "/other"'),
        ("activate.fish", "set -gx VIRTUAL_ENV /other"),
        ("activate.nu", "let virtual_env = r'/other'"),
        ("activate.bat", '@set "VIRTUAL_ENV=/other"'),
        ("activate.bat", '@for %%i in ("/other") do @set "VIRTUAL_ENV=%%~fi"'),
        ("activate.xsh", "$VIRTUAL_ENV = '/other'"),
        ("Activate.ps1", '$env:VIRTUAL_ENV = "/other"'),
        ("activate_this.py", "os.environ['VIRTUAL_ENV'] = '/other'"),
    ],
)
def test_activation_of_another_prefix(name: str, line: str) -> None:
    place = Place("/p", f"bin/{name}")
    (found,) = text.activation(place, f"# x\n{line}\n".encode(), subject("/p"))
    assert found == Finding(
        "T003",
        "error",
        f"/p/bin/{name}",
        "activates another environment",
        expected="/p",
        found="/other",
        mend="make it anew at this path: an environment cannot be moved or copied",
    )
    assert list(text.activation(place, line.replace("/other", "/p").encode(), subject("/p"))) == []
    beside = line.replace("/other", "/p2").encode()
    assert [one.found for one in text.activation(place, beside, subject("/p"))] == ["/p2"]


@pytest.mark.parametrize(
    ("prefix", "line"),
    [
        ("/x/it's", "set -gx VIRTUAL_ENV '/x/it'\\''s'"),
        ("/x/it's", "set -gx VIRTUAL_ENV '/x/it\\'s'"),
        ("/x/it's", "VIRTUAL_ENV='/x/it'\"'\"'s'"),
        (
            "/x/ün",
            "VIRTUAL_ENV=/x/\"$(unset -f printf 2>/dev/null || :; \\printf '%b' '\\0303\\0274')\"n",
        ),
        ("/x/ün", "let virtual_env = r#'/x/ün'#"),
    ],
)
def test_activation_scripts_of_virtualenv(prefix: str, line: str) -> None:
    place = Place(prefix, "bin/activate")
    assert list(text.activation(place, f"{line}\n".encode(), subject(prefix))) == []
    for other in ("/x/other", f"{prefix}2"):
        (found,) = text.activation(place, f"{line}\n".encode(), subject(other))
        assert found.code == "T003"


def test_an_activation_script_that_names_this_prefix_and_another() -> None:
    data = b"VIRTUAL_ENV='/p'\nVIRTUAL_ENV='/other'\nVIRTUAL_ENV='/more'\n"
    (found,) = text.activation(Place("/p", "bin/activate"), data, subject("/p"))
    assert found.found == "/more, /other"


@pytest.mark.parametrize(
    ("name", "activates"),
    [
        *((f"activate{end}", True) for end in ("", ".csh", ".fish", ".nu", ".bat", ".xsh", ".ps1")),
        *((name, True) for name in ("Activate.ps1", "activate_this.py", "deactivate.bat")),
        *((name, False) for name in ("reactivate", "activate-global", "activator.py", "python")),
    ],
)
def test_what_is_an_activation_script(name: str, activates: bool) -> None:
    assert text.is_activation(Place("/p", f"bin/{name}")) is activates


@given(st.binary(max_size=300))
def test_any_text_is_no_error(data: bytes) -> None:
    held = subject("/p", others={"/o": "other"}, root="/r")
    place = Place("/p", "bin/activate")
    list(text.activation(place, b"VIRTUAL_ENV='" + data, held))
    list(text.script(place, b"#!" + data, held, published=False))
    list(text.path_file(Place("/p", "lib/x.pth"), data, held, listed=False))
    pattern = text.foreign(held)
    assert pattern is not None
    list(text.names_foreign(place, data, held, pattern))


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (b"see /x/core.", []),
        (b"see /x/core, and more", ["/x/core:1"]),
        (b"\n/x/core/bin", ["/x/core:2"]),
        (b"'/x/core'", ["/x/core:1"]),
        (b"/x/core", ["/x/core:1"]),
        (b"PATH=/bin:/x/core:/y", ["/x/core:1"]),
        (b"/x/core2", []),
        (b"/x/core-2 /x/core_2 /x/core.d", []),
        (b"/x/core2 /x/core", ["/x/core:1"]),
        (b"/x/core/deep/er", ["/x/core/deep:1"]),
        (b"/x/cor", []),
        (b"\0/x/core", []),
        (b"/prefix/bin", []),
    ],
)
def test_known_wrong_paths_end_where_paths_do(content: bytes, found: list[str]) -> None:
    held = subject(
        "/prefix",
        others={"/x/core": "core", "/prefix": "own"},
        foreign={"/x/core/deep": "a staging folder"},
    )
    pattern = text.foreign(held)
    assert pattern is not None
    seen = list(text.names_foreign(Place("/prefix", "f"), content, held, pattern))
    assert [f"{one.found}:{one.where.rpartition(':')[2]}" for one in seen] == found
    for one in seen:
        what = "a staging folder" if one.found == "/x/core/deep" else "the prefix of core"
        assert one == Finding(
            "T004",
            "error",
            one.where,
            f"names {what}",
            expected="paths in /prefix",
            found=one.found,
            mend="make it anew at this path: an environment cannot be moved or copied",
        )


def test_no_known_wrong_paths() -> None:
    assert text.foreign(subject("/prefix", others={"/prefix": "own"})) is None


def lines(tmp_path: Path, content: str, *, listed: bool = True) -> list[Finding | PathLine]:
    place = Place(str(tmp_path / "prefix"), "lib/site/x.pth")
    held = subject(tmp_path / "prefix", root=str(tmp_path / "root"))
    return list(text.path_file(place, content.encode(), held, listed=listed))


def test_lines_of_path_files(tmp_path: Path) -> None:
    for folder in ("prefix/lib/site", "root/mine", "out"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "root/link").symlink_to(tmp_path / "out")
    (tmp_path / "prefix/lib/site/linked").symlink_to(tmp_path / "root/mine")
    inside = [
        "",
        "# /etc",
        "pack",
        "../other",
        f"{tmp_path}/root/mine",
        f"{tmp_path}/prefix",
        "linked",
    ]
    assert lines(tmp_path, "\n".join(inside)) == []
    expected = f"a folder in {tmp_path}/prefix or a folder in {tmp_path}/root"
    for line in ("/etc", "../../../out", f"{tmp_path}/prefix2", f"{tmp_path}/root/../out"):
        (found,) = lines(tmp_path, f"\r\n{line}\r\n")
        assert isinstance(found, Finding)
        assert (found.code, found.severity) == ("T002", "error")
        assert found.where == f"{tmp_path}/prefix/lib/site/x.pth:2"
        assert found.message == "adds a folder outside the prefix and the root to the path"
        assert (found.expected, found.found) == (expected, line)
        assert found.mend == "move what is there below the root, or remove the line"


def test_lines_that_lead_out_by_a_link(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    (tmp_path / "root/link").symlink_to("/etc")
    (found,) = lines(tmp_path, f"{tmp_path}/root/link\n")
    assert isinstance(found, Finding)
    assert (found.code, found.found) == ("T002", f"{tmp_path}/root/link")
    # a root that is a link itself leads nowhere else, nor do links in a circle
    (tmp_path / "root").rename(tmp_path / "real")
    (tmp_path / "root").symlink_to("real")
    (tmp_path / "real/circle").symlink_to("circle")
    assert lines(tmp_path, f"{tmp_path}/root/mine\n{tmp_path}/root/circle\n") == []


def test_lines_that_are_run(tmp_path: Path) -> None:
    run = "import x; x.y()"
    (one,) = lines(tmp_path, f"{run}\n")
    assert isinstance(one, PathLine)
    assert one.line == run
    first, second = lines(tmp_path, f"import\t{'x' * 200}\n", listed=False)
    assert isinstance(first, PathLine)
    assert isinstance(second, Finding)
    assert second.message == "runs code whenever Python starts, and no distribution lists it"
    assert second.found == "import\t" + "x" * 153 + "..."
    # Python passes a byte order mark over
    first, second = lines(tmp_path, "\ufeffimport x\n", listed=False)
    assert isinstance(first, PathLine)
    # a module's name alone is a folder's
    assert lines(tmp_path, "importlib\nimported\n") == []


LIMIT = 127


def script(
    prefix: str, first: bytes, *, published: bool = False, limit: int = LIMIT
) -> list[Finding]:
    held = subject(prefix, shebang_limit=limit)
    return list(text.script(Place(prefix, "bin/x"), first + b"\nbody\n", held, published=published))


@pytest.mark.parametrize("size", [126, 127, 128])
def test_the_length_of_a_first_line(size: int) -> None:
    prefix = "/" + "p" * (size - len("#!//bin/python"))
    line = f"#!{prefix}/bin/python".encode()
    assert len(line) == size
    found = script(prefix, line)
    if size <= LIMIT:
        assert found == []
        return
    assert found == [
        Finding(
            "P003",
            "error",
            f"{prefix}/bin/x",
            "the kernel cuts its first line off",
            expected="at most 127 bytes, or the form that starts with #!/bin/sh",
            found="128 bytes",
            mend="install it again: pip and uv write the other form where a path is long",
        )
    ]
    shell = f"#!/bin/sh\n'''exec' {prefix}/bin/python \"$0\" \"$@\"\n' '''".encode()
    assert script(prefix, shell) == []
    assert script(prefix, line, limit=255) == []


def test_a_space_in_a_first_line() -> None:
    (found,) = script("/a b", b"#!/a b/bin/python")
    assert found == Finding(
        "P003",
        "error",
        "/a b/bin/x",
        "the kernel ends its interpreter's path at the space",
        expected="the form that starts with #!/bin/sh",
        found="#!/a b/bin/python",
        mend="install it again: pip and uv write the other form where a path has a space",
    )
    assert script("/a b", b"#!/bin/sh\n'''exec' '/a b/bin/python' \"$0\" \"$@\"\n' '''") == []


@pytest.mark.parametrize(
    ("first", "found"),
    [
        (b"#!/p/bin/python", None),
        (b"#!/p/bin/python3.11 -I", None),
        (b"#!/bin/sh", None),
        (b"#!/usr/bin/perl", None),
        (b"\x7fELF", None),
        (b"", None),
        (
            b"#!/bin/sh\n'''exec' \"$(dirname -- \"$(realpath -- \"$0\")\")\"/'python' "
            b"\"$0\" \"$@\"\n' '''",
            None,
        ),
        (b"#!/p2/bin/python", "#!/p2/bin/python"),
        (b"#!/p/bin/deep/python", "#!/p/bin/deep/python"),
        (b"#!/p/bin/../../q/bin/python", "#!/p/bin/../../q/bin/python"),
        (b"#!/usr/bin/python3 -I", "#!/usr/bin/python3 -I"),
        (b"#!/bin/sh\n'''exec' /q/bin/python \"$0\" \"$@\"\n' '''", "/q/bin/python"),
        (b"#!/bin/sh\n'''exec' /p/bin/python -x \"$0\" \"$@\"\n' '''", "nothing"),
    ],
)
def test_who_runs_a_script(first: bytes, found: str | None) -> None:
    expected = [
        Finding(
            "T001",
            "error",
            "/p/bin/x",
            "is run by another interpreter",
            expected="/p/bin/python",
            found=found,
            mend="make it anew at this path: an environment cannot be moved or copied",
        )
    ]
    assert script("/p", first) == ([] if found is None else expected)


@pytest.mark.parametrize("line", [b"#!/usr/bin/env python3", b"#!/usr/bin/env -S python -I"])
@pytest.mark.parametrize("published", [True, False])
def test_a_script_of_whatever_comes_first(line: bytes, published: bool) -> None:
    (found,) = script("/p", line, published=published)
    assert (found.code, found.severity) == ("T001", "warning")
    assert found.message == "is run by whatever Python comes first on PATH"
    mend = "make it anew at this path: an environment cannot be moved or copied"
    assert found.mend == ("call it as `/p/bin/python /p/bin/x`" if published else mend)


def test_a_published_script_of_another_interpreter_is_a_warning() -> None:
    (found,) = script("/p", b"#!/usr/local/bin/python", published=True)
    assert (found.code, found.severity) == ("T001", "warning")
    assert found.mend == "call it as `/p/bin/python /p/bin/x`"
