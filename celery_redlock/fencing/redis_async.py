"""
A fence for data in Redis or Valkey, for asyncio.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from redis.asyncio.client import Pipeline

from celery_redlock.fencing.redis_client import check_client
from celery_redlock.fencing.redis_script import RECORD_PREFIX, Key, ScriptSource
from celery_redlock.fencing.redis_steps import RedisSteps, Steps

if TYPE_CHECKING:
    from redis import asyncio as redis


class AsyncRedisFence:
    """
    `RedisFence` over an asyncio client: the same arguments, guarantee and limits.

    Both may fence the same data.
    """

    def __init__(
        self,
        client: redis.Redis | redis.RedisCluster,
        *,
        prefix: str = RECORD_PREFIX,
        record_ttl: float | timedelta | None = None,
    ) -> None:
        check_client("AsyncRedisFence", client, is_async=True)
        self.client: Any = client
        self._steps = RedisSteps(client, Pipeline, prefix, record_ttl)

    async def get(self, key: Key) -> Any:
        """Return the value of a key; see `RedisFence.get`."""
        return await self.client.get(key)

    async def seen(self, key: Key) -> int | None:
        """Return the highest token that a key has seen, for monitoring."""
        token: int | None = await _drive(self._steps.seen(key))
        return token

    async def claim(self, key: Key, token: int | None = None) -> None:
        """Let a key see a token without writing; see `RedisFence.claim`."""
        await _drive(self._steps.claim(key, token))

    async def set(
        self,
        key: Key,
        value: Any,
        token: int | None = None,
        *,
        ttl: float | timedelta | None = None,
    ) -> None:
        """Set a key unless it has seen a newer token; see `RedisFence.set`."""
        await _drive(self._steps.set(key, value, token, ttl))

    async def run(
        self,
        script: ScriptSource | Pipeline,
        keys: Sequence[Key],
        args: Sequence[Any] = (),
        token: int | None = None,
    ) -> Any:
        """Run a script or a pipeline unless a key has seen a newer token; see `RedisFence.run`."""
        return await _drive(self._steps.run(script, keys, args, token))


async def _drive(steps: Steps) -> Any:
    """Make and await the calls that the steps yield, and return the steps' result."""
    try:
        step = next(steps)
        while True:
            try:
                reply = await step()
            except BaseException as exc:
                step = steps.throw(exc)
            else:
                step = steps.send(reply)
    except StopIteration as end:
        return end.value
