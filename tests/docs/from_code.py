"""The parts of the documentation, importable by tests without Sphinx."""

from __future__ import annotations

import sys

from tests.docs.blocks import DOCS

sys.path.insert(0, str(DOCS / "_ext"))

from redlock_docs import (
    described,
    links,
    log_events,
    measured,
    reference,
    repository,
    sources,
)
from redlock_docs.diagrams import DIAGRAMS, svg

__all__ = [
    "DIAGRAMS",
    "described",
    "links",
    "log_events",
    "measured",
    "reference",
    "repository",
    "sources",
    "svg",
]
