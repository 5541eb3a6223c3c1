"""What a check found: one value for drift, rules, sites and images, and one printer for it."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Sequence
from typing import Any, Literal

import msgspec

from envbuild.errors import InputError

CODE = re.compile(r"[A-Z][0-9]{3}")


# Findings alike that people are told one by one
_LISTED = 4


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


class Ignored(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A kind of finding that somebody decided to live with.

    Attributes:
        code: the findings' code, in full.
        reason: why they may stand.
        where: a pattern of `fnmatch` for the places that it is so for; None for everywhere.
    """

    code: str
    reason: str
    where: str | None = None

    def covers(self, finding: Finding) -> bool:
        """Whether a finding is of this kind, in one of these places."""
        here = self.where is None or fnmatch.fnmatchcase(finding.where, self.where)
        return finding.code == self.code and here


class Chosen(msgspec.Struct, frozen=True):
    """The findings that somebody asked for.

    Attributes:
        findings: those that count.
        suppressed: those that are ignored, each with the reason.
    """

    findings: tuple[Finding, ...]
    suppressed: tuple[tuple[Finding, str], ...]


def parse_ignore(text: str) -> Ignored:
    """Read what is to be ignored from a command line, such as ``E002:built by the vendor``.

    Raises:
        InputError: it is not a code, a colon and a reason. Whether there is such a code is for the
            caller to see.
    """
    code, _, reason = text.partition(":")
    if CODE.fullmatch(code) is None or not reason.strip():
        raise InputError(
            "ignore: not a code and a reason",
            expected="CODE:REASON, such as E002:built by the vendor",
            found=repr(text),
        )
    return Ignored(code, reason.strip())


def chosen(
    findings: Iterable[Finding], select: Sequence[str], ignored: Sequence[Ignored]
) -> Chosen:
    """Keep the findings that were asked for, and set those aside that are ignored.

    Args:
        findings: in any order, which is kept.
        select: codes, or beginnings of codes such as ``E``; all where empty.
        ignored: what does not count; of several that cover a finding, the first gives the reason.
    """
    counted: list[Finding] = []
    suppressed: list[tuple[Finding, str]] = []
    for finding in findings:
        if select and not finding.code.startswith(tuple(select)):
            continue
        reason = next((one.reason for one in ignored if one.covers(finding)), None)
        if reason is None:
            counted.append(finding)
        else:
            suppressed.append((finding, reason))
    return Chosen(tuple(counted), tuple(suppressed))


def gathered(findings: Iterable[Finding]) -> list[Finding]:
    """Of many findings that are alike, keep a few and tell the number of the others.

    For people: what reads a report is given all of them.

    Args:
        findings: in any order, which is kept.
    """
    kept: list[Finding] = []
    alike: dict[tuple[str, str, str], list[Finding]] = {}
    for one in findings:
        some = alike.setdefault((one.code, one.severity, one.message), [])
        some.append(one)
        if len(some) <= _LISTED:
            kept.append(one)
    for some in alike.values():
        more = len(some) - _LISTED
        if more > 0:
            last = some[_LISTED - 1]
            message = f"{more} more like this: {last.message}"
            mend = last.mend if all(one.mend == last.mend for one in some) else None
            where = some[_LISTED].where if more == 1 else f"{some[_LISTED].where} and others"
            summary = Finding(last.code, last.severity, where, message, mend=mend)
            kept.insert(kept.index(last) + 1, summary)
    return kept


def failed(findings: Iterable[Finding]) -> bool:
    """Whether any finding is an error."""
    return any(finding.severity == "error" for finding in findings)


def text(findings: Sequence[Finding], *, color: bool = False) -> str:
    """Write findings for people: a line each, then what was expected, found and how to mend it.

    Args:
        findings: in the order in which they are written.
        color: whether severities are coloured, for a terminal.
    """
    lines: list[str] = []
    for finding in findings:
        severity = _colored(finding.severity) if color else finding.severity
        where, message = shown(finding.where), shown(finding.message)
        lines.append(f"{where}: {severity} {finding.code}: {message}")
        lines += [f"  {label}: {shown(value)}" for label, value in details(finding)]
    return "\n".join(lines)


def shown(text: str) -> str:
    """Keep a line a line: names of files can hold line ends, and what steers a terminal.

    Args:
        text: whose characters that cannot be printed are escaped.
    """
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else ascii(one)[1:-1] for one in text)


def details(finding: Finding) -> list[tuple[str, str]]:
    """Return what a finding says besides its message, each with its label."""
    labels = ("expected", "found", "mend")
    values = [(label, getattr(finding, label)) for label in labels]
    return [(label, value) for label, value in values if value is not None]


def _colored(severity: Literal["error", "warning"]) -> str:
    # only a terminal needs it, and this module is imported by everything
    import click

    if severity == "error":
        return click.style(severity, fg="red", bold=True)
    return click.style(severity, fg="yellow")


def document(findings: Sequence[Finding]) -> list[dict[str, Any]]:
    """Turn findings into plain values for a JSON report."""
    return [dict(msgspec.to_builtins(finding)) for finding in findings]
