"""The E rules: whether compiled code can be loaded at this site, and what it binds."""

from __future__ import annotations

import contextlib
import functools
import itertools
import mmap
import os
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Literal

from envbuild.findings import Finding
from envbuild.relocation import elf, interpreter
from envbuild.relocation.elf import Buffer, Elf
from envbuild.relocation.look import Compiled
from envbuild.relocation.subject import Subject

# What every Linux node with glibc has: glibc's own libraries and the compiler's run time (the same
# that PEP 600 relies on), without the desktop's.
STANDARD = frozenset(
    {
        *("ld-linux-x86-64.so.2", "libanl.so.1", "libBrokenLocale.so.1", "libc.so.6"),
        *("libcrypt.so.1", "libdl.so.2", "libm.so.6", "libmvec.so.1", "libnsl.so.1"),
        *("libpthread.so.0", "libresolv.so.2", "librt.so.1", "libthread_db.so.1", "libutil.so.1"),
        *("libgcc_s.so.1", "libstdc++.so.6", "libatomic.so.1", "libz.so.1"),
    }
)
# Of these, the ones without a version for some of their symbols
_VERSIONED = STANDARD - {"libz.so.1"}
# What NVIDIA's driver brings to the nodes that have it
DRIVER = frozenset(
    {
        *(
            "libcuda.so.1",
            "libcudadebugger.so.1",
            "libnvidia-ml.so.1",
            "libnvidia-ptxjitcompiler.so.1",
        ),
        *(
            "libnvcuvid.so.1",
            "libnvidia-encode.so.1",
            "libnvoptix.so.1",
            "libnvidia-opticalflow.so.1",
        ),
    }
)

_FOLDERS = ("/usr/lib64", "/usr/lib/x86_64-linux-gnu")
# Those that are not read, and whose symbols have no version but names of C's
_PLAIN = DRIVER | {"libz.so.1"}

_X86_64 = 62  # EM_X86_64
_CUDA = 190  # EM_CUDA
_SHARED = 3  # ET_DYN
_MACHINES = {3: "x86", 20: "PowerPC", 21: "PowerPC64", 40: "Arm", 62: "x86-64", 183: "AArch64"}
_MACHINES |= {224: "AMD GPU", 243: "RISC-V", 258: "LoongArch"}

_VERSION = re.compile(r"(?P<family>[A-Z]+)_(?P<number>\d+(?:\.\d+)*)")
# glibc's loader must be this new to read such a library, which it says by a version of its own
_SPECIAL = {
    "GLIBC_ABI_DT_RELR": ("GLIBC", (2, 36)),
    "GLIBC_ABI_GNU_TLS": ("GLIBC", (2, 42)),
    "GLIBC_ABI_GNU2_TLS": ("GLIBC", (2, 42)),
    "GLIBC_ABI_DT_X86_64_PLT": ("GLIBC", (2, 43)),
}
_ORIGIN = re.compile(r"\$(?:ORIGIN|\{ORIGIN\})(?=/|$)")
_SUFFIX = re.compile(r"\.(?:(?:cpython-(?P<tag>\d+)t?-x86_64-linux-gnu|(?P<abi3>abi3))\.)?so")
_INTERPRETER = re.compile(r"bin/python(?:3(?:\.\d+t?)?)?")
# A path begins where no longer one goes on, behind an option of the compiler if need be. Searching
# for its "/" first is ten times as fast.
_BEGIN = rb"/(?:(?<![\w.+/-]/)|(?<=-[BIL]/))"
_REST = rb"(?:/[\w.+-]+)"
# Folders of a builder's own. A file right in /tmp is a leak if it is a compiler's; others are what
# programs share there, as are X's sockets.
_BUILDER = (
    rb"(?:home/[\w.+-]+|root)%b+" % _REST,
    rb"(?:var/)?tmp/(?!\.X11-unix|[\w./+-]*XXXXXX)(?:[\w.+-]+%b+" % _REST
    + rb"|[\w.+-]+\.(?:[cCfhiosS]|cc|cu|cuh|cpp|cxx|f90|hpp|ii|rs|so)\b)",
)

Severity = Literal["error", "warning"]


class Code:
    """All compiled code of a prefix.

    Args:
        subject: what the prefix is held to.
        files: the compiled files.
        paths: all files and links, relative to the prefix.
        minor: of the prefix's Python, such as ``3.11``; None where it is not known.
    """

    def __init__(
        self,
        subject: Subject,
        files: Iterable[Compiled],
        paths: Iterable[str],
        minor: str | None,
    ) -> None:
        self._subject = subject
        self._files = {one.path: one for one in files}
        self._links = set(paths) - self._files.keys()  # and what is no compiled code
        self._minor = minor
        self._given = STANDARD | DRIVER | set(subject.libraries)
        self._real_prefix = os.path.realpath(subject.prefix)
        self._real_folders: dict[str, str] = {}
        self._exported: dict[str, frozenset[str]] = {}
        self._libraries = {
            path: one.elf
            for path, one in self._files.items()
            if one.elf is not None and one.elf.kind == _SHARED and _loads(one.elf)
        }
        self._named: dict[str, list[str]] = defaultdict(list)
        for path, tables in self._libraries.items():
            for name in {path.rpartition("/")[2], tables.soname} - {None, ""}:
                self._named[name or ""].append(path)
        for path in sorted(self._links):
            name = path.rpartition("/")[2]
            real = self._in_prefix(os.path.realpath(self._where(path))) if ".so" in name else None
            if real in self._libraries and real not in self._named[name]:
                self._named[name].append(real)
        self._interpreter = [path for path in self._files if _INTERPRETER.fullmatch(path)]
        self._inherited: dict[str, list[str]] = {}
        self._inherit()
        self._loaded = self._closure()

    def check(self) -> Iterator[Finding]:
        """E001 to E007 for every file."""
        for path in sorted(self._files):
            one = self._files[path]
            if one.elf is None:
                yield self._unreadable(one, one.fault or "")
                continue
            try:
                if one.own:
                    yield from self._device_code(one)
                if not _loads(one.elf):
                    yield from self._machine(one, one.elf)
                    continue
                yield from self._versions(one, one.elf)
                yield from self._search_paths(one, one.elf)
                yield from self._needed(one, one.elf)
                if one.own:
                    yield from self._symbols(one, one.elf)
                    yield from self._strings(one)
            except elf.ElfError as error:
                yield self._unreadable(one, str(error))

    def _where(self, path: str) -> str:
        return f"{self._subject.prefix}/{path}"

    def _severity(self, one: Compiled) -> Severity:
        """An error in what was built here and in what importing loads, else a warning."""
        return "error" if one.own or one.path in self._loaded else "warning"

    def _inherit(self) -> None:
        """Pass RPATHs on to what is loaded by their files (ld.so(8)), which RUNPATHs are not.

        The interpreter loads everything.
        """
        for path in self._interpreter:
            tables = self._files[path].elf
            if tables is not None and tables.runpath is None:
                for each in self._libraries:
                    self._inherited.setdefault(each, []).extend(self._own_folders(path, tables))
        todo = [path for path, tables in self._libraries.items() if tables.rpath is not None]
        while todo:
            path = todo.pop()
            tables = self._libraries[path]
            passed = list(self._inherited.get(path, ()))
            if tables.runpath is None:
                passed = [*self._own_folders(path, tables), *passed]
            for needed in tables.needed:
                found = self._found(path, needed)
                if found is None or found == path:
                    continue
                known = self._inherited.setdefault(found, [])
                new = [folder for folder in dict.fromkeys(passed) if folder not in known]
                if new:
                    known += new
                    todo.append(found)

    def _closure(self) -> frozenset[str]:
        """Return the interpreter, its extension modules and what they need, directly or not."""
        todo = [path for path, one in self._files.items() if one.module and self._importable(path)]
        return frozenset(self._with_needed([*todo, *self._interpreter]))

    def _with_needed(self, paths: Iterable[str]) -> set[str]:
        """Return files and the libraries of the prefix that they need, directly or not."""
        todo = list(paths)
        seen = set(todo)
        while todo:
            path = todo.pop()
            tables = self._files[path].elf
            for needed in tables.needed if tables is not None else ():
                new = [one for one in self._resolve(path, needed) if one not in seen]
                todo += new
                seen.update(new)
        return seen

    def _importable(self, path: str) -> bool:
        """Whether a file's name is one of this Python's for extension modules."""
        match = _suffix(path)
        return match is not None and self._fits(match["tag"])

    def _tagged(self, path: str) -> bool:
        """Whether a file's name is this Python's for an extension module and nothing else."""
        match = _suffix(path)
        return match is not None and match[0] != ".so" and self._fits(match["tag"])

    def _fits(self, tag: str | None) -> bool:
        return tag is None or self._minor is None or tag == self._minor.replace(".", "")

    def _resolve(self, path: str, needed: str) -> list[str]:
        """Return the libraries of the prefix that a name may mean.

        It is the one that the loader finds. Else the package loads it itself before, wherever it
        is, unless it is one that the system gives.
        """
        found = self._found(path, needed)
        if found is not None:
            return [found]
        return [] if needed in self._given else self._named.get(needed, [])

    def _found(self, path: str, needed: str) -> str | None:
        """Return the library of the prefix that the loader finds by itself."""
        for place in self._places(path, needed):
            folder, _, name = place.rpartition("/")
            real = self._real_folders.get(folder)
            if real is None:
                real = self._real_folders[folder] = os.path.realpath(folder)
            inside = self._in_prefix(f"{real}/{name}")
            if inside in self._links:
                inside = self._in_prefix(os.path.realpath(f"{real}/{name}"))
            if inside in self._libraries:  # those of another machine are passed over
                return inside
        return None

    def _places(self, path: str, needed: str) -> list[str]:
        """Return the absolute paths at which the loader looks for what a file needs."""
        tables = self._files[path].elf
        assert tables is not None
        if "/" in needed:  # no name, but a path, which no folder is looked through for
            place = self._expand(path, needed)
            return [place] if place.startswith("/") else []
        folders = self._own_folders(path, tables)
        if tables.runpath is None:
            folders += self._inherited.get(path, ())
        return [f"{folder}/{needed}" for folder in folders]

    def _own_folders(self, path: str, tables: Elf) -> list[str]:
        """Return where a file's own RUNPATH leads, or RPATH where it has none (ld.so(8))."""
        entries = tables.runpath if tables.runpath is not None else tables.rpath or ()
        folders = [self._expand(path, entry) for entry in entries]
        return [folder for folder in folders if folder.startswith("/")]

    def _expand(self, path: str, entry: str) -> str:
        origin = self._where(path).rpartition("/")[0]
        return _ORIGIN.sub(lambda _: origin, entry)

    def _in_prefix(self, real: str) -> str | None:
        """Return a real path relative to the prefix; None outside of it."""
        begin = f"{self._real_prefix}/"
        return real[len(begin) :] if real.startswith(begin) else None

    def _inside(self, path: str) -> bool:
        subject = self._subject
        tops = [subject.prefix, *subject.system]
        if subject.interpreters is not None:
            tops.append(subject.interpreters)
        if subject.base is not None:
            tops.append(str(Path(subject.base.path).parent.parent))
        home = interpreter.configuration(Path(subject.prefix)).get("home")
        if home is not None:  # of an interpreter that was copied, by venv's --copies
            tops.append(str(Path(home).parent))
        return any(Path(path).is_relative_to(top) for top in tops)

    def _unreadable(self, one: Compiled, fault: str) -> Finding:
        return Finding(
            "E007",
            "warning" if one.published and not self._tagged(one.path) else "error",
            self._where(one.path),
            "begins as ELF, but cannot be read as such",
            expected="a whole ELF file",
            found=fault,
            mend="see where it is from: no loader takes it",
        )

    def _machine(self, one: Compiled, tables: Elf) -> Iterator[Finding]:
        """E007: what importing loads is for this machine. Code for a GPU is no other machine's."""
        if tables.machine == _CUDA:
            return
        name = _MACHINES.get(tables.machine, f"machine {tables.machine}")
        module = one.module and self._importable(one.path)
        yield Finding(
            "E007",
            "error" if one.own or module else "warning",
            self._where(one.path),
            "is for another machine",
            expected="x86-64, 64 bits",
            found=f"{name}, {tables.bits} bits",
            mend="take a wheel for x86-64" if module else None,
        )

    def _versions(self, one: Compiled, tables: Elf) -> Iterator[Finding]:
        """E001: the versions of system libraries' symbols are not newer than the site's."""
        ceilings = self._subject.ceilings
        for need in sorted(tables.version_needs, key=lambda one: one.version):
            family, number = _version(need.version)
            ceiling = ceilings.versions.get(family)
            if need.weak or ceiling is None:
                continue
            brought = self._found(one.path, need.file)
            if brought is not None:  # the prefix brings that library along
                if self._has_version(brought, need.version):
                    continue
                expected = f"a version that {brought} has"
            elif number > ceiling:
                expected = f"at most {family}_{_dotted(ceiling)} ({ceilings.source})"
            else:
                continue
            with _content(self._where(one.path)) as data:
                symbols = elf.needing(data, need.version)
            yield Finding(
                "E001",
                self._severity(one),
                self._where(one.path),
                f"needs {need.version} of {need.file}"
                + (f", for {_some(symbols)}" if symbols else ""),
                expected=expected,
                found=need.version,
                mend="build it on a system as old as the site's, or take an older wheel",
            )

    def _has_version(self, path: str, version: str) -> bool:
        """Whether the loader takes a library for one that has a version."""
        with _content(self._where(path)) as data:
            versions = elf.defined_versions(data)
        if versions:
            return version in versions
        # of one without versions, symbols are taken if it has a table of those that it needs
        return bool(self._libraries[path].version_needs)

    def _search_paths(self, one: Compiled, tables: Elf) -> Iterator[Finding]:
        """E002: where the loader looks lies beside the file or inside what is allowed."""
        for kind, entries in (("RPATH", tables.rpath), ("RUNPATH", tables.runpath)):
            if entries in (None, ("",)):
                continue  # glibc passes an empty path over; an empty entry is another matter
            for entry in dict.fromkeys(entries or ()):
                wrong = self._wrong_entry(one.path, entry)
                if wrong is not None:
                    yield Finding(
                        "E002",
                        "error" if not one.published else "warning",
                        self._where(one.path),
                        f"its {kind} has {wrong}",
                        expected="$ORIGIN/... inside the prefix",
                        found=f"{entry!r} in {':'.join(entries or ())!r}",
                        mend="link it with -Wl,-rpath,'$ORIGIN/...' alone"
                        if not one.published
                        else None,
                    )

    def _wrong_entry(self, path: str, entry: str) -> str | None:
        if not entry:
            return "an empty entry, which is the current folder"
        if "stubs" in Path(entry).parts:
            return "a folder of CUDA stubs, which are for linking only"
        if _ORIGIN.match(entry):
            inside = self._inside(os.path.normpath(self._expand(path, entry)))
            return None if inside else "an entry that leads out of the prefix"
        if not entry.startswith("/"):
            return "an entry relative to the current folder"
        return None if self._inside(os.path.normpath(entry)) else "a folder of another place"

    def _needed(self, one: Compiled, tables: Elf) -> Iterator[Finding]:
        """E003: every library that is needed is in the prefix or on the system's list."""
        absent = [
            needed
            for needed in tables.needed
            if needed not in self._given
            and not self._resolve(one.path, needed)
            and not self._outside(one.path, needed)
        ]
        if absent:
            yield Finding(
                "E003",
                "warning" if one.published else "error",
                self._where(one.path),
                f"needs {', '.join(absent)}, which the prefix does not have",
                expected="libraries of the prefix, or ones that the site's file lists",
                found="no such file" if len(absent) == 1 else "no such files",
                mend="install what brings them, or add to system-libraries of the site's file"
                " what its nodes have",
            )

    def _outside(self, path: str, needed: str) -> bool:
        """Whether a library is the interpreter's (libpython), or where an allowed folder has it."""
        places = self._places(path, needed)
        base = self._subject.base
        python = base.path if base is not None else f"{self._subject.prefix}/bin/python"
        beside = str(Path(os.path.realpath(python)).parent.parent / "lib")
        allowed = [os.path.normpath(place) for place in places]
        return any(
            Path(place).exists()
            for place in [f"{beside}/{needed}", *filter(self._inside, allowed)]
            if self._in_prefix(os.path.realpath(place)) is None
        )

    def _device_code(self, one: Compiled) -> Iterator[Finding]:
        """E004: device code for the architectures that are asked for, and no other."""
        asked = self._subject.architectures
        if not one.device or not asked:
            return
        ptx = self._subject.ptx
        expected = ", ".join(asked) + (" and their PTX" if ptx else ", no PTX")
        shown = ", ".join(f"{code.architecture} ({code.kind})" for code in one.device)
        cubins = {code.architecture for code in one.device if code.kind == "cubin"}
        texts = {code.architecture for code in one.device if code.kind == "ptx"}
        right = {f"compute_{name.removeprefix('sm_')}" for name in asked if ptx}
        for message, mend in (
            *(
                (f"holds device code for {name}", "build it again with these alone")
                for name in sorted(cubins.difference(asked))
            ),
            *(
                (f"holds PTX for {name}, which was not asked for", "build it again without it")
                for name in sorted(texts - right)
            ),
            *(
                (f"holds no device code for {name}", "build it again with it")
                for name in asked
                if name not in cubins
            ),
        ):
            yield Finding(
                "E004",
                "error",
                self._where(one.path),
                message,
                expected=expected,
                found=shown,
                mend=mend,
            )

    def _symbols(self, one: Compiled, tables: Elf) -> Iterator[Finding]:
        """E005: symbols that only the prefix's libraries can give are exported by them.

        Names without a version may still be the system's, where a file does not tell all that it
        needs. The driver's libraries, which are not read, give names of C's, others any. The
        interpreter gives ``Py…`` and ``_Py…``.
        """
        providers = self._with_needed([one.path]) - {one.path}
        given = frozenset[str]().union(*map(self._exports, providers))
        lacking = {
            (need.file, need.version)
            for need in tables.version_needs
            if not need.weak and self._lacks(one.path, need.file, need.version)
        }
        unread = {
            needed
            for needed in tables.needed
            if needed not in _VERSIONED and not self._resolve(one.path, needed)
        }
        # whoever opens a plug-in gives it further names
        linked = bool(providers) and one.path in self._loaded
        with _content(self._where(one.path)) as data:
            wanted = [symbol for symbol in elf.undefined(data) if not symbol.weak]
        absent = [
            f"{symbol.name}@{symbol.version}"
            for symbol in wanted
            if (symbol.library, symbol.version) in lacking
        ]
        if unread <= _PLAIN:
            absent += [
                symbol.name
                for symbol in wanted
                if symbol.version is None
                and symbol.name not in given
                and not symbol.name.lstrip("_").startswith("Py")
                and (symbol.name.startswith("_Z") or (linked and not unread))
                and symbol.name not in self._system
            ]
        if absent:
            yield Finding(
                "E005",
                "error",
                self._where(one.path),
                f"needs {_some(sorted(absent))}, which no library of the prefix exports",
                expected="symbols of "
                + (", ".join(sorted(providers)) or "libraries that it needs"),
                found=f"{len(absent)} undefined symbol{'' if len(absent) == 1 else 's'}",
                mend="build it again against the packages that are installed",
            )

    @functools.cached_property
    def _system(self) -> frozenset[str]:
        """What the system's libraries on this machine export."""
        names: set[str] = set()
        for folder, library in itertools.product(_FOLDERS, sorted(STANDARD)):
            with contextlib.suppress(OSError, elf.ElfError):
                names |= elf.exported(Path(folder, library).read_bytes())
        return frozenset(names)

    def _lacks(self, path: str, library: str, version: str) -> bool:
        """Whether a library is the prefix's, and has no such version."""
        if _version(version)[0] in self._subject.ceilings.versions:
            return False  # E001's matter
        found = self._resolve(path, library)
        return bool(found) and not any(self._has_version(one, version) for one in found)

    def _exports(self, path: str) -> frozenset[str]:
        if path not in self._exported:
            with _content(self._where(path)) as data:
                self._exported[path] = elf.exported(data)
        return self._exported[path]

    def _strings(self, one: Compiled) -> Iterator[Finding]:
        """E006: no build folder and no builder's home in what was built here."""
        known = [
            re.escape(os.fsencode(path).lstrip(b"/")) + _REST + rb"*"
            for path in self._subject.builders
        ]
        right = re.escape(os.fsencode(self._subject.prefix).lstrip(b"/"))
        pattern = rb"%b(?!%b(?![\w.+-]))(?:%b)(?![\w+-])"
        pattern %= (_BEGIN, right, b"|".join([*known, *_BUILDER]))
        with _content(self._where(one.path)) as data:
            found = {os.fsdecode(match[0]) for match in re.finditer(pattern, data)}
        leaked = sorted(path for path in found if not self._inside(path))
        if leaked:
            yield Finding(
                "E006",
                "error",
                self._where(one.path),
                f"names {_some(leaked)}",
                expected="no folder of its build, and no home",
                found=f"{len(leaked)} such path{'' if len(leaked) == 1 else 's'}",
                mend="build it with -ffile-prefix-map, and link it with -s",
            )


def _loads(tables: Elf) -> bool:
    """Whether a file is for the machine of all sites."""
    return (tables.machine, tables.bits) == (_X86_64, 64)


def _suffix(path: str) -> re.Match[str] | None:
    """Match what stands behind a module's name in that of its file."""
    name = path.rpartition("/")[2]
    return _SUFFIX.fullmatch(name, name.index(".")) if "." in name else None


def _version(text: str) -> tuple[str, tuple[int, ...]]:
    if text in _SPECIAL:
        return _SPECIAL[text]
    match = _VERSION.fullmatch(text)
    if match is None:
        return text, ()
    return match["family"], tuple(map(int, match["number"].split(".")))


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


def _some(names: Collection[str]) -> str:
    shown = list(names)[:4]
    more = len(names) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")


@contextlib.contextmanager
def _content(path: str) -> Iterator[Buffer]:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        with mmap.mmap(descriptor, 0, prot=mmap.PROT_READ) as data:
            yield data
    finally:
        os.close(descriptor)
