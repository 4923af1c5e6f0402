"""
One refresher for all viewers, and what its looks have counted within the last minutes.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from datetime import datetime
from itertools import chain, islice
from typing import Any

from celery_redlock._log import event_logger

JsonObject = dict[str, Any]

logger = event_logger(__name__)

#: Most viewers at one time; further ones are refused. Points are kept for as many filters, those of
#: the latest looks.
MOST_VIEWERS = 200

#: The pause after a look, as a multiple of its duration, and the limits of the pause in seconds.
#: People who type filters cannot make the nodes work more than that.
_REST, _SHORTEST_REST, _LONGEST_REST = 2.0, 0.3, 10.0

#: An event at which the page connects again.
_CONNECT_AGAIN = b"event: again\ndata: 0\n\n"

#: Seconds of a point. Looks are never as far apart, so each point of a viewer's time has one.
EVERY = 15

#: Points that are kept for a filter: 15 minutes.
MOST_POINTS = 60


class Refresher:
    """
    Looks again and again while there are viewers, and sends them the results.

    One look at a time serves all viewers, so the nodes have the same work for one as for a hundred,
    and none without viewers. A viewer gets the newest look when it is ready for it: a slow viewer
    misses looks, and does not delay others. Looks continue for up to one interval after the last
    viewer has left, and looks for other viewers still go through its filter, so one that connects
    again finds the latest. All methods belong to one event loop; looks are made in a thread.

    Args:
        look: returns for each filter the data to show, for JSON. It may block.
        interval: seconds from the end of a look to the next one.
    """

    def __init__(
        self, look: Callable[[Collection[str]], Mapping[str, Any]], *, interval: float = 2.0
    ) -> None:
        self._look = look
        self._interval = interval
        self._viewers: Counter[str] = Counter()
        #: When the last viewer of a filter has left, the latest at the end.
        self._left: dict[str, float] = {}
        self._latest: dict[str, bytes] = {}
        self._published = asyncio.Event()
        self._wanted = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    @property
    def is_looking(self) -> bool:
        """Whether it polls the nodes."""
        return self._task is not None

    def join(self, text: str) -> bool:
        """
        Add a viewer of a filter, who has to `leave` once; return False if there are too many.

        Its place is taken when this returns, so viewers that come at once are counted one by one.
        """
        if self._viewers.total() >= MOST_VIEWERS:
            return False
        self._viewers[text] += 1
        if text not in self._latest:
            self._wanted.set()
        if self._task is None:
            self._task = asyncio.create_task(self._run())
        return True

    def leave(self, text: str) -> None:
        """Remove a viewer of a filter."""
        self._viewers[text] -= 1
        if not self._viewers[text]:
            del self._viewers[text]
            self._left.pop(text, None)
            self._left[text] = asyncio.get_running_loop().time()

    async def frames(self, text: str, lasts: float | None = None) -> AsyncIterator[bytes]:
        """
        Yield the newest look through a viewer's filter as an event for a browser, until closed.

        Args:
            text: the filter.
            lasts: seconds after which the browser has to connect again; None: never.
        """
        loop = asyncio.get_running_loop()
        ends = None if lasts is None else loop.time() + lasts
        sent = None
        while not self._closed:
            if ends is not None and loop.time() >= ends:
                yield _CONNECT_AGAIN
                return
            published, frame = self._published, self._latest.get(text)
            if frame is None or frame is sent:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout_at(ends):
                        await published.wait()
            else:
                sent = frame
                yield frame

    def hurry(self) -> None:
        """Look again as soon as possible: something has changed."""
        self._wanted.set()

    def close(self) -> None:
        """End the frames of all viewers."""
        self._closed = True
        self._publish({})
        self._wanted.set()

    def _filters(self) -> tuple[str, ...]:
        """Return the filters of viewers and of those that may connect again; at most as many."""
        since = asyncio.get_running_loop().time() - self._interval
        self._left = {text: at for text, at in self._left.items() if at > since}
        left = (text for text in reversed(self._left) if text not in self._viewers)
        return tuple(islice(chain(self._viewers, left), MOST_VIEWERS))

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while self._viewers and not self._closed:
                self._wanted.clear()
                began = loop.time()
                self._publish(await asyncio.to_thread(self._frames, self._filters()))
                rest = _REST * (loop.time() - began)
                await asyncio.sleep(min(max(rest, _SHORTEST_REST), _LONGEST_REST))
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._wanted.wait(), self._interval)
        finally:
            self._task = None
            self._latest = {}

    def _frames(self, filters: tuple[str, ...]) -> dict[str, bytes]:
        try:
            found = self._look(filters)
        except Exception:
            logger.exception("viewer-refresh-failed", "A poll of the nodes failed")
            problem = "The nodes could not be read; the log of this page's server has the reason."
            found = {text: {"problem": problem} for text in filters}
        return {text: b"data: %b\n\n" % json.dumps(found[text]).encode() for text in found}

    def _publish(self, frames: Mapping[str, bytes]) -> None:
        self._latest = dict(frames)
        published, self._published = self._published, asyncio.Event()
        published.set()


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
        while len(self._points) > MOST_VIEWERS:
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
