from __future__ import annotations

from envbuild import findings
from envbuild.findings import Finding

ERROR = Finding("D001", "error", "locks/x", "it is gone", expected="a lock", mend="make one")
WARNING = Finding("D006", "warning", "locks/y", "it is old", found="0.1")


def test_text_says_everything() -> None:
    assert findings.text([ERROR, WARNING]) == (
        "locks/x: error D001: it is gone\n  expected: a lock\n  mend: make one\n"
        "locks/y: warning D006: it is old\n  found: 0.1"
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
