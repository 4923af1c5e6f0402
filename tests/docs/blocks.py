"""
The fenced blocks of the documentation and of the README, and what their pages ask to do with them.

A comment before a block orders how to treat it, if its language alone does not:

- `<!-- docs: not run: WHY -->`: it cannot run here, and why;
- `<!-- docs: in the background until "TEXT" -->`: its last command keeps running;
- `<!-- docs: exit status N -->`: how its last command ends;
- `<!-- docs: repeated until it shows this -->`: its last command may be too early at first;
- `<!-- docs: raises NAME -->`: the error that it shows.

A block whose first line is a comment with a file name is that file.
"""

from __future__ import annotations

import os
import re
import textwrap
from dataclasses import dataclass
from pathlib import Path

__all__ = ["DOCS", "PAGES", "ROOT", "Block", "blocks_of"]

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"

FENCE = re.compile(r"^(?P<indent> *)(?P<ticks>`{3,})(?P<info>.*)$")
ORDER = re.compile(r"^\s*<!-- docs: (?P<order>.+?) -->\s*$")
FILE = re.compile(r"^# (?P<name>[\w./-]+\.\w+)$")

PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """
    One fenced block.

    Attributes:
        page: the file that it is in.
        line: number of its first line of text.
        language: the word behind the fence.
        text: what is between the fences, without the indentation of the whole.
        order: how to treat it; empty where its language is enough.
    """

    page: Path
    line: int
    language: str
    text: str
    order: str = ""

    @property
    def where(self) -> str:
        """The place, as an editor understands it."""
        return f"{os.path.relpath(self.page, ROOT)}:{self.line}"

    @property
    def file(self) -> str | None:
        """The name of the file that it is, if it is one."""
        named = FILE.match(self.text.partition("\n")[0])
        return named["name"] if named else None

    def ordered(self, pattern: str) -> str | None:
        """Return the argument of an order of this form, if the page gives one."""
        match = re.fullmatch(pattern, self.order)
        return match[1] if match else None


def blocks_of(page: Path) -> list[Block]:
    """
    Return the fenced blocks of a page in their order, those inside of directives included.

    Raises:
        ValueError: an order is not followed by a block, or a block is hidden in a directive.
    """
    found: list[Block] = []
    directives: list[str] = []
    opened: re.Match[str] | None = None
    taken: list[str] = []
    order = ""
    for number, line in enumerate(page.read_text().splitlines(), 1):
        fence = FENCE.match(line)
        bare = fence is not None and not fence["info"].strip()
        if opened is not None:
            if not (fence and bare and fence["ticks"].startswith(opened["ticks"])):
                taken.append(line)
                continue
            text = textwrap.dedent("\n".join(taken)) + "\n"
            language, at = opened["info"].strip(), number - len(taken)
            found.append(Block(page=page, line=at, language=language, text=text, order=order))
            opened, order = None, ""
        elif fence and bare and directives and fence["ticks"] == directives[-1]:
            directives.pop()
        elif fence and fence["info"].lstrip().startswith("{"):
            if "code" in fence["info"]:
                raise ValueError(
                    f"{page}:{number}: write code as a fenced block, so that it is run"
                )
            directives.append(fence["ticks"])
        elif fence:
            opened, taken = fence, []
        elif ordered := ORDER.match(line):
            order = ordered["order"]
        elif order and line.strip():
            raise ValueError(f"{page}:{number}: no block follows <!-- docs: {order} -->")
    return found
