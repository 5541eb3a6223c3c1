from __future__ import annotations

import pytest

from envbuild import findings
from envbuild.errors import InputError
from envbuild.findings import Chosen, Finding, Ignored

ERROR = Finding("D001", "error", "locks/x", "it is gone", expected="a lock", mend="make one")
WARNING = Finding("D006", "warning", "locks/y", "it is old", found="0.1")


def test_text_says_everything() -> None:
    assert findings.text([ERROR, WARNING]) == (
        "locks/x: error D001: it is gone\n  expected: a lock\n  mend: make one\n"
        "locks/y: warning D006: it is old\n  found: 0.1"
    )


def test_text_is_coloured_when_asked() -> None:
    assert findings.text([ERROR, WARNING], color=True) == (
        "locks/x: \x1b[31m\x1b[1merror\x1b[0m D001: it is gone\n"
        "  expected: a lock\n  mend: make one\n"
        "locks/y: \x1b[33mwarning\x1b[0m D006: it is old\n  found: 0.1"
    )


def test_only_errors_fail() -> None:
    assert findings.failed([WARNING, ERROR])
    assert not findings.failed([WARNING])


def test_documents_leave_out_what_is_not_said() -> None:
    assert findings.document([WARNING]) == [
        {
            "code": "D006",
            "severity": "warning",
            "where": "locks/y",
            "message": "it is old",
            "found": "0.1",
        }
    ]


def test_what_is_ignored_has_a_reason() -> None:
    assert findings.parse_ignore("E002: built by them: we cannot") == Ignored(
        "E002", "built by them: we cannot"
    )


@pytest.mark.parametrize(
    "text", ["E002", "E002:", "E002: ", "E:x", "e002:x", "E0022:x", "E\u0660\u0660\u0662:x", ""]
)
def test_what_is_not_a_code_and_a_reason(text: str) -> None:
    with pytest.raises(InputError) as caught:
        findings.parse_ignore(text)
    assert str(caught.value) == (
        "ignore: not a code and a reason\n"
        f"  expected: CODE:REASON, such as E002:built by the vendor\n  found: {text!r}"
    )


@pytest.mark.parametrize(
    ("select", "kept"),
    [
        ([], [ERROR, WARNING]),
        (["D"], [ERROR, WARNING]),
        (["D001"], [ERROR]),
        (["E", "D006"], [WARNING]),
        (["E"], []),
    ],
)
def test_codes_are_selected_by_their_beginnings(select: list[str], kept: list[Finding]) -> None:
    assert findings.chosen([ERROR, WARNING], select, []) == Chosen(tuple(kept), ())


@pytest.mark.parametrize(
    ("ignored", "reasons"),
    [
        (Ignored("D006", "old is fine"), ["old is fine"]),
        (Ignored("D006", "old is fine", "locks/*"), ["old is fine"]),
        (Ignored("D006", "old is fine", "locks/x"), []),
        (Ignored("D006", "old is fine", "locks"), []),
        # a letter alone would hide what nobody has thought of
        (Ignored("D", "all of it"), []),
    ],
)
def test_codes_are_ignored_in_full(ignored: Ignored, reasons: list[str]) -> None:
    made = findings.chosen([ERROR, WARNING], [], [ignored])
    assert made.suppressed == tuple((WARNING, reason) for reason in reasons)
    assert made.findings == ((ERROR,) if reasons else (ERROR, WARNING))


def test_the_first_reason_is_given() -> None:
    ignored = [Ignored("D001", "elsewhere", "x"), Ignored("D001", "one"), Ignored("D001", "two")]
    assert findings.chosen([ERROR], [], ignored) == Chosen((), ((ERROR, "one"),))


def test_what_is_not_selected_is_not_suppressed() -> None:
    assert findings.chosen([ERROR], ["E"], [Ignored("D001", "so it is")]) == Chosen((), ())


def test_what_is_not_printable_is_escaped() -> None:
    odd = Finding("M002", "error", "/x/new\nline\x1b[31m\udcff é", "is there", found="tab\there")
    assert findings.text([odd]) == (
        "/x/new\\nline\\x1b[31m\\udcff é: error M002: is there\n  found: tab\\there"
    )
