"""
The value of `lock_debounce`, and when a call of a burst is due.
"""

from __future__ import annotations

import math
from typing import NamedTuple


class Debounce(NamedTuple):
    """
    How long a debounced call waits for newer ones, in seconds.

    Attributes:
        quiet: how long no other call may follow it.
        at_most: how long a burst may last, counted from its first call.
    """

    quiet: float
    at_most: float = math.inf

    def __repr__(self) -> str:
        """Return it as the option is written."""
        return (
            f"{self.quiet:g}" if math.isinf(self.at_most) else f"({self.quiet:g}, {self.at_most:g})"
        )

    def due(self, made: float, first: float) -> float:
        """
        Return when a call is due: never before it was made, in seconds since the epoch.

        Args:
            made: when it was made.
            first: when the first call of its burst was made.
        """
        return min(made + self.quiet, max(made, first + self.at_most))
