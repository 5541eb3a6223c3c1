"""A build backend (PEP 517, PEP 660) of a few lines, as unsteady as real ones are.

Its wheels differ from run to run in times, order and compression, so that a test that needs equal
bytes proves that envbuild makes them equal.
"""

from __future__ import annotations

from pathlib import Path

from tests import wheels

NAME = "toybackend"

SOURCE = """\
import base64, hashlib, os, pathlib, random, time, tomllib, zipfile


def _project():
    return tomllib.loads(pathlib.Path("pyproject.toml").read_text())["project"]


def _write(folder, files):
    project = _project()
    stem = f"{project['name'].replace('-', '_')}-{project['version']}"
    info = f"{stem}.dist-info"
    lines = [f"Metadata-Version: 2.1", f"Name: {project['name']}", f"Version: {project['version']}"]
    lines += [f"Requires-Dist: {text}" for text in project.get("dependencies", [])]
    for extra, texts in project.get("optional-dependencies", {}).items():
        lines += [f"Provides-Extra: {extra}"]
        lines += [f"Requires-Dist: {text}; extra == '{extra}'" for text in texts]
    files[f"{info}/METADATA"] = "\\n".join(lines) + "\\n"
    files[f"{info}/WHEEL"] = "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n"
    rows = []
    for name, text in files.items():
        digest = hashlib.sha256(text.encode()).digest()
        encoded = base64.urlsafe_b64encode(digest).decode().rstrip("=")
        rows.append(f"{name},sha256={encoded},{len(text.encode())}")
    random.SystemRandom().shuffle(rows)
    files[f"{info}/RECORD"] = "\\n".join([*rows, f"{info}/RECORD,,"]) + "\\n"
    names = list(files)
    random.SystemRandom().shuffle(names)
    file = f"{stem}-py3-none-any.whl"
    with zipfile.ZipFile(os.path.join(folder, file), "w") as target:
        for name in names:
            stamp = time.localtime(1_000_000_000 + random.SystemRandom().randrange(10**8))[:6]
            entry = zipfile.ZipInfo(name, stamp)
            entry.external_attr = random.SystemRandom().choice([0o600, 0o664]) << 16
            target.writestr(entry, files[name])
    return file


def build_wheel(folder, config_settings=None, metadata_directory=None):
    return _write(folder, {path.name: path.read_text() for path in pathlib.Path(".").glob("*.py")})


def build_editable(folder, config_settings=None, metadata_directory=None):
    project = _project()
    line = project.get("urls", {}).get("path", os.getcwd())
    return _write(folder, {f"__editable__.{project['name']}.pth": line + "\\n"})
"""

PYPROJECT = """\
[build-system]
requires = ["toybackend"]
build-backend = "toybackend"

[project]
name = "{name}"
version = "{version}"
{more}
"""


def wheel(folder: Path) -> Path:
    """Write the backend's own wheel."""
    return wheels.make_wheel(folder, NAME, "1", files={f"{NAME}.py": SOURCE})


def sdist(folder: Path, name: str, version: str, *, source: str = "X = 1\n") -> Path:
    """Write an sdist that the backend builds."""
    return wheels.make_sdist(
        folder,
        name,
        version,
        files={f"{name.replace('-', '_')}.py": source},
        pyproject=PYPROJECT.format(name=name, version=version, more=""),
    )


def project(folder: Path, name: str, *, more: str = "") -> Path:
    """Lay out a project that the backend installs in editable form."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "pyproject.toml").write_text(PYPROJECT.format(name=name, version="1", more=more))
    (folder / f"{name.replace('-', '_')}.py").write_text("WHERE = __file__\n")
    return folder
