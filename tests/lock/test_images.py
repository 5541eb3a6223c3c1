from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from envbuild.catalog.project import Project
from envbuild.errors import InputError
from envbuild.lock import images
from envbuild.lock.images import Built, Expected

ONE = Expected(
    "core",
    "managed",
    "debian",
    "gzip",
    "1" * 64,
    "sha256:" + "2" * 64,
    (("sha256:" + "3" * 64, "Debian base (9 packages)"), ("sha256:" + "4" * 64, "six-1.0")),
)
TWO = Expected(
    "gpu",
    "none",
    "sha256:" + "5" * 64,
    "none",
    "6" * 64,
    "sha256:" + "7" * 64,
    (),
    (Built("flash-attn", "flash_attn-2.8-cp311-cp311-linux_x86_64.whl", 10, "8" * 64),),
)
TEXT = f"""\
# Written by `envbuild image --record`; `envbuild image --check` builds them again.
schema = 1

[[images]]
environment = "core"
interpreter = "managed"
base = "debian"
compression = "gzip"
inputs = "{"1" * 64}"
digest = "sha256:{"2" * 64}"
layers = [
    ["sha256:{"3" * 64}", "Debian base (9 packages)"],
    ["sha256:{"4" * 64}", "six-1.0"],
]

[[images]]
environment = "gpu"
interpreter = "none"
base = "sha256:{"5" * 64}"
compression = "none"
inputs = "{"6" * 64}"
digest = "sha256:{"7" * 64}"
layers = [
]
# not pinned by the lock alone: wheels that were built from source
built = [
    {{ project = "flash-attn", file = "flash_attn-2.8-cp311-cp311-linux_x86_64.whl", size = 10, \
sha256 = "{"8" * 64}" }},
]
"""


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


def test_the_canonical_form_reads_the_same(tmp_path: Path) -> None:
    path = tmp_path / "images.toml"
    path.write_bytes(images.serialize([ONE, TWO]))
    assert path.read_text() == TEXT
    assert images.read(path) == [ONE, TWO]
    assert images.read(tmp_path / "none.toml") == []
    path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    assert images.read(path) == [ONE, TWO]


def test_whatever_a_file_is_called_it_reads_the_same(tmp_path: Path) -> None:
    wheel = Built("x", 'x-1-py3-none-any"\\\t\x7fü.whl', 1, "8" * 64)
    odd = msgspec.structs.replace(TWO, layers=(("sha256:" + "3" * 64, wheel.file),), built=(wheel,))
    path = tmp_path / "images.toml"
    path.write_bytes(images.serialize([odd]))
    assert images.read(path) == [odd]
    assert wheel.artifact.project == "x"
    assert images.built(wheel.artifact) == wheel


MEND = (
    "  mend: restore the file, or remove it and record the images anew: "
    "`envbuild image --record core`"
)
DIGEST = "sha256: and 64 lower-case hexadecimal digits"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "schema = 1",
            "schema = 2",
            "schema: not a version that this envbuild reads\n  expected: 1\n  found: 2\n"
            "  mend: use the envbuild that wrote it, or remove the file and record the images anew",
        ),
        (
            'compression = "gzip"',
            'compression = "zstd"',
            "images[0].compression: not a value that it can have\n"
            "  expected: gzip or none\n  found: 'zstd'",
        ),
        (
            'interpreter = "managed"',
            'interpreter = "conda"',
            "images[0].interpreter: not a value that it can have\n"
            "  expected: debian or managed or none\n  found: 'conda'",
        ),
        (
            'base = "debian"',
            'base = "ubuntu:latest"',
            f"images[0]: base: wrong value\n  expected: debian, scratch, or {DIGEST}\n"
            f"  found: 'ubuntu:latest'\n{MEND}",
        ),
        (
            f'inputs = "{"1" * 64}"',
            'inputs = ""',
            "images[0]: inputs: wrong value\n  expected: 64 lower-case hexadecimal digits\n"
            f"  found: ''\n{MEND}",
        ),
        (
            f'digest = "sha256:{"2" * 64}"',
            f'digest = "{"2" * 64}"',
            f"images[0]: digest: wrong value\n  expected: {DIGEST}\n  found: '{'2' * 64}'\n{MEND}",
        ),
        (
            f'["sha256:{"4" * 64}"',
            '["sha256:4"',
            f"images[0]: layers[1]: wrong value\n  expected: {DIGEST}\n  found: 'sha256:4'\n{MEND}",
        ),
        (
            f'sha256 = "{"8" * 64}"',
            'sha256 = "8"',
            "images[1]: built[0].sha256: wrong value\n"
            "  expected: 64 lower-case hexadecimal digits\n  found: '8'\n"
            + MEND.replace("core", "gpu"),
        ),
        ('environment = "core"\n', "", "images[0].environment: missing key"),
        (
            'environment = "core"',
            'environment = "zeta"',
            "images: not sorted, each once\n  mend: restore it from version control",
        ),
        (
            'compression = "gzip"',
            'compresion = "gzip"',
            "images[0].compresion: unknown key\n  expected: did you mean compression?",
        ),
    ],
)
def test_refuses_images_that_are_none(tmp_path: Path, old: str, new: str, message: str) -> None:
    path = tmp_path / "images.toml"
    assert old in TEXT
    path.write_text(TEXT.replace(old, new, 1))
    with pytest.raises(InputError) as caught:
        images.read(path)
    text = str(caught.value)
    assert text == f"{path}: {message}"


def test_two_images_of_one_kind(tmp_path: Path) -> None:
    path = tmp_path / "images.toml"
    path.write_bytes(images.serialize([ONE, ONE]))
    with pytest.raises(InputError, match="images: not sorted, each once"):
        images.read(path)


def test_an_image_takes_the_place_of_the_one_of_its_kind(project: Project) -> None:
    images.write(project, TWO)
    images.write(project, ONE)
    assert images.file(project).read_text() == TEXT
    again = msgspec.structs.replace(ONE, digest="sha256:" + "9" * 64)
    images.write(project, again)
    assert images.read(images.file(project)) == [again, TWO]
    other = msgspec.structs.replace(ONE, compression="none")
    images.write(project, other)
    assert images.read(images.file(project)) == [again, other, TWO]


def test_what_cannot_be_read_is_not_written_over(project: Project) -> None:
    path = images.file(project)
    path.parent.mkdir()
    path.write_text("schema = 2\n")
    with pytest.raises(InputError):
        images.write(project, ONE)
    assert path.read_text() == "schema = 2\n"
