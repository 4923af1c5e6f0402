"""
Counts of held keys, waiters and expired locks, of the last minutes, in this process's memory.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Mapping
from datetime import datetime
from typing import Any

from celery_redlock.web.refresher import MOST_VIEWERS

JsonObject = dict[str, Any]

#: Seconds of a point. Looks are never as far apart, so each point of a viewer's time has one.
EVERY = 15

#: Points that are kept for a filter: 15 minutes.
MOST_POINTS = 60

#: Filters whose points are kept, those of the latest looks.
MOST_FILTERS = MOST_VIEWERS


class History:
    """
    Adds to each look what looks through its filter have counted within the last 15 minutes.

    It begins with the first look of the process, and asks the nodes nothing. A point has the most
    that a look within its 15 seconds has found: keys, waiters, and the seconds for which a waiter
    that is next has waited; and the sum of the locks that have expired. There is none for a time
    without a complete look.
    All keys of a filter are counted, and the waiters of those that are shown, as on the page.
    It keeps at most 200 filters of 60 points, which takes less than 3.5 MB.

    Args:
        look: returns for each filter what the nodes show, as `LiveView.look` does.
    """

    def __init__(self, look: Callable[[Collection[str]], Mapping[str, JsonObject]]) -> None:
        self._look = look
        self._points: dict[str, deque[tuple[Any, ...]]] = {}

    def __call__(self, filters: Collection[str]) -> dict[str, JsonObject]:
        """Return a look, with a `history` for each filter."""
        found = self._look(filters)
        return {
            text: {**state, "history": self._noted(text, state)} for text, state in found.items()
        }

    def _noted(self, text: str, state: JsonObject) -> JsonObject:
        """
        Note what a look has counted.

        Returns:
            The points, each as time, held, waiting, seconds of waiting, and expired.
        """
        # Behind all others, so that the first filter is the one that was looked at least recently.
        points = self._points[text] = self._points.pop(text, deque())
        while len(self._points) > MOST_FILTERS:
            del self._points[next(iter(self._points))]
        now = int(datetime.fromisoformat(state["at"]).timestamp()) // EVERY
        if points:
            now = max(now, points[-1][0])  # the clock of this machine may be set back
        locks = state["locks"]
        if locks and locks["part"] >= 1.0:
            waiting = [(group["waiting"], group["waiting_for"]) for group in locks["keys"]]
            longest = round(max((seconds for _, seconds in waiting), default=0.0), 1)
            most = [locks["found"], sum(count for count, _ in waiting), longest]
            expired = state["expired"]
            if points and points[-1][0] == now:
                _, *before, expired_before = points.pop()
                most, expired = list(map(max, most, before)), expired + expired_before
            points.append((now, *most, expired))
        while points and points[0][0] <= now - MOST_POINTS:
            points.popleft()
        return {"every": EVERY, "most": MOST_POINTS, "now": now, "points": list(points)}
