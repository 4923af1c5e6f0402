"""
The guard for data in Redis or Valkey, for asyncio.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from redis.asyncio.client import Pipeline
from redis.exceptions import NoScriptError, ResponseError, WatchError

from celery_redlock.fencing.pipeline import CapturedPipeline, is_watch_conflict
from celery_redlock.fencing.redis_script import (
    CLAIM_SCRIPT,
    RECORD_PREFIX,
    SET_SCRIPT,
    FencedScript,
    FenceRecords,
    Key,
    ScriptSource,
    positive_ms,
)
from celery_redlock.fencing.tokens import token_or_current

if TYPE_CHECKING:
    from redis import asyncio as redis

__all__ = ["AsyncRedisFence"]


class AsyncRedisFence:
    """
    What `RedisFence` is, with the same arguments and the same limits, over an asyncio client.

    Both may guard the same data.
    """

    def __init__(
        self,
        client: redis.Redis | redis.RedisCluster,
        *,
        prefix: str = RECORD_PREFIX,
        record_ttl: float | timedelta | None = None,
    ) -> None:
        self.client: Any = client
        self._records = FenceRecords.of(prefix, record_ttl)

    async def get(self, key: Key) -> Any:
        """Return the value of a key; see `RedisFence.get`."""
        return await self.client.get(key)

    async def seen(self, key: Key) -> int | None:
        """Return the highest token that a key has seen; for people who look."""
        record = await self._read_record(self.client, key, self._records.record_key(key))
        return self._records.read(key, record) or None

    async def claim(self, key: Key, token: int | None = None) -> None:
        """Let a key see a token without writing; see `RedisFence.claim`."""
        await self.run(CLAIM_SCRIPT, [key], (), token)

    async def set(
        self,
        key: Key,
        value: Any,
        token: int | None = None,
        *,
        ttl: float | timedelta | None = None,
    ) -> None:
        """Set a key unless it has seen a newer token; see `RedisFence.set`."""
        expiry = () if ttl is None else ("PX", positive_ms("ttl", ttl))
        await self.run(SET_SCRIPT, [key], (value, *expiry), token)

    async def run(
        self,
        work: ScriptSource | Pipeline,
        keys: Sequence[Key],
        args: Sequence[Any] = (),
        token: int | None = None,
    ) -> Any:
        """Run a script or a pipeline unless a key has seen a newer token; see `RedisFence.run`."""
        number = token_or_current(token)
        names = self._records.record_keys(keys)
        if isinstance(work, Pipeline):
            return await self._execute(work, keys, names, number)
        script = FencedScript.wrap(work)
        operands = (2 * len(names), *keys, *names, number, self._records.keep_ms, *args)
        try:
            try:
                return await self.client.evalsha(script.sha, *operands)
            except NoScriptError:
                return await self.client.eval(script.source, *operands)
        except ResponseError as exc:
            if explained := self._records.error_for(str(exc), keys, number):
                raise explained from None
            raise

    async def _execute(self, pipe: Any, keys: Sequence[Key], names: list[Key], token: int) -> Any:
        captured = CapturedPipeline.capture(pipe)
        try:
            while True:
                await pipe.reset()
                await pipe.watch(*names)
                rising = [
                    name
                    for key, name in zip(keys, names, strict=True)
                    if self._records.needs_update(
                        key, await self._read_record(pipe, key, name), token
                    )
                ]
                pipe.multi()
                for name in rising:
                    pipe.set(name, token, px=self._records.keep_ms or None)
                captured.replay(pipe)
                try:
                    return (await pipe.execute())[len(rising) :]
                except WatchError as exc:
                    if not is_watch_conflict(exc):
                        raise
        finally:
            await pipe.reset()

    async def _read_record(self, client: Any, key: Key, name: Key) -> Any:
        try:
            return await client.get(name)
        except ResponseError as exc:
            if str(exc).startswith("WRONGTYPE"):
                raise self._records.corrupt(key) from None
            raise
