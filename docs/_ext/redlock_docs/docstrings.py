"""
Docstrings, which are written with Markdown's backticks and fences, for autodoc, which reads RST.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sphinx.application import Sphinx

__all__ = ["connect", "to_rst"]

FENCE = re.compile(r"^(?P<indent> *)```(?P<language>\w*)$")
CODE = re.compile(r"(?<![`\w:])`([^`\n]+)`(?!`)")
#: What may be the name of something that the reference has a place for.
NAME = re.compile(r"[A-Za-z_][\w.]*(\(\))?")


def connect(app: Sphinx) -> None:
    """Convert docstrings before napoleon reads their sections."""
    app.connect("autodoc-process-docstring", _process, priority=400)


def _process(
    _app: Any, _what: str, _name: str, _obj: object, _options: Any, lines: list[str]
) -> None:
    lines[:] = to_rst(lines)


def to_rst(lines: list[str]) -> list[str]:
    """Turn fences into code blocks, and code between backticks into literals or references."""
    converted: list[str] = []
    inside: str | None = None  # the indentation of the fence that is open
    for line in lines:
        fence = FENCE.match(line)
        if inside is None and fence and fence["language"]:
            inside = fence["indent"]
            converted += [f"{inside}.. code-block:: {fence['language']}", ""]
        elif inside is None:
            converted.append(CODE.sub(_literal, line))
        elif fence and fence["indent"] == inside:
            inside = None
            converted.append("")
        else:
            converted.append(f"   {line}" if line else "")
    return converted


def _literal(match: re.Match[str]) -> str:
    text = match[1]
    return f":py:obj:`{text}`" if NAME.fullmatch(text) else f"``{text}``"
