"""
A guard for data in Redis or Valkey.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from redis.client import Pipeline
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
    import redis

__all__ = ["RedisFence"]


class RedisFence:
    """
    Writes to Redis that refuse a token older than the highest one that a key has seen.

    Comparing and writing is one step on the server. Each key has a fence record beside it, on the
    same node in Redis Cluster. Limits: only writes that go through a fence are refused, and the
    guard lives as long as its records. Data that comes back from an old snapshot, a failover to a
    replica that lags, or an eviction takes the memory of newer tokens with it.

    Records stay when the data expires or is deleted, since the stale writer that they stop may
    come later. Their number is that of the keys ever guarded.

    Args:
        client: a `redis.Redis` or `redis.RedisCluster`, with or without `decode_responses`.
        prefix: put before a key to get its fence record's; all guards of the data must agree. Two
            guards with different prefixes never share a record.
        record_ttl: seconds without a write after which a record ends; never if not given. A holder
            that was paused for longer can write again.

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
        self.client: Any = client
        self._records = FenceRecords.of(prefix, record_ttl)

    def get(self, key: Key) -> Any:
        """Return the value of a key, None where there is none. Not guarded; see `claim`."""
        return self.client.get(key)

    def seen(self, key: Key) -> int | None:
        """Return the highest token that a key has seen; for people who look."""
        return (
            self._records.read(
                key, self._read_record(self.client, key, self._records.record_key(key))
            )
            or None
        )

    def claim(self, key: Key, token: int | None = None) -> None:
        """
        Let a key see a token without writing: from now on older ones are refused.

        Do so before reading what a later write is based on. Otherwise an earlier holder may write
        between that read and that write, and its update is lost although no token was stale.

        Raises: as `run`.
        """
        self.run(CLAIM_SCRIPT, [key], (), token)

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
        expiry = () if ttl is None else ("PX", positive_ms("ttl", ttl))
        self.run(SET_SCRIPT, [key], (value, *expiry), token)

    def run(
        self,
        work: ScriptSource | Pipeline,
        keys: Sequence[Key],
        args: Sequence[Any] = (),
        token: int | None = None,
    ) -> Any:
        """
        Run a Lua script or a filled pipeline, unless one of the keys has seen a newer token.

        All keys see the token, or none does and nothing is changed. A script that fails in the
        middle keeps what it has written, as always in Redis, and the keys have seen its token.

        Args:
            work: a script, which reads KEYS and ARGV as usual; or a pipeline of a plain client
                with commands queued in it, which is executed as a transaction and then empty.
            keys: the keys that it writes; in Redis Cluster all of one slot.
            args: the script's ARGV.
            token: a fencing token; the current lease's if not given.

        Returns:
            What the script returns, or the list of the pipeline's results.

        Raises:
            StaleFencingToken: a key has seen a newer token.
            InvalidFencingToken: the token cannot be one, or none was given outside of a lease.
            InvalidResourceName: a key is the name of a fence record, or no text.
            FenceRecordCorrupt: a fence record is not a number.
        """
        number = token_or_current(token)
        names = self._records.record_keys(keys)
        if isinstance(work, Pipeline):
            return self._execute(work, keys, names, number)
        script = FencedScript.wrap(work)
        operands = (2 * len(names), *keys, *names, number, self._records.keep_ms, *args)
        try:
            try:
                return self.client.evalsha(script.sha, *operands)
            except NoScriptError:
                return self.client.eval(script.source, *operands)
        except ResponseError as exc:
            if explained := self._records.error_for(str(exc), keys, number):
                raise explained from None
            raise

    def _execute(self, pipe: Any, keys: Sequence[Key], names: list[Key], token: int) -> Any:
        captured = CapturedPipeline.capture(pipe)
        try:
            while True:
                pipe.reset()
                pipe.watch(*names)
                rising = [
                    name
                    for key, name in zip(keys, names, strict=True)
                    if self._records.needs_update(key, self._read_record(pipe, key, name), token)
                ]
                pipe.multi()
                for name in rising:
                    pipe.set(name, token, px=self._records.keep_ms or None)
                captured.replay(pipe)
                try:
                    return pipe.execute()[len(rising) :]
                except WatchError as exc:
                    if not is_watch_conflict(exc):
                        raise
        finally:
            pipe.reset()

    def _read_record(self, client: Any, key: Key, name: Key) -> Any:
        try:
            return client.get(name)
        except ResponseError as exc:
            if str(exc).startswith("WRONGTYPE"):
                raise self._records.corrupt(key) from None
            raise
