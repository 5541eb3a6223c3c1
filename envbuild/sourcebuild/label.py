"""A built wheel's local version, which says what it was built for (PEP 440)."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Sequence
from pathlib import Path

from packaging.utils import parse_wheel_filename
from packaging.version import Version

from envbuild.errors import StepError
from envbuild.sourcebuild import pure


def label(cuda: tuple[int, int], torch: str | None, architectures: Sequence[str]) -> str:
    """Write what a wheel was built for, such as ``cu129torch2.8sm90``.

    Args:
        cuda: the version of nvcc.
        torch: the version of torch that it was compiled against, if any.
        architectures: such as ``90``.
    """
    against = "" if torch is None else "torch" + ".".join(map(str, Version(torch).release[:2]))
    return f"cu{cuda[0]}{cuda[1]}{against}sm{'.'.join(architectures)}"


def relabel(wheel: Path, local: str, folder: Path) -> Path:
    """Write a wheel anew, in canonical form, with a local version.

    Args:
        wheel: as a build backend made it.
        local: the local version; one that is there already is replaced.
        folder: where the new one is put.

    Raises:
        StepError: it is a wheel of pure Python, or its parts do not agree.
    """
    _, version, _, _ = parse_wheel_filename(wheel.name)
    # as the file spells it, which its folders do, too
    name, spelled, *tags = wheel.name.removesuffix(".whl").split("-")
    if tags[-1] == "any":
        raise StepError(
            "the build gave a wheel of pure Python: it compiled nothing",
            where=wheel.name,
            expected="a wheel with compiled code",
            mend='see its log; a package without compiled code is declared with kind = "pure"',
        )
    labelled = f"{version.public}+{local}"
    before, after = f"{name}-{spelled}", f"{name}-{labelled}"
    output = io.BytesIO()
    with zipfile.ZipFile(wheel) as source, zipfile.ZipFile(output, "w") as target:
        for info in source.infolist():
            content = source.read(info)
            folder_name, slash, rest = info.filename.partition("/")
            for suffix in (".dist-info", ".data"):
                if folder_name == before + suffix:
                    info.filename = f"{after}{suffix}{slash}{rest}"
            if info.filename == f"{after}.dist-info/METADATA":
                content = _versioned(content, labelled, wheel.name)
            target.writestr(info, content)
    made = folder / f"{'-'.join((after, *tags))}.whl"
    made.write_bytes(pure.canonical(output.getvalue()))
    return made


def _versioned(metadata: bytes, version: str, wheel: str) -> bytes:
    head, blank, body = metadata.partition(b"\n\n")
    lines = head.split(b"\n")
    places = [at for at, line in enumerate(lines) if line.lower().startswith(b"version:")]
    if len(places) != 1:
        raise StepError("its METADATA does not say one version", where=wheel)
    lines[places[0]] = f"Version: {version}".encode()
    return b"\n".join(lines) + blank + body
