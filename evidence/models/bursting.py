"""
Debounced calls of one key, as states and moves; the shipped rules and times decide.

A publisher takes four steps: it asks the nodes, takes the key over, sends, and confirms. It may die
between any two of them. A worker takes a message's key and marker in one step and gives the key up
in the next. A message arrives at any time after its ETA, so before or after any other. Time passes
in ticks; no step of a publisher that lives takes longer than its reservation.

What the states know beside what happens is what is promised: the burst of each call, by who took
over from whom, and which runs would be wrong.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from celery_redlock.tasks.config.option_values import Debounce
from celery_redlock.tasks.message.owner_label import TaskOwner
from celery_redlock.tasks.publish.call import DebouncedCall
from celery_redlock.tasks.rules import arrival, publish
from celery_redlock.tasks.rules.arrival import Action
from celery_redlock.tasks.rules.facts import DuplicatePolicy, Holder, Obstacle, Role
from celery_redlock.tasks.rules.publish import Publish
from evidence.models.bursts import BurstSetting
from evidence.models.explorer import Found, Label, ViolationError
from evidence.models.facts import CONTENTION, DUPLICATE
from evidence.models.state import NAMES

#: Longer than anything that is explored.
LONG = 1000

#: Steps of a publisher.
UNMADE, ASKS, AWAITS, TAKES, RESERVED, SENT, DONE, DEAD, UNCONFIRMED, FAILED = (
    *("unmade", "asks", "awaits", "takes", "reserved"),
    *("sent", "done", "dead", "dead after sending", "failed"),
)


class Held(NamedTuple):
    """
    What a node stores under a key or a marker.

    Attributes:
        by: the call whose owner value it is.
        role: the state in it.
        until: the tick at which it expires.
    """

    by: int
    role: Role
    until: int


class Node(NamedTuple):
    """A node's records: of the key, and of the marker of each call's message."""

    key: Held | None
    markers: tuple[Held | None, ...]


class Call(NamedTuple):
    """
    A call.

    Attributes:
        step: of its publisher.
        made: when it was made.
        order: its place among all moments at which a call was made or has got the key.
        asked: its place when it was made.
        first: the time of its burst's first call, as its label has it.
        older: the call whose key it takes over, or waits for.
        eta: of its message.
        locked: its message brings the lock along.
        waits: its message is in the queue.
        begun: its body has begun.
        runs: its worker has not given the key up yet.
        earliest: when the first call was made of those that it stands for, whatever labels say.
        gave_way: the call for which its message ended.
        awaits: the state of the call `older` for whose release it waits.
        waited: it has waited for that as long as a publisher waits.
    """

    step: str = UNMADE
    made: int = -1
    order: int = -1
    asked: int = -1
    first: int = -1
    older: int = -1
    eta: int = -1
    locked: bool = False
    waits: bool = False
    begun: bool = False
    runs: bool = False
    earliest: int = -1
    gave_way: int = -1
    awaits: Role | None = None
    waited: bool = False


class Scene(NamedTuple):
    """A state."""

    now: int
    nodes: tuple[Node, ...]
    calls: tuple[Call, ...]
    deaths: int
    failures: int
    outages: int
    forgets: int
    silent: int
    mute: int = 0

    def with_call(self, at: int, **changes: object) -> Scene:
        calls = list(self.calls)
        calls[at] = calls[at]._replace(**changes)
        return self._replace(calls=tuple(calls))


class Move(NamedTuple):
    """A step: its text, and the scene after it."""

    text: str
    then: Scene


@dataclass(slots=True)
class Bursts:
    """The model of one setting."""

    setting: BurstSetting
    reached: set[str] = field(default_factory=set)

    def initial(self) -> Scene:
        setting = self.setting
        node = Node(None, (None,) * setting.calls)
        return Scene(
            now=0,
            nodes=(node,) * setting.nodes,
            calls=(Call(),) * setting.calls,
            **{
                name: getattr(setting, name)
                for name in ("deaths", "failures", "outages", "forgets", "silent")
            },
        )

    def moves(self, scene: Scene) -> Iterator[Found]:
        found = False
        for text, then in self._moves(scene):
            if then != scene:
                found = True
                yield then, (text, ()), ()
        if not found:
            self._check_end(scene)

    def _moves(self, scene: Scene) -> Iterator[Move]:
        for at, call in enumerate(scene.calls):
            for step in (self._publisher, self._worker):
                for text, then in step(scene, at, call):
                    yield Move(f"{NAMES[at]}: {text}", then)
        unmade = [at for at, call in enumerate(scene.calls) if call.step == UNMADE]
        if unmade and scene.now <= self.setting.until:
            at, now = unmade[0], scene.now
            place = _next_place(scene)
            then = scene.with_call(
                at, step=ASKS, made=now, first=now, earliest=now, asked=place, order=place
            )
            yield Move(f"{NAMES[at]}: is made", then)
        yield from self._world(scene, bool(unmade))

    def _world(self, scene: Scene, more: bool) -> Iterator[Move]:
        if scene.forgets:
            self.reached.add("a node forgets")
            blank = Node(None, (None,) * self.setting.calls)
            then = scene._replace(nodes=(blank, *scene.nodes[1:]), forgets=0)
            yield Move("a node forgets", then)
        if scene.silent:
            self.reached.add("a node falls silent")
            yield Move("a node falls silent", scene._replace(silent=0, mute=1))
        # What a publisher needs lasts as long as it takes: its reservation, and the markers that
        # its own call or the one before has set.
        busy = {at for at, call in enumerate(scene.calls) if call.step in (RESERVED, SENT)}
        busy |= {scene.calls[at].older for at in busy}
        is_quick = all(
            scene.now + 1 < held.until
            for node in scene.nodes
            for held in (node.key, *node.markers)
            if held is not None and held.by in busy
        ) and not any(
            call.step in (ASKS, TAKES) or call.runs or (call.step == AWAITS and call.waited)
            for call in scene.calls
        )
        if is_quick and scene.now < self._horizon and (more or self._has_time_left(scene)):
            yield Move("a second passes", self._later(scene))

    @property
    def _horizon(self) -> int:
        setting = self.setting
        return setting.until + max(setting.at_most, setting.quiet) + setting.grace + 2

    def _has_time_left(self, scene: Scene) -> bool:
        """Return whether anything is due, or expires, later."""
        if any(call.step == AWAITS or call.eta > scene.now for call in scene.calls):
            return True
        held = (held for node in scene.nodes for held in (node.key, *node.markers))
        return any(value is not None and value.until < LONG for value in held)

    def _later(self, scene: Scene) -> Scene:
        now = scene.now + 1

        def kept(held: Held | None) -> Held | None:
            return held if held is not None and held.until > now else None

        nodes = tuple(Node(kept(node.key), tuple(map(kept, node.markers))) for node in scene.nodes)
        calls = tuple(
            call._replace(waited=True) if call.step == AWAITS else call for call in scene.calls
        )
        return scene._replace(now=now, nodes=nodes, calls=calls)

    # The publisher.

    def _publisher(self, scene: Scene, at: int, call: Call) -> Iterator[Move]:
        if call.step in (ASKS, AWAITS):
            yield from self._ask(scene, at, call)
        elif call.step == TAKES:
            yield from self._take_over(scene, at, call)
        elif call.step == RESERVED:
            yield from self._send(scene, at, call)
        elif call.step == SENT:
            yield Move("confirms", self._confirmed(scene, at))
        if call.step in (RESERVED, SENT) and scene.deaths:
            self.reached.add("a publisher dies")
            then = scene._replace(deaths=scene.deaths - 1)
            step = DEAD if call.step == RESERVED else UNCONFIRMED
            yield Move("its publisher dies", then.with_call(at, step=step))

    def _ask(self, scene: Scene, at: int, call: Call) -> Iterator[Move]:
        if scene.outages and call.step == ASKS:
            then = scene._replace(outages=scene.outages - 1)
            yield self._without(then, at)
        nodes, refused = self._reserved(scene, at, older=-1, with_marker=False)
        if nodes is not None:
            # It may have waited: it begins a burst all the same.
            then = scene._replace(nodes=nodes)
            place = _next_place(scene)
            yield Move("reserves", then.with_call(at, step=RESERVED, older=-1, order=place))
            return
        if refused is None:
            yield self._without(scene, at)
            return
        yield from self._decide(scene, at, call, refused)

    def _decide(self, scene: Scene, at: int, call: Call, held: Held) -> Iterator[Move]:
        choice = publish.on_duplicate(self._duplicate(scene, at, call, held))
        if choice is Publish.REPLACE:
            yield Move("sees an older one", scene.with_call(at, step=TAKES, older=held.by))
        elif choice is Publish.AWAIT_RELEASE:
            self.reached.add("waits for the worker")
            waited = call.waited and self._is_awaited(call, held)
            then = scene.with_call(at, step=AWAITS, older=held.by, awaits=held.role, waited=waited)
            yield Move("waits for the worker", then)
        elif choice is Publish.SEND:
            yield self._without(scene, at)
        else:
            raise ViolationError((f"{NAMES[at]}: {choice}", ()), "a debounced call is not sent")

    def _duplicate(self, scene: Scene, at: int, call: Call, held: Held) -> publish.Duplicate:
        return replace(
            DUPLICATE,
            holder=Holder.ITSELF if self.setting.one_id else Holder.OTHER,
            role=held.role,
            has_waited=call.waited and self._is_awaited(call, held),
            has_dependents=self.setting.one_id,
            policy=DuplicatePolicy.REPLACE,
            held_in_body=False,
            burst=self._shipped(call).burst_of(self._owner(scene, held), scene.now),
        )

    def _is_awaited(self, call: Call, held: Held) -> bool:
        return (call.older, call.awaits) == (held.by, held.role)

    def _shipped(self, call: Call) -> DebouncedCall:
        debounce = Debounce(self.setting.quiet, self.setting.at_most)
        return DebouncedCall(debounce=debounce, made=call.made, first=call.first)

    def _owner(self, scene: Scene, held: Held) -> TaskOwner:
        call = scene.calls[held.by]
        queued = held.role is Role.QUEUED
        return TaskOwner(
            role=held.role,
            task_id=str(held.by),
            host="h",
            pid=1,
            since=call.made * 1_000_000,
            burst_us=call.first * 1_000_000 if queued else None,
        )

    def _take_over(self, scene: Scene, at: int, call: Call) -> Iterator[Move]:
        for with_marker in (True, False):
            nodes, _ = self._reserved(scene, at, older=call.older, with_marker=with_marker)
            if nodes is not None:
                break
        if nodes is None:
            yield Move("is too late", scene.with_call(at, step=ASKS, older=-1, waited=False))
            return
        self.reached.add("replaces")
        older, newer = scene.calls[call.older], self._shipped(call)
        if with_marker:
            newer = newer.replacing(self._owner(scene, Held(call.older, Role.QUEUED, 0)))
        rivals = (other for other in scene.calls if other.older == call.older)
        is_over = older.begun or any(other.begun for other in rivals)
        then = scene._replace(nodes=nodes).with_call(
            at,
            step=RESERVED,
            order=_next_place(scene),
            first=round(newer.first),
            earliest=call.made if is_over else min(call.made, older.earliest),
        )
        yield Move(f"takes the key of {NAMES[call.older]} over", then)

    def _reserved(
        self, scene: Scene, at: int, *, older: int, with_marker: bool
    ) -> tuple[tuple[Node, ...] | None, Held | None]:
        """Return the nodes after a reservation; else what a quorum of them has instead."""
        until = scene.now + self.setting.grace
        own = Held(at, Role.QUEUED, until)
        nodes, granted, refusals = list(scene.nodes), 0, Counter[Held]()
        for place in self._speaking(scene):
            node = nodes[place]
            if node.key is not None and (node.key.by, node.key.role) != (older, Role.QUEUED):
                refusals[node.key._replace(until=0)] += 1
            elif with_marker and (marker := node.markers[older]) is not None:
                refusals[marker._replace(until=0)] += 1
            else:
                granted += 1
                marked = {older: own} if with_marker else {}
                nodes[place] = Node(own, _marked(node.markers, marked))
        if granted >= self._quorum:
            return tuple(nodes), None
        most = refusals.most_common(1)
        return None, most[0][0] if most and most[0][1] >= self._quorum else None

    @property
    def _quorum(self) -> int:
        return self.setting.nodes // 2 + 1

    def _speaking(self, scene: Scene) -> range:
        return range(scene.mute, len(scene.nodes))

    def _send(self, scene: Scene, at: int, call: Call) -> Iterator[Move]:
        out = self._sent(scene, at, locked=True)
        self.reached.add("sent with the lock")
        yield Move("sends", out.with_call(at, step=SENT))
        if scene.failures:
            self.reached.add("a call raises")
            undone = self._undone(scene, at, call.older)
            undone = undone._replace(failures=scene.failures - 1)
            yield Move("raises, and is not sent", undone.with_call(at, step=FAILED))
            out = self._sent(undone, at, locked=True)
            yield Move("raises, though it is sent", out.with_call(at, step=FAILED))

    def _sent(self, scene: Scene, at: int, *, locked: bool) -> Scene:
        call = scene.calls[at]
        due = round(self._shipped(call).due)
        label: Label = (f"{NAMES[at]}: sends", ())
        latest = max(call.made, call.earliest + self.setting.at_most)
        if due > latest:
            raise ViolationError(label, "a call is due later than the burst may last")
        if due > call.made + self.setting.quiet:
            raise ViolationError(label, "a call waits although no other one came")
        if due < min(call.made + self.setting.quiet, latest):
            raise ViolationError(label, "a call is due early")
        if due < call.made + self.setting.quiet:
            self.reached.add("the at most decides")
        return scene.with_call(at, eta=due, locked=locked, waits=True)

    def _without(self, scene: Scene, at: int) -> Move:
        self.reached.add("sent without the lock")
        then = self._sent(scene.with_call(at, older=-1), at, locked=False)
        return Move("is sent without the lock", then.with_call(at, step=DONE))

    def _undone(self, scene: Scene, at: int, older: int) -> Scene:
        """Return the scene in which a call has given back what it had taken over."""
        nodes, given = list(scene.nodes), 0
        for place in self._speaking(scene):
            node = nodes[place]
            if node.key is not None and (node.key.by, node.key.role) == (at, Role.QUEUED):
                key = None if older < 0 else Held(older, Role.QUEUED, LONG)
                nodes[place] = node._replace(key=key)
                given += 1
        for place in self._speaking(scene) if given >= self._quorum else ():
            node = nodes[place]
            freed = {
                place: None
                for place, marker in enumerate(node.markers)
                if marker is not None and (marker.by, marker.role) == (at, Role.QUEUED)
            }
            nodes[place] = node._replace(markers=_marked(node.markers, freed))
        return scene._replace(nodes=tuple(nodes))

    def _confirmed(self, scene: Scene, at: int) -> Scene:
        older, nodes = scene.calls[at].older, list(scene.nodes)
        before = scene.calls[older].older if older >= 0 else -1
        for place in self._speaking(scene):
            node = nodes[place]
            key, markers = node.key, node.markers
            if key is not None and (key.by, key.role) == (at, Role.QUEUED):
                key = key._replace(until=LONG)
            for marked, by in ((older, at), (before, older)):
                marker = markers[marked] if marked >= 0 else None
                if marker is not None and (marker.by, marker.role) == (by, Role.QUEUED):
                    markers = _marked(markers, {marked: Held(at, Role.REPLACED, LONG)})
            nodes[place] = Node(key, markers)
        return scene._replace(nodes=tuple(nodes)).with_call(at, step=DONE)

    # The worker.

    def _worker(self, scene: Scene, at: int, call: Call) -> Iterator[Move]:
        if call.runs:
            yield Move("gives its key up", self._given_up(scene, at))
        elif call.waits and scene.now >= call.eta:
            yield self._arrive(scene, at, call)

    def _arrive(self, scene: Scene, at: int, call: Call) -> Move:
        nodes, granted = list(scene.nodes), 0
        keys, markers = Counter[Held](), Counter[Held]()
        running = Held(at, Role.RUNNING, LONG)
        for place in self._speaking(scene):
            node = nodes[place]
            marker, key = node.markers[at], node.key
            if marker is not None:
                markers[marker._replace(until=0)] += 1
            elif key is not None and not (call.locked and (key.by, key.role) == (at, Role.QUEUED)):
                keys[key] += 1
            else:
                granted += 1
                nodes[place] = Node(running, _marked(node.markers, {at: running}))
        if granted >= self._quorum:
            return Move("begins", self._begun(scene._replace(nodes=tuple(nodes)), at))
        found = _on_quorum(markers, self._quorum) or _on_quorum(keys, self._quorum)
        if found is None:
            return Move("is requeued, as no quorum agrees", scene)
        action = arrival.on_contention(self._contention(scene, call, found, bool(markers)))
        if action in (Action.WAIT, Action.REQUEUE_COPY):
            self.reached.add("is requeued")
            return Move("is requeued", scene)
        if action not in (Action.IGNORE, Action.END_AS_REPLACED):
            raise ViolationError((f"{NAMES[at]}: {action.name}", ()), "a call ends unnoticed")
        text = "ignored" if action is Action.IGNORE else "ends as replaced"
        newer = scene.calls[found.by]
        self.reached |= {
            text,
            f"a replaced message arrives {'last' if newer.begun else 'first'}",
        }
        return Move(text, scene.with_call(at, waits=False, gave_way=found.by))

    def _contention(
        self, scene: Scene, call: Call, found: Held, is_marker: bool
    ) -> arrival.Contention:
        queued = found.role is Role.QUEUED
        is_newer = scene.calls[found.by].order > call.asked
        is_out = found.until - scene.now > self.setting.grace
        return replace(
            CONTENTION,
            obstacle=Obstacle.MARKER if is_marker else Obstacle.RESERVED,
            holder=Holder.ITSELF if self.setting.one_id else Holder.OTHER,
            role=found.role,
            holder_is_newer=not is_marker and queued and is_newer and is_out,
            brought_lock=call.locked,
            at_publish=DuplicatePolicy.REPLACE,
        )

    def _begun(self, scene: Scene, at: int) -> Scene:
        self.reached.add("begins")
        label: Label = (f"{NAMES[at]}: begins", ())
        call = scene.calls[at]
        # Nothing keeps a call from running late that raised, that has no lock, or whose successor's
        # publisher died, unless yet another call has taken over from that one.
        is_loose = call.step in (FAILED, UNCONFIRMED) or not call.locked
        is_loose |= any(
            dead.step in (DEAD, UNCONFIRMED)
            and dead.older == at
            and not any(c.step == DONE and c.older == by for c in scene.calls)
            for by, dead in enumerate(scene.calls)
        )
        newer = [other for other in scene.calls if other.order > call.order]
        if not is_loose and any(c.older == at and c.step == DONE for c in scene.calls):
            raise ViolationError(label, "a call runs although a newer one has replaced it")
        if not is_loose and any(other.begun and other.step != FAILED for other in newer):
            raise ViolationError(label, "older arguments run after newer ones")
        return scene.with_call(at, waits=False, begun=True, runs=True)

    def _given_up(self, scene: Scene, at: int) -> Scene:
        nodes = list(scene.nodes)
        for place in self._speaking(scene):
            node = nodes[place]
            key = node.key
            if key is not None and (key.by, key.role) == (at, Role.RUNNING):
                key = None
            ended = {at: Held(at, Role.FINISHED, LONG)}
            nodes[place] = Node(key, _marked(node.markers, ended))
        return scene._replace(nodes=tuple(nodes)).with_call(at, runs=False)

    # What is promised at the end.

    def _check_end(self, scene: Scene) -> None:
        label: Label = ("the end", ())
        for at, call in enumerate(scene.calls):
            if call.step != DONE:
                continue
            stands_for = at
            while (next_one := scene.calls[stands_for].gave_way) >= 0:
                stands_for = next_one
            if not scene.calls[stands_for].begun:
                raise ViolationError(label, f"{NAMES[at]} is lost")
        sent = [call for call in scene.calls if call.step == DONE]
        newest = max((call.order for call in sent), default=0)
        if sent and not any(call.begun and call.order >= newest for call in scene.calls):
            raise ViolationError(label, "the newest call has not run")


def _next_place(scene: Scene) -> int:
    return 1 + max(max(call.order, call.asked) for call in scene.calls)


def _marked(
    markers: tuple[Held | None, ...], changes: dict[int, Held | None] | dict[int, Held]
) -> tuple[Held | None, ...]:
    return tuple(changes.get(at, marker) for at, marker in enumerate(markers))


def _on_quorum(votes: Counter[Held], quorum: int) -> Held | None:
    """Return what a quorum has, with its latest expiry."""
    owners = Counter[tuple[int, Role]]()
    for held, count in votes.items():
        owners[held.by, held.role] += count
    for (by, role), count in owners.items():
        if count >= quorum:
            return Held(by, role, max(h.until for h in votes if (h.by, h.role) == (by, role)))
    return None
