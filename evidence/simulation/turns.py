"""
How long messages wait for a rate behind a backlog: nodes, workers and delays without real time.

The nodes are `ModelNode`s, the votes are counted by a `SlotRound`; the worker waits for a near turn
in place and requeues otherwise, as `tasks/run` does.
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from celery_redlock.core.limits import Rate, limited_key
from celery_redlock.protocol.commands import (
    Command,
    ReleaseAction,
    Waiter,
    acquire,
    forget_waiter,
    move,
    release,
)
from celery_redlock.protocol.node_model import Identity, ModelNode
from celery_redlock.protocol.rounds import Phase, SlotRound
from celery_redlock.protocol.votes import Granted, Refused, Vote
from celery_redlock.tasks.run.lock_request import TURN_IN_PLACE
from celery_redlock.tasks.run.requeue import SHORTEST_DELAY
from evidence.simulation.scheduler import Scheduler
from tests.support.nodes import PREFIX

NODES = 3
TTL_MS = 30_000


@dataclass(slots=True)
class Message:
    """A message: when it was sent and began, how often it was requeued, and whether it is lost."""

    number: int
    sent: float
    is_gone: bool = False
    rank: int = 0
    tries: int = 0
    requeues: int = 0
    begun: float | None = None
    failed: bool = False
    came: float = 0.0


@dataclass
class Backlog:
    """
    Messages of one rate: some wait, then as many arrive as may start.

    Args:
        rate: as `lock_rate`.
        waiting: how many are sent within the first two seconds.
        arriving: for how many seconds others arrive then.
        gone: share of the waiting that is lost once it waits.
        urgent_every: so many of the arriving after each other have one with a more urgent
            priority among them; 0: none.
        late: share of the returns that come up to 5 s late.
        give_up_after: as `lock_give_up_after`.
        seed: of the random numbers.
    """

    rate: str
    waiting: int
    arriving: float
    gone: float = 0.0
    urgent_every: int = 0
    late: float = 0.0
    give_up_after: float = 3600.0
    seed: int = 1
    messages: list[Message] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        self._key = limited_key(Rate("key", self.rate), PREFIX)
        self._nodes = [ModelNode(Identity(f"node {number}", "1")) for number in range(NODES)]
        self._clocks = [self._random.randrange(10**9) for _ in self._nodes]
        self._agenda = Scheduler()

    @property
    def now(self) -> float:
        """Seconds since the beginning."""
        return self._agenda.now

    @property
    def period(self) -> float:
        """Seconds for which a slot stays taken."""
        return self._key.period_ms / 1000

    def run(self) -> None:
        """Let time pass until each message has begun, failed or is lost."""
        for node in self._nodes:
            node.arm()
        sent = sorted(self._random.uniform(0.0, 2.0) for _ in range(self.waiting))
        pace = self._key.slots / self.period
        while sent[-1] < 2.0 + self.arriving:
            sent.append(sent[-1] + self._random.expovariate(pace))
        for number, at in enumerate(sent):
            gone = number < self.waiting and self._random.random() < self.gone
            every = self.urgent_every if number >= self.waiting else 0
            is_urgent = bool(every) and number % every == 0
            self.messages.append(Message(number, at, gone, rank=0 if is_urgent else 1))
            self._agenda.at(at, self._come, self.messages[-1])
        self._agenda.run(math.inf)

    def due(self) -> dict[int, float]:
        """Return how long each message has to wait that is not lost, if all go in order."""
        free = [0.0] * self._key.slots
        waits = {}
        for message in self.messages:
            if not message.is_gone:
                starts = max(message.sent, heapq.heappop(free))
                heapq.heappush(free, starts + self.period)
                waits[message.number] = starts - message.sent
        return waits

    def _after(self, happen: Callable[..., None], *args: Any) -> None:
        self._agenda.after(0.0005 + self._random.expovariate(500.0), happen, *args)

    def _send(self, node: int, command: Command, reply: Callable[[int, Vote], None] | None) -> None:
        def arrive() -> None:
            now_us = int(self.now * 1e6) + self._clocks[node] + 10**15
            vote = self._nodes[node].run(command, now_us)
            if reply is not None:
                self._after(reply, node, vote)

        self._after(arrive)

    def _send_all(self, command: Command) -> None:
        for node in range(NODES):
            self._send(node, command, None)

    def _come(self, message: Message) -> None:
        message.came = self.now
        self._try(message)

    def _try(self, message: Message) -> None:
        message.tries += 1
        owner = f"{message.number} {message.tries}"
        waiter = self._waiter(message)
        round_ = SlotRound(
            NODES,
            sent_at=self.now,
            ttl=TTL_MS / 1000,
            drift_factor=0.01,
            places=[self._key.slots],
            rates=[0],
        )
        is_over = False

        def reply(phase: Phase, node: int, vote: Vote) -> None:
            nonlocal is_over
            if is_over or round_.phase is not phase:
                return
            ended = round_.vote(node, vote, self.now)
            if ended is Phase.RAISING is not phase:
                second = move((self._key,), owner, round_.token, round_.slots, TTL_MS, 0)
                for other in range(NODES):
                    self._send(other, second, partial(reply, Phase.RAISING))
            elif ended not in (Phase.VOTING, Phase.RAISING):
                is_over = True
                self._end(message, owner, round_)

        command = acquire((self._key,), owner, TTL_MS, 0, 0, "", waiter)
        for node in range(NODES):
            self._send(node, command, partial(reply, Phase.VOTING))

    def _end(self, message: Message, owner: str, round_: SlotRound) -> None:
        if round_.phase is Phase.GRANTED:
            self._begin(message, owner, round_)
            return
        for node in round_.nodes_without(Refused):
            self._send(node, release((self._key,), owner, 0), None)
        split = round_.phase is Phase.SPLIT
        pause = self._random.uniform(0.0, 0.05) if split else round_.turn_in()
        if pause <= TURN_IN_PLACE and self.now - message.came < TURN_IN_PLACE:
            self._agenda.after(pause, self._try, message)
            return
        left = self.give_up_after - (self.now - message.sent)
        if left <= 0 or message.is_gone:
            message.failed = not message.is_gone
            return
        turn = max(SHORTEST_DELAY, round_.turn_in())
        if split:
            turn = self._random.uniform(SHORTEST_DELAY, min(turn, 2.0**message.requeues))
        message.requeues += 1
        late = self._random.uniform(1.0, 5.0) if self._random.random() < self.late else 0.0
        delay = min(turn, max(SHORTEST_DELAY, left)) + late + self._random.expovariate(50.0)
        self._agenda.after(delay, self._come, message)

    def _waiter(self, message: Message) -> Waiter:
        left = max(0.0, self.give_up_after - (self.now - message.sent))
        since_ms, keep_ms = int(message.sent * 1000) + 1, int(left * 1000)
        return Waiter(f"w{message.number}", since_ms, keep_ms, rank=message.rank)

    def _begin(self, message: Message, owner: str, round_: SlotRound) -> None:
        message.begun = self.now
        waited = message.requeues > 0 or message.tries > 1
        for node in range(NODES) if waited else round_.nodes_without(Granted):
            self._send(node, forget_waiter((self._key,), self._waiter(message)), None)
        slot = self._key.at(round_.slots[0])
        rest = ReleaseAction(int(self._key.period_ms) - 20)
        ended = release((slot,), owner, round_.token, actions={slot: rest})
        self._agenda.after(0.02, self._send_all, ended)
