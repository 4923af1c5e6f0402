"""
A look at the built pages: links lead somewhere, and nothing comes from elsewhere.
"""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

if TYPE_CHECKING:
    from sphinx.application import Sphinx

__all__ = ["anchor_of", "broken_links", "connect"]

#: Attributes whose targets a browser fetches by itself.
LOADED = {"script": "src", "link": "href", "img": "src", "iframe": "src", "source": "src"}


#: Characters of a heading that its anchor does not have.
LEFT_OUT = re.compile(r"[^\w\- ]")


def anchor_of(heading: str) -> str:
    """Return the anchor of a heading: GitHub derives it from the text, and so does the site."""
    return LEFT_OUT.sub("", heading.strip().lower()).replace(" ", "-")


def connect(app: Sphinx) -> None:
    """Check the pages when they are built."""
    app.connect("build-finished", _check)


def _check(app: Sphinx, failure: Exception | None) -> None:
    if failure is not None or app.builder.name not in ("html", "dirhtml"):
        return
    from sphinx.errors import SphinxError

    problems = broken_links(Path(app.outdir))
    if problems:
        raise SphinxError("\n".join(["Broken links:", *problems]))


class _Page(HTMLParser):
    """The anchors and the links of one page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note anchors and links."""
        for name, value in attrs:
            if name == "id" and value:
                self.anchors.add(value)
            if value and LOADED.get(tag) == name:
                self.loads.append(value)
            if value and tag == "a" and name == "href":
                self.links.append(value)


def broken_links(site: Path) -> list[str]:
    """Return what is wrong with the links of the pages below a directory."""
    pages = {path: _Page(path.read_text()) for path in sorted(site.rglob("*.html"))}
    problems = []
    for path, page in pages.items():
        shown = path.relative_to(site)
        problems += [
            f"{shown} loads {url}" for url in page.loads if urlsplit(url).scheme not in ("", "data")
        ]
        for url in (*page.links, *page.loads):
            problem = _problem(site, path, url, pages)
            if problem:
                problems.append(f"{shown}: {url}: {problem}")
    return problems


def _problem(site: Path, path: Path, url: str, pages: dict[Path, _Page]) -> str | None:
    parts = urlsplit(url)
    if parts.scheme or parts.netloc:
        return None
    target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
    if not target.is_relative_to(site.resolve()):
        return "leads out of the site"
    if not target.is_file():
        return "no such file"
    if parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].anchors:
        return "no such anchor"
    return None
