from __future__ import annotations

import json
from pathlib import Path

import pytest

from envbuild.errors import StepError
from envbuild.sourcebuild import sandbox, workspace
from envbuild.sourcebuild.workspace import Workspace

SAID = """\
[1/9] nvcc -c a.cu
a.cu(7): warning #177-D: variable "x" was declared but never referenced
In file included from b.h:3,
                 from b.cu:1:
c.h:12:5: error: 'y' was not declared in this scope
   12 |     y = 1;
ninja: build stopped: subcommand failed.
RuntimeError: Error compiling objects for extension
"""


def test_the_first_error_begins_where_the_compiler_says_how_it_got_there() -> None:
    lines = workspace.first_error(SAID).splitlines()
    assert lines[0] == "In file included from b.h:3,"
    assert lines[2] == "c.h:12:5: error: 'y' was not declared in this scope"


def test_without_an_error_the_last_lines_are_shown() -> None:
    said = "\n".join(map(str, range(50)))
    assert workspace.first_error(said).splitlines() == [str(one) for one in range(38, 50)]


def test_a_compiler_that_was_killed_is_told_as_memory(tmp_path: Path) -> None:
    space = Workspace(tmp_path / "space", {}, python="python3", why=sandbox.refused())
    (space.build / "src").mkdir()
    step = {"step": "compile", "file": "a.cu", "begun": 1.0, "seconds": 2.0}
    lines = [{**step, "memory": 1, "status": 0}, {**step, "memory": 7 << 30, "status": -9}]
    steps = space.log / "steps.jsonl"
    steps.write_text("".join(json.dumps(one) + "\n" for one in lines) + '{"step": "comp')
    assert [one.status for one in space.steps()] == [0, -9]
    # what an earlier run said is not this one's failure
    with pytest.raises(StepError) as caught:
        space.wheel({}, doing="building toy")
    assert caught.value.what == "building toy failed"
    error = space.failure("building toy", 1, 0)
    assert str(error) == (
        "a.cu: building toy: a compiler was killed, as happens when memory runs out\n"
        "  expected: memory for all jobs\n"
        "  found: killed when its largest process had 7.0 GiB\n"
        "  mend: raise memory-per-job of the recipe, so that fewer run at once; what is compiled "
        "is kept\n"
        "\n"
        f"  | all that was said: {space.output}"
    )
