"""A site as declared in ``sites/NAME.toml``, and as it is for one user and one root."""

from __future__ import annotations

import datetime
import os
import re
from pathlib import Path
from typing import Literal

import msgspec

from envbuild import findings, typed
from envbuild.errors import InputError
from envbuild.findings import Ignored
from envbuild.typed import Table

_PLACEHOLDER = re.compile(r"\{[^{}]*\}|[{}]")
# what stands in the paths of some keys besides {user}
_OWN_PLACEHOLDERS = {"prefix": "{env}", "receipts": "{number}"}
# a user's name becomes part of paths: nothing that could leave its folder
_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
# ceilings of the C and C++ libraries' symbol versions, and how they are written
_CEILINGS = {
    "glibc": (r"2\.[0-9]+", "2.N"),
    "glibcxx": (r"3\.4(\.[0-9]+)?", "3.4.N"),
    "cxxabi": (r"1\.3(\.[0-9]+)?", "1.3.N"),
}


class Determined(Table, frozen=True):
    """A Determined workspace: its name and number."""

    workspace: str
    workspace_id: int


class Slurm(Table, frozen=True):
    """A Slurm cluster: the account that jobs are charged to."""

    account: str


class Personal(Table, frozen=True):
    """A user's own folder, where credentials are kept.

    Attributes:
        folder: its path.
        env_file: the file of variables in it, which may name a public CA bundle.
        mode: the folder's permissions, in octal.
    """

    folder: str
    env_file: str = ".env"
    mode: str = "0700"


class Fact(Table, frozen=True):
    """Where settings come from.

    Attributes:
        keys: the settings that it speaks of.
        source: who or what says so.
        stated: the day on which the source was read.
        verified: the day on which somebody looked on the site itself, if ever.
    """

    keys: tuple[str, ...]
    source: str
    stated: datetime.date | None = None
    verified: datetime.date | None = None


class Site(Table, frozen=True):
    """A place where environments are built. Paths are absolute or relative to ``root``.

    Attributes:
        summary: one line for people.
        extends: a site whose settings this one starts from.
        scheduler: what runs jobs there.
        root: the folder below which everything of the site lies; relative to the project's folder.
        prefix: a prefix's path; ``{env}`` stands for the environment's folder name.
        environments: the environments that the site builds, with their folder names; all of the
            project's, under their own names, where the key is left out.
        interpreters: where managed interpreters are installed (UV_PYTHON_INSTALL_DIR).
        uv_cache: the site's uv cache (UV_CACHE_DIR).
        wheelhouse: where artifacts are kept; relative to the root.
        mounts: folders that must be mount points or folders on the site.
        aliases: other names of the root, which must not be used.
        temporary: folders that TMPDIR and caches may lie in; anywhere where empty.
        glibc: the version of the site's glibc, such as ``2.28``.
        glibcxx: the newest ``GLIBCXX_*`` version of the site's libstdc++, such as ``3.4.25``.
        cxxabi: its newest ``CXXABI_*`` version, such as ``1.3.11``.
        system_libraries: sonames that the nodes have besides the standard ones.
        system_paths: folders whose interpreters and libraries may be relied on.
        gpu_architectures: such as ``sm_90``.
        file_mode: permissions that every file of a prefix has at least, in octal.
        link_mode: ``copy`` shares no file with anything; ``hardlink`` and ``clone`` use uv's cache.
        shebang_limit: the longest ``#!`` line that the site's kernel takes, in bytes.
        unpinned_interpreter: whether an installed CPython may stand in for the pinned one.
        modules: environment modules that source builds load.
        module_path: absolute folders of modules, searched before those of the site's MODULEPATH.
        cuda_home: the CUDA toolkit's absolute folder, where it is no module.
        rebuild: when wheels are compiled: ``always``, anew at each create; ``when-changed``, where
            nothing that they are made of has changed, the one that is there is taken.
        results: where runs write.
        receipts: where receipts go too, a folder for each run; ``{number}`` counts the runs.
        ignore: findings about the site's prefixes that do not count, each with the reason.
    """

    summary: str
    root: str
    scheduler: Literal["none", "determined", "slurm"] = "none"
    extends: str | None = None
    prefix: str = "{env}"
    environments: dict[str, str] | None = None
    interpreters: str = ".envbuild/interpreters"
    uv_cache: str | None = None
    wheelhouse: str | None = None
    mounts: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    temporary: tuple[str, ...] = ()
    glibc: str | None = None
    glibcxx: str | None = None
    cxxabi: str | None = None
    system_libraries: tuple[str, ...] = ()
    system_paths: tuple[str, ...] = ("/usr", "/bin", "/lib", "/lib64", "/opt")
    gpu_architectures: tuple[str, ...] = ()
    file_mode: str = "0644"
    link_mode: Literal["copy", "hardlink", "clone"] = "copy"
    shebang_limit: int = 127
    unpinned_interpreter: bool = False
    modules: tuple[str, ...] = ()
    module_path: tuple[str, ...] = ()
    cuda_home: str | None = None
    rebuild: Literal["always", "when-changed"] = "when-changed"
    results: str | None = None
    receipts: str | None = None
    personal: Personal | None = None
    determined: Determined | None = None
    slurm: Slurm | None = None
    ignore: tuple[Ignored, ...] = ()
    facts: tuple[Fact, ...] = ()


def load(path: Path, known: dict[str, Path]) -> Site:
    """Read a site's file, over the site that it extends.

    Args:
        path: the file.
        known: the project's sites by name, for ``extends``.

    Raises:
        InputError: the file, the key, what is wrong and what was expected.
    """
    site = typed.convert(_document(path, known, ()), Site, path)
    modes = {"file-mode": site.file_mode}
    if site.personal is not None:
        modes["personal.mode"] = site.personal.mode
    for key, mode in modes.items():
        if re.fullmatch(r"0[0-7]{3}", mode) is None:
            raise InputError(
                f"{key}: not a mode", where=path, expected="four octal digits", found=repr(mode)
            )
    for key, (form, expected) in _CEILINGS.items():
        version = getattr(site, key)
        if version is not None and re.fullmatch(form, version) is None:
            raise InputError(
                f"{key}: not a version", where=path, expected=expected, found=repr(version)
            )
    _check_libraries(site, path)
    _check_toolchain(site, path)
    _check_ignored(site, path)
    settings = {field.encode_name for field in msgspec.structs.fields(Site)}
    for index, fact in enumerate(site.facts):
        for key in fact.keys:
            if key.partition(".")[0] not in settings:
                raise InputError(f"facts[{index}].keys: {key} is no setting of a site", where=path)
    return site


def _check_libraries(site: Site, path: Path) -> None:
    for index, name in enumerate(site.system_libraries):
        if not name or "/" in name:
            raise InputError(
                f"system-libraries[{index}]: not a library's name",
                where=path,
                expected="a soname, such as libGL.so.1",
                found=repr(name),
            )


def _check_toolchain(site: Site, path: Path) -> None:
    """Hold CUDA to one origin, and the folders of the system to their whole paths."""
    folders = {f"module-path[{index}]": one for index, one in enumerate(site.module_path)}
    if site.cuda_home is not None:
        folders["cuda-home"] = site.cuda_home
    for key, folder in folders.items():
        # ':' joins the folders of MODULEPATH, PATH and their like
        plain = Path(folder).is_absolute() and ".." not in Path(folder).parts
        if not plain or ":" in folder or _PLACEHOLDER.search(folder):
            raise InputError(
                f"{key}: not an absolute path",
                where=path,
                expected="a folder of the system, without '..', ':' or placeholders",
                found=repr(folder),
            )
    if site.modules and site.cuda_home is not None:
        raise InputError(
            "cuda-home: the site's modules bring CUDA",
            where=path,
            expected="modules or cuda-home, not both",
            found=f"{site.cuda_home}, and modules {', '.join(site.modules)}",
            mend="remove one of the two",
        )


def _check_ignored(site: Site, path: Path) -> None:
    for index, ignored in enumerate(site.ignore):
        if findings.CODE.fullmatch(ignored.code) is None:
            raise InputError(
                f"ignore[{index}].code: not a rule's code",
                where=path,
                expected="a letter and three digits, such as E002",
                found=repr(ignored.code),
            )
        if not ignored.reason.strip():
            raise InputError(
                f"ignore[{index}].reason: says nothing",
                where=path,
                expected="why the findings may stand",
                found=repr(ignored.reason),
            )


def _document(path: Path, known: dict[str, Path], seen: tuple[str, ...]) -> dict[str, object]:
    document = typed.parse(typed.read(path, "site"), path)
    typed.check_text(document, path)
    extends = document.get("extends")
    if extends is None:
        return document
    if not isinstance(extends, str) or extends not in known:
        raise InputError(
            "extends: no such site",
            where=path,
            expected="one of " + ", ".join(sorted(known)),
            found=repr(extends),
        )
    if extends in seen:
        raise InputError(f"extends: goes round in a circle: {' -> '.join(seen)}", where=path)
    return _document(known[extends], known, (*seen, extends)) | document


class Layout(msgspec.Struct, frozen=True):
    """A site as it is for one user, at its own root or rehearsed below another one.

    Attributes:
        name: the site's name.
        site: what its file says.
        root: absolute.
        registered_root: the root that the file names, absolute.
        user: who stands for ``{user}``.
        rehearsal: whether ``root`` was given in place of the registered one.
        folders: environment to folder name, for all that the site builds.
    """

    name: str
    site: Site
    root: Path
    registered_root: Path
    user: str
    rehearsal: bool
    folders: dict[str, str]

    def path(self, text: str) -> Path:
        """Return a path of the site's file as it is for this user and root.

        What lies below the registered root lies below the root of a rehearsal; what lies outside
        it stays where it is.
        """
        path = _plain(self.registered_root / text.replace("{user}", self.user))
        if self.rehearsal and path.is_relative_to(self.registered_root):
            return self.root / path.relative_to(self.registered_root)
        return path

    def prefix(self, environment: str) -> Path:
        """Return the final path of an environment's prefix.

        Raises:
            InputError: the site does not build that environment.
        """
        folder = self.folders.get(environment)
        if folder is None:
            raise InputError(
                f"site {self.name} does not build {environment}",
                expected="one of " + ", ".join(sorted(self.folders)),
                mend=f"add {environment} to [environments] of the site's file",
            )
        return self.path(self.site.prefix.replace("{env}", folder))

    @property
    def bookkeeping(self) -> Path:
        """The folder of locks, journals, receipts and derived files: ``ROOT/.envbuild``."""
        return self.root / ".envbuild"

    @property
    def interpreters(self) -> Path:
        """The folder of managed interpreters."""
        return self.path(self.site.interpreters)


def layout(
    name: str,
    site: Site,
    *,
    project: Path,
    environments: list[str],
    user: str,
    root: Path | None = None,
) -> Layout:
    """Work out a site's folders.

    Args:
        name: the site's name.
        site: what its file says.
        project: the project's folder, which a relative ``root`` starts from.
        environments: the project's environments.
        user: who stands for ``{user}``.
        root: another root, for a rehearsal.

    Raises:
        InputError: a placeholder other than ``{user}`` and ``{env}``, a user's name that is no
            folder name, an environment that the project does not have, or prefixes that are not
            apart from each other and from what else the site keeps.
    """
    if _USER.fullmatch(user) is None:
        raise InputError(
            "user: not a name that a folder can have",
            expected="letters, digits, '.', '_' and '-'",
            found=repr(user),
            mend="give it with --user or ENVBUILD_USER",
        )
    where = f"sites/{name}.toml"
    _check_paths(site, where)
    if root is not None:
        _check_home("--root", str(root), None)
    folders = site.environments if site.environments is not None else {e: e for e in environments}
    _check_folders(folders, environments, where)
    registered = _plain(project / site.root.replace("{user}", user))
    actual = registered if root is None else _plain(root)
    made = Layout(
        name=name,
        site=site,
        root=actual,
        registered_root=registered,
        user=user,
        rehearsal=actual != registered,
        folders=dict(folders),
    )
    _check_apart(made, project, where)
    return made


def _plain(path: Path) -> Path:
    """Make a path absolute, without ``.`` and ``..``: one name for one place.

    Links are not looked at: a root that is one is found before anything is built.
    """
    return Path(os.path.normpath(path.absolute()))


def _check_paths(site: Site, where: str) -> None:
    for key, text in _paths(site).items():
        _check_home(key, text, where)
        allowed = {"{user}", _OWN_PLACEHOLDERS.get(key, "{user}")}
        for placeholder in _PLACEHOLDER.findall(text):
            if placeholder not in allowed:
                raise InputError(
                    f"{key}: unknown placeholder {placeholder}",
                    where=where,
                    expected=" or ".join(sorted(allowed)),
                )
    if ".." in Path(site.prefix).parts:
        raise InputError(
            "prefix: goes up by ..",
            where=where,
            expected="a path below the root, or an absolute one",
            found=repr(site.prefix),
            mend="write the path out",
        )


def _check_home(key: str, text: str, where: str | None) -> None:
    if text.startswith("~"):
        raise InputError(
            f"{key}: begins with ~, which only a shell knows",
            where=where,
            expected="a path; {user} stands for the user's name" if where else "a path",
            found=repr(text),
            mend="write the path out",
        )


def _check_folders(folders: dict[str, str], environments: list[str], where: str) -> None:
    for environment, folder in folders.items():
        if environment not in environments:
            raise InputError(
                f"environments.{environment}: no such environment",
                where=where,
                expected="one of " + ", ".join(environments),
            )
        if not folder or folder in {".", ".."} or "/" in folder or _PLACEHOLDER.search(folder):
            raise InputError(
                f"environments.{environment}: not a folder name", where=where, found=repr(folder)
            )


def _check_apart(layout: Layout, project: Path, where: str) -> None:
    """Hold every prefix to a place of its own: what lies in it is replaced as a whole."""
    prefixes = {name: layout.prefix(name) for name in sorted(layout.folders)}
    others = {f"that of {name}": path for name, path in prefixes.items()}
    taken = {**_taken(layout, project), **others}
    for name, prefix in prefixes.items():
        for other, path in taken.items():
            holds = path.is_relative_to(prefix)
            inside = other != "the root" and prefix.is_relative_to(path)
            if other == f"that of {name}" or not (holds or inside):
                continue
            how = "is" if path == prefix else "holds" if holds else "lies in"
            raise InputError(
                f"prefix: the prefix of {name} {how} {other}",
                where=where,
                expected="a folder of its own for each environment",
                found=f"{prefix} and {path}",
                mend="put {env} into prefix, and give [environments] folders of different names",
            )


def _taken(layout: Layout, project: Path) -> dict[str, Path]:
    """Return folders that hold other things than prefixes."""
    site = layout.site
    places = {
        "the root": layout.root,
        "the root's .envbuild": layout.bookkeeping,
        "the interpreters": layout.interpreters,
        "the wheelhouse": project / "wheelhouse",
        **{f"the project's {name}": project / name for name in ("envs", "sites", "locks")},
    }
    if site.wheelhouse is not None:
        places["the wheelhouse"] = layout.path(site.wheelhouse)
    if site.uv_cache is not None:
        places["the uv cache"] = layout.path(site.uv_cache)
    return places


def _paths(site: Site) -> dict[str, str]:
    """Return every path of a site's file by its key."""
    lists = {
        "mounts": site.mounts,
        "aliases": site.aliases,
        "temporary": site.temporary,
        "system-paths": site.system_paths,
    }
    paths = {
        "root": site.root,
        "prefix": site.prefix,
        "interpreters": site.interpreters,
        "uv-cache": site.uv_cache,
        "wheelhouse": site.wheelhouse,
        "results": site.results,
        "receipts": site.receipts,
        "personal.folder": site.personal.folder if site.personal is not None else None,
        **{f"{key}[{i}]": path for key, paths in lists.items() for i, path in enumerate(paths)},
    }
    return {key: path for key, path in paths.items() if path is not None}
