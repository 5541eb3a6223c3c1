"""Which layers an image has, and what goes into each: a function of the lock and its pins."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import msgspec

from envbuild.artifacts.wheel import SCAN_VERSION
from envbuild.errors import InputError
from envbuild.image import layer, tar
from envbuild.image.layer import Compression
from envbuild.image.tar import Item
from envbuild.image.wheels import Planned, Target
from envbuild.lock.debian import Package
from envbuild.lock.interpreters import Pin

# What container engines take: overlay file systems end at about 128.
MOST_LAYERS = 100
# A wheel of this size, in bytes, has a layer of its own: it is fetched again only when it changes.
_BIG = 4 << 20
# The others are dealt out by their names, so that another one more changes one layer.
_BUCKETS = 32
# Debian packages are compressed anew, which takes a while: in so many parts at once.
_DEBIAN_PARTS = 4
# Debian's base, its Python or the interpreter, what an environment asks for, the environment's own
_OTHERS = 2 + 2 * _DEBIAN_PARTS


class Debs(msgspec.Struct, frozen=True, tag=True):
    """Debian packages.

    Attributes:
        what: what they are for.
        packages: sorted by name.
        lowest: whether the image begins with this layer.
    """

    what: str
    packages: tuple[Package, ...]
    lowest: bool = False

    @property
    def weight(self) -> int:
        """About how much there is to do, in bytes; what comes as xz is compressed anew."""
        return 8 * sum(package.size for package in self.packages)


class Archive(msgspec.Struct, frozen=True, tag=True):
    """The pinned interpreter: its archive is a layer as it is."""

    pin: Pin
    size: int

    @property
    def what(self) -> str:
        """What it is, for people."""
        return f"Python {self.pin.version}, the pinned archive"

    @property
    def weight(self) -> int:
        """About how much there is to do, in bytes."""
        return self.size


class Wheels(msgspec.Struct, frozen=True, tag=True):
    """Wheels, installed."""

    wheels: tuple[Planned, ...]
    target: Target

    @property
    def what(self) -> str:
        """What they are, for people."""
        names = ["-".join(one.artifact.file.split("-")[:2]) for one in self.wheels]
        more = f" and {len(names) - 2} more" if len(names) > 2 else ""
        return ", ".join(names[:2]) + more

    @property
    def weight(self) -> int:
        """About how much there is to do, in bytes."""
        return sum(one.artifact.size for one in self.wheels)


class Own(msgspec.Struct, frozen=True, tag=True):
    """What the environment itself has: its configuration, links, users."""

    items: tuple[Item, ...]
    what: str = "the environment's own files"

    @property
    def weight(self) -> int:
        """About how much there is to do, in bytes."""
        return sum(len(item.content) for item in self.items)


Task = Debs | Archive | Wheels | Own


def key(task: Task, compression: Compression) -> str:
    """Return what a layer is known by: the SHA-256 of everything that decides its bytes."""
    content = (layer.VERSION, SCAN_VERSION, tar.TIME, compression, task)
    return hashlib.sha256(msgspec.json.encode(content)).hexdigest()


def deal(wheels: Sequence[Planned], target: Target, *, taken: int = 0) -> list[Wheels]:
    """Deal wheels out to layers: the big ones alone, the others by their names.

    Args:
        wheels: what goes into the image.
        target: where it is installed.
        taken: layers of the image that this one stands on.

    Raises:
        InputError: the layers that are left do not suffice.
    """
    room = MOST_LAYERS - _OTHERS - taken
    if room < 2:
        raise InputError(
            "the base image has too many layers",
            expected=f"at most {MOST_LAYERS - _OTHERS - 2}, so that {MOST_LAYERS} are enough",
            found=taken,
            mend="squash the base image",
        )
    buckets = min(_BUCKETS, room // 2)
    order = sorted(wheels, key=lambda one: (-one.artifact.size, one.artifact.file))
    alone = [one for one in order[: room - buckets] if one.artifact.size >= _BIG]
    dealt: dict[int, list[Planned]] = {}
    for one in order[len(alone) :]:
        digest = hashlib.sha256(one.artifact.project.encode()).digest()
        dealt.setdefault(int.from_bytes(digest[:4]) % buckets, []).append(one)
    together = [sorted(dealt[number], key=_name) for number in sorted(dealt)]
    return [
        Wheels(tuple(some), target)
        for some in (*together, *([one] for one in sorted(alone, key=_name)))
    ]


def _name(one: Planned) -> tuple[str, str]:
    return one.artifact.project, one.artifact.file


def own(
    environment: str,
    target: Target,
    *,
    interpreter: str,
    version: str,
    writable: Sequence[str],
    user: int,
    system: Sequence[Item],
) -> Own:
    """Return the layer that makes an environment of the wheels' files (PEP 405).

    Args:
        environment: its name.
        target: where it is.
        interpreter: its interpreter's absolute path in the image.
        version: that one's.
        writable: absolute paths of folders that the user may write in.
        user: the number of that user.
        system: what else of the image depends on the user.
    """
    configuration = {
        "home": interpreter.rpartition("/")[0],
        "implementation": "CPython",
        "version_info": version,
        "include-system-site-packages": "false",
        "prompt": environment,
    }
    text = "".join(f"{name} = {value}\n" for name, value in configuration.items())
    items = [
        Item(target.path("pyvenv.cfg"), content=text.encode()),
        tar.link(target.path("lib64"), "lib"),
        tar.link(target.path("bin/python"), interpreter),
        tar.link(target.path("bin/python3"), "python"),
        tar.link(target.path(f"bin/python{target.minor}"), "python"),
        *(Item(path.strip("/"), "folder", 0o755, owner=user) for path in writable),
        *system,
    ]
    return Own(tuple(sorted(items, key=lambda item: item.path.split("/"))))


def debs(base: Sequence[Package], python: Sequence[Package], more: Sequence[Package]) -> list[Debs]:
    """Deal Debian packages out to layers, each of them once.

    Args:
        base: of the lowest layer, if any.
        python: the interpreter's, if it is Debian's.
        more: those that the environment asks for.
    """
    layers = [Debs(f"Debian base ({len(base)} packages)", tuple(base), lowest=True)] if base else []
    there = {package.name for package in base}
    for what, packages in (("Debian's Python", python), ("Debian packages", more)):
        new = [package for package in packages if package.name not in there]
        there.update(package.name for package in new)
        parts = _parts(new)
        layers += [
            Debs(f"{what}, part {number} of {len(parts)} ({len(part)} packages)", part)
            for number, part in enumerate(parts, 1)
        ]
    return layers


def _parts(packages: Sequence[Package]) -> list[tuple[Package, ...]]:
    """Deal packages out evenly by their sizes, so that several cores are of use."""
    count = min(_DEBIAN_PARTS, len(packages))
    parts: list[list[Package]] = [[] for _ in range(count)]
    for package in sorted(packages, key=lambda package: (-package.size, package.name)):
        min(parts, key=lambda part: sum(one.size for one in part)).append(package)
    return [tuple(sorted(part, key=lambda package: package.name)) for part in parts]
