"""Everything about an environment that can change its lock, in one canonical form."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator

import msgspec

from envbuild.catalog.environment import Build, Environment, StaticMetadata
from envbuild.digest import sha256_bytes
from envbuild.typed import Table

# what the name of a set begins with that is installed beside the environment's own packages
_BESIDE_PACKAGES = "cuda: "


class Specification(Table, frozen=True, omit_defaults=True):
    """What a lock is a function of, besides the time and the resolver.

    Requirements are normalised and sorted, so that neither their spelling nor their order in the
    file matters.

    Attributes:
        requires_python: the interval.
        platform: the platform whose wheels are chosen.
        requirements: what is asked for.
        overrides: what replaces packages' own requirements.
        excludes: what is never installed.
        static_metadata: what old sdists require.
        builds: sdist-only packages, with how they are built: ``kind`` or ``kind: requirements``.
        build_requires: the sets of build requirements that the lock pins, one string a set; see
            `build_set`.
        base: the environment whose lock is kept.
        base_sha256: the SHA-256 of that lock's packages.
    """

    requires_python: str
    platform: str
    requirements: tuple[str, ...]
    overrides: tuple[str, ...] = ()
    excludes: tuple[str, ...] = ()
    static_metadata: dict[str, StaticMetadata] = msgspec.field(default_factory=dict)
    builds: dict[str, str] = msgspec.field(default_factory=dict)
    build_requires: tuple[str, ...] = ()
    base: str | None = None
    base_sha256: str | None = None

    @property
    def sha256(self) -> str:
        """The digest that the lock records."""
        return sha256_bytes(msgspec.json.encode(self, order="deterministic"))


def specify(environment: Environment, *, base_sha256: str | None = None) -> Specification:
    """Work out the specification of a declared environment.

    Args:
        environment: what its file says, with what it inherits.
        base_sha256: the SHA-256 of the packages in the base's lock, if it has a base.
    """
    from packaging.utils import canonicalize_name

    sets = {
        *(build_set(build) for build in environment.build.values() if build.requires),
        *(requirement_set(one.requires) for one in environment.editable if one.requires),
    }
    return Specification(
        requires_python=environment.requires_python.replace(" ", ""),
        platform=environment.platform,
        requirements=canonical(environment.requirements),
        overrides=canonical(environment.overrides),
        excludes=canonical(environment.excludes),
        static_metadata={
            canonicalize_name(name): StaticMetadata(
                requires_dist=canonical(metadata.requires_dist), version=metadata.version
            )
            for name, metadata in sorted(environment.static_metadata.items())
        },
        builds={
            canonicalize_name(name): (
                f"{build.kind}: {requirement_set(build.requires)}" if build.requires else build.kind
            )
            for name, build in sorted(environment.build.items())
        },
        build_requires=tuple(sorted(sets)),
        base=environment.base,
        base_sha256=base_sha256,
    )


def canonical(requirements: Iterable[str]) -> tuple[str, ...]:
    """Normalise, sort and de-duplicate requirements (PEP 508, names as PEP 503)."""
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    normalised = set()
    for text in requirements:
        requirement = Requirement(text)
        requirement.name = canonicalize_name(requirement.name)
        normalised.add(str(requirement))
    return tuple(sorted(normalised))


def requirement_set(requirements: Iterable[str]) -> str:
    """Name a set of build requirements by its canonical members, joined by ``&``."""
    return " & ".join(canonical(requirements))


def build_set(build: Build) -> str:
    """Name the set of build requirements of a build, as locks do.

    A set of a CUDA build is resolved together with the environment's own packages, so the same
    requirements give other wheels there than for a pure-Python build: its name begins with
    ``cuda: ``, which no requirement does.
    """
    requires = requirement_set(build.requires)
    return f"{_BESIDE_PACKAGES}{requires}" if build.kind == "cuda" else requires


def requirements_of(name: str) -> tuple[tuple[str, ...], bool]:
    """Read the name of a set of build requirements.

    Returns:
        The requirements, and whether they are resolved together with the environment's packages.
    """
    requires = name.removeprefix(_BESIDE_PACKAGES)
    return tuple(requires.split(" & ")), requires != name


def not_locked(environment: Environment, locked: Container[str]) -> Iterator[tuple[str, str]]:
    """Yield packages that a build asks for and the lock does not hold, each with its key.

    Args:
        environment: what its file says.
        locked: the names of the lock's packages.
    """
    for name, build in environment.build.items():
        for index, package in enumerate(build.match_runtime):
            if package not in locked:
                yield f"build.{name}.match-runtime[{index}]", package
