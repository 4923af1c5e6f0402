"""
The checkers: what happened, against what was promised.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from celery_redlock.core.failures import Refusal
from celery_redlock.errors import LockContended
from celery_redlock.protocol.keys import GOES_FIRST, Key
from celery_redlock.protocol.timing import MAX_TOKEN
from evidence.simulation.limits import Limits, limited_keys, places_of
from evidence.simulation.plan import Plan


class Eyes(Protocol):
    """How a hold looks from inside its process, at this instant."""

    def __call__(self, hold: Hold) -> bool: ...


@dataclass(frozen=True, slots=True)
class Violation:
    """
    A promise that was broken.

    Attributes:
        kind: `exclusion`, `limit`, `rate`, `token order`, `token reuse`, `resumed`, `lost update`,
            `liveness`, `false conflict`, `left behind`, `late report`, `reported twice`, `ran
            twice` or `error`.
        text: what happened.
        at: true time.
    """

    kind: str
    text: str
    at: float


@dataclass(slots=True, eq=False)
class Hold:
    """
    One lease, as its process uses it.

    Attributes:
        keys: what it holds, as nodes store it: of a key with a limit the slot, of one with a rate
            nothing.
        superseded: somebody else was granted the key when this was no longer valid.
        freezes: how often its machine had been stopped when it was granted.
    """

    lease: Any
    machine: Any
    keys: tuple[str, ...]
    token: int
    freezes: int
    ended: bool = False
    superseded: bool = False
    losses: int = 0


class History:
    """
    Judges one history as it happens.

    A promise is judged only while what it rests on is true; that is tracked here, from what the
    faults really did and not from what was intended.
    """

    def __init__(self, plan: Plan, now: Callable[[], float], valid: Eyes) -> None:
        self.violations: list[Violation] = []
        self.counters: Counter[str] = Counter()
        self._now = now
        self._valid = valid
        self._guard = plan.guard
        self._max_ttl = plan.max_ttl
        fastest = max(rate for rate, _ in plan.servers)
        slowest = min(rate for rate, _ in plan.machines)
        #: Between the trust's end and the key's there is room for so much difference of rates.
        self.timing_holds = fastest / slowest <= 1 / (1 - plan.drift_factor)
        offsets = [wall for _, wall in (*plan.servers, *plan.machines)]
        offsets += [fault.seconds for fault in plan.faults if fault.kind == "wall step"]
        self._skew_bounded = max(offsets) - min(offsets) <= plan.max_ttl / 2
        self.counters_lost = False
        self.exclusion_holds = self.timing_holds
        #: On how many nodes an owner value has been set, ever.
        self.set_on: Counter[str] = Counter()
        self._quorum = len(plan.nodes) // 2 + 1
        self._open: dict[str, list[Hold]] = {}
        self._tokens: dict[str, set[int]] = {}
        self._newest: dict[str, int] = {}
        self._won: dict[str, tuple[dict[str, int], float]] = {}
        self._limits = Limits(plan)
        self._finished: set[str] = set()

    def violate(self, kind: str, text: str) -> None:
        self.violations.append(Violation(kind, text, self._now()))

    def data_lost(self) -> None:
        self.counters_lost = True
        if not self._guard:
            self.exclusion_holds = False

    def node_clock_stepped(self, seconds: float) -> None:
        if seconds > 0:
            self.timing_holds = self.exclusion_holds = False

    @property
    def tokens_ordered(self) -> bool:
        """Tell whether tokens must be: while counters survive, and else under bounded skew."""
        if not self.counters_lost:
            return True
        return self._guard and self.timing_holds and self._skew_bounded

    def floors(self, keys: tuple[str, ...]) -> dict[str, int]:
        """Return the newest token that each key's holders had when an attempt began."""
        return {key: self._newest.get(key, 0) for key in keys}

    def won(self, owner: str, floors: dict[str, int], began: float) -> None:
        """An attempt was granted that had begun then, above these floors."""
        self._won[owner] = floors, began

    def granted(self, lease: Any, machine: Any) -> Hold:
        """A lease has come into the hands of its process."""
        places = places_of(lease)
        held = tuple(place for place in places if not Key.read(place).stays)
        hold = Hold(lease, machine, held, lease.fencing_token, machine.freezes)
        floors, began = self._won.pop(lease.owner)
        self.counters["acquisitions"] += 1
        if not 1 <= hold.token <= MAX_TOKEN:
            self.violate("token order", f"token {hold.token} is out of range")
        valid = self._valid(hold)
        for place in places:
            self._judge_token(hold, place, floors[place], valid)
        for key in limited_keys(lease):
            self._judge_limit(hold, key, valid, began)
        for key in hold.keys:
            self._judge_exclusion(hold, key, valid)
            self._open.setdefault(key, []).append(hold)
        return hold

    def begins(self, hold: Hold, mark: str) -> None:
        """The body of a message begins under a lease."""
        if mark in self._finished and not self.counters_lost and self._valid(hold):
            self.violate("ran twice", f"{mark} was finished, and is run under token {hold.token}")

    def finished(self, mark: str) -> None:
        """A quorum of nodes has been told that the work of a message is done."""
        self._finished.add(mark)
        self.counters["finished"] += 1

    def _judge_token(self, hold: Hold, key: str, floor: int, valid: bool) -> None:
        seen = self._tokens.setdefault(key, set())
        newest = self._newest.get(key, 0)
        if self.tokens_ordered:
            if hold.token in seen:
                self.violate("token reuse", f"{key}: token {hold.token} was given out twice")
            elif hold.token <= floor:
                self.violate(
                    "token order",
                    f"{key}: token {hold.token} after {floor}, which was granted before it began",
                )
            elif key in hold.keys and valid and self.exclusion_holds and hold.token < newest:
                self.violate("token order", f"{key}: token {hold.token} while {newest} was earlier")
        seen.add(hold.token)
        self._newest[key] = max(newest, hold.token)

    def _judge_exclusion(self, hold: Hold, key: str, valid: bool) -> None:
        for other in self._open.get(key, ()):
            if not self._valid(other):
                other.superseded = True
                continue
            self.look(other)
            if not valid:
                continue
            if self.exclusion_holds:
                self.violate(
                    "exclusion",
                    f"{key}: token {hold.token} of {hold.machine.name} was granted while token "
                    f"{other.token} of {other.machine.name} was trusted",
                )
            else:
                self.counters["overlaps outside"] += 1

    def _judge_limit(self, hold: Hold, key: Key, valid: bool, began: float) -> None:
        """Judge how many hold a key with a limit, and how many got one with a rate in its time."""
        if key.period_ms:
            self.counters["rated"] += 1
            kind, may_hold = "rate", self._rates_hold(key)
            count = self._limits.count_starts(key, began, self._now())
        else:
            self.counters["limited"] += 1
            kind, may_hold = "limit", self.exclusion_holds
            open_ = [hold for slot in key.places for hold in self._open.get(slot, ())]
            count = sum(map(self._valid, open_)) + valid
        self.counters[f"{kind} reached"] += count == key.slots
        if count > key.slots and may_hold:
            self.violate(
                kind, f"{key.text}: {count} where {key.slots} may, with token {hold.token}"
            )
        self.counters[f"{kind} exceeded outside"] += count > key.slots and not may_hold

    def _rates_hold(self, key: Key) -> bool:
        """Return whether a node that lost slots of a rate stays quarantined for their period."""
        return self.exclusion_holds and not (
            self.counters_lost and key.period_ms > self._max_ttl * 1000
        )

    def contended(self, error: LockContended) -> None:
        """Somebody was told that another one holds the lock, and may drop its work for that."""
        self.counters["contended"] += 1
        if error.split:
            self.counters["split at the end"] += 1
        elif (error.holder or "").startswith(GOES_FIRST):
            self.counters["others go first"] += 1
        elif Refusal.of(error).is_rate:
            self.counters["rate refused"] += 1
        elif self.set_on[error.holder or ""] < self._quorum:
            self.violate(
                "false conflict",
                f"{error.holder!r} is said to hold {error.key} and never had a quorum",
            )

    def look(self, hold: Hold) -> None:
        """Look at a hold again: one that was superseded must never be valid again."""
        if hold.superseded and not hold.ended and self._valid(hold):
            self.violate("resumed", f"{hold.keys}: token {hold.token} is valid again")

    def lost(self, hold: Hold, reason: str, *, late_by: float) -> None:
        """A loss was reported for a hold that is watched."""
        self.counters["lost lease"] += 1
        hold.losses += 1
        if hold.losses > 1:
            self.violate("reported twice", f"{hold.keys}: token {hold.token}: {reason}")
        if late_by > 0 and hold.machine.freezes == hold.freezes:
            self.violate(
                "late report",
                f"{hold.keys}: loss of token {hold.token} ({reason}) was reported {late_by:.3f} s "
                "after trust had ended, although its process was never stopped",
            )

    def ended(self, hold: Hold) -> None:
        """The process lets go of a hold, or dies."""
        if hold.ended:
            return
        self.look(hold)
        hold.ended = True
        for key in hold.keys:
            self._open[key].remove(hold)

    def died(self, machine: Any) -> None:
        for hold in [hold for holds in self._open.values() for hold in holds]:
            if hold.machine is machine:
                self.ended(hold)


class Resource:
    """
    What the locks protect: read, modify, write.

    A guarded one refuses a token below the highest that it has seen, at reading as well: otherwise
    a holder that was superseded between the new holder's read and write would be let in.
    """

    def __init__(self, name: str, history: History, *, guarded: bool) -> None:
        self.value = 0
        self._name = name
        self._history = history
        self._guarded = guarded
        self._highest = 0

    def read(self, token: int) -> int | None:
        """Return the value, or None for a token that was superseded."""
        return self.value if self._admits(token) else None

    def write(self, token: int, value: int) -> bool:
        """Take a value that was made from one read with the same token."""
        if not self._admits(token):
            return False
        if value == self.value + 1:
            self._history.counters["guarded writes" if self._guarded else "bare writes"] += 1
        elif self._guarded:
            self._history.violate(
                "lost update", f"{self._name}: token {token} wrote {value} over {self.value}"
            )
        else:
            self._history.counters["bare lost updates"] += 1
        self.value = value
        return True

    def _admits(self, token: int) -> bool:
        if not self._guarded:
            return True
        if token < self._highest:
            self._history.counters["refused by guard"] += 1
            return False
        self._highest = token
        return True
