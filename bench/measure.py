"""
Timing two things side by side, so that what else the machine does falls on both.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

Operation = Callable[[], object]
Statistic = Callable[[Sequence[float]], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rounds:
    """
    How long to measure.

    Attributes:
        count: how many rounds; each gives one ratio.
        operations: how often each side runs in a round. Short rounds keep the two sides close
            together in time.
    """

    count: int
    operations: int


def time_each(operation: Operation, times: int) -> list[float]:
    """Run an operation again and again and return the seconds that each run took."""
    clock = time.perf_counter
    taken = []
    for _ in range(times):
        begun = clock()
        operation()
        taken.append(clock() - begun)
    return taken


def compare(
    first: Operation, second: Operation, rounds: Rounds, statistic: Statistic = statistics.median
) -> list[tuple[float, float]]:
    """
    Time two operations in turns; return the statistic of each round for both.

    The order changes from round to round, so that neither operation always runs after the other.
    """
    pairs = []
    for number in range(rounds.count):
        if number % 2:
            of_second = statistic(time_each(second, rounds.operations))
            of_first = statistic(time_each(first, rounds.operations))
        else:
            of_first = statistic(time_each(first, rounds.operations))
            of_second = statistic(time_each(second, rounds.operations))
        pairs.append((of_first, of_second))
    return pairs


def percentile(share: float) -> Statistic:
    """Return a function that gives the smallest value not exceeded by `share` of all."""

    def of(values: Sequence[float]) -> float:
        return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]

    return of
