"""
The fenced blocks of the documentation and of the README, and what their pages ask to do with them.

A comment before a block says how to treat it, if its language alone does not:

- `<!-- docs: not run: WHY -->`: it cannot run here, and why;
- `<!-- docs: in the background until "TEXT" -->`: its last command goes on while the page goes on;
- `<!-- docs: exit status N -->`: how its last command ends;
- `<!-- docs: raises NAME -->`: the error that it shows.

A block whose first line is a comment with a file name is that file.
"""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass
from pathlib import Path

__all__ = ["DOCS", "PAGES", "ROOT", "Block", "blocks_of"]

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"

FENCE = re.compile(r"^(?P<indent>[ >]*)(?P<ticks>`{3,})(?P<info>.*)$")
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
        language: as the fence says.
        text: what is between the fences, without the indentation of the whole.
        order: what the page says about it; empty where its language says all.
    """

    page: Path
    line: int
    language: str
    text: str
    order: str = ""

    @property
    def where(self) -> str:
        """The place, as an editor understands it."""
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    @property
    def file(self) -> str | None:
        """The name of the file that it is, if it is one."""
        named = FILE.match(self.text.partition("\n")[0])
        return named["name"] if named else None

    def ordered(self, pattern: str) -> str | None:
        """Return what an order of this form says, if the page gives one."""
        match = re.fullmatch(pattern, self.order)
        return match[1] if match else None


def blocks_of(page: Path) -> list[Block]:
    """
    Return the fenced blocks of a page in their order; directives are not blocks.

    Raises:
        ValueError: an order is not followed by a block.
    """
    found: list[Block] = []
    open_at: int | None = None
    ticks = info = order = ""
    taken: list[str] = []
    for number, line in enumerate(page.read_text().splitlines(), 1):
        fence = FENCE.match(line)
        if open_at is not None:
            if fence and fence["ticks"].startswith(ticks) and not fence["info"].strip():
                if not info.startswith("{"):
                    text = textwrap.dedent("\n".join(taken)) + "\n"
                    block = Block(page=page, line=open_at, language=info, text=text, order=order)
                    found.append(block)
                open_at, order = None, ""
            else:
                taken.append(line)
        elif fence:
            open_at, ticks, info, taken = number + 1, fence["ticks"], fence["info"].strip(), []
        elif ordered := ORDER.match(line):
            order = ordered["order"]
        elif order and line.strip():
            raise ValueError(f"{page}:{number}: no block follows <!-- docs: {order} -->")
    return found
