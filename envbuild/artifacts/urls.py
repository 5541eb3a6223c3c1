"""Credentials in URLs: for which host they are, and how they are kept from others."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote, urlsplit
from urllib.request import url2pathname

_PORTS = {"http": 80, "https": 443}


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
