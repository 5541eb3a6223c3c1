"""The rules' texts speak of the rules that there are, and the page about them is theirs."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from envbuild.relocation import rules

ROOT = Path(__file__).parents[2]
SOURCES = (
    *sorted((ROOT / "envbuild/relocation").glob("*.py")),
    ROOT / "envbuild/prefix/verify.py",
)
CODE = re.compile(r"[PIMTER]\d{3}")
SEVERITIES = {"error", "warning"}
TREES = [ast.parse(source.read_text(encoding="utf-8")) for source in SOURCES]
RULES = list(rules.rules().values())


def literals(node: ast.AST) -> set[str]:
    return {
        one.value
        for one in ast.walk(node)
        if isinstance(one, ast.Constant) and isinstance(one.value, str)
    }


class Made(NamedTuple):
    """A place in the sources where a finding is made.

    Attributes:
        code: its code.
        severities: those that it may have; either where a function decides.
        message: what its message may be, with anything in the places of values.
    """

    code: str
    severities: set[str]
    message: re.Pattern[str]


def findings() -> Iterator[Made]:
    for tree in TREES:
        for node in ast.walk(tree):
            match node:
                case ast.Call(func=ast.Name(id="Finding"), args=[ast.Constant() as code, *more]):
                    severities = literals(more[0]) & SEVERITIES or SEVERITIES
                    named = [one.value for one in node.keywords if one.arg == "message"]
                    message = named[0] if named else more[2]
                    yield Made(str(code.value), severities, re.compile(pattern(message)))


def pattern(node: ast.expr) -> str:
    """Return the pattern of the texts that an expression may give."""
    match node:
        case ast.Constant(value=str() as text):
            return re.escape(text)
        case ast.JoinedStr(values=parts):
            return "".join(map(pattern, parts))
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return pattern(left) + pattern(right)
        case ast.IfExp(body=body, orelse=orelse):
            return f"(?:{pattern(body)}|{pattern(orelse)})"
    return ".+"


FINDINGS = list(findings())


def emitted() -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for one in FINDINGS:
        found.setdefault(one.code, set()).update(one.severities)
    return found


def test_every_code_in_the_sources_has_a_rule() -> None:
    named = set().union(*map(literals, TREES))
    assert {text for text in named if CODE.fullmatch(text)} == set(rules.rules())


def test_every_rule_is_one_that_the_sources_find() -> None:
    assert set(rules.rules()) == set(emitted())


def test_rules_stand_in_order_and_once() -> None:
    order = "PIMTER"
    codes = [rule.code for rule in RULES]
    assert codes == sorted(codes, key=lambda code: (order.index(code[0]), code))
    data = (ROOT / "envbuild/relocation/rules.toml").read_text(encoding="utf-8")
    assert data.count("[[rule]]") == len(codes)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.code)
def test_a_rule_says_everything(rule: rules.Rule) -> None:
    assert all(text.strip() for text in (rule.title, rule.why, rule.wrong, rule.right, rule.mend))
    assert "\n" not in rule.title
    assert not rule.title.endswith(".")


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.code)
def test_severities_are_those_of_its_findings(rule: rules.Rule) -> None:
    found = emitted()[rule.code]
    assert rule.severity in found
    assert (len(found) > 1) == bool(rule.severities), "say when it is which, where there are two"


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.code)
def test_the_wrong_example_is_worded_as_the_sources_word_it(rule: rules.Rule) -> None:
    found = re.findall(r"^\S+: (error|warning) ([A-Z]\d{3}): (.+)$", rule.wrong, re.MULTILINE)
    assert found
    for severity, code, message in found:
        assert code == rule.code
        assert any(
            one.code == code and severity in one.severities and one.message.fullmatch(message)
            for one in FINDINGS
        )


def test_the_page_is_made_from_the_rules() -> None:
    page = (ROOT / "docs/rules.md").read_text(encoding="utf-8")
    assert page == rules.markdown(), "python -m envbuild.relocation.rules > docs/rules.md"


def test_tables_of_the_page_fit_a_screen() -> None:
    rows = [line for line in rules.markdown().splitlines() if line.startswith("|")]
    assert len(rows) > len(RULES)
    assert [row for row in rows if len(row) > 100] == []


def test_every_rule_has_a_place_of_its_own_on_the_page() -> None:
    headings = re.findall(r"^### (.*)$", rules.markdown(), re.MULTILINE)
    assert headings == [rule.code for rule in RULES]
