"""Whether this process stood still: then nothing in it could have been in time."""

from __future__ import annotations

import itertools
import threading
from typing import Self

from celery_redlock import Lease
from celery_redlock.core.lease import holding_of
from celery_redlock.transport.clock import now

# Seconds between two stamps.
PULSE = 0.01
# Seconds; from two beats in a row that did not come on, the process stood still.
STALL = 0.03
# A loss is told at most half a second before trust ends: what held it up came shortly before.
SHORTLY = 1.0


class Pulse:
    """A thread that writes down, on the clock of leases, when this process got to run."""

    def __init__(self) -> None:
        self._stamps: list[float] = []
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._beat, daemon=True, name="pulse")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._thread.join()

    def _beat(self) -> None:
        while not self._ends.wait(PULSE):
            self._stamps.append(now())

    def stood_still(self, since: float, until: float) -> float:
        """Return for how many seconds the process did not get to run, without pauses of a beat."""
        within = [since, *(stamp for stamp in list(self._stamps) if since < stamp < until), until]
        gaps = [after - before for before, after in itertools.pairwise(within)]
        return sum(gap - PULSE for gap in gaps if gap > STALL)


def in_time(lease: Lease, told: float, pulse: Pulse) -> bool:
    """Return whether a loss was reported before its lease ended, not counting stalls."""
    end = holding_of(lease).valid_until
    return told - pulse.stood_still(end - SHORTLY, told) < end
