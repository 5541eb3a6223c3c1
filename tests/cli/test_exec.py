"""Running programs from prefixes, as a person and a job script do."""

from __future__ import annotations

import json
import math
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from envbuild import exclusion, leases, owner
from envbuild.catalog.project import Project
from envbuild.cli.main import cli
from envbuild.entry import plain_exec
from envbuild.prefix import journal, receipt, runnable, usage
from envbuild.prefix.journal import Journal
from envbuild.prefix.runnable import Request
from tests import projects, wheels
from tests.conftest import Envbuild, Result
from tests.servers import SimpleIndex

REPOSITORY = str(Path(__file__).parents[2])
ENVBUILD = [sys.executable, "-m", "envbuild"]
ALPHA = '[checks]\nimports = ["alpha"]\n'
# says that it runs, and goes on until its input ends
RUNS = ["python", "-c", "import sys; print('runs', flush=True); sys.stdin.read()"]


def lay_out(folder: Path) -> Project:
    """Lay out a project with the environment `toy` and the sites `local` and `strict`."""
    strict = 'summary = "strict"\nroot = "../strict"\ntemporary = ["tmp"]\nuv-cache = "uv"\n'
    toy = projects.environment("alpha", extra=ALPHA)
    return projects.project(folder, {"toy": toy}, {"local": projects.LOCAL, "strict": strict})


def run(
    arguments: Sequence[str], cwd: Path, *, env: dict[str, str] | None = None, stdin: str = ""
) -> Result:
    """Run any program as the `envbuild` fixture runs that one, with something to read."""
    done = subprocess.run(
        arguments,
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": REPOSITORY, **(env or {})},
        input=stdin,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return Result(done.returncode, done.stdout, done.stderr)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A project whose environment is built; the tests that share it change nothing."""
    folder = tmp_path_factory.mktemp("built")
    project = lay_out(folder / "project")
    (folder / "index").mkdir()
    wheels.make_wheel(folder / "index", "alpha", "1.0")
    with SimpleIndex(folder / "index") as index:
        env = {
            "UV_DEFAULT_INDEX": index.url,
            "UV_CACHE_DIR": str(folder / "uv-cache"),
            "UV_PYTHON_INSTALL_MIRROR": "http://127.0.0.1:9/none",
        }
        for command in ("lock", "create"):
            done = run([*ENVBUILD, command], project.folder, env=env)
            assert done.code == 0, done.err
    return project


@pytest.fixture
def changing(index: SimpleIndex, tmp_path: Path, envbuild: Envbuild) -> Project:
    """A project whose environment is built, for a test that builds it anew."""
    wheels.make_wheel(index.folder, "alpha", "1.0")
    wheels.make_wheel(index.folder, "beta", "1.0")
    project = lay_out(tmp_path / "project")
    for command in ("lock", "create"):
        done = envbuild(command, cwd=project.folder)
        assert done.code == 0, done.err
    return project


def bookkeeping(project: Project) -> Path:
    return project.folder / ".envs" / ".envbuild"


def users(project: Project) -> list[owner.Owner]:
    return leases.holders(usage.folder(bookkeeping(project), "toy"))


def relock(project: Project, envbuild: Envbuild, checks: str = "") -> None:
    """Add a package to the environment, so that its prefix is to be built anew."""
    text = projects.environment("alpha", "beta", extra=f"[checks]\n{checks}\n")
    project.environment_file("toy").write_text(text)
    done = envbuild("lock", cwd=project.folder)
    assert done.code == 0, done.err


@contextmanager
def started(project: Project, *words: str) -> Iterator[subprocess.Popen[str]]:
    """Start envbuild in a session of its own, with all its output in one pipe."""
    process = subprocess.Popen(
        [*ENVBUILD, *words],
        cwd=project.folder,
        env={**os.environ, "PYTHONPATH": REPOSITORY},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def read_until(process: subprocess.Popen[str], text: str) -> None:
    """Read lines until one has a text."""
    assert process.stdout is not None
    read = []
    for line in process.stdout:
        read.append(line)
        if text in line:
            return
    pytest.fail("".join(read))


def eventually(path: Path) -> None:
    for _ in range(600):
        if path.exists():
            return
        time.sleep(0.05)
    pytest.fail(f"{path} did not appear")


# -- reading the arguments


def by_click(arguments: list[str]) -> tuple[Path | None, Request]:
    """Read arguments as the command does that `envbuild --help` shows."""
    at = arguments.index("exec")
    with cli.make_context("envbuild", arguments[: at + 1]) as group:
        command = cli.get_command(group, "exec")
        assert command is not None
        with command.make_context("exec", arguments[at + 1 :], parent=group) as context:
            return group.params["project"], Request(**context.params)


@pytest.mark.parametrize(
    "words",
    [
        "exec toy -- python",
        "exec toy -- python -c 'print(\"a b\")' --site x -- --wait=1",
        "exec toy --site far --root DIR --user ann -- x",
        "exec --site=far --root=DIR --user=ann toy -- x",
        "exec --site far --site near toy -- x",
        "exec toy --site a=b --user= -- x",
        "exec toy --wait -- x",
        "exec --wait --site far toy -- x",
        "exec --wait toy -- x",
        "exec toy --wait=30 -- x",
        "exec --wait=0 toy -- x",
        "exec --wait=1.5 toy -- x",
        "exec --wait=inf toy -- x",
        "--project DIR exec toy -- exec",
        "--project=DIR exec exec -- x",
        "-v exec toy -- x",
        "exec toy --root missing -- x",
        "exec a=b -- x",
        "exec '' -- x",
        "exec toy -- ''",
        "exec toy -- --",
    ],
)
@pytest.mark.parametrize(
    "variables",
    [
        {},
        {"ENVBUILD_SITE": "there", "ENVBUILD_USER": "eve", "ENVBUILD_PROJECT": "DIR"},
        {"ENVBUILD_SITE": "", "ENVBUILD_USER": "", "ENVBUILD_PROJECT": ""},
    ],
)
def test_both_readings_of_the_arguments_agree(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str, variables: dict[str, str]
) -> None:
    (tmp_path / "DIR").mkdir()
    monkeypatch.chdir(tmp_path)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    arguments = shlex.split(words)
    plain = plain_exec(arguments, os.environ)
    assert plain is None or plain == by_click(arguments)
    unusual = {"-v", "missing", "--wait=inf", "--wait=1.5", "--user=", "''"}
    assert (plain is None) == (not unusual.isdisjoint(words.partition(" -- ")[0].split()))


@pytest.mark.parametrize(
    "words",
    [
        "",
        "create toy",
        "exec",
        "exec --help",
        "exec toy",
        "exec toy --",
        "exec -- python",
        "exec toy python -V",
        "exec toy python -- -V",
        "exec toy --help -- x",
        "exec toy --nonsense -- x",
        "exec toy --wait 30 -- x",
        "exec toy --wait=soon -- x",
        "exec toy --wait= -- x",
        "exec toy --wait=-1 -- x",
        "exec toy --site -- x",
        "exec toy --site= -- x",
        "exec toy --site --user -- x",
        "exec toy --root file -- x",
        "exec toy --project DIR -- x",
        "--site far exec toy -- x",
        "--project file exec toy -- x",
        "--version exec toy -- x",
        "create exec -- x",
        "-- exec toy",
    ],
)
def test_what_is_not_plain_is_left_to_click(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.chdir(tmp_path)
    assert plain_exec(shlex.split(words), {}) is None


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["exec"], "Error: Missing argument 'ENV'."),
        (["exec", "--", "python"], "Error: Missing argument 'ENV'."),
        (["exec", "toy"], "Error: The program goes after --, as in: ENV -- python -V"),
        (["exec", "toy", "--"], "Error: The program goes after --, as in: ENV -- python -V"),
        (["exec", "toy", "python"], "Error: The program goes after --, as in: ENV -- python -V"),
        (["exec", "toy", "python", "--", "x"], "Error: The program goes after --, as in: ENV -- p"),
        (["exec", "toy", "--nonsense", "--", "x"], "Error: No such option"),
    ],
)
def test_bad_usage(built: Project, envbuild: Envbuild, words: list[str], message: str) -> None:
    done = envbuild(*words, cwd=built.folder)
    assert done.code == 2
    assert "Usage: envbuild exec [OPTIONS] ENV -- CMD [ARG]...\n" in done.err
    assert message in done.err


def test_the_environment_is_completed(built: Project, envbuild: Envbuild) -> None:
    env = {
        "_ENVBUILD_COMPLETE": "bash_complete",
        "COMP_WORDS": "envbuild exec t",
        "COMP_CWORD": "2",
    }
    assert envbuild(cwd=built.folder, env=env).out == "plain,toy\n"


# -- what a program gets


def test_python_is_the_prefixs(built: Project, envbuild: Envbuild) -> None:
    prefix = built.folder / ".envs" / "toy"
    code = "import alpha, sys; print(sys.executable, sys.prefix, alpha.__file__)"
    expected = f"{prefix}/bin/python {prefix} {prefix}/lib/python{projects.MINOR}/site-packages/"
    for words in ([], ["-v"]):
        done = envbuild(*words, "exec", "toy", "--", "python", "-c", code, cwd=built.folder)
        assert (done.code, done.err) == (0, "")
        assert done.out == f"{expected}alpha.py\n"


def test_arguments_come_as_they_are(built: Project, envbuild: Envbuild) -> None:
    arguments = ["a b", "", "'", '"$HOME"', "--site", "-x", "--", "*", "line\nline", "\udcff", "ü"]
    code = "import json, sys; print(json.dumps(sys.argv[1:]))"
    words = ["exec", "toy", "--", "python", "-c", code, *arguments]
    for before in ([], ["-v"]):
        done = envbuild(*before, *words, cwd=built.folder)
        assert json.loads(done.out) == arguments


@pytest.mark.parametrize("code", ["", "raise SystemExit(7)", "import os; os.kill(os.getpid(), 15)"])
def test_it_ends_as_the_program_does(built: Project, code: str) -> None:
    program = ["-c", code]
    bare = run([f"{built.folder}/.envs/toy/bin/python", *program], built.folder)
    done = run([*ENVBUILD, "exec", "toy", "--", "python", *program], built.folder)
    assert done == bare


def test_what_comes_in_and_what_is_kept(built: Project, tmp_path: Path) -> None:
    """Standard input, signals that are ignored, the umask, the folder, and the environment."""
    script = 'cat; grep -E "^Sig(Ign|Blk)" /proc/self/status; umask; pwd; env | sort'
    prefix = built.folder / ".envs" / "toy"
    given = {"PATH": os.defpath, "PYTHONPATH": REPOSITORY, "X": "a b", "HOME": str(tmp_path)}
    expected = {
        "PATH": f"{prefix}/bin:{os.defpath}",
        "PYTHONNOUSERSITE": "1",
        "UV_PYTHON_INSTALL_DIR": f"{built.folder}/.envs/.envbuild/interpreters",
        "VIRTUAL_ENV": str(prefix),
        "X": "a b",
        "HOME": str(tmp_path),
    }

    def said(*words: str, env: dict[str, str]) -> str:
        return subprocess.run(
            [*words, "sh", "-c", script],
            cwd=built.folder,
            env=env,
            input="some text\n",
            capture_output=True,
            text=True,
            umask=0o027,
            check=True,
        ).stdout

    bare = said("/usr/bin/env", env=expected)
    for before in ([], ["-v"]):
        through = said(*ENVBUILD, *before, "exec", "toy", "--", env=given)
        assert through == bare
    assert bare.startswith("some text\n")
    assert "\n0027\n" in bare


def test_nothing_of_another_python_gets_in(built: Project, tmp_path: Path) -> None:
    (tmp_path / "alpha.py").write_text("raise SystemExit('the wrong one')\n")
    user_site = tmp_path / f"lib/python{projects.MINOR}/site-packages"
    user_site.mkdir(parents=True)
    (user_site / "usercustomize.py").write_text("raise SystemExit('of the user')\n")
    code = "import alpha, site, sys; print(site.ENABLE_USER_SITE, *sys.path, sep='\\n')"
    env = {"PYTHONUSERBASE": str(tmp_path), "PYTHONPATH": f"{tmp_path}:{REPOSITORY}"}
    done = run([*ENVBUILD, "exec", "toy", "--", "python", "-c", code], built.folder, env=env)
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith("False\n")
    assert str(tmp_path) + "/lib" not in done.out
    assert REPOSITORY not in done.out.splitlines()


def test_an_interrupt_reaches_the_program(built: Project) -> None:
    words = [
        "import signal, sys, time",
        "signal.signal(signal.SIGINT, lambda *_: sys.exit(42))",
        "print('runs', flush=True)",
        "time.sleep(60)",
    ]
    with started(built, "exec", "toy", "--", "python", "-c", "\n".join(words)) as process:
        read_until(process, "runs")
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait(30) == 42


def test_a_reader_that_goes_away_ends_the_program(built: Project) -> None:
    command = shlex.join([*ENVBUILD, "exec", "toy", "--", "yes"])
    done = run(["bash", "-c", f"{command} | head -1; echo ${{PIPESTATUS[0]}}"], built.folder)
    assert (done.out, done.err) == (f"y\n{128 + signal.SIGPIPE}\n", "")


def test_folders_for_temporary_files_are_made(
    built: Project, tmp_path: Path, envbuild: Envbuild
) -> None:
    root = tmp_path / "rehearsal"
    words = ["toy", "--site", "strict", "--root", str(root), "--user", "ann"]
    done = envbuild("exec", *words, "--", "true", cwd=built.folder)
    assert done.code == 3
    assert done.err == (
        f"error: {root}/toy: there is no prefix of toy\n"
        f"  mend: run `envbuild create toy --site strict --root {root} --user ann`\n"
    )
    assert not root.exists()
    by_hand(root, "toy")
    script = 'echo "$TMPDIR" "$TRITON_CACHE_DIR" "$TORCHINDUCTOR_CACHE_DIR" "$UV_CACHE_DIR"'
    done = envbuild("exec", *words, "--", "sh", "-c", script, cwd=built.folder)
    assert done.err == ""
    tmp = root / "tmp"
    assert done.out == f"{tmp} {tmp}/triton_ann {tmp}/torchinductor_ann {root}/uv\n"
    assert tmp.is_dir()
    tmp.rmdir()
    tmp.touch()
    done = envbuild("exec", *words, "--", "true", cwd=built.folder)
    assert done.code == 3
    assert done.err == (
        f"error: {tmp}: the temporary folder cannot be made: File exists\n"
        f"  expected: a folder in {tmp}\n"
        "  mend: run this on the site, or set TMPDIR to such a folder that is there\n"
    )
    assert leases.holders(usage.folder(root / ".envbuild", "toy")) == []


# -- what is refused


def by_hand(root: Path, name: str, *, prefix: Path | None = None, schema: int = 2) -> Path:
    """Make what running sees of a prefix: a folder, and the statement of a receipt."""
    (root / name / "bin").mkdir(parents=True)
    file = receipt.path(root / ".envbuild", name)
    file.parent.mkdir(parents=True, exist_ok=True)
    known = {"prefix": str(prefix or root / name), "schema": schema}
    file.write_text(json.dumps({"predicate": known, "predicateType": receipt.PREDICATE}))
    return root / name


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """A project with the least that can be run."""
    project = lay_out(tmp_path / "project")
    by_hand(project.folder / ".envs", "toy")
    return project


def test_the_receipt_is_the_one_that_create_writes() -> None:
    assert runnable.SCHEMA == receipt.SCHEMA


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (
            ["tyo"],
            2,
            "no environment named tyo\n  expected: did you mean toy?\n"
            "  mend: environments are the files of {folder}/envs\n",
        ),
        (
            ["toy", "--site", "far"],
            2,
            "no site named far\n  expected: one of local, strict\n"
            "  mend: sites are the files of {folder}/sites\n",
        ),
        (
            ["toy", "--root", "/nonexistent/a b"],
            3,
            "/nonexistent/a b/toy: there is no prefix of toy\n"
            "  mend: run `envbuild create toy --site local --root '/nonexistent/a b'`\n",
        ),
    ],
)
def test_what_is_not_there(
    project: Project, envbuild: Envbuild, words: list[str], code: int, message: str
) -> None:
    for before in ([], ["-v"]):
        done = envbuild(*before, "exec", *words, "--", "true", cwd=project.folder)
        assert done.code == code
        assert done.err.endswith(f"error: {message.format(folder=project.folder)}")


def test_a_site_that_does_not_build_it(project: Project, envbuild: Envbuild) -> None:
    site = project.folder / "sites" / "other.toml"
    site.write_text('summary = "other"\nroot = "other"\n[environments]\n')
    done = envbuild("exec", "toy", "--site", str(site), "--", "true", cwd=project.folder)
    assert done.code == 2
    assert done.err.startswith("error: site other does not build toy\n")


def test_a_prefix_without_a_receipt_that_can_be_read(project: Project, envbuild: Envbuild) -> None:
    root = project.folder / ".envs"
    file = receipt.path(root / ".envbuild", "toy")
    right = file.read_text()
    for text in (None, "{", right.replace('"schema": 2', '"schema": 1')):
        if text is None:
            file.unlink()
        else:
            file.write_text(text)
        done = envbuild("exec", "toy", "--", "true", cwd=project.folder)
        assert done.code == 3
        assert done.err == (
            f"error: {root}/toy: the prefix of toy has no receipt: nobody knows whether it is "
            "whole\n"
            f"  expected: a receipt that this envbuild can read, {file}\n"
            "  mend: run `envbuild create toy --site local`\n"
        )


def test_a_prefix_that_was_moved(project: Project, tmp_path: Path, envbuild: Envbuild) -> None:
    moved = tmp_path / "moved"
    (project.folder / ".envs").rename(moved)
    done = envbuild("exec", "toy", "--root", str(moved), "--", "true", cwd=project.folder)
    assert done.code == 3
    assert done.err == (
        f"error: {moved}/.envbuild/receipts/toy.json: the receipt of toy is of another prefix\n"
        f"  expected: {moved}/toy\n"
        f"  found: {project.folder}/.envs/toy\n"
        f"  mend: run `envbuild create toy --site local --root {moved}`\n"
    )


def test_programs_that_cannot_be_run(project: Project, envbuild: Envbuild) -> None:
    folder = project.folder / ".envs" / "toy" / "bin"
    for name, text, mode in (
        ("tool", "#!/nonexistent/python -x\n", 0o755),
        ("text", "echo\n", 0o755),
        ("data", "", 0o644),
    ):
        (folder / name).write_text(text)
        (folder / name).chmod(mode)
    for name, code, message in (
        (
            "tolo",
            127,
            "no such program: 'tolo'\n"
            f"  expected: a program in {folder} or another folder of PATH\n"
            "  mend: did you mean tool?\n",
        ),
        (
            "tool",
            127,
            f"{folder}/tool: the program cannot be started: its interpreter is not there\n"
            "  found: #!/nonexistent/python -x\n"
            "  mend: correct its first line, or run it by an interpreter: -- python FILE\n",
        ),
        (
            "text",
            126,
            f"{folder}/text: the program cannot be started: Exec format error\n"
            "  expected: a program for this machine, or a script whose first line begins with #!\n"
            "  mend: run a script by its interpreter: -- python FILE or -- sh FILE\n",
        ),
        (
            "data",
            126,
            f"{folder}/data: data cannot be executed\n"
            "  expected: a file that this user may execute\n"
            "  found: mode 0644\n"
            "  mend: set its mode with chmod +x, or run it by its interpreter: -- python FILE\n",
        ),
    ):
        done = envbuild("exec", "toy", "--", name, cwd=project.folder)
        assert (done.code, done.out, done.err) == (code, "", f"error: {message}")
    assert users(project) == []
    assert list(usage.folder(bookkeeping(project), "toy").iterdir()) == []


def test_no_lease_can_be_left(project: Project, envbuild: Envbuild) -> None:
    place = usage.folder(bookkeeping(project), "toy")
    place.parent.touch()
    done = envbuild("exec", "toy", "--", "true", cwd=project.folder)
    assert done.code == 3
    assert done.err == (
        f"error: {place}: no note can be left that toy is in use: Not a directory\n"
        "  expected: a folder where this user may write\n"
        "  mend: ask its owner for that; or run the program by its path in "
        f"{project.folder}/.envs/toy/bin, and no replacement will wait for it\n"
    )


def test_half_a_prefix_is_refused_while_it_is_built(project: Project, envbuild: Envbuild) -> None:
    place = bookkeeping(project)
    prefix = project.folder / ".envs" / "toy"
    begun = Journal(
        environment="toy",
        prefix=str(prefix),
        mode="in place",
        work=str(place / "work"),
        archive=str(place / "archive"),
        old=1,
        new=None,
        since="",
    )
    journal.write(place, begun)
    (place / "owners").mkdir()
    me = owner.current("a test")
    with exclusion.exclusive(place / "owners" / "toy.lock", me):
        done = envbuild("exec", "toy", "--", "true", cwd=project.folder)
    assert done.code == 3
    found, mend = done.err.splitlines()[1:]
    assert done.err.startswith(f"error: {prefix}: toy is being replaced\n")
    assert found.startswith(f"  found: at work on it: {me.user} on {me.host}, pid {me.pid}, since ")
    assert mend == "  mend: wait for it with --wait, or try again when it has ended"
    assert users(project) == []


# -- while it is replaced


def test_who_runs_from_a_prefix_is_known_and_waited_for(
    changing: Project, envbuild: Envbuild
) -> None:
    relock(changing, envbuild)
    with started(changing, "exec", "toy", "--", *RUNS) as program:
        read_until(program, "runs")
        (user,) = users(changing)
        assert user.pid == program.pid
        assert user.command == "envbuild exec toy -- python"

        done = envbuild("create", cwd=changing.folder)
        assert done.code == 3
        place = usage.folder(bookkeeping(changing), "toy")
        assert done.err.startswith(f"error: {place}: toy is in use\n")
        assert f"pid {program.pid}, since " in done.err
        assert ": envbuild exec toy -- python\n" in done.err

        with started(changing, "create", "--wait") as creating:
            read_until(creating, f"toy: waiting for {user.user} on {user.host}, pid {program.pid}")
            time.sleep(0.5)
            assert creating.poll() is None
            program.communicate(timeout=30)
            assert program.returncode == 0
            assert creating.wait(60) == 0
    assert users(changing) == []
    code = "import beta; print('new')"
    done = envbuild("exec", "toy", "--", "python", "-c", code, cwd=changing.folder)
    assert done.out == "new\n"


def test_a_prefix_can_be_replaced_under_its_users(changing: Project, envbuild: Envbuild) -> None:
    relock(changing, envbuild)
    with started(changing, "exec", "toy", "--", *RUNS) as program:
        read_until(program, "runs")
        done = envbuild("create", "--replace-in-use", cwd=changing.folder)
        assert done.code == 0, done.err
        assert program.poll() is None
        assert [user.pid for user in users(changing)] == [program.pid]


def test_the_old_prefix_runs_while_the_new_one_is_built(
    changing: Project, tmp_path: Path, envbuild: Envbuild
) -> None:
    begun, gate = tmp_path / "begun", tmp_path / "gate"
    relock(changing, envbuild, _waits(begun, gate))
    words = [
        "exec",
        "toy",
        "--",
        "python",
        "-c",
        "import importlib.util as i\nprint(i.find_spec('beta'))",
    ]
    with started(changing, "create", "--wait") as creating:
        eventually(begun)
        assert journal.path(bookkeeping(changing), "toy").exists()
        done = envbuild(*words, cwd=changing.folder)
        assert (done.code, done.out, done.err) == (0, "None\n", "")
        gate.touch()
        assert creating.wait(60) == 0
    assert "beta.py" in envbuild(*words, cwd=changing.folder).out


def test_a_first_build_is_waited_for(changing: Project, tmp_path: Path, envbuild: Envbuild) -> None:
    begun, gate = tmp_path / "begun", tmp_path / "gate"
    relock(changing, envbuild, _waits(begun, gate))
    root = ["--root", str(tmp_path / "other")]
    with started(changing, "create", *root) as creating:
        eventually(begun)
        done = envbuild("exec", "toy", *root, "--", "true", cwd=changing.folder)
        assert done.code == 3
        assert "  found: at work on it: " in done.err
        assert "  mend: wait for it with --wait, or try again when it has ended\n" in done.err
        with started(changing, "exec", "toy", *root, "--wait", "--", "echo", "done") as waiting:
            read_until(waiting, "toy: waiting for ")
            gate.touch()
            assert creating.wait(60) == 0
            read_until(waiting, "done")
            assert waiting.wait(30) == 0


def _waits(begun: Path, gate: Path) -> str:
    code = (
        "import pathlib, time\n"
        f"pathlib.Path('{begun}').touch()\n"
        f"while not pathlib.Path('{gate}').exists(): time.sleep(0.05)\n"
    )
    return f"commands = [['python', '-c', {json.dumps(code)}]]"


def test_an_interrupted_replacement_is_refused_until_it_is_put_right(
    changing: Project, envbuild: Envbuild
) -> None:
    relock(changing, envbuild)
    done = envbuild("create", cwd=changing.folder, env={"ENVBUILD_KILL_AFTER": "journalled"})
    assert done.code == -signal.SIGKILL
    done = envbuild("exec", "toy", "--", "true", cwd=changing.folder)
    assert done.code == 3
    assert done.err == (
        f"error: {journal.path(bookkeeping(changing), 'toy')}: a replacement of toy was "
        "interrupted\n"
        "  expected: no journal, or somebody at work\n"
        "  mend: run `envbuild recover --site local`; creating toy does that first, too\n"
    )
    assert envbuild("recover", cwd=changing.folder).code == 0
    assert envbuild("exec", "toy", "--", "true", cwd=changing.folder).code == 0


def test_a_prefix_that_its_lock_has_left_behind_runs(changing: Project, envbuild: Envbuild) -> None:
    relock(changing, envbuild)
    done = envbuild("exec", "toy", "--", "echo", "runs", cwd=changing.folder)
    assert (done.code, done.out, done.err) == (0, "runs\n", "")
    done = envbuild("-v", "exec", "toy", "--", "echo", "runs", cwd=changing.folder)
    assert (done.code, done.out) == (0, "runs\n")
    assert "toy: runs, but is not what its files say: the lock has changed\n" in done.err
    changing.lock_file("toy").unlink()
    done = envbuild("exec", "toy", "--", "echo", "runs", cwd=changing.folder)
    assert (done.code, done.out, done.err) == (0, "runs\n", "")
    done = envbuild("-v", "exec", "toy", "--", "echo", "runs", cwd=changing.folder)
    assert (done.code, done.out) == (0, "runs\n")
    assert "toy: runs, but is not what its files say: the lock of toy is stale: " in done.err


def test_waiting_for_ever_is_as_long_as_it_takes() -> None:
    plain = plain_exec(["exec", "toy", "--wait", "--", "x"], {})
    assert plain is not None
    assert plain[1].wait == math.inf
