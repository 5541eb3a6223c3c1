"""``envbuild hash``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from envbuild.cli import common
from envbuild.errors import CheckFailedError

if TYPE_CHECKING:
    from envbuild import nar

_EPILOG = """\b
A list of digests that --check reads is what this writes:
  envbuild hash --list models data > DIGESTS
Its lines are `DIGEST  PATH`; blank lines and lines that begin with # are left
out. Paths are relative to the folder of the list, so write it where you stand.
--list is only needed for one PATH, whose digest stands alone otherwise."""


@click.command(epilog=_EPILOG)
@click.argument("paths", metavar="[PATH]...", nargs=-1, type=click.Path())
@click.option(
    "--check",
    "list_file",
    metavar="FILE",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="Compare with a list of digests; exit with 1 if any is not as listed.",
)
@click.option("--list", "as_list", is_flag=True, help="Write `DIGEST  PATH` for one PATH, too.")
@click.option(
    "--jobs",
    metavar="N",
    type=click.IntRange(min=1),
    help="Paths to hash at once; as many as there are cores by default.",
)
@common.as_json
def command(
    paths: tuple[str, ...],
    *,
    list_file: Path | None,
    as_list: bool,
    jobs: int | None,
    json_output: bool,
) -> None:
    """Print digests of files, folders and symlinks, or check a list of them.

    The digest is that of `nix hash path`: it covers names, contents, targets of symlinks and the
    owner's permission to execute, and no times or owners. A symlink is hashed itself; PATH/ is the
    folder that it points to.
    """
    if list_file is not None:
        if paths or as_list:
            raise click.UsageError("--check takes neither PATH nor --list")
        _check(list_file, jobs, json_output=json_output)
        return
    if not paths:
        raise click.UsageError("name a PATH to hash, or a list with --check FILE")
    _hash(paths, jobs, as_list=as_list or len(paths) > 1, json_output=json_output)


def _hash(paths: Sequence[str], jobs: int | None, *, as_list: bool, json_output: bool) -> None:
    from envbuild import nar, progress

    with progress.bar("hashing", _total(paths)) as advance:
        digests = nar.digests(paths, jobs=jobs, advance=advance)
    results = list(zip(paths, digests, strict=True))
    if json_output:
        found = [{"path": path, "digest": digest} for path, digest in results]
        common.print_json("hash", {"paths": found})
        return
    for path, digest in results:
        # as bytes: names are not always text
        click.echo(nar.list_line(digest, path) if as_list else digest)


def _check(file: Path, jobs: int | None, *, json_output: bool) -> None:
    from envbuild import nar, progress

    listed = nar.read_list(file)
    with progress.bar("hashing", _total([line.path for line in listed])) as advance:
        checked = nar.check(listed, jobs=jobs, advance=advance)
    if json_output:
        common.print_json("hash", {"list": str(file), "paths": list(map(_document, checked))})
    else:
        for one in checked:
            click.echo(_report(one))
    failed = sum(one.state != "OK" for one in checked)
    if failed:
        raise CheckFailedError(
            f"{failed} of {len(checked)} paths are not as listed",
            where=file,
            mend="fetch them again, or write the list anew if the change is wanted",
        )


def _total(paths: Sequence[str]) -> int | None:
    """Return what there is to hash, in bytes, where somebody sees how it advances."""
    from envbuild import nar

    return nar.content_size(paths) if sys.stderr.isatty() else None


def _document(one: nar.Checked) -> dict[str, str | None]:
    return {
        "path": one.listed.name,
        "state": one.state,
        "expected": one.listed.digest,
        "found": one.found,
        "problem": one.problem,
    }


def _report(one: nar.Checked) -> bytes:
    """Write what became of a path: a line, and more where it is not as listed."""
    from envbuild import nar

    lines = [nar.escaped(one.listed.name) + b": " + one.state.encode()]
    if one.state == "FAILED":
        lines += [f"  expected: {one.listed.digest}".encode(), f"  found: {one.found}".encode()]
    if one.problem is not None:
        problem = one.problem.encode(errors="surrogateescape")
        lines += [b"  " + line for line in problem.splitlines()]
    return b"\n".join(lines)
