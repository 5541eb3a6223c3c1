from __future__ import annotations

import json
from pathlib import Path

from tests import projects
from tests.conftest import Envbuild

FAR = """\
summary = "a cluster"
root = "/proj/{user}"
glibc = "2.28"

[[facts]]
keys = ["root"]
source = "the manual"
stated = 2026-11-01

[[facts]]
keys = ["glibc"]
source = "ldd --version"
verified = 2026-11-02
"""


def test_facts_are_shown_with_source_and_day(tmp_path: Path, envbuild: Envbuild) -> None:
    projects.project(tmp_path, {"toy": projects.environment("six")}, {"far": FAR})
    done = envbuild("site", "show", "far", "--user", "ada", cwd=tmp_path)
    assert done.code == 0
    rows = {line.split()[0]: line.split()[1:] for line in done.out.splitlines() if line.strip()}
    assert rows["root"] == ["/proj/ada", "[1]", "never"]
    assert rows["glibc"][0] == "2.28"
    assert rows["glibc"][2] == "2026-11-02"
    assert rows["[1]"] == ["the", "manual", "(2026-11-01)"]


def test_as_json(tmp_path: Path, envbuild: Envbuild) -> None:
    projects.project(tmp_path, {"toy": projects.environment("six")}, {"far": FAR})
    report = json.loads(envbuild("site", "show", "--json", "--user", "ada", cwd=tmp_path).out)
    assert report["schema"] == "envbuild.site/1"
    (site,) = report["sites"]
    assert site["prefixes"] == {"toy": "/proj/ada/toy"}
    settings = {setting["key"]: setting for setting in site["settings"]}
    assert settings["root"] == {
        "key": "root",
        "value": "/proj/ada",
        "source": "the manual (2026-11-01)",
        "verified": None,
    }
