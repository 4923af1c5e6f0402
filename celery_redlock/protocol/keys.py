"""
Node keys and owner values.
"""

from __future__ import annotations

import hashlib
import zlib

from celery_redlock.errors import LockKeyError
from celery_redlock.protocol.texts import shortened
from celery_redlock.protocol.timing import CANDIDATE_AHEAD_US, MAX_TOKEN

META_PREFIX = "redlock-meta:"
GUARD_KEY = META_PREFIX + "guard"
FENCE_PREFIX = META_PREFIX + "fence:"
REGISTER_PREFIX = META_PREFIX + "register:"
WAIT_QUEUE_PREFIX = META_PREFIX + "waiting:"

#: How a node's reply begins the name of a waiter that goes first, where the holder would be.
GOES_FIRST = "waiting "

#: Where nodes publish whom a release wakes: one of 256 channels, by the key.
WAKE_PREFIX = META_PREFIX + "wake:"

#: A fixed number of counters bounds a node's memory, because counters must not expire. Keys can
#: share one: fencing needs counters that never decrease, not one for each key.
FENCE_BUCKETS = 4096

_FENCE_KEYS = tuple(f"{FENCE_PREFIX}{n}" for n in range(FENCE_BUCKETS))

#: Enough to make the owner values of any two attempts differ.
OWNER_ENTROPY_BYTES = 16

_TOKEN_DIGITS = len(str(MAX_TOKEN))


#: Maximum keys of one lock. Reserved keys may double them, and Lua unpacks some 8,000 values.
MAX_KEYS = 1000

#: Maximum bytes of a node key.
MAX_NAME_BYTES = 10_000


def user_key(node_key: str, prefix: str) -> str:
    """Return a key as its user wrote it: a lock key without the prefix, a reserved key as it is."""
    return node_key if node_key.startswith(META_PREFIX) else node_key.removeprefix(prefix)


def fence_key(key: str) -> str:
    """Return the counter that orders the holders of `key`."""
    return _FENCE_KEYS[zlib.crc32(key.encode()) & (FENCE_BUCKETS - 1)]


def wait_queue_key(key: str) -> str:
    """Return the wait queue of a lock key."""
    return WAIT_QUEUE_PREFIX + key


def wake_channel(key: str) -> str:
    """Return the channel on which nodes wake those who wait for a lock key."""
    return WAKE_PREFIX + hashlib.sha1(key.encode(), usedforsecurity=False).hexdigest()[:2]


def owner_value(entropy: bytes, wall_us: int, label: str = "") -> str:
    """
    Return the value that marks one attempt's keys: "<hex> <wall µs> <label>".

    Args:
        entropy: fresh random bytes for each attempt: with a reused value a late release of an
            earlier attempt would delete a later attempt's key.
        wall_us: when the attempt was made; the candidate that it gave to the counters.
        label: shown to people who inspect the node.
    """
    return f"{entropy.hex()} {wall_us} {label}" if label else f"{entropy.hex()} {wall_us}"


def owner_timestamp_us(owner: str) -> int | None:
    """Return the timestamp in an owner value, or None for a value that no client of ours wrote."""
    parts = owner.split(" ", 2)
    if len(parts) < 2 or len(parts[0]) != 2 * OWNER_ENTROPY_BYTES or not parts[1].isdecimal():
        return None
    # Any publisher can put an owner value into a message; no timestamp of ours has more digits.
    return int(parts[1]) if len(parts[1]) <= _TOKEN_DIGITS else None


def candidate_above(owner: str, wall_us: int) -> int:
    """
    Return a candidate above that of an owner value, up to the maximum that nodes accept.

    Commands that use or end a reservation raise the nodes' counters to it. A node that executes the
    reservation's own acquire later then replies with more than the reservation's candidate.

    Args:
        owner: the reservation's owner value; without a timestamp the result is 0.
        wall_us: the wall clock, in microseconds.
    """
    candidate = owner_timestamp_us(owner)
    return 0 if candidate is None else min(candidate + 1, wall_us + CANDIDATE_AHEAD_US)


def owner_label(owner: str) -> str:
    """
    Return the readable part of an owner value: its label, or all of it if it has none.

    Words with an equals sign are for programs and are omitted.
    """
    if owner_timestamp_us(owner) is None:
        return owner
    return " ".join(word for word in owner.split(" ")[2:] if "=" not in word) or owner


def validate_key(key: str) -> str:
    """Return `key`, or raise `LockKeyError` if it cannot be a lock key."""
    if not isinstance(key, str):
        raise LockKeyError(f"A lock key is a str, not {type(key).__name__}: {key!r:.80}.")
    if not key:
        raise LockKeyError("A lock key cannot be empty.")
    if key.startswith(META_PREFIX):
        raise LockKeyError(
            f"Lock key {shortened(key)!r} falls under {META_PREFIX!r}, which is reserved for the "
            "lock's own records. Choose another key or key prefix."
        )
    return validate_name(key, "A lock key")


def validate_node_key(place: str) -> str:
    """Return a node key, or raise `LockKeyError` if it cannot hold a lock."""
    if not isinstance(place, str) or not place.startswith(META_PREFIX):
        return validate_key(place)
    if place == GUARD_KEY or place.startswith((FENCE_PREFIX, REGISTER_PREFIX, WAIT_QUEUE_PREFIX)):
        raise LockKeyError(
            f"{shortened(place)!r} is one of the lock's own records and cannot hold a lock."
        )
    return validate_name(place, "A lock key")


def validate_reserved_key(place: str) -> str:
    """Return a reserved key that can hold a lock, or raise `LockKeyError`."""
    validate_node_key(place)
    if not place.startswith(META_PREFIX):
        raise LockKeyError(
            f"{shortened(place)!r} is a lock key and no reserved key; pass it as a key."
        )
    return place


def register_key(prefix: str, name: str) -> str:
    """Return the node key of a register, or raise `LockKeyError`."""
    return REGISTER_PREFIX + prefix + validate_name(name, "The name of a register")


def validate_name(name: str, what: str) -> str:
    """Return a name, or raise `LockKeyError` if nodes cannot store it."""
    if not isinstance(name, str):
        raise LockKeyError(f"{what} is a str, not {type(name).__name__}: {name!r:.80}.")
    if not name:
        raise LockKeyError(f"{what} cannot be empty.")
    try:
        size = len(name.encode())
    except UnicodeEncodeError as exc:
        raise LockKeyError(
            f"{what} cannot be written as UTF-8: {shortened(name)!r}: {exc.reason}."
        ) from None
    if size > MAX_NAME_BYTES:
        raise LockKeyError(
            f"{what} has {size:,} bytes with its prefix; at most {MAX_NAME_BYTES:,} are allowed. "
            "Use a digest of it."
        )
    return name


def check_key_count(keys: int) -> None:
    """Raise `LockKeyError` if a lock has too many keys."""
    if keys > MAX_KEYS:
        raise LockKeyError(
            f"A lock of {keys:,} keys; at most {MAX_KEYS:,} can be acquired at once. Name fewer, "
            "or one key that represents them all."
        )
