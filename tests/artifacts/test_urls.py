"""Credentials come out of a URL as they went in, and go to no other realm."""

from __future__ import annotations

from urllib.parse import quote, unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envbuild.artifacts.urls import (
    checked,
    encoded,
    joined,
    realm,
    split_credentials,
    with_credentials,
)


@given(user=st.text(st.characters(codec="utf-8"), min_size=1), password=st.text(max_size=9))
def test_credentials_of_any_characters(user: str, password: str) -> None:
    password = password.encode(errors="ignore").decode()
    userinfo = f"{quote(user, safe='')}:{quote(password, safe='')}"
    url = f"https://{userinfo}@host.invalid:8443/simple/?a=b"
    assert split_credentials(url) == ("https://host.invalid:8443/simple/?a=b", user, password)


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("https://h.invalid/f", "https://me:pw@h.invalid/f"),
        ("https://h.invalid:443/f", "https://me:pw@h.invalid:443/f"),
        ("https://H.invalid/f", "https://me:pw@H.invalid/f"),
        ("https://you@h.invalid/f", "https://you@h.invalid/f"),
        ("http://h.invalid/f", "http://h.invalid/f"),
        ("https://h.invalid:444/f", "https://h.invalid:444/f"),
        ("https://files.h.invalid/f", "https://files.h.invalid/f"),
        ("file:///f", "file:///f"),
    ],
)
def test_credentials_stay_in_their_realm(url: str, expected: str) -> None:
    assert with_credentials(url, "https://me:pw@h.invalid/simple/") == expected
    assert with_credentials(url, "https://h.invalid/simple/") == url


@given(user=st.text(st.characters(codec="ascii", exclude_characters="/?#[]\\:@%\n\r\t")))
@pytest.mark.parametrize("password", ["s3'c", 's3"c r', "a@b", "100%", "ä", "a%2Fb", ""])
def test_credentials_are_encoded_once(user: str, password: str) -> None:
    url = encoded(f"https://{user}:{password}@h.invalid/simple")
    assert encoded(url) == url
    assert split_credentials(url) == ("https://h.invalid/simple", user, unquote(password))
    assert encoded("https://h.invalid/simple") == "https://h.invalid/simple"


@pytest.mark.parametrize(
    "url",
    ["http://[bad/x", "http://h:x/y", "http://h:99999/", f"http://{'x' * 64}/", "http://a..b/"],
)
def test_what_is_no_url(url: str) -> None:
    with pytest.raises(ValueError, match="its host or port cannot be read"):
        checked(url)
    with pytest.raises(ValueError, match="its host or port cannot be read"):
        joined("http://host.invalid/simple/", url)


def test_a_realm_is_scheme_host_and_port() -> None:
    assert realm("http://me@H.invalid/x") == ("http", "h.invalid", 80)
    assert split_credentials("http://token@h.invalid/") == ("http://h.invalid/", "token", "")
