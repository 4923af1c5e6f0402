"""
The words of the house: what the glossary defines and forbids, and where a text goes against it.

`python -m tests.docs.words [PATH ...]` lists every finding with its file and line.
"""

from __future__ import annotations

import io
import re
import sys
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.docs.blocks import DOCS, ROOT

__all__ = ["GLOSSARY", "Finding", "Term", "findings_in", "forbidden", "terms", "texts"]

GLOSSARY = DOCS / "reference" / "glossary.md"

TERM = re.compile(r"^### (?P<name>.+)\n\n(?P<body>(?:(?!^#).*\n?)+)", re.MULTILINE)
ROW = re.compile(r"^\| (?!not \||--)(?P<words>.+?) \| (?P<instead>.+?) \|$", re.MULTILINE)
CODE = re.compile(r"`([^`]+)`")
BLOCK = re.compile(r"^( *)(```+)(?!\{).*?^\1\2 *$|`[^`]*`", re.DOTALL | re.MULTILINE)
HEADING = re.compile(r"^#+ .*$", re.MULTILINE)
COMMENTED = re.compile(r"<!--.*?-->", re.DOTALL)
#: A sentence that opens with a relative clause makes its reader wait for the subject.
OPENING = re.compile(
    r"(?:\A|\n\s*\n\s*|\n\s*[-*\d.]+\s+|[.!?:]['\")]*[\s#]+|[\"#]\s*)"
    r"((?:So long|So much|Who|Whoever|What)\b[^.?!]*[.?!]?)"
)
#: What separates two words of one phrase: the end of a line, of a comment, or of a string.
BETWEEN = r"[\s\"'#]+"
TEXT_TOKENS = frozenset(
    getattr(tokenize, name)
    for name in ("STRING", "COMMENT", "FSTRING_MIDDLE")
    if hasattr(tokenize, name)
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """
    One entry of the glossary.

    Attributes:
        name: the term.
        text: its definition.
        code: dotted names that the code has for it.
        instead_of: words that no text may use for it.
    """

    name: str
    text: str
    code: tuple[str, ...]
    instead_of: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A forbidden word, its place, and what to write instead."""

    path: Path
    line: int
    word: str
    instead: str

    def __str__(self) -> str:
        shown = self.path.relative_to(ROOT) if self.path.is_relative_to(ROOT) else self.path
        return f"{shown}:{self.line}: {' '.join(self.word.split())!r}: {self.instead}"


@cache
def _glossary() -> str:
    return GLOSSARY.read_text()


def terms(page: str | None = None) -> list[Term]:
    """Return the entries of the glossary, in their order."""
    found = []
    for entry in TERM.finditer(page or _glossary()):
        words, _, rest = entry["body"].partition("\nCode: ")
        code, _, avoided = rest.partition("Not: ")
        found.append(
            Term(
                name=entry["name"],
                text=" ".join(words.split()),
                code=tuple(CODE.findall(code)),
                instead_of=tuple(_listed(avoided)),
            )
        )
    return found


def forbidden(page: str | None = None) -> list[tuple[re.Pattern[str], str]]:
    """Return what no text may have, each with what to write instead, as the glossary has them."""
    page = page or _glossary()
    rows = ROW.finditer(page, max(page.find("| not | but |"), 0))
    listed = [(word, f"write {row['instead']}") for row in rows for word in _listed(row["words"])]
    listed += [(w, f"write {term.name!r}") for term in terms(page) for w in term.instead_of]
    return [(_pattern(word), instead) for word, instead in listed]


def findings_in(path: Path) -> Iterator[Finding]:
    """Yield the forbidden words of a Python file, a Lua script or a Markdown page."""
    text = texts(path)
    if path == GLOSSARY:
        text = _blanked(re.compile(r"^\|.*\|$|Not: [^#]*", re.MULTILINE), text)
    for pattern, instead in _rules():
        for match in pattern.finditer(text):
            yield Finding(
                path=path,
                line=text.count("\n", 0, match.start()) + 1,
                word=match[0],
                instead=instead,
            )
    for match in OPENING.finditer(text):
        if not match[1].endswith("?"):
            line = text.count("\n", 0, match.start(1)) + 1
            yield Finding(
                path=path, line=line, word=match[1][:40], instead="begin with the subject"
            )


def texts(path: Path) -> str:
    """Return a file with everything blank that is not prose; lines stay where they are."""
    source = path.read_text()
    if path.suffix == ".py":
        source = _prose_of(source)
    elif path.suffix == ".lua":
        source = "\n".join(line.partition("--")[2] for line in source.split("\n"))
    else:
        source = _blanked(HEADING, _blanked(COMMENTED, source))
    return _blanked(BLOCK, source)


@cache
def _rules() -> list[tuple[re.Pattern[str], str]]:
    return forbidden()


def _prose_of(source: str) -> str:
    """Return the comments and strings of a Python file."""
    lines = source.splitlines(keepends=True)
    kept = [[c if c == "\n" else " " for c in line] for line in lines]
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type in TEXT_TOKENS:
            (first, start), (last, end) = token.start, token.end
            for row in range(first, last + 1):
                begin = start if row == first else 0
                stop = end if row == last else len(lines[row - 1])
                kept[row - 1][begin:stop] = lines[row - 1][begin:stop]
    return "".join("".join(line) for line in kept)


def _blanked(pattern: re.Pattern[str], text: str) -> str:
    return pattern.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)


def _listed(text: str) -> list[str]:
    return [word for part in text.split(",") if (word := part.strip(' ".\n'))]


def _pattern(word: str) -> re.Pattern[str]:
    # `extend*` is every word that begins so.
    parts = (re.escape(part).replace(r"\*", r"\w*") for part in word.split())
    return re.compile(rf"(?<![\w-]){BETWEEN.join(parts)}(?![\w-])", re.IGNORECASE)


def main(paths: list[str]) -> int:
    """Print the findings in files and folders; return whether there are any, as an exit status."""
    found = 0
    for given in paths or ["celery_redlock", "docs", "README.md"]:
        path = ROOT / given
        files = [path] if path.is_file() else sorted(path.rglob("*.*"))
        for file in files:
            if file.suffix in (".py", ".md", ".lua"):
                for finding in findings_in(file):
                    found += 1
                    print(finding)
    print(f"{found} findings", file=sys.stderr)
    return int(found > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
