"""
The functions of a package as tokens: what comments, line breaks and spaces do not change.

Python and Lua alike. An f-string is as many tokens as it has words and signs, since names stand in
it as well.
"""

from __future__ import annotations

import ast
import builtins
import keyword
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Self

#: Names that mean the same everywhere, in a language.
FIXED = {
    ".py": {*keyword.kwlist, *keyword.softkwlist, *dir(builtins), "self", "cls"},
    ".lua": {
        *("and", "do", "else", "elseif", "end", "false", "for", "function", "if", "in", "local"),
        *("nil", "not", "or", "repeat", "return", "then", "true", "until", "while"),
        *("ipairs", "math", "pairs", "redis", "string", "table", "tonumber", "tostring", "unpack"),
    },
}

_STRING = r"'''(?s:.*?)'''|\"\"\"(?s:.*?)\"\"\"|'(?:\\.|[^'\\\n])*'|\"(?:\\.|[^\"\\\n])*\""
_SIGN = r"==|~=|!=|<=|>=|->|:=|\*\*|//|\.\.|[-+*/%&|^]=|\S"
_TOKEN = {
    ".py": re.compile(rf"#.*|[bBrRfFuU]{{0,2}}(?:{_STRING})|\w+|{_SIGN}"),
    ".lua": re.compile(rf"--.*|(?:{_STRING})|\w+|{_SIGN}"),
}
_COMMENT = {".py": "#", ".lua": "--"}
#: Of an f-string: how it begins, a conversion, how a value is formatted, a word, a sign.
_PIECE = re.compile(r"(?:\b[bBrRfF]{1,2})?[\"']+|![rsa](?=[:}])|:[^{}\s]*(?=\})|\w+|\S")
_FORMATTED = re.compile(r"[bBrR]?[fF][bBrR]?[\"']")
_LUA_FUNCTION = re.compile(r"^local function (?P<name>\w+)\(.*?^end$", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Token:
    """A token, where it stands in its file, and whether it is a name that the program chooses."""

    text: str
    start: int
    end: int
    may_be_renamed: bool


def tokens_of(text: str, suffix: str, start: int = 0) -> list[Token]:
    """Return the tokens of a piece of a program, without a comma that ends a list of lines."""
    found: list[Token] = []
    for token in _tokens(text, suffix, start):
        if found and found[-1].text == "," and token.text in ")]}":
            found.pop()
        found.append(token)
    return found


def _tokens(text: str, suffix: str, start: int) -> Iterator[Token]:
    for match in _TOKEN[suffix].finditer(text):
        if match[0].startswith(_COMMENT[suffix]):
            continue
        pieces = _PIECE.finditer(match[0]) if _FORMATTED.match(match[0]) else [match]
        offset = start + (match.start() if pieces != [match] else 0)
        for piece in pieces:
            text, is_name = piece[0], piece[0].isidentifier() and piece[0] not in FIXED[suffix]
            yield Token(text, offset + piece.start(), offset + piece.end(), is_name)


@dataclass(frozen=True)
class Region:
    """
    A function, a class, a constant, or a whole file.

    Attributes:
        path: its file, from the top of the package.
        name: with the class that it is in; empty for a file.
        source: the text of the file.
        start: where it begins in the file.
        end: where it ends.
    """

    path: str
    name: str
    source: str
    start: int
    end: int

    @cached_property
    def tokens(self) -> list[Token]:
        """Return its tokens."""
        return tokens_of(self.source[self.start : self.end], Path(self.path).suffix, self.start)

    @property
    def last_name(self) -> str:
        """Return its name without that of its class."""
        return self.name.rpartition(".")[2]


class Package:
    """
    The regions of all files of a package.

    Attributes:
        sources: the text of each file.
        files: each file as a region.
        regions: what is in them.
    """

    def __init__(self, sources: Mapping[str, str]) -> None:
        self.sources = sources
        self.files = [Region(path, "", text, 0, len(text)) for path, text in sources.items()]
        self.regions = [region for file in self.files for region in _regions_in(file)]

    @classmethod
    def at(cls, top: Path) -> Self:
        """Read the files below a directory."""
        paths = sorted(path for path in top.rglob("*") if path.suffix in _TOKEN)
        return cls({str(path.relative_to(top)): path.read_text() for path in paths})


@cache
def _regions_in(file: Region) -> tuple[Region, ...]:
    return tuple(_found_in(file))


def _found_in(file: Region) -> Iterator[Region]:
    if file.path.endswith(".lua"):
        for match in _LUA_FUNCTION.finditer(file.source):
            yield Region(file.path, match["name"], file.source, *match.span())
        return
    starts = [0]
    for line in file.source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    for name, first, last in _named(ast.parse(file.source), ""):
        yield Region(file.path, name, file.source, starts[first - 1], starts[last])


def _named(node: ast.AST, prefix: str, *, is_local: bool = False) -> Iterator[tuple[str, int, int]]:
    """Give each function, class and constant, with its first and last line."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            first = min([child.lineno, *(one.lineno for one in child.decorator_list)])
            yield prefix + child.name, first, child.end_lineno or first
            is_class = isinstance(child, ast.ClassDef)
            yield from _named(child, f"{prefix}{child.name}.", is_local=not is_class)
        elif isinstance(child, ast.Assign | ast.AnnAssign) and not is_local:
            targets = child.targets if isinstance(child, ast.Assign) else [child.target]
            for target in targets:
                if isinstance(target, ast.Name):
                    yield prefix + target.id, child.lineno, child.end_lineno or child.lineno
        elif isinstance(child, ast.stmt):
            yield from _named(child, prefix, is_local=is_local)
