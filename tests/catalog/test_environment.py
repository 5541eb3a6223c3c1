from __future__ import annotations

from pathlib import Path

import pytest

from envbuild.catalog import environment
from envbuild.errors import InputError
from tests import projects

GOOD = """\
summary = "a toy"
requires-python = ">=3.11.2,<3.12"
python = "3.11.17"
platform = "x86_64-manylinux_2_28"
requirements = ["numpy>=2", "torch==2.7.1"]
"""


def load(tmp_path: Path, text: str) -> environment.Environment:
    path = tmp_path / "toy.toml"
    path.write_text(text)
    return environment.load(path)


def refusal(tmp_path: Path, text: str) -> str:
    with pytest.raises(InputError) as caught:
        load(tmp_path, text)
    assert caught.value.exit_code == 2
    return str(caught.value).replace(str(tmp_path), "envs")


def test_reads_what_a_person_writes(tmp_path: Path) -> None:
    toy = load(tmp_path, GOOD)
    assert toy.minor == (3, 11)
    assert toy.lower_python == "3.11.2"
    assert toy.glibc_minor == 28
    assert toy.requirements == ("numpy>=2", "torch==2.7.1")
    assert toy.image.user == 10001


def test_crlf_is_the_same_file(tmp_path: Path) -> None:
    assert load(tmp_path, GOOD.replace("\n", "\r\n")) == load(tmp_path, GOOD)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "requirements",
            "requirments",
            "envs/toy.toml: requirments: unknown key\n  expected: did you mean requirements?",
        ),
        (
            'summary = "a toy"',
            "summary = 3",
            "envs/toy.toml: summary: wrong type\n  expected: str\n  found: int",
        ),
        ('summary = "a toy"\n', "", "envs/toy.toml: summary: missing key"),
        (
            ">=3.11.2,<3.12",
            ">=3.11",
            "envs/toy.toml: requires-python: not an interval\n"
            "  expected: an interval within one minor version, such as >=3.11.2,<3.12\n"
            "  found: '>=3.11'",
        ),
        (
            ">=3.11.2,<3.12",
            ">=3.11,<3.13",
            "envs/toy.toml: requires-python: covers more or less than one minor version\n"
            "  expected: an interval within one minor version, such as >=3.11.2,<3.12\n"
            "  found: '>=3.11,<3.13'",
        ),
        (
            '"3.11.17"',
            '"3.12.1"',
            "envs/toy.toml: python: not a full version inside requires-python\n"
            "  expected: MAJOR.MINOR.PATCH in >=3.11.2,<3.12\n  found: '3.12.1'",
        ),
        (
            "x86_64-manylinux_2_28",
            "linux",
            "envs/toy.toml: platform: not a platform that envbuild locks for\n"
            "  expected: x86_64-manylinux_2_N, N the minor version of the oldest glibc\n"
            "  found: 'linux'",
        ),
        (
            '"numpy>=2"',
            '"numpy=>2"',
            "envs/toy.toml: requirements[0]: not a requirement: Expected semicolon (after name "
            "with no version specifier) or end\n"
            "  expected: a name with version bounds (PEP 508)\n  found: 'numpy=>2'",
        ),
        (
            '"numpy>=2"',
            '"numpy @ https://example.org/numpy.whl"',
            "envs/toy.toml: requirements[0]: names a URL, which a lock cannot hold for every "
            "mirror\n  expected: a name with version bounds (PEP 508)\n"
            "  found: 'numpy @ https://example.org/numpy.whl'",
        ),
        (
            '["numpy>=2", "torch==2.7.1"]',
            "[]",
            "envs/toy.toml: requirements: empty\n  expected: at least one requirement",
        ),
        (
            "requirements",
            'excludes = ["numpy>2"]\nrequirements',
            "envs/toy.toml: excludes[0]: more than a name\n  expected: numpy",
        ),
        (
            'summary = "a toy"',
            "summary = ",
            "envs/toy.toml: not TOML: Invalid value (at line 1, column 11)",
        ),
    ],
)
def test_says_what_is_wrong(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert refusal(tmp_path, GOOD.replace(old, new)) == message


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (
            "[image]\nusr = 3\n",
            "envs/toy.toml: image.usr: unknown key\n  expected: did you mean user?",
        ),
        (
            '[build.flash-attn]\nkind = "cdua"\n',
            "envs/toy.toml: build.flash-attn.kind: not a value that it can have\n"
            "  expected: cuda or pure\n  found: 'cdua'",
        ),
        (
            '[[editable]]\npath = "../elsewhere"\n',
            "envs/toy.toml: editable[0].path: leaves the site's root\n"
            "  expected: a path relative to the site's root, without ..\n  found: ../elsewhere",
        ),
        (
            "[checks]\ncommands = [[1]]\n",
            "envs/toy.toml: checks.commands[0][0]: wrong type\n  expected: str\n  found: int",
        ),
        (
            "[checks]\ncommands = [[]]\n",
            "envs/toy.toml: checks.commands[0]: empty\n  expected: a program and its arguments",
        ),
        *(
            (
                f'[checks]\ncommands = [["ok"], ["{word}", "x"]]\n',
                "envs/toy.toml: checks.commands[1][0]: not the name of a program\n"
                f"  expected: a script of the prefix's bin, or python\n  found: '{word}'",
            )
            for word in ("", "/bin/sh", "./x", "../python", ".", "a b", "-c")
        ),
        *(
            (
                f'[checks]\nimports = ["{name}"]\n',
                "envs/toy.toml: checks.imports[0]: not the name of a module\n"
                "  expected: names joined by '.', as an import statement takes them\n"
                f"  found: '{name}'",
            )
            for name in ("", "a..b", "a-b", ".a", "-c")
        ),
        (
            r"[checks]" + "\n" + r'commands = [["ruff", "a\u0000"]]',
            "envs/toy.toml: checks.commands[0][1]: holds a NUL character\n  mend: remove it",
        ),
        (
            '[build.my_pkg]\nkind = "pure"\n[build."My.Pkg"]\nkind = "cuda"\n',
            "envs/toy.toml: build.My.Pkg: names the same package as build.my_pkg\n"
            "  mend: keep one of the two tables, build.my-pkg",
        ),
        (
            '[build.toy]\nkind = "pure"\nnvcc-flags = ["-O3"]\n',
            'envs/toy.toml: build.toy.nvcc-flags: is for builds of kind "cuda"\n'
            '  mend: remove it, or say kind = "cuda" if toy has code to compile',
        ),
        (
            '[build.toy]\nkind = "cuda"\n',
            "envs/toy.toml: build.toy.architectures: names none\n"
            '  expected: those that are compiled for, such as ["90"]',
        ),
        (
            '[build.toy]\nkind = "cuda"\narchitectures = ["90"]\n'
            '[build.more]\nkind = "cuda"\narchitectures = ["90", "80"]\n',
            "envs/toy.toml: build.more.architectures: differ from those of build.toy\n"
            "  expected: 90\n  found: 90, 80\n"
            "  mend: let all CUDA builds of an environment name the same ones",
        ),
        *(
            (
                f'[build.toy]\nkind = "cuda"\narchitectures = ["90"]\n{line}\n',
                f"envs/toy.toml: build.toy.{message}",
            )
            for line, message in (
                (
                    'match-runtime = ["torch==2"]',
                    "match-runtime[0]: not the name of a package\n"
                    "  expected: a name alone: the lock says which version\n"
                    "  found: 'torch==2'",
                ),
                (
                    "memory-per-job = 0",
                    "memory-per-job: not an amount of memory\n"
                    "  expected: GiB, more than 0\n  found: 0.0",
                ),
                (
                    'variables = { MAX_JOBS = "9" }',
                    "variables.MAX_JOBS: envbuild sets it itself\n  mend: remove it",
                ),
                (
                    'variables = { https_proxy = "x" }',
                    "variables.https_proxy: envbuild sets it itself\n  mend: remove it",
                ),
                (
                    'variables = { "a-b" = "x" }',
                    "variables: not the name of a variable\n"
                    "  expected: letters, digits and '_', no digit first\n  found: 'a-b'",
                ),
                (
                    'nvcc-flags = ["-gencode=arch=compute_80,code=sm_80"]',
                    "nvcc-flags[0]: chooses what is named by architectures\n"
                    "  found: '-gencode=arch=compute_80,code=sm_80'",
                ),
                (
                    'imports = ["a-b"]',
                    "imports[0]: not the name of a module\n"
                    "  expected: names joined by '.', as an import statement takes them\n"
                    "  found: 'a-b'",
                ),
                (
                    'edits = [{ file = "../a", replace = "b", by = "c" }]',
                    "edits[0].file: not a file of the source\n"
                    "  expected: a path relative to the sdist's top folder, without ..\n"
                    "  found: '../a'",
                ),
                (
                    'edits = [{ file = "a", replace = "", by = "c" }]',
                    "edits[0].replace: empty\n  expected: a text that is there",
                ),
                (
                    'edits = [{ file = "a", replace = "b", by = "c", times = 0 }]',
                    "edits[0].times: not a count\n  expected: 1 or more\n  found: 0",
                ),
            )
        ),
        (
            '[static-metadata."a b"]\nrequires-dist = []\n',
            "envs/toy.toml: static-metadata.a b: not the name of a package\n  found: 'a b'",
        ),
        (
            "[static-metadata.old]\nrequires-dist = []\nrequire = 1\n",
            "envs/toy.toml: static-metadata.old.require: unknown key\n"
            "  expected: did you mean requires-dist?",
        ),
    ],
)
def test_says_what_is_wrong_in_a_table(tmp_path: Path, table: str, message: str) -> None:
    assert refusal(tmp_path, GOOD + table) == message


def test_packages_that_tables_are_named_for_may_be_spelled_as_people_do(tmp_path: Path) -> None:
    table = '[build.my_pkg]\nkind = "pure"\n[static-metadata."My.Pkg"]\nrequires-dist = []\n'
    toy = load(tmp_path, GOOD + table)
    assert list(toy.build) == list(toy.static_metadata) == ["my-pkg"]


def test_a_byte_order_mark_is_passed_over(tmp_path: Path) -> None:
    assert load(tmp_path, "\ufeff" + GOOD) == load(tmp_path, GOOD)


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        environment.load(tmp_path / "no.toml")
    assert str(caught.value) == (
        f"{tmp_path}/no.toml: environment cannot be read: No such file or directory"
    )


def test_a_derived_environment_inherits(tmp_path: Path) -> None:
    derived = 'summary = "more"\nbase = "gpu"\nrequirements = ["six"]\n'
    project = projects.project(tmp_path, {"gpu": GOOD, "more": derived}, {})
    more = project.environment("more")
    assert more.requirements == ("numpy>=2", "torch==2.7.1", "six")
    assert more.python == "3.11.17"
    assert more.base == "gpu"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            'summary = "more"\nbase = "gpu"\npython = "3.11.9"\nrequirements = ["six"]\n',
            "{folder}/envs/more.toml: python: differs from that of the base\n"
            "  expected: 3.11.17, or leave the key out\n  found: 3.11.9",
        ),
        (
            'summary = "more"\nbase = "gpus"\nrequirements = ["six"]\n',
            "{folder}/envs/more.toml: base: no such environment\n  expected: one of gpu\n"
            "  found: gpus",
        ),
        (
            'summary = "more"\nbase = "more"\nrequirements = ["six"]\n',
            "{folder}/envs/more.toml: base: no such environment\n  expected: one of gpu\n"
            "  found: more",
        ),
    ],
)
def test_a_base_must_fit(tmp_path: Path, text: str, message: str) -> None:
    project = projects.project(tmp_path, {"gpu": GOOD, "more": text}, {})
    with pytest.raises(InputError) as caught:
        project.environment("more")
    assert str(caught.value) == message.format(folder=tmp_path)


def test_settings_of_an_image(tmp_path: Path) -> None:
    image = load(
        tmp_path,
        GOOD
        + """
[image]
user = 2097151
workdir = "/data/größe"
volumes = ["/a", "/a.b/c..d"]
environment = { "A.B" = "x=y", C = "" }
packages = ["libgl1", "libstdc++6", "libglib2.0-0"]
""",
    ).image
    assert image.user == 2097151
    assert image.volumes == ("/a", "/a.b/c..d")


USER = "the number of a user\n  expected: 0 to 2097151, which is what a layer can hold\n"
ABSOLUTE = (
    "an absolute path\n"
    "  expected: a path such as /results, without '.', '..', ':' or '/' at its end\n"
)
VARIABLE = "the name of a variable\n  expected: characters other than '=' and NUL\n"
PACKAGE = (
    "the name of a Debian package\n"
    "  expected: lower-case letters, digits, '+', '-' and '.', two or more of them\n"
)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("user = -1", f"user: not {USER}  found: -1"),
        ("user = 2097152", f"user: not {USER}  found: 2097152"),
        *(
            (f'workdir = "{path}"', f"workdir: not {ABSOLUTE}  found: '{path}'")
            for path in (
                "",
                "results",
                "/",
                "//a",
                "/a/",
                "/a//b",
                "/a/../b",
                "/./a",
                "/a:b",
                "/a/.wh.b",
            )
        ),
        (r'workdir = "/a\nb"', f"workdir: not {ABSOLUTE}  found: '/a\\nb'"),
        ('volumes = ["/a", "b"]', f"volumes[1]: not {ABSOLUTE}  found: 'b'"),
        ('environment = { "A=B" = "x" }', f"environment: not {VARIABLE}  found: 'A=B'"),
        ('environment = { "" = "x" }', f"environment: not {VARIABLE}  found: ''"),
        (r'environment = { "A\u0000" = "x" }', f"environment: not {VARIABLE}  found: 'A\\x00'"),
        *(
            (f'packages = ["libc6", "{name}"]', f"packages[1]: not {PACKAGE}  found: '{name}'")
            for name in ("", "x", "LibGL", "libc6:amd64", "libc6=2", "../x", "-x")
        ),
    ],
)
def test_settings_that_no_image_can_have(tmp_path: Path, line: str, message: str) -> None:
    assert refusal(tmp_path, f"{GOOD}[image]\n{line}\n") == f"envs/toy.toml: image.{message}"


@pytest.mark.parametrize(
    "folder", ["/usr", "/etc/ssl", "/opt", "/opt/envs/toy", "/tmp", "/var", "/python/lib", "/lib64"]
)
def test_folders_of_the_system_are_not_the_users(tmp_path: Path, folder: str) -> None:
    assert refusal(tmp_path, f'{GOOD}[image]\nworkdir = "{folder}"\n') == (
        "envs/toy.toml: image.workdir: a folder of the system, which the image's user would own\n"
        "  expected: a folder of the user's own, such as /results\n"
        f"  found: '{folder}'"
    )


@pytest.mark.parametrize("folder", ["/results", "/opt/data", "/var/data", "/tmp/x", "/users"])
def test_folders_that_can_be_the_users(tmp_path: Path, folder: str) -> None:
    assert load(tmp_path, f'{GOOD}[image]\nworkdir = "{folder}"\n').image.workdir == folder
