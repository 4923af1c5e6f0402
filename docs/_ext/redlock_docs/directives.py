"""
The directive `redlock-diagram`, a picture.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from docutils import nodes
from sphinx.util.docutils import SphinxDirective

from celery_redlock import __version__

from .diagrams import DIAGRAMS

if TYPE_CHECKING:
    from sphinx.application import Sphinx

__all__ = ["connect"]


def connect(app: Sphinx) -> None:
    """Register the directive and the version."""
    app.add_directive("redlock-diagram", Diagram)
    app.config.release = app.config.version = __version__


class Diagram(SphinxDirective):
    """Puts in a picture that is drawn when the pages are built."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Draw it, with its description for those who cannot see it."""
        (name,) = self.arguments
        return [nodes.raw("", DIAGRAMS[name](), format="html")]
