"""What container engines make of an image."""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import zlib
from pathlib import Path, PurePosixPath
from typing import Any

import msgspec
import pytest

from envbuild.lock import interpreters as pins
from envbuild.lock import lockfile
from tests import interpreters, projects
from tests.image import engines, toys
from tests.wheels import change, make_wheel

HERE = Path(__file__).parents[2]
VERSION = platform.python_version()
COMPRESSIONS = ("gzip", "none")


def text(name: str, size: int) -> bytes:
    """Return text in which next to nothing repeats: a compressor makes several blocks of it."""
    numbers = range(size // 43 + 1)
    digests = (hashlib.sha256(f"{name}{number}".encode()).digest() for number in numbers)
    return b"".join(base64.b64encode(digest)[:43] for digest in digests)[:size]


# Entries of several deflate blocks, which have gzip members of their own; one that is inflated in
# pieces, one that is not compressed, an empty one, and names that a tar's header cannot hold.
FILES = {f"facts/{number:03}.txt": text(f"facts{number}", 40_000 + number) for number in range(200)}
FILES |= {
    "facts/large.txt": text("large", 3_000_000),
    "facts/stored.bin": text("stored", 200_000),
    "facts/empty": b"",
    "facts/größe.txt": "größe".encode(),
    f"facts/{'deep/' * 40}{'long' * 30}.txt": b"long",
}
PROGRAM = """\
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
                "base": os.environ["BASE"],
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
"""


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
    lock = toys.lock(project.environment("toy"), [toys.package(path) for path in wheels])
    pin = interpreters.pack(folder / "mirror")
    (folder / "mirror" / pin.build / pin.file).rename(wheelhouse / pin.file)
    project.interpreters_file.parent.mkdir()
    project.interpreters_file.write_bytes(pins.serialize([pin]))
    project.lock_file("toy").write_bytes(lockfile.serialize(lock))
    base = f"{folder / 'base'}@sha256:{write_base(folder / 'base')}"
    options: list[str | Path] = [
        "--base",
        base,
        "--offline",
        "--wheelhouse",
        wheelhouse,
        "--cache",
        folder / "cache",
    ]
    command = [sys.executable, "-m", "envbuild", "image", "toy"]
    images = {}
    for compression in COMPRESSIONS:
        out = folder / compression
        done = subprocess.run(
            [*command, *options, "--output", out, "--compression", compression],
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


def expected(*arguments: str, fault: str = "OSError") -> dict[str, Any]:
    """Return what the program prints in a container."""
    digest = hashlib.sha256()
    folders = {str(folder) for name in FILES for folder in PurePosixPath(name).parents}
    for name in sorted((FILES.keys() | folders) - {".", "facts"}):
        digest.update(name.removeprefix("facts/").encode() + FILES.get(name, b""))
    return {
        "arguments": ["/opt/envs/toy/bin/toy", *arguments],
        "base": "kept",
        "content": digest.hexdigest(),
        "fault": fault,
        "folder": "/results",
        "group": 10001,
        "path": "/opt/envs/toy/bin:/usr/bin:/bin",
        "prefix": "/opt/envs/toy",
        "user": 10001,
        "version": VERSION,
    }


def test_a_layer_has_hundreds_of_gzip_members(made: dict[str, Made]) -> None:
    """What all the other tests are about."""
    image = made["gzip"]
    layers = [layer["digest"] for layer in read(image, image.digest)["layers"]]
    count = []
    for digest in layers:
        rest = blob(image, digest).read_bytes()
        count.append(0)
        while rest:
            inflater = zlib.decompressobj(31)
            inflater.decompress(rest)
            assert inflater.eof
            rest = inflater.unused_data
            count[-1] += 1
    # the base; the interpreter; two small wheels; the big one; the environment's own files
    assert len(count) == 6
    assert count[:2] == [1, 1]
    assert max(count) > 400


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_skopeo_keeps_the_digest(compression: str, made: dict[str, Made], tmp_path: Path) -> None:
    engines.need("skopeo")
    image = made[compression]
    assert inspect(f"oci:{image.layout}:toy", tmp_path) == image.digest
    skopeo(tmp_path, "copy", f"oci:{image.layout}:toy", f"dir:{tmp_path / 'copy'}")
    manifest = (tmp_path / "copy" / "manifest.json").read_bytes()
    assert f"sha256:{hashlib.sha256(manifest).hexdigest()}" == image.digest


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_runc_runs_what_umoci_unpacked(
    compression: str, made: dict[str, Made], tmp_path: Path
) -> None:
    engines.need("umoci", "runc")
    image = made[compression]
    results = tmp_path / "results"
    results.mkdir()
    command = ("toy", "/results/new")
    printed = engines.runc(image.layout, "toy", tmp_path / "bundle", results, command)
    assert said(printed) == (expected("/results/new"), "written 10001")
    assert (results / "new").read_text() == "written"
    assert (results / "new").stat().st_uid == 10001


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_podman_runs_it(compression: str, made: dict[str, Made], tmp_path: Path) -> None:
    engines.need("podman", "runc")
    image = made[compression]
    loaded = engines.podman(tmp_path, "load", "--quiet", "--input", image.layout)
    name = loaded.removeprefix("Loaded image: ").strip()
    digest = engines.podman(tmp_path, "image", "inspect", "--format", "{{.Digest}}", name)
    assert digest.strip() == image.digest
    limits = ("--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1024:1024")
    # its control groups go away with the container
    groups = ("--cgroup-parent", "/", "--cgroups", "no-conmon")
    options = ("--rm", "--network", "none", "--read-only", *limits, *groups)
    printed = engines.podman(tmp_path, "run", *options, name, "toy", "/results/new")
    assert said(printed) == (expected("/results/new"), "written 10001")


def test_containerd_refuses_what_it_unpacks_to_something_else(
    made: dict[str, Made], tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """So that it takes an image shows that its layers are what its configuration says."""
    engines.need("ctr", "dockerd")
    packed = pack(other(made["gzip"], tmp_path / "other"), tmp_path / "other.tar")
    with engines.docker(tmp_path_factory.mktemp("d")) as daemon:
        printed = daemon.ctr("image", "import", packed, fails=True)
    assert "wrong diff id calculated on extraction" in printed


# Go's engines prefer unpigz to a reader of their own
READERS = pytest.mark.parametrize(
    ("compression", "unpigz"), [("gzip", True), ("gzip", False), ("none", True)]
)


class Unpigz:
    """An unpigz that tells when it is run.

    Args:
        folder: where to.
        on: whether it is what an engine finds and may use.
    """

    def __init__(self, folder: Path, *, on: bool) -> None:
        self._used = folder / "used"
        script = folder / "bin" / "unpigz"
        script.parent.mkdir()
        program = shutil.which("unpigz")
        script.write_text(f'#!/bin/sh\necho >> {self._used}\nexec {program} "$@"\n')
        script.chmod(0o755)
        self.variables = {"PATH": f"{script.parent}:{os.environ['PATH']}"}
        if not on:
            self.variables |= {"MOBY_DISABLE_PIGZ": "1", "CONTAINERD_DISABLE_PIGZ": "1"}

    @property
    def used(self) -> int:
        """How often it was run."""
        return len(self._used.read_text()) if self._used.exists() else 0

    @staticmethod
    def expected(compression: str, *, on: bool) -> int:
        """Return how often it must be run: the base is compressed in each of the two."""
        return {"gzip": 6, "none": 1}[compression] if on else 0


@READERS
def test_containerd_unpacks_it(
    compression: str,
    unpigz: bool,
    made: dict[str, Made],
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    engines.need("ctr", "dockerd", "unpigz")
    image = made[compression]
    packed = pack(image, tmp_path / "packed.tar")
    reader = Unpigz(tmp_path, on=unpigz)
    with engines.docker(tmp_path_factory.mktemp("d"), **reader.variables) as daemon:
        printed = daemon.ctr("image", "import", "--base-name", "image", packed)
        assert printed.startswith(f"unpacking image:toy ({image.digest})...done")
        _, line = daemon.ctr("image", "list").splitlines()
        assert line.split()[0] == "image:toy"
        assert line.split()[2] == image.digest
    assert reader.used == Unpigz.expected(compression, on=unpigz)


@READERS
def test_docker_pulls_and_runs_it(
    compression: str,
    unpigz: bool,
    made: dict[str, Made],
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    engines.need("dockerd", "docker", "docker-registry", "skopeo", "unpigz")
    image = made[compression]
    reader = Unpigz(tmp_path, on=unpigz)
    with (
        engines.registry(tmp_path / "registry") as address,
        engines.docker(tmp_path_factory.mktemp("d"), **reader.variables) as daemon,
    ):
        # without the first option, skopeo compresses what is not compressed
        push = ("copy", "--preserve-digests", "--dest-tls-verify=false")
        skopeo(tmp_path, *push, f"oci:{image.layout}:toy", f"docker://{address}/toy:1")
        assert inspect(f"docker://{address}/toy:1", tmp_path) == image.digest
        name = f"{address}/toy@{image.digest}"
        assert f"\nDigest: {image.digest}\n" in daemon.docker("pull", name)
        options = ("--rm", "--network", "none")
        printed = daemon.docker("run", "--read-only", *options, name, "toy", "/results/new")
        assert said(printed) == (expected("/results/new"), "written 10001")
        printed = daemon.docker("run", *options, name, "toy")
        assert said(printed) == (expected(fault="PermissionError"), "")
    assert reader.used == Unpigz.expected(compression, on=unpigz)


def said(printed: str) -> tuple[Any, str]:
    """Split what the program prints: what it saw, and what it could write."""
    seen, _, written = printed.partition("\n")
    return json.loads(seen), written.strip()


def skopeo(home: Path, *arguments: str) -> str:
    return engines.run("skopeo", *arguments, home=home).strip()


def inspect(name: str, home: Path) -> str:
    return skopeo(home, "inspect", "--tls-verify=false", "--format", "{{.Digest}}", name)


def blob(image: Made, digest: str) -> Path:
    return image.layout / "blobs" / "sha256" / digest.removeprefix("sha256:")


def read(image: Made, digest: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(blob(image, digest).read_bytes())
    return document


def pack(image: Made, path: Path) -> Path:
    """Pack a layout into an archive."""
    with tarfile.open(path, "w") as archive:
        archive.add(image.layout, ".")
    return path


def other(image: Made, layout: Path) -> Made:
    """Copy an image whose configuration names two of its layers in the wrong order."""
    shutil.copytree(image.layout, layout, copy_function=os.link)
    index = json.loads((layout / "index.json").read_bytes())
    manifest = read(image, image.digest)
    config = read(image, manifest["config"]["digest"])
    names = config["rootfs"]["diff_ids"]
    names[-1], names[-2] = names[-2], names[-1]
    for document, place in ((config, manifest["config"]), (manifest, index["manifests"][0])):
        data = json.dumps(document).encode()
        digest = hashlib.sha256(data).hexdigest()
        (layout / "blobs" / "sha256" / digest).write_bytes(data)
        place |= {"digest": f"sha256:{digest}", "size": len(data)}
    (layout / "index.json").unlink()  # a link to that of the image
    (layout / "index.json").write_text(json.dumps(index))
    return Made(layout, index["manifests"][0]["digest"])
