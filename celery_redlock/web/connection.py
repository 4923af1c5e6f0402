"""
One connection to the page, closed if no request comes, and earlier if there are too many.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

from celery_redlock.web.refresher import MOST_VIEWERS

#: Connections that are accepted at once, before the surplus is closed.
BACKLOG = 32

#: Seconds within which a request has to begin and its headers have to end.
REQUEST_WITHIN = 10.0


def _most_connections() -> int:
    """Return the most connections: two for each viewer, but at most half of the open-file limit."""
    most = 2 * MOST_VIEWERS
    with contextlib.suppress(ImportError):  # Windows has no such limit
        import resource

        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if files != resource.RLIM_INFINITY:
            most = min(most, files // 2)
    return most


class PageConnection(H11Protocol):
    """
    A connection that has to send its requests in time.

    Anybody can open connections, with the token or without. A connection above the maximum closes
    the one that has waited longest for a request, so a viewer that sends a request at once gets in.
    """

    most = _most_connections()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for a request."""
        super().connection_made(transport)
        self._await_request()
        if len(self.connections) > self.most:
            connections = (one for one in self.connections if isinstance(one, PageConnection))
            waiting = (one for one in connections if one.is_waiting)
            closed = min(waiting, key=lambda one: one.waits_since, default=self)
            self.connections.discard(closed)  # it counts until the event loop has closed it
            closed.transport.abort()

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        super().on_response_complete()
        self._await_request()

    @property
    def is_waiting(self) -> bool:
        """Whether no request is being answered."""
        return not self.transport.is_closing() and (
            self.cycle is None or self.cycle.response_complete
        )

    def _await_request(self) -> None:
        self.waits_since = self.loop.time()
        self.loop.call_later(REQUEST_WITHIN, self._close_if_silent, self.cycle)

    def _close_if_silent(self, cycle: Any) -> None:
        if self.cycle is cycle and self.is_waiting:
            self.transport.abort()
