"""
A model of one node in Python: its data and the effect of each script on them.

In-memory nodes and model checkers execute commands here instead of on a server. Tests check that
the Lua scripts do the same.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from celery_redlock.protocol.commands import Command, Script, granted_vote, split_extension
from celery_redlock.protocol.keys import GOES_FIRST
from celery_redlock.protocol.timing import CANDIDATE_AHEAD_US, MAX_TOKEN
from celery_redlock.protocol.votes import (
    ACKNOWLEDGED,
    FOREIGN,
    MISSING,
    KeyHolder,
    KeyState,
    KeyStates,
    LeaseVotes,
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

    identity: str
    not_before: int


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
        return sorted(self.scores, key=lambda name: (self.scores[name], name))[:count]


#: The score of a waiter that was woken is that time in µs, beyond this; its own is a time in ms.
WOKEN = 10**14

#: Of more waiters of one key a node remembers those who have waited longest.
MAX_WAITERS = 1000

#: How many waiters a release wakes: the second one in case the first is gone.
WOKEN_AT_ONCE = 2

#: As many more are woken as were woken before and have not returned, up to this number.
MISSING_AT_MOST = 100

#: Microseconds after which they are gone.
RETURNS_WITHIN_US = 5_000_000


@dataclass(slots=True)
class ModelNode:
    """
    One node: its data and the identity of the process that serves it.

    Attributes:
        identity: changes with every start and every change of role.
        keys: lock keys.
        fences: fence counters.
        guard: the record of the restart quarantine; lost with the data.
        registers: all registers that a command has named.
        waiting: wait queues by lock key.
        published: lock key and waiter of each wake-up that nobody has taken yet.
    """

    identity: str
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
        self.guard = GuardRecord(self.identity, 0)

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
        if script is Script.RAISE:
            return self._raise(command, owners, fences)
        if script is Script.EXTEND:
            return self._extend(command, owners, fences, now_us)
        if script is Script.HEAL:
            return self._heal(command, owners, fences, now_us)
        return self._release(command, owners, fences, now_us)

    def _acquire(self, command: Command, now_us: int) -> Vote:
        owner, ttl, candidate, quarantine, *more = command.args
        previous, waiter = more[:1], more[1:]
        count = len(command.keys) // 2
        keys, fences = command.keys[:count], command.keys[count:-1]
        if int(quarantine) > 0:
            if self.guard is None or self.guard.identity != self.identity:
                self.guard = GuardRecord(self.identity, now_us + int(quarantine) * 1000)
            if now_us < self.guard.not_before:
                return Quarantined(math.ceil((self.guard.not_before - now_us) / 1000) / 1000)
        held = []
        for index, key in enumerate(keys):
            holder = self.owner(key, now_us)
            if holder is not None and (holder not in previous or not holder):
                left = (self.keys[key].expires_at - now_us // 1000) / 1000
                held.append(KeyHolder(index, holder, left))
            elif holder is None and waiter and (first := self._goes_first(key, now_us, *waiter)):
                held.append(KeyHolder(index, GOES_FIRST + first[0], first[1] / 1000))
        if held:
            refused = {refusal.key for refusal in held}
            for index, key in enumerate(keys if waiter else ()):
                if index in refused:
                    self._queue(key, now_us, *waiter)
                elif key in self.waiting and self.owner(key, now_us) is None:
                    self.waiting[key].scores.pop(str(waiter[0]), None)
            return Refused(tuple(held))
        for key in keys if waiter else ():
            if key in self.waiting:
                self.waiting[key].scores.pop(str(waiter[0]), None)
        expires_at = now_us // 1000 + int(ttl)
        for key in keys:
            self.keys[key] = StoredKey(str(owner), expires_at)
        least = min(int(candidate), now_us + CANDIDATE_AHEAD_US)
        counters = []
        for fence in fences:
            counter = max(self.fences.get(fence, 0) + 1, least)
            self.fences[fence] = min(counter, MAX_TOKEN + 1)  # Lua's numbers stop counting there
            counters.append(self.fences[fence])
        return granted_vote(counters)

    def _goes_first(
        self, key: str, now_us: int, name: object, since: object, _: object, grace: object
    ) -> tuple[str, int] | None:
        """Return who goes before a waiter for a free key, and for how many ms yet."""
        if not int(str(grace)):
            return None
        scores, grace_us = self._wait_queue(key, now_us).scores, int(str(grace)) * 1000
        own, gone = scores.get(str(name), int(str(since))), 0
        for other in sorted(scores, key=lambda one: (scores[one], one)):
            at = scores[other]
            if at < WOKEN or other == name:
                continue
            if now_us - at > grace_us:
                del scores[other]
                gone += 1
            elif own < WOKEN or at < own:
                return other, math.ceil((grace_us - (now_us - at)) / 1000)
        woken = []
        for at, other in enumerate(self._wait_queue(key, now_us).first(1 + 2 * gone)):
            if other != name and scores[other] < min(WOKEN, int(str(since))):
                scores[other] = max(WOKEN, now_us) + 2 * at + 1
                self.published.append((key, other))
                woken.append(other)
        return (woken[0], grace_us // 1000) if woken else None

    def _queue(
        self, key: str, now_us: int, name: object, since: object, keep: object, _: object
    ) -> None:
        queue = self._wait_queue(key, now_us)
        if not int(str(keep)):
            queue.scores.pop(str(name), None)
            return
        queue.scores[str(name)] = int(str(since))
        for dropped in queue.first(len(queue.scores))[MAX_WAITERS:]:
            del queue.scores[dropped]
        queue.expires_at = max(queue.expires_at, now_us // 1000 + int(str(keep)))

    def _wait_queue(self, key: str, now_us: int) -> WaitQueue:
        queue = self.waiting.get(key)
        if queue is None or not queue.scores or now_us // 1000 > queue.expires_at:
            queue = self.waiting[key] = WaitQueue()
        return queue

    def _wake(self, key: str, now_us: int) -> None:
        if key not in self.waiting:
            return
        scores = (queue := self._wait_queue(key, now_us)).scores
        in_order = queue.first(len(scores))
        missing = [name for name in in_order if scores[name] >= WOKEN][:MISSING_AT_MOST]
        for name in missing:
            if now_us - scores[name] > RETURNS_WITHIN_US:
                del scores[name]
        for at, name in enumerate(queue.first(WOKEN_AT_ONCE + len(missing))):
            if scores[name] < WOKEN:
                scores[name] = max(WOKEN, now_us) + 2 * at + 1
            else:
                del scores[name]
            self.published.append((key, name))

    def _raise(self, command: Command, owners: Owners, fences: tuple[str, ...]) -> Vote:
        owner, token = command.args
        if any(held_by != owner for _, held_by in owners):
            return FOREIGN
        # A counter above the token: this node granted us more than was counted, or granted another
        # attempt since. Counting it towards the quorum would let two holders have one token.
        if any(self.fences.get(fence, 0) > int(token) for fence in fences):
            return FOREIGN
        self._raise_counters(fences, int(token))
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

    def _release(
        self, command: Command, owners: Owners, fences: tuple[str, ...], now_us: int
    ) -> Vote:
        owner, token, keep, *actions = command.args
        for index, (key, held_by) in enumerate(owners):
            if held_by == owner:
                value: str | int = ""
                if actions:
                    keep, value = actions[2 * index : 2 * index + 2]
                if int(keep) > 0:
                    self.keys[key] = StoredKey(str(value or owner), now_us // 1000 + int(keep))
                else:
                    del self.keys[key]
                    if int(token) > 0:
                        self._wake(key, now_us)
        if int(token) > 0:
            self._raise_counters(fences, int(token))
        return ACKNOWLEDGED if all(held_by == owner for _, held_by in owners) else FOREIGN

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
