"""A flake's lock against its ``flake.nix``: as a person changes them, and as Nix has them."""

from __future__ import annotations

import copy
import json
import os
import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from envbuild import findings
from envbuild.catalog.project import Project
from envbuild.lock import drift, flake
from envbuild.lock.flake_inputs import UnclearError
from tests import programs, projects

REV = "21a67dc470149f337cecafbe965d8d252a390518"
HASH = "sha256-ugpsyk3NM2s87vXfUiIIiibbJ4Pp0JPS5p/3mfs+q+c="
NIXPKGS = {"type": "github", "owner": "NixOS", "repo": "nixpkgs"}

FLAKE = """\
{
  # inputs.other.url = "github:o/r";
  inputs.nixpkgs.url = "github:NixOS/nixpkgs/nixos-26.05";
  inputs = {
    alias.follows = "tools/lib";
    here.follows = "";
    tools = {
      url = "git+https://git.example/tools?ref=main";
      inputs.nixpkgs.follows = "nixpkgs";
      flake = false;
    };
    local = { type = "path"; path = "/srv/local"; };
  };

  outputs = { self, nixpkgs, ... }@inputs: { lib = inputs; };
}
"""


def entry(original: Mapping[str, object], **more: object) -> dict[str, Any]:
    """Make a complete entry of a lock."""
    locked = {key: value for key, value in original.items() if key != "ref"} | {"narHash": HASH}
    if original["type"] in ("github", "gitlab", "git"):
        locked = {"rev": REV, "lastModified": 1789114715, **locked}
    return {"locked": locked, "original": dict(original), **more}


LOCK: dict[str, Any] = {
    "nodes": {
        "lib": entry({"type": "gitlab", "owner": "o", "repo": "lib"}),
        "local": entry({"type": "path", "path": "/srv/local"}),
        "nixpkgs": entry({**NIXPKGS, "ref": "nixos-26.05"}),
        "root": {
            "inputs": {
                "alias": ["tools", "lib"],
                "here": [],
                "local": "local",
                "nixpkgs": "nixpkgs",
                "tools": "tools",
            }
        },
        "tools": entry(
            {"type": "git", "url": "https://git.example/tools", "ref": "main"},
            inputs={"nixpkgs": ["nixpkgs"], "lib": "lib"},
        ),
    },
    "root": "root",
    "version": 7,
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a flake and the lock that it asks for."""
    folder = tmp_path / "a flake"
    folder.mkdir()
    write(folder, FLAKE, LOCK)
    return folder


def write(folder: Path, text: str, lock: object) -> None:
    (folder / "flake.nix").write_text(text)
    (folder / "flake.lock").write_text(json.dumps(lock, indent=2))


def report(folder: Path) -> str:
    return findings.text(flake.drift(folder))


@pytest.fixture
def no_nix(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))


@pytest.mark.usefixtures("no_nix")
def test_a_lock_that_is_what_is_asked_for(folder: Path) -> None:
    assert report(folder) == ""
    for name in ("flake.nix", "flake.lock"):
        path = folder / name
        path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    assert report(folder) == ""
    # not compared: what an input's inputs are to be, whether it is a flake, the flake's settings
    text = FLAKE.replace("inputs.nixpkgs.follows", "inputs.lib.follows").replace(
        "flake = false;", ""
    )
    (folder / "flake.nix").write_text(text.replace("here.", "self.submodules = true; here."))
    assert report(folder) == ""


@pytest.mark.usefixtures("no_nix")
def test_what_needs_no_lock(tmp_path: Path) -> None:
    assert report(tmp_path) == ""
    (tmp_path / "flake.nix").write_text("{ outputs = { self }: { }; }")
    assert report(tmp_path) == ""
    (tmp_path / "flake.lock").write_text('{"nodes": {"root": {}}, "root": "root", "version": 7}')
    assert report(tmp_path) == ""


def test_one_file_without_the_other(folder: Path) -> None:
    (folder / "flake.lock").unlink()
    assert report(folder) == (
        "flake.lock: error D013: flake.nix has inputs and no lock\n"
        "  expected: one that locks alias, here, local, nixpkgs, tools\n"
        "  mend: run `nix flake lock`"
    )
    (folder / "flake.nix").rename(folder / "flake.lock")
    assert report(folder) == (
        "flake.lock: error D013: a lock without a flake.nix\n"
        "  mend: remove it, or restore flake.nix from version control"
    )


LOCKING = "  mend: run `nix flake lock`"
BY_NIX = "  mend: run `nix flake metadata --no-update-lock-file`, which fails if they differ"


def said(state: str, name: str, expected: str | None, found: str | None) -> str:
    lines = [f"flake.nix: error D013: input {state}: {name} since flake.lock was made"]
    lines += [] if expected is None else [f"  expected: {expected}"]
    lines += [] if found is None else [f"  found: {found}"]
    return "\n".join([*lines, LOCKING])


def not_compared(name: str, why: str, found: str | None = None) -> str:
    lines = [f"flake.nix: warning D013: input {name} is not compared with flake.lock: {why}"]
    return "\n".join([*lines, *([] if found is None else [f"  found: {found}"]), BY_NIX])


OLD = "github:NixOS/nixpkgs/nixos-26.05"
TOOLS = "git+https://git.example/tools?ref=main"
PATH = 'local = { type = "path"; path = "/srv/local"; };'
FORM = "a reference of another form than those that docs/drift.md names"
ALONE = "it has neither a type nor a plain URL alone"


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (PATH, f'{PATH} more.url = "gitlab:o/r";', said("added", "more", "gitlab:o/r", None)),
        (PATH, f"{PATH} more.flake = false;", said("added", "more", None, None)),
        (PATH, "", said("removed", "local", None, "path:/srv/local")),
        ('here.follows = "";', "", said("removed", "here", None, "follows this flake")),
        (
            OLD,
            "github:NixOS/nixpkgs/nixos-26.11",
            said("changed", "nixpkgs", "github:NixOS/nixpkgs/nixos-26.11", OLD),
        ),
        (TOOLS, f"{TOOLS}&dir=sub", said("changed", "tools", f"{TOOLS}&dir=sub", TOOLS)),
        (
            TOOLS,
            "git+https://me:secret@git.example/tools",
            said("changed", "tools", "git+https://***@git.example/tools", TOOLS),
        ),
        (
            'alias.follows = "tools/lib"',
            'alias.follows = "tools"',
            said("changed", "alias", "follows tools", "follows tools/lib"),
        ),
        (
            'type = "path"; path = "/srv/local";',
            'follows = "";',
            said("changed", "local", "follows this flake", "path:/srv/local"),
        ),
        (
            "/srv/local",
            "/srv/else",
            said("changed", "local", "path:/srv/else", "path:/srv/local"),
        ),
        (
            OLD,
            "https://h.example/x.tar.gz",
            not_compared("nixpkgs", FORM, "https://h.example/x.tar.gz"),
        ),
        (
            'alias.follows = "tools/lib"',
            'alias.url = "https://h.example/x"',
            said("changed", "alias", "https://h.example/x", "follows tools/lib"),
        ),
        (
            f'"{OLD}"',
            f'"{OLD}"; inputs.nixpkgs.ref = "main"',
            not_compared("nixpkgs", ALONE, f"{OLD}?ref=main"),
        ),
        (
            'url = "git+https://git.example/tools?ref=main"',
            'type = "hg"; url = "https://me:secret@hg.example"',
            not_compared("tools", "type hg", "hg+https://***@hg.example"),
        ),
        (
            'type = "path"; path = "/srv/local";',
            'path = "/srv/local";',
            not_compared("local", ALONE, "?path=/srv/local"),
        ),
    ],
)
@pytest.mark.usefixtures("no_nix")
def test_what_flake_nix_says_anew(folder: Path, old: str, new: str, expected: str) -> None:
    assert FLAKE.count(old) == 1
    (folder / "flake.nix").write_text(FLAKE.replace(old, new))
    assert report(folder) == expected


def test_what_was_of_another_type_is_changed(folder: Path) -> None:
    lock = copy.deepcopy(LOCK)
    lock["nodes"]["nixpkgs"] = entry({"type": "tarball", "url": "https://h.example/x"})
    write(folder, FLAKE, lock)
    assert report(folder) == said("changed", "nixpkgs", OLD, "tarball+https://h.example/x")


def test_what_outputs_takes_is_asked_for(folder: Path) -> None:
    programs.require("nix-instantiate", "nix-bin")
    (folder / "flake.nix").write_text(FLAKE.replace("{ self, nixpkgs,", "{ self, nixpkgs, utils,"))
    assert report(folder) == said("added", "utils", None, None)
    lock = copy.deepcopy(LOCK)
    lock["nodes"]["root"]["inputs"]["utils"] = "utils"
    lock["nodes"]["utils"] = {**entry(NIXPKGS), "original": {"type": "indirect", "id": "utils"}}
    (folder / "flake.lock").write_text(json.dumps(lock))
    assert report(folder) == not_compared("utils", ALONE)
    (folder / "flake.nix").write_text(FLAKE)
    assert report(folder) == said("removed", "utils", None, "indirect:utils")


Edit = Callable[[dict[str, Any]], object]
RESTORE = "restore it from version control"
ANEW = f"  mend: {RESTORE}, or remove it and run `nix flake lock`"
DIGEST = "  expected: narHash: sha256- and the base64 of 32 bytes\n"
COMMIT = "  expected: rev: 40 lower-case hexadecimal digits\n"
TIME = "  expected: lastModified: seconds since 1970\n"


def update(node: str, side: str, **values: object) -> Edit:
    """Return what sets attributes of an entry, or takes those away that are to be None."""

    def edit(nodes: dict[str, Any]) -> None:
        attributes = {**nodes[node].get(side, {}), **values}
        nodes[node][side] = {key: one for key, one in attributes.items() if one is not None}

    return edit


def elsewhere(name: str, expected: str, found: str) -> str:
    return (
        f"{name} is locked to something else than was asked for\n"
        f"  expected: {expected}\n"
        f"  found: {found}\n"
        f"  mend: run `nix flake update {name}`, or {RESTORE}"
    )


@pytest.mark.parametrize(
    ("edit", "expected"),
    [
        (
            update("nixpkgs", "locked", narHash=None),
            f"the entry of nixpkgs is incomplete: no digest\n{DIGEST}{ANEW}",
        ),
        (
            update("lib", "locked", narHash="sha256-AAAA"),
            "the entry of tools/lib is incomplete: no digest\n"
            f"{DIGEST}  found: 'sha256-AAAA'\n{ANEW}",
        ),
        (
            update("nixpkgs", "locked", rev=REV[:-1]),
            f"the entry of nixpkgs is floating: no commit\n{COMMIT}  found: '{REV[:-1]}'\n{ANEW}",
        ),
        (
            update("lib", "locked", rev=None),
            f"the entry of tools/lib is floating: no commit\n{COMMIT}{ANEW}",
        ),
        (
            update("tools", "locked", lastModified=True),
            f"the entry of tools is incomplete: no time\n{TIME}  found: True\n{ANEW}",
        ),
        (
            lambda nodes: nodes["nixpkgs"].pop("locked"),
            f"the entry of nixpkgs is incomplete: locked: no type\n{ANEW}",
        ),
        (
            lambda nodes: nodes["nixpkgs"].pop("original"),
            f"the entry of nixpkgs is incomplete: original: no type\n{ANEW}",
        ),
        (
            update("lib", "locked", repo=""),
            f"the entry of tools/lib is incomplete: locked: no repo\n{ANEW}",
        ),
        (
            lambda nodes: nodes["root"]["inputs"].update(tools="root"),
            f"the entry of tools is incomplete: original: no type\n{ANEW}\n"
            "flake.lock: error D013: the entry lib, which no input asks for\n"
            f"  mend: take it out, or {RESTORE}\n"
            "flake.lock: error D013: the entry tools, which no input asks for\n"
            f"  mend: take it out, or {RESTORE}",
        ),
        (
            update("nixpkgs", "locked", owner="else", narHash=HASH),
            elsewhere("nixpkgs", OLD, f"github:else/nixpkgs/{REV}?narHash={HASH}"),
        ),
        (
            update("nixpkgs", "locked", host="h.example"),
            elsewhere("nixpkgs", OLD, f"github:NixOS/nixpkgs/{REV}?host=h.example&narHash={HASH}"),
        ),
        (
            update("tools", "locked", url="https://git.example/else"),
            elsewhere("tools", TOOLS, f"git+https://git.example/else?narHash={HASH}&rev={REV}"),
        ),
        (
            update("local", "locked", type="tarball", path=None, url="https://h.example/x"),
            elsewhere("local", "path:/srv/local", f"tarball+https://h.example/x?narHash={HASH}"),
        ),
        (
            update("lib", "original", rev="0" * 40),
            elsewhere(
                "tools/lib", f"gitlab:o/lib/{'0' * 40}", f"gitlab:o/lib/{REV}?narHash={HASH}"
            ),
        ),
        (
            update("lib", "original", dir="sub"),
            elsewhere("tools/lib", "gitlab:o/lib?dir=sub", f"gitlab:o/lib/{REV}?narHash={HASH}"),
        ),
        (
            lambda nodes: nodes.update(lib=entry({"type": "hg", "url": "https://h.example"})),
            f"the entry of tools/lib is not compared: type hg\n{BY_NIX}",
        ),
        (
            lambda nodes: nodes.update(left=nodes["lib"]),
            f"the entry left, which no input asks for\n  mend: take it out, or {RESTORE}",
        ),
        (
            lambda nodes: nodes["root"]["inputs"].update(local="gone"),
            f"no entry gone, which local is\n{ANEW}\n"
            "flake.lock: error D013: the entry local, which no input asks for\n"
            f"  mend: take it out, or {RESTORE}",
        ),
    ],
)
@pytest.mark.usefixtures("no_nix")
def test_a_lock_that_nix_did_not_write(folder: Path, edit: Edit, expected: str) -> None:
    lock = copy.deepcopy(LOCK)
    edit(lock["nodes"])
    write(folder, FLAKE, lock)
    severity = "warning" if "is not compared" in expected else "error"
    assert report(folder) == f"flake.lock: {severity} D013: {expected}"


@pytest.mark.parametrize(
    "node",
    [
        # a path inside the flake needs no digest; a reference from the registry locks another
        {"original": {"type": "path", "path": "./x"}, "locked": {"type": "path", "path": "./x"}},
        {**entry(NIXPKGS), "original": {"type": "indirect", "id": "lib"}},
        entry({"type": "tarball", "url": "https://h.example/x"}),
    ],
)
def test_entries_that_nix_writes(folder: Path, node: dict[str, Any]) -> None:
    lock = copy.deepcopy(LOCK)
    lock["nodes"]["lib"] = {**node, "parent": []}
    write(folder, FLAKE, lock)
    assert report(folder) == ""


VERSION = "version: not one that this envbuild reads\n  expected: 7\n  found: "


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "<<<<<<< HEAD",
            "not the lock of a flake: JSON is malformed: invalid character (byte 0)\n",
        ),
        ("[]", "not the lock of a flake: Expected `object`, got `array`\n"),
        ("{}", f"{VERSION}None\n"),
        (json.dumps({**LOCK, "version": 8}), f"{VERSION}8\n"),
        (json.dumps({**LOCK, "root": "stem"}), "not the lock of a flake: no entry stem\n"),
        (
            '{"nodes": {"root": {"inputs": 1}}, "root": "root", "version": 7}',
            "not the lock of a flake: Expected `object`, got `int` - at `$.nodes[...].inputs`\n",
        ),
    ],
)
@pytest.mark.usefixtures("no_nix")
def test_a_lock_that_cannot_be_read(folder: Path, text: str, expected: str) -> None:
    (folder / "flake.lock").write_text(text)
    assert report(folder) == f"flake.lock: error D013: {expected}{ANEW}"


def test_files_that_are_none(folder: Path) -> None:
    for name in ("flake.nix", "flake.lock"):
        (folder / name).unlink()
        (folder / name).mkdir()
    assert report(folder) == (
        "flake.nix: error D013: flake cannot be read: Is a directory\n"
        f"  mend: correct it, or {RESTORE}\n"
        f"flake.lock: error D013: lock cannot be read: Is a directory\n{ANEW}"
    )


# Attributes as `builtins.parseFlakeRef` of Nix 2.26 gives them
GIT = {"type": "git", "url": "https://h.example/x"}
REFERENCES: dict[str, dict[str, Any]] = {
    "github:NixOS/nixpkgs": NIXPKGS,
    "github:NixOS/nixpkgs/": NIXPKGS,
    "github:NixOS/nixpkgs/nixos-26.05": {**NIXPKGS, "ref": "nixos-26.05"},
    f"github:NixOS/nixpkgs/{REV.upper()}": {**NIXPKGS, "rev": REV},
    "github:NixOS/nixpkgs/a/b": {**NIXPKGS, "ref": "a/b"},
    "github:NixOS/nixpkgs?ref=a/b": {**NIXPKGS, "ref": "a/b"},
    "github:NixOS/nixpkgs/main?dir=sub": {**NIXPKGS, "ref": "main", "dir": "sub"},
    f"github:NixOS/nixpkgs?rev={REV}&host=h.example": {**NIXPKGS, "rev": REV, "host": "h.example"},
    f"github:NixOS/nixpkgs?narHash={HASH.replace('+', '%2B')}": {**NIXPKGS, "narHash": HASH},
    "gitlab:o/r/v1": {"type": "gitlab", "owner": "o", "repo": "r", "ref": "v1"},
    "path:./b": {"type": "path", "path": "./b"},
    "path:/a%20b?dir=x": {"type": "path", "path": "/a b", "dir": "x"},
    "git+https://h.example/x": GIT,
    f"git+https://h.example/x?ref=a%2Fb&rev={REV}": {**GIT, "ref": "a/b", "rev": REV},
    "git+https://h.example/x?dir=sub&submodules=1": {**GIT, "dir": "sub", "submodules": True},
    "git+https://h.example/x?shallow=1&allRefs=0&lfs=1": {
        "type": "git",
        "url": "https://h.example/x?lfs=1",
        "shallow": True,
        "allRefs": False,
    },
    "git+https://h.example:8443/a%20b/x": {"type": "git", "url": "https://h.example:8443/a%20b/x"},
    "git+ssh://git@h.example/~u/x.git": {"type": "git", "url": "ssh://git@h.example/~u/x.git"},
    "git+file:./x": {"type": "git", "url": "file:./x"},
}


@pytest.mark.parametrize("url", REFERENCES)
def test_a_reference_is_the_attributes_that_nix_locks(url: str, tmp_path: Path) -> None:
    nodes = {"root": {"inputs": {"x": "x"}}, "x": entry(REFERENCES[url])}
    lock = {"nodes": nodes, "root": "root", "version": 7}
    write(tmp_path, f'{{ inputs.x.url = "{url}"; outputs = _: {{ }}; }}', lock)
    assert report(tmp_path) == ""
    (tmp_path / "flake.nix").write_text(f'{{ inputs.x.url = "{url}?a=1"; outputs = _: {{ }}; }}')
    assert [one.where for one in flake.drift(tmp_path)] == ["flake.nix"]


@pytest.mark.parametrize(
    "url",
    [
        *("github:o", "github:/r", f"github:o/r/main?rev={REV}", "github:o/r/main?ref=main"),
        *("github:o/r?type=x", "github:o/r#x", "gitlab:g%2Fs/r", "GitHub:o/r", "two words"),
        *("path:", "path:///x", "/srv/x", "./x", "nixpkgs", "sourcehut:~o/r", "git:/srv/x"),
        *("https://h.example/x.tar.gz", "hg+https://h.example", "git://h.example/x", ""),
    ],
)
def test_a_reference_that_is_not_compared(url: str) -> None:
    with pytest.raises(UnclearError):
        flake.canonical(flake.reference({"url": url}))


@pytest.mark.usefixtures("no_nix")
def test_without_nix_what_is_not_simple_is_told_and_the_lock_is_checked(folder: Path) -> None:
    (folder / "flake.nix").write_text("{\n  outputs = import ./.;\n}")
    assert report(folder) == (
        "flake.nix: warning D013: without Nix its inputs cannot be read, and not be compared with "
        "flake.lock\n"
        "  found: line 2: outputs is not written as a function of the inputs above\n"
        "  mend: install Nix, or write them in one of the forms that docs/drift.md names"
    )
    (folder / "flake.nix").write_bytes(b"{ \xff }")
    assert "  found: not UTF-8\n" in report(folder)
    lock = copy.deepcopy(LOCK)
    del lock["nodes"]["nixpkgs"]["locked"]["rev"]
    write(folder, "{ }", lock)
    assert "flake.lock: error D013: the entry of nixpkgs is floating: no commit" in report(folder)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{\n  inputs.a.url = ;\n}", "Nix cannot read it\n  found: syntax error, unexpected ';'"),
        ("{ inputs.a = { }; }", "Nix cannot read it\n  found: attribute 'outputs' missing"),
        (
            '{ inputs.a = "x"; outputs = _: { }; }',
            "no inputs of a flake: Expected `object`, got `str` - at `$[...]`",
        ),
    ],
)
def test_what_nix_cannot_read_is_an_error(folder: Path, text: str, expected: str) -> None:
    programs.require("nix-instantiate", "nix-bin")
    (folder / "flake.nix").write_text(text)
    mend = f"  mend: correct it, or {RESTORE}"
    assert report(folder) == f"flake.nix: error D013: {expected}\n{mend}"


def test_a_nix_that_does_not_run_is_a_warning(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "bin" / "nix-instantiate"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\nkill -9 $$\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent))
    (folder / "flake.nix").write_text("{ outputs = import ./.; }")
    assert report(folder) == (
        "flake.nix: warning D013: it is not compared with flake.lock\n"
        f"  found: evaluating flake.nix was killed by signal 9\n{BY_NIX}"
    )


class Nix:
    """The real program, with a store, a home and a registry of its own."""

    def __init__(self, folder: Path) -> None:
        self._program = programs.require("nix", "nix-bin")
        self._folder = folder
        self._registry = folder / "registry.json"
        self._registry.write_text('{"flakes": [], "version": 2}')

    def flake(self, *arguments: str) -> bool:
        """Run a command of flakes, and say whether it went well."""
        config = [
            "experimental-features = nix-command flakes",
            "build-users-group =",
            "substituters =",
            f"flake-registry = {self._registry}",
        ]
        done = subprocess.run(
            [self._program, "--store", self._folder / "store", "flake", *arguments],
            env={
                "HOME": str(self._folder / "home"),
                "PATH": os.environ["PATH"],
                "NIX_CONFIG": "\n".join(config),
            },
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode in (0, 1), done.stderr
        return done.returncode == 0


@pytest.fixture
def real(tmp_path: Path) -> Iterator[Nix]:
    yield Nix(tmp_path)
    # a store's folders cannot be written to, nor then be removed
    subprocess.run(["chmod", "-R", "u+w", tmp_path], check=True)


@pytest.fixture
def local(tmp_path: Path, real: Nix) -> tuple[Path, str]:
    """A flake with inputs that lie beside it, locked by Nix; and what its ``flake.nix`` says."""
    for name, inputs in (("leaf", ""), ("tool", f'inputs.leaf.url = "path:{tmp_path}/leaf";')):
        (tmp_path / name).mkdir()
        text = f"{{ {inputs} outputs = {{ self, ... }}: {{ }}; }}\n"
        (tmp_path / name / "flake.nix").write_text(text)
    text = (
        "{\n"
        f'  inputs.tool = {{ url = "path:{tmp_path}/tool"; inputs.leaf.follows = "leaf"; }};\n'
        f'  inputs.leaf = {{ type = "path"; path = "{tmp_path}/leaf"; }};\n'
        f'  inputs.files = {{ url = "path:{tmp_path}/leaf"; flake = false; }};\n'
        '  inputs.same.follows = "tool/leaf";\n'
        "  outputs = { self, tool, ... }: { };\n"
        "}\n"
    )
    folder = tmp_path / "flake"
    folder.mkdir()
    (folder / "flake.nix").write_text(text)
    assert real.flake("lock", f"path:{folder}")
    return folder, text


def test_what_nix_locks_is_what_is_asked_for(local: tuple[Path, str]) -> None:
    folder, _ = local
    lock = json.loads((folder / "flake.lock").read_text())
    assert set(lock["nodes"]) == {"files", "leaf", "root", "tool"}
    assert report(folder) == ""


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (
            'same.follows = "tool/leaf"',
            'more.url = "path:HERE/leaf"',
            ["input added: more", "input removed: same"],
        ),
        ("{ self, tool, ... }", "all@{ self, tool, ... }", []),
        ('path:HERE/leaf"; flake', 'path:HERE/tool"; flake', ["input changed: files"]),
        ('path = "HERE/leaf"', 'path = "HERE/tool"', ["input changed: leaf"]),
        ('same.follows = "tool/leaf"', 'same.follows = "leaf"', ["input changed: same"]),
    ],
)
def test_nix_finds_the_same_drift_and_mends_it(
    local: tuple[Path, str], real: Nix, old: str, new: str, expected: list[str]
) -> None:
    folder, text = local
    old, new = (one.replace("HERE", str(folder.parent)) for one in (old, new))
    assert text.count(old) == 1
    (folder / "flake.nix").write_text(text.replace(old, new))
    found = flake.drift(folder)
    assert [one.message for one in found] == [
        f"{one} since flake.lock was made" for one in expected
    ]
    assert {one.mend for one in found} <= {"run `nix flake lock`"}
    consistent = real.flake("metadata", "--no-update-lock-file", f"path:{folder}")
    assert consistent is not bool(found)
    assert real.flake("lock", f"path:{folder}")
    assert report(folder) == ""


def test_nix_refuses_what_is_incomplete(local: tuple[Path, str], real: Nix) -> None:
    folder, _ = local
    path = folder / "flake.lock"
    lock = json.loads(path.read_text())
    del lock["nodes"]["files"]["locked"]["narHash"]
    path.write_text(json.dumps(lock))
    assert [one.message for one in flake.drift(folder)] == [
        "the entry of files is incomplete: no digest"
    ]
    assert not real.flake("lock", f"path:{folder}")
    path.unlink()
    assert real.flake("lock", f"path:{folder}")
    assert report(folder) == ""


def test_it_counts_where_all_environments_are_checked(tmp_path: Path) -> None:
    one = projects.environment("alpha")
    folder = tmp_path / "project"
    projects.project(folder, {"one": one, "two": one}, {"local": projects.LOCAL})
    write(folder, FLAKE, {**LOCK, "version": 6})
    project = Project(folder)
    _, found = drift.check(project, ["one", "two"])
    flakes = [one for one in found if one.code == drift.FLAKE]
    assert [one.where for one in flakes] == ["flake.lock"]
    assert drift.summary(flakes, ["one", "two"]) == "drift: the flake's lock"
    assert drift.summary(found, ["one", "two"]) == (
        "drift in 2 of 2 environments, and the flake's lock"
    )
    _, found = drift.check(project, ["one"])
    assert drift.FLAKE not in {one.code for one in found}
