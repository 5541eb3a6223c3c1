"""What the E rules say of real compiled code, and where it can, that the loader agrees."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from envbuild.digest import sha256_file
from envbuild.findings import Finding
from envbuild.prefix import contents, receipt
from envbuild.relocation import audit
from envbuild.relocation.subject import Base, Ceilings, Contents, Distribution, Expected, Subject
from tests.projects import MINOR, PINNED
from tests.relocation.objects import compiled, with_machine, with_weak_need
from tests.relocation.test_fatbin import PTX_90, SM_80, Nvcc
from tests.wheels import make_wheel

TAG = MINOR.replace(".", "")
SUFFIX = f".cpython-{TAG}-x86_64-linux-gnu.so"
SM_90 = ("-gencode", "arch=compute_90,code=sm_90")
BOTH_90 = ("-gencode", "arch=compute_90,code=[sm_90,compute_90]")

RHEL_8 = Ceilings(
    "sites/rhel.toml", {"GLIBC": (2, 28), "GLIBCXX": (3, 4, 25), "CXXABI": (1, 3, 11)}
)
# what glibc 2.32 and 2.36 brought
NEW = """
extern char __libc_single_threaded;
extern unsigned arc4random(void);
unsigned fresh(void) { return __libc_single_threaded + arc4random(); }
"""
NEW_CXX = """
#include <exception>
#include <sstream>
std::string shown(int number) { std::ostringstream out; out << number; return out.str(); }
std::exception_ptr kept(std::exception_ptr one) { std::exception_ptr copy = one; return copy; }
"""
EMPTY = "int nothing(void) { return 0; }"
GIVE, TAKE = "int give(void) { return 1; }", "int give(void); int take(void) { return give(); }"
OLD_MEND = "build it on a system as old as the site's, or take an older wheel"
FULL_MEND = (
    "install what brings them, or add to system-libraries of the site's file what its nodes have"
)


class Prefix:
    """A small prefix whose files are all of one wheel, published or built here."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.packages = path / "lib" / f"python{MINOR}" / "site-packages"
        self.packages.mkdir(parents=True)
        (path / "bin").mkdir()
        (path / "bin" / "python").symlink_to(Path(sys.base_prefix, "bin", f"python{MINOR}"))
        (path / "pyvenv.cfg").write_text(f"home = {sys.base_prefix}/bin\nversion = {PINNED}\n")
        self.own = False
        self.altered: set[Path] = set()

    def write(self, name: str, data: bytes) -> Path:
        path = self.packages / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        return path

    def library(
        self, name: str, source: str = EMPTY, *options: str | Path, language: str = "c"
    ) -> Path:
        """Make a library in the package folder."""
        path = self.packages / name
        path.parent.mkdir(parents=True, exist_ok=True)
        return compiled(path, source, "-shared", *options, language=language)

    def module(
        self, name: str, source: str = EMPTY, *options: str | Path, language: str = "c"
    ) -> Path:
        """Make an extension module there, which has its function for Python."""
        start = f"PyInit_{name.rpartition('/')[2].partition('.')[0]}"
        begin = 'extern "C" ' if language == "c++" else ""
        source += f"\n{begin}void *{start}(void) {{ return 0; }}\n"
        return self.library(name, source, *options, language=language)

    def subject(self, held: Contents, **settings: object) -> Subject:
        values: dict[str, object] = {"ceilings": RHEL_8, "root": str(self.path)} | settings
        return Subject(str(self.path), os.geteuid(), contents=held, **values)  # type: ignore

    def check(self, **settings: object) -> list[Finding]:
        """Return what the E rules find."""
        origin = "demo-1.0-cp3-none-linux_x86_64.whl"
        files = {
            str(path.relative_to(self.path)): Expected(origin, "sha256", sha256_file(path))
            for path in sorted(self.path.rglob("*"))
            if path.is_file() and not path.is_symlink() and path not in self.altered
        }
        held = Contents((Distribution("demo", "1.0", origin, own=self.own),), files, {})
        found = audit.audit(self.subject(held, **settings), jobs=1).findings
        return [one for one in found if one.code.startswith("E")]
