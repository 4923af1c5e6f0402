"""
The eight things that are said to a node, and how its answers read.

Each command is one Lua script (`lua/<kind>.lua`), so a node does all of it or nothing. KEYS are the
lock keys followed by their fence counters; `acquire` has the guard record as a last one; `store`
and `fetch` have the register only. ARGV are the attempt's nonce (added by the transport, echoed by
the node) and `args`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from celery_redlock.protocol.naming import GUARD_KEY, fence_key
from celery_redlock.protocol.timing import MAX_TOKEN
from celery_redlock.protocol.votes import (
    ACKNOWLEDGED,
    FOREIGN,
    MISSING,
    Failed,
    Fetched,
    Granted,
    Held,
    Holder,
    Outranked,
    Quarantined,
    Record,
    Seen,
    Versioned,
    Vote,
)


class Kind(StrEnum):
    """Names of the scripts."""

    ACQUIRE = "acquire"
    RAISE = "raise"
    EXTEND = "extend"
    HEAL = "heal"
    RELEASE = "release"
    LOOK = "look"
    STORE = "store"
    FETCH = "fetch"


@dataclass(frozen=True, slots=True)
class Command:
    """One script call, the same for every node."""

    kind: Kind
    keys: tuple[str, ...]
    args: tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Fate:
    """
    What becomes of a key that is ours when it is released: by default it is deleted.

    Attributes:
        keep_ms: where positive, the key ends after this time instead of now.
        value: where not empty, the value that it has until then, so that it is no longer ours.
    """

    keep_ms: int = 0
    value: str = ""


DELETE = Fate()

#: Bytes of a register that are said to a node, or told by it, at once: more would not be done in
#: the time in which a node has to answer, and would hold up its other clients.
PIECE = 200_000

_MISSING_PTTL = -2


def _with_fences(keys: tuple[str, ...]) -> tuple[str, ...]:
    if len(keys) == 1:
        return (keys[0], fence_key(keys[0]))
    return (*keys, *map(fence_key, keys))


def acquire(
    keys: tuple[str, ...],
    owner: str,
    ttl_ms: int,
    candidate: int,
    quarantine_ms: int,
    previous: str = "",
) -> Command:
    """
    Take all keys or none.

    Args:
        keys: lock keys.
        owner: this attempt's fresh owner value.
        ttl_ms: lease length.
        candidate: microseconds of wall time, the least fencing token that the client would like.
        quarantine_ms: how long a node that fails the restart guard sits out; 0 turns the guard off.
        previous: whoever has this owner value gives way: its keys are taken over.
    """
    args = (owner, ttl_ms, candidate, quarantine_ms)
    return Command(
        Kind.ACQUIRE,
        (*_with_fences(keys), GUARD_KEY),
        (*args, previous) if previous else args,
    )


def raise_fence(keys: tuple[str, ...], owner: str, token: int) -> Command:
    """Bring the counters to `token` where all keys are still ours and none is above it."""
    return Command(Kind.RAISE, _with_fences(keys), (owner, token))


def extend(keys: tuple[str, ...], owner: str, ttl_ms: int, token: int) -> Command:
    """Lengthen, never shorten, where the keys are ours; raise the counters everywhere."""
    return Command(Kind.EXTEND, _with_fences(keys), (owner, ttl_ms, token))


def heal(keys: tuple[str, ...], owner: str, ttl_ms: int, token: int) -> Command:
    """Set our keys again where a node lost them, and raise the counters."""
    return Command(Kind.HEAL, _with_fences(keys), (owner, ttl_ms, token))


def release(
    keys: tuple[str, ...],
    owner: str,
    token: int,
    keep_ms: int = 0,
    fates: Mapping[str, Fate] | None = None,
) -> Command:
    """
    Delete what is ours, or give it another fate; then raise the counters.

    Args:
        keys: lock keys.
        owner: the attempt's owner value.
        token: the lease's fencing token; 0 when the attempt never got one.
        keep_ms: where positive, let our keys end after this time instead of now.
        fates: what becomes of single keys instead.
    """
    args: tuple[str | int, ...] = (owner, token, keep_ms)
    if fates:
        other = Fate(keep_ms)
        for key in keys:
            fate = fates.get(key, other)
            args += (fate.keep_ms, fate.value)
    return Command(Kind.RELEASE, _with_fences(keys), args)


def look(keys: tuple[str, ...]) -> Command:
    """Tell who has the keys, and change nothing."""
    return Command(Kind.LOOK, _with_fences(keys), ())


def store(record: str, token: int, fields: Mapping[str, tuple[int, str] | None]) -> Command:
    """
    Write fields of a register, unless it has seen a newer token.

    Args:
        record: name of the register on the nodes.
        token: fencing token of whoever writes; from now on older ones are refused.
        fields: version and text by name; None deletes the field.
    """
    args: list[str | int] = [token]
    for name, field in fields.items():
        args += (name, *(("", "") if field is None else field))
    return Command(Kind.STORE, (record,), tuple(args))


def fetch(record: str, token: int = 0, names: Sequence[str] = (), *, most: int = PIECE) -> Command:
    """
    Tell what a register has.

    Args:
        record: name of the register on the nodes.
        token: where positive, refuse what older tokens write from now on.
        names: fields to tell; all if there are none.
        most: bytes to tell; what is left then is only named.
    """
    return Command(Kind.FETCH, (record,), (token, most, *names))


def granted(counters: Sequence[int]) -> Vote:
    """Return a grant with the counters of all keys' buckets, if they can be tokens."""
    low, high = min(counters), max(counters)
    if low >= 1 and high <= MAX_TOKEN:
        return Granted(low, high)
    return Failed(f"its fence counter is out of range: {high}")


def read_reply(fields: Sequence[Any]) -> Vote:
    """
    Turn a script's answer (without the nonce) into a vote.

    Anything that no script of ours says becomes `Failed`, never an exception: a node that answers
    garbage is a failed node.
    """
    try:
        code = fields[0]
        if code == b"G":
            return granted([int(field) for field in fields[1:]])
        if code == b"A":
            return ACKNOWLEDGED
        if code == b"M":
            return MISSING
        if code == b"F":
            return FOREIGN
        if code == b"H":
            triples = zip(fields[1::3], fields[2::3], fields[3::3], strict=True)
            return Held(
                tuple(
                    Holder(int(key), owner.decode(errors="replace"), int(pttl) / 1000)
                    for key, owner, pttl in triples
                )
            )
        if code == b"Q":
            return Quarantined(int(fields[1]) / 1000)
        if code == b"S":
            triples = zip(fields[1::3], fields[2::3], fields[3::3], strict=True)
            return Seen(tuple(_record(*triple) for triple in triples))
        if code == b"O":
            return Outranked(_token(fields[1]))
        if code == b"R":
            return _fetched(_token(fields[1]), zip(fields[2::2], fields[3::2], strict=True))
    except (TypeError, ValueError, OverflowError, IndexError, AttributeError):
        pass
    return Failed(f"answered something that is not a vote: {str(fields)[:80]}")


def _record(owner: bytes, pttl: int, counter: bytes) -> Record:
    # Redis tells a missing key by its lifetime; an empty value may be somebody's.
    missing = int(pttl) == _MISSING_PTTL
    return Record(
        None if missing else owner.decode(errors="replace"),
        0.0 if missing else int(pttl) / 1000,
        int(counter),
    )


def _token(field: bytes) -> int:
    token = int(field)
    if not 0 <= token <= MAX_TOKEN:
        raise ValueError(token)
    return token


def _fetched(token: int, pairs: Iterable[tuple[bytes, bytes]]) -> Vote:
    told: dict[str, Versioned] = {}
    untold = set()
    for field, value in pairs:
        name = field.decode()
        if not value:
            untold.add(name)
            continue
        try:
            by, version, text = value.split(b" ", 2)
            told[name] = Versioned(_token(by), _token(version), text.decode())
        except ValueError:
            # Not the same as no field: it may have been what a quorum was told to keep.
            return Failed(
                f"has something in field {name!r} of its register that nobody can have written: "
                f"{value!r:.40}; delete that field"
            )
    return Fetched(token, told, frozenset(untold))
