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
INDENT = " " * 4
#: The line before an indented code block: text, but neither a list's item nor indented.
PARAGRAPH = re.compile(r"[^\s\-*>]")
#: Code that may be a name with an entry in the reference.
NAME = re.compile(r"[A-Za-z_][\w.]*(\(\))?")


def connect(app: Sphinx) -> None:
    """Convert docstrings before napoleon reads their sections."""
    app.connect("autodoc-process-docstring", _process, priority=400)


def _process(
    _app: Any, _what: str, _name: str, _obj: object, _options: Any, lines: list[str]
) -> None:
    lines[:] = to_rst(lines)


def to_rst(lines: list[str]) -> list[str]:
    """Turn code blocks into RST's, and code between backticks into literals or references."""
    converted: list[str] = []
    inside: str | None = None  # the indentation of the fence that is open
    indented = False  # in a block that is code because it is indented
    before = ""
    for line in lines:
        fence = FENCE.match(line)
        if indented and line and not line.startswith(INDENT):
            indented = False
        if inside is None and fence and fence["language"]:
            inside = fence["indent"]
            converted += [f"{inside}.. code-block:: {fence['language']}", ""]
        elif fence and fence["indent"] == inside:
            inside = None
            converted.append("")
        elif inside is not None:
            converted.append(f"   {line}" if line else "")
        elif indented:
            converted.append(line)
        elif line.startswith(INDENT) and converted[-1:] == [""] and PARAGRAPH.match(before):
            indented = True
            converted += [".. code-block:: python", "", line]
        else:
            converted.append(CODE.sub(_literal, line))
        before = line or before
    return converted


def _literal(match: re.Match[str]) -> str:
    text = match[1]
    return f":py:obj:`{text}`" if NAME.fullmatch(text) else f"``{text}``"
