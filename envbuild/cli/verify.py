"""``envbuild verify``."""

from __future__ import annotations

import os
import sys
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
    from envbuild.errors import EnvbuildError
    from envbuild.findings import Chosen
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
    help="Check a job script; can be given more than once.",
)
@click.option(
    "--process",
    type=click.IntRange(min=1),
    metavar="PID",
    help="Check the environment and the arguments of a process.",
)
@click.option(
    "--select", multiple=True, metavar="CODE", help="Only these rules, such as E001, E or P,I."
)
@click.option(
    "--ignore",
    multiple=True,
    metavar="CODE:REASON",
    help="Pass over what a rule finds, and say why; the site's file can do so too.",
)
@click.option("--explain", metavar="CODE", help="Explain a rule, or list a family such as T.")
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
    binds paths; with --full, every file against the wheel that it came from, and all rules. They
    are explained in docs/rules.md. The exit status is 1 if there is an error.
    """
    from envbuild import findings
    from envbuild.errors import CheckFailedError, EnvbuildError
    from envbuild.prefix import jobs, subjects

    if explain is not None:
        _explain(explain.upper())
        return
    if sarif and json_output:
        raise click.UsageError("either --json or --sarif, not both")
    if prefix is not None and names:
        raise click.UsageError("either ENV or --prefix, not both")
    project, layout = _site(ctx, site_name, root, user, optional=prefix is not None)
    ignored = [_ignored(text) for text in ignore]
    if layout is not None:
        ignored += subjects.ignored(layout)
    selected = [code for text in select for code in _codes(text, full=full)]
    results: list[Verified] = []
    failures: dict[str, EnvbuildError] = {}
    # scripts and processes can be checked where nothing is built
    alone = bool(scripts or process) and not names and prefix is None
    wanted = [] if alone else _prefixes(project, layout, names, prefix)
    found = list(jobs.check(project, layout, names, scripts, process))
    for name, path in wanted:
        try:
            results.append(
                _verify(project, layout, name, path, full=full, wheelhouse=wheelhouse_folder)
            )
        except EnvbuildError as error:
            failures[name or str(path)] = error
    found += [finding for one in results for finding in one.findings]
    chosen = findings.chosen(found, selected, ignored)
    report = _Report(results, scripts, chosen, failures, layout)
    if sarif:
        report.print_sarif()
    elif json_output:
        report.print_json()
    else:
        report.print()
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
        path = _plain(prefix)
        name = verify.environment_at(layout, path) if layout is not None else None
        return [(name, path)]
    assert project is not None
    assert layout is not None
    for name in names:
        if name not in project.environment_names and Path(name).is_dir():
            raise click.UsageError(f"{name} is a folder: did you mean --prefix {name}?")
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


def _plain(path: Path) -> Path:
    """Make a path absolute, without dots; links in it stay, since they are what P001 is about."""
    absolute = path.absolute()
    plain = Path(os.path.normpath(absolute))
    try:
        return plain if plain.samefile(absolute) else absolute.resolve()
    except OSError:
        return plain


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


def _codes(text: str, *, full: bool) -> list[str]:
    from envbuild.relocation import rules

    codes = [code.strip().upper() for code in text.split(",") if code.strip()]
    for code in codes:
        meant = [rule for rule in rules.rules().values() if rule.code.startswith(code)]
        if not meant:
            raise _no_rule(code, "--select", "begins with ")
        if not full and not any(rule.quick for rule in meant):
            raise click.UsageError(
                f"a quick look does not check {code}: it reads no packages. Add --full."
            )
    return codes


def _no_rule(code: str, option: str, begins: str = "") -> click.BadParameter:
    from envbuild.relocation import rules

    families = sorted({rule[0] for rule in rules.rules()})
    near = [rule for rule in rules.rules() if rule[0] == code[:1]] or families
    return click.BadParameter(
        f"no rule {begins}{code}; did you mean one of {', '.join(near)}?", param_hint=option
    )


def _ignored(text: str) -> findings.Ignored:
    from envbuild import findings
    from envbuild.relocation import rules

    ignored = findings.parse_ignore(text)
    if ignored.code not in rules.rules():
        raise _no_rule(ignored.code, "--ignore")
    return ignored


def _explain(code: str) -> None:
    """Print a rule, or the titles of those whose codes begin so."""
    from envbuild.relocation import rules

    known = rules.rules()
    if code in known:
        rule = known[code]
        click.echo(f"{rule.code}: {rule.title}\n\n{_wrapped(rule.help)}")
        return
    meant = [rule for rule in known.values() if rule.code.startswith(code)]
    if not meant:
        raise _no_rule(code, "--explain")
    common.print_table(
        ("code", "what must hold", "found by"),
        [(one.code, one.title, "a quick look" if one.quick else "--full") for one in meant],
    )


def _wrapped(text: str) -> str:
    """Fold paragraphs to the terminal; examples stay as they are."""
    import textwrap

    parts = []
    for paragraph in text.split("\n\n"):
        plain = not paragraph.startswith("```")
        parts.append(textwrap.fill(paragraph, common.width()) if plain else paragraph)
    return "\n\n".join(parts)


class _Report(msgspec.Struct, frozen=True):
    """What is told in the end."""

    results: list[Verified]
    scripts: tuple[Path, ...]
    chosen: Chosen
    failures: dict[str, EnvbuildError]
    layout: Layout | None

    def print_sarif(self) -> None:
        """For the tools that show findings beside the code."""
        import json

        from envbuild import __version__, sarif
        from envbuild.relocation import rules

        log = sarif.log(
            __version__,
            rules.texts(),
            self.chosen.findings,
            self.chosen.suppressed,
            [str(error) for error in self.failures.values()],
        )
        click.echo(json.dumps(log, indent=2))

    def print_json(self) -> None:
        """For machines."""
        from envbuild import findings

        common.print_json(
            "verify",
            {
                "site": None if self.layout is None else self.layout.name,
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
                    for one in self.results
                ],
                "failures": {name: str(error) for name, error in self.failures.items()},
                "findings": findings.document(self.chosen.findings),
                "suppressed": [
                    {**msgspec.to_builtins(finding), "reason": reason}
                    for finding, reason in self.chosen.suppressed
                ],
            },
        )

    def print(self) -> None:
        """For people."""
        from envbuild import findings

        color = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
        of_none = set(map(id, self.chosen.findings))
        for one in self.results:
            of_none -= set(map(id, one.findings))
        others = [finding for finding in self.chosen.findings if id(finding) in of_none]
        # each prefix's by themselves: what is alike in two is listed for both
        for some in (others, *(self._own(one) for one in self.results)):
            if some:
                click.echo(findings.text(findings.gathered(some), color=color))
        for one in self.results:
            for note in one.notes:
                click.echo(f"note: {findings.shown(note)}")
        for path in self.scripts:
            own = [one for one in self.chosen.findings if one.where.startswith(f"{path}:")]
            click.echo(f"{path} {_judged(own, full=True)}: {_numbers(own)}")
        for one in self.results:
            click.echo(self._line(one))

    def _own(self, one: Verified) -> list[findings.Finding]:
        its = set(map(id, one.findings))
        return [finding for finding in self.chosen.findings if id(finding) in its]

    def _line(self, one: Verified) -> str:
        own = self._own(one)
        its = set(map(id, one.findings))
        passed = sum(id(finding) in its for finding, _ in self.chosen.suppressed)
        name = f"{one.name}: " if one.name else ""
        how = "a quick look; --full reads every file"
        if one.full:
            rate = f", {common.size(one.size / one.seconds)}/s" if one.seconds else ""
            how = f"{one.files} files, {common.size(one.size)} in {one.seconds:.1f} s{rate}"
        numbers = _numbers(own) + (f", {passed} passed over" if passed else "")
        return f"{name}{one.prefix} {_judged(own, full=one.full)}: {numbers} ({how})"


def _judged(found: list[findings.Finding], *, full: bool) -> str:
    if any(finding.severity == "error" for finding in found):
        return "is not good"
    return "is good" if full else "looks good"


def _numbers(found: list[findings.Finding]) -> str:
    errors = sum(one.severity == "error" for one in found)
    warnings = len(found) - errors
    return (
        f"{errors or 'no'} error{'' if errors == 1 else 's'}, "
        f"{warnings or 'no'} warning{'' if warnings == 1 else 's'}"
    )


def _counted(chosen: Chosen) -> str:
    return f"{_numbers(list(chosen.findings))}; `envbuild verify --explain CODE` says more"
