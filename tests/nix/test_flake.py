"""The project's flake with real Nix: a toy project's images, as `envbuild image` builds them."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from envbuild.catalog.project import Project
from envbuild.digest import sha256_file
from envbuild.image import request as requests
from envbuild.image.build import build
from envbuild.image.request import Request
from envbuild.lock import images, lockfile
from envbuild.lock.lockfile import Lock
from envbuild.nix import standin
from tests.conftest import Envbuild
from tests.image import engines, toys
from tests.image.toys import Toy
from tests.nix import flakes
from tests.nix.nixtool import Nix, nix
from tests.wheels import make_wheel

ROOT = Path(__file__).parents[2]


class Flake(msgspec.Struct, frozen=True):
    """A toy project that is a flake, and the Nix that builds it.

    Attributes:
        toy: the project; its folder holds the flake.
        nix: Nix.
        standin: the folder of the stand-in for nixpkgs.
    """

    toy: Toy
    nix: Nix
    standin: Path

    @property
    def options(self) -> list[str]:
        """Those of every command that evaluates the flake."""
        override = ("--override-input", "nixpkgs", f"path:{self.standin}")
        return [*override, "--no-write-lock-file"]

    def output(self, name: str) -> str:
        """Return what names an output."""
        return f"path:{self.toy.project.folder}#{name}"

    def build(self, name: str, *options: str) -> Path:
        """Build an output, and return where it is."""
        return self.nix.build(*options, *self.options, self.output(name))

    def refused(self, name: str) -> str:
        """Return what is said of an output that must not be built."""
        command = ("nix", "build", "--no-link", "--show-trace", *self.options, self.output(name))
        said = self.nix.run(*command, code=1).stderr
        # Nix sets what follows the first line off
        return re.sub(r"\n {7}", "\n", said)

    def evaluated(self, name: str) -> str:
        """Return a text of the flake's."""
        command = ("nix", "eval", "--raw", *self.options, self.output(name))
        return self.nix.run(*command).stdout


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Flake]:
    """A flake with recorded images, and with all that they are made of in the store."""
    flakes.require_stand_in()
    folder = tmp_path_factory.mktemp("flake")
    with nix(folder) as tool:
        standin.write(folder / "nixpkgs")
        toy = flakes.make(folder / "project")
        variables = {"ENVBUILD_CACHE": str(folder / "cache")}
        for interpreter in ("managed", "debian"):
            options = ("--offline", "--interpreter", interpreter)
            _well("image", "toy", "--record", *options, cwd=toy.project.folder, env=variables)
            _well("nix", "preload", *options, cwd=toy.project.folder, env=tool.env)
        yield Flake(toy, tool, folder / "nixpkgs")


def _well(*arguments: str, cwd: Path, env: dict[str, str]) -> str:
    """Run the command, which must do what it is told; return what it printed."""
    done = subprocess.run(
        [sys.executable, "-m", "envbuild", *arguments],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT), **env},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def changed(made: Flake, tmp_path: Path) -> Flake:
    """A copy of the flake that a test may change."""
    folder = tmp_path / "project"
    shutil.copytree(made.toy.project.folder, folder, symlinks=True)
    project = Project(folder)
    return Flake(Toy(project, project.wheelhouse), made.nix, made.standin)


def request(flake: Flake, interpreter: str) -> Request:
    """Return what an image of the toy is made of."""
    return requests.read(
        flake.toy.project, "toy", base="debian", interpreter=interpreter, compression="gzip"
    )


def edit(path: Path, old: str, new: str) -> None:
    """Replace a text that must be there once."""
    text = path.read_text()
    assert text.count(old) == 1
    path.write_text(text.replace(old, new))


@pytest.mark.parametrize("interpreter", ["managed", "debian"])
def test_an_image_is_the_one_that_the_command_builds(
    made: Flake, tmp_path: Path, interpreter: str
) -> None:
    wanted = request(made, interpreter)
    image = build(wanted, made.toy.wheelhouse, tmp_path / "out", cache=None)
    name = "toy-image" if interpreter == "managed" else "toy-debian-image"
    built = made.build(name)
    assert toys.layout(built) == toys.layout(tmp_path / "out")
    # plain files, for those who copy them
    assert not [path for path in built.rglob("*") if path.is_symlink()]
    for part in ("", ".layers", ".wheelhouse"):
        made.build(name + part)
        made.build(name + part, "--rebuild")
    assert f"sha256:{image.digest}" in (made.toy.project.folder / images.FILE).read_text()


def test_what_the_flake_offers(made: Flake) -> None:
    command = ("nix", "flake", "show", "--json", *made.options, made.output("").rstrip("#"))
    shown = json.loads(made.nix.run(*command).stdout)
    system = "x86_64-linux"
    names = {key: sorted(one[system]) for key, one in shown.items() if system in one}
    names["devShells"] = sorted(shown["devShells"][system])
    formatted = ["formatting"] if shutil.which("nixfmt") else []
    assert names == {
        "apps": ["default", "lock-check"],
        "checks": ["drift", *formatted, "toy-debian-image-digest", "toy-image-digest", "unit"],
        "devShells": ["default"],
        "packages": ["default", "envbuild", "toy-debian-image", "toy-image"],
    }
    assert set(shown) - {"formatter"} == {*names, "lib", "overlays"}
    assert made.evaluated("toy-image.imageName") == "toy"
    tag = sha256_file(made.toy.project.lock_file("toy"))[:12]
    assert made.evaluated("toy-debian-image.imageTag") == tag


def test_the_flakes_checks_hold_and_can_fail(made: Flake, changed: Flake) -> None:
    folder = made.output("").rstrip("#")
    made.nix.run("nix", "flake", "check", *made.options, folder)
    recorded = changed.toy.project.folder / images.FILE
    (digest,) = (one.digest for one in images.read(recorded) if one.interpreter == "managed")
    edit(recorded, digest, f"sha256:{'0' * 64}")
    said = changed.refused("checks.x86_64-linux.toy-image-digest")
    assert "locks/images.toml: toy-image: not the image that is recorded\n" in said
    assert f"  expected: sha256:{'0' * 64}\n" in said
    assert f'"{digest}"' in said
    assert "  mend: envbuild image toy --interpreter managed --record\n" in said
    edit(changed.toy.project.environment_file("toy"), '"alpha"', '"alpha>=1"')
    said = changed.refused("checks.x86_64-linux.drift")
    assert "envs/toy.toml: error D003: requirement changed: alpha -> alpha>=1" in said
    test = changed.toy.project.folder / "nix" / "store-name.test.nix"
    edit(test, '"thing_1.0-rc1_all.deb"', '"another"')
    assert "nix/store-name.test.nix: several in a row are one" in changed.refused(
        "checks.x86_64-linux.unit"
    )


def test_one_wheel_more_leaves_debians_layers_alone(made: Flake, changed: Flake) -> None:
    before = {part: made.evaluated(f"toy-image{part}.outPath") for part in ("", ".layers")}
    path = make_wheel(changed.toy.wheelhouse, "zeta", "1.0")
    lock = changed.toy.lock
    packages = (*lock.packages, toys.package(path))
    lock = msgspec.structs.replace(lock, packages=packages)
    changed.toy.project.lock_file("toy").write_bytes(lockfile.serialize(lock))
    assert changed.evaluated("toy-image.layers.outPath") == before[".layers"]
    assert changed.evaluated("toy-image.outPath") != before[""]


def test_an_image_depends_on_nothing_else_of_the_project(made: Flake, changed: Flake) -> None:
    before = made.evaluated("toy-image.outPath")
    folder = changed.toy.project.folder
    (folder / "README.md").write_text("more")
    (folder / "locks" / "more.toml").write_text("")
    edit(folder / "sites" / "local.toml", "summary", "# more\nsummary")
    edit(folder / "flake.nix", "One lock", "Two locks")
    assert changed.evaluated("toy-image.outPath") == before
    edit(changed.toy.project.environment_file("toy"), '"a toy"', '"another toy"')
    assert changed.evaluated("toy-image.outPath") != before


def test_a_new_environment_needs_no_nix(changed: Flake) -> None:
    project = changed.toy.project
    project.environment_file("more").write_text('summary = "more"\nbase = "toy"\n')
    lock = msgspec.structs.replace(changed.toy.lock, environment="more")
    project.lock_file("more").write_bytes(lockfile.serialize(lock))
    assert changed.evaluated("more-image.imageName") == "more"


@pytest.mark.parametrize(
    ("old", "new", "lines"),
    [
        (
            "schema = 1",
            "schema = 2",
            "tool.envbuild.schema: not a version that this envbuild reads\n"
            "  expected: 1\n  found: 2\n  mend: use the envbuild that wrote it",
        ),
        (
            'lock-version = "1.0"',
            'lock-version = "2.0"',
            "lock-version: not a version that this envbuild reads\n"
            "  expected: 1.0\n  found: 2.0\n  mend: use the envbuild that wrote it",
        ),
        (
            'name = "alpha"',
            'name = "alphabet"',
            "alphabet: the file of another package\n"
            "  expected: alphabet\n  found: alpha-1.0-py3-none-any.whl\n"
            "  mend: restore it from version control, or resolve anew: "
            "`envbuild lock --upgrade toy` as of today",
        ),
        (
            "../wheelhouse/alpha-1.0-py3-none-any.whl",
            "https://example.org/alpha-1.0-py3-none-any.whl",
            "alpha.path: not a file of the wheelhouse\n"
            "  expected: ../wheelhouse/FILE\n"
            "  found: https://example.org/alpha-1.0-py3-none-any.whl\n"
            "  mend: restore it from version control, or resolve anew: "
            "`envbuild lock --upgrade toy` as of today",
        ),
    ],
)
def test_a_lock_that_was_edited_stops_the_evaluation(
    changed: Flake, old: str, new: str, lines: str
) -> None:
    edit(changed.toy.project.lock_file("toy"), old, new)
    said = changed.refused("toy-image")
    assert f"error: envbuild: locks/pylock.toy.toml: {lines}\n" in said


def test_a_hash_that_was_edited_is_of_a_file_that_is_not_there(changed: Flake) -> None:
    path = changed.toy.project.lock_file("toy")
    edit(path, changed.toy.lock.packages[0].artifact.sha256, "0" * 64)
    said = changed.refused("toy-image")
    file = changed.toy.lock.packages[0].artifact.file
    assert f"{file} is not in the store" in said
    assert f"  expected: a file of that name with SHA-256 {'0' * 64}" in said
    assert "  mend: envbuild nix preload" in said


def test_a_lock_that_is_missing_is_said_when_its_image_is_asked_for(changed: Flake) -> None:
    changed.toy.project.lock_file("toy").unlink()
    said = changed.refused("toy-image")
    assert (
        "error: envbuild: locks/pylock.toy.toml: toy has no lock\n  mend: run `envbuild lock toy`\n"
    ) in said


def test_pins_that_are_missing_or_newer(changed: Flake) -> None:
    folder = changed.toy.project.folder
    base = folder / "locks" / "image-base.toml"
    edit(base, "schema = 1", "schema = 2")
    assert (
        "error: envbuild: locks/image-base.toml: schema: not one that this envbuild reads\n"
        "  expected: 1\n  found: 2\n"
        "  mend: use the envbuild that wrote it, or remove the file and run "
        "`envbuild lock --base`\n"
    ) in changed.refused("toy-image")
    edit(base, "schema = 2", "schema = 1")
    (folder / "locks" / "interpreters.toml").write_text("schema = 1\ninterpreters = []\n")
    assert (
        "error: envbuild: locks/interpreters.toml: Python 3.11.17 has no pin\n"
        "  mend: run `envbuild lock`\n"
    ) in changed.refused("toy-image.wheelhouse")


def test_broken_toml_is_named_and_keeps_nobody_from_the_rest(changed: Flake) -> None:
    project = changed.toy.project
    shutil.copy(project.environment_file("toy"), project.environment_file("other"))
    project.lock_file("other").write_text("broken = ")
    project.environment_file("more").write_text("summary = ")
    shutil.copy(project.lock_file("toy"), project.lock_file("more"))
    assert changed.evaluated("envbuild.name").startswith("envbuild-")
    assert changed.evaluated("toy-image.imageName") == "toy"
    assert "while reading locks/pylock.other.toml" in changed.refused("other-image")
    assert "while reading envs/more.toml" in changed.refused("more-image")
    project.lock_file("other").write_text("<<<<<<< HEAD\na = 1\n=======\na = 2\n>>>>>>> other\n")
    assert (
        "error: envbuild: locks/pylock.other.toml: holds the marks of a merge that was not "
        "finished\n  mend: restore it from version control, or resolve anew: "
        "`envbuild lock --upgrade other` as of today\n"
    ) in changed.refused("other-image")


def test_an_environment_that_is_gone_though_its_image_is_recorded(changed: Flake) -> None:
    changed.toy.project.environment_file("toy").unlink()
    assert "does not provide attribute" in changed.refused("toy-debian-image")
    assert changed.evaluated("envbuild.name").startswith("envbuild-")


def test_a_base_is_an_environment(changed: Flake) -> None:
    project = changed.toy.project
    lock = msgspec.structs.replace(changed.toy.lock, environment="more")
    project.lock_file("more").write_bytes(lockfile.serialize(lock))
    hostile = "x; mkdir $out; exit 0; y"
    (project.folder / "envs" / hostile).mkdir()
    shutil.copy(project.environment_file("toy"), project.folder / "envs" / hostile / "toy.toml")
    project.environment_file("more").write_text(f'summary = "more"\nbase = "{hostile}/toy"\n')
    assert (
        "error: envbuild: envs/more.toml: base: no such environment\n"
        f"  expected: one of more, toy\n  found: {hostile}/toy\n"
    ) in changed.refused("more-image")
    # an empty text is none
    project.environment_file("more").write_text('summary = "more"\nbase = "toy"\npython = ""\n')
    assert changed.evaluated("more-image.wheelhouse.outPath").startswith("/nix/store/")


def test_a_package_whose_marker_does_not_hold(changed: Flake, envbuild: Envbuild) -> None:
    wheel = make_wheel(changed.toy.wheelhouse, "zeta", "1.0")
    marker = "python_full_version < '3.11.3'"
    sdist = msgspec.structs.replace(toys.sdist(changed.toy.wheelhouse, "zulu"), marker=marker)
    lock = changed.toy.lock
    packages = (*lock.packages, toys.package(wheel, marker=marker))
    for more in ((), (sdist,)):
        lock = msgspec.structs.replace(lock, packages=(*packages, *more))
        changed.toy.project.lock_file("toy").write_bytes(lockfile.serialize(lock))
        folder = changed.toy.project.folder
        env = {**changed.nix.env, "PYTHONPATH": str(folder)}
        done = envbuild("nix", "preload", "toy", "--offline", cwd=folder, env=env)
        assert done.code == 0, done.err
        output = "toy-image" if not more else None
        if output is None:
            mine = user(changed, folder.parent / "mine", 'environment = "toy";')
            built = mine.build("mine")
        else:
            built = changed.build(output)
        wanted = request(changed, "managed")
        build(wanted, changed.toy.wheelhouse, folder.parent / f"out{len(more)}", cache=None)
        assert toys.layout(built) == toys.layout(folder.parent / f"out{len(more)}")


@pytest.mark.parametrize(
    ("arguments", "lines"),
    [
        (
            'environment = "toy"; interpreter = "debain";',
            "mkImage: no such interpreter\n  expected: managed, debian or none\n  found: debain\n",
        ),
        (
            'environment = "toy"; imageName = "$(id)";',
            "mkImage: not the name of an image\n"
            "  expected: lower-case letters and digits, joined by '.', '_', '-' or '/'\n"
            "  found: $(id)\n",
        ),
        (
            'environment = "nothing";',
            'envs: there is no environment "nothing"\n  expected: one of toy\n',
        ),
    ],
)
def test_arguments_are_held_to_what_they_can_be(
    made: Flake, tmp_path: Path, arguments: str, lines: str
) -> None:
    said = user(made, tmp_path / "mine", arguments).refused("mine")
    assert f"error: envbuild: {lines}" in said


def with_sdist(flake: Flake) -> Path:
    """Lock an sdist that is built on the target system, and return the wheel that was built."""
    more = toys.sdist(flake.toy.wheelhouse)
    lock = msgspec.structs.replace(flake.toy.lock, packages=(*flake.toy.lock.packages, more))
    flake.toy.project.lock_file("toy").write_bytes(lockfile.serialize(lock))
    return make_wheel(flake.toy.project.folder / "built", "zeta", "1.0")


def user(flake: Flake, folder: Path, arguments: str) -> Flake:
    """Write a flake of a person who uses ours as an input, and return it."""
    folder.mkdir()
    (folder / "flake.nix").write_text(
        "{\n"
        f'  inputs.envbuild.url = "path:{flake.toy.project.folder}";\n'
        '  inputs.envbuild.inputs.nixpkgs.follows = "nixpkgs";\n'
        f'  inputs.nixpkgs.url = "path:{flake.standin}";\n'
        "  outputs = { self, envbuild, nixpkgs }:\n"
        "    let pkgs = nixpkgs.legacyPackages.x86_64-linux; in {\n"
        "      packages.x86_64-linux.mine = envbuild.lib.mkImage {\n"
        "        inherit pkgs;\n"
        f"        project = envbuild;\n        {arguments}\n"
        "      };\n"
        "      packages.x86_64-linux.tool = (envbuild.overlays.default pkgs pkgs).envbuild;\n"
        "    };\n"
        "}\n"
    )
    return Flake(Toy(Project(folder), flake.toy.wheelhouse), flake.nix, flake.standin)


def test_what_is_built_on_a_target_must_be_given(
    changed: Flake, tmp_path: Path, envbuild: Envbuild
) -> None:
    wheel = with_sdist(changed)
    assert "does not provide attribute" in changed.refused("toy-image")
    mine = user(changed, tmp_path / "without", 'environment = "toy";')
    assert (
        "error: envbuild: locks/pylock.toy.toml: zeta: built on the target system, not pinned by "
        "the lock\n  mend: give the wheels: lib.mkImage { wheels = [ ./FILE.whl ]; … }\n"
    ) in mine.refused("mine")
    given = 'environment = "toy"; wheels = [ "${envbuild}/built/' + wheel.name + '" ];'
    image = user(changed, tmp_path / "with", given).build("mine")
    done = envbuild(
        *("image", "toy", "--offline", "--no-cache", "--wheel", str(wheel)),
        *("-o", str(tmp_path / "out")),
        cwd=changed.toy.project.folder,
    )
    assert done.code == 0, done.err
    assert toys.layout(image) == toys.layout(tmp_path / "out")


def test_artifacts_come_from_where_a_person_says(changed: Flake, tmp_path: Path) -> None:
    # what no index has: the store does not know it
    path = make_wheel(tmp_path / "mirror", "alpha", "1.0", files={"alpha/other.py": "\n"})
    packages = (toys.package(path), *changed.toy.lock.packages[1:])
    lock = msgspec.structs.replace(changed.toy.lock, packages=packages)
    changed.toy.project.lock_file("toy").write_bytes(lockfile.serialize(lock))
    shutil.copy(path, changed.toy.project.folder)
    assert f"{path.name} is not in the store" in changed.refused("toy-image")
    fetcher = (
        'environment = "toy"; imageName = "mine"; fetchers.wheel = one: '
        f'if one.file == "{path.name}" then "${{envbuild}}/{path.name}" '
        "else pkgs.fetchurl { url = one.file; inherit (one) sha256; };"
    )
    mine = user(changed, tmp_path / "mine", fetcher)
    built = mine.build("mine")
    expected = f"sha256:{lockfile_sha256(changed)}"
    manifest, _ = toys.read(built)
    assert manifest["annotations"]["envbuild.lock"] == expected
    assert mine.evaluated("mine.imageName") == "mine"
    assert mine.evaluated("tool.outPath") == changed.evaluated("envbuild.outPath")


def lockfile_sha256(flake: Flake) -> str:
    """Return what an image says of the lock that it was made of."""
    return sha256_file(flake.toy.project.lock_file("toy"))


def test_an_image_goes_to_a_registry_as_it_is(made: Flake, tmp_path: Path) -> None:
    engines.need("docker-registry", "skopeo")
    digest = images.read(made.toy.project.folder / images.FILE)[0].digest
    program = made.output("toy-debian-image.copyToRegistry")
    with engines.registry(tmp_path / "registry") as address:
        command = ("nix", "run", *made.options, program, "--", f"{address}/team/toy")
        done = made.nix.run(*command, "--dest-tls-verify=false")
        tag = made.evaluated("toy-debian-image.imageTag")
        assert done.stdout.splitlines()[-1] == f"{address}/team/toy:{tag}"
        inspect = ("skopeo", "inspect", "--tls-verify=false", "--format", "{{.Digest}}")
        said = engines.run(*inspect, f"docker://{address}/team/toy:{tag}", home=tmp_path)
        assert said.strip() == digest
    # what skopeo would take for a question about itself, or for Docker Hub
    for words in ([], ["--all", "127.0.0.1:9/a/b"], ["127.0.0.1:9/a/b", "more"], ["toy"]):
        done = made.nix.run("nix", "run", *made.options, program, "--", *words, code=2)
        assert done.stderr.splitlines()[-1] == (
            "usage: copy-to-registry REGISTRY/NAME[:TAG] [OPTION]...: options as skopeo copy has "
            "them, --NAME=VALUE"
        )
    daemon = made.output("toy-debian-image.copyToDockerDaemon")
    done = made.nix.run("nix", "run", *made.options, daemon, "--", "more", code=2)
    assert done.stderr.splitlines()[-1].startswith("usage: copy-to-docker-daemon [OPTION]...: ")
    other = tmp_path / "copy"
    command = ("nix", "run", *made.options, made.output("toy-debian-image.copyTo"), "--")
    made.nix.run(*command, f"oci:{other}:toy", "--dest-oci-accept-uncompressed-layers")
    assert f'"{digest}"' in (other / "index.json").read_text()


def test_an_image_goes_to_docker(made: Flake, tmp_path_factory: pytest.TempPathFactory) -> None:
    engines.need("dockerd", "docker", "skopeo")
    name = f"toy:{made.evaluated('toy-image.imageTag')}"
    folder = tmp_path_factory.mktemp("d")
    with engines.docker(folder) as daemon:
        program = made.output("toy-image.copyToDockerDaemon")
        host = f"--dest-daemon-host=unix://{folder / 'socket'}"
        done = made.nix.run("nix", "run", *made.options, program, "--", host)
        assert done.stdout.splitlines()[-1] == name
        label = '{{index .Config.Labels "envbuild.environment"}}'
        assert daemon.docker("image", "inspect", "--format", label, name) == "toy\n"


def test_the_tool_runs_from_the_flake(made: Flake, changed: Flake) -> None:
    folder = changed.toy.project.folder
    lock_check = ("nix", "run", *made.options, made.output("lock-check"), "--")
    project = {"ENVBUILD_PROJECT": str(folder)}
    # the toy's lock was not made by a resolver
    assert "warning D006" in made.nix.run(*lock_check, env=project).stdout
    edit(changed.toy.project.environment_file("toy"), '"alpha"', '"alpha>=1"')
    assert "D003" in made.nix.run(*lock_check, env=project, code=1).stdout
    done = made.nix.run("nix", "run", *made.options, made.output("").rstrip("#"), "--", "--version")
    assert done.stdout.startswith("envbuild, version ")
    command = ("nix", "develop", *made.options, made.output("").rstrip("#"), "-c", "envbuild")
    assert made.nix.run(*command, "--version").stdout == done.stdout


def test_the_projects_own_files_are_read_alike(made: Flake) -> None:
    """What Nix takes for an image is what envbuild takes."""
    real = Project(ROOT)
    names = [name for name in real.environment_names if not lock_of(real, name).unbuilt]
    expression = (
        "project: builtins.listToAttrs (map (name: { inherit name; value = let "
        f"environment = (import {ROOT}/nix/environments.nix project).environment name; in {{ "
        f"debs = map (one: one.file) ((import {ROOT}/nix/pins.nix project).debs {{ "
        "python = false; inherit (environment) packages; }); "
        "inherit (environment) python; "
        f"lock = import {ROOT}/nix/lock.nix {{ inherit name; "
        'file = project + "/locks/pylock.${name}.toml"; }; '
        f"}}; }}) [ {' '.join(json.dumps(name) for name in names)} ])"
    )
    told = made.nix.run(
        *("nix-instantiate", "--eval", "--strict", "--json", "--expr"), f"({expression}) {ROOT}"
    )
    found = json.loads(told.stdout)
    for name in names:
        asked = requests.read(real, name, base="debian", interpreter="managed", compression="gzip")
        lock = found[name]["lock"]
        files = [one["file"] for one in lock["wheels"]]
        files += [one["wheel"]["file"] for one in lock["pure"]]
        assert sorted(files) == sorted(one.artifact.file for one in asked.lock.installable())
        debs = [package.file for task in asked.debs for package in task.packages]
        assert sorted(found[name]["debs"]) == sorted(debs)
        assert found[name]["python"] == asked.declared.python


def lock_of(project: Project, name: str) -> Lock:
    """Read a lock."""
    return lockfile.read(project.lock_file(name), name)
