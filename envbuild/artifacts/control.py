"""What Debian's control files say: stanzas, packages and their relations, which version is newer.

The formats are those of deb-control(5), Debian Policy 7.1 and deb-version(7).
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Sequence

import msgspec

from envbuild.errors import StepError

_FIELD = re.compile(r"^([!-9;-~]+):[ \t]*(.*(?:\n[ \t].*)*)$", re.MULTILINE)
_RELATION = re.compile(
    r"(?P<name>[a-z0-9][a-z0-9+.-]*)(?::[a-z0-9-]+)?"
    r"(?:\s*\(\s*(?P<operator><<|<=|=|>=|>>)\s*(?P<version>[^\s)]+)\s*\))?"
)
# a part of a version that is neither text nor a number: where a version ends
_NOTHING = ((0,), 0)

Parts = tuple[tuple[tuple[int, ...], int], ...]
VersionKey = tuple[int, Parts, Parts]
_OPERATORS: dict[str, Callable[[VersionKey, VersionKey], bool]] = {
    "<<": operator.lt,
    "<=": operator.le,
    "=": operator.eq,
    ">=": operator.ge,
    ">>": operator.gt,
}


def fields(stanza: str) -> dict[str, str]:
    """Return the fields of a stanza; folded ones keep their line ends."""
    return {match[1]: match[2] for match in _FIELD.finditer(stanza)}


class Relation(msgspec.Struct, frozen=True):
    """A package that another one names, with the versions that fit.

    Attributes:
        name: of the package, which may be a virtual one.
        operator: ``<<``, ``<=``, ``=``, ``>=``, ``>>``; empty where every version fits.
        version: what versions are compared with.
    """

    name: str
    operator: str = ""
    version: str = ""

    def allows(self, version: str) -> bool:
        """Whether a version fits."""
        if not self.operator:
            return True
        return _OPERATORS[self.operator](version_key(version), version_key(self.version))


def relations(text: str) -> list[list[Relation]]:
    """Read a field such as Depends: what is asked for, each a list of alternatives.

    Raises:
        ValueError: it is none; the part that cannot be read is the reason.
    """
    asked = (part for part in text.split(",") if part.strip())
    return [[_relation(one) for one in part.split("|")] for part in asked]


def _relation(text: str) -> Relation:
    match = _RELATION.fullmatch(text.strip())
    if match is None:
        raise ValueError(text.strip())
    return Relation(match["name"], match["operator"] or "", match["version"] or "")


def version_key(version: str) -> VersionKey:
    """Return what versions are ordered by: epoch, upstream's version, Debian's revision."""
    epoch, colon, rest = version.partition(":")
    if not colon or not epoch.isdecimal():
        epoch, rest = "0", version
    upstream, _, revision = rest.rpartition("-") if "-" in rest else (rest, "", "")
    return int(epoch), _parts(upstream), _parts(revision)


def _parts(text: str) -> Parts:
    """Split into text and numbers by turns, so that tuples compare as dpkg compares.

    A version that goes on with ``~`` is older than one that ends there, and that is older than one
    that goes on with anything else: so every key ends in parts that are nothing. Two of them, as a
    version that begins with ``0`` has one at its beginning.
    """
    parts = [
        ((*map(_weight, words), 0), int(number or 0))
        for words, number in re.findall(r"([^0-9]*)([0-9]*)", text)
    ]
    while parts and parts[-1] == _NOTHING:
        parts.pop()
    return (*parts, _NOTHING, _NOTHING)


def _weight(character: str) -> int:
    """Order the tilde before the end of a text (0), and letters before all else."""
    if character == "~":
        return -1
    return ord(character) if character.isalpha() else ord(character) + 256


class Offer(msgspec.Struct, frozen=True):
    """A package as an archive offers it.

    Attributes:
        name: of the package.
        version: Debian's.
        path: of the .deb, relative to the archive's root.
        size: of the .deb, in bytes.
        sha256: of the .deb.
        depends: what it needs, each a list of alternatives; Pre-Depends first.
        provides: the virtual packages that it stands for, with their versions (empty if none).
    """

    name: str
    version: str
    path: str
    size: int
    sha256: str
    depends: list[list[Relation]]
    provides: dict[str, str]


class Archives:
    """What all configured archives offer; of several versions, the highest.

    Args:
        stanzas: of their Packages indexes.
        warnings: what a person should know of how they were read.
    """

    def __init__(self, stanzas: Sequence[str], warnings: Sequence[str] = ()) -> None:
        self.warnings = tuple(dict.fromkeys(warnings))
        self._stanzas: dict[str, list[str]] = {}
        self._providing: list[str] = []
        self._found: dict[str, Offer | None] = {}
        # 63,000 of them, of which a hundred are wanted: the others are not taken apart
        for stanza in stanzas:
            name = stanza.partition("\n")[0].removeprefix("Package: ")
            self._stanzas.setdefault(name, []).append(stanza)
            if "\nProvides: " in stanza:
                self._providing.append(name)

    @property
    def names(self) -> list[str]:
        """The names of all packages."""
        return list(self._stanzas)

    def find(self, name: str) -> Offer | None:
        """Return the highest version of a package; None if there is no such package.

        Raises:
            StepError: what the index says of it cannot be read.
        """
        if name not in self._found:
            offers = [_offer(stanza) for stanza in self._stanzas.get(name, ())]
            best = max(offers, key=lambda one: version_key(one.version), default=None)
            self._found[name] = best
        return self._found[name]

    def providers(self, virtual: str) -> list[Offer]:
        """Return the packages that stand for a virtual one, sorted by name."""
        names = sorted({n for n in self._providing if any(virtual in s for s in self._stanzas[n])})
        offers = [offer for name in names if (offer := self.find(name)) is not None]
        return [offer for offer in offers if virtual in offer.provides]

    def has(self, name: str, sha256: str) -> bool:
        """Whether a package is offered, in whichever version, whose .deb has this hash."""
        return any(f"\nSHA256: {sha256}" in stanza for stanza in self._stanzas.get(name, ()))


def _offer(stanza: str) -> Offer:
    said = fields(stanza)
    try:
        asked = [relations(said.get(field, "")) for field in ("Pre-Depends", "Depends")]
        provided = relations(said.get("Provides", ""))
        return Offer(
            said["Package"],
            said["Version"],
            said["Filename"].removeprefix("./"),
            int(said["Size"]),
            said["SHA256"],
            [*asked[0], *asked[1]],
            {one.name: one.version for part in provided for one in part},
        )
    except (KeyError, ValueError) as error:
        raise StepError(
            "the mirror's index says what is no package",
            where=stanza.partition("\n")[0],
            expected="Package, Version, Filename, Size, SHA256 and relations (deb-control(5))",
            found=error,
        ) from error
