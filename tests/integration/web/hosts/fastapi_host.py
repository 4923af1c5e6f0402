"""A FastAPI application with users, in which the page is mounted."""

from __future__ import annotations

import logging

from fastapi import FastAPI, Request, Response
from starlette.authentication import (
    AuthCredentials,
    AuthenticationBackend,
    BaseUser,
    SimpleUser,
)
from starlette.middleware.authentication import AuthenticationMiddleware
from starlette.middleware.base import RequestResponseEndpoint
from starlette.requests import HTTPConnection

from celery_redlock.web import locks_app
from tests.integration.web.hosts.celery_app import app

logging.basicConfig()


class Cookies(AuthenticationBackend):
    async def authenticate(self, conn: HTTPConnection) -> tuple[AuthCredentials, BaseUser] | None:
        if (name := conn.cookies.get("user")) is None:
            return None
        return AuthCredentials([name]), SimpleUser(name)


api = FastAPI()
api.add_middleware(AuthenticationMiddleware, backend=Cookies())
api.mount(
    "/ops/locks",
    locks_app(
        app,
        may_view=lambda scope: scope["user"].is_authenticated,
        may_release=lambda scope: "ada" in scope["auth"].scopes,
        user=lambda scope: scope["user"].display_name,
    ),
)


@api.middleware("http")
async def middleware(request: Request, call_next: RequestResponseEndpoint) -> Response:
    """Be in the way, as the middleware of many applications is."""
    return await call_next(request)


@api.get("/hello")
async def hello() -> str:
    return "hello"


@api.get("/login/{name}")
async def login(name: str) -> Response:
    response = Response("hello")
    response.set_cookie("user", name)
    return response
