"""The page, served for real on this machine, and viewers of it."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPResponse
from threading import Thread
from typing import Any

from celery_redlock import Redlock
from celery_redlock.admin.live_view import LiveView
from celery_redlock.web.access import CSRF_COOKIE, CSRF_HEADER, TokenAccess
from celery_redlock.web.server import PageServer
from tests.support.waiting import TIMEOUT, wait_until

INTERVAL = 0.05
CSRF = "what-a-page-and-its-browser-have"


class Pages:
    """
    The page as viewers reach it.

    Attributes:
        port: the port of the server.
        root: the path below which it is; empty, or without a slash at its end.
        cookie: what the browser of the viewer sends besides.
    """

    port: int
    root = ""
    cookie = ""

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}{self.root}/"

    def ask(
        self,
        path: str,
        *,
        method: str = "GET",
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
    ) -> HTTPResponse:
        """Send a request and return the answer; its body is in `text`."""
        connection = HTTPConnection("127.0.0.1", self.port, timeout=TIMEOUT)
        sent = {"Cookie": self.cookie, **(headers or {})}
        connection.request(method, self.root + path, body, sent)
        response: Any = connection.getresponse()
        response.text = response.read().decode()
        connection.close()
        return response

    def release(
        self,
        owner: str,
        key: str = "account:7",
        *,
        row: str = "",
        revoke: bool = False,
        **headers: str,
    ) -> HTTPResponse:
        """
        Release as the page does; `headers` replace its own, and `None` removes one.

        Args:
            row: its id; by default that of a key without slots.
            revoke: also the message that has it.
        """
        sent = {
            "Origin": f"http://127.0.0.1:{self.port}",
            CSRF_HEADER: CSRF,
            "Cookie": f"{CSRF_COOKIE}={CSRF}; {self.cookie}",
            "Content-Type": "application/json",
        } | {name.replace("_", "-"): value for name, value in headers.items()}
        wanted_row = {"key": key, "id": row or f"redlock:{key}", "owner": owner, "revoke": revoke}
        body = json.dumps(wanted_row).encode()
        wanted = {name: value for name, value in sent.items() if value is not None}
        return self.ask("/release", method="POST", headers=wanted, body=body)

    @contextmanager
    def viewer(self, text: str = "") -> Iterator[Iterator[dict[str, Any]]]:
        """Watch through a filter; give the looks that arrive, without end."""
        connection = HTTPConnection("127.0.0.1", self.port, timeout=TIMEOUT)
        path = f"{self.root}/events?filter={text}"
        connection.request("GET", path, headers={"Cookie": self.cookie})
        response = connection.getresponse()
        assert response.status == 200
        assert response.headers["Content-Type"].startswith("text/event-stream")
        try:
            yield _looks(response)
        finally:
            response.close()
            connection.close()


class Site(Pages):
    """A served page, with what its server knows."""

    def __init__(
        self,
        redlock: Redlock,
        access: TokenAccess,
        *,
        port: int = 0,
        names: Mapping[str, str] | None = None,
    ) -> None:
        self.access = access
        self.server = PageServer(LiveView(redlock, names or {}), access, interval=INTERVAL)
        self.looks: list[tuple[str, ...]] = []
        self.history: Any = self.server.refresher._look

        def counted(filters: Any) -> Any:
            self.looks.append(tuple(filters))
            return self.history(filters)

        self.server.refresher._look = counted
        self.listener = socket.create_server(("127.0.0.1", port))
        self.port: int = self.listener.getsockname()[1]
        self._thread = Thread(target=self.server.serve_on, args=[self.listener])

    @property
    def is_looking(self) -> bool:
        return self.server.refresher.is_looking

    @property
    def is_stalled(self) -> bool:
        """Whether the server waits for a viewer to take what it has sent."""
        connections: set[Any] = self.server.server_state.connections
        return any(connection.flow.write_paused for connection in connections.copy())

    def start(self) -> None:
        self._thread.start()
        wait_until(lambda: self.server.started)

    def stop(self) -> None:
        self.server.should_exit = True
        self._thread.join(TIMEOUT)
        assert not self._thread.is_alive()


def _looks(response: HTTPResponse) -> Iterator[dict[str, Any]]:
    while line := response.readline():
        if found := re.match(rb"data: (.*)", line):
            yield json.loads(found[1])


def keys(look: Mapping[str, Any]) -> list[str]:
    """Return the keys that a look shows."""
    return [group["key"] for group in look["locks"]["keys"]]


@contextmanager
def served(
    redlock: Redlock, *, token: str | None = None, read_only: bool = False, **options: Any
) -> Iterator[Site]:
    access = TokenAccess.for_host("127.0.0.1", token, read_only=read_only)
    site = Site(redlock, access, **options)
    site.start()
    try:
        yield site
    finally:
        site.stop()
