"""
The commands of a node, the scripts that execute them, and how to read its replies.

Each command is one Lua script (`lua/<script>.lua`), so a node executes all of it or nothing. KEYS
are the lock keys followed by their fence counters; `acquire`, and `raise_fence` if a key has a
limit, have the guard record as the last one; `enqueue` has the keys without counters;
`write_register` and `read_register` have the register only. ARGV are the attempt's nonce (added by
the transport, echoed by the node) and `args`.
"""

from __future__ import annotations

import hashlib
import math
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from enum import StrEnum
from importlib import resources
from typing import Any

from celery_redlock.protocol.keys import (
    ANY_PAUSE,
    GUARD_KEY,
    Key,
    fence_key,
    forms_of,
    has_limit,
    lock_of,
    pause_of,
)
from celery_redlock.protocol.timing import MAX_TOKEN
from celery_redlock.protocol.votes import (
    ACKNOWLEDGED,
    FOREIGN,
    MISSING,
    Failed,
    Granted,
    KeyHolder,
    KeyState,
    KeyStates,
    LeaseVotes,
    NotHeld,
    Quarantined,
    Refused,
    RegisterContents,
    Superseded,
    VersionedValue,
    Vote,
)


class Script(StrEnum):
    """Names of the scripts."""

    ACQUIRE = "acquire"
    RAISE = "raise"
    EXTEND = "extend"
    HEAL = "heal"
    RELEASE = "release"
    INSPECT = "inspect"
    ENQUEUE = "enqueue"
    PAUSE = "pause"
    WRITE_REGISTER = "write_register"
    READ_REGISTER = "read_register"


@dataclass(frozen=True, slots=True)
class Command:
    """One script call, the same for every node."""

    script: Script
    keys: tuple[str, ...]
    args: tuple[str | int, ...]

    @property
    def sets_keys(self) -> bool:
        """Whether a key of ours may exist on a node that has not replied to it."""
        may_move = self.script is Script.RAISE and len(self.args) > _PLAIN_RAISE
        return may_move or self.script in (Script.ACQUIRE, Script.HEAL)

    @property
    def forgets_a_waiter(self) -> bool:
        """Whether it removes a waiter from wait queues, and releases nothing."""
        return self.script is Script.RELEASE and len(self.args) == _FORGETS and not self.args[0]


@dataclass(frozen=True, slots=True)
class ReleaseAction:
    """
    The effect of a release on one of our keys; by default it deletes the key.

    Attributes:
        keep_ms: if positive, the key expires after this time instead.
        value: if not empty, the value that the key gets until then, so it is no longer ours.
    """

    keep_ms: int = 0
    value: str = ""


#: Ms between the scores of two ranks, 49 days, so that no wait makes up for a rank; and the largest
#: rank, AMQP's largest priority. The scores of all ranks are positive, and exact as doubles.
RANK_MS, MAX_RANK = 2**32, 255

#: Ms by which the clock of a client may be ahead of that of a reader of scores.
_AHEAD_MS = 86_400_000


@dataclass(frozen=True, slots=True)
class Waiter:
    """
    A waiter for the keys of an attempt; a node that refuses a key remembers the waiter.

    Attributes:
        name: its name in wake-ups, the same for all its attempts; "" for one that no node shall
            remember.
        since_ms: when it began to wait, in ms since the epoch; of one rank, nodes wake the waiter
            that has waited longest first.
        keep_ms: for how long a node keeps the wait queue; 0: it waits no longer.
        grace_ms: for how long waiters before it, once woken, go first for a free key; 0: there is
            no order, but waiters that were just woken have a head start of 10 ms.
        has_waited: nodes may remember it from an earlier attempt.
        rank: nodes wake the waiters of the smallest rank first; 0 without a priority.
    """

    name: str
    since_ms: int
    keep_ms: int
    grace_ms: int = 0
    _: KW_ONLY
    has_waited: bool = False
    rank: int = 0

    @property
    def may_be_remembered(self) -> bool:
        """Whether a node remembers it from this attempt, or may from an earlier one."""
        return self.has_waited or self.keep_ms > 0

    @property
    def score(self) -> int:
        """Its place among the waiters of a key, as nodes know it: the smallest comes first."""
        return self.since_ms + self.rank * RANK_MS


def since_and_rank(score: float, now_ms: int) -> tuple[float, int]:
    """
    Return when the waiter with a score began to wait, in ms since the epoch, and its rank.

    Raises:
        ValueError: no waiter that began to wait within 48 days has this score.
        OverflowError: it is infinite.
    """
    rank = math.ceil((score - now_ms - _AHEAD_MS) / RANK_MS)
    if abs(rank) > MAX_RANK:
        raise ValueError(score)
    return score - rank * RANK_MS, rank


#: Maximum bytes of a register in one command or reply: more would take a node longer than its
#: timeout, and would hold up its other clients.
CHUNK_BYTES = 200_000

_MISSING_PTTL = -2

#: Error handler for owner values that are not UTF-8, as of other clients; it loses nothing.
NOT_TEXT = "surrogateescape"

#: Number of arguments of the second round if no key has a limit.
_PLAIN_RAISE = 2

#: Number of arguments of a release that only forgets a waiter.
_FORGETS = 5

_OF_LEASE: dict[int, Vote] = {ord("A"): ACKNOWLEDGED, ord("M"): MISSING, ord("F"): FOREIGN}


def _with_fences(keys: Sequence[Key]) -> tuple[str, ...]:
    return _names_with_fences([key.stored for key in keys])


def _names_with_fences(names: Sequence[str]) -> tuple[str, ...]:
    return (*names, *map(fence_key, names))


def acquire(
    keys: Sequence[Key],
    owner: str,
    ttl_ms: int,
    candidate: int,
    quarantine_ms: int,
    previous: str = "",
    waiter: Waiter | None = None,
    *,
    passes_pauses: bool = False,
) -> Command:
    """
    Acquire all keys or none.

    Args:
        keys: lock keys.
        owner: this attempt's owner value.
        ttl_ms: lease length.
        candidate: microseconds of wall time; the fencing token is at least as large, unless this is
            more than 5 s ahead of the nodes' clocks.
        quarantine_ms: length of a restart quarantine; 0 turns it off.
        previous: keys with this owner value count as free and are taken over.
        waiter: nodes that refuse a key remember it; nodes that grant all keys forget it.
        passes_pauses: paused keys are granted like others.
    """
    args: tuple[str | int, ...] = (owner, ttl_ms, candidate, quarantine_ms)
    limited = has_limit(keys)
    if waiter is not None:
        args = (*args, previous, waiter.name, waiter.score, waiter.keep_ms, waiter.grace_ms)
    elif limited:
        args = (*args, previous, "", 0, 0, 0)
    elif previous:
        args = (*args, previous)
    if limited:
        # Random for each attempt, so that two attempts seldom want the same slot; equal for all
        # nodes, so that they grant the same slot.
        draw = zlib.crc32(owner.encode())
        for key in keys:
            args += (key.slots, key.period_ms, draw % key.holders)
    records = (GUARD_KEY,) if passes_pauses else (GUARD_KEY, ANY_PAUSE)
    return Command(Script.ACQUIRE, (*_with_fences(keys), *records), args)


def raise_fence(keys: Sequence[Key], owner: str, token: int) -> Command:
    """Raise the counters to `token` if all keys are still ours and no counter is above it."""
    return Command(Script.RAISE, _with_fences(keys), (owner, token))


def move(
    keys: Sequence[Key],
    owner: str,
    token: int,
    slots: tuple[int, ...],
    ttl_ms: int,
    quarantine_ms: int,
) -> Command:
    """
    Raise the counters as `raise_fence` does, those of the given slots for limited keys.

    A node that granted us another slot, or none, sets the given one if it is free there.

    Args:
        keys: as for `acquire`.
        owner: as for `acquire`.
        token: the fencing token.
        slots: the slot of each limited key, in the order of the keys.
        ttl_ms: lease length.
        quarantine_ms: as for `acquire`.
    """
    args: tuple[str | int, ...] = (owner, token, ttl_ms, quarantine_ms)
    chosen = iter(slots)
    for key in keys:
        args += (key.slots, key.period_ms, next(chosen) if key.slots else 0)
    return Command(Script.RAISE, (*_with_fences(keys), GUARD_KEY), args)


def granted_keys(keys: Sequence[Key], slots: tuple[int, ...]) -> tuple[Key, ...]:
    """Return the keys, with each limited key replaced by the slot that was granted."""
    chosen = iter(slots)
    return tuple(key.at(next(chosen)) if key.slots else key for key in keys)


def extend(keys: Sequence[Key], owner: str, ttl_ms: int, token: int) -> Command:
    """Extend our keys, never shorten them; raise the counters in any case."""
    return Command(Script.EXTEND, _with_fences(keys), (owner, ttl_ms, token, len(keys)))


def extend_together(extensions: Sequence[Command]) -> Command:
    """Combine extensions into one command; the reply to several is `LeaseVotes`."""
    if len(extensions) == 1:
        return extensions[0]
    keys: list[str] = []
    fences: list[str] = []
    args: list[str | int] = []
    for command in extensions:
        count = len(command.keys) // 2
        keys += command.keys[:count]
        fences += command.keys[count:]
        args += command.args
    return Command(Script.EXTEND, (*keys, *fences), tuple(args))


def split_extension(command: Command) -> list[Command]:
    """Return the extension of each lease in a command."""
    half, first, found = len(command.keys) // 2, 0, []
    for at in range(0, len(command.args), 4):
        args = command.args[at : at + 4]
        last = first + int(args[3])
        keys = (*command.keys[first:last], *command.keys[half + first : half + last])
        found.append(Command(Script.EXTEND, keys, args))
        first = last
    return found


def heal(keys: Sequence[Key], owner: str, ttl_ms: int, token: int) -> Command:
    """Set our keys again on a node that lost them, and raise the counters."""
    return Command(Script.HEAL, _with_fences(keys), (owner, ttl_ms, token))


def release(
    keys: Sequence[Key],
    owner: str,
    token: int,
    keep_ms: int = 0,
    actions: Mapping[Key, ReleaseAction] | None = None,
    waiter: str = "",
) -> Command:
    """
    Delete our keys, or apply other actions to them; then raise the counters.

    A node without our slot of a limited key deletes any other slot that is ours, if the number of
    slots is known.

    Args:
        keys: lock keys.
        owner: the attempt's owner value.
        token: the lease's fencing token; 0 if the attempt got none.
        keep_ms: if positive, our keys expire after this time instead of now.
        actions: actions on single keys, instead of `keep_ms`.
        waiter: the holder's own name as a waiter, for the nodes to forget: a worker may have
            entered it again while the holder acquired the keys.
    """
    args: tuple[str | int, ...] = (owner, token, keep_ms)
    is_plain = not (actions or has_limit(keys))
    if waiter or not is_plain:
        args += (waiter,)
    if not is_plain:
        actions, other = actions or {}, ReleaseAction(keep_ms)
        for key in keys:
            action = actions.get(key, other)
            args += (action.keep_ms, action.value, key.slots)
    return Command(Script.RELEASE, _with_fences(keys), args)


def forget_waiter(keys: Sequence[Key], waiter: Waiter) -> Command:
    """
    Remove a waiter from the wait queues of some keys and of their pauses; leave the keys alone.

    A node that runs it late leaves one of the same name that has begun to wait since.
    """
    stored = [key.stored for key in keys]
    names = tuple(dict.fromkeys((*stored, *filter(None, map(pause_of, stored)))))
    args = ("", 0, 0, waiter.name, waiter.score)
    return Command(Script.RELEASE, _names_with_fences(names), args)


def enqueue(waiters: Sequence[tuple[str, Waiter]]) -> Command:
    """Enter waiters in the wait queues of their keys, which are given as nodes store them."""
    args: list[str | int] = [max(waiter.keep_ms for _, waiter in waiters)]
    for _, waiter in waiters:
        args += (waiter.name, waiter.score)
    return Command(Script.ENQUEUE, tuple(lock_of(key) for key, _ in waiters), tuple(args))


def pause(key: Key, owner: str, ms: int) -> Command:
    """Pause a key, also in quarantine: a longer or shorter pause than before takes its place."""
    return Command(Script.PAUSE, (pause_of(key.stored), ANY_PAUSE), (owner, ms))


def resume(key: Key) -> Command:
    """End the pause of a key, and wake those that wait for that."""
    paused = pause_of(key.stored)
    ordinary, limited = forms_of(paused)
    return Command(Script.PAUSE, (paused, ANY_PAUSE, ordinary, limited), ("", 0))


def inspect(names: Sequence[str]) -> Command:
    """Read the owner, lifetime and counter of each key or slot, and change nothing."""
    return Command(Script.INSPECT, _names_with_fences(names), ())


def write_register(
    record: str, token: int, fields: Mapping[str, tuple[int, str] | None]
) -> Command:
    """
    Write fields of a register, unless it has seen a newer token.

    Args:
        record: node key of the register.
        token: fencing token of the writer; from now on older ones are refused.
        fields: version and text by name; None deletes the field.
    """
    args: list[str | int] = [token]
    for name, field in fields.items():
        args += (name, *(("", "") if field is None else field))
    return Command(Script.WRITE_REGISTER, (record,), tuple(args))


def read_register(
    record: str, token: int = 0, names: Sequence[str] = (), *, max_bytes: int = CHUNK_BYTES
) -> Command:
    """
    Read a register.

    Args:
        record: node key of the register.
        token: if positive, older tokens can write no more from now on.
        names: fields to read; all if empty.
        max_bytes: maximum size of the reply; fields beyond it are only named.
    """
    return Command(Script.READ_REGISTER, (record,), (token, max_bytes, *names))


def granted_vote(counters: Sequence[int], slots: Iterable[int] = ()) -> Vote:
    """Return a grant with the counters of all keys' buckets, if they can be tokens."""
    low, high = min(counters), max(counters)
    if low >= 1 and high <= MAX_TOKEN:
        return Granted(low, high, tuple(slots))
    return Failed(f"its fence counter is out of range: {high}")


def read_reply(fields: Sequence[Any]) -> Vote:
    """
    Turn a script's reply (without the nonce) into a vote.

    Anything else than a reply of our scripts becomes `Failed`, never an exception: a node that
    replies garbage is a failed node.
    """
    try:
        code = fields[0]
        if code == b"G":
            return granted_vote([int(field) for field in fields[1:]])
        if code == b"A":
            return ACKNOWLEDGED
        if code == b"M":
            return MISSING
        if code == b"F":
            return NotHeld(False, int(fields[1]) / 1000) if fields[1:] else FOREIGN
        if len(fields) == 1 and len(code) > 1:
            return LeaseVotes(tuple(map(_OF_LEASE.__getitem__, code)))
        if code == b"P":
            pairs = zip(fields[1::2], fields[2::2], strict=True)
            return granted_vote(
                [int(counter) for counter, _ in pairs],
                [int(slot) for slot in fields[2::2] if slot != b""],
            )
        if code == b"H":
            return Refused(_holders(fields[1:]))
        if code == b"L":
            return Refused(_holders(fields[2:]), before=int(fields[1]))
        if code == b"W":
            return Refused(_holders(fields[2:]), int(fields[1]) / 1000)
        if code == b"Q":
            return Quarantined(int(fields[1]) / 1000)
        if code == b"S":
            triples = zip(fields[1::3], fields[2::3], fields[3::3], strict=True)
            return KeyStates(tuple(_key_state(*triple) for triple in triples))
        if code == b"O":
            return Superseded(_token(fields[1]))
        if code == b"R":
            return _contents(_token(fields[1]), zip(fields[2::2], fields[3::2], strict=True))
    except (TypeError, ValueError, OverflowError, LookupError, AttributeError):
        pass
    return Failed(f"replied something that is not a vote: {str(fields)[:80]}")


def _holders(fields: Sequence[Any]) -> tuple[KeyHolder, ...]:
    triples = zip(fields[0::3], fields[1::3], fields[2::3], strict=True)
    return tuple(
        KeyHolder(int(key), owner.decode(errors=NOT_TEXT), int(pttl) / 1000)
        for key, owner, pttl in triples
    )


def _key_state(owner: bytes, pttl: int, counter: bytes) -> KeyState:
    # The lifetime shows whether the key is missing; an owner value may be an empty string.
    missing = int(pttl) == _MISSING_PTTL
    return KeyState(
        None if missing else owner.decode(errors=NOT_TEXT),
        0.0 if missing else int(pttl) / 1000,
        int(counter),
    )


def _token(field: bytes) -> int:
    token = int(field)
    if not 0 <= token <= MAX_TOKEN:
        raise ValueError(token)
    return token


def _contents(token: int, pairs: Iterable[tuple[bytes, bytes]]) -> Vote:
    values: dict[str, VersionedValue] = {}
    truncated = set()
    for field, value in pairs:
        name = field.decode()
        if not value:
            truncated.add(name)
            continue
        try:
            by, version, text = value.split(b" ", 2)
            values[name] = VersionedValue(_token(by), _token(version), text.decode())
        except ValueError:
            # Not a missing field: this may have been a value that a quorum has acknowledged.
            return Failed(
                f"has field {name!r} of its register in a form that no writer uses: "
                f"{value!r:.40}; delete that field"
            )
    return RegisterContents(token, values, frozenset(truncated))


_LUA = resources.files("celery_redlock.protocol") / "lua"

#: Functions that precede the scripts which call them.
_BEFORE: dict[Script, tuple[str, ...]] = {
    Script.ACQUIRE: ("identity", "guard", "slots", "pauses", "wait_queue", "turns"),
    Script.RAISE: ("identity", "guard", "slots"),
    Script.RELEASE: ("slots", "pauses", "wait_queue"),
    Script.ENQUEUE: ("slots", "pauses", "wait_queue"),
    Script.PAUSE: ("slots", "pauses", "wait_queue"),
}


def _joined(*parts: str) -> str:
    return "".join((_LUA / f"{part}.lua").read_text() for part in parts)


#: Source of each command's script.
SOURCE: dict[Script, str] = {
    script: _joined(*_BEFORE.get(script, ()), script.value) for script in Script
}

#: SHA-1 of the source, which is what EVALSHA takes.
SHA: dict[Script, str] = {
    script: hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest()
    for script, source in SOURCE.items()
}

#: Lets a brand-new node vote at once; used by `celery-redlock init`.
ARM_SOURCE: str = _joined("identity", "arm")

#: Begins the quarantine of a master that was replaced meanwhile.
LEAD_SOURCE: str = _joined("identity", "lead")
