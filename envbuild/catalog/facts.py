"""A site's settings with where each comes from, for people to judge."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from envbuild.catalog.site import Fact, Layout, Site

_SILENT = frozenset({"summary", "facts", "extends"})


class Setting(msgspec.Struct, frozen=True):
    """One setting of a site.

    Attributes:
        key: as in the file.
        value: as it is for this user.
        source: who or what says so.
        verified: the day on which somebody looked on the site itself; None if nobody ever did.
    """

    key: str
    value: str
    source: str
    verified: str | None


def settings(layout: Layout) -> Iterator[Setting]:
    """Yield a site's settings, each with its source; without those that it does not have."""
    site = layout.site
    for field in msgspec.structs.fields(Site):
        value = getattr(site, field.name)
        if field.encode_name in _SILENT or value is None:
            continue
        fact = source(site, field.encode_name)
        unstated = "envbuild's default" if value == field.default else "no source given"
        yield Setting(
            key=field.encode_name,
            value=_shown(value, layout),
            source=unstated if fact is None else _source(fact),
            verified=None if fact is None or fact.verified is None else fact.verified.isoformat(),
        )


def source(site: Site, key: str) -> Fact | None:
    """Return the fact that speaks of a setting, if there is one."""
    return next((fact for fact in site.facts if key in fact.keys), None)


def document(layout: Layout) -> dict[str, Any]:
    """Return a site's settings as plain values, for a JSON report."""
    return {
        "name": layout.name,
        "summary": layout.site.summary,
        "root": str(layout.root),
        "prefixes": {name: str(layout.prefix(name)) for name in sorted(layout.folders)},
        "settings": [msgspec.to_builtins(setting) for setting in settings(layout)],
    }


def _source(fact: Fact) -> str:
    return fact.source if fact.stated is None else f"{fact.source} ({fact.stated.isoformat()})"


def _shown(value: object, layout: Layout) -> str:
    if isinstance(value, msgspec.Struct):
        value = msgspec.to_builtins(value)
    if isinstance(value, dict):
        lines = [f"{key} = {_shown(item, layout)}" for key, item in value.items()]
        return "\n".join(lines)
    if isinstance(value, tuple | list):
        return "\n".join(_shown(item, layout) for item in value) or "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value).replace("{user}", layout.user)
