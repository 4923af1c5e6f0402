"""
The parts of the documentation beside plain text: pages made from the code, diagrams, and checks.

Everything but `directives` and `crossrefs` works without Sphinx, so that
the tests can hold the pages and the code against each other where Sphinx is not installed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sphinx.application import Sphinx

__all__ = ["setup"]


def setup(app: Sphinx) -> dict[str, bool]:
    """Register everything with Sphinx."""
    from . import crossrefs, directives, links, sources

    for part in (crossrefs, directives, links, sources):
        part.connect(app)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
