from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import tomli
from hypothesis import given
from hypothesis import strategies as st
from packaging.pylock import Pylock

from envbuild.artifacts import Artifact
from envbuild.catalog.environment import StaticMetadata
from envbuild.errors import InputError
from envbuild.lock import lockfile
from envbuild.lock.lockfile import BuiltWheel, Lock, LockedPackage
from envbuild.lock.specification import Specification

PATH = Path("locks/pylock.toy.toml")


def artifact(file: str, project: str, digit: str = "a") -> Artifact:
    return Artifact(file, 1000, digit * 64, project)


SPECIFICATION = Specification(
    requires_python=">=3.11.2,<3.12",
    platform="x86_64-manylinux_2_28",
    requirements=("fvcore", "numpy>=2"),
    static_metadata={"fvcore": StaticMetadata(requires_dist=("numpy",), version="0.1")},
    builds={"fvcore": "pure: setuptools<72"},
    build_requires=("setuptools<72",),
)
LOCK = Lock(
    environment="toy",
    specification=SPECIFICATION,
    exclude_newer="2026-11-30T00:00:00Z",
    resolver="uv 0.13.9",
    packages=(
        LockedPackage("fvcore", "0.1", artifact("fvcore-0.1.tar.gz", "fvcore")),
        LockedPackage(
            "numpy",
            "2.1.0",
            artifact("numpy-2.1.0-cp311-cp311-manylinux_2_17_x86_64.whl", "numpy", "b"),
            marker="python_full_version < '3.11.3'",
        ),
    ),
    exclude_newer_package={"numpy": "2026-12-01T00:00:00Z"},
    built={"fvcore": BuiltWheel("0.1", artifact("fvcore-0.1-py3-none-any.whl", "fvcore", "c"))},
    build_wheels={
        "setuptools<72": (artifact("setuptools-71.1.0-py3-none-any.whl", "setuptools", "d"),)
    },
)
TEXT = """\
# Written by `envbuild lock toy`; do not edit: change the environment.
lock-version = "1.0"
environments = ["implementation_name == 'cpython' and platform_machine == 'x86_64' and \
sys_platform == 'linux'"]
requires-python = ">=3.11.2,<3.12"
created-by = "envbuild"

[[packages]]
name = "fvcore"
version = "0.1"
sdist = { path = "../wheelhouse/fvcore-0.1.tar.gz", size = 1000, hashes = { sha256 = "AAAA" } }

[[packages]]
name = "numpy"
version = "2.1.0"
marker = "python_full_version < '3.11.3'"
wheels = [{ path = "../wheelhouse/numpy-2.1.0-cp311-cp311-manylinux_2_17_x86_64.whl", size = 1000, \
hashes = { sha256 = "BBBB" } }]

[tool.envbuild]
schema = 1
environment = "toy"
specification-sha256 = "SPEC"
exclude-newer = "2026-11-30T00:00:00Z"
resolver = "uv 0.13.9"

[tool.envbuild.exclude-newer-package]
numpy = "2026-12-01T00:00:00Z"

[tool.envbuild.specification]
requires-python = ">=3.11.2,<3.12"
platform = "x86_64-manylinux_2_28"
requirements = [
    "fvcore",
    "numpy>=2",
]
build-requires = ["setuptools<72"]

[tool.envbuild.specification.builds]
fvcore = "pure: setuptools<72"

[tool.envbuild.specification.static-metadata.fvcore]
version = "0.1"
requires-dist = ["numpy"]

[tool.envbuild.built.fvcore]
version = "0.1"
wheel = { path = "../wheelhouse/fvcore-0.1-py3-none-any.whl", size = 1000, \
hashes = { sha256 = "CCCC" } }

[[tool.envbuild.build-environments]]
requires = "setuptools<72"
wheels = [
    { path = "../wheelhouse/setuptools-71.1.0-py3-none-any.whl", size = 1000, \
hashes = { sha256 = "DDDD" } },
]
"""
for letter in "ABCD":
    TEXT = TEXT.replace(letter * 4, letter.lower() * 64)
TEXT = TEXT.replace("SPEC", SPECIFICATION.sha256)


def test_the_form_is_this_to_the_byte() -> None:
    assert lockfile.serialize(LOCK).decode() == TEXT


def test_what_was_written_reads_the_same() -> None:
    assert lockfile.parse(TEXT.encode(), PATH, "toy") == LOCK


def test_crlf_reads_the_same() -> None:
    assert lockfile.parse(TEXT.replace("\n", "\r\n").encode(), PATH, "toy") == LOCK


def test_a_lock_is_a_pylock() -> None:
    """Other tools read it: the reader of PyPA's packaging takes it, markers and hashes too."""
    pylock = Pylock.from_dict(tomli.loads(TEXT))
    assert [str(package.name) for package in pylock.packages] == ["fvcore", "numpy"]
    wheel = (pylock.packages[1].wheels or [])[0]
    assert (wheel.size, dict(wheel.hashes)) == (1000, {"sha256": "b" * 64})


def test_installable_puts_built_wheels_in_place_of_sdists() -> None:
    files = [package.artifact.file for package in LOCK.installable()]
    assert files == [
        "fvcore-0.1-py3-none-any.whl",
        "numpy-2.1.0-cp311-cp311-manylinux_2_17_x86_64.whl",
    ]


def test_files_are_all_that_an_index_gives() -> None:
    assert [one.file for one in LOCK.files()] == [
        "fvcore-0.1.tar.gz",
        "numpy-2.1.0-cp311-cp311-manylinux_2_17_x86_64.whl",
        "setuptools-71.1.0-py3-none-any.whl",
    ]


NUMPY = "numpy-2.1.0-cp311-cp311-manylinux_2_17_x86_64.whl"
NUMPY_PATH = f'path = "../wheelhouse/{NUMPY}", '
RESTORE = (
    "\n  mend: restore it from version control, or resolve anew: `envbuild lock --upgrade toy` as "
    "of today, `envbuild lock --exclude-newer INSTANT toy` as of then"
)
OTHER = "\n  mend: use the envbuild that wrote it; this one does not write over it"
A_FILE = "not a file of the wheelhouse\n  expected: ../wheelhouse/FILE\n  found: "


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        # hashes: only SHA-256, all of it
        (
            f'hashes = {{ sha256 = "{"b" * 64}" }}',
            'hashes = { md5 = "d41d8cd98f00b204e9800998ecf8427e" }',
            "packages[1].wheels[0].hashes.md5: unknown key\n  expected: one of sha256",
        ),
        (
            f'hashes = {{ sha256 = "{"b" * 64}" }}',
            "hashes = {}",
            "packages[1].wheels[0].hashes.sha256: missing key",
        ),
        (
            "b" * 64,
            "z" * 64,
            "packages[1].wheels[0].hashes.sha256: not a SHA-256\n"
            f"  expected: 64 lower-case hexadecimal digits\n  found: {'z' * 64}",
        ),
        (
            "b" * 64,
            "b" * 63,
            "packages[1].wheels[0].hashes.sha256: not a SHA-256\n"
            f"  expected: 64 lower-case hexadecimal digits\n  found: {'b' * 63}",
        ),
        # places: nowhere but the wheelhouse
        (
            f"../wheelhouse/{NUMPY}",
            "../../../etc/x",
            f"packages[1].wheels[0].path: {A_FILE}../../../etc/x",
        ),
        (
            f"../wheelhouse/{NUMPY}",
            f"/etc/{NUMPY}",
            f"packages[1].wheels[0].path: {A_FILE}/etc/{NUMPY}",
        ),
        (
            f"../wheelhouse/{NUMPY}",
            f"../wheelhouse/../{NUMPY}",
            f"packages[1].wheels[0].path: {A_FILE}../wheelhouse/../{NUMPY}",
        ),
        (
            f"../wheelhouse/{NUMPY}",
            f"../other/{NUMPY}",
            f"packages[1].wheels[0].path: {A_FILE}../other/{NUMPY}",
        ),
        (NUMPY_PATH, "", "packages[1].wheels[0].path: missing key"),
        (
            NUMPY_PATH,
            f'url = "https://example.org/{NUMPY}", ',
            "packages[1].wheels[0].url: unknown key\n  expected: one of hashes, path, size",
        ),
        # sizes
        (
            f'{NUMPY}", size = 1000',
            f'{NUMPY}"',
            "packages[1].wheels[0].size: missing key",
        ),
        (
            f'{NUMPY}", size = 1000',
            f'{NUMPY}", size = 0',
            "packages[1].wheels[0].size: not a size\n  expected: bytes\n  found: 0",
        ),
        # one package, one file, under its own name
        (
            'version = "2.1.0"',
            'version = "2.1.1"',
            "packages[1].wheels[0].path: the file of another package or version\n"
            f"  expected: numpy 2.1.1\n  found: {NUMPY}",
        ),
        (
            'name = "numpy"',
            'name = "nunpy"',
            "packages[1].wheels[0].path: the file of another package or version\n"
            f"  expected: nunpy 2.1.0\n  found: {NUMPY}",
        ),
        (
            "wheels = [{ path",
            "wheels = []\nsdist = { path",
            None,
        ),
        (
            'name = "fvcore"',
            'name = "zzz"',
            "packages[0].sdist.path: the file of another package or version\n"
            "  expected: zzz 0.1\n  found: fvcore-0.1.tar.gz",
        ),
        # versions of the format
        (
            'lock-version = "1.0"',
            'lock-version = "2.0"',
            "lock-version: not a version that this envbuild reads\n  expected: 1.0\n  found: 2.0"
            + OTHER,
        ),
        (
            "schema = 1",
            "schema = 2",
            "tool.envbuild.schema: not a version that this envbuild reads\n  expected: 1\n"
            "  found: 2" + OTHER,
        ),
        (
            "[tool.envbuild]\nschema = 1\n",
            "[tool.envbuild]\n",
            "tool.envbuild.schema: missing: not a lock of envbuild\n  expected: 1",
        ),
        # what envbuild says of it
        (
            'environment = "toy"',
            'environment = "tot"',
            "tool.envbuild.environment: another environment's lock\n  expected: toy\n  found: tot",
        ),
        (
            'exclude-newer = "2026-11-30T00:00:00Z"',
            'exclude-newer = "2026-11-30"',
            "tool.envbuild.exclude-newer: not an instant\n"
            "  expected: UTC, such as 2026-11-30T00:00:00Z\n  found: 2026-11-30",
        ),
        (
            'numpy = "2026-12-01T00:00:00Z"',
            'numpy = "1 week"',
            "tool.envbuild.exclude-newer-package.numpy: not an instant\n"
            "  expected: UTC, such as 2026-11-30T00:00:00Z\n  found: 1 week",
        ),
        (
            'requires-python = ">=3.11.2,<3.12"\ncreated-by',
            'requires-python = ">=3.11"\ncreated-by',
            "requires-python: differs from tool.envbuild.specification.requires-python\n"
            "  expected: >=3.11.2,<3.12\n  found: >=3.11",
        ),
        (
            "[tool.envbuild.built.fvcore]",
            "[tool.envbuild.built.other]",
            "tool.envbuild.built.fvcore: is missing",
        ),
        (
            'requires = "setuptools<72"',
            'requires = "setuptools<73"',
            "tool.envbuild.build-environments: not those of the specification\n"
            "  expected: setuptools<72\n  found: setuptools<73",
        ),
        ("[[packages]]", "[[packages]", None),
    ],
)
def test_refuses_what_pep_751_would_allow(old: str, new: str, message: str | None) -> None:
    assert old in TEXT
    with pytest.raises(InputError) as caught:
        lockfile.parse(TEXT.replace(old, new, 1).encode(), PATH, "toy")
    assert caught.value.exit_code == 2
    if message is not None:
        assert str(caught.value) == f"{PATH}: {message}" + ("" if OTHER in message else RESTORE)


def test_a_changed_specification_is_noticed() -> None:
    with pytest.raises(InputError, match="specification-sha256: not the digest"):
        lockfile.parse(TEXT.replace('"numpy>=2"', '"numpy>=1"').encode(), PATH, "toy")


def test_packages_must_be_sorted_and_single() -> None:
    first, second = LOCK.packages
    for packages in ((second, first), (first, first, second)):
        data = lockfile.serialize(msgspec.structs.replace(LOCK, packages=packages))
        with pytest.raises(InputError, match="packages: not sorted by name, each once"):
            lockfile.parse(data, PATH, "toy")


def test_names_that_are_no_bare_keys_are_quoted() -> None:
    times = {"ruamel.yaml": "2026-12-01T00:00:00Z", 'a "b"': "2026-12-01T00:00:00Z"}
    lock = msgspec.structs.replace(LOCK, exclude_newer_package=times)
    assert lockfile.parse(lockfile.serialize(lock), PATH, "toy") == lock


def test_a_missing_lock_says_how_to_make_it(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        lockfile.read(tmp_path / "pylock.toy.toml", "toy")
    assert str(caught.value) == (
        f"{tmp_path}/pylock.toy.toml: toy has no lock\n  mend: run `envbuild lock toy`"
    )


@given(st.binary(max_size=200))
def test_any_bytes_are_refused_in_words(data: bytes) -> None:
    with pytest.raises(InputError):
        lockfile.parse(data, PATH, "toy")


@given(st.data())
def test_a_changed_byte_is_refused_or_read_as_another_lock(data: st.DataObject) -> None:
    raw = bytearray(TEXT.encode())
    place = data.draw(st.integers(0, len(raw) - 1))
    raw[place] = data.draw(st.integers(0, 255))
    try:
        lock = lockfile.parse(bytes(raw), PATH, "toy")
    except InputError:
        return
    # what is read is what was written, or drift finds it: the canonical form differs
    assert lock == LOCK or lockfile.serialize(lock) != TEXT.encode()


_marker = st.sampled_from([None, "python_full_version < '3.11.3'", 'extra == "a\\\\b"'])
_text = st.text(st.characters(codec="utf-8"), max_size=20)


@given(
    st.lists(st.tuples(st.from_regex(r"[a-z][a-z0-9]{0,6}", fullmatch=True), _marker), max_size=5)
)
def test_whatever_is_locked_is_read_back(items: list[tuple[str, str | None]]) -> None:
    packages = tuple(
        LockedPackage(name, "1", artifact(f"{name}-1-py3-none-any.whl", name), marker)
        for name, marker in sorted(dict(items).items())
    )
    bare = msgspec.structs.replace(SPECIFICATION, builds={}, build_requires=(), static_metadata={})
    lock = Lock("toy", bare, "2026-01-01T00:00:00Z", "uv 0", packages)
    assert lockfile.parse(lockfile.serialize(lock), PATH, "toy") == lock


@given(_text)
def test_any_text_survives_as_a_toml_string(text: str) -> None:
    bare = msgspec.structs.replace(
        SPECIFICATION, builds={}, build_requires=(), static_metadata={}, requirements=(text,)
    )
    lock = Lock("toy", bare, "2026-01-01T00:00:00Z", text, ())
    # a newline inside a file may come as CRLF and is read as LF: only there may they differ
    if "\r" not in text:
        assert lockfile.parse(lockfile.serialize(lock), PATH, "toy") == lock


@pytest.mark.parametrize(
    "text",
    [
        "2026-11-30",
        "2026-11-30T00:00:00",
        "2026-11-30T00:00:00+00:00",
        "7 days",
        "2026-13-01T00:00:00Z",
    ],
)
def test_only_utc_instants_are_instants(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        lockfile.instant(text)
