"""A package index on a free loopback port, with the faults that real ones have.

with SimpleIndex(folder) as index:
    index.plant(index.file_path("a-1-py3-none-any.whl"), Fault(cut=100), times=2)
    ...
    assert [seen.path for seen in index.requests] == [...]
"""

from __future__ import annotations

import base64
import email.parser
import hashlib
import html
import json
import socket
import sys
import threading
import traceback
import zipfile
from collections.abc import Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote, unquote, urlsplit

import msgspec
from packaging.utils import canonicalize_name, parse_sdist_filename, parse_wheel_filename

UPLOADED = "2024-01-01T00:00:00Z"
_JSON = "application/vnd.pypi.simple.v1+json"
_HTML = "text/html; charset=utf-8"


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """What goes wrong with one answer.

    Attributes:
        status: answer with this status and no content.
        retry_after: the header of that name, in seconds.
        delay: seconds before the answer.
        cut: bytes of the body after which the connection is cut.
        stall: bytes of the body after which nothing comes any more, until the server stops.
        body: what is sent in place of the file or the page.
        headless: no Content-Length: the body ends where the connection does.
        headers: in place of those of the same name, or besides the others.
    """

    status: int | None = None
    retry_after: int | None = None
    delay: float = 0
    cut: int | None = None
    stall: int | None = None
    body: bytes | None = None
    headless: bool = False
    headers: Mapping[str, str] = {}


class Seen(msgspec.Struct, frozen=True):
    """A request that was answered, or at least begun to be."""

    method: str
    path: str
    headers: Mapping[str, str]
    status: int


class SimpleIndex:
    """Serve a folder of wheels and sdists as a Simple API index (PEP 503, 691, 658, 700).

    Args:
        folder: the files; what is added while the server runs is served too.
        html: answer in HTML whatever is asked for.
        hashes: whether pages say the files' SHA-256; a mapping replaces some of them, by file name.
        sizes: whether JSON pages say the sizes.
        uploaded: whether JSON pages say the time of upload, which is `UPLOADED`; a mapping replaces
            some of them.
        yanked: reasons by file name.
        metadata: whether the wheels' METADATA can be had on its own.
        auth: user and password without which the answer is 401.
        ranges: whether parts of files can be asked for, and files have an ETag.
        files_url: where the pages say that the files are, if not here.
    """

    def __init__(
        self,
        folder: Path,
        *,
        html: bool = False,
        hashes: bool | Mapping[str, str] = True,
        sizes: bool = True,
        uploaded: bool | Mapping[str, str] = True,
        yanked: Mapping[str, str] | None = None,
        metadata: bool = True,
        auth: tuple[str, str] | None = None,
        ranges: bool = True,
        files_url: str = "../../files/",
    ) -> None:
        self.folder = folder
        self.html = html
        self.hashes = hashes
        self.sizes = sizes
        self.uploaded = uploaded
        self.yanked = dict(yanked or {})
        self.metadata = metadata
        self.auth = auth
        self.ranges = ranges
        self.files_url = files_url
        self.requests: list[Seen] = []
        self.stopping = threading.Event()
        self._faults: dict[str, list[Fault]] = {}
        self._lock = threading.Lock()
        self._server = _Server(self)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stopping.set()
        self._server.shutdown()
        self._server.hang_up()
        self._server.server_close()
        self._thread.join()

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    @property
    def url(self) -> str:
        """The index's URL, with a slash at the end and without credentials."""
        return f"http://127.0.0.1:{self.port}/simple/"

    @property
    def url_with_credentials(self) -> str:
        """The index's URL with what it asks for."""
        assert self.auth is not None
        user, password = (quote(part, safe="") for part in self.auth)
        return self.url.replace("://", f"://{user}:{password}@")

    def file_path(self, file: str) -> str:
        """Return the path of a file's URL."""
        return f"/files/{quote(file)}"

    def file_url(self, file: str) -> str:
        """Return a file's URL."""
        return f"http://127.0.0.1:{self.port}{self.file_path(file)}"

    def page_path(self, project: str) -> str:
        """Return the path of a project's page."""
        return f"/simple/{canonicalize_name(project)}/"

    def plant(self, path: str, fault: Fault, *, times: int = 1) -> None:
        """Let the next requests of a path go wrong, after those that were planted before."""
        with self._lock:
            self._faults.setdefault(path, []).extend([fault] * times)

    def asked(self, path: str) -> list[Seen]:
        """Return the requests of one path."""
        with self._lock:
            return [seen for seen in self.requests if seen.path == path]

    def next_fault(self, path: str) -> Fault:
        with self._lock:
            planted = self._faults.get(path)
            return planted.pop(0) if planted else Fault()

    def remember(self, seen: Seen) -> None:
        with self._lock:
            self.requests.append(seen)

    def projects(self) -> dict[str, list[Path]]:
        """Return the served files by normalised name of their project."""
        found: dict[str, list[Path]] = {}
        for path in sorted(self.folder.iterdir()):
            if path.name.endswith(".whl"):
                found.setdefault(parse_wheel_filename(path.name)[0], []).append(path)
            elif path.name.endswith(".tar.gz"):
                found.setdefault(parse_sdist_filename(path.name)[0], []).append(path)
        return found

    def listed(self, path: Path) -> dict[str, Any]:
        """Return what a page says of a file, as PEP 691 has it."""
        said: dict[str, Any] = {
            "filename": path.name,
            "url": f"{self.files_url}{quote(path.name)}",
            "hashes": {},
        }
        if self.hashes is not False:
            true = hashlib.sha256(path.read_bytes()).hexdigest()
            said["hashes"]["sha256"] = (
                self.hashes.get(path.name, true) if isinstance(self.hashes, Mapping) else true
            )
        if self.sizes:
            said["size"] = path.stat().st_size
        if self.uploaded is not False:
            said["upload-time"] = (
                self.uploaded.get(path.name, UPLOADED)
                if isinstance(self.uploaded, Mapping)
                else UPLOADED
            )
        if path.name in self.yanked:
            said["yanked"] = self.yanked[path.name] or True
        metadata = metadata_of(path)
        if metadata is not None:
            headers = email.parser.BytesParser().parsebytes(metadata, headersonly=True)
            if headers["Requires-Python"]:
                said["requires-python"] = headers["Requires-Python"]
            if self.metadata:
                said["core-metadata"] = {"sha256": hashlib.sha256(metadata).hexdigest()}
        return said


def metadata_of(path: Path) -> bytes | None:
    """Return a wheel's METADATA; None if the file is no wheel, or none that can be read."""
    if path.suffix != ".whl" or not zipfile.is_zipfile(path):
        return None
    with zipfile.ZipFile(path) as archive:
        for name in archive.namelist():
            if name.endswith(".dist-info/METADATA"):
                return archive.read(name)
    return None


class _Server(ThreadingHTTPServer):
    daemon_threads = False  # so that server_close waits for them
    request_queue_size = 64

    def __init__(self, index: SimpleIndex) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.index = index
        self.connections: set[socket.socket] = set()

    def hang_up(self) -> None:
        for connection in list(self.connections):
            _shut(connection)

    def handle_error(self, request: object, client_address: object) -> None:
        # clients that go away in the middle are what these tests are about
        if not isinstance(sys.exception(), ConnectionError):
            traceback.print_exc()


def _shut(connection: socket.socket) -> None:
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        return  # the other side was quicker


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def setup(self) -> None:
        super().setup()
        self.server.connections.add(self.connection)

    def finish(self) -> None:
        self.server.connections.discard(self.connection)
        super().finish()

    def log_message(self, format: str, *args: object) -> None:
        """Write nothing; the requests are kept for the tests to look at."""

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        index = self.server.index
        path = urlsplit(self.path).path
        fault = index.next_fault(path)
        if fault.delay:
            index.stopping.wait(fault.delay)
        if fault.status is not None:
            headers = {} if fault.retry_after is None else {"Retry-After": str(fault.retry_after)}
            self._send(fault.status, b"", headers, fault)
        elif not self._allowed():
            self._send(401, b"", {"WWW-Authenticate": 'Basic realm="index"'}, fault)
        elif path.startswith("/files/"):
            self._file(unquote(path.removeprefix("/files/")), fault)
        elif path.startswith("/simple/"):
            self._page(path.removeprefix("/simple/").rstrip("/"), fault)
        else:
            self._send(404, b"", {}, fault)

    def _allowed(self) -> bool:
        if self.server.index.auth is None:
            return True
        expected = base64.b64encode(":".join(self.server.index.auth).encode()).decode()
        return self.headers.get("Authorization") == f"Basic {expected}"

    def _page(self, project: str, fault: Fault) -> None:
        index = self.server.index
        projects = index.projects()
        if project and project not in projects:
            self._send(404, b"", {}, fault)
            return
        as_json = not index.html and _JSON in self.headers.get("Accept", "")
        if not project:
            body = _root_json(projects) if as_json else _root_html(projects)
        else:
            listed = [index.listed(path) for path in projects[project]]
            body = _page_json(project, listed) if as_json else _page_html(project, listed)
        if fault.body is not None:
            body = fault.body
        self._send(200, body, {"Content-Type": _JSON if as_json else _HTML}, fault)

    def _file(self, name: str, fault: Fault) -> None:
        index = self.server.index
        path = index.folder / name
        metadata: bytes | None = None
        if name.endswith(".metadata") and index.metadata:
            metadata = metadata_of(index.folder / name.removesuffix(".metadata"))
        if "/" in name or not (path.is_file() or metadata is not None):
            self._send(404, b"", {}, fault)
            return
        body = path.read_bytes() if metadata is None else metadata
        if fault.body is not None:
            body = fault.body
        headers = {"Content-Type": "application/octet-stream"}
        etag = f'"{hashlib.sha256(body).hexdigest()[:16]}"'
        if index.ranges:
            headers |= {"Accept-Ranges": "bytes", "ETag": etag}
        wanted = self.headers.get("Range", "") if index.ranges else ""
        if not wanted or self.headers.get("If-Range", etag) != etag:
            self._send(200, body, headers, fault)
            return
        first, last = _bounds(wanted, len(body))
        if first >= len(body):
            self._send(416, b"", {"Content-Range": f"bytes */{len(body)}"}, fault)
            return
        headers["Content-Range"] = f"bytes {first}-{last}/{len(body)}"
        self._send(206, body[first : last + 1], headers, fault)

    def _send(self, status: int, body: bytes, headers: Mapping[str, str], fault: Fault) -> None:
        index = self.server.index
        index.remember(Seen(self.command, self.path, dict(self.headers.items()), status))
        self.send_response(status, HTTPStatus(status).phrase)
        length = {} if fault.headless else {"Content-Length": str(len(body))}
        for name, value in {**length, **headers, **fault.headers}.items():
            self.send_header(name, value)
        if fault.headless:
            self.send_header("Connection", "close")
        self.end_headers()
        if self.command == "HEAD":
            return
        limit = fault.cut if fault.cut is not None else fault.stall
        self.wfile.write(body if limit is None else body[:limit])
        if fault.stall is not None:
            index.stopping.wait()
        if limit is not None:
            self.close_connection = True
            _shut(self.connection)


def _bounds(wanted: str, size: int) -> tuple[int, int]:
    first, _, last = wanted.removeprefix("bytes=").partition("-")
    if not first:
        return max(size - int(last), 0), size - 1
    return int(first), min(int(last), size - 1) if last else size - 1


def _root_json(projects: Mapping[str, list[Path]]) -> bytes:
    names = [{"name": name} for name in projects]
    return json.dumps({"meta": {"api-version": "1.1"}, "projects": names}).encode()


def _root_html(projects: Mapping[str, list[Path]]) -> bytes:
    links = "".join(f'<a href="{name}/">{name}</a><br/>\n' for name in projects)
    return f"<!DOCTYPE html>\n<html><body>\n{links}</body></html>\n".encode()


def _page_json(project: str, listed: list[dict[str, Any]]) -> bytes:
    return json.dumps(
        {"meta": {"api-version": "1.1"}, "name": project, "versions": [], "files": listed}
    ).encode()


def _page_html(project: str, listed: list[dict[str, Any]]) -> bytes:
    lines = [
        "<!DOCTYPE html>",
        '<html><head><meta name="pypi:repository-version" content="1.0">',
        f"<title>Links for {project}</title></head><body>",
    ]
    for said in listed:
        fragment = "".join(f"#{name}={value}" for name, value in said["hashes"].items())
        attributes = {"href": said["url"] + fragment}
        if "yanked" in said:
            attributes["data-yanked"] = "" if said["yanked"] is True else said["yanked"]
        if "requires-python" in said:
            attributes["data-requires-python"] = said["requires-python"]
        if "core-metadata" in said:
            attributes["data-core-metadata"] = f"sha256={said['core-metadata']['sha256']}"
        written = " ".join(f'{name}="{html.escape(value)}"' for name, value in attributes.items())
        lines.append(f"<a {written}>{said['filename']}</a><br/>")
    return "\n".join([*lines, "</body></html>", ""]).encode()
