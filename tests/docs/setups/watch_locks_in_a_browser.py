"""Users of the applications of the page, and requests of theirs."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import Any

import django
from asgiref.sync import sync_to_async
from django.conf import settings
from django.core.management import call_command
from django.db import connection

__all__ = ["USERS"]

#: By the cookie of their sessions.
USERS = {
    "session-of-ada": {"name": "ada", "roles": ["staff", "operator"]},
    "session-of-bob": {"name": "bob", "roles": ["staff"]},
}

settings.configure(
    SECRET_KEY="a key of the tests",
    SECRET_KEY_FALLBACKS=["a former key of the tests"],
    ALLOWED_HOSTS=["*"],
    INSTALLED_APPS=[
        "django.contrib.contenttypes",
        "django.contrib.auth",
        "django.contrib.sessions",
    ],
    # One that leaves it to others to refuse users that are not active.
    AUTHENTICATION_BACKENDS=["django.contrib.auth.backends.AllowAllUsersModelBackend"],
    DATABASES={
        "default": {
            "ENGINE": "django.db.backends.sqlite3",
            "NAME": Path(tempfile.mkdtemp()) / "page.sqlite3",
        }
    },
    DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
    USE_TZ=True,
)
django.setup()
call_command("migrate", verbosity=0)


async def get(api: Any, cookie: str) -> tuple[int, str]:
    """Open the page, and return the status and the text."""
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request"}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "method": "GET",
        "scheme": "http",
        "path": "/ops/locks/",
        "query_string": b"",
        "headers": [(b"host", b"shop.example"), (b"cookie", cookie.encode())],
    }
    await api(scope, receive, send)
    return sent[0]["status"], b"".join(one.get("body", b"") for one in sent).decode()


def check(api: Any, ada: str, bob: str) -> None:
    """See that one user may release, another only view, and a stranger nothing."""
    read_only = '<meta name="read-only" content="{}">'
    for cookie, expected in ((ada, "false"), (bob, "true")):
        status, text = asyncio.run(get(api, cookie))
        assert status == 200, text
        assert read_only.format(expected) in text
    assert asyncio.run(get(api, ""))[0] == 403


def after(text: str, names: dict[str, Any]) -> None:
    """Open the page in the application that a block has defined."""
    if "FastAPI(" in text:
        check(names["api"], "session=session-of-ada", "session=session-of-bob")
    if "get_asgi_application()" in text:
        application = names["application"]
        ada = log_in("ada", operates=True)
        check(application, ada, log_in("bob", operates=False))
        check_sessions(application, ada)


def check_sessions(application: Any, ada: str) -> None:
    """See that viewers keep their sessions, that a database may end connections, and who is out."""
    from django.contrib.auth.models import User
    from django.test import override_settings

    with override_settings(SECRET_KEY=settings.SECRET_KEY_FALLBACKS[0]):
        eve = log_in("eve", operates=True)

    async def view() -> list[int]:
        statuses = [(await get(application, eve))[0] for _ in range(2)]
        await sync_to_async(lambda: connection.connection.close())()
        statuses.append((await get(application, ada))[0])
        await sync_to_async(User.objects.filter(username="ada").update)(is_active=False)
        return [*statuses, (await get(application, ada))[0]]

    assert asyncio.run(view()) == [200, 200, 200, 403]


def log_in(name: str, *, operates: bool) -> str:
    """Return the cookie of a new user's session."""
    from django.contrib.auth.models import User
    from django.test import Client

    client = Client()
    client.force_login(User.objects.create_user(name, is_staff=True, is_superuser=operates))
    return f"sessionid={client.cookies['sessionid'].value}"
