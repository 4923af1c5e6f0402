"""Requests for the web applications of the page."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import django
from django.conf import settings
from django.test import RequestFactory
from flask import current_app

__all__: list[str] = []

settings.configure(
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
)
django.setup()


def name_of_application() -> str:
    """Return what only a body in the context of Flask knows."""
    return str(current_app.name)


async def post(api: Any, path: str) -> tuple[int, Any]:
    """Send one request to an ASGI application, and return the status and the body."""
    scope = {
        "type": "http",
        "method": "POST",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "headers": [],
    }
    messages: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request"}

    async def send(message: dict[str, Any]) -> None:
        messages.append(message)

    await api(scope, receive, send)
    return messages[0]["status"], json.loads(messages[1]["body"])


async def visit(names: dict[str, Any]) -> None:
    """Click twice, and close an account while another has it."""
    api = names["api"]
    async with names["lifespan"](api):
        status, first = await post(api, "/invoices/1")
        assert (status, await post(api, "/invoices/1")) == (202, (202, first))
        status, closed = await post(api, "/accounts/7/close")
        assert status == 200
        assert closed["token"] > 0
        async with api.state.redlock.lock("account:7"):
            assert (await post(api, "/accounts/7/close"))[0] == 409


def after(text: str, names: dict[str, Any]) -> None:
    """Send requests to what a block has defined."""
    if "FastAPI(" in text:
        asyncio.run(visit(names))
    if "on_commit" in text:
        request = RequestFactory().post("/")
        assert names["place_order"](request, 2).status_code == 202
        held = names["invoice"].lock_holder(2)
        again = asyncio.run(names["order_again"](request, 2))
        assert json.loads(again.content) == {"task": held.task_id}
    if "Flask(" in text:
        client = names["web"].test_client()
        first, second = (client.post("/invoices/3").get_json() for _ in range(2))
        assert (first["sent_before"], second["sent_before"]) == (False, True)
        assert first["task"] == second["task"]
    if "FlaskTask(" in text:
        declare = names["flask_app"].task(base=names["RedlockTask"], shared=False)
        assert declare(name_of_application).apply().get() == "shop"
