"""
The routes of the page.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import re
from collections.abc import AsyncGenerator
from importlib import resources
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from celery_redlock._log import event_logger
from celery_redlock.admin.live_view import LiveView
from celery_redlock.errors import LockKeyError, RedlockError
from celery_redlock.protocol.texts import shortened
from celery_redlock.web.access import Access, guarded
from celery_redlock.web.refresher import Refresher

__all__ = ["web_app"]

logger = event_logger(__name__)

#: Characters of a filter, and bytes of a request to release.
_LONGEST_FILTER, _LONGEST_BODY = 200, 256 * 1024

#: Seconds after which a viewer that takes nothing is given up.
_STUCK = 30.0

_PAGE = resources.files("celery_redlock.web").joinpath("page.html").read_text("utf-8")
_CSRF_PLACE = "{{csrf}}"


def web_app(view: LiveView, refresher: Refresher, access: Access) -> ASGIApp:
    """
    Return the page as an ASGI app.

    Args:
        view: shows a key and releases it.
        refresher: sends to viewers what the nodes show.
        access: who may see it.
    """
    routes = _Routes(view, refresher, access)
    app = Starlette(
        routes=[
            Route("/", routes.page),
            Route("/events", routes.events),
            Route("/key", routes.key),
            Route("/release", routes.release, methods=["POST"]),
        ]
    )
    return guarded(app, access, _policy(_PAGE))


def _policy(page: str) -> str:
    """Return a Content-Security-Policy that allows a page its own style and script, by hashes."""

    def source(tag: str) -> str:
        (text,) = re.findall(rf"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
        return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"

    return (
        f"default-src 'none'; script-src {source('script')}; style-src {source('style')}; "
        "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'; require-trusted-types-for 'script'"
    )


class _Routes:
    def __init__(self, view: LiveView, refresher: Refresher, access: Access) -> None:
        self._view = view
        self._refresher = refresher
        self._access = access
        #: Each of these reads all keys: one at a time.
        self._one_at_a_time = asyncio.Lock()

    async def page(self, request: Request) -> Response:
        """Return the page."""
        return HTMLResponse(_PAGE.replace(_CSRF_PLACE, self._access.csrf))

    async def events(self, request: Request) -> Response:
        """Return what the nodes show through a filter, live."""
        text = request.query_params.get("filter", "").strip()
        if len(text) > _LONGEST_FILTER:
            return _message(400, f"A filter has at most {_LONGEST_FILTER} characters.")
        if self._refresher.is_full:
            return _message(503, "Too many viewers. Close other windows of this page.")
        return _EventStream(self._refresher.frames(text), media_type="text/event-stream")

    async def key(self, request: Request) -> Response:
        """Return what each node has of one key."""
        key = request.query_params.get("key", "")
        try:
            async with self._one_at_a_time:
                return _json({"locks": await asyncio.to_thread(self._view.show, key)})
        except RedlockError as exc:
            return _failed(exc)

    async def release(self, request: Request) -> Response:
        """Take a row away from the owner that somebody has seen."""
        if not self._access.may_change(request):
            return _message(403, "This did not come from the page as it is now. Load it again.")
        try:
            body = await _body(request)
            key, row_id, owner = _wanted(body)
            revoke = body.get("revoke") is True
        except (ValueError, KeyError, TypeError, RecursionError):
            return _message(400, 'Send {"key": text, "id": text, "owner": text}, as of a row.')
        client = request.client.host if request.client else "?"
        forwarded = request.headers.get("X-Forwarded-For")
        logger.warning(
            "viewer-releases",
            "A viewer at %(viewer)s releases %(key)r",
            viewer=client if forwarded is None else f"{client}, for {shortened(forwarded)!r},",
            key=shortened(key),
        )
        try:
            async with self._one_at_a_time:
                count = await asyncio.to_thread(
                    self._view.release, key, row_id, owner, revoke=revoke
                )
        except RedlockError as exc:
            return _failed(exc)
        self._refresher.hurry()
        if not count:
            return _message(409, "Nothing was released: the lock has ended or passed on meanwhile.")
        return _message(200, f"Released: {count}.")


class _EventStream(StreamingResponse):
    """Frames for one viewer, until it leaves or takes nothing for too long."""

    body_iterator: AsyncGenerator[bytes]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_in_time(message: Message) -> None:
            async with asyncio.timeout(_STUCK):
                await send(message)

        try:
            await super().__call__(scope, receive, send_in_time)
        except* TimeoutError:
            logger.info(
                "viewer-given-up",
                "A viewer took nothing for %(seconds)g s and is given up",
                seconds=_STUCK,
            )
        finally:
            # A viewer that leaves between two frames: nothing else ends its generator at once.
            await self.body_iterator.aclose()


async def _body(request: Request) -> Any:
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > _LONGEST_BODY:
            raise ValueError("too long")
    return json.loads(body)


def _wanted(body: Any) -> tuple[str, str, str]:
    """Return the key, the id of the row, and its owner value, of a request."""
    wanted = body["key"], body["id"], body["owner"]
    if not all(isinstance(text, str) for text in wanted):
        raise TypeError
    return wanted


def _failed(exc: RedlockError) -> Response:
    return _message(400 if isinstance(exc, LockKeyError) else 503, str(exc))


def _message(status: int, text: str) -> Response:
    return _json({"message": text}, status)


def _json(data: Any, status: int = 200) -> Response:
    # Escaped: an owner value may have bytes that are no UTF-8.
    return Response(json.dumps(data), status, media_type="application/json")
