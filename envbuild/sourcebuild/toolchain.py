"""The compilers of a build: found, identified, and held to what they must compile against.

Two of them make a CUDA extension: nvcc, of the site's modules, of a plain CUDA_HOME or of pinned
wheels, and the system's C++ compiler below it. What of them decides the bytes that they write is
their programs' content, so that is what identifies them.
"""

from __future__ import annotations

import re
import shlex
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from envbuild import process
from envbuild.catalog.site import Site
from envbuild.digest import sha256_bytes, sha256_file
from envbuild.errors import EnvbuildError, PreflightError, StepError

SYSTEM_PATH = "/usr/local/bin:/usr/bin:/bin"

# What says where a toolkit is, in the order in which it is believed
_HOMES = ("CUDA_HOME", "CUDA_PATH", "CUDA_ROOT", "EBROOTCUDA")
# What module systems keep for themselves, and what a login shell sets for people
_OWN = re.compile(
    r"(?:LOADEDMODULES|_LMFILES_|MODULE.*|__MODULES.*|__LMOD.*|LMOD.*|_ModuleTable.*|BASH_FUNC.*"
    r"|_|PWD|OLDPWD|SHLVL|HOME|MANPATH|INFOPATH)"
)
_FLAGS = ("NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS")
_RELEASE = re.compile(r"release (\d+)\.(\d+), V([\d.]+)")
_TORCH_CUDA = re.compile(r"""(?m)^cuda\b[^=\n]*=\s*['"](\d+)\.(\d+)""")
_BOUND = re.compile(r"(?m)^\s*#\s*if\s+__GNUC__\s*>\s*(\d+)\s*$")
_RUNTIME = re.compile(r"(?m)^\s*#\s*define\s+CUDART_VERSION\s+(\d+)")
_HEADERS = ("cuda_runtime_api.h", "crt/host_config.h")
_SCRIPT = """\
cd "$1"
shift
type module > /dev/null 2>&1 || { touch none; exit 1; }
while [ "$1" != -- ]; do module use "$1" || exit 1; shift; done
shift
env -0 > before
module load "$@" || exit 1
env -0 > after
module list -t > loaded 2>&1 || true
"""


class Host(msgspec.Struct, frozen=True):
    """The C++ compiler of the system, or of a module.

    Attributes:
        cc: the C compiler's path.
        cxx: the C++ compiler's path.
        version: of both, such as ``12.2.0``.
        identity: the digest of what it consists of.
    """

    cc: str
    cxx: str
    version: str
    identity: str

    @property
    def major(self) -> int:
        """Such as 12."""
        return int(self.version.partition(".")[0])


class Cuda(msgspec.Struct, frozen=True):
    """A CUDA toolkit.

    Attributes:
        home: its folder.
        source: where it is from, for people.
        version: of its nvcc, such as ``(13, 0)``.
        release: that of nvcc in full, such as ``13.0.88``.
        identity: the digest of its programs.
    """

    home: str
    source: str
    version: tuple[int, int]
    release: str
    identity: str


class Loaded(msgspec.Struct, frozen=True):
    """What environment modules set.

    Attributes:
        variables: those that they set or changed.
        names: the modules that are loaded, those that they load themselves among them.
    """

    variables: dict[str, str]
    names: tuple[str, ...]


class Toolchain(msgspec.Struct, frozen=True):
    """All compilers of one build.

    Attributes:
        kind: ``module``, ``path`` or ``wheels``.
        source: where nvcc is from, for people.
        host: the compiler for the host's code.
        home: CUDA_HOME; None where the pinned wheels of the build's own environment hold it.
        variables: what modules set, for the build to see.
        nvcc_flags: what modules have nvcc add to each of its commands.
        modules: the modules that are loaded.
    """

    kind: str
    source: str
    host: Host
    home: str | None = None
    variables: dict[str, str] = msgspec.field(default_factory=dict)
    nvcc_flags: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()


def of_wheels() -> Toolchain:
    """Return the toolchain whose nvcc is pinned with the build requirements.

    Raises:
        PreflightError: the system has no C++ compiler.
    """
    return Toolchain("wheels", "the build's own pinned wheels", host(SYSTEM_PATH, {}))


def of_site(name: str, site: Site) -> Toolchain:
    """Return the toolchain that a site's file names.

    Args:
        name: the site's name.
        site: what its file says.

    Raises:
        PreflightError: it names none, or what it names is not there.
    """
    where = f"sites/{name}.toml"
    if site.modules:
        loaded = load_modules(site.modules, site.module_path, where=where)
        variables = loaded.variables
        path = variables.get("PATH", SYSTEM_PATH)
        return Toolchain(
            kind="module",
            source=f"{', '.join(site.modules)} of {where}",
            host=host(path, variables),
            home=_home(variables, path, site.modules, where),
            variables={
                key: text
                for key, text in variables.items()
                if key not in {*_HOMES, *_FLAGS, "CC", "CXX"}
            },
            nvcc_flags=tuple(
                flag for key in _FLAGS for flag in shlex.split(variables.get(key, ""))
            ),
            modules=loaded.names,
        )
    if site.cuda_home is not None:
        return Toolchain("path", f"cuda-home of {where}", host(SYSTEM_PATH, {}), site.cuda_home)
    raise PreflightError(
        f"site {name} names no CUDA toolkit to compile with",
        where=where,
        expected="modules, or cuda-home",
        mend='name one there; or let the recipe bring its own: toolchain = "wheels"',
    )


def _home(variables: Mapping[str, str], path: str, modules: Sequence[str], where: str) -> str:
    for name in _HOMES:
        if variables.get(name):
            return variables[name]
    nvcc = shutil.which("nvcc", path=path)
    if nvcc is None:
        raise PreflightError(
            "the site's modules bring no nvcc",
            where=where,
            expected=f"one of {', '.join(_HOMES)}, or nvcc on PATH",
            found=f"neither after loading {', '.join(modules)}",
            mend="name the module that holds the CUDA toolkit in `modules`",
        )
    return str(Path(nvcc).resolve().parent.parent)


def load_modules(names: Sequence[str], folders: Sequence[str], *, where: str) -> Loaded:
    """Load environment modules in a login shell that has nothing of the caller's.

    Its HOME is empty, so that only what the site itself sets up for everyone counts.

    Args:
        names: the modules, in order.
        folders: where modules are looked for besides.
        where: what names them, for messages.

    Raises:
        PreflightError: there is no module system, or it does not have one of them.
    """
    with tempfile.TemporaryDirectory(prefix="envbuild-modules-") as home:
        arguments = [home, *folders, "--", *names]
        try:
            process.run(
                ["/bin/bash", "-l", "-c", _SCRIPT, "modules", *arguments],
                doing="loading " + " ".join(names),
                env={"HOME": home, "PATH": SYSTEM_PATH, "LANG": "C.UTF-8", "TERM": "dumb"},
                timeout=120,
            )
        except StepError as error:
            if Path(home, "none").exists():
                raise PreflightError(
                    "there is no module system here",
                    where=where,
                    expected=f"the command `module`, to load {', '.join(names)}",
                    mend="run this on the site; see `envbuild site check`",
                ) from error
            raise PreflightError(
                "the site's modules cannot be loaded",
                where=where,
                expected=", ".join(names),
                mend="see which there are: `module avail`",
                detail=error.detail,
            ) from error
        before, after = (_variables(Path(home, name)) for name in ("before", "after"))
        listed = Path(home, "loaded").read_text(errors="replace").splitlines()
    changed = {
        key: text
        for key, text in after.items()
        if before.get(key) != text and _OWN.fullmatch(key) is None
    }
    loaded = after.get("LOADEDMODULES")
    return Loaded(changed, tuple(loaded.split(":")) if loaded else tuple(filter(None, listed)))


def _variables(path: Path) -> dict[str, str]:
    pairs = path.read_bytes().decode(errors="surrogateescape").split("\0")
    return dict(pair.split("=", 1) for pair in pairs if "=" in pair)


def host(path: str, variables: Mapping[str, str]) -> Host:
    """Find the C++ compiler that a PATH leads to, or that CC and CXX name.

    Raises:
        PreflightError: there is none, or it is not GCC.
    """
    found = {}
    for variable, program in (("CC", "gcc"), ("CXX", "g++")):
        named = (shlex.split(variables.get(variable, "")) or [program])[0]
        real = shutil.which(named, path=path)
        if real is None:
            raise PreflightError(
                f"there is no {named} to compile with",
                where=path,
                expected="gcc and g++",
                mend="install them (Debian: g++; RHEL: gcc-c++), or load a module that has them",
            )
        found[variable] = real
    try:
        version = _said(found["CXX"], "-dumpfullversion", "-dumpversion")
    except EnvbuildError as error:
        raise PreflightError(
            "the C++ compiler does not say what it is", where=found["CXX"], detail=str(error)
        ) from error
    parts = {"target": _said(found["CXX"], "-dumpmachine"), "version": version}
    for program in ("cc1", "cc1plus", "as", "ld"):
        real = shutil.which(_said(found["CXX"], f"-print-prog-name={program}"), path=path)
        parts[program] = sha256_file(Path(real)) if real else ""
    return Host(found["CC"], found["CXX"], version, _digest(parts))


def _said(program: str, *arguments: str) -> str:
    return process.run(
        [program, *arguments], doing=f"asking {program}", env={"PATH": SYSTEM_PATH, "LC_ALL": "C"}
    ).stdout.strip()


def cuda(home: Path, source: str) -> Cuda:
    """Look at a CUDA toolkit.

    Args:
        home: its folder.
        source: where it is from, for people.

    Raises:
        PreflightError: it has no nvcc that runs.
    """
    nvcc = home / "bin" / "nvcc"
    try:
        release = _RELEASE.search(_said(str(nvcc), "--version"))
    except StepError as error:
        raise PreflightError(
            "the CUDA toolkit has no nvcc that runs",
            where=nvcc,
            expected=f"nvcc of {source}",
            detail=str(error),
        ) from error
    if release is None:
        raise PreflightError("nvcc does not say its version", where=nvcc)
    programs = sorted(
        path
        for folder in ("bin", "nvvm")
        for path in (home / folder).rglob("*")
        if path.is_file() and not path.is_symlink()
    )
    identity = _digest({str(path.relative_to(home)): sha256_file(path) for path in programs})
    return Cuda(str(home), source, (int(release[1]), int(release[2])), release[3], identity)


def namespace(cuda: Cuda, host: Host) -> str:
    """Name what keeps a compiler cache's entries apart from those of other compilers."""
    return _digest({"cuda": cuda.identity, "host": host.identity})[:32]


def _digest(parts: Mapping[str, str]) -> str:
    return sha256_bytes(msgspec.json.encode(dict(sorted(parts.items()))))


def torch_cuda(version_py: str) -> tuple[int, int] | None:
    """Return the CUDA version that torch was built with, from its ``torch/version.py``."""
    match = _TORCH_CUDA.search(version_py)
    return (int(match[1]), int(match[2])) if match else None


def check(
    cuda: Cuda,
    host: Host,
    *,
    architectures: Sequence[str],
    torch: tuple[str, tuple[int, int]] | None,
) -> None:
    """Hold compilers to each other and to torch, before anything is compiled with them.

    Args:
        cuda: the CUDA toolkit.
        host: the C++ compiler.
        architectures: what is compiled for, such as ``90``.
        torch: the file that holds torch and its CUDA version, if it is compiled against torch.

    Raises:
        PreflightError: the first mismatch, with both values and where they are from.
    """
    for problem in _problems(cuda, host, architectures, torch):
        raise problem


def _problems(
    cuda: Cuda,
    host: Host,
    architectures: Sequence[str],
    torch: tuple[str, tuple[int, int]] | None,
) -> Iterator[PreflightError]:
    nvcc = f"nvcc {cuda.release} ({cuda.source})"
    if torch is not None and torch[1][0] != cuda.version[0]:
        yield PreflightError(
            "nvcc and torch are of different CUDA major versions",
            where=f"{cuda.home}/bin/nvcc",
            expected=f"nvcc {torch[1][0]}.x, since {torch[0]} is of CUDA {_dotted(torch[1])}",
            found=nvcc,
            mend="name another toolkit (the site's `modules` or `cuda-home`, or the recipe's "
            "`requires`), or another torch",
        )
    include = Path(cuda.home, "include")
    for header in _HEADERS:
        if not (include / header).is_file():
            yield PreflightError(
                "the CUDA toolkit lacks headers",
                where=include / header,
                expected=f"those of {nvcc}",
                mend="install the whole toolkit: for pinned wheels, cuda-toolkit with the extras "
                "nvcc and cccl",
            )
    runtime = _RUNTIME.search((include / _HEADERS[0]).read_text(errors="replace"))
    number = int(runtime[1]) if runtime else 0
    if (number // 1000, number % 1000 // 10) != cuda.version:
        yield PreflightError(
            "nvcc and the CUDA headers are of different versions",
            where=include / _HEADERS[0],
            expected=f"those of {nvcc}",
            found=f"CUDART_VERSION {number}",
            mend="pin the parts of the toolkit together: cuda-toolkit[nvcc,cccl]==VERSION",
        )
    bound = _BOUND.search((include / _HEADERS[1]).read_text(errors="replace"))
    if bound is not None and host.major > int(bound[1]):
        yield PreflightError(
            "the C++ compiler is too new for nvcc",
            where=host.cxx,
            expected=f"GCC {bound[1]} or older, by {include / _HEADERS[1]} of {nvcc}",
            found=f"GCC {host.version}",
            mend="install an older one, or load a module that has one",
        )
    if not any(Path(cuda.home, lib).glob("libcudart.so*") for lib in ("lib64", "lib")):
        yield PreflightError(
            "the CUDA toolkit lacks its run time",
            where=f"{cuda.home}/lib64",
            expected=f"libcudart.so of {nvcc}",
            mend="install the whole toolkit",
        )
    known = set(re.findall(r"compute_(\w+)", _said(f"{cuda.home}/bin/nvcc", "--list-gpu-arch")))
    for architecture in architectures:
        if architecture.rstrip("af") not in known:
            yield PreflightError(
                f"nvcc does not compile for sm_{architecture}",
                where=f"{cuda.home}/bin/nvcc",
                expected=", ".join(f"sm_{one}" for one in sorted(known, key=_order)),
                found=f"architectures of the recipe: {', '.join(architectures)}; {nvcc}",
                mend="take a newer toolkit, or correct the recipe",
            )


def _dotted(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"


def _order(architecture: str) -> tuple[int, str]:
    number = architecture.rstrip("af")
    return int(number), architecture
