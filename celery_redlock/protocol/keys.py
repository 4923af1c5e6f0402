"""
Node keys and owner values.
"""

from __future__ import annotations

import hashlib
import re
import zlib
from collections.abc import Iterable
from typing import Self, TypeGuard

from celery_redlock.errors import LockKeyError
from celery_redlock.protocol.texts import shortened
from celery_redlock.protocol.timing import CANDIDATE_AHEAD_US, MAX_TOKEN

META_PREFIX = "redlock-meta:"
GUARD_KEY = META_PREFIX + "guard"
FENCE_PREFIX = META_PREFIX + "fence:"
REGISTER_PREFIX = META_PREFIX + "register:"
WAIT_QUEUE_PREFIX = META_PREFIX + "waiting:"
WOKEN_PREFIX = META_PREFIX + "woken:"
TURNS_PREFIX = META_PREFIX + "turns:"
LIMIT_PREFIX = META_PREFIX + "limit:"
RATE_PREFIX = META_PREFIX + "rate:"
_LIMITED = (LIMIT_PREFIX, RATE_PREFIX)

#: A message that has missed a quorum waits for this: that nodes vote again.
QUORUM = META_PREFIX + "quorum"

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

#: A slot, or the key of all, as a message may name them.
_SLOT = re.compile(r".+#(\d{1,3})?", re.DOTALL | re.ASCII)


#: Maximum keys of one lock. Reserved keys may double them, and Lua unpacks some 8,000 values.
MAX_KEYS = 1000

#: Maximum bytes of a node key.
MAX_NAME_BYTES = 10_000

#: Maximum slots of a key. A node may read all of them for one attempt.
MAX_SLOTS = 128


class LimitedKey(str):
    """
    A key that several may hold at once; equal to its text.

    On the nodes it is that many slots, each an ordinary key: the text and a number.

    Attributes:
        slots: how many may hold it.
        period_ms: for how long a slot stays taken from its grant on, whatever its holder does, so
            that no longer time has more grants; 0: until the holder releases it.
    """

    slots: int
    period_ms: int

    def __new__(cls, text: str, slots: int, period_ms: int = 0) -> Self:
        """Return the key of this text."""
        self = super().__new__(cls, text)
        self.slots, self.period_ms = slots, period_ms
        return self

    def __getnewargs__(self) -> tuple[str, int, int]:  # type: ignore[override]
        """Return what a copy is made of."""
        return str(self), self.slots, self.period_ms

    def on_nodes(self, name: str) -> LimitedKey:
        """
        Return this key as nodes store it.

        Args:
            name: its text with the key prefix.
        """
        # A separator at the end keeps the key "a" of slot 3 apart from the key "a#3".
        under = f"{RATE_PREFIX}{self.period_ms}:" if self.period_ms else LIMIT_PREFIX
        return LimitedKey(f"{under}{name}#", self.slots, self.period_ms)


def slots_of(node_key: str) -> tuple[str, ...]:
    """Return the keys of all slots; an ordinary key is its own."""
    if isinstance(node_key, LimitedKey):
        return tuple(f"{node_key}{slot}" for slot in range(node_key.slots))
    return (node_key,)


def all_places(node_keys: Iterable[str]) -> tuple[str, ...]:
    """Return the keys, and all slots in the place of limited ones."""
    return tuple(place for node_key in node_keys for place in slots_of(node_key))


def slot_count(key: str) -> int:
    """Return how many may hold a key."""
    return key.slots if isinstance(key, LimitedKey) else 1


def lock_of(node_key: str) -> str:
    """Return the key that a slot belongs to, as nodes store it; another key as it is."""
    return node_key.rpartition("#")[0] + "#" if node_key.startswith(_LIMITED) else node_key


def waited_for(node_key: str) -> str:
    """Return how a message names a key that it waits for: a limited one with its slots' number."""
    return f"{node_key}{node_key.slots}" if isinstance(node_key, LimitedKey) else node_key


def places_of(name: str) -> tuple[str, ...]:
    """Return the key, or all slots of the limited key, that `waited_for` has named."""
    slots = slot_number(name)
    if slots is None:
        return (name,)
    return slots_of(LimitedKey(lock_of(name), min(max(1, slots), MAX_SLOTS)))


def slot_number(node_key: str) -> int | None:
    """Return the number of a slot; None for another key."""
    number = node_key.rpartition("#")[2] if node_key.startswith(_LIMITED) else ""
    return int(number) if number else None


def is_rate(key: str | None) -> TypeGuard[LimitedKey]:
    """Return whether the slots of a key stay taken for a period."""
    return isinstance(key, LimitedKey) and key.period_ms > 0


def without_rates(keys: Iterable[str]) -> tuple[str, ...]:
    """Return the keys that a holder gives back."""
    return tuple(key for key in keys if not is_rate(key))


def stays(node_key: str) -> bool:
    """Return whether a key is a slot that its holder does not give back."""
    return node_key.startswith(RATE_PREFIX) and slot_number(node_key) is not None


def period_of(node_key: str) -> int:
    """Return for how many ms a slot of a rate stays taken."""
    return int(node_key.removeprefix(RATE_PREFIX).partition(":")[0])


def stored_under(name: str, key: str) -> str:
    """Return a key as nodes store it under a name: with its limit, if it has one."""
    return key.on_nodes(name) if isinstance(key, LimitedKey) else name


def node_key_of(prefix: str, key: str) -> str:
    """Return a key as nodes store it; `user_key` is the way back."""
    return stored_under(key if key.startswith(META_PREFIX) else prefix + key, key)


def is_lock_key(node_key: str) -> bool:
    """Return whether a user named it as a lock key; other keys are the lock's own records."""
    return not _without_limit(node_key).startswith(META_PREFIX)


def user_key(node_key: str, prefix: str) -> str:
    """Return a key as its user wrote it: a lock key without the prefix, a reserved key as it is."""
    if not node_key.startswith(META_PREFIX):
        return node_key.removeprefix(prefix)
    name = _without_limit(node_key)
    if not name.startswith(META_PREFIX):
        name = name.removeprefix(prefix)
    if isinstance(node_key, LimitedKey):
        return LimitedKey(name, node_key.slots, node_key.period_ms)
    return name


def _without_limit(node_key: str) -> str:
    if not node_key.startswith(_LIMITED):
        return node_key
    name = lock_of(node_key)[:-1]
    if name.startswith(LIMIT_PREFIX):
        return name.removeprefix(LIMIT_PREFIX)
    return name.removeprefix(RATE_PREFIX).partition(":")[2]


def fence_key(key: str) -> str:
    """Return the counter that orders the holders of `key`; slots of a key have successive ones."""
    bucket = zlib.crc32(lock_of(key).encode()) + (slot_number(key) or 0)
    return _FENCE_KEYS[bucket & (FENCE_BUCKETS - 1)]


def wait_queue_key(key: str) -> str:
    """Return the wait queue of a lock key, which its slots share."""
    return WAIT_QUEUE_PREFIX + lock_of(key)


def turns_key(key: str) -> str:
    """Return the turns of those that wait for a key with a rate, beside its wait queue."""
    return TURNS_PREFIX + lock_of(key)


def wake_channel(key: str) -> str:
    """Return the channel on which nodes wake those who wait for a lock key."""
    digest = hashlib.sha1(lock_of(key).encode(), usedforsecurity=False).hexdigest()
    return WAKE_PREFIX + digest[:2]


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
    if place.startswith(_LIMITED) and not _SLOT.fullmatch(place):
        raise LockKeyError(f"{shortened(place)!r} is no slot of a key with a limit.")
    records = (FENCE_PREFIX, REGISTER_PREFIX, WAIT_QUEUE_PREFIX, WOKEN_PREFIX, TURNS_PREFIX)
    if place == GUARD_KEY or place.startswith(records):
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
