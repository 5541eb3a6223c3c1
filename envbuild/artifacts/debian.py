"""Debian archives: which ones are configured, what they offer, and where a .deb can be had."""

from __future__ import annotations

import hashlib
import lzma
import os
import re
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from email.utils import mktime_tz, parsedate_tz
from typing import TYPE_CHECKING
from urllib.parse import quote, urlsplit

import msgspec

from envbuild import process
from envbuild.artifacts import Artifact, control, signature
from envbuild.artifacts.control import Archives
from envbuild.artifacts.index import IndexFile
from envbuild.artifacts.urls import encoded, local_path
from envbuild.errors import InputError, StepError

if TYPE_CHECKING:
    from envbuild.artifacts.client import Client

MIRROR = "ENVBUILD_DEBIAN_MIRROR"
_SET_MIRROR = (
    f"set {MIRROR} to the URLs of Debian archives, the folders that hold dists/ and pool/, "
    "separated by spaces: the main one and that of the security updates"
)
_PACKAGES = "main/binary-amd64/Packages.xz"
_SCHEMES = frozenset({"http", "https", "file"})
_ABSENT = frozenset({404, 410})


class Suite(msgspec.Struct, frozen=True):
    """A part of an archive.

    Attributes:
        root: the archive's URL with a slash at its end, which may hold a password.
        name: such as ``bookworm-security``.
    """

    root: str
    name: str

    @property
    def url(self) -> str:
        """Where its indexes are."""
        return f"{self.root}dists/{self.name}/"

    @property
    def shown(self) -> str:
        """That URL without credentials."""
        return process.redact(self.url)

    def __repr__(self) -> str:
        return f"Suite({self.shown!r})"


def configured(release: str, *, given: str | None = None, needed: bool = True) -> list[Suite]:
    """Return the configured suites of a release; whether they are there is seen when they are read.

    Args:
        release: such as ``bookworm``.
        given: archive roots, separated by spaces; ENVBUILD_DEBIAN_MIRROR's if not given, else what
            apt uses on this machine.
        needed: whether it is an error that nothing is configured.

    Raises:
        InputError: nothing is configured, or what is no URL.
        StepError: apt failed.
    """
    names = [release, f"{release}-updates", f"{release}-security"]
    text = os.environ.get(MIRROR, "") if given is None else given
    if text.split():
        return [Suite(_root(url), name) for url in text.split() for name in names]
    suites = _of_apt(names)
    if needed and not suites:
        raise InputError(
            f"no archive of Debian's {release} is configured",
            expected=f"{MIRROR}, or an apt that uses one (component main, amd64)",
            mend=_SET_MIRROR,
        )
    return suites


def _of_apt(names: Sequence[str]) -> list[Suite]:
    """Return which of some suites apt uses on this machine; none where there is no apt."""
    if shutil.which("apt-get") is None:
        return []
    printed = process.run(
        ["apt-get", "indextargets", "Created-By: Packages"],
        doing="asking apt for its archives",
        timeout=60,
        mend=_SET_MIRROR,
    ).stdout
    targets = [control.fields(stanza) for stanza in printed.split("\n\n")]
    suites = [
        Suite(_root(target["Repo-URI"]), target["Release"])
        for target in targets
        if target.get("Release") in names
        and (target.get("Component"), target.get("Architecture")) == ("main", "amd64")
        # before the first `apt-get update` apt does not know the origin
        and target.get("Origin", "Debian") == "Debian"
        and urlsplit(target.get("Repo-URI", "")).scheme in _SCHEMES
    ]
    return list(dict.fromkeys(suites))


def _root(url: str) -> str:
    try:
        root = encoded(url)
        reason = "" if urlsplit(root).scheme in _SCHEMES else "neither http, https nor file"
    except ValueError as error:
        root, reason = "", str(error)
    if reason:
        raise InputError(
            "not the URL of a Debian archive",
            where=process.redact(url),
            found=reason,
            mend=_SET_MIRROR,
        )
    return root.rstrip("/") + "/"


def archives(release: str, *, given: str | None = None) -> Archives:
    """Read the package indexes of all configured archives.

    Args:
        release: such as ``bookworm``.
        given: archive roots, as `configured` takes them.

    Raises:
        InputError: as `configured`; or the keyring that is asked for is not there.
        StepError: an archive did not answer, its signature is not good, or its index is not the
            one that it announces.
    """
    from envbuild.artifacts.client import Client

    suites = configured(release, given=given)
    keyring, warnings = signature.keyring()
    stanzas: list[str] = []
    there: set[str] = set()
    with closing(Client()) as client:
        for suite in suites:
            announced = _read(f"{suite.url}InRelease", client)
            if announced is None:
                continue
            there.add(suite.name)
            said = signature.verified(announced, f"{suite.shown}InRelease", keyring)
            warnings += _out_of_date(said, suite)
            stanzas += _packages(said, suite, client).split("\n\n")
    roots = ", ".join(dict.fromkeys(process.redact(suite.root) for suite in suites))
    if release not in there:
        raise StepError(
            f"no mirror has Debian's {release}",
            where=roots,
            expected=f"dists/{release}/InRelease",
            mend=_SET_MIRROR,
        )
    warnings += [
        f"{name} is at none of {roots}: what it updates is not pinned"
        for name in (f"{release}-updates", f"{release}-security")
        if name not in there
    ]
    return Archives([stanza.strip("\n") for stanza in stanzas if stanza.strip()], warnings)


def _read(url: str, client: Client) -> bytes | None:
    """Return what a URL gives; None if there is nothing."""
    if url.startswith("file:"):
        try:
            return local_path(url).read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StepError(f"the mirror cannot be read: {error.strerror}", where=url) from error
    answer = client.read(url, accept="*/*")
    if answer.status in _ABSENT:
        return None
    if answer.status != 200:
        raise _refused(url, answer.status)
    return answer.body


def _refused(url: str, status: int) -> StepError:
    return StepError(
        f"the mirror answered with HTTP status {status}",
        where=process.redact(url),
        expected=200,
        mend=f"try again later, check the credentials, or {_SET_MIRROR}",
    )


def _out_of_date(said: str, suite: Suite) -> Iterator[str]:
    until = control.fields(said).get("Valid-Until", "")
    parsed = parsedate_tz(until)
    if parsed is not None and mktime_tz(parsed) < time.time():
        yield f"{suite.shown} is out of date: it was valid until {until}"


def _packages(said: str, suite: Suite, client: Client) -> str:
    """Return a suite's Packages index, once it is the one that its Release announces."""
    listed = control.fields(said).get("SHA256", "")
    line = re.search(rf"^ ([0-9a-f]{{64}}) +[0-9]+ {re.escape(_PACKAGES)}$", listed, re.MULTILINE)
    if line is None:
        raise StepError(
            f"the mirror announces no {_PACKAGES}",
            where=f"{suite.shown}InRelease",
            expected="its SHA256",
        )
    # by its hash: under its own name there is another one while a mirror is being updated
    folder, _, _ = _PACKAGES.rpartition("/")
    data = None
    if "\nAcquire-By-Hash: yes" in said:
        data = _read(f"{suite.url}{folder}/by-hash/SHA256/{line[1]}", client)
    if data is None:
        data = _read(f"{suite.url}{_PACKAGES}", client)
    digest = hashlib.sha256(data or b"").hexdigest()
    if data is None or digest != line[1]:
        raise StepError(
            "the mirror's index is not the one that it announces",
            where=f"{suite.shown}{_PACKAGES}",
            expected=f"SHA-256 {line[1]}",
            found="nothing" if data is None else f"SHA-256 {digest}",
            mend="try again: the mirror may be in the middle of an update",
        )
    try:
        return lzma.decompress(data).decode()
    except (lzma.LZMAError, UnicodeDecodeError) as error:
        raise StepError(
            f"the mirror's index cannot be read: {error}",
            where=f"{suite.shown}{_PACKAGES}",
        ) from error


class Debs:
    """Where .debs can be had: the pools of the archives, one after the other.

    Args:
        suites: as `configured` returns them.
        pools: the folder of each file, relative to an archive's root.
        client: makes the connections.
    """

    def __init__(self, suites: Sequence[Suite], pools: Mapping[str, str], client: Client) -> None:
        self._roots = tuple(dict.fromkeys(suite.root for suite in suites))
        self._pools = dict(pools)
        self._client = client

    def locate(self, artifact: Artifact) -> IndexFile:
        """Return where a .deb can be had: at the first archive that has it.

        Raises:
            StepError: it is gone from all of them, or one did not answer or refused.
        """
        path = f"{self._pools[artifact.file]}/{artifact.file}"
        for root in self._roots:
            url = root + quote(path)
            if self._has(url):
                shown = process.redact(root)
                return IndexFile(file=artifact.file, url=url, index=shown, sha256=artifact.sha256)
        raise StepError(
            "gone from the mirror: Debian keeps only the current version in its pool",
            where=artifact.file,
            expected=path,
            found=f"nothing at {', '.join(map(process.redact, self._roots))}",
            mend="run `envbuild lock --base`, which pins the present one; or copy the .deb into "
            "the wheelhouse",
        )

    def _has(self, url: str) -> bool:
        if url.startswith("file:"):
            return local_path(url).is_file()
        # a byte of it: not every server knows HEAD
        headers = {"Range": "bytes=0-0", "Accept-Encoding": "identity"}
        with self._client.get(url, headers=headers) as response:
            if response.status_code in _ABSENT:
                return False
            if response.status_code not in (200, 206):
                raise _refused(url, response.status_code)
            return True
