"""
The script with which Redis compares tokens and writes in one step, and the records of tokens.

This module uses no client, so the blocking and the asyncio fence share it.
"""

from __future__ import annotations

import binascii
import hashlib
import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache
from importlib import resources
from typing import Any, Protocol, TypeAlias

from celery_redlock.errors import ConfigurationError, FenceRecordCorrupt, InvalidResourceName
from celery_redlock.fencing.arguments import stale, token_in
from celery_redlock.protocol.keys import META_PREFIX
from celery_redlock.protocol.timing import milliseconds

Key: TypeAlias = str | bytes


class RegisteredScript(Protocol):
    """The result of redis-py's `register_script`, blocking or asyncio."""

    script: Any


ScriptSource = str | bytes | RegisteredScript

#: Lets a key see a token and changes nothing.
CLAIM_SCRIPT = "return 1"

#: A SET with any options.
SET_SCRIPT = "return redis.call('SET', KEYS[1], unpack(ARGV))"

#: In the lock's reserved part of the key space, so that no lock key is ever a fence record.
RECORD_PREFIX = META_PREFIX + "seen:"

#: Number of hash slots in a Redis Cluster.
_SLOTS = 16384

_FENCE = (resources.files("celery_redlock.fencing") / "lua" / "fence.lua").read_bytes()
_STALE = re.compile(r"REDLOCKSTALE (\d+) (\d+)")
_CORRUPT = re.compile(r"REDLOCKCORRUPT (\d+)")


def fenced_script(script: ScriptSource) -> tuple[bytes, str]:
    """
    Return the fenced form of a Lua script, and its digest for EVALSHA.

    Args:
        script: its text, or redis-py's registered object.

    Raises:
        ConfigurationError: it is neither, or it cannot be fenced.
    """
    source = script if isinstance(script, Key) else getattr(script, "script", None)
    if isinstance(source, Key):
        return _wrap(source)
    raise ConfigurationError(
        "A fence runs a Lua script, or a pipeline of a client that is blocking or asyncio like "
        "the fence, and not a cluster's; this is a "
        f"{type(script).__module__}.{type(script).__name__}."
    )


@lru_cache(maxsize=256)
def _wrap(body: str | bytes) -> tuple[bytes, str]:
    """
    Put a script inside the comparison of tokens.

    It becomes the body of a function with parameters named KEYS and ARGV, so that it reads its own
    keys and arguments. It begins on the first line, so that errors show its own line numbers.
    """
    text = body.encode() if isinstance(body, str) else body
    if text.startswith(b"#!"):
        raise ConfigurationError(
            "A fenced script cannot have a shebang line (#!lua ...): it becomes part of another "
            "script. Remove that line."
        )
    source = b"local function body(KEYS, ARGV) " + text + b"\nend\n" + _FENCE
    return source, hashlib.sha1(source, usedforsecurity=False).hexdigest()


@dataclass(frozen=True, slots=True)
class FenceRecords:
    """
    The fence records, which keep the highest token of each key.

    Attributes:
        prefix: put before a key to get its record's key.
        keep_ms: how long a record is kept after a write; 0 for no limit.
    """

    prefix: str
    keep_ms: int

    @classmethod
    def of(cls, prefix: str, keep: float | timedelta | None) -> FenceRecords:
        """Check the options of a fence, and return its records."""
        if not isinstance(prefix, str) or not re.fullmatch(r"[!-z|~]+", prefix):
            raise ConfigurationError(
                f"prefix={prefix!r} must consist of ASCII characters other than spaces and braces. "
                "Braces would put all records on one node of a Redis Cluster."
            )
        return cls(prefix, 0 if keep is None else positive_ms("record_ttl", keep))

    def record_key(self, key: Key) -> Key:
        """
        Return the record's key, which Redis Cluster keeps in the slot of `key`.

        Two records never share a key, whatever the keys and the fences' prefixes are. A prefix has
        no brace, so the first brace ends it. After `}` follows a key that has a hash tag of its
        own. After `{` follows the key as the tag or, if it cannot be a tag, a number with the same
        hash slot.

        Raises:
            InvalidResourceName: the key is the name of a record, or cannot be sent as UTF-8.
        """
        # Prefix, braces and numbers are ASCII, which is the same in Latin-1 and in UTF-8.
        if isinstance(key, bytes):
            return self._record_key(key.decode("latin-1"), key).encode("latin-1")
        if not isinstance(key, str):
            raise ConfigurationError(
                f"A key is a str or bytes, not {type(key).__name__}: {key!r:.80}."
            )
        try:
            return self._record_key(key, key.encode())
        except UnicodeEncodeError:
            raise InvalidResourceName(f"{key!r:.80} cannot be encoded as UTF-8.") from None

    def _record_key(self, key: str, sent: bytes) -> str:
        if key.startswith((META_PREFIX, self.prefix + "{", self.prefix + "}")):
            raise InvalidResourceName(
                f"{key!r:.80} is reserved for records of fences and locks. Use another key."
            )
        if _has_tag(key):
            return f"{self.prefix}}}{key}"
        if key and "}" not in key:
            return f"{self.prefix}{{{key}}}"
        return f"{self.prefix}{{{_number_in_slot(binascii.crc_hqx(sent, 0) % _SLOTS)}}}:{key}"

    def record_keys(self, keys: Sequence[Key]) -> list[Key]:
        """Return the key of each record."""
        if isinstance(keys, Key) or not keys:
            raise ConfigurationError(
                "keys must be a list that names the keys the script writes, at least one."
            )
        return [self.record_key(key) for key in keys]

    def error_for(self, message: str, keys: Sequence[Key], token: int) -> Exception | None:
        """Return the error for a refusal; None if the script itself has failed."""
        if found := _STALE.search(message):
            return stale(display(keys[int(found[2]) - 1]), int(found[1]), token)
        if found := _CORRUPT.search(message):
            return self.corrupt(keys[int(found[1]) - 1])
        return None

    def read(self, key: Key, value: Any) -> int:
        """Return the token in a record, 0 if there is none."""
        if value is None:
            return 0
        if token := token_in(value.decode("latin-1") if isinstance(value, bytes) else value):
            return token
        raise self.corrupt(key)

    def needs_update(self, key: Key, seen: int, token: int) -> bool:
        """Return whether to write a record before its key; raise if the token is stale."""
        if seen > token:
            raise stale(display(key), seen, token)
        return seen < token or self.keep_ms > 0

    def corrupt(self, key: Key) -> FenceRecordCorrupt:
        """Return the error for a record that does not hold a token."""
        return FenceRecordCorrupt(
            f"The fence record {display(self.record_key(key))!r} of {display(key)!r} "
            "does not hold a fencing token, so nothing was written. Set it to the highest token "
            "that has written; or delete it, once no holder of an older token can still be "
            "running.",
            display(key),
        )


def positive_ms(name: str, value: float | timedelta) -> int:
    """Return a duration in milliseconds, or raise `ConfigurationError`."""
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not seconds >= 0.001:
        raise ConfigurationError(f"{name}={value!r} is not a positive number of seconds.")
    return milliseconds(seconds)


def display(key: Key) -> str:
    """Return a key as messages show it."""
    return key if isinstance(key, str) else key.decode(errors="backslashreplace")


@lru_cache(maxsize=1024)
def _number_in_slot(slot: int) -> int:
    """Return the smallest number that Redis Cluster keeps in a hash slot."""
    numbers = itertools.count()
    return next(n for n in numbers if binascii.crc_hqx(b"%d" % n, 0) % _SLOTS == slot)


def _has_tag(key: str) -> bool:
    """Return whether Redis Cluster hashes only a part of the key: the first, non-empty {...}."""
    start = key.find("{")
    return start >= 0 and key.find("}", start) > start + 1
