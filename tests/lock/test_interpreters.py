from __future__ import annotations

from pathlib import Path

import pytest

from envbuild.errors import InputError
from envbuild.lock import interpreters
from envbuild.lock.interpreters import Pin

FILE = "cpython-3.11.17+20261021-x86_64-unknown-linux-gnu-install_only_stripped.tar.gz"
PIN = Pin("3.11.17", "20261021", FILE, "2" * 64)


def test_the_list_gives_build_file_and_hash() -> None:
    pin = interpreters.find("3.11.17")
    assert pin.version == "3.11.17"
    assert pin.file == f"cpython-3.11.17+{pin.build}" + FILE.partition("+20261021")[2]
    assert len(pin.sha256) == 64


def test_a_version_that_was_never_built() -> None:
    with pytest.raises(InputError) as caught:
        interpreters.find("3.11.999")
    assert str(caught.value) == (
        "Python 3.11.999 is not in pbs-installer's list\n"
        "  expected: a version of python-build-standalone\n"
        "  mend: choose another version, or update pbs-installer"
    )


def test_what_was_written_reads_the_same_sorted_by_version(tmp_path: Path) -> None:
    other = Pin("3.9.2", "20210327", FILE.replace("3.11.17+20261021", "3.9.2+20210327"), "1" * 64)
    path = tmp_path / "interpreters.toml"
    path.write_bytes(interpreters.serialize([PIN, other]))
    assert interpreters.read(path) == {"3.9.2": other, "3.11.17": PIN}
    assert list(interpreters.read(path)) == ["3.9.2", "3.11.17"]
    assert "http" not in path.read_text()


def test_no_file_is_no_pins(tmp_path: Path) -> None:
    assert interpreters.read(tmp_path / "interpreters.toml") == {}


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            f'sha256 = "{"2" * 64}"',
            'sha256 = ""',
            "interpreters[0]: sha256: not a SHA-256; an interpreter without a hash is refused\n"
            "  expected: 64 lower-case hexadecimal digits\n  found: ''",
        ),
        (
            f'sha256 = "{"2" * 64}"\n',
            "",
            "interpreters[0].sha256: missing key",
        ),
        (
            'version = "3.11.17"',
            'version = "3.11.16"',
            "interpreters[0]: file: not the archive of that version and build\n  expected: "
            "cpython-3.11.16+20261021-x86_64-unknown-linux-gnu-install_only_stripped.tar.gz\n"
            f"  found: {FILE}",
        ),
        (
            "schema = 1",
            "schema = 2",
            "schema: not a version that this envbuild reads\n  expected: 1\n  found: 2\n"
            "  mend: use the envbuild that wrote it, or remove the file and run `envbuild lock`",
        ),
    ],
)
def test_refuses_pins_that_are_none(tmp_path: Path, old: str, new: str, message: str) -> None:
    path = tmp_path / "interpreters.toml"
    path.write_text(interpreters.serialize([PIN]).decode().replace(old, new))
    with pytest.raises(InputError) as caught:
        interpreters.read(path)
    assert str(caught.value) == f"{path}: {message}"


def test_mirrors_that_users_know_are_honoured(monkeypatch: pytest.MonkeyPatch) -> None:
    pin = interpreters.find("3.11.17")
    assert interpreters.url(pin).endswith(f"/{pin.build}/{pin.file.replace('+', '%2B')}")
    monkeypatch.setenv("UV_PYTHON_INSTALL_MIRROR", "file:///mirror/")
    assert interpreters.url(pin) == f"file:///mirror/{pin.build}/{pin.file}"


def test_an_older_build_of_a_version_is_found_beside_the_newer() -> None:
    newer = interpreters.find("3.11.17")
    older = Pin("3.11.17", "20200101", newer.file.replace(newer.build, "20200101"), "3" * 64)
    assert interpreters.url(older) == interpreters.url(newer).replace(newer.build, "20200101")
