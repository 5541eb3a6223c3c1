"""The folder that a wheel is compiled in: laid out, compiled, resumed where it was left.

build/        what the build sees, at one path everywhere
  bin/        the compilers that it finds: see `envbuild.sourcebuild.compiler`
  cuda/       CUDA_HOME: links into the toolchain, with nvcc replaced
  env/        a virtual environment: what is compiled against, and what builds
  src/        the source, edited; what is compiled stays in it
  python/ wheels/ ccache/    bound from outside
log/          what was said, and a line for each step of a compiler
"""

from __future__ import annotations

import json
import re
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from envbuild import uvtool
from envbuild.catalog.environment import Edit
from envbuild.errors import CheckFailedError, StepError
from envbuild.sourcebuild import sandbox, source
from envbuild.sourcebuild.pure import SOURCE_DATE_EPOCH
from envbuild.sourcebuild.sandbox import Place
from envbuild.sourcebuild.toolchain import SYSTEM_PATH

# where nothing listens: what asks for the network all the same is refused at once
_NOWHERE = "http://127.0.0.1:9"
_PROXIES = {f"{kind}_proxy": _NOWHERE for kind in ("http", "https", "all")}
_PROXIES |= {name.upper(): text for name, text in _PROXIES.items()}
_POLL = 0.5  # seconds

_WRAPPER = """\
#!/bin/sh
exec "{here}/python/bin/{python}" -IS "{here}/bin/compiler.py" {name} "$@"
"""
_EDGE = re.compile(r"(?m)^build [^\n]*: (?!phony)[^\n]*")
_ERROR = re.compile(
    r"(?i)\b(?:fatal )?error\b[: ]|^\S*(?:Error|Exception): |undefined reference|No space"
)
_SHOWN = 12  # lines of the first error


class Step(msgspec.Struct, frozen=True):
    """One file that a compiler made.

    Attributes:
        step: ``compile`` or ``link``.
        file: the source, or what was linked.
        begun: when, in seconds since 1970.
        seconds: how long it took.
        memory: the peak of its largest process, in bytes.
        status: its exit status; negative where a signal ended it.
        said: what it said, if it failed.
    """

    step: str
    file: str
    begun: float
    seconds: float
    memory: int
    status: int
    said: str = ""


class Compilers(msgspec.Struct, frozen=True):
    """The compilers of a build.

    Attributes:
        home: CUDA_HOME as the build sees it.
        cc: the C compiler's path.
        cxx: the C++ compiler's path.
        variables: what the site's modules set.
        nvcc_flags: what is added to each of nvcc's commands.
        cxx_flags: what is added to each of the others'.
        ccache: its path, if there is one.
        namespace: what keeps its entries apart from those of other compilers.
    """

    home: str
    cc: str
    cxx: str
    variables: dict[str, str]
    nvcc_flags: tuple[str, ...]
    cxx_flags: tuple[str, ...]
    ccache: str | None
    namespace: str


class Workspace:
    """The folder of one build.

    Args:
        folder: it; what is in it is resumed.
        binds: folders outside, by their names in ``build``: ``python`` (the interpreter's own),
            ``wheels`` (the wheelhouse) and, if there is ccache, ``ccache``.
        python: the interpreter's name in ``python/bin``, such as ``python3.11``.
        why: why there are no private namespaces; None where there are.
    """

    def __init__(
        self, folder: Path, binds: Mapping[str, str], *, python: str, why: str | None
    ) -> None:
        self.folder = folder
        self.build = folder / "build"
        self.log = self.build / "log"
        self.output = self.log / "build.log"
        self.place = Place(str(self.build), dict(binds), why)
        self.here = self.place.here
        self._python = python
        (self.log / "turns").mkdir(parents=True, exist_ok=True)
        self.made = folder / "wheel"
        self.made.mkdir(exist_ok=True)
        for name in ("bin", "home", "temporary", "out"):
            (self.build / name).mkdir(exist_ok=True)
        self.place.lay_out()

    def run(
        self, command: Sequence[str], *, doing: str, variables: Mapping[str, str], cwd: str = ""
    ) -> None:
        """Run a program in the place; see `sandbox.run`."""
        sandbox.run(
            self.place,
            command,
            doing=doing,
            variables=variables,
            cwd=f"{self.here}/{cwd}".rstrip("/"),
            output=self.output,
        )

    @property
    def installed(self) -> bool:
        """Whether the virtual environment is there, whole."""
        return (self.build / "env" / ".whole").exists()

    def install(self, pylock: bytes, *, doing: str) -> None:
        """Make the virtual environment hold what a derived lock says; a whole one is kept.

        Raises:
            StepError: uv could not.
        """
        kept = self.build / "pylock.build.toml"
        environment = self.build / "env"
        if kept.exists() and kept.read_bytes() == pylock and self.installed:
            return
        if environment.exists():
            shutil.rmtree(environment)
        kept.write_bytes(pylock)
        python = f"{self.here}/python/bin/{self._python}"
        venv = ("venv", "--python", python, "--no-project", "--allow-existing")
        self._uv(*venv, f"{self.here}/env", doing=doing)
        self._uv("pip", "sync", *self._into, "pylock.build.toml", doing=doing)
        shutil.rmtree(environment / ".unpacked")
        (environment / ".whole").touch()

    @property
    def _into(self) -> tuple[str, str]:
        return "--python", f"{self.here}/env/bin/python"

    def _uv(self, *arguments: str, doing: str) -> None:
        variables = self._plain | {
            "UV_OFFLINE": "1",
            "UV_NO_CONFIG": "1",
            "UV_PYTHON_DOWNLOADS": "never",
            "UV_PREVIEW_FEATURES": "pylock",
            # in the environment, from which alone hard links lead into it
            "UV_CACHE_DIR": f"{self.here}/env/.unpacked",
            "UV_LINK_MODE": "hardlink",
        }
        command = [str(uvtool.executable()), *arguments]
        try:
            self.run(command, doing=doing, variables=variables)
        except StepError as error:
            raise StepError(
                f"{doing} failed", where=self.output, detail=_last(self.output)
            ) from error

    @contextmanager
    def having(self, wheel: Path, package: str) -> Iterator[None]:
        """Have a wheel installed in the virtual environment while the block runs.

        Args:
            wheel: a file of `made`.
            package: its name.

        Raises:
            StepError: uv could not.
        """
        doing = f"installing {wheel.name} where it was built"
        whole = self.build / "env" / ".whole"
        copy = self.build / "out" / wheel.name
        shutil.copyfile(wheel, copy)
        # until it is gone again, this is not the environment of a build
        whole.unlink()
        self._uv(
            *(
                "pip",
                "install",
                *self._into,
                "--no-deps",
                "--no-index",
                f"{self.here}/out/{wheel.name}",
            ),
            doing=doing,
        )
        try:
            yield
        finally:
            self._uv("pip", "uninstall", *self._into, package, doing=f"removing {package}")
            whole.touch()

    def imports(self, modules: Sequence[str], *, doing: str) -> None:
        """Import modules one after the other in one interpreter.

        Raises:
            CheckFailedError: it failed, with what Python said.
        """
        code = "\n".join(f"import {name}" for name in modules)
        try:
            self.run(
                [f"{self.here}/env/bin/python", "-I", "-c", code],
                doing=doing,
                variables=self._plain,
            )
        except StepError as error:
            raise CheckFailedError(
                f"{doing}: the wheel cannot be imported",
                where=", ".join(modules),
                expected="imports that succeed beside the packages of the lock",
                mend="correct `imports` of the recipe, or build it against what the lock holds",
                detail=_last(self.output),
            ) from error

    def lay_compilers(self, compilers: Compilers, jobs: int) -> None:
        """Put the compilers in place that the build finds.

        Args:
            compilers: the real ones.
            jobs: how many may be at work at once.
        """
        bin_folder, home = self.build / "bin", self.build / "cuda"
        (bin_folder / "compiler.py").write_bytes(
            Path(__file__).with_name("compiler.py").read_bytes()
        )
        nvcc = f"{compilers.home}/bin/nvcc"
        settings = {
            "programs": {"nvcc": nvcc, "gcc": compilers.cc, "g++": compilers.cxx},
            "flags": self.flags(compilers),
            "link": {"nvcc": ["-Xlinker", "-s"], "gcc": ["-s"], "g++": ["-s"]},
            "ccache": compilers.ccache,
            "log": f"{self.here}/log",
            "jobs": jobs,
        }
        (bin_folder / "compiler.json").write_text(json.dumps(settings))
        names = {"nvcc": "nvcc", "gcc": "gcc", "cc": "gcc", "g++": "g++", "c++": "g++"}
        for wrapper, name in names.items():
            self._wrap(bin_folder / wrapper, name)
        if home.exists():
            shutil.rmtree(home)
        (home / "bin").mkdir(parents=True)
        self._wrap(home / "bin" / "nvcc", "nvcc")
        outside = self.outside(compilers.home)
        for entry in sorted(outside.iterdir()):
            if entry.name != "bin":
                (home / entry.name).symlink_to(f"{compilers.home}/{entry.name}")
        for entry in sorted((outside / "bin").iterdir()):
            if entry.name != "nvcc":
                (home / "bin" / entry.name).symlink_to(f"{compilers.home}/bin/{entry.name}")
        if not (outside / "lib64").exists():
            (home / "lib64").symlink_to(f"{compilers.home}/lib")

    def flags(self, compilers: Compilers) -> dict[str, list[str]]:
        """Return what is added to each command that compiles, by compiler."""
        mapped = f"-ffile-prefix-map={self.here}/="
        plain = [*compilers.cxx_flags, mapped]
        return {
            "nvcc": [*compilers.nvcc_flags, "-Xcompiler", mapped],
            "gcc": plain,
            "g++": plain,
        }

    def outside(self, inside: str) -> Path:
        """Return where a path that the build sees is outside."""
        begin = f"{self.here}/"
        return self.build / inside[len(begin) :] if inside.startswith(begin) else Path(inside)

    def _wrap(self, path: Path, name: str) -> None:
        path.write_text(_WRAPPER.format(here=self.here, python=self._python, name=name))
        path.chmod(0o755)

    def unpack(self, sdist: Path, edits: Sequence[Edit], *, where: str, anew: bool = False) -> None:
        """Unpack the source, unless an earlier run did; what that linked is made anew.

        A compiler's output is whole or told of by no record; a linker's may be half of one.
        """
        folder = self.build / "src"
        if anew and folder.exists():
            shutil.rmtree(folder)
        if not folder.exists():
            source.unpack(sdist, folder, edits, where=where)
        for linked in (*folder.glob("build/lib*"), *folder.glob("build/bdist*")):
            shutil.rmtree(linked)
        for left in (self.build / "out").iterdir():
            left.unlink()

    @property
    def _plain(self) -> dict[str, str]:
        return {
            "PATH": f"{self.here}/env/bin:{SYSTEM_PATH}",
            "HOME": f"{self.here}/home",
            "TMPDIR": f"{self.here}/temporary",
            "LANG": "C.UTF-8",
            "LC_ALL": "C.UTF-8",
            "TZ": "UTC",
            **_PROXIES,
        }

    def variables(
        self,
        compilers: Compilers,
        *,
        jobs: int,
        architectures: Sequence[str],
        declared: Mapping[str, str],
        anew: bool = False,
    ) -> dict[str, str]:
        """Return the whole environment of a build: no variable of the caller's is in it.

        Args:
            compilers: those in place.
            jobs: how many may be at work at once.
            architectures: such as ``90``.
            declared: the recipe's own variables.
            anew: let ccache compile what it has, too.
        """
        here, module = self.here, compilers.variables
        path = f"{here}/bin:{here}/env/bin:{here}/cuda/bin:{module.get('PATH', SYSTEM_PATH)}"
        cc, cxx = f"{here}/bin/gcc", f"{here}/bin/g++"
        made = {
            **module,
            **self._plain,
            "PATH": path,
            "CUDA_HOME": f"{here}/cuda",
            "CUDA_PATH": f"{here}/cuda",
            "CC": cc,
            "CXX": cxx,
            "LDSHARED": f"{cc} -pthread -shared",
            "LDCXXSHARED": f"{cxx} -pthread -shared",
            "CFLAGS": "-O3 -DNDEBUG -fwrapv",
            "PYTORCH_NVCC": f"{here}/bin/nvcc",
            "TORCH_NO_COMPILER_WRAPPER": "1",
            "TORCH_CUDA_ARCH_LIST": ";".join(_dotted(one) for one in architectures),
            "MAX_JOBS": str(jobs),
            "CMAKE_BUILD_PARALLEL_LEVEL": str(jobs),
            "SOURCE_DATE_EPOCH": SOURCE_DATE_EPOCH,
            "PYTHONHASHSEED": "0",
            "PIP_NO_INDEX": "1",
            "UV_OFFLINE": "1",
        }
        if compilers.ccache is not None:
            made |= {
                "CCACHE_DIR": f"{here}/ccache",
                "CCACHE_CONFIGPATH": f"{here}/ccache.conf",
                "CCACHE_NAMESPACE": compilers.namespace,
                "CCACHE_COMPILERCHECK": "content",
                "CCACHE_MAXSIZE": "20G",
            }
            if anew:
                made["CCACHE_RECACHE"] = "1"
        return {**made, **declared}

    def wheel(
        self,
        variables: Mapping[str, str],
        *,
        doing: str,
        watch: Callable[[Step, int | None], None] = lambda _step, _total: None,
    ) -> Path:
        """Build the wheel from the source.

        Args:
            variables: the build's environment.
            doing: what this is, for messages.
            watch: is told each step that a compiler has done, and of how many if that is known.

        Returns:
            The wheel as the package's build backend made it.

        Raises:
            StepError: the first real error, and where all that was said is.
        """
        begin = self.output.stat().st_size if self.output.exists() else 0
        first = sum(1 for _ in self.steps())
        command = [
            *(str(uvtool.executable()), "build", "--wheel", "--no-build-isolation", "--no-config"),
            *("--python", f"{self.here}/env/bin/python", "--offline", "--no-cache"),
            *("--out-dir", f"{self.here}/out", f"{self.here}/src"),
        ]
        try:
            with self._watching(first, watch):
                self.run(command, doing=doing, variables=variables, cwd="src")
        except StepError as error:
            raise self.failure(doing, first, begin) from error
        (wheel,) = (self.build / "out").glob("*.whl")
        return wheel

    def steps(self) -> Iterator[Step]:
        """Yield what the compilers did, in order, over all runs."""
        try:
            lines = (self.log / "steps.jsonl").read_bytes().splitlines()
        except FileNotFoundError:
            return
        for line in lines:
            try:
                yield msgspec.json.decode(line, type=Step)
            except msgspec.DecodeError:
                continue  # cut off when the machine went away

    @contextmanager
    def _watching(self, first: int, watch: Callable[[Step, int | None], None]) -> Iterator[None]:
        ended = threading.Event()

        def look() -> None:
            told = first
            while True:
                last = ended.wait(_POLL)
                for step in list(self.steps())[told:]:
                    told += 1
                    watch(step, self._total())
                if last:
                    return

        thread = threading.Thread(target=look, daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    def _total(self) -> int | None:
        """Say how many files there are to compile, where ninja has a plan."""
        plans = list((self.build / "src").glob("build/**/build.ninja"))
        counts = [len(_EDGE.findall(plan.read_text(errors="replace"))) for plan in plans]
        return sum(counts) or None

    def failure(self, doing: str, first: int, begin: int) -> StepError:
        """Say what went wrong first in a run, rather than what was said last.

        Args:
            doing: what it was.
            first: how many steps there were before.
            begin: where its words begin in `output`, in bytes.
        """
        broken = next((one for one in list(self.steps())[first:] if one.status != 0), None)
        with self.output.open("rb") as file:
            file.seek(begin)
            said = file.read().decode(errors="replace")
        if broken is not None and broken.status in (-9, 137):
            return StepError(
                f"{doing}: a compiler was killed, as happens when memory runs out",
                where=broken.file,
                expected="memory for all jobs",
                found=f"killed when its largest process had {broken.memory / 2**30:.1f} GiB",
                mend="raise memory-per-job of the recipe, so that fewer run at once; what is "
                "compiled is kept",
                detail=f"all that was said: {self.output}",
            )
        what = f"{doing} failed" if broken is None else f"{doing}: {broken.step} failed"
        return StepError(
            what,
            where=None if broken is None else broken.file,
            mend=f"see {self.output}; what is compiled is kept, and the next run goes on from it",
            detail=first_error(broken.said if broken is not None and broken.said else said),
        )


def first_error(said: str) -> str:
    """Return the first lines that tell of an error, or the last ones where none does.

    Args:
        said: what a build or a compiler printed.
    """
    lines = said.splitlines()
    at = next((at for at, line in enumerate(lines) if _ERROR.search(line)), None)
    if at is None:
        return "\n".join(lines[-_SHOWN:])
    begin = at
    while (
        begin > 0
        and at - begin < 3
        and re.match(r"\s|.*(?:In function|included from|In file)", lines[begin - 1])
    ):
        begin -= 1
    return "\n".join(lines[begin : begin + _SHOWN])


def _last(output: Path) -> str:
    """Return the last lines of what was said."""
    return "\n".join(output.read_text(errors="replace").splitlines()[-_SHOWN:])


def _dotted(architecture: str) -> str:
    """Write an architecture as torch's builds take it: ``9.0a`` for ``90a``."""
    number = architecture.rstrip("af")
    return f"{number[:-1]}.{number[-1]}{architecture[len(number) :]}"
