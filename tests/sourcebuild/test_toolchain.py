from __future__ import annotations

import shutil
from pathlib import Path

import msgspec
import pytest

from envbuild.catalog.site import Site
from envbuild.errors import PreflightError
from envbuild.sourcebuild import toolchain
from envbuild.sourcebuild.toolchain import SYSTEM_PATH
from tests.cuda import ROOT
from tests.programs import require

MODULE = "buildenv-gcccuda/12.9.1-gcc11"


@pytest.fixture
def modules(tmp_path: Path) -> Path:
    """A folder of environment modules with one that brings the tests' toolkit."""
    require("modulecmd", "environment-modules")
    folder = tmp_path / "modules"
    file = folder / MODULE
    file.parent.mkdir(parents=True)
    file.write_text(
        f"#%Module1.0\nsetenv CUDA_HOME {ROOT}\nprepend-path PATH {ROOT}/bin\n"
        "setenv NVCC_PREPEND_FLAGS {-Xptxas -v}\nsetenv TOY_SETTING yes\n"
    )
    return folder


def site(**settings: object) -> Site:
    return msgspec.structs.replace(Site(summary="toy", root="."), **settings)


def test_modules_are_loaded_in_a_clean_shell(
    modules: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    home = tmp_path / "a-home"
    home.mkdir()
    (home / ".bash_profile").write_text("export TOY_SETTING=no TOY_MINE=1\n")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("TOY_SECRET", "secret")
    one = toolchain.of_site("toy", site(modules=(MODULE,), module_path=(str(modules),)))
    assert (one.kind, one.home, one.modules) == ("module", str(ROOT), (MODULE,))
    assert one.source == f"{MODULE} of sites/toy.toml"
    # what nvcc would add by itself is told to it, where caches of compilers see it
    assert one.nvcc_flags == ("-Xptxas", "-v")
    path = one.variables.pop("PATH")
    assert path.startswith(f"{ROOT}/bin:")
    assert one.variables == {"TOY_SETTING": "yes"}


def test_a_module_that_is_not_there_is_named(modules: Path) -> None:
    with pytest.raises(PreflightError) as caught:
        toolchain.of_site("toy", site(modules=("nothing/1",), module_path=(str(modules),)))
    assert str(caught.value).startswith(
        "sites/toy.toml: the site's modules cannot be loaded\n"
        "  expected: nothing/1\n"
        "  mend: see which there are: `module avail`\n"
    )
    assert "nothing/1" in (caught.value.detail or "")


def test_a_site_without_a_toolkit_is_told_so() -> None:
    with pytest.raises(PreflightError) as caught:
        toolchain.of_site("toy", site())
    assert str(caught.value) == (
        "sites/toy.toml: site toy names no CUDA toolkit to compile with\n"
        "  expected: modules, or cuda-home\n"
        '  mend: name one there; or let the recipe bring its own: toolchain = "wheels"'
    )


def test_a_toolkit_is_its_programs() -> None:
    one = toolchain.of_site("toy", site(cuda_home=str(ROOT)))
    assert (one.kind, one.home, one.modules) == ("path", str(ROOT), ())
    cuda = toolchain.cuda(ROOT, one.source)
    assert (cuda.version, cuda.release) == ((13, 0), "13.0.88")
    assert cuda == toolchain.cuda(ROOT, one.source)
    toolchain.check(cuda, one.host, architectures=["90", "90a"], torch=("torch.whl", (13, 2)))


def test_what_is_no_toolkit_is_named(tmp_path: Path) -> None:
    with pytest.raises(PreflightError, match="the CUDA toolkit has no nvcc that runs") as caught:
        toolchain.cuda(tmp_path, "cuda-home of sites/toy.toml")
    assert caught.value.where == str(tmp_path / "bin" / "nvcc")
    assert caught.value.expected == "nvcc of cuda-home of sites/toy.toml"


def copied(tmp_path: Path) -> Path:
    """Lay out a toolkit of links, whose headers can be changed."""
    home = tmp_path / "cuda"
    (home / "include").mkdir(parents=True)
    for name in ("bin", "nvvm", "lib"):
        (home / name).symlink_to(ROOT / name)
    shutil.copytree(ROOT / "include" / "crt", home / "include" / "crt")
    shutil.copy(ROOT / "include" / "cuda_runtime_api.h", home / "include")
    return home


@pytest.mark.parametrize(
    ("file", "old", "new", "what", "expected", "found"),
    [
        (
            "crt/host_config.h",
            "__GNUC__ > 15",
            "__GNUC__ > 6",
            "the C++ compiler is too new for nvcc",
            "GCC 6 or older, by HOME/include/crt/host_config.h of nvcc 13.0.88 (toy)",
            "GCC VERSION",
        ),
        (
            "cuda_runtime_api.h",
            "CUDART_VERSION  13000",
            "CUDART_VERSION  13020",
            "nvcc and the CUDA headers are of different versions",
            "those of nvcc 13.0.88 (toy)",
            "CUDART_VERSION 13020",
        ),
    ],
)
def test_compilers_that_do_not_fit_stop_before_anything_is_compiled(
    tmp_path: Path, file: str, old: str, new: str, what: str, expected: str, found: str
) -> None:
    home = copied(tmp_path)
    header = home / "include" / file
    text = header.read_text()
    assert old in text
    header.write_text(text.replace(old, new))
    host = toolchain.host(SYSTEM_PATH, {})
    with pytest.raises(PreflightError) as caught:
        toolchain.check(toolchain.cuda(home, "toy"), host, architectures=["90"], torch=None)
    error = caught.value
    assert (error.what, error.expected) == (what, expected.replace("HOME", str(home)))
    assert error.found == found.replace("VERSION", host.version, "GCC" in found)


def test_a_missing_header_or_architecture_is_named(tmp_path: Path) -> None:
    home = copied(tmp_path)
    host, cuda = toolchain.host(SYSTEM_PATH, {}), toolchain.cuda(home, "toy")
    with pytest.raises(PreflightError) as caught:
        toolchain.check(cuda, host, architectures=["70"], torch=None)
    assert caught.value.what == "nvcc does not compile for sm_70"
    assert (caught.value.expected or "").startswith("sm_75, sm_80, ")
    (home / "include" / "crt" / "host_config.h").unlink()
    with pytest.raises(PreflightError) as caught:
        toolchain.check(cuda, host, architectures=["90"], torch=None)
    assert str(caught.value) == (
        f"{home}/include/crt/host_config.h: the CUDA toolkit lacks headers\n"
        "  expected: those of nvcc 13.0.88 (toy)\n"
        "  mend: install the whole toolkit: for pinned wheels, cuda-toolkit with the extras nvcc "
        "and cccl"
    )


def test_without_a_compiler_it_is_said_how_to_get_one(tmp_path: Path) -> None:
    with pytest.raises(PreflightError) as caught:
        toolchain.host(str(tmp_path), {})
    assert str(caught.value) == (
        f"{tmp_path}: there is no gcc to compile with\n"
        "  expected: gcc and g++\n"
        "  mend: install them (Debian: g++; RHEL: gcc-c++), or load a module that has them"
    )


def test_the_cuda_of_torch_is_read_from_its_version_file() -> None:
    assert toolchain.torch_cuda("cuda: Optional[str] = '12.8'\n") == (12, 8)
    assert toolchain.torch_cuda("cuda: Optional[str] = None\n") is None
