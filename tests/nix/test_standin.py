"""The stand-in for nixpkgs, with real Nix and real sandboxes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import tomllib
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import msgspec
import pytest
from packaging.requirements import Requirement

from envbuild import nar
from envbuild.errors import InputError, PreflightError, StepError
from envbuild.nix import standin
from tests.nix.nixtool import Nix, nix
from tests.programs import require
from tests.relocation.objects import compiled

_ROOT = Path(__file__).parents[2]
_MINOR = f"python{sys.version_info.major}.{sys.version_info.minor}"
# what the flake's envbuild brings by itself
_BY_HASH = {"pbs-installer", "uv"}
_ARTIFACT = b"an artifact"

# a flake of the test's own, which takes of nixpkgs what the project's flake takes
_FLAKE = """\
{
  outputs =
    { nixpkgs, ... }:
    let
      pkgs = nixpkgs.legacyPackages.x86_64-linux;
      sha256 = "@there@";
      there = {
        "wheel.whl" = pkgs.fetchPypi {
          inherit sha256;
          pname = "there";
          version = "1.0-2local";
          format = "wheel";
          dist = "py3";
          python = "py3";
          abi = "none";
          platform = "any";
        };
        "in/it's a.tar.gz" = pkgs.fetchPypi {
          inherit sha256;
          pname = "there-it-is";
          version = "1.0";
        };
        "in/a.zip" = pkgs.fetchPypi {
          inherit sha256;
          pname = "there";
          version = "1";
          format = "setuptools";
          extension = "zip";
        };
        "one.deb" = pkgs.fetchurl {
          inherit sha256;
          url = "mirror://debian/pool/one_1_all.deb";
        };
        "two.deb" = pkgs.fetchurl {
          inherit sha256;
          urls = [ "mirror://debian/pool/two_2_all.deb" "mirror://debian/other/two.deb" ];
        };
        named = pkgs.fetchurl {
          inherit sha256;
          url = "https://releases.example/a%2Bb";
          name = "a+b";
        };
      };
      missing = {
        pname = "missing";
        version = "2.0";
        format = "wheel";
        dist = "cp311";
        python = "cp311";
        abi = "cp311";
        platform = "linux_x86_64";
        sha256 = "@missing@";
      };
      environment = pkgs.python3.withPackages (packages: with packages; [ @names@ ]);
      few = pkgs.python3.withPackages (packages: [ packages.requests ]);
    in
    {
      packages.x86_64-linux = {
        inherit environment;
        inherit (pkgs) nixfmt python3 skopeo;
        unknown = pkgs.python3.withPackages (packages: [ packages.nothing ]);
        all = pkgs.runCommand "all" { nativeBuildInputs = [ environment ]; } ''
          python3 -I ${./all.py} > $out
        '';
        few = pkgs.runCommand "few" { nativeBuildInputs = [ few ]; } ''
          echo ${pkgs.python3.pythonVersion} > $out
          python3 -c 'import requests, urllib3; print(requests.__name__)' >> $out
          if python3 -c 'import msgspec' 2>> $out; then exit 1; fi
        '';

        there = pkgs.linkFarm "there" (
          map (name: { inherit name; path = there.${name}; }) (builtins.attrNames there)
        );
        missing = pkgs.linkFarm "of-missing" [
          { name = "wheel.whl"; path = pkgs.fetchPypi missing; }
        ];
        mistaken = pkgs.fetchPypi (missing // { pythom = "cp311"; });

        command = pkgs.runCommand "command" {
          nativeBuildInputs = [ pkgs.nixfmt ];
          words = [ "one" "two" ];
          yes = true;
          passthru.more = "more";
        } ''
          test "$TMPDIR" = "$PWD" -a "$NIX_BUILD_TOP" = "$PWD"
          printf '%s\\n' "$HOME" "$words" "$yes" > $out
          nixfmt >> $out
          mkdir folder
          for name in b a; do echo $name > folder/$name; done
          find folder -type f | sort | xargs tar -cf - | gzip > folder.tar.gz
          rm -r folder
          gzip -dc folder.tar.gz | tar -xf -
          cat folder/* | sed s/a/A/ | grep -v nothing >> $out
          test ! -e /usr
        '';
        stops = pkgs.runCommand "stops" { } ''
          echo before
          false | true
          echo after
          touch $out
        '';
        unset = pkgs.runCommand "unset" { } "echo $nothing > $out";

        hello = pkgs.writeShellApplication {
          name = "hello";
          runtimeInputs = [ pkgs.coreutils pkgs.skopeo ];
          text = ''
            echo "$(basename /x/hello) $*"
            skopeo --version
            (exit 3)
            echo not
          '';
        };
        broken = pkgs.writeShellApplication {
          name = "broken";
          text = "if true";
        };
      };
      devShells.x86_64-linux.default = pkgs.mkShellNoCC { packages = [ pkgs.python3 ]; };
    };
}
"""

_ALL = """\
import asyncio, bz2, concurrent.futures, ctypes, decimal, hashlib, importlib, lzma, os, ssl
import subprocess, sys, sysconfig, unicodedata, uuid, venv, zipfile, zlib
import certifi, charset_normalizer, click, idna, isal.isal_zlib, markdown_it, msgspec
import packaging.pylock, pygments.lexers, requests, rich.table, tomli, tomli_w, urllib3

def square(number):
    return number * number

# all that the base has: sqlite3, readline, curses
for file in os.listdir(os.path.join(sysconfig.get_path("stdlib"), "lib-dynload")):
    importlib.import_module(file.partition(".")[0])
ctypes.CDLL("libgcc_s.so.1")  # which the C library opens when a thread ends early
with concurrent.futures.ProcessPoolExecutor(2) as pool:
    print(*pool.map(square, range(4)))
run = subprocess.run([sys.executable, "-c", "print(6 * 7)"], capture_output=True, text=True)
packed = lzma.compress(zlib.compress(b"packed"))
print(run.stdout.strip(), zlib.decompress(lzma.decompress(packed)).decode())
mapped = {line.split()[-1] for line in open("/proc/self/maps") if "/" in line}
paths = {sys.executable, sys.prefix, sys.base_prefix, requests.certs.where(), *sys.path, *mapped}
# nothing but the script itself, which comes from the store, too
print(sorted(path for path in paths if not path.startswith("/nix/store/")))
print(sorted(os.listdir("/")))
"""

_NATIVE = """\
import ctypes, pathlib
print(ctypes.CDLL(pathlib.Path(__file__).with_name("one.so")).one())
"""

_FORMATTER = """\
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
int main(int argc, char **argv) { return printf("formatted %.1f\\n", sqrt(4.0 * argc)) < 0; }
"""


def _bases() -> list[str]:
    """The Python that runs the tests, and the system's own where that takes the same packages."""
    own, system = Path(sys.base_prefix).resolve(), Path("/usr")
    other = own != system and (system / "bin" / _MINOR).exists()
    return [str(own), *([str(system)] if other else [])]


def _write(folder: Path, *, base: str = sys.base_prefix, first: Path | None = None) -> None:
    """Write a stand-in by a process of another Python of the same version.

    Args:
        folder: as `standin.write` has it.
        base: the installation of that Python.
        first: a folder with packages that come before those of the tests.
    """
    packages = [*([first] if first else []), _ROOT, Path(msgspec.__file__).parents[1]]
    code = "import sys; from pathlib import Path; from envbuild.nix.standin import write;"
    done = subprocess.run(
        [Path(base) / "bin" / _MINOR, "-c", f"{code} write(Path(sys.argv[1]))", folder],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, packages))},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


class Place:
    """A stand-in, and a flake that uses it.

    Args:
        folder: for both; it must not be there.
        tool: Nix.
        base: the installation of the Python that the stand-in is made of.
    """

    def __init__(self, folder: Path, tool: Nix, base: str = sys.base_prefix) -> None:
        self.folder = folder
        self.tool = tool
        self.standin = folder / "standin"
        self.flake = folder / "flake"
        self.flake.mkdir(parents=True)
        project = tomllib.loads((_ROOT / "pyproject.toml").read_text())["project"]
        names = {Requirement(line).name for line in project["dependencies"]} - _BY_HASH
        text = _FLAKE.replace("@names@", " ".join(sorted(names)))
        text = text.replace("@there@", sha256(_ARTIFACT).hexdigest()).replace("@missing@", 64 * "5")
        (self.flake / "flake.nix").write_text(text)
        (self.flake / "all.py").write_text(_ALL)
        _write(self.standin, base=base)

    def output(self, name: str) -> list[str]:
        """Return Nix's arguments for an output of the flake."""
        override = ("--override-input", "nixpkgs", f"path:{self.standin}")
        return [f"path:{self.flake}#{name}", "--no-write-lock-file", *override]

    def build(self, name: str) -> Path:
        """Build an output, and return where it is."""
        return self.tool.build(*self.output(name))

    def refused(self, name: str) -> str:
        """Try to build an output that cannot be built, and return what is said."""
        return self.tool.run("nix", "build", "--no-link", *self.output(name), code=1).stderr


def _said(stderr: str) -> list[str]:
    """Return what the builder said, of what Nix shows when a build failed."""
    lines = [line.strip() for line in stderr.splitlines()]
    return [line.removeprefix("> ") for line in lines if line.startswith("> ")]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """A stand-in of the running Python, with programs that stand for nixfmt and skopeo."""
    _require_programs()
    folder = tmp_path_factory.mktemp("place")
    with nix(folder) as tool, pytest.MonkeyPatch.context() as patch:
        programs = folder / "programs"
        programs.mkdir()
        compiled(programs / "nixfmt", _FORMATTER, "-lm")
        (programs / "skopeo").write_text("#!/bin/sh\necho skopeo of the machine: $*\n")
        (programs / "skopeo").chmod(0o755)
        patch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
        yield Place(folder / "made", tool)


def _require_programs() -> None:
    require("bash-static", "bash-static")
    require("busybox", "busybox-static")
    require("patchelf", "patchelf")


@pytest.mark.parametrize("base", _bases())
def test_python_runs_in_a_sandbox_and_outside(place: Place, tmp_path: Path, base: str) -> None:
    if base != _bases()[0]:
        place = Place(tmp_path / "other", place.tool, base)
    squares, computed, outside, root = place.build("all").read_text().splitlines()
    assert squares == "0 1 4 9"
    assert computed == "42 packed"
    assert outside == "[]"
    assert root == "['build', 'dev', 'etc', 'nix', 'proc', 'tmp']"
    # what it was made of is not needed any more
    python = f"path:{place.standin}#legacyPackages.x86_64-linux.python3"
    told = place.tool.run("nix", "path-info", "--recursive", python).stdout.split()
    assert [re.sub("/nix/store/.{32}-", "", path) for path in told] == [f"python3-{_version(base)}"]
    code = "import ssl, sys; print(sys.executable)"
    run = place.tool.run("nix", "run", python, "--", "-c", code)
    assert run.stdout == f"{told[0]}/bin/python3\n"


def _version(base: str) -> str:
    code = "import platform; print(platform.python_version())"
    command = [str(Path(base) / "bin" / _MINOR), "-c", code]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def test_python_is_built_again_alike(place: Place) -> None:
    for name in ("python3", "environment"):
        place.build(name)
        place.tool.build("--rebuild", *place.output(name))


def test_packages_are_those_that_were_asked_for_with_what_they_need(place: Place) -> None:
    said = place.build("few").read_text().splitlines()
    assert said[:2] == [_MINOR.removeprefix("python"), "requests"]
    assert said[-1] == "ModuleNotFoundError: No module named 'msgspec'"


def test_an_unknown_package_is_an_error_of_evaluation(place: Place) -> None:
    assert "error: attribute 'nothing' missing\n" in place.refused("unknown")


def test_what_was_preloaded_is_not_fetched(place: Place, tmp_path: Path) -> None:
    for name in (
        *("there-1.0-2local-py3-none-any.whl", "there-it-is-1.0.tar.gz", "there-1.zip"),
        *("one_1_all.deb", "two_2_all.deb", "a+b"),
    ):
        (tmp_path / name).write_bytes(_ARTIFACT)
        place.tool.run("nix-store", "--add-fixed", "sha256", tmp_path / name)
    farm = place.build("there")
    names = ["in/a.zip", "in/it's a.tar.gz", "named", "one.deb", "two.deb", "wheel.whl"]
    found = {str(path.relative_to(farm)): path for path in farm.rglob("*") if path.is_symlink()}
    assert sorted(found) == names
    for path in found.values():
        assert place.tool.real(path.readlink()).read_bytes() == _ARTIFACT


def test_what_is_not_there_is_named_with_what_to_do(place: Place) -> None:
    assert _said(place.refused("missing")) == [
        "missing-2.0-cp311-cp311-linux_x86_64.whl is not in the store, "
        "and a stand-in for nixpkgs downloads nothing",
        f"  expected: a file of that name with SHA-256 {64 * '5'}",
        "  mend: envbuild nix preload",
    ]


def test_an_argument_that_nixpkgs_would_not_take_is_an_error(place: Place) -> None:
    assert "called with unexpected argument 'pythom'" in place.refused("mistaken")


def test_a_command_runs_as_in_nixpkgs(place: Place) -> None:
    assert place.build("command").read_text().splitlines() == [
        *("/homeless-shelter", "one two", "1"),
        *("formatted 2.0", "A", "b"),
    ]
    more = place.tool.run("nix", "eval", "--raw", *place.output("command.more"))
    assert more.stdout == "more"


def test_a_command_stops_where_it_fails(place: Place) -> None:
    assert _said(place.refused("stops")) == ["before"]
    (said,) = _said(place.refused("unset"))
    assert said.endswith("line 1: nothing: unbound variable")


def test_an_application_runs_outside_of_builds(place: Place) -> None:
    run = place.tool.run("nix", "run", *place.output("hello"), "--", "to", "all", code=3)
    assert run.stdout == "hello to all\nskopeo of the machine: --version\n"
    assert "syntax error" in "\n".join(_said(place.refused("broken")))


def test_a_shell_for_development(place: Place) -> None:
    code = "import os, sys; print(sys.executable, os.environ['IN_NIX_SHELL'])"
    run = place.tool.run("nix", "develop", *place.output(""), "--command", "python3", "-c", code)
    assert re.fullmatch(r"/nix/store/[^/]*-python3-[0-9.]+/bin/python3 impure\n", run.stdout)
    # Nix asks for a shell for people, and goes on without
    assert "does not provide attribute" not in run.stderr


def test_the_same_machine_gives_the_same_stand_in(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{place.folder.parent / 'programs'}:{os.environ['PATH']}")
    again = tmp_path / "parent" / "again"
    before = os.umask(0o077)
    try:
        _write(again)
    finally:
        os.umask(before)
    first = nar.digest(place.standin)
    assert nar.digest(again) == first
    assert {path.stat().st_mtime for path in (again, *again.rglob("*"))} == {1}
    # an older one is replaced
    (again / "flake.nix").write_text("{ }")
    (again / "flake.lock").write_text("{ }")
    _write(again)
    assert nar.digest(again) == first
    assert [path.name for path in again.parent.iterdir()] == ["again"]


def test_without_nixfmt_there_is_none_and_without_skopeo_it_is_said(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs = _only(tmp_path / "programs", "bash-static", "busybox", "patchelf")
    # a script, which would not run in a sandbox
    (programs / "nixfmt").write_text("#!/bin/sh\n")
    (programs / "nixfmt").chmod(0o755)
    monkeypatch.setenv("PATH", str(programs))
    standin.write(tmp_path / "standin")
    monkeypatch.undo()
    outputs = f'((import {tmp_path}/standin/flake.nix).outputs {{ self = "{tmp_path}"; }})'
    packages = f"{outputs}.legacyPackages.x86_64-linux"
    evaluate = ("nix-instantiate", "--eval", "--expr")
    assert place.tool.run(*evaluate, f"{packages} ? nixfmt").stdout == "false\n"
    said = place.tool.run(*evaluate, f"{packages}.skopeo.name", code=1).stderr
    assert (
        "error: the stand-in for nixpkgs was made without skopeo: "
        "install it (Debian: apt-get install skopeo) and make it again\n"
    ) in said


def _only(folder: Path, *programs: str) -> Path:
    """Make a folder with some of the machine's programs."""
    _require_programs()
    folder.mkdir()
    for name in programs:
        (folder / name).symlink_to(require(name, name))
    return folder


def test_packages_with_libraries_of_their_own(place: Place, tmp_path: Path) -> None:
    """A module that finds a library by its RUNPATH, which needs one that only the machine has."""
    site = tmp_path / "site"
    _distribution(
        site,
        "envbuild",
        ["Native", "uv", 'gone; python_version < "3"', "gone; extra == 'all'"],
    )
    _distribution(site, "Native", [], "native/__init__.py", "native/one.so", "native.libs/deep.so")
    _distribution(site, "uv", ["gone"])
    deep = compiled(
        site / "native.libs" / "deep.so",
        '#include <string>\nextern "C" int deep() { return std::stoi(std::string("4") + "2"); }',
        *("-shared", "-Wl,-soname,deep.so"),
        language="c++",
    )
    origin = "-Wl,--enable-new-dtags,-rpath,$ORIGIN/../native.libs:/nowhere"
    compiled(
        site / "native" / "one.so",
        "int deep(void); int one(void) { return deep(); }",
        *("-shared", origin, deep),
    )
    _write(tmp_path / "standin", first=site)
    (tmp_path / "flake.nix").write_text(
        """{ outputs = { nixpkgs, ... }: with nixpkgs.legacyPackages.x86_64-linux; {
          packages.x86_64-linux.default = runCommand "native" {
            nativeBuildInputs = [ (python3.withPackages (packages: [ packages.native ])) ];
          } "python3 -c 'import native' > $out";
        }; }"""
    )
    override = ("--override-input", "nixpkgs", f"path:{tmp_path}/standin")
    built = place.tool.build(f"path:{tmp_path}", "--no-write-lock-file", *override)
    assert built.read_text() == "42\n"
    (archive,) = (tmp_path / "standin" / "packages").iterdir()
    with tarfile.open(archive) as tar:
        files = [member.name for member in tar if member.isfile()]
    # without what installers write, and what is elsewhere
    assert files == [
        *("./native/__init__.py", "./native/one.so"),
        *("./native-1.0.dist-info/METADATA", "./native.libs/deep.so"),
    ]


def _distribution(site: Path, name: str, requires: list[str], *files: str) -> None:
    """Install a distribution that only says what it needs, and lists its files."""
    info = site / f"{name.lower()}-1.0.dist-info"
    info.mkdir(parents=True)
    needs = "".join(f"Requires-Dist: {one}\n" for one in requires)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n{needs}")
    names = [*files, f"{info.name}/METADATA", f"{info.name}/RECORD", "../../bin/script"]
    (info / "RECORD").write_text("".join(f"{one},,\n" for one in names))
    for file in files:
        (site / file).parent.mkdir(exist_ok=True)
        (site / file).write_text(_NATIVE)


@pytest.mark.parametrize("kind", ["a folder", "a file", "a stand-in with something else"])
def test_what_is_no_stand_in_is_not_replaced(kind: str, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    kept = folder if kind == "a file" else folder / "kept"
    if kind != "a file":
        folder.mkdir()
    if kind == "a stand-in with something else":
        (folder / "stand-in.json").touch()
    kept.write_text("kept")
    with pytest.raises(InputError) as caught:
        standin.write(folder)
    assert str(caught.value) == (
        f"{folder}: this is not a stand-in for nixpkgs, and is not replaced by one\n"
        "  expected: a folder that is not there, is empty, or holds an older stand-in\n"
        "  mend: name another folder"
    )
    assert kept.read_text() == "kept"


@pytest.mark.parametrize(
    ("missing", "package"),
    [("bash-static", "bash-static"), ("busybox", "busybox-static"), ("patchelf", "patchelf")],
)
def test_a_program_that_is_missing_is_named_with_its_package(
    missing: str, package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = {"bash-static", "busybox", "patchelf"} - {missing}
    monkeypatch.setenv("PATH", str(_only(tmp_path / "programs", *others)))
    with pytest.raises(PreflightError) as caught:
        standin.write(tmp_path / "standin")
    assert str(caught.value) == (
        f"{missing} is not on PATH\n  mend: Debian: apt-get install {package}"
    )
    assert not (tmp_path / "standin").exists()


@pytest.mark.parametrize("kind", ["with libraries", "a script"])
def test_a_program_that_is_not_static_is_refused(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs = _only(tmp_path / "programs", "bash-static", "patchelf")
    if kind == "a script":
        (programs / "busybox").write_text("#!/bin/sh\n")
        (programs / "busybox").chmod(0o755)
    else:
        compiled(programs / "busybox", "int main(void) { return 0; }")
    monkeypatch.setenv("PATH", str(programs))
    with pytest.raises(PreflightError) as caught:
        standin.write(tmp_path / "standin")
    assert str(caught.value) == (
        f"{programs}/busybox: not a static program, and so nothing that runs in an empty sandbox\n"
        "  mend: Debian: apt-get install busybox-static"
    )


def test_where_it_fails_the_older_one_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs = _only(tmp_path / "programs", "bash-static", "busybox")
    (programs / "patchelf").write_text("#!/bin/false\n")
    (programs / "patchelf").chmod(0o755)
    monkeypatch.setenv("PATH", str(programs))
    older = tmp_path / "standin"
    older.mkdir()
    facts = f'{{"nowhere": "/nix/store/{32 * "e"}-"}}'
    (older / "stand-in.json").write_text(facts)
    with pytest.raises(StepError, match="patching paths failed with exit code 1"):
        standin.write(older)
    assert (older / "stand-in.json").read_text() == facts
    assert sorted(path.name for path in tmp_path.iterdir()) == ["programs", "standin"]


@pytest.mark.parametrize("kind", ["not installed", "without its files"])
def test_a_package_that_cannot_be_copied_is_named(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _require_programs()
    site = tmp_path / "site"
    _distribution(site, "envbuild", ["native"])
    if kind == "without its files":
        _distribution(site, "native", [])
        (site / "native-1.0.dist-info" / "RECORD").unlink()
    monkeypatch.syspath_prepend(site)
    with pytest.raises(PreflightError) as caught:
        standin.write(tmp_path / "standin")
    said = {
        "not installed": "native is not installed beside envbuild",
        "without its files": "native does not say which files are its own\n"
        "  expected: a distribution with a RECORD",
    }
    assert str(caught.value) == (
        f"{sys.prefix}: {said[kind]}\n  mend: run it from the environment that `make create` makes"
    )
