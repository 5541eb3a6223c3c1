"""What a prefix is held to: values, so that the rules know of no site and no lock."""

from __future__ import annotations

import msgspec


class Expected(msgspec.Struct, frozen=True):
    """A file as it must be, by the wheel that it came from.

    Attributes:
        origin: the wheel's file name, or what else says so.
        algorithm: of the digest: ``sha256``, ``sha384`` or ``sha512``.
        digest: in hexadecimal digits.
        size: in bytes; None where only what follows the first line is known.
        body: whether the digest is that of what follows the ``#!python`` line, which installers
            replace (PEP 427).
    """

    origin: str
    algorithm: str
    digest: str
    size: int | None = None
    body: bool = False


class EntryPoint(msgspec.Struct, frozen=True):
    """A script that an installer writes for an entry point.

    Attributes:
        origin: the wheel's file name, or what else says so.
        module: what it imports.
        attribute: what it calls, a dotted name inside the module.
    """

    origin: str
    module: str
    attribute: str


class Distribution(msgspec.Struct, frozen=True):
    """A distribution that must be installed.

    Attributes:
        name: normalised (PEP 503).
        version: normalised (PEP 440).
        origin: the wheel's file name; None for a project in editable form.
        folder: of a project in editable form.
        own: whether its compiled code was built here, not by its publisher.
    """

    name: str
    version: str
    origin: str | None = None
    folder: str | None = None
    own: bool = False


class Contents(msgspec.Struct, frozen=True):
    """What a prefix must hold, from verified wheels.

    Attributes:
        distributions: all that must be installed.
        files: relative path to what the file must be.
        scripts: relative path to the entry point that a script is for.
        written: relative path to the SHA-256 of what installers wrote, of links to ``-> TARGET``,
            by the receipt; None where no receipt says so.
        modes: relative path to the permissions of files that have others than 0644, by the
            receipt.
    """

    distributions: tuple[Distribution, ...]
    files: dict[str, Expected]
    scripts: dict[str, EntryPoint]
    written: dict[str, str] | None = None
    modes: dict[str, int] = msgspec.field(default_factory=dict)


class Base(msgspec.Struct, frozen=True):
    """The interpreter that a prefix must stand on.

    Attributes:
        path: the executable's, absolute and real.
        version: such as ``3.11.17``.
        pinned: whether it is the pinned one, installed from its archive.
        fault: what is wrong with it by the record of its installation; None where nothing is.
        allowed: whether one that is not pinned may stand in.
        wanted: the pinned version.
    """

    path: str
    version: str
    pinned: bool
    wanted: str
    allowed: bool = False
    fault: str | None = None


class Ceilings(msgspec.Struct, frozen=True):
    """The newest versions of system libraries' symbols that a site has.

    Attributes:
        source: who says so, such as ``sites/berzelius.toml``.
        versions: prefix of a version's name (``GLIBC``, ``GLIBCXX``, ``CXXABI``) to the newest
            version; those that are not known are left out.
    """

    source: str
    versions: dict[str, tuple[int, ...]]


class Subject(msgspec.Struct, frozen=True):
    """A prefix and what it is held to.

    Attributes:
        prefix: its path as given, absolute.
        owner: the user that it must belong to, by number.
        registered: where the site has it; None where no site knows it.
        root: the folder out of which nothing may point; the prefix itself where there is none.
        others: the site's other prefixes, by their environments.
        interpreters: the site's folder of interpreters, if there is one.
        system: folders of the system that may be relied on.
        caches: folders that hold caches, out of which nothing may be linked.
        foreign: paths that no file may name, with what they are: staging folders and the like.
        file_mode: permissions that every file has at least.
        shebang_limit: the longest ``#!`` line that the site's kernel takes, in bytes.
        links: whether files may be hard-linked to others outside the prefix.
        base: the interpreter; None where none is declared.
        contents: what it must hold; None to hold it to what it says of itself.
        overrides: requirements that may replace what distributions ask for (PEP 508).
        excludes: names of distributions that may be missing.
        ceilings: of system libraries' versions.
        libraries: sonames that the site's nodes have besides the standard ones.
        architectures: what own device code must be compiled for, such as ``sm_90``.
        ptx: whether own device code may hold PTX.
        builders: build folders and homes that own files may not name.
        unfinished: journals and half-made folders of this prefix.
        again: how it is built anew, for people.
    """

    prefix: str
    owner: int
    ceilings: Ceilings
    registered: str | None = None
    root: str | None = None
    others: dict[str, str] = msgspec.field(default_factory=dict)
    interpreters: str | None = None
    system: tuple[str, ...] = ()
    caches: tuple[str, ...] = ()
    foreign: dict[str, str] = msgspec.field(default_factory=dict)
    file_mode: int = 0o644
    shebang_limit: int = 127
    links: bool = False
    base: Base | None = None
    contents: Contents | None = None
    overrides: tuple[str, ...] = ()
    excludes: tuple[str, ...] = ()
    libraries: tuple[str, ...] = ()
    architectures: tuple[str, ...] = ()
    ptx: bool = False
    builders: tuple[str, ...] = ()
    unfinished: tuple[str, ...] = ()
    again: str = "make it anew at this path: an environment cannot be moved or copied"
