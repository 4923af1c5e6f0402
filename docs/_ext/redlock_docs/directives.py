"""
The directives `redlock` (a part of the reference) and `redlock-diagram` (a picture).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from docutils import nodes
from sphinx.util.docutils import SphinxDirective

from .diagrams import DIAGRAMS
from .reference import PAGES, version

if TYPE_CHECKING:
    from sphinx.application import Sphinx

__all__ = ["connect"]


def connect(app: Sphinx) -> None:
    """Register the directives and the version."""
    app.add_directive("redlock", FromCode)
    app.add_directive("redlock-diagram", Diagram)
    app.config.release = app.config.version = version()


class FromCode(SphinxDirective):
    """Inserts a part of the reference that is made from the code."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Read Markdown as if it was written here."""
        (name,) = self.arguments
        return self.parse_text_to_nodes(PAGES[name](), allow_section_headings=True)


class Diagram(SphinxDirective):
    """Puts in a picture that is drawn when the pages are built."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Draw it, with its description for those who cannot see it."""
        (name,) = self.arguments
        return [nodes.raw("", DIAGRAMS[name](), format="html")]
