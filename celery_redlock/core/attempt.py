"""
One attempt to acquire a lock: both rounds, and what undoes them.
"""

from __future__ import annotations

import contextlib
import math
import os
import random
from dataclasses import dataclass, field

from celery_redlock.core import instrumentation
from celery_redlock.core.instrumentation import AcquireDetails, Outcome, QuarantineDetails
from celery_redlock.core.reservation import Reservation
from celery_redlock.core.settings import ClientSettings
from celery_redlock.errors import RedlockError
from celery_redlock.protocol.commands import (
    Command,
    ReleaseAction,
    Waiter,
    acquire,
    enqueue,
    forget_waiter,
    inspect,
    move,
    raise_fence,
    release,
)
from celery_redlock.protocol.keys import (
    GOES_FIRST,
    PAUSED,
    Key,
    candidate_above,
    given_back,
    has_limit,
    owner_timestamp_us,
    owner_value,
)
from celery_redlock.protocol.rounds import (
    AcquireRound,
    InspectRound,
    Phase,
    ReserveRound,
    SlotRound,
)
from celery_redlock.protocol.timing import milliseconds
from celery_redlock.protocol.votes import Failed, Granted, Quarantined, Refused
from celery_redlock.transport import AckedNodes, Channel, Transport, borrowed

#: How often rivals ask the nodes at least, however long that takes: a step of a starved process may
#: take a second.
_LEAST_ASKED = 8

#: How often a rival looks whether others have settled it, before it asks for the keys once more.
_MOST_WATCHED = 5

#: Seconds of the pauses of the oldest rival, and of the others.
_OLDEST_PAUSES, _WATCH_PAUSES = (0.005, 0.05), (0.01, 0.25)


@dataclass(frozen=True, slots=True, kw_only=True)
class AcquireParams:
    """
    The parameters of one attempt.

    Attributes:
        settings: of the client.
        keys: lock keys, and records of the lock's own.
        ttl: lease length in seconds.
        label: readable suffix of the owner value.
        at_least_for: seconds for which its lease keeps the keys locked, even if released earlier.
        previous: a reservation whose keys are taken over.
        as_reservation: reserve the keys for a message; its receiver takes them over with a token.
        waiter: who waits for the keys where they are held.
        is_held: the keys are taken over from a lock that this process holds.
        settled_by: until when rivals that share the nodes settle who gets the keys, on the
            transport's clock. Without it the attempt ends undecided. Not for keys with a limit,
            whose holders need not be rivals, nor with a reservation.
    """

    settings: ClientSettings
    keys: tuple[Key, ...]
    ttl: float
    label: str
    at_least_for: float = 0.0
    previous: Reservation | None = None
    as_reservation: bool = False
    waiter: Waiter | None = None
    is_held: bool = False
    settled_by: float = -math.inf

    @property
    def node_timeout(self) -> float:
        """Seconds in which a node has to answer."""
        return min(self.settings.node_timeout, self.ttl / 3)

    @property
    def passes_pauses(self) -> bool:
        """
        Whether paused keys do not refuse the attempt.

        A holder keeps its lock, and calls are sent while no body begins. A rate that the publisher
        takes counts the call as started, and no worker takes it again.
        """
        is_sent = self.as_reservation and not any(key.is_rate for key in self.keys)
        return self.is_held or is_sent

    @property
    def asked_for(self) -> tuple[Key, ...]:
        """The lock keys; the records if there are none."""
        return tuple(key for key in self.keys if not key.is_record) or self.keys

    @property
    def places(self) -> list[tuple[str, Key]]:
        """The name and the key of all that a vote can name: of ordinary keys, and of each slot."""
        return [(place, key) for key in self.keys for place in key.places]


@dataclass(frozen=True, slots=True)
class Attempt:
    """
    How an attempt ended, with every vote.

    Attributes:
        params: what it asked for.
        owner: its owner value.
        round: the votes.
        channel: through which it was made.
        nodes_in_doubt: nodes where it may yet set keys.
        acked: nodes known to have executed the last command, for attempts with a reservation; late
            replies add to it.
    """

    params: AcquireParams
    owner: str
    round: AcquireRound
    channel: Channel
    nodes_in_doubt: frozenset[int]
    acked: AckedNodes | None = None

    @property
    def phase(self) -> Phase:
        """Where its round ended."""
        return self.round.phase

    @property
    def is_undecided(self) -> bool:
        """Whether another attempt may end otherwise although no node has changed."""
        return self.phase is Phase.SPLIT or (
            self.phase is Phase.UNAVAILABLE
            and any(isinstance(vote, Failed) and not vote.attempted for vote in self.round.votes)
        )

    @property
    def is_refused(self) -> bool:
        """Whether others hold the keys, as a quorum shows."""
        is_split = self.phase is Phase.SPLIT
        return self.phase is Phase.CONTENDED or (is_split and bool(self.round.refused()))

    @property
    def turn_in(self) -> float:
        """
        Seconds until it may take a key although no other gives it back; 0 where none will be.

        So until a slot of a key with a rate is free for it, until the pause of a key ends, or until
        one that was woken, and goes first, is given up.
        """
        if self.phase is not Phase.CONTENDED:
            return 0.0
        if turn := self.round.turn_in():
            return turn
        holder = self.round.holder()
        if holder is None or holder.expires_in < 0:
            return 0.0
        if holder.owner == PAUSED or holder.owner.startswith(GOES_FIRST):
            # A key is taken up to and including its last millisecond.
            return holder.expires_in + 0.001
        return 0.0

    @property
    def is_granted(self) -> bool:
        """Whether a quorum has the keys."""
        return self.round.phase is Phase.GRANTED

    def nodes_not_taken_over(self) -> AckedNodes:
        """Return the nodes that are not known to have given up what we took over."""
        acked = self.acked or AckedNodes()
        # A node that has connected since the first round acknowledges the second one, without keys.
        return AckedNodes(set(range(len(self.round.votes))) - (acked - acked.not_held))


def attempt_once(transport: Transport, params: AcquireParams) -> Attempt:
    """
    Try once.

    Rivals that share the nodes settle it until `params.settled_by`: the oldest that has some nodes
    keeps its owner value and asks again, and the others wait until it has the keys.

    An attempt that is not granted, or that an exception cuts short, is undone on all nodes that may
    have keys of it: the release is queued behind the acquire on the same connections, also where no
    answer came.
    """
    with borrowed(transport) as channel:
        under_way = _UnderWay(transport, channel, params)
        try:
            return under_way.make()
        except BaseException:
            # A time limit or Ctrl-C may have struck after the command was sent.
            channel.send(release(params.keys, under_way.owner, 0))
            raise


def forget(transport: Transport, attempt: Attempt, waiter: Waiter) -> None:
    """Have nodes forget who waited for the keys of an attempt. Never waits or raises."""
    command = forget_waiter(attempt.params.keys, waiter)
    # It stays in its wait queues until they end; a time limit passes.
    with contextlib.suppress(RedlockError, OSError, RuntimeError):
        transport.send_behind(attempt.channel, command, range(len(transport.names)))


@dataclass(slots=True)
class _UnderWay:
    """
    An attempt under way: what it asks the nodes, and their votes on its latest question.

    Attributes:
        transport: to the nodes.
        channel: through which it asks.
        params: what it asks for.
        owner: its owner value; empty while no node may have keys of it.
        is_kept: the owner value is that of an earlier question.
        round: the votes on the latest question.
        acked: for attempts with a reservation, the nodes that have executed the latest command.
    """

    transport: Transport
    channel: Channel
    params: AcquireParams
    owner: str = ""
    is_kept: bool = False
    round: AcquireRound = field(init=False)
    acked: AckedNodes | None = None

    def make(self) -> Attempt:
        """Ask the nodes until they have decided, and undo what is not granted."""
        asked = 0
        settles = self.transport.now() < self.params.settled_by
        self.channel.connect()
        while True:
            self.is_kept = bool(self.owner)
            self.owner = self.owner or self._new_owner()
            self._ask()
            asked += 1
            settles &= asked < _LEAST_ASKED or self.transport.now() < self.params.settled_by
            if self.round.phase is not Phase.SPLIT or not settles:
                break
            if self._is_oldest():
                self._pause(*_OLDEST_PAUSES)
                continue
            self._undo()
            asked += self._watch_others()
            self.owner = ""  # until here, an exception undoes it once more
        self._complete()
        in_doubt = self.channel.nodes_in_doubt()
        return Attempt(self.params, self.owner, self.round, self.channel, in_doubt, self.acked)

    def _new_owner(self) -> str:
        params, candidate = self.params, self.transport.wall_us()
        if params.previous is not None:
            candidate = max(candidate, candidate_above(params.previous.owner, candidate))
        return owner_value(os.urandom(16), candidate, params.label)

    def _ask(self) -> None:
        """
        Ask all nodes for the keys; those that have granted them to this owner grant them anew.

        If the owner value is kept from an earlier question, slow nodes get their time: a counter
        that is raised twice is no sign of something newer, but in a late reply it looks like one.
        """
        params = self.params
        self.round = self._new_round()
        has_reservation = params.previous is not None or params.as_reservation
        self.acked = AckedNodes() if has_reservation else None
        command = acquire(
            params.keys,
            self.owner,
            milliseconds(params.ttl),
            owner_timestamp_us(self.owner) or 0,
            params.settings.quarantine_ms,
            "" if params.previous is None else params.previous.owner,
            params.waiter,
            passes_pauses=params.passes_pauses,
        )
        self._exchange(command, linger=params.node_timeout if self.is_kept else 0.0)

    def _exchange(self, command: Command, linger: float = 0.0) -> None:
        self.channel.exchange(
            ((command, self.round),), self.params.node_timeout, linger=linger, acked=self.acked
        )

    def _new_round(self) -> AcquireRound:
        """Return the round of a command that is sent now."""
        params, nodes = self.params, len(self.transport.names)
        sent_at, factor = self.transport.now(), params.settings.drift_factor
        if has_limit(params.keys):
            return SlotRound(
                nodes,
                sent_at=sent_at,
                ttl=params.ttl,
                drift_factor=factor,
                places=[key.holders for key in params.keys],
                rates=[at for at, key in enumerate(params.keys) if key.is_rate],
            )
        kind = ReserveRound if params.as_reservation else AcquireRound
        return kind(nodes, sent_at=sent_at, ttl=params.ttl, drift_factor=factor)

    def _is_oldest(self) -> bool:
        """Return whether it has some nodes, and is older than all that have the others."""
        if Granted not in map(type, self.round.votes):
            return False
        owners = (self.owner, *self.round.owners())
        asked_at = {other: owner_timestamp_us(other) or 0 for other in owners}
        return min(asked_at, key=lambda other: (asked_at[other], other)) == self.owner

    def _pause(self, shortest: float, longest: float) -> None:
        self.transport.sleep(random.uniform(shortest, longest))  # noqa: S311  # spreads load only

    def _watch_others(self) -> int:
        """
        Wait until one of the others has the keys, or none has any; return how often it asked.

        Gives up after some time: the oldest may be a process that was killed.
        """
        node_keys = tuple(place for place, _ in self.params.places)
        asked = 0
        while asked < _MOST_WATCHED:
            asked += 1
            self._pause(*_WATCH_PAUSES)
            round_ = InspectRound(len(self.transport.names))
            self.channel.exchange(((inspect(node_keys), round_),), self.params.node_timeout)
            if round_.is_settled():
                break
        return asked

    def _complete(self) -> None:
        """Send the second command if the round needs it, and undo what is not granted."""
        params, round_ = self.params, self.round
        if round_.phase is Phase.RAISING:
            # A node that is silent now may have been stopped since it acknowledged.
            self.acked = None if self.acked is None else AckedNodes()
            self._exchange(self._second_command())
        if round_.phase is Phase.GRANTED and params.waiter and params.waiter.may_be_remembered:
            # A node that refused it, or has not replied, would wake it in the place of others.
            others = round_.nodes_without(Granted)
            if params.waiter.has_waited and any(key.is_rate for key in params.keys):
                others = list(range(len(self.transport.names)))  # its place outlasts a grant
            self.channel.send(forget_waiter(params.keys, params.waiter), others)
        if params.previous is not None and self._is_held_by_another(params.previous):
            self.acked = None
        if round_.phase is not Phase.GRANTED:
            self._undo()
            self._wait_where_granted()

    def _second_command(self) -> Command:
        params, owner, round_ = self.params, self.owner, self.round
        if round_.slots:
            return move(
                params.keys,
                owner,
                round_.token,
                round_.slots,
                milliseconds(params.ttl),
                params.settings.quarantine_ms,
            )
        return raise_fence(params.keys, owner, round_.token)

    def _is_held_by_another(self, previous: Reservation) -> bool:
        """
        Return whether a quorum has shown that the reservation, or its message, has another owner.

        Then no message needs it back: keys given back on a minority would only block others.
        """
        places, round_ = self.params.places, self.round
        taken = (places[at] for at in round_.taken_keys() - round_.taken_keys(PAUSED))
        return any(name in previous.node_keys or key.is_record for name, key in taken)

    def _undo(self) -> None:
        """
        Release where nodes may have keys, and give the reservation back that was taken over.

        A node that has refused has none, unless it has granted them to an owner value that is kept.
        """
        channel, owner, previous = self.channel, self.owner, self.params.previous
        undoing = release(self.params.keys, owner, 0)
        remaining_ms = 0 if previous is None else previous.left_ms(self.transport.wall_us())
        if previous is None or remaining_ms <= 0:
            channel.send(undoing, None if self.is_kept else self.round.nodes_without(Refused))
            return
        # Only nodes that acknowledged the acquire: a stopped node may execute it long after the
        # message was processed, and the keys that it then gave back would block others.
        channel.drain()
        nodes = sorted(self.acked or ())
        actions = dict.fromkeys(previous.keys, ReleaseAction(remaining_ms, previous.owner))
        channel.send(release(self._given_back(previous), owner, 0, actions=actions), nodes)
        others = [node for node in range(len(self.transport.names)) if node not in nodes]
        channel.send(undoing, others)

    def _given_back(self, previous: Reservation) -> list[Key]:
        """Return the keys and slots of this attempt that a reservation gets back."""
        found: list[Key] = []
        reserved = [key for key in previous.keys if not key.stays]
        for key in self.params.keys:
            own = [before for before in reserved if before.lock == key.stored]
            # A replacement does not know which slot its predecessor has: any that is ours now.
            if key.slots and len(own) == 1 and own[0].slot is not None:
                own = [key.at(own[0].slot)]
            found += own or [key]
        return found

    def _wait_where_granted(self) -> None:
        """
        Let the nodes that have not refused a waiter remember it, as those do that have.

        Otherwise nodes would have different waiters, and in order each would grant to another one.
        """
        waiter, round_ = self.params.waiter, self.round
        if waiter is None or not waiter.keep_ms:
            return
        places = self.params.places
        refused = dict.fromkeys(
            places[holder.key][1]
            for vote in round_.votes
            if type(vote) is Refused
            for holder in vote.holders
        )
        waiters = [(key.stored, waiter) for key in given_back(refused)]
        if waiters:
            self.channel.send(enqueue(waiters), round_.nodes_without(Refused))


_OUTCOMES = {
    Phase.GRANTED: Outcome.GRANTED,
    Phase.CONTENDED: Outcome.CONTENDED,
    Phase.SPLIT: Outcome.SPLIT,
}


def report_acquire(transport: Transport, attempt: Attempt, attempts: int, began: float) -> None:
    """
    Report the end of a call to acquire a lock to the receivers of `instrumentation`.

    Args:
        transport: the nodes.
        attempt: the last attempt.
        attempts: how many there were.
        began: when the first one began, on the transport's clock.
    """
    params = attempt.params
    keys = params.keys if params.as_reservation else params.asked_for
    votes = dict(zip(transport.names, attempt.round.votes, strict=True))
    instrumentation.report(
        AcquireDetails(
            keys=tuple(key.text for key in keys),
            outcome=_OUTCOMES.get(attempt.phase, Outcome.UNAVAILABLE),
            waited=transport.now() - began,
            attempts=attempts,
            votes={
                node: "none" if vote is None else type(vote).__name__.lower()
                for node, vote in votes.items()
            },
            fencing_token=attempt.round.token if attempt.is_granted else None,
            owner=attempt.owner,
            reserves=params.as_reservation,
        )
    )
    for node, vote in votes.items():
        if isinstance(vote, Quarantined):
            instrumentation.report(QuarantineDetails(node=node, remaining=vote.remaining))
