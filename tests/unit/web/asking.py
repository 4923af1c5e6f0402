"""Requests to an ASGI application, without a server."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from celery_redlock.web.access import CSRF_COOKIE, CSRF_HEADER

CSRF = "what-a-page-and-its-browser-have"


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    text: str


class Request:
    """
    A request and its answer; its client stays until it has the answer.

    Attributes:
        scope: as the application gets it.
        has_left: set when the client hangs up.
        sent: the messages of the application.
    """

    def __init__(
        self,
        path: str = "/",
        *,
        root: str = "",
        headers: Mapping[str, str] | None = None,
        body: Callable[[], Awaitable[bytes]] | bytes = b"",
        **scope: object,
    ) -> None:
        """Make a request; `body` may be what gives the body when the application reads it."""
        wire = [(name.lower().encode(), value.encode()) for name, value in (headers or {}).items()]
        self.scope = {
            "type": "http",
            "method": "GET",
            "scheme": "http",
            "path": path,
            "root_path": root,
            "query_string": b"",
            "headers": [(b"host", b"shop.example"), *wire],
        } | scope
        self.has_left = asyncio.Event()
        self.sent: list[dict[str, Any]] = []
        self._body: Callable[[], Awaitable[bytes]] | bytes | None = body

    async def send_to(self, app: Any) -> None:
        """Send it to an application, which may give no answer."""
        await app(self.scope, self._receive, self._send)

    async def to(self, app: Any) -> Answer:
        """Send it to an application, and return the answer."""
        await self.send_to(app)
        fields = {name.decode(): value.decode() for name, value in self.sent[0]["headers"]}
        text = b"".join(one.get("body", b"") for one in self.sent).decode()
        return Answer(self.sent[0]["status"], fields, text)

    async def _receive(self) -> dict[str, Any]:
        body, self._body = self._body, None
        if body is None or self.has_left.is_set():
            await self.has_left.wait()
            return {"type": "http.disconnect"}
        return {"type": "http.request", "body": body if isinstance(body, bytes) else await body()}

    async def _send(self, message: dict[str, Any]) -> None:
        self.sent.append(message)


def a_release(*, body: Callable[[], Awaitable[bytes]] | None = None, **scope: object) -> Request:
    """Return a request to release, as the page sends it."""
    headers = {
        "origin": "http://shop.example",
        CSRF_HEADER: CSRF,
        "cookie": f"{CSRF_COOKIE}={CSRF}",
    }
    return Request("/release", method="POST", headers=headers, body=body or RELEASE, **scope)


RELEASE = b'{"key": "account:7", "id": "redlock:account:7", "owner": "owner"}'


def ask(app: Any, path: str = "/", **request: Any) -> Answer:
    """Send one request, and return the answer."""
    return asyncio.run(Request(path, **request).to(app))
