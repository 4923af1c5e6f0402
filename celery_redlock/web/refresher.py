"""
One refresher for all viewers.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from typing import Any

from celery_redlock._log import event_logger

__all__ = ["MOST_VIEWERS", "Refresher"]

logger = event_logger(__name__)

#: Viewers at one time; another one is refused.
MOST_VIEWERS = 200

#: The rest after a look in durations of it, and its limits in seconds: people who type filters do
#: not make the nodes work more than that.
_REST, _SHORTEST_REST, _LONGEST_REST = 2.0, 0.3, 10.0


class Refresher:
    """
    Looks again and again while anyone watches, and sends what it found to all viewers.

    One look at a time serves all of them, so the nodes have the same work for one as for a hundred,
    and none while nobody watches. A viewer gets the newest look when it is ready for it: a slow one
    misses looks, and holds up nobody. All methods belong to one event loop; looks are made in a
    thread.

    Args:
        look: returns for each filter what to show, as JSON takes it. It may block.
        interval: seconds from the end of a look to the next one.
    """

    def __init__(
        self, look: Callable[[Collection[str]], Mapping[str, Any]], *, interval: float = 2.0
    ) -> None:
        self._look = look
        self._interval = interval
        self._viewers: Counter[str] = Counter()
        self._latest: dict[str, bytes] = {}
        self._published = asyncio.Event()
        self._wanted = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    @property
    def is_full(self) -> bool:
        """Whether another viewer is refused."""
        return self._viewers.total() >= MOST_VIEWERS

    @property
    def is_looking(self) -> bool:
        """Whether it asks the nodes now and then."""
        return self._task is not None

    async def frames(self, text: str) -> AsyncIterator[bytes]:
        """Yield the newest look through one filter as an event for a browser, until closed."""
        self._join(text)
        try:
            sent = None
            while not self._closed:
                published, frame = self._published, self._latest.get(text)
                if frame is None or frame is sent:
                    await published.wait()
                else:
                    sent = frame
                    yield frame
        finally:
            self._leave(text)

    def hurry(self) -> None:
        """Look again as soon as may be: something has changed."""
        self._wanted.set()

    def close(self) -> None:
        """End the frames of all viewers."""
        self._closed = True
        self._publish({})

    def _join(self, text: str) -> None:
        self._viewers[text] += 1
        if text not in self._latest:
            self._wanted.set()
        if self._task is None:
            self._task = asyncio.create_task(self._run())

    def _leave(self, text: str) -> None:
        self._viewers[text] -= 1
        if not self._viewers[text]:
            del self._viewers[text]
            self._latest.pop(text, None)
        if not self._viewers:
            self._wanted.set()

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while self._viewers and not self._closed:
                self._wanted.clear()
                began = loop.time()
                self._publish(await asyncio.to_thread(self._frames, tuple(self._viewers)))
                rest = _REST * (loop.time() - began)
                await asyncio.sleep(min(max(rest, _SHORTEST_REST), _LONGEST_REST))
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._wanted.wait(), self._interval)
        finally:
            self._task = None

    def _frames(self, filters: tuple[str, ...]) -> dict[str, bytes]:
        try:
            found = self._look(filters)
        except Exception:
            logger.exception("viewer-refresh-failed", "A look at the nodes failed")
            problem = "The nodes could not be read; the log of this command has the reason."
            found = {text: {"problem": problem} for text in filters}
        return {text: b"data: %b\n\n" % json.dumps(found[text]).encode() for text in found}

    def _publish(self, frames: Mapping[str, bytes]) -> None:
        self._latest = {text: frame for text, frame in frames.items() if text in self._viewers}
        published, self._published = self._published, asyncio.Event()
        published.set()
