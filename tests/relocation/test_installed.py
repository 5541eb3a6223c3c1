"""What is installed: metadata, requirements, records and entry points, as they really come."""

from __future__ import annotations

import base64
import hashlib
import json
import platform
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.version import Version

from envbuild.findings import Finding
from envbuild.relocation import installed
from envbuild.relocation.installed import Metadata
from envbuild.relocation.subject import Contents, Distribution, EntryPoint, Expected
from tests import projects
from tests.relocation.corpus import subject

MINOR = f"python{projects.MINOR}"
PACKAGES = f"lib/{MINOR}/site-packages"
NAMES = st.sampled_from(["alpha", "beta", "gamma", "delta"])
VERSIONS = st.sampled_from(["1.0", "1.5", "2.0", "2.0rc1", "3.1.post1"])
ENVIRONMENT = installed.marker_environment("3.11.7")


def one(name: str, version: str = "1.0", *requires: str, **more: object) -> Metadata:
    folder = f"{PACKAGES}/{name}-{version}.dist-info"
    made = Metadata(folder=folder, name=name, version=version, requires=requires)
    origin, editable = more.get("origin"), more.get("editable", False)
    assert origin is None or isinstance(origin, str)
    return Metadata(made.folder, name, version, requires, origin, bool(editable))


def unsatisfied(*distributions: Metadata, **more: object) -> list[str]:
    """Return what is said of each requirement that is not satisfied."""
    findings = installed.satisfied(distributions, subject("/p", **more), ENVIRONMENT)
    return [f"{found.message}: {found.expected}, {found.found}" for found in findings]


def test_markers_are_evaluated_as_on_this_machine() -> None:
    mine = {name: str(value) for name, value in default_environment().items()}
    assert installed.marker_environment(platform.python_version()) == mine


def test_metadata_as_it_really_comes() -> None:
    header = "Metadata-Version: 2.1\nName: Foo.Bar_baz\nVersion: 1.0\nRequires-Dist: a>1\n" + (
        "Requires-Dist: b; extra == 'x'\nSummary: é\n  and more\n"
    )
    read = installed.metadata("i", header.encode(), None)
    assert read == Metadata("i", "foo-bar-baz", "1.0", ("a>1", "b; extra == 'x'"))
    assert read.source is None
    for broken in (b"", b"Name: x\n", b"Version: 1\n", b"\xff\xfe", b"\0\0"):
        assert installed.metadata("i", broken, None) is None


@pytest.mark.parametrize(
    ("document", "origin", "editable", "source"),
    [
        ('{"url": "file:///a%20b", "dir_info": {"editable": true}}', "file:///a%20b", True, "/a b"),
        ('{"url": "file:///a", "dir_info": {}}', "file:///a", False, "/a"),
        ('{"url": "https://x/y.whl", "archive_info": {}}', "https://x/y.whl", False, None),
        ('{"url": "git+ssh://x", "vcs_info": {}}', "git+ssh://x", False, None),
        ("{}", "cannot be read", False, None),
        ("[]", "cannot be read", False, None),
        ("", "cannot be read", False, None),
        ('{"url": "file:///a", "dir_info": null}', "cannot be read", False, None),
        ('{"url": "file:///a", "dir_info": []}', "cannot be read", False, None),
        ("\udcff", "cannot be read", False, None),
        ('{"url": "http://[x"}', "http://[x", False, None),
        ('{"url": "file:///a%00b"}', "file:///a%00b", False, None),
    ],
)
def test_addresses(document: str, origin: str, editable: bool, source: str | None) -> None:
    data = document.encode("utf-8", "surrogateescape")
    read = installed.metadata("i", b"Name: x\nVersion: 1\n", data)
    assert read is not None
    assert (read.origin, read.editable) == (origin, editable)
    assert read.source == (None if source is None else Path(source))


@given(st.binary(max_size=200), st.binary(max_size=60))
def test_any_metadata_is_no_error(header: bytes, address: bytes) -> None:
    for prefix in (b"", b"Name: x\nVersion: 1\n"):
        read = installed.metadata("i", prefix + header, address)
        assert read is not None or not prefix
        list(installed.pointing([] if read is None else [read], subject("/p")))


# M001


def test_what_is_locked_and_what_is_there() -> None:
    wanted = (Distribution("a", "1.0"), Distribution("b", "2.0"), Distribution("c", "1.0+cu13"))
    contents = Contents(wanted, {}, {})
    held = subject("/p", contents=contents)
    good = [one("a", "1.0.0"), one("b", "2.0"), one("c", "1.0+cu13")]
    assert list(installed.locked(good, held)) == []
    bad = [one("b", "2.0"), one("b", "3.0"), one("c", "1.0"), one("d", "4")]
    assert [
        (found.where, found.message, found.expected, found.found)
        for found in installed.locked(bad, held)
    ] == [
        (f"/p/{PACKAGES}/b-3.0.dist-info", "b is installed twice", "one version", "2.0 and 3.0"),
        ("/p", "a is not installed", "1.0", "nothing"),
        (
            f"/p/{PACKAGES}/c-1.0.dist-info",
            "c is of another version than the lock says",
            "1.0+cu13",
            "1.0",
        ),
        (f"/p/{PACKAGES}/d-4.dist-info", "d is not in the lock", "nothing", "4"),
    ]
    assert [found.message for found in installed.locked(bad, subject("/p"))] == [
        "b is installed twice"
    ]


# M004


@pytest.mark.parametrize(
    ("requirement", "said"),
    [
        ("b", None),
        ("B>=1", None),
        ("b>=2", "a 1.0 requires b, which is of another version: b >=2, b 1.0"),
        ("c", "a 1.0 requires c, which is not installed: c any version, nothing"),
        ("c; python_version < '3'", None),
        ("c; extra == 'x'", None),
        (
            "c; sys_platform == 'linux'",
            "a 1.0 requires c, which is not installed: c any version, nothing",
        ),
        ("c; unknown_marker == '1'", None),
        ("c ; python_version == '3.11' and extra == 'x'", None),
        ("b @ https://x/b.whl", None),
        ("b (>=1.0)", None),
        ("not a requirement", None),
        ("", None),
        ("b===1.0", None),
        ("b~=1.0", None),
        ("b!=1.0", "a 1.0 requires b, which is of another version: b !=1.0, b 1.0"),
    ],
)
def test_a_requirement(requirement: str, said: str | None) -> None:
    found = unsatisfied(one("a", "1.0", requirement), one("b", "1.0"))
    assert found == ([] if said is None else [said])


def test_a_requirement_in_full() -> None:
    (found,) = installed.satisfied([one("a", "1.0", "b<2,>1")], subject("/p"), ENVIRONMENT)
    assert found == Finding(
        "M004",
        "error",
        f"/p/{PACKAGES}/a-1.0.dist-info",
        "a 1.0 requires b, which is not installed",
        expected="b <2,>1",
        found="nothing",
        mend="install what it requires, or declare an override of it",
    )


def test_versions_that_are_none_fit() -> None:
    assert unsatisfied(one("a", "1.0", "b>=2"), one("b", "not-a-version")) == []


def test_pre_releases_fit_where_they_are_installed() -> None:
    assert unsatisfied(one("a", "1.0", "b>=2.0rc1"), one("b", "2.0rc2")) == []
    assert unsatisfied(one("a", "1.0", "b>=2"), one("b", "2.0rc1")) == [
        "a 1.0 requires b, which is of another version: b >=2, b 2.0rc1"
    ]


def test_extras_count_where_they_are_asked_for() -> None:
    b = one("b", "1.0", "c>=2; extra == 'more'", "d; extra == 'Other_One'")
    c = one("c", "1.0")
    assert unsatisfied(one("a", "1.0", "b"), b, c) == []
    wrong = "b 1.0 requires c, which is of another version: c >=2, c 1.0"
    gone = "b 1.0 requires d, which is not installed: d any version, nothing"
    assert unsatisfied(one("a", "1.0", "b[more]"), b, c) == [wrong]
    assert unsatisfied(one("a", "1.0", "b[more,other-one]"), b, c) == [wrong, gone]
    # by way of an extra of another one, and of its own
    way = one("way", "1.0", "b[more]; extra == 'all'")
    assert unsatisfied(way, b, c) == []
    assert unsatisfied(one("a", "1.0", "way[all]"), way, b, c) == [wrong]
    own = one("b", "1.0", "b[more]; extra == 'all'", "c>=2; extra == 'more'")
    assert unsatisfied(one("a", "1.0", "b[all]"), own, c) == [wrong]


def test_overrides_take_the_place_of_requirements() -> None:
    a, b = one("a", "1.0", "b>=2"), one("b", "1.0")
    assert unsatisfied(a, b, overrides=("B>=1",)) == []
    assert unsatisfied(a, b, overrides=("b>=3",)) == [
        "a 1.0 requires b, which is of another version: b >=3, b 1.0"
    ]
    assert unsatisfied(a, b, overrides=("b>=3", "b<2")) == []
    # one that does not apply here, as uv has it, removes the requirement
    assert unsatisfied(a, b, overrides=("b>=3; sys_platform == 'win32'",)) == []
    assert unsatisfied(a, overrides=("other>=3",)) == [
        "a 1.0 requires b, which is not installed: b >=2, nothing"
    ]
    assert unsatisfied(a, excludes=("B",)) == []


@given(
    st.dictionaries(NAMES, VERSIONS),
    st.dictionaries(NAMES, st.lists(st.tuples(NAMES, st.sampled_from([">=2", "<2", "==1.*", ""])))),
)
def test_what_is_said_is_so(
    versions: dict[str, str], asked: dict[str, list[tuple[str, str]]]
) -> None:
    distributions = [
        one(name, version, *(f"{other}{interval}" for other, interval in asked.get(name, [])))
        for name, version in versions.items()
    ]
    wrong = [
        (name, other)
        for name in versions
        for other, interval in asked.get(name, [])
        if other not in versions
        or not Requirement(f"x{interval}").specifier.contains(
            Version(versions[other]), prereleases=True
        )
    ]
    findings = installed.satisfied(distributions, subject("/p"), ENVIRONMENT)
    said = [
        (found.message.split()[0], found.message.split(" requires ")[1].split(",")[0])
        for found in findings
    ]
    assert said == wrong


# M003


def pointing(*distributions: Metadata, **more: object) -> list[tuple[str, str | None, str | None]]:
    findings = installed.pointing(distributions, subject("/p", **more))
    return [(found.message, found.expected, found.found) for found in findings]


def test_what_is_installed_from_folders(tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "mine").mkdir(parents=True)
    (root / "link").symlink_to(tmp_path)
    held: dict[str, object] = {"root": str(root)}

    def mine(path: Path | str) -> Metadata:
        return one("mine", origin=f"file://{path}", editable=True)

    assert pointing(one("a"), mine(root / "mine"), **held) == []
    inside = f"a folder in /p or a folder in {root}"
    outside = "mine is installed in editable form from outside"
    assert pointing(mine(tmp_path), **held) == [(outside, inside, str(tmp_path))]
    assert pointing(mine(root / "link"), **held) == [(outside, inside, str(root / "link"))]
    assert pointing(mine(f"{root}2/mine"), **held) == [(outside, inside, f"{root}2/mine")]
    remote = one("mine", origin="https://x/mine", editable=True)
    assert pointing(remote, **held) == [(outside, inside, "https://x/mine")]
    assert pointing(mine(root / "gone"), **held) == [
        ("the project of mine is not there", str(root / "gone"), "no such folder")
    ]
    contents = Contents((Distribution("mine", "1.0", folder=str(root / "mine")),), {}, {})
    assert pointing(mine(root / "mine"), **held, contents=contents) == []
    assert pointing(mine(root), **held, contents=contents) == [
        ("mine is another project than the environment declares", str(root / "mine"), str(root))
    ]
    wheel = one("a", origin="https://x/a.whl")
    assert pointing(wheel, **held, contents=contents) == [
        (
            "a was installed from elsewhere than the lock's wheel",
            "no direct_url.json",
            "https://x/a.whl",
        )
    ]
    # where no lock says what it should be, an archive is as good as any
    assert pointing(wheel, **held) == []


FINDER = """\
from __future__ import annotations
MAPPING: dict[str, str] = {MAPPING}
NAMESPACES: dict[str, list[str]] = {{}}
PATH_PLACEHOLDER = '__editable__.mine-1.finder' + ".__path_hook__"
"""


def test_finders_of_setuptools(tmp_path: Path) -> None:
    def finder(*paths: str) -> list[str | None]:
        mapping = {f"m{number}": path for number, path in enumerate(paths)}
        data = FINDER.format(MAPPING=mapping).encode()
        found = list(installed.finder("/p/f.py", data, subject("/p", root="/r")))
        assert all(one.message == "finds modules outside the prefix and the root" for one in found)
        return [one.found for one in found]

    assert finder("/r/mine", "/p/x") == []
    assert finder("/r2/mine") == ["/r2/mine"]
    assert finder("/r/mine", "/x/b", "/x/c") == ["/x/b"]
    assert finder("/r/../x") == ["/r/../x"]


# M002


def test_records(tmp_path: Path) -> None:
    info = tmp_path / PACKAGES / "a-1.dist-info"
    info.mkdir(parents=True)
    digests = {
        name: base64.urlsafe_b64encode(hashlib.new(name, b"x").digest()).rstrip(b"=").decode()
        for name in ("sha256", "sha384", "sha512", "md5")
    }
    rows = [
        *(f"a/{name}.py,{name}={text},1" for name, text in digests.items()),
        f'"a/with,comma.py",sha256={digests["sha256"]},1',
        "a/none.py,,",
        f"a/short.py,sha256={digests['sha256'][:-4]},1",
        "a/odd.py,sha256=é,1",
        "a/odder.py,nonsense,1",
        "../../../bin/a,,",
        "../../../../outside,,",
        "short",
        "",
        "a-1.dist-info/RECORD,,",
    ]
    (info / "RECORD").write_text("\n".join(rows))
    (info / "entry_points.txt").write_text("[console_scripts]\na = a:main\nb = a.b : c.d [x]\n")
    read = installed.recorded(tmp_path)
    right = hashlib.sha256(b"x").hexdigest()
    origin = "a-1.dist-info"
    assert {path.removeprefix(f"{PACKAGES}/"): one for path, one in read.files.items()} == {
        **{
            f"a/{name}.py": Expected(origin, name, hashlib.new(name, b"x").hexdigest())
            for name in ("sha256", "sha384", "sha512")
        },
        "a/with,comma.py": Expected(origin, "sha256", right),
        **{
            place: Expected(origin, "sha256", "")
            for place in ("a/md5.py", "a/none.py", "a/short.py", "a/odd.py", "a/odder.py")
        },
        "bin/a": Expected(origin, "sha256", ""),
        "../outside": Expected(origin, "sha256", ""),
        "a-1.dist-info/RECORD": Expected(origin, "sha256", ""),
    }
    # the RECORD lists the one; the other is a script that must be there
    assert read.scripts == {"bin/b": EntryPoint(origin, "a.b", "c.d")}


@given(st.binary(max_size=300))
def test_any_record_is_no_error(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    prefix = tmp_path_factory.mktemp("record")
    info = prefix / PACKAGES / "a-1.dist-info"
    info.mkdir(parents=True)
    (prefix / "conda-meta").mkdir()
    for path in (info / "RECORD", info / "entry_points.txt", prefix / "conda-meta/a.json"):
        path.write_bytes(data)
    held = installed.recorded(prefix)
    assert held.files["conda-meta/a.json"] == Expected("conda-meta", "sha256", "")


@pytest.mark.parametrize("document", ["{}", "[]", "1", '{"paths_data": {"paths": [1]}}', "\0", ""])
def test_conda_documents_that_cannot_be_read(tmp_path: Path, document: str) -> None:
    (tmp_path / "conda-meta").mkdir()
    (tmp_path / "conda-meta/a.json").write_text(document)
    assert installed.recorded(tmp_path).files.keys() == {"conda-meta/a.json"}


def test_conda_documents(tmp_path: Path) -> None:
    (tmp_path / "conda-meta").mkdir()
    paths = [
        {"_path": "bin/a", "sha256": "1" * 64, "sha256_in_prefix": "2" * 64},
        {"_path": "lib/b", "sha256": "1" * 64},
        {"_path": "lib/c"},
    ]
    document = {"paths_data": {"paths": paths}}
    (tmp_path / "conda-meta/a-1-0.json").write_text(json.dumps(document))
    (tmp_path / "conda-meta/history").write_text("")
    assert installed.recorded(tmp_path).files == {
        "bin/a": Expected("a-1-0", "sha256", "2" * 64),
        "lib/b": Expected("a-1-0", "sha256", "1" * 64),
        "lib/c": Expected("a-1-0", "sha256", ""),
        "conda-meta/a-1-0.json": Expected("conda-meta", "sha256", ""),
        "conda-meta/history": Expected("conda-meta", "sha256", ""),
    }


@pytest.mark.parametrize(
    ("path", "severity"),
    [
        ("bin/x", "error"),
        (f"{PACKAGES}/x.py", "error"),
        (f"{PACKAGES}/x.pth", "error"),
        (f"{PACKAGES}/x/y.so", "error"),
        (f"{PACKAGES}/x.pyc", "error"),
        (f"{PACKAGES}/x.txt", "warning"),
        ("share/x.py", "warning"),
        ("bin/activate", None),
        ("bin/Activate.ps1", None),
        ("bin/python3.11", None),
        ("bin/python3.13t", None),
        ("bin/pythonista", "error"),
        ("bin/activate/x", "error"),
        ("pyvenv.cfg", None),
        ("lib64", None),
        (f"{PACKAGES}/_virtualenv.py", None),
        (f"{PACKAGES}/_virtualenv.txt", "warning"),
        (f"{PACKAGES}/a-1.dist-info/INSTALLER", None),
        (f"{PACKAGES}/a-1.dist-info/uv_cache.json", None),
        (f"{PACKAGES}/a-1.dist-info/other.txt", "warning"),
        (f"{PACKAGES}/b-1.dist-info/INSTALLER", "warning"),
        (f"{PACKAGES}/a/__pycache__/a.cpython-311.pyc", None),
        (f"{PACKAGES}/a/__pycache__/a.cpython-311.opt-2.pyc", None),
        (f"{PACKAGES}/a/__pycache__/b.cpython-311.pyc", "error"),
        (f"{PACKAGES}/a/a.pyc", "error"),
    ],
)
def test_files_of_no_distribution(path: str, severity: str | None) -> None:
    listed = {f"{PACKAGES}/a/a.py", f"{PACKAGES}/a-1.dist-info/METADATA"}
    contents = Contents((), {name: Expected("a", "sha256", "") for name in listed}, {})
    found = list(installed.unlisted([*listed, path], (), subject("/p"), contents))
    assert found == (
        []
        if severity is None
        else [
            Finding(
                "M002",
                "error" if severity == "error" else "warning",
                f"/p/{path}",
                "belongs to no installed package",
                expected="files of installed packages, and what installers write",
                found="a file of something else",
                mend="remove it; packages that are to stay are declared in the environment's file",
            )
        ]
    )


def test_files_that_the_receipt_knows(tmp_path: Path) -> None:
    """Those of projects in editable form; of other files, that they are known is no excuse."""
    written = {"bin/x": "0" * 64, "bin/y": "0" * 64}
    contents = Contents((), {}, {}, written)
    held = subject("/p", contents=contents)
    (one,) = installed.unlisted(["bin/x"], (), held, contents)
    assert one.where == "/p/bin/x"
    contents = Contents((Distribution("mine", "1", folder="/q"),), {}, {}, written)
    held = subject("/p", contents=contents)
    assert list(installed.unlisted(["bin/x"], (), held, contents)) == []
    (gone,) = installed.missing(["bin/x"], held, contents)
    assert (gone.where, gone.message, gone.expected) == (
        "/p/bin/y",
        "is missing",
        "as the receipt has it",
    )


def test_what_is_missing_is_said_once() -> None:
    contents = Contents(
        (),
        {"a.py": Expected("a.whl", "sha256", ""), "../x": Expected("a.whl", "sha256", "")},
        {"bin/a": EntryPoint("a.whl", "a", "main")},
        {"a.py": "0" * 64, "bin/a": "0" * 64},
    )
    found = list(installed.missing([], subject("/p"), contents))
    assert [(one.where, one.expected) for one in found] == [
        ("/p/a.py", "as a.whl has it"),
        ("/p/bin/a", "as a.whl has it"),
    ]


def test_byte_code_that_a_record_lists_may_be_missing() -> None:
    """As virtualenv's own RECORDs list it, beside the source and as a folder."""
    listed = ["a/x.py", "a/x.cpython-311.pyc", "a/__pycache__/x.cpython-311.pyc", "a/__pycache__"]
    listed += ["a/alone.pyc", "a/__pycache__/alone.cpython-311.pyc"]
    contents = Contents((), {path: Expected("a.whl", "sha256", "") for path in listed}, {})
    found = installed.missing(["a/x.py"], subject("/p"), contents)
    assert [one.where for one in found] == [
        "/p/a/alone.pyc",
        "/p/a/__pycache__/alone.cpython-311.pyc",
    ]


@pytest.mark.parametrize(
    ("value", "module", "attribute"),
    [
        ("a:main", "a", "main"),
        ("a.b:C.d", "a.b", "C.d"),
        ("a : main", "a", "main"),
        ("a:main [x,y]", "a", "main"),
        ("a:main[x]", "a", "main"),
        ("a", "a", ""),
    ],
)
def test_entry_points(value: str, module: str, attribute: str) -> None:
    text = f"[console_scripts]\nName-1 = {value}\n[other]\nx = y\n"
    assert installed.entry_points("w", text) == {"bin/Name-1": EntryPoint("w", module, attribute)}


def test_entry_points_that_cannot_be_read_are_none() -> None:
    assert installed.entry_points("w", "[console_scripts\nx") == {}


def test_the_folder_of_packages(tmp_path: Path) -> None:
    assert installed.packages_folder(tmp_path) is None
    (tmp_path / PACKAGES).mkdir(parents=True)
    assert installed.packages_folder(tmp_path) == PACKAGES
    (tmp_path / "lib/python3.99/site-packages").mkdir(parents=True)
    assert installed.packages_folder(tmp_path) is None


def test_the_owner_of_a_record() -> None:
    assert installed.owner("Foo_Bar-1.0.dist-info") == "foo-bar"


def test_this_very_environment_is_satisfied() -> None:
    """What pip itself says of the environment that runs the tests, said here too."""
    done = subprocess.run(
        [sys.executable, "-m", "pip", "check", "--disable-pip-version-check"],
        capture_output=True,
        text=True,
        check=False,
    )
    prefix = Path(sys.prefix)
    folder = installed.packages_folder(prefix)
    assert folder is not None
    found = []
    for info in (prefix / folder).glob("*.dist-info"):
        read = installed.metadata(info.name, (info / "METADATA").read_bytes(), None)
        assert read is not None
        found.append(read)
    environment = installed.marker_environment(platform.python_version())
    wrong = list(installed.satisfied(found, subject(prefix), environment))
    assert (wrong == []) == (done.returncode == 0), (wrong, done.stdout)
