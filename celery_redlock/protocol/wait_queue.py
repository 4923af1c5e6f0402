"""
A model of the waiters of one key on a node, as `wait_queue.lua` and `turns.lua` have them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from celery_redlock.protocol.commands import Waiter
from celery_redlock.protocol.keys import GOES_FIRST

#: Maximum waiters of one key that a node remembers: those that come first.
MAX_WAITERS = 1000

#: Waiters that a node looks at beyond those that it wakes at once, because some may be gone.
LOOKED_AT = 99

#: Microseconds within which a woken waiter retries; one that has not counts as gone.
COMES_WITHIN_US = 250_000

#: Most waiters that a release wakes beyond those that it needs, two for each that counts as gone.
MORE_FOR_LATE = 16

#: Microseconds for which woken waiters go before others, where there is no order.
START_US = 10_000

#: Milliseconds before and after a waiter's turn for which a slot of a rate is kept for it.
TURN_EARLY_MS, TURN_GRACE_MS = 100, 300

#: Maximum waiters of a key with a rate that a node remembers.
MAX_TURNS = 10_000

#: Maximum late waiters that one attempt forgets, and maximum whose turn it is, or that have a slot,
#: that it looks at.
TURNS_AT_ONCE = 256


@dataclass(slots=True)
class WaitQueue:
    """
    The waiters of a key.

    Attributes:
        scores: the place of each, `Waiter.score`; the smallest comes first.
        woken: when each woken waiter that has not come yet was woken, in µs; for a key with a rate,
            when each got a slot.
        turns: for a key with a rate, the turn of each, in ms of the node's clock.
        expires_at: when the node forgets all of them, on the same clock.
    """

    scores: dict[str, int] = field(default_factory=dict)
    woken: dict[str, int] = field(default_factory=dict)
    turns: dict[str, int] = field(default_factory=dict)
    expires_at: float = 0.0

    def first(self, count: int) -> list[str]:
        """Return the waiters that come first, in order."""
        return _in_order(self.scores)[:count]

    def before(self, name: str) -> int:
        """Return how many come before a waiter; one without a name is behind them all."""
        in_order = self.first(len(self.scores))
        return in_order.index(name) if name in self.scores else len(in_order)

    def forget(self, name: str) -> bool:
        """Remove a waiter, and return whether it was there."""
        self.woken.pop(name, None)
        return self.scores.pop(name, None) is not None

    def enter(self, waiter: Waiter, now_us: int) -> None:
        """Remember a waiter that was refused, or forget it if it waits no longer."""
        if not waiter.keep_ms:
            self.forget(waiter.name)
            return
        self.scores[waiter.name] = waiter.score
        self.woken.pop(waiter.name, None)
        for dropped in self.first(len(self.scores))[MAX_WAITERS:]:
            del self.scores[dropped]
        self.expires_at = max(self.expires_at, now_us // 1000 + waiter.keep_ms)

    def wake(self, free: int, now_us: int, publish: Callable[[str], None]) -> None:
        """Wake the waiters that come first for places that are free."""
        wanted, more = free + 1, MORE_FOR_LATE
        for name in self.first(wanted + LOOKED_AT + 1):
            if not wanted:
                return
            at = self.woken.get(name)
            if at is not None and now_us - at > COMES_WITHIN_US:
                self.forget(name)
                publish(name)
                if more:
                    wanted, more = wanted + 2, more - 2
                continue
            if at is None:
                self._wake_one(name, now_us, publish)
            wanted -= 1

    def _wake_one(self, name: str, now_us: int, publish: Callable[[str], None]) -> int:
        self.woken[name] = now_us
        publish(name)
        return now_us

    def goes_before(
        self, waiter: Waiter, free: int, now_us: int, publish: Callable[[str], None]
    ) -> tuple[str, int] | None:
        """Return the waiter that goes first for a free slot, and the ms that it has left."""
        in_order = bool(waiter.name and waiter.grace_ms)
        grace_us = waiter.grace_ms * 1000 if in_order else START_US
        more = 0
        ahead: list[tuple[str, int]] = []
        for other in self.first(free + LOOKED_AT + 1):
            if self.scores[other] >= waiter.score or (len(ahead) >= free and more <= 0):
                break
            at = self.woken.get(other)
            if other == waiter.name or (at is None and not in_order):
                continue
            if at is not None and now_us - at > grace_us:
                if in_order:
                    self.forget(other)
                more += 2
                continue
            if at is None:
                at = self._wake_one(other, now_us, publish)
            if len(ahead) >= free:
                more -= 1
            ahead.append((other, math.ceil((grace_us - (now_us - at)) / 1000)))
        return ahead[0] if len(ahead) >= free else None

    def note_slot(self, name: str, now_us: int) -> None:
        """Note that a waiter has a slot of a rate, and needs its place only if that is undone."""
        if name in self.scores:
            self.woken[name] = now_us

    def _has_slot(self, name: str, now_us: int) -> bool:
        at = self.woken.get(name)
        return at is not None and now_us - at <= COMES_WITHIN_US

    def has_its_turn(self, waiter: Waiter | None, free: int, now_us: int) -> tuple[str, int] | None:
        """Return the first waiter with a right to a free slot of a rate, and the ms it has left."""
        now_ms = now_us // 1000
        turns = {
            name: turn
            for name, turn in self.turns.items()
            if now_ms - TURN_GRACE_MS <= turn <= now_ms + TURN_EARLY_MS
        }
        own = (math.inf, "")
        if waiter is not None:
            own = (self.scores.get(waiter.name, waiter.score), waiter.name)
        ahead = [
            name
            for name in _in_order(turns)[:TURNS_AT_ONCE]
            if name in self.scores
            and (self.scores[name], name) < own
            and not self._has_slot(name, now_us)
        ]
        if len(ahead) < free:
            return None
        return ahead[0], turns[ahead[0]] + TURN_GRACE_MS - now_ms

    def turn_of(
        self,
        waiter: Waiter | None,
        others: Sequence[tuple[str, float]],
        period_ms: int,
        now_us: int,
    ) -> int:
        """
        Return in how many ms it is a waiter's turn; remember one that waits until then.

        Args:
            waiter: None for one without a name.
            others: of each slot, the owner and the seconds that it has left.
            period_ms: for how long a slot stays taken.
            now_us: the node's clock.
        """
        now_ms = now_us // 1000
        late = {name: turn for name, turn in self.turns.items() if turn < now_ms - TURN_GRACE_MS}
        for name in _in_order(late)[:TURNS_AT_ONCE]:
            del self.turns[name]
            self.scores.pop(name, None)
        if waiter is not None:
            self.scores[waiter.name] = waiter.score
            self.woken.pop(waiter.name, None)
        order = _in_order(self.scores)
        before = order if waiter is None else order[: order.index(waiter.name)]
        have_slots = [name for name in _in_order(self.woken) if self._has_slot(name, now_us)]
        ahead = len(set(before).difference(have_slots[:TURNS_AT_ONCE]))
        pttls = sorted(_free_in(*other, period_ms) for other in others)
        turn = pttls[ahead % len(pttls)] + ahead // len(pttls) * period_ms
        if waiter is not None and (turn > waiter.keep_ms or ahead >= MAX_TURNS):
            del self.scores[waiter.name]
            self.turns.pop(waiter.name, None)
        elif waiter is not None:
            self.turns[waiter.name] = now_ms + turn
            for dropped in order[MAX_TURNS:]:
                del self.scores[dropped]
            self.expires_at = max(self.expires_at, now_ms + turn + TURN_GRACE_MS)
        return turn


def _in_order(scores: Mapping[str, int]) -> list[str]:
    return sorted(scores, key=lambda name: (scores[name], name))


def _free_in(owner: str, left: float, period_ms: int) -> int:
    """Return in how many ms a slot of a key with a rate is free."""
    if owner.startswith(GOES_FIRST):
        return 0
    return round(left * 1000) + 1 if left >= 0 else period_ms
