"""Looking at single files: odd ones, large ones, and what cannot be read."""

from __future__ import annotations

import hashlib
import os
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from envbuild.findings import Finding
from envbuild.relocation.look import Looker, Seen
from envbuild.relocation.subject import Contents, EntryPoint, Expected, Subject
from tests import projects
from tests.relocation.corpus import subject

PACKAGES = f"lib/python{projects.MINOR}/site-packages"


def look(prefix: Path, path: str, held: Subject | None = None, **files: Expected) -> Seen:
    return at(Looker(held or subject(prefix), dict(files), {}, owner=os.geteuid()), path)


def at(looker: Looker, path: str) -> Seen:
    seen = looker.look(path)
    assert seen is not None
    return seen


def write(path: Path, content: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("size", [0, 1, 4 << 20, (4 << 20) + 1, 9 << 20])
@pytest.mark.parametrize("algorithm", ["sha256", "sha384", "sha512"])
def test_files_of_any_size(tmp_path: Path, size: int, algorithm: str) -> None:
    content = b"x" * size
    write(tmp_path / "f", content)
    right = hashlib.new(algorithm, content).hexdigest()
    seen = look(tmp_path, "f", f=Expected("w.whl", algorithm, right, size))
    assert (seen.findings, seen.size) == ((), size)
    assert seen.sha256 == hashlib.sha256(content).hexdigest()
    write(tmp_path / "f", content + b"y")
    (one,) = look(tmp_path, "f", f=Expected("w.whl", algorithm, right, size)).findings
    name = algorithm.upper().replace("SHA", "SHA-")
    assert (one.code, one.message) == ("M002", "is not as w.whl has it")
    assert one.expected == f"{name} {right}"
    assert one.found == f"{name} {hashlib.new(algorithm, content + b'y').hexdigest()}"
    assert one.mend == "make it anew at this path: an environment cannot be moved or copied"


def test_links_and_folders(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir(mode=0o755)
    (tmp_path / "link").symlink_to("nowhere at all")
    seen = look(tmp_path, "link")
    assert (seen.findings, seen.size) == ((), len("nowhere at all"))
    assert seen.sha256 == hashlib.sha256(b"nowhere at all").hexdigest()
    assert stat.S_ISLNK(seen.mode)
    folder = look(tmp_path, "folder")
    assert (folder.findings, folder.sha256, folder.size) == ((), None, 0)


def test_what_is_neither(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe", 0o644)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(os.path.relpath(tmp_path / "socket"))
    for name, kind in (("pipe", "p"), ("socket", "s")):
        (one,) = look(tmp_path, name).findings
        assert (one.code, one.severity) == ("M002", "error")
        assert one.message == "is neither a file nor a folder nor a link"
        assert (one.found or "").startswith(kind)


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    """In a process of its own that root's right to read everything is taken from."""
    write(tmp_path / "f", b"x").chmod(0o000)
    code = (
        "import os, sys\n"
        "from envbuild.relocation.look import Looker\n"
        "from tests.relocation.corpus import subject\n"
        "looker = Looker(subject(sys.argv[1]), {}, {}, owner=os.geteuid())\n"
        "for one in looker.look('f').findings:\n"
        "    print(one.code, one.severity, one.message, one.found, sep='|')\n"
    )
    taken = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"]
    done = subprocess.run(
        [*(taken if os.geteuid() == 0 else []), sys.executable, "-c", code, tmp_path],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == (
        "P002|error|its mode keeps its owner out|0000\n"
        "M002|error|cannot be read: Permission denied|----------\n"
    )


def test_names_that_are_no_text(tmp_path: Path) -> None:
    name = os.fsdecode(b"\xff\n\xfe.py")
    write(tmp_path / name, b"X = 1\n")
    seen = look(tmp_path, name)
    assert (seen.path, seen.findings) == (name, ())


def test_scripts_of_entry_points(tmp_path: Path) -> None:
    body = b"import sys\nfrom tool import main\nsys.exit(main())\n"
    script = write(tmp_path / "bin/tool", f"#!{tmp_path}/bin/python\n".encode() + body)
    script.chmod(0o755)
    points = {"bin/tool": EntryPoint("w.whl", "tool", "main")}
    looker = Looker(subject(tmp_path), {}, points, owner=os.geteuid())
    assert at(looker, "bin/tool").findings == ()
    script.write_bytes(script.read_bytes() + b"import os\n")
    (one,) = at(looker, "bin/tool").findings
    assert one.message == (
        "is not what an installer writes for an entry point: it runs `import os`"
    )
    assert one.expected == "a call of tool:main, by w.whl"
    # an ELF in its place is no Python
    script.write_bytes(b"\x7fELF" + b"\0" * 100)
    assert [one.message for one in at(looker, "bin/tool").findings] == [
        "is not what an installer writes for an entry point: it is not Python"
    ]


def test_scripts_whose_first_line_is_replaced(tmp_path: Path) -> None:
    body = b"print(1)\n"
    expected = Expected("w.whl", "sha256", hashlib.sha256(body).hexdigest(), body=True)
    for first in (
        f"#!{tmp_path}/bin/python\n",
        f"#!/bin/sh\n'''exec' {tmp_path}/bin/python \"$0\" \"$@\"\n' '''\n",
    ):
        script = write(tmp_path / "bin/run", first.encode() + body)
        script.chmod(0o755)
        looker = Looker(subject(tmp_path), {"bin/run": expected}, {}, owner=os.geteuid())
        assert at(looker, "bin/run").findings == ()
        script.write_bytes(first.encode() + body + b"import os\n")
        (one,) = at(looker, "bin/run").findings
        assert (one.code, one.message) == ("M002", "is not as w.whl has it")


def test_what_the_receipt_says_of_files(tmp_path: Path) -> None:
    write(tmp_path / "f", b"x")
    written = {"f": hashlib.sha256(b"x").hexdigest()}
    held = subject(tmp_path, contents=Contents((), {}, {}, written))
    assert look(tmp_path, "f", held).findings == ()
    write(tmp_path / "f", b"y")
    (one,) = look(tmp_path, "f", held).findings
    assert (one.code, one.message) == ("M002", "was changed since the prefix was created")
    assert one.expected == f"SHA-256 {written['f']}"
    assert one.found == f"SHA-256 {hashlib.sha256(b'y').hexdigest()}"


def test_files_as_their_wheel_has_them_may_name_any_path(tmp_path: Path) -> None:
    content = b"see /x/other\n"
    write(tmp_path / "f", content)
    held = subject(tmp_path, others={"/x/other": "other"}, contents=Contents((), {}, {}))
    (one,) = look(tmp_path, "f", held).findings
    assert (one.code, one.where) == ("T004", f"{tmp_path}/f:1")
    expected = Expected("w.whl", "sha256", hashlib.sha256(content).hexdigest())
    assert look(tmp_path, "f", held, f=expected).findings == ()


def test_hard_links(tmp_path: Path) -> None:
    write(tmp_path / "f", b"x")
    assert look(tmp_path, "f").node is None
    (tmp_path / "g").hardlink_to(tmp_path / "f")
    status = (tmp_path / "f").stat()
    assert look(tmp_path, "f").node == (status.st_dev, status.st_ino, 2)


def test_byte_code_that_a_wheel_brings_is_compiled_anew(tmp_path: Path) -> None:
    """It then names its source here; what is not compiled anew is as the wheel has it."""
    path = "lib/python3.11/site-packages/p/__pycache__/m.cpython-311.pyc"
    theirs = Expected("w.whl", "sha256", hashlib.sha256(b"theirs").hexdigest())
    looker = Looker(subject(tmp_path), {path: theirs}, {}, owner=os.geteuid())
    write(tmp_path / path, b"theirs")
    held = subject(tmp_path, contents=Contents((), {path: theirs}, {}))
    published = Looker(held, {path: theirs}, {}, owner=os.geteuid())
    assert at(published, path).findings == ()
    source = f"{tmp_path}/lib/python3.11/site-packages/p/m.py"
    write(tmp_path / path, b"\0" * 16 + source.encode())
    assert at(looker, path).findings == ()
    write(tmp_path / path, b"\0" * 16 + b"/elsewhere/p/m.py")
    assert [one.code for one in at(looker, path).findings] == ["T005"]


def test_what_is_gone_is_passed_over(tmp_path: Path) -> None:
    looker = Looker(subject(tmp_path), {}, {}, owner=os.geteuid())
    assert looker.look("gone") is None


def test_a_mode_that_the_receipt_knows(tmp_path: Path) -> None:
    write(tmp_path / "plain", b"x")
    write(tmp_path / "program", b"x").chmod(0o755)
    digest = hashlib.sha256(b"x").hexdigest()
    contents = Contents((), {}, {}, {"plain": digest, "program": digest}, {"program": 0o755})
    held = subject(tmp_path, contents=contents)
    assert look(tmp_path, "plain", held).findings == ()
    assert look(tmp_path, "program", held).findings == ()
    (tmp_path / "plain").chmod(0o664)
    (one,) = look(tmp_path, "plain", held).findings
    assert one == Finding(
        "P002",
        "error",
        f"{tmp_path}/plain",
        "has another mode than when the prefix was created",
        "0644",
        "0664",
        f"chmod 0644 {tmp_path}/plain",
    )


def test_a_program_with_rights_of_its_own(tmp_path: Path) -> None:
    write(tmp_path / "bin/ping", b"#!/bin/sh\n").chmod(0o4755)
    (one,) = look(tmp_path, "bin/ping").findings
    assert (one.code, one.severity, one.message) == (
        "P002",
        "error",
        "runs with the rights of its owner or group",
    )
