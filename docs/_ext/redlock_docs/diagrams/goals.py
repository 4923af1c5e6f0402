"""
How far each figure of the benchmark is from its goal.
"""

from __future__ import annotations

import math

from ..measured import Comparison, comparisons
from .svg import Picture

__all__ = ["draw_goals"]

WIDTH = 780
LEFT = 450.0
RIGHT = 740.0
TOP = 40.0
ROW = 36.0
#: Multiples of the goal, on a logarithmic axis.
FIRST, LAST = 0.25, 4.0
MARKS = (0.25, 0.5, 1.0, 2.0, 4.0)


def draw_goals() -> str:
    """Draw the middle half of the rounds of each row, and its median."""
    rows = [row for row in comparisons() if row.limit is not None]
    picture = Picture("Figures of the benchmark as multiples of their goals", _words(rows), WIDTH)
    bottom = TOP + ROW * len(rows)
    for mark in MARKS:
        kind = "" if mark == 1 else "life"
        picture.line(_x(mark), TOP - 8, _x(mark), bottom, kind)
        words = "goal" if mark == 1 else f"{mark:g} times"
        picture.text(_x(mark), TOP - 20, words, "small quiet")
    for number, row in enumerate(rows):
        y = TOP + ROW * (number + 0.5)
        kind = "good" if row.reached else "bad"
        picture.paragraph(LEFT - 12, y, row.what, "", LEFT - 12, anchor="end")
        ends = sorted(_x(row.from_goal(value)) for value in (row.low, row.high))
        picture.box(ends[0], y - 5, max(2.0, ends[1] - ends[0]), 10, kind, radius=3)
        middle = _x(row.from_goal(row.median))
        picture.line(middle, y - 8, middle, y + 8)
    return str(picture)


def _x(multiple: float) -> float:
    inside = min(max(multiple, FIRST), LAST)
    return LEFT + (RIGHT - LEFT) * math.log(inside / FIRST) / math.log(LAST / FIRST)


def _words(rows: list[Comparison]) -> str:
    return ". ".join(f"{row.what}: {row.shown(row.median)}, goal {row.goal}" for row in rows)
