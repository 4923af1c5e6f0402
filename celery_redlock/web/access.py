"""
Access to the page, and to the releases that it sends.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import re
import secrets
from dataclasses import dataclass, field
from urllib.parse import urlencode, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import HTTPConnection, Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from celery_redlock.errors import ConfigurationError

__all__ = ["CSRF_HEADER", "Access", "guarded", "is_loopback"]

CSRF_HEADER = "X-Redlock-CSRF"

#: By which browsers state which site asks.
_SITE, _SAME = "Sec-Fetch-Site", "same-origin"

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
<p>If you followed a link with the token to here, <a href="/">open the page</a>.</p></html>
"""


def is_loopback(host: str) -> bool:
    """Return whether a host's name or address is that of the machine itself, for itself alone."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """
    The rule of access: everyone with the token, or without one everyone on this machine.

    Attributes:
        token: the token; None: only requests to a loopback name are answered, so that no other
            site can reach the page by a name of its own for this machine.
        csrf: what a request must have to change something. Only the page has it.
    """

    token: str | None
    csrf: str = field(default_factory=lambda: secrets.token_urlsafe(32))

    @classmethod
    def for_host(cls, host: str, token: str | None) -> Access:
        """
        Return the access to a page that listens on `host`, with a new token if it needs one.

        Raises:
            ConfigurationError: the token is too short, or has characters that a URL has not.
        """
        if token is not None and not _is_token(token):
            raise ConfigurationError(
                "--token cannot be used: give 16 or more letters, digits and characters of -._~; "
                "without it one is made where it is needed."
            )
        if token is None and not is_loopback(host):
            token = secrets.token_urlsafe(32)
        return cls(token=token)

    @property
    def cookie(self) -> str:
        """The name of the cookie: pages at other ports of one host have the same cookies."""
        return f"redlock_web_{hashlib.sha256((self.token or '').encode()).hexdigest()[:8]}"

    def refusal(self, request: HTTPConnection) -> Response | None:
        """Return the answer to a request that is not allowed, or that brings the token."""
        if request.scope["path"] != "/" and request.headers.get(_SITE, _SAME) != _SAME:
            return PlainTextResponse("Another site asked for this.", 403)
        if self.token is None:
            if is_loopback(_host_of(request.headers)):
                return None
            return PlainTextResponse(
                "This page answers only at a loopback name such as localhost.", 421
            )
        if request.scope["path"] == "/" and "token" in request.query_params:
            return self._greeting(request)
        if _is_same(request.cookies.get(self.cookie, ""), self.token):
            return None
        return HTMLResponse(_REFUSAL, 401)

    def may_change(self, request: Request) -> bool:
        """Return whether a request that changes something comes from the page itself."""
        origin = urlsplit(request.headers.get("Origin", "")).netloc
        return (
            bool(origin)
            and origin == request.headers.get("Host")
            and _is_same(request.headers.get(CSRF_HEADER, ""), self.csrf)
        )

    def _greeting(self, request: HTTPConnection) -> Response:
        """Return a cookie for a token in the address, and an address without it."""
        if not _is_same(request.query_params["token"], self.token or ""):
            return HTMLResponse(_REFUSAL, 401)
        others = [item for item in request.query_params.multi_items() if item[0] != "token"]
        response = RedirectResponse(f"/?{urlencode(others)}" if others else "/", 303)
        response.set_cookie(
            self.cookie,
            self.token or "",
            httponly=True,
            samesite="strict",
            secure="https" in (request.scope["scheme"], request.headers.get("X-Forwarded-Proto")),
        )
        return response


def guarded(app: ASGIApp, access: Access, policy: str) -> ASGIApp:
    """
    Return an app that answers only who has access, with headers that keep other sites out.

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
            await send(message)

        answer = access.refusal(HTTPConnection(scope)) or app
        await answer(scope, receive, send_with_headers)

    return guard


def _host_of(headers: Headers) -> str:
    try:
        return urlsplit(f"//{headers.get('Host', '')}").hostname or ""
    except ValueError:
        return ""


def _is_same(given: str, wanted: str) -> bool:
    return hmac.compare_digest(given.encode(errors="surrogatepass"), wanted.encode())
