"""The files of Debian packages as an image has them, without dpkg and without their scripts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec.structs

from envbuild.errors import InputError
from envbuild.image import deb
from envbuild.image.tar import Item, folder, link
from envbuild.lock.debian import Package

# Merged /usr: what packages ship below these is moved, and links stand in their place, which
# base-files' script makes on a machine. The last two are there only where something needs them.
_MOVED = {
    "bin": "usr/bin",
    "sbin": "usr/sbin",
    "lib": "usr/lib",
    "lib64": "usr/lib64",
    "var/run": "run",
    "var/lock": "run/lock",
    "lib32": "usr/lib32",
    "libx32": "usr/libx32",
}
_RARE = ("lib32", "libx32")
_MODES = {"root": 0o700, "tmp": 0o1777, "var/tmp": 0o1777, "run/lock": 0o1777}
# folders of /usr/share that nobody reads in a container
_UNREAD = frozenset(
    {
        *("bug", "doc", "doc-base", "groff", "info", "linda", "lintian", "locale", "man"),
        "menu",
    }
)
_STATUS = "var/lib/dpkg/status.d"
_CERTIFICATES = "usr/share/ca-certificates/mozilla/"
_BUNDLE = "etc/ssl/certs/ca-certificates.crt"
_UTC = "usr/share/zoneinfo/Etc/UTC"
_NSSWITCH = b"""\
passwd: files
group: files
shadow: files
hosts: files dns
networks: files
protocols: files
services: files
ethers: files
rpc: files
"""
_NOBODY = 65534
_SHELL = "/usr/sbin/nologin"


def tree(
    debs: Sequence[tuple[Package, Path]], *, base: bool = False, also: Iterable[Item] = ()
) -> list[Item]:
    """Lay packages out as a layer: their files, and the folders above these.

    Manual pages, translations and documentation are left out, licences are not. Modes are
    normalised. Each package's control stanza is where scanners of images look for it.

    Args:
        debs: the packages, each with its .deb.
        base: whether this is the lowest layer, which has the links of merged /usr and what the
            packages' scripts would have made: the bundle of certificates, the time zone.
        also: what the layer has besides.

    Returns:
        Files, folders and links, sorted by the parts of their paths; each folder once, before what
        is in it.

    Raises:
        InputError: a .deb is none; or two packages bring one path with different content, or one
            has a file where the other has a folder.
    """
    layer = _Layer()
    for package, path in debs:
        for item in deb.entries(path):
            placed = _placed(item.path)
            if _wanted(item, placed):
                layer.add(_normalised(item, placed), package.name)
        layer.add(Item(f"{_STATUS}/{package.name}", content=deb.control(path)), package.name)
    for item in [*(_base(layer.items) if base else ()), *also]:
        layer.add(item, "envbuild")
    layer.add_parents()
    for rare in _RARE:
        if _MOVED[rare] in layer.items:
            layer.add(link(rare, _MOVED[rare]), "envbuild")
    return sorted(layer.items.values(), key=lambda item: item.path.split("/"))


class _Layer:
    """What comes together, and which package brought it."""

    def __init__(self) -> None:
        self.items: dict[str, Item] = {}
        self._owners: dict[str, str] = {}

    def add(self, item: Item, owner: str) -> None:
        other = self.items.setdefault(item.path, item)
        first = self._owners.setdefault(item.path, owner)
        if other != item:
            raise InputError(
                "two packages bring one path with different content",
                where=f"/{item.path}",
                found=f"one of {first}, one of {owner}",
                mend="leave one of the two packages out",
            )

    def add_parents(self) -> None:
        for path, owner in list(self._owners.items()):
            parent = path.rpartition("/")[0]
            while parent and parent not in self.items:
                self.add(folder(parent, _MODES.get(parent, 0o755)), owner)
                parent = parent.rpartition("/")[0]
            if parent and self.items[parent].kind != "folder":
                raise InputError(
                    f"a path of {owner} leads through a {self.items[parent].kind}",
                    where=f"/{path}",
                    expected=f"/{parent} to be a folder",
                    found=f"that of {self._owners[parent]}",
                    mend="leave one of the two packages out",
                )


def _placed(path: str) -> str:
    """Return where a path is in an image with merged /usr."""
    parts = path.split("/")
    for length in (1, 2):
        target = _MOVED.get("/".join(parts[:length]))
        if target is not None:
            return "/".join([target, *parts[length:]])
    return path


def _wanted(item: Item, placed: str) -> bool:
    if item.path in _MOVED and item.kind == "link":
        return False
    parts = placed.split("/")
    if parts[:2] != ["usr", "share"] or len(parts) < 3 or parts[2] not in _UNREAD:
        return True
    # licences, and links by which packages of one source share one
    of_doc = parts[2] == "doc" and item.kind != "folder"
    shared = len(parts) == 4 and item.kind == "link"
    return of_doc and (shared or (len(parts) == 5 and parts[4] == "copyright"))


def _normalised(item: Item, placed: str) -> Item:
    if item.kind == "link":
        return link(placed, item.target)
    if item.kind == "folder":
        return folder(placed, _MODES.get(placed, 0o755))
    return msgspec.structs.replace(item, path=placed, mode=0o755 if item.mode & 0o111 else 0o644)


def _base(items: dict[str, Item]) -> list[Item]:
    """Return what the scripts of the base's packages would have made."""
    made = [Item("etc/nsswitch.conf", content=_NSSWITCH)]
    for path, target in _MOVED.items():
        if path not in _RARE:
            made += [
                folder(target, _MODES.get(target, 0o755)),
                link(path, f"/{target}" if "/" in path else target),
            ]
    certificates = sorted(
        path for path in items if path.startswith(_CERTIFICATES) and path.endswith(".crt")
    )
    if certificates:
        bundle = b"".join(items[path].content.rstrip(b"\n") + b"\n" for path in certificates)
        made += [
            Item(_BUNDLE, content=bundle),
            # where Debian's OpenSSL looks, and so Python's
            link("usr/lib/ssl/certs", "/etc/ssl/certs"),
            link("usr/lib/ssl/cert.pem", f"/{_BUNDLE}"),
        ]
    if _UTC in items:
        made += [
            link("etc/localtime", f"/{_UTC}"),
            Item("etc/timezone", content=b"Etc/UTC\n"),
        ]
    return made


def system(user: int, *, home: str) -> list[Item]:
    """Return the lists of users and groups: root, nobody, and the one that the image runs as.

    Args:
        user: its number, and that of its group; its name is ``envbuild``.
        home: its home folder: one that it can write, where the files of the image are read-only.
    """
    users = [("root", "root", 0, "/root"), ("nobody", "nogroup", _NOBODY, "/nonexistent")]
    if user not in (0, _NOBODY):
        users.insert(1, ("envbuild", "envbuild", user, home))
    passwd = [f"{name}:x:{number}:{number}::{at}:{_SHELL}\n" for name, _, number, at in users]
    group = [f"{name}:x:{number}:\n" for _, name, number, _ in users]
    return [
        Item("etc/group", content="".join(group).encode()),
        Item("etc/passwd", content="".join(passwd).encode()),
    ]
