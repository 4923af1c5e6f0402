"""
Names that some pages use without saying what they are: what stands around a fragment.

A page that shows fragments has a module here, named after it; everything public in it is there
when its first block runs.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

__all__ = ["names_for"]


def names_for(page: Path) -> dict[str, Any]:
    """Return the names that stand around a page's blocks."""
    module = f"{__name__}.{page.stem.lower().replace('-', '_')}"
    if find_spec(module) is None:
        return {}
    found = vars(import_module(module))
    return {name: value for name, value in found.items() if not name.startswith("_")}
