"""What container engines make of an image."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import platform
import re
import subprocess
import sys
import tarfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec
import pytest

from envbuild.artifacts import Artifact
from envbuild.digest import sha256_bytes, sha256_file
from envbuild.image import oci, tar
from envbuild.image.layer import Blob, Compression, Layer
from envbuild.image.tar import Item
from envbuild.lock import interpreters as pins
from envbuild.lock import lockfile
from envbuild.lock.lockfile import Lock, LockedPackage
from envbuild.lock.specification import specify
from tests import interpreters, projects
from tests.image import engines
from tests.image.engines import Docker
from tests.wheels import change, make_wheel

VERSION = platform.python_version()
LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"


def text(name: str, size: int) -> bytes:
    """Return letters and digits that a compressor needs several blocks for, by their name."""
    count = size // 64 + 1
    return b"".join(
        hashlib.sha256(f"{name}{number}".encode()).hexdigest().encode() for number in range(count)
    )[:size]


# beyond what one gzip member can hold of several entries, one by one, and as a tar's header can't
# say it: these are what engines have to read
FILES = {f"facts/{number:03}.txt": text(f"facts{number}", 40_000 + number) for number in range(200)}
FILES |= {
    "facts/large.txt": text("large", 3_000_000),
    "facts/stored.bin": text("stored", 200_000),
    "facts/empty": b"",
    "facts/größe.txt": "größe".encode(),
    f"facts/{'deep/' * 40}{'long' * 30}.txt": b"long",
}
PROGRAM = '''\
import hashlib
import json
import os
import sys
from pathlib import Path


def main():
    folder = Path(__file__).parent / "facts"
    digest = hashlib.sha256()
    found = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))
    for name in found:
        path = folder / name
        digest.update(name.encode() + (b"" if path.is_dir() else path.read_bytes()))
    try:
        Path(sys.prefix, "new").write_text("")
        fault = ""
    except OSError as error:
        fault = type(error).__name__
    print(
        json.dumps(
            {
                "arguments": sys.argv,
                "content": digest.hexdigest(),
                "fault": fault,
                "folder": os.getcwd(),
                "group": os.getgid(),
                "path": os.environ["PATH"],
                "prefix": sys.prefix,
                "user": os.getuid(),
                "version": sys.version.split()[0],
            }
        )
    )
    if sys.argv[1:]:
        path = Path(sys.argv[1])
        path.write_text("written")
        print(path.read_text(), path.stat().st_uid)
'''


class Made(msgspec.Struct, frozen=True):
    """The image in one compression.

    Attributes:
        layout: the folder.
        digest: of its manifest, as the command printed it.
    """

    layout: Path
    digest: str


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Made]:
    """The image by compression, made by the command, on a base that another program wrote."""
    folder = tmp_path_factory.mktemp("made")
    declared = projects.environment("alpha", "beta", "toy", python=VERSION)
    project = projects.project(folder / "project", {"toy": declared}, {"local": projects.LOCAL})
    wheelhouse = folder / "wheelhouse"
    wheels = [
        make_wheel(wheelhouse, "alpha", "1.0"),
        make_wheel(wheelhouse, "beta", "1.0"),
        make_wheel(
            wheelhouse,
            "toy",
            "1.0",
            files={"toy.py": PROGRAM, **FILES},
            entry_points="[console_scripts]\ntoy = toy:main\n",
            plant=change("facts/stored.bin", deflate=False),
        ),
    ]
    lock = Lock(
        environment="toy",
        specification=specify(project.environment("toy")),
        exclude_newer="2026-01-01T00:00:00Z",
        resolver="none",
        packages=tuple(
            LockedPackage(
                name,
                "1.0",
                Artifact(path.name, path.stat().st_size, sha256_file(path), name),
            )
            for path in wheels
            for name in [path.name.partition("-")[0]]
        ),
    )
    pin = interpreters.pack(folder / "mirror")
    (folder / "mirror" / pin.build / pin.file).rename(wheelhouse / pin.file)
    project.interpreters_file.parent.mkdir()
    project.interpreters_file.write_bytes(pins.serialize([pin]))
    project.lock_file("toy").write_bytes(lockfile.serialize(lock))
    base = f"{folder / 'base'}@sha256:{write_base(folder / 'base')}"
    options = ["--base", base, "--offline", "--wheelhouse", wheelhouse, "--cache", folder / "cache"]
    images = {}
    for compression in ("gzip", "none"):
        out = folder / compression
        done = subprocess.run(
            [sys.executable, "-m", "envbuild", "image", "toy", "--output", out, *options]
            + ["--compression", compression],
            cwd=project.folder,
            env={"PATH": os.environ["PATH"], "PYTHONPATH": str(HERE)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        images[compression] = Made(out, done.stdout.strip())
    return images


def write_base(folder: Path) -> str:
    """Write the loader and the libraries of the Python that runs the tests as an image.

    Returns:
        The digest of its manifest.
    """
    program = Path(sys.base_prefix, "bin", f"python{projects.MINOR}").resolve()
    said = subprocess.run(["ldd", program], stdout=subprocess.PIPE, text=True, check=True).stdout
    libraries = re.findall(r"(?:=> |^\s+)(/\S+) \(", said, re.MULTILINE)
    assert libraries, said
    blobs = folder / "blobs" / "sha256"
    blobs.mkdir(parents=True)
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w") as archive:
        for library in libraries:
            path = Path(library).resolve()
            archive.add(path, os.path.normpath(library).lstrip("/"), recursive=False)

    def keep(data: bytes, kind: str) -> dict[str, object]:
        digest = hashlib.sha256(data).hexdigest()
        (blobs / digest).write_bytes(data)
        return {
            "mediaType": f"application/vnd.oci.image.{kind}",
            "digest": f"sha256:{digest}",
            "size": len(data),
        }

    layer = keep(gzip.compress(plain.getvalue(), 1), "layer.v1.tar+gzip")
    diff_id = hashlib.sha256(plain.getvalue()).hexdigest()
    config = {
        "architecture": "amd64",
        "os": "linux",
        "config": {"Env": ["PATH=/usr/bin:/bin", "BASE=kept"]},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{diff_id}"]},
        "history": [{"created_by": "by hand"}],
    }
    manifest = {
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": keep(json.dumps(config).encode(), "config.v1+json"),
        "layers": [layer],
    }
    described = keep(json.dumps(manifest).encode(), "manifest.v1+json")
    return str(described["digest"]).removeprefix("sha256:")
