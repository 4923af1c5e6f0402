"""
The redis-py clients that a fence over Redis accepts: blocking ones, or those of asyncio.

Any client that runs scripts will do: a cluster's, one from Sentinel, a wrapped or a fake one.
"""

from __future__ import annotations

import contextlib
import inspect
from typing import Any

import redis
from redis import asyncio as aioredis

from celery_redlock.fencing.checks import refuse, require_methods

_METHODS = ("get", "eval", "evalsha")

_PIPELINES = (
    redis.client.Pipeline,
    redis.cluster.ClusterPipeline,
    aioredis.client.Pipeline,
    aioredis.cluster.ClusterPipeline,
)
_SENTINELS = (redis.Sentinel, aioredis.Sentinel)


def check_client(fence: str, client: Any, *, is_async: bool) -> None:
    """
    Refuse a client through which a fence cannot write.

    Raises:
        ConfigurationError: it is a URL or a pipeline; or it is blocking where asyncio is needed, or
            the reverse: a blocking fence never awaits an asyncio client, so nothing would be
            written.
    """
    module = "redis.asyncio" if is_async else "redis"
    wanted = f"a client, {module}.Redis or {module}.RedisCluster"
    remedy = f"Give the fence {module}.Redis(...)."
    if isinstance(client, str | bytes):
        remedy = f"Give the fence {module}.Redis.from_url(...)."
    elif _is_one_of(client, _PIPELINES):
        remedy = "Give the fence the client itself, and the filled pipeline to its method run()."
        raise refuse(fence, wanted, client, remedy)
    elif _is_one_of(client, _SENTINELS):
        remedy = "Give the fence what its method master_for() returns."
    elif not isinstance(client, type) and _is_certainly(client, is_async=not is_async):
        other = "RedisFence" if is_async else "AsyncRedisFence"
        raise refuse(fence, wanted, client, f"Use {other}, or give the fence {module}.Redis(...).")
    require_methods(fence, wanted, client, _METHODS, remedy)


def _is_certainly(client: Any, *, is_async: bool) -> bool:
    """Return whether a client is certainly one of asyncio, or certainly a blocking one."""
    awaits = False
    # A proxy may not be bound yet.
    with contextlib.suppress(Exception):
        # In an asyncio client only this is a coroutine function; others return its coroutine.
        awaits = inspect.iscoroutinefunction(client.execute_command)
    if is_async:
        return awaits or _is_one_of(client, (aioredis.Redis, aioredis.RedisCluster))
    return not awaits and _is_one_of(client, (redis.Redis, redis.RedisCluster))


def _is_one_of(client: Any, kinds: tuple[type, ...]) -> bool:
    # Not isinstance(), which fails for a proxy that is not bound yet.
    return issubclass(type(client), kinds)
