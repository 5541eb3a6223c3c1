"""Installing a lock at a prefix's final path: an empty environment, the wheels, the projects."""

from __future__ import annotations

import email.parser
import json
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import unquote, urlsplit

import msgspec
import tomli_w

from envbuild import process, uvtool
from envbuild.artifacts import Artifact
from envbuild.catalog.environment import Editable
from envbuild.errors import CheckFailedError, PreflightError, StepError
from envbuild.lock import lockfile
from envbuild.lock.lockfile import Lock
from envbuild.prefix.interpreter import Interpreter
from envbuild.prefix.receipt import Distribution
from envbuild.relocation import installed


class Settings(msgspec.Struct, frozen=True):
    """How files get into a prefix.

    Attributes:
        link_mode: ``copy``, ``hardlink`` or ``clone``.
        work: a folder for what is needed meanwhile; whoever gives it removes it.
        uv_cache: the uv cache that ``hardlink`` and ``clone`` link from; the caller's own if None.
        temporary: the TMPDIR of programs; the caller's own if None.
    """

    link_mode: str
    work: str
    uv_cache: str | None = None
    temporary: str | None = None

    def environment(self) -> dict[str, str]:
        """Return the environment of uv here: offline, and nothing of the caller's."""
        extra = {} if self.temporary is None else {"TMPDIR": self.temporary}
        return uvtool.environment(extra=extra)

    def folder(self, name: str) -> Path:
        """Make a folder for something that is needed meanwhile."""
        return Path(tempfile.mkdtemp(prefix=f"{name}-", dir=self.work))

    @contextmanager
    def cache(self, prefix: Path) -> Iterator[list[str | Path]]:
        """Yield uv's options for where wheels are unpacked and how files get from there.

        To copy, wheels are unpacked into a cache of this run alone, hard-linked from there, and
        the cache is removed: every file comes from a verified wheel, none is shared, and each is
        written once. uv's own way to copy reads from a cache that outlives the run, whose unpacked
        files it never checks again. The cache lies inside the prefix, since no link leads from one
        mount to another and the prefix may be a mount of its own while it is built.
        """
        if self.link_mode != "copy":
            options: list[str | Path] = ["--link-mode", self.link_mode]
            yield options if self.uv_cache is None else [*options, "--cache-dir", self.uv_cache]
            return
        with tempfile.TemporaryDirectory(prefix=".unpacked-", dir=prefix) as folder:
            yield ["--link-mode", "hardlink", "--cache-dir", folder]


def make_empty(prefix: Path, interpreter: Interpreter, name: str, settings: Settings) -> None:
    """Make a virtual environment without any package.

    Raises:
        StepError: uv could not make it.
    """
    cache = settings.folder("venv")
    process.run(
        [
            *(uvtool.executable(), "venv", "--python", interpreter.path, "--prompt", name),
            *("--no-config", "--no-project", "--allow-existing", "--cache-dir", cache, prefix),
        ],
        doing=f"making the environment {name}",
        env=settings.environment(),
        tied=True,
    )


def derived_lock(lock: Lock, wheelhouse: Path) -> bytes:
    """Write the pylock that uv installs from: the wheelhouse's real paths, built wheels for sdists.

    Args:
        lock: what to install.
        wheelhouse: the folder that holds its files.
    """
    packages = ((package.name, package.marker, package.artifact) for package in lock.installable())
    return pylock(packages, lock.specification.requires_python, str(wheelhouse))


def pylock(
    packages: Iterable[tuple[str, str | None, Artifact]], requires_python: str, folder: str
) -> bytes:
    """Write a pylock of wheels (PEP 751).

    Args:
        packages: names, markers and wheels.
        requires_python: the interval of Pythons.
        folder: where the wheels are.
    """
    document = {
        "lock-version": lockfile.LOCK_VERSION,
        "created-by": "envbuild",
        "requires-python": requires_python,
        "packages": [
            {
                "name": name,
                **({} if marker is None else {"marker": marker}),
                "wheels": [
                    {
                        "path": f"{folder}/{wheel.file}",
                        "size": wheel.size,
                        "hashes": {"sha256": wheel.sha256},
                    }
                ],
            }
            for name, marker, wheel in packages
        ],
    }
    return tomli_w.dumps(document).encode()


def install(prefix: Path, lock: Lock, wheelhouse: Path, settings: Settings) -> None:
    """Install a lock's wheels into an empty environment, offline, and compile byte code.

    Args:
        prefix: the environment, at its final path.
        lock: what to install.
        wheelhouse: where its files are, already verified; uv verifies each again.
        settings: how.

    Raises:
        StepError: uv could not install them.
    """
    derived = Path(settings.work) / f"pylock.{lock.environment}.toml"
    derived.write_bytes(derived_lock(lock, wheelhouse))
    with settings.cache(prefix) as options:
        process.run(
            [
                *(uvtool.executable(), "pip", "sync", "--python", prefix / "bin" / "python"),
                *("--offline", "--no-config", "--compile-bytecode", "--strict", *options, derived),
            ],
            doing=f"installing {lock.environment}",
            env=settings.environment(),
            tied=True,
            mend=f"run `envbuild fetch {lock.environment}` and create it again",
        )


def project_folder(root: Path, editable: Editable) -> Path | None:
    """Return the folder of an editable project; None if it is optional and not there.

    Raises:
        PreflightError: it is not there and must be, or it lies outside the root.
    """
    folder = (root / editable.path).resolve()
    if not folder.is_relative_to(root):
        raise PreflightError(
            "an editable project lies outside the root",
            where=root / editable.path,
            expected=f"a folder in {root}",
            found=folder,
            mend="move the project below the root: a link to it binds a path that others may lack",
        )
    if (folder / "pyproject.toml").is_file() or (folder / "setup.py").is_file():
        return folder
    if editable.optional:
        return None
    raise PreflightError(
        "an editable project is not there",
        where=folder,
        expected="a folder with a pyproject.toml or setup.py",
        mend="put the project there, or mark it `optional = true`",
    )


def install_editable(
    prefix: Path,
    folder: Path,
    editable: Editable,
    lock: Lock,
    build_wheels: Sequence[Path],
    root: Path,
    settings: Settings,
    python: str,
) -> Distribution:
    """Install a project in editable form and hold it to the lock and to the root.

    Args:
        prefix: the environment.
        folder: the project's folder.
        editable: what the environment's file says of it.
        lock: what is installed; it must satisfy what the project requires.
        build_wheels: the wheels of its build requirements, already verified.
        root: the folder that nothing may point out of.
        settings: how.
        python: the interpreter's version.

    Raises:
        StepError: its build failed.
        CheckFailedError: the lock lacks what it requires, or it points out of the root.
    """
    links = settings.folder("requires")
    for wheel in build_wheels:
        (links / wheel.name).symlink_to(wheel.absolute())
    process.run(
        [
            *(uvtool.executable(), "pip", "install", "--python", prefix / "bin" / "python"),
            *("--offline", "--no-config", "--no-index", "--find-links", links, "--no-deps"),
            *("--cache-dir", settings.folder("editable"), "--link-mode", "copy"),
            *("--compile-bytecode", "--editable", folder),
        ],
        doing=f"installing {folder} in editable form",
        env=settings.environment(),
        tied=True,
        mend="see what its build said; its build requirements are `requires` of [[editable]]",
    )
    info = _find_editable(prefix, folder)
    metadata = email.parser.HeaderParser().parsestr((info / "METADATA").read_text())
    project_name, version = str(metadata["Name"]), str(metadata["Version"])
    _check_alone(project_name, lock, prefix)
    _check_requires(
        project_name,
        metadata.get_all("Requires-Dist", []),
        editable.extras,
        lock,
        prefix,
        python,
    )
    _check_inside(info, project_name, root)
    return Distribution(project_name, version, editable=str(folder))


def _find_editable(prefix: Path, folder: Path) -> Path:
    """Return the metadata of what was just installed from a folder (PEP 610)."""
    for info in _dist_infos(prefix):
        try:
            direct = json.loads((info / "direct_url.json").read_text())
            editable, url = direct["dir_info"]["editable"], urlsplit(direct["url"])
        except (OSError, ValueError, KeyError):
            continue
        if editable is True and Path(unquote(url.path)) == folder:
            return info
    raise StepError(
        f"{folder} was not installed in editable form",
        where=prefix,
        expected="a direct_url.json that points at it",
        mend="see whether its build backend supports editable installs (PEP 660)",
    )


def _check_alone(project: str, lock: Lock, prefix: Path) -> None:
    """Refuse a project that has taken the place of a locked package."""
    from packaging.utils import canonicalize_name

    locked = {package.name: package.version for package in lock.packages}
    version = locked.get(canonicalize_name(project))
    if version is not None:
        raise CheckFailedError(
            f"{project} is a package of the lock too",
            where=prefix,
            expected="a project whose name no locked package has",
            found=f"{project} {version} in the lock of {lock.environment}",
            mend=f"exclude {project} in envs/{lock.environment}.toml, or leave the project out",
        )


def _dist_infos(prefix: Path) -> Iterator[Path]:
    yield from prefix.glob("lib/python*/site-packages/*.dist-info")


def _check_requires(
    project: str,
    requires: Sequence[str],
    extras: Sequence[str],
    lock: Lock,
    prefix: Path,
    python: str,
) -> None:
    """Hold the lock to what a project requires with the extras that are asked for."""
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    environment = installed.marker_environment(python)
    versions = {package.name: package.version for package in lock.packages}
    missing = []
    for text in requires:
        requirement = Requirement(text)
        if requirement.marker is not None and not any(
            requirement.marker.evaluate({**environment, "extra": extra}) for extra in ("", *extras)
        ):
            continue
        version = versions.get(canonicalize_name(requirement.name))
        if version is None:
            missing.append(f"{text}: not in the lock")
        elif not requirement.specifier.contains(version, prereleases=True):
            missing.append(f"{text}: the lock holds {version}")
    if missing:
        raise CheckFailedError(
            f"the lock of {lock.environment} lacks what {project} requires",
            where=prefix,
            expected="every requirement of the project in the lock",
            found="; ".join(missing),
            mend=f"add them to envs/{lock.environment}.toml and run "
            f"`envbuild lock {lock.environment}`",
        )


def _check_inside(info: Path, project: str, root: Path) -> None:
    """See that an editable install adds nothing outside the root to the path."""
    for line in (info / "RECORD").read_text().splitlines():
        file = line.partition(",")[0]
        if not file.endswith(".pth"):
            continue
        for entry in (info.parent / file).read_text().splitlines():
            outside = entry.startswith("/") and not Path(entry).resolve().is_relative_to(root)
            if outside:
                raise CheckFailedError(
                    f"{project} adds a folder outside the root to the path",
                    where=info.parent / file,
                    expected=f"folders in {root}",
                    found=entry,
                )
