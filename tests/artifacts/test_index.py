"""What indexes offer is read alike from JSON and HTML, and passwords are shown to nobody."""

from __future__ import annotations

import hashlib
import logging
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from rich.pretty import pretty_repr

from envbuild.artifacts import Artifact
from envbuild.artifacts.client import Client
from envbuild.artifacts.index import Index, IndexFile, IndexLocation, Urls, configured
from envbuild.errors import StepError
from tests.servers import UPLOADED, Fault, SimpleIndex
from tests.wheels import make_sdist, make_wheel

FILE = "toy_app-1.0-py3-none-any.whl"
SECRET = "s3cr/t@ä"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    files = tmp_path / "files"
    make_wheel(files, "toy-app", "1.0")
    make_wheel(files, "toy-app", "2.0")
    make_sdist(files, "toy-app", "1.0")
    return files


@pytest.fixture
def client() -> Iterator[Client]:
    client = Client(connect=5, read=5, tries=3, backoff=0)
    yield client
    client.close()


@pytest.fixture(autouse=True)
def no_netrc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NETRC", str(tmp_path / "no-netrc"))


def artifact(path: Path, project: str = "toy-app") -> Artifact:
    data = path.read_bytes()
    return Artifact(path.name, len(data), hashlib.sha256(data).hexdigest(), project)


def index_of(client: Client, *urls: str) -> Index:
    return Index([IndexLocation(url) for url in urls], client)


class TestConfigured:
    """uv itself is asked, as the user has configured it."""

    @pytest.fixture(autouse=True)
    def no_configuration(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        for name in ("UV_INDEX", "UV_DEFAULT_INDEX", "UV_EXTRA_INDEX_URL", "UV_INDEX_URL"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))

    def test_by_variables_in_the_order_of_their_priority(
        self, uv: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("UV_DEFAULT_INDEX", "http://default.invalid/simple")
        monkeypatch.setenv("UV_INDEX", "http://a.invalid/simple/ named=http://b.invalid/simple")
        assert configured(uv, cwd=tmp_path) == (
            IndexLocation("http://a.invalid/simple/"),
            IndexLocation("http://b.invalid/simple"),
            IndexLocation("http://default.invalid/simple", default=True),
        )

    def test_by_a_file_in_the_folder(self, uv: Path, tmp_path: Path) -> None:
        (tmp_path / "uv.toml").write_text(
            '[[index]]\nurl = "http://mirror.invalid/simple"\ndefault = true\n'
            '[[index]]\nname = "x"\nurl = "http://explicit.invalid/simple"\nexplicit = true\n'
        )
        assert configured(uv, cwd=tmp_path) == (
            IndexLocation("http://mirror.invalid/simple", default=True),
        )

    def test_the_default_of_uv(self, uv: Path, tmp_path: Path) -> None:
        (location,) = configured(uv, cwd=tmp_path)
        assert location.default
        assert location.url.startswith("https://")

    def test_nothing_is_written_for_a_user_who_configured_an_output_file(
        self, uv: Path, tmp_path: Path
    ) -> None:
        (tmp_path / "uv.toml").write_text('[pip]\noutput-file = "requirements.txt"\n')
        assert len(configured(uv, cwd=tmp_path)) == 1
        assert not (tmp_path / "requirements.txt").exists()

    def test_the_password_is_read_and_not_shown(
        self,
        uv: Path,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        monkeypatch.setenv("UV_DEFAULT_INDEX", "https://me:s3cret@mirror.invalid/simple")
        with caplog.at_level(logging.DEBUG):
            (location,) = configured(uv, cwd=tmp_path)
        assert location.url == "https://me:s3cret@mirror.invalid/simple"
        assert location.shown == "https://***@mirror.invalid/simple"
        assert "s3cret" not in f"{location!r}{location}{pretty_repr(location)}{caplog.text}"

    def test_a_configuration_that_uv_refuses(
        self, uv: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("UV_DEFAULT_INDEX", "https://me:s3cret@[mirror/simple")
        with pytest.raises(StepError) as caught:
            configured(uv, cwd=tmp_path)
        assert str(caught.value).startswith("asking uv for the configured indexes failed")
        assert "s3cret" not in str(caught.value)

    def test_a_program_that_prints_nothing(self, tmp_path: Path) -> None:
        program = tmp_path / "uv"
        program.write_text("#!/bin/sh\n")
        program.chmod(0o755)
        with pytest.raises(StepError) as caught:
            configured(program, cwd=tmp_path)
        assert str(caught.value) == (
            f"{program}: asking uv for the configured indexes: no index was printed\n"
            "  expected: --index-url URL\n"
            "  mend: check uv's configuration: uv.toml, [tool.uv] of pyproject.toml, UV_*INDEX*; "
            "no-index leaves none"
        )

    def test_passwords_are_encoded_however_they_are_written(
        self, uv: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "uv.toml").write_text(
            "[[index]]\nurl = 'http://me:a\"b c@d@one.invalid/simple'\ndefault = true\n"
        )
        monkeypatch.setenv("UV_INDEX", "http://me:it's%2F100%@two.invalid/simple")
        assert [location.url for location in configured(uv, cwd=tmp_path)] == [
            "http://me:it%27s%2F100%25@two.invalid/simple",
            "http://me:a%22b%20c%40d@one.invalid/simple",
        ]

    @pytest.mark.parametrize("name", ["UV_DEFAULT_INDEX", "uv.toml"])
    def test_a_password_that_makes_no_url_is_shown_nowhere(
        self,
        uv: Path,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
        name: str,
    ) -> None:
        url = "http://me:s3/cret@mirror.invalid/simple"
        if name == "uv.toml":
            (tmp_path / name).write_text(f'[[index]]\nurl = "{url}"\n')
        else:
            monkeypatch.setenv(name, url)
        with caplog.at_level(logging.DEBUG), pytest.raises(StepError) as caught:
            configured(uv, cwd=tmp_path)
        assert "s3" not in str(caught.value) + caplog.text
        assert "http://***@mirror.invalid/simple" in str(caught.value)
        assert caught.value.mend == (
            "check uv's configuration: uv.toml, [tool.uv] of pyproject.toml, UV_*INDEX*"
        )

    def test_what_is_no_url_for_us(self, tmp_path: Path) -> None:
        program = tmp_path / "uv"
        program.write_text("#!/bin/sh\necho '--index-url http://me:s3cret@h:x/simple'\n")
        program.chmod(0o755)
        with pytest.raises(StepError) as caught:
            configured(program, cwd=tmp_path)
        assert str(caught.value) == (
            "http://***@h:x/simple: asking uv for the configured indexes: not a URL that can be "
            "asked\n  found: its host or port cannot be read\n"
            "  mend: check uv's configuration: uv.toml, [tool.uv] of pyproject.toml, UV_*INDEX*"
        )

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("UV_CONSTRAINT", "gone.txt"),
            ("UV_PROJECT", "gone"),
            ("UV_NO_INDEX", "1"),
            ("UV_FIND_LINKS", "gone"),
            ("UV_CACHE_DIR", "/dev/null/cache"),
            ("UV_OFFLINE", "nonsense"),
            ("UV_WORKING_DIR", "gone"),
            ("PYTHONHOME", "gone"),
        ],
    )
    def test_other_settings_of_uv_do_no_harm(
        self, uv: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str
    ) -> None:
        monkeypatch.setenv(name, value)
        monkeypatch.setenv("UV_DEFAULT_INDEX", "http://mirror.invalid/simple")
        assert configured(uv, cwd=tmp_path) == (
            IndexLocation("http://mirror.invalid/simple", default=True),
        )

    def test_no_index_at_all(self, uv: Path, tmp_path: Path) -> None:
        (tmp_path / "uv.toml").write_text("no-index = true\n")
        with pytest.raises(StepError, match="no-index leaves none"):
            configured(uv, cwd=tmp_path)

    def test_what_uv_says_of_its_configuration_is_kept(self, uv: Path, tmp_path: Path) -> None:
        (tmp_path / "uv.toml").write_text('[pip]\nfind-links = ["gone"]\n')
        with pytest.raises(StepError) as caught:
            configured(uv, cwd=tmp_path)
        assert "Failed to read `--find-links` directory" in (caught.value.detail or "")
        assert (caught.value.mend or "").startswith("check uv's configuration: ")


@pytest.mark.parametrize("html", [False, True])
def test_files_of_a_project(folder: Path, client: Client, html: bool) -> None:
    yanked = {"toy_app-2.0-py3-none-any.whl": 'broken "build"', "toy_app-1.0.tar.gz": ""}
    with SimpleIndex(folder, html=html, yanked=yanked) as server:
        files = index_of(client, server.url).files("Toy.App")
        for name, file in files.items():
            known = artifact(folder / name)
            assert file == IndexFile(
                file=name,
                url=server.file_url(name),
                index=server.url,
                sha256=known.sha256,
                size=None if html else known.size,
                uploaded=None if html else UPLOADED,
                yanked=yanked.get(name),
            )
        assert sorted(files) == sorted(path.name for path in folder.iterdir())
        assert "application/vnd.pypi.simple.v1+json" in server.requests[0].headers["Accept"]
        assert server.requests[0].headers["User-Agent"].startswith("envbuild/")


@pytest.mark.parametrize("html", [False, True])
def test_an_index_that_says_little(folder: Path, client: Client, html: bool) -> None:
    with SimpleIndex(folder, html=html, hashes=False, sizes=False, uploaded=False) as server:
        index = index_of(client, server.url)
        file = index.files("toy-app")[FILE]
        assert (file.sha256, file.size, file.uploaded, file.yanked) == (None, None, None, None)
        assert index.locate(artifact(folder / FILE)) == file


def test_spellings_of_an_index_and_a_project_are_asked_once(folder: Path, client: Client) -> None:
    with SimpleIndex(folder) as server:
        bare = server.url.rstrip("/")
        index = index_of(client, bare, server.url, bare + "//")
        assert index.files("toy-app") == index.files("Toy_App")
        assert [seen.path for seen in server.requests] == ["/simple/toy-app/"]


def test_several_threads_may_ask(folder: Path, client: Client) -> None:
    found: list[int] = []
    with SimpleIndex(folder) as server:
        index = index_of(client, server.url)
        threads = [
            threading.Thread(target=lambda: found.append(len(index.files("toy-app"))))
            for _ in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert found == [3] * 8


def test_the_first_index_counts(tmp_path: Path, folder: Path, client: Client) -> None:
    make_wheel(tmp_path / "other", "toy-app", "1.0", files={"toy_app.py": "other"})
    make_wheel(tmp_path / "other", "toy-app", "3.0")
    with SimpleIndex(tmp_path / "other") as first, SimpleIndex(folder) as second:
        index = index_of(client, first.url, second.url)
        files = index.files("toy-app")
        assert files[FILE].index == first.url
        assert len(files) == 4
        assert index.locate(artifact(folder / FILE)).index == second.url


def test_a_file_without_a_hash_only_if_there_is_none_with(folder: Path, client: Client) -> None:
    with SimpleIndex(folder, hashes=False) as first, SimpleIndex(folder) as second:
        index = index_of(client, first.url, second.url)
        assert index.locate(artifact(folder / FILE)).index == second.url


def test_no_index_has_the_project(folder: Path, client: Client) -> None:
    wanted = Artifact("other-1-py3-none-any.whl", 1, "ab" * 32, "other")
    with SimpleIndex(folder) as server:
        index = index_of(client, server.url)
        assert index.files("other") == {}
        with pytest.raises(StepError) as caught:
            index.locate(wanted)
        assert str(caught.value) == (
            "other: other-1-py3-none-any.whl: no index has the project\n"
            f"  expected: SHA-256 {'ab' * 32}\n"
            f"  found: nothing at {server.url}\n"
            "  mend: configure the index or mirror that the lock was made with"
        )
        assert len(server.requests) == 1  # a 404 is an answer, kept and not asked for again


def test_no_index_offers_the_file(folder: Path, client: Client) -> None:
    wanted = Artifact("toy_app-9-py3-none-any.whl", 1, "ab" * 32, "toy-app")
    with SimpleIndex(folder) as server, pytest.raises(StepError) as caught:
        index_of(client, server.url).locate(wanted)
    assert str(caught.value) == (
        "toy-app: toy_app-9-py3-none-any.whl: no index offers the file\n"
        f"  expected: SHA-256 {'ab' * 32}\n"
        f"  found: other files of the project at {server.url}\n"
        "  mend: lock again, or configure the index or mirror that still has it"
    )


def test_a_file_of_no_project(client: Client) -> None:
    with pytest.raises(StepError) as caught:
        index_of(client, "http://127.0.0.1:9/").locate(Artifact("cpython.tar.gz", 1, "ab" * 32))
    assert str(caught.value) == (
        "cpython.tar.gz: belongs to no project, so no index can have it\n  mend: give its URL"
    )


def test_another_file_under_the_name(folder: Path, client: Client) -> None:
    known = artifact(folder / FILE)
    with SimpleIndex(folder, hashes={FILE: "cd" * 32}, auth=("me", SECRET)) as server:
        with pytest.raises(StepError) as caught:
            index_of(client, server.url_with_credentials).locate(known)
        assert str(caught.value) == (
            f"toy-app: {FILE}: the index offers another file under this name\n"
            f"  expected: SHA-256 {known.sha256}\n"
            f"  found: SHA-256 {'cd' * 32} at {server.url.replace('://', '://***@')}\n"
            "  mend: find out which of the two is the published file before you lock again"
        )


class TestCredentials:
    """They reach the host they are for, and no other, and nobody's eyes."""

    def test_of_the_url(self, folder: Path, client: Client) -> None:
        with SimpleIndex(folder, auth=("me", SECRET)) as server:
            file = index_of(client, server.url_with_credentials).files("toy-app")[FILE]
            assert "s3cr" in file.url
            assert "s3cr" not in f"{file!r}{file}{pretty_repr(file)}{file.index}"
            with client.get(file.url, headers={}) as response:
                assert response.status_code == 200
                assert response.content == (folder / FILE).read_bytes()

    def test_are_not_shown_to_another_host(self, folder: Path, client: Client) -> None:
        with SimpleIndex(folder) as host:
            files_url = f"http://127.0.0.1:{host.port}/files/"
            with SimpleIndex(folder, auth=("me", SECRET), files_url=files_url) as server:
                file = index_of(client, server.url_with_credentials).files("toy-app")[FILE]
                with client.get(file.url, headers={}) as response:
                    assert response.status_code == 200
            assert file.url == f"{files_url}{FILE}"
            assert "Authorization" not in host.requests[0].headers

    def test_of_netrc(
        self, folder: Path, client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        netrc = tmp_path / "netrc"
        netrc.write_text("machine 127.0.0.1 login me password s3cret\n")
        netrc.chmod(0o600)
        monkeypatch.setenv("NETRC", str(netrc))
        with SimpleIndex(folder, auth=("me", "s3cret")) as server:
            assert len(index_of(client, server.url).files("toy-app")) == 3

    def test_refused(self, folder: Path, client: Client) -> None:
        with SimpleIndex(folder, auth=("me", SECRET)) as server:
            url = server.url.replace("://", "://me:wrong@")
            with pytest.raises(StepError) as caught:
                index_of(client, url).files("toy-app")
            assert str(caught.value) == (
                f"{server.url.replace('://', '://***@')}toy-app/: "
                "the index refused with HTTP status 401\n"
                "  mend: put user and password into the index's URL or into ~/.netrc"
            )

    def test_do_not_appear_when_nobody_answers(
        self, client: Client, caplog: pytest.LogCaptureFixture
    ) -> None:
        with caplog.at_level(logging.DEBUG), pytest.raises(StepError) as caught:
            index_of(client, "http://me:s3cret@127.0.0.1:9/simple/").files("toy-app")
        assert str(caught.value).startswith(
            "http://***@127.0.0.1:9/simple/toy-app/: no answer from 127.0.0.1 in 3 tries\n  found: "
        )
        assert "s3cret" not in str(caught.value) + str(caught.value.__cause__) + caplog.text


class TestTrouble:
    """What passes is waited for; what does not is said."""

    @pytest.mark.parametrize("status", [429, 500, 502, 503, 504])
    def test_a_busy_server_is_asked_again(self, folder: Path, client: Client, status: int) -> None:
        with SimpleIndex(folder) as server:
            path = server.page_path("toy-app")
            server.plant(path, Fault(status=status, retry_after=0), times=2)
            assert len(index_of(client, server.url).files("toy-app")) == 3
            assert [seen.status for seen in server.asked(path)] == [status, status, 200]

    def test_but_not_for_ever(self, folder: Path, client: Client) -> None:
        with SimpleIndex(folder) as server:
            path = server.page_path("toy-app")
            server.plant(path, Fault(status=503), times=9)
            with pytest.raises(StepError) as caught:
                index_of(client, server.url).files("toy-app")
            assert len(server.asked(path)) == 3
            assert str(caught.value) == (
                f"{server.url}toy-app/: the index answered with HTTP status 503\n"
                "  expected: 200\n  mend: try again later, or use another index"
            )

    def test_a_page_that_is_cut_is_asked_for_again(self, folder: Path, client: Client) -> None:
        with SimpleIndex(folder) as server:
            server.plant(server.page_path("toy-app"), Fault(cut=20), times=2)
            assert len(index_of(client, server.url).files("toy-app")) == 3

    def test_a_page_that_is_always_cut(self, folder: Path, client: Client) -> None:
        with SimpleIndex(folder) as server:
            server.plant(server.page_path("toy-app"), Fault(cut=20), times=9)
            with pytest.raises(StepError) as caught:
                index_of(client, server.url).files("toy-app")
        assert str(caught.value).startswith(
            f"{server.url}toy-app/: no answer from 127.0.0.1 in 3 tries\n"
        )

    def test_a_silent_server(self, folder: Path) -> None:
        impatient = Client(connect=5, read=0.1, tries=2, backoff=0)
        with SimpleIndex(folder) as server:
            server.plant(server.page_path("toy-app"), Fault(stall=0), times=2)
            with pytest.raises(StepError, match=r"no answer from 127\.0\.0\.1 in 2 tries"):
                index_of(impatient, server.url).files("toy-app")
            assert len(index_of(impatient, server.url).files("toy-app")) == 3
        impatient.close()

    @pytest.mark.parametrize(
        ("kind", "body", "found"),
        [
            ("text/plain", b"hello", "media type text/plain"),
            ("", b"hello", "media type none"),
            ("application/json", b"{}", "Object missing required field `files`"),
            (
                "application/vnd.pypi.simple.v1+json",
                b'{"meta": {"api-version": "2.0"}, "files": []}',
                "version 2.0",
            ),
            (
                "text/html",
                b'<meta name="pypi:repository-version" content="2.0">',
                "version 2.0",
            ),
        ],
    )
    def test_what_is_not_a_page(
        self, folder: Path, client: Client, kind: str, body: bytes, found: str
    ) -> None:
        with SimpleIndex(folder) as server:
            fault = Fault(body=body, headers={"Content-Type": kind})
            server.plant(server.page_path("toy-app"), fault)
            with pytest.raises(StepError) as caught:
                index_of(client, server.url).files("toy-app")
            assert str(caught.value) == (
                f"{server.url}toy-app/: the index answered what is not a page of a package index\n"
                "  expected: PEP 691 (JSON) or PEP 503 (HTML), version 1\n"
                f"  found: {found}\n"
                f"  mend: check the URL of the index: {server.url}"
            )

    @pytest.mark.parametrize(
        ("url", "reason"),
        [
            ("http://[bad/x.whl", "its host or port cannot be read"),
            (f"http://{'x' * 80}.invalid/x.whl", "its host or port cannot be read"),
            ("http://host:port/x.whl", "its host or port cannot be read"),
            ("file:///x%00.whl", "no file can have its name"),
        ],
    )
    @pytest.mark.parametrize("kind", ["html", "json"])
    def test_an_address_that_is_none(
        self, folder: Path, client: Client, url: str, reason: str, kind: str
    ) -> None:
        file = url.rpartition("/")[2].replace("%00", "\0")
        listed = {"filename": file, "url": url, "hashes": {}}
        html = {"Content-Type": "text/html"}, f'<a href="{url}">x</a>'.encode()
        page = (
            {"Content-Type": "application/vnd.pypi.simple.v1+json"},
            msgspec.json.encode({"meta": {"api-version": "1.0"}, "files": [listed]}),
        )
        headers, body = html if kind == "html" else page
        with SimpleIndex(folder) as server:
            server.plant(server.page_path("toy-app"), Fault(body=body, headers=headers))
            index = index_of(client, server.url)
            with pytest.raises(StepError) as caught:
                index.locate(Artifact(file, 1, "ab" * 32, "toy-app"))
            assert str(caught.value) == (
                f"{server.url}toy-app/: the index answered what is not a page of a package index\n"
                "  expected: PEP 691 (JSON) or PEP 503 (HTML), version 1\n"
                f"  found: {file} at {url}: {reason}\n"
                f"  mend: check the URL of the index: {server.url}"
            )
            # what else the page lists can be had all the same
            with pytest.raises(StepError, match="no index offers the file"):
                index.locate(Artifact("y.whl", 1, "ab" * 32, "toy-app"))

    @pytest.mark.parametrize(
        ("kind", "body"),
        [
            ("text/html", b'<base href="http://[bad"><a href="x.whl">x</a>'),
            ("application/json", b'{"files": [], "more": ' + b"[" * 5000),
        ],
    )
    def test_a_page_that_takes_its_reader_apart(
        self, folder: Path, client: Client, kind: str, body: bytes
    ) -> None:
        with SimpleIndex(folder) as server:
            fault = Fault(body=body, headers={"Content-Type": kind})
            server.plant(server.page_path("toy-app"), fault)
            with pytest.raises(StepError, match="what is not a page of a package index"):
                index_of(client, server.url).files("toy-app")

    def test_a_declaration_that_some_readers_cannot_read(
        self, folder: Path, client: Client
    ) -> None:
        """Some versions of html.parser assert that there is none; others pass over it."""
        with SimpleIndex(folder) as server:
            fault = Fault(
                body=b"<![nonsense[<a href=x.whl>x</a>", headers={"Content-Type": "text/html"}
            )
            server.plant(server.page_path("toy-app"), fault)
            try:
                assert set(index_of(client, server.url).files("toy-app")) <= {"x.whl"}
            except StepError as error:
                assert "what is not a page of a package index" in error.what

    @pytest.mark.parametrize("host", ["[bad", "x" * 80])
    def test_a_redirection_to_nowhere(self, folder: Path, client: Client, host: str) -> None:
        with SimpleIndex(folder) as server:
            fault = Fault(status=302, headers={"Location": f"http://{host}/"})
            server.plant(server.page_path("toy-app"), fault, times=9)
            with pytest.raises(StepError):
                index_of(client, server.url).files("toy-app")

    def test_a_bundle_of_certificates_that_is_not_there(
        self, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for name in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "none.pem"))
        client = Client(tries=1)
        with pytest.raises(StepError, match=r"found: Could not find .*none\.pem"):
            index_of(client, "https://127.0.0.1:9/simple/").files("toy-app")
        client.close()


def test_an_html_page_as_old_tools_write_them(folder: Path, client: Client) -> None:
    body = (
        '<html><base href="../../files/"><body><a>no link</a>'
        '<A HREF="toy%5Fapp-1.0.tar.gz#md5=00">toy_app-1.0.tar.gz</A>'
        f"<a data-yanked href={FILE}#sha256={'AB' * 32}>x</a>"
    ).encode()
    with SimpleIndex(folder) as server:
        fault = Fault(body=body, headers={"Content-Type": "text/html"})
        server.plant(server.page_path("toy-app"), fault)
        files = index_of(client, server.url).files("toy-app")
        assert files == {
            "toy_app-1.0.tar.gz": IndexFile(
                file="toy_app-1.0.tar.gz",
                url=server.file_url("x").removesuffix("x") + "toy%5Fapp-1.0.tar.gz",
                index=server.url,
            ),
            FILE: IndexFile(
                file=FILE,
                url=server.file_url(FILE),
                index=server.url,
                sha256="ab" * 32,
                yanked="",
            ),
        }


def test_an_index_in_a_folder(tmp_path: Path, client: Client) -> None:
    page = tmp_path / "simple" / "toy-app"
    page.mkdir(parents=True)
    (page / "index.html").write_text(f'<a href="../../files/{FILE}">{FILE}</a>')
    index = index_of(client, (tmp_path / "simple").as_uri())
    assert index.files("toy-app")[FILE].url == (tmp_path / "files" / FILE).as_uri()
    assert index.files("other") == {}


class TestUrls:
    """A table of URLs serves as an index does."""

    def test_what_is_no_url(self) -> None:
        with pytest.raises(StepError) as caught:
            Urls({"c": "http://me:s3/cret@mirror/c"}).locate(Artifact("c", 1, "ab" * 32))
        assert str(caught.value) == (
            "c: http://***@mirror/c: not a URL that can be asked\n"
            "  found: its host or port cannot be read\n  mend: check the address of the mirror"
        )

    def test_what_is_in_it(self) -> None:
        wanted = Artifact("cpython.tar.gz", 5, "ab" * 32)
        urls = Urls({"cpython.tar.gz": "https://me:s3cret@host.invalid/cpython.tar.gz"})
        found = urls.locate(wanted)
        assert found.url == "https://me:s3cret@host.invalid/cpython.tar.gz"
        assert found.index == "https://***@host.invalid/cpython.tar.gz"

    def test_what_is_not(self) -> None:
        with pytest.raises(StepError) as caught:
            Urls({"b": "file:///b", "a": "file:///a"}).locate(Artifact("c", 1, "ab" * 32))
        assert str(caught.value) == (
            "c: nobody said where it can be had\n  expected: a URL for it\n  found: a, b"
        )
