"""What a prefix must hold, by the wheels that are installed in it."""

from __future__ import annotations

from pathlib import Path

from envbuild.prefix import contents
from envbuild.prefix.receipt import Distribution
from tests.wheels import make_wheel


def test_a_script_that_stands_for_an_entry_point_is_not_installed(tmp_path: Path) -> None:
    wheel = make_wheel(
        tmp_path,
        "tool",
        "1.0",
        files={"tool.py": b""},
        data={f"scripts/{name}": b"#!python\n" for name in ("tool", "tool-script.py", "other")},
        entry_points="[console_scripts]\ntool = tool:main\n",
    )
    one = Distribution("tool", "1.0", wheel.name, "0" * 64)
    held = contents.contents([one], tmp_path, minor="3.11")
    scripts = {path for path in (*held.files, *held.scripts) if path.startswith("bin/")}
    assert scripts == {"bin/tool", "bin/other"}
    assert "bin/tool" not in held.files
