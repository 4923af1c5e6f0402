"""
Pages are read in the repository as they are. The site has other places for what they link to.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from .links import anchor_of
from .repository import DOCS, for_the_site

if TYPE_CHECKING:
    from sphinx.application import Sphinx

__all__ = ["connect", "contents", "inside_the_site"]

ROOT = DOCS.parent

#: Pages that the site fills with a file of the repository, to which the repository's page links.
WHOLE = {"changes": ROOT / "CHANGELOG.md", "how-to/run-in-containers": ROOT / "docker/README.md"}
PLACES = {path: f"{page}.md" for page, path in WHOLE.items()}

LINK = re.compile(r"\[([^\]\n]*)\]\((?![a-z]+:|[#/])([^)#\s]+)(#[^)\s]*)?\)")


def connect(app: Sphinx) -> None:
    """Rewrite pages while they are read."""
    app.connect("source-read", _rewrite)


def _rewrite(_app: Sphinx, page: str, source: list[str]) -> None:
    path = WHOLE.get(page, DOCS / f"{page}.md")
    text = for_the_site(path.read_text())
    source[0] = inside_the_site(text, path.parent)
    if path.name in ("index.md", "README.md") and page not in WHOLE:
        listed = "\n".join(contents(text, path))
        source[0] += f"\n```{{toctree}}\n:hidden:\n\n{listed}\n```\n"


def inside_the_site(text: str, folder: Path) -> str:
    """
    Let links to files of the repository lead to what the site has of them, or nowhere.

    Args:
        text: a page.
        folder: where it is, so that its links are understood.
    """

    def inside(found: re.Match[str]) -> str:
        shown, path, anchor = found.groups(default="")
        target = (folder / path).resolve()
        page = PLACES.get(target)
        if target.is_relative_to(DOCS):
            page = os.fspath(target.relative_to(DOCS))
        elif target.is_relative_to(ROOT / "examples") and target.parent != ROOT / "examples":
            name = target.relative_to(ROOT / "examples").parts[0]
            page, anchor = "how-to/examples.md", f"#{_anchor_of_example(name)}"
        return shown if page is None else f"[{shown}](/{page}{anchor})"

    return LINK.sub(inside, text)


def contents(text: str, index: Path) -> list[str]:
    """Return the pages that an index lists: those that it links to and no other index lists."""
    linked = dict.fromkeys((index.parent / path).resolve() for _, path, _ in LINK.findall(text))
    pages = [
        page
        for page in linked
        if page.suffix == ".md" and page.is_relative_to(DOCS) and _index_of(page) == index
    ]
    return [os.fspath(page.relative_to(index.parent).with_suffix("")) for page in pages]


def _index_of(page: Path) -> Path:
    """Return the index that lists a page; the one above lists an index."""
    folder = page.parent.parent if page.stem in ("index", "README") else page.parent
    while True:
        for name in ("index.md", "README.md"):
            if (folder / name).exists():
                return folder / name
        folder = folder.parent


def _anchor_of_example(name: str) -> str:
    title = (ROOT / "examples" / name / "README.md").read_text().partition("\n")[0]
    return anchor_of(title.removeprefix("# "))
