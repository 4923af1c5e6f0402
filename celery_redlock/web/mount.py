"""
The page, mounted in an application that knows its own users.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import ClassVar, Literal, TypeAlias

from celery import Celery
from starlette.requests import HTTPConnection, Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from celery_redlock.admin.live_view import LiveView
from celery_redlock.admin.lock_list import task_names
from celery_redlock.errors import ConfigurationError
from celery_redlock.tasks.config.client import client_for
from celery_redlock.web.access import HOST_SCOPE, Access, guarded
from celery_redlock.web.app import POLICY, web_app
from celery_redlock.web.refresher import History, Refresher

#: Seconds after which a viewer has to connect again. A server that stops waits for that long, since
#: a mounted application learns nothing of the stop.
LASTS = 5.0

Rule: TypeAlias = bool | Callable[[Scope], bool | Awaitable[bool | None] | None]
Naming: TypeAlias = Callable[[Scope], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class MountedAccess(Access):
    """
    Access as the application decides it, for each request of a viewer.

    Attributes:
        may_view: who may see the page.
        may_release: who, of these, may release locks.
        user: returns a viewer's name for the log; None: addresses are logged.

    Raises:
        ConfigurationError: one of them is neither of the types that it may have.
    """

    lasts: ClassVar[float | None] = LASTS

    may_view: Rule
    may_release: Rule
    user: Naming | None

    def __post_init__(self) -> None:
        for name in ("may_view", "may_release"):
            if not (isinstance(rule := getattr(self, name), bool) or callable(rule)):
                raise ConfigurationError(
                    f"locks_app cannot use {name}={rule!r}: give a function of the ASGI scope that "
                    "returns True or False, or one of these values itself."
                )
        if not (self.user is None or callable(self.user)):
            raise ConfigurationError(
                f"locks_app cannot use user={self.user!r}: give a function of the ASGI scope "
                "that returns a name or None."
            )

    async def refusal(self, request: HTTPConnection) -> Response | None:
        """Return the answer to a viewer that may not see the page; else None."""
        if await self._allows("may_view", request):
            return None
        return PlainTextResponse("You may not see this page.", 403)

    async def why_no_release(self, request: Request) -> str | None:
        """Return why the viewer may release nothing; None if it may."""
        if await self._allows("may_release", request):
            return None
        return "you may not release locks"

    async def viewer_name(self, request: Request) -> str | None:
        """Return the name of the viewer for the log; None if it has none."""
        if self.user is None or (name := await _found(self.user, request)) is None:
            return None
        return str(name)

    async def _allows(
        self, name: Literal["may_view", "may_release"], request: HTTPConnection
    ) -> bool:
        rule: Rule = getattr(self, name)
        decision = rule if isinstance(rule, bool) else await _found(rule, request)
        # A method that was not called, or a response, would be true as well.
        if decision is not None and not isinstance(decision, bool):
            raise ConfigurationError(
                f"locks_app cannot use what {name} returned, a value of type "
                f"{type(decision).__name__}: return True or False."
            )
        return decision is True


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


async def _found(function: Callable[[Scope], object], request: HTTPConnection) -> object:
    found = function(request.scope[HOST_SCOPE])
    return await found if inspect.isawaitable(found) else found
