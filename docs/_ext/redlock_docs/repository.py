"""
Parts of pages, and pictures, that are made from the code.

Each is between two comments of a page, as Markdown that GitHub renders. `make reference` writes it.
The site has the same text, and puts the pictures into the page, where they follow its theme.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

from .diagrams import DIAGRAMS
from .reference import PAGES

__all__ = ["files", "for_the_site", "main"]

DOCS = Path(__file__).resolve().parents[2]
IMAGES = DOCS / "images"
STYLE = DOCS / "_static" / "redlock.css"

#: A part or a picture, with its two comments. The name is one of `PAGES` or of `DIAGRAMS`.
MADE = re.compile(r"<!-- (made|drawn) from the code: ([\w-]+) -->\n.*?<!-- end -->", re.DOTALL)

#: Rules of the style sheet for the page around a picture, and for a theme that a reader has chosen.
OF_THE_SITE = re.compile(r"^(?:\.redlock-diagram(?: svg)?|body\[.*\]) \{.*?^\}\n", re.M | re.DOTALL)
#: Colours and fonts that the site's theme defines.
THEME = """
svg {
  --color-foreground-primary: #1f2328;
  --color-foreground-secondary: #59636e;
  --color-foreground-muted: #6e7781;
  --color-foreground-border: #8c959f;
  --color-background-primary: #ffffff;
  --color-background-secondary: #f6f8fa;
  --font-stack: system-ui, sans-serif;
  --font-stack--monospace: ui-monospace, monospace;
}
@media (prefers-color-scheme: dark) {
  svg {
    --color-foreground-primary: #e6edf3;
    --color-foreground-secondary: #9198a1;
    --color-foreground-muted: #848d97;
    --color-foreground-border: #6e7681;
    --color-background-primary: #0d1117;
    --color-background-secondary: #151b23;
  }
}
"""


def files() -> dict[Path, Callable[[], str]]:
    """Return each file that `make reference` writes, and what makes its text."""
    pages = [page for page in sorted(DOCS.rglob("*.md")) if MADE.search(page.read_text())]
    return {
        **{page: partial(_written, page) for page in pages},
        **{IMAGES / f"{name}.svg": partial(_picture, name) for name in DIAGRAMS},
    }


def _written(page: Path) -> str:
    def make(found: re.Match[str]) -> str:
        kind, name = found.groups()
        content = PAGES[name]().strip() if kind == "made" else _image(name, page)
        return f"<!-- {kind} from the code: {name} -->\n\n{content}\n\n<!-- end -->"

    return MADE.sub(make, page.read_text())


def for_the_site(text: str) -> str:
    """Return a page with a directive in the place of each picture."""

    def shown(found: re.Match[str]) -> str:
        kind, name = found.groups()
        return f"```{{redlock-diagram}} {name}\n```" if kind == "drawn" else found[0]

    return MADE.sub(shown, text)


def main() -> None:
    """Write the files."""
    for path, make in files().items():
        path.write_text(make())


def _image(name: str, page: Path) -> str:
    title = re.search("<title>(.*?)</title>", DIAGRAMS[name]())
    assert title is not None, name
    target = os.path.relpath(IMAGES / f"{name}.svg", page.parent)
    return f"![{title[1]}]({target})"


def _picture(name: str) -> str:
    """Return a picture with its own style: GitHub shows it as an image, outside of any page."""
    drawn = DIAGRAMS[name]()
    opening, rest = drawn[drawn.index("<svg") : drawn.index("</svg>")].split(">", 1)
    style = OF_THE_SITE.sub("", STYLE.read_text()).replace(".redlock-diagram ", "")
    style = re.sub(r"^( *)body(?::not\(.*\))? \{", r"\1svg {", style, flags=re.MULTILINE)
    return f"{opening}><style>{THEME}{style}</style>{rest}</svg>\n"


if __name__ == "__main__":
    main()
