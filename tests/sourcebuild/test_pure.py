from __future__ import annotations

import sys
import zipfile
from pathlib import Path

import pytest

from envbuild.artifacts import wheel as admission
from envbuild.digest import sha256_bytes
from envbuild.errors import StepError
from envbuild.sourcebuild import pure
from tests import backend, wheels


def build(tmp_path: Path, sdist: Path, out: str) -> Path:
    folder = tmp_path / out
    folder.mkdir()
    requires = [backend.wheel(tmp_path / "requires")]
    return pure.build(
        sdist, requires, python=Path(sys.executable), folder=folder, environment="toy"
    )


def test_two_builds_give_one_wheel(tmp_path: Path) -> None:
    sdist = backend.sdist(tmp_path, "old-one", "1.0")
    first, second = (build(tmp_path, sdist, out) for out in ("first", "second"))
    assert first.name == second.name == "old_one-1.0-py3-none-any.whl"
    assert first.read_bytes() == second.read_bytes()
    admitted = admission.scan(first)
    assert (admitted.name, admitted.version) == ("old-one", "1.0")


def test_the_form_is_sorted_stored_and_timeless(tmp_path: Path) -> None:
    made = wheels.make_wheel(
        tmp_path,
        "toy",
        "1",
        files={"toy/b.py": "B = 1\n", "toy/a.py": "A = 1\n", "zoo.py": ""},
        data={"scripts/run": "#!python\n"},
        modes={"toy/a.py": 0o600, "toy-1.data/scripts/run": 0o775},
    )
    data = pure.canonical(made.read_bytes())
    path = tmp_path / made.name
    path.write_bytes(data)
    admission.scan(path)
    with zipfile.ZipFile(path) as archive:
        infos = archive.infolist()
        record = archive.read("toy-1.dist-info/RECORD").decode()
    names = [info.filename for info in infos]
    assert names[:4] == ["toy-1.data/scripts/run", "toy/a.py", "toy/b.py", "zoo.py"]
    assert names[-1] == "toy-1.dist-info/RECORD"
    assert all(name.startswith("toy-1.dist-info/") for name in names[4:])
    assert {info.date_time for info in infos} == {(1980, 1, 1, 0, 0, 0)}
    assert {info.compress_type for info in infos} == {zipfile.ZIP_STORED}
    modes = {info.filename: info.external_attr >> 16 for info in infos}
    assert modes["toy-1.data/scripts/run"] == 0o100755
    assert set(modes.values()) == {0o100755, 0o100644}
    assert [line.partition(",")[0] for line in record.splitlines()] == names
    # whatever Python and zlib run this: the bytes are these
    assert sha256_bytes(data) == "8116f5f353dcae57c99225aae74a92a97c225c495a26ff656ec32a5e2cdad8cd"


def test_canonical_is_a_fixed_point(tmp_path: Path) -> None:
    made = wheels.make_wheel(tmp_path, "toy", "1").read_bytes()
    once = pure.canonical(made)
    assert once != made
    assert pure.canonical(once) == once


def test_a_wheel_with_compiled_code_is_refused(tmp_path: Path) -> None:
    source = backend.SOURCE.replace("py3-none-any", "cp311-cp311-linux_x86_64")
    requires = tmp_path / "requires"
    wheels.make_wheel(requires, backend.NAME, "1", files={f"{backend.NAME}.py": source})
    with pytest.raises(StepError) as caught:
        pure.build(
            backend.sdist(tmp_path, "old-one", "1.0"),
            list(requires.iterdir()),
            python=Path(sys.executable),
            folder=tmp_path,
            environment="toy",
        )
    assert str(caught.value) == (
        "building old_one-1.0.tar.gz for toy gave a wheel that is not pure Python\n"
        "  expected: a wheel for any platform\n"
        "  found: old_one-1.0-cp311-cp311-linux_x86_64.whl\n"
        '  mend: declare it with kind = "cuda", as a build on the target system'
    )


def test_a_build_sees_no_network_and_no_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET_TOKEN", "s3cret")
    monkeypatch.setenv("UV_DEFAULT_INDEX", "http://127.0.0.1:9/simple")
    source = "import os, sys\nsys.exit(f'seen: {sorted(os.environ)}')\n" + backend.SOURCE
    requires = tmp_path / "requires"
    wheels.make_wheel(requires, backend.NAME, "1", files={f"{backend.NAME}.py": source})
    with pytest.raises(StepError) as caught:
        pure.build(
            backend.sdist(tmp_path, "old-one", "1.0"),
            list(requires.iterdir()),
            python=Path(sys.executable),
            folder=tmp_path,
            environment="toy",
        )
    said = caught.value.detail or ""
    assert "SOURCE_DATE_EPOCH" in said
    assert "SECRET_TOKEN" not in said
    assert "UV_DEFAULT_INDEX" not in said


def test_missing_build_requirements_are_named(tmp_path: Path) -> None:
    with pytest.raises(StepError, match=r"building old_one-1\.0\.tar\.gz for toy failed") as caught:
        pure.build(
            backend.sdist(tmp_path, "old-one", "1.0"),
            [],
            python=Path(sys.executable),
            folder=tmp_path,
            environment="toy",
        )
    assert "toybackend" in (caught.value.detail or "")
