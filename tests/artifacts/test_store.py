"""A wheelhouse holds whole, verified files or none, whatever servers, disks and people do."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from envbuild.artifacts import Artifact
from envbuild.artifacts.archive import MEND
from envbuild.artifacts.client import Client
from envbuild.artifacts.index import Index, IndexLocation, Urls
from envbuild.artifacts.store import Fetched, Wheelhouse
from envbuild.errors import InputError, PreflightError, StepError
from tests.servers import Fault, SimpleIndex
from tests.wheels import make_sdist, make_wheel

ROOT = Path(__file__).parents[2]
REQUIRE_ALL = "ENVBUILD_REQUIRE_ALL" in os.environ


def artifact(path: Path, project: str = "") -> Artifact:
    data = path.read_bytes()
    return Artifact(path.name, len(data), hashlib.sha256(data).hexdigest(), project)


def noise(size: int) -> bytes:
    """Bytes that do not compress, the same each time."""
    blocks = (hashlib.sha256(str(at).encode()).digest() for at in range(size // 32 + 1))
    return b"".join(blocks)[:size]


def source_of(server: SimpleIndex, client: Client) -> Index:
    return Index([IndexLocation(server.url)], client)


@pytest.fixture
def client() -> Iterator[Client]:
    client = Client(connect=5, read=20, tries=4, backoff=0)
    yield client
    client.close()


@pytest.fixture
def house(tmp_path: Path) -> Wheelhouse:
    return Wheelhouse(tmp_path / "a" / "wheelhouse")


@pytest.fixture
def big(tmp_path: Path) -> Artifact:
    """A wheel of more than two chunks."""
    path = make_wheel(tmp_path / "files", "big", "1", files={"big.bin": noise(2_500_000)})
    return artifact(path, "big")


@pytest.fixture
def small(tmp_path: Path) -> Artifact:
    return artifact(make_wheel(tmp_path / "files", "small", "1"), "small")


@pytest.fixture
def server(tmp_path: Path, big: Artifact, small: Artifact) -> Iterator[SimpleIndex]:
    make_sdist(tmp_path / "files", "src", "1")
    with SimpleIndex(tmp_path / "files") as server:
        yield server


def contents(house: Wheelhouse) -> list[str]:
    """The names of all files, those that nobody should see included."""
    return sorted(str(path.relative_to(house.path)) for path in house.path.rglob("*"))


def fetch(
    house: Wheelhouse, server: SimpleIndex, client: Client, *artifacts: Artifact, jobs: int = 4
) -> Fetched:
    return house.fetch(artifacts, source_of(server, client), client=client, jobs=jobs)


class TestFetch:
    """What is missing is downloaded, what is there is not."""

    def test_from_an_index(
        self,
        house: Wheelhouse,
        server: SimpleIndex,
        client: Client,
        big: Artifact,
        small: Artifact,
    ) -> None:
        src = artifact(server.folder / "src-1.tar.gz", "src")
        wanted = [big, small, src]
        assert house.missing(wanted) == wanted
        report = fetch(house, server, client, *wanted)
        assert msgspec.structs.replace(report, seconds=0) == Fetched(
            downloaded=3, bytes=big.size + small.size + src.size, seconds=0, present=0, rehashed=0
        )
        for each in wanted:
            path = house.path_of(each)
            assert path.read_bytes() == (server.folder / each.file).read_bytes()
            assert path.stat().st_mode & 0o777 == 0o644
        assert contents(house) == [
            ".envbuild",
            ".envbuild/verified.json",
            big.file,
            small.file,
            src.file,
        ]

    def test_once(
        self, house: Wheelhouse, server: SimpleIndex, client: Client, small: Artifact
    ) -> None:
        fetch(house, server, client, small, small)
        seen = len(server.requests)
        report = Wheelhouse(house.path).fetch([small], source_of(server, client), client=client)
        assert (report.downloaded, report.present, report.rehashed) == (0, 1, 0)
        assert len(server.requests) == seen
        assert Wheelhouse(house.path).fetch([small], None).present == 1
        assert house.missing([small]) == []

    def test_nothing(self, house: Wheelhouse) -> None:
        assert house.fetch([], None).present == 0
        assert not house.path.exists()

    def test_from_a_table_of_urls(
        self, house: Wheelhouse, server: SimpleIndex, client: Client
    ) -> None:
        archive = artifact(server.folder / "src-1.tar.gz")
        house.fetch([archive], Urls({archive.file: server.file_url(archive.file)}), client=client)
        assert house.missing([archive]) == []

    def test_from_a_folder(self, house: Wheelhouse, server: SimpleIndex, client: Client) -> None:
        path = server.folder / "src-1.tar.gz"
        archive = artifact(path)
        house.fetch([archive], Urls({archive.file: path.as_uri()}), client=client)
        assert house.path_of(archive).read_bytes() == path.read_bytes()

    def test_from_a_folder_where_it_is_not(
        self, house: Wheelhouse, tmp_path: Path, client: Client
    ) -> None:
        urls = Urls({"x.tar.gz": (tmp_path / "none").as_uri()})
        with pytest.raises(StepError) as caught:
            house.fetch([Artifact("x.tar.gz", 1, "ab" * 32)], urls, client=client)
        assert str(caught.value) == (
            "x.tar.gz: cannot be read: No such file or directory\n"
            f"  expected: a file at {(tmp_path / 'none').as_uri()}"
        )

    def test_with_a_client_of_its_own(
        self, house: Wheelhouse, server: SimpleIndex, client: Client, small: Artifact
    ) -> None:
        assert house.fetch([small], source_of(server, client)).downloaded == 1

    def test_the_password_reaches_the_server_only(
        self, house: Wheelhouse, server: SimpleIndex, client: Client, small: Artifact
    ) -> None:
        with SimpleIndex(server.folder, auth=("me", "s3cret")) as private:
            index = Index([IndexLocation(private.url_with_credentials)], client)
            private.plant(private.file_path(small.file), Fault(body=b"other"))
            with pytest.raises(StepError) as caught:
                house.fetch([small], index, client=client)
            assert f"came from http://***@127.0.0.1:{private.port}/simple/" in str(caught.value)
            house.fetch([small], index, client=client)
        kept = b"".join(path.read_bytes() for path in house.path.rglob("*.json"))
        assert b"s3cret" not in kept + str(caught.value).encode()


class TestWrongBytes:
    """They are named, and nothing of them is kept."""

    def test_another_file(
        self, house: Wheelhouse, server: SimpleIndex, client: Client, small: Artifact
    ) -> None:
        server.plant(server.file_path(small.file), Fault(body=b"other"))
        with pytest.raises(StepError) as caught:
            fetch(house, server, client, small)
        assert str(caught.value) == (
            f"small: {small.file}: other bytes than those that are locked came from {server.url}\n"
            f"  expected: SHA-256 {small.sha256}, {small.size} bytes\n"
            f"  found: SHA-256 {hashlib.sha256(b'other').hexdigest()}, 5 bytes\n"
            "  mend: nothing was kept; compare with the published file, or use another index"
        )
        assert contents(house) == [".envbuild"]

    def test_a_body_without_end_is_not_read_to_it(
        self, house: Wheelhouse, server: SimpleIndex, client: Client, small: Artifact
    ) -> None:
        server.plant(server.file_path(small.file), Fault(body=bytes(20 << 20)))
        with pytest.raises(StepError, match=r"found: more than 17825792 bytes"):
            fetch(house, server, client, small)
        assert contents(house) == [".envbuild"]

    def test_a_wheel_that_would_do_harm(
        self, house: Wheelhouse, server: SimpleIndex, client: Client
    ) -> None:
        path = make_wheel(server.folder, "evil", "1", data={"data/pyvenv.cfg": "home = /tmp"})
        with pytest.raises(InputError) as caught:
            fetch(house, server, client, artifact(path, "evil"))
        assert str(caught.value) == (
            f"{path.name}: evil-1.data/data/pyvenv.cfg: would overwrite what the environment owns\n"
            f"  found: pyvenv.cfg\n  mend: {MEND}"
        )
        assert contents(house) == [".envbuild"]

    def test_a_file_that_is_gone(
        self, house: Wheelhouse, server: SimpleIndex, client: Client, small: Artifact
    ) -> None:
        server.plant(server.file_path(small.file), Fault(status=404))
        with pytest.raises(StepError) as caught:
            fetch(house, server, client, small)
        assert str(caught.value) == (
            f"small: {small.file}: the server answered with HTTP status 404\n"
            f"  expected: 200 from {server.file_url(small.file)}\n"
            "  mend: lock again if the file is gone; check the credentials if it is refused"
        )
        assert len(server.asked(server.file_path(small.file))) == 1


class TestCuts:
    """A download goes on where it was cut, if that is sure to be the same file."""

    def test_the_rest_is_asked_for(
        self, house: Wheelhouse, server: SimpleIndex, client: Client, big: Artifact
    ) -> None:
        path = server.file_path(big.file)
        server.plant(path, Fault(cut=1 << 20), times=2)
        fetch(house, server, client, big)
        seen = server.asked(path)
        assert [(it.status, it.headers.get("Range")) for it in seen] == [
            (200, None),
            (206, f"bytes={1 << 20}-"),
            (206, f"bytes={2 << 20}-"),
        ]
        assert {it.headers["Accept-Encoding"] for it in seen} == {"identity"}
        assert house.missing([big]) == []

    def test_the_whole_is_asked_for_without_an_etag(
        self, house: Wheelhouse, server: SimpleIndex, client: Client, big: Artifact
    ) -> None:
        server.ranges = False
        path = server.file_path(big.file)
        server.plant(path, Fault(cut=1 << 20), times=2)
        fetch(house, server, client, big)
        assert [it.headers.get("Range") for it in server.asked(path)] == [None] * 3

    def test_the_whole_is_sent_when_the_file_was_another(
        self, house: Wheelhouse, server: SimpleIndex, client: Client, big: Artifact
    ) -> None:
        path = server.file_path(big.file)
        server.plant(path, Fault(body=bytes(2 << 20), cut=1 << 20))
        fetch(house, server, client, big)
        assert [it.status for it in server.asked(path)] == [200, 200]

    def test_nothing_is_left_to_ask_for(
        self, house: Wheelhouse, server: SimpleIndex, client: Client, big: Artifact
    ) -> None:
        path = server.file_path(big.file)
        server.plant(path, Fault(headers={"Content-Length": str(big.size + 1)}, cut=big.size))
        fetch(house, server, client, big)
        assert [it.status for it in server.asked(path)] == [200, 416, 200]

    def test_an_end_that_may_be_a_cut(
        self, house: Wheelhouse, server: SimpleIndex, client: Client, big: Artifact
    ) -> None:
        path = server.file_path(big.file)
        server.plant(path, Fault(headless=True, cut=1000))
        fetch(house, server, client, big)
        assert [it.status for it in server.asked(path)] == [200, 206]

    def test_every_time(
        self, house: Wheelhouse, server: SimpleIndex, client: Client, big: Artifact
    ) -> None:
        server.plant(server.file_path(big.file), Fault(cut=10), times=9)
        with pytest.raises(StepError) as caught:
            fetch(house, server, client, big)
        assert str(caught.value).startswith(
            f"big: {big.file}: the connection was cut in each of 4 tries\n"
            f"  expected: {big.size} bytes from {server.file_url(big.file)}\n"
        )
        assert caught.value.mend == "run it again; what other files are there already stays"
        assert contents(house) == [".envbuild"]

    def test_a_busy_server(
        self, house: Wheelhouse, server: SimpleIndex, client: Client, small: Artifact
    ) -> None:
        server.plant(server.file_path(small.file), Fault(status=503, retry_after=0), times=2)
        assert fetch(house, server, client, small).downloaded == 1


class TestGivingUp:
    """One failure ends it: whole files stay, no others begin, nothing half is left."""

    def test_what_is_whole_stays_and_no_more_begins(
        self,
        house: Wheelhouse,
        server: SimpleIndex,
        client: Client,
        big: Artifact,
        small: Artifact,
    ) -> None:
        middle = artifact(
            make_wheel(server.folder, "middle", "1", files={"x": noise(50_000)}), "middle"
        )
        server.plant(server.file_path(middle.file), Fault(body=b""))
        with pytest.raises(StepError, match="middle"):
            fetch(house, server, client, small, middle, big, jobs=1)
        assert contents(house) == [".envbuild", ".envbuild/verified.json", big.file]
        assert server.asked(server.file_path(small.file)) == []
        assert house.fetch([big], None).rehashed == 0

    def test_what_is_under_way_is_given_up(
        self,
        house: Wheelhouse,
        server: SimpleIndex,
        client: Client,
        big: Artifact,
        small: Artifact,
    ) -> None:
        server.plant(server.file_path(big.file), Fault(stall=1 << 20))
        server.plant(server.file_path(small.file), Fault(body=b"", delay=0.3))
        with pytest.raises(StepError, match="small"):
            fetch(house, server, client, small, big)
        assert contents(house) == [".envbuild"]

    def test_interrupted(self, house: Wheelhouse, server: SimpleIndex, big: Artifact) -> None:
        server.plant(server.file_path(big.file), Fault(stall=1 << 20))
        process = subprocess.Popen(
            [*FETCH, str(house.path), server.url, *described(big)], stderr=subprocess.PIPE, env=ENV
        )
        wait_for_part(house)
        process.send_signal(signal.SIGINT)
        assert b"KeyboardInterrupt" in process.communicate(timeout=15)[1]
        assert contents(house) == [".envbuild"]

    def test_killed_long_ago(
        self, house: Wheelhouse, server: SimpleIndex, client: Client, big: Artifact, small: Artifact
    ) -> None:
        server.plant(server.file_path(big.file), Fault(stall=1 << 20))
        process = subprocess.Popen([*FETCH, str(house.path), server.url, *described(big)], env=ENV)
        part = wait_for_part(house)
        process.kill()
        process.wait(timeout=15)
        fetch(house, server, client, small)
        assert part.exists()  # it could be another process's work
        yesterday = time.time() - 25 * 60 * 60
        os.utime(part, (yesterday, yesterday))
        fetch(house, server, client, big)
        assert not part.exists()


FETCH = [
    sys.executable,
    "-c",
    """if True:
    import sys
    from pathlib import Path
    from envbuild.artifacts import Artifact
    from envbuild.artifacts.client import Client
    from envbuild.artifacts.index import Index, IndexLocation
    from envbuild.artifacts.store import Wheelhouse
    from envbuild.errors import EnvbuildError

    folder, url, *rest = sys.argv[1:]
    artifacts = [Artifact(f, int(s), h, p) for f, s, h, p in zip(*[iter(rest)] * 4)]
    client = Client(backoff=0, tries=2)
    try:
        Wheelhouse(Path(folder)).fetch(
            artifacts, Index([IndexLocation(url)], client), client=client
        )
    except EnvbuildError as error:
        sys.exit(f"{type(error).__name__}: {error}")
    """,
]
ENV = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)}


def described(*artifacts: Artifact) -> list[str]:
    return [text for it in artifacts for text in (it.file, str(it.size), it.sha256, it.project)]


def wait_for_part(house: Wheelhouse) -> Path:
    """Wait until a download has begun to arrive."""
    for _ in range(3000):
        for part in house.path.glob(".envbuild/*.part"):
            if part.stat().st_size:
                return part
        time.sleep(0.005)
    raise AssertionError("no download began")


def test_two_processes_at_once(
    house: Wheelhouse, server: SimpleIndex, big: Artifact, small: Artifact
) -> None:
    for each in (big, small):
        server.plant(server.file_path(each.file), Fault(delay=0.2), times=2)
    command = [*FETCH, str(house.path), server.url, *described(big, small)]
    processes = [subprocess.Popen(command, env=ENV) for _ in range(3)]
    assert [process.wait(timeout=30) for process in processes] == [0, 0, 0]
    assert house.missing([big, small]) == []
    assert contents(house) == [".envbuild", ".envbuild/verified.json", big.file, small.file]


class TestRoom:
    """A full disk is seen before, and said when it fills up meanwhile."""

    def test_before(self, house: Wheelhouse, tmp_path: Path) -> None:
        huge = Artifact("huge-1-py3-none-any.whl", 1 << 60, "ab" * 32, "huge")
        with pytest.raises(PreflightError) as caught:
            house.fetch([huge], Urls({}))
        free = caught.value.found
        assert str(caught.value) == (
            f"{house.path}: not enough room for what is to be downloaded\n"
            f"  expected: 1152921504606846976 bytes free\n  found: {free}\n"
            "  mend: make room there, or choose another folder for the wheelhouse"
        )
        assert not house.path.exists()

    @pytest.mark.parametrize("limit", ["size=1m", "nr_inodes=2"])
    def test_meanwhile(
        self, house: Wheelhouse, server: SimpleIndex, small: Artifact, limit: str
    ) -> None:
        house.path.mkdir(parents=True)
        server.plant(server.file_path(small.file), Fault(body=bytes(4 << 20)))
        done = subprocess.run(
            [
                *("unshare", "--user", "--map-root-user", "--mount", "sh", "-ec"),
                f'mount -t tmpfs -o {limit} none "$0" || exit 77; "$@"; code=$?; '
                'find "$0" -name "*.part"; exit $code',
                str(house.path),
                *(*FETCH, str(house.path), server.url, *described(small)),
            ],
            env=ENV,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode == 77 or done.stderr.startswith("unshare:"):
            if REQUIRE_ALL:
                pytest.fail(f"user namespaces are needed: {done.stderr}")
            pytest.skip("needs user namespaces (util-linux)")
        lines = done.stderr.splitlines()
        assert lines[0] == (
            f"StepError: {house.path}: the wheelhouse is full: No space left on device"
        )
        assert lines[1] == f"  expected: room for {small.size} bytes"
        assert lines[2].startswith("  found: ")
        assert lines[2].endswith("inodes free")
        assert lines[3] == "  mend: make room there (quotas count too), or choose another folder"
        assert (done.stdout, done.returncode) == ("", 1)


class TestWhatIsThere:
    """A file is trusted if it is recorded and unchanged, else hashed; never taken as it comes."""

    @pytest.fixture(autouse=True)
    def fetched(
        self, house: Wheelhouse, server: SimpleIndex, client: Client, small: Artifact
    ) -> None:
        fetch(house, server, client, small)

    def test_touched(self, house: Wheelhouse, small: Artifact) -> None:
        house.path_of(small).touch()
        assert house.fetch([small], None).rehashed == 1
        assert house.fetch([small], None).rehashed == 0

    def test_changed_in_secret(self, house: Wheelhouse, small: Artifact) -> None:
        path = house.path_of(small)
        before = path.stat()
        data = bytearray(path.read_bytes())
        data[40] ^= 1
        path.write_bytes(data)
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
        assert house.missing([small]) == [small]
        with pytest.raises(PreflightError) as caught:
            house.fetch([small], None)
        assert str(caught.value) == (
            f"small: {small.file} in {house.path}: "
            "the file in the wheelhouse is not the one that is locked\n"
            f"  expected: SHA-256 {small.sha256}, {small.size} bytes\n"
            f"  found: SHA-256 {hashlib.sha256(data).hexdigest()}, {small.size} bytes\n"
            "  mend: run it with the network allowed, which replaces the file"
        )

    @pytest.mark.parametrize("data", [b"", b"other"])
    def test_replaced_when_damaged(
        self,
        house: Wheelhouse,
        server: SimpleIndex,
        client: Client,
        small: Artifact,
        data: bytes,
    ) -> None:
        house.path_of(small).write_bytes(data)
        assert fetch(house, server, client, small).downloaded == 1
        assert house.missing([small]) == []

    @pytest.mark.parametrize("records", ["", "{}", '{"schema": 2, "files": {}}', None])
    def test_without_usable_records(
        self, house: Wheelhouse, small: Artifact, records: str | None
    ) -> None:
        path = house.path / ".envbuild" / "verified.json"
        path.unlink()
        if records is not None:
            path.write_text(records)
        assert house.fetch([small], None).rehashed == 1
        assert house.fetch([small], None).rehashed == 0

    def test_records_that_others_can_write(self, house: Wheelhouse, small: Artifact) -> None:
        (house.path / ".envbuild" / "verified.json").chmod(0o664)
        assert house.fetch([small], None).rehashed == 1

    def test_admitted_by_fewer_checks(self, house: Wheelhouse, small: Artifact) -> None:
        path = house.path / ".envbuild" / "verified.json"
        document = json.loads(path.read_text())
        document["files"][small.file]["scan"] -= 1
        path.write_text(json.dumps(document))
        assert house.fetch([small], None).rehashed == 1

    def test_a_copy_of_the_file(self, house: Wheelhouse, small: Artifact) -> None:
        path = house.path_of(small)
        copy = path.with_name("copy")
        copy.write_bytes(path.read_bytes())
        copy.rename(path)
        assert house.fetch([small], None).rehashed == 1

    def test_a_wheel_that_would_do_harm(self, house: Wheelhouse) -> None:
        path = make_wheel(house.path, "evil", "1", data={"scripts/python": "#!/bin/sh"})
        with pytest.raises(InputError, match="would overwrite what the environment owns"):
            house.missing([artifact(path)])

    def test_records_of_files_that_are_gone(self, house: Wheelhouse, small: Artifact) -> None:
        path = house.path_of(small)
        other = artifact(path.rename(house.path / "small-2-py3-none-any.whl"))
        sdist = make_sdist(house.path, "src", "1")
        assert house.missing([artifact(sdist)]) == []
        document = json.loads((house.path / ".envbuild" / "verified.json").read_text())
        assert list(document["files"]) == [sdist.name]
        assert other.file != small.file

    def test_not_there_and_offline(self, house: Wheelhouse, small: Artifact) -> None:
        absent = [Artifact(f"a{at}.tar.gz", 1, "ab" * 32) for at in range(7)]
        with pytest.raises(PreflightError) as caught:
            house.fetch([small, *absent], None)
        assert str(caught.value) == (
            f"{house.path}: 7 files are not in the wheelhouse, and nothing may be downloaded\n"
            "  found: a0.tar.gz, a1.tar.gz, a2.tar.gz, a3.tar.gz, a4.tar.gz and 2 more missing\n"
            "  mend: run it with the network allowed, or copy the files there"
        )


class TestAdd:
    """A file that was made here is taken in as one that was downloaded."""

    def test_a_built_wheel(self, house: Wheelhouse, tmp_path: Path) -> None:
        built = make_wheel(tmp_path, "built", "1")
        data = built.read_bytes()
        path = house.add(artifact(built), [data[:10], data[10:]], origin="the build")
        assert path == house.path_of(artifact(built))
        assert path.read_bytes() == data
        assert house.fetch([artifact(built)], None).rehashed == 0

    def test_other_bytes(self, house: Wheelhouse, small: Artifact) -> None:
        with pytest.raises(StepError) as caught:
            house.add(small, [b"x"], origin="the build")
        assert caught.value.what == "other bytes than those that are locked came from the build"
        assert contents(house) == [".envbuild"]

    def test_a_failure_of_the_giver(self, house: Wheelhouse, small: Artifact) -> None:
        def chunks() -> Iterator[bytes]:
            yield b"x"
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            house.add(small, chunks(), origin="the build")
        assert contents(house) == [".envbuild"]


@pytest.mark.parametrize("file", ["", ".", "..", ".envbuild", "a/b", "/etc/passwd", "../x"])
def test_names_that_are_not_in_the_folder(house: Wheelhouse, file: str) -> None:
    for call in (house.path_of, lambda it: house.missing([it])):
        with pytest.raises(InputError) as caught:
            call(Artifact(file, 1, "ab" * 32))
        assert str(caught.value) == (
            f"{file!r}: not a file name for a wheelhouse\n"
            "  expected: a name without '/' that does not begin with '.'"
        )


def test_two_files_of_one_name(house: Wheelhouse) -> None:
    with pytest.raises(InputError) as caught:
        house.missing([Artifact("a.whl", 1, "ab" * 32, "a"), Artifact("a.whl", 1, "cd" * 32, "a")])
    assert str(caught.value) == (
        "a: a.whl: two different files of one name\n"
        f"  expected: SHA-256 {'ab' * 32}, 1 bytes\n"
        f"  found: SHA-256 {'cd' * 32}, 1 bytes\n"
        "  mend: lock again, so that both locks name the same file"
    )


def test_a_wheelhouse_that_is_a_file(tmp_path: Path, client: Client) -> None:
    path = tmp_path / "file"
    path.touch()
    wanted = Artifact("x.tar.gz", 1, "ab" * 32)
    with pytest.raises(StepError) as caught:
        Wheelhouse(path).fetch([wanted], Urls({}))
    assert str(caught.value) == (
        f"{path}/x.tar.gz: cannot be read: Not a directory\n"
        "  mend: check its owner and its permissions"
    )
    with pytest.raises(StepError) as caught:
        Wheelhouse(path).add(wanted, [b"x"], origin="here")
    assert str(caught.value) == (
        f"{path}/.envbuild: the wheelhouse cannot be written: Not a directory\n"
        "  mend: check its owner and its permissions, or choose another folder"
    )


def test_a_source_that_does_not_know_it(house: Wheelhouse, client: Client) -> None:
    wanted = Artifact("x.tar.gz", 1, "ab" * 32)
    with pytest.raises(StepError, match="nobody said where it can be had"):
        house.fetch([wanted], Urls({}), client=client)
    assert contents(house) == [".envbuild"]


def test_what_a_check_imports() -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys, envbuild.artifacts.store; "
            "print(sorted({'requests', 'urllib3', 'rich'} & set(sys.modules)))",
        ],
        env=ENV,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "[]\n"


@pytest.mark.parametrize("kind", ["a named pipe", "a folder"])
def test_what_is_no_file_is_not_waited_for(house: Wheelhouse, small: Artifact, kind: str) -> None:
    house.path.mkdir(parents=True)
    path = house.path_of(small)
    if kind == "a named pipe":
        os.mkfifo(path)
    else:
        path.mkdir()
    with pytest.raises(PreflightError) as caught:
        house.missing([small])
    assert str(caught.value) == (
        f"{path}: what stands in the place of a file is none\n"
        f"  expected: a regular file, or nothing\n  found: {kind}\n"
        "  mend: see who put it there, and remove it"
    )


def test_a_link_to_a_file_serves(house: Wheelhouse, small: Artifact, tmp_path: Path) -> None:
    house.path.mkdir(parents=True)
    house.path_of(small).symlink_to(tmp_path / "files" / small.file)
    assert house.missing([small]) == []


def test_records_that_are_a_pipe_are_none(house: Wheelhouse, small: Artifact) -> None:
    (house.path / ".envbuild").mkdir(parents=True)
    os.mkfifo(house.path / ".envbuild" / "verified.json")
    assert house.missing([small]) == [small]
