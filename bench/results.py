"""
The result of a row of the benchmark, and whether it reached its goal.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """
    The goal of a row.

    Attributes:
        value: the limit.
        limit: whether the measured value may be at most or must be at least that.
        unit: what follows the numbers, such as `x`; nothing for plain ratios.
    """

    value: float
    limit: Literal["most", "least"]
    unit: str = ""

    def reached_by(self, measured: float) -> bool:
        """Return whether a measured value reaches the goal."""
        return measured <= self.value if self.limit == "most" else measured >= self.value


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """
    One line of the table.

    Attributes:
        row: name of the row, as typed on the command line.
        what: what is compared with what.
        goal: what it shall reach; None where a figure is all that is asked for.
        values: one for each round; their median is the result.
        detail: the numbers behind the ratio, in words.
    """

    row: str
    what: str
    goal: Goal | None
    values: Sequence[float]
    detail: str = ""
    median: float = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "median", statistics.median(self.values))

    @property
    def reached(self) -> bool | None:
        """Whether the median reached the goal; None if there is no goal."""
        return None if self.goal is None else self.goal.reached_by(self.median)


def ratios(pairs: Sequence[tuple[float, float]]) -> list[float]:
    """Return first / second for each round."""
    return [first / second for first, second in pairs]


def in_microseconds(first: str, second: str, pairs: Sequence[tuple[float, float]]) -> str:
    """Return the medians of both sides over the rounds, as text."""
    one, other = (statistics.median(side) * 1e6 for side in zip(*pairs, strict=True))
    return f"{first} {one:.0f} µs, {second} {other:.0f} µs"
