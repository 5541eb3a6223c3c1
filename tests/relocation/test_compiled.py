"""What the E rules say of real compiled code, and where it can, that the loader agrees."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

import msgspec
import pytest

from envbuild.digest import sha256_file
from envbuild.findings import Finding
from envbuild.prefix import contents, receipt
from envbuild.relocation import audit
from envbuild.relocation.subject import Base, Ceilings, Contents, Distribution, Expected, Subject
from tests.programs import require
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
        plain = Subject(str(self.path), os.geteuid(), RHEL_8, root=str(self.path), contents=held)
        return msgspec.structs.replace(plain, **settings)

    def check(self, **settings: object) -> list[Finding]:
        """Return what the E rules find."""
        origin = "demo-1.0.whl"
        files = {
            str(path.relative_to(self.path)): Expected(
                origin, "sha256", "0" * 64 if path in self.altered else sha256_file(path)
            )
            for path in sorted(self.path.rglob("*"))
            if path.is_file() and not path.is_symlink()
        }
        held = Contents((Distribution("demo", "1.0", origin, own=self.own),), files, {})
        return compiled_only(audit.audit(self.subject(held, **settings), jobs=1).findings)


def compiled_only(findings: Iterable[Finding]) -> list[Finding]:
    return [one for one in findings if one.code.startswith("E")]


def loads(path: Path) -> bool:
    """Whether the loader takes a library, in a process of its own, somewhere else."""
    program = "import ctypes, sys; ctypes.CDLL(sys.argv[1])"
    done = subprocess.run(
        [sys.executable, "-c", program, path],
        cwd="/",
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0 or "OSError" in done.stderr, done.stderr
    return done.returncode == 0


def rpath(entries: str, *, new: bool = True) -> tuple[str, str]:
    kind = "-Wl,--enable-new-dtags" if new else "-Wl,--disable-new-dtags"
    return kind, f"-Wl,-rpath,{entries}"


@pytest.fixture
def prefix(tmp_path: Path) -> Prefix:
    return Prefix(tmp_path / "prefix")


Severity = Literal["error", "warning"]


def too_new(
    path: Path, need: str, symbols: str, ceiling: str, severity: Severity = "error"
) -> Finding:
    version = need.partition(" ")[0]
    return Finding(
        "E001",
        severity,
        str(path),
        f"needs {need}" + (f", for {symbols}" if symbols else ""),
        expected=f"at most {ceiling} (sites/rhel.toml)",
        found=version,
        mend=OLD_MEND,
    )


def both(path: Path, severity: Severity = "error") -> list[Finding]:
    """Return what is found of code that needs what glibc 2.32 and 2.36 brought."""
    return [
        too_new(path, f"{version} of libc.so.6", symbol, "GLIBC_2.28", severity)
        for version, symbol in (
            ("GLIBC_2.32", "__libc_single_threaded"),
            ("GLIBC_2.36", "arc4random"),
        )
    ]


# E001: versions of system libraries' symbols


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("suffix", [SUFFIX, ".abi3.so", ".so"])
def test_a_module_that_needs_a_newer_glibc(prefix: Prefix, suffix: str, own: bool) -> None:
    prefix.own = own
    path = prefix.module(f"demo/fast{suffix}", NEW)
    assert prefix.check() == both(path)
    assert prefix.check(ceilings=Ceilings("sites/new.toml", {"GLIBC": (2, 36)})) == []
    assert prefix.check(ceilings=Ceilings("sites/unknown.toml", {})) == []
    between = Ceilings("sites/rhel.toml", {"GLIBC": (2, 35)})
    assert [one.found for one in prefix.check(ceilings=between)] == ["GLIBC_2.36"]


@pytest.mark.parametrize(
    "name",
    [
        "demo/fast.cpython-39-x86_64-linux-gnu.so",
        f"demo/fast.cpython-{TAG}-aarch64-linux-gnu.so",
        f"demo/fast.cpython-{TAG}-x86_64-linux-musl.so",
        "demo/fast.1.so",
        "demo/fast.so.1",
    ],
)
def test_what_this_python_does_not_import_is_a_warning(prefix: Prefix, name: str) -> None:
    path = prefix.module(name, NEW)
    assert prefix.check() == both(path, "warning")
    prefix.own = True
    assert prefix.check() == both(path)


def test_an_auxiliary_library_is_a_warning_till_a_module_needs_it(prefix: Prefix) -> None:
    last = prefix.library("demo.libs/liblast.so.1", GIVE + NEW, "-Wl,-soname,liblast.so.1")
    middle = prefix.library("demo.libs/libmiddle.so", TAKE, last, *rpath("$ORIGIN"))
    assert prefix.check() == both(last, "warning")
    source = "int take(void); int use(void) { return take(); }"
    module = prefix.module(f"demo/fast{SUFFIX}", source, middle, *rpath("$ORIGIN/../demo.libs"))
    # built beside it without a name of its own, it is needed by its path
    assert [one.code for one in prefix.check()] == ["E001", "E001"]
    assert prefix.check() == both(last)
    assert loads(module)


def test_newer_libstdcxx(prefix: Prefix) -> None:
    path = prefix.module(f"demo/shown{SUFFIX}", NEW_CXX, language="c++")
    glibcxx = f"GLIBCXX_{needed(path, 'GLIBCXX_')}"
    found = prefix.check()
    assert [(one.code, one.severity, one.where, one.expected, one.found) for one in found] == [
        ("E001", "error", str(path), "at most CXXABI_1.3.11 (sites/rhel.toml)", "CXXABI_1.3.13"),
        ("E001", "error", str(path), "at most GLIBCXX_3.4.25 (sites/rhel.toml)", glibcxx),
    ]
    assert found[0].message == (
        "needs CXXABI_1.3.13 of libstdc++.so.6, for "
        "_ZNSt15__exception_ptr13exception_ptr9_M_addrefEv"
    )
    assert found[1].message.startswith(f"needs {glibcxx} of libstdc++.so.6, for _ZNSt7__cxx1119")
    newer = Ceilings("sites/new.toml", {"GLIBCXX": (3, 4, 30), "CXXABI": (1, 3, 13)})
    assert prefix.check(ceilings=newer) == []


def needed(path: Path, family: str) -> str:
    """Return the newest version of a family that a file needs, as readelf tells it."""
    done = subprocess.run(
        [require("readelf", "binutils"), "-VW", path], capture_output=True, text=True, check=True
    )
    versions: list[str] = re.findall(rf"{family}([\d.]+)", done.stdout)
    return max(versions, key=lambda one: tuple(map(int, one.split("."))))


def test_a_version_that_may_be_missing(prefix: Prefix) -> None:
    path = prefix.module(f"demo/fast{SUFFIX}", NEW)
    path.write_bytes(with_weak_need(path.read_bytes(), "GLIBC_2.36"))
    assert prefix.check() == both(path)[:1]


def test_relative_relocations_need_a_loader_that_knows_them(prefix: Prefix) -> None:
    source = "extern int puts(const char *); static int a; int *p = &a; int f() { return puts(0); }"
    path = prefix.module(f"demo/packed{SUFFIX}", source, "-Wl,-z,pack-relative-relocs")
    assert prefix.check() == [
        too_new(path, "GLIBC_ABI_DT_RELR of libc.so.6", "", "GLIBC_2.28"),
    ]
    assert prefix.check(ceilings=Ceilings("sites/new.toml", {"GLIBC": (2, 36)})) == []


def standard_library(prefix: Prefix, name: str, *versions: str) -> Path:
    """Make a library that has versions of libstdc++."""
    script = prefix.path.parent / "versions"
    before = ""
    text = ""
    for version in versions:
        text += f"{version} {{ }} {before};\n"
        before = version
    script.write_text(text)
    options = ("-Wl,-soname,libstdc++.so.6", f"-Wl,--version-script={script}")
    return prefix.library(name, EMPTY, *options)


def test_a_library_that_the_prefix_brings_along_counts_where_the_loader_finds_it(
    prefix: Prefix,
) -> None:
    libs = rpath("$ORIGIN/../libs")
    path = prefix.module(f"demo/shown{SUFFIX}", NEW_CXX, *libs, language="c++")
    newest = f"GLIBCXX_{needed(path, 'GLIBCXX_')}"
    assert [one.found for one in prefix.check()] == ["CXXABI_1.3.13", newest]
    # somewhere else it is of no use
    standard_library(prefix, "other/libstdc++.so.6", newest, "CXXABI_1.3.13")
    assert [one.found for one in prefix.check()] == ["CXXABI_1.3.13", newest]
    have = ("GLIBCXX_3.4", "GLIBCXX_3.4.21", "CXXABI_1.3", newest)
    brought = standard_library(prefix, "libs/libstdc++.so.6.0.30", *have, "CXXABI_1.3.13")
    brought.with_name("libstdc++.so.6").symlink_to(brought.name)
    assert prefix.check() == []
    standard_library(prefix, "libs/libstdc++.so.6.0.30", *have)
    (found,) = prefix.check()
    assert (found.code, found.severity, found.found) == ("E001", "error", "CXXABI_1.3.13")
    assert found.expected == f"a version that {brought.relative_to(prefix.path)} has"
    assert not loads(path)


@pytest.mark.parametrize("new", [True, False])
def test_what_is_found_by_the_rpath_of_who_loads_it(prefix: Prefix, new: bool) -> None:
    given = "int _Z4givev(void)"
    name = "libstdc++.so.6"
    last = prefix.library(f"libs/{name}", f"{given} {{ return 1; }}", f"-Wl,-soname,{name}")
    source_of_middle = f"{given}; int take(void) {{ return _Z4givev(); }}"
    named = "-Wl,-soname,libmiddle.so"
    middle = prefix.library("mid/libmiddle.so", source_of_middle, last, named)
    folders = rpath("$ORIGIN/../mid:$ORIGIN/../libs", new=new)
    source = "int take(void); int use(void) { return take(); }"
    prefix.own = True
    module = prefix.module(f"demo/fast{SUFFIX}", source, middle, *folders)
    # with RUNPATH the loader takes the system's, which has no such symbol
    assert loads(module) == (not new)
    assert [one.code for one in prefix.check()] == (["E005"] if new else [])
    # a file's own RUNPATH takes the place of what it inherits, and goes no further
    options = (last, "-Wl,-soname,libmiddle.so")
    prefix.library("mid/libmiddle.so", source_of_middle, *options, *rpath("$ORIGIN"))
    assert not loads(module)
    assert [one.code for one in prefix.check()] == ["E005"]
    prefix.library("mid/liblast.so", source_of_middle, last, "-Wl,-soname,liblast.so")
    needs = prefix.packages / "mid" / "liblast.so"
    take = "int take(void); int again(void) { return take(); }"
    folders = rpath("$ORIGIN/../mid:$ORIGIN/../libs")
    prefix.library("mid/libmiddle.so", take, needs, "-Wl,-soname,libmiddle.so", *folders)
    prefix.module(f"demo/fast{SUFFIX}", take, needs, middle, *rpath("$ORIGIN/../mid", new=new))
    assert not loads(module)
    assert [one.code for one in prefix.check()] == ["E005"]


def test_an_rpath_goes_on_to_what_is_needed_by_what_is_needed(prefix: Prefix) -> None:
    prefix.own = True
    name = "libstdc++.so.6"
    at = prefix.library(f"libs/{name}", "int _Z1av(void) { return 1; }", f"-Wl,-soname,{name}")
    libraries = [at]
    for start, needs in zip("bcd", "abc", strict=True):
        given = f"int _Z1{needs}v(void); int _Z1{start}v(void) {{ return _Z1{needs}v(); }}"
        soname = f"-Wl,-soname,lib{start}.so"
        libraries.append(prefix.library(f"mid/lib{start}.so", given, libraries[-1], soname))
    source = "int _Z1dv(void); int use(void) { return _Z1dv(); }"
    folders = rpath("$ORIGIN/../mid:$ORIGIN/../libs", new=False)
    module = prefix.module(f"demo/fast{SUFFIX}", source, libraries[-1], *folders)
    assert loads(module)
    assert prefix.check() == []


def test_the_interpreter_in_a_prefix_is_loaded_by_all(prefix: Prefix) -> None:
    python = prefix.path / "bin" / "python"
    python.unlink()
    real = python.with_name(f"python{MINOR}")
    python.symlink_to(real.name)
    source = NEW + "int main(void) { return fresh() == 0; }"
    compiled(real, source)
    assert [one for one in prefix.check() if one.found == "GLIBC_2.36"] == both(real)[1:]
    # conda's has an RPATH to its libraries, which are the prefix's own
    compiled(real, "int main(void) { return 0; }", *rpath("$ORIGIN/../lib", new=False))
    module = prefix.module(f"demo/shown{SUFFIX}", NEW_CXX, language="c++")
    newest = f"GLIBCXX_{needed(module, 'GLIBCXX_')}"
    versions = ("GLIBCXX_3.4", "GLIBCXX_3.4.21", newest, "CXXABI_1.3", "CXXABI_1.3.13")
    library = standard_library(prefix, "libstdc++.so.6", *versions)
    old = Ceilings("sites/rhel.toml", {"GLIBCXX": (3, 4, 25), "CXXABI": (1, 3, 11)})
    assert len(prefix.check(ceilings=old)) == 2
    library.rename(prefix.path / "lib" / "libstdc++.so.6")
    assert prefix.check(ceilings=old) == []


# E002: where the loader looks

OUT = "$ORIGIN/../../../../../.."


@pytest.mark.parametrize(
    ("entries", "wrong", "message"),
    [
        ("$ORIGIN:/__w/x", "/__w/x", "a folder of another place"),
        ("/srv/builder/lib:$ORIGIN", "/srv/builder/lib", "a folder of another place"),
        ("$ORIGIN:", "", "an empty entry, which is the current folder"),
        ("$ORIGIN::$ORIGIN/..", "", "an empty entry, which is the current folder"),
        ("lib:$ORIGIN", "lib", "an entry relative to the current folder"),
        ("$ORIGINAL/lib", "$ORIGINAL/lib", "an entry relative to the current folder"),
        ("$ORIGIN:/usr/local/cuda/lib64/stubs", "/usr/local/cuda/lib64/stubs", "STUBS"),
        ("$ORIGIN/../stubs", "$ORIGIN/../stubs", "STUBS"),
        (OUT, OUT, "an entry that leads out of the prefix"),
        ("${ORIGIN}/../../../../../..", "${ORIGIN}/../../../../../..", "OUT"),
    ],
)
@pytest.mark.parametrize("new", [True, False])
def test_an_entry_that_leads_elsewhere(
    prefix: Prefix, entries: str, wrong: str, message: str, new: bool
) -> None:
    path = prefix.library("demo/libdemo.so", EMPTY, *rpath(entries, new=new))
    named = {
        "STUBS": "a folder of CUDA stubs, which are for linking only",
        "OUT": "an entry that leads out of the prefix",
    }
    warning = Finding(
        "E002",
        "warning",
        str(path),
        f"its {'RUNPATH' if new else 'RPATH'} has {named.get(message, message)}",
        expected="$ORIGIN/... inside the prefix",
        found=f"{wrong!r} in {entries!r}",
    )
    mend = "link it with -Wl,-rpath,'$ORIGIN/...' alone"
    error = msgspec.structs.replace(warning, severity="error", mend=mend)
    assert prefix.check(system=("/usr",)) == [warning]
    prefix.altered.add(path)
    assert prefix.check(system=("/usr",)) == [error]
    prefix.altered.clear()
    prefix.own = True
    assert prefix.check(system=("/usr",)) == [error]


def test_entries_that_are_right(prefix: Prefix) -> None:
    prefix.own = True
    inside = prefix.path / "lib"
    for number, entries in enumerate(
        ["$ORIGIN", "${ORIGIN}/../a", f"$ORIGIN/../../..:{inside}", "/usr/lib64:/opt/site/lib"]
    ):
        for new in (True, False):
            prefix.library(f"demo/lib{number}{new}.so", EMPTY, *rpath(entries, new=new))
    path = prefix.library("demo/libnone.so", EMPTY, *rpath("X"))
    data = path.read_bytes()
    path.write_bytes(data.replace(b"\0X\0", b"\0\0\0"))  # empty as a whole
    assert prefix.check(system=("/usr",), interpreters="/opt/site") == []
    assert {one.where for one in prefix.check(interpreters="/opt/site")} == {
        str(prefix.packages / f"demo/lib3{new}.so") for new in (True, False)
    }


def test_an_empty_entry_is_the_current_folder_for_the_loader(prefix: Prefix) -> None:
    given = prefix.library("elsewhere/libgiven.so", GIVE, "-Wl,-soname,libgiven.so")
    path = prefix.library("demo/libdemo.so", TAKE, given, *rpath("$ORIGIN:"))
    program = f"import ctypes; ctypes.CDLL({str(path)!r})"
    for folder, code in ((given.parent, 0), (prefix.path, 1)):
        done = subprocess.run(
            [sys.executable, "-c", program], cwd=folder, capture_output=True, check=False
        )
        assert done.returncode == code


# E003: libraries that are needed


def absent(path: Path, *names: str, severity: Severity = "error") -> Finding:
    return Finding(
        "E003",
        severity,
        str(path),
        f"needs {', '.join(names)}, which the prefix does not have",
        expected="libraries of the prefix, or ones that the site's file lists",
        found="no such file" if len(names) == 1 else "no such files",
        mend=FULL_MEND,
    )


def linked(prefix: Prefix, *names: str) -> list[Path]:
    """Make libraries that are nowhere in the prefix, to link with."""
    folder = prefix.path.parent / "linked"
    folder.mkdir(exist_ok=True)
    return [
        compiled(folder / f"{name}.link.so", EMPTY, "-shared", f"-Wl,-soname,{name}")
        for name in names
    ]


def test_libraries_that_are_missing(prefix: Prefix) -> None:
    names = ("libone.so.1", "libtwo.so")
    one, two = linked(prefix, *names)
    path = prefix.library("demo/libdemo.so", EMPTY, "-Wl,--no-as-needed", one, two)
    module = prefix.module(f"demo/fast{SUFFIX}", EMPTY, "-Wl,--no-as-needed", one)
    assert prefix.check() == [
        absent(module, "libone.so.1", severity="warning"),
        absent(path, *names, severity="warning"),
    ]
    prefix.own = True
    assert prefix.check() == [absent(module, "libone.so.1"), absent(path, *names)]
    assert prefix.check(libraries=("libtwo.so", "libone.so.1")) == []
    prefix.own = False
    prefix.altered.add(path)
    assert prefix.check(libraries=("libtwo.so",)) == [
        absent(module, "libone.so.1", severity="warning"),
        absent(path, "libone.so.1"),
    ]


def test_libraries_that_are_there(prefix: Prefix) -> None:
    prefix.own = True
    system = ("libm.so.6", "libz.so.1", "libcuda.so.1", "libnvidia-ml.so.1")
    prefix.library("demo/libdemo.so", EMPTY, "-Wl,--no-as-needed", *linked(prefix, *system))
    prefix.library("other/named-otherwise.so", EMPTY, "-Wl,-soname,libloaded.so.2")
    file = prefix.library("other/libfile.so.3")
    file.with_name("liblink.so.4").symlink_to(file.name)
    for number, name in enumerate(("libloaded.so.2", "libfile.so.3", "liblink.so.4")):
        (other,) = linked(prefix, name)
        prefix.library(f"demo/lib{number}.so", EMPTY, "-Wl,--no-as-needed", other)
    assert prefix.check() == []


def test_the_interpreters_own_library(prefix: Prefix, tmp_path: Path) -> None:
    prefix.own = True
    name = f"libpython{MINOR}-demo.so.1.0"
    path = prefix.library("demo/libdemo.so", EMPTY, "-Wl,--no-as-needed", *linked(prefix, name))
    assert prefix.check() == [absent(path, name)]
    home = tmp_path / "python"
    (home / "bin").mkdir(parents=True)
    (home / "lib").mkdir()
    python = home / "bin" / f"python{MINOR}"
    python.write_bytes(b"")
    compiled(home / "lib" / name, EMPTY, "-shared")
    assert prefix.check(base=Base(str(python), PINNED, pinned=True, wanted=PINNED)) == []
    (prefix.path / "bin" / "python").unlink()
    (prefix.path / "bin" / "python").symlink_to(python)
    assert prefix.check() == []


def test_folders_and_files_that_are_links(prefix: Prefix) -> None:
    given = prefix.library("demo/lib/libgiven.so.1.2", GIVE, "-Wl,-soname,libgiven.so.1")
    (given.parent / "libgiven.so.1").symlink_to(given.name)
    (given.parent.parent / "lib64").symlink_to("lib")
    path = prefix.module(f"demo/fast{SUFFIX}", TAKE, given, *rpath("$ORIGIN/lib64"))
    prefix.own = True
    assert loads(path)
    assert prefix.check() == []
    given.write_bytes(b"INPUT(libother.so)\n")
    assert prefix.check() == [absent(path, "libgiven.so.1")]
    given.unlink()
    assert prefix.check() == [absent(path, "libgiven.so.1")]
    assert not loads(path)


def test_a_library_for_another_machine_is_passed_over(prefix: Prefix) -> None:
    prefix.own = True
    given = prefix.library("demo/libgiven.so", GIVE, "-Wl,-soname,libgiven.so")
    path = prefix.module(f"demo/fast{SUFFIX}", TAKE, given, *rpath("$ORIGIN:$ORIGIN/more"))
    good = given.read_bytes()
    compiled(given, GIVE, "-shared", "-m32", "-nostdlib")
    assert absent(path, "libgiven.so") in prefix.check()
    assert not loads(path)
    prefix.write("demo/more/libgiven.so", good)
    assert [one.code for one in prefix.check()] == ["E007"]
    assert loads(path)


def test_a_library_that_is_needed_by_its_path(
    prefix: Prefix, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefix.own = True
    monkeypatch.chdir(prefix.packages)  # where we are is of no meaning
    built = compiled(tmp_path / "libbuilt.so", GIVE, "-shared")  # without a name of its own
    path = prefix.library("demo/libdemo.so", TAKE, built, *rpath("$ORIGIN"))
    assert loads(path)
    assert missing(prefix) == [absent(path, str(built))]
    # its folder does not help, since nothing is looked for
    prefix.library("demo/libbuilt.so", GIVE)
    assert missing(prefix) == [absent(path, str(built))]
    inside = prefix.library("demo/libinside.so", GIVE)
    path = prefix.library("demo/libdemo.so", TAKE, inside)
    assert missing(prefix) == []
    # relative to the current folder
    for name in ("$ORIGIN/libinside.so", "demo/libinside.so"):
        prefix.library("demo/libdemo.so", EMPTY, "-Wl,--no-as-needed", *linked_as(prefix, name))
        assert missing(prefix) == ([] if name.startswith("$") else [absent(path, name)])
        assert loads(path) == name.startswith("$")


def missing(prefix: Prefix) -> list[Finding]:
    return [one for one in prefix.check() if one.code == "E003"]


def linked_as(prefix: Prefix, name: str) -> list[Path]:
    output = prefix.path.parent / "linked.so"
    return [compiled(output, EMPTY, "-shared", f"-Wl,-soname,{name}")]


# E004: device code


@pytest.fixture(scope="module")
def nvcc(tmp_path_factory: pytest.TempPathFactory) -> Nvcc:
    return Nvcc(tmp_path_factory.mktemp("nvcc"))


def test_device_code_for_what_is_asked_for(prefix: Prefix, nvcc: Nvcc) -> None:
    path = prefix.write("demo/libcuda_demo.so", nvcc("a.so", "-shared", *SM_80, *SM_90))

    def device(message: str, expected: str, found: str, mend: str) -> Finding:
        return Finding("E004", "error", str(path), message, expected, found, mend)

    def check(**settings: object) -> list[Finding]:
        found = prefix.check(ceilings=Ceilings("sites/new.toml", {}), **settings)
        return [one for one in found if one.code == "E004"]

    asked = ("sm_90",)
    assert check(architectures=asked) == []  # published
    prefix.own = True
    two = "sm_80 (cubin), sm_90 (cubin)"
    other = device(
        "holds device code for sm_80", "sm_90, no PTX", two, "build it again with these alone"
    )
    assert check(architectures=asked) == [other]
    assert check(architectures=("sm_80", "sm_90")) == check() == []
    missing = device(
        "holds no device code for sm_100",
        "sm_80, sm_90, sm_100, no PTX",
        two,
        "build it again with it",
    )
    assert check(architectures=("sm_80", "sm_90", "sm_100")) == [missing]
    prefix.write("demo/libcuda_demo.so", nvcc("b.so", "-shared", *SM_90))
    assert check(architectures=asked) == []
    prefix.write("demo/libcuda_demo.so", nvcc("c.so", "-shared", *BOTH_90))
    ptx = "compute_90 (ptx), sm_90 (cubin)"
    unasked = device(
        "holds PTX for compute_90, which was not asked for",
        "sm_90, no PTX",
        "sm_90 (cubin), compute_90 (ptx)",
        "build it again without it",
    )
    assert check(architectures=asked) == [unasked], ptx
    assert check(architectures=asked, ptx=True) == []
    prefix.write("demo/libcuda_demo.so", nvcc("d.so", "-shared", *SM_80, *PTX_90))
    assert [one.message for one in check(architectures=asked, ptx=True)] == [
        "holds device code for sm_80",
        "holds no device code for sm_90",
    ]
    assert [one.message for one in check(architectures=("sm_80",), ptx=True)] == [
        "holds PTX for compute_90, which was not asked for",
    ]


def test_a_file_of_device_code_alone(prefix: Prefix, nvcc: Nvcc) -> None:
    path = prefix.write("demo/kernels.cubin", nvcc("k.cubin", "-cubin", "-arch=sm_80"))
    assert prefix.check(architectures=("sm_90",)) == []
    prefix.own = True
    assert [
        (one.code, one.where, one.message) for one in prefix.check(architectures=("sm_90",))
    ] == [
        ("E004", str(path), "holds device code for sm_80"),
        ("E004", str(path), "holds no device code for sm_90"),
    ]
    assert prefix.check(architectures=("sm_80",)) == []


# E005: symbols

C10_THEN = (
    "namespace c10 { int sum(int a) { return a; } __attribute__((weak)) int w() { return 1; } }"
)
C10_NOW = "namespace c10 { int sum(long a, int b) { return a + b; } }"
USER = """
namespace c10 { int sum(int); int w() __attribute__((weak)); }
int use() { return c10::sum(1) + (c10::w ? c10::w() : 0); }
"""


def undefined(path: Path, names: str, providers: str, count: str) -> Finding:
    return Finding(
        "E005",
        "error",
        str(path),
        f"needs {names}, which no library of the prefix exports",
        expected=f"symbols of {providers}",
        found=count,
        mend="build it again against the packages that are installed",
    )


def test_a_library_whose_function_changed(prefix: Prefix) -> None:
    prefix.own = True
    named = "-Wl,-soname,libc10.so"
    library = prefix.library("torch/lib/libc10.so", C10_THEN, named, language="c++")
    module = prefix.module(f"demo/ops{SUFFIX}", USER, library, *folder(), language="c++")
    assert prefix.check() == []
    assert loads(module)
    prefix.library("torch/lib/libc10.so", C10_NOW, named, language="c++")
    place = str(library.relative_to(prefix.path))
    expected = undefined(module, "_ZN3c103sumEi", place, "1 undefined symbol")
    assert prefix.check() == [expected]
    assert not loads(module)
    # torch's extensions have no path to it: torch has loaded it before
    prefix.library("torch/lib/libc10.so", C10_THEN, named, language="c++")
    prefix.module(f"demo/ops{SUFFIX}", USER, library, language="c++")
    assert prefix.check() == []
    prefix.library("torch/lib/libc10.so", C10_NOW, named, language="c++")
    assert prefix.check() == [expected]
    prefix.own = False
    assert prefix.check() == []


def folder() -> tuple[str, str]:
    return rpath("$ORIGIN/../torch/lib")


def test_several_symbols_of_libraries_that_others_need(prefix: Prefix) -> None:
    prefix.own = True
    names = [f"part{number}" for number in range(6)]
    parts = "".join(f"int {name}(void) {{ return 1; }}" for name in names)
    last = prefix.library("torch/lib/liblast.so", parts, "-Wl,-soname,liblast.so")
    middle = prefix.library(
        "torch/lib/libmiddle.so",
        EMPTY,
        "-Wl,-soname,libmiddle.so",
        "-Wl,--no-as-needed",
        last,
        *rpath("$ORIGIN"),
    )
    source = "".join(f"int {name}(void);" for name in names)
    source += f"int all(void) {{ return {'() + '.join(names)}(); }}"
    options = ("-Wl,--no-as-needed", middle, *folder())
    module = prefix.module(f"demo/ops{SUFFIX}", source, *options)
    assert prefix.check() == []
    prefix.library("torch/lib/liblast.so", EMPTY, "-Wl,-soname,liblast.so")
    providers = ", ".join(str(one.relative_to(prefix.path)) for one in (last, middle))
    listed = "part0, part1, part2, part3 and 2 more"
    assert prefix.check() == [undefined(module, listed, providers, "6 undefined symbols")]


def test_a_module_that_was_linked_with_nothing(prefix: Prefix) -> None:
    prefix.own = True
    module = prefix.module(f"demo/ops{SUFFIX}", USER, language="c++")
    found = undefined(module, "_ZN3c103sumEi", "libraries that it needs", "1 undefined symbol")
    assert prefix.check() == [found]
    assert not loads(module)


@pytest.mark.parametrize(
    "source",
    [
        "extern int _Py_None; void *PyList_New(int); void *f() { return PyList_New(_Py_None); }",
        "extern int faint(void) __attribute__((weak)); int f(void) { return faint ? faint() : 0; }",
        # of the C library, but without its version: numpy and torch have such
        "double lround(double); int f(void) { return lround(1); }",
    ],
)
def test_symbols_that_others_give(prefix: Prefix, source: str) -> None:
    prefix.own = True
    library = prefix.library("torch/lib/libc10.so", GIVE, "-Wl,-soname,libc10.so")
    prefix.module(f"demo/a{SUFFIX}", TAKE + source, library, *folder(), "-nostdlib")
    assert prefix.check() == []


def test_libraries_that_are_not_read(prefix: Prefix) -> None:
    prefix.own = True
    library = prefix.library("torch/lib/libc10.so", GIVE, "-Wl,-soname,libc10.so")
    driver, zlib, site = linked(prefix, "libcuda.so.1", "libz.so.1", "libsite.so.1")
    source = TAKE + "int cuInit(int); int start(void) { return cuInit(0); }"
    mangled = "int _ZN3c103sumEi(int); int sum(void) { return _ZN3c103sumEi(1); }"
    known = "-Wl,--no-as-needed", library, *folder()
    settings = {"libraries": ("libsite.so.1",)}
    module = prefix.module(f"demo/a{SUFFIX}", source, *known)
    place = str(library.relative_to(prefix.path))
    assert prefix.check() == [undefined(module, "cuInit", place, "1 undefined symbol")]
    for other in (driver, zlib, site):
        prefix.module(f"demo/a{SUFFIX}", source, *known, other)
        assert prefix.check(**settings) == []
    # theirs are names of C's, but for the site's
    found = undefined(module, "_ZN3c103sumEi", place, "1 undefined symbol")
    for other, findings in ((driver, [found]), (zlib, [found]), (site, [])):
        prefix.module(f"demo/a{SUFFIX}", source + mangled, *known, other)
        assert prefix.check(**settings) == findings


def test_a_plug_in_gets_names_from_who_opens_it(prefix: Prefix) -> None:
    prefix.own = True
    library = prefix.library("torch/lib/libc10.so", GIVE, "-Wl,-soname,libc10.so")
    source = TAKE + "int registered(void); int go(void) { return registered(); }"
    prefix.library("demo/libplug.so", source, library, *folder())
    assert prefix.check() == []


def test_versions_of_the_prefixs_own_libraries(prefix: Prefix, tmp_path: Path) -> None:
    prefix.own = True
    named = "-Wl,-soname,libv.so"

    def version(name: str) -> str:
        script = tmp_path / "script"
        script.write_text(f"{name} {{ global: give; }};")
        return f"-Wl,--version-script={script}"

    library = prefix.library("torch/lib/libv.so", GIVE, named, version("V_1"))
    module = prefix.module(f"demo/a{SUFFIX}", TAKE, library, *folder())
    assert prefix.check() == []
    prefix.library("torch/lib/libv.so", GIVE, named, version("V_2"))
    place = str(library.relative_to(prefix.path))
    assert prefix.check() == [undefined(module, "give@V_1", place, "1 undefined symbol")]
    assert not loads(module)
    # the loader takes one without versions, if it has a table of those that it needs
    prefix.library("torch/lib/libv.so", GIVE, named, "-nostdlib")
    assert prefix.check() == [undefined(module, "give@V_1", place, "1 undefined symbol")]
    source = GIVE + 'int puts(const char *); int say(void) { return puts(""); }'
    prefix.library("torch/lib/libv.so", source, named)
    assert prefix.check() == []
    assert loads(module)


# E006: folders of the builder


def names_path(path: Path, names: str, count: str) -> Finding:
    return Finding(
        "E006",
        "error",
        str(path),
        f"names {names}",
        expected="no folder of its build, and no home",
        found=count,
        mend="build it with -ffile-prefix-map, and link it with -s",
    )


def saying(*texts: str) -> str:
    quoted = ", ".join(f'"{text}"' for text in texts)
    return f"const char *const texts[] = {{{quoted}}};"


# the home of who builds in a container
SUPERUSER = str(Path("/", "root"))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("/home/builder/demo/a.c", "/home/builder/demo/a.c"),
        (f"at {SUPERUSER}/work/a.cu:12", f"{SUPERUSER}/work/a.cu"),
        ("gcc -I/home/me/include -O2", "/home/me/include"),
        ("/tmp/pip-build-x1/src/a.c", "/tmp/pip-build-x1/src/a.c"),
        ("/tmp/tmpxft_0000.cudafe1.cpp", "/tmp/tmpxft_0000.cudafe1.cpp"),
        ("/var/tmp/b/a.c", "/var/tmp/b/a.c"),
        ("/scratch/build/src/a.c", "/scratch/build/src/a.c"),
        ("in /scratch/build", "/scratch/build"),
    ],
)
def test_a_folder_of_the_build(prefix: Prefix, text: str, found: str) -> None:
    path = prefix.library("demo/libdemo.so", saying(text), "-s")
    assert prefix.check(builders=("/scratch/build",)) == []  # published
    prefix.own = True
    expected = names_path(path, found, "1 such path")
    assert prefix.check(builders=("/scratch/build",)) == [expected]


def test_what_is_no_folder_of_the_build(prefix: Prefix) -> None:
    prefix.own = True
    inside = prefix.packages / "demo" / "a.h"
    path = prefix.library(
        "demo/libdemo.so",
        saying(
            *(str(inside), f"{prefix.path}", f"-I{prefix.path}/include"),
            *("/scratch/builder/a.c", "/proj/home/me/a.c", "/usr/root/x/a.c", "lib/tmp/x/a.c"),
            *("/tmp/", "/tmp", "/tmp/demo-cache", "/tmp/demo-XXXXXX/a.c", "/tmp/.X11-unix/X0"),
            *("/home/", "/root", "/opt/tmp/b/a.c"),
        ),
        "-s",
    )
    assert prefix.check(builders=("/scratch/build",)) == []
    prefix.library("demo/libdemo.so", saying("/home/me/pythons/3/include/a.h"), "-s")
    assert [one.code for one in prefix.check()] == ["E006"]
    assert prefix.check(interpreters="/home/me/pythons") == []
    twin = f"{prefix.path}2/a.c"
    prefix.library("demo/libdemo.so", saying(twin), "-s")
    assert prefix.check(builders=(f"{prefix.path}2",)) == [names_path(path, twin, "1 such path")]


def test_the_compilers_own_words(prefix: Prefix, tmp_path: Path) -> None:
    prefix.own = True
    header = tmp_path / "built" / "a.h"
    header.parent.mkdir()
    header.write_text("static inline const char *where(void) { return __FILE__; }")
    source = f'#include "{header}"\nconst char *told(void) {{ return where(); }}'
    path = prefix.library("demo/libdemo.so", source, "-O0", "-s")
    builders = (str(header.parent),)
    assert prefix.check(builders=builders) == [names_path(path, str(header), "1 such path")]
    mapped = f"-ffile-prefix-map={header.parent}=."
    prefix.library("demo/libdemo.so", source, "-O0", "-s", mapped)
    assert prefix.check(builders=builders) == []


def test_many_folders_of_the_build(prefix: Prefix) -> None:
    prefix.own = True
    path = prefix.library(
        "demo/libdemo.so", saying(*(f"/home/me/w/{name}.c" for name in "fedcba")), "-s"
    )
    listed = "/home/me/w/a.c, /home/me/w/b.c, /home/me/w/c.c, /home/me/w/d.c and 2 more"
    assert prefix.check() == [names_path(path, listed, "6 such paths")]


# E007: other machines, and files that are no whole ELF


def foreign(path: Path, found: str, severity: Severity, mend: str | None = None) -> Finding:
    return Finding(
        "E007", severity, str(path), "is for another machine", "x86-64, 64 bits", found, mend
    )


@pytest.mark.parametrize(
    ("options", "machine", "found"),
    [
        (("-m32", "-nostdlib"), None, "x86, 32 bits"),
        (("-mx32", "-nostdlib"), None, "x86-64, 32 bits"),
        ((), 183, "AArch64, 64 bits"),
        ((), 999, "machine 999, 64 bits"),
    ],
)
def test_code_for_another_machine(
    prefix: Prefix, options: tuple[str, ...], machine: int | None, found: str
) -> None:
    library = prefix.library("demo/libdemo.so", EMPTY, *options)
    module = prefix.module("demo/fast.abi3.so", EMPTY, *options)
    # its name says so, and Python passes it over
    other = prefix.module(f"demo/fast.cpython-{TAG}-aarch64-linux-gnu.so", EMPTY, *options)
    if machine is not None:
        for path in (library, module, other):
            path.write_bytes(with_machine(path.read_bytes(), machine))
    mend = "take a wheel for x86-64"
    assert prefix.check() == [
        foreign(module, found, "error", mend),
        foreign(other, found, "warning"),
        foreign(library, found, "warning"),
    ]
    assert not loads(module)
    prefix.own = True
    assert prefix.check() == [
        foreign(module, found, "error", mend),
        foreign(other, found, "error"),
        foreign(library, found, "error"),
    ]


def test_a_file_that_is_cut_off(prefix: Prefix) -> None:
    def unreadable(path: Path, severity: Severity) -> Finding:
        return Finding(
            "E007",
            severity,
            str(path),
            "begins as ELF, but cannot be read as such",
            expected="a whole ELF file",
            found="dynamic section: outside of the file",
            mend="see where it is from: no loader takes it",
        )

    library = prefix.library("demo/libdemo.so")
    module = prefix.module(f"demo/fast{SUFFIX}")
    other = prefix.module("demo/other.cpython-39-x86_64-linux-gnu.so")
    assert prefix.check() == []
    for path in (library, module, other):
        path.write_bytes(path.read_bytes()[:1500])
    # a module that cannot be read cannot be imported; samples for tests are like this, too
    assert prefix.check() == [
        unreadable(module, "error"),
        unreadable(library, "warning"),
        unreadable(other, "warning"),
    ]
    prefix.own = True
    assert prefix.check() == [
        unreadable(module, "error"),
        unreadable(library, "error"),
        unreadable(other, "error"),
    ]


# through a wheel


@pytest.mark.parametrize("own", [True, False])
def test_a_wheel_with_an_extension(prefix: Prefix, tmp_path: Path, own: bool) -> None:
    (lost,) = linked(prefix, "libmissing.so.1")
    options = ("-shared", "-Wl,--no-as-needed", lost, "-s", *rpath("$ORIGIN:/__w/x"))
    source = NEW + saying("/home/me/work/a.c")
    start = "void *PyInit_fast(void) { return 0; }"
    built = compiled(tmp_path / "a.so", source + start, *options)
    name = f"demo/fast{SUFFIX}"
    wheel = make_wheel(
        tmp_path / "wheelhouse",
        "demo",
        "1.0",
        files={"demo/__init__.py": "", name: built.read_bytes()},
        python_tag=f"cp{TAG}",
        abi_tag=f"cp{TAG}",
        platform_tag="linux_x86_64",
    )
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(prefix.packages)
    package = receipt.Distribution("demo", "1.0", wheel.name, sha256_file(wheel))
    held = contents.contents(
        [package], wheel.parent, minor=MINOR, own=frozenset({"demo"}) if own else frozenset()
    )
    path = prefix.packages / name
    severity: Severity = "error" if own else "warning"
    found = compiled_only(audit.audit(prefix.subject(held)).findings)
    assert [one for one in found if one.code != "E002"] == [
        *both(path),
        absent(path, "libmissing.so.1", severity=severity),
        *([names_path(path, "/home/me/work/a.c", "1 such path")] if own else []),
    ]
    assert [(one.severity, one.found) for one in found if one.code == "E002"] == [
        (severity, "'/__w/x' in '$ORIGIN:/__w/x'")
    ]
