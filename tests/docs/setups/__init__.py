"""
Names that some pages use without defining them: the surroundings of a fragment.

A page that shows fragments has a module here, named after it. The names in its `__all__` are
defined when the page's first block runs. Its function `after(text, names)` is called after each
Python block with the block and all names defined by then, to use the functions that the page only
defines.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

__all__ = ["after_block", "names_for"]


def names_for(page: Path) -> dict[str, Any]:
    """Return the names that stand around a page's blocks."""
    module = _module(page)
    return {} if module is None else {name: getattr(module, name) for name in module.__all__}


def after_block(page: Path) -> Callable[[str, dict[str, Any]], None]:
    """Return what is to be called after each Python block of a page."""
    return getattr(_module(page), "after", lambda _text, _names: None)


def _module(page: Path) -> ModuleType | None:
    name = f"{__name__}.{page.stem.lower().replace('-', '_')}"
    return import_module(name) if find_spec(name) else None
