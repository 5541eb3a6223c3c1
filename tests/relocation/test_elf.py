"""What our reader finds in ELF files is what gcc was told, readelf says, and the loader does."""

from __future__ import annotations

import ctypes
import mmap
import platform
import re
import struct
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envbuild.relocation import elf
from envbuild.relocation.elf import ElfError, Symbol, VersionNeed
from tests.programs import require
from tests.relocation.objects import (
    GNU_HASH,
    STRTAB,
    SYMTAB,
    VERSYM,
    compiled,
    dynamic_value,
    handmade,
    with_dynamic,
    without_sections,
)

VERSIONS = "V1 { global: one; first; local: *; }; V2 { global: two; } V1;"
GIVER = """
int one(void) { return 1; }
int two(void) { return 2; }
int first = 1;
static int silent(void) { return 3; }
__attribute__((visibility("hidden"))) int hidden(void) { return silent(); }
__attribute__((weak)) int faint(void) { return 4; }
"""
TAKER = """
extern int one(void), two(void), free_one(void), absent(void) __attribute__((weak));
int own(void) { return one() + two() + free_one() + (absent ? absent() : 0); }
"""


class Libraries:
    """A library with versions, and one that needs it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        script = folder / "versions"
        script.write_text(VERSIONS)
        soname = "-Wl,-soname,libgiver.so.1"
        versions = f"-Wl,--version-script={script}"
        self.giver = compiled(folder / "libgiver.so", GIVER, "-shared", soname, versions)

    def taker(self, *options: str, source: str = TAKER) -> bytes:
        linked = ("-shared", f"-L{self.folder}", *options, "-lgiver")
        return compiled(self.folder / "taker.so", source, *linked).read_bytes()


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Libraries:
    return Libraries(tmp_path_factory.mktemp("libraries"))


def test_what_a_library_needs_of_others(libraries: Libraries) -> None:
    data = libraries.taker(
        "-Wl,-soname,libtaker.so.2", "-Wl,--no-as-needed", "-lgiver", "-lm", "-nolibc"
    )
    found = elf.read(data)
    assert found == elf.Elf(
        bits=64,
        little=True,
        machine=found.machine,
        kind=3,
        soname="libtaker.so.2",
        needed=("libgiver.so.1", "libm.so.6"),
        rpath=None,
        runpath=None,
        interpreter=None,
        version_needs=found.version_needs,
    )
    needs = {(need.file, need.version, need.weak) for need in found.version_needs}
    assert {("libgiver.so.1", "V1", False), ("libgiver.so.1", "V2", False)} <= needs
    assert len({need.index for need in found.version_needs}) == len(found.version_needs)


@pytest.mark.parametrize("style", ["sysv", "gnu", "both"])
@pytest.mark.parametrize("sections", [True, False])
def test_symbols_and_their_versions(libraries: Libraries, style: str, sections: bool) -> None:
    data = libraries.taker(f"-Wl,--hash-style={style}")
    data = data if sections else without_sections(data)
    assert (elf.section(data, ".dynamic") is None) != sections
    found = {symbol.name: symbol for symbol in elf.undefined(data)}
    assert found["one"] == Symbol("one", "V1", "libgiver.so.1", False)
    assert found["two"] == Symbol("two", "V2", "libgiver.so.1", False)
    assert found["free_one"] == Symbol("free_one", None, None, False)
    assert found["absent"] == Symbol("absent", None, None, True)
    assert elf.needing(data, "V2") == ("two",)
    assert elf.needing(data, "V3") == ()
    assert elf.exported(data) == {"own"}
    for name in ("own", *found, "another"):
        assert elf.defines(data, name) == (name == "own")


@pytest.mark.parametrize("style", ["sysv", "gnu", "both"])
def test_a_library_that_exports_nothing_still_tells_what_it_needs(
    libraries: Libraries, style: str
) -> None:
    data = libraries.taker(f"-Wl,--hash-style={style}", "-fvisibility=hidden")
    for form in (data, without_sections(data)):
        assert elf.exported(form) == frozenset()
        assert {"one", "two", "free_one", "absent"} <= {one.name for one in elf.undefined(form)}
        assert elf.needing(form, "V1") == ("one",)
        assert not elf.defines(form, "own")


@pytest.mark.parametrize("style", ["sysv", "gnu"])
def test_many_symbols_are_found_by_hash_as_by_scanning(tmp_path: Path, style: str) -> None:
    names = {f"symbol_{number**3}" for number in range(300)}
    source = "\n".join(f"int {name}(void) {{ return 0; }}" for name in sorted(names))
    path = compiled(tmp_path / "a.so", source, "-shared", f"-Wl,--hash-style={style}")
    data = path.read_bytes()
    assert elf.exported(data) == names
    assert all(elf.defines(data, name) for name in names)
    assert not any(elf.defines(data, f"{name}0") for name in names)
    library = ctypes.CDLL(str(path))
    assert hasattr(library, "symbol_27")


def test_without_hash_tables_symbols_are_scanned(libraries: Libraries) -> None:
    data = libraries.taker("-Wl,--hash-style=gnu")
    unhashed = with_dynamic(data, {GNU_HASH: (0x6000000F, 0)})
    assert elf.undefined(unhashed) == elf.undefined(data)
    assert elf.defines(unhashed, "own")
    assert not elf.defines(unhashed, "one")


def test_a_giver_exports_global_weak_and_versioned_symbols(libraries: Libraries) -> None:
    data = libraries.giver.read_bytes()
    assert elf.exported(data) >= {"one", "two", "first"}
    assert elf.exported(data).isdisjoint({"silent", "hidden", "faint"})
    assert elf.defined_versions(data) == ("V1", "V2")
    assert elf.defined_versions(libraries.taker()) == ()


def test_weak_symbols_are_exported_and_hidden_ones_are_not(tmp_path: Path) -> None:
    data = compiled(tmp_path / "a.so", GIVER, "-shared").read_bytes()
    assert elf.exported(data) >= {"one", "two", "first", "faint"}
    assert elf.exported(data).isdisjoint({"silent", "hidden"})
    assert elf.defines(data, "faint")
    assert not elf.defines(data, "hidden")


def test_two_versions_of_one_symbol(tmp_path: Path) -> None:
    script = tmp_path / "versions"
    script.write_text("OLD { local: *; }; NEW { global: both; } OLD;")
    source = """
    __asm__(".symver old, both@OLD");
    __asm__(".symver new, both@@NEW");
    int old(void) { return 1; }
    int new(void) { return 2; }
    """
    options = ("-shared", f"-Wl,--version-script={script}")
    data = compiled(tmp_path / "a.so", source, *options).read_bytes()
    assert elf.defines(data, "both")
    assert "both" in elf.exported(data)
    assert elf.defined_versions(data) == ("OLD", "NEW")


def test_a_weak_version_need(libraries: Libraries) -> None:
    data = libraries.taker()
    first = elf.read(data).version_needs[0]
    (start,) = (match.start() for match in re.finditer(need_of(first), data, re.DOTALL))
    weak = data[: start + 4] + b"\2" + data[start + 5 :]
    assert elf.read(weak).version_needs[0] == VersionNeed(
        first.file, first.version, first.index, True
    )


def need_of(need: VersionNeed) -> bytes:
    """Return a pattern for a need's table entry: the version's hash, flags, its number."""
    value = 0
    for byte in need.version.encode():
        value = (value << 4) + byte
        value = (value ^ (value >> 24 & 0xF0)) & 0x0FFFFFFF
    return re.escape(struct.pack("<L2H", value, 0, need.index))


@pytest.mark.parametrize(
    ("path", "entries"),
    [
        ("/opt/lib", ("/opt/lib",)),
        ("$ORIGIN/../lib:/opt/lib", ("$ORIGIN/../lib", "/opt/lib")),
        (":/opt/lib::", ("", "/opt/lib", "", "")),
        ("/opt/\u00e9", ("/opt/\u00e9",)),
    ],
)
def test_search_paths(tmp_path: Path, path: str, entries: tuple[str, ...]) -> None:
    source = "int x;"
    old = ("-shared", "-Wl,--disable-new-dtags", f"-Wl,-rpath,{path}")
    found = elf.read(compiled(tmp_path / "old.so", source, *old).read_bytes())
    assert (found.rpath, found.runpath) == (entries, None)
    new = ("-shared", "-Wl,--enable-new-dtags", f"-Wl,-rpath,{path}")
    found = elf.read(compiled(tmp_path / "new.so", source, *new).read_bytes())
    assert (found.rpath, found.runpath) == (None, entries)


def test_programs(libraries: Libraries, tmp_path: Path) -> None:
    source = "extern int first; int main(void) { return first; }"
    fixed = ("-no-pie", "-fno-pie", f"-L{libraries.folder}", "-lgiver")
    data = compiled(tmp_path / "fixed", source, *fixed).read_bytes()
    found = elf.read(data)
    assert found.kind == 2
    assert found.interpreter is not None
    assert Path(found.interpreter).is_file()
    assert "libgiver.so.1" in found.needed
    # the program has its own copy of the variable, at the version that it was linked with
    assert "first" in elf.needing(data, "V1")
    assert "first" not in {symbol.name for symbol in elf.undefined(data)}
    movable = compiled(tmp_path / "movable", "int main(void) { return 0; }", "-pie").read_bytes()
    assert elf.read(movable).kind == 3


def test_files_that_need_nothing(tmp_path: Path) -> None:
    static = ("-static", "-nostdlib", "-fno-pic", "-no-pie")
    program = compiled(tmp_path / "static", "void _start(void) { for (;;); }", *static)
    part = compiled(tmp_path / "a.o", TAKER, "-c")
    for path, kind in ((program, 2), (part, 1)):
        data = path.read_bytes()
        found = elf.read(data)
        assert (found.kind, found.needed, found.interpreter) == (kind, (), None)
        assert (found.rpath, found.runpath, found.version_needs) == (None, None, ())
        assert elf.undefined(data) == ()
        assert elf.defined_versions(data) == elf.needing(data, "V1") == ()
        assert elf.exported(data) == frozenset()
        assert not elf.defines(data, "own")


def test_sections(tmp_path: Path) -> None:
    source = '__attribute__((section("mine"))) char text[] = "content"; char room[4096];'
    data = compiled(tmp_path / "a.o", source, "-c").read_bytes()
    content = elf.section(data, "mine")
    assert content is not None
    assert bytes(content) == b"content\0"
    assert elf.section(data, "min") is None
    assert elf.section(data, ".bss") is None
    assert elf.header(data).has_sections
    stripped = without_sections(data)
    assert elf.section(stripped, "mine") is None
    assert not elf.header(stripped).has_sections


def test_more_sections_than_fit_16_bits(tmp_path: Path) -> None:
    source = "".join(
        f'__attribute__((section("s{number}"))) int v{number} = {number};\n'
        for number in range(0xFF00)
    )
    data = compiled(tmp_path / "a.o", source, "-c").read_bytes()
    content = elf.section(data, f"s{0xFEFF}")
    assert content is not None
    assert int.from_bytes(content, "little") == 0xFEFF


@pytest.mark.parametrize("bits", [32, 64])
@pytest.mark.parametrize("little", [True, False])
def test_every_class_and_byte_order(bits: int, little: bool) -> None:
    data = handmade(bits=bits, little=little, machine=21)
    found = elf.read(data)
    assert (found.bits, found.little, found.machine, found.kind) == (bits, little, 21, 3)
    assert (found.soname, found.needed) == ("own.so", ("liba.so", "libb.so"))
    assert elf.exported(data) == {"given"}
    assert elf.defines(data, "given")
    assert not elf.defines(data, "give")
    assert not elf.defines(data, "given1")


def test_a_32_bit_library(tmp_path: Path) -> None:
    if platform.machine() != "x86_64":
        return  # other compilers are for one class only
    alone = ("-m32", "-shared", "-nostdlib", "-Wl,-soname,libgiver.so.1")
    script = tmp_path / "versions"
    script.write_text(VERSIONS)
    giver = (*alone, f"-Wl,--version-script={script}")
    data = compiled(tmp_path / "libgiver.so", GIVER, *giver).read_bytes()
    assert elf.exported(data) >= {"one", "two", "first"}
    assert elf.defined_versions(data) == ("V1", "V2")
    taker = ("-m32", "-shared", "-nostdlib", f"-L{tmp_path}", "-lgiver")
    data = compiled(tmp_path / "taker.so", TAKER, *taker).read_bytes()
    found = elf.read(data)
    assert (found.bits, found.machine, found.needed) == (32, 3, ("libgiver.so.1",))
    assert {need.version for need in found.version_needs} == {"V1", "V2"}
    assert elf.needing(data, "V1") == ("one",)
    assert Symbol("absent", None, None, True) in elf.undefined(data)
    assert elf.defines(data, "own")
    assert not elf.defines(data, "one")
    assert elf.section(data, ".dynamic") is not None


def mapped_libraries() -> list[Path]:
    """Return the libraries that are loaded into this very process."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    paths = {line.split(maxsplit=5)[5] for line in lines if line.count("/") > 1}
    return [Path(path) for path in sorted(paths) if re.search(r"\.so(\.|$)", path)]


def test_readelf_agrees_on_the_libraries_of_this_process() -> None:
    readelf = require("readelf", "binutils")
    paths = mapped_libraries()
    assert len(paths) > 3
    for path in paths:
        listed = subprocess.run(
            [readelf, "--wide", "--dynamic", "--version-info", path],
            env={"LC_ALL": "C"},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        found = elf.read(path.read_bytes())
        assert list(found.needed) == re.findall(r"\(NEEDED\) +Shared library: \[(.*)\]", listed)
        assert [found.soname] == re.findall(r"\(SONAME\) +Library soname: \[(.*)\]", listed) or (
            found.soname is None
        )
        needs = re.findall(r"Name: (\S+)  Flags: (.*?) +Version: (\d+)", listed)
        assert [(need.version, need.index) for need in found.version_needs] == [
            (version, int(index)) for version, _, index in needs
        ]


def test_the_c_library() -> None:
    (path,) = (path for path in mapped_libraries() if path.name == "libc.so.6")
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        assert "GLIBC_2.17" in elf.defined_versions(data)
        assert elf.defines(data, "printf")
        assert not elf.defines(data, "printf_")
        assert {"printf", "malloc", "environ"} <= elf.exported(data)


def test_bytes_maps_and_views_alike(libraries: Libraries) -> None:
    path = libraries.giver
    data = path.read_bytes()
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        for form in (mapped, memoryview(data)):
            assert elf.is_elf(form)
            assert elf.read(form) == elf.read(data)
            assert elf.exported(form) == elf.exported(data)
            assert elf.undefined(form) == elf.undefined(data)
            assert elf.defined_versions(form) == elf.defined_versions(data)
        content = elf.section(mapped, ".dynstr")
        assert content is not None
        assert b"\0one\0" in bytes(content)
        content.release()


@pytest.mark.parametrize("data", [b"", b"\x7fEL", b"#!/bin/sh\n", b"\0" * 100])
def test_other_files_are_no_elf(data: bytes) -> None:
    assert not elf.is_elf(data)
    with pytest.raises(ElfError, match=r"^not an ELF file$"):
        elf.read(data)


def use_all(data: bytes) -> None:
    """Use all of the reader; ElfError is the one way in which it may fail."""
    for use in (
        elf.header,
        elf.read,
        elf.undefined,
        elf.exported,
        elf.defined_versions,
        lambda data: elf.needing(data, "V1"),
        lambda data: elf.needing(data, "GLIBC_2.2.5"),
        lambda data: elf.defines(data, "own"),
        lambda data: elf.defines(data, "one"),
        lambda data: elf.section(data, ".dynamic"),
        lambda data: elf.section(data, "no such section"),
    ):
        try:
            use(data)
        except ElfError as error:
            assert str(error)


@pytest.fixture(scope="module")
def samples(libraries: Libraries) -> list[bytes]:
    return [
        libraries.giver.read_bytes(),
        libraries.taker("-Wl,--hash-style=sysv", "-Wl,-rpath,/opt/lib"),
        libraries.taker("-Wl,--hash-style=gnu"),
        libraries.taker("-fvisibility=hidden"),
        handmade(bits=32, little=False, machine=8),
    ]


@settings(deadline=5000, max_examples=300)
@given(choice=st.integers(0, 4), share=st.floats(0, 1))
def test_a_truncated_file_is_refused_or_read(
    samples: list[bytes], choice: int, share: float
) -> None:
    data = samples[choice]
    use_all(data[: int(share * len(data))])


CHANGES = st.tuples(
    st.integers(0, 1 << 16),
    st.one_of(
        st.binary(min_size=1, max_size=8),
        st.integers(0, 63).map(lambda bit: (1 << bit).to_bytes(8, "little")),
        st.sampled_from([b"\xff" * 4, b"\xff" * 8, b"\0" * 4, b"\xff" * 7 + b"\x7f"]),
    ),
)


@settings(deadline=5000, max_examples=1000)
@given(choice=st.integers(0, 4), changes=st.lists(CHANGES, min_size=1, max_size=6))
def test_a_damaged_file_is_refused_or_read(
    samples: list[bytes], choice: int, changes: list[tuple[int, bytes]]
) -> None:
    data = bytearray(samples[choice])
    # the tables lie in the first 2 KiB and in .dynamic
    section = elf.section(samples[choice], ".dynamic")
    places = [*range(2048)]
    if section is not None:
        start = samples[choice].index(bytes(section))
        places += range(start, start + len(section))
    for place, value in changes:
        at = places[place % len(places)]
        data[at : at + len(value)] = value
    use_all(bytes(data))


def refusal(data: bytes) -> str:
    with pytest.raises(ElfError) as caught:
        elf.read(data)
    return str(caught.value)


def test_messages_name_the_table(libraries: Libraries) -> None:
    data = libraries.taker()
    assert refusal(data[:5]) == "ELF header: unknown class or byte order"
    assert refusal(data[:40]) == "ELF header: outside of the file"
    assert refusal(data[:100]) == "program headers: outside of the file, or of another size"
    assert refusal(data[:4] + b"\3" + data[5:]) == "ELF header: unknown class or byte order"
    assert refusal(data[:1500]) == "dynamic section: outside of the file"
    lost = with_dynamic(data, {STRTAB: (STRTAB, 1 << 40)})
    assert refusal(lost) == "string table: outside of the file's segments"
    gone = with_dynamic(data, {STRTAB: (0x6000000F, 0)})
    assert refusal(gone) == "string table: DT_NEEDED is not in it"
    lost = with_dynamic(data, {SYMTAB: (SYMTAB, 1 << 63)})
    with pytest.raises(ElfError, match=r"^symbol table: outside of the file's segments$"):
        elf.undefined(lost)
    lost = with_dynamic(data, {VERSYM: (VERSYM, 1 << 63)})
    with pytest.raises(ElfError, match=r"^symbol versions: outside of the file's segments$"):
        elf.undefined(lost)


def test_a_chain_of_hashes_that_turns_back_on_itself(libraries: Libraries) -> None:
    data = libraries.taker("-Wl,--hash-style=sysv")
    at = dynamic_value(data, 4)
    buckets, symbols = struct.unpack_from("<2L", data, at)
    start = at + 8
    # every bucket leads to the first symbol, and that to itself
    table = struct.pack(f"<{buckets + symbols}L", *[1] * (buckets + symbols))
    turned = data[:start] + table + data[start + len(table) :]
    with pytest.raises(ElfError, match=r"^hash table: a chain without end$"):
        elf.defines(turned, "another")


def test_names_that_share_their_bytes_cannot_fill_the_memory() -> None:
    # 20,000 names of up to 20,000 bytes in a table of 20,000: 200 MB
    count = 20_000
    base = 64 + 2 * 56
    strings_at = base + 16 * (count + 3)
    strings = b"n" * count + b"\0"
    size = strings_at + len(strings)
    entries = [*((1, index) for index in range(count)), (5, strings_at), (10, len(strings)), (0, 0)]
    dynamic = b"".join(struct.pack("<2Q", *entry) for entry in entries)
    header = b"\x7fELF\2\1\1" + bytes(9)
    header += struct.pack("<2HL3QL6H", 3, 62, 1, 0, 64, 0, 0, 64, 56, 2, 0, 0, 0)
    segments = struct.pack("<2L6Q", 1, 4, 0, 0, 0, size, size, 4096)
    segments += struct.pack("<2L6Q", 2, 4, base, base, 0, len(dynamic), len(dynamic), 8)
    assert refusal(header + segments + dynamic + strings) == (
        "string table: more text than can be in it"
    )
