"""Package indexes: which ones the user has configured, and what they offer.

The formats are those of PEP 503 (HTML), PEP 691 (JSON), PEP 592 (yanked files), PEP 629 (versions)
and PEP 700 (sizes and upload times).
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, unquote, urlsplit

import msgspec
from packaging.utils import canonicalize_name

from envbuild import process
from envbuild.artifacts.urls import checked, encoded, joined, local_path, with_credentials
from envbuild.errors import StepError

if TYPE_CHECKING:
    from envbuild.artifacts import Artifact
    from envbuild.artifacts.client import Client

_JSON = "application/vnd.pypi.simple.v1+json"
_ACCEPT = f"{_JSON}, application/vnd.pypi.simple.v1+html;q=0.2, text/html;q=0.1"
_HTML_KINDS = frozenset({"text/html", "application/vnd.pypi.simple.v1+html"})
_ABSENT = frozenset({404, 410})
_REFUSED = frozenset({401, 403, 407})


class IndexLocation(msgspec.Struct, frozen=True):
    """Where an index is.

    Attributes:
        url: the URL, which may hold a password: show `shown` instead.
        default: whether it is the one that is asked last.
    """

    url: str
    default: bool = False

    @property
    def shown(self) -> str:
        """The URL without credentials."""
        return process.redact(self.url)

    def __repr__(self) -> str:
        return f"IndexLocation({self.shown!r}, default={self.default})"

    def __rich_repr__(self) -> list[tuple[str, object]]:
        return [("url", self.shown), ("default", self.default)]


class Absent(msgspec.Struct, frozen=True, kw_only=True):
    """That no index offers a file as it is known: an answer, where a failure is none.

    Attributes:
        what: one line that says what is offered instead, if anything.
        expected: the file's hash.
        found: what is there, without credentials.
        mend: what can be done.
    """

    what: str
    expected: str
    found: str
    mend: str


class IndexFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file as an index offers it.

    Attributes:
        file: its name.
        url: where it can be had, which may hold a password: not to be shown.
        index: the index that offers it, without credentials.
        sha256: 64 hexadecimal digits; None where the index does not say.
        size: in bytes; None where the index does not say (PEP 700).
        uploaded: the time of upload as the index writes it; None where it does not (PEP 700).
        yanked: the reason for which it was withdrawn, perhaps empty; None if it was not (PEP 592).
    """

    file: str
    url: str
    index: str
    sha256: str | None = None
    size: int | None = None
    uploaded: str | None = None
    yanked: str | None = None

    def __repr__(self) -> str:
        return f"IndexFile({self.file!r}, index={self.index!r})"

    def __rich_repr__(self) -> list[tuple[str, object]]:
        return [("file", self.file), ("index", self.index)]


# What uv may see besides what every client of an index may: where it finds its configuration of
# indexes. Of other settings some would fail here: a constraints file that is gone, no-index.
_CONFIGURATION = (
    *("UV_DEFAULT_INDEX", "UV_INDEX", "UV_INDEX_URL", "UV_EXTRA_INDEX_URL"),
    *("UV_CONFIG_FILE", "UV_NO_CONFIG", "XDG_CONFIG_HOME", "XDG_CONFIG_DIRS"),
)
_CHECK_CONFIGURATION = "check uv's configuration: uv.toml, [tool.uv] of pyproject.toml, UV_*INDEX*"


def configured(uv: Path, *, cwd: Path | None = None) -> tuple[IndexLocation, ...]:
    """Ask uv which indexes the user has configured, by its files and variables.

    Indexes that are marked explicit are not among them, and credentials only if they stand in the
    URL: those of UV_INDEX_NAME_PASSWORD and of keyrings are uv's own, those of netrc are found.

    Args:
        uv: the program.
        cwd: the folder whose configuration counts; the current one if not given.

    Returns:
        The indexes in the order in which uv asks them: the default is last. Their users and
        passwords are percent-encoded.

    Raises:
        StepError: uv failed, or printed no index or what is no URL.
    """
    doing = "asking uv for the configured indexes"
    command = [str(uv), "pip", "compile", "-", "--emit-index-url", "--no-header", "--quiet"]
    # A configured output-file would be written to, and take the answer: so stdout is one. Standard
    # input is empty, so that there is nothing to resolve.
    command += ["--output-file", "/dev/stdout", "--python", sys.executable, "--no-cache"]
    settings = {name: os.environ[name] for name in _CONFIGURATION if name in os.environ}
    printed = process.run(
        command,
        doing=doing,
        env=process.environment(settings, network=True),
        cwd=cwd,
        timeout=60,
        mend=_CHECK_CONFIGURATION,
    ).stdout
    locations = tuple(_printed(printed, doing))
    if not any(location.default for location in locations):
        raise StepError(
            f"{doing}: no index was printed",
            where=uv,
            expected="--index-url URL",
            mend=f"{_CHECK_CONFIGURATION}; no-index leaves none",
        )
    return tuple(sorted(locations, key=lambda location: location.default))


def _printed(text: str, doing: str) -> Iterator[IndexLocation]:
    options = {"--index-url": True, "--extra-index-url": False}
    for line in text.splitlines():
        option, _, url = line.partition(" ")
        if option not in options:
            continue
        try:
            yield IndexLocation(encoded(url), default=options[option])
        except ValueError as error:
            raise StepError(
                f"{doing}: not a URL that can be asked",
                where=process.redact(url),
                found=str(error),
                mend=_CHECK_CONFIGURATION,
            ) from error


class Index:
    """The configured indexes as one, asked in order; several threads may ask at once.

    Args:
        locations: the indexes, the first before the others.
        client: makes the connections.
    """

    def __init__(self, locations: Sequence[IndexLocation], client: Client) -> None:
        # one index spelled with and without a slash at the end is asked once
        roots = {_root(location.url): location.shown for location in locations}
        self._roots = tuple(roots.items())
        self._client = client
        self._lock = threading.Lock()
        self._known: dict[tuple[str, str], _Page | None] = {}

    def files(self, project: str) -> dict[str, IndexFile]:
        """Return what is offered of a project, by file name; nothing if no index has it.

        Args:
            project: its name, in any spelling. Of a file on several indexes, the first counts.

        Raises:
            StepError: an index did not answer, refused, or answered what is not PEP 503 or 691.
        """
        files: dict[str, IndexFile] = {}
        for root, shown in self._roots:
            page = self._page(root, shown, project)
            if page is not None:
                files = {**page.offers(), **files}
        return files

    def locate(self, artifact: Artifact) -> IndexFile:
        """Find an artifact, or fail.

        Raises:
            StepError: it is not offered; it belongs to no project; or as in `files`.
        """
        found = self.look_up(artifact)
        if isinstance(found, IndexFile):
            return found
        raise StepError(
            found.what,
            where=f"{artifact.project}: {artifact.file}",
            expected=found.expected,
            found=found.found,
            mend=found.mend,
        )

    def look_up(self, artifact: Artifact) -> IndexFile | Absent:
        """Look for an artifact: the file with its name and its SHA-256, on whichever index.

        A file without a hash is taken if there is none with the right one: what is downloaded is
        hashed in any case.

        Raises:
            StepError: it belongs to no project; or as in `files`.
        """
        if not artifact.project:
            raise StepError(
                "belongs to no project, so no index can have it",
                where=artifact.file,
                mend="give its URL",
            )
        unsure: IndexFile | None = None
        other: IndexFile | None = None
        having: list[str] = []
        for root, shown in self._roots:
            page = self._page(root, shown, artifact.project)
            if page is None:
                continue
            having.append(shown)
            file = page.offer(artifact.file)
            if file is None:
                continue
            if file.sha256 == artifact.sha256:
                return file
            if file.sha256 is None:
                unsure = unsure or file
            else:
                other = other or file
        return unsure or self._absent(artifact, having, other)

    def _absent(self, artifact: Artifact, having: Sequence[str], other: IndexFile | None) -> Absent:
        expected = f"SHA-256 {artifact.sha256}"
        if other is not None:
            return Absent(
                what="the index offers another file under this name",
                expected=expected,
                found=f"SHA-256 {other.sha256} at {other.index}",
                mend="find out which of the two is the published file before you lock again",
            )
        all_of_them = ", ".join(shown for _, shown in self._roots)
        if not having:
            return Absent(
                what="no index has the project",
                expected=expected,
                found=f"nothing at {all_of_them}",
                mend="configure the index or mirror that the lock was made with",
            )
        return Absent(
            what="no index offers the file",
            expected=expected,
            found=f"other files of the project at {', '.join(having)}",
            mend="lock again, or configure the index or mirror that still has it",
        )

    def _page(self, root: str, shown: str, project: str) -> _Page | None:
        """Return what one index offers of a project; None if it does not know the project."""
        key = (root, canonicalize_name(project))
        with self._lock:
            if key in self._known:
                return self._known[key]
        # asked without the lock: the same page twice is better than one page at a time
        page = self._ask(f"{root}{key[1]}/", shown)
        with self._lock:
            return self._known.setdefault(key, page)

    def _ask(self, url: str, shown: str) -> _Page | None:
        if urlsplit(url).scheme == "file":
            return _read_local(url, shown)
        answer = self._client.read(url, accept=_ACCEPT)
        if answer.status in _ABSENT:
            return None
        if answer.status in _REFUSED:
            raise StepError(
                f"the index refused with HTTP status {answer.status}",
                where=process.redact(url),
                mend="put user and password into the index's URL or into ~/.netrc",
            )
        if answer.status != 200:
            raise StepError(
                f"the index answered with HTTP status {answer.status}",
                where=process.redact(url),
                expected=200,
                mend="try again later, or use another index",
            )
        if answer.kind in (_JSON, "application/json"):
            return _Page(_read_json(answer.body, answer.url, shown), answer.url, url, shown)
        if answer.kind in _HTML_KINDS:
            return _read_html(answer.body, answer.url, url, shown)
        raise _malformed(shown, answer.url, f"media type {answer.kind or 'none'}")


class Urls:
    """Files whose URLs the caller knows, such as the archives of interpreters.

    Args:
        urls: URL by file name; ``file:`` URLs too.
    """

    def __init__(self, urls: Mapping[str, str]) -> None:
        self._urls = dict(urls)

    def locate(self, artifact: Artifact) -> IndexFile:
        """Return where an artifact can be had.

        Raises:
            StepError: its file name is not among them, or what is given for it is no URL.
        """
        url = self._urls.get(artifact.file)
        if url is None:
            raise StepError(
                "nobody said where it can be had",
                where=artifact.file,
                expected="a URL for it",
                found=", ".join(sorted(self._urls)) or "none at all",
            )
        try:
            checked(url)
        except ValueError as error:
            raise StepError(
                "not a URL that can be asked",
                where=f"{artifact.file}: {process.redact(url)}",
                found=str(error),
                mend="check the address of the mirror",
            ) from error
        return IndexFile(
            file=artifact.file, url=url, index=process.redact(url), sha256=artifact.sha256
        )


def _root(url: str) -> str:
    parts = urlsplit(url)
    return parts._replace(path=parts.path.rstrip("/") + "/", query="", fragment="").geturl()


def _malformed(shown: str, url: str, found: str) -> StepError:
    return StepError(
        "the index answered what is not a page of a package index",
        where=process.redact(url),
        expected="PEP 691 (JSON) or PEP 503 (HTML), version 1",
        found=found,
        mend=f"check the URL of the index: {shown}",
    )


def _check_version(version: str, shown: str, url: str) -> None:
    if version.partition(".")[0] != "1":  # PEP 629: another major version may mean anything
        raise _malformed(shown, url, f"version {version}")


class _Hashes(msgspec.Struct):
    sha256: str | None = None


class _Listed(msgspec.Struct, rename="kebab"):
    filename: str
    url: str
    hashes: _Hashes
    size: int | None = None
    upload_time: str | None = None
    yanked: bool | str = False


class _Page:
    """What one index lists of one project.

    A project can have 10,000 files of which one is wanted, so they are looked at when asked for.
    """

    def __init__(self, listed: Iterable[_Listed], base: str, source: str, shown: str) -> None:
        self._listed = {file.filename: file for file in listed}
        self._base = base
        self._source = source
        self._shown = shown

    def offers(self) -> dict[str, IndexFile]:
        return {name: self._offer(file) for name, file in self._listed.items()}

    def offer(self, name: str) -> IndexFile | None:
        file = self._listed.get(name)
        return None if file is None else self._offer(file)

    def _offer(self, file: _Listed) -> IndexFile:
        digest = file.hashes.sha256
        yanked = "" if file.yanked is True else file.yanked
        try:
            url = joined(self._base, file.url)
        except ValueError as error:
            found = f"{file.filename} at {process.redact(file.url)}: {error}"
            raise _malformed(self._shown, self._base, found) from error
        return IndexFile(
            file=file.filename,
            url=with_credentials(url, self._source),
            index=self._shown,
            sha256=None if digest is None else digest.lower(),
            size=file.size,
            uploaded=file.upload_time,
            yanked=None if yanked is False else yanked,
        )


class _Meta(msgspec.Struct, rename="kebab"):
    api_version: str = "1.0"


class _Document(msgspec.Struct):
    files: list[_Listed]
    meta: _Meta = msgspec.field(default_factory=_Meta)


def _read_json(body: bytes, url: str, shown: str) -> list[_Listed]:
    try:
        document = msgspec.json.decode(body, type=_Document)
    except (msgspec.DecodeError, RecursionError) as error:
        raise _malformed(shown, url, str(error)) from error
    _check_version(document.meta.api_version, shown, url)
    return document.files


class _Links(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.base = ""
        self.version = "1.0"
        self.found: list[dict[str, str]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        if tag == "a" and "href" in values:
            self.found.append(values)
        elif tag == "base" and not self.base:
            self.base = values.get("href", "")
        elif tag == "meta" and values.get("name") == "pypi:repository-version":
            self.version = values.get("content", "")


def _read_html(body: bytes, url: str, source: str, shown: str) -> _Page:
    links = _Links()
    try:
        links.feed(body.decode(errors="replace"))
        links.close()
    except AssertionError as error:  # html.parser's word for a declaration that it cannot read
        raise _malformed(shown, url, str(error)) from error
    _check_version(links.version, shown, url)
    try:
        base = joined(url, links.base)
    except ValueError as error:
        raise _malformed(shown, url, f"base {process.redact(links.base)}: {error}") from error
    return _Page(map(_listed, links.found), base, source, shown)


def _listed(link: Mapping[str, str]) -> _Listed:
    """Return what a link says; it is taken apart by hand, as not every one is a URL."""
    address, _, fragment = link["href"].partition("#")
    digest = parse_qs(fragment).get("sha256")
    return _Listed(
        filename=unquote(address.partition("?")[0].rpartition("/")[2]),
        url=address,
        hashes=_Hashes(digest[0] if digest else None),
        yanked=link.get("data-yanked", False),
    )


def _read_local(url: str, shown: str) -> _Page | None:
    try:
        body = (local_path(url) / "index.html").read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StepError(f"the index cannot be read: {error.strerror}", where=url) from error
    return _read_html(body, url, url, shown)
