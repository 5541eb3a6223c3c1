"""Whether ``flake.lock`` is what ``flake.nix`` asks for, with Nix installed or without it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from urllib.parse import unquote

import msgspec

from envbuild import process, typed
from envbuild.errors import InputError, StepError
from envbuild.findings import Finding
from envbuild.lock.drift import FLAKE
from envbuild.lock.flake_inputs import Inputs, UnclearError, declared

NIX, LOCK = "flake.nix", "flake.lock"
VERSION = 7

_LOCKING = "run `nix flake lock`"
_RESTORE = "restore it from version control"
_ANEW = f"{_RESTORE}, or remove it and {_LOCKING}"
_BY_NIX = "run `nix flake metadata --no-update-lock-file`, which fails if they differ"
_SINCE = f"since {LOCK} was made"

# The types that are compared, and what each must say; what else stays when one is locked.
_NEEDED = {"github": ("owner", "repo"), "gitlab": ("owner", "repo"), "git": ("url",)}
_NEEDED["path"] = ("path",)
_KEPT = ("type", "owner", "repo", "url", "path", "host", "dir")
_COMMITS, _FILES = ("github", "gitlab", "git"), ("path", "tarball", "file")
# What is locked, as Python writes it; what is wrong without it, and what would be right.
_NAR_HASH = r"'sha256-[A-Za-z0-9+/]{42}[AEIMQUYcgkosw048]='"
_LOCKED = {
    "rev": (r"'[0-9a-f]{40}'", "is floating: no commit", "40 lower-case hexadecimal digits"),
    "narHash": (_NAR_HASH, "is incomplete: no digest", "sha256- and the base64 of 32 bytes"),
    "lastModified": (r"[0-9]+", "is incomplete: no time", "seconds since 1970"),
}

_error, _warning = partial(Finding, FLAKE, "error"), partial(Finding, FLAKE, "warning")


class _Entry(msgspec.Struct, frozen=True):
    """A node of the lock; its inputs are nodes, or ways from the root."""

    inputs: dict[str, str | tuple[str, ...]] = {}
    locked: dict[str, str | int | bool] = {}
    original: dict[str, str | int | bool] = {}
    parent: tuple[str, ...] | None = None


class _Lock(msgspec.Struct, frozen=True):
    nodes: dict[str, _Entry]
    root: str


def drift(folder: Path) -> list[Finding]:
    """Compare a folder's ``flake.lock`` with its ``flake.nix``; no network.

    Args:
        folder: where both stand. Without ``flake.nix`` nothing is to be locked.
    """
    if not (folder / NIX).exists():
        mend = f"remove it, or restore {NIX} from version control"
        there = (folder / LOCK).exists()
        return [_error(LOCK, f"a lock without a {NIX}", mend=mend)] if there else []
    asked, lock = _asked(folder / NIX), _locked(folder / LOCK)
    findings = [one for one in (asked, lock) if isinstance(one, Finding)]
    if isinstance(lock, _Lock):
        findings += [] if isinstance(asked, Finding) else _compared(asked, lock)
        findings += _entries(lock)
    elif lock is None and asked and not isinstance(asked, Finding):
        expected = f"one that locks {', '.join(sorted(asked))}"
        findings.append(_error(LOCK, f"{NIX} has inputs and no lock", expected, mend=_LOCKING))
    return findings


def _asked(path: Path) -> Inputs | Finding:
    """Read the inputs of a ``flake.nix``, or say why they cannot be read."""
    try:
        inputs = declared(path)
    except InputError as error:
        return _error(NIX, error.what, mend=f"correct it, or {_RESTORE}")
    except UnclearError as error:
        what = f"without Nix its inputs cannot be read, and not be compared with {LOCK}"
        mend = "install Nix, or write them in one of the forms that docs/drift.md names"
        return _warning(NIX, what, found=str(error), mend=mend)
    except StepError as error:
        said = re.findall(r"^ *error: (.+)", error.detail or "", re.MULTILINE)
        if said:
            what, mend = "Nix cannot read it", f"correct it, or {_RESTORE}"
            return _error(NIX, what, found=said[-1], mend=mend)
        return _warning(NIX, f"it is not compared with {LOCK}", found=error.what, mend=_BY_NIX)
    # the flake itself is no input, but can have settings (Nix 2.27)
    inputs.pop("self", None)
    return inputs


def _locked(path: Path) -> _Lock | Finding | None:
    """Read a ``flake.lock``; None where there is none."""
    if not path.exists():
        return None
    try:
        document = msgspec.json.decode(typed.read(path, "lock"))
        version = document.get("version") if isinstance(document, dict) else VERSION
        if version != VERSION:
            what = "version: not one that this envbuild reads"
            return _error(LOCK, what, str(VERSION), repr(version), _ANEW)
        lock = msgspec.convert(document, _Lock)
    except InputError as error:
        return _error(LOCK, error.what, mend=_ANEW)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        return _error(LOCK, f"not the lock of a flake: {error}", mend=_ANEW)
    if lock.root not in lock.nodes:
        return _error(LOCK, f"not the lock of a flake: no entry {lock.root}", mend=_ANEW)
    return lock


def _compared(inputs: Inputs, lock: _Lock) -> Iterator[Finding]:
    """Find what ``flake.nix`` says otherwise than it did when the lock was made."""
    targets = lock.nodes[lock.root].inputs
    for name in sorted(inputs.keys() | targets.keys()):
        # whether it is a flake, and what its inputs are to be, is not compared
        asked = {
            key: one for key, one in inputs.get(name, {}).items() if key not in ("flake", "inputs")
        }
        target = targets.get(name, "")
        then: Mapping[str, object] = {"follows": "/".join(target)}
        if isinstance(target, str):
            then = lock.nodes[target].original if target in lock.nodes else {}
        expected, found = _in_words(asked), _in_words(then)
        try:
            if name not in inputs:
                yield _error(NIX, f"input removed: {name} {_SINCE}", None, found, _LOCKING)
            elif name not in targets:
                yield _error(NIX, f"input added: {name} {_SINCE}", expected, mend=_LOCKING)
            # without what was asked for, an entry is incomplete
            elif then and not _same(asked, then):
                yield _error(NIX, f"input changed: {name} {_SINCE}", expected, found, _LOCKING)
        except UnclearError as error:
            what = f"input {name} is not compared with {LOCK}: {error}"
            yield _warning(NIX, what, found=expected, mend=_BY_NIX)


def _same(asked: Mapping[str, object], then: Mapping[str, object]) -> bool:
    if "follows" in asked or "follows" in then:
        return asked.get("follows") == then.get("follows")
    wanted = canonical(asked if "type" in asked else reference(asked))
    return wanted["type"] == then.get("type") and wanted == canonical(then)


def reference(asked: Mapping[str, object]) -> dict[str, str]:
    """Return the attributes that an input's URL stands for.

    Args:
        asked: the attributes of the input, of which the URL is the only one.

    Raises:
        UnclearError: a form that Nix refuses, or that is not compared.
    """
    url = asked.get("url")
    if not isinstance(url, str) or len(asked) > 1 or re.search(r"[#\s]", url):
        raise UnclearError("it has neither a type nor a plain URL alone")
    base, found = _split(url)
    kind, _, rest = base.partition(":")
    if kind in ("github", "gitlab"):
        match = re.fullmatch(r"([^/%]+)/([^/%]+)(?:/([^%]*[^/%]))?/?", rest)
        if match is None or (match[3] and {"ref", "rev"} & found.keys()):
            raise UnclearError("not OWNER/REPO or OWNER/REPO/REF")
        if match[3]:
            found["rev" if re.fullmatch("[0-9a-fA-F]{40}", match[3]) else "ref"] = match[3]
        return {"type": kind, "owner": match[1], "repo": match[2], **found}
    if kind == "path" and "//" not in rest:
        return {"type": kind, "path": unquote(rest), **found}
    if kind.startswith("git+"):
        return {"type": "git", "url": base.removeprefix("git+"), **found}
    raise UnclearError("a reference of another form than those that docs/drift.md names")


def _split(url: str) -> tuple[str, dict[str, str]]:
    base, _, query = url.partition("?")
    pairs = [pair.partition("=") for pair in query.split("&") if pair]
    # what is there twice is something else than each alone
    return base, {key: "&".join(unquote(v) for k, _, v in pairs if k == key) for key, *_ in pairs}


def canonical(attributes: Mapping[str, object]) -> dict[str, str]:
    """Return the attributes of a reference so that two that mean the same are equal.

    Versions of Nix differ on what they keep in a URL and what they take out of its query, and on
    what they escape there.

    Raises:
        UnclearError: its type is not compared, or something that the type needs is missing.
    """
    plain = {key: int(one) if isinstance(one, int) else one for key, one in attributes.items()}
    found = {key: str(one) for key, one in plain.items()}
    kind = found.get("type")
    if kind not in _NEEDED:
        raise UnclearError(f"type {kind}" if kind else "no type")
    for key in _NEEDED[kind]:
        if not found.get(key):
            raise UnclearError(f"no {key}")
    if "url" in found:
        url, more = _split(found["url"])
        found = {**more, **found, "url": unquote(url)}
    if "rev" in found:
        found["rev"] = found["rev"].lower()
    return found


def _in_words(attributes: Mapping[str, object]) -> str | None:
    """Say what a reference is as one would write it; None where it says nothing."""
    if "follows" in attributes:
        return f"follows {attributes['follows'] or 'this flake'}"
    rest = {key: str(one) for key, one in sorted(attributes.items())}
    text = rest.pop("type", "")
    if "url" in rest:
        text = f"{text}+{rest.pop('url')}".lstrip("+")
    elif text:
        keys = ("path", "id", "owner", "repo", "ref", "rev")
        text = f"{text}:{'/'.join(rest.pop(key) for key in keys if key in rest)}"
    query = "&".join(f"{key}={value}" for key, value in rest.items())
    return process.redact(f"{text}?{query}" if query else text) or None


def _entries(lock: _Lock) -> Iterator[Finding]:
    """Find what no lock that Nix wrote holds: entries that lack something, or that are too many."""
    seen: set[str] = set()
    for key, above in (todo := [(lock.root, "")]):
        for name, target in sorted(lock.nodes[key].inputs.items()):
            label = f"{above}{name}"
            if isinstance(target, tuple) or target in seen:
                continue
            if target not in lock.nodes:
                yield _error(LOCK, f"no entry {target}, which {label} is", mend=_ANEW)
                continue
            seen.add(target)
            todo.append((target, f"{label}/"))
            yield from _entry(label, lock.nodes[target])
    for key in sorted(lock.nodes.keys() - seen - {lock.root}):
        mend = f"take it out, or {_RESTORE}"
        yield _error(LOCK, f"the entry {key}, which no input asks for", mend=mend)


def _entry(label: str, entry: _Entry) -> Iterator[Finding]:
    """Find what an entry lacks, and what it locks that was not asked for."""
    kind, sides = entry.locked.get("type"), []
    for side, attributes in (("original", entry.original), ("locked", entry.locked)):
        try:
            sides.append(canonical(attributes))
        except UnclearError as error:
            if attributes.get("type") in (None, *_NEEDED):
                what = f"the entry of {label} is incomplete: {side}: {error}"
                yield _error(LOCK, what, mend=_ANEW)
                return
            sides.append({"type": ""})
    # a path inside the flake is locked with the flake itself (Nix 2.26)
    needed = [] if kind == "path" and entry.parent is not None else ["narHash"]
    for key in [*needed, "rev", "lastModified"] if kind in _COMMITS else needed:
        pattern, what, right = _LOCKED[key]
        one = entry.locked.get(key)
        if re.fullmatch(pattern, repr(one)) is None:
            found = None if one is None else repr(one)
            yield _error(LOCK, f"the entry of {label} {what}", f"{key}: {right}", found, _ANEW)
    asked, got = sides
    kept = [*_KEPT, *({"rev", "narHash"} & asked.keys())]
    if asked["type"] and any(got.get(key) != asked.get(key) for key in kept):
        what = f"{label} is locked to something else than was asked for"
        mend = f"run `nix flake update {label}`, or {_RESTORE}"
        there = {key: one for key, one in entry.locked.items() if key != "lastModified"}
        yield _error(LOCK, what, _in_words(entry.original), _in_words(there), mend)
    if kind not in (*_COMMITS, *_FILES):
        what = f"the entry of {label} is not compared: type {kind}"
        yield _warning(LOCK, what, mend=_BY_NIX)
