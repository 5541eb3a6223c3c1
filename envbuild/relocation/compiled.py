"""The E rules: whether compiled code can be loaded at this site, and what it binds."""

from __future__ import annotations

import mmap
import os
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from envbuild.findings import Finding
from envbuild.relocation import elf
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

_X86_64 = 62  # EM_X86_64
_SHARED = 3  # ET_DYN
_MACHINES = {3: "x86", 20: "PowerPC", 21: "PowerPC64", 40: "Arm", 62: "x86-64", 183: "AArch64"}
_MACHINES |= {190: "CUDA", 224: "AMD GPU", 243: "RISC-V", 258: "LoongArch"}

_VERSION = re.compile(r"(?P<family>[A-Z]+)_(?P<number>\d+(?:\.\d+)*)")
# glibc's loader must be this new to read such a library, which it says by a version of its own
_SPECIAL = {"GLIBC_ABI_DT_RELR": ("GLIBC", (2, 36)), "GLIBC_ABI_GNU_TLS": ("GLIBC", (2, 42))}
_ORIGIN = re.compile(r"\$(?:ORIGIN|\{ORIGIN\})(?=/|$)")
_SUFFIX = re.compile(r"\.(?:cpython-(?P<tag>\d+)t?-x86_64-linux-gnu|(?P<abi3>abi3)|)\.?so")
# what stands before a path of a builder's own, in binaries that name their sources
_BUILDER = re.compile(rb"/(?:home/[\w.-]+|root|tmp|var/tmp)/[\w./+-]*")

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
        self._paths = paths if isinstance(paths, set) else set(paths)
        self._minor = minor
        self._named: dict[str, list[str]] = defaultdict(list)
        for path, one in self._files.items():
            if one.elf is not None and one.elf.kind == _SHARED:
                self._named[path.rpartition("/")[2]].append(path)
                if one.elf.soname:
                    self._named[one.elf.soname].append(path)
        for path in self._paths - self._files.keys():
            name = path.rpartition("/")[2]
            if ".so" in name:
                self._named[name].append(path)  # a link to a library
        self._loaded = self._closure()

    def check(self) -> Iterator[Finding]:
        """E001 to E007 for every file."""
        for path in sorted(self._files):
            one = self._files[path]
            if one.elf is None:
                yield self._unreadable(one, one.fault or "")
                continue
            yield from self._machine(one, one.elf)
            if (one.elf.machine, one.elf.bits) != (_X86_64, 64):
                continue
            try:
                yield from self._versions(one, one.elf)
                yield from self._search_paths(one, one.elf)
                yield from self._needed(one, one.elf)
                if one.own:
                    yield from self._device_code(one)
                    yield from self._symbols(one, one.elf)
                    yield from self._strings(one)
            except elf.ElfError as error:
                yield self._unreadable(one, str(error))

    def _where(self, path: str) -> str:
        return f"{self._subject.prefix}/{path}"

    def _severity(self, one: Compiled) -> Severity:
        """An error in what was built here and in what importing loads, else a warning."""
        return "error" if one.own or one.path in self._loaded else "warning"

    def _closure(self) -> frozenset[str]:
        """Return extension modules of this Python, and what they need, directly or not."""
        todo = [path for path, one in self._files.items() if one.module and self._importable(path)]
        seen: set[str] = set()
        while todo:
            path = todo.pop()
            if path in seen:
                continue
            seen.add(path)
            tables = self._files[path].elf
            for needed in tables.needed if tables is not None else ():
                found = self._resolve(path, needed)
                todo += [one for one in found if one in self._files]
        return frozenset(seen)

    def _importable(self, path: str) -> bool:
        """Whether a file's name is one of this Python's for extension modules."""
        name = path.rpartition("/")[2]
        match = _SUFFIX.fullmatch(name[name.index(".") :] if "." in name else "")
        if match is None:
            return False
        return (
            match["tag"] is None
            or self._minor is None
            or match["tag"] == self._minor.replace(".", "")
        )

    def _resolve(self, path: str, needed: str) -> list[str]:
        """Return the files of the prefix that a library's name may mean: by RPATH, else by name."""
        tables = self._files[path].elf
        assert tables is not None
        for entry in _entries(tables):
            folder = self._expand(path, entry)
            inside = os.path.relpath(f"{folder}/{needed}", self._subject.prefix)
            if inside in self._paths:
                real = os.path.relpath(
                    os.path.realpath(self._where(inside)), os.path.realpath(self._subject.prefix)
                )
                return [real if real in self._files else inside]
        return self._named.get(needed, [])

    def _expand(self, path: str, entry: str) -> str:
        origin = self._where(path).rpartition("/")[0]
        return os.path.normpath(_ORIGIN.sub(lambda _: origin, entry))

    def _inside(self, path: str) -> bool:
        subject = self._subject
        tops = [subject.prefix, *subject.system]
        if subject.interpreters is not None:
            tops.append(subject.interpreters)
        if subject.base is not None:
            tops.append(str(Path(subject.base.path).parent.parent))
        return any(Path(path).is_relative_to(top) for top in tops)

    def _unreadable(self, one: Compiled, fault: str) -> Finding:
        return Finding(
            "E007",
            "warning" if one.published else "error",
            self._where(one.path),
            "begins as ELF, but cannot be read as such",
            expected="a whole ELF file",
            found=fault,
            mend="see where it is from: no loader takes it",
        )

    def _machine(self, one: Compiled, tables: Elf) -> Iterator[Finding]:
        if (tables.machine, tables.bits) == (_X86_64, 64):
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
            if need.weak or ceiling is None or number <= ceiling:
                continue
            if need.file and self._resolve(one.path, need.file):
                continue  # the prefix brings that library along
            with _content(self._where(one.path)) as data:
                symbols = elf.needing(data, need.version)
            yield Finding(
                "E001",
                self._severity(one),
                self._where(one.path),
                f"needs {need.version} of {need.file}"
                + (f", for {_some(symbols)}" if symbols else ""),
                expected=f"at most {family}_{_dotted(ceiling)} ({ceilings.source})",
                found=need.version,
                mend="build it on a system as old as the site's, or take an older wheel",
            )

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
            inside = self._inside(self._expand(path, entry))
            return None if inside else "an entry that leads out of the prefix"
        if not entry.startswith("/"):
            return "an entry relative to the current folder"
        return None if self._inside(os.path.normpath(entry)) else "a folder of another place"

    def _needed(self, one: Compiled, tables: Elf) -> Iterator[Finding]:
        """E003: every library that is needed is in the prefix or on the system's list."""
        given = STANDARD | DRIVER | set(self._subject.libraries)
        absent = [
            needed
            for needed in tables.needed
            if needed not in given
            and not self._resolve(one.path, needed)
            and not self._beside_interpreter(one, tables, needed)
        ]
        if absent:
            yield Finding(
                "E003",
                "warning" if one.published else "error",
                self._where(one.path),
                "needs libraries that are not in the prefix",
                expected="libraries of the prefix, or ones that the site's file lists",
                found=", ".join(absent),
                mend="add to system-libraries of the site's file what its nodes have",
            )

    def _beside_interpreter(self, one: Compiled, tables: Elf, needed: str) -> bool:
        """Whether a library is the interpreter's (libpython), or where an allowed entry leads."""
        folders = [self._expand(one.path, entry) for entry in _entries(tables)]
        base = self._subject.base
        if base is not None:
            folders.append(str(Path(base.path).parent.parent / "lib"))
        return any(self._inside(folder) and Path(folder, needed).exists() for folder in folders)

    def _device_code(self, one: Compiled) -> Iterator[Finding]:
        """E004: device code for the architectures that are asked for, and no other."""
        asked = self._subject.architectures
        if not one.device or not asked:
            return
        shown = ", ".join(f"{code.architecture} ({code.kind})" for code in one.device)
        for code in one.device:
            if code.kind == "cubin" and code.architecture not in asked:
                message = f"holds device code for {code.architecture}"
            elif code.kind == "ptx" and not self._subject.ptx:
                message = f"holds PTX for {code.architecture}, which was not asked for"
            else:
                continue
            yield Finding(
                "E004",
                "error",
                self._where(one.path),
                message,
                expected=", ".join(asked) + (" and PTX" if self._subject.ptx else ", no PTX"),
                found=shown,
                mend="build it again with these architectures alone",
            )
        there = {code.architecture for code in one.device if code.kind == "cubin"}
        for architecture in asked:
            if architecture not in there:
                yield Finding(
                    "E004",
                    "error",
                    self._where(one.path),
                    f"holds no device code for {architecture}",
                    expected=", ".join(asked),
                    found=shown,
                    mend="build it again with these architectures",
                )

    def _symbols(self, one: Compiled, tables: Elf) -> Iterator[Finding]:
        """E005: symbols that only the prefix's libraries can give are exported by them.

        What a system library gives has a version, or comes from a library that is not read here,
        the driver's, whose names are C's; the interpreter gives ``Py…`` and ``_Py…``.
        """
        providers = self._providers(one.path)
        if not providers:
            return
        unread = [
            needed
            for needed in tables.needed
            if needed not in _VERSIONED and not self._resolve(one.path, needed)
        ]
        given: set[str] = set()
        for path in providers:
            with _content(self._where(path)) as data:
                given |= elf.exported(data)
        with _content(self._where(one.path)) as data:
            wanted = elf.undefined(data)
        absent = sorted(
            symbol.name
            for symbol in wanted
            if not symbol.weak
            and symbol.version is None
            and symbol.name not in given
            and not symbol.name.lstrip("_").startswith("Py")
            and (symbol.name.startswith("_Z") or not unread)
        )
        if absent:
            yield Finding(
                "E005",
                "error",
                self._where(one.path),
                f"needs {_some(absent)}, which no library of the prefix exports",
                expected="symbols of " + ", ".join(sorted(providers)),
                found=f"{len(absent)} undefined symbol{'' if len(absent) == 1 else 's'}",
                mend="build it again against the packages that are installed",
            )

    def _providers(self, path: str) -> set[str]:
        """Return the libraries of the prefix that a file needs, directly or not."""
        todo, seen = [path], {path}
        while todo:
            at = todo.pop()
            tables = self._files[at].elf
            for needed in tables.needed if tables is not None else ():
                new = [one for one in self._resolve(at, needed) if one in self._files]
                todo += [one for one in new if one not in seen]
                seen.update(new)
        return seen - {path}

    def _strings(self, one: Compiled) -> Iterator[Finding]:
        """E006: no build folder and no builder's home in what was built here."""
        known = [re.escape(os.fsencode(path)) for path in self._subject.builders]
        pattern = re.compile(b"|".join([*known, _BUILDER.pattern]))
        with _content(self._where(one.path)) as data:
            found = {os.fsdecode(match[0]) for match in pattern.finditer(data)}
        prefix = self._subject.prefix
        leaked = sorted(path for path in found if not Path(path).is_relative_to(prefix))
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


def _entries(tables: Elf) -> tuple[str, ...]:
    """Return where the loader looks: RUNPATH, or RPATH where there is none (ld.so(8))."""
    return tables.runpath if tables.runpath is not None else tables.rpath or ()


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


@contextmanager
def _content(path: str) -> Iterator[Buffer]:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        with mmap.mmap(descriptor, 0, prot=mmap.PROT_READ) as data:
            yield data
    finally:
        os.close(descriptor)
