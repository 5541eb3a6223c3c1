"""What runs at a site: its credentials, job scripts, and the environment of a process."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from envbuild.catalog.project import Project
from envbuild.catalog.site import Layout
from envbuild.errors import InputError
from envbuild.findings import Finding
from envbuild.prefix import preflight, site_check
from envbuild.relocation import credentials, files, running


def check(
    project: Project | None,
    layout: Layout | None,
    names: Sequence[str],
    scripts: Sequence[Path],
    process: int | None,
) -> Iterator[Finding]:
    """R001 to R004: a site's credentials, job scripts, and the environment of a process.

    Args:
        project: the project, in which no credential may lie.
        layout: the site; without one, only what holds everywhere is checked.
        names: the environments that scripts are for; those that are built where none is given.
        scripts: job scripts.
        process: a process's number.

    Raises:
        InputError: a script cannot be read, or there is no such process.
    """
    allowed = _allowed(layout) if layout is not None else []
    prefixes = _prefixes(layout, names) if layout is not None else []
    personal = layout.site.personal if layout is not None else None
    secrets: dict[str, str] = {}
    here = layout is not None and not any(preflight.missing_mounts(layout))
    if project is not None and layout is not None and personal is not None and here:
        looked = site_check.personal(project, layout)
        yield from (one for one in looked if isinstance(one, Finding))
        file = layout.path(personal.folder) / personal.env_file
        secrets = credentials.read_secrets(file) if file.exists() else {}
        yield from credentials.leaks(secrets, [*_configuration(project, layout), *scripts])
    for path in scripts:
        try:
            text = files.read(path).decode(errors="replace")
        except OSError as error:
            raise InputError(f"script cannot be read: {error.strerror}", where=path) from error
        yield from running.script(text, where=str(path), prefixes=prefixes, allowed=allowed)
    if process is not None:
        where = f"/proc/{process}"
        try:
            variables = _strings(Path(where, "environ"))
            arguments = _strings(Path(where, "cmdline"))
        except OSError as error:
            raise InputError(
                f"process {process} cannot be looked at: {error.strerror}",
                where=where,
                mend="name a process of your own that is running",
            ) from error
        pairs = (text.partition("=") for text in variables)
        environment = {name: value for name, equals, value in pairs if equals}
        yield from running.environment(environment, allowed=allowed, where=where)
        yield from credentials.arguments(secrets, arguments, where)


def _prefixes(layout: Layout, names: Sequence[str]) -> list[Path]:
    """Return the prefixes that scripts may call programs of."""
    every = sorted(layout.folders)
    built = [name for name in every if layout.prefix(name).exists()]
    return [layout.prefix(name) for name in names or built or every]


def _strings(path: Path) -> list[str]:
    return [os.fsdecode(text) for text in path.read_bytes().split(b"\0") if text]


def _allowed(layout: Layout) -> list[Path]:
    """Return the folders that caches and temporary files may lie in; all where none is declared."""
    if not layout.site.temporary:
        return []
    own = [layout.site.uv_cache] if layout.site.uv_cache is not None else []
    return [layout.path(text) for text in (*layout.site.temporary, *own)]


def _configuration(project: Project, layout: Layout) -> Iterator[Path]:
    """Yield the files in which a credential has no business: the project's own, and receipts."""
    for folder in ("envs", "sites", "locks"):
        yield from sorted((project.folder / folder).glob("*.toml"))
    yield from sorted((layout.bookkeeping / "receipts").glob("**/*.json"))
