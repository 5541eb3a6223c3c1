"""What runs in a prefix: its variables, and the scripts that start it (R001 to R003).

Values in, findings out. A finding about a script shows the words that it is about and no more:
what else stands there may be a secret.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from envbuild.findings import Finding
from envbuild.relocation import shell
from envbuild.relocation.shell import Token

# variables that name folders which programs fill
CACHES = (
    "TMPDIR",
    "TMP",
    "TEMP",
    "XDG_CACHE_HOME",
    "UV_CACHE_DIR",
    "PIP_CACHE_DIR",
    "PYTHONPYCACHEPREFIX",
    "HF_HOME",
    "HF_HUB_CACHE",
    "HF_DATASETS_CACHE",
    "TRANSFORMERS_CACHE",
    "TORCH_HOME",
    "TORCH_EXTENSIONS_DIR",
    "TORCHINDUCTOR_CACHE_DIR",
    "TRITON_CACHE_DIR",
    "CUDA_CACHE_PATH",
    "NUMBA_CACHE_DIR",
    "VLLM_CACHE_ROOT",
)

_REDIRECTING = {
    "PYTHONPATH": "modules that no lock names are imported first",
    "PYTHONHOME": "the standard library is looked for elsewhere",
}


def environment(
    variables: Mapping[str, str], *, allowed: Sequence[Path], where: str
) -> Iterator[Finding]:
    """Yield variables that lead programs, or Python, to where they must not go (R001, R003).

    Args:
        variables: the environment of a process. What is set to nothing counts as not set, as
            Python has it.
        allowed: folders that temporary files and caches may lie in; any where empty.
        where: whose environment it is.
    """
    for name in CACHES:
        value = variables.get(name, "")
        if value:
            yield from cache(name, value, allowed, where)
    if not variables.get("PYTHONNOUSERSITE"):
        found = "set to nothing" if "PYTHONNOUSERSITE" in variables else "not set"
        yield _user_site(found, where)
    for name in _REDIRECTING:
        value = variables.get(name, "")
        if value:
            yield _redirected(name, value, where)


def cache(name: str, value: str, allowed: Sequence[Path], where: str) -> Iterator[Finding]:
    """Yield that a variable names a folder that is none of the allowed ones (R001).

    Args:
        name: the variable.
        value: the folder, whatever links and dots it is written with.
        allowed: folders that it may lie in; any where empty.
        where: whose variable it is.
    """
    if not value.startswith("/"):
        message = f"{name} names a folder by a relative path"
        yield from _misplaced(message, name, _shown(value), allowed, where)
        return
    place = real(value)
    if any(place.is_relative_to(real(folder)) for folder in allowed):
        return
    linked = "" if str(place) == os.path.normpath(value) else f", which is {_shown(str(place))}"
    message = f"{name} lies where the site does not allow it"
    yield from _misplaced(message, name, _shown(value) + linked, allowed, where)


def _misplaced(
    message: str, name: str, found: str, allowed: Sequence[Path], where: str
) -> Iterator[Finding]:
    if allowed:
        yield Finding(
            "R001",
            "error",
            where=where,
            message=message,
            expected="a folder in " + " or ".join(map(str, allowed)),
            found=found,
            mend=f"export {name}={allowed[0]}, or unset it",
        )


def _user_site(found: str, where: str) -> Finding:
    return Finding(
        "R003",
        "error",
        where=where,
        message="PYTHONNOUSERSITE is not set: modules may be imported from ~/.local",
        expected="PYTHONNOUSERSITE=1",
        found=found,
        mend="export PYTHONNOUSERSITE=1",
    )


def _redirected(name: str, value: str, where: str) -> Finding:
    return Finding(
        "R003",
        "error",
        where=where,
        message=f"{name} is set: {_REDIRECTING[name]}",
        expected=f"no {name}",
        found=_shown(value),
        mend=f"unset {name}",
    )


def real(path: str | Path) -> Path:
    """Return a path without links and dots, also one that no file can have."""
    try:
        plain = os.path.realpath(path)
    except ValueError:
        # characters that no file's name can have
        plain = os.path.normpath(path)
    # two slashes at the beginning are a root of their own for `Path`, but not for Linux
    return Path(re.sub(r"\A//", "/", plain))


def _name(path: str) -> str:
    return path.rpartition("/")[2]


def _shown(text: str) -> str:
    """Return a text in one line."""
    return text if text.isprintable() else repr(text)


_SHELLS = frozenset({"sh", "bash", "dash", "ksh", "zsh"})

# options of shells that the next word belongs to
_VALUED = r"[-+][A-Za-z]*[oO]|--rcfile|--init-file"

# strings in strings that shells run: deeper than people write
_DEEPEST_STRING = 5
# as many prefixes are named one by one
_NAMED = 3


class _Wrapper(msgspec.Struct, frozen=True):
    """A program that starts the one named after it.

    Attributes:
        values: options that take the next word.
        flags: where given, every long option takes the next word but for these.
        operands: how many words stand before the program.
        asking: options with which nothing is started.
    """

    values: frozenset[str] = frozenset()
    flags: re.Pattern[str] | None = None
    operands: int = 0
    asking: frozenset[str] = frozenset()

    def inner(self, words: Sequence[Token]) -> Sequence[Token]:
        """Return the command that is started by these arguments."""
        at = 0
        while at < len(words) and words[at].text.startswith("-"):
            option = words[at].text
            at += 1
            if option == "--":
                break
            if option in self.asking:
                return ()
            at += self._takes(option)
        return words[at + self.operands :]

    def _takes(self, option: str) -> bool:
        if self.flags is not None and option.startswith("--") and "=" not in option:
            return self.flags.fullmatch(option) is None
        return option in self.values


_WRAPPERS = {
    "builtin": _Wrapper(),
    "command": _Wrapper(asking=frozenset({"-v", "-V"})),
    "env": _Wrapper(frozenset({"-u", "--unset", "-C", "--chdir"})),
    "exec": _Wrapper(frozenset({"-a"})),
    "ionice": _Wrapper(frozenset({"-c", "-n", "--class", "--classdata"})),
    "mpirun": _Wrapper(
        frozenset({"-n", "-np", "-c", "-N", "-H", "-host", "--host", "-hostfile", "--hostfile"})
        | {"-machinefile", "-x", "-ppn", "--map-by", "--bind-to", "--rank-by", "-genv"}
    ),
    "nice": _Wrapper(frozenset({"-n", "--adjustment"})),
    "nohup": _Wrapper(),
    "numactl": _Wrapper(
        frozenset({"-N", "-m", "-i", "-p", "-C", "--cpunodebind", "--membind", "--physcpubind"})
    ),
    "setsid": _Wrapper(),
    # srun(1): what has no value, or one after an equals sign alone
    "srun": _Wrapper(
        frozenset(f"-{letter}" for letter in "AaBcCdDegGiJLmMnNopqrStTwWxZ"),
        flags=re.compile(
            "--(?:contiguous|disable-status|exact|exclusive|external|help|hold|immediate|interactive|"
            "kill-on-bad-exit|label|multi-prog|no-allocate|no-kill|nodes-only|overcommit|overlap|"
            "oversubscribe|preserve-env|propagate|pty|quiet|quit-on-interrupt|reboot|send-libs|"
            "spread-job|stepmgr|unbuffered|usage|use-min-nodes|verbose|version)"
        ),
    ),
    "stdbuf": _Wrapper(frozenset({"-i", "-o", "-e", "--input", "--output", "--error"})),
    "sudo": _Wrapper(frozenset({"-u", "-g", "-h", "-p", "--user", "--group"})),
    "taskset": _Wrapper(operands=1),
    "time": _Wrapper(frozenset({"-f", "-o", "--format", "--output"})),
    "timeout": _Wrapper(frozenset({"-k", "-s", "--kill-after", "--signal"}), operands=1),
    "xargs": _Wrapper(frozenset({"-a", "-d", "-E", "-I", "-L", "-n", "-P", "-s"})),
}

_WRAPPERS["mpiexec"] = _WRAPPERS["mpirun"]

_ASSIGNMENT = re.compile(r"(?P<name>[A-Za-z_][A-Za-z0-9_]*)\+?=(?P<value>.*)", re.DOTALL)
_DECLARING = frozenset({"export", "declare", "typeset", "readonly", "local"})
_PROGRAM = re.compile(r"(?:(?:python|pip)[0-9.]*|torchrun|accelerate|deepspeed|ipython3?)")
_RUNNERS = frozenset({"uv", "poetry", "pdm", "pipenv", "hatch", "rye"})
_CONDA = frozenset({"conda", "mamba", "micromamba"})
_MODULE = re.compile(
    r"(?:python|(?:ana|mini)?conda|miniforge|(?:micro)?mamba(?:forge)?)[0-9]*(?:[/.].*)?",
    re.IGNORECASE | re.DOTALL,
)
_INITIALISERS = frozenset(
    {".bashrc", ".bash_profile", ".bash_login", ".profile", "profile", "bashrc", "bash.bashrc"}
    | {".zshrc", ".zshenv", ".zprofile", ".zlogin", ".kshrc"}
    | {"conda.sh", "mamba.sh", "micromamba.sh"}
)


class _Script(msgspec.Struct, frozen=True):
    """A script, and what it is held to.

    Attributes:
        where: its name.
        prefixes: those whose programs it may call.
        allowed: folders that temporary files and caches may lie in; any where empty.
    """

    where: str
    prefixes: Sequence[Path]
    allowed: Sequence[Path]

    def place(self, word: Token) -> str:
        """Name the line of a word."""
        return f"{self.where}:{word.line}"


def script(
    text: str, *, where: str, prefixes: Sequence[Path], allowed: Sequence[Path] = ()
) -> Iterator[Finding]:
    """Yield what in a job's shell script does not call programs as jobs should (R001 to R003).

    Bodies of here-documents are not looked at, strings that a shell is given to run are. Of a
    script for another program than a shell, only the first line is looked at.

    Args:
        text: the script, of any content.
        where: its name; findings add the line, counted from 1.
        prefixes: those whose programs it may call.
        allowed: folders that temporary files and caches may lie in; any where empty.
    """
    held = _Script(where, prefixes, allowed)
    # as shells do, which pass over them
    text = text.replace("\0", "")
    first = text.partition("\n")[0]
    if first.startswith("#!"):
        words = [Token(word, 1) for word in first[2:].split()]
        yield from _command(words, held, 0)
        if not any(_name(word.text) in _SHELLS for word in words):
            return
    yield from _text(text, held, 1, 0)


def _text(text: str, held: _Script, first: int, depth: int) -> Iterator[Finding]:
    """Yield what is wrong in a script, or in a string that is one, in the order of its lines."""
    found = [
        [msgspec.structs.replace(word, line=word.line + first - 1) for word in words]
        for tokens in shell.Lexer(text).lists
        for words in shell.commands(tokens)
    ]
    for words in sorted(found, key=lambda words: words[0].line):
        yield from _command(words, held, depth)


def _command(words: Sequence[Token], held: _Script, depth: int) -> Iterator[Finding]:
    """Yield what is wrong with a simple command, whatever programs it is started by."""
    while words:
        wrapper = _WRAPPERS.get(_name(words[0].text))
        if _ASSIGNMENT.fullmatch(words[0].text):
            yield from _assignment(words[0], held)
            words = words[1:]
        elif wrapper:
            words = wrapper.inner(words[1:])
        else:
            break
    if words:
        yield from _called(words, held)
        yield from _prepared(words, held)
        yield from _variables(words, held)
        yield from _strings(words, held, depth)


def _called(words: Sequence[Token], held: _Script) -> Iterator[Finding]:
    """Yield that a program of a prefix is called, but not by its absolute path (R002)."""
    head = words[0].text
    name = _name(head)
    if _PROGRAM.fullmatch(name) is None or head[0] in "/~" or "$" in head:
        return
    paths = _paths(held, name)
    how = "its bare name" if head == name else "a relative path"
    yield Finding(
        "R002",
        "error",
        where=held.place(words[0]),
        message=f"{name} is called by {how}",
        expected=_either(paths),
        found=_shown(head),
        mend=f"write {paths[0]}" if len(paths) == 1 else "write the path of the prefix it is for",
    )


def _prepared(words: Sequence[Token], held: _Script) -> Iterator[Finding]:
    """Yield that the shell is prepared to find an interpreter by itself (R002)."""
    for message, found in _preparations([word.text for word in words]):
        yield Finding(
            "R002",
            "error",
            where=held.place(words[0]),
            message=message,
            expected="programs called by absolute paths, such as "
            + _either(_paths(held, "python")),
            found=_shown(found),
            mend="remove it",
        )


def _preparations(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield what prepares the shell, and the words by which it does; none that may be a secret."""
    name, arguments = _name(words[0]), words[1:]
    action = next((one for one in arguments if not one.startswith("-")), "")
    if name in {"source", "."} and arguments:
        found = f"{name} {arguments[0]}"
        if _name(arguments[0]) == "activate":
            yield "an environment is activated", found
        elif _name(arguments[0]) in _INITIALISERS:
            yield "a shell initialiser is read", found
    elif name in _CONDA and action in {"activate", "run"}:
        yield "an environment is activated", f"{name} {action}"
    elif name in _CONDA and (action in {"init", "shell"} or action.startswith("shell.")):
        yield f"{name} is set up in the shell", f"{name} {action}"
    elif name in _RUNNERS and action == "run":
        yield f"an interpreter is chosen by {name}", f"{name} run"
    elif name == "pyenv" and action in {"init", "virtualenv-init", "activate", "shell"}:
        yield "pyenv is set up in the shell", f"pyenv {action}"
    elif name in {"module", "ml"} and (name == "ml" or action in {"load", "add"}):
        for one in arguments:
            if _MODULE.fullmatch(one):
                yield "an interpreter is taken from environment modules", f"{name} load {one}"
    elif name in _SHELLS:
        for option in _shell_options(arguments):
            if re.fullmatch(r"--login|-[A-Za-z]*[li][A-Za-z]*", option):
                found = f"{name} {option}"
                yield "a shell is started that reads its initialisers", found


def _either(paths: Sequence[str]) -> str:
    """Name a few paths: a site can have ten."""
    if len(paths) <= _NAMED:
        return " or ".join(paths)
    return f"{paths[0]}, or that of another environment"


def _paths(held: _Script, program: str) -> list[str]:
    return [f"{prefix}/bin/{program}" for prefix in held.prefixes] or [f"PREFIX/bin/{program}"]


def _shell_options(arguments: Sequence[str]) -> list[str]:
    """Return the options that a shell is started with, and their values."""
    options: list[str] = []
    for argument in arguments:
        valued = bool(options) and re.fullmatch(_VALUED, options[-1])
        if not valued and not argument.startswith(("-", "+")):
            break
        options.append(argument)
    return options


def _strings(words: Sequence[Token], held: _Script, depth: int) -> Iterator[Finding]:
    """Yield what is wrong in strings that are run as scripts."""
    arguments = words[1:]
    if depth == _DEEPEST_STRING or not arguments:
        return
    if words[0].text == "eval":
        text = " ".join(word.text for word in arguments)
        yield from _text(text, held, arguments[0].line, depth + 1)
    elif _name(words[0].text) in _SHELLS:
        options = _shell_options([word.text for word in arguments])
        if any(re.fullmatch(r"-[A-Za-z]*c[A-Za-z]*", option) for option in options):
            for word in arguments[len(options) :][:1]:
                yield from _text(word.text, held, word.line, depth + 1)


def _variables(words: Sequence[Token], held: _Script) -> Iterator[Finding]:
    """Yield variables that a command of the shell itself sets, or takes away."""
    name, arguments = words[0].text, words[1:]
    if name in _DECLARING:
        for word in arguments:
            yield from _assignment(word, held)
    elif name == "unset" and arguments[:1] and arguments[0].text != "-f":
        for word in arguments:
            if word.text == "PYTHONNOUSERSITE":
                yield _user_site("unset PYTHONNOUSERSITE", held.place(word))


def _assignment(word: Token, held: _Script) -> Iterator[Finding]:
    """Yield that a variable is set to what it must not be (R001, R003)."""
    match = _ASSIGNMENT.fullmatch(word.text)
    if match is None:
        return
    name, value, where = match["name"], match["value"], held.place(word)
    if name == "PYTHONNOUSERSITE" and not value:
        yield _user_site("set to nothing", where)
    elif name in _REDIRECTING and value:
        yield _redirected(name, value, where)
    elif name in CACHES and value and value[0] not in "$~":
        if "$" not in value:
            yield from cache(name, value, held.allowed, where)
        elif not _may_become(value, held.allowed):
            message = f"{name} lies where the site does not allow it"
            yield from _misplaced(message, name, _shown(value), held.allowed, where)


def _may_become(value: str, allowed: Sequence[Path]) -> bool:
    """Whether a path with expansions in it may lie in an allowed folder, for all that is known."""
    certain = real(value.partition("$")[0].rpartition("/")[0] or "/")
    return not value.startswith("/") or any(
        certain.is_relative_to(folder) or folder.is_relative_to(certain)
        for folder in map(real, allowed)
    )
