"""The words of a shell script's commands, without running it (POSIX.1-2024, XCU 2; bash(1))."""

from __future__ import annotations

import bisect
import itertools
import re
from collections.abc import Iterable, Iterator

import msgspec

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

# deeper than people write, and far from Python's limit
_DEEPEST = 40


class Token(msgspec.Struct, frozen=True):
    """A word of a script without its quotes, or an operator.

    Attributes:
        text: what it is; expansions stand in it as they are written, commands in it as ``$()``.
        line: where it begins, counted from 1.
        operator: whether it is one.
    """

    text: str
    line: int
    operator: bool = False


class Lexer:
    """Splits a script into lists of tokens: its own, and one for each command in a word.

    `shlex` does not do: it takes ``${a#b}`` for a comment, and for it a quoted ``;`` is like any
    other. Nothing is refused: what is not closed ends with the text.

    Source: POSIX.1-2024, Shell Command Language, 2.3; bash(1).
    """

    def __init__(self, text: str) -> None:
        self.lists: list[list[Token]] = []
        self._text = text
        self._at = 0
        self._depth = 0
        self._line_ends = [match.start() for match in re.finditer("\n", text)]
        self._here: list[tuple[str, bool]] = []
        self.lists.append(self._list(""))

    def _list(self, end: str) -> list[Token]:
        """Read up to the character that ends a list of commands, and over it."""
        tokens: list[Token] = []
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
                tokens.append(Token("$()", line))
            elif arithmetic := _ARITHMETIC.match(self._text, start):
                self._at = arithmetic.end()
                tokens.append(Token("$(())", line))
            elif operator:
                self._at = operator.end()
                opened += {"(": 1, ")": -1 if opened else 0}.get(char, 0)
                if char in "<>" and glued == start and tokens[-1].text.isdigit():
                    tokens.pop()  # the number of a file descriptor
                self._operator(operator[0], line, end, tokens)
            else:
                tokens.append(Token(self._word(end), line))
                glued = self._at
        return tokens

    def _operator(self, operator: str, line: int, end: str, tokens: list[Token]) -> None:
        if operator in _HERE_DOCUMENT:
            while self._at < len(self._text) and self._text[self._at] in _BLANK:
                self._at += 1
            self._here.append((self._word(end), operator == "<<-"))
            return
        tokens.append(Token(operator, line, operator=True))
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


def commands(tokens: Iterable[Token]) -> Iterator[list[Token]]:
    """Yield the words of each simple command, without redirections and reserved words."""
    words: list[Token] = []
    target = pattern = False
    cases = 0
    for token in itertools.chain(tokens, [Token("\n", 0, operator=True)]):
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
