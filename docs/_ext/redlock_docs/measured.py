"""
The figures of the last whole run of the benchmark (`python -m bench --publish`).
"""

from __future__ import annotations

import json
import re
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["Comparison", "Cost", "comparisons", "cost_of_a_lock", "machine"]

MEASURED = Path(__file__).resolve().parents[2] / "measured.json"
#: The row of tasks that lock, and its figures.
LOCKED = "RedlockTask / plain task, tasks per second, prefork"
RATES = re.compile(r"(\d+) and (\d+) tasks/s, (\d+) processes")


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """
    One row of the benchmark.

    Attributes:
        what: what is compared with what.
        detail: the figures behind the ratio.
        median: of the rounds.
        low: a quarter of the rounds is below.
        high: a quarter of the rounds is above.
        limit: the goal; None if there is none.
        at_most: whether the goal is an upper limit.
        unit: what follows the figures.
    """

    what: str
    detail: str
    median: float
    low: float
    high: float
    limit: float | None
    at_most: bool
    unit: str

    @property
    def goal(self) -> str:
        """The goal, as text."""
        if self.limit is None:
            return ""
        return ("≤ " if self.at_most else "≥ ") + self.shown(self.limit)

    @property
    def reached(self) -> bool:
        """Whether the median reaches the goal."""
        return self.limit is None or self.from_goal(self.median) <= 1

    def shown(self, value: float) -> str:
        """Return a figure as text."""
        return (f"{value:.0f}" if value >= 100 else f"{value:.3g}") + self.unit

    def from_goal(self, value: float) -> float:
        """Return a figure as a multiple of its goal; above 1 it misses it."""
        assert self.limit is not None
        return value / self.limit if self.at_most else self.limit / value


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """
    The cost of a lock for a task.

    Attributes:
        locked: tasks per second that lock.
        plain: tasks per second that do not.
        processes: the worker processes that run them.
    """

    locked: int
    plain: int
    processes: int

    @property
    def seconds(self) -> float:
        """The time by which a task keeps its process longer."""
        return self.processes * (1 / self.locked - 1 / self.plain)


def cost_of_a_lock() -> Cost:
    """Return the cost of a lock for a task, from the rates of tasks whose bodies do nothing."""
    (detail,) = (row.detail for row in comparisons() if row.what == LOCKED)
    found = RATES.fullmatch(detail)
    assert found is not None, detail
    locked, plain, processes = map(int, found.groups())
    return Cost(locked=locked, plain=plain, processes=processes)


def comparisons() -> list[Comparison]:
    """Return the rows."""
    return [_read(row) for row in json.loads(MEASURED.read_text())["results"]]


def machine() -> str:
    """Return what the figures were measured with, as text."""
    found: dict[str, Any] = json.loads(MEASURED.read_text())["machine"]
    packages = ", ".join(
        f"{name} {value}"
        for name, value in found.items()
        if name not in ("cores", "system", "python")
    )
    return f"{found['cores']} cores, Python {found['python']}, {packages}"


def _read(row: dict[str, Any]) -> Comparison:
    goal = row["goal"]
    low, _, high = statistics.quantiles(row["values"], n=4)
    return Comparison(
        what=row["what"],
        detail=row["detail"],
        median=row["median"],
        low=low,
        high=high,
        limit=None if goal is None else goal["value"],
        at_most=goal is None or goal["limit"] == "most",
        unit="" if goal is None else goal["unit"],
    )
