"""
Node keys and owner values.
"""

from __future__ import annotations

import hashlib
import re
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Self

from celery_redlock.errors import LockKeyError
from celery_redlock.protocol.texts import shortened
from celery_redlock.protocol.timing import CANDIDATE_AHEAD_US, MAX_TOKEN

META_PREFIX = "redlock-meta:"
GUARD_KEY = META_PREFIX + "guard"

#: The number of the last promotion that a node which can fail over knows.
EPOCH_KEY = META_PREFIX + "epoch"
FENCE_PREFIX = META_PREFIX + "fence:"
REGISTER_PREFIX = META_PREFIX + "register:"
WAIT_QUEUE_PREFIX = META_PREFIX + "waiting:"
WOKEN_PREFIX = META_PREFIX + "woken:"
TURNS_PREFIX = META_PREFIX + "turns:"
LIMIT_PREFIX = META_PREFIX + "limit:"
RATE_PREFIX = META_PREFIX + "rate:"
PAUSE_PREFIX = META_PREFIX + "paused:"
_LIMITED = (LIMIT_PREFIX, RATE_PREFIX)

#: Reserved key that a message waits for if it found no quorum, until nodes vote again.
QUORUM = META_PREFIX + "quorum"

#: A node replies with this and a waiter's name, in place of a holder, if that waiter goes first.
GOES_FIRST = "waiting "

#: A node replies with this in place of a holder if the key is paused.
PAUSED = "paused"

#: A node has this key for as long as its longest pause; its value is the name of that pause.
ANY_PAUSE = META_PREFIX + "paused"

#: Prefix of the 256 channels on which nodes publish wake-ups; the key determines which one.
WAKE_PREFIX = META_PREFIX + "wake:"

#: A fixed number of counters bounds a node's memory, because counters must not expire. Keys can
#: share one: fencing needs counters that never decrease, not one for each key.
FENCE_BUCKETS = 4096

_FENCE_KEYS = tuple(f"{FENCE_PREFIX}{n}" for n in range(FENCE_BUCKETS))

#: Enough to make the owner values of any two attempts differ.
OWNER_ENTROPY_BYTES = 16

_TOKEN_DIGITS = len(str(MAX_TOKEN))

#: The name of a slot, or the common beginning of the names of all slots, in a message.
_SLOT = re.compile(
    rf"({LIMIT_PREFIX}|{RATE_PREFIX}[1-9]\d{{,14}}:).+#(\d{{1,3}})?", re.DOTALL | re.ASCII
)


#: Maximum keys of one lock. Reserved keys may double them, and Lua unpacks some 8,000 values.
MAX_KEYS = 1000

#: Maximum bytes of a node key.
MAX_NAME_BYTES = 10_000

#: Maximum slots of a key. A node may read all of them for one attempt.
MAX_SLOTS = 128


@dataclass(frozen=True, slots=True)
class Key:
    """
    A key of a lock: its text for people, and its name on the nodes, which decides equality.

    A key with a limit is that many slots on the nodes, each an ordinary key there. One value
    represents all of them; `at` returns one of them.

    Attributes:
        stored: its name on the nodes; with a limit, the beginning of its slots' names.
        text: the key as its user wrote it; for a record, the name that errors show.
        slots: the limit, which is its number of slots; 0: no limit, one holder.
        period_ms: for how long a slot stays taken after its grant, whatever its holder does, which
            limits the grants in any such period; 0: until the holder releases it.
        slot: its number, if it is a slot; otherwise None.
        is_record: whether it is a record of the lock's own, which no user named as a lock key.
    """

    stored: str
    text: str = field(compare=False)
    slots: int = field(default=0, compare=False)
    period_ms: int = field(default=0, compare=False)
    slot: int | None = field(default=None, compare=False)
    is_record: bool = field(default=False, compare=False)

    @classmethod
    def of(cls, prefix: str, text: str, slots: int = 0, period_ms: int = 0) -> Self:
        """Return a user's key for a client with this key prefix, or raise `LockKeyError`."""
        if not text:
            raise LockKeyError("A lock key cannot be empty. Name one key or several.")
        name = validate_key(prefix + text)
        if not slots:
            return cls(name, text)
        # A separator at the end keeps the key "a" of slot 3 apart from the key "a#3".
        return cls(f"{_begin(period_ms)}{name}#", text, slots, period_ms)

    @classmethod
    def record(cls, stored: str, text: str = "") -> Self:
        """Return a record of the lock's own, under the reserved prefix."""
        return cls(stored, text or stored, is_record=True)

    @classmethod
    def read(cls, stored: str, prefix: str = "") -> Self:
        """
        Return the key, or the slot, that a message or a node names.

        The name does not contain the number of slots, so `slots` is 0.

        Args:
            stored: its name on the nodes.
            prefix: key prefix of the client, which is no part of the text.

        Raises:
            LockKeyError: the name cannot hold a lock.
        """
        validate_node_key(stored)
        if not stored.startswith(_LIMITED):
            if stored.startswith(META_PREFIX):
                return cls.record(stored)
            return cls(stored, stored.removeprefix(prefix))
        name, period_ms = _name_and_period(stored)
        is_record = name.startswith(META_PREFIX)
        text = name if is_record else name.removeprefix(prefix)
        return cls(stored, text, 0, period_ms, slot_number(stored), is_record)

    @property
    def is_rate(self) -> bool:
        """Whether its slots stay taken for a period."""
        return self.period_ms > 0

    @property
    def stays(self) -> bool:
        """Whether it is a slot that its holder does not give back."""
        return self.period_ms > 0 and self.slot is not None

    @property
    def is_shared(self) -> bool:
        """Whether it may have several holders, none of which does the work of a call."""
        return self.slots > 1 or self.period_ms > 0

    @property
    def holders(self) -> int:
        """The number of holders that it may have at once."""
        return self.slots or 1

    @property
    def lock(self) -> str:
        """Its name on the nodes; for a slot, that of the key to which it belongs."""
        return self.stored if self.slot is None else lock_of(self.stored)

    @property
    def places(self) -> tuple[str, ...]:
        """The names on the nodes of all its slots, or its own if it has none."""
        if self.slots and self.slot is None:
            return tuple(f"{self.stored}{slot}" for slot in range(self.slots))
        return (self.stored,)

    def at(self, slot: int) -> Self:
        """Return one of its slots."""
        return replace(self, stored=f"{self.stored}{slot}", slot=slot)

    def as_record(self, kind: str) -> Self:
        """Return a record about this key, with the same limit; `kind` begins its name."""
        name = self.stored if not self.slots else self.stored[len(_begin(self.period_ms)) : -1]
        stored = f"{_begin(self.period_ms)}{kind}{name}#" if self.slots else kind + name
        return replace(self, stored=stored, is_record=True)


def _begin(period_ms: int) -> str:
    return f"{RATE_PREFIX}{period_ms}:" if period_ms else LIMIT_PREFIX


def places_of(keys: Iterable[Key]) -> tuple[str, ...]:
    """Return the names of keys on the nodes; of all slots in place of a limited key."""
    return tuple(place for key in keys for place in key.places)


def has_limit(keys: Iterable[Key]) -> bool:
    """Return whether one of the keys has a limit or a rate."""
    return any(key.slots for key in keys)


def given_back(keys: Iterable[Key]) -> tuple[Key, ...]:
    """Return the keys that a holder gives back: all but those with a rate."""
    return tuple(key for key in keys if not key.period_ms)


def in_header(key: Key) -> str:
    """Encode a key for the header: a limited key is followed by its number of slots."""
    return f"{key.stored}{key.slots}" if key.slots else key.stored


def places_in_header(name: str) -> tuple[str, ...]:
    """Return the key, or all slots of the limited key, that `in_header` has encoded."""
    key = Key.read(name)
    if key.slot is None:
        return (name,)
    return replace(key, stored=key.lock, slots=min(max(1, key.slot), MAX_SLOTS), slot=None).places


def lock_of(stored: str) -> str:
    """Return the name on the nodes of the key that a slot belongs to; any other key as it is."""
    return stored.rpartition("#")[0] + "#" if stored.startswith(_LIMITED) else stored


def _name_and_period(stored: str) -> tuple[str, int]:
    """Return the name of a key or slot with a limit as it would be without, and its period."""
    name = lock_of(stored)[:-1]
    if not stored.startswith(RATE_PREFIX):
        return name.removeprefix(LIMIT_PREFIX), 0
    period, _, name = name.removeprefix(RATE_PREFIX).partition(":")
    return name, int(period)


def pause_of(stored: str) -> str:
    """
    Return the name on the nodes of a key's pause; "" for a record, which no pause refuses.

    A key without a limit, with limits and with rates shares one pause.
    """
    name = _name_and_period(stored)[0] if stored.startswith(_LIMITED) else stored
    return "" if name.startswith(META_PREFIX) else PAUSE_PREFIX + name


def forms_of(pause: str) -> tuple[str, str]:
    """Return the names on the nodes of the key of a pause, without and with a limit."""
    name = pause.removeprefix(PAUSE_PREFIX)
    return name, f"{LIMIT_PREFIX}{name}#"


def slot_number(stored: str) -> int | None:
    """Return the number of a slot; None for another key."""
    number = stored.rpartition("#")[2] if stored.startswith(_LIMITED) else ""
    return int(number) if number else None


def fence_key(stored: str) -> str:
    """Return the counter that orders the holders of a key; slots have successive counters."""
    bucket = zlib.crc32(lock_of(stored).encode()) + (slot_number(stored) or 0)
    return _FENCE_KEYS[bucket & (FENCE_BUCKETS - 1)]


def wait_queue_key(key: str) -> str:
    """Return the wait queue of a lock key, which its slots share."""
    return WAIT_QUEUE_PREFIX + lock_of(key)


def turns_key(key: str) -> str:
    """Return the node key that has the turns of the waiters of a key with a rate."""
    return TURNS_PREFIX + lock_of(key)


def wake_channel(key: str) -> str:
    """Return the channel on which nodes wake the waiters of a lock key."""
    digest = hashlib.sha1(lock_of(key).encode(), usedforsecurity=False).hexdigest()
    return WAKE_PREFIX + digest[:2]


def owner_value(entropy: bytes, wall_us: int, label: str = "") -> str:
    """
    Return the value that marks one attempt's keys: "<hex> <wall µs> <label>".

    Args:
        entropy: fresh random bytes for each attempt: with a reused value a late release of an
            earlier attempt would delete a later attempt's key.
        wall_us: the time of the attempt, which is also its candidate for the counters.
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
    if isinstance(key, str) and key.startswith(META_PREFIX):
        raise LockKeyError(
            f"Lock key {shortened(key)!r} falls under {META_PREFIX!r}, which is reserved for the "
            "lock's own records. Choose another key or key prefix."
        )
    return validate_name(key, "A lock key")


def validate_node_key(stored: str) -> str:
    """Return the name of a key on the nodes, or raise `LockKeyError` if it cannot hold a lock."""
    if not isinstance(stored, str) or not stored.startswith(META_PREFIX):
        return validate_key(stored)
    if stored.startswith(_LIMITED) and not _SLOT.fullmatch(stored):
        raise LockKeyError(f"{shortened(stored)!r} is not a slot of a key with a limit.")
    records = (FENCE_PREFIX, REGISTER_PREFIX, WAIT_QUEUE_PREFIX, WOKEN_PREFIX, TURNS_PREFIX)
    if stored in (GUARD_KEY, EPOCH_KEY, ANY_PAUSE) or stored.startswith(records):
        raise LockKeyError(
            f"{shortened(stored)!r} is one of the lock's own records and cannot hold a lock."
        )
    return validate_name(stored, "A lock key")


def can_hold_lock(stored: str) -> bool:
    """Return whether `Key.read` can read a name."""
    try:
        validate_node_key(stored)
    except LockKeyError:
        return False
    return True


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
            f"A lock has at most {MAX_KEYS:,} keys, counting each slot, and this one has {keys:,}. "
            "Name fewer, or one key that represents them all."
        )
