"""A prefix that was built and broke the relocation rules: it never gets to its place."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from envbuild.errors import CheckFailedError
from envbuild.findings import Finding, gathered, text


def _as_kept(finding: Finding, kept: object) -> Finding:
    """Take the mend away: at the path that it names the old prefix stands, which is right."""
    return finding if kept is None else msgspec.structs.replace(finding, mend=None)


class Refused(CheckFailedError):
    """The relocation rules found errors in a prefix that was just built.

    Args:
        environment: whose prefix it is.
        findings: all that they found.
        kept: where it is kept to be looked at.
    """

    def __init__(
        self, environment: str, findings: Sequence[Finding], *, kept: object = None
    ) -> None:
        errors = [_as_kept(one, kept) for one in findings if one.severity == "error"]
        count = f"{len(errors)} error{'' if len(errors) == 1 else 's'}"
        super().__init__(
            f"the new prefix of {environment} breaks the relocation rules: {count}",
            where=kept,
            mend="see docs/rules.md, or `envbuild verify --explain CODE`; nothing was replaced",
            detail=text(gathered(errors)),
        )
        self.environment = environment
        self.findings = tuple(findings)
