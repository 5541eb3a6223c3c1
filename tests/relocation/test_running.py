"""What runs in a prefix: planted faults, scripts as people write them, and text of any kind."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from envbuild import findings
from envbuild.errors import InputError
from envbuild.findings import Finding
from envbuild.relocation import running

PREFIX = Path("/proj/ada/envs/toy")
ALLOWED = [Path("/proj/ada/caches"), Path("/scratch/ada")]
QUIET = {"PYTHONNOUSERSITE": "1"}
TOKEN = "hf_Ab12/Cd34+\"x'"


def said(found: Iterable[Finding]) -> str:
    return findings.text(list(found))


def in_script(text: str, allowed: Iterable[Path] = ALLOWED) -> list[Finding]:
    found = running.script(text, where="job.sh", prefixes=[PREFIX], allowed=list(allowed))
    return list(found)


def faults(text: str) -> list[tuple[str, str, str | None]]:
    """Return line, code and what was found."""
    return [(one.where.removeprefix("job.sh:"), one.code, one.found) for one in in_script(text)]


# The environment of a process


def test_caches_in_allowed_folders() -> None:
    variables = {
        **QUIET,
        "TMPDIR": "/proj/ada/caches/tmp",
        "TRITON_CACHE_DIR": "//scratch/ada/../ada/triton",
        "HF_HOME": "",
        "HOME": "/home/ada",
        "PYTHONPATH": "",
    }
    assert not list(running.environment(variables, allowed=ALLOWED, where="process 1"))


def test_a_cache_elsewhere() -> None:
    variables = {**QUIET, "UV_CACHE_DIR": "/home/ada/.cache/uv", "TMPDIR": "/proj/ada/caches2"}
    assert said(running.environment(variables, allowed=ALLOWED, where="process 1")) == (
        "process 1: error R001: TMPDIR lies where the site does not allow it\n"
        "  expected: a folder in /proj/ada/caches or /scratch/ada\n"
        "  found: /proj/ada/caches2\n"
        "  mend: export TMPDIR=/proj/ada/caches, or unset it\n"
        "process 1: error R001: UV_CACHE_DIR lies where the site does not allow it\n"
        "  expected: a folder in /proj/ada/caches or /scratch/ada\n"
        "  found: /home/ada/.cache/uv\n"
        "  mend: export UV_CACHE_DIR=/proj/ada/caches, or unset it"
    )


def test_a_cache_that_a_link_leads_out_of(tmp_path: Path) -> None:
    (tmp_path / "allowed").mkdir()
    (tmp_path / "home").mkdir()
    (tmp_path / "allowed" / "link").symlink_to(tmp_path / "home")
    (tmp_path / "other").symlink_to(tmp_path / "allowed")
    given = tmp_path / "allowed" / "link" / "hf"
    variables = {**QUIET, "HF_HOME": str(given), "TMPDIR": str(tmp_path / "other" / "tmp")}
    allowed = [tmp_path / "allowed"]
    (found,) = running.environment(variables, allowed=allowed, where="process 1")
    assert found.message == "HF_HOME lies where the site does not allow it"
    assert found.found == f"{given}, which is {tmp_path}/home/hf"


def test_a_cache_by_a_relative_path() -> None:
    (found,) = running.environment({**QUIET, "TMP": "~/tmp\n"}, allowed=ALLOWED, where="process 1")
    assert (found.message, found.found) == (
        "TMP names a folder by a relative path",
        r"'~/tmp\n'",
    )


def test_any_cache_where_nothing_is_said() -> None:
    variables = {**QUIET, "TMPDIR": "tmp", "HF_HOME": "/home/ada"}
    assert not list(running.environment(variables, allowed=[], where="process 1"))


def test_variables_that_lead_python_elsewhere() -> None:
    variables = {"PYTHONPATH": "/home/ada/lib", "PYTHONHOME": "/usr"}
    assert said(running.environment(variables, allowed=[], where="process 1")) == (
        "process 1: error R003: PYTHONNOUSERSITE is not set: modules are imported from ~/.local\n"
        "  expected: PYTHONNOUSERSITE=1\n  found: not set\n  mend: export PYTHONNOUSERSITE=1\n"
        "process 1: error R003: PYTHONPATH is set: modules that no lock names are imported first\n"
        "  expected: no PYTHONPATH\n  found: /home/ada/lib\n  mend: unset PYTHONPATH\n"
        "process 1: error R003: PYTHONHOME is set: the standard library is looked for elsewhere\n"
        "  expected: no PYTHONHOME\n  found: /usr\n  mend: unset PYTHONHOME"
    )


def test_a_user_site_that_is_not_shut_out() -> None:
    (found,) = running.environment({"PYTHONNOUSERSITE": ""}, allowed=[], where="process 1")
    assert (found.code, found.found) == ("R003", "set to nothing")


# Scripts


RIGHT = r"""#!/bin/bash
#SBATCH --job-name=python
set -euo pipefail
# source .venv/bin/activate; python train.py
export PYTHONNOUSERSITE=1 TMPDIR="/proj/ada/caches/$SLURM_JOB_ID"  # not python
unset PYTHONPATH PYTHONHOME
PYTHONPATH= HF_HOME=~/hf TORCH_HOME=$WORK/torch /proj/ada/envs/toy/bin/python -m train
command -v python > /dev/null || type python || echo "python; source activate" \; python
args=(python "$(basename "$0")"
    pip)
srun --ntasks 4 --job-name python -N 1 --exclusive /proj/ada/envs/toy/bin/torchrun --x 'a
python b
' "${args[@]}" > python 2>&1
cat > run.py <<'EOF' && cat <<-done
python x
EOF
    $(python x)
	done
case ${1#--} in
    python | pip) echo "it's python" ;;
    (torchrun) "$PREFIX/bin/python" x ;;
esac
python() { "$PREFIX"/bin/python "$@"; }
for python in a python; do echo $((python + 1)) "${python%%}*}"; done
[[ $1 == python && ( python == $1 || $2 < pip ) ]] && (( python > 1 )) && echo ${x:-a)}
source /etc/profile.d/modules.sh
module load buildenv-gcccuda/12.9.1-gcc11 python-tools
bash -euo pipefail -c 'exec "$0" python' $'it\'s; python' !(python)
conda --version; . ./env.sh
"""


def test_a_script_as_it_should_be() -> None:
    assert not in_script(RIGHT)


def test_a_program_by_its_bare_name() -> None:
    assert said(in_script("set -e\npython train.py --token secret\n")) == (
        "job.sh:2: error R002: python is called by its bare name\n"
        "  expected: /proj/ada/envs/toy/bin/python\n  found: python\n"
        "  mend: write /proj/ada/envs/toy/bin/python"
    )


def test_a_program_by_a_relative_path() -> None:
    found = running.script(".venv/bin/pip list", where="x", prefixes=[PREFIX, Path("/p")])
    assert said(found) == (
        "x:1: error R002: pip is called by a relative path\n"
        "  expected: /proj/ada/envs/toy/bin/pip or /p/bin/pip\n  found: .venv/bin/pip\n"
        "  mend: write the path of the prefix it is for"
    )


def test_a_program_of_no_prefix_in_particular() -> None:
    (found,) = running.script("pip list", where="x", prefixes=[])
    assert (found.expected, found.mend) == ("PREFIX/bin/pip", "write PREFIX/bin/pip")


def test_an_activated_environment() -> None:
    assert said(in_script("source /proj/ada/envs/toy/bin/activate\n")) == (
        "job.sh:1: error R002: an environment is activated\n"
        "  expected: programs called by absolute paths, such as /proj/ada/envs/toy/bin/python\n"
        "  found: source /proj/ada/envs/toy/bin/activate\n  mend: remove it"
    )


@pytest.mark.parametrize(
    ("line", "message", "found"),
    [
        (". x/bin/activate", "an environment is activated", ". x/bin/activate"),
        ("source activate base", "an environment is activated", "source activate"),
        ("conda activate base", "an environment is activated", "conda activate"),
        ("/opt/conda/bin/conda init", "conda is set up in the shell", "conda init"),
        ('eval "$(conda shell.bash hook)"', "conda is set up in the shell", "conda shell.bash"),
        ("eval `mamba shell hook`", "mamba is set up in the shell", "mamba shell"),
        ("micromamba activate x", "an environment is activated", "micromamba activate"),
        ("micromamba run -n x python", "an environment is activated", "micromamba run"),
        ("source ~/.bashrc", "a shell initialiser is read", "source ~/.bashrc"),
        ('. "$HOME/.bash_profile"', "a shell initialiser is read", ". $HOME/.bash_profile"),
        (
            "source /opt/conda/etc/profile.d/conda.sh",
            "a shell initialiser is read",
            "source /opt/conda/etc/profile.d/conda.sh",
        ),
        ('eval "$(pyenv init -)"', "pyenv is set up in the shell", "pyenv init"),
        (
            "module load gcc Python/3.11.5-GCCcore-13.2.0",
            "an interpreter is taken from environment modules",
            "module load Python/3.11.5-GCCcore-13.2.0",
        ),
        (
            "ml Miniforge3",
            "an interpreter is taken from environment modules",
            "ml load Miniforge3",
        ),
        ("bash -lc true", "a shell is started that reads its initialisers", "bash -lc"),
        ("#!/bin/bash --login", "a shell is started that reads its initialisers", "bash --login"),
    ],
)
def test_a_shell_that_is_prepared(line: str, message: str, found: str) -> None:
    (finding,) = in_script(line)
    assert (finding.code, finding.message, finding.found) == ("R002", message, found)


@pytest.mark.parametrize(
    "line",
    [
        "srun -n 4 --gpus-per-task 1 --label python x",
        "srun --ntasks=4 -- python x",
        "env -u X A=b python x",
        "/usr/bin/env python",
        "exec -a name python",
        "time -p python x",
        "nohup python x > log 2>&1 &",
        "timeout -k 5 10 python",
        "taskset -c 0-3 python",
        "cd x && python",
        "true; python",
        "cat x | python",
        "A=b python",
        "if ! python; then false; fi",
        "while python; do false; done",
        "x=$(python -c 1)",
        'x="${y#a} $(dirname "`python`")"',
        "diff <(python) x",
        "(python)",
        "f() { python; }",
        "case x in a|b) python;; esac",
        "> log python",
        "exec python \\\n  train.py",
        '"python" x',
        "bash -e -o pipefail -c 'python x'",
        'eval "python x"',
        "cat <<EOF; python\npip\nEOF",
        "cat <<<EOF; python",
        "#!/bin/sh\npython",
        "echo ${#x}; python",
        "[[ a < b ]] && python",
    ],
)
def test_a_bare_name_is_found_where_a_command_begins(line: str) -> None:
    assert [(one.code, one.found) for one in in_script(line)] == [("R002", "python")]


def test_lines_are_counted() -> None:
    text = (
        "#!/bin/bash -l\n\necho 'a\nb' \\\n  && pip list\nsrun bash -c 'cd x\n  python y'\npython\n"
    )
    assert faults(text) == [
        ("1", "R002", "bash -l"),
        ("5", "R002", "pip"),
        ("7", "R002", "python"),
        ("8", "R002", "python"),
    ]


def test_of_a_script_for_python_the_first_line_is_looked_at() -> None:
    assert faults("#!/usr/bin/env python3\npython\n") == [("1", "R002", "python3")]
    assert not faults("#!/proj/ada/envs/toy/bin/python\npython\n")


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("export TMPDIR=/tmp", "/tmp"),
        ("TMPDIR=/tmp/$SLURM_JOB_ID srun x", "/tmp/$SLURM_JOB_ID"),
        ("declare -x A=b UV_CACHE_DIR='/home/a b'", "/home/a b"),
        ("env TRITON_CACHE_DIR=/proj/ada/cachestriton x", "/proj/ada/cachestriton"),
        ("HF_HOME=hf", "hf"),
    ],
)
def test_a_script_that_puts_caches_elsewhere(line: str, found: str) -> None:
    assert faults(line) == [("1", "R001", found)]
    assert not in_script(line, [])


@pytest.mark.parametrize(
    "line",
    [
        "TMPDIR=/scratch/ada/$SLURM_JOB_ID",
        "TMPDIR=/scratch/$USER/tmp",
        "TMPDIR=$(mktemp -d)",
        "TMPDIR=$TMPDIR/x",
        "TMPDIR=tmp/$X",
        "HF_HOME=~/x",
        "echo TMPDIR=/tmp",
    ],
)
def test_a_cache_that_may_be_well(line: str) -> None:
    assert not in_script(line)


def test_what_a_script_says_of_a_cache() -> None:
    assert said(in_script("export TMPDIR=/tmp")) == (
        "job.sh:1: error R001: TMPDIR lies where the site does not allow it\n"
        "  expected: a folder in /proj/ada/caches or /scratch/ada\n  found: /tmp\n"
        "  mend: export TMPDIR=/proj/ada/caches, or unset it"
    )


def test_a_script_that_leads_python_elsewhere() -> None:
    text = "export PYTHONPATH=$PWD:$PYTHONPATH\nPYTHONHOME=/usr x\nunset PYTHONNOUSERSITE\n"
    assert faults(text + "export PYTHONNOUSERSITE=") == [
        ("1", "R003", "$PWD:$PYTHONPATH"),
        ("2", "R003", "/usr"),
        ("3", "R003", "unset PYTHONNOUSERSITE"),
        ("4", "R003", "set to nothing"),
    ]


PIECES = st.one_of(
    st.sampled_from("'\"`(){}\\\n;|<>#=\0\r \t\udcff\xa0~-/2"),
    st.sampled_from(
        ["$(", "${", "$((", "$'", "((", "))", "<<E", "<<-'E'", "\nE\n", ";;", "&&", ">("]
    ),
    st.sampled_from([" case ", " in ", " esac ", " [[ ", " ]] ", "python", "bash -c ", "eval "]),
    st.sampled_from(["srun -n ", "source ", "conda ", "PYTHONPATH=", "TMPDIR=/", "export "]),
)


@given(st.one_of(st.text(), st.lists(PIECES, max_size=40).map("".join)))
def test_any_script_is_read(text: str) -> None:
    lines = text.count("\n") + 1
    for finding in in_script(text):
        assert 1 <= int(finding.where.removeprefix("job.sh:")) <= lines
        assert finding.code in {"R001", "R002", "R003"}
        assert said([finding]).count("\n") == 3


@pytest.mark.parametrize("piece", ["$(", "`", '"$(', "${", "((", "x=(", "<(", "bash -c '", "[["])
def test_what_is_never_closed_takes_no_time(piece: str) -> None:
    in_script(piece * 5000)


# Credentials


@pytest.fixture
def personal(tmp_path: Path) -> Path:
    folder = tmp_path / "ada"
    folder.mkdir(mode=0o700)
    (tmp_path / "repository").mkdir()
    write_env(folder / ".env", f"TOKEN={TOKEN}\n")
    return folder


def write_env(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o600)


def exposed(folder: Path, env_file: str = ".env", *, mode: int = 0o700, owner: int = -1) -> str:
    found = running.credentials(
        folder,
        Path(env_file),
        mode=mode,
        owner=os.geteuid() if owner < 0 else owner,
        repository=folder.parent / "repository",
    )
    return said(found).replace(str(folder.parent), "")


def test_a_personal_folder_as_it_should_be(personal: Path) -> None:
    assert exposed(personal) == ""
    (personal / ".env").chmod(0o400)
    assert exposed(personal, mode=0o750) == ""
    assert exposed(personal.parent / "nobody") == ""


def test_a_personal_folder_that_others_may_read(personal: Path) -> None:
    personal.chmod(0o750)
    (personal / ".env").chmod(0o640)
    assert exposed(personal) == (
        "/ada: error R004: the personal folder is open to others\n"
        "  expected: mode 0700 or stricter\n  found: mode 0750\n  mend: run `chmod 0700 /ada`\n"
        "/ada/.env: error R004: the personal file is open to others\n"
        "  expected: mode 0600 or stricter\n  found: mode 0640\n"
        "  mend: run `chmod 0600 /ada/.env`"
    )


def test_a_personal_folder_of_somebody_else(personal: Path) -> None:
    other, me = os.geteuid() + 1, os.geteuid()
    mend = "  mend: run this as its owner, or name a folder of your own"
    assert exposed(personal, owner=other) == (
        "/ada: error R004: the personal folder belongs to another user\n"
        f"  expected: owner {other}\n  found: owner {me}\n{mend}\n"
        "/ada/.env: error R004: the personal file belongs to another user\n"
        f"  expected: owner {other}\n  found: owner {me}\n{mend}"
    )


def test_a_personal_folder_that_leads_into_the_repository(personal: Path) -> None:
    inside = personal.parent / "repository" / "secrets"
    inside.mkdir()
    write_env(inside / "variables", "")
    (personal / ".env").unlink()
    (personal / ".env").symlink_to(inside / "variables")
    assert exposed(personal) == (
        "/ada/.env: error R004: the personal file lies in the repository\n"
        "  expected: a file outside of /repository\n  found: /repository/secrets/variables\n"
        "  mend: move it to where nothing is published"
    )


def test_a_personal_folder_in_the_repository(personal: Path) -> None:
    link = personal.parent / "repository" / "mine"
    link.symlink_to(personal)
    found = running.credentials(
        link, Path(".env"), mode=0o700, owner=os.geteuid(), repository=link.parent
    )
    assert [(one.message, one.found) for one in found] == [
        ("the personal folder lies in the repository", str(link)),
        ("the personal file lies in the repository", str(link / ".env")),
    ]


def test_variables_are_read_as_a_shell_has_them(tmp_path: Path) -> None:
    (tmp_path / ".env").write_bytes(
        b"\xef\xbb\xbf# PLAIN=no\r\nPLAIN=a b # a comment\r\n"
        b'  export DOUBLE="say \\"x\\" # \\$y"  # more\n'
        b"SINGLE = 'a\\n\nb'\nEMPTY=\nHASH=a#b\nTWICE=1\nTWICE=2\nODD=\"a\nno line\nBYTES=\xff\n"
    )
    assert running.read_secrets(tmp_path / ".env") == {
        "PLAIN": "a b",
        "DOUBLE": 'say "x" # $y',
        "SINGLE": "a\\n\nb",
        "EMPTY": "",
        "HASH": "a#b",
        "TWICE": "2",
        "ODD": '"a',
        "BYTES": "\udcff",
    }


def test_variables_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        running.read_secrets(tmp_path / ".env")
    assert str(caught.value).replace(str(tmp_path), "") == (
        "/.env: credentials cannot be read: No such file or directory"
    )


def test_files_without_credentials(tmp_path: Path) -> None:
    config, pipe = tmp_path / "config", tmp_path / "pipe"
    config.write_text(f"TOKEN is elsewhere, not {TOKEN[:-1]}; short, {tmp_path}")
    os.mkfifo(pipe)
    secrets = {"TOKEN": TOKEN, "PIN": "short", "CA_BUNDLE": str(tmp_path)}
    files = [config, pipe, tmp_path, tmp_path / "gone"]
    assert not list(running.leaks(secrets, files))
    assert not list(running.leaks({}, files))


@pytest.mark.parametrize(
    "written",
    [TOKEN, '{"t": "hf_Ab12/Cd34+\\"x\'"}', "https://x/?t=hf_Ab12%2FCd34%2B%22x%27"],
)
def test_a_file_with_a_credential(tmp_path: Path, written: str) -> None:
    log = tmp_path / "log"
    log.write_text(f"begin\n{written}\n")
    offset = log.read_text().index("hf_")
    assert said(running.leaks({"TOKEN": TOKEN, "OTHER": "something else"}, [log])) == (
        f"{log}: error R004: the value of TOKEN stands in this file\n"
        f"  expected: credentials in the personal folder alone\n  found: at byte {offset}\n"
        "  mend: take it out, and have a new one issued: this one is known"
    )


def test_a_credential_in_the_name_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "run-sk_live_12345"
    file.write_text("")
    found = list(running.leaks({"LONG": "sk_live_12345", "PART": "sk_live_"}, [file]))
    assert {one.where for one in found} == {f"{tmp_path}/run-***"}
    assert [one.message for one in found] == [
        "the value of LONG stands in the name of this file",
        "the value of PART stands in the name of this file",
    ]


def test_a_credential_far_into_a_file(tmp_path: Path) -> None:
    log = tmp_path / "log"
    # it begins before the end of what is read at once, and ends after it
    log.write_bytes(b"x" * ((1 << 20) - 5) + TOKEN.encode() + b"x" * (2 << 20) + TOKEN.encode())
    (found,) = running.leaks({"TOKEN": TOKEN}, [log])
    assert found.found == f"at byte {(1 << 20) - 5}"


def test_a_file_that_cannot_be_read() -> None:
    # a process has no memory at address 0
    path = Path("/proc/self/mem")
    assert said(running.leaks({"TOKEN": TOKEN}, [path])) == (
        "/proc/self/mem: warning R004: this file was not looked through for credentials\n"
        "  expected: a file that can be read\n  found: Input/output error\n"
        "  mend: check again as a user who may read it"
    )


def test_arguments_of_a_process() -> None:
    secrets = {"TOKEN": TOKEN, "OTHER": "something else"}
    command = ["/p/bin/python", "-m", "x", f"--token={TOKEN}"]
    assert said(running.arguments(secrets, command, "process 7")) == (
        "process 7: error R004: the value of TOKEN stands in an argument, "
        "which every user can see\n"
        "  expected: credentials in the personal folder alone\n  found: in argument 3\n"
        "  mend: take it out, and have a new one issued: this one is known"
    )
    assert not list(running.arguments(secrets, command[:3], "process 7"))


# no finding has that sign of itself
VALUES = st.text(st.characters(exclude_characters="/\0", codec="utf-8"), min_size=7).map(
    "§{}".format
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.dictionaries(st.from_regex(r"[A-Z]{1,9}", fullmatch=True), VALUES, min_size=1), st.data())
def test_no_value_gets_into_a_finding(
    tmp_path: Path, secrets: dict[str, str], data: st.DataObject
) -> None:
    value = data.draw(st.sampled_from(sorted(secrets.values())))
    around = data.draw(st.text(st.characters(codec="utf-8"), max_size=9))
    log = tmp_path / "log"
    log.write_bytes(f"{around}{value}{around}".encode())
    missing = tmp_path / f"{value}"
    found = [*running.leaks(secrets, [log, missing])]
    found += running.arguments(secrets, [around, around + value], f"process {value}")
    names = {name for name, one in secrets.items() if one == value}
    assert {name for name in names if any(f" {name} " in one.message for one in found)} == names
    assert "§" not in said(found)
