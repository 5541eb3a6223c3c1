"""Prefixes that others made: right where they are, and found out where they were moved to."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import sysconfig
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from envbuild import uvtool
from envbuild.catalog.project import Project
from envbuild.findings import Finding
from envbuild.prefix import verify
from tests import projects, wheels
from tests.conftest import Envbuild, Result
from tests.relocation.corpus import unwatched

MINOR = f"python{projects.MINOR}"
PACKAGES = f"lib/{MINOR}/site-packages"
# the Python that runs the tests is one that the site relies on
SITE = f'summary = "here"\nroot = ".envs"\nsystem-paths = ["/usr", "{sys.base_prefix}"]\n'
TOOLS = ("uv", "venv")

Make = Callable[[str, Path], Path]


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return projects.project(
        tmp_path / "project", {"toy": projects.environment("six")}, {"local": SITE}
    )


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Make an environment by a tool, and install toy wheels into it."""
    folder = tmp_path / "wheels"
    wheels.make_wheel(
        folder, "pure", "1.0", files={"pure/__init__.py": "X = 1\n", "pure/données.txt": "é\n"}
    )
    wheels.make_wheel(
        folder,
        "tool",
        "2.0",
        files={"tool.py": "def main():\n    return 0\n"},
        requires=["pure"],
        entry_points="[console_scripts]\ntool = tool:main\n",
        data={"scripts/run-data": "#!python\nprint(1)\n", "data/share/table.csv": "1\n"},
        modes={"tool-2.0.data/scripts/run-data": 0o755},
    )

    def run(tool: str, prefix: Path) -> Path:
        python = prefix / "bin" / "python"
        uv = uvtool.executable()
        options = tool.split()[1:]
        if tool.startswith("uv"):
            made: list[str | Path] = [uv, "venv", "-q", "-p", sys.executable, *options, prefix]
            command: list[str | Path] = [uv, "pip", "install", "-q", "-p", python]
            command += ["--compile-bytecode", "--link-mode", "copy"]
        else:
            pip = [] if "--with-pip" in options else ["--without-pip"]
            options = [option for option in options if option != "--with-pip"]
            made = [sys.executable, "-m", "venv", *pip, *options, prefix]
            command = [sys.executable, "-m", "pip", "--python", python, "install", "-q"]
            command.append("--disable-pip-version-check")
        subprocess.run(made, check=True)
        subprocess.run([*command, "--no-index", "--find-links", folder, "tool"], check=True)
        return prefix

    return run


def found(project: Project, prefix: Path, *, full: bool) -> tuple[Finding, ...]:
    layout = project.layout("local", user="ada", root=None)
    return verify.stranger(prefix, layout, full=full, watch=unwatched).findings


def codes(project: Project, prefix: Path) -> tuple[dict[str, int], dict[str, int]]:
    """Return how often each code was found, in full and by a quick look."""
    full, quick = (
        dict(Counter(one.code for one in found(project, prefix, full=full)))
        for full in (True, False)
    )
    return full, quick


def command(
    envbuild: Envbuild, project: Project, prefix: Path, *more: str
) -> tuple[Result, list[Finding]]:
    done = envbuild("verify", "--prefix", str(prefix), "--json", *more, cwd=project.folder)
    return done, [Finding(**one) for one in json.loads(done.out)["findings"]]


@pytest.mark.parametrize("tool", ["uv", "uv --relocatable", "venv", "venv --copies"])
@pytest.mark.parametrize("name", ["plain", "with space", "ünï", "it's"])
def test_a_prefix_of_another_tool_is_right(
    project: Project, make: Make, tmp_path: Path, tool: str, name: str
) -> None:
    prefix = make(tool, tmp_path / name)
    if tool.startswith("venv") and name == "with space":
        # pip writes a line that does not run in the place of `#!python`, though not elsewhere
        with pytest.raises(FileNotFoundError):
            subprocess.run([prefix / "bin" / "run-data"], check=True)
        assert codes(project, prefix) == ({"P003": 1}, {"P003": 1})
    else:
        subprocess.run([prefix / "bin" / "run-data"], check=True, capture_output=True)
        assert codes(project, prefix) == ({}, {})


def test_a_prefix_with_pip_in_it_is_right(project: Project, make: Make, tmp_path: Path) -> None:
    prefix = make("venv --with-pip", tmp_path / "prefix")
    assert (prefix / PACKAGES / "pip").is_dir()
    assert codes(project, prefix) == ({}, {})


def test_the_command_about_a_right_prefix(
    project: Project, make: Make, tmp_path: Path, envbuild: Envbuild
) -> None:
    prefix = make("uv", tmp_path / "prefix")
    done = envbuild("verify", "--prefix", str(prefix), cwd=project.folder)
    assert (done.code, done.err) == (0, "")
    assert done.out == (
        f"{prefix} looks good: no errors, no warnings (a quick look; --full reads every file)\n"
    )
    done, all = command(envbuild, project, prefix, "--full")
    assert (done.code, done.err, all) == (0, "", [])
    (one,) = json.loads(done.out)["prefixes"]
    assert (one["environment"], one["prefix"], one["full"]) == (None, str(prefix), True)
    assert one["files"] == len(list(prefix.rglob("*")))


def test_an_interpreter_of_a_folder_that_no_site_declares(
    project: Project, make: Make, tmp_path: Path
) -> None:
    site = project.folder / "sites" / "local.toml"
    site.write_text(SITE.replace(f', "{sys.base_prefix}"', ""))
    if Path(sys.base_prefix).is_relative_to("/usr"):
        site.write_text(SITE.replace("/usr", "/none").replace(sys.base_prefix, "/none"))
    for tool, where in (("uv", "bin/python"), ("venv --copies", "pyvenv.cfg")):
        prefix = make(tool, tmp_path / tool.replace(" ", ""))
        for full in (True, False):
            # the E rules look at the copied program itself
            (one,) = (one for one in found(project, prefix, full=full) if one.code[0] != "E")
            assert (one.code, one.severity) == ("I001", "error")
            assert one.where == f"{prefix}/{where}"
            assert one.message.startswith("leads to a ")
            home = Path(sys.base_prefix).resolve()
            assert str(home) in (one.found or "")


# scripts that name the prefix, activation scripts that do, and byte code
MOVED = {
    "uv": ({"P001": 1, "T001": 2, "T003": 5, "T005": 2}, {"P001": 1, "T001": 2, "T003": 5}),
    "venv": ({"P001": 1, "T001": 2, "T003": 3, "T005": 2}, {"P001": 1, "T001": 2, "T003": 3}),
}


@pytest.mark.parametrize("tool", TOOLS)
def test_moved_and_moved_again_and_back(
    project: Project, make: Make, tmp_path: Path, tool: str, envbuild: Envbuild
) -> None:
    prefix = make(tool, tmp_path / "prefix")
    moved, again = tmp_path / "prefix2", tmp_path / "again"
    prefix.rename(moved)
    assert codes(project, moved) == MOVED[tool]
    for more in ((), ("--full",)):
        done, all = command(envbuild, project, moved, *more)
        assert done.code == 1
        assert dict(Counter(one.code for one in all)) == MOVED[tool][1 if not more else 0]
    script = next(one for one in found(project, moved, full=False) if one.code == "T001")
    assert script == Finding(
        "T001",
        "error",
        f"{moved}/bin/run-data",
        "is run by another interpreter",
        expected=f"{moved}/bin/python",
        found=f"#!{prefix}/bin/python",
        mend="make it anew at this path: an environment cannot be moved or copied",
    )
    moved.rename(again)
    assert codes(project, again) == MOVED[tool]
    again.rename(prefix)
    assert codes(project, prefix) == ({}, {})


@pytest.mark.parametrize("tool", TOOLS)
def test_copied(project: Project, make: Make, tmp_path: Path, tool: str) -> None:
    prefix = make(tool, tmp_path / "prefix")
    subprocess.run(["cp", "-a", prefix, tmp_path / "copy"], check=True)
    assert codes(project, tmp_path / "copy") == MOVED[tool]
    assert codes(project, prefix) == ({}, {})


def test_a_relocatable_prefix_may_be_moved_but_for_its_byte_code(
    project: Project, make: Make, tmp_path: Path
) -> None:
    prefix = make("uv --relocatable", tmp_path / "prefix")
    prefix.rename(tmp_path / "moved")
    assert codes(project, tmp_path / "moved") == ({"T005": 2}, {})


def test_hard_linked_and_one_file_edited(project: Project, make: Make, tmp_path: Path) -> None:
    prefix = make("uv", tmp_path / "prefix")
    twin = tmp_path / "twin"
    subprocess.run(["cp", "-al", prefix, twin], check=True)
    files = [path for path in prefix.rglob("*") if path.is_file() and not path.is_symlink()]
    full, quick = MOVED["uv"]
    assert codes(project, twin) == ({**full, "M005": len(files)}, quick)
    with (twin / PACKAGES / "pure/__init__.py").open("a") as file:
        file.write("Y = 2\n")
    # who edits the one, edits the other
    all = found(project, prefix, full=True)
    assert dict(Counter(one.code for one in all)) == {"M002": 1, "M005": len(files)}
    (edited,) = (one for one in all if one.code == "M002")
    assert edited.where == f"{prefix}/{PACKAGES}/pure/__init__.py"
    assert edited.message == "is not as pure-1.0.dist-info has it"
    assert edited.expected == f"SHA-256 {hashlib.sha256(b'X = 1' + bytes([10])).hexdigest()}"
    shutil.rmtree(twin)
    assert codes(project, prefix) == ({"M002": 1}, {})


def test_reached_through_a_link(
    project: Project, make: Make, tmp_path: Path, envbuild: Envbuild
) -> None:
    prefix = make("uv", tmp_path / "prefix")
    (tmp_path / "link").symlink_to(prefix)
    done, all = command(envbuild, project, tmp_path / "link", "--select", "P")
    assert done.code == 1
    assert all == [
        Finding(
            "P001",
            "error",
            f"{tmp_path}/link",
            "is reached through a link",
            expected=str(prefix),
            found=f"{tmp_path}/link is a link",
            mend="use the path without links, in the site's file too",
        )
    ]
    (tmp_path / "above").symlink_to(tmp_path)
    (one,) = (
        one for one in found(project, tmp_path / "above/prefix", full=False) if one.code == "P001"
    )
    assert (one.expected, one.found) == (str(prefix), f"{tmp_path}/above is a link")


def test_reached_through_a_second_mount(project: Project, make: Make, tmp_path: Path) -> None:
    """In a mount namespace of its own, which ends with the command."""
    prefix = make("uv", tmp_path / "prefix")
    (tmp_path / "mounted").mkdir()
    script = 'mount --bind "$1" "$2" && exec "$3" -m envbuild verify --prefix "$2" --full --json'
    done = subprocess.run(
        [
            *("unshare", "-rm", "sh", "-c", script, "sh"),
            *(prefix, tmp_path / "mounted", sys.executable),
        ],
        cwd=project.folder,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    (one,) = json.loads(done.stdout)["findings"]
    assert (one["code"], one["message"]) == ("P001", "is another name for the prefix")
    assert (one["where"], one["expected"]) == (f"{tmp_path}/mounted", str(prefix))


@pytest.mark.parametrize("size", [126, 127, 128])
def test_the_length_of_first_lines(project: Project, make: Make, tmp_path: Path, size: int) -> None:
    short = tmp_path / "p"
    name = "p" * (1 + size - len(f"#!{short}/bin/python"))
    for tool in TOOLS:
        prefix = make(tool, tmp_path / name)
        assert len(f"#!{prefix}/bin/python") == size
        if tool == "venv" and size == 128:
            # pip writes a line that is too long in the place of `#!python`, though not elsewhere
            for full in (True, False):
                (one,) = found(project, prefix, full=full)
                assert one == Finding(
                    "P003",
                    "error",
                    f"{prefix}/bin/run-data",
                    "the kernel cuts its first line off",
                    expected="at most 127 bytes, or the form that starts with #!/bin/sh",
                    found="128 bytes",
                    mend="install it again: pip and uv write the other form where a path is long",
                )
        else:
            assert codes(project, prefix) == ({}, {})
        subprocess.run([prefix / "bin" / "tool"], check=True)
        shutil.rmtree(prefix)


def test_files_that_were_changed_added_and_removed(
    project: Project, make: Make, tmp_path: Path
) -> None:
    prefix = make("venv", tmp_path / "prefix")
    (prefix / PACKAGES / "pure/données.txt").write_text("e\n")
    (prefix / PACKAGES / "tool.py").unlink()
    (prefix / PACKAGES / "sitecustomize.py").write_text("")
    (prefix / "notes.txt").write_text("")
    assert [
        (one.code, one.severity, one.where.removeprefix(f"{prefix}/"), one.message)
        for one in found(project, prefix, full=True)
    ] == [
        *[
            ("M002", "error", f"{PACKAGES}/{path}", message)
            for path, message in (
                ("pure/données.txt", "is not as pure-1.0.dist-info has it"),
                ("sitecustomize.py", "belongs to no installed package"),
                ("tool.py", "is missing"),
            )
        ],
        ("M002", "warning", "notes.txt", "belongs to no installed package"),
    ]


def test_the_packages_of_the_interpreter(project: Project, make: Make, tmp_path: Path) -> None:
    prefix = make("venv --system-site-packages", tmp_path / "prefix")
    (one,) = found(project, prefix, full=False)
    assert (one.code, one.message) == ("I002", "lets in the packages of the interpreter itself")


# conda's: no pyvenv.cfg, an interpreter of its own, what is there listed by conda-meta


def conda(prefix: Path) -> Path:
    """Lay out a prefix as conda does: a package's files, and a document that lists them."""
    library = Path(sysconfig.get_path("stdlib"))
    (prefix / "bin").mkdir(parents=True)
    real = Path(sys.base_prefix, "bin", MINOR).resolve()
    shutil.copy2(real, prefix / "bin" / MINOR)
    for name in ("python3", "python"):
        (prefix / "bin" / name).symlink_to(MINOR)
    files = {
        f"lib/{MINOR}/os.py": (library / "os.py").read_bytes(),
        f"{PACKAGES}/pure/__init__.py": b"X = 1\n",
        f"{PACKAGES}/pure-1.0.dist-info/METADATA": b"Name: pure\nVersion: 1.0\n",
        f"{PACKAGES}/pure-1.0.dist-info/INSTALLER": b"conda\n",
        "bin/pure": f"#!{prefix}/bin/python\nimport pure\n".encode(),
        "share/pure/table.csv": b"1\n",
    }
    for path, data in files.items():
        (prefix / path).parent.mkdir(parents=True, exist_ok=True)
        (prefix / path).write_bytes(data)
    (prefix / "bin/pure").chmod(0o755)
    paths = []
    for path in sorted([*files, f"bin/{MINOR}"]):
        digest = hashlib.sha256((prefix / path).read_bytes()).hexdigest()
        entry = {"_path": path, "path_type": "hardlink", "sha256": digest}
        if path == "bin/pure":  # its placeholder was replaced by the prefix
            entry |= {"sha256": "0" * 64, "sha256_in_prefix": digest, "file_mode": "text"}
        paths.append(entry)
    links = ("bin/python3", "bin/python")
    paths += [{"_path": path, "path_type": "softlink"} for path in links]
    (prefix / "conda-meta").mkdir()
    document = {"name": "pure", "version": "1.0", "paths_data": {"paths": paths}}
    (prefix / "conda-meta/pure-1.0-0.json").write_text(json.dumps(document))
    (prefix / "conda-meta/history").write_text("==> 2026-01-01 00:00:00 <==\n")
    return prefix


def test_a_conda_prefix(project: Project, tmp_path: Path, envbuild: Envbuild) -> None:
    prefix = conda(tmp_path / "conda")
    # the copied interpreter's own code is what the E rules look at
    done, all = command(envbuild, project, prefix, "--full", "--ignore", "E003:copied alone")
    assert (done.code, all) == (0, [])
    assert codes(project, prefix)[1] == {}
    with (prefix / PACKAGES / "pure/__init__.py").open("a") as file:
        file.write("Y = 1\n")
    (prefix / "share/pure/table.csv").unlink()
    all = [one for one in found(project, prefix, full=True) if one.code != "E003"]
    assert [(one.code, one.where, one.message) for one in all] == [
        ("M002", f"{prefix}/{PACKAGES}/pure/__init__.py", "is not as pure-1.0-0 has it"),
        ("M002", f"{prefix}/share/pure/table.csv", "is missing"),
    ]


def test_a_moved_conda_prefix(project: Project, tmp_path: Path) -> None:
    conda(tmp_path / "conda").rename(tmp_path / "moved")
    for full in (True, False):
        all = [one for one in found(project, tmp_path / "moved", full=full) if one.code != "E003"]
        assert [(one.code, one.where) for one in all] == [("T001", f"{tmp_path}/moved/bin/pure")]


def test_what_is_no_prefix(project: Project, tmp_path: Path, envbuild: Envbuild) -> None:
    (tmp_path / "folder/bin").mkdir(parents=True)
    for path, said in ((tmp_path / "folder", "a folder with neither"), (tmp_path / "none", "")):
        done = envbuild("verify", "--prefix", str(path), cwd=project.folder)
        assert done.code == 2
        assert f"error: {path}: not a prefix\n" in done.err
        assert f"  found: {said or 'no such folder'}\n" in done.err
