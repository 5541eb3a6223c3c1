"""Images of real environments, run for real: gigabytes, minutes. Run by ``make test-large``."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from envbuild.catalog.project import Project
from envbuild.lock import debian
from tests import projects
from tests.conftest import Envbuild
from tests.image import engines
from tests.servers import SimpleIndex

HERE = Project(Path(__file__).parents[2])
# Debian's Python, which is what can be had everywhere
PYTHON = ("--interpreter", "debian")
MINOR = "3.11"

pytestmark = pytest.mark.large


def test_core_does_in_an_image_what_it_must_do(tmp_path: Path, envbuild: Envbuild) -> None:
    engines.need("umoci", "runc")
    out, results = tmp_path / "out", tmp_path / "results"
    results.mkdir()
    folders = ["-o", str(out), "--wheelhouse", str(tmp_path / "wheelhouse"), "--no-cache"]
    done = envbuild("image", "core", *PYTHON, *folders, cwd=HERE.folder)
    assert done.code == 0, done.err

    checks = HERE.environment("core").checks
    program = f"import os, {', '.join(checks.imports)}; print(os.getuid())"
    commands = [("python", "-c", program), *checks.commands]
    printed = engines.runc(out, "core", tmp_path / "bundle", results, *commands).splitlines()
    assert printed[0] == "10001"
    assert len(printed) == len(commands), printed


def test_torch_multiplies_matrices_in_an_image(tmp_path: Path, envbuild: Envbuild) -> None:
    engines.need("umoci", "runc")
    index, out, results = tmp_path / "index", tmp_path / "out", tmp_path / "results"
    results.mkdir()
    # the build for CPUs is on no index that uv would ask; pip is told where it is
    options = ["--quiet", "--only-binary", ":all:", "--python-version", MINOR]
    for minor in range(28, 16, -1):
        options += ["--platform", f"manylinux_2_{minor}_x86_64"]
    options += ["--platform", "manylinux2014_x86_64", "--dest", str(index)]
    pip = [sys.executable, "-m", "pip", "download", *options, "torch==2.13.0+cpu", "numpy"]
    subprocess.run(pip, check=True)

    declared = projects.environment(
        "torch==2.13.0+cpu", "numpy", interval=">=3.11.2,<3.12", python="3.11.17"
    )
    toy = projects.project(tmp_path / "toy", {"torch": declared}, {"local": projects.LOCAL})
    pins = debian.pins_file(toy)
    pins.parent.mkdir()
    shutil.copyfile(debian.pins_file(HERE), pins)
    with SimpleIndex(index) as server:
        settings = {"UV_DEFAULT_INDEX": server.url, "UV_CACHE_DIR": str(tmp_path / "uv")}
        for command in (
            ["lock", "torch"],
            ["image", "torch", *PYTHON, "-o", str(out), "--no-cache", "--verify-record"],
        ):
            done = envbuild(*command, cwd=toy.folder, env=settings)
            assert done.code == 0, done.err

    program = """\
import numpy, os, torch
generator = torch.Generator().manual_seed(1)
a, b = torch.randn(2, 300, 300, dtype=torch.float64, generator=generator)
error = numpy.abs((a @ b).numpy() - a.numpy() @ b.numpy()).max()
torch.save(a @ b, "product.pt")
print(os.getuid(), torch.__version__, error < 1e-9)
"""
    run = ("python", "-c", program)
    printed = engines.runc(out, "torch", tmp_path / "bundle", results, run)
    assert printed == "10001 2.13.0+cpu True\n"
    assert [path.name for path in results.iterdir()] == ["product.pt"]
