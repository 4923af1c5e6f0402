"""
The fencing token in an HTTP request: a client sends it, and a service's middleware checks it.

The middleware orders only arrivals. After a request has passed, one with a newer token may overtake
it inside the service, and the older request may write last. So pass the token on to the place where
the service writes (the middleware puts it into the request), and check it there again, in one step
with the write. Where that is impossible, the middleware still refuses a writer that wakes after a
newer one has arrived.

Every client that can send a request can also raise the highest token, so put the middleware behind
authorization.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import re
import threading
from collections.abc import Awaitable, Callable, Collection, Iterable, MutableMapping, Sequence
from http import HTTPStatus
from typing import Any, Protocol, TypeAlias

from celery_redlock.core.validation import checked_token
from celery_redlock.errors import InvalidFencingToken, InvalidResourceName, StaleFencingToken
from celery_redlock.fencing.arguments import (
    refuse,
    require_call,
    require_methods,
    stale,
    token_or_current,
)

FENCING_HEADER = "Redlock-Fencing-Token"

#: Key in the WSGI environ or the ASGI scope for the token of a request that has passed.
FENCING_KEY = "celery_redlock.fencing_token"

SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS", "TRACE"})

_STALE = "stale_fencing_token"

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class TokenStore(Protocol):
    """
    Remembers the highest token that each resource has seen.

    `RedisFence`, `FileTokenStore` and `MemoryTokenStore` are token stores; so is any other
    object with this method.
    """

    def claim(self, resource: str, token: int | None = None, /) -> None:
        """
        Let a resource see a token.

        Raises:
            StaleFencingToken: the resource has seen a newer one.
        """


class AsyncTokenStore(Protocol):
    """A token store for asyncio, such as `AsyncRedisFence`."""

    def claim(self, resource: str, token: int | None = None, /) -> Awaitable[None]:
        """Let a resource see a token; see `TokenStore.claim`."""


class MemoryTokenStore:
    """
    A store in this process's memory, for tests and for a service with a single process.

    Limit: other processes do not share it, and a restart loses all tokens.
    """

    def __init__(self) -> None:
        self._seen: dict[str, int] = {}
        self._lock = threading.Lock()

    def claim(self, resource: str, token: int | None = None) -> None:
        """Let a resource see a token; raise `StaleFencingToken` if it has seen a newer one."""
        number = token_or_current(token)
        with self._lock:
            seen = self._seen.get(resource, 0)
            if seen > number:
                raise stale(resource, seen, number)
            self._seen[resource] = number


def fencing_headers(token: int | None = None) -> dict[str, str]:
    """
    Return the request header that carries a token, for any HTTP client that takes a dict.

    Args:
        token: a fencing token; the current lease's if not given.

    Example:
        >>> requests.put(url, json=report, headers=fencing_headers())
    """
    return {FENCING_HEADER: str(token_or_current(token))}


def raise_if_stale(status: int, body: bytes | str) -> None:
    """Raise `StaleFencingToken` if the response is a middleware's refusal of a stale token."""
    if status != HTTPStatus.PRECONDITION_FAILED:
        return
    try:
        answer = json.loads(body)
        if answer["error"] != _STALE:
            return
        details = answer["message"], answer["resource"], answer["seen"], answer["offered"]
    except (ValueError, TypeError, LookupError):
        return
    raise StaleFencingToken(*details)


#: A response in place of the application's: its status and its body.
_Refusal: TypeAlias = tuple[HTTPStatus, bytes]


def _response(status: HTTPStatus, error: str, message: str, **details: Any) -> _Refusal:
    return status, json.dumps({"error": error, "message": message, **details}).encode()


def _headers(body: bytes) -> list[tuple[str, str]]:
    return [("Content-Type", "application/json"), ("Content-Length", str(len(body)))]


def _missing() -> _Refusal:
    return _response(
        HTTPStatus.PRECONDITION_REQUIRED,
        "missing_fencing_token",
        "This resource is written under a lock. "
        f"Send the lock's fencing token in the header {FENCING_HEADER}.",
    )


#: The errors of a request or a token store that become a response.
_REFUSED_ERRORS = (InvalidFencingToken, InvalidResourceName, StaleFencingToken)


def _refusal_for(error: Exception) -> _Refusal:
    if isinstance(error, StaleFencingToken):
        return _response(
            HTTPStatus.PRECONDITION_FAILED,
            _STALE,
            str(error),
            resource=error.resource,
            seen=error.seen,
            offered=error.offered,
        )
    what = "resource" if isinstance(error, InvalidResourceName) else "fencing_token"
    return _response(HTTPStatus.BAD_REQUEST, f"invalid_{what}", str(error))


def _parse_token(values: Sequence[str]) -> int | None:
    """Return the token in a header's values, None if there are none."""
    if not values:
        return None
    if len(values) > 1 or not re.fullmatch(r"[0-9]{1,16}", values[0]):
        raise InvalidFencingToken(
            f"The header {FENCING_HEADER} is one decimal number between 1 and 2**53 - 1, not "
            f"{', '.join(values)!r:.80}."
        )
    return checked_token(int(values[0]))


class WsgiFencingMiddleware:
    """
    Refuses requests whose fencing token is older than the highest one of the resource.

    Responses, as JSON: 412 for a stale token, 400 for an invalid token or resource, 428 for a
    missing token. A request that passes has its token in `environ[FENCING_KEY]`. Limit: this orders
    requests as they arrive, so pass the token on to the place where the service writes, and check
    it there again.

    Args:
        app: the application.
        store: remembers the tokens: `RedisFence`, `FileTokenStore`, `MemoryTokenStore` or your own.
        resource: returns the name of what a request writes, or None if it needs no token; may raise
            `InvalidResourceName` for a 400. The default is the path, which has to be UTF-8; give
            your own where several paths write the same thing.
        safe_methods: the methods that only read and so need no token; all others do.
        required: refuse a request without a token; otherwise it passes unchecked.

    Raises:
        ConfigurationError: the application or the store is of the wrong kind.
    """

    def __init__(
        self,
        app: Callable[..., Iterable[bytes]],
        store: TokenStore,
        *,
        resource: Callable[[dict[str, Any]], str | None] | None = None,
        safe_methods: Collection[str] = SAFE_METHODS,
        required: bool = True,
    ) -> None:
        require_call(
            "WsgiFencingMiddleware",
            "a WSGI application (environ, start_response)",
            app,
            2,
            "An ASGI application needs AsgiFencingMiddleware.",
        )
        _check_store("WsgiFencingMiddleware", store)
        if inspect.iscoroutinefunction(store.claim):
            raise refuse(
                "WsgiFencingMiddleware",
                "a blocking token store",
                store,
                "Give it a store without asyncio, such as RedisFence.",
            )
        _check_options("WsgiFencingMiddleware", resource, safe_methods)
        self.app = app
        self.store = store
        self._resource = resource or _path_of_environ
        self._safe = frozenset(safe_methods)
        self._required = required

    def __call__(
        self, environ: dict[str, Any], start_response: Callable[..., Any]
    ) -> Iterable[bytes]:
        """Pass a request on, or refuse it."""
        refusal = self._refusal(environ)
        if refusal is None:
            return self.app(environ, start_response)
        status, body = refusal
        start_response(f"{status.value} {status.phrase}", _headers(body))
        return [body]

    def _refusal(self, environ: dict[str, Any]) -> _Refusal | None:
        # In capitals, because applications accept "get" as GET and "put" as PUT.
        if environ["REQUEST_METHOD"].upper() in self._safe:
            return None
        try:
            resource = self._resource(environ)
            if resource is None:
                return None
            value = environ.get("HTTP_" + FENCING_HEADER.upper().replace("-", "_"))
            token = _parse_token([] if value is None else [value])
            if token is None:
                return _missing() if self._required else None
            self.store.claim(resource, token)
        except _REFUSED_ERRORS as error:
            return _refusal_for(error)
        environ[FENCING_KEY] = token
        return None


class AsgiFencingMiddleware:
    """
    `WsgiFencingMiddleware` for ASGI applications under asyncio; the token is in the scope.

    A blocking store runs in a thread. Only HTTP requests are checked, not websockets.
    """

    def __init__(
        self,
        app: Callable[[Scope, Receive, Send], Awaitable[None]],
        store: TokenStore | AsyncTokenStore,
        *,
        resource: Callable[[Scope], str | None] | None = None,
        safe_methods: Collection[str] = SAFE_METHODS,
        required: bool = True,
    ) -> None:
        require_call(
            "AsgiFencingMiddleware",
            "an ASGI application (scope, receive, send)",
            app,
            3,
            "A WSGI application needs WsgiFencingMiddleware.",
        )
        _check_store("AsgiFencingMiddleware", store)
        _check_options("AsgiFencingMiddleware", resource, safe_methods)
        self.app = app
        self.store = store
        self._resource = resource or _path_of_scope
        self._safe = frozenset(safe_methods)
        self._required = required

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        refusal = await self._refusal(scope) if scope["type"] == "http" else None
        if refusal is None:
            await self.app(scope, receive, send)
            return
        status, body = refusal
        headers = [(name.lower().encode(), value.encode()) for name, value in _headers(body)]
        await send({"type": "http.response.start", "status": status.value, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def _refusal(self, scope: Scope) -> _Refusal | None:
        if scope["method"].upper() in self._safe:
            return None
        try:
            resource = self._resource(scope)
            if resource is None:
                return None
            name = FENCING_HEADER.lower().encode()
            headers = [value for key, value in scope["headers"] if key.lower() == name]
            token = _parse_token([value.decode("latin-1") for value in headers])
            if token is None:
                return _missing() if self._required else None
            await self._claim(resource, token)
        except _REFUSED_ERRORS as error:
            return _refusal_for(error)
        scope[FENCING_KEY] = token
        return None

    async def _claim(self, resource: str, token: int) -> None:
        claim: Any = self.store.claim
        if inspect.iscoroutinefunction(claim):
            await claim(resource, token)
            return
        answer = await asyncio.to_thread(claim, resource, token)
        # A wrapped coroutine function is not recognized above; its coroutine must not be dropped.
        if inspect.isawaitable(answer):
            await answer


def _check_store(taker: str, store: Any) -> None:
    wanted = "a token store with the method claim(resource, token)"
    remedy = (
        "Give it RedisFence(client), FileTokenStore(directory) or MemoryTokenStore(); a RedisFence "
        "takes the client of the data."
    )
    require_methods(taker, wanted, store, ("claim",), remedy)
    require_call(taker, wanted, store, 2, remedy, method="claim")


def _check_options(taker: str, resource: Any, safe_methods: Any) -> None:
    if resource is not None and not callable(resource):
        raise refuse(
            taker, "resource= as a function of the request", resource, "Give lambda request: name."
        )
    if isinstance(safe_methods, str):
        raise refuse(taker, "safe_methods= as a set", safe_methods, 'Give it as {"GET", "HEAD"}.')


def _path_of_environ(environ: dict[str, Any]) -> str:
    path: str = environ.get("SCRIPT_NAME", "") + environ.get("PATH_INFO", "")
    # WSGI decodes the bytes of a path as Latin-1.
    return _checked_path(path.encode("latin-1").decode(errors="replace"))


def _path_of_scope(scope: Scope) -> str:
    return _checked_path(str(scope["path"]))


def _checked_path(path: str) -> str:
    # Servers replace invalid bytes with this character, so different paths would share a name.
    if "\N{REPLACEMENT CHARACTER}" in path:
        raise InvalidResourceName("The path is not UTF-8, so it names no resource.")
    return path
