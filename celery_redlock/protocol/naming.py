"""
Names on the nodes: lock keys, our reserved records, owner values.
"""

from __future__ import annotations

import zlib

from celery_redlock.errors import LockKeyError

META_PREFIX = "redlock-meta:"
GUARD_KEY = META_PREFIX + "guard"

#: A fixed number of counters bounds the memory on a node without an expiry horizon. Sharing one is
#: safe: fencing needs counters that never go back, not one for each key.
FENCE_BUCKETS = 4096

_FENCE_KEYS = tuple(f"{META_PREFIX}fence:{n}" for n in range(FENCE_BUCKETS))

#: Enough that owner values of any two attempts differ.
OWNER_ENTROPY_BYTES = 16


def fence_key(key: str) -> str:
    """Return the counter that orders the holders of `key`."""
    return _FENCE_KEYS[zlib.crc32(key.encode()) & (FENCE_BUCKETS - 1)]


def owner_value(entropy: bytes, label: str = "") -> str:
    """
    Return the value that marks one attempt's keys.

    `entropy` must be fresh random bytes for each attempt: with a reused value a late release of an
    earlier attempt would delete a later attempt's key. The label is for people who look.
    """
    return f"{entropy.hex()} {label}" if label else entropy.hex()


def validate_key(key: str) -> str:
    """Return `key` as it is, or raise `LockKeyError` where it cannot be a lock key."""
    if not isinstance(key, str):
        raise LockKeyError(f"A lock key is a str, not {type(key).__name__}: {key!r}.")
    if not key:
        raise LockKeyError("A lock key cannot be empty.")
    if key.startswith(META_PREFIX):
        raise LockKeyError(
            f"Lock key {key!r} falls under {META_PREFIX!r}, which is reserved for the lock's own "
            "records. Choose another key or key prefix."
        )
    try:
        key.encode()
    except UnicodeEncodeError as exc:
        raise LockKeyError(f"Lock key {key!r} cannot be written as UTF-8: {exc.reason}.") from None
    return key
