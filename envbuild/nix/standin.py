"""A stand-in for nixpkgs, made of what this machine has: for places that cannot reach nixpkgs.

It is a flake: standin.nix, and beside it a static bash and busybox, and the Python that runs this
with the libraries that it needs, down to the C library and the loader. What is written depends on
nothing but those files, so that a stand-in that is made again has the same path in the Nix store.

All but the static programs is packed: Nix reads a flake's folder anew for each command, and writes
it, too, where it is larger than 32 MiB (nar-buffer-size).
"""

from __future__ import annotations

import fnmatch
import gzip
import os
import re
import shutil
import stat
import sys
import sysconfig
import tarfile
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from importlib import metadata
from pathlib import Path

import msgspec
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from envbuild import process
from envbuild.errors import InputError, PreflightError, StepError
from envbuild.relocation import elf

_FLAKE = Path(__file__).with_name("standin.nix")
_FACTS = "stand-in.json"
# what a stand-in consists of; Nix may write a lock beside it
_ENTRIES = frozenset(
    {
        *("bin", "flake.lock", "flake.nix", "nixfmt.tar.gz", "packages", "python3.tar.gz"),
        _FACTS,
    }
)
_PYTHON = f"python{sys.version_info.major}.{sys.version_info.minor}"
# The start of a path in the store that is not known yet. The hash of none has an "e", so that Nix
# never takes it for a reference.
_NOWHERE = f"/nix/store/{32 * 'e'}-"

# Parts of the standard library that no build needs, in any of its folders
_LEFT_OUT = frozenset(
    {
        *("__pycache__", "test", "tests", "idlelib", "lib2to3", "pydoc_data", "tkinter"),
        *("turtle.py", "turtledemo", "ensurepip", "site-packages", "dist-packages"),
        *("EXTERNALLY-MANAGED", "sitecustomize.py"),
    }
)
_LEFT_OUT_PATTERNS = ("config-*", "*.a", "*.exe", "_*test*.so", "xx*.so", "_tkinter.*", "nis.*")

# What installers write into a .dist-info folder, each in its own way, with paths in it
_INSTALLERS = frozenset({"INSTALLER", "RECORD", "REQUESTED", "direct_url.json"})
# The flake brings these itself, by hash
_BY_HASH = frozenset({"envbuild", "pbs-installer", "uv"})
_MEND = "run it from the environment that `make create` makes"

# a line of what the loader lists: NAME => PATH (ADDRESS)
_LISTED = re.compile(r"\s+([^/\s]\S*) => (?:(/.*) \(0x[0-9a-f]+\)|not found)")
# opened by the C library when a thread ends early, needed by nobody
_UNWINDER = "libgcc_s.so.1"
# when everything was changed last, as Nix has it
_TIME = 1
# of compression: three times as quick as the default, and a tenth larger
_LEVEL = 1


class _Tools(msgspec.Struct, frozen=True):
    """Programs of this machine."""

    bash: Path
    busybox: Path
    patchelf: Path


class _Package(msgspec.Struct, frozen=True):
    """A distribution, as standin.nix reads it."""

    version: str
    requires: list[str]


def write(folder: Path) -> None:
    """Write a stand-in for nixpkgs, made of the Python that runs this and of its packages.

    It is whole or not there. An older one is replaced.

    Args:
        folder: becomes a flake, for ``nix build --override-input nixpkgs path:FOLDER``.

    Raises:
        InputError: the folder holds something else.
        PreflightError: a program that it is made of is not there.
        StepError: a program that it is made with failed.
    """
    folder = Path(os.path.realpath(folder))
    _check(folder)
    tools = _tools()
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}.", dir=folder.parent) as name:
        new, trees = Path(name) / "new", Path(name) / "trees"
        _fill(new, trees, tools)
        if folder.exists():
            folder.rename(Path(name) / "old")
        new.rename(folder)


def _check(folder: Path) -> None:
    """Refuse to replace what is no stand-in."""
    if not folder.exists():
        return
    foreign = InputError(
        "this is not a stand-in for nixpkgs, and is not replaced by one",
        where=folder,
        expected="a folder that is not there, is empty, or holds an older stand-in",
        mend="name another folder",
    )
    if not folder.is_dir():
        raise foreign
    names = {path.name for path in folder.iterdir()}
    if names and not (names <= _ENTRIES and _is_ours(folder / _FACTS)):
        raise foreign


def _is_ours(facts: Path) -> bool:
    try:
        return _NOWHERE.encode() in facts.read_bytes()
    except OSError:
        return False


def _tools() -> _Tools:
    tools = _Tools(
        _program("bash-static"), _program("busybox", "busybox-static"), _program("patchelf")
    )
    for path, package in ((tools.bash, "bash-static"), (tools.busybox, "busybox-static")):
        data = path.read_bytes()
        if not elf.is_elf(data) or elf.read(data).interpreter is not None:
            raise PreflightError(
                "not a static program, and so nothing that runs in an empty sandbox",
                where=path,
                mend=f"Debian: apt-get install {package}",
            )
    return tools


def _program(name: str, package: str | None = None) -> Path:
    found = _found(name)
    if found is None:
        raise PreflightError(
            f"{name} is not on PATH", mend=f"Debian: apt-get install {package or name}"
        )
    return found


def _found(name: str) -> Path | None:
    found = shutil.which(name)
    return None if found is None else Path(found).absolute()


def _fill(folder: Path, trees: Path, tools: _Tools) -> None:
    """Write a stand-in.

    Args:
        folder: where to; it is not there yet.
        trees: a folder for what is packed, likewise.
        tools: what it is made with.
    """
    _copy(_FLAKE, folder / "flake.nix")
    _copy(tools.bash, folder / "bin" / "bash", executable=True)
    _copy(tools.busybox, folder / "bin" / "busybox", executable=True)
    packages = _packages()
    modules = [*_standard_library(trees / "python3")]
    for name in packages:
        modules += _files(metadata.distribution(name), trees / "packages" / name)
    version = ".".join(map(str, sys.version_info[:3]))
    base = Path(sys.base_prefix)
    python = _Tree(trees / "python3", f"python3-{version}", tools.patchelf, base / "lib")
    python.add(base / "bin" / _PYTHON, _PYTHON, modules)
    for link in ("python", "python3"):
        (trees / "python3" / "bin" / link).symlink_to(_PYTHON)
    packed = ["python3", *(f"packages/{name}" for name in packages)]
    # runs in builds, as a check; skopeo only where there is a network, and so outside of them
    nixfmt, skopeo = _found("nixfmt"), _found("skopeo")
    if nixfmt is not None and elf.is_elf(nixfmt.read_bytes()):
        _Tree(trees / "nixfmt", "nixfmt", tools.patchelf).add(nixfmt, "nixfmt")
        packed.append("nixfmt")
    for name in packed:
        _pack(trees / name, folder / f"{name}.tar.gz")
    facts = {
        "nixfmt": "nixfmt" in packed,
        "nowhere": _NOWHERE,
        "packages": packages,
        "python": {"version": version, "pythonVersion": _PYTHON.removeprefix("python")},
        "skopeo": None if skopeo is None else str(skopeo),
    }
    text = msgspec.json.format(msgspec.json.encode(facts, order="deterministic"), indent=2)
    (folder / _FACTS).write_bytes(text + b"\n")
    # flakes know when they were changed last
    for path in (folder, *folder.rglob("*")):
        os.utime(path, (_TIME, _TIME))


def _pack(tree: Path, archive: Path) -> None:
    """Pack a folder, the same for the same content."""

    def plain(member: tarfile.TarInfo) -> tarfile.TarInfo:
        member.mode = 0o755 if member.mode & stat.S_IXUSR else 0o644
        member.mtime = _TIME
        member.uid = member.gid = 0
        member.uname = member.gname = ""
        return member

    archive.parent.mkdir(exist_ok=True)
    with (
        archive.open("wb") as file,
        gzip.GzipFile("", "wb", compresslevel=_LEVEL, fileobj=file, mtime=_TIME) as packed,
        # the form that busybox reads
        tarfile.open(fileobj=packed, mode="w", format=tarfile.GNU_FORMAT) as tar,
    ):
        tar.add(tree, ".", filter=plain)


def _copy(source: Path, target: Path, *, executable: bool = False) -> Path:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)
    target.chmod(0o755 if executable else 0o644)
    return target


def _standard_library(tree: Path) -> Iterator[tuple[Path, Path]]:
    """Copy what a build needs of the standard library; yield each file with its copy."""
    source = Path(sysconfig.get_path("stdlib"))
    target = tree / "lib" / _PYTHON
    for parent, folders, files in os.walk(source):
        folders[:] = sorted(name for name in folders if not _left_out(name))
        for name in sorted(files):
            path = Path(parent) / name
            if not _left_out(name) and path.exists():
                yield path, _copy(path, target / path.relative_to(source))
    # where it is missing, Python takes itself for broken
    (target / "lib-dynload").mkdir(exist_ok=True)


def _left_out(name: str) -> bool:
    return name in _LEFT_OUT or any(fnmatch.fnmatchcase(name, one) for one in _LEFT_OUT_PATTERNS)


def _packages() -> dict[str, _Package]:
    """Return what envbuild needs to run, by name."""
    found: dict[str, _Package] = {}
    names = ["envbuild"]
    while names:
        name = names.pop()
        try:
            distribution = metadata.distribution(name)
        except metadata.PackageNotFoundError as error:
            raise PreflightError(
                f"{name} is not installed beside envbuild",
                where=sys.prefix,
                mend=_MEND,
            ) from error
        requires = sorted({*_requirements(distribution)} - _BY_HASH)
        found[name] = _Package(distribution.version, requires)
        names += [one for one in requires if one not in found]
    del found["envbuild"]
    return dict(sorted(found.items()))


def _requirements(distribution: metadata.Distribution) -> Iterator[str]:
    """Yield what a distribution needs here, without its extras."""
    for line in distribution.requires or ():
        requirement = Requirement(line)
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            yield canonicalize_name(requirement.name)


def _files(distribution: metadata.Distribution, target: Path) -> Iterator[tuple[Path, Path]]:
    """Copy what a distribution has in site-packages; yield each file with its copy."""
    files = distribution.files
    if files is None:
        raise PreflightError(
            f"{distribution.name} does not say which files are its own",
            where=sys.prefix,
            expected="a distribution with a RECORD",
            mend=_MEND,
        )
    for file in sorted(files, key=str):
        written = file.parent.name.endswith(".dist-info") and file.name in _INSTALLERS
        if not (".." in file.parts or "__pycache__" in file.parts or written):
            source = Path(str(distribution.locate_file(file)))
            yield source, _copy(source, target / file)


class _Tree:
    """A folder for a program, its libraries and the loader.

    Args:
        folder: where it is made; the program comes into ``bin/``, libraries into ``lib/``.
        name: that it will have in the Nix store.
        patchelf: the program.
        search: a folder with libraries that the program's modules do not find by themselves.
    """

    def __init__(self, folder: Path, name: str, patchelf: Path, search: Path | None = None) -> None:
        self._folder = folder
        self._name = name
        self._patchelf = patchelf
        self._env = process.environment({"LD_LIBRARY_PATH": str(search)} if search else None)

    def add(self, program: Path, name: str, files: Sequence[tuple[Path, Path]] = ()) -> None:
        """Copy a program, and whatever it and its modules need.

        Args:
            program: the program.
            name: of the copy.
            files: what belongs to the program, with where it was copied to; modules among it are
                made to find their libraries.

        Raises:
            StepError: a library is missing, or a program failed.
        """
        copy = _copy(program, self._folder / "bin" / name, executable=True)
        loader = elf.read(program.read_bytes()).interpreter
        if loader is None:  # a static program
            return
        modules = {one.resolve(): copied for one, copied in files if _is_library(copied)}
        libraries = self._libraries(Path(loader), program, modules)
        placed = [_copy(path, self._folder / "lib" / one) for one, path in libraries.items()]
        own = _copy(Path(loader), self._folder / "lib" / Path(loader).name, executable=True)
        self._strip([copy, *placed, *modules.values()])
        self._find(placed, keep=False)
        self._find(modules.values(), keep=True)
        # of the program, so that it serves all that it loads; relative to where the program is
        self._patch("--force-rpath", "--set-rpath", "$ORIGIN/../lib", files=[copy])
        later = f"{_NOWHERE}{self._name}/lib/{own.name}"
        self._patch("--set-interpreter", later, files=[copy])

    def _libraries(self, loader: Path, program: Path, modules: dict[Path, Path]) -> dict[str, Path]:
        """Return all libraries by their names; modules that lack one are taken away."""
        found: dict[str, Path] = {}
        for path in [program, *sorted(modules)]:
            listed = self._listed(loader, path)
            missing = [name for name, where in listed.items() if where is None]
            if missing and path in modules:  # nobody can have imported it
                modules.pop(path).unlink()
            elif missing:
                raise StepError(f"{', '.join(missing)} is not to be found", where=path)
            else:
                found |= {name: where for name, where in listed.items() if where is not None}
        unwinder = loader.resolve().with_name(_UNWINDER)
        if unwinder.exists():
            found.setdefault(_UNWINDER, unwinder)
        return {
            name: where for name, where in sorted(found.items()) if where.resolve() not in modules
        }

    def _listed(self, loader: Path, path: Path) -> dict[str, Path | None]:
        """Return what the loader would load for a file, None where it finds nothing."""
        done = process.run([loader, "--list", path], doing=f"listing {path.name}", env=self._env)
        matches = map(_LISTED.match, done.stdout.splitlines())
        return {one[1]: Path(one[2]) if one[2] else None for one in matches if one}

    def _strip(self, files: Iterable[Path]) -> None:
        """Take away what debuggers want, where binutils are installed: most of the size."""
        strip = _found("strip")
        large = [one for one in files if elf.section(one.read_bytes(), ".debug_info") is not None]
        if strip is not None and large:
            process.run([strip, *large], doing="taking symbols away")

    def _find(self, files: Iterable[Path], *, keep: bool) -> None:
        """Let libraries be found by the program's path, since a RUNPATH of their own hides it.

        Args:
            files: the libraries.
            keep: whether folders relative to a library still hold what they did; they then come
                before the program's.
        """
        cleared: list[Path] = []
        for file in files:
            read = elf.read(file.read_bytes())
            folders = read.runpath if read.runpath is not None else read.rpath
            relative = [one for one in folders or () if keep and one.startswith("$ORIGIN")]
            if relative:
                self._patch("--force-rpath", "--set-rpath", ":".join(relative), files=[file])
            elif folders is not None:
                cleared.append(file)
        if cleared:
            self._patch("--remove-rpath", files=cleared)

    def _patch(self, *arguments: str, files: Sequence[Path]) -> None:
        process.run([self._patchelf, *arguments, *files], doing="patching paths")


def _is_library(path: Path) -> bool:
    if not re.search(r"\.so(\.|$)", path.name):
        return False
    with path.open("rb") as file:
        return elf.is_elf(file.read(4))
