"""``envbuild verify``."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec
from click.core import ParameterSource

from envbuild.cli import common

if TYPE_CHECKING:
    from envbuild import findings
    from envbuild.catalog.project import Project
    from envbuild.catalog.site import Layout
    from envbuild.findings import Chosen, Finding
    from envbuild.prefix.verify import Verified


@click.command()
@common.environments
@common.site
@common.wheelhouse
@click.option(
    "--prefix",
    type=click.Path(path_type=Path, file_okay=False),
    help="Verify this folder: a prefix of the site, or any virtual or conda environment.",
)
@click.option("--full", is_flag=True, help="Read every file and hold it to its verified wheel.")
@click.option(
    "--script",
    "scripts",
    multiple=True,
    type=click.Path(path_type=Path, dir_okay=False),
    help="Check a job script too; can be given more than once.",
)
@click.option("--process", type=click.IntRange(min=1), help="Check a process's environment too.")
@click.option(
    "--select", multiple=True, metavar="CODE", help="Only these rules, such as E001, E or P,I."
)
@click.option(
    "--ignore",
    multiple=True,
    metavar="CODE:REASON",
    help="Pass over what a rule finds, and say why; the site's file can do so too.",
)
@click.option("--explain", metavar="CODE", help="Explain a rule, and do nothing else.")
@click.option("--sarif", is_flag=True, help="Report as SARIF 2.1.0.")
@common.as_json
@click.pass_context
def command(
    ctx: click.Context,
    names: tuple[str, ...],
    *,
    site_name: str,
    root: Path | None,
    user: str | None,
    wheelhouse_folder: Path | None,
    prefix: Path | None,
    full: bool,
    scripts: tuple[Path, ...],
    process: int | None,
    select: tuple[str, ...],
    ignore: tuple[str, ...],
    explain: str | None,
    sarif: bool,
    json_output: bool,
) -> None:
    """Say whether prefixes are good at their paths, by the relocation rules.

    Without ENV, all environments of the site that are built. Quick, by receipts and a look at what
    binds paths; with --full, every file against the wheel that it came from. The rules are
    explained in docs/rules.md.
    """
    from envbuild import findings
    from envbuild.errors import CheckFailedError, EnvbuildError
    from envbuild.prefix import jobs, subjects

    if explain is not None:
        _explain(explain)
        return
    project, layout = _site(ctx, site_name, root, user, optional=prefix is not None)
    ignored = [_ignored(text) for text in ignore]
    if layout is not None:
        ignored += subjects.ignored(layout)
    selected = [code for text in select for code in _codes(text)]
    if prefix is not None and names:
        raise click.UsageError("either ENV or --prefix, not both")
    results, failures = [], {}
    for name, path in _prefixes(project, layout, names, prefix):
        try:
            results.append(
                _verify(project, layout, name, path, full=full, wheelhouse=wheelhouse_folder)
            )
        except EnvbuildError as error:
            failures[name or str(path)] = error
    more = list(jobs.check(project, layout, scripts, process))
    found = [finding for one in results for finding in one.findings] + more
    chosen = findings.chosen(found, selected, ignored)
    _report(results, chosen, layout, sarif=sarif, json_output=json_output)
    common.raise_failures(failures, len(results) + len(failures))
    if findings.failed(chosen.findings):
        raise CheckFailedError(_counted(chosen))


def _site(
    ctx: click.Context, site_name: str, root: Path | None, user: str | None, *, optional: bool
) -> tuple[Project | None, Layout | None]:
    """Return the project and the site; none outside of a project, if that will do."""
    from envbuild.errors import InputError

    try:
        project = common.project(ctx)
    except InputError:
        unasked = ctx.get_parameter_source("site_name") is ParameterSource.DEFAULT
        if optional and unasked and root is None:
            return None, None
        raise
    return project, project.layout(site_name, user=user, root=root)


def _prefixes(
    project: Project | None, layout: Layout | None, names: tuple[str, ...], prefix: Path | None
) -> list[tuple[str | None, Path | None]]:
    """Return what is to be verified: an environment by its name, or a folder."""
    from envbuild.errors import PreflightError
    from envbuild.prefix import verify

    if prefix is not None:
        # as it was given, but for dots: links in it are what P001 is about
        path = Path.cwd() / prefix
        path = Path(*(part for part in path.parts if part != "."))
        name = verify.environment_at(layout, path) if layout is not None else None
        return [(name, path)]
    assert project is not None
    assert layout is not None
    if names:
        return [(name, None) for name in project.select(names)]
    built = [name for name in sorted(layout.folders) if layout.prefix(name).exists()]
    if not built:
        raise PreflightError(
            "nothing is built here",
            where=f"site {layout.name}, root {layout.root}",
            expected="a prefix of " + ", ".join(sorted(layout.folders)),
            mend="run `envbuild create`, or name a folder with --prefix",
        )
    return [(name, None) for name in built]


def _verify(
    project: Project | None,
    layout: Layout | None,
    name: str | None,
    path: Path | None,
    *,
    full: bool,
    wheelhouse: Path | None,
) -> Verified:
    from envbuild import progress
    from envbuild.prefix import verify

    def watch(total: int) -> AbstractContextManager[progress.Advance]:
        return progress.bar(f"verifying {name or path}", total, unit="files")

    if name is None:
        assert path is not None
        return verify.stranger(path, layout, full=full, watch=watch)
    assert project is not None
    assert layout is not None
    folder = (wheelhouse or project.wheelhouse_at(layout)).absolute()
    return verify.registered(
        project, layout, name, full=full, wheelhouse=folder, path=path, watch=watch
    )


def _codes(text: str) -> list[str]:
    from envbuild.relocation import rules

    known = rules.rules()
    codes = [code.strip() for code in text.split(",") if code.strip()]
    for code in codes:
        if not any(rule.startswith(code) for rule in known):
            raise click.BadParameter(
                f"no rule begins with {code}; they are {', '.join(known)}", param_hint="--select"
            )
    return codes


def _ignored(text: str) -> findings.Ignored:
    from envbuild import findings
    from envbuild.relocation import rules

    ignored = findings.parse_ignore(text)
    if ignored.code not in rules.rules():
        raise click.BadParameter(
            f"no rule {ignored.code}; they are {', '.join(rules.rules())}", param_hint="--ignore"
        )
    return ignored


def _explain(code: str) -> None:
    from envbuild.relocation import rules

    rule = rules.rules().get(code)
    if rule is None:
        raise click.BadParameter(
            f"no rule {code}; they are {', '.join(rules.rules())}", param_hint="--explain"
        )
    click.echo(f"{rule.code}: {rule.title}\n\n{rule.help}")


def _report(
    results: list[Verified],
    chosen: Chosen,
    layout: Layout | None,
    *,
    sarif: bool,
    json_output: bool,
) -> None:
    import os
    import sys

    from envbuild import __version__, findings
    from envbuild import sarif as sarifs
    from envbuild.relocation import rules

    if sarif:
        import json

        log = sarifs.log(__version__, rules.texts(), chosen.findings, chosen.suppressed)
        click.echo(json.dumps(log, indent=2))
        return
    if json_output:
        common.print_json(
            "verify",
            {
                "site": None if layout is None else layout.name,
                "prefixes": [
                    {
                        "environment": one.name,
                        "prefix": one.prefix,
                        "full": one.full,
                        "files": one.files,
                        "bytes": one.size,
                        "seconds": one.seconds,
                        "notes": list(one.notes),
                    }
                    for one in results
                ],
                "findings": findings.document(chosen.findings),
                "suppressed": [
                    {**msgspec.to_builtins(finding), "reason": reason}
                    for finding, reason in chosen.suppressed
                ],
            },
        )
        return
    color = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    if chosen.findings:
        click.echo(findings.text(findings.gathered(chosen.findings), color=color))
    for one in results:
        for note in one.notes:
            click.echo(f"note: {note}")
        click.echo(_line(one, chosen))


def _line(one: Verified, chosen: Chosen) -> str:
    own = [finding for finding in chosen.findings if finding in one.findings]
    name = f"{one.name}: " if one.name else ""
    how = "quick look"
    if one.full:
        rate = f", {common.size(one.size / one.seconds)}/s" if one.seconds else ""
        how = f"{one.files} files, {common.size(one.size)} in {one.seconds:.1f} s{rate}"
    good = "good" if not any(finding.severity == "error" for finding in own) else "not good"
    return f"{name}{one.prefix} is {good}: {_numbers(own)} ({how})"


def _numbers(found: list[Finding]) -> str:
    errors = sum(one.severity == "error" for one in found)
    warnings = len(found) - errors
    return (
        f"{errors or 'no'} error{'' if errors == 1 else 's'}, "
        f"{warnings or 'no'} warning{'' if warnings == 1 else 's'}"
    )


def _counted(chosen: Chosen) -> str:
    passed = f", {len(chosen.suppressed)} passed over" if chosen.suppressed else ""
    return f"{_numbers(list(chosen.findings))}{passed}; `envbuild verify --explain CODE` says more"
