"""
The client and the steps of a fence over Redis, shared by the blocking and the asyncio fence.

Each `yield` hands one call of redis-py to a driver. The driver makes the call, awaits it if the
client is one of asyncio, and sends the reply or throws the error back in.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Generator, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, TypeAlias

import redis
from redis import asyncio as aioredis
from redis.exceptions import NoScriptError, ResponseError, WatchError

from celery_redlock.errors import ConfigurationError
from celery_redlock.fencing.arguments import refuse, require_methods, token_or_current
from celery_redlock.fencing.redis_script import (
    CLAIM_SCRIPT,
    SET_SCRIPT,
    FenceRecords,
    Key,
    fenced_script,
    positive_ms,
)

Steps: TypeAlias = Generator[Callable[[], Any], Any, Any]

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

    Any client that runs scripts will do: a cluster's, one from Sentinel, a wrapped or a fake one.

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


class RedisSteps:
    """The steps of each method of a fence; `pipeline` is the class of its client's pipelines."""

    def __init__(
        self, client: Any, pipeline: type[Any], prefix: str, record_ttl: float | timedelta | None
    ) -> None:
        self._client = client
        self._pipeline = pipeline
        self._records = FenceRecords.of(prefix, record_ttl)

    def seen(self, key: Key) -> Steps:
        """Return the highest token that a key has seen, None if there is none."""
        record_key = self._records.record_key(key)
        token = yield from self._read_token(self._client, key, record_key)
        return token or None

    def claim(self, key: Key, token: int | None) -> Steps:
        """Let a key see a token."""
        return self.run(CLAIM_SCRIPT, [key], (), token)

    def set(self, key: Key, value: Any, token: int | None, ttl: float | timedelta | None) -> Steps:
        """Set a key."""
        expiry = () if ttl is None else ("PX", positive_ms("ttl", ttl))
        return self.run(SET_SCRIPT, [key], (value, *expiry), token)

    def run(
        self, script: Any, keys: Sequence[Key], args: Sequence[Any], token: int | None
    ) -> Steps:
        """Run a script or a pipeline."""
        number = token_or_current(token)
        record_keys = self._records.record_keys(keys)
        # Strings first: redis-py's pipelines are protocols, for which isinstance() is slow.
        if not isinstance(script, Key) and isinstance(script, self._pipeline):
            return (yield from self._execute(script, keys, record_keys, number))
        source, sha = fenced_script(script)
        operands = (2 * len(keys), *keys, *record_keys, number, self._records.keep_ms, *args)
        try:
            try:
                return (yield partial(self._client.evalsha, sha, *operands))
            except NoScriptError:
                return (yield partial(self._client.eval, source, *operands))
        except ResponseError as exc:
            if error := self._records.error_for(str(exc), keys, number):
                raise error from None
            raise

    def _execute(
        self, pipe: Any, keys: Sequence[Key], record_keys: Sequence[Key], token: int
    ) -> Steps:
        """Execute a pipeline; repeat that until no record changes meanwhile."""
        if pipe.watching:
            raise ConfigurationError(
                "The pipeline watches keys already, but a fenced run must be free to try again. "
                "Give a pipeline that watches nothing, or a Lua script."
            )
        commands, scripts = list(pipe.command_stack), set(pipe.scripts)
        try:
            while True:
                yield pipe.reset
                yield partial(pipe.watch, *record_keys)
                raised = []
                for key, record_key in zip(keys, record_keys, strict=True):
                    seen = yield from self._read_token(pipe, key, record_key)
                    if self._records.needs_update(key, seen, token):
                        raised.append(record_key)
                pipe.multi()
                for record_key in raised:
                    pipe.set(record_key, token, px=self._records.keep_ms or None)
                for arguments, options in commands:
                    pipe.execute_command(*arguments, **options)
                pipe.scripts |= scripts
                try:
                    replies = yield pipe.execute
                except WatchError as exc:
                    # redis-py raises the same class when the connection breaks. The server may
                    # have executed the transaction then, so it must not be sent again.
                    if "changed" not in str(exc):
                        raise
                else:
                    return replies[len(raised) :]
        finally:
            yield pipe.reset

    def _read_token(self, client: Any, key: Key, record_key: Key) -> Steps:
        try:
            value = yield partial(client.get, record_key)
        except ResponseError as exc:
            if str(exc).startswith("WRONGTYPE"):
                raise self._records.corrupt(key) from None
            raise
        return self._records.read(key, value)


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
