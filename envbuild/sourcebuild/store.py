"""Wheels that were compiled here, by what they were made of: ``ROOT/.envbuild/wheels``.

    PACKAGE/KEY/FILE.whl        the wheel
    PACKAGE/KEY/receipt.json    where it is from: an in-toto statement about it
    PACKAGE/KEY/build.log       what its build said
    PACKAGE/KEY/steps.jsonl     a line for each file that a compiler made, over all runs

A wheel is taken only if its receipt is for this very key and its bytes are those that the receipt
names: a file that someone put there is none of it.
"""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path

import msgspec

from envbuild import durable, intoto
from envbuild.catalog.environment import Build
from envbuild.digest import sha256_bytes, sha256_file
from envbuild.findings import Finding
from envbuild.intoto import Record, Statement

LOGS = ("build.log", "steps.jsonl")
PREDICATE = "urn:envbuild:wheel-receipt:1"


class File(Record, frozen=True):
    """A file that went into a build."""

    file: str
    sha256: str


class Compiler(Record, frozen=True):
    """A compiler: its version, and the digest of the programs that it consists of."""

    source: str
    version: str
    identity: str


class Key(Record, frozen=True):
    """What decides what a build gives.

    Attributes:
        package: its name.
        version: its version.
        sdist: its source.
        recipe: how it is built.
        requires: the wheels that build it, sorted.
        runtime: the wheels of the environment that it is compiled against, sorted.
        cuda: nvcc's identity; None where it is among ``requires``.
        host: the C++ compiler's identity.
        modules: environment modules that were loaded.
        variables: what they set.
        flags: what they have nvcc add.
        glibc: of the system that it is built on.
        python: the interpreter's version.
        envbuild: the version of what builds it.
    """

    package: str
    version: str
    sdist: File
    recipe: Build
    requires: tuple[File, ...]
    runtime: tuple[File, ...]
    cuda: str | None
    host: str
    modules: tuple[str, ...]
    variables: dict[str, str]
    flags: tuple[str, ...]
    glibc: str
    python: str
    envbuild: str

    @property
    def sha256(self) -> str:
        """The key's digest, which names its folder."""
        return sha256_bytes(msgspec.json.encode(self, order="deterministic"))


class Steps(Record, frozen=True):
    """What the compilers did.

    Attributes:
        compiled: how many files were compiled in the end, over all runs.
        slowest: the file that took longest.
        slowest_seconds: how long.
        peak_memory: the largest process, in bytes.
        compiler_seconds: the sum over all files, in seconds.
    """

    compiled: int
    slowest: str
    slowest_seconds: float
    peak_memory: int
    compiler_seconds: float


class Receipt(Record, frozen=True):
    """Where a wheel is from.

    Attributes:
        file: the wheel's file name.
        sha256: its SHA-256.
        size: in bytes.
        version: with its local part.
        environment: for which it was built.
        site: where.
        key: the digest of ``inputs``.
        inputs: what it is made of.
        nvcc: the CUDA compiler.
        cxx: the host compiler.
        flags: what was added to each command, by compiler.
        isolation: how the build was kept apart: ``namespaces``, or why it was not.
        jobs: how many compilers were at work at once.
        granted: what said so.
        ccache: its version, if it was used.
        steps: what was compiled.
        seconds: what each phase took, in seconds.
        findings: warnings of the rules; an error would have kept it from the store.
        imports: modules that were imported from it.
        host: the machine's name and kernel.
        created: when, in UTC.
    """

    file: str
    sha256: str
    size: int
    version: str
    environment: str
    site: str
    key: str
    inputs: Key
    nvcc: Compiler
    cxx: Compiler
    flags: dict[str, tuple[str, ...]]
    isolation: str
    jobs: int
    granted: str
    ccache: str | None
    steps: Steps
    seconds: dict[str, float]
    findings: tuple[Finding, ...]
    imports: tuple[str, ...]
    host: tuple[str, str]
    created: str


class Stored(msgspec.Struct, frozen=True):
    """A wheel of the store, with its receipt."""

    path: Path
    receipt: Receipt


class Store:
    """The compiled wheels of a root.

    Args:
        folder: ``ROOT/.envbuild/wheels``; it need not be there yet.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def find(self, key: Key) -> Stored | None:
        """Return the wheel of a key, if it is there and is what its receipt says.

        Raises:
            OSError: it cannot be read.
        """
        folder = self._folder / key.package / key.sha256
        try:
            data = (folder / "receipt.json").read_bytes()
            statement = msgspec.json.decode(data, type=Statement[Receipt])
        except (FileNotFoundError, msgspec.DecodeError):
            return None
        receipt = statement.predicate
        if statement != _stated(receipt) or receipt.key != key.sha256 or receipt.inputs != key:
            return None
        wheel = folder / receipt.file
        # a name, not a path: the receipt may be anyone's
        if wheel.parent != folder or not wheel.is_file() or sha256_file(wheel) != receipt.sha256:
            return None
        return Stored(wheel, receipt)

    def put(self, wheel: Path, receipt: Receipt, log: Path) -> Stored:
        """Take a verified wheel in, in place of one of the same key.

        The receipt is removed first and comes last: half an entry is none.

        Args:
            wheel: the file.
            receipt: where it is from.
            log: the folder of its build's logs.

        Raises:
            OSError: it cannot be written.
        """
        folder = self._folder / receipt.inputs.package / receipt.key
        folder.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            (folder / "receipt.json").unlink()
        for old in folder.glob("*.whl"):
            old.unlink()
        durable.write(folder / wheel.name, wheel.read_bytes())
        for name in LOGS:
            shutil.copyfile(log / name, folder / name)
        intoto.write(folder / "receipt.json", _stated(receipt))
        return Stored(folder / wheel.name, receipt)


def _stated(receipt: Receipt) -> Statement[Receipt]:
    return intoto.statement(receipt.file, receipt.sha256, receipt, PREDICATE)
