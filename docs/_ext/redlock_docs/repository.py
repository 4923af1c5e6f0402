"""
Parts of the reference, and pictures, that are made from the code, in the form of the repository.

Each is between two comments of a page, as Markdown that GitHub renders. `make reference` writes
it, and the site replaces it with a form of its own, which has cross-references.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from .diagrams import DIAGRAMS
from .reference import PAGES, error_entries

__all__ = ["files", "for_the_site", "main", "written"]

DOCS = Path(__file__).resolve().parents[2]
IMAGES = DOCS / "images"
STYLE = DOCS / "_static" / "redlock.css"

#: A part or a picture, with its two comments. The name is one of `PAGES` or of `DIAGRAMS`.
MADE = re.compile(r"<!-- (made|drawn) from the code: ([\w-]+) -->\n.*?<!-- end -->", re.DOTALL)
DIRECTIVES = {"made": "redlock", "drawn": "redlock-diagram"}

#: Parts that the repository shows in another form than the site.
OWN = {"errors": error_entries}

LABEL = re.compile(r"^\([\w-]+\)=\n\n", re.MULTILINE)
ROLE = re.compile(r"\{py:\w+\}`~?(?:celery_redlock\.)?([^`]+)`")
ANCHOR = re.compile(r"\]\(#((?:lock|redlock)-[\w-]+)\)")

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


def files() -> Iterator[tuple[Path, str]]:
    """Yield each file that `make reference` writes, with the text that it should have."""
    for page in sorted(DOCS.rglob("*.md")):
        text = page.read_text()
        if MADE.search(text):
            yield page, written(text, page)
    for name in DIAGRAMS:
        yield IMAGES / f"{name}.svg", _picture(name)


def written(text: str, page: Path) -> str:
    """Return a page with everything that is made from the code as the code is now."""

    def make(found: re.Match[str]) -> str:
        kind, name = found.groups()
        content = _part(name) if kind == "made" else _image(name, page)
        return f"<!-- {kind} from the code: {name} -->\n\n{content}\n\n<!-- end -->"

    return MADE.sub(make, text)


def for_the_site(text: str) -> str:
    """Return a page with a directive in the place of everything that is made from the code."""
    return MADE.sub(lambda made: f"```{{{DIRECTIVES[made[1]]}}} {made[2]}\n```", text)


def main() -> None:
    """Write the files."""
    for path, text in files():
        path.write_text(text)


def _part(name: str) -> str:
    text = LABEL.sub("", OWN.get(name, PAGES[name])())
    text = ROLE.sub(r"`\1`", text)
    # GitHub derives the anchor of a heading from its text.
    return ANCHOR.sub(lambda link: f"](#{link[1].replace('-', '_')})", text).strip()


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
