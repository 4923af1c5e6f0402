"""
A model of one node in Python: its data and the effect of each script on them.

In-memory nodes and model checkers execute commands here instead of on a server. Tests check that
the Lua scripts do the same.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self

from celery_redlock.protocol.commands import (
    Command,
    Script,
    Waiter,
    granted_vote,
    split_extension,
)
from celery_redlock.protocol.keys import GOES_FIRST, fence_key, lock_of, slot_number, stays
from celery_redlock.protocol.timing import CANDIDATE_AHEAD_US, MAX_TOKEN
from celery_redlock.protocol.votes import (
    ACKNOWLEDGED,
    FOREIGN,
    MISSING,
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

#: The keys of a command, each with its owner on the node.
Owners = list[tuple[str, str | None]]


@dataclass(slots=True)
class StoredKey:
    """A lock key on a node: its owner value and its expiry, in ms of the node's clock."""

    owner: str
    expires_at: float


@dataclass(frozen=True, slots=True)
class GuardRecord:
    """The record of the restart quarantine: whose data this is, and from when (µs) it may vote."""

    run: str
    replication: str
    not_before: int


@dataclass(frozen=True, slots=True)
class Identity:
    """
    The ids of the process that serves, as INFO shows them.

    Attributes:
        run: `run_id`, new at every start.
        replication: `master_replid`, new at every start of a master, at every promotion, and when
            the replication backlog is created or freed.
        promoted_from: `master_replid2`, the id of the master that this one followed; empty if it
            followed none, or if the backlog has been freed since.
        is_master: whether it follows none now.
    """

    run: str
    replication: str
    promoted_from: str = ""
    is_master: bool = True

    def has_lost_nothing_since(self, record: GuardRecord) -> bool:
        """Return whether the node has all the data that it had when the record was written."""
        if not self.is_master:
            return False
        if record.replication == self.replication:
            return True
        return record.run == self.run and not self.promoted_from


@dataclass(slots=True)
class StoredRegister:
    """
    A register on a node.

    Attributes:
        token: the newest token that the node has seen.
        fields: by name.
    """

    token: int = 0
    fields: dict[str, VersionedValue] = field(default_factory=dict)

    def write(self, command: Command) -> Vote:
        """Write fields, unless the node has seen a newer token."""
        token = int(command.args[0])
        if self.token > token:
            return Superseded(self.token)
        self.token = token
        triples = command.args[1:]
        for name, version, text in zip(triples[0::3], triples[1::3], triples[2::3], strict=True):
            if version == "":
                self.fields.pop(str(name), None)
                continue
            new = VersionedValue(token, int(version), str(text))
            stored = self.fields.get(str(name))
            # A node resumed after SIGSTOP may execute a buffered write after a newer one from
            # another connection.
            if stored is None or stored.rank <= new.rank:
                self.fields[str(name)] = new
        return ACKNOWLEDGED

    def read(self, command: Command) -> Vote:
        """Return the fields; with a token, refuse the writes of older tokens from now on."""
        token, most, *names = command.args
        if int(token) > 0:
            if self.token > int(token):
                return Superseded(self.token)
            self.token = int(token)
        values: dict[str, VersionedValue] = {}
        truncated = set()
        size = 0
        for name in map(str, names) if names else tuple(self.fields):
            if name not in self.fields:
                continue
            more = len(str(self.fields[name]).encode())
            if values and size + more > int(most):
                truncated.add(name)
            else:
                values[name] = self.fields[name]
                size += more
        return RegisterContents(self.token, values, frozenset(truncated))


@dataclass(slots=True)
class WaitQueue:
    """Those who wait for a key: their scores (the smallest is woken first), and its expiry."""

    scores: dict[str, int] = field(default_factory=dict)
    expires_at: float = 0.0

    def first(self, count: int) -> list[str]:
        """Return those who are woken first."""
        return _in_order(self.scores)[:count]


#: The score of a waiter that was woken is that time in µs, beyond this; its own is a time in ms.
WOKEN = 10**14

#: Of more waiters of one key a node remembers those who have waited longest.
MAX_WAITERS = 1000

#: How many waiters a release wakes: the second one in case the first is gone.
WOKEN_AT_ONCE = 2

#: As many more are woken as were woken before and have not returned, up to this number.
MISSING_AT_MOST = 100

#: Microseconds in which one that was woken for a slot comes.
COMES_WITHIN_US = 250_000

#: Microseconds after which they are gone.
RETURNS_WITHIN_US = 5_000_000

#: Milliseconds that one who waits for a key with a period may be late.
TURN_GRACE_MS = 1000


def _in_order(scores: Mapping[str, int]) -> list[str]:
    return sorted(scores, key=lambda name: (scores[name], name))


@dataclass(frozen=True, slots=True)
class _Limit:
    """The limit of a key in a command: 0 slots for an ordinary key, which is its only one."""

    slots: int = 0
    period_ms: int = 0
    begin: int = 0

    def slots_of(self, key: str) -> list[str]:
        return [f"{key}{slot}" for slot in range(self.slots)] or [key]

    def in_order(self, key: str) -> list[str]:
        slots = self.slots_of(key)
        return slots[self.begin :] + slots[: self.begin]


def _fence_of(fence: str, limit: _Limit, slot: str) -> str:
    return fence_key(slot) if limit.slots else fence


@dataclass(frozen=True, slots=True)
class _Acquire:
    """An acquire, read from its command: each key with its fence counter and limit."""

    owner: str
    ttl_ms: int
    candidate: int
    quarantine_ms: int
    previous: str
    waiter: Waiter | None
    keys: tuple[tuple[str, str, _Limit], ...]

    @classmethod
    def read(cls, command: Command) -> Self:
        owner, ttl, candidate, quarantine, *more = command.args
        previous, waiter, limits = more[:1], more[1:5], [int(number) for number in more[5:]]
        count = len(command.keys) // 2
        keys = zip(command.keys[:count], command.keys[count:-1], strict=True)
        return cls(
            str(owner),
            int(ttl),
            int(candidate),
            int(quarantine),
            str(previous[0]) if previous else "",
            Waiter(str(waiter[0]), *map(int, waiter[1:])) if waiter and waiter[0] else None,
            tuple(
                (key, fence, _Limit(*limits[3 * at : 3 * at + 3]))
                for at, (key, fence) in enumerate(keys)
            ),
        )


@dataclass(slots=True)
class ModelNode:
    """
    One node: its data and the identity of the process that serves it.

    Attributes:
        identity: of the process that serves.
        keys: lock keys.
        fences: fence counters.
        guard: the record of the restart quarantine; lost with the data.
        registers: all registers that a command has named.
        waiting: wait queues by lock key.
        published: lock key and waiter of each wake-up that nobody has taken yet.
    """

    identity: Identity
    keys: dict[str, StoredKey] = field(default_factory=dict)
    fences: dict[str, int] = field(default_factory=dict)
    guard: GuardRecord | None = None
    registers: dict[str, StoredRegister] = field(default_factory=dict)
    waiting: dict[str, WaitQueue] = field(default_factory=dict)
    published: list[tuple[str, str]] = field(default_factory=list)

    def lose_data(self) -> None:
        """Lose all data, as FLUSHALL or a start without persistence does."""
        self.keys.clear()
        self.fences.clear()
        self.registers.clear()
        self.waiting.clear()
        self.guard = None

    def arm(self) -> None:
        """Let this process vote at once."""
        self._record(0)

    def owner(self, key: str, now_us: int) -> str | None:
        """Return the owner of `key`; a key lives up to and including its last millisecond."""
        stored = self.keys.get(key)
        if stored is None:
            return None
        if now_us // 1000 > stored.expires_at:
            del self.keys[key]
            return None
        return stored.owner

    def run(self, command: Command, now_us: int) -> Vote:
        """Execute a command at one instant of the node's clock and return the vote."""
        script = command.script
        if script is Script.ACQUIRE:
            return self._acquire(command, now_us)
        if script is Script.RAISE:
            return self._raise(command, now_us)
        if script is Script.WRITE_REGISTER:
            return self._register(command).write(command)
        if script is Script.READ_REGISTER:
            return self._register(command).read(command)
        if script is Script.EXTEND and len(several := split_extension(command)) > 1:
            return LeaseVotes(tuple(self.run(one, now_us) for one in several))
        count = len(command.keys) // 2
        keys, fences = command.keys[:count], command.keys[count:]
        owners = [(key, self.owner(key, now_us)) for key in keys]
        if script is Script.INSPECT:
            return self._look(owners, fences, now_us)
        if script is Script.EXTEND:
            return self._extend(command, owners, fences, now_us)
        if script is Script.HEAL:
            return self._heal(command, owners, fences, now_us)
        return self._release(command, fences, now_us)

    def _quarantined(self, quarantine_ms: int, now_us: int) -> Quarantined | None:
        if quarantine_ms <= 0:
            return None
        not_before = now_us + quarantine_ms * 1000
        if self.guard is not None and self.identity.has_lost_nothing_since(self.guard):
            not_before = self.guard.not_before
        self._record(not_before)
        if now_us >= not_before:
            return None
        return Quarantined(math.ceil((not_before - now_us) / 1000) / 1000)

    def _record(self, not_before: int) -> None:
        self.guard = GuardRecord(self.identity.run, self.identity.replication, not_before)

    def _acquire(self, command: Command, now_us: int) -> Vote:
        call = _Acquire.read(command)
        quarantined = self._quarantined(call.quarantine_ms, now_us)
        if quarantined is not None:
            return quarantined
        held: list[KeyHolder] = []
        refused: list[str] = []
        free: list[str] = []
        placed: list[tuple[_Limit, str, str]] = []
        turns: list[int] = []
        place = 0
        for key, fence, limit in call.keys:
            slot, others = self._choose(key, limit, call, now_us)
            if slot is None:
                held += [KeyHolder(place + at, *other) for at, other in enumerate(others)]
                if limit.period_ms:
                    turns.append(self._turn_of(key, limit, call.waiter, others, now_us))
                else:
                    refused.append(key)
            else:
                if self.owner(slot, now_us) is None:
                    free.append(key)
                placed.append((limit, slot, _fence_of(fence, limit, slot)))
            place += limit.slots or 1
        if call.waiter is not None:
            for key in refused:
                self._queue(key, now_us, call.waiter)
            # It waits for the others now, and those that wait for these must not wait for it.
            for key in free if held else command.keys:
                if key in self.waiting:
                    self.waiting[key].scores.pop(call.waiter.name, None)
        if held:
            return Refused(tuple(held), max(turns) / 1000 if turns else 0.0)
        counters = []
        for limit, slot, fence in placed:
            life = limit.period_ms or call.ttl_ms
            self.keys[slot] = StoredKey(call.owner, now_us // 1000 + life)
            least = min(call.candidate, now_us + CANDIDATE_AHEAD_US)
            counter = max(self.fences.get(fence, 0) + 1, least)
            self.fences[fence] = min(counter, MAX_TOKEN + 1)  # Lua's numbers stop counting there
            counters.append(self.fences[fence])
        slots = [slot_number(slot) or 0 for limit, slot, _ in placed if limit.slots]
        return granted_vote(counters, slots)

    def _choose(
        self, key: str, limit: _Limit, call: _Acquire, now_us: int
    ) -> tuple[str | None, list[tuple[str, float]]]:
        """Return the key or slot that an acquire gets; or None, and who has what it could get."""
        owners = {slot: self.owner(slot, now_us) for slot in limit.slots_of(key)}
        own = [
            slot for slot in limit.in_order(key) if call.previous and owners[slot] == call.previous
        ]
        free = [slot for slot in limit.in_order(key) if owners[slot] is None]
        if own:
            return own[0], []
        first = self._goes_before(key, limit, call.waiter, len(free), now_us) if free else None
        if free and first is None:
            return free[0], []
        others = []
        for slot, owner in owners.items():
            if owner is not None:
                others.append((owner, (self.keys[slot].expires_at - now_us // 1000) / 1000))
            elif first is not None:
                others.append((GOES_FIRST + first[0], first[1] / 1000))
        return None, others

    def _goes_before(
        self, key: str, limit: _Limit, waiter: Waiter | None, free: int, now_us: int
    ) -> tuple[str, int] | None:
        """Return who goes before a waiter for a key with free slots, and for how many ms yet."""
        if limit.period_ms or waiter is None or not waiter.grace_ms:
            return None
        scores, grace_us = self._wait_queue(key, now_us).scores, waiter.grace_ms * 1000
        own, gone, ahead = scores.get(waiter.name, waiter.since_ms), 0, []
        for other in sorted(scores, key=lambda one: (scores[one], one)):
            at = scores[other]
            if at < WOKEN or other == waiter.name:
                continue
            if now_us - at > grace_us:
                del scores[other]
                gone += 1
            elif own < WOKEN or at < own:
                ahead.append((other, math.ceil((grace_us - (now_us - at)) / 1000)))
                if len(ahead) == free:
                    return ahead[0]
        longest = self._wait_queue(key, now_us).first(free - len(ahead) + 2 * gone)
        for at, other in enumerate(longest):
            if other != waiter.name and scores[other] < min(WOKEN, waiter.since_ms):
                scores[other] = max(WOKEN, now_us) + 2 * at + 1
                self.published.append((key, other))
                ahead.append((other, waiter.grace_ms))
        return ahead[0] if len(ahead) >= free else None

    def _turn_of(
        self,
        key: str,
        limit: _Limit,
        waiter: Waiter | None,
        others: list[tuple[str, float]],
        now_us: int,
    ) -> int:
        """Return in how many ms it is a waiter's turn; remember it if it waits until then."""
        scores = self._wait_queue(key, now_us).scores
        for name in [name for name, until in scores.items() if until < now_us // 1000]:
            del scores[name]
        pttls = sorted(round(left * 1000) if left >= 0 else limit.period_ms for _, left in others)
        known = waiter is not None and waiter.name in scores
        ahead = _in_order(scores).index(waiter.name) if waiter and known else len(scores)
        turn = pttls[ahead % len(pttls)] + ahead // len(pttls) * limit.period_ms
        if waiter is not None and turn <= waiter.keep_ms:
            scores[waiter.name] = now_us // 1000 + turn + TURN_GRACE_MS
            queue = self.waiting[key]
            queue.expires_at = max(queue.expires_at, now_us // 1000 + turn + TURN_GRACE_MS)
        elif waiter is not None:
            scores.pop(waiter.name, None)
        return turn

    def _queue(self, key: str, now_us: int, waiter: Waiter) -> None:
        queue = self._wait_queue(key, now_us)
        if not waiter.keep_ms:
            queue.scores.pop(waiter.name, None)
            return
        queue.scores[waiter.name] = waiter.since_ms
        for dropped in queue.first(len(queue.scores))[MAX_WAITERS:]:
            del queue.scores[dropped]
        queue.expires_at = max(queue.expires_at, now_us // 1000 + waiter.keep_ms)

    def _wait_queue(self, key: str, now_us: int) -> WaitQueue:
        queue = self.waiting.get(key)
        if queue is None or not queue.scores or now_us // 1000 > queue.expires_at:
            queue = self.waiting[key] = WaitQueue()
        return queue

    def _wake(self, released: str, slots: int, now_us: int) -> None:
        key = lock_of(released)
        if key not in self.waiting:
            return
        scores = (queue := self._wait_queue(key, now_us)).scores
        woken = [name for name in queue.first(len(scores)) if scores[name] >= WOKEN]
        since_us = [now_us - scores[name] for name in woken[:MISSING_AT_MOST]]
        for name, since in zip(woken, since_us, strict=False):
            if since > RETURNS_WITHIN_US:
                del scores[name]
        wanted = WOKEN_AT_ONCE + len(since_us)
        if slots:
            coming = sum(since <= COMES_WITHIN_US for since in since_us)
            places = _Limit(slots).slots_of(key)
            free = sum(self.owner(place, now_us) is None for place in places)
            wanted = free - coming if coming else free + 1
        for at, name in enumerate(queue.first(max(0, wanted))):
            if scores[name] < WOKEN or (slots and now_us - scores[name] > COMES_WITHIN_US):
                scores[name] = max(WOKEN, now_us) + 2 * at + 1
            elif slots:
                continue
            else:
                del scores[name]
            self.published.append((key, name))

    def _raise(self, command: Command, now_us: int) -> Vote:
        owner, token, *more = command.args
        ttl_ms, quarantine_ms, *tail = more or (0, 0)
        count = len(command.keys) // 2
        fences = command.keys[count : 2 * count]
        moved, given_back, counters = {}, [], []
        for at, (key, fence) in enumerate(zip(command.keys[:count], fences, strict=True)):
            limit = _Limit(*map(int, tail[3 * at : 3 * at + 3]))
            slot = limit.in_order(key)[0]
            holder = self.owner(slot, now_us)
            given_back += [
                other
                for other in limit.slots_of(key)
                if other != slot and self.owner(other, now_us) == owner
            ]
            if holder != owner and (holder is not None or not limit.slots):
                if not limit.period_ms:
                    return FOREIGN
                return NotHeld(False, (self.keys[slot].expires_at - now_us // 1000) / 1000)
            if holder is None:
                moved[slot] = limit.period_ms or int(ttl_ms)
            fence = _fence_of(fence, limit, slot)
            # A counter above the token: this node granted us more than was counted, or granted
            # another attempt since. Counting it towards the quorum would let two holders have one
            # token. Of a slot that it did not grant us, one at the token may be another's, too.
            counter = self.fences.get(fence, 0)
            if counter > int(token) or (counter == int(token) and holder is None):
                return FOREIGN
            counters.append(fence)
        quarantined = self._quarantined(int(quarantine_ms), now_us) if moved else None
        if quarantined is not None:
            return quarantined
        for slot, life in moved.items():
            self.keys[slot] = StoredKey(str(owner), now_us // 1000 + life)
        for slot in given_back:
            del self.keys[slot]
        self._raise_counters(tuple(counters), int(token))
        return ACKNOWLEDGED

    def _extend(
        self, command: Command, owners: Owners, fences: tuple[str, ...], now_us: int
    ) -> Vote:
        owner, ttl, token, _ = command.args
        until = now_us // 1000 + int(ttl)
        for key, held_by in owners:
            if held_by == owner:
                stored = self.keys[key]
                stored.expires_at = max(stored.expires_at, until)
        self._raise_counters(fences, int(token))
        if all(held_by == owner for _, held_by in owners):
            return ACKNOWLEDGED
        return MISSING if all(held_by in (owner, None) for _, held_by in owners) else FOREIGN

    def _heal(self, command: Command, owners: Owners, fences: tuple[str, ...], now_us: int) -> Vote:
        owner, ttl, token = command.args
        if any(held_by not in (owner, None) for _, held_by in owners):
            return FOREIGN
        for key, held_by in owners:
            if held_by is None:
                self.keys[key] = StoredKey(str(owner), now_us // 1000 + int(ttl))
        self._raise_counters(fences, int(token))
        return ACKNOWLEDGED

    def _release(self, command: Command, fences: tuple[str, ...], now_us: int) -> Vote:
        owner, token, keep, *more = command.args
        waiter, actions = str(more[0]) if more else "", more[1:]
        keys = command.keys[: len(fences)]
        ours = 0
        for index, key in enumerate(keys):
            value, slots = (actions[3 * index + 1], actions[3 * index + 2]) if actions else ("", 0)
            if waiter and lock_of(key) in self.waiting:
                self.waiting[lock_of(key)].scores.pop(waiter, None)
            is_ours = self.owner(key, now_us) == owner
            for other in _Limit(int(slots)).slots_of(lock_of(key)) if not is_ours else ():
                if self.owner(other, now_us) == owner:
                    del self.keys[other]
            stays_here = stays(key) and int(slots) > 0
            if stays_here and self.owner(key, now_us) is None and int(actions[3 * index]) > 0:
                left_ms = int(actions[3 * index])
                self.keys[key] = StoredKey(str(owner), now_us // 1000 + left_ms)
            ours += is_ours or stays_here
            if not is_ours or stays_here:
                continue
            keep_ms = int(actions[3 * index] if actions else keep)
            if keep_ms > 0:
                self.keys[key] = StoredKey(str(value or owner), now_us // 1000 + keep_ms)
            else:
                del self.keys[key]
                if int(token) > 0 and not stays(key):
                    self._wake(key, max(1, int(slots)) if lock_of(key) != key else 0, now_us)
        if int(token) > 0:
            self._raise_counters(fences, int(token))
        return ACKNOWLEDGED if ours == len(keys) else FOREIGN

    def _look(self, owners: Owners, fences: tuple[str, ...], now_us: int) -> Vote:
        return KeyStates(
            tuple(
                KeyState(
                    owner,
                    0.0 if owner is None else (self.keys[key].expires_at - now_us // 1000) / 1000,
                    self.fences.get(fence, 0),
                )
                for (key, owner), fence in zip(owners, fences, strict=True)
            )
        )

    def _register(self, command: Command) -> StoredRegister:
        return self.registers.setdefault(command.keys[0], StoredRegister())

    def _raise_counters(self, fences: tuple[str, ...], token: int) -> None:
        for fence in fences:
            self.fences[fence] = max(self.fences.get(fence, 0), token)
