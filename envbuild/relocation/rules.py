"""The relocation rules as data: what each says, why, and an example of wrong and of right."""

from __future__ import annotations

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


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    rule: tuple[Rule, ...]


_A = {"error": "an error", "warning": "a warning"}


@cache
def rules() -> dict[str, Rule]:
    """Return the rules by their codes, in the order of their families and numbers."""
    data = resources.files(__package__).joinpath("rules.toml").read_text(encoding="utf-8")
    file = msgspec.convert(tomli.loads(data), _File)
    return {rule.code: rule for rule in file.rule}


def texts() -> list[RuleText]:
    """Return what SARIF says of the rules."""
    return [RuleText(one.code, one.title, one.severity, one.help) for one in rules().values()]
