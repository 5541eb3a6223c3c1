"""The folder that holds envs/, sites/ and locks/, and how it is found."""

from __future__ import annotations

import difflib
import getpass
import os
from collections.abc import Iterable
from pathlib import Path

import msgspec

from envbuild import typed
from envbuild.catalog import environment as environments
from envbuild.catalog import site as sites
from envbuild.catalog.environment import Environment
from envbuild.catalog.site import Layout, Site
from envbuild.errors import InputError


class Project(msgspec.Struct, frozen=True):
    """A project's folder.

    Attributes:
        folder: absolute; ``envs/`` stands in it.
    """

    folder: Path

    @property
    def environment_names(self) -> list[str]:
        """The declared environments, sorted; files of editors and systems (``.#NAME``) are none."""
        return sorted(path.stem for path in _files(self.folder / "envs"))

    @property
    def bases(self) -> dict[str, str]:
        """The environments that stand on another one, with its name; as far as they can be read."""
        found = {}
        for name in self.environment_names:
            try:
                base = self.environment(name).base
            except InputError:
                continue  # said when that environment is asked for
            if base is not None:
                found[name] = base
        return found

    @property
    def site_files(self) -> dict[str, Path]:
        """The declared sites and their files."""
        return {path.stem: path for path in _files(self.folder / "sites")}

    @property
    def interpreters_file(self) -> Path:
        """The pins of managed interpreters."""
        return self.folder / "locks" / "interpreters.toml"

    @property
    def wheelhouse(self) -> Path:
        """The folder that the locks' own paths, ``../wheelhouse/FILE``, name."""
        return self.folder / "wheelhouse"

    def wheelhouse_at(self, layout: Layout) -> Path:
        """Return the folder of artifacts that a site's file names, else the project's own."""
        named = layout.site.wheelhouse
        return self.wheelhouse if named is None else layout.path(named)

    def environment_file(self, name: str) -> Path:
        """Return the path of an environment's file."""
        return self.folder / "envs" / f"{name}.toml"

    def lock_file(self, name: str) -> Path:
        """Return the path of an environment's lock."""
        return self.folder / "locks" / f"pylock.{name}.toml"

    def environment(self, name: str) -> Environment:
        """Read an environment, with what it inherits from its base.

        Raises:
            InputError: there is none of that name, or its file is wrong.
        """
        self.select([name])
        path = self.environment_file(name)
        if environments.NAME.fullmatch(name) is None:
            raise InputError(
                "file name: not a name that a lock can have (PEP 751)",
                where=path,
                expected="lower-case letters and digits, in words joined by '-'",
                found=name,
            )
        declared = typed.load(path, Environment, "environment")
        if declared.base is None:
            return environments.load(path)
        if declared.base not in self.environment_names or declared.base == name:
            raise InputError(
                "base: no such environment",
                where=path,
                expected="one of " + ", ".join(n for n in self.environment_names if n != name),
                found=declared.base,
            )
        base = environments.load(self.environment_file(declared.base))
        if base.base is not None:
            raise InputError(
                f"base: {declared.base} stands on {base.base} itself; bases do not chain",
                where=path,
            )
        return environments.load(path, base)

    def select(self, names: Iterable[str]) -> list[str]:
        """Hold names to the declared environments; all of them where none is given.

        Raises:
            InputError: there is none of that name; the nearest one is named.
        """
        declared = self.environment_names
        for name in names:
            if name not in declared:
                raise _unknown("environment", name, declared, self.folder / "envs")
        return list(dict.fromkeys(names)) or declared

    def site(self, name_or_file: str) -> tuple[str, Site]:
        """Read a site, by its name or by the path of a file.

        Raises:
            InputError: there is no such site or file, or the file is wrong.
        """
        known = self.site_files
        if name_or_file in known:
            return name_or_file, sites.load(known[name_or_file], known)
        if name_or_file.endswith(".toml") or "/" in name_or_file:
            path = Path(name_or_file).absolute()
            return path.stem, sites.load(path, known)
        raise _unknown("site", name_or_file, list(known), self.folder / "sites")

    def layout(
        self, name_or_file: str, *, user: str | None = None, root: Path | None = None
    ) -> Layout:
        """Work out a site's folders for a user and, for a rehearsal, another root.

        Args:
            name_or_file: the site.
            user: who stands for ``{user}``; ENVBUILD_USER or the login name if not given.
            root: another root than the registered one.

        Raises:
            InputError: as `site`, or a placeholder or name is wrong.
        """
        name, site = self.site(name_or_file)
        return sites.layout(
            name,
            site,
            project=self.folder,
            environments=self.environment_names,
            user=user or os.environ.get("ENVBUILD_USER") or _login_name(),
            root=root,
        )


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("*.toml") if not path.name.startswith("."))


def _login_name() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError) as error:
        raise InputError(
            "user: you have no login name here",
            found=f"uid {os.getuid()}, which is in no list of users",
            mend="give it with --user or ENVBUILD_USER",
        ) from error


def _unknown(kind: str, name: str, known: list[str], folder: Path) -> InputError:
    near = difflib.get_close_matches(name, known, n=1)
    return InputError(
        f"no {kind} named {name}",
        expected=f"did you mean {near[0]}?" if near else "one of " + ", ".join(known),
        mend=f"{kind}s are the files of {folder}",
    )


def find(start: Path) -> Project:
    """Find the project that a folder lies in: the nearest folder with ``envs/`` and ``sites/``.

    Raises:
        InputError: no folder up to the root holds them.
    """
    for folder in (start, *start.parents):
        if (folder / "envs").is_dir() and (folder / "sites").is_dir():
            return Project(folder)
    raise InputError(
        "no envbuild project here",
        where=start,
        expected="a folder, this or one above it, that holds envs/ and sites/",
        mend="change to the project's folder, or name it with --project or ENVBUILD_PROJECT",
    )
