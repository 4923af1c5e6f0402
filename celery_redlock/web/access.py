"""
Access to the page, and to the releases that it sends.

Two rules of access are there: a token (`TokenAccess`), and the application in which the page is
mounted (`MountedAccess`).
"""

from __future__ import annotations

import hashlib
import hmac
import inspect
import ipaddress
import re
import secrets
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import ClassVar, Literal, TypeAlias
from urllib.parse import quote, urlencode, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import HTTPConnection, Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from celery_redlock.errors import ConfigurationError

#: A release repeats the value of its browser's cookie in this header, which no other site can do.
#: No process stores the value, so each can check a release from a page that another has served.
CSRF_HEADER, CSRF_COOKIE = "X-Redlock-CSRF", "redlock_csrf"

#: The scope that the application has received, in the scope of what is behind `guarded`.
HOST_SCOPE = "celery_redlock.host_scope"

#: Seconds after which a viewer has to connect again. A server that stops waits for that long, since
#: a mounted application learns nothing of the stop.
LASTS = 5.0

#: The header in which browsers state where a request comes from; its value for the page itself.
_SITE, _SAME = "Sec-Fetch-Site", "same-origin"

Rule: TypeAlias = bool | Callable[[Scope], bool | Awaitable[bool | None] | None]
Naming: TypeAlias = Callable[[Scope], object]

_is_token = re.compile(r"[A-Za-z0-9._~-]{16,}").fullmatch

_HEADERS = {
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}

_REFUSAL = """<!doctype html><html lang="en"><meta charset="utf-8">
<meta name="viewport" content="width=device-width"><title>Locks: token needed</title>
<h1>This page needs its token</h1>
<p>Open the address that <code>celery-redlock web</code> printed, with <code>?token=</code>.</p>
<p>If you followed a link with the token to here, <a href="./">open the page</a>.</p></html>
"""


def is_loopback(host: str) -> bool:
    """Return whether a host's name or address can be reached only from the machine itself."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class Access(ABC):
    """
    A rule of access: to the page, and to releases on it.

    Attributes:
        lasts: seconds after which the page ends the connection of a viewer. The viewer's browser
            connects again, and the rule decides again. None: a connection lasts as long as the
            viewer stays.
    """

    lasts: ClassVar[float | None] = None

    @abstractmethod
    async def refusal(self, request: HTTPConnection) -> Response | None:
        """Return the answer to a request that is not allowed or brings a token; else None."""

    @abstractmethod
    async def why_no_release(self, request: Request) -> str | None:
        """Return why the viewer may release nothing; None if it may."""

    async def viewer_name(self, request: Request) -> str | None:
        """Return the name of the viewer for the log; None if it has none."""
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenAccess(Access):
    """
    Access for everyone with the token or, if there is none, for everyone on this machine.

    Attributes:
        token: the token; None: only requests to a loopback name are answered, so that no other
            site can reach the page by a name of its own for this machine.
        read_only: viewers cannot release locks.
    """

    token: str | None
    read_only: bool = False

    @classmethod
    def for_host(cls, host: str, token: str | None, *, read_only: bool = False) -> TokenAccess:
        """
        Return the access to a page that listens on `host`, with a new token if it needs one.

        Raises:
            ConfigurationError: the token is too short, or has characters that a URL cannot have.
        """
        if token is not None and not _is_token(token):
            raise ConfigurationError(
                "--token cannot be used: give 16 or more letters, digits and characters of -._~; "
                "without --token, a token is generated if one is needed."
            )
        if token is None and not is_loopback(host):
            token = secrets.token_urlsafe(32)
        return cls(token=token, read_only=read_only)

    @property
    def cookie(self) -> str:
        """The cookie's name, one per token: pages at all ports of a host share their cookies."""
        return f"redlock_web_{hashlib.sha256((self.token or '').encode()).hexdigest()[:8]}"

    async def refusal(self, request: HTTPConnection) -> Response | None:
        """Return the answer to a request that is not allowed or brings the token; else None."""
        if self.token is None:
            if is_loopback(_host_of(request.headers)):
                return None
            return PlainTextResponse(
                "This page answers only at a loopback name such as localhost. To open it at "
                "another name, start it with --token.",
                421,
            )
        if request.scope["path"] == "/" and "token" in request.query_params:
            return self._greeting(request)
        if _is_same(request.cookies.get(self.cookie, ""), self.token):
            return None
        return HTMLResponse(_REFUSAL, 401)

    async def why_no_release(self, request: Request) -> str | None:
        """Return why the viewer may release nothing; None if it may."""
        return "the page was started with --read-only" if self.read_only else None

    def _greeting(self, request: HTTPConnection) -> Response:
        """Return a redirect to the address without its token, which becomes a cookie."""
        if not _is_same(request.query_params["token"], self.token or ""):
            return HTMLResponse(_REFUSAL, 401)
        others = [item for item in request.query_params.multi_items() if item[0] != "token"]
        response = RedirectResponse(f"./?{urlencode(others)}" if others else "./", 303)
        _set_cookie(request, response, self.cookie, self.token or "", "strict")
        return response


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


def csrf_of(request: Request) -> str:
    """Return the value that the browser already has in its cookie, or a new one."""
    found = request.cookies.get(_csrf_cookie(request), "")
    return found if _is_token(found) else secrets.token_urlsafe(32)


def set_csrf(request: Request, response: Response, csrf: str) -> None:
    """
    Set the cookie.

    Browsers send it also when they follow a link from another site to the page. So the value stays,
    and pages that the browser has opened before can still release.
    """
    _set_cookie(request, response, _csrf_cookie(request), csrf, "lax")


def is_from_page(request: Request) -> bool:
    """Return whether a request that changes something comes from the page itself."""
    host = request.headers.get("Host", "")
    # A proxy in front may have TLS without a header that states it.
    schemes = ("https",) if _is_tls(request) else ("https", "http")
    csrf = request.cookies.get(_csrf_cookie(request), "")
    return (
        bool(host)
        and request.headers.get("Origin") in [f"{scheme}://{host}" for scheme in schemes]
        and bool(_is_token(csrf))
        and _is_same(request.headers.get(CSRF_HEADER, ""), csrf)
    )


def guarded(app: ASGIApp, access: Access, policy: str) -> ASGIApp:
    """
    Return an app that answers only viewers with access, with headers that keep other sites out.

    It may be mounted anywhere: what is behind it sees the path below its root. Any other answer is
    the last one of its connection, which its client cannot fill with more of them.

    Args:
        app: the app.
        access: who has access.
        policy: the Content-Security-Policy of its pages.
    """
    headers = {**_HEADERS, "Content-Security-Policy": policy}

    async def guard(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(headers)
                if answer is not app and scope.get("http_version") in ("1.0", "1.1"):
                    MutableHeaders(scope=message)["Connection"] = "close"
            await send(message)

        root, path = _root_and_path(scope)
        below = {**scope, "root_path": "", "path": path, HOST_SCOPE: scope}
        if not path:
            answer: ASGIApp = _with_slash(root, scope["query_string"].decode("latin-1"))
        elif path != "/" and HTTPConnection(scope).headers.get(_SITE, _SAME) != _SAME:
            answer = PlainTextResponse("Another site asked for this.", 403)
        else:
            answer = await access.refusal(HTTPConnection(below)) or app
        await answer(below, receive, send_with_headers)

    return guard


def _with_slash(root: str, query: str) -> Response:
    """Return a redirect to the page; relative, since a proxy may show the root elsewhere."""
    name = quote(root.rpartition("/")[2])
    return RedirectResponse(f"{name}/?{query}" if query else f"{name}/", 307)


def _root_and_path(scope: Scope) -> tuple[str, str]:
    """Return where the page is mounted, and the path below."""
    root, path = scope.get("root_path", "").rstrip("/"), scope["path"]
    below = path.removeprefix(root)
    # Servers that follow an older ASGI leave the root out of the path.
    return (root, below) if path.startswith(root) and below[:1] in ("", "/") else (root, path)


def _set_cookie(
    request: HTTPConnection,
    response: Response,
    name: str,
    value: str,
    same_site: Literal["lax", "strict"],
) -> None:
    response.set_cookie(name, value, httponly=True, samesite=same_site, secure=_is_tls(request))


def _csrf_cookie(request: HTTPConnection) -> str:
    """Return the cookie's name; under TLS one that no other host of the domain can set."""
    return f"__Host-{CSRF_COOKIE}" if _is_tls(request) else CSRF_COOKIE


def _is_tls(request: HTTPConnection) -> bool:
    return "https" in (request.scope["scheme"], request.headers.get("X-Forwarded-Proto"))


def _host_of(headers: Headers) -> str:
    try:
        return urlsplit(f"//{headers.get('Host', '')}").hostname or ""
    except ValueError:
        return ""


async def _found(function: Callable[[Scope], object], request: HTTPConnection) -> object:
    found = function(request.scope[HOST_SCOPE])
    return await found if inspect.isawaitable(found) else found


def _is_same(given: str, wanted: str) -> bool:
    return hmac.compare_digest(given.encode(errors="surrogatepass"), wanted.encode())
