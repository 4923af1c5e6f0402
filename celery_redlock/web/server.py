"""
The server of the page.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Mapping

import uvicorn

from celery_redlock.admin.live_view import LiveView
from celery_redlock.core import Client, Redlock
from celery_redlock.web.access import TokenAccess, guarded
from celery_redlock.web.app import POLICY, web_app
from celery_redlock.web.connection import BACKLOG, PageConnection
from celery_redlock.web.history import History
from celery_redlock.web.refresher import Refresher


class PageServer(uvicorn.Server):
    """
    Serves the page in one process.

    It does not log the addresses of requests, since one of them contains the token.

    Args:
        redlock: the client of the nodes.
        names: the names of tasks, see `celery_redlock.admin.lock_list.task_names`.
        access: who may see the page.
        interval: seconds from the end of a look at the nodes to the next one.
    """

    def __init__(
        self,
        redlock: Redlock | Client,
        names: Mapping[str, str],
        access: TokenAccess,
        *,
        interval: float = 2.0,
    ) -> None:
        self.view = LiveView(redlock, names)
        self.refresher = Refresher(History(self.view.look), interval=interval)
        super().__init__(
            uvicorn.Config(
                guarded(web_app(self.view, self.refresher, access), access, POLICY),
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
