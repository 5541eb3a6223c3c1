"""Scripts as installers really write them, and what others could make of them."""

from __future__ import annotations

import configparser
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envbuild import uvtool
from envbuild.relocation import scripts
from envbuild.relocation.scripts import Shebang
from tests import wheels

POINTS = """\
[console_scripts]
tool = tool:main
Tool-2 = tool:Gui.show
deep = tool.sub.mod:run
extra = tool:main [fast]
[gui_scripts]
window = tool:Gui.show
"""
EXPECTED = {
    "tool": ("tool", "main"),
    "Tool-2": ("tool", "Gui.show"),
    "deep": ("tool.sub.mod", "run"),
    "extra": ("tool", "main"),
    "window": ("tool", "Gui.show"),
}
# a path of a prefix: no NUL and no line's end; what `make_path` puts a slash before
PATHS = st.text(st.characters(codec="utf-8", exclude_characters="\0\n\r"), min_size=1, max_size=60)
TOOL = "def main():\n    return 0\n\n\nclass Gui:\n    show = main\n"


def installed(folder: Path, installer: str, prefix: Path) -> None:
    """Install a wheel with scripts into a new environment by a real installer."""
    wheels.make_wheel(folder, "tool", "1", files={"tool.py": TOOL}, entry_points=POINTS)
    python = prefix / "bin" / "python"
    if installer == "uv":
        made: list[str | Path] = [uvtool.executable(), "venv", "-q", "-p", sys.executable, prefix]
        command: list[str | Path] = [uvtool.executable(), "pip", "install", "-q", "-p", python]
    else:
        made = [sys.executable, "-m", "venv", "--without-pip", prefix]
        # the pip of the Python that runs the tests
        command = [sys.executable, "-m", "pip", "--python", python, "install", "-q"]
        command.append("--disable-pip-version-check")
    subprocess.run(made, check=True)
    command += ["--no-index", "--find-links", folder, "tool"]
    subprocess.run(command, check=True)


@pytest.mark.parametrize("installer", ["uv", "pip"])
@pytest.mark.parametrize("name", ["short", "with space", "l" * 120, "ünï", "it's"])
def test_scripts_of_real_installers(tmp_path: Path, installer: str, name: str) -> None:
    prefix = tmp_path / name
    installed(tmp_path / "wheels", installer, prefix)
    for script, (module, attribute) in EXPECTED.items():
        found = scripts.shebang((prefix / "bin" / script).read_bytes())
        # what starts the script: uv names python3 of the environment, too
        assert found.interpreter.startswith(f"{prefix}/bin/python"), found
        assert found.form == ("plain" if name in ("short", "ünï") else found.form)
        assert found.is_python
        assert scripts.fault(found.body, module, attribute) is None
        # it is the script of this entry point and of no other
        assert scripts.fault(found.body, module, "other") is not None
        assert scripts.fault(found.body, "other", attribute) is not None


def test_entry_points_of_real_installers_are_the_scripts(tmp_path: Path) -> None:
    installed(tmp_path / "wheels", "uv", tmp_path / "prefix")
    points = scripts.entry_points(POINTS)
    assert {name: value.partition(" ")[0] for name, value in points.items()} == {
        name: f"{module}:{attribute}" for name, (module, attribute) in EXPECTED.items()
    }
    for name in points:
        assert (tmp_path / "prefix" / "bin" / name).is_file()


# what pip's own distlib writes, what virtualenv's seeder and older pips wrote, and setuptools
BODIES = {
    "pip": """\
# -*- coding: utf-8 -*-
import re
import sys
from tool import main
if __name__ == '__main__':
    sys.argv[0] = re.sub(r'(-script\\.pyw|\\.exe)?$', '', sys.argv[0])
    sys.exit(main())
""",
    "pip 25": """\
import sys
from tool import main
if __name__ == '__main__':
    sys.argv[0] = sys.argv[0].removesuffix('.exe')
    sys.exit(main())
""",
    "uv": """\
# -*- coding: utf-8 -*-
import sys
from tool import main
if __name__ == "__main__":
    if sys.argv[0].endswith("-script.pyw"):
        sys.argv[0] = sys.argv[0][:-11]
    elif sys.argv[0].endswith(".exe"):
        sys.argv[0] = sys.argv[0][:-4]
    sys.exit(main())
""",
    "conda": """\
# -*- coding: utf-8 -*-
import re
import sys

from tool import main

if __name__ == '__main__':
    sys.argv[0] = re.sub(r'(-script\\.pyw?|\\.exe)?$', '', sys.argv[0])
    sys.exit(main())
""",
    "installer": """\
# -*- coding: utf-8 -*-
import re
import sys
from tool import main
if __name__ == "__main__":
    sys.argv[0] = re.sub(r"(-script\\.pyw|\\.exe)?$", "", sys.argv[0])
    sys.exit(main())
""",
}


@pytest.mark.parametrize("installer", BODIES)
def test_scripts_of_other_installers(installer: str) -> None:
    assert scripts.fault(BODIES[installer].encode(), "tool", "main") is None


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        ("import os", "runs `import os`"),
        ("import sys, os", "runs `import sys, os`"),
        ("import sys as tool", "runs `import sys as tool`"),
        ("from os import system", "imports system from os"),
        ("from os import *", "imports * from os"),
        ("from .tool import main", "runs `from .tool import main`"),
        ("from tool import main as sys", "runs `from tool import main as sys`"),
        ("from tool import main, Gui", "runs `from tool import main, Gui`"),
        ("from tool import Gui", "imports Gui from tool"),
        ("exec('x')", "calls `exec('x')`"),
        ("eval('x')", "calls `eval('x')`"),
        ("__import__('os').system('x')", "calls `__import__('os').system('x')`"),
        ("main.__globals__['x']()", "calls `main.__globals__['x']()`"),
        ("sys.modules['os'].system('x')", "calls `sys.modules['os'].system('x')`"),
        ("sys.path.insert(0, '/tmp')", "calls `sys.path.insert(0, '/tmp')`"),
        ("sys.argv.append('-x')", "calls `sys.argv.append('-x')`"),
        ("(lambda: 1)()", "calls `(lambda: 1)()`"),
        ("x = 1", "runs `x = 1`"),
        ("main = exit", "runs `main = exit`"),
        ("sys.path = []", "runs `sys.path = []`"),
        ("sys.argv[1] = 'x'", "runs `sys.argv[1] = 'x'`"),
        ("sys.argv[0] = sys.argv[1] = 'x'", "runs `sys.argv[0] = sys.argv[1] = 'x'`"),
        ("sys.argv[0] += 'x'", "runs `sys.argv[0] += 'x'`"),
        ("sys.argv[0]: str = 'x'", "runs `sys.argv[0]: str = 'x'`"),
        ("del sys.argv", "runs `del sys.argv`"),
        ("assert exit", "runs `assert exit`"),
        ("global exit", "runs `global exit`"),
        ("for sys in sys.argv: pass", "runs `for sys in sys.argv:`"),
        ("while 1: pass", "runs `while 1:`"),
        ("with main: pass", "runs `with main:`"),
        ("try: main\nexcept main: pass", "runs `try:`"),
        ("def f(): pass", "runs `def f():`"),
        ("class C(metaclass=exit): pass", "runs `class C(metaclass=exit):`"),
        ("@main\ndef f(): pass", "runs `@main`"),
        ("match sys:\n    case exit: pass", "runs `match sys:`"),
        ("if (x := 1): exit", "names `x`"),
        ("if (exit := 1): exit", "runs `exit`"),
        ("open", "names `open`"),
        ("__builtins__", "names `__builtins__`"),
        ("[exit for exit in sys.argv]", "runs `exit`"),
        ("main(['install', 'x'])", "calls `main(['install', 'x'])`"),
        ("main(x=1)", "calls `main(x=1)`"),
        ("re.sub('x', sys.modules['os'].system, 'x')", "names `sys.modules['os'].system`"),
        ("sys.argv[0] = sys.modules", "names `sys.modules`"),
        ("sys.argv[0] = main.__globals__", "names `main.__globals__`"),
        ("f'{open(1)}'", "calls `open(1)`"),
    ],
)
def test_scripts_that_do_more(line: str, wrong: str) -> None:
    for body in (BODIES["uv"] + line + "\n", line + "\n" + BODIES["uv"]):
        assert scripts.fault(body.encode(), "tool", "main") == wrong


@pytest.mark.parametrize(
    ("body", "wrong"),
    [
        (b"", "does not import main from tool"),
        (b"from tool import main\n", "does not call main"),
        (b"from tool import main\nmain\n", "does not call main"),
        (b"import tool\n", "runs `import tool`"),
        (b"main(\n", "is not Python"),
        (b"main(\0)\n", "is not Python"),
        (b"\xff\xfe\n", "is not Python"),
        (b"# -*- coding: nonsense -*-\n", "is written in another encoding than UTF-8"),
        (b"#\n# coding: utf-7\n", "is written in another encoding than UTF-8"),
        (b"import sys\nsys.exit(0)\n", "calls `sys.exit(0)`"),
        (b"\x7fELF\x02\x01\x01", "is not Python"),
    ],
)
def test_scripts_that_do_not_do_it(body: bytes, wrong: str) -> None:
    assert scripts.fault(body, "tool", "main") == wrong


def test_a_script_nested_too_deep_is_no_python() -> None:
    body = b"x = " + b"(" * 5000 + b")" * 5000
    assert scripts.fault(body, "tool", "main") == "is not Python"
    for deep in (b"-" * 200_000 + b"1", b"main" + b".argv" * 900, b"main" + b".argv" * 90_000):
        body = b"from tool import main\n" + deep + b"\n"
        assert scripts.fault(body, "tool", "main") in ("is not Python", "does not call main")
    body = b"from tool import main\nmain" + b".x" * 900 + b"()\n"
    assert scripts.fault(body, "tool", "main") == "is not Python"


@given(st.binary(max_size=300))
def test_any_bytes_are_no_error(data: bytes) -> None:
    for text in (data, b"#!" + data, b"#!/bin/sh\n'''exec' " + data):
        found = scripts.shebang(text)
        assert found.is_python in (True, False)
        scripts.fault(found.body, "tool", "main")


@given(PATHS, st.text("abc -", max_size=8))
def test_a_plain_line_is_read_as_it_was_written(path: str, arguments: str) -> None:
    name = "/" + "".join(path.split())
    line = f"#!{name} {arguments}".encode()
    found = scripts.shebang(line + b"\nbody\n")
    # the kernel takes all that follows the interpreter for one argument (execve(2))
    assert found == Shebang("plain", line, name, arguments.strip(), b"body\n")


@given(PATHS, st.binary(max_size=40))
def test_the_form_of_the_shell_is_read_as_it_was_written(path: str, body: bytes) -> None:
    name = f"/{path}/python3"
    command = f"'''exec' {shlex.quote(name)} \"$0\" \"$@\"\n' '''\n".encode()
    found = scripts.shebang(b"#!/bin/sh\n" + command + body)
    assert found == Shebang("sh", b"#!/bin/sh", name, "", body)
    assert found.is_python


def test_the_shell_really_starts_what_is_read(tmp_path: Path) -> None:
    for name in ("a b", 'a"b', "a$b", "ä`b"):
        target = tmp_path / name / "python"
        target.parent.mkdir()
        target.write_text("#!/bin/sh\necho started\n")
        target.chmod(0o755)
        script = tmp_path / "script"
        script.write_text(
            f"#!/bin/sh\n'''exec' {shlex.quote(str(target))} \"$0\" \"$@\"\n' '''\nbody\n"
        )
        assert scripts.shebang(script.read_bytes()).interpreter == str(target)
        done = subprocess.run(["sh", script], capture_output=True, text=True, check=True)
        assert done.stdout == "started\n"


@pytest.mark.parametrize(
    "command",
    [
        "'''exec' /p/python \"$0\"",
        "'''exec' /p/python -c x \"$0\" \"$@\"",
        "'''exec' /p/python \"$0\" \"$@\"; rm -rf /",
        "'''exec' ",
        "'''exec' 'open",
    ],
)
def test_another_command_of_the_shell_names_no_interpreter(command: str) -> None:
    found = scripts.shebang(f"#!/bin/sh\n{command}\n' '''\nbody\n".encode())
    assert (found.form, found.interpreter, found.body) == ("sh", "", b"body\n")


@pytest.mark.parametrize(
    ("line", "python"),
    [
        ("#!/p/bin/python", True),
        ("#! /p/bin/python3.11 -I", True),
        ("#!/p/bin/pypy3", True),
        ("#!/usr/bin/env python3", True),
        ("#!/usr/bin/env -S python3 -I", True),
        ("#!/usr/bin/env /p/python", True),
        ("#!/usr/bin/env bash", False),
        ("#!/usr/bin/env", False),
        ("#!/bin/sh", False),
        ("#!", False),
        ("#!python", True),
        ("#!/p/bin/python\r", True),
    ],
)
def test_who_runs_a_script(line: str, python: bool) -> None:
    assert scripts.shebang(line.encode() + b"\nx\n").is_python is python


def test_no_line_at_all() -> None:
    assert scripts.shebang(b"body\n") == Shebang("none", b"", "", "", b"body\n")
    assert not scripts.shebang(b"body\n").is_python


@given(st.dictionaries(st.from_regex(r"[A-Za-z0-9_.-]{1,12}", fullmatch=True), st.just("m:f")))
def test_entry_points_are_read_as_they_were_written(points: dict[str, str]) -> None:
    lines = "".join(f"{name} = {value}\n" for name, value in points.items())
    assert scripts.entry_points(f"[console_scripts]\n{lines}") == points
    assert scripts.entry_points(f"[gui_scripts]\n{lines}[other]\nx = y\n") == points


def test_entry_points_that_cannot_be_read() -> None:
    assert scripts.entry_points("") == {}
    for text in ("x = y\n", "[console_scripts]\nx = 1\nx = 2\n", "[console_scripts\n"):
        with pytest.raises(configparser.Error):
            scripts.entry_points(text)
