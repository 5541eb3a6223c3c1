"""One file from a server or a folder into a part, across cut connections."""

from __future__ import annotations

from collections.abc import Callable

import requests
import urllib3

from envbuild.artifacts.client import Client
from envbuild.artifacts.index import IndexFile
from envbuild.artifacts.parts import Part, named
from envbuild.artifacts.urls import local_path
from envbuild.digest import CHUNK
from envbuild.errors import StepError
from envbuild.process import redact
from envbuild.progress import Advance

# How many bytes over the expected size are read before a file is given up. They are read at all so
# that the message can name the digest of what the server has.
_EXCESS = 16 << 20

# The status of a request for what lies behind the end of a file.
_NOTHING_LEFT = 416


def download(
    part: Part, offer: IndexFile, client: Client, pause: Callable[[float], None], advance: Advance
) -> None:
    """Write what a URL gives into a part; what it is, is for the caller to verify.

    After a cut the rest is asked for, if the server gave a strong ETag by which it can tell that
    the file is still the same (RFC 9110, 13.1.5 and 14.2); else the whole again.

    Args:
        part: empty.
        offer: where it is.
        client: makes the connections.
        pause: waits for a number of seconds, with an exception if the work is no longer wanted.
        advance: is told the number of bytes written; a negative one when they are to come again.

    Raises:
        StepError: the server refused or did not answer, or the connection was cut at every try.
        OSError: the part cannot be written.
    """
    if offer.url.startswith("file:"):
        _copy(part, offer, pause, advance)
        return
    etag = ""
    reason = ""
    for attempt in range(client.tries):
        pause(client.backoff * 2 ** (attempt - 1) if attempt else 0)
        # identity: a compressed transfer cannot be resumed, and its length says nothing
        headers = {"Accept-Encoding": "identity"}
        if etag and part.size:
            headers |= {"Range": f"bytes={part.size}-", "If-Range": etag}
        with client.get(offer.url, headers=headers) as response:
            if not _resumes(response, part.size):
                advance(-part.size)
                part.restart()
                if response.status_code == _NOTHING_LEFT:
                    etag = ""
                    continue
                _check_status(response, part, offer)
            etag = _strong_etag(response)
            reason = _receive(response, part, offer, pause, advance)
        if not reason:
            return
    raise StepError(
        f"the connection was cut in each of {client.tries} tries",
        where=named(part.artifact),
        expected=f"{part.artifact.size or 'all'} bytes from {redact(offer.url)}",
        found=reason,
        mend="run it again; what other files are there already stays",
    )


def _receive(
    response: requests.Response,
    part: Part,
    offer: IndexFile,
    pause: Callable[[float], None],
    advance: Advance,
) -> str:
    """Read a body into the part; return why it is not whole, or nothing if it is."""
    body = response.raw.stream(CHUNK, decode_content=False)
    try:
        for chunk in body:
            pause(0)
            part.write(chunk)
            advance(len(chunk))
            if part.artifact.size and part.size > part.artifact.size + _EXCESS:
                raise part.other_bytes(offer.index, f"more than {part.size} bytes")
    except urllib3.exceptions.HTTPError as error:
        return redact(str(error))
    framed = "Content-Length" in response.headers or "Transfer-Encoding" in response.headers
    if part.size < part.artifact.size and not framed:
        # HTTP/1.0 style: the end of the connection is the end of the file, or a cut
        return f"an end after {part.size} bytes"
    return ""


def _resumes(response: requests.Response, size: int) -> bool:
    """Whether the answer is the rest, from the byte that was asked for."""
    begin = response.headers.get("Content-Range", "")
    return response.status_code == 206 and size > 0 and begin.startswith(f"bytes {size}-")


def _check_status(response: requests.Response, part: Part, offer: IndexFile) -> None:
    if response.status_code != 200:
        raise StepError(
            f"the server answered with HTTP status {response.status_code}",
            where=named(part.artifact),
            expected=f"200 from {redact(offer.url)}",
            mend="lock again if the file is gone; check the credentials if it is refused",
        )


def _strong_etag(response: requests.Response) -> str:
    etag: str = response.headers.get("ETag", "")
    return etag if etag.startswith('"') else ""


def _copy(part: Part, offer: IndexFile, pause: Callable[[float], None], advance: Advance) -> None:
    try:
        file = local_path(offer.url).open("rb")
    except OSError as error:
        raise StepError(
            f"cannot be read: {error.strerror}",
            where=named(part.artifact),
            expected=f"a file at {offer.url}",
        ) from error
    with file:
        while chunk := file.read(CHUNK):
            pause(0)
            part.write(chunk)
            advance(len(chunk))
