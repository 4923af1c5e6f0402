"""
What the states of calls with one key are made of.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from celery_redlock.tasks.rules.arrival import Action
from celery_redlock.tasks.rules.ending import State
from celery_redlock.tasks.rules.facts import Role

#: Where a call is: `stored`: its result is readable, and its lock not released; `dead`: its worker
#: is lost, and what it held is still on the nodes.
UNSENT, WAITS, RUNS, STORED, DEAD, OVER = "unsent", "waits", "runs", "stored", "dead", "over"

#: The call that holds a key, and its role there.
Owner = tuple[int, Role]


class Delivery(NamedTuple):
    """
    A message on its way, or at a worker.

    Attributes:
        phase: `queued`, `admitted` (it takes its lock next), `ends` (it ends without its body: it
            takes its marker next) or `signed` (it has that).
        again: the broker delivers it again.
        begun: its header says that a body may have begun.
        retaken: it has evicted a marker.
        late: a newer leader sent its tick when it was looked at.
        missed: its starting deadline had passed then.
        then: how it ends.
        to: the call for whose work it ends.
        over: it takes a marker that says that it was withdrawn.
        excused: its work need not be done.
        placed: its header names its place as the next to run.
    """

    phase: str = "queued"
    again: bool = False
    begun: bool = False
    retaken: bool = False
    late: bool = False
    missed: bool = False
    then: Action | None = None
    to: int | None = None
    over: bool = False
    excused: bool = False
    placed: bool = False


class Call(NamedTuple):
    """
    What has become of a call.

    Attributes:
        stands: where it is.
        step: how far its publisher is.
        older: the call whose lock its publisher takes over.
        turns: the call whose marker its publisher has yet to turn into *replaced*.
        deliveries: its messages.
        brought: it was sent with the lock.
        repeats: the call that it was sent as a duplicate of.
        after: the call whose end its sender knew of.
        state: how far its request has come.
        end: how its body has ended.
        hands: the call that continues it.
        frees: the call that got its lock, and may have been dropped.
        revoked: it was revoked while it waited.
        revoking: the worker or publisher that dropped it has not freed its lock yet.
        unlocked: its body runs without the lock.
        asked: a newer run has asked it to stop.
        bodies: how many of its bodies have begun.
        outcomes: how often its outcome was stored.
        spared: after a fault it need not run, or may run twice.
        excused: its policy, its deadline or another message of its tick ended it.
        first: the call that had the key, and had not ended, when it was sent.
        sent: its place in the order of calls; 0: it has no lock and is not sent.
        served: calls whose body was under way when it was sent, or began since.
        owed: its body was interrupted, and its message comes again.
        blind: no node replied when it was sent, so nobody could see that a holder had ended.
        replaced_by: the call that took its place.
        stands_for: the call that its caller was referred to.
    """

    stands: str = UNSENT
    step: str = ""
    older: int | None = None
    turns: int | None = None
    deliveries: tuple[Delivery, ...] = ()
    brought: bool = False
    repeats: int | None = None
    after: int | None = None
    state: State = State.WAITING
    end: str = ""
    hands: int | None = None
    frees: int | None = None
    revoked: bool = False
    revoking: bool = False
    unlocked: bool = False
    asked: bool = False
    bodies: int = 0
    outcomes: int = 0
    spared: bool = False
    excused: bool = False
    first: int | None = None
    sent: int = 0
    served: frozenset[int] = frozenset()
    owed: bool = False
    blind: bool = False
    replaced_by: int | None = None
    stands_for: int | None = None


class Scene(NamedTuple):
    """
    All calls, what is on the nodes, and what is left of each budget.

    Attributes:
        calls: by their position in the setting.
        markers: whose they are and what they say; one for each message, then one for each tick.
        reserved: who holds the key that is taken at publish.
        lock: who holds the key that a worker takes.
        beside: who holds the key whose loss asks a run to stop.
        down: no node replies.
        missed: ticks whose starting deadline has passed.
        base: a newer leader has taken over, and sends the ticks after this one.
    """

    calls: tuple[Call, ...]
    markers: tuple[Owner | None, ...]
    revokes: int
    expires: int
    losses: int
    twice: int
    outages: int
    deadlines: int
    reserved: Owner | None = None
    lock: Owner | None = None
    beside: Owner | None = None
    down: bool = False
    missed: frozenset[int] = frozenset()
    base: int | None = None

    def with_call(self, at: int, **changes: Any) -> Scene:
        call = self.calls[at]._replace(**changes)
        return self._replace(calls=(*self.calls[:at], call, *self.calls[at + 1 :]))

    def with_marker(self, piece: int, owner: Owner | None) -> Scene:
        markers = (*self.markers[:piece], owner, *self.markers[piece + 1 :])
        return self._replace(markers=markers)

    def without(self, owner: Owner, *places: str) -> Scene:
        """Return the scene with those of these places free that an owner has."""
        return self._replace(**{name: None for name in places if getattr(self, name) == owner})

    def with_delivery(self, at: int, position: int, delivery: Delivery | None) -> Scene:
        """Return the scene with one delivery of a call changed, or gone."""
        deliveries = list(self.calls[at].deliveries)
        del deliveries[position]
        if delivery is not None:
            deliveries.append(delivery)
        then = self.with_call(at, deliveries=tuple(sorted(deliveries, key=repr)))
        call = then.calls[at]
        if call.stands == WAITS and not call.deliveries:
            return then.with_call(at, stands=OVER)
        return then
