"""Every rule for where a prefix stands and what lies in it: faults planted in a real one."""

from __future__ import annotations

import importlib.util
import json
import os
import py_compile
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from envbuild.findings import Finding
from envbuild.prefix import create
from envbuild.prefix.interpreter import Interpreter
from tests import projects
from tests.conftest import Envbuild
from tests.relocation import corpus
from tests.relocation.corpus import MINOR, PACKAGES, Found, Ground, Site

Plant = Callable[[Ground], None]


class Fault(msgspec.Struct, frozen=True):
    """A fault and what is found of it.

    Attributes:
        plant: plants it.
        found: all that a full verification finds.
        quick: the codes of what a quick look finds.
    """

    plant: Plant
    found: tuple[Found, ...]
    quick: tuple[str, ...]


FAULTS: dict[str, Fault] = {}


def plants(*found: Found, quick: str = "", root: bool = False) -> Callable[[Plant], Plant]:
    """Add a fault to the table.

    Args:
        found: see `Fault`.
        quick: see `Fault`.
        root: whether only root can plant it.
    """

    def add(plant: Plant) -> Plant:
        if not root or os.geteuid() == 0:
            FAULTS[plant.__name__] = Fault(plant, found, tuple(quick.split()))
        return plant

    return add


# what is said of a manifest that no rule explains
MANIFEST = Found(
    "P005",
    "error",
    "<PREFIX>",
    "it is not as it was when it was created, in a way that no rule names",
)


# what comes of an environment that was edited after its lock was made
STALE = Found(
    *("P005", "warning", "<PREFIX>"),
    "the lock is stale: override removed: pure>=1 since the lock was made",
    "a lock of envs/toy.toml as it is",
)


# where the links of an interpreter may lead
INSIDE = (
    "links inside <PREFIX>, <ROOT>/.envbuild/interpreters, <BASE>, /usr, /bin, /lib, /lib64, /opt"
)


# what comes of a change of the interpreter
TOUCHED = Found(
    *("I003", "error", "<PREFIX>/bin/python"),
    "files of its interpreter were changed since it was installed",
    *("the pinned Python <VERSION>, installed from its archive", "<BASE>/bin/<MINOR>"),
)


def changed(where: str) -> Found:
    return Found("M002", "error", where, "was changed since the prefix was created")


def edited(where: str, wheel: str) -> Found:
    return Found("M002", "error", where, f"is not as {wheel} has it")


def relinked(where: str) -> Found:
    return Found("M002", "error", where, "is another link than when the prefix was created")


def stray(where: str, severity: str = "error") -> Found:
    return Found(
        *("M002", severity, where, "belongs to no installed package"),
        *("files of installed packages, and what installers write", "a file of something else"),
    )


def gone(where: str, origin: str) -> Found:
    return Found("M002", "error", where, "is missing", f"as {origin} has it", "nothing")


# --- P001


@plants(
    Found(
        "P001",
        "error",
        "<TMP>/link",
        "is another name for the registered prefix",
        "<PREFIX>",
        "<TMP>/link, the same folder",
    ),
    quick="P001",
)
def reached_through_a_link_beside_it(at: Ground) -> None:
    at.path = at.tmp / "link"
    at.path.symlink_to(at.prefix)


@plants(
    Found(
        "P001",
        "error",
        "<PREFIX>",
        "is reached through a link",
        "<ROOT>/real",
        "<PREFIX> is a link",
    ),
    quick="P001",
)
def the_registered_path_is_a_link(at: Ground) -> None:
    at.keep(at.site.root / "real")
    at.prefix.rename(at.site.root / "real")
    at.prefix.symlink_to(at.site.root / "real")


@plants(
    Found(
        "P001",
        "error",
        "<TMP>/copy",
        "is not where the site registers this prefix",
        "<PREFIX>",
        "<TMP>/copy",
    ),
    quick="P001",
)
def a_copy_elsewhere(at: Ground) -> None:
    at.path = at.tmp / "copy"
    subprocess.run(["cp", "-a", at.prefix, at.path], check=True)


# --- P002


@plants(
    Found(
        "P002",
        "error",
        "<PACKAGES>/pure/one.py",
        "its mode keeps others out",
        "at least 0644",
        "0600",
    )
)
def a_file_that_a_umask_of_077_made(at: Ground) -> None:
    at.packages("pure/one.py").chmod(0o600)


@plants(
    Found("P002", "error", "<PACKAGES>/pure", "its mode keeps others out", "at least 0755", "0700")
)
def a_folder_that_a_umask_of_077_made(at: Ground) -> None:
    at.packages("pure").chmod(0o700)


@plants(
    Found(
        "P002",
        "error",
        "<PACKAGES>/pure/one.py",
        "its mode keeps its owner out",
        "at least 0644",
        "0044",
    ),
    root=True,
)
def a_file_that_its_owner_cannot_read(at: Ground) -> None:
    at.packages("pure/one.py").chmod(0o044)


@plants(
    Found(
        "P002",
        "error",
        "<PREFIX>/bin/tool",
        "its mode keeps its owner out",
        "at least 0755",
        "0644",
    ),
    quick="P002",
)
def a_script_that_nobody_may_run(at: Ground) -> None:
    (at.prefix / "bin/tool").chmod(0o644)


@plants(
    Found("P002", "error", "<PACKAGES>/pure/one.py", "everyone can write to it", "0644", "0666")
)
def a_file_that_everyone_can_write_to(at: Ground) -> None:
    at.packages("pure/one.py").chmod(0o666)


@plants(Found("P002", "error", "<PACKAGES>/pure", "everyone can write to it", "0755", "0777"))
def a_folder_that_everyone_can_write_to(at: Ground) -> None:
    at.packages("pure").chmod(0o777)


@plants(
    Found(
        "P002",
        "warning",
        "<ROOT>",
        "everyone can replace what is in a folder above the prefix",
        "a folder that others cannot write to, or a sticky one",
        "mode 0777",
    ),
    quick="P002",
)
def everyone_can_replace_the_prefix(at: Ground) -> None:
    at.keep(at.site.root).chmod(0o777)


@plants()
def a_sticky_folder_above(at: Ground) -> None:
    at.keep(at.site.root).chmod(0o1777)


@plants(
    Found("P002", "warning", "<PREFIX>", "belongs to another user", "uid 0", "uid 12345"),
    quick="P002",
    root=True,
)
def another_owner(at: Ground) -> None:
    for path in [at.prefix, *at.prefix.rglob("*")]:
        os.lchown(path, 12345, 12345)


@plants(
    Found(
        "P002",
        "error",
        "<PACKAGES>/pure/one.py",
        "belongs to another user than the prefix",
        "uid 0",
        "uid 12345",
    ),
    root=True,
)
def a_file_of_another_owner(at: Ground) -> None:
    os.chown(at.packages("pure/one.py"), 12345, -1)


@plants(
    Found(
        "P002",
        "warning",
        "<ROOT>",
        "a folder above the prefix belongs to another user, who can replace the prefix",
        "uid 0 or 0",
        "uid 12345",
    ),
    quick="P002",
    root=True,
)
def a_folder_above_of_another_owner(at: Ground) -> None:
    at.undo.callback(os.chown, at.site.root, os.geteuid(), -1)
    os.chown(at.site.root, 12345, -1)


# --- P003


@plants(
    Found(
        "P003",
        "error",
        "<PREFIX>/bin/run-data",
        "the kernel cuts its first line off",
        "at most 30 bytes, or the form that starts with #!/bin/sh",
        "<SHEBANG> bytes",
    ),
    Found(
        "P003",
        "error",
        "<PREFIX>/bin/tool",
        "the kernel cuts its first line off",
        "at most 30 bytes, or the form that starts with #!/bin/sh",
        "<SHEBANG> bytes",
    ),
    Found(
        "P003",
        "error",
        "<PREFIX>/bin/tool-gui",
        "the kernel cuts its first line off",
        "at most 30 bytes, or the form that starts with #!/bin/sh",
        "<SHEBANG> bytes",
    ),
    quick="P003 P003 P003",
)
def shebangs_longer_than_the_site_takes(at: Ground) -> None:
    at.change(at.site.project.folder / "sites/local.toml", "root =", "shebang-limit = 30\nroot =")


@plants(
    changed("<PREFIX>/bin/run-data"),
    Found(
        "P003",
        "error",
        "<PREFIX>/bin/run-data",
        "the kernel cuts its first line off",
        "at most 127 bytes, or the form that starts with #!/bin/sh",
        "<LONG> bytes",
    ),
    quick="M002 P003",
)
def a_shebang_longer_than_the_kernel_takes(at: Ground) -> None:
    at.change(at.prefix / "bin/run-data", "bin/python", "bin/python -" + "X" * 127)


# --- P004


@plants(
    Found(
        "P004",
        "error",
        "<ROOT>/.envbuild/journal/toy.json",
        "was left by a run that did not end",
        "nothing unfinished of <PREFIX>",
        "<ROOT>/.envbuild/journal/toy.json",
    ),
    quick="P004",
)
def a_journal_left_over(at: Ground) -> None:
    at.new(at.site.layout.bookkeeping / "journal/toy.json", "{}")


@plants(
    Found(
        "P004",
        "error",
        "<ROOT>/.envbuild/work/toy@1",
        "was left by a run that did not end",
        "nothing unfinished of <PREFIX>",
        "<ROOT>/.envbuild/work/toy@1",
    ),
    quick="P004",
)
def a_staging_folder_left_over(at: Ground) -> None:
    at.new(at.site.layout.bookkeeping / "work/toy@1/prefix/bin/python")


@plants()
def a_journal_of_another_environment(at: Ground) -> None:
    at.new(at.site.layout.bookkeeping / "journal/other.json", "{}")


# --- P005


@plants(
    Found(
        "P005",
        "error",
        "<PREFIX>",
        "no receipt says what it was built from",
        "<ROOT>/.envbuild/receipts/toy.json",
        "there is none",
    ),
    quick="P005",
)
def no_receipt(at: Ground) -> None:
    at.keep(at.site.layout.bookkeeping / "receipts/toy.json").unlink()


@plants(
    Found(
        "P005",
        "error",
        "<PREFIX>",
        "no receipt says what it was built from",
        "<ROOT>/.envbuild/receipts/toy.json",
        "one that cannot be read",
    ),
    quick="P005",
)
def a_receipt_that_cannot_be_read(at: Ground) -> None:
    at.new(at.site.layout.bookkeeping / "receipts/toy.json", "{}")


@plants(
    Found("P005", "error", "<PREFIX>", "its receipt is of another path", "<PREFIX>"),
    quick="P005",
)
def a_receipt_of_another_place(at: Ground) -> None:
    at.receipt(lambda known: msgspec.structs.replace(known, prefix="/elsewhere/toy"))


@plants(
    Found("P005", "error", "<PREFIX>", "the lock has changed", "as its receipt says"), quick="P005"
)
def the_lock_has_changed(at: Ground) -> None:
    at.change(at.site.project.lock_file("toy"), "T00:00:00Z", "T01:00:00Z")


@plants(
    Found(
        "P005",
        "error",
        "<PREFIX>",
        "there is no lock to compare it with",
        "locks/pylock.toy.toml and the pin of its interpreter",
    ),
    quick="P005",
)
def no_lock(at: Ground) -> None:
    at.keep(at.site.project.lock_file("toy")).unlink()


@plants(
    Found(
        "P005",
        "error",
        "<PREFIX>",
        "its checks, projects, interpreter or site have changed",
        "as its receipt says",
    ),
    quick="P005",
)
def checks_were_declared_since(at: Ground) -> None:
    file = at.site.project.environment_file("toy")
    at.change(file, "[[editable]]", '[checks]\nimports = ["pure"]\n[[editable]]')


@plants(MANIFEST)
def a_receipt_of_another_manifest(at: Ground) -> None:
    at.receipt(lambda known: msgspec.structs.replace(known, manifest_sha256="0" * 64))


@plants(
    Found(
        "P002",
        "error",
        "<PACKAGES>/pure/one.py",
        "has another mode than when the prefix was created",
        "0644",
        "0755",
    )
)
def the_mode_of_a_file_was_changed(at: Ground) -> None:
    at.packages("pure/one.py").chmod(0o755)


@plants(relinked("<PREFIX>/lib64"))
def a_link_was_changed(at: Ground) -> None:
    at.link(at.prefix / "lib64", at.prefix / "lib")


# --- I001


@plants(
    Found(
        "I001",
        "error",
        "<PREFIX>/bin/python",
        "leads to a home folder",
        INSIDE,
        "<HOME>/bin/<MINOR>",
    ),
    Found(
        "I002",
        "error",
        "<PREFIX>/pyvenv.cfg",
        "names another folder than that of the interpreter",
        "home = <HOME>/bin",
        "home = <BASE>/bin",
    ),
    Found(
        "I003",
        "error",
        "<PREFIX>/bin/python",
        "is another interpreter than the prefix was created with",
        "<BASE>/bin/<MINOR>",
        "<HOME>/bin/<MINOR>",
    ),
    relinked("<PREFIX>/bin/python"),
    quick="I001 I002 I003 M002",
)
def an_interpreter_in_a_home_folder(at: Ground) -> None:
    at.new(Path.home() / "bin" / MINOR)
    shutil.copy2(at.site.python, Path.home() / "bin" / MINOR)
    at.link(at.prefix / "bin/python", Path.home() / "bin" / MINOR)


@plants(
    Found(
        "I001",
        "error",
        "<PREFIX>/bin/python",
        "leads to a cache",
        INSIDE,
        "<HOME>/.cache/uv/<MINOR>",
    ),
    Found(
        "I002",
        "error",
        "<PREFIX>/pyvenv.cfg",
        "names another folder than that of the interpreter",
        "home = <HOME>/.cache/uv",
        "home = <BASE>/bin",
    ),
    Found(
        "I003",
        "error",
        "<PREFIX>/bin/python",
        "is another interpreter than the prefix was created with",
        "<BASE>/bin/<MINOR>",
        "<HOME>/.cache/uv/<MINOR>",
    ),
    relinked("<PREFIX>/bin/python"),
    quick="I001 I002 I003 M002",
)
def an_interpreter_in_a_cache(at: Ground) -> None:
    cached = Path.home() / ".cache/uv" / MINOR
    at.new(cached)
    shutil.copy2(at.site.python, cached)
    at.link(at.prefix / "bin/python", cached)


@plants(
    Found(
        "I001",
        "error",
        "<PREFIX>/bin/python",
        "leads to the prefix of other",
        INSIDE,
        "<OTHER>/bin/python",
    ),
    relinked("<PREFIX>/bin/python"),
    quick="I001 M002",
)
def an_interpreter_of_another_prefix(at: Ground) -> None:
    at.new(at.site.root / "other/bin/x").unlink()
    at.link(at.site.root / "other/bin/python", at.site.python)
    at.link(at.prefix / "bin/python", at.site.root / "other/bin/python")


@plants(
    Found(
        "I001",
        "error",
        "<PREFIX>/bin/python",
        "leads to a folder that the site does not declare",
        INSIDE,
        "<TMP>/python",
    ),
    relinked("<PREFIX>/bin/python"),
    quick="I001 M002",
)
def a_detour_through_a_folder_of_nobodys(at: Ground) -> None:
    at.link(at.tmp / "python", at.site.python)
    at.link(at.prefix / "bin/python", at.tmp / "python")


@plants(
    Found(
        "I001",
        "error",
        "<PREFIX>/bin/python",
        "leads to nothing that runs",
        "an executable file",
        "<BASE>/bin/gone",
    ),
    relinked("<PREFIX>/bin/python"),
    quick="I001 M002",
)
def an_interpreter_that_is_gone(at: Ground) -> None:
    at.link(at.prefix / "bin/python", at.site.home / "bin/gone")


@plants(
    Found("I001", "error", "<PREFIX>/bin/python", "is not there", "the prefix's interpreter"),
    Found(
        "I001",
        "error",
        "<PREFIX>/bin/python3",
        "leads to nothing that runs",
        "an executable file",
        "<PREFIX>/bin/python",
    ),
    gone("<PREFIX>/bin/python", "the receipt"),
    quick="I001 I001",
)
def no_interpreter(at: Ground) -> None:
    (at.prefix / "bin/python").unlink()


@plants(
    Found(
        "I001",
        "error",
        "<PREFIX>/bin/python",
        "leads to nothing that runs",
        "an executable file",
        "<PREFIX>/bin/python",
    ),
    Found(
        "I001",
        "error",
        "<PREFIX>/bin/python3",
        "leads to nothing that runs",
        "an executable file",
        "<PREFIX>/bin/python3",
    ),
    relinked("<PREFIX>/bin/python"),
    quick="I001 I001 M002",
)
def links_in_a_circle(at: Ground) -> None:
    at.link(at.prefix / "bin/python", "python3")


# --- I002


@plants(
    Found(
        "I002",
        "error",
        "<PREFIX>/pyvenv.cfg",
        "does not say where the interpreter is",
        "home = the folder of the interpreter",
        "no such file",
    ),
    gone("<PREFIX>/pyvenv.cfg", "the receipt"),
    quick="I002",
)
def no_pyvenv_cfg(at: Ground) -> None:
    (at.prefix / "pyvenv.cfg").unlink()


@plants(
    Found(
        "I002",
        "error",
        "<PREFIX>/pyvenv.cfg",
        "does not say where the interpreter is",
        "home = the folder of the interpreter",
        "no such line",
    ),
    changed("<PREFIX>/pyvenv.cfg"),
    quick="I002 M002",
)
def pyvenv_cfg_without_a_home(at: Ground) -> None:
    at.change(at.prefix / "pyvenv.cfg", "home = ", "house = ")


@plants(
    Found(
        "I002",
        "error",
        "<PREFIX>/pyvenv.cfg",
        "names a folder that is not there",
        "the folder of the interpreter",
        "home = /gone/bin",
    ),
    changed("<PREFIX>/pyvenv.cfg"),
    quick="I002 M002",
)
def a_home_that_is_gone(at: Ground) -> None:
    at.change(at.prefix / "pyvenv.cfg", f"home = {at.site.home}/bin", "home = /gone/bin")


@plants(
    Found(
        "I002",
        "error",
        "<PREFIX>/pyvenv.cfg",
        "names another folder than that of the interpreter",
        "home = <BASE>/bin",
        "home = <TMP>",
    ),
    changed("<PREFIX>/pyvenv.cfg"),
    quick="I002 M002",
)
def another_home(at: Ground) -> None:
    at.change(at.prefix / "pyvenv.cfg", f"home = {at.site.home}/bin", f"home = {at.tmp}")


@plants(
    Found(
        "I002",
        "error",
        "<PREFIX>/pyvenv.cfg",
        "is of another Python than the interpreter",
        None,
        "3.8.1",
    ),
    changed("<PREFIX>/pyvenv.cfg"),
    quick="I002 M002",
)
def another_minor_version(at: Ground) -> None:
    at.change(at.prefix / "pyvenv.cfg", "version_info = ", "version_info = 3.8.1\nwas = ")


@plants(
    TOUCHED,
    Found(
        "I002",
        "warning",
        "<PREFIX>/pyvenv.cfg",
        "the interpreter was replaced by another release of it",
        "<VERSION>",
        "3.99.1",
    ),
    quick="I002",
)
def another_release_in_place_of_the_interpreter(at: Ground) -> None:
    at.new(at.site.home / "include" / MINOR / "patchlevel.h", '#define PY_VERSION "3.99.1"\n')


@plants(
    Found(
        "I002",
        "error",
        "<PREFIX>/pyvenv.cfg",
        "lets in the packages of the interpreter itself",
        "include-system-site-packages = false",
        "include-system-site-packages = true",
    ),
    changed("<PREFIX>/pyvenv.cfg"),
    quick="I002 M002",
)
def the_interpreters_own_packages(at: Ground) -> None:
    at.change(at.prefix / "pyvenv.cfg", "site-packages = false", "site-packages = True")


# --- I003


@plants(
    Found(
        "I003",
        "error",
        "<PREFIX>/bin/python",
        "an installed Python stands in for the pinned one",
        "the pinned Python <VERSION>",
        "Python <VERSION> at <BASE>/bin/<MINOR>",
    ),
    quick="I003",
)
def an_interpreter_that_stands_in(at: Ground) -> None:
    at.receipt(
        lambda known: msgspec.structs.replace(
            known, interpreter=Interpreter(str(at.site.python), at.site.pin.version, "fallback")
        )
    )


@plants(
    Found(
        "I003",
        "warning",
        "<PREFIX>/bin/python",
        "an installed Python stands in for the pinned one",
        "the pinned Python <VERSION>",
        "Python <VERSION> at <BASE>/bin/<MINOR>",
    ),
    quick="I003",
)
def an_interpreter_that_may_stand_in(at: Ground) -> None:
    at.change(
        at.site.project.folder / "sites/local.toml", "root =", "unpinned-interpreter = true\nroot ="
    )
    at.receipt(
        lambda known: msgspec.structs.replace(
            known, interpreter=Interpreter(str(at.site.python), at.site.pin.version, "fallback")
        )
    )


@plants(
    Found(
        "I003",
        "error",
        "<PREFIX>/bin/python",
        "an installed Python stands in for the pinned one",
        "the pinned Python <VERSION>",
        "Python <VERSION> at <BASE>/bin/<MINOR>",
    ),
    quick="I003",
)
def another_archive(at: Ground) -> None:
    at.receipt(
        lambda known: msgspec.structs.replace(
            known, interpreter=msgspec.structs.replace(known.interpreter, archive_sha256="0" * 64)
        )
    )


@plants(
    Found(
        "I003",
        "error",
        "<PREFIX>/bin/python",
        "its interpreter's installation has no record that fits the pin",
        "the pinned Python <VERSION>, installed from its archive",
        "<BASE>/bin/<MINOR>",
    ),
    quick="I003",
)
def an_installation_without_a_record(at: Ground) -> None:
    at.keep(at.site.home.parent / "receipt.json").unlink()


@plants(
    Found(
        "I002",
        "error",
        "<PREFIX>/pyvenv.cfg",
        "names another folder than that of the interpreter",
        "home = <ROOT>/.envbuild/interpreters/twin/bin",
        "home = <BASE>/bin",
    ),
    Found(
        "I003",
        "error",
        "<PREFIX>/bin/python",
        "is another interpreter than the prefix was created with",
        "<BASE>/bin/<MINOR>",
        "<ROOT>/.envbuild/interpreters/twin/bin/<MINOR>",
    ),
    relinked("<PREFIX>/bin/python"),
    quick="I002 I003 M002",
)
def another_interpreter_of_the_site(at: Ground) -> None:
    twin = at.site.layout.interpreters / "twin/bin" / MINOR
    at.new(twin)
    shutil.copy2(at.site.python, twin)
    at.link(at.prefix / "bin/python", twin)


@plants(TOUCHED)
def a_module_of_the_interpreter_changed(at: Ground) -> None:
    at.change(at.site.home / f"lib/{MINOR}/os.py", "import", "import  ")


# --- I004


@plants(
    TOUCHED,
    Found(
        "I004",
        "error",
        "<BASE>/lib/<MINOR>/_sysconfigdata__linux_x86_64-linux-gnu.py",
        "names a folder of the interpreter's own build, which is not here",
        "prefix in <BASE>",
        "prefix = /install",
    ),
    quick="I004",
)
def configuration_of_the_build(at: Ground) -> None:
    (file,) = at.site.home.glob(f"lib/{MINOR}/_sysconfigdata_*.py")
    at.keep(file)
    file.write_text("# x\nbuild_time_vars = {'prefix': '/install', 'LIBDIR': '/install/lib'}\n")


@plants(
    TOUCHED,
    Found(
        "I004",
        "error",
        f"<BASE>/lib/pkgconfig/python-{projects.MINOR}.pc",
        "names a folder of the interpreter's own build, which is not here",
        "prefix in <BASE>",
        "prefix = /install",
    ),
    quick="I004",
)
def pkg_config_of_the_build(at: Ground) -> None:
    at.new(
        at.site.home / f"lib/pkgconfig/python-{projects.MINOR}.pc",
        "# See: man pkg-config\nprefix=/install\nexec_prefix=${prefix}\n",
    )


@plants(
    TOUCHED,
    Found(
        "I004",
        "error",
        "<BASE>/bin/<MINOR>-config",
        "names a folder of the interpreter's own build, which is not here",
        "prefix in <BASE>",
        "prefix = /install",
    ),
    quick="I004",
)
def a_config_script_of_the_build(at: Ground) -> None:
    at.new(
        at.site.home / f"bin/{MINOR}-config",
        '#!/bin/sh\nprefix="/install"\nexec_prefix="${prefix}"\n',
    )


@plants(TOUCHED)
def configuration_of_this_place(at: Ground) -> None:
    at.new(at.site.home / f"lib/pkgconfig/python-{projects.MINOR}.pc", f"prefix={at.site.home}\n")


# --- M001


def distribution(at: Ground, name: str, version: str) -> None:
    folder = at.packages(f"{name}-{version}.dist-info")
    at.new(folder / "METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


@plants(
    Found(
        "M001",
        "error",
        "<PACKAGES>/stray-1.0.dist-info",
        "stray is not in the lock",
        "nothing",
        "1.0",
    ),
    stray("<PACKAGES>/stray-1.0.dist-info/METADATA", "warning"),
    quick="M001",
)
def a_distribution_too_many(at: Ground) -> None:
    distribution(at, "stray", "1.0")


@plants(
    Found("M001", "error", "<PREFIX>", "pathy is not installed", "1.0", "nothing"),
    gone("<PACKAGES>/pathy-1.0.dist-info/INSTALLER", "the receipt"),
    gone("<PACKAGES>/pathy-1.0.dist-info/METADATA", "pathy-1.0-py3-none-any.whl"),
    gone("<PACKAGES>/pathy-1.0.dist-info/RECORD", "the receipt"),
    gone("<PACKAGES>/pathy-1.0.dist-info/REQUESTED", "the receipt"),
    gone("<PACKAGES>/pathy-1.0.dist-info/WHEEL", "pathy-1.0-py3-none-any.whl"),
    gone("<PACKAGES>/pathy-1.0.dist-info/uv_cache.json", "the receipt"),
    quick="M001",
)
def a_distribution_less(at: Ground) -> None:
    shutil.rmtree(at.packages("pathy-1.0.dist-info"))


@plants(
    Found(
        "M001",
        "error",
        "<PACKAGES>/Speedy-0.9.dist-info",
        "speedy is of another version than the lock says",
        "1.0",
        "0.9",
    ),
    Found(
        "M001",
        "error",
        "<PACKAGES>/speedy-1.0.dist-info",
        "speedy is installed twice",
        "one version",
        "0.9 and 1.0",
    ),
    stray("<PACKAGES>/Speedy-0.9.dist-info/METADATA", "warning"),
    quick="M001 M001",
)
def a_distribution_twice(at: Ground) -> None:
    distribution(at, "Speedy", "0.9")


@plants(
    Found(
        "M001",
        "error",
        "<PACKAGES>/speedy-1.0.dist-info",
        "speedy is of another version than the lock says",
        "1.0",
        "1.0.1",
    ),
    edited("<PACKAGES>/speedy-1.0.dist-info/METADATA", "speedy-1.0-py3-none-any.whl"),
)
def another_version(at: Ground) -> None:
    at.change(at.packages("speedy-1.0.dist-info/METADATA"), "Version: 1.0", "Version: 1.0.1")


@plants(edited("<PACKAGES>/speedy-1.0.dist-info/METADATA", "speedy-1.0-py3-none-any.whl"))
def an_equal_version(at: Ground) -> None:
    at.change(at.packages("speedy-1.0.dist-info/METADATA"), "Version: 1.0", "Version: 1.0.0")


# --- M002


@plants(edited("<PACKAGES>/pure/données.txt", "pure-1.0-py3-none-any.whl"))
def a_byte_more(at: Ground) -> None:
    with at.packages("pure/données.txt").open("ab") as file:
        file.write(b"x")


@plants(gone("<PREFIX>/share/datafull/table.csv", "datafull-1.0-py3-none-any.whl"))
def a_file_of_data_gone(at: Ground) -> None:
    (at.prefix / "share/datafull/table.csv").unlink()


@plants(
    edited("<PREFIX>/include/site/<MINOR>/datafull/datafull.h", "datafull-1.0-py3-none-any.whl")
)
def a_header_changed(at: Ground) -> None:
    (at.prefix / f"include/site/{MINOR}/datafull/datafull.h").write_text("")


@plants(
    stray("<PACKAGES>/pure/__pycache__/one.<TAG>.pyc"),
    gone("<PACKAGES>/pure/one.py", "pure-1.0-py3-none-any.whl"),
)
def a_module_gone(at: Ground) -> None:
    at.packages("pure/one.py").unlink()


@plants()
def byte_code_gone(at: Ground) -> None:
    shutil.rmtree(at.packages("pure/__pycache__"))


@plants(stray("<PACKAGES>/sitecustomize.py"))
def a_stray_module(at: Ground) -> None:
    at.new(at.packages("sitecustomize.py"), "X = 1\n")


@plants(stray("<PACKAGES>/pure/ünique.py"))
def a_stray_module_in_a_package(at: Ground) -> None:
    at.new(at.packages("pure/ünique.py"), "X = 1\n")


@plants(stray("<PACKAGES>/pure/notes.txt", "warning"))
def a_stray_file_of_data(at: Ground) -> None:
    at.new(at.packages("pure/notes.txt"), "x\n")


@plants(stray("<PREFIX>/bin/pip"))
def a_stray_program(at: Ground) -> None:
    at.new(at.prefix / "bin/pip", "#!/bin/sh\n").chmod(0o755)


@plants(stray("<PACKAGES>/pure/__pycache__/three.<TAG>.pyc"))
def byte_code_of_no_source(at: Ground) -> None:
    at.new(
        at.packages(f"pure/__pycache__/three.{sys.implementation.cache_tag}.pyc"),
        f"{at.prefix}/{PACKAGES}/pure/three.py",
    )


@plants(
    stray("<PACKAGES>/pipe", "warning"),
    Found(
        "M002",
        "error",
        "<PACKAGES>/pipe",
        "is neither a file nor a folder nor a link",
        "files of installed packages, and what installers write",
        "prw-r--r--",
    ),
)
def a_stray_pipe(at: Ground) -> None:
    os.mkfifo(at.packages("pipe"), 0o644)


@plants(
    Found(
        "M002",
        "error",
        "<PREFIX>/bin/tool",
        "is not what an installer writes for an entry point: it calls `sys.exit(exec('x'))`",
        "a call of tool:main, by tool-2.0-py3-none-any.whl",
    ),
    changed("<PREFIX>/bin/tool"),
    quick="M002",
)
def a_script_that_calls_something_else(at: Ground) -> None:
    at.change(at.prefix / "bin/tool", "main()", "exec('x')")


@plants(gone("<PREFIX>/bin/tool-gui", "tool-2.0-py3-none-any.whl"))
def a_script_gone(at: Ground) -> None:
    (at.prefix / "bin/tool-gui").unlink()


@plants(changed("<PACKAGES>/tool-2.0.dist-info/INSTALLER"))
def another_installer(at: Ground) -> None:
    at.new(at.packages("tool-2.0.dist-info/INSTALLER"), "conda\n")


@plants(changed("<PACKAGES>/tool-2.0.dist-info/RECORD"))
def a_record_changed(at: Ground) -> None:
    at.change(at.packages("tool-2.0.dist-info/RECORD"), "tool.py,sha256=", "tool.py,sha256=A")


@plants(edited("<PREFIX>/bin/run-data", "datafull-1.0-py3-none-any.whl"), quick="M002")
def a_script_of_a_wheel_poisoned(at: Ground) -> None:
    with (at.prefix / "bin/run-data").open("a") as file:
        file.write("import os\n")


@plants(edited("<PREFIX>/bin/run-shell", "datafull-1.0-py3-none-any.whl"))
def a_script_of_the_shell_poisoned(at: Ground) -> None:
    with (at.prefix / "bin/run-shell").open("a") as file:
        file.write("x\n")


@plants(*(stray(f"<PACKAGES>/stray{number:02}.py") for number in range(15)))
def many_alike(at: Ground) -> None:
    for number in range(15):
        at.new(at.packages(f"stray{number:02}.py"), "X = 1\n")


@plants(changed("<PACKAGES>/mine-1.dist-info/METADATA"))
def an_editable_projects_metadata(at: Ground) -> None:
    at.change(at.packages("mine-1.dist-info/METADATA"), "Name: mine", "Summary: x\nName: mine")


@plants(stray("<PACKAGES>/shadow"))
def a_link_to_a_folder_beside_packages(at: Ground) -> None:
    at.new(at.tmp / "shadow/__init__.py")
    at.link(at.packages("shadow"), at.tmp / "shadow")


@plants(stray("<PREFIX>/bin/re/__init__.py"))
def a_package_beside_scripts(at: Ground) -> None:
    at.new(at.prefix / "bin/re/__init__.py")


@plants(stray("<PREFIX>/bin/activate.evil"), quick="")
def what_looks_like_an_installers(at: Ground) -> None:
    at.new(at.prefix / "bin/activate.evil", "x\n")


@plants(
    Found(
        "P002",
        "error",
        "<PREFIX>/bin/tool",
        "runs with the rights of its owner or group",
        "0755",
        "4755",
    ),
    stray("<PACKAGES>/note.txt", "warning"),
    quick="P002",
)
def set_uid_beside_a_stray_file(at: Ground) -> None:
    at.keep(at.prefix / "bin/tool").chmod(0o4755)
    at.new(at.packages("note.txt"))


# --- M003


@plants(
    changed("<PACKAGES>/mine-1.dist-info/direct_url.json"),
    Found(
        "M003",
        "error",
        "<PACKAGES>/mine-1.dist-info/direct_url.json",
        "mine is another project than the environment declares",
        "<ROOT>/mine",
        "<TMP>",
    ),
    quick="M003",
)
def an_editable_project_outside_the_root(at: Ground) -> None:
    at.change(
        at.packages("mine-1.dist-info/direct_url.json"), str(at.site.root / "mine"), str(at.tmp)
    )


@plants(
    changed("<PACKAGES>/mine-1.dist-info/direct_url.json"),
    Found(
        "M003",
        "error",
        "<PACKAGES>/mine-1.dist-info/direct_url.json",
        "mine is another project than the environment declares",
        "<ROOT>/mine",
        "<ROOT>/yours",
    ),
    quick="M003",
)
def another_editable_project(at: Ground) -> None:
    at.change(at.packages("mine-1.dist-info/direct_url.json"), "/mine", "/yours")


@plants(
    Found(
        "M003",
        "error",
        "<PACKAGES>/mine-1.dist-info/direct_url.json",
        "the project of mine is not there",
        "<ROOT>/mine",
        "no such folder",
    ),
    quick="M003",
)
def an_editable_project_that_is_gone(at: Ground) -> None:
    mine = at.site.root / "mine"
    at.undo.callback((at.tmp / "mine").rename, mine)
    mine.rename(at.tmp / "mine")


@plants(
    stray("<PACKAGES>/tool-2.0.dist-info/direct_url.json", "warning"),
    Found(
        "M003",
        "error",
        "<PACKAGES>/tool-2.0.dist-info/direct_url.json",
        "tool was installed from elsewhere than the lock's wheel",
        "no direct_url.json",
        "file:///elsewhere/tool-2.0-py3-none-any.whl",
    ),
    quick="M003",
)
def a_wheel_from_elsewhere(at: Ground) -> None:
    at.new(
        at.packages("tool-2.0.dist-info/direct_url.json"),
        '{"url": "file:///elsewhere/tool-2.0-py3-none-any.whl", "archive_info": {}}',
    )


@plants(
    stray("<PACKAGES>/tool-2.0.dist-info/direct_url.json", "warning"),
    Found(
        "M003",
        "error",
        "<PACKAGES>/tool-2.0.dist-info/direct_url.json",
        "tool was installed from elsewhere than the lock's wheel",
        "no direct_url.json",
        "cannot be read",
    ),
    quick="M003",
)
def a_direct_url_that_is_none(at: Ground) -> None:
    at.new(at.packages("tool-2.0.dist-info/direct_url.json"), "[]")


@plants(
    stray("<PACKAGES>/__editable___mine_1_finder.py"),
    Found(
        "M003",
        "error",
        "<PACKAGES>/__editable___mine_1_finder.py",
        "finds modules outside the prefix and the root",
        "folders in <PREFIX> or folders in <ROOT>",
        "<TMP>/mine",
    ),
)
def a_finder_of_modules_outside(at: Ground) -> None:
    at.new(
        at.packages("__editable___mine_1_finder.py"),
        f"MAPPING: dict[str, str] = {{'mine': '{at.tmp}/mine'}}\n",
    )


@plants(stray("<PACKAGES>/__editable___mine_1_finder.py"))
def a_finder_of_modules_inside(at: Ground) -> None:
    at.new(
        at.packages("__editable___mine_1_finder.py"),
        f"MAPPING: dict[str, str] = {{'mine': '{at.site.root}/mine'}}\n",
    )


@plants(
    changed("<PACKAGES>/mine-1.dist-info/direct_url.json"),
    Found(
        "M003",
        "error",
        "<PACKAGES>/mine-1.dist-info/direct_url.json",
        "mine is installed in editable form from outside",
        "a folder in <PREFIX> or a folder in <ROOT>",
        "/usr/lib",
    ),
    quick="M003",
)
def an_editable_project_that_always_was_outside(at: Ground) -> None:
    at.change(
        at.packages("mine-1.dist-info/direct_url.json"), str(at.site.root / "mine"), "/usr/lib"
    )
    at.receipt(
        lambda known: msgspec.structs.replace(
            known,
            distributions=tuple(
                msgspec.structs.replace(one, editable="/usr/lib") if one.editable else one
                for one in known.distributions
            ),
        )
    )


# --- M004


@plants(
    Found(
        "M004",
        "error",
        "<PACKAGES>/picky-1.0.dist-info",
        "picky 1.0 requires pure, which is of another version",
        "pure >=5",
        "pure 1.0",
    ),
    STALE,
    quick="P005",
)
def an_override_that_is_not_declared_any_more(at: Ground) -> None:
    at.change(at.site.project.environment_file("toy"), 'overrides = ["pure>=1"]\n', "")


@plants(
    edited("<PACKAGES>/tool-2.0.dist-info/METADATA", "tool-2.0-py3-none-any.whl"),
    Found(
        "M004",
        "error",
        "<PACKAGES>/tool-2.0.dist-info",
        "tool 2.0 requires nowhere, which is not installed",
        "nowhere >=3",
        "nothing",
    ),
)
def a_requirement_that_is_not_there(at: Ground) -> None:
    with at.packages("tool-2.0.dist-info/METADATA").open("a") as file:
        file.write("Requires-Dist: nowhere>=3\n")


@plants(
    edited("<PACKAGES>/several-1.0.dist-info/METADATA", "several-1.0-py3-none-any.whl"),
    Found(
        "M004",
        "error",
        "<PACKAGES>/several-1.0.dist-info",
        "several 1.0 requires speedy, which is of another version",
        "speedy >=9",
        "speedy 1.0",
    ),
)
def a_requirement_of_an_extra(at: Ground) -> None:
    at.change(at.packages("several-1.0.dist-info/METADATA"), "speedy>=1", "speedy>=9")


@plants(edited("<PACKAGES>/tool-2.0.dist-info/METADATA", "tool-2.0-py3-none-any.whl"))
def requirements_that_do_not_apply(at: Ground) -> None:
    with at.packages("tool-2.0.dist-info/METADATA").open("a") as file:
        file.write(
            "Requires-Dist: nowhere; sys_platform == 'win32'\n"
            "Requires-Dist: nowhere; extra == 'slow'\nRequires-Dist: >=broken\n"
        )


@plants(
    Found("M001", "error", "<PREFIX>", "speedy is not installed", "1.0", "nothing"),
    stray("<PACKAGES>/__pycache__/speedy.<TAG>.pyc"),
    gone("<PACKAGES>/speedy-1.0.dist-info/INSTALLER", "the receipt"),
    gone("<PACKAGES>/speedy-1.0.dist-info/METADATA", "speedy-1.0-py3-none-any.whl"),
    gone("<PACKAGES>/speedy-1.0.dist-info/RECORD", "the receipt"),
    gone("<PACKAGES>/speedy-1.0.dist-info/REQUESTED", "the receipt"),
    gone("<PACKAGES>/speedy-1.0.dist-info/WHEEL", "speedy-1.0-py3-none-any.whl"),
    gone("<PACKAGES>/speedy-1.0.dist-info/uv_cache.json", "the receipt"),
    gone("<PACKAGES>/speedy.py", "speedy-1.0-py3-none-any.whl"),
    Found(
        "M004",
        "error",
        "<PACKAGES>/several-1.0.dist-info",
        "several 1.0 requires speedy, which is not installed",
        "speedy >=1",
        "nothing",
    ),
    quick="M001",
)
def required_and_gone(at: Ground) -> None:
    for path in ("speedy-1.0.dist-info", "speedy.py"):
        corpus.remove(at.packages(path))


@plants(STALE, quick="P005")
def required_and_excluded(at: Ground) -> None:
    at.change(
        at.site.project.environment_file("toy"), 'overrides = ["pure>=1"]', 'excludes = ["pure"]'
    )


# --- M005


@plants(
    Found(
        "M005",
        "error",
        "<PACKAGES>/pure/one.py",
        "is one file with another outside the prefix: who edits that, edits this",
        "1 name, in the prefix",
        "2 names",
    )
)
def a_file_shared_with_a_cache(at: Ground) -> None:
    os.link(at.packages("pure/one.py"), at.tmp / "one.py")


@plants(
    Found(
        "M005",
        "error",
        "<PACKAGES>/pure/one.py",
        "is one file with another outside the prefix: who edits that, edits this",
        "2 names, in the prefix",
        "3 names",
    )
)
def files_shared_within_and_without(at: Ground) -> None:
    at.packages("pure/two.py").unlink()
    os.link(at.packages("pure/one.py"), at.packages("pure/two.py"))
    os.link(at.packages("pure/one.py"), at.tmp / "one.py")


@plants()
def two_names_in_the_prefix(at: Ground) -> None:
    at.packages("pure/two.py").unlink()
    os.link(at.packages("pure/one.py"), at.packages("pure/two.py"))


@plants(
    Found(
        "P005",
        "error",
        "<PREFIX>",
        "its checks, projects, interpreter or site have changed",
        "as its receipt says",
    ),
    quick="P005",
)
def shared_where_the_site_wants_it(at: Ground) -> None:
    at.change(
        at.site.project.folder / "sites/local.toml", "root =", 'link-mode = "hardlink"\nroot ='
    )
    os.link(at.packages("pure/one.py"), at.tmp / "one.py")


# --- T001


@plants(
    changed("<PREFIX>/bin/run-data"),
    Found(
        "T001",
        "error",
        "<PREFIX>/bin/run-data",
        "is run by another interpreter",
        "<PREFIX>/bin/python",
        "#!/elsewhere/toy/bin/python",
    ),
    quick="M002 T001",
)
def a_script_of_another_prefix(at: Ground) -> None:
    at.change(at.prefix / "bin/run-data", str(at.prefix), "/elsewhere/toy")


@plants(
    changed("<PREFIX>/bin/run-data"),
    Found(
        "T001",
        "error",
        "<PREFIX>/bin/run-data",
        "is run by another interpreter",
        "<PREFIX>/bin/python",
        "/else where/toy/bin/python",
    ),
    quick="M002 T001",
)
def a_script_of_another_prefix_by_the_shell(at: Ground) -> None:
    at.change(
        at.prefix / "bin/run-data",
        f"#!{at.prefix}/bin/python\n",
        "#!/bin/sh\n'''exec' '/else where/toy/bin/python' \"$0\" \"$@\"\n' '''\n",
    )


@plants(changed("<PREFIX>/bin/run-data"), quick="M002")
def a_script_of_this_prefix_by_the_shell(at: Ground) -> None:
    at.change(
        at.prefix / "bin/run-data",
        f"#!{at.prefix}/bin/python\n",
        f"#!/bin/sh\n'''exec' '{at.prefix}/bin/python' \"$0\" \"$@\"\n' '''\n",
    )


@plants(
    changed("<PREFIX>/bin/run-data"),
    Found(
        "T001",
        "warning",
        "<PREFIX>/bin/run-data",
        "is run by whatever Python comes first on PATH",
        "<PREFIX>/bin/python",
        "#!/usr/bin/env python3",
    ),
    quick="M002 T001",
)
def a_script_of_whatever_comes_first(at: Ground) -> None:
    at.change(at.prefix / "bin/run-data", f"{at.prefix}/bin/python", "/usr/bin/env python3")


@plants(
    changed("<PREFIX>/bin/tool"),
    Found(
        "T001",
        "error",
        "<PREFIX>/bin/tool",
        "is run by another interpreter",
        "<PREFIX>/bin/python",
        "#!<OTHER>/bin/python",
    ),
    Found(
        "T004",
        "error",
        "<PREFIX>/bin/tool:1",
        "names the prefix of other",
        "paths in <PREFIX>",
        "<OTHER>",
    ),
    quick="M002 T001 T004",
)
def an_entry_point_of_another_prefix(at: Ground) -> None:
    at.change(at.prefix / "bin/tool", str(at.prefix), str(at.site.root / "other"))


# --- T002


@plants(
    stray("<PACKAGES>/stray.pth"),
    Found(
        "T002",
        "error",
        "<PACKAGES>/stray.pth:3",
        "adds a folder outside the prefix and the root to the path",
        "a folder in <PREFIX> or a folder in <ROOT>",
        "<TMP>",
    ),
    quick="T002",
)
def a_path_to_outside(at: Ground) -> None:
    at.new(at.packages("stray.pth"), f"# x\n\n{at.tmp}\n")


@plants(stray("<PACKAGES>/stray.pth"))
def a_path_to_inside(at: Ground) -> None:
    at.new(at.packages("stray.pth"), f"pure\n{at.prefix}/share\n{at.site.root}/mine\n")


@plants(
    stray("<PACKAGES>/stray.egg-link"),
    Found(
        "T002",
        "error",
        "<PACKAGES>/stray.egg-link:1",
        "adds a folder outside the prefix and the root to the path",
        "a folder in <PREFIX> or a folder in <ROOT>",
        "<ROOT>/../..",
    ),
    quick="T002",
)
def a_path_that_climbs_out(at: Ground) -> None:
    at.new(at.packages("stray.egg-link"), f"{at.site.root}/../..\n")


@plants(
    stray("<PACKAGES>/stray.pth"),
    Found(
        "T002",
        "error",
        "<PACKAGES>/stray.pth:1",
        "runs code whenever Python starts, and no distribution lists it",
        "folders inside the prefix or the root",
        "import pure; pure.x()",
    ),
)
def a_stray_line_that_runs(at: Ground) -> None:
    at.new(at.packages("stray.pth"), "import pure; pure.x()\n")


@plants(
    changed("<PACKAGES>/__editable__.mine.pth"),
    Found(
        "T002",
        "error",
        "<PACKAGES>/__editable__.mine.pth:1",
        "adds a folder outside the prefix and the root to the path",
        "a folder in <PREFIX> or a folder in <ROOT>",
        "/elsewhere/mine",
    ),
    quick="M002 T002",
)
def an_editable_projects_path(at: Ground) -> None:
    at.change(at.packages("__editable__.mine.pth"), str(at.site.root / "mine"), "/elsewhere/mine")


# --- T003


@plants(
    changed("<PREFIX>/bin/activate"),
    Found(
        "T003",
        "error",
        "<PREFIX>/bin/activate",
        "activates another environment",
        "<PREFIX>",
        "/elsewhere/toy",
    ),
    quick="M002 T003",
)
def activate_of_another_prefix(at: Ground) -> None:
    at.change(
        at.prefix / "bin/activate", f"VIRTUAL_ENV='{at.prefix}'", "VIRTUAL_ENV='/elsewhere/toy'"
    )


@plants(
    changed("<PREFIX>/bin/activate.csh"),
    Found(
        "T003",
        "error",
        "<PREFIX>/bin/activate.csh",
        "activates another environment",
        "<PREFIX>",
        "/elsewhere/toy",
    ),
    quick="M002 T003",
)
def activate_csh_of_another_prefix(at: Ground) -> None:
    at.change(
        at.prefix / "bin/activate.csh",
        f"setenv VIRTUAL_ENV '{at.prefix}'",
        "setenv VIRTUAL_ENV '/elsewhere/toy'",
    )


@plants(
    changed("<PREFIX>/bin/activate.fish"),
    Found(
        "T003",
        "error",
        "<PREFIX>/bin/activate.fish",
        "activates another environment",
        "<PREFIX>",
        "/elsewhere/toy",
    ),
    quick="M002 T003",
)
def activate_fish_of_another_prefix(at: Ground) -> None:
    at.change(
        at.prefix / "bin/activate.fish",
        f"VIRTUAL_ENV '{at.prefix}'",
        "VIRTUAL_ENV '/elsewhere/toy'",
    )


@plants(
    changed("<PREFIX>/bin/activate.nu"),
    Found(
        "T003",
        "error",
        "<PREFIX>/bin/activate.nu",
        "activates another environment",
        "<PREFIX>",
        "/elsewhere/toy",
    ),
    quick="M002 T003",
)
def activate_nu_of_another_prefix(at: Ground) -> None:
    at.change(
        at.prefix / "bin/activate.nu",
        f"virtual_env = '{at.prefix}'",
        "virtual_env = '/elsewhere/toy'",
    )


@plants(
    changed("<PREFIX>/bin/activate.bat"),
    Found(
        "T003",
        "error",
        "<PREFIX>/bin/activate.bat",
        "activates another environment",
        "<PREFIX>",
        "/elsewhere/toy",
    ),
    quick="M002 T003",
)
def activate_bat_of_another_prefix(at: Ground) -> None:
    at.change(at.prefix / "bin/activate.bat", f'("{at.prefix}")', '("/elsewhere/toy")')


@plants(
    changed("<PREFIX>/bin/activate.xsh"),
    Found(
        "T003",
        "error",
        "<PREFIX>/bin/activate.xsh",
        "activates another environment",
        "<PREFIX>",
        "/elsewhere/toy",
    ),
    quick="M002 T003",
)
def activate_xsh_of_another_prefix(at: Ground) -> None:
    with (at.prefix / "bin/activate.xsh").open("a") as file:
        file.write('$VIRTUAL_ENV = "/elsewhere/toy"\n')


@plants(
    changed("<PREFIX>/bin/activate.ps1"),
    Found(
        "T003",
        "error",
        "<PREFIX>/bin/activate.ps1",
        "activates another environment",
        "<PREFIX>",
        "/elsewhere/toy",
    ),
    quick="M002 T003",
)
def activate_ps1_of_another_prefix(at: Ground) -> None:
    with (at.prefix / "bin/activate.ps1").open("a") as file:
        file.write('$env:VIRTUAL_ENV = "/elsewhere/toy"\n')


@plants(
    changed("<PREFIX>/bin/activate"),
    Found(
        "T003",
        "error",
        "<PREFIX>/bin/activate",
        "activates another environment",
        "<PREFIX>",
        "<OTHER>",
    ),
    Found(
        "T004",
        "error",
        "<PREFIX>/bin/activate:84",
        "names the prefix of other",
        "paths in <PREFIX>",
        "<OTHER>",
    ),
    quick="M002 T003 T004",
)
def activate_of_the_sites_other_prefix(at: Ground) -> None:
    at.change(
        at.prefix / "bin/activate",
        f"VIRTUAL_ENV='{at.prefix}'",
        f"VIRTUAL_ENV={at.site.root}/other",
    )


@plants(changed("<PREFIX>/bin/activate"), quick="M002")
def activate_of_this_prefix_in_other_quotes(at: Ground) -> None:
    at.change(
        at.prefix / "bin/activate", f"VIRTUAL_ENV='{at.prefix}'", f'VIRTUAL_ENV="{at.prefix}/"'
    )


# --- T004


@plants(
    stray("<PACKAGES>/pure/notes.txt", "warning"),
    Found(
        "T004",
        "error",
        "<PACKAGES>/pure/notes.txt:2",
        "names the prefix of other",
        "paths in <PREFIX>",
        "<OTHER>",
    ),
)
def text_that_names_another_prefix(at: Ground) -> None:
    at.new(at.packages("pure/notes.txt"), f"x\nsee {at.site.root}/other/bin\n")


@plants(
    stray("<PACKAGES>/pure/notes.txt", "warning"),
    Found(
        "T004",
        "error",
        "<PACKAGES>/pure/notes.txt:1",
        "names a folder that is there while a prefix is built",
        "paths in <PREFIX>",
        "<ROOT>/.envbuild/work",
    ),
)
def text_that_names_the_staging_folder(at: Ground) -> None:
    at.new(at.packages("pure/notes.txt"), f"{at.site.root}/.envbuild/work/toy@1/prefix\n")


@plants(
    stray("<PACKAGES>/pure/notes.txt", "warning"),
    Found(
        "T004",
        "error",
        "<PACKAGES>/pure/notes.txt:3",
        "names a temporary folder",
        "paths in <PREFIX>",
        "<ROOT>/tmp/here",
    ),
)
def text_that_names_the_sites_temporary_folder(at: Ground) -> None:
    at.new(at.packages("pure/notes.txt"), f"x\nx\n={at.site.root}/tmp/here:\n")


@plants(
    stray("<PACKAGES>/pure/notes.txt", "warning"),
    Found(
        "T004",
        "error",
        "<PACKAGES>/pure/notes.txt:1",
        "names a temporary folder",
        "paths in <PREFIX>",
        "<TMP>/tmpdir",
    ),
)
def text_that_names_tmpdir(at: Ground) -> None:
    at.new(at.packages("pure/notes.txt"), f"{at.tmp}/tmpdir/x\n")


@plants(stray("<PACKAGES>/pure/notes.txt", "warning"))
def text_that_names_neighbours(at: Ground) -> None:
    at.new(
        at.packages("pure/notes.txt"),
        f"{at.site.root}/other2 {at.site.root}/other-3 {at.site.root}/other.d\n",
    )


@plants(stray("<PACKAGES>/pure/notes.bin", "warning"))
def binary_that_names_another_prefix(at: Ground) -> None:
    at.new(at.packages("pure/notes.bin"), f"\0{at.site.root}/other\n")


# --- T005


@plants(
    Found(
        "T005",
        "error",
        "<PACKAGES>/pure/__pycache__/one.<TAG>.pyc",
        "its byte code names another source",
        "<PACKAGES>/pure/one.py",
        "<TMP>/pure/one.py",
    )
)
def byte_code_compiled_elsewhere(at: Ground) -> None:
    source = at.packages("pure/one.py")
    elsewhere = at.new(at.tmp / "pure/one.py", source.read_text())
    py_compile.compile(str(elsewhere), importlib.util.cache_from_source(str(source)))


@plants(
    Found(
        "T005",
        "error",
        "<PACKAGES>/pure/__pycache__/one.<TAG>.pyc",
        "its byte code names another source",
        "<PACKAGES>/pure/one.py",
        "pure/one.py",
    )
)
def byte_code_that_names_another_source(at: Ground) -> None:
    source = at.packages("pure/one.py")
    py_compile.compile(
        str(source), importlib.util.cache_from_source(str(source)), dfile="pure/one.py"
    )


@plants(
    Found(
        "T005",
        "error",
        "<PACKAGES>/pure/__pycache__/one.<TAG>.pyc",
        "its byte code names another source",
        "<PACKAGES>/pure/one.py",
        "no source of its name",
    )
)
def byte_code_of_another_source(at: Ground) -> None:
    source = at.packages("pure/one.py")
    py_compile.compile(
        str(at.packages("pure/two.py")), importlib.util.cache_from_source(str(source))
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    return corpus.make(tmp_path_factory.mktemp("corpus").resolve())


@pytest.fixture
def ground(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ground]:
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmpdir"))
    with corpus.ground(site, tmp_path.resolve()) as place:
        yield place
    # all that was planted is taken back: the next one starts from a good prefix
    assert site.verify(full=False).findings == ()


def test_a_good_prefix_is_good(site: Site) -> None:
    quick = site.verify(full=False)
    assert (quick.findings, quick.notes, quick.files) == ((), (), 0)
    full = site.verify(full=True)
    assert full.findings == ()
    assert full.notes == (
        f"{site.prefix}/{PACKAGES}/pathy.pth runs whenever Python starts: import pathy_hook",
    )
    assert full.files == len(list(site.prefix.rglob("*")))
    assert full.size == sum(
        path.stat().st_size
        for path in site.prefix.rglob("*")
        if path.is_file() and not path.is_symlink()
    )


def test_every_rule_has_two_faults() -> None:
    planted = [code for fault in FAULTS.values() for code in {one.code for one in fault.found}]
    rules = {
        f"{family}{number:03}"
        for family, n in (("P", 5), ("I", 4), ("M", 5), ("T", 5))
        for number in range(1, n + 1)
    }
    assert {code for code in rules if planted.count(code) < 2} == set()


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_found_and_nothing_else(name: str, ground: Ground) -> None:
    fault = FAULTS[name]
    fault.plant(ground)
    full = ground.site.verify(full=True, path=ground.path).findings
    wrong = [one for one in full if not any(its.fits(one, ground) for its in fault.found)]
    missed = [its for its in fault.found if not any(its.fits(one, ground) for one in full)]
    assert (wrong, missed, len(full)) == ([], [], len(fault.found))
    assert all(one.mend for one in full)
    quick = [
        one
        for one in ground.site.verify(full=False, path=ground.path).findings
        # the copy is another folder than the one that was looked at
        if one.message != create.CHANGED
    ]
    assert tuple(one.code for one in quick) == fault.quick
    assert {one.where for one in quick} <= {one.where for one in full}


@pytest.mark.parametrize(
    "name",
    [
        "a_byte_more",
        "an_interpreter_in_a_home_folder",
        "byte_code_compiled_elsewhere",
        "a_file_shared_with_a_cache",
    ],
)
def test_the_command_says_the_same(name: str, ground: Ground, envbuild: Envbuild) -> None:
    fault = FAULTS[name]
    fault.plant(ground)
    done = envbuild("verify", "toy", "--full", "--json", cwd=ground.site.project.folder)
    assert done.code == 1, done.err
    report = json.loads(done.out)
    assert report["schema"] == "envbuild.verify/1"
    found = [Finding(**one) for one in report["findings"]]
    assert len(found) == len(fault.found)
    assert all(any(its.fits(one, ground) for its in fault.found) for one in found)
    number = f"{len(found)} error{'' if len(found) == 1 else 's'}"
    assert done.err == (
        f"error: {number}, no warnings; `envbuild verify --explain CODE` says more\n"
    )


def test_the_command_about_many_alike(ground: Ground, envbuild: Envbuild) -> None:
    FAULTS["many_alike"].plant(ground)
    done = envbuild("verify", "toy", "--full", cwd=ground.site.project.folder)
    assert done.code == 1
    assert done.out.count(" error M002: belongs to no installed package\n") == 4
    assert (
        f"{ground.packages('stray04.py')} and others: error M002: 11 more like this: belongs to no "
        "installed package\n"
    ) in done.out
    assert f"toy: {ground.prefix} is not good: 15 errors, no warnings (" in done.out


def test_the_command_about_a_good_prefix(site: Site, envbuild: Envbuild) -> None:
    done = envbuild("verify", cwd=site.project.folder)
    assert (done.code, done.err) == (0, "")
    assert done.out == (
        f"toy: {site.prefix} looks good: no errors, no warnings (a quick look; --full reads every "
        "file)\n"
    )
    done = envbuild("verify", "toy", "--full", "--json", cwd=site.project.folder)
    assert (done.code, done.err) == (0, "")
    report = json.loads(done.out)
    assert (report["site"], report["findings"], report["suppressed"]) == ("local", [], [])
    (one,) = report["prefixes"]
    assert (one["environment"], one["prefix"], one["full"]) == ("toy", str(site.prefix), True)


def test_a_bind_mount_is_another_name(site: Site, tmp_path: Path) -> None:
    """In a mount namespace of its own, which ends with the command."""
    (tmp_path / "mounted").mkdir()
    script = (
        'mount --bind "$1" "$2" && exec "$3" -m envbuild verify --prefix "$2" --select P --json'
    )
    done = subprocess.run(
        [
            "unshare",
            "-rm",
            "sh",
            "-c",
            script,
            "sh",
            site.prefix,
            tmp_path / "mounted",
            sys.executable,
        ],
        cwd=site.project.folder,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    (found,) = json.loads(done.stdout)["findings"]
    assert (found["code"], found["severity"], found["where"]) == (
        "P001",
        "error",
        str(tmp_path / "mounted"),
    )
    assert found["message"] == "is another name for the registered prefix"
    assert found["expected"] == str(site.prefix)
    assert found["mend"] == "call it by that path: its scripts and byte code name it"


def test_a_mount_at_the_registered_path_is_right(site: Site) -> None:
    """In a mount namespace of its own, which ends with the command."""
    script = 'mount --bind "$1" "$1" && exec "$2" -m envbuild verify toy --full --json'
    done = subprocess.run(
        ["unshare", "-rm", "sh", "-c", script, "sh", site.prefix, sys.executable],
        cwd=site.project.folder,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["findings"] == []
