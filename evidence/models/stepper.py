"""
The shipped client code, taken one step at a time.

`attempt_once` and `Lease` run as they are; only their transport is ours. It lets an exchange see
the answers that an explorer chose, and stops the code at the next exchange by an exception. A step
that resumes after an earlier exchange runs the code again from its start, with the round restored.
"""

from __future__ import annotations

import contextlib
import logging
import math
import types
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from unittest import mock

from celery_redlock.core.attempt import AcquireParams, attempt_once
from celery_redlock.core.client import PendingReservation, _cancel, _give_back
from celery_redlock.core.holding import Holding
from celery_redlock.core.lease import Lease, holding_of, release_with
from celery_redlock.core.reservation import Reservation
from celery_redlock.errors import LeaseLost, QuorumUnavailable
from celery_redlock.protocol.commands import Command, ReleaseAction, granted_keys
from celery_redlock.protocol.rounds import Phase, Round
from celery_redlock.protocol.votes import Failed, Vote
from celery_redlock.transport import AckedNodes
from celery_redlock.transport.base import Batch, VoteReceiver

#: One millisecond, in which models count time.
TICK = 0.001

#: Code looks at the clock a moment after the tick, so that no comparison hangs on float rounding.
MOMENT = 1e-9

#: Ticks for which a reservation lasts until it is lengthened, and then.
GRACE, LONG = 4, 50

_NO_ANSWER = Failed("no answer")

#: Of a round: what is remembered apart or never changes, and what is by key and not by node.
_NOT_SCALARS, _BY_KEY = ("votes", "_places", "_rates"), ("slots",)

Feed = tuple[tuple[int, Vote], ...]
Snapshot = tuple[tuple[str, Any], ...]


class Paused(BaseException):
    """The code has said something and waits for answers."""


def snapshot(obj: Round) -> tuple[Snapshot, tuple[Vote | None, ...]]:
    """Return what a round remembers, its votes apart."""
    names = [name for cls in type(obj).__mro__ for name in getattr(cls, "__slots__", ())]
    scalars = tuple((name, getattr(obj, name)) for name in names if name not in _NOT_SCALARS)
    for name, value in scalars:
        # States sort their nodes; whatever is by node has to move with them.
        if not isinstance(value, int | float | Phase) and name not in _BY_KEY:
            raise TypeError(f"{type(obj).__name__}.{name} is not a plain value: {value!r}")
    return scalars, tuple(obj.votes)


@dataclass(slots=True, eq=False)
class Stage:
    """A transport and its only channel; runs one step.

    Attributes:
        count: number of nodes.
        time: reading of the clock that bounds trust.
        wall: reading of the wall clock in µs.
        restored: rounds of the exchanges that are over, in order.
        feed: answers for the next exchange; None stops there.
        answered_at: when those answers were taken.
        resumed_at: when the code went on after them.
        said: what the code has said, to which nodes, and whether it waits for the answers.
        waits: the round where the code was stopped.
        hasty: exchanges go on at once, without any answer.
        known: nodes that were known to be done with the acquire before this step.
        remembered: nodes that were known to be done with the first exchange, where that is not
            the acquire.
        caught: late answers that are there to be caught up with.
        rounds: the rounds of this step's exchanges.
        acked: nodes that the code knows to be done.
    """

    count: int
    time: float
    wall: int = 0
    restored: list[tuple[Snapshot, tuple[Vote | None, ...]]] = field(default_factory=list)
    feed: Feed | None = None
    answered_at: float = 0.0
    resumed_at: float = 0.0
    said: list[tuple[Command, tuple[int, ...], bool]] = field(default_factory=list)
    waits: Round | None = None
    gives_up: bool = False
    hasty: bool = False
    known: frozenset[int] = frozenset()
    remembered: frozenset[int] | None = None
    caught: Feed = ()
    rounds: list[Round] = field(default_factory=list)
    acked: AckedNodes = field(default_factory=AckedNodes)
    decided: int = 0
    stopped: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(f"node {index}" for index in range(self.count))

    def now(self) -> float:
        return self.time

    def wall_us(self) -> int:
        return self.wall

    def checkout(self) -> Stage:
        return self

    def checkin(self, channel: Stage) -> None: ...

    def discard(self, channel: Stage) -> None: ...

    def send_behind(self, channel: Stage, *said: object) -> None: ...

    def connect(self, patience: float = 0.0) -> None: ...

    def drain(self, channel: Stage | None = None) -> None:
        for node, vote in self.caught:
            command = self.acked.record_vote(node, vote, self.time)
            if command is not None:
                self.send(command, [node])

    def send_after_ack(self, channel: Stage, command: Command, acked: AckedNodes) -> None:
        # `acked` is ours if it grows with late answers.
        self.drain()
        acked.followup, acked.followup_deadline = command, math.inf
        self.send(command, sorted(acked))

    def nodes_in_doubt(self) -> frozenset[int]:
        return frozenset()

    def send(
        self,
        command: Command,
        nodes: Sequence[int] | None = None,
        *,
        receiver: VoteReceiver | None = None,
    ) -> None:
        if not self.stopped:
            self.said.append((command, self._all(nodes), False))

    def exchange(
        self,
        batch: Batch,
        timeout: float,
        *,
        limit: float = math.inf,
        linger: float = 0.0,
        acked: AckedNodes | None = None,
    ) -> None:
        [(command, round_)] = batch
        self.rounds.append(round_)
        if acked is not None:
            self.acked = acked
        if self.hasty:
            self.said.append((command, self._all(None), False))
            self._answer(round_, ())
        elif self.restored:
            self.acked |= self.known if self.remembered is None else self.remembered
            scalars, votes = self.restored.pop(0)
            for name, value in scalars:
                setattr(round_, name, value)
            round_.votes = list(votes)
        elif self.feed is not None:
            self._answer(round_, self.feed)
            self.feed = None
        else:
            self.said.append((command, self._all(None), True))
            self.waits = round_
            self.stopped = True
            raise Paused

    def _answer(self, round_: Round, feed: Feed) -> None:
        before = round_.phase
        self.time = self.answered_at
        self.decided = 0
        for count, (node, vote) in enumerate(feed, 1):
            self.acked.record_vote(node, vote, self.time)
            round_.vote(node, vote, self.time)
            if not self.decided and round_.phase is not before:
                self.decided = count
        if not self.decided:
            if not self.gives_up:
                self.stopped = True
                raise Paused
            answered = {node for node, _ in feed}
            for node in range(self.count):
                if node not in answered:
                    round_.vote(node, _NO_ANSWER, self.time)
        self.time = self.resumed_at

    def _all(self, nodes: Sequence[int] | None) -> tuple[int, ...]:
        return tuple(range(self.count)) if nodes is None else tuple(nodes)


class _Entropy:
    """Is `os` to `attempt`: bytes that are fresh for each attempt, and the same in each run."""

    current = 0

    @classmethod
    def urandom(cls, size: int) -> bytes:
        return bytes([cls.current + 1]) * size


@contextlib.contextmanager
def prepared() -> Iterator[None]:
    """Make the shipped code deterministic and silent meanwhile."""
    logger = logging.getLogger("celery_redlock")
    level = logger.level
    with (
        mock.patch("celery_redlock.core.attempt.os", _Entropy),
        mock.patch("celery_redlock.core.client.HANDBACK_TTL", GRACE * TICK),
        # The models' leases are some ticks long.
        mock.patch("celery_redlock.core.lease.checked_ttl", lambda ttl, max_ttl: ttl),
    ):
        logger.setLevel(logging.CRITICAL)
        try:
            yield
        finally:
            logger.setLevel(level)


@dataclass(frozen=True, slots=True)
class Held:
    """
    What a model remembers of a lease.

    Attributes:
        slots: the slot of each key with a limit.
        since: when its attempt began, where grants are counted.
    """

    owner: str
    token: int
    valid_until: float
    slots: tuple[int, ...] = ()
    since: int = 0

    def places(self, params: AcquireParams) -> frozenset[str]:
        """Return what it has on the nodes: keys, and slots of keys with a limit."""
        return frozenset(key.stored for key in granted_keys(params.keys, self.slots))


def run_attempt(index: int, params: AcquireParams, stage: Stage) -> tuple[Phase, Held] | None:
    """Run attempt number `index`; return its end, or None where it waits."""
    _Entropy.current = index
    try:
        made = attempt_once(stage, params)  # type: ignore[arg-type]
    except Paused:
        return None
    held = Held(made.owner, made.round.token, made.round.valid_until, made.round.slots)
    return made.phase, held


def revive(held: Held, params: AcquireParams, stage: Stage) -> Lease:
    """Make the lease that a model remembers."""
    round_ = types.SimpleNamespace(token=held.token, valid_until=held.valid_until, slots=held.slots)
    made = types.SimpleNamespace(
        owner=held.owner,
        round=round_,
        channel=stage,
        nodes_in_doubt=stage.nodes_in_doubt(),
        nodes_not_taken_over=lambda: AckedNodes(set(range(stage.count)) - stage.known),
    )
    holding = Holding(stage, params, made, lambda: None)  # type: ignore[arg-type]
    return Lease(holding)


def run_extend(
    held: Held, params: AcquireParams, stage: Stage, ticks: int | None
) -> tuple[str, Held] | None:
    """Extend a lease; return how it ended (kept, lost, no quorum), or None where it waits."""
    lease = revive(held, params, stage)
    try:
        lease.extend(None if ticks is None else ticks * TICK)
        end = "kept"
    except LeaseLost:
        end = "lost"
    except QuorumUnavailable:
        end = "no quorum"
    except Paused:
        return None
    return end, replace(held, valid_until=holding_of(lease).valid_until)


def run_release(held: Held, params: AcquireParams, stage: Stage) -> None:
    """Release a lease; what it says is in `stage.said`."""
    with contextlib.suppress(Paused):
        revive(held, params, stage).release()


def is_trusted(held: Held, params: AcquireParams, time: float) -> bool:
    """Tell whether the holder may act at this instant."""
    return revive(held, params, Stage(1, time)).is_valid


def run_finish(
    held: Held,
    params: AcquireParams,
    stage: Stage,
    actions: dict[str, ReleaseAction],
    back: Reservation | None,
) -> None:
    """Give a lease up but for some keys, perhaps to a message; what it says is in `stage.said`."""
    lease = revive(held, params, stage)
    with contextlib.suppress(Paused):
        release_with(lease, actions, back, grace=GRACE * TICK)


def run_lengthen(reservation: Reservation, stage: Stage) -> None:
    """Lengthen a reservation, as its message is out."""
    stage.acked = AckedNodes(stage.known)
    PendingReservation(reservation, stage, stage.acked).confirm(stage)  # type: ignore[arg-type]


def run_late(reservation: Reservation, stage: Stage) -> None:
    """Take answers that come when a reservation has been lengthened."""
    caught, stage.caught = stage.caught, ()
    run_lengthen(reservation, stage)
    stage.said.clear()
    stage.caught = caught
    stage.drain()


def run_cancel(reservation: Reservation, previous: Reservation | None, stage: Stage) -> None:
    """Cancel a reservation, as its message will not be out; what it had replaced gets it back."""
    with contextlib.suppress(Paused):
        if previous is None:
            _cancel(stage, reservation, 1.0, wait=False)  # type: ignore[arg-type]
        else:
            _give_back(stage, reservation, previous, 1.0)  # type: ignore[arg-type]
