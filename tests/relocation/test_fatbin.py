"""Device code is found for exactly the architectures that nvcc was told, however it is packed."""

from __future__ import annotations

import mmap
import struct
import subprocess
import sysconfig
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envbuild.relocation.elf import ElfError
from envbuild.relocation.fatbin import DeviceCode, device_code
from tests.programs import require
from tests.relocation.objects import compiled, without_sections

SOURCE = """
__global__ void add(float *a, const float *b, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) a[i] += b[i];
}
extern "C" void launch(float *a, const float *b, int n) { add<<<n / 64, 64>>>(a, b, n); }
"""
SM_80 = ("-gencode", "arch=compute_80,code=sm_80")
SM_90A = ("-gencode", "arch=compute_90a,code=sm_90a")
PTX_90 = ("-gencode", "arch=compute_90,code=compute_90")
PTX_90A = ("-gencode", "arch=compute_90a,code=compute_90a")
BOTH_100F = ("-gencode", "arch=compute_100f,code=[sm_100f,compute_100f]")


class Nvcc:
    """The compiler of the Python packages, which needs no GPU."""

    def __init__(self, folder: Path) -> None:
        require("g++", "g++")
        self._root = Path(sysconfig.get_path("purelib"), "nvidia", "cu13")
        self._folder = folder

    def __call__(self, name: str, *options: str) -> bytes:
        source = self._folder / "add.cu"
        source.write_text(SOURCE)
        # nvcc looks for libraries in lib64, which the packages do not have
        libraries = ("-L", str(self._root / "lib"), "-Xcompiler", "-fPIC")
        output = self._folder / name
        done = subprocess.run(
            [self._root / "bin" / "nvcc", "-o", output, source, *libraries, *options],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return output.read_bytes()


@pytest.fixture(scope="module")
def nvcc(tmp_path_factory: pytest.TempPathFactory) -> Nvcc:
    return Nvcc(tmp_path_factory.mktemp("nvcc"))


@pytest.fixture(scope="module")
def library(nvcc: Nvcc) -> bytes:
    return nvcc("a.so", "-shared", *SM_80, *PTX_90)


def names(data: bytes) -> list[str]:
    return [code.architecture for code in device_code(data)]


def test_a_library(library: bytes) -> None:
    assert device_code(library) == (DeviceCode("cubin", "sm_80"), DeviceCode("ptx", "compute_90"))


def test_a_library_without_section_headers(library: bytes) -> None:
    # a program that reads fat binaries holds the magic, too
    magic = struct.pack("<L", 0xBA55ED50)
    for more in (b"", magic, magic * 5, bytes(1 << 20)):
        stripped = without_sections(library) + more
        assert device_code(stripped) == device_code(library)
        assert device_code(stripped + library) == device_code(library)


@pytest.mark.parametrize("before", range(5))
def test_the_search_goes_on_across_its_pieces(tmp_path: Path, before: int) -> None:
    data = compiled(tmp_path / "a.so", "int x;", "-shared").read_bytes()
    padding = bytes((1 << 20) - len(data) - before)
    found = without_sections(data) + padding + container((2, 80, 0)) + container((2, 90, 0))
    assert names(found) == ["sm_80", "sm_90"]


def test_an_object_file_of_code_for_one_architecture_alone(nvcc: Nvcc) -> None:
    assert names(nvcc("a.o", "-c", *SM_90A)) == ["sm_90a"]


def test_code_that_waits_for_the_device_linker(nvcc: Nvcc) -> None:
    data = nvcc("waiting.o", "-c", "-rdc=true", *SM_80)
    assert b"__nv_relfatbin" in data
    assert names(data) == ["sm_80"]


def test_code_for_link_time_optimization_runs_nowhere_yet(nvcc: Nvcc) -> None:
    lto = ("-gencode", "arch=compute_80,code=lto_80")
    assert names(nvcc("lto.o", "-c", "-rdc=true", *lto)) == []


@pytest.mark.parametrize("mode", ["none", "size", "speed"])
def test_compression_hides_no_architecture(nvcc: Nvcc, mode: str) -> None:
    options = (f"--compress-mode={mode}", *PTX_90A, *SM_80)
    data = nvcc(f"{mode}.fatbin", "-fatbin", *options)
    assert names(data) == ["sm_80", "compute_90a"]
    # compressors leave a text's first word as it is, and shorten the others
    assert (data.count(b"%rd") > 8) == (mode == "none")


def test_code_for_a_family(nvcc: Nvcc) -> None:
    assert names(nvcc("family.fatbin", "-fatbin", *BOTH_100F)) == ["sm_100f", "compute_100f"]


@pytest.mark.parametrize("architecture", ["sm_80", "sm_90", "sm_90a"])
def test_a_cubin_by_itself(nvcc: Nvcc, architecture: str) -> None:
    data = nvcc(f"{architecture}.cubin", "-cubin", f"-arch={architecture}")
    assert device_code(data) == (DeviceCode("cubin", architecture),)


@pytest.mark.parametrize(
    ("flags", "architecture"), [(0x500550, "sm_80"), (0x5A0D5A, "sm_90a"), (0x5A055A, "sm_90")]
)
def test_a_cubin_of_cuda_12(flags: int, architecture: str) -> None:
    ident = b"\x7fELF\2\1\1\x33\7" + bytes(7)
    header = struct.pack("<2HL3QL6H", 2, 190, 1, 0, 0, 0, flags, 64, 0, 0, 0, 0, 0)
    assert names(ident + header) == [architecture]


def test_files_without_device_code(tmp_path: Path) -> None:
    data = compiled(tmp_path / "a.so", "int x;", "-shared").read_bytes()
    assert device_code(data) == device_code(without_sections(data)) == ()
    with pytest.raises(ElfError, match=r"^not an ELF file$"):
        device_code(b"text")


def container(*entries: tuple[int, int, int], content: bytes = b"12345678") -> bytes:
    """Make a container of entries that are given as kind, architecture, flags."""
    parts = [
        struct.pack("<2HLQ2L2H3L3Q", kind, 0x101, 64, len(content), 0, 0, 0, 0, arch, 0, 0, *rest)
        + content
        for kind, arch, flags in entries
        for rest in [(flags, 0, 0)]
    ]
    body = b"".join(parts)
    return struct.pack("<L2HQ", 0xBA55ED50, 1, 16, len(body)) + body


def test_containers_one_behind_the_other() -> None:
    one = container((2, 80, 0), (64, 70, 0))
    two = container((1, 90, 1 << 20), (2, 80, 0))
    for gap in (0, 8, 24, 5944):
        assert names(one + bytes(gap) + two + bytes(gap)) == ["sm_80", "compute_90a"]


def test_damaged_containers_are_refused() -> None:
    data = container((2, 80, 0)) + container((1, 90, 0))
    whole = r"^fat binary: no whole container at byte "
    for damaged, message in (
        (data[:-1], whole + "88"),
        (data[:90], whole + "88"),
        (data + b"\1", whole + "176"),
        (data[:4] + b"\2" + data[5:], whole + "0"),
        (data[:8] + b"\xff" * 8 + data[16:], whole + "0"),
        (data[:20] + bytes(4) + data[24:], r"^fat binary: an entry at byte 16 leads out"),
        (data[:24] + b"\xff" * 8 + data[32:], r"^fat binary: an entry at byte 16 leads out"),
        (data[:46] + b"\1" + data[47:], r"^fat binary: an entry at byte 16 is for no architecture"),
        (data[:24] + bytes(8) + data[32:], r"^fat binary: an entry at byte 80 leads out"),
    ):
        with pytest.raises(ElfError, match=message):
            device_code(damaged)


def test_a_map_can_be_closed_afterwards(tmp_path: Path, library: bytes) -> None:
    path = tmp_path / "a.so"
    start = library.index(struct.pack("<L", 0xBA55ED50))
    damaged = library[: start + 4] + b"\xff" + library[start + 5 :]
    for data in (library, without_sections(library), damaged):
        path.write_bytes(data)
        with path.open("rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        if data is damaged:
            with pytest.raises(ElfError, match=r"^fat binary: no whole container at byte 0$"):
                device_code(mapped)
        else:
            assert device_code(mapped) == device_code(library)
        mapped.close()


@settings(deadline=5000, max_examples=500)
@given(
    place=st.floats(0, 1, exclude_max=True),
    value=st.one_of(
        st.binary(min_size=1, max_size=8),
        st.sampled_from([b"\xff" * 4, b"\xff" * 8, bytes(8)]),
    ),
    cut=st.one_of(st.just(1.0), st.floats(0, 1)),
    sections=st.booleans(),
)
def test_a_damaged_library_is_refused_or_read(
    library: bytes, place: float, value: bytes, cut: float, sections: bool
) -> None:
    data = bytearray(library if sections else without_sections(library))
    start = library.index(struct.pack("<L", 0xBA55ED50))
    at = start + int(place * 6000)
    data[at : at + len(value)] = value
    try:
        device_code(bytes(data[: int(cut * len(data))]))
    except ElfError as error:
        assert str(error)
