"""Debian packages and archives of a few bytes, as `dpkg-deb` and a mirror have them.

archive = Archive(folder)
archive.add(deb(folder, "alpha", "1.0", depends="beta"), suite="bookworm")
archive.publish()
"""

from __future__ import annotations

import gzip
import hashlib
import io
import lzma
import tarfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote

import msgspec

COMPRESS: Mapping[str, Callable[[bytes], bytes]] = {
    "": bytes,
    # without a time, so that a package made anew has the same bytes
    ".gz": lambda data: gzip.compress(data, mtime=0),
    ".xz": lzma.compress,
    ".zst": bytes,
}


class Entry(msgspec.Struct, frozen=True):
    """What a package installs: a file, unless the type says otherwise."""

    path: str
    content: bytes = b""
    mode: int = 0o644
    type: bytes = tarfile.REGTYPE
    target: str = ""


def folder(path: str, mode: int = 0o755) -> Entry:
    return Entry(path, mode=mode, type=tarfile.DIRTYPE)


def link(path: str, target: str) -> Entry:
    return Entry(path, type=tarfile.SYMTYPE, target=target)


def tar(entries: Sequence[Entry]) -> bytes:
    """Write entries as a tar archive."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for entry in entries:
            info = tarfile.TarInfo(entry.path)
            info.type, info.mode, info.linkname = entry.type, entry.mode, entry.target
            info.size = len(entry.content)
            archive.addfile(info, io.BytesIO(entry.content))
    return out.getvalue()


def ar(members: Sequence[tuple[str, bytes]]) -> bytes:
    """Write members as an ar archive."""
    out = b"!<arch>\n"
    for name, data in members:
        out += f"{name:<16}{0:<12}{0:<6}{0:<6}{'100644':<8}{len(data):<10}".encode() + b"`\n"
        out += data + b"\n" * (len(data) % 2)
    return out


def control(name: str, version: str, **fields: str) -> bytes:
    """Write a control stanza; ``pre_depends`` is the field ``Pre-Depends``."""
    said = {"Package": name, "Version": version, "Architecture": "all", "Description": "a toy"}
    said |= {key.replace("_", "-").title(): value for key, value in fields.items()}
    return "".join(f"{key}: {value}\n" for key, value in said.items()).encode()


def deb(
    where: Path,
    name: str,
    version: str = "1.0",
    entries: Sequence[Entry] = (),
    *,
    compression: str = ".xz",
    **fields: str,
) -> Path:
    """Write a package under the name that it has in a pool."""
    where.mkdir(parents=True, exist_ok=True)
    path = where / f"{name}_{version.rpartition(':')[2]}_all.deb"
    stanza = tar([folder("./"), Entry("./control", control(name, version, **fields))])
    data = COMPRESS[compression](tar([folder("./"), *entries]))
    path.write_bytes(
        ar(
            [
                ("debian-binary", b"2.0\n"),
                ("control.tar.gz", COMPRESS[".gz"](stanza)),
                (f"data.tar{compression}", data),
            ]
        )
    )
    return path


class Archive:
    """An archive in a folder: ``dists/`` and ``pool/``.

    Args:
        root: the folder.
        sign: turns a Release into an InRelease.
    """

    def __init__(self, root: Path, sign: Callable[[bytes], bytes] = bytes) -> None:
        self.root = root
        self._sign = sign
        self._stanzas: dict[str, list[bytes]] = {"bookworm": []}

    @property
    def url(self) -> str:
        return self.root.as_uri()

    def add(
        self,
        name: str,
        version: str = "1.0",
        entries: Sequence[Entry] = (),
        *,
        suite: str = "bookworm",
        **fields: str,
    ) -> Path:
        """Put a package into the pool and list it in a suite, from the next `publish` on."""
        pool = f"pool/main/{name[0]}/{name}"
        path = deb(self.root / pool, name, version, entries, **fields)
        data = path.read_bytes()
        self._stanzas.setdefault(suite, []).append(
            control(name, version, **fields)
            + f"Filename: {pool}/{path.name}\nSize: {len(data)}\n".encode()
            + f"SHA256: {hashlib.sha256(data).hexdigest()}\n".encode()
        )
        return path

    def forget(self) -> None:
        """List nothing any more, and keep nothing in the pool."""
        for path in self.root.glob("pool/**/*.deb"):
            path.unlink()
        for stanzas in self._stanzas.values():
            stanzas.clear()

    def publish(self, extra: str = "", *, by_hash: bool = False) -> None:
        """Write the indexes of all suites, with further lines in their Release."""
        for suite, stanzas in self._stanzas.items():
            packages = lzma.compress(b"\n".join(stanzas))
            digest = hashlib.sha256(packages).hexdigest()
            where = self.root / "dists" / suite / "main/binary-amd64"
            path = where / (f"by-hash/SHA256/{digest}" if by_hash else "Packages.xz")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(packages)
            release = (
                f"Origin: Debian\nCodename: {suite}\n{extra}SHA256:\n"
                f" {digest} {len(packages):>8} main/binary-amd64/Packages.xz\n"
            )
            signed = self._sign(release.encode())
            (self.root / "dists" / suite / "InRelease").write_bytes(signed)


@contextmanager
def serve(root: Path, statuses: Mapping[str, int] | None = None) -> Iterator[tuple[str, list[str]]]:
    """Serve a folder on a free loopback port.

    Args:
        root: the folder.
        statuses: what is answered for some paths, instead of the files.

    Yields:
        The URL without a slash at its end, and the paths that were asked for.
    """
    asked: list[str] = []

    class Handler(SimpleHTTPRequestHandler):
        def translate_path(self, path: str) -> str:
            return str(root / unquote(path).lstrip("/"))

        def log_message(self, format: str, *args: object) -> None:
            """Write nothing."""

        def do_GET(self) -> None:
            asked.append(self.path)
            status = (statuses or {}).get(self.path)
            if status is None:
                super().do_GET()
            else:
                self.send_error(status)

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}", asked
        finally:
            server.shutdown()
            thread.join()
