"""What a ``flake.nix`` declares: read as Nix reads it, or not at all."""

from __future__ import annotations

import json
import os
import re
import subprocess
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envbuild.errors import InputError, StepError
from envbuild.lock import flake_inputs
from envbuild.lock.flake_inputs import Inputs, UnclearError
from tests import programs


@pytest.fixture
def nix() -> None:
    programs.require("nix-instantiate", "nix-bin")


@pytest.mark.parametrize(
    "text",
    [
        '{ inputs.a.url = "x"; outputs = { self, a }: { }; }',
        '{ "inputs"."a".url = "x"; outputs = { self, ... }@all: all.a; description = d; }',
        '{ inputs . a = { url\n= "x"; }; outputs = all @ { a, self }: { }; }',
        '{ inputs = { a = { }; }; inputs.a.url = "x"; outputs = inputs: inputs.a == "="; }',
        '/* } */ { # {\r\n description = "#"; inputs.a.url /* = */ = "x"; # a."\n outputs=_:1;}',
        '{ # ends here\rinputs.a.url = "x"; outputs = _: 1; }',
        '{ inputs.a.url = "x"; outputs = _: let my-inputs.b = inputs; in 1; }',
    ],
)
def test_what_is_simple(text: str) -> None:
    assert flake_inputs.read(text) == {"a": {"url": "x"}}


def test_values_are_kept_as_they_are() -> None:
    text = '{ inputs.a = { flake = false; n = 12; inputs.b.follows = ""; }; outputs = _: 1; }'
    found = flake_inputs.read(text)["a"]
    assert found == {"flake": False, "n": 12, "inputs": {"b": {"follows": ""}}}
    assert flake_inputs.read("{ outputs = { self }: 1; }") == {}


FUNCTION = "outputs is not written as a function of the inputs above"
PLAIN = "a plain string or a set was expected"
MORE = "this can be an input, and is not above outputs"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{ inputs = import ./i.nix; outputs = _: 1; }", PLAIN),
        ("rec { outputs = _: 1; }", "{ was expected"),
        ("\ufeff{ outputs = _: 1; }", "{ was expected"),
        ("", "{ was expected"),
        ("{ inherit (x) inputs; outputs = _: 1; }", ". or = was expected"),
        ("{ ${x}.url = 1; outputs = _: 1; }", "the name of an attribute was expected"),
        ('{ inputs."a\nb".url = "x"; outputs = _: 1; }', "the name of an attribute was expected"),
        ("{ input.a.url = 1; outputs = _: 1; }", "inputs, outputs or a description was expected"),
        ('{ inputs.a.url = "x"; }', "inputs, outputs or a description was expected"),
        ('{ inputs.a.url = "${x}"; outputs = _: 1; }', PLAIN),
        ('{ inputs.a.url = "a\\nb"; outputs = _: 1; }', PLAIN),
        ('{ inputs.a.url = "a\nb"; outputs = _: 1; }', PLAIN),
        ("{ inputs.a.url = ''x''; outputs = _: 1; }", PLAIN),
        ("{ inputs.a.url = github:o/r; outputs = _: 1; }", PLAIN),
        ('{ inputs.a.url = "x" + "y"; outputs = _: 1; }', "; was expected"),
        ("{ inputs.a.n = 1.5; outputs = _: 1; }", "; was expected"),
        ("{ inputs.a = { } // b; outputs = _: 1; }", "; was expected"),
        ("{ inputs.a = rec { }; outputs = _: 1; }", PLAIN),
        ('{ inputs.a = "x"; inputs.a.url = "y"; outputs = _: 1; }', "a is defined twice"),
        ('{ inputs.a.x = ""; inputs.a.x = ""; outputs = _: 1; }', "x is defined twice"),
        (
            '{ inputs.a = "x"; outputs = _: 1; }',
            "no inputs of a flake: Expected `object`, got `str`",
        ),
        ("{ inputs.a.b = null; outputs = _: 1; }", "no inputs of a flake: Expected"),
        (
            "{ inputs.a" + ".a = { a" * 3000,
            "no inputs of a flake: maximum recursion depth exceeded",
        ),
        ("{ outputs = import ./o.nix; }", FUNCTION),
        ("{ outputs = { self, a }: 1; }", FUNCTION),
        ("{ outputs = { self ? 1 }: 1; }", FUNCTION),
        ("{ outputs = { self, # a\n}: 1; }", FUNCTION),
        ("{ outputs = (_: 1); }", FUNCTION),
        ('{ outputs = _: 1; inputs.a.url = "x"; }', MORE),
        ("{ outputs = _: 1; inputs = { }; }", MORE),
        ('{ outputs = _: 1; "inputs".a = { }; }', MORE),
        ('{ outputs = _: 1; inputs # ;\n . a /* ; */ . "b;\\"" . c\' = { }; }', MORE),
    ],
)
def test_what_is_not_simple_is_not_read(text: str, why: str) -> None:
    with pytest.raises(UnclearError) as caught:
        flake_inputs.read(text)
    assert re.sub("^line [0-9]+: ", "", str(caught.value)).startswith(why)


def test_the_line_is_named() -> None:
    with pytest.raises(UnclearError) as caught:
        flake_inputs.read("{\n\n  inputs = x;\n}")
    assert str(caught.value) == f"line 3: {PLAIN}"


COMPLEX = (
    '{ outputs = { self, b }: { }; inputs = let n = "x"; in { a.url = n; b.flake = false; }; }'
)


@pytest.mark.usefixtures("nix")
def test_nix_is_asked_for_what_is_not_simple(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, scratch, folder = (tmp_path / name for name in ("home", "scratch", "a flake"))
    config = home / ".config" / "nix" / "nix.conf"
    for one in (config.parent, scratch, folder):
        one.mkdir(parents=True)
    config.write_text("include /what/is/not/there\n")
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    # through links, too
    (folder / "elsewhere.nix").write_text(COMPLEX)
    (folder / "flake.nix").symlink_to("elsewhere.nix")
    (tmp_path / "link").symlink_to(folder)
    inputs = flake_inputs.declared(tmp_path / "link" / "flake.nix")
    assert inputs == {"a": {"url": "x"}, "b": {"flake": False}}
    # nothing is left: neither at home, nor where temporary files are, nor beside the flake
    assert [path for path in home.rglob("*") if path.is_file()] == [config]
    assert list(scratch.iterdir()) == []
    assert sorted(path.name for path in folder.iterdir()) == ["elsewhere.nix", "flake.nix"]
    (folder / "elsewhere.nix").write_text("{ outputs = { self, b, c ? 1 }: { }; }")
    assert flake_inputs.declared(folder / "flake.nix") == {"b": {}, "c": {}}


@pytest.mark.parametrize(
    ("inputs", "said"),
    [
        ('builtins.readFile "/etc/passwd"', "is forbidden in restricted mode"),
        (
            '{ a.url = builtins.fetchurl "http://127.0.0.1:9/x"; }',
            "access to URI 'http://127.0.0.1:9/x' is forbidden in restricted mode",
        ),
    ],
)
@pytest.mark.usefixtures("nix")
def test_nix_reads_nothing_else(tmp_path: Path, inputs: str, said: str) -> None:
    path = tmp_path / "flake.nix"
    path.write_text(f"{{ inputs = {inputs}; outputs = _: {{ }}; }}")
    with pytest.raises(StepError) as caught:
        flake_inputs.declared(path)
    assert said in (caught.value.detail or "")


@pytest.mark.parametrize("inputs", ['{ a = "x"; }', "{ a.flake = 1.5; }", "{ a.b = null; }"])
@pytest.mark.usefixtures("nix")
def test_what_are_no_inputs(tmp_path: Path, inputs: str) -> None:
    path = tmp_path / "flake.nix"
    path.write_text(f"{{ inputs = {inputs}; outputs = _: {{ }}; }}")
    with pytest.raises(InputError) as caught:
        flake_inputs.declared(path)
    assert caught.value.what.startswith("no inputs of a flake: Expected `")


NAMES = st.sampled_from(["a", "b-c", "d'", "_e1", '"q.r"', '"inputs"', "nixpkgs"])
SCALARS = st.one_of(
    st.text(st.characters(min_codepoint=32, exclude_categories=["Cs"]), max_size=12)
    .map(lambda text: text.translate(dict.fromkeys(map(ord, '"\\$'))))
    .map('"{}"'.format),
    st.sampled_from(["true", "false"]),
    st.integers(0, 10**15 - 1).map(str),
)
SPACES = st.sampled_from([" ", "\n", "\r\n", ' # ; } "\n', "/* = ''{ */ "])
# What outputs can do, with what could be taken for its end or for an input; the first are simple
SIMPLE = 5
BODIES = r"""
{ self, ... }: { }
inputs: inputs.nixpkgs.x
{ self }@inputs: let x = 1; in-x = ''${toString x};''; in with { }; { z = in-x; }
inputs@{ self, ... }: { s = '' ''${no} ${"}"} ''' ''\${ $''; t = "\" \${ $"; }
_: let my-inputs.x.url = 1; in [ my-inputs ./p <nixpkgs> http://x.y/z ]
_: let inputs.x.url = 1; in let b = inputs; in b
_: { inherit ({ inputs = "inputs.x.url = 1;"; }) inputs; }
{ self, b-c, d' }: 1
{ nixpkgs, ... }@inputs: inputs.nixpkgs
{ b, c ? { d = "; }"; }, ... }: /* } ; */ 1 + 2
""".strip().splitlines()


@st.composite
def sets(draw: st.DrawFn, depth: int = 0) -> str:
    """Write attributes in braces: with dots or as sets in sets, each name once."""
    parts = []
    for name in draw(st.lists(NAMES, unique=True, max_size=3)):
        ends = [".url", '."in.puts"', ".a.follows"]
        dotted = name + draw(st.sampled_from(["", *ends] if depth else ends))
        deeper = depth < 3 and draw(st.booleans())
        value = draw(sets(depth + 1)) if deeper else draw(SCALARS)
        parts.append(f"{dotted}{draw(SPACES)}={draw(SPACES)}{value}{draw(SPACES)};")
    return f"{{{draw(SPACES)}{draw(SPACES).join(parts)}{draw(SPACES)}}}"


@st.composite
def flakes(draw: st.DrawFn) -> tuple[str, bool]:
    """Write a ``flake.nix``, its attributes in any order, and say whether it is simple."""
    space = draw(SPACES)
    parts = [f"inputs ={space}{one};" for one in draw(st.lists(sets(), max_size=1))]
    # sets at the same place are one
    parts += [f"inputs{space}.more.{one} = {draw(SCALARS)};" for one in ("url", "flake", "x.y")]
    parts += [f"inputs.more.x ={space}{{ z = {draw(SCALARS)}; }};"]
    escaped = draw(st.sampled_from([[], [r'description = "a; } \${ ";'], ['description = ";";']]))
    parts = draw(st.permutations(parts + escaped))
    body = draw(st.sampled_from(BODIES))
    at = draw(st.sampled_from([len(parts), len(parts), len(parts), 1]))
    parts.insert(at, f"outputs{space}={space}{body};")
    simple = at == len(parts) - 1 and body in BODIES[:SIMPLE] and "\\" not in "".join(escaped)
    return f"{{{space.join(parts)}}}", simple


def evaluated(texts: list[str]) -> list[Inputs]:
    """Have Nix read many flakes in one go."""
    with tempfile.TemporaryDirectory() as folder:
        for number, text in enumerate(texts):
            (Path(folder) / f"{number}.nix").write_bytes(text.encode())
        expression = (
            '{ folder }: map (one: let flake = import (/. + "${folder}/${toString one}.nix"); in '
            "{ inputs = flake.inputs or { }; "
            "formals = builtins.attrNames (builtins.functionArgs flake.outputs); }) "
            f"[ {' '.join(str(number) for number in range(len(texts)))} ]"
        )
        done = subprocess.run(
            [
                *("nix-instantiate", "--store", "dummy://", "--eval", "--strict", "--json"),
                *("-E", expression, "--argstr", "folder", str(Path(folder).resolve())),
            ],
            env={"HOME": folder, "PATH": os.environ["PATH"]},
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    return [
        {**{name: {} for name in one["formals"] if name != "self"}, **one["inputs"]}
        for one in json.loads(done.stdout)
    ]


@settings(max_examples=20, deadline=None)
@given(st.lists(flakes(), min_size=4, max_size=8))
def test_what_is_read_is_read_as_nix_reads_it(written: list[tuple[str, bool]]) -> None:
    programs.require("nix-instantiate", "nix-bin")
    for (text, simple), expected in zip(
        written, evaluated([text for text, _ in written]), strict=True
    ):
        try:
            found = flake_inputs.read(text)
        except UnclearError:
            assert not simple
        else:
            assert found == expected
