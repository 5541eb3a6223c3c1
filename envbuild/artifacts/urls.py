"""URLs: which can be asked, for which host their credentials are, and how these are kept safe."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote, unquote, urljoin, urlsplit
from urllib.request import url2pathname

_PORTS = {"http": 80, "https": 443}


def checked(url: str) -> str:
    """Return a URL that can be taken apart, and whose host or file can be asked for.

    Raises:
        ValueError: it is none; the reason repeats nothing of it, which may hold a password.
    """
    try:
        parts = urlsplit(url)
        # a name of a host has labels of 1 to 63 bytes (RFC 1035), which the codec looks at
        (parts.hostname or "").encode("idna")
        realm(url)
    except ValueError as error:
        raise ValueError("its host or port cannot be read") from error
    if parts.scheme == "file" and "\0" in unquote(parts.path):
        raise ValueError("no file can have its name")
    return url


def joined(base: str, url: str) -> str:
    """Return the URL that ``url`` is where ``base`` is the page.

    Raises:
        ValueError: it is none; see `checked`.
    """
    return checked(urljoin(base, checked(url)))


def encoded(url: str) -> str:
    """Return a URL whose user and password are percent-encoded, however they were written.

    Raises:
        ValueError: it is no URL; see `checked`.
    """
    parts = urlsplit(checked(url))
    userinfo, at, host = parts.netloc.rpartition("@")
    names = (quote(unquote(part), safe="") for part in userinfo.split(":", 1))
    return parts._replace(netloc=f"{':'.join(names)}{at}{host}").geturl()


def realm(url: str) -> tuple[str, str, int]:
    """Return scheme, host and port: credentials for one realm are shown to no other."""
    parts = urlsplit(url)
    return parts.scheme, parts.hostname or "", parts.port or _PORTS.get(parts.scheme, 0)


def with_credentials(url: str, source: str) -> str:
    """Return ``url`` with the credentials of the URL ``source`` if both are of one realm."""
    userinfo, at, _ = urlsplit(source).netloc.rpartition("@")
    if not at or realm(url) != realm(source):
        return url
    parts = urlsplit(url)
    return (
        url if "@" in parts.netloc else parts._replace(netloc=f"{userinfo}@{parts.netloc}").geturl()
    )


def split_credentials(url: str) -> tuple[str, str, str]:
    """Return the URL without credentials, the user, and the password; empty if it has none."""
    parts = urlsplit(url)
    userinfo, _, host = parts.netloc.rpartition("@")
    user, _, password = userinfo.partition(":")
    return parts._replace(netloc=host).geturl(), unquote(user), unquote(password)


def local_path(url: str) -> Path:
    """Return the path that a ``file:`` URL names (RFC 8089)."""
    return Path(url2pathname(urlsplit(url).path))
