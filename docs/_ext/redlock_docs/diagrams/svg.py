"""
As much of SVG as the pictures need. Colours and fonts are classes, which the style sheet knows.
"""

from __future__ import annotations

import textwrap
from html import escape

__all__ = ["Picture", "width_of"]

#: Width of an average character of the page's sans serif font, in parts of its size.
CHARACTER = 0.56
FONT = 14
SMALL = 12
LINE = 15.0


def width_of(text: str, size: int = FONT) -> float:
    """Estimate how wide a text will be."""
    return len(text) * size * CHARACTER


class Picture:
    """
    A picture that grows as things are drawn into it.

    Args:
        title: its subject, in a few words.
        description: all of its content, for readers who cannot see it.
        width: width in pixels; it shrinks with the page.
    """

    def __init__(self, title: str, description: str, width: int) -> None:
        self.title = title
        self.description = description
        self.width = width
        self._height = 0.0
        self._parts: list[str] = []

    def __str__(self) -> str:
        height = round(self._height) + 8
        return (
            f'<figure class="redlock-diagram"><svg viewBox="0 0 {self.width} {height}" '
            f'width="{self.width}" role="img" xmlns="http://www.w3.org/2000/svg">'
            f"<title>{escape(self.title)}</title><desc>{escape(self.description)}</desc>"
            f"{''.join(self._parts)}</svg></figure>"
        )

    def line(
        self, x1: float, y1: float, x2: float, y2: float, kind: str = "", *, arrow: bool = False
    ) -> None:
        """Draw a straight line, with a head at its end if it is an arrow."""
        self._reach(max(y1, y2))
        self._parts.append(
            f'<line class="line {kind}" x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}"/>'
        )
        if arrow:
            self.head(x2, y2, pointing_left=x2 < x1, kind=kind)

    def head(self, x: float, y: float, *, pointing_left: bool, kind: str = "") -> None:
        """Draw the head of an arrow."""
        back = 8 if pointing_left else -8
        points = f"{x:g},{y:g} {x + back:g},{y - 4:g} {x + back:g},{y + 4:g}"
        self._parts.append(f'<polygon class="head {kind}" points="{points}"/>')

    def curve(self, x1: float, y1: float, x2: float, y2: float, kind: str = "") -> None:
        """Draw an arrow that leaves and arrives horizontally."""
        bend = (x2 - x1) * 0.55
        end = x2 - 7
        self._parts.append(
            f'<path class="line {kind}" d="M{x1:g},{y1:g} C{x1 + bend:g},{y1:g} '
            f'{end - bend:g},{y2:g} {end:g},{y2:g}"/>'
        )
        self.head(x2, y2, pointing_left=False, kind=kind)

    def box(
        self, x: float, y: float, width: float, height: float, kind: str = "", *, radius: int = 6
    ) -> None:
        """Draw a box with round corners."""
        self._reach(y + height)
        self._parts.append(
            f'<rect class="box {kind}" x="{x:g}" y="{y:g}" width="{width:g}" '
            f'height="{height:g}" rx="{radius}"/>'
        )

    def text(
        self, x: float, y: float, text: str, kind: str = "", *, anchor: str = "middle"
    ) -> None:
        """Write a line; y is its middle."""
        self._reach(y + FONT)
        self._parts.append(
            f'<text class="{kind}" x="{x:g}" y="{y:g}" text-anchor="{anchor}" '
            f'dominant-baseline="central">{escape(text)}</text>'
        )

    def paragraph(
        self, x: float, y: float, text: str, kind: str, width: float, *, anchor: str = "middle"
    ) -> None:
        """Write a small text in as many lines as it needs in a width; y is the middle of them."""
        lines = textwrap.wrap(text, int(width / SMALL / CHARACTER))
        for row, line in enumerate(lines):
            middle = y + LINE * (row - (len(lines) - 1) / 2)
            self.text(x, middle, line, f"small {kind}".rstrip(), anchor=anchor)

    def label(
        self, x: float, y: float, text: str, kind: str = "", *, anchor: str = "start"
    ) -> None:
        """Write a line just above y, on the page's own ground so that lines do not cross it."""
        width = width_of(text, SMALL) + 4
        left = {"start": x - 2, "middle": x - width / 2, "end": x - width + 2}[anchor]
        self.box(left, y - 18, width, 15, "ground", radius=0)
        self.text(x, y - 10, text, f"small {kind}", anchor=anchor)

    def draw_over(self, other: Picture) -> None:
        """Draw another picture on top of this one."""
        self._parts += other._parts
        self._reach(other._height)

    def pill(self, x: float, y: float, text: str, kind: str = "") -> None:
        """Write a line into a box of its own, with x and y in the middle."""
        width = width_of(text, SMALL) + 16
        self.box(x - width / 2, y - 11, width, 22, kind, radius=11)
        self.text(x, y, text, f"small {kind}")

    def _reach(self, y: float) -> None:
        self._height = max(self._height, y)
