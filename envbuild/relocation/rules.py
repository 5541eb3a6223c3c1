"""The relocation rules as data: what each says, why, and an example of wrong and of right.

``python -m envbuild.relocation.rules > docs/rules.md`` writes their page.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from functools import cache
from importlib import resources
from typing import Literal

import msgspec
import tomli

from envbuild.sarif import RuleText


class Rule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A rule.

    Attributes:
        code: its stable name.
        title: what must hold, in a line.
        severity: of its findings; where both are there, ``severities`` says which when.
        severities: when it is an error, when a warning; empty where it is always the one.
        why: what goes wrong without it.
        wrong: an example, as a person meets it.
        right: the same as it should be.
        mend: what to do.
    """

    code: str
    title: str
    severity: Literal["error", "warning"]
    why: str
    wrong: str
    right: str
    mend: str
    severities: str = ""

    @property
    def quick(self) -> bool:
        """Whether a quick look checks it, or it is about scripts and processes."""
        return self.code in _QUICK or self.code.startswith("R")

    @property
    def help(self) -> str:
        """All that is said of it, in Markdown."""
        severity = self.severities.strip() or f"Always {_A[self.severity]}."
        return "\n\n".join(
            (
                self.why.strip(),
                severity,
                f"Wrong:\n\n```text\n{self.wrong.strip()}\n```",
                f"Right:\n\n```text\n{self.right.strip()}\n```",
                f"To mend it: {self.mend.strip()}",
            )
        )


class _Family(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The rules whose codes begin with a letter."""

    letter: str
    title: str
    about: str


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    introduction: str
    family: tuple[_Family, ...]
    rule: tuple[Rule, ...]


_QUICK = frozenset(
    {"P001", "P002", "P003", "P004", "P005", "I001", "I002", "I003", "I004", "M001", "M003"}
    | {"T001", "T002", "T003"}
)
_A = {"error": "an error", "warning": "a warning"}


@cache
def _file() -> _File:
    data = resources.files(__package__).joinpath("rules.toml").read_text(encoding="utf-8")
    return msgspec.convert(tomli.loads(data), _File)


@cache
def rules() -> dict[str, Rule]:
    """Return the rules by their codes, in the order of their families and numbers."""
    return {rule.code: rule for rule in _file().rule}


def markdown() -> str:
    """Return the page about the rules, docs/rules.md."""
    file = _file()
    parts = [file.introduction, "## All rules", _table(file.rule)]
    for family in file.family:
        parts += [f"## {family.title} ({family.letter})", family.about]
        for rule in file.rule:
            if rule.code.startswith(family.letter):
                parts += [f"### {rule.code}", f"**{rule.title}.**", rule.help]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def _table(known: Iterable[Rule]) -> str:
    rows = ["| code | finds | what must hold |", "| --- | --- | --- |"]
    for rule in known:
        severity = "both" if rule.severities else f"{rule.severity}s"
        rows.append(f"| [{rule.code}](#{rule.code.lower()}) | {severity} | {rule.title} |")
    return "\n".join(rows)


def texts() -> list[RuleText]:
    """Return what SARIF says of the rules."""
    return [RuleText(one.code, one.title, one.severity, one.help) for one in rules().values()]


if __name__ == "__main__":
    sys.stdout.write(markdown())
