"""Whether what a Debian archive announces is signed by whom it should be."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from pathlib import Path

from envbuild import process
from envbuild.errors import InputError, StepError

KEYRING = "ENVBUILD_DEBIAN_KEYRING"
_DEBIAN = "/usr/share/keyrings/debian-archive-keyring.gpg"


def keyring() -> tuple[Path | None, list[str]]:
    """Return the keyring that signatures are verified with: ENVBUILD_DEBIAN_KEYRING, or Debian's.

    Returns:
        Its path; or None if nothing is verified, with a line that says why.

    Raises:
        InputError: the variable names no file. Where it is empty, nothing is verified.
    """
    asked = os.environ.get(KEYRING)
    if asked == "":
        return None, [f"the mirror's signature was not verified: {KEYRING} is empty"]
    path = Path(asked or _DEBIAN).absolute()
    if asked is not None and not path.is_file():
        raise InputError("no keyring", where=KEYRING, expected="the path of a file", found=path)
    for there, what in ((shutil.which("gpgv"), "gpgv"), (path.is_file(), path)):
        if not there:
            return None, [f"the mirror's signature was not verified: {what} is not there"]
    return path, []


def verified(announced: bytes, where: str, keyring: Path | None) -> str:
    """Return what an InRelease says: only what is signed, if that is to be verified.

    Args:
        announced: the file.
        where: its URL without credentials, for messages.
        keyring: as the function of that name returns it.

    Raises:
        StepError: no key of the keyring signed it, or it was changed since.
    """
    if keyring is None:
        return announced.decode(errors="replace")
    with tempfile.TemporaryDirectory(prefix="envbuild-debian-") as folder:
        signed, plain = Path(folder) / "InRelease", Path(folder) / "Release"
        signed.write_bytes(announced)
        # gpgv fails with 2 where one of several keys is unknown; which it is, its status says
        script = 'gpgv --status-fd 1 --keyring "$1" --output "$2" "$3" || test $? -le 2'
        done = process.run(
            ["sh", "-c", script, "gpgv", keyring, plain, signed],
            doing="verifying the mirror's signature",
            timeout=60,
        )
        status = re.findall(r"^\[GNUPG:\] ([A-Z]+)", done.stdout, re.MULTILINE)
        if "GOODSIG" in status and "BADSIG" not in status and plain.is_file():
            return plain.read_text(errors="replace")
    raise StepError(
        "the mirror's signature is not good",
        where=where,
        expected=f"one by a key of {keyring}",
        mend=f"use another mirror; for one with keys of its own set {KEYRING} to the path of its "
        "keyring, for one without to nothing",
        detail=done.stderr,
    )
