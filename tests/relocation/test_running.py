"""What runs in a prefix: planted faults, scripts as people write them, and text of any kind."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envbuild import findings
from envbuild.findings import Finding
from envbuild.relocation import running

PREFIX = Path("/proj/ada/envs/toy")
ALLOWED = [Path("/proj/ada/caches"), Path("/scratch/ada")]
QUIET = {"PYTHONNOUSERSITE": "1"}


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
        "process 1: error R003: PYTHONNOUSERSITE is not set: modules may be imported from "
        "~/.local\n  expected: PYTHONNOUSERSITE=1\n  found: not set\n"
        "  mend: export PYTHONNOUSERSITE=1\n"
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
