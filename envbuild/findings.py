"""What a check found: one value for drift, rules, sites and images, and one printer for it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal

import msgspec


class Finding(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One thing that is not as it should be.

    Attributes:
        code: a stable name for the kind of finding, such as ``D002``.
        severity: ``error`` fails the check, ``warning`` is shown.
        where: the file, package or folder it concerns.
        message: one line that says what is wrong.
        expected: what would have been right.
        found: what was there instead.
        mend: what to do next, a command where there is one.
    """

    code: str
    severity: Literal["error", "warning"]
    where: str
    message: str
    expected: str | None = None
    found: str | None = None
    mend: str | None = None


def failed(findings: Iterable[Finding]) -> bool:
    """Whether any finding is an error."""
    return any(finding.severity == "error" for finding in findings)


def text(findings: Sequence[Finding]) -> str:
    """Write findings for people: a line each, then what was expected, found and how to mend it."""
    lines: list[str] = []
    for finding in findings:
        lines.append(f"{finding.where}: {finding.severity} {finding.code}: {finding.message}")
        for label, value in (
            ("expected", finding.expected),
            ("found", finding.found),
            ("mend", finding.mend),
        ):
            if value is not None:
                lines.append(f"  {label}: {value}")
    return "\n".join(lines)


def document(findings: Sequence[Finding]) -> list[dict[str, Any]]:
    """Turn findings into plain values for a JSON report."""
    return [dict(msgspec.to_builtins(finding)) for finding in findings]
