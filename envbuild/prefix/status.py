"""What is known of a site's environments, from locks, receipts and a quick look."""

from __future__ import annotations

import msgspec

from envbuild.catalog.project import Project
from envbuild.catalog.site import Layout
from envbuild.digest import sha256_bytes
from envbuild.lock import drift, interpreters, lockfile
from envbuild.prefix import create, receipt


class State(msgspec.Struct, frozen=True):
    """What is known of one environment at a site.

    Attributes:
        environment: its name.
        locked: ``yes``, or what is wrong with the lock.
        prefix: its path.
        built: whether something stands there.
        matches: ``yes``, or why the prefix is not what it should be; empty if it is not built.
        python: the interpreter's version, with ``(fallback)`` where it is not the pinned one.
        checked: when its checks passed, in UTC.
    """

    environment: str
    locked: str
    prefix: str
    built: bool
    matches: str
    python: str | None
    checked: str | None


def states(project: Project, layout: Layout) -> list[State]:
    """Look at every environment that a site builds.

    Raises:
        InputError: an environment's own file is wrong.
    """
    pins = interpreters.read(project.interpreters_file)
    return [_state(project, layout, name, pins) for name in sorted(layout.folders)]


def _state(project: Project, layout: Layout, name: str, pins: dict[str, interpreters.Pin]) -> State:
    prefix = layout.prefix(name)
    environment = project.environment(name)
    locks, findings = drift.check(project, [name])
    errors = [finding for finding in findings if finding.severity == "error"]
    locked = "yes" if not errors else "no" if name not in locks else f"stale: {errors[0].message}"
    known = receipt.read(layout.bookkeeping, name)
    built = prefix.exists()
    matches = ""
    if built and (name not in locks or environment.python not in pins):
        matches = "no lock to compare with"
    elif built:
        why = create.judge(
            known,
            prefix,
            lock_sha256=sha256_bytes(lockfile.serialize(locks[name])),
            declared_sha256=create.declared_sha256(environment, layout, pins[environment.python]),
        )
        matches = why or "yes"
    python = None
    if built and known is not None:
        fallback = " (fallback)" if known.interpreter.origin == "fallback" else ""
        python = known.interpreter.version + fallback
    return State(
        environment=name,
        locked=locked,
        prefix=str(prefix),
        built=built,
        matches=matches,
        python=python,
        checked=known.created if built and known is not None else None,
    )
