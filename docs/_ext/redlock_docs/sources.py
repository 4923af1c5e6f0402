"""
Pages are also read in the repository, where links lead to files, and parts are without labels.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from .repository import for_the_site

if TYPE_CHECKING:
    from sphinx.application import Sphinx

__all__ = ["connect", "inside_the_site"]

DECISIONS = "explanation/decisions/README"
EXAMPLE = re.compile(r"\]\((?:\.\./)+examples/([\w-]+)(?:/[\w./-]*)?\)")
CHANGES = re.compile(r"\]\((?:\.\./)*CHANGELOG\.md\)")


def connect(app: Sphinx) -> None:
    """Rewrite links while pages are read."""
    app.connect("source-read", _rewrite)


def _rewrite(_app: Sphinx, docname: str, source: list[str]) -> None:
    source[0] = inside_the_site(for_the_site(source[0]))
    if docname == DECISIONS:
        # For those who read it in the repository it is a list, and nothing else.
        source[0] += "\n```{toctree}\n:hidden:\n:glob:\n\n0*\n```\n"


def inside_the_site(text: str) -> str:
    """Let links to files of the repository lead to what the site has about them."""
    text = EXAMPLE.sub(r"](/how-to/examples.md#example-\1)", text)
    return CHANGES.sub("](/changes.md)", text)
