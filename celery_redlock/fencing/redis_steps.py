"""
The steps of a fence over Redis, shared by the blocking and the asyncio fence.

Each `yield` hands one call of redis-py to a driver. The driver makes the call, awaits it if the
client is one of asyncio, and sends the reply or throws the error back in.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, TypeAlias

from redis.exceptions import NoScriptError, ResponseError, WatchError

from celery_redlock.errors import ConfigurationError
from celery_redlock.fencing.redis_script import (
    CLAIM_SCRIPT,
    SET_SCRIPT,
    FencedScript,
    FenceRecords,
    Key,
    positive_ms,
)
from celery_redlock.fencing.tokens import token_or_current

Steps: TypeAlias = Generator[Callable[[], Any], Any, Any]


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
        fenced = FencedScript.wrap(script)
        operands = (2 * len(keys), *keys, *record_keys, number, self._records.keep_ms, *args)
        try:
            try:
                return (yield partial(self._client.evalsha, fenced.sha, *operands))
            except NoScriptError:
                return (yield partial(self._client.eval, fenced.source, *operands))
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
