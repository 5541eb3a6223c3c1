"""What can go wrong, as a person is told it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar


class EnvbuildError(Exception):
    """The root of every failure that is a person's or the world's, not a defect of envbuild.

    Args:
        what: one line that says what went wrong.
        where: the file, key, package or folder it concerns.
        expected: what would have been right.
        found: what was there instead.
        mend: what to do next, a command where there is one.
        detail: further lines, such as the output of a program that failed.
    """

    exit_code: ClassVar[int] = 4

    def __init__(
        self,
        what: str,
        *,
        where: object = None,
        expected: object = None,
        found: object = None,
        mend: str | None = None,
        detail: str | None = None,
    ) -> None:
        super().__init__(what)
        self.what = what
        self.where = None if where is None else str(where)
        self.expected = None if expected is None else str(expected)
        self.found = None if found is None else str(found)
        self.mend = mend
        self.detail = detail

    def __str__(self) -> str:
        lines = [f"{self.where}: {self.what}" if self.where else self.what]
        for label in ("expected", "found", "mend"):
            value = getattr(self, label)
            if value is not None:
                lines.append(f"  {label}: {value}")
        if self.detail:
            lines += ["", *(f"  | {line}" for line in self.detail.rstrip().splitlines())]
        return "\n".join(lines)

    def document(self) -> dict[str, str | None]:
        """Return the error as plain values, to hand it from one process to another."""
        fields = ("what", "where", "expected", "found", "mend", "detail")
        return {"kind": type(self).__name__, **{field: getattr(self, field) for field in fields}}


def restored(document: Mapping[str, str | None]) -> EnvbuildError:
    """Return the error that another process described by `EnvbuildError.document`."""
    fields = dict(document)
    kind = {one.__name__: one for one in EnvbuildError.__subclasses__()}[str(fields.pop("kind"))]
    return kind(str(fields.pop("what")), **fields)


class CheckFailedError(EnvbuildError):
    """A check found something."""

    exit_code = 1


class InputError(EnvbuildError):
    """Bad usage, or a file that does not say what it should."""

    exit_code = 2


class PreflightError(EnvbuildError):
    """The place is not as it must be, seen before anything was changed."""

    exit_code = 3


class StepError(EnvbuildError):
    """A step outside envbuild failed: a program, the network, the file system."""

    exit_code = 4
