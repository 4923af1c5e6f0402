"""
The locks that a set of nodes holds, one after the other, however many there are.
"""

from __future__ import annotations

import contextlib
import fnmatch
import re
import time
from array import array
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from celery_redlock.admin.node_reader import READ_AT_ONCE, SCANNED_AT_ONCE
from celery_redlock.admin.node_readers import TIMEOUT, Readers
from celery_redlock.core import Redlock
from celery_redlock.core.inspection import lock_info
from celery_redlock.errors import LockKeyError
from celery_redlock.protocol import (
    Acknowledged,
    Failed,
    InspectRound,
    KeyState,
    KeyStates,
    Vote,
    validate_node_key,
)
from celery_redlock.protocol.keys import (
    MAX_SLOTS,
    META_PREFIX,
    RATE_PREFIX,
    LimitedKey,
    all_places,
    slot_number,
    stays,
    user_key,
)
from celery_redlock.tasks.inspection import holder_from
from celery_redlock.tasks.message.node_keys import QUEUED
from celery_redlock.tasks.message.owner_label import parse_owner, task_digest
from celery_redlock.transport import clock

__all__ = ["LEFTOVER", "LockEntry", "LockWaiter", "as_data", "list_locks", "show_lock"]
__all__ += ["task_names", "waiters_as_data"]

#: The state of a key that only a minority of the nodes has: it is no lock, and expires.
LEFTOVER = "leftover"

#: The state of a slot of a rate: it counts a start, whether what has started runs or not.
COUNTED = "counted"

#: Seconds of the rest after a page, at most: the reader of the list may be slow.
LONGEST_REST = 0.05

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class LockWaiter:
    """
    One that waits for a key.

    Attributes:
        name: of a message, by which nodes wake it; random for a call in a program.
        since: since when it waits; None if the node has no time there.
    """

    name: str
    since: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LockEntry:
    """
    A key that the nodes hold, or a slot of one, as they showed it at one moment.

    Attributes:
        key: the lock key as users write it.
        node_key: the same as nodes store it.
        slot: which slot of a key with a limit or a rate; None for another key.
        state: `queued`, `running` or `finished` as in `LockHolder`, `foreign` (not a task of this
            package), `counted` (by a rate, until it expires), or `leftover`: only a minority of the
            nodes has it, so it excludes nobody.
        owner: the owner value.
        task_id: id of the holder's task; None if foreign, as the five below. But of a client
            outside Celery that has given no label, host, pid and since are known.
        host: the worker's node name, or the publisher's host.
        pid: the process that acquired the lock.
        since: when it acquired the lock.
        task_digest: digest of the task's name.
        task: the task's name; None if it is in no list of names.
        expires_in: seconds until it expires unless it is extended; negative if it never does.
        token: the fencing token, if a quorum of counters proves it.
        nodes: for each node, by its name, its state of the key; or why it has none.
        waiting: how many wait for the key, on the node that knows of most; slots share them.
        waiters: they, first to be woken first; empty in a list.
        votes_on_release: of an entry that was taken away: how each node replied, by its name.
    """

    key: str
    node_key: str
    slot: int | None
    state: str
    owner: str
    task_id: str | None
    host: str | None
    pid: int | None
    since: datetime | None
    task_digest: str | None
    task: str | None
    expires_in: float
    token: int | None
    nodes: Mapping[str, KeyState | str]
    waiting: int
    waiters: tuple[LockWaiter, ...] = ()
    votes_on_release: Mapping[str, Vote] = field(default_factory=dict)

    @property
    def on_release(self) -> dict[str, str]:
        """By the name of each node, what became there of an entry that was taken away."""
        return {name: _in_words(vote) for name, vote in self.votes_on_release.items()}

    @property
    def votes(self) -> int:
        """How many nodes have this owner value."""
        states = [state for state in self.nodes.values() if isinstance(state, KeyState)]
        return sum(state.owner == self.owner for state in states)

    @property
    def is_rate(self) -> bool:
        """Whether it is a slot of a key with a rate, which its holder does not give back."""
        return stays(self.node_key)


def as_data(entry: LockEntry) -> dict[str, Any]:
    """Return an entry as JSON has it: times in ISO 8601, durations in seconds."""
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
        **({"on_release": entry.on_release} if entry.votes_on_release else {}),
    }


def waiters_as_data(entry: LockEntry) -> list[dict[str, Any]]:
    """Return those who wait for an entry as JSON has them."""
    return [
        {"name": waiter.name, "since": waiter.since and waiter.since.isoformat()}
        for waiter in entry.waiters
    ]


def task_names(names: Iterable[str]) -> dict[str, str]:
    """Return task names by their digests in owner values, for `names`: `task_names(app.tasks)`."""
    return {task_digest(name): name for name in names}


def list_locks(
    redlock: Redlock,
    *,
    pattern: str = "*",
    names: Mapping[str, str] | None = None,
    timeout: float = TIMEOUT,
    progress: Progress | None = None,
) -> Iterator[LockEntry]:
    """
    Yield every lock of a client's key prefix that the nodes hold, in no order; change nothing.

    Reads with SCAN, some hundred keys at a time, and keeps 8 bytes of each lock: the first ones
    come at once, however many there are. A lock that is held from beginning to end of the list is
    in it, once. Limit: of those that are acquired, handed over or released meanwhile, some may be
    missing. Dedupe markers, stop requests and other records are no locks.

    A node that does not answer, from the beginning or later, is not asked again; the others' locks
    are listed.

    Args:
        redlock: the client. Its connections are not used.
        pattern: glob on the key as users write it: `*`, `?`, `[abc]`, `[!abc]`; `[*]` is a star.
        names: the names of tasks, see `task_names`.
        timeout: seconds that a node has for each answer.
        progress: called with the number of keys looked at, of any kind, and that of all.

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
    redlock: Redlock,
    key: str,
    *,
    names: Mapping[str, str] | None = None,
    timeout: float = TIMEOUT,
) -> list[LockEntry]:
    """
    Return what the nodes hold of one key, with those that wait for it; change nothing.

    That may be a lock of the key without a limit, slots of it with a limit or a rate, and the locks
    of messages in the queue. Slots of a rate are found by a scan of all keys, as by `list_locks`.

    Args:
        redlock: the client.
        key: the lock key as users write it.
        names: as for `list_locks`.
        timeout: as for `list_locks`.

    Raises:
        QuorumUnavailable: fewer nodes than a quorum answer.
        LockKeyError: it cannot be a key.
    """
    redlock.node_key(key)
    with contextlib.closing(Readers(redlock, timeout)) as nodes:
        found = entries_of_key(nodes, key, names or {}, rates=True)
        found.sort(key=lambda entry: (entry.node_key.rpartition("#")[0], entry.slot or 0))
        return [replace(entry, waiters=_waiters(nodes, entry)) for entry in found]


def entries_of_key(
    nodes: Readers, key: str, names: Mapping[str, str], *, rates: bool
) -> list[LockEntry]:
    """Return the entries of one key as users write it, with `rates` also what rates counted."""
    return list(_entries(nodes, [_places_of(nodes, key, rates=rates)], names))


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
    nodes: Readers, chunks: Iterable[tuple[str, ...]], names: Mapping[str, str]
) -> Iterator[LockEntry]:
    for chunk in chunks:
        round_, waiting = nodes.inspect(chunk)
        held = round_.key_states()
        for at, node_key in enumerate(chunk):
            states = _states(round_, at)
            if not any(state is not None and state.owner is not None for state in states):
                continue
            by_node = {
                name: nodes.reasons[name] if state is None else state
                for name, state in zip(nodes.names, states, strict=True)
            }
            records = tuple(held[at]) or _most_frequent(by_node.values())
            info = lock_info(records, round_.needed)
            owner = parse_owner(info.owner)
            holder = holder_from(node_key, info)
            yield LockEntry(
                key=_key_of(node_key, nodes.prefix) or node_key,
                node_key=node_key,
                slot=slot_number(node_key),
                state=_state(node_key, holder.state, is_held=bool(held[at])),
                owner=info.owner,
                task_id=holder.task_id,
                host=holder.host,
                pid=holder.pid,
                since=holder.since,
                task_digest=None if owner is None else owner.task,
                task=None if owner is None else names.get(owner.task or ""),
                expires_in=info.expires_in,
                token=holder.token if owner else info.token,
                nodes=by_node,
                waiting=waiting[at],
            )


def _chunks(nodes: Readers, pattern: str, progress: Progress | None) -> Iterator[tuple[str, ...]]:
    """Yield the lock keys that nodes have, each once."""
    seen = _Seen()
    is_wanted = re.compile(fnmatch.translate(pattern)).match
    globs = _globs(nodes.prefix, pattern)
    sizes = tuple(nodes.each(lambda at: nodes[at].size()).values())
    nodes.check_quorum()
    total, done = len(globs) * sum(sizes), 0
    for is_reserved, match in globs.items():
        for step, found in enumerate(_rested(_scan(nodes, match)), 1):
            if progress is not None:
                progress(done + sum(min(step * SCANNED_AT_ONCE, size) for size in sizes), total)
            new = [name for name in found if name not in seen]
            node_keys = [
                node_key
                for node_key in _lock_keys(new, is_reserved=is_reserved)
                if (key := _key_of(node_key, nodes.prefix)) is not None and is_wanted(key)
            ]
            for first in range(0, len(node_keys), READ_AT_ONCE):
                yield tuple(node_keys[first : first + READ_AT_ONCE])
            for node_key in node_keys:
                seen.add(node_key.encode())
        done += sum(sizes)
    if progress is not None:
        progress(total, total)


def _places_of(nodes: Readers, key: str, *, rates: bool) -> tuple[str, ...]:
    """Return the node keys that a lock key may have, those with a rate only if it has some."""
    name = nodes.prefix + key
    ordinary = (name, QUEUED + name)
    limited = (LimitedKey(each, MAX_SLOTS).on_nodes(each) for each in ordinary)
    found: dict[str, None] = {}
    # Nodes store no periods, so the slots of rates are looked for among all keys.
    pages = _rested(_scan(nodes, f"{RATE_PREFIX}*:{_literally(name)}#*")) if rates else ()
    for names in pages:
        found |= dict.fromkeys(
            node_key
            for node_key in _lock_keys(names, is_reserved=True)
            if stays(node_key) and _key_of(node_key, nodes.prefix) == key
        )
    return (*ordinary, *all_places(limited), *found)


def _rested(pages: Iterator[Sequence[bytes]]) -> Iterator[Sequence[bytes]]:
    """Yield pages, and rest after each for as long as it took."""
    began = clock.now()
    for page in pages:
        yield page
        time.sleep(min(clock.now() - began, LONGEST_REST))
        began = clock.now()


def _scan(nodes: Readers, match: str) -> Iterator[Sequence[bytes]]:
    """Yield what the nodes' scans yield, a step of each at once, as long as a quorum answers."""
    scans = {index: nodes[index].scan(match) for index in nodes}
    while True:
        pages = nodes.each(lambda at: next(scans[at], None))
        nodes.check_quorum()
        found = [page for page in pages.values() if page is not None]
        if not found:
            return
        yield [name for page in found for name in page]


def _globs(prefix: str, pattern: str) -> dict[bool, str]:
    """Return what nodes are asked to match: for lock keys (False), and for reserved keys (True)."""
    # Only the text before the first wildcard: those of Redis match bytes, and those of users
    # match characters.
    begins = _literally(prefix + re.split(r"[*?\[\ud800-\udfff]", pattern)[0])
    return {False: f"{begins}*", True: f"{META_PREFIX}[lqr]*{begins}*"}


def _literally(text: str) -> str:
    """Return what a glob of Redis has for a text in which nothing is a wildcard."""
    return re.sub(r"([*?\[\]\\])", r"\\\1", text)


def _lock_keys(names: Iterable[bytes], *, is_reserved: bool) -> Iterator[str]:
    for name in dict.fromkeys(names):
        with contextlib.suppress(UnicodeDecodeError, LockKeyError):
            node_key = validate_node_key(name.decode())
            if node_key.startswith(META_PREFIX) == is_reserved:
                yield node_key


def _key_of(node_key: str, prefix: str) -> str | None:
    """Return a lock key as users write it; None for another record, or another app's key."""
    name = user_key(node_key, "")
    is_slot = slot_number(node_key) is not None
    if node_key.startswith(META_PREFIX) and not is_slot and not node_key.startswith(QUEUED):
        return None
    name = name.removeprefix(QUEUED)
    if name.startswith(META_PREFIX) or not name.startswith(prefix):
        return None
    return name.removeprefix(prefix) or None


def _states(round_: InspectRound, at: int) -> list[KeyState | None]:
    """Return the state of a key on each node; None for one that does not answer."""
    return [vote.states[at] if isinstance(vote, KeyStates) else None for vote in round_.votes]


def _state(node_key: str, state: str, *, is_held: bool) -> str:
    if not is_held:
        return LEFTOVER
    return COUNTED if stays(node_key) else state


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
        LockWaiter(name=name, since=_since(scores[name]))
        for name in sorted(scores, key=lambda name: (scores[name], name))
    )


def _since(score: float) -> datetime | None:
    """Return since when somebody with this score waits; None for no time."""
    # Any program can write a score: infinite ones, and times that no calendar has.
    with contextlib.suppress(OverflowError, ValueError, OSError):
        return datetime.fromtimestamp(score / 1000, UTC)
    return None
