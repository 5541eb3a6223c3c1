"""Which Debian packages images need, worked out from what archives offer."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

from envbuild import durable
from envbuild.artifacts.control import Archives, Offer, Relation
from envbuild.errors import InputError
from envbuild.lock.debian import RELEASE, Package, check, read, serialize

# What is asked for by the scripts that install and remove a package, none of which ever runs in
# an image: questions to the administrator, users, services, configuration files that are merged,
# the directory of info pages. An environment that wants one of them names it.
_FOR_SCRIPTS = frozenset(
    {
        *("adduser", "cdebconf", "debconf", "debconf-2.0", "dpkg", "init-system-helpers"),
        *("install-info", "lsb-base", "passwd", "ucf"),
    }
)
# The same, where others need the package for more: awk is run by base-files' script, openssl by
# update-ca-certificates, and a bundle of certificates is made without it. Mesa draws on a screen;
# what is linked with libGL, as OpenCV is, loads without it, and it brings 200 MB with LLVM.
_NOT_NEEDED_BY = {
    "base-files": frozenset({"awk"}),
    "ca-certificates": frozenset({"openssl"}),
    "libglx0": frozenset({"libglx-mesa0"}),
}


class Change(msgspec.Struct, frozen=True):
    """A package whose pin changed.

    Attributes:
        name: of the package.
        old: the version that was pinned; None if none was.
        new: the version that is; None if none is.
    """

    name: str
    old: str | None
    new: str | None


def refresh(path: Path, packages: Sequence[Package]) -> list[Change]:
    """Write pins, unless the file holds the same bytes already.

    Args:
        path: the file.
        packages: all pins, as `resolve` returns them.

    Returns:
        What changed, sorted by name; a package whose version stayed is among it if its file or
        what it depends on did not.

    Raises:
        InputError: the file that is there cannot be read as pins.
        OSError: it cannot be written.
    """
    old = read(path)
    new = {package.name: package for package in packages}
    data = serialize(packages)
    if not path.exists() or path.read_bytes() != data:
        path.parent.mkdir(exist_ok=True)
        durable.write(path, data)
    return [
        Change(
            name,
            old[name].version if name in old else None,
            new[name].version if name in new else None,
        )
        for name in sorted(old.keys() | new.keys())
        if old.get(name) != new.get(name)
    ]


def resolve(asked: Mapping[str, Iterable[str]], archives: Archives) -> list[Package]:
    """Work out which packages are needed, and pin the present version of each.

    Of alternatives the first that is to be had counts, and for a virtual package the first by name
    of those that stand for it.

    Args:
        asked: the packages' names, each with the environments that ask for it, as `required`
            returns them.
        archives: what there is.

    Returns:
        The packages and all that they need when they run, sorted by name.

    Raises:
        InputError: there is no such package, or nothing that one of them needs.
        StepError: what an archive says of one cannot be read.
    """
    pins: dict[str, Package] = {}
    todo = [_asked(name, environments, archives) for name, environments in asked.items()]
    while todo:
        offer = todo.pop()
        if offer.name in pins:
            continue
        needed = {one.name: one for one in _needed(offer, archives)}
        pool, _, file = offer.path.rpartition("/")
        depends = tuple(sorted(needed.keys() - {offer.name}))
        pins[offer.name] = Package(
            offer.name, offer.version, file, pool, offer.size, offer.sha256, depends
        )
        todo += needed.values()
    for pin in pins.values():
        check(pin, pins, f"{pin.name} as the mirror offers it")
    return [pins[name] for name in sorted(pins)]


def _asked(name: str, environments: Iterable[str], archives: Archives) -> Offer:
    offer = archives.find(name)
    if offer is not None:
        return offer
    others = [one.name for one in archives.providers(name)]
    near = others or difflib.get_close_matches(name, archives.names, n=1)
    where = ", ".join(f"envs/{environment}.toml" for environment in environments)
    raise InputError(
        f"image.packages: no package {name} in Debian's {RELEASE}, main, amd64",
        where=where or None,
        expected=f"did you mean {' or '.join(near)}?" if near else None,
        mend="correct the name, or take it out",
    )


def _needed(offer: Offer, archives: Archives) -> Iterable[Offer]:
    """Find what a package depends on when it runs."""
    passed_over = _FOR_SCRIPTS | _NOT_NEEDED_BY.get(offer.name, frozenset())
    for alternatives in offer.depends:
        if any(one.name in passed_over for one in alternatives):
            continue
        found = next(filter(None, (_choice(one, archives) for one in alternatives)), None)
        if found is None:
            asked = " | ".join(one.name for one in alternatives)
            raise InputError(
                f"{offer.name} {offer.version} needs {asked}, which no configured archive has in a "
                "version that fits",
                mend="configure all of Debian's archives: the main one, its updates and those of "
                "security",
            )
        yield found


def _choice(relation: Relation, archives: Archives) -> Offer | None:
    offer = archives.find(relation.name)
    if offer is not None and relation.allows(offer.version):
        return offer
    for provider in archives.providers(relation.name):
        version = provider.provides[relation.name]
        if not relation.operator or (version and relation.allows(version)):
            return provider
    return None
