"""
The server of the page, and its connections: closed if no request comes, and if there are too many.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from celery_redlock.admin.live_view import LiveView
from celery_redlock.web.access import TokenAccess, guarded
from celery_redlock.web.app import POLICY, web_app
from celery_redlock.web.refresher import MOST_VIEWERS, History, Refresher

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


class PageServer(uvicorn.Server):
    """
    Serves the page in one process.

    It does not log the addresses of requests, since one of them contains the token.

    Args:
        view: shows the nodes.
        access: who may see the page.
        interval: seconds from the end of a look at the nodes to the next one.
    """

    def __init__(self, view: LiveView, access: TokenAccess, *, interval: float = 2.0) -> None:
        self.refresher = Refresher(History(view.look), interval=interval)
        super().__init__(
            uvicorn.Config(
                guarded(web_app(view, self.refresher, access), access, POLICY),
                access_log=False,
                backlog=BACKLOG,
                http=PageConnection,
                lifespan="off",
                log_config=None,
                proxy_headers=False,  # anybody on this machine could name another address
                server_header=False,
                timeout_graceful_shutdown=2,
                ws="none",
            )
        )

    def serve_on(self, listener: socket.socket) -> None:
        """Serve on a socket that listens, until interrupted."""
        with contextlib.suppress(KeyboardInterrupt):
            self.run(sockets=[listener])

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End the connections of viewers, which would never end by themselves, and the others."""
        self.refresher.close()
        await super().shutdown(sockets)
