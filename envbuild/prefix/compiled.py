"""Wheels that are compiled on the target system: from the store, or built and verified first."""

from __future__ import annotations

import datetime
import email.parser
import functools
import os
import shutil
import time
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Literal

import msgspec
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from envbuild import __version__, granted, process, progress
from envbuild.artifacts import Artifact
from envbuild.artifacts import wheel as wheels
from envbuild.catalog.environment import Build, Environment
from envbuild.catalog.site import Layout
from envbuild.digest import sha256_file
from envbuild.errors import CheckFailedError, InputError, PreflightError
from envbuild.findings import Finding, chosen, failed, gathered, text
from envbuild.lock.lockfile import BuiltWheel, Lock, LockedPackage
from envbuild.lock.specification import build_set
from envbuild.owner import Owner
from envbuild.prefix import install, locked, preflight, subjects
from envbuild.prefix.interpreter import Interpreter
from envbuild.prefix.supply import Supply
from envbuild.prefix.usage import Patience
from envbuild.relocation import compiled, installed
from envbuild.relocation.audit import walk
from envbuild.relocation.look import Compiled, read_code
from envbuild.relocation.subject import Ceilings, Subject
from envbuild.sourcebuild import label, sandbox, toolchain
from envbuild.sourcebuild.store import Compiler, File, Key, Receipt, Steps, Store, Stored
from envbuild.sourcebuild.toolchain import Cuda, Toolchain
from envbuild.sourcebuild.workspace import Compilers, Step, Workspace

# What is compiled when: never if the store has it; whatever the store has, ccache helping; or
# every file anew
Policy = Literal["when-changed", "always", "anew"]

_GIB = 1 << 30
_SCRATCH = 4 * _GIB  # what objects and the linked library take


class Target(msgspec.Struct, frozen=True):
    """For what is compiled, and where.

    Attributes:
        layout: the site.
        name: the environment.
        environment: what its file says.
        lock: its lock.
        python: the interpreter of its prefix.
        supply: where artifacts come from.
        me: who does it.
        patience: whether to wait for another run.
        say: is told what is going on.
    """

    layout: Layout
    name: str
    environment: Environment
    lock: Lock
    python: Interpreter
    supply: Supply
    me: Owner
    patience: Patience
    say: Callable[[str], None]


class Made(msgspec.Struct, frozen=True):
    """A compiled wheel.

    Attributes:
        stored: where it is, with its receipt.
        fresh: whether it was compiled just now.
    """

    stored: Stored
    fresh: bool

    @property
    def artifact(self) -> Artifact:
        """The wheel as a file of a wheelhouse."""
        receipt = self.stored.receipt
        return Artifact(receipt.file, receipt.size, receipt.sha256, receipt.inputs.package)


def packages(lock: Lock) -> list[LockedPackage]:
    """Return what of a lock is compiled on the target system."""
    return [one for one in lock.packages if one.is_sdist and one.name not in lock.built]


def check(layout: Layout, environment: Environment, lock: Lock) -> None:
    """Look for the compilers of all that is to be compiled, before anything is downloaded.

    Raises:
        PreflightError: they are missing, or what they link needs a newer glibc than the site has.
    """
    for package in packages(lock):
        _toolchain(layout, environment.build[package.name])


def _toolchain(layout: Layout, recipe: Build) -> Toolchain:
    site, here = layout.site, preflight.glibc()
    if site.glibc is not None and here and Version(here) > Version(site.glibc):
        raise PreflightError(
            "what is linked here would not load at the site: this glibc is newer",
            where=f"site {layout.name}",
            expected=f"glibc {site.glibc} or older, by the site's file",
            found=f"glibc {here}, by this system",
            mend="compile it on a node of the site",
        )
    if recipe.toolchain == "wheels":
        return toolchain.of_wheels()
    return toolchain.of_site(layout.name, site)


def complete(target: Target, policy: Policy) -> Lock:
    """Return the lock with compiled wheels in place of its sdists; they are in the wheelhouse.

    Args:
        target: for what, and where.
        policy: when to compile what the store has.

    Raises:
        PreflightError: the compilers are missing, or do not fit each other.
        InputError: a recipe does not fit its source.
        StepError: a build failed.
        CheckFailedError: a wheel is not what it must be.
    """
    built = dict(target.lock.built)
    for package in packages(target.lock):
        made = wheel(target, package.name, policy)
        target.supply.take(made.artifact, made.stored.path)
        built[package.name] = BuiltWheel(made.stored.receipt.version, made.artifact)
    return msgspec.structs.replace(target.lock, built=built)


def wheel(target: Target, package: str, policy: Policy) -> Made:
    """Return the compiled wheel of one package.

    Args:
        target: for what, and where.
        package: its normalised name.
        policy: when to compile what the store has.

    Raises:
        PreflightError, InputError, StepError, CheckFailedError: as `complete`.
    """
    build = _Build(target, package)
    store = Store(target.layout.bookkeeping / "wheels")
    if policy == "when-changed" and (stored := store.find(build.key)) is not None:
        return Made(stored, fresh=False)
    name = f"wheel-{package}-{build.key.sha256[:16]}"
    with locked.locked(target.layout, name, target.me, target.patience, target.say):
        if policy == "when-changed" and (stored := store.find(build.key)) is not None:
            return Made(stored, fresh=False)  # another run made it meanwhile
        return Made(build.make(store, anew=policy == "anew"), fresh=True)


class _Build:
    """One wheel that is to be built."""

    def __init__(self, target: Target, package: str) -> None:
        self._target = target
        lock, environment = target.lock, target.environment
        self._package = next(one for one in packages(lock) if one.name == package)
        self._recipe = environment.build[package]
        self._doing = f"building {package} {self._package.version} for {target.name}"
        self._requires = lock.build_wheels.get(build_set(self._recipe), ())
        self._toolchain = _toolchain(target.layout, self._recipe)
        target.supply.artifacts([self._package.artifact, *self._requires])
        self._runtime = _runtime(target, package, self._recipe.match_runtime)
        self._outside = (
            None
            if self._toolchain.home is None
            else toolchain.cuda(Path(self._toolchain.home), self._toolchain.source)
        )

    @functools.cached_property
    def key(self) -> Key:
        """What decides the wheel's bytes."""
        package, tools = self._package, self._toolchain
        return Key(
            package=package.name,
            version=package.version,
            sdist=File(package.artifact.file, package.artifact.sha256),
            recipe=self._recipe,
            requires=_files(self._requires),
            runtime=_files(self._runtime),
            cuda=None if self._outside is None else self._outside.identity,
            host=tools.host.identity,
            modules=tools.modules,
            variables=tools.variables,
            flags=tools.nvcc_flags,
            glibc=preflight.glibc(),
            python=self._target.python.version,
            envbuild=__version__,
        )

    def make(self, store: Store, *, anew: bool) -> Stored:
        """Build, verify and keep the wheel; what an interrupted run left is gone on from."""
        target, recipe = self._target, self._recipe
        seconds: dict[str, float] = {}
        why = sandbox.refused()
        if why is not None:
            target.say(f"{self._doing}: without namespaces of its own: {why}")
        space = self._workspace(why)
        self._check_space(space)
        begun = time.monotonic()
        space.install(self._pylock(space), doing=f"{self._doing}: its build environment")
        seconds["environment"] = round(time.monotonic() - begun, 3)
        cuda, home = self._cuda(space)
        torch = self._torch()
        toolchain.check(
            cuda,
            self._toolchain.host,
            architectures=recipe.architectures,
            torch=None if torch is None else (torch[0], torch[2]),
        )
        allowed = granted.granted()
        jobs = granted.jobs(allowed, int(recipe.memory_per_job * _GIB))
        ccache = shutil.which("ccache", path=toolchain.SYSTEM_PATH)
        compilers = Compilers(
            home=home,
            cc=self._toolchain.host.cc,
            cxx=self._toolchain.host.cxx,
            variables=self._toolchain.variables,
            nvcc_flags=(*self._toolchain.nvcc_flags, *recipe.nvcc_flags),
            cxx_flags=recipe.cxx_flags,
            ccache=ccache,
            namespace=toolchain.namespace(cuda, self._toolchain.host),
        )
        space.lay_compilers(compilers, jobs)
        where = f"envs/{target.name}.toml: build.{self._package.name}"
        sdist = target.supply.wheelhouse.path_of(self._package.artifact)
        space.unpack(sdist, recipe.edits, where=where, anew=anew)
        said = (
            f"CPUs by {allowed.cpus_from}: {allowed.cpus}, memory by {allowed.memory_from}: "
            f"{allowed.memory / _GIB:.1f} GiB, {recipe.memory_per_job:g} GiB a job"
        )
        target.say(f"{self._doing}: {jobs} job{'' if jobs == 1 else 's'} at once ({said})")
        variables = space.variables(
            compilers,
            jobs=jobs,
            architectures=recipe.architectures,
            declared=recipe.variables,
            anew=anew,
        )
        begun = time.monotonic()
        with progress.bar(f"compiling {self._package.name}", None, unit="files") as advance:

            def watch(step: Step, total: int | None) -> None:
                if step.step == "compile" and step.status == 0:
                    advance(1, total=total)

            made = space.wheel(variables, doing=self._doing, watch=watch)
        seconds["build"] = round(time.monotonic() - begun, 3)
        local = label.label(cuda.version, None if torch is None else torch[1], recipe.architectures)
        made = label.relabel(made, local, space.made)
        begun = time.monotonic()
        findings = self._verify(space, made)
        seconds["verification"] = round(time.monotonic() - begun, 3)
        host = preflight.host()
        receipt = Receipt(
            file=made.name,
            sha256=sha256_file(made),
            size=made.stat().st_size,
            version=made.name.split("-")[1],
            environment=target.name,
            site=target.layout.name,
            key=self.key.sha256,
            inputs=self.key,
            nvcc=Compiler(cuda.source, cuda.release, cuda.identity),
            cxx=Compiler(
                self._toolchain.host.cxx,
                self._toolchain.host.version,
                self._toolchain.host.identity,
            ),
            flags={name: tuple(flags) for name, flags in space.flags(compilers).items()},
            isolation="namespaces" if why is None else why,
            jobs=jobs,
            granted=said,
            ccache=None if ccache is None else _version(ccache),
            steps=_steps(space.steps()),
            seconds=seconds,
            findings=findings,
            imports=recipe.imports,
            host=(host.name, host.kernel),
            created=datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        )
        stored = store.put(made, receipt, space.log)
        shutil.rmtree(space.folder)
        return stored

    def _workspace(self, why: str | None) -> Workspace:
        target = self._target
        cache = target.layout.bookkeeping / "ccache"
        cache.mkdir(parents=True, exist_ok=True)
        python = Path(target.python.path)
        binds = {
            "python": str(python.parent.parent),
            "wheels": str(target.supply.wheelhouse.path),
            "ccache": str(cache),
        }
        folder = f"{self._package.name}-{self.key.sha256[:16]}"
        place = target.layout.bookkeeping / "builds" / folder
        return Workspace(place, binds, python=python.name, why=why)

    def _check_space(self, space: Workspace) -> None:
        known = self._target.supply.wheelhouse.unpacked([*self._requires, *self._runtime])
        needed = _SCRATCH + (0 if space.installed else known.size)
        free = shutil.disk_usage(space.folder).free
        if free < needed:
            raise PreflightError(
                "not enough room to build in",
                where=space.folder,
                expected=f"{needed / _GIB:.1f} GiB free, for what it is compiled against and with",
                found=f"{free / _GIB:.1f} GiB free",
                mend="make room there, or choose another root",
            )

    def _pylock(self, space: Workspace) -> bytes:
        # one of both has one version and one file: the lock was resolved so
        by_name = {one.project: one for one in (*self._requires, *self._runtime)}
        return install.pylock(
            [(name, None, one) for name, one in sorted(by_name.items())],
            self._target.lock.specification.requires_python,
            f"{space.here}/wheels",
        )

    def _cuda(self, space: Workspace) -> tuple[Cuda, str]:
        """Return the CUDA toolkit, and its folder as the build sees it."""
        if self._outside is not None:
            return self._outside, self._outside.home
        folders = sorted((space.build / "env").glob("lib/python*/site-packages/nvidia/cu*"))
        home = next((one for one in folders if (one / "bin" / "nvcc").exists()), None)
        if home is None:
            raise InputError(
                "the pinned build requirements bring no nvcc",
                where=f"envs/{self._target.name}.toml: build.{self._package.name}.requires",
                expected="a toolkit, such as cuda-toolkit[nvcc,cccl]==13.0.3",
                mend='add one and lock again, or say toolchain = "site"',
            )
        # two links that linkers look for, and that no wheel holds
        for link, leads in (("lib64", "lib"), ("lib/libcudart.so", _runtime_library(home))):
            if leads and not (home / link).exists():
                (home / link).symlink_to(leads)
        source = ", ".join(one.file for one in self._requires if one.project.endswith("-nvcc"))
        inside = f"{space.here}/{home.relative_to(space.build)}"
        return toolchain.cuda(home, source or self._toolchain.source), inside

    def _torch(self) -> tuple[str, str, tuple[int, int]] | None:
        """Return the file, version and CUDA version of the torch that is compiled against."""
        for artifact in self._runtime:
            if artifact.project == "torch":
                path = self._target.supply.wheelhouse.path_of(artifact)
                with zipfile.ZipFile(path) as archive:
                    said = archive.read("torch/version.py").decode()
                cuda = toolchain.torch_cuda(said)
                if cuda is None:
                    raise PreflightError(
                        "the environment's torch is built without CUDA",
                        where=artifact.file,
                        expected="a torch of CUDA",
                        mend="lock a torch of CUDA",
                    )
                version = next(
                    one.version for one in self._target.lock.packages if one.name == "torch"
                )
                return artifact.file, version, cuda
        return None

    def _verify(self, space: Workspace, made: Path) -> tuple[Finding, ...]:
        """Hold the wheel to the rules beside what it was compiled against, and import it."""
        target, site = self._target, self._target.layout.site
        minor = ".".join(target.python.version.split(".")[:2])
        with space.having(made, self._package.name):
            findings = verify(
                space.build / "env",
                made,
                minor=minor,
                architectures=[f"sm_{one}" for one in self._recipe.architectures],
                ceilings=subjects.ceilings(site, f"site {target.layout.name}"),
                libraries=site.system_libraries,
                builders=(space.here, str(space.folder)),
            )
            counted = chosen(findings, (), subjects.ignored(target.layout))
            errors = [one for one in counted.findings if one.severity == "error"]
            if failed(counted.findings):
                count = f"{len(errors)} error{'' if len(errors) == 1 else 's'}"
                raise CheckFailedError(
                    f"{self._doing}: the wheel breaks the relocation rules: {count}",
                    where=made,
                    mend="see docs/rules.md, or `envbuild verify --explain CODE`; the wheel is "
                    "kept there, and not used",
                    detail=text(gathered(errors)),
                )
            space.imports(self._recipe.imports, doing=self._doing)
        return tuple(counted.findings)


def verify(
    environment: Path,
    wheel: Path,
    *,
    minor: str,
    architectures: Sequence[str],
    ceilings: Ceilings,
    libraries: Sequence[str] = (),
    builders: Sequence[str] = (),
) -> list[Finding]:
    """Hold a wheel's compiled code to the rules E001 to E007.

    Args:
        environment: a virtual environment in which it is installed, beside what it needs.
        wheel: the wheel.
        minor: of the environment's Python, such as ``3.11``.
        architectures: what its device code must be compiled for, such as ``sm_90``; no PTX.
        ceilings: of system libraries' versions.
        libraries: sonames that the site's nodes have besides the standard ones.
        builders: folders of the build, which no file may name.

    Returns:
        What was found of the wheel's own files.
    """
    contents = wheels.scan(wheel)
    own = {contents.place(entry.name, minor) for entry in contents.entries}
    subject = Subject(
        prefix=str(environment),
        owner=os.geteuid(),
        ceilings=ceilings,
        libraries=tuple(libraries),
        architectures=tuple(architectures),
        builders=tuple(builders),
    )
    paths = list(walk(str(environment)))
    files = list(_code(environment, paths, own))
    places = {f"{environment}/{path}" for path in own}
    code = compiled.Code(subject, files, paths, minor)
    return [finding for finding in code.check() if finding.where in places]


def _code(environment: Path, paths: Iterable[str], own: set[str]) -> Iterator[Compiled]:
    for path in paths:
        place = environment / path
        if (path not in own and ".so" not in place.name) or place.is_symlink():
            continue
        descriptor = os.open(place, os.O_RDONLY | os.O_CLOEXEC)
        try:
            if os.pread(descriptor, 4, 0) == b"\x7fELF":
                yield read_code(path, descriptor, None, published=False, own=path in own)
        finally:
            os.close(descriptor)


def _runtime(target: Target, package_name: str, roots: Sequence[str]) -> tuple[Artifact, ...]:
    """Return the wheels of packages and of all that they require, as the lock has them."""
    environment = installed.marker_environment(target.python.version)
    known = {one.name: one for one in target.lock.installed(environment)}
    todo = [(name, "") for name in roots]
    seen = set(todo)
    found: dict[str, Artifact] = {}
    while todo:
        name, extra = todo.pop()
        package = known.get(name)
        if package is None:
            continue
        if package.is_sdist:
            raise InputError(
                f"build.{package_name}.match-runtime: {name} is compiled here itself",
                where=f"envs/{target.name}.toml",
                mend="name packages with wheels in match-runtime",
            )
        if name not in found:
            target.supply.artifacts([package.artifact])
            found[name] = package.artifact
        path = target.supply.wheelhouse.path_of(package.artifact)
        for requirement in _requirements(path):
            marker = requirement.marker
            if marker is None or marker.evaluate({**environment, "extra": extra}):
                needed = str(canonicalize_name(requirement.name))
                more = {(needed, one) for one in ("", *requirement.extras)} - seen
                seen |= more
                todo += more
    return tuple(sorted(found.values()))


def _requirements(wheel: Path) -> list[Requirement]:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (
            one
            for one in archive.namelist()
            if one.endswith(".dist-info/METADATA") and one.count("/") == 1
        )
        header = email.parser.BytesHeaderParser().parsebytes(archive.read(name))
    return [Requirement(str(one)) for one in header.get_all("Requires-Dist", ())]


def _files(artifacts: Iterable[Artifact]) -> tuple[File, ...]:
    return tuple(File(one.file, one.sha256) for one in sorted(artifacts))


def _runtime_library(home: Path) -> str | None:
    found = sorted((home / "lib").glob("libcudart.so.*"))
    return found[0].name if found else None


def _version(ccache: str) -> str:
    said = process.run([ccache, "--version"], doing="asking ccache").stdout
    return said.split("\n", 1)[0].rpartition(" ")[2]


def _steps(steps: Iterable[Step]) -> Steps:
    done = {one.file: one for one in steps if one.step == "compile" and one.status == 0}
    slowest = max(done.values(), key=lambda one: one.seconds, default=None)
    return Steps(
        compiled=len(done),
        slowest="" if slowest is None else slowest.file,
        slowest_seconds=0.0 if slowest is None else slowest.seconds,
        peak_memory=max((one.memory for one in done.values()), default=0),
        compiler_seconds=round(sum(one.seconds for one in done.values()), 3),
    )
