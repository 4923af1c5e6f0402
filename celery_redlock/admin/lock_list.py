"""
Lists the locks that a set of nodes holds, one by one, however many there are.
"""

from __future__ import annotations

import contextlib
import fnmatch
import math
import re
import time
from array import array
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime
from typing import Any

from celery_redlock.admin.node_readers import TIMEOUT, Readers
from celery_redlock.core import Client, Redlock, client_of
from celery_redlock.core.inspection import lock_info
from celery_redlock.errors import LockKeyError
from celery_redlock.protocol.commands import since_and_rank
from celery_redlock.protocol.keys import (
    MAX_SLOTS,
    META_PREFIX,
    PAUSE_PREFIX,
    RATE_PREFIX,
    Key,
    owner_timestamp_us,
    pause_of,
)
from celery_redlock.protocol.rounds import InspectRound
from celery_redlock.protocol.votes import Acknowledged, Failed, KeyState, KeyStates, Vote
from celery_redlock.tasks.inspection import LockHolder, holder_from
from celery_redlock.tasks.message.node_keys import QUEUED
from celery_redlock.tasks.message.owner_label import parse_owner, task_digest
from celery_redlock.transport import clock
from celery_redlock.transport.base import READ_AT_ONCE, SCANNED_AT_ONCE

#: The state of a key that only a minority of the nodes has: it is no lock, and expires.
LEFTOVER = "leftover"

#: The state of a slot of a rate: it counts a start, whether or not the started body still runs.
COUNTED = "counted"

#: The state of a paused key. Its holders keep it, and have entries of their own.
PAUSED = "paused"

#: Longest pause after a page, in seconds: a page takes longer if the list's reader is slow.
LONGEST_REST = 0.05

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class LockWaiter:
    """
    A waiter for a key.

    Attributes:
        name: the waiter's name in wake-ups; random for a call in a program.
        since: when it began to wait; None if the node's score is not that of a waiter.
        priority: its message's Celery priority; 0 without one.
    """

    name: str
    since: datetime | None
    priority: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LockEntry(LockHolder):
    """
    A key that the nodes hold, or a slot of a key, as they showed it at one moment.

    Its `state` may also be `counted` (by a rate, until it expires), `paused` (no node grants the
    key; the owner is who paused it), or `leftover`: only a minority of the nodes has it, so it
    excludes no other holder. `expires_in` is negative if it never expires. `token` is that of any
    holder.

    Attributes:
        node_key: the key as nodes store it.
        task: the task's name; None if `names` lacks it.
        nodes: by the name of each node, its state of the key, or why it did not answer.
        waiting: the number of waiters for the key, on the node that has most; slots share them.
        waiting_since: when the waiter that is woken next began to wait; None if that is not known.
        waiters: the waiters in the order in which they are woken; empty in a list.
        votes_on_release: for a released entry, the reply of each node, by its name.
    """

    node_key: str
    task: str | None
    nodes: Mapping[str, KeyState | str]
    waiting: int
    waiting_since: datetime | None
    waiters: tuple[LockWaiter, ...] = ()
    votes_on_release: Mapping[str, Vote] = field(default_factory=dict)

    @property
    def on_release(self) -> dict[str, str]:
        """By the name of each node, the result of releasing this entry there."""
        return {name: _in_words(vote) for name, vote in self.votes_on_release.items()}

    @property
    def votes(self) -> int:
        """The number of nodes that have this owner value."""
        states = [state for state in self.nodes.values() if isinstance(state, KeyState)]
        return sum(state.owner == self.owner for state in states)

    @property
    def is_pause(self) -> bool:
        """Whether it is the pause of a key, which no task holds."""
        return self.node_key.startswith(PAUSE_PREFIX)

    @property
    def is_rate(self) -> bool:
        """Whether it is a slot of a key with a rate, which its holder does not release."""
        return self.slot is not None and self.node_key.startswith(RATE_PREFIX)


def as_data(entry: LockEntry) -> dict[str, Any]:
    """Return an entry as data for JSON: times in ISO 8601, durations in seconds."""
    return {
        "key": entry.key,
        "slot": entry.slot,
        "state": entry.state,
        "task": entry.task,
        "task_id": entry.task_id,
        "host": entry.host,
        "pid": entry.pid,
        "since": None if entry.since is None else entry.since.isoformat(),
        "expires_in": entry.expires_in,
        "token": entry.token,
        "votes": entry.votes,
        "waiting": entry.waiting,
        "waiting_since": entry.waiting_since and entry.waiting_since.isoformat(),
        **({"on_release": entry.on_release} if entry.votes_on_release else {}),
    }


def waiters_as_data(entry: LockEntry) -> list[dict[str, Any]]:
    """Return an entry's waiters as data for JSON."""
    return [
        {
            "name": waiter.name,
            "since": waiter.since and waiter.since.isoformat(),
            "priority": waiter.priority,
        }
        for waiter in entry.waiters
    ]


def task_names(names: Iterable[str]) -> dict[str, str]:
    """Return task names by their digests in owner values, for `names`: `task_names(app.tasks)`."""
    return {task_digest(name): name for name in names}


def list_locks(
    redlock: Redlock | Client,
    *,
    pattern: str = "*",
    names: Mapping[str, str] | None = None,
    timeout: float = TIMEOUT,
    progress: Progress | None = None,
) -> Iterator[LockEntry]:
    """
    Yield every lock and pause of a client's key prefix, in no order; change nothing.

    It reads with SCAN, some hundred keys at a time, and keeps 8 bytes of each lock, so the first
    locks come at once, however many there are. A lock that is held from the beginning to the end of
    the list is in it exactly once. Limit: locks that are acquired, handed over or released
    meanwhile may be missing. Dedupe markers, stop requests and other records are not locks.

    A node that does not answer, from the beginning or later, is not asked again; the others' locks
    are listed.

    Args:
        redlock: the client. Its connections are not used.
        pattern: glob on the key as users write it: `*`, `?`, `[abc]`, `[!abc]`; `[*]` is a star.
        names: the names of tasks, see `task_names`.
        timeout: seconds that a node has for each answer.
        progress: called with the number of keys of any kind that were looked at, and their total.

    Raises:
        QuorumUnavailable: fewer nodes than a quorum answer, now or at a later step.
    """
    with contextlib.closing(Readers(redlock, timeout)) as nodes:
        yield from entries(nodes, pattern=pattern, names=names, progress=progress)


def entries(
    nodes: Readers,
    *,
    pattern: str = "*",
    names: Mapping[str, str] | None = None,
    progress: Progress | None = None,
) -> Iterator[LockEntry]:
    """Yield what `list_locks` yields, read from nodes to which the caller is connected."""
    yield from _entries(nodes, _chunks(nodes, pattern, progress), names or {})


def show_lock(
    redlock: Redlock | Client,
    key: str,
    *,
    names: Mapping[str, str] | None = None,
    timeout: float = TIMEOUT,
) -> list[LockEntry]:
    """
    Return the locks that the nodes hold on one key, with its waiters; change nothing.

    These may be a lock on the key without a limit, slots of the key with a limit or a rate, the
    locks of messages in the queue, and the key's pause. Slots of a rate are found by a scan of all
    keys, as by `list_locks`.

    Args:
        redlock: the client.
        key: the lock key as users write it.
        names: as for `list_locks`.
        timeout: as for `list_locks`.

    Raises:
        QuorumUnavailable: fewer nodes than a quorum answer.
        LockKeyError: the key is invalid.
    """
    client_of(redlock).key_of(key)
    with contextlib.closing(Readers(redlock, timeout)) as nodes:
        found = entries_of_key(nodes, key, names or {}, rates=True)
        found.sort(key=lambda entry: (entry.node_key.rpartition("#")[0], entry.slot or 0))
        return [replace(entry, waiters=_waiters(nodes, entry)) for entry in found]


def entries_of_key(
    nodes: Readers, key: str, names: Mapping[str, str], *, rates: bool
) -> list[LockEntry]:
    """Return the entries of one key as users write it; with `rates`, also the slots of rates."""
    return list(_entries(nodes, [_keys_of(nodes, key, rates=rates)], names))


class _Seen:
    """The keys that were read: digests of 8 bytes, sorted in arrays that stay short."""

    def __init__(self) -> None:
        self._digests = [array("q") for _ in range(1024)]

    def add(self, name: bytes) -> None:
        """Note a key."""
        digest = hash(name)
        insort(self._digests[digest % len(self._digests)], digest)

    def __contains__(self, name: bytes) -> bool:
        digest = hash(name)
        digests = self._digests[digest % len(self._digests)]
        at = bisect_left(digests, digest)
        return at < len(digests) and digests[at] == digest


def _entries(
    nodes: Readers, chunks: Iterable[tuple[Key, ...]], names: Mapping[str, str]
) -> Iterator[LockEntry]:
    for chunk in chunks:
        round_, waiting = nodes.inspect(tuple(key.stored for key in chunk))
        held = round_.key_states()
        for at, key in enumerate(chunk):
            states = _states(round_, at)
            if not any(state is not None and state.owner is not None for state in states):
                continue
            by_node = {
                name: nodes.reasons[name] if state is None else state
                for name, state in zip(nodes.names, states, strict=True)
            }
            records = tuple(held[at]) or _most_frequent(by_node.values())
            info = lock_info(records, round_.needed)
            owner, holder = parse_owner(info.owner), holder_from(key, key.stored, info)
            holder = replace(
                holder,
                key=_text_of(key, nodes.prefix) or key.stored,
                state=_state(key, holder.state, is_held=bool(held[at])),
                since=holder.since or _paused_since(key, info.owner),
                token=holder.token if owner else info.token,
                slot=key.slot,
            )
            yield LockEntry(
                **{each.name: getattr(holder, each.name) for each in fields(holder)},
                node_key=key.stored,
                task=None if owner is None else names.get(owner.task or ""),
                nodes=by_node,
                waiting=max((length for length, _ in waiting[at]), default=0),
                waiting_since=_waiter(
                    "", min((first for _, first in waiting[at]), default=math.inf)
                ).since,
            )


def _chunks(nodes: Readers, pattern: str, progress: Progress | None) -> Iterator[tuple[Key, ...]]:
    """Yield the lock keys that nodes have, each once."""
    seen = _Seen()
    is_wanted = re.compile(fnmatch.translate(pattern)).match
    globs = _globs(nodes.prefix, pattern)
    sizes = tuple(nodes.each(lambda node: node.size()).values())
    nodes.check_quorum()
    total, done = len(globs) * sum(sizes), 0
    for is_reserved, match in globs.items():
        for step, found in enumerate(_rested(_scan(nodes, match)), 1):
            if progress is not None:
                progress(done + sum(min(step * SCANNED_AT_ONCE, size) for size in sizes), total)
            new = [name for name in found if name not in seen]
            keys = [
                key
                for key in _lock_keys(new, is_reserved=is_reserved)
                if (text := _text_of(key, nodes.prefix)) is not None and is_wanted(text)
            ]
            for first in range(0, len(keys), READ_AT_ONCE):
                yield tuple(keys[first : first + READ_AT_ONCE])
            for key in keys:
                seen.add(key.stored.encode())
        done += sum(sizes)
    if progress is not None:
        progress(total, total)


def _keys_of(nodes: Readers, text: str, *, rates: bool) -> tuple[Key, ...]:
    """Return the keys and slots that a text may name; with `rates`, also held slots of rates."""
    name = nodes.prefix + text
    ordinary, limited = Key.of("", name), Key.of("", name, MAX_SLOTS)
    slots = [
        key.at(slot) for key in (limited, limited.as_record(QUEUED)) for slot in range(MAX_SLOTS)
    ]
    found: dict[Key, None] = {}
    # Nodes store no periods, so the slots of rates are looked for among all keys.
    pages = _rested(_scan(nodes, f"{RATE_PREFIX}*:{_literally(name)}#*")) if rates else ()
    for names in pages:
        found |= dict.fromkeys(
            key
            for key in _lock_keys(names, is_reserved=True)
            if key.stays and _text_of(key, nodes.prefix) == text
        )
    paused = Key.record(pause_of(ordinary.stored))
    return (ordinary, ordinary.as_record(QUEUED), paused, *slots, *found)


def _rested(pages: Iterator[Sequence[bytes]]) -> Iterator[Sequence[bytes]]:
    """Yield pages, and pause after each for as long as it took."""
    began = clock.now()
    for page in pages:
        yield page
        time.sleep(min(clock.now() - began, LONGEST_REST))
        began = clock.now()


def _scan(nodes: Readers, match: str) -> Iterator[Sequence[bytes]]:
    """Yield the names that the nodes' scans find, one step of all nodes at a time."""
    scans = {node: node.scan(match) for node in nodes}
    while True:
        pages = nodes.each(lambda node: next(scans[node], None))
        nodes.check_quorum()
        found = [page for page in pages.values() if page is not None]
        if not found:
            return
        yield [name for page in found for name in page]


def _globs(prefix: str, pattern: str) -> dict[bool, str]:
    """Return what nodes are asked to match: for lock keys (False), and for reserved keys (True)."""
    # Only the text before the first wildcard: wildcards of Redis match bytes, and wildcards of
    # users match characters.
    begins = _literally(prefix + re.split(r"[*?\[\ud800-\udfff]", pattern)[0])
    return {False: f"{begins}*", True: f"{META_PREFIX}[lpqr]*{begins}*"}


def _literally(text: str) -> str:
    """Return a text escaped for a glob of Redis, in which nothing is a wildcard."""
    return re.sub(r"([*?\[\]\\])", r"\\\1", text)


def _lock_keys(names: Iterable[bytes], *, is_reserved: bool) -> Iterator[Key]:
    for name in dict.fromkeys(names):
        with contextlib.suppress(UnicodeDecodeError, LockKeyError):
            key = Key.read(name.decode())
            if key.stored.startswith(META_PREFIX) == is_reserved:
                yield key


def _text_of(key: Key, prefix: str) -> str | None:
    """Return a lock key as users write it; None for another record, or another app's key."""
    is_reserved = key.stored.startswith(META_PREFIX)
    if is_reserved and key.slot is None and not key.stored.startswith((QUEUED, PAUSE_PREFIX)):
        return None
    name = key.text.removeprefix(QUEUED).removeprefix(PAUSE_PREFIX)
    if name.startswith(META_PREFIX) or not name.startswith(prefix):
        return None
    return name.removeprefix(prefix) or None


def _states(round_: InspectRound, at: int) -> list[KeyState | None]:
    """Return the state of a key on each node; None for one that does not answer."""
    return [vote.states[at] if isinstance(vote, KeyStates) else None for vote in round_.votes]


def _state(key: Key, state: str, *, is_held: bool) -> str:
    if not is_held:
        return LEFTOVER
    if key.stored.startswith(PAUSE_PREFIX):
        return PAUSED
    return COUNTED if key.stays else state


def _paused_since(key: Key, owner: str) -> datetime | None:
    since = owner_timestamp_us(owner) if key.stored.startswith(PAUSE_PREFIX) else None
    return None if since is None else datetime.fromtimestamp(since / 1e6, UTC)


def _most_frequent(states: Iterable[KeyState | str]) -> tuple[KeyState, ...]:
    """Return the states with the owner value that most nodes have."""
    owned = [state for state in states if isinstance(state, KeyState) and state.owner is not None]
    ((owner, _),) = Counter(state.owner for state in owned).most_common(1)
    return tuple(state for state in owned if state.owner == owner)


def _in_words(vote: Vote) -> str:
    if isinstance(vote, Acknowledged):
        return "released"
    return vote.reason if isinstance(vote, Failed) else "did not have it"


def _waiters(nodes: Readers, entry: LockEntry) -> tuple[LockWaiter, ...]:
    scores: dict[str, float] = {}
    for queue in nodes.waiters(entry.node_key):
        for name, score in queue.items():
            scores[name] = min(score, scores.get(name, score))
    return tuple(
        _waiter(name, scores[name])
        for name in sorted(scores, key=lambda name: (scores[name], name))
    )


def _waiter(name: str, score: float) -> LockWaiter:
    # Any program can write a score, also an infinite one.
    with contextlib.suppress(OverflowError, ValueError):
        since_ms, rank = since_and_rank(score, clock.wall_us() // 1000)
        # Brokers differ in which priority is the most urgent, and none in its number.
        return LockWaiter(
            name=name, since=datetime.fromtimestamp(since_ms / 1000, UTC), priority=abs(rank)
        )
    return LockWaiter(name=name, since=None, priority=0)
