"""Files of any bytes are read into values, or refused in words."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from envbuild import typed
from envbuild.errors import InputError
from envbuild.typed import Table

PATH = Path("toy.toml")


class Inner(Table, frozen=True):
    names: tuple[str, ...] = ()


class Outer(Table, frozen=True):
    name: str = ""
    inner: dict[str, Inner] = msgspec.field(default_factory=dict)


def refusal(path: Path, text: str) -> str:
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        typed.load(path, Outer, "toy")
    return str(caught.value).replace(str(path), "toy.toml")


def test_a_byte_order_mark_is_passed_over() -> None:
    assert typed.parse(b'\xef\xbb\xbfname = "x"\r\n', PATH) == {"name": "x"}


@pytest.mark.parametrize("depth", [401, 1000, 100_000])
@pytest.mark.parametrize("form", ["arrays", "tables", "keys"])
def test_what_is_nested_too_deeply_is_refused(tmp_path: Path, depth: int, form: str) -> None:
    text = {
        "arrays": f"name = {'[' * depth}{']' * depth}",
        "tables": f"name = {'{a=' * depth}1{'}' * depth}",
        "keys": f"{'a.' * depth}b = 1",
    }[form]
    message = refusal(tmp_path / "toy.toml", text)
    deep = "toy.toml: nested too deeply\n  mend: no key here needs more than a few levels"
    # as deep as the parser can follow, another word may come first
    assert message == deep or (depth < 1000 and message.startswith("toy.toml: "))


@pytest.mark.parametrize(
    ("text", "key"),
    [
        (r'name = "a\u0000"', "name"),
        (r'inner.x.names = ["a", "\u0000"]', "inner.x.names[1]"),
    ],
)
def test_a_nul_is_refused(tmp_path: Path, text: str, key: str) -> None:
    assert refusal(tmp_path / "toy.toml", text) == (
        f"toy.toml: {key}: holds a NUL character\n  mend: remove it"
    )


@given(st.binary(max_size=100))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    try:
        document = typed.parse(data, PATH)
        typed.check_text(document, PATH)
        typed.convert(document, Outer, PATH)
    except InputError as error:
        assert str(error).startswith("toy.toml: ")
