"""Digests equal those of Nix, for whatever a file system can hold."""

from __future__ import annotations

import base64
import hashlib
import os
import random
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envbuild import nar
from envbuild.digest import CHUNK
from envbuild.errors import InputError, StepError
from tests import programs


class File(msgspec.Struct, frozen=True):
    content: bytes = b""
    mode: int = 0o644


class Link(msgspec.Struct, frozen=True):
    target: bytes


Tree = File | Link | dict[bytes, "Tree"]


def build(path: Path, tree: Tree) -> Path:
    """Make a tree on disk."""
    if isinstance(tree, dict):
        path.mkdir()
        for name, child in tree.items():
            build(path / os.fsdecode(name), child)
    elif isinstance(tree, Link):
        path.symlink_to(os.fsdecode(tree.target))
    else:
        path.write_bytes(tree.content)
        path.chmod(tree.mode)
    return path


def strings(*texts: bytes) -> bytes:
    return b"".join(
        len(text).to_bytes(8, "little") + text + b"\0" * ((8 - len(text)) % 8) for text in texts
    )


def serialised(tree: Tree) -> bytes:
    """Write a tree as the thesis has it, in memory and by recursion."""
    if isinstance(tree, dict):
        entries = [
            strings(b"entry", b"(", b"name", name, b"node") + serialised(tree[name]) + strings(b")")
            for name in sorted(tree)
        ]
        return strings(b"(", b"type", b"directory") + b"".join(entries) + strings(b")")
    if isinstance(tree, Link):
        return strings(b"(", b"type", b"symlink", b"target", tree.target, b")")
    executable = (b"executable", b"") if tree.mode & 0o100 else ()
    return strings(b"(", b"type", b"regular", *executable, b"contents", tree.content, b")")


def expected(tree: Tree) -> str:
    archive = strings(b"nix-archive-1") + serialised(tree)
    return "sha256-" + base64.b64encode(hashlib.sha256(archive).digest()).decode()


def nix_digests(*paths: Path) -> list[str]:
    """Ask the real Nix; it needs neither a store nor a daemon for this."""
    nix = programs.require("nix", "nix-bin")
    with tempfile.TemporaryDirectory() as state:
        done = subprocess.run(
            [nix, "hash", "path", *paths],
            env={
                "HOME": state,
                "NIX_STATE_DIR": state,
                "NIX_CONFIG": "experimental-features = nix-command",
            },
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


EMPTY: Tree = File()
AWKWARD: dict[str, Tree] = {
    "empty file": File(),
    "empty folder": {},
    "empty folders": {b"a": {}, b"b": {b"c": {}}},
    "one byte": File(b"x"),
    "link that dangles": Link(b"nowhere"),
    "absolute link": Link(b"/"),
    "link with the end of a line": Link(b"a\nb"),
    "untidy link": Link(b".//a/./../b/"),
    "link that is not UTF-8": Link(b"\xff\xfe"),
    "link to itself": {b"self": Link(b"self")},
    "long link": Link(b"x" * 4000),
    "prefixes": {
        b"a": {b"b": EMPTY, b"a": EMPTY},
        b"a.b": EMPTY,
        b"a-b": {b"z": EMPTY},
        b"a b": EMPTY,
        b"ab": EMPTY,
        b"a0": EMPTY,
        b"a\x01": EMPTY,
    },
    "cases": {b"A": EMPTY, b"a": EMPTY, b"B": EMPTY, b"b": EMPTY, b"_": EMPTY, b"a~nix~1": EMPTY},
    "not UTF-8": {b"\xff": EMPTY, b"\x80": EMPTY, b"\xc3\x28": EMPTY, b"z": EMPTY, b"\x7f": EMPTY},
    "unicode": {
        name.encode(): EMPTY
        for name in (
            "é",
            "e\u0301",
            "ß",
            "ss",
            "\U0001f40d",
            "\uffff",
            "\u200b",
            "日本",
            "\u0131",
            "I",
        )
    },
    "spaces and quotes": {
        name: File(name)
        for name in (b" ", b"\n", b"\r", b"\t", b"'", b'"', b"\\", b"a b", b"-", b"*")
    },
    "hidden": {b".a": EMPTY, b"..a": EMPTY, b"...": {b".git": EMPTY}},
    "lengths of names": {b"n" * length: EMPTY for length in (1, 7, 8, 9, 15, 16, 17, 254, 255)},
    "padding": {b"%02d" % size: File(b"\xff" * size) for size in range(18)},
    "permissions": {
        b"%04o" % mode: File(b"#!", mode)
        for mode in (0o100, 0o010, 0o001, 0o755, 0o655, 0o4755, 0o4644, 0o2611, 0o1777, 0o400)
    },
    "executable and empty": File(b"", 0o700),
    "words of the format": {
        b"name": {b"entry": File(b"("), b")": File(b")")},
        b"node": Link(b"type"),
    },
    "zeros": File(bytes(1000)),
    "around a chunk": {
        b"%d" % size: File(random.Random(size).randbytes(size))
        for size in (CHUNK - 1, CHUNK, CHUNK + 1, CHUNK - 8, 2 * CHUNK)
    },
    "big": {b"big": File(random.Random(0).randbytes(5 * CHUNK + 3), 0o755), b"a": EMPTY},
    "many entries": {b"%d" % number: File(b"%d" % number) for number in range(3000)},
    "many folders": {b"%d" % one: {b"%d" % two: {} for two in range(20)} for one in range(50)},
}


@pytest.mark.parametrize("tree", AWKWARD.values(), ids=AWKWARD)
def test_awkward_trees_as_nix_has_them(tree: Tree, tmp_path: Path) -> None:
    path = build(tmp_path / "tree", tree)
    assert [nar.digest(path)] == nix_digests(path) == [expected(tree)]


# What nix 2.8 printed, so that it need not be there
GOLDEN = {
    "empty file": "sha256-d6xi4mKdjkX2JFicDIv5niSzpyI0m/Hnm8GGAIU04kY=",
    "empty folder": "sha256-pQpattmS9VmO3ZIQUFn66az8GSmB4IvYhTTCFn6SUmo=",
    "one byte": "sha256-LKC4zplvhl2zdhm/6RAjVZMFqtgVgEL8bdsO8dQ8W2c=",
    "untidy link": "sha256-mTi6sfBKhgAQtlBGwZ3z2N/cK3RagSIFw/t/ub8rxTA=",
    "prefixes": "sha256-SEVys+aSNFwBv9CbUfKKty6AKpgFPfAjuLviCxIzPi8=",
    "not UTF-8": "sha256-aXgsMG9u0tpUlSLuRcXvDPmt6S10suPLtxFY7FLWo5U=",
    "spaces and quotes": "sha256-2GX7xTzdmZHQ4k6BhBydagQnEiu4hhuUXmU1wIvDhmc=",
    "padding": "sha256-ssAJeWmO+amUAhkQGrDkBX8T5PMYSxu+AzoAFnvd8vA=",
    "permissions": "sha256-ekkLTX5KpSqfc6rAxc1fzeBxLsLpQBD21MDxmXCXKE8=",
    "words of the format": "sha256-Ytx2eEzbwtCb3FVSADfu44awM4s0XzYME0CP9RAJabk=",
    "big": "sha256-/RWPBpDF38/8XI6loLMTbyKuZI9AmBkgHb5K3O2fZzQ=",
}


@pytest.mark.parametrize(("name", "golden"), GOLDEN.items(), ids=GOLDEN)
def test_golden(name: str, golden: str, tmp_path: Path) -> None:
    assert nar.digest(build(tmp_path / "tree", AWKWARD[name])) == golden


NAMES = st.binary(min_size=1, max_size=12).filter(
    lambda name: name not in {b".", b".."} and not {0, ord("/")} & set(name)
)
TARGETS = st.binary(min_size=1, max_size=40).filter(lambda target: 0 not in target)
FILES = st.builds(File, st.binary(max_size=40), st.integers(0o400, 0o777))
TREES: st.SearchStrategy[Tree] = st.recursive(
    st.one_of(FILES, st.builds(Link, TARGETS)),
    lambda children: st.dictionaries(NAMES, children, max_size=5),
    max_leaves=20,
)


@given(TREES)
def test_any_tree(tree: Tree) -> None:
    with tempfile.TemporaryDirectory() as folder:
        assert nar.digest(build(Path(folder) / "tree", tree)) == expected(tree)


@settings(max_examples=20)
@given(TREES)
def test_any_tree_as_nix_has_it(tree: Tree) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = build(Path(folder) / "tree", tree)
        assert [nar.digest(path)] == nix_digests(path)


@pytest.fixture
def below(tmp_path: Path) -> Iterator[Path]:
    """A folder for trees so deep that neither `shutil.rmtree` nor pytest can remove them."""
    folder = tmp_path / "deep"
    folder.mkdir()
    yield folder
    subprocess.run(["rm", "-rf", folder], check=True)


def nest(folder: Path, levels: int) -> None:
    """Make folders in folders, by descriptors: their path may be longer than a path can be."""
    here = os.open(folder, os.O_RDONLY)
    for _ in range(levels):
        os.mkdir("d", dir_fd=here)
        inner = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = inner
    os.close(here)


def test_deeper_than_calls_may_nest(below: Path) -> None:
    nest(below, 1800)
    assert [nar.digest(below)] == nix_digests(below)


def test_deeper_than_a_path_can_say(below: Path) -> None:
    nest(below, 2100)
    with pytest.raises(StepError) as caught:
        nar.digest(below)
    assert caught.value.what == "it cannot be read: File name too long"
    assert (caught.value.where or "").startswith(f"{below}/d/d/d/d")


def test_a_link_is_hashed_itself_unless_a_slash_follows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(build(tmp_path / "here", {b"link": Link(b"tree"), b"tree": {b"a": EMPTY}}))
    assert nar.digest("link") == nar.digest(Path("link")) == expected(Link(b"tree"))
    assert nar.digest("link/") == nar.digest("tree") == nar.digest("tree//") != nar.digest("link")


@pytest.fixture(params=["read ahead", "read when needed"])
def reading(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways to read, however fast the storage is here."""
    patience = -1.0 if request.param == "read ahead" else float("inf")
    monkeypatch.setattr(nar, "_PATIENCE", patience)


@pytest.mark.usefixtures("reading")
@pytest.mark.parametrize("jobs", [1, 2, 9])
def test_the_number_of_threads_changes_nothing(jobs: int, tmp_path: Path) -> None:
    path = build(tmp_path / "tree", AWKWARD["around a chunk"])
    assert nar.digest(path, jobs=jobs) == expected(AWKWARD["around a chunk"])
    assert nar.digests([path] * 20, jobs=jobs) == [nar.digest(path)] * 20


@pytest.mark.usefixtures("reading")
def test_several_paths_keep_their_order(tmp_path: Path) -> None:
    trees = list(AWKWARD.values())
    paths = [build(tmp_path / str(number), tree) for number, tree in enumerate(trees)]
    assert nar.digests(paths) == [expected(tree) for tree in trees]
    assert nar.digests([]) == []


def test_progress_adds_up_to_the_archive(tmp_path: Path) -> None:
    trees = list(AWKWARD.values())
    paths = [build(tmp_path / str(number), tree) for number, tree in enumerate(trees)]
    total = sum(len(strings(b"nix-archive-1") + serialised(tree)) for tree in trees)
    done: list[int] = []
    nar.digests(paths, advance=done.append)
    assert sum(done) == nar.content_size([*paths, tmp_path / "missing"]) == total


def test_what_has_no_digest_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(build(tmp_path / "tree", {b"a": EMPTY, b"sub": {}}))
    os.mkfifo("sub/\udcff")
    with pytest.raises(InputError) as caught:
        nar.digest(".")
    assert str(caught.value) == (
        "./sub/\udcff: this kind of file has no digest\n"
        "  expected: a regular file, folder or symlink\n"
        "  found: a FIFO\n"
        "  mend: remove it, or hash a folder without it"
    )
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("socket")
        with pytest.raises(InputError, match="no digest") as caught:
            nar.digest("socket")
    assert caught.value.found == "a socket"
    with pytest.raises(InputError, match="no digest") as caught:
        nar.digest("/dev/null")
    assert caught.value.found == "a character device"


@pytest.mark.parametrize("name", ["missing", "file/", "file/below", ""])
def test_nothing_there(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(build(tmp_path / "tree", {b"file": EMPTY}))
    with pytest.raises(InputError, match="there is nothing to hash") as caught:
        nar.digest(name)
    assert caught.value.expected == "a file, folder or symlink"


@pytest.mark.parametrize("name", ["empty", "file", "folder"])
def test_what_may_not_be_read(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree: Tree = {b"empty": File(b"", 0), b"file": File(b"x", 0), b"folder": {}}
    monkeypatch.chdir(build(tmp_path / "tree", tree))
    Path("folder").chmod(0)
    Path().chmod(0o755)
    user = os.geteuid()
    if user == 0:  # who may read everything
        os.seteuid(65534)
    try:
        with pytest.raises(StepError, match="it cannot be read: Permission denied") as caught:
            nar.digest(name)
    finally:
        os.seteuid(user)
    assert caught.value.where == name


@pytest.mark.usefixtures("reading")
@pytest.mark.parametrize("change", ["grown", "shortened", "replaced", "written", "removed"])
def test_a_file_that_changes_meanwhile(change: str, tmp_path: Path) -> None:
    # more than is read ahead, so that the end is still to be read when the first part is hashed
    size = 100 * CHUNK
    path = tmp_path / "file"
    path.touch()
    os.truncate(path, size)
    (tmp_path / "other").touch()
    os.truncate(tmp_path / "other", size)

    def meddle(_done: int) -> None:
        if change == "grown":
            os.truncate(path, size + 1)
        elif change == "shortened":
            os.truncate(path, size - 1)
        elif change == "replaced" and (tmp_path / "other").exists():
            (tmp_path / "other").rename(path)
        elif change == "written":
            os.utime(path, ns=(0, 0))
        elif change == "removed":
            path.unlink(missing_ok=True)

    with pytest.raises(StepError) as caught:
        nar.digest(path, advance=meddle)
    assert caught.value.where == str(path)
    removed = change == "removed"
    assert caught.value.what == (
        "it cannot be read: No such file or directory"
        if removed
        else "it changed while it was read"
    )


@pytest.mark.usefixtures("reading")
def test_a_folder_that_loses_an_entry_meanwhile(tmp_path: Path) -> None:
    path = build(tmp_path / "tree", {b"a": EMPTY, b"b": {}})
    os.truncate(path / "a", 100 * CHUNK)

    def meddle(_done: int) -> None:
        if (path / "b").exists():
            (path / "b").rmdir()

    with pytest.raises(StepError, match="No such file") as caught:
        nar.digest(path, advance=meddle)
    assert caught.value.where == str(path / "b")


def test_memory_is_bounded(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.touch()
    os.truncate(path, 512 * CHUNK)
    code = (
        "import sys; from envbuild import nar; nar._PATIENCE = -1; nar.digest(sys.argv[1]);"
        "print(open('/proc/self/status').read())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, path],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
        capture_output=True,
        text=True,
        check=True,
    )
    peak = next(line.split()[1] for line in done.stdout.splitlines() if line.startswith("VmHWM"))
    # in KiB: what Python itself takes, and the 64 MiB that may be read ahead
    assert int(peak) < 160 * 1024


@pytest.mark.usefixtures("reading")
def test_one_failure_ends_all(tmp_path: Path) -> None:
    # it would take ten minutes
    (tmp_path / "huge").touch()
    os.truncate(tmp_path / "huge", 1 << 40)
    with pytest.raises(InputError, match="there is nothing to hash"):
        nar.digests([tmp_path / "huge", tmp_path / "missing"], jobs=2)


DIGEST = expected(EMPTY)


@given(st.lists(st.tuples(st.binary(), st.binary(min_size=1)), min_size=1))
def test_a_list_is_read_as_it_was_written(seeds: list[tuple[bytes, bytes]]) -> None:
    pairs = [
        (expected(File(seed)), os.fsdecode(name.replace(b"\0", b"\\"))) for seed, name in seeds
    ]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "LIST"
        for end in (b"\n", b"\r\n"):
            file.write_bytes(b"".join(nar.list_line(*pair) + end for pair in pairs))
            listed = nar.read_list(file)
            assert [(line.digest, line.name) for line in listed] == pairs
            for line in listed:
                below = line.name if line.name.startswith("/") else f"{folder}/{line.name}"
                assert line.path == below


def test_a_list_may_have_comments_and_blank_lines(tmp_path: Path) -> None:
    file = tmp_path / "LIST"
    file.write_text(f"# models\r\n\r\n  \n{DIGEST}  a b \n{DIGEST}  # no comment")
    assert [line.name for line in nar.read_list(file)] == ["a b ", "# no comment"]


@pytest.mark.parametrize(
    "line",
    [
        DIGEST,
        f"{DIGEST} a",
        f"{DIGEST}  ",
        f" {DIGEST}  a",
        f"{DIGEST}  a\0b",
        f"{DIGEST[:-1]}  a",
        f"{DIGEST[:-2]}B=  a",
        f"{'0' * 64}  a",
        f"sha512-{DIGEST[7:]}  a",
        f"\\{DIGEST}  a\\b",
        f"\\{DIGEST}  a\\",
        "\udcff",
    ],
)
def test_a_line_that_is_none(line: str, tmp_path: Path) -> None:
    file = tmp_path / "LIST"
    file.write_bytes(f"{DIGEST}  a\n{line}\n".encode(errors="surrogateescape"))
    with pytest.raises(InputError) as caught:
        nar.read_list(file)
    assert str(caught.value) == (
        f"{file}:2: this is no line of a list of digests\n"
        "  expected: `sha256-BASE64=  PATH`, with two spaces\n"
        f"  found: {line!a}\n"
        "  mend: write it with `envbuild hash --list PATH… > FILE`"
    )


@pytest.mark.parametrize("text", ["", "\n", "# only\n"])
def test_an_empty_list_checks_nothing(text: str, tmp_path: Path) -> None:
    file = tmp_path / "LIST"
    file.write_text(text)
    with pytest.raises(InputError, match="nothing is listed"):
        nar.read_list(file)


def test_check_tells_each_path_apart(tmp_path: Path) -> None:
    build(tmp_path / "tree", {b"same": EMPTY, b"other": File(b"x"), b"link": Link(b"gone")})
    os.mkfifo(tmp_path / "tree" / "fifo")
    names = ["same", "other", "link", "gone", "same/below", "fifo", "n" * 300]
    lines = [nar.Listed(name, f"{tmp_path}/tree/{name}", DIGEST) for name in names]
    checked = nar.check(lines, jobs=2)
    assert [one.listed.name for one in checked] == names
    assert [one.state for one in checked] == [
        "OK",
        "FAILED",
        "FAILED",
        "missing",
        "missing",
        "unreadable",
        "unreadable",
    ]
    assert [one.found for one in checked[:4]] == [
        DIGEST,
        expected(File(b"x")),
        expected(Link(b"gone")),
        None,
    ]
    assert "found: a FIFO" in (checked[5].problem or "")
    assert checked[6].problem == "File name too long"
