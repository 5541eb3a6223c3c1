"""What runs in a prefix: its variables, the scripts that start it, and credentials (R001 to R004).

Values in, findings out. A finding about a script shows the words that it is about and no more, and
one about credentials the name of a variable: what else stands there may be a secret.
"""

from __future__ import annotations

import bisect
import itertools
import json
import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal
from urllib.parse import quote

import msgspec

from envbuild.errors import InputError
from envbuild.findings import Finding

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

# shorter values stand in many files that know nothing of them
_SHORTEST_SECRET = 8

_CHUNK = 1 << 20


# The environment of a process


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
            yield from _cache(name, value, allowed, where)
    if not variables.get("PYTHONNOUSERSITE"):
        found = "set to nothing" if "PYTHONNOUSERSITE" in variables else "not set"
        yield _user_site(found, where)
    for name in _REDIRECTING:
        value = variables.get(name, "")
        if value:
            yield _redirected(name, value, where)


def _cache(name: str, value: str, allowed: Sequence[Path], where: str) -> Iterator[Finding]:
    """Yield that a folder is none of the allowed ones, whatever links it is written with."""
    if not value.startswith("/"):
        message = f"{name} names a folder by a relative path"
        yield from _misplaced(message, name, _shown(value), allowed, where)
        return
    real = _real(value)
    if any(real.is_relative_to(_real(folder)) for folder in allowed):
        return
    linked = "" if str(real) == os.path.normpath(value) else f", which is {_shown(str(real))}"
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
        message="PYTHONNOUSERSITE is not set: modules are imported from ~/.local",
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


def _real(path: str | Path) -> Path:
    try:
        real = os.path.realpath(path)
    except ValueError:
        # characters that no file's name can have
        real = os.path.normpath(path)
    # two slashes at the beginning are a root of their own for `Path`, but not for Linux
    return Path(re.sub(r"\A//", "/", real))


def _name(path: str) -> str:
    return path.rpartition("/")[2]


def _shown(text: str) -> str:
    """Return a text in one line."""
    return text if text.isprintable() else repr(text)


# Scripts: what their commands are

_SHELLS = frozenset({"sh", "bash", "dash", "ksh", "zsh"})

_BLANK = " \t\r"
_OPERATOR = re.compile(r";;&|;;|;&|&&|\|\||\|&|&>>|&>|<<<|<<-|<<|<>|<&|>>|>\||>&|[\n;&|()<>]")
_REDIRECTION = frozenset({"&>>", "&>", "<<<", "<>", "<&", ">>", ">|", ">&", "<", ">"})
_HERE_DOCUMENT = frozenset({"<<", "<<-"})
_PLAIN = re.compile(r"[^\s\\'\"`$;&|()<>]+")
_ANSI_C = re.compile(r"\$'(?:[^'\\]|\\.)*(?:'|\Z)", re.DOTALL)
_ARITHMETIC = re.compile(r"\$?\(\([^\n]*?\)\)")

# what a backslash quotes inside of double quotes
_ESCAPED = '$`"\\\n'

# what stands before a command without being one
_RESERVED = frozenset(
    {"if", "then", "elif", "else", "fi", "while", "until", "do", "done", "coproc", "!", "{", "}"}
)

# options of shells that the next word belongs to
_VALUED = r"[-+][A-Za-z]*[oO]|--rcfile|--init-file"

# deeper than people write, and far from Python's limit
_DEEPEST = 40
_DEEPEST_STRING = 5


class _Token(msgspec.Struct, frozen=True):
    """A word of a script without its quotes, or an operator.

    Attributes:
        text: what it is; expansions stand in it as they are written, commands in it as ``$()``.
        line: where it begins, counted from 1.
        operator: whether it is one.
    """

    text: str
    line: int
    operator: bool = False


class _Lexer:
    """Splits a script into lists of tokens: its own, and one for each command in a word.

    `shlex` does not do: it takes ``${a#b}`` for a comment, and for it a quoted ``;`` is like any
    other. Nothing is refused: what is not closed ends with the text.

    Source: POSIX.1-2024, Shell Command Language, 2.3; bash(1).
    """

    def __init__(self, text: str) -> None:
        self.lists: list[list[_Token]] = []
        self._text = text
        self._at = 0
        self._depth = 0
        self._line_ends = [match.start() for match in re.finditer("\n", text)]
        self._here: list[tuple[str, bool]] = []
        self.lists.append(self._list(""))

    def _list(self, end: str) -> list[_Token]:
        """Read up to the character that ends a list of commands, and over it."""
        tokens: list[_Token] = []
        opened = 0
        glued = -1
        while self._at < len(self._text):
            start, line = self._at, self._line()
            char = self._text[start]
            operator = _OPERATOR.match(self._text, start)
            if char == end and (char == "`" or not opened):
                self._at += 1
                break
            if char in _BLANK:
                self._at += 1
            elif self._text.startswith("\\\n", start):
                self._at += 2
            elif char == "#":
                self._at = self._line_end()
            elif self._text.startswith(("<(", ">("), start):
                self._at += 1
                if not self._nested(")"):
                    self._at += 1
                tokens.append(_Token("$()", line))
            elif arithmetic := _ARITHMETIC.match(self._text, start):
                self._at = arithmetic.end()
                tokens.append(_Token("$(())", line))
            elif operator:
                self._at = operator.end()
                opened += {"(": 1, ")": -1 if opened else 0}.get(char, 0)
                if char in "<>" and glued == start and tokens[-1].text.isdigit():
                    tokens.pop()  # the number of a file descriptor
                self._operator(operator[0], line, end, tokens)
            else:
                tokens.append(_Token(self._word(end), line))
                glued = self._at
        return tokens

    def _operator(self, operator: str, line: int, end: str, tokens: list[_Token]) -> None:
        if operator in _HERE_DOCUMENT:
            while self._at < len(self._text) and self._text[self._at] in _BLANK:
                self._at += 1
            self._here.append((self._word(end), operator == "<<-"))
            return
        tokens.append(_Token(operator, line, operator=True))
        if operator == "\n":
            for word, indented in self._here:
                self._skip_here_document(word, indented)
            self._here.clear()

    def _skip_here_document(self, word: str, indented: bool) -> None:
        while self._at < len(self._text):
            line = self._text[self._at : self._line_end()]
            self._at = min(self._line_end() + 1, len(self._text))
            if (line.lstrip("\t") if indented else line).rstrip("\r") == word:
                return

    def _word(self, end: str) -> str:
        parts: list[str] = []
        while self._at < len(self._text):
            char = self._text[self._at]
            if plain := _PLAIN.match(self._text, self._at):
                self._at = plain.end()
                parts.append(plain[0])
            elif char == "\\":
                escaped = self._text[self._at + 1 : self._at + 2]
                self._at += 2
                parts.append("" if escaped == "\n" else escaped)
            elif char == "'":
                parts.append(self._single())
            elif char == '"':
                parts.append(self._double())
            elif char == "$":
                parts.append(self._dollar())
            elif char == "`" and end != "`":
                parts.append(self._backquoted())
            elif char == "(" and parts and parts[-1].endswith(("=", *"?*+@!")):
                # an array, or a pattern: no commands, but those in its words
                if not self._nested(")", listed=False):
                    break
                parts.append("()")
            elif char.isspace() and char not in f"{_BLANK}\n":
                self._at += 1
                parts.append(char)
            else:
                break
        return "".join(parts)

    def _single(self) -> str:
        start = self._at + 1
        close = self._text.find("'", start)
        close = len(self._text) if close < 0 else close
        self._at = close + 1
        return self._text[start:close]

    def _double(self) -> str:
        parts: list[str] = []
        self._at += 1
        while self._at < len(self._text):
            char = self._text[self._at]
            if char == '"':
                self._at += 1
                break
            if char == "\\":
                escaped = self._text[self._at + 1 : self._at + 2]
                self._at += 2
                kept = "" if escaped in _ESCAPED else "\\"
                parts.append("" if escaped == "\n" else kept + escaped)
            elif char == "$":
                parts.append(self._dollar(quoted=True))
            elif char == "`":
                parts.append(self._backquoted())
            else:
                self._at += 1
                parts.append(char)
        return "".join(parts)

    def _dollar(self, *, quoted: bool = False) -> str:
        after = self._text[self._at + 1 : self._at + 2]
        if arithmetic := _ARITHMETIC.match(self._text, self._at):
            self._at = arithmetic.end()
            return "$(())"
        ansi_c = None if quoted else _ANSI_C.match(self._text, self._at)
        if ansi_c:
            self._at = ansi_c.end()
            return ansi_c[0][2:].removesuffix("'")
        self._at += 1
        if after == "(" and self._nested(")"):
            return "$()"
        if after == "{":
            return self._braces()
        # before a quote it asks for a translation
        return "" if after == '"' and not quoted else "$"

    def _braces(self) -> str:
        start, opened = self._at - 1, 0
        while self._at < len(self._text):
            char = self._text[self._at]
            if char == "$" and self._text[self._at + 1 : self._at + 2] == "(":
                self._at += 1
                self._at += 0 if self._nested(")") else 1
                continue
            self._at += 2 if char == "\\" else 1
            opened += {"{": 1, "}": -1}.get(char, 0)
            if not opened:
                break
        return self._text[start : self._at]

    def _backquoted(self) -> str:
        if not self._nested("`"):
            self._at += 1
        return "$()"

    def _nested(self, end: str, *, listed: bool = True) -> bool:
        """Read a list of commands that opens here; False, and nothing read, where too deep."""
        if self._depth == _DEEPEST:
            return False
        self._depth += 1
        self._at += 1
        tokens = self._list(end)
        if listed:
            self.lists.append(tokens)
        self._depth -= 1
        return True

    def _line(self) -> int:
        return bisect.bisect_left(self._line_ends, self._at) + 1

    def _line_end(self) -> int:
        index = bisect.bisect_left(self._line_ends, self._at)
        return self._line_ends[index] if index < len(self._line_ends) else len(self._text)


def _commands(tokens: Iterable[_Token]) -> Iterator[list[_Token]]:
    """Yield the words of each simple command, without redirections and reserved words."""
    words: list[_Token] = []
    target = pattern = False
    cases = 0
    for token in itertools.chain(tokens, [_Token("\n", 0, operator=True)]):
        text = token.text
        if not token.operator:
            if target:
                target = False
            elif pattern or not words:
                if text == "esac":
                    cases, pattern = max(cases - 1, 0), False
                elif not pattern and text not in _RESERVED:
                    words.append(token)
            elif words[0].text == "function" and text == "{":
                words = []
            elif words[0].text == "case" and text == "in" and len(words) > 1:
                cases, pattern, words = cases + 1, True, []
            else:
                words.append(token)
        elif pattern:
            pattern = text != ")"
        elif words and words[0].text == "[[" and words[-1].text != "]]" and text != "\n":
            continue  # in a test they compare
        elif text in _REDIRECTION:
            target = True
        else:
            # a name and a parenthesis begin a function
            if words and text != "(":
                yield words
            words = []
            pattern = bool(cases) and text in {";;", ";&", ";;&"}


# Scripts: what is wrong with their commands


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

    def inner(self, words: Sequence[_Token]) -> Sequence[_Token]:
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

_ASSIGNMENT = re.compile(r"(?P<name>[A-Za-z_][A-Za-z0-9_]*)\+?=(?P<value>.*)", re.DOTALL)
_DECLARING = frozenset({"export", "declare", "typeset", "readonly", "local"})
_PROGRAM = re.compile(r"(?:(?:python|pip)[0-9.]*|torchrun|accelerate|deepspeed|ipython3?)")
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

    def place(self, word: _Token) -> str:
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
        words = [_Token(word, 1) for word in first[2:].split()]
        yield from _command(words, held, 0)
        if not any(_name(word.text) in _SHELLS for word in words):
            return
    yield from _text(text, held, 1, 0)


def _text(text: str, held: _Script, first: int, depth: int) -> Iterator[Finding]:
    """Yield what is wrong in a script, or in a string that is one, in the order of its lines."""
    commands = [
        [msgspec.structs.replace(word, line=word.line + first - 1) for word in words]
        for tokens in _Lexer(text).lists
        for words in _commands(tokens)
    ]
    for words in sorted(commands, key=lambda words: words[0].line):
        yield from _command(words, held, depth)


def _command(words: Sequence[_Token], held: _Script, depth: int) -> Iterator[Finding]:
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


def _called(words: Sequence[_Token], held: _Script) -> Iterator[Finding]:
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
        expected=" or ".join(paths),
        found=_shown(head),
        mend=f"write {paths[0]}" if len(paths) == 1 else "write the path of the prefix it is for",
    )


def _prepared(words: Sequence[_Token], held: _Script) -> Iterator[Finding]:
    """Yield that the shell is prepared to find an interpreter by itself (R002)."""
    for message, found in _preparations([word.text for word in words]):
        yield Finding(
            "R002",
            "error",
            where=held.place(words[0]),
            message=message,
            expected="programs called by absolute paths, such as "
            + " or ".join(_paths(held, "python")),
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


def _strings(words: Sequence[_Token], held: _Script, depth: int) -> Iterator[Finding]:
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


def _variables(words: Sequence[_Token], held: _Script) -> Iterator[Finding]:
    """Yield variables that a command of the shell itself sets, or takes away."""
    name, arguments = words[0].text, words[1:]
    if name in _DECLARING:
        for word in arguments:
            yield from _assignment(word, held)
    elif name == "unset" and arguments[:1] and arguments[0].text != "-f":
        for word in arguments:
            if word.text == "PYTHONNOUSERSITE":
                yield _user_site("unset PYTHONNOUSERSITE", held.place(word))


def _assignment(word: _Token, held: _Script) -> Iterator[Finding]:
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
            yield from _cache(name, value, held.allowed, where)
        elif not _may_become(value, held.allowed):
            message = f"{name} lies where the site does not allow it"
            yield from _misplaced(message, name, _shown(value), held.allowed, where)


def _may_become(value: str, allowed: Sequence[Path]) -> bool:
    """Whether a path with expansions in it may lie in an allowed folder, for all that is known."""
    certain = _real(value.partition("$")[0].rpartition("/")[0] or "/")
    return not value.startswith("/") or any(
        certain.is_relative_to(folder) or folder.is_relative_to(certain)
        for folder in map(_real, allowed)
    )


# Credentials


def credentials(
    folder: Path, env_file: Path, *, mode: int, owner: int, repository: Path
) -> Iterator[Finding]:
    """Yield what exposes the personal folder, or its file of variables (R004).

    What is not there, or cannot be seen, is passed over.

    Args:
        folder: the personal folder.
        env_file: the file, relative to the folder or absolute.
        mode: permissions that the folder has at most.
        owner: the number of the user who both belong to.
        repository: the repository's folder, which neither may lie in.
    """
    yield from _exposed("folder", folder, mode, owner, repository)
    yield from _exposed("file", folder / env_file, 0o600, owner, repository)


def _exposed(
    kind: Literal["folder", "file"], path: Path, mode: int, owner: int, repository: Path
) -> Iterator[Finding]:
    try:
        status = path.stat()
    except OSError:
        return

    def finding(message: str, expected: str, found: str, mend: str) -> Finding:
        return Finding("R004", "error", str(path), message, expected, found, mend)

    seen = stat.S_IMODE(status.st_mode)
    # a file that its owner can run is no secret told
    if seen & ~mode & (0o7777 if kind == "folder" else 0o077):
        yield finding(
            f"the personal {kind} is open to others",
            f"mode {mode:04o} or stricter",
            f"mode {seen:04o}",
            f"run `chmod {mode:04o} {path}`",
        )
    if status.st_uid != owner:
        yield finding(
            f"the personal {kind} belongs to another user",
            f"owner {owner}",
            f"owner {status.st_uid}",
            "run this as its owner, or name a folder of your own",
        )
    # a link in the repository publishes where it leads, and one out of sight may lead into it
    places = [_absolute(path), _real(path)]
    inside = [place for place in places if _lies_in(place, repository)]
    if inside:
        yield finding(
            f"the personal {kind} lies in the repository",
            f"a {kind} outside of {repository}",
            str(inside[-1]),
            "move it to where nothing is published",
        )


def _lies_in(place: Path, folder: Path) -> bool:
    return place.is_relative_to(_absolute(folder)) or place.is_relative_to(_real(folder))


def _absolute(path: Path) -> Path:
    """Make a path absolute, without ``.`` and ``..``; links in it stay."""
    return Path(os.path.normpath(path.absolute()))


_ENTRY = re.compile(
    r"""
    ^ [^\S\n]* (?: export [^\S\n]+ )? (?P<name> [A-Za-z_][A-Za-z0-9_]* ) [^\S\n]* = [^\S\n]*
    (?: '(?P<single> [^']* )' | "(?P<double> (?: [^"\\] | \\. )* )" | (?P<bare> [^\n]*? ) )
    (?: [^\S\n]+ \#[^\n]* )? [^\S\n]* $
    """,
    re.VERBOSE | re.MULTILINE | re.DOTALL,
)


def read_secrets(env_file: Path) -> dict[str, str]:
    """Read lines of ``NAME=VALUE``, with or without ``export``, quotes and comments.

    What is no such line is passed over; of several values for a name the last one counts.

    Raises:
        InputError: the file cannot be read. What stands in it is in no message.
    """
    try:
        data = env_file.read_bytes()
    except OSError as error:
        raise InputError(f"credentials cannot be read: {error.strerror}", where=env_file) from error
    text = data.decode("utf-8", "surrogateescape").removeprefix("\ufeff").replace("\r\n", "\n")
    return {match["name"]: _value(match) for match in _ENTRY.finditer(text)}


def _value(match: re.Match[str]) -> str:
    if match["double"] is not None:
        return re.sub(r'\\(["\\$`])', r"\1", match["double"])
    return str(match["bare"] if match["single"] is None else match["single"])


def leaks(secrets: Mapping[str, str], files: Iterable[Path]) -> Iterator[Finding]:
    """Yield files in which, or in whose names, a credential stands (R004).

    Values are looked for as they are, and as JSON and URLs have them. Values of less than eight
    characters are not looked for, nor paths of what there is, such as a CA bundle: neither is a
    secret.

    Args:
        secrets: values by the names of their variables. No value gets into a finding.
        files: what is looked through; what is gone or is no file is passed over.
    """
    forms = _forms(secrets)
    for path in files if forms else ():
        where = _redacted(str(path), forms)
        for name in _standing_in(os.fsencode(path), forms):
            yield _leak(f"the value of {name} stands in the name of this file", where)
        try:
            offsets = _offsets(path, forms)
        except FileNotFoundError:
            continue
        except OSError as error:
            yield _unread(where, error)
            continue
        for name, offset in offsets.items():
            message = f"the value of {name} stands in this file"
            yield _leak(message, where, found=f"at byte {offset}")


def arguments(secrets: Mapping[str, str], cmdline: Sequence[str], where: str) -> Iterator[Finding]:
    """Yield arguments of a process in which a credential stands: every user sees them (R004).

    Args:
        secrets: as for `leaks`.
        cmdline: the program and its arguments.
        where: the process.
    """
    forms = _forms(secrets)
    for index, argument in enumerate(cmdline):
        for name in _standing_in(argument.encode("utf-8", "surrogateescape"), forms):
            message = f"the value of {name} stands in an argument, which every user can see"
            yield _leak(message, _redacted(where, forms), found=f"in argument {index}")


def _leak(message: str, where: str, found: str | None = None) -> Finding:
    return Finding(
        "R004",
        "error",
        where=where,
        message=message,
        expected="credentials in the personal folder alone",
        found=found,
        mend="take it out, and have a new one issued: this one is known",
    )


def _unread(where: str, error: OSError) -> Finding:
    return Finding(
        "R004",
        "warning",
        where=where,
        message="this file was not looked through for credentials",
        expected="a file that can be read",
        found=error.strerror or type(error).__name__,
        mend="check again as a user who may read it",
    )


def _forms(secrets: Mapping[str, str]) -> dict[str, tuple[bytes, ...]]:
    """Return what is looked for, by the names of variables in their order."""
    forms: dict[str, tuple[bytes, ...]] = {}
    for name, value in sorted(secrets.items()):
        if len(value) < _SHORTEST_SECRET or _is_there(value):
            continue
        data = value.encode("utf-8", "surrogateescape")
        json_form = json.dumps(value, ensure_ascii=False)[1:-1].encode("utf-8", "surrogateescape")
        written = (data, json_form, quote(data, safe="").encode(), quote(data).encode())
        forms[name] = tuple(dict.fromkeys(written))
    return forms


def _is_there(value: str) -> bool:
    """Whether a value is the absolute path of something."""
    try:
        return value.startswith("/") and bool(Path(value).lstat())
    except (OSError, ValueError):
        return False


def _standing_in(data: bytes, forms: Mapping[str, Sequence[bytes]]) -> list[str]:
    return [name for name, written in forms.items() if any(form in data for form in written)]


def _redacted(text: str, forms: Mapping[str, Sequence[bytes]]) -> str:
    data = text.encode("utf-8", "surrogateescape")
    # the longest first, lest a part of it be taken out and the rest shown
    for form in sorted(itertools.chain(*forms.values()), key=len, reverse=True):
        data = data.replace(form, b"***")
    return data.decode("utf-8", "surrogateescape")


def _offsets(path: Path, forms: Mapping[str, Sequence[bytes]]) -> dict[str, int]:
    """Return where in a file each value stands first, by the names of variables.

    Raises:
        OSError: the file cannot be read.
    """
    if not stat.S_ISREG(path.stat().st_mode):
        # to open a pipe is to wait for somebody who writes to it
        return {}
    found: dict[str, int] = {}
    overlap = max(len(form) for written in forms.values() for form in written) - 1
    begin, kept = 0, b""
    with path.open("rb") as stream:
        # logs may be larger than the memory
        while chunk := stream.read(_CHUNK):
            window = kept + chunk
            for name, written in forms.items():
                at = min((at for form in written if (at := window.find(form)) >= 0), default=-1)
                if name not in found and at >= 0:
                    found[name] = begin + at
            kept = window[-overlap:]
            begin += len(window) - len(kept)
    return {name: found[name] for name in forms if name in found}
