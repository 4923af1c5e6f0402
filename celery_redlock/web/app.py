"""
The routes of the page, and the page as a part of another application.
"""

from __future__ import annotations

import asyncio
import base64
import functools
import hashlib
import json
import re
from collections.abc import AsyncIterator, Callable
from importlib import resources
from typing import Any

from celery import Celery
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from celery_redlock._log import event_logger
from celery_redlock.admin.live_view import LiveView
from celery_redlock.admin.lock_list import task_names
from celery_redlock.errors import ConfigurationError, LockKeyError, RedlockError
from celery_redlock.protocol.texts import shortened
from celery_redlock.tasks.config.client import client_for
from celery_redlock.web.access import (
    Access,
    MountedAccess,
    csrf_of,
    guarded,
    is_from_page,
    set_csrf,
)
from celery_redlock.web.refresher import History, Refresher

logger = event_logger(__name__)

#: Characters of a filter, and bytes of a request to release.
_LONGEST_FILTER, _LONGEST_BODY = 200, 256 * 1024

#: Seconds after which a viewer that takes nothing is disconnected, and those that a body may take.
_STUCK, _BODY_WITHIN = 30.0, 10.0

#: Requests for the details of a key that may wait for another one; further ones are refused.
_MOST_WAITING = 8

_PAGE = resources.files("celery_redlock.web").joinpath("page.html").read_text("utf-8")


def web_app(view: LiveView, refresher: Refresher, access: Access) -> ASGIApp:
    """
    Return the page as an ASGI app, to be put behind `guarded`.

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
    # A redirect would have the address below the root.
    app.router.redirect_slashes = False
    return app


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


#: The Content-Security-Policy of the page.
POLICY = _policy(_PAGE)


def mounted(app: Celery, access: MountedAccess) -> ASGIApp:
    """
    Return the page of an app's locks, for viewers with access.

    Raises:
        ConfigurationError: `app` is no Celery app.
    """
    if not isinstance(app, Celery):
        raise ConfigurationError(
            f"locks_app needs the Celery app whose locks it shows, not a {type(app).__name__}: "
            "locks_app(celery_app, may_view=...)."
        )

    @functools.cache
    def page() -> ASGIApp | Exception:
        # At the first request of a viewer: the app has its settings, and no process forks any more.
        # An error is kept too: a second import of the tasks would fail in the same way.
        try:
            app.loader.import_default_modules()
            view = LiveView(client_for(app), task_names(app.tasks))
        except Exception as exc:
            return exc
        return web_app(view, Refresher(History(view.look)), access)

    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        if isinstance(found := page(), Exception):
            raise ConfigurationError(
                f"locks_app could not load the Celery app ({type(found).__name__}: {found}). "
                "Remove the cause, and restart the process."
            ) from found
        await found(scope, receive, send)

    return guarded(serve, access, POLICY)


class _Routes:
    def __init__(self, view: LiveView, refresher: Refresher, access: Access) -> None:
        self._view = view
        self._refresher = refresher
        self._access = access
        # Both read all keys, so one of each runs at a time. No release waits for details.
        self._details, self._releases = asyncio.Lock(), asyncio.Lock()
        self._asking_for_details = 0

    async def page(self, request: Request) -> Response:
        """Return the page."""
        csrf = csrf_of(request)
        read_only = str(await self._access.why_no_release(request) is not None).lower()
        response = HTMLResponse(_PAGE.replace("{{csrf}}", csrf).replace("{{read-only}}", read_only))
        set_csrf(request, response, csrf)
        return response

    async def events(self, request: Request) -> Response:
        """Return what the nodes show through a filter, live."""
        text = request.query_params.get("filter", "").strip()
        if len(text) > _LONGEST_FILTER:
            return _message(400, f"A filter has at most {_LONGEST_FILTER} characters.")
        if request.method == "HEAD":
            return Response(media_type="text/event-stream")
        if not self._refresher.join(text):
            return _message(503, "Too many viewers. Close other windows of this page.")
        frames = self._refresher.frames(text, self._access.lasts)
        return _EventStream(frames, lambda: self._refresher.leave(text))

    async def key(self, request: Request) -> Response:
        """Return what each node has of one key."""
        if self._asking_for_details > _MOST_WAITING:
            return _message(503, "Too many viewers ask for details. Try again in a few seconds.")
        self._asking_for_details += 1
        try:
            async with self._details:
                if (refusal := await self._late_refusal(request)) is not None:
                    return refusal
                key = request.query_params.get("key", "")
                try:
                    return _json({"locks": await asyncio.to_thread(self._view.show, key)})
                except RedlockError as exc:
                    return _failed(exc)
        finally:
            self._asking_for_details -= 1

    async def release(self, request: Request) -> Response:
        """Release a row, if it still has the owner that the viewer has seen."""
        if (refusal := await self._no_release(request)) is not None:
            return refusal
        if not is_from_page(request):
            return _message(
                403,
                "This did not come from the current page. Load the page again; a proxy in front "
                "of it has to pass the Host header on.",
            )
        try:
            async with asyncio.timeout(_BODY_WITHIN):
                body = await _body(request)
            key, row_id, owner = _wanted(body)
            revoke = body.get("revoke") is True
        except (TimeoutError, ClientDisconnect):
            return _message(408, f"The request took longer than {_BODY_WITHIN:g} s.")
        except (ValueError, KeyError, TypeError, RecursionError):
            return _message(400, 'Send {"key": text, "id": text, "owner": text} of a row.')
        user = await self._access.viewer_name(request)
        async with self._releases:
            # The body and other releases have taken time, in which rights may have ended.
            refusal = await self._late_refusal(request) or await self._no_release(request)
            if refusal is not None:
                return refusal
            logger.warning(
                "viewer-releases",
                "Viewer %(viewer)s releases %(key)r",
                viewer=f"at {_address(request)}" if user is None else repr(shortened(user)),
                key=shortened(key),
            )
            try:
                count = await asyncio.to_thread(
                    self._view.release, key, row_id, owner, revoke=revoke
                )
            except RedlockError as exc:
                return _failed(exc)
        self._refresher.hurry()
        if not count:
            return _message(409, "Nothing was released: the lock has ended or passed on meanwhile.")
        return _message(200, f"Released: {count}.")

    async def _late_refusal(self, request: Request) -> Response | None:
        """Return the answer to a viewer that has left or lost access while it waited; else None."""
        if await request.is_disconnected():
            return _message(408, "The viewer has left.")
        return await self._access.refusal(request)

    async def _no_release(self, request: Request) -> Response | None:
        """Return the answer to a viewer that may release nothing; else None."""
        why = await self._access.why_no_release(request)
        return None if why is None else _message(403, f"Nothing can be released: {why}.")


class _EventStream(StreamingResponse):
    """
    Frames for one viewer, until it leaves or takes nothing for too long.

    Args:
        frames: the frames.
        leave: called at the end, also if there was no frame.
    """

    def __init__(self, frames: AsyncIterator[bytes], leave: Callable[[], None]) -> None:
        super().__init__(frames, media_type="text/event-stream")
        self._leave = leave

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_in_time(message: Message) -> None:
            async with asyncio.timeout(_STUCK):
                await send(message)

        try:
            await super().__call__(scope, receive, send_in_time)
        except* TimeoutError:
            logger.info(
                "viewer-given-up",
                "A viewer read nothing for %(seconds)g s and is disconnected",
                seconds=_STUCK,
            )
        finally:
            self._leave()


def _address(request: Request) -> str:
    """Return who has connected and, as that one names it, for whom."""
    client = request.client.host if request.client else "?"
    forwarded = request.headers.get("X-Forwarded-For")
    return client if forwarded is None else f"{client}, for {shortened(forwarded)!r},"


async def _body(request: Request) -> Any:
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > _LONGEST_BODY:
            raise ValueError("too long")
    return json.loads(body)


def _wanted(body: Any) -> tuple[str, str, str]:
    """Return the key in a request, and the id and the owner value of its row."""
    wanted = body["key"], body["id"], body["owner"]
    if not all(isinstance(text, str) for text in wanted):
        raise TypeError
    return wanted


def _failed(exc: RedlockError) -> Response:
    return _message(400 if isinstance(exc, LockKeyError) else 503, str(exc))


def _message(status: int, text: str) -> Response:
    return _json({"message": text}, status)


def _json(data: Any, status: int = 200) -> Response:
    # Escaped: an owner value may have bytes that are not UTF-8.
    return Response(json.dumps(data), status, media_type="application/json")
