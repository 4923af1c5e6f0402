"""
A fence for data in Redis or Valkey, over a blocking client or one for asyncio.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import redis.asyncio
from redis.client import Pipeline

from celery_redlock.fencing.redis_script import RECORD_PREFIX, Key, ScriptSource
from celery_redlock.fencing.redis_steps import RedisSteps, Steps, check_client


class RedisFence:
    """
    Writes to Redis that refuse a token older than the highest one that a key has seen.

    The server compares and writes in one step. Each key has a fence record beside it, on the same
    node in Redis Cluster. Limits: a fence refuses only writes that go through a fence, and it
    remembers tokens as long as its records exist: an old snapshot, a failover to a lagging replica
    or an eviction can lose newer tokens.

    Records stay when the data expires or is deleted, because a stale writer may still come. There
    is one for every key that was ever fenced.

    Args:
        client: a `redis.Redis` or `redis.RedisCluster`, with or without `decode_responses`.
        prefix: put before a key to get the key of its fence record; all fences of the same data
            must use the same prefix. Two fences with different prefixes never share a record.
        record_ttl: seconds without a write after which a record expires; never if not given. A
            holder that was paused for longer can write again.

    Raises:
        ConfigurationError: the client is not a blocking client (`AsyncRedisFence` takes an
            asyncio one), or the prefix or `record_ttl` is invalid.

    Example:
        >>> fence = RedisFence(redis.Redis())
        >>> fence.set("balance:7", 100, lease.fencing_token)
        >>> fence.run("return redis.call('INCRBY', KEYS[1], ARGV[1])", ["balance:7"], [5])
    """

    def __init__(
        self,
        client: redis.Redis | redis.RedisCluster,
        *,
        prefix: str = RECORD_PREFIX,
        record_ttl: float | timedelta | None = None,
    ) -> None:
        check_client("RedisFence", client, is_async=False)
        self.client: Any = client
        self._steps = RedisSteps(client, Pipeline, prefix, record_ttl)

    def get(self, key: Key) -> Any:
        """Return the value of a key, None if there is none. Not fenced; see `claim`."""
        return self.client.get(key)

    def seen(self, key: Key) -> int | None:
        """Return the highest token that a key has seen, for monitoring."""
        token: int | None = _drive(self._steps.seen(key))
        return token

    def claim(self, key: Key, token: int | None = None) -> None:
        """
        Let a key see a token without writing: from now on the fence refuses older ones.

        Claim before you read data on which a later write depends. Otherwise an earlier holder may
        write between your read and your write, and its update is lost although no token was stale.

        Raises: as `run`.
        """
        _drive(self._steps.claim(key, token))

    def set(
        self,
        key: Key,
        value: Any,
        token: int | None = None,
        *,
        ttl: float | timedelta | None = None,
    ) -> None:
        """
        Set a key, as `client.set` does, unless it has seen a newer token.

        Args:
            key: the key.
            value: what redis-py can send: bytes, str, int or float.
            token: a fencing token; the current lease's if not given.
            ttl: seconds until the value expires.

        Raises: as `run`.
        """
        _drive(self._steps.set(key, value, token, ttl))

    def run(
        self,
        script: ScriptSource | Pipeline,
        keys: Sequence[Key],
        args: Sequence[Any] = (),
        token: int | None = None,
    ) -> Any:
        """
        Run a Lua script or a filled pipeline, unless one of the keys has seen a newer token.

        Either all keys see the token, or none does and nothing changes. A script that fails in the
        middle keeps what it has written, as always in Redis, and the keys have seen its token.

        Args:
            script: a Lua script, which reads KEYS and ARGV as usual; or a pipeline of a client
                other than a cluster client. Its queued commands run as one transaction and are then
                removed from it.
            keys: the keys that it writes; in Redis Cluster all in one hash slot.
            args: the script's ARGV.
            token: a fencing token; the current lease's if not given.

        Returns:
            The result of the script, or the list of the pipeline's results.

        Raises:
            StaleFencingToken: a key has seen a newer token.
            InvalidFencingToken: the token is invalid, or none was given outside of a lease.
            InvalidResourceName: a key is the name of a fence record, or cannot be sent as UTF-8.
            FenceRecordCorrupt: a fence record is not a number.
        """
        return _drive(self._steps.run(script, keys, args, token))


class AsyncRedisFence:
    """
    `RedisFence` over an asyncio client: the same arguments, guarantee and limits.

    Both may fence the same data.
    """

    def __init__(
        self,
        client: redis.asyncio.Redis | redis.asyncio.RedisCluster,
        *,
        prefix: str = RECORD_PREFIX,
        record_ttl: float | timedelta | None = None,
    ) -> None:
        check_client("AsyncRedisFence", client, is_async=True)
        self.client: Any = client
        self._steps = RedisSteps(client, redis.asyncio.client.Pipeline, prefix, record_ttl)

    async def get(self, key: Key) -> Any:
        """Return the value of a key; see `RedisFence.get`."""
        return await self.client.get(key)

    async def seen(self, key: Key) -> int | None:
        """Return the highest token that a key has seen, for monitoring."""
        token: int | None = await _drive_async(self._steps.seen(key))
        return token

    async def claim(self, key: Key, token: int | None = None) -> None:
        """Let a key see a token without writing; see `RedisFence.claim`."""
        await _drive_async(self._steps.claim(key, token))

    async def set(
        self,
        key: Key,
        value: Any,
        token: int | None = None,
        *,
        ttl: float | timedelta | None = None,
    ) -> None:
        """Set a key unless it has seen a newer token; see `RedisFence.set`."""
        await _drive_async(self._steps.set(key, value, token, ttl))

    async def run(
        self,
        script: ScriptSource | redis.asyncio.client.Pipeline,
        keys: Sequence[Key],
        args: Sequence[Any] = (),
        token: int | None = None,
    ) -> Any:
        """Run a script or a pipeline unless a key has seen a newer token; see `RedisFence.run`."""
        return await _drive_async(self._steps.run(script, keys, args, token))


def _drive(steps: Steps) -> Any:
    """Make the calls that the steps yield, and return the steps' result."""
    try:
        step = next(steps)
        while True:
            try:
                reply = step()
            except BaseException as exc:
                step = steps.throw(exc)
            else:
                step = steps.send(reply)
    except StopIteration as end:
        return end.value


async def _drive_async(steps: Steps) -> Any:
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
