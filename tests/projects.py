"""Small projects on disk: what a person would write, a few lines each."""

from __future__ import annotations

import sys
from pathlib import Path

from envbuild.catalog.project import Project

MINOR = f"{sys.version_info.major}.{sys.version_info.minor}"
NEXT = f"{sys.version_info.major}.{sys.version_info.minor + 1}"
# a version that python-build-standalone has of each minor version that tests may run on
PINNED = {"3.11": "3.11.17", "3.12": "3.12.12", "3.13": "3.13.14", "3.14": "3.14.0"}[MINOR]


def environment(
    *requirements: str, extra: str = "", interval: str | None = None, python: str = PINNED
) -> str:
    """Write an environment's file for the Python that runs the tests."""
    listed = ", ".join(f'"{requirement}"' for requirement in requirements)
    return f"""\
summary = "a toy"
requires-python = "{interval or f">={MINOR},<{NEXT}"}"
python = "{python}"
platform = "x86_64-manylinux_2_28"
requirements = [{listed}]
{extra}"""


def project(folder: Path, environments: dict[str, str], sites: dict[str, str]) -> Project:
    """Lay out a project with the given files."""
    for kind, files in (("envs", environments), ("sites", sites)):
        (folder / kind).mkdir(parents=True)
        for name, text in files.items():
            (folder / kind / f"{name}.toml").write_text(text)
    return Project(folder)


LOCAL = """\
summary = "here"
root = ".envs"
unpinned-interpreter = true
"""
