"""
One page in a browser for operators: locks, waiters and nodes, live.

Needs `pip install "celery-redlock[web]"`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from celery_redlock.errors import ConfigurationError

if TYPE_CHECKING:
    from celery import Celery
    from starlette.types import ASGIApp

    from celery_redlock.web.access import Naming, Rule


def locks_app(
    app: Celery, *, may_view: Rule, may_release: Rule = False, user: Naming | None = None
) -> ASGIApp:
    """
    Return the page of locks as an ASGI application, to be mounted in one that knows its users.

    The page has no access control of its own: `may_view` decides about each request, and again
    every 5 seconds while a viewer watches. `may_release` and, once more, `may_view` decide just
    before a release, which also has to come from the page itself. True allows; False and None
    refuse. An error, or anything else, such as a method that was not called, refuses the request
    with status 500.

    Each function gets the ASGI scope, with the entries that the application's middleware has added.
    It runs in the event loop, so a function that asks a database has to be a coroutine function.

    Mount it at any path, in any number of processes: each has its own refresher, which polls the
    nodes while it has viewers. The page needs no lifespan events. When the server shuts down, it
    waits for up to 5 seconds for the viewers of the page to leave.

    Args:
        app: the Celery app, for its nodes and the names of its tasks.
        may_view: who may see the page. True: everyone whose request arrives here, so the
            application has to refuse all others before.
        may_release: which of these may release locks and revoke queued messages.
        user: returns the name that the log records for a release, a str or an object whose `str`
            is the name. If `user` or the name is None, the client's address is recorded.

    Raises:
        ConfigurationError: an argument cannot be used, or a package is missing.
    """
    try:
        from celery_redlock.web.access import MountedAccess
        from celery_redlock.web.app import mounted
    except ModuleNotFoundError as exc:
        if exc.name != "starlette":
            raise
        raise ConfigurationError(
            'locks_app needs the package starlette: pip install "celery-redlock[web]".'
        ) from exc
    return mounted(app, MountedAccess(may_view=may_view, may_release=may_release, user=user))
