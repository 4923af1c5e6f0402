"""The page as an ASGI application: whom it answers, at which addresses, and what it refuses."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from types import MethodType
from typing import Any

import pytest

pytest.importorskip("uvicorn", reason="needs the extra `web`")

import uvicorn
from asgiref.compatibility import is_double_callable
from celery import Celery
from starlette.responses import Response

from celery_redlock import ConfigurationError
from celery_redlock.web import locks_app
from tests.unit.web.asking import RELEASE, Request, a_release, ask


@pytest.fixture
def app(redlock_memory_nodes: list[str]) -> Celery:
    found = Celery("shop", broker="memory://", set_as_current=False)
    found.conf.redlock_nodes = redlock_memory_nodes
    return found


async def slowly(scope: Mapping[str, Any]) -> bool:
    await asyncio.sleep(0)
    return bool(scope["user"] == "ada")


def quickly(scope: Mapping[str, Any]) -> bool:
    return bool(scope["user"] == "ada")


@pytest.mark.parametrize("rule", [quickly, slowly])
@pytest.mark.parametrize(("user", "status"), [("ada", 200), ("eve", 403)])
def test_the_application_decides_who_sees_the_page(
    app: Celery, rule: Callable[[Any], bool | Awaitable[bool]], user: str, status: int
) -> None:
    assert ask(locks_app(app, may_view=rule), user=user).status == status


@pytest.mark.parametrize("rule", [quickly, slowly])
@pytest.mark.parametrize(("user", "read_only"), [("ada", "false"), ("eve", "true")])
def test_the_application_decides_who_releases(
    app: Celery, rule: Callable[[Any], bool | Awaitable[bool]], user: str, read_only: str
) -> None:
    page = ask(locks_app(app, may_view=True, may_release=rule), user=user).text

    assert f'<meta name="read-only" content="{read_only}">' in page


def test_nobody_releases_unless_the_application_says_so(app: Celery) -> None:
    page = ask(locks_app(app, may_view=True)).text

    assert '<meta name="read-only" content="true">' in page


def test_who_may_see_the_page_has_to_be_said(app: Celery) -> None:
    with pytest.raises(TypeError, match="may_view"):
        locks_app(app)  # type: ignore[call-arg]


def test_a_decision_that_fails_shows_nothing(app: Celery) -> None:
    with pytest.raises(KeyError):
        ask(locks_app(app, may_view=quickly))


class User:
    def is_staff(self) -> bool:
        return False


async def later(scope: Mapping[str, Any]) -> Any:
    return [False]


async def one_by_one(scope: Mapping[str, Any]) -> AsyncIterator[bool]:
    yield False


UNDECIDED = [
    (lambda scope: User().is_staff, MethodType),
    (lambda scope: "no", str),
    (lambda scope: 1, int),
    (later, list),
    (one_by_one, type(one_by_one({}))),
    (lambda scope: Response("Log in.", 302), Response),
]


@pytest.mark.parametrize(("rule", "kind"), UNDECIDED, ids=[kind.__name__ for _, kind in UNDECIDED])
@pytest.mark.parametrize("name", ["may_view", "may_release"])
def test_a_decision_that_is_none_is_named_and_admits_nobody(
    app: Celery, name: str, rule: Any, kind: type
) -> None:
    arguments: Any = {"may_view": True, name: rule}
    request = Request()

    with pytest.raises(ConfigurationError, match=rf"{name} returned.* type {kind.__name__}\b"):
        asyncio.run(request.to(locks_app(app, **arguments)))
    # Without an answer a server sends this status by itself.
    assert [one["status"] for one in request.sent if "status" in one] in ([], [500])


def test_none_is_a_refusal(app: Celery) -> None:
    assert ask(locks_app(app, may_view=lambda scope: None)).status == 403


def test_the_functions_get_the_scope_that_the_application_has_received(app: Celery) -> None:
    scopes: list[Any] = []

    def noted(scope: Any) -> bool:
        scopes.append(scope)
        return True

    locks = locks_app(app, may_view=noted, may_release=noted, user=lambda scope: str(noted(scope)))
    request = a_release()
    asyncio.run(request.to(locks))

    # On arrival both rules, then the name, and both rules before the release.
    assert len(scopes) == 5
    assert all(scope is request.scope for scope in scopes)


@pytest.mark.parametrize("name", ["may_view", "may_release"])
def test_rights_that_end_while_a_request_is_sent_release_nothing(app: Celery, name: str) -> None:
    rights = {"may_view": True, "may_release": True}

    async def slow_body() -> bytes:
        rights[name] = False
        return RELEASE

    locks = locks_app(
        app,
        may_view=lambda scope: rights["may_view"],
        may_release=lambda scope: rights["may_release"],
    )

    assert asyncio.run(a_release(body=slow_body).to(locks)).status == 403


def test_a_name_is_anything_with_a_text(app: Celery, caplog: pytest.LogCaptureFixture) -> None:
    locks = locks_app(app, may_view=True, may_release=True, user=lambda scope: 42)

    assert asyncio.run(a_release().to(locks)).status == 409
    assert "Viewer '42' releases 'account:7'" in caplog.messages


class Loader:
    """Counts imports of the task modules, each of which fails."""

    def __init__(self) -> None:
        self.imports = 0

    def import_default_modules(self) -> None:
        self.imports += 1
        raise ImportError("no module shop.tasks")


@pytest.fixture
def broken(app: Celery) -> Loader:
    app.loader = Loader()
    return app.loader


@pytest.mark.parametrize("kind", ["http", "websocket", "lifespan"])
def test_no_task_is_imported_for_those_who_may_see_nothing(
    app: Celery, broken: Loader, kind: str
) -> None:
    asyncio.run(Request(type=kind).send_to(locks_app(app, may_view=kind != "http")))

    assert not broken.imports


def test_tasks_that_cannot_be_imported_are_imported_once(app: Celery, broken: Loader) -> None:
    locks = locks_app(app, may_view=True)

    for _ in range(2):
        with pytest.raises(ConfigurationError, match=r"ImportError: no module shop\.tasks"):
            ask(locks)
    assert broken.imports == 1


@pytest.mark.parametrize(
    ("root", "path"),
    [
        ("", "/"),
        ("/locks", "/locks/"),
        ("/locks/", "/locks/"),
        ("/ops/locks", "/ops/locks/"),
        ("/locks", "/"),  # a server that leaves the root out of the path
    ],
)
def test_the_page_is_at_the_root_wherever_that_is(app: Celery, root: str, path: str) -> None:
    assert ask(locks_app(app, may_view=True), path, root=root).status == 200


@pytest.mark.parametrize(
    ("root", "path"),
    [("/lock", "/locks/"), ("/locks", "/locks/nothing"), ("/locks", "/locks/key/")],
)
def test_another_path_is_not_the_page(app: Celery, root: str, path: str) -> None:
    assert ask(locks_app(app, may_view=True), path, root=root).status == 404


@pytest.mark.parametrize(
    ("query", "place"), [(b"", "a%20lock/"), (b"filter=a%2A", "a%20lock/?filter=a%2A")]
)
def test_the_root_without_its_slash_leads_to_the_page(
    app: Celery, query: bytes, place: str
) -> None:
    answer = ask(
        locks_app(app, may_view=True), "/ops/a lock", root="/ops/a lock", query_string=query
    )

    assert (answer.status, answer.headers["location"]) == (307, place)


def test_another_site_reaches_the_page_alone_below_a_root(app: Celery) -> None:
    locks = locks_app(app, may_view=True)
    headers = {"sec-fetch-site": "cross-site"}

    assert ask(locks, "/locks/", root="/locks", headers=headers).status == 200
    assert ask(locks, "/locks/key", root="/locks", headers=headers).status == 403


def test_a_cookie_with_markup_is_not_in_the_page(app: Celery) -> None:
    cookie = 'redlock_csrf=">{{long-enough-to-be-a-token}}'

    answer = ask(locks_app(app, may_view=True), headers={"cookie": cookie})

    assert "long-enough" not in answer.text
    assert answer.headers["set-cookie"].startswith("redlock_csrf=")


def test_a_browser_keeps_its_cookie(app: Celery) -> None:
    cookie = "redlock_csrf=one-that-it-has-got-before"

    answer = ask(locks_app(app, may_view=True), headers={"cookie": cookie})

    assert answer.headers["set-cookie"].startswith(cookie)
    assert 'content="one-that-it-has-got-before"' in answer.text


def test_under_tls_no_other_host_can_set_the_cookie(app: Celery) -> None:
    cookie = "__Host-redlock_csrf=one-that-it-has-got-before"

    answer = ask(locks_app(app, may_view=True), scheme="https", headers={"cookie": cookie})

    assert answer.headers["set-cookie"].startswith(cookie)
    assert {"Path=/", "Secure"} <= set(answer.headers["set-cookie"].split("; "))
    assert "Domain" not in answer.headers["set-cookie"]


def test_servers_take_it_for_an_asgi_application(app: Celery) -> None:
    locks = locks_app(app, may_view=True)
    config = uvicorn.Config(locks, interface="auto", log_config=None)
    config.load()

    assert config.interface == "asgi3"
    assert not is_double_callable(locks)


@pytest.mark.parametrize(
    ("name", "value"), [("may_view", None), ("may_release", "ada"), ("user", "ada")]
)
def test_an_argument_that_cannot_be_used_is_named(app: Celery, name: str, value: object) -> None:
    arguments: Any = {"may_view": True, name: value}

    with pytest.raises(ConfigurationError, match=f"cannot use {name}="):
        locks_app(app, **arguments)


def test_another_app_than_celerys_is_named() -> None:
    with pytest.raises(ConfigurationError, match=r"needs the Celery app.* not a str"):
        locks_app("shop", may_view=True)  # type: ignore[arg-type]


def test_a_missing_package_is_named_with_the_remedy(
    app: Celery, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = ("starlette", "celery_redlock.web.")
    for name in [name for name in sys.modules if name.startswith(gone)]:
        monkeypatch.delitem(sys.modules, name)

    class Missing:
        def find_spec(self, name: str, *_: object) -> None:
            if name.partition(".")[0] == "starlette":
                raise ModuleNotFoundError(f"No module named {name!r}", name="starlette")

    monkeypatch.setattr(sys, "meta_path", [Missing(), *sys.meta_path])

    with pytest.raises(ConfigurationError, match=r'pip install "celery-redlock\[web\]"'):
        locks_app(app, may_view=True)
