"""A real prefix with all that prefixes hold, and faults planted in it one at a time.

A prefix works at one path, so a fault cannot be planted in a copy elsewhere: the good one is put
aside, a copy takes its place, and afterwards the good one comes back as it was.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec

from envbuild.catalog.project import Project
from envbuild.catalog.site import Layout
from envbuild.findings import Finding
from envbuild.lock import interpreters as pins
from envbuild.lock.interpreters import Pin
from envbuild.prefix import receipt, verify
from envbuild.prefix.receipt import Receipt
from envbuild.prefix.verify import Verified
from envbuild.relocation.subject import Ceilings, Subject
from tests import backend, interpreters, projects, wheels
from tests.servers import SimpleIndex

MINOR = f"python{projects.MINOR}"
PACKAGES = f"lib/{MINOR}/site-packages"

_SETTINGS = ("UV_", "PIP_", "ENVBUILD_", "PYTHON", "PBS_")
_SITE = 'summary = "here"\nroot = ".envs"\ntemporary = ["tmp/here"]\nuv-cache = "cache"\n'
_EXTRA = """\
overrides = ["pure>=1"]
[[editable]]
path = "mine"
requires = ["toybackend"]
"""
_SCRIPT = '#!python\nimport pure\nprint("data", pure.VERSION)\n'
_POINTS = "[console_scripts]\ntool = tool:main\n[gui_scripts]\ntool-gui = tool:Gui.show\n"
_TOOL = "def main():\n    return 0\n\n\nclass Gui:\n    show = main\n"
_FAST = """\
Metadata-Version: 2.1
Name: several
Version: 1.0
Provides-Extra: fast
Requires-Dist: speedy>=1; extra == "fast"
Requires-Dist: nowhere; extra == "slow"
"""


@contextmanager
def unwatched(_total: int) -> Iterator[Callable[[int], None]]:
    """Show no progress."""
    yield lambda _done: None


def subject(prefix: Path | str, **more: object) -> Subject:
    """Say what a prefix is held to, for the rules on their own."""
    held = Subject(prefix=str(prefix), owner=os.geteuid(), ceilings=Ceilings("this machine", {}))
    return msgspec.structs.replace(held, **more)


class Site(msgspec.Struct, frozen=True):
    """A site with one prefix that is as it must be.

    Attributes:
        project: the project.
        pin: of its interpreter.
        aside: where the good prefix is while a copy stands in its place.
    """

    project: Project
    pin: Pin
    aside: Path

    @property
    def layout(self) -> Layout:
        """The site as its file says now."""
        return self.project.layout("local", user="ada", root=None)

    @property
    def root(self) -> Path:
        return self.project.folder / ".envs"

    @property
    def prefix(self) -> Path:
        return self.root / "toy"

    @property
    def home(self) -> Path:
        """The folder of the interpreter."""
        version = self.pin.version
        folder = self.root / ".envbuild/interpreters" / f"{version}+{self.pin.build}"
        return folder / f"cpython-{version}-linux-x86_64-gnu"

    @property
    def python(self) -> Path:
        return self.home / "bin" / MINOR

    def verify(self, *, full: bool, path: Path | None = None) -> Verified:
        return verify.registered(
            self.project,
            self.layout,
            "toy",
            full=full,
            wheelhouse=self.project.wheelhouse,
            watch=unwatched,
            path=path,
        )


def make(folder: Path) -> Site:
    """Create the prefix with the real command, from wheels of a real index."""
    pin = interpreters.pack(folder / "mirror")
    project = projects.project(
        folder / "project",
        {
            "toy": projects.environment("tool", "datafull", "pathy", "picky", extra=_EXTRA),
            "other": projects.environment("speedy"),
        },
        {"local": _SITE},
    )
    (folder / "index").mkdir()
    _wheels(folder / "index")
    backend.project(project.folder / ".envs" / "mine", "mine")
    with SimpleIndex(folder / "index") as index:
        env = {name: text for name, text in os.environ.items() if not name.startswith(_SETTINGS)}
        env |= {
            "UV_DEFAULT_INDEX": index.url,
            "UV_PYTHON_INSTALL_MIRROR": (folder / "mirror").as_uri(),
            "UV_CACHE_DIR": str(folder / "uv-cache"),
            "HOME": str(folder / "home"),
            "PATH": f"{Path(sys.base_prefix) / 'bin'}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(Path(__file__).parents[2]),
        }
        _run(project, env, "lock")
        # the interpreter that is locked is none that tests have: the one that runs them is pinned
        project.interpreters_file.write_bytes(pins.serialize([pin]))
        for name in ("toy", "other"):
            file = project.environment_file(name)
            file.write_text(file.read_text().replace(projects.PINNED, pin.version))
        _run(project, env, "create", "toy")
    return Site(project, pin, folder / "aside")


def _run(project: Project, env: dict[str, str], *arguments: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "envbuild", *arguments],
        cwd=project.folder,
        env=env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def _wheels(folder: Path) -> None:
    backend.wheel(folder)
    twin = "TWIN = 1\n"
    files = {"pure/__init__.py": 'VERSION = "1.0"\n', "pure/one.py": twin, "pure/two.py": twin}
    wheels.make_wheel(folder, "pure", "1.0", files={**files, "pure/données.txt": "é\n"})
    wheels.make_wheel(folder, "speedy", "1.0")
    wheels.make_wheel(folder, "several", "1.0", metadata=_FAST)
    wheels.make_wheel(folder, "picky", "1.0", requires=["pure>=5"])
    wheels.make_wheel(
        folder,
        "tool",
        "2.0",
        files={"tool.py": _TOOL},
        requires=["pure", "several[fast]"],
        entry_points=_POINTS,
    )
    wheels.make_wheel(
        folder,
        "datafull",
        "1.0",
        data={
            "scripts/run-data": _SCRIPT,
            "scripts/run-shell": "#!/bin/sh\nexit 0\n",
            "data/share/datafull/table.csv": "1,2\n",
            "headers/datafull.h": "#define DATAFULL 1\n",
        },
    )
    wheels.make_wheel(
        folder,
        "pathy",
        "1.0",
        files={"pathy.pth": "import pathy_hook\n", "pathy_hook.py": "HOOKED = True\n"},
    )


class Ground:
    """Where a fault is planted: the prefix's copy, and what lies around it.

    Args:
        site: whose prefix.
        undo: takes back what is done outside the prefix.
        tmp: a folder outside the site.
    """

    def __init__(self, site: Site, undo: ExitStack, tmp: Path) -> None:
        self.site = site
        self.undo = undo
        self.tmp = tmp
        self.path: Path | None = None  # another path to verify

    @property
    def prefix(self) -> Path:
        return self.site.prefix

    def packages(self, path: str) -> Path:
        return self.prefix / PACKAGES / path

    def keep(self, path: Path) -> Path:
        """Bring a file or folder outside the prefix back afterwards, as it is now."""
        status = path.lstat() if path.exists() else None
        if status is None:
            self.undo.callback(remove, path)
        elif path.is_dir():
            self.undo.callback(path.chmod, status.st_mode)
        else:
            self.undo.callback(_put_back, path, path.read_bytes(), status)
        return path

    def new(self, path: Path, content: str = "") -> Path:
        """Add a file; folders outside the prefix that it needs are removed afterwards."""
        missing = [folder for folder in path.parents if not folder.exists()]
        if missing and not path.is_relative_to(self.prefix):
            self.undo.callback(remove, missing[-1])
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.is_relative_to(self.prefix):
            self.keep(path)
        path.write_text(content)
        return path

    def change(self, path: Path, old: str, new: str) -> None:
        """Replace a text in a file."""
        if not path.is_relative_to(self.prefix):
            self.keep(path)
        text = path.read_text()
        assert old in text, text
        path.write_text(text.replace(old, new))

    def link(self, path: Path, target: Path | str) -> None:
        """Put a link in the place of what is there."""
        if not path.is_relative_to(self.prefix):
            self.keep(path)
        path.unlink(missing_ok=True)
        path.symlink_to(target)

    def receipt(self, change: Callable[[Receipt], Receipt]) -> None:
        """Change the prefix's receipt, so that it still agrees with itself."""
        bookkeeping = self.site.layout.bookkeeping
        self.keep(receipt.path(bookkeeping, "toy"))
        known = receipt.read(bookkeeping, "toy")
        assert known is not None
        receipt.write(bookkeeping, change(known))

    def shown(self, text: str) -> str:
        """Write a text of the table out for this site."""
        site = self.site
        names: dict[str, Path | str] = {
            "PREFIX": site.prefix,
            "PACKAGES": site.prefix / PACKAGES,
            "OTHER": site.root / "other",
            "ROOT": site.root,
            "BASE": site.home,
            "HOME": Path.home(),
            "TMP": self.tmp,
            "VERSION": site.pin.version,
            "MINOR": MINOR,
            "TAG": str(sys.implementation.cache_tag),
            "PROJECT": site.project.folder,
        }
        shebang = len(f"#!{site.prefix}/bin/python")
        names |= {"SHEBANG": str(shebang), "LONG": str(shebang + 129)}
        for name, value in names.items():
            text = text.replace(f"<{name}>", str(value))
        return text


def remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _put_back(path: Path, data: bytes, status: os.stat_result) -> None:
    path.unlink(missing_ok=True)
    path.write_bytes(data)
    path.chmod(status.st_mode)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


@contextmanager
def ground(site: Site, tmp: Path) -> Iterator[Ground]:
    """Let a copy stand where the prefix does, and bring the prefix back afterwards."""
    site.prefix.rename(site.aside)
    try:
        subprocess.run(["cp", "-a", site.aside, site.prefix], check=True)
        with ExitStack() as undo:
            yield Ground(site, undo, tmp)
    finally:
        remove(site.prefix)
        site.aside.rename(site.prefix)


class Found(msgspec.Struct, frozen=True):
    """What of a finding is held to the table; texts as `Ground.shown` writes them out."""

    code: str
    severity: str
    where: str
    message: str
    expected: str | None = None
    found: str | None = None

    def fits(self, one: Finding, place: Ground) -> bool:
        """Whether a finding is this one; what was expected and found counts where it is said."""
        said = [(self.where, one.where), (self.message, one.message)]
        said += [
            (mine, its or "")
            for mine, its in ((self.expected, one.expected), (self.found, one.found))
            if mine is not None
        ]
        return (self.code, self.severity) == (one.code, one.severity) and all(
            place.shown(mine) == its for mine, its in said
        )
