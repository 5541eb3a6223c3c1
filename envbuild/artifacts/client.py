"""HTTP to indexes and their file hosts: certificates, credentials, retries, time limits."""

from __future__ import annotations

import os
from collections.abc import Mapping
from urllib.parse import urlsplit

import msgspec
import requests
import urllib3
from requests.adapters import HTTPAdapter
from requests.auth import HTTPBasicAuth

from envbuild import __version__
from envbuild.artifacts.urls import checked, split_credentials
from envbuild.errors import StepError
from envbuild.process import redact

# What a busy server answers; each is worth another try.
_PASSING = frozenset({429, 500, 502, 503, 504})

# The longest wait, in seconds, that a server can ask for by Retry-After.
_LONGEST_WAIT = 60.0


class Answer(msgspec.Struct, frozen=True):
    """A whole answer.

    Attributes:
        url: where it came from after redirections.
        status: the HTTP status.
        kind: the media type, in lower case and without parameters.
        body: the content, decoded from how it was sent.
    """

    url: str
    status: int
    kind: str
    body: bytes


class _Retry(urllib3.Retry):
    def get_retry_after(self, response: urllib3.BaseHTTPResponse) -> float | None:
        seconds = super().get_retry_after(response)
        return None if seconds is None else min(seconds, _LONGEST_WAIT)


class Client:
    """A pool of connections that several threads may use at once.

    Certificates are those of REQUESTS_CA_BUNDLE, else CURL_CA_BUNDLE, else SSL_CERT_FILE (which
    uv reads too), else certifi's. Credentials are those in the URL, else of the netrc file.

    Args:
        pool: connections kept to each host.
        connect: seconds to wait for a connection.
        read: seconds to wait for the next bytes.
        tries: how often something is tried before it counts as failed.
        backoff: seconds before the second try; doubled before each one after that.
    """

    def __init__(
        self,
        *,
        pool: int = 16,
        connect: float = 10.0,
        read: float = 60.0,
        tries: int = 5,
        backoff: float = 0.5,
    ) -> None:
        self.tries = tries
        self.backoff = backoff
        self._timeout = (connect, read)
        self._session = requests.Session()
        # requests itself prefers the other two variables to this
        self._session.verify = os.environ.get("SSL_CERT_FILE") or True
        self._session.headers["User-Agent"] = f"envbuild/{__version__}"
        retry = _Retry(
            total=tries - 1,
            backoff_factor=backoff,
            backoff_max=_LONGEST_WAIT,
            status_forcelist=_PASSING,
            raise_on_status=False,
        )
        adapter = HTTPAdapter(pool_connections=pool, pool_maxsize=pool, max_retries=retry)
        for scheme in ("http://", "https://"):
            self._session.mount(scheme, adapter)

    def close(self) -> None:
        """Close the connections that are not in use."""
        self._session.close()

    def get(self, url: str, *, headers: Mapping[str, str]) -> requests.Response:
        """Ask for a URL and return the answer's head; the body is still to be read.

        Args:
            url: with or without credentials.
            headers: over the usual ones.

        Raises:
            StepError: no answer came, after all tries, or it is no URL. A status is no reason.
        """
        try:
            address, user, password = split_credentials(checked(url))
            # as bytes: requests would encode text as Latin-1, which not every password fits
            auth = HTTPBasicAuth(user.encode(), password.encode()) if user or password else None
            return self._session.get(
                address, headers=dict(headers), auth=auth, timeout=self._timeout, stream=True
            )
        except OSError as error:  # the root of requests' exceptions, and a missing bundle's
            raise self._unanswered(url, error) from error
        except ValueError as error:  # of the URL itself, or of one that a server redirects to
            raise StepError(
                "not a URL that can be asked",
                where=redact(url),
                found=redact(str(error)),
                mend="check the URL of the index or mirror that it comes from",
            ) from error

    def read(self, url: str, *, accept: str) -> Answer:
        """Ask for a URL and return the whole answer.

        Args:
            url: with or without credentials.
            accept: the media types wanted.

        Raises:
            StepError: no whole answer came, after all tries.
        """
        failure: OSError | None = None
        for _ in range(self.tries):
            with self.get(url, headers={"Accept": accept}) as response:
                kind = response.headers.get("Content-Type", "").partition(";")[0].strip().lower()
                try:
                    return Answer(response.url, response.status_code, kind, response.content)
                except requests.RequestException as error:
                    failure = error
        raise self._unanswered(url, failure) from failure

    def _unanswered(self, url: str, error: OSError | None) -> StepError:
        tries = "" if self.tries == 1 else f" in {self.tries} tries"
        return StepError(
            f"no answer from {urlsplit(url).hostname}{tries}",
            where=redact(url),
            found=redact(str(error)),
            mend="check the network, the index's URL, and the proxy and certificate settings",
        )
