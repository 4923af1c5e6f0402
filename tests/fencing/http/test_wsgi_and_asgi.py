"""A service's door: who is let in, and what the others are told."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol
from wsgiref.validate import validator

import pytest
import redis
import redis.asyncio
from werkzeug.test import Client

from celery_redlock.errors import FenceRecordCorrupt, InvalidFencingToken, StaleFencingToken
from celery_redlock.fencing import (
    FENCING_HEADER,
    FENCING_KEY,
    AsgiFencingMiddleware,
    AsyncRedisFence,
    FileTokenStore,
    MemoryTokenStore,
    RedisFence,
    WsgiFencingMiddleware,
    fencing_headers,
    raise_if_stale,
)
from celery_redlock.testing.plugin import ClusterFactory


@dataclass(frozen=True, slots=True)
class Answer:
    """What a client gets."""

    status: int
    body: bytes

    @property
    def error(self) -> Any:
        """The kind of refusal."""
        return json.loads(self.body)["error"]


class Service(Protocol):
    """Something that answers requests; it says which token it was handed."""

    def __call__(self, path: str, *tokens: str | int, method: str = "PUT") -> Answer:
        """Send a request with so many token headers."""


def wsgi_service(store: Any, **options: Any) -> Service:
    def app(environ: dict[str, Any], start_response: Callable[..., Any]) -> list[bytes]:
        start_response("200 OK", [("Content-Type", "text/plain")])
        return [str(environ.get(FENCING_KEY)).encode()]

    client = Client(validator(WsgiFencingMiddleware(validator(app), store, **options)))

    def send(path: str, *tokens: str | int, method: str = "PUT") -> Answer:
        headers = [(FENCING_HEADER, str(token)) for token in tokens]
        with client.open(path, method=method, headers=headers) as answer:
            return Answer(answer.status_code, answer.data)

    return send


def asgi_service(store: Any, **options: Any) -> Service:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": str(scope.get(FENCING_KEY)).encode()})

    door = AsgiFencingMiddleware(app, store, **options)

    def request(path: str, *tokens: str | int, method: str = "PUT") -> Answer:
        name = FENCING_HEADER.lower().encode()
        scope = {
            "type": "http",
            "method": method,
            "path": path,
            "headers": [(name, str(token).encode()) for token in tokens],
        }
        sent: list[Any] = []

        async def send(message: Any) -> None:
            sent.append(message)

        async def receive() -> Any:
            raise AssertionError("the door reads no body")

        asyncio.run(door(scope, receive, send))
        assert [message["type"] for message in sent] == [
            "http.response.start",
            "http.response.body",
        ]
        return Answer(sent[0]["status"], sent[1]["body"])

    return request


SERVICES = {"wsgi": wsgi_service, "asgi": asgi_service}
Make = Callable[..., Service]


@pytest.fixture(params=SERVICES)
def make(request: pytest.FixtureRequest) -> Make:
    return SERVICES[request.param]


@pytest.fixture
def fence(redlock_cluster_factory: ClusterFactory) -> Iterator[RedisFence]:
    with redis.Redis.from_url(redlock_cluster_factory(1).urls[0]) as client:
        yield RedisFence(client)


@pytest.fixture
def service(make: Make) -> Service:
    return make(MemoryTokenStore())


def test_a_request_that_is_let_in_has_its_token(service: Service) -> None:
    assert service("/a", 5) == Answer(200, b"5")


def test_the_same_token_is_let_in_again(service: Service) -> None:
    assert [service("/a", 5).status for _ in range(2)] == [200, 200]


def test_a_stale_token_is_told_what_was_seen(service: Service) -> None:
    service("/a", 7)
    answer = service("/a", 5)
    told = json.loads(answer.body)
    assert answer.status == 412
    assert (told["error"], told["resource"], told["seen"], told["offered"]) == (
        *("stale_fencing_token", "/a"),
        *(7, 5),
    )


def test_resources_are_told_apart(service: Service) -> None:
    service("/a", 7)
    assert service("/b", 5).status == 200


@pytest.mark.parametrize(
    "token", ["", "0", "-1", "1.0", "abc", "9007199254740992", "+1", "٣", "1" * 50, "1 2"]
)
def test_what_is_no_token_is_a_bad_request(service: Service, token: str) -> None:
    answer = service("/a", token.encode().decode("latin-1"))
    assert (answer.status, answer.error) == (400, "invalid_fencing_token")


def test_two_tokens_are_a_bad_request(service: Service) -> None:
    assert service("/a", 5, 7).status == 400


def test_a_bad_token_is_not_remembered(service: Service) -> None:
    service("/a", 2**53)
    assert service("/a", 5).status == 200


def test_a_missing_token_is_required(service: Service) -> None:
    answer = service("/a")
    assert (answer.status, answer.error) == (428, "missing_fencing_token")


def test_a_missing_token_passes_where_it_is_not_required(make: Make) -> None:
    assert make(MemoryTokenStore(), required=False)("/a") == Answer(200, b"None")


@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS", "TRACE"])
def test_reading_needs_no_token(service: Service, method: str) -> None:
    assert service("/a", method=method) == Answer(200, b"None")


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "put", "MOVE"])
@pytest.mark.filterwarnings("ignore:Unknown REQUEST_METHOD")
def test_whatever_may_write_needs_one(service: Service, method: str) -> None:
    assert service("/a", method=method).status == 428


def test_the_methods_that_only_read_can_be_named(make: Make) -> None:
    service = make(MemoryTokenStore(), safe_methods=["POST"])
    assert (service("/a", method="POST").status, service("/a", method="GET").status) == (200, 428)


def test_a_path_is_one_name_at_both_doors() -> None:
    store = MemoryTokenStore()
    asgi_service(store)("/kündigung", 7)
    assert wsgi_service(store)("/kündigung", 5).status == 412


def test_a_resource_can_be_named_for_several_paths(make: Make) -> None:
    service = make(MemoryTokenStore(), resource=lambda _: "account")
    service("/a", 7)
    assert service("/b", 5).status == 412


def test_a_name_that_the_guard_refuses_is_a_bad_request(make: Make, fence: RedisFence) -> None:
    answer = make(fence, resource=lambda _: "redlock-meta:seen:{a}")("/a", 5)

    assert (answer.status, answer.error) == (400, "invalid_resource")


def test_a_path_that_is_no_text_is_a_bad_request_and_not_another_s_name() -> None:
    store = MemoryTokenStore()
    for answer in (
        wsgi_service(store)("/%ff", 7),
        # What servers make of it that give ASGI applications a text.
        asgi_service(store)("/\N{REPLACEMENT CHARACTER}", 7),
    ):
        assert (answer.status, answer.error) == (400, "invalid_resource")
    assert wsgi_service(store)("/\\xff", 5).status == 200


def test_a_path_with_braces_is_guarded(make: Make, fence: RedisFence) -> None:
    service = make(fence)
    assert service("/a}", 7).status == 200
    assert service("/a}", 5).status == 412
    assert service("/a", 5).status == 200


def test_what_is_no_resource_needs_no_token(make: Make) -> None:
    assert make(MemoryTokenStore(), resource=lambda _: None)("/a") == Answer(200, b"None")


def test_a_guard_that_fails_lets_nobody_in(make: Make) -> None:
    class Failing:
        def claim(self, resource: str, token: int | None = None) -> None:
            raise FenceRecordCorrupt("garbage", resource)

    with pytest.raises(FenceRecordCorrupt):
        make(Failing())("/a", 5)


def test_a_door_with_a_guard_in_redis(make: Make, fence: RedisFence) -> None:
    service = make(fence)
    assert [service("/a", token).status for token in (5, 7, 6)] == [200, 200, 412]


def test_a_door_with_a_guard_in_files(make: Make, tmp_path: Any) -> None:
    service = make(FileTokenStore(tmp_path))
    assert [service("/a", token).status for token in (5, 7, 6)] == [200, 200, 412]


class OwnClients:
    """An asyncio guard that opens a client for each call: here each request has its own loop."""

    def __init__(self, url: str) -> None:
        self._url = url

    async def claim(self, resource: str, token: int | None = None) -> None:
        async with redis.asyncio.Redis.from_url(self._url) as client:
            await AsyncRedisFence(client).claim(resource, token)


class Wrapped(OwnClients):
    """The same behind a function that does not look like a coroutine function."""

    def claim(self, resource: str, token: int | None = None) -> Awaitable[None]:  # type: ignore[override]
        return super().claim(resource, token)


@pytest.mark.parametrize("kind", [OwnClients, Wrapped])
def test_an_asgi_door_with_a_guard_for_asyncio(
    kind: type[OwnClients], redlock_cluster_factory: ClusterFactory
) -> None:
    service = asgi_service(kind(redlock_cluster_factory(1).urls[0]))
    assert [service("/a", token).status for token in (5, 7, 6)] == [200, 200, 412]


def test_a_websocket_goes_past_the_door() -> None:
    passed = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        passed.append(scope["type"])

    door: Any = AsgiFencingMiddleware(app, MemoryTokenStore())
    asyncio.run(door({"type": "websocket"}, None, None))
    assert passed == ["websocket"]


def test_a_client_s_header_goes_through_and_a_refusal_comes_back() -> None:
    def app(environ: dict[str, Any], start_response: Callable[..., Any]) -> list[bytes]:
        start_response("200 OK", [])
        return [str(environ[FENCING_KEY]).encode()]

    client = Client(WsgiFencingMiddleware(app, MemoryTokenStore()))
    assert client.put("/a", headers=fencing_headers(7)).data == b"7"
    refused = client.put("/a", headers=fencing_headers(5))
    with pytest.raises(StaleFencingToken) as caught:
        raise_if_stale(refused.status_code, refused.data)
    error = caught.value
    assert (error.resource, error.seen, error.offered) == ("/a", 7, 5)


def test_no_header_is_made_of_what_is_no_token() -> None:
    with pytest.raises(InvalidFencingToken):
        fencing_headers(0)


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (200, b'{"error": "stale_fencing_token"}'),
        (412, b"<html>If-Match</html>"),
        (412, b'{"error": "other"}'),
        (412, b'{"error": "stale_fencing_token"}'),
        (412, b"[]"),
        (412, b"\xff"),
        (412, ""),
    ],
)
def test_another_answer_is_no_stale_token(status: int, body: bytes | str) -> None:
    raise_if_stale(status, body)
