"""Pure-Python sdists: built offline with pinned requirements into wheels of one form.

The bytes of a wheel that a build backend writes depend on the machine: on the order of its
folders, on the umask and on the compressor of its Python. So the files are taken from it and
written anew, sorted, stored and with fixed times and modes; what remains is a function of the sdist
and of its build requirements, and its hash can stand in a lock.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

from envbuild import process, uvtool
from envbuild.errors import StepError

# 1980-01-01, the oldest time that a zip can hold
SOURCE_DATE_EPOCH = "315532800"
_TIME = (1980, 1, 1, 0, 0, 0)


def build(
    sdist: Path, requires: Sequence[Path], *, python: Path, folder: Path, environment: str
) -> Path:
    """Build a pure-Python sdist without network, its build requirements at hand.

    Args:
        sdist: the archive, already verified.
        requires: the wheels of its build requirements, already verified.
        python: the interpreter that runs its build backend.
        folder: where the wheel is put.
        environment: for whom, in messages.

    Returns:
        The wheel, in canonical form.

    Raises:
        StepError: the build failed, or gave a wheel that is not pure Python.
    """
    doing = f"building {sdist.name} for {environment}"
    with tempfile.TemporaryDirectory(prefix="envbuild-sdist-") as name:
        work = Path(name)
        links = work / "requires"
        links.mkdir()
        for wheel in requires:
            (links / wheel.name).symlink_to(wheel.absolute())
        process.run(
            [
                *(uvtool.executable(), "build", "--wheel", "--out-dir", work / "out"),
                *("--no-config", "--no-index", "--find-links", links, "--offline"),
                *("--cache-dir", work / "cache", "--python", python, sdist.absolute()),
            ],
            doing=doing,
            cwd=work,
            env=uvtool.environment(
                extra={
                    "SOURCE_DATE_EPOCH": SOURCE_DATE_EPOCH,
                    "PYTHONHASHSEED": "0",
                    "TZ": "UTC",
                    "UV_CACHE_DIR": str(work / "cache"),
                }
            ),
            mend="see what the build said; its requirements are the table [build.NAME]",
        )
        (wheel,) = (work / "out").glob("*.whl")
        if not wheel.name.endswith("-none-any.whl"):
            raise StepError(
                f"{doing} gave a wheel that is not pure Python",
                expected="a wheel for any platform",
                found=wheel.name,
                mend='declare it with kind = "cuda", as a build on the target system',
            )
        target = folder / wheel.name
        target.write_bytes(canonical(wheel.read_bytes()))
        return target


def canonical(wheel: bytes) -> bytes:
    """Write a wheel anew in canonical form (PEP 427).

    Entries are sorted, the ``.dist-info`` last and its RECORD at the very end; nothing is
    compressed, times are 1980-01-01, modes 0644 or 0755.

    Args:
        wheel: a wheel as a build backend wrote it.
    """
    with zipfile.ZipFile(io.BytesIO(wheel)) as source:
        entries = {
            info.filename: (source.read(info), info.external_attr >> 16)
            for info in source.infolist()
            if not info.is_dir()
        }
    (record,) = (name for name in entries if _is_record(name))
    del entries[record]
    info_folder = record.partition("/")[0] + "/"
    names = sorted(entries, key=lambda name: (name.startswith(info_folder), name))
    output = io.BytesIO()
    with zipfile.ZipFile(output, "w", zipfile.ZIP_STORED) as target:
        for name in names:
            content, mode = entries[name]
            _write(target, name, content, executable=bool(mode & 0o111))
        _write(target, record, _record(entries, names, record), executable=False)
    return output.getvalue()


def _is_record(name: str) -> bool:
    folder, _, file = name.partition("/")
    return folder.endswith(".dist-info") and file == "RECORD"


def _write(target: zipfile.ZipFile, name: str, content: bytes, *, executable: bool) -> None:
    info = zipfile.ZipInfo(name, _TIME)
    info.create_system = 3  # Unix, which the modes below need
    info.external_attr = (0o100755 if executable else 0o100644) << 16
    target.writestr(info, content)


def _record(entries: dict[str, tuple[bytes, int]], names: Sequence[str], record: str) -> bytes:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    for name in names:
        content = entries[name][0]
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        writer.writerow((name, f"sha256={digest}", len(content)))
    writer.writerow((record, "", ""))
    return text.getvalue().encode()
