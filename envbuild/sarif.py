"""Findings as SARIF, for the tools that show them beside the code (OASIS SARIF v2.1.0)."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal
from urllib.parse import quote

import msgspec

from envbuild.findings import Finding, details

VERSION = "2.1.0"
SCHEMA = (
    "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
)

# how tools tell a finding of this run from those of the run before; the number is that of the rule
# by which it is made
_FINGERPRINT = "envbuildFinding/v1"

_LINE = re.compile(r"(?P<file>.+):(?P<line>[1-9][0-9]{0,8})", re.DOTALL)


class RuleText(msgspec.Struct, frozen=True):
    """What is said of a rule.

    Attributes:
        code: the code of its findings.
        title: one line that says what must hold.
        severity: of most of its findings.
        help: the whole of it, in Markdown.
    """

    code: str
    title: str
    severity: Literal["error", "warning"]
    help: str


class _Result(msgspec.Struct, frozen=True, order=True):
    """A finding with what its place in the log is decided by, first things first.

    Attributes:
        code: of the finding.
        file: what it concerns, without the line.
        line: counted from 1; 0 for no line.
        text: the message and what is said besides.
        severity: of the finding.
        reason: why it is ignored; empty if it is not.
    """

    code: str
    file: str
    line: int
    text: str
    severity: str
    reason: str


def log(
    tool_version: str,
    rules: Iterable[RuleText],
    findings: Iterable[Finding],
    suppressed: Iterable[tuple[Finding, str]],
    failures: Sequence[str] = (),
) -> dict[str, Any]:
    """Return a SARIF log of one run, the same for the same findings in whatever order.

    Args:
        tool_version: envbuild's.
        rules: the rules that were checked; a finding's code may be missing among them.
        findings: those that count.
        suppressed: those that are ignored, each with the reason.
        failures: what kept something from being checked.

    Source: https://docs.oasis-open.org/sarif/sarif/v2.1.0/sarif-v2.1.0.html
    """
    ordered = sorted(rules, key=lambda rule: rule.code)
    index = {rule.code: number for number, rule in enumerate(ordered)}
    results = [_result(finding, "") for finding in findings]
    results += [_result(finding, reason) for finding, reason in suppressed]
    driver = {"name": "envbuild", "version": tool_version, "rules": [_rule(one) for one in ordered]}
    run = {
        "tool": {"driver": driver},
        "invocations": [_invocation(failures)],
        "results": _results(sorted(results), index),
    }
    return {"$schema": SCHEMA, "version": VERSION, "runs": [run]}


def _invocation(failures: Sequence[str]) -> dict[str, Any]:
    if not failures:
        return {"executionSuccessful": True}
    told = [{"level": "error", "message": {"text": _string(text)}} for text in failures]
    return {"executionSuccessful": False, "toolExecutionNotifications": told}


def _rule(rule: RuleText) -> dict[str, Any]:
    paragraphs = re.split(r"\n\s*\n", rule.help.strip())
    # a heading says no more than the title
    first = next((one for one in paragraphs if one and not one.startswith("#")), rule.title)
    whole = _string(rule.help.strip() or rule.title)
    return {
        "id": rule.code,
        "shortDescription": {"text": _string(rule.title)},
        "fullDescription": {"text": _string(" ".join(first.split()))},
        # Markdown is fit to be read as it is where it is not rendered
        "help": {"text": whole, "markdown": whole},
        "defaultConfiguration": {"level": rule.severity},
    }


def _result(finding: Finding, reason: str) -> _Result:
    lined = _LINE.fullmatch(finding.where)
    lines = [finding.message, *(f"{label}: {value}" for label, value in details(finding))]
    return _Result(
        code=finding.code,
        file=lined["file"] if lined else finding.where,
        line=int(lined["line"]) if lined else 0,
        text="\n".join(lines),
        severity=finding.severity,
        reason=reason,
    )


def _results(results: Sequence[_Result], index: Mapping[str, int]) -> list[dict[str, Any]]:
    seen: Counter[str] = Counter()
    written = []
    for result in results:
        same = _digest(result)
        seen[same] += 1
        known = {"ruleIndex": index[result.code]} if result.code in index else {}
        written.append(
            {
                "ruleId": result.code,
                **known,
                "level": result.severity,
                "message": {"text": _string(result.text)},
                "locations": [{"physicalLocation": _location(result)}],
                "partialFingerprints": {_FINGERPRINT: f"{same}:{seen[same]}"},
                # one that is not ignored says so: all results of a run have this or none (3.27.23)
                "suppressions": _suppressions(result.reason),
            }
        )
    return written


def _digest(result: _Result) -> str:
    """Name a finding for later runs: whatever line it is then on."""
    parts = "\0".join((result.code, result.file, result.text))
    return hashlib.sha256(parts.encode("utf-8", "surrogatepass")).hexdigest()


def _location(result: _Result) -> dict[str, Any]:
    location: dict[str, Any] = {"artifactLocation": {"uri": _uri(result.file)}}
    if result.line:
        location["region"] = {"startLine": result.line}
    return location


def _suppressions(reason: str) -> list[dict[str, str]]:
    return [{"kind": "external", "justification": _plain(reason)}] if reason else []


def _uri(path: str) -> str:
    """Return a URI reference for a path: relative as it is, absolute with its scheme (RFC 3986)."""
    # a colon is quoted too: before the first slash it would end the name of a scheme
    quoted = quote(path.encode("utf-8", "surrogateescape"))
    return f"file://{quoted}" if path.startswith("/") else quoted


def _string(text: str) -> str:
    """Write a message string: in one that is not doubled, a brace begins a placeholder (3.11.5)."""
    return _plain(text).replace("{", "{{").replace("}", "}}")


def _plain(text: str) -> str:
    """Write out bytes of file names that are no text, which JSON cannot hold."""
    return text.encode("utf-8", "backslashreplace").decode()
