"""What cannot work as a fence's client, path, store or application is refused where it is given."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock, Mock

import boto3
import pytest
import redis
import redis.asyncio
from werkzeug.local import LocalProxy

from celery_redlock.errors import ConfigurationError
from celery_redlock.fencing import (
    AsgiFencingMiddleware,
    AsyncRedisFence,
    FileFence,
    FileTokenStore,
    MemoryTokenStore,
    RedisFence,
    S3Fence,
    WsgiFencingMiddleware,
)

SECRET = "redis://:hunter2@localhost/0"


def wsgi_app(environ: Any, start_response: Any) -> list[bytes]:
    return []


async def asgi_app(scope: Any, receive: Any, send: Any) -> None:
    return None


class Wrapped:
    """A client that counts calls, as instrumentations and pools wrap one."""

    def __init__(self, client: Any) -> None:
        self.client = client

    def __getattr__(self, name: str) -> Any:
        return getattr(self.client, name)


def unbound() -> Any:
    raise RuntimeError("outside of the application")


def s3_client(service: str = "s3") -> Any:
    return boto3.client(service, region_name="eu-central-1")


def refusal_of(make: Any, *args: Any, **options: Any) -> str:
    with pytest.raises(ConfigurationError) as caught:
        make(*args, **options)
    return str(caught.value)


def test_a_blocking_fence_refuses_an_asyncio_client() -> None:
    message = refusal_of(RedisFence, redis.asyncio.Redis())

    assert message.startswith("RedisFence takes a client, redis.Redis or redis.RedisCluster, not ")
    assert "not redis.asyncio.client.Redis. Use AsyncRedisFence" in message


def test_an_asyncio_fence_refuses_a_blocking_client() -> None:
    message = refusal_of(AsyncRedisFence, redis.Redis())

    assert "not redis.client.Redis. Use RedisFence" in message


@pytest.mark.parametrize("fence", [RedisFence, AsyncRedisFence])
def test_a_fence_refuses_a_url_and_keeps_its_password(fence: Any) -> None:
    message = refusal_of(fence, SECRET)

    assert "not str" in message
    assert "Redis.from_url(...)" in message
    assert "hunter2" not in message


def test_a_fence_refuses_a_pipeline_in_place_of_its_client() -> None:
    assert "run()" in refusal_of(RedisFence, redis.Redis().pipeline())


def test_a_fence_refuses_a_sentinel_in_place_of_its_master() -> None:
    assert "master_for()" in refusal_of(RedisFence, redis.Sentinel([("localhost", 1)]))


@pytest.mark.parametrize("client", [None, redis.Redis, redis.ConnectionPool(), {}])
def test_a_fence_refuses_what_is_no_client(client: Any) -> None:
    assert "Give the fence redis.Redis(...)" in refusal_of(RedisFence, client)


@pytest.mark.parametrize(
    "client",
    [
        redis.Redis(),
        object.__new__(redis.RedisCluster),
        redis.Sentinel([("localhost", 1)]).master_for("group"),
        Wrapped(redis.Redis()),
        Mock(),
    ],
)
def test_a_blocking_fence_accepts_what_may_work(client: Any) -> None:
    assert RedisFence(client).client is client


@pytest.mark.parametrize(
    "client",
    [
        redis.asyncio.Redis(),
        object.__new__(redis.asyncio.RedisCluster),
        Wrapped(redis.asyncio.Redis()),
        AsyncMock(),
    ],
)
def test_an_asyncio_fence_accepts_what_may_work(client: Any) -> None:
    assert AsyncRedisFence(client).client is client


@pytest.mark.parametrize("fence", [RedisFence, AsyncRedisFence])
def test_a_fence_accepts_a_proxy_that_is_not_bound_yet(fence: Any) -> None:
    fence(LocalProxy(unbound))


def test_a_blocking_fence_looks_through_a_wrapped_asyncio_client() -> None:
    assert "Use AsyncRedisFence" in refusal_of(RedisFence, Wrapped(redis.asyncio.Redis()))


@pytest.mark.parametrize("path", [7, b"report.json", None, ""])
def test_a_file_fence_refuses_what_is_no_path(path: Any) -> None:
    assert "FileFence takes a path as str" in refusal_of(FileFence, path)


def test_a_file_fence_refuses_a_directory(tmp_path: Path) -> None:
    assert "is a directory" in refusal_of(FileFence, tmp_path)


def test_a_file_fence_refuses_a_file_in_no_directory(tmp_path: Path) -> None:
    assert "is not in a directory" in refusal_of(FileFence, tmp_path / "absent" / "report")


def test_a_file_token_store_refuses_a_missing_directory(tmp_path: Path) -> None:
    assert "Create it first" in refusal_of(FileTokenStore, tmp_path / "absent")


@pytest.mark.parametrize("service", ["sqs", "dynamodb"])
def test_an_s3_fence_refuses_the_client_of_another_service(service: str) -> None:
    assert 'boto3.client("s3")' in refusal_of(S3Fence, s3_client(service), "reports")


def test_an_s3_fence_refuses_an_asyncio_client() -> None:
    class Asyncio:
        put_object = get_object = head_object = print

        async def _make_api_call(self) -> None:
            pass

    assert "a blocking boto3 client of S3" in refusal_of(S3Fence, Asyncio(), "reports")


@pytest.mark.parametrize("bucket", ["s3://reports", "", None, b"reports"])
def test_an_s3_fence_refuses_what_is_no_name_of_a_bucket(bucket: Any) -> None:
    assert "not the name of a bucket" in refusal_of(S3Fence, s3_client(), bucket)


def test_middleware_refuses_an_application_of_the_other_interface() -> None:
    store = MemoryTokenStore()

    assert "AsgiFencingMiddleware" in refusal_of(WsgiFencingMiddleware, asgi_app, store)
    assert "WsgiFencingMiddleware" in refusal_of(AsgiFencingMiddleware, wsgi_app, store)


def test_blocking_middleware_refuses_an_asyncio_store() -> None:
    fence = AsyncRedisFence(redis.asyncio.Redis())

    assert "a blocking token store" in refusal_of(WsgiFencingMiddleware, wsgi_app, fence)
    AsgiFencingMiddleware(asgi_app, fence)


@pytest.mark.parametrize("middleware", [WsgiFencingMiddleware, AsgiFencingMiddleware])
@pytest.mark.parametrize("store", [redis.Redis(), MemoryTokenStore, SECRET, None])
def test_middleware_refuses_what_is_no_token_store(middleware: Any, store: Any) -> None:
    app = wsgi_app if middleware is WsgiFencingMiddleware else asgi_app

    assert "takes a token store" in refusal_of(middleware, app, store)


def test_middleware_refuses_the_fence_of_a_single_file(tmp_path: Path) -> None:
    fence: Any = FileFence(tmp_path / "report")

    assert "takes a token store" in refusal_of(WsgiFencingMiddleware, wsgi_app, fence)


def test_middleware_refuses_options_that_would_fail_at_the_first_request() -> None:
    store = MemoryTokenStore()

    for wrong in ({"resource": "invoices"}, {"safe_methods": "GET"}):
        assert next(iter(wrong)) in refusal_of(WsgiFencingMiddleware, wsgi_app, store, **wrong)
