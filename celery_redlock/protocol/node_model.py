"""
A model of one node in Python: its data and the effect of each script on them.

In-memory nodes and model checkers execute commands here instead of on a server. Tests check that
the Lua scripts do the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Self

from celery_redlock.protocol.commands import (
    Command,
    Script,
    Waiter,
    granted_vote,
    split_extension,
)
from celery_redlock.protocol.keys import (
    GOES_FIRST,
    PAUSED,
    RATE_PREFIX,
    fence_key,
    lock_of,
    pause_of,
    slot_number,
)
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
from celery_redlock.protocol.wait_queue import WaitQueue

#: A quarantine that lasts for this much longer than one that begins now is that of a clock which
#: was ahead; one that is less longer may be that of a client with a longer `max_ttl`.
_CLOCK_AHEAD_US = 600_000_000

#: The keys of a command, each with its owner on the node.
Owners = list[tuple[str, str | None]]


@dataclass(slots=True)
class StoredKey:
    """A lock key on a node: its owner value and its expiry, in ms of the node's clock."""

    owner: str
    expires_at: float


@dataclass(frozen=True, slots=True)
class GuardRecord:
    """The guard record: the server with this data, and the time (µs) from which it may vote."""

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
        is_master: whether it follows no other master now.
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
        asked = map(str, names) if names else self.fields
        for name, value in [(name, self.fields[name]) for name in asked if name in self.fields]:
            more = len(str(value).encode())
            if values and size + more > int(most):
                truncated.add(name)
            else:
                values[name] = value
                size += more
        return RegisterContents(self.token, values, frozenset(truncated))


@dataclass(frozen=True, slots=True)
class _Limit:
    """The limit of a key in a command; an ordinary key has 0 slots, and is its own only slot."""

    slots: int = 0
    period_ms: int = 0
    begin: int = 0

    def slots_of(self, key: str) -> list[str]:
        return [f"{key}{slot}" for slot in range(self.slots)] or [key]

    def in_order(self, key: str) -> list[str]:
        slots = self.slots_of(key)
        return slots[self.begin :] + slots[: self.begin]


def _keys_and_fences(command: Command) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the lock keys of a command, and their fence counters; a guard record may follow."""
    count = len(command.keys) // 2
    return command.keys[:count], command.keys[count : 2 * count]


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
    any_pause: str

    @property
    def named_waiter(self) -> Waiter | None:
        """The waiter, if nodes may remember it."""
        return self.waiter if self.waiter is not None and self.waiter.name else None

    @classmethod
    def read(cls, command: Command) -> Self:
        owner, ttl, candidate, quarantine, *more = command.args
        previous, waiter, limits = more[:1], more[1:5], [int(number) for number in more[5:]]
        count = (len(command.keys) - 1) // 2
        keys = zip(command.keys[:count], command.keys[count : 2 * count], strict=True)
        return cls(
            str(owner),
            int(ttl),
            int(candidate),
            int(quarantine),
            str(previous[0]) if previous else "",
            Waiter(str(waiter[0]), *map(int, waiter[1:])) if any(waiter) else None,
            tuple(
                (key, fence, _Limit(*limits[3 * at : 3 * at + 3]))
                for at, (key, fence) in enumerate(keys)
            ),
            "".join(command.keys[2 * count + 1 :]),
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
        epoch: number of the last promotion that the data knows.
        registers: all registers that a command has named.
        waiting: wait queues by lock key.
        published: lock key and waiter of each wake-up that has not been delivered yet.
    """

    identity: Identity
    keys: dict[str, StoredKey] = field(default_factory=dict)
    fences: dict[str, int] = field(default_factory=dict)
    guard: GuardRecord | None = None
    epoch: int = 0
    registers: dict[str, StoredRegister] = field(default_factory=dict)
    waiting: dict[str, WaitQueue] = field(default_factory=dict)
    published: list[tuple[str, str]] = field(default_factory=list)

    def lose_data(self) -> None:
        """Lose all data, as FLUSHALL or a start without persistence does."""
        for data in (self.keys, self.fences, self.registers, self.waiting):
            data.clear()
        self.guard, self.epoch = None, 0

    def lead(self, epoch: int, quarantine_ms: int, now_us: int) -> bool:
        """Begin the quarantine if the data knows no such promotion; return whether it votes."""
        guard, serves = self.guard, False
        if guard is not None:
            serves = self.identity.has_lost_nothing_since(guard) and guard.not_before <= now_us
            if epoch > self.epoch:
                self._record(1000 * quarantine_ms + now_us)
        serves &= epoch <= self.epoch
        self.epoch = max(self.epoch, epoch)
        return serves

    def arm(self) -> None:
        """Let this process vote at once."""
        self._record(0)

    def owner(self, key: str, now_us: int) -> str | None:
        """Return the owner of `key`; a key lives up to and including its last millisecond."""
        if key in self.keys and now_us // 1000 > self.keys[key].expires_at:
            del self.keys[key]
        return self.keys[key].owner if key in self.keys else None

    def run(self, command: Command, now_us: int) -> Vote:
        """Execute a command at one instant of the node's clock and return the vote."""
        return _EFFECTS[command.script](self, command, now_us)

    def _owners(self, command: Command, now_us: int) -> tuple[Owners, tuple[str, ...]]:
        """Return the keys of a command, each with its owner, and their fence counters."""
        keys, fences = _keys_and_fences(command)
        return [(key, self.owner(key, now_us)) for key in keys], fences

    def _expires_in(self, key: str, now_us: int) -> float:
        """Return for how many more seconds a key is held."""
        return (self.keys[key].expires_at - now_us // 1000) / 1000

    def _quarantined(self, quarantine_ms: int, now_us: int) -> Quarantined | None:
        if quarantine_ms <= 0:
            return None
        not_before = latest = now_us + quarantine_ms * 1000
        if self.guard is not None and self.identity.has_lost_nothing_since(self.guard):
            not_before = self.guard.not_before
        if not_before > latest + _CLOCK_AHEAD_US:
            not_before = latest
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
        free: dict[str, _Limit] = {}
        placed: list[tuple[_Limit, str, str]] = []
        turns: list[int] = []
        has_pauses = self.owner(call.any_pause, now_us) is not None
        place = 0
        for key, fence, limit in call.keys:
            paused = self._paused_for(key, now_us) if has_pauses else None
            if paused is not None:
                places = range(place, place + (limit.slots or 1))
                held += [KeyHolder(at, PAUSED, paused) for at in places]
                refused += [pause_of(key)] if limit.period_ms else [key, pause_of(key)]
                place += len(places)
                continue
            slot, others = self._choose(key, limit, call, now_us)
            if slot is None:
                held += [KeyHolder(place + at, *other) for at, other in enumerate(others)]
                if limit.period_ms:
                    queue = self._wait_queue(key, now_us)
                    turns.append(queue.turn_of(call.named_waiter, others, limit.period_ms, now_us))
                else:
                    refused.append(key)
            else:
                if self.owner(slot, now_us) is None:
                    free[key] = limit
                placed.append((limit, slot, _fence_of(fence, limit, slot)))
            place += limit.slots or 1
        if (waiter := call.named_waiter) is not None:
            for key in refused:
                self._wait_queue(key, now_us).enter(waiter, now_us)
            # It waits for other keys now, and the waiters of these keys must not wait for it. A key
            # with a rate keeps the waiter, which needs its place again if this grant is undone.
            granted = {key: limit for key, _, limit in call.keys if not limit.period_ms}
            for key, _, limit in call.keys if not held else ():
                if limit.period_ms:
                    self._wait_queue(key, now_us).note_slot(waiter.name, now_us)
            for key, limit in (free if held else granted).items():
                was_waiting = key in self.waiting and self.waiting[key].forget(waiter.name)
                if was_waiting and held and not limit.period_ms:
                    self._wake(key, limit.slots, now_us)
        if held:
            if turns:
                return Refused(tuple(held), turn_in=max(turns) / 1000)
            return Refused(tuple(held), before=self._before(call.waiter, refused, now_us))
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

    def _before(self, waiter: Waiter | None, refused: list[str], now_us: int) -> int:
        """Return how many others come before a waiter for one of the keys that refused it."""
        if waiter is None or not waiter.since_ms:
            return 0
        queues = [self._wait_queue(key, now_us) for key in refused]
        return max((queue.before(waiter.name) for queue in queues), default=0)

    def _choose(
        self, key: str, limit: _Limit, call: _Acquire, now_us: int
    ) -> tuple[str | None, list[tuple[str, float]]]:
        """Return the key or slot that an acquire gets; or None, and the owners in its way."""
        owners = {slot: self.owner(slot, now_us) for slot in limit.slots_of(key)}
        free: list[str] = []
        for slot in limit.in_order(key):
            owner = owners[slot]
            if owner is None:
                free.append(slot)
            elif owner and (owner == call.previous or (owner == call.owner and not free)):
                return slot, []
        first = self._goes_before(key, limit, call, len(free), now_us) if free else None
        if free and first is None:
            return free[0], []
        others = []
        for slot, owner in owners.items():
            if owner is not None:
                others.append((owner, self._expires_in(slot, now_us)))
            elif first is not None:
                others.append((GOES_FIRST + first[0], first[1] / 1000))
        return None, others

    def _goes_before(
        self, key: str, limit: _Limit, call: _Acquire, free: int, now_us: int
    ) -> tuple[str, int] | None:
        """Return the waiter that goes first for a free slot, and the ms that it has left."""
        if limit.period_ms:
            return self._wait_queue(key, now_us).has_its_turn(call.named_waiter, free, now_us)
        if call.waiter is None or not call.waiter.since_ms:
            return None
        queue, publish = self._wait_queue(key, now_us), self._publisher(key)
        return queue.goes_before(call.waiter, free, now_us, publish)

    def _enqueue(self, command: Command, now_us: int) -> Vote:
        keep_ms, *waiters = command.args
        for key, name, score in zip(command.keys, waiters[0::2], waiters[1::2], strict=True):
            self._wait_queue(key, now_us).enter(Waiter(str(name), int(score), int(keep_ms)), now_us)
        return ACKNOWLEDGED

    def _pause(self, command: Command, now_us: int) -> Vote:
        (pause, longest, *forms), (owner, ms) = command.keys, command.args
        is_paused, until = self.owner(pause, now_us) is not None, now_us // 1000 + int(ms)
        if not owner:
            if not is_paused:
                return FOREIGN
            del self.keys[pause]
            ordinary, limited = forms
            self._wake(pause, 0, now_us)
            if self.owner(ordinary, now_us) is None:
                self._wake(ordinary, 0, now_us)
            self._wake(limited, 1, now_us)
            return ACKNOWLEDGED
        if not is_paused:
            self.waiting.pop(pause, None)
        self.keys[pause] = StoredKey(str(owner), until)
        if self.owner(longest, now_us) is None or self.keys[longest].expires_at < until:
            self.keys[longest] = StoredKey(pause, until)
        return ACKNOWLEDGED

    def _paused_for(self, key: str, now_us: int) -> float | None:
        """Return for how many more seconds a key is paused; None if it is not."""
        pause = pause_of(key)
        is_paused = pause and self.owner(pause, now_us) is not None
        return self._expires_in(pause, now_us) if is_paused else None

    def _wait_queue(self, key: str, now_us: int) -> WaitQueue:
        queue = self.waiting.get(key)
        if queue is None or not queue.scores or now_us // 1000 > queue.expires_at:
            queue = self.waiting[key] = WaitQueue()
        return queue

    def _wake(self, key: str, slots: int, now_us: int) -> None:
        if key not in self.waiting or self._paused_for(key, now_us) is not None:
            return
        places = _Limit(slots).slots_of(key) if slots else ()
        free = sum(self.owner(place, now_us) is None for place in places) if slots else 1
        self._wait_queue(key, now_us).wake(free, now_us, self._publisher(key))

    def _publisher(self, key: str) -> Callable[[str], None]:
        """Return what publishes the wake-up of a waiter of a key."""
        return lambda name: self.published.append((key, name))

    def _raise(self, command: Command, now_us: int) -> Vote:
        owner, token, *more = command.args
        ttl_ms, quarantine_ms, *tail = more or (0, 0)
        moved, given_back, counters = {}, [], []
        for at, (key, fence) in enumerate(zip(*_keys_and_fences(command), strict=True)):
            limit = _Limit(*map(int, tail[3 * at : 3 * at + 3]))
            slot = limit.in_order(key)[0]
            holder = self.owner(slot, now_us)
            others = [other for other in limit.slots_of(key) if other != slot]
            given_back += [other for other in others if self.owner(other, now_us) == owner]
            if holder != owner and (holder is not None or not limit.slots):
                if not limit.period_ms:
                    return FOREIGN
                return NotHeld(False, self._expires_in(slot, now_us))
            if holder is None:
                moved[slot] = limit.period_ms or int(ttl_ms)
            fence = _fence_of(fence, limit, slot)
            # If a counter is above the token, this node granted us a larger one too late to count,
            # or granted another attempt since. With its vote, two holders could have one token. If
            # it did not grant us the slot, a counter at the token may be another holder's, too.
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

    def _extend(self, command: Command, now_us: int) -> Vote:
        if len(several := split_extension(command)) > 1:
            return LeaseVotes(tuple(self._extend(one, now_us) for one in several))
        owners, fences = self._owners(command, now_us)
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

    def _heal(self, command: Command, now_us: int) -> Vote:
        owners, fences = self._owners(command, now_us)
        owner, ttl, token = command.args
        if any(held_by not in (owner, None) for _, held_by in owners):
            return FOREIGN
        for key, held_by in owners:
            if held_by is None:
                self.keys[key] = StoredKey(str(owner), now_us // 1000 + int(ttl))
        self._raise_counters(fences, int(token))
        return ACKNOWLEDGED

    def _release(self, command: Command, now_us: int) -> Vote:
        owner, token, keep, *more = command.args
        keys, fences = _keys_and_fences(command)
        waiter = str(more[0]) if more else ""
        if command.forgets_a_waiter:
            for queue in filter(None, map(self.waiting.get, map(lock_of, keys))):
                if queue.scores.get(waiter) == more[1]:
                    queue.forget(waiter)
            return FOREIGN
        actions = [
            (int(keep_ms), str(value), int(slots))
            for keep_ms, value, slots in zip(more[1::3], more[2::3], more[3::3], strict=True)
        ] or [(int(keep), "", 0)] * len(keys)
        ours = 0
        for key, (keep_ms, value, slots) in zip(keys, actions, strict=True):
            if waiter and lock_of(key) in self.waiting:
                self.waiting[lock_of(key)].forget(waiter)
            is_ours = self.owner(key, now_us) == owner
            for other in _Limit(slots).slots_of(lock_of(key)) if not is_ours else ():
                if self.owner(other, now_us) == owner:
                    del self.keys[other]
            stays = key.startswith(RATE_PREFIX) and slot_number(key) is not None
            stays_here = stays and slots > 0
            if stays_here and not is_ours and keep_ms > 0:
                until: float = now_us // 1000 + keep_ms
                if self.owner(key, now_us) is not None:
                    until = max(until, self.keys[key].expires_at)
                self.keys[key] = StoredKey(str(owner), until)
            ours += is_ours or stays_here
            if not is_ours or stays_here:
                continue
            if keep_ms > 0:
                self.keys[key] = StoredKey(value or str(owner), now_us // 1000 + keep_ms)
            else:
                del self.keys[key]
                if int(token) > 0 and not stays:
                    is_slot = lock_of(key) != key
                    self._wake(lock_of(key), max(1, slots) if is_slot else 0, now_us)
        if int(token) > 0:
            self._raise_counters(fences, int(token))
        return ACKNOWLEDGED if ours == len(keys) else FOREIGN

    def _inspect(self, command: Command, now_us: int) -> Vote:
        states = []
        for (key, owner), fence in zip(*self._owners(command, now_us), strict=True):
            expires_in = 0.0 if owner is None else self._expires_in(key, now_us)
            states.append(KeyState(owner, expires_in, self.fences.get(fence, 0)))
        return KeyStates(tuple(states))

    def _register(self, command: Command) -> StoredRegister:
        return self.registers.setdefault(command.keys[0], StoredRegister())

    def _raise_counters(self, fences: tuple[str, ...], token: int) -> None:
        for fence in fences:
            self.fences[fence] = max(self.fences.get(fence, 0), token)


_EFFECTS: dict[Script, Callable[[ModelNode, Command, int], Vote]] = {
    Script.ACQUIRE: ModelNode._acquire,
    Script.RAISE: ModelNode._raise,
    Script.EXTEND: ModelNode._extend,
    Script.HEAL: ModelNode._heal,
    Script.RELEASE: ModelNode._release,
    Script.INSPECT: ModelNode._inspect,
    Script.ENQUEUE: ModelNode._enqueue,
    Script.PAUSE: ModelNode._pause,
    Script.WRITE_REGISTER: lambda node, command, _: node._register(command).write(command),
    Script.READ_REGISTER: lambda node, command, _: node._register(command).read(command),
}
