"""The Python that runs the tests, packed as python-build-standalone packs its own."""

from __future__ import annotations

import platform
import sys
import tarfile
from pathlib import Path

from envbuild.digest import sha256_file
from envbuild.lock.interpreters import Pin

BUILD = "20260101"
_LEFT_OUT = {"test", "tests", "idlelib", "site-packages", "dist-packages", "__pycache__"}


def pack(folder: Path) -> Pin:
    """Pack the running CPython into an archive under its true version, and return its pin.

    The archive stands where a mirror has it: ``FOLDER/BUILD/FILE``.
    """
    version = platform.python_version()
    minor = f"python{sys.version_info.major}.{sys.version_info.minor}"
    file = f"cpython-{version}+{BUILD}-x86_64-unknown-linux-gnu-install_only_stripped.tar.gz"
    archive = folder / BUILD / file
    archive.parent.mkdir(parents=True)
    base = Path(sys.base_prefix)

    def chosen(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
        parts = Path(member.name).parts
        left_out = _LEFT_OUT.intersection(parts) or any(p.startswith("config-") for p in parts)
        return None if left_out else member

    with tarfile.open(archive, "w:gz", compresslevel=1) as target:
        target.add((base / "bin" / minor).resolve(), f"python/bin/{minor}")
        for name in ("python3", "python"):
            link = tarfile.TarInfo(f"python/bin/{name}")
            link.type, link.linkname = tarfile.SYMTYPE, minor
            target.addfile(link)
        target.add(base / "lib" / minor, f"python/lib/{minor}", filter=chosen)
        for library in (base / "lib").glob(f"lib{minor}*.so*"):
            target.add(library, f"python/lib/{library.name}")
    return Pin(version, BUILD, file, sha256_file(archive))
