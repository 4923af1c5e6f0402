"""A Django project with users and sessions, in whose `asgi.py` the page is mounted."""

from __future__ import annotations

import io
import logging
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import django
from asgiref.sync import sync_to_async
from django.conf import settings
from django.core.asgi import get_asgi_application

logging.basicConfig()
settings.configure(
    ROOT_URLCONF=__name__,
    SECRET_KEY="a key of the tests",
    ALLOWED_HOSTS=["*"],
    INSTALLED_APPS=[
        "django.contrib.contenttypes",
        "django.contrib.auth",
        "django.contrib.sessions",
    ],
    MIDDLEWARE=["django.contrib.sessions.middleware.SessionMiddleware"],
    DATABASES={
        "default": {
            "ENGINE": "django.db.backends.sqlite3",
            "NAME": Path(mkdtemp()) / "django.sqlite3",
        }
    },
    DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
    USE_TZ=True,
    LOGGING_CONFIG=None,
)
django.setup()

from django.contrib.auth import get_user, login  # noqa: E402
from django.contrib.auth.models import User  # noqa: E402
from django.contrib.sessions.backends.db import SessionStore  # noqa: E402
from django.core.handlers.asgi import ASGIRequest  # noqa: E402
from django.core.management import call_command  # noqa: E402
from django.db import close_old_connections  # noqa: E402
from django.http import HttpRequest, HttpResponse  # noqa: E402
from django.urls import path  # noqa: E402

from celery_redlock.web import locks_app  # noqa: E402
from tests.integration.web.hosts.celery_app import app  # noqa: E402


def prepare() -> None:
    call_command("migrate", verbosity=0)
    for name in ("ada", "bob"):
        User.objects.create_user(name, is_staff=True, is_superuser=name == "ada")


# In a thread: uvicorn 0.27 imports this in its event loop, where Django asks no database.
with ThreadPoolExecutor(1) as pool:
    pool.submit(prepare).result()


def hello(request: HttpRequest) -> HttpResponse:
    return HttpResponse('"hello"')


def login_as(request: HttpRequest, name: str) -> HttpResponse:
    login(request, User.objects.get(username=name), "django.contrib.auth.backends.ModelBackend")
    return HttpResponse("hello")


urlpatterns = [path("hello", hello), path("login/<name>", login_as)]


@sync_to_async
def user_of(scope: Any) -> Any:
    close_old_connections()
    request = ASGIRequest(scope, io.BytesIO())
    request.session = SessionStore(request.COOKIES.get(settings.SESSION_COOKIE_NAME))
    request.session.cycle_key = lambda: None
    return get_user(request)


async def may_view(scope: Any) -> bool:
    user = await user_of(scope)
    return bool(user.is_active and user.is_staff)


async def may_release(scope: Any) -> bool:
    user = await user_of(scope)
    return bool(user.is_active and user.is_superuser)


async def name_of(scope: Any) -> str:
    return str((await user_of(scope)).get_username())


django_app = get_asgi_application()
locks = locks_app(app, may_view=may_view, may_release=may_release, user=name_of)


async def api(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] == "http" and f"{scope['path']}/".startswith("/ops/locks/"):
        await locks({**scope, "root_path": "/ops/locks"}, receive, send)
    else:
        await django_app(scope, receive, send)
