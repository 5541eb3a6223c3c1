"""Credentials: where they lie, and that their values are told nowhere."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from envbuild import findings
from envbuild.errors import InputError
from envbuild.findings import Finding
from envbuild.relocation import credentials

TOKEN = "hf_Ab12/Cd34+\"x'"


def said(found: Iterable[Finding]) -> str:
    return findings.text(list(found))


def write_env(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o600)


def test_variables_are_read_as_a_shell_has_them(tmp_path: Path) -> None:
    (tmp_path / ".env").write_bytes(
        b"\xef\xbb\xbf# PLAIN=no\r\nPLAIN=a b # a comment\r\n"
        b'  export DOUBLE="say \\"x\\" # \\$y"  # more\n'
        b"SINGLE = 'a\\n\nb'\nEMPTY=\nHASH=a#b\nTWICE=1\nTWICE=2\nODD=\"a\nno line\nBYTES=\xff\n"
    )
    assert credentials.read_secrets(tmp_path / ".env") == {
        "PLAIN": "a b",
        "DOUBLE": 'say "x" # $y',
        "SINGLE": "a\\n\nb",
        "EMPTY": "",
        "HASH": "a#b",
        "TWICE": "2",
        "ODD": '"a',
        "BYTES": "\udcff",
    }


def test_variables_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        credentials.read_secrets(tmp_path / ".env")
    assert str(caught.value).replace(str(tmp_path), "") == (
        "/.env: credentials cannot be read: No such file or directory"
    )


def test_files_without_credentials(tmp_path: Path) -> None:
    config, pipe = tmp_path / "config", tmp_path / "pipe"
    config.write_text(f"TOKEN is elsewhere, not {TOKEN[:-1]}; short, {tmp_path}")
    os.mkfifo(pipe)
    secrets = {"TOKEN": TOKEN, "PIN": "short", "CA_BUNDLE": str(tmp_path)}
    files = [config, pipe, tmp_path, tmp_path / "gone"]
    assert not list(credentials.leaks(secrets, files))
    assert not list(credentials.leaks({}, files))


@pytest.mark.parametrize(
    "written",
    [TOKEN, '{"t": "hf_Ab12/Cd34+\\"x\'"}', "https://x/?t=hf_Ab12%2FCd34%2B%22x%27"],
)
def test_a_file_with_a_credential(tmp_path: Path, written: str) -> None:
    log = tmp_path / "log"
    log.write_text(f"begin\n{written}\n")
    offset = log.read_text().index("hf_")
    assert said(credentials.leaks({"TOKEN": TOKEN, "OTHER": "something else"}, [log])) == (
        f"{log}: error R004: the value of TOKEN stands in this file\n"
        f"  expected: credentials in the personal folder alone\n  found: at byte {offset}\n"
        "  mend: take it out, and have a new one issued: this one is known"
    )


def test_a_credential_in_the_name_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "run-sk_live_12345"
    file.write_text("")
    found = list(credentials.leaks({"LONG": "sk_live_12345", "PART": "sk_live_"}, [file]))
    assert {one.where for one in found} == {f"{tmp_path}/run-***"}
    assert [one.message for one in found] == [
        "the value of LONG stands in the name of this file",
        "the value of PART stands in the name of this file",
    ]


def test_a_credential_far_into_a_file(tmp_path: Path) -> None:
    log = tmp_path / "log"
    # it begins before the end of what is read at once, and ends after it
    log.write_bytes(b"x" * ((1 << 20) - 5) + TOKEN.encode() + b"x" * (2 << 20) + TOKEN.encode())
    (found,) = credentials.leaks({"TOKEN": TOKEN}, [log])
    assert found.found == f"at byte {(1 << 20) - 5}"


def test_a_file_that_cannot_be_read() -> None:
    # a process has no memory at address 0
    path = Path("/proc/self/mem")
    assert said(credentials.leaks({"TOKEN": TOKEN}, [path])) == (
        "/proc/self/mem: warning R004: this file was not looked through for credentials\n"
        "  expected: a file that can be read\n  found: Input/output error\n"
        "  mend: check again as a user who may read it"
    )


def test_arguments_of_a_process() -> None:
    secrets = {"TOKEN": TOKEN, "OTHER": "something else"}
    command = ["/p/bin/python", "-m", "x", f"--token={TOKEN}"]
    assert said(credentials.arguments(secrets, command, "process 7")) == (
        "process 7: error R004: the value of TOKEN stands in an argument, "
        "which every user can see\n"
        "  expected: credentials in the personal folder alone\n  found: in argument 3\n"
        "  mend: take it out, and have a new one issued: this one is known"
    )
    assert not list(credentials.arguments(secrets, command[:3], "process 7"))


# no finding has that sign of itself
VALUES = st.text(st.characters(exclude_characters="/\0", codec="utf-8"), min_size=7).map(
    "§{}".format
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.dictionaries(st.from_regex(r"[A-Z]{1,9}", fullmatch=True), VALUES, min_size=1), st.data())
def test_no_value_gets_into_a_finding(
    tmp_path: Path, secrets: dict[str, str], data: st.DataObject
) -> None:
    value = data.draw(st.sampled_from(sorted(secrets.values())))
    around = data.draw(st.text(st.characters(codec="utf-8"), max_size=9))
    log = tmp_path / "log"
    log.write_bytes(f"{around}{value}{around}".encode())
    missing = tmp_path / f"{value}"
    found = [*credentials.leaks(secrets, [log, missing])]
    found += credentials.arguments(secrets, [around, around + value], f"process {value}")
    names = {name for name, one in secrets.items() if one == value}
    assert {name for name in names if any(f" {name} " in one.message for one in found)} == names
    assert "§" not in said(found)
