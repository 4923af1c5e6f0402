"""
Calls with one key, as states and moves: each move is one step of a publisher, worker or node.

The worker reads what is known of a message in one step and takes its keys in the next; it decides
in one step and acts in the next. So whatever happens in between, happens.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from celery_redlock.tasks.config.option_values import MODES
from celery_redlock.tasks.rules import arrival, ending, publish
from celery_redlock.tasks.rules.arrival import Action, Arrival, Sighting, Waiting
from celery_redlock.tasks.rules.ending import CeleryState, Keys
from celery_redlock.tasks.rules.facts import (
    ConflictPolicy,
    DuplicatePolicy,
    Evidence,
    Holder,
    Need,
    Obstacle,
    Order,
    Raised,
    Record,
    Role,
    Unavailable,
)
from celery_redlock.tasks.rules.publish import Publish
from evidence.models import promises
from evidence.models.calls import CallSetting
from evidence.models.explorer import Found
from evidence.models.facts import CONTENTION, DUPLICATE, ENDED, REMAINS
from evidence.models.scene import (
    DEAD,
    OVER,
    RUNS,
    STORED,
    UNSENT,
    WAITS,
    Call,
    Delivery,
    Owner,
    Scene,
)
from evidence.models.state import NAMES

#: How a body ends beside success: the state that Celery makes of it, and what it raised.
_ENDS = {
    "success": (CeleryState.SUCCESS, Raised.NOTHING),
    "failure": (CeleryState.FAILURE, Raised.EXCEPTION),
    "ignore": (CeleryState.IGNORED, Raised.IGNORE),
    "reject": (CeleryState.REJECTED, Raised.REJECT),
    "back": (CeleryState.REJECTED, Raised.REJECT_TO_QUEUE),
    "killed": (CeleryState.NONE, Raised.PROCESS_END),
    "retry": (CeleryState.RETRY, Raised.RETRY),
    "stops": (CeleryState.FAILURE, Raised.EXCEPTION),
}


class Move(NamedTuple):
    """
    A step.

    Attributes:
        text: as a trace shows it.
        then: the scene after it.
        idle: it reads or requeues, and brings nothing nearer to its end.
    """

    text: str
    then: Scene
    idle: bool = False


@dataclass(slots=True)
class Calls:
    """The model of one setting."""

    setting: CallSetting
    reached: set[str] = field(default_factory=set)

    def initial(self) -> Scene:
        setting = self.setting
        ticks = max((caller.tick or 0 for caller in setting.callers), default=0)
        return Scene(
            calls=(Call(),) * len(setting.callers),
            markers=(None,) * (len(setting.callers) + ticks + 1),
            **{
                name: getattr(setting, name)
                for name in ("revokes", "expires", "losses", "twice", "outages", "deadlines")
            },
        )

    def moves(self, scene: Scene) -> Iterator[Found]:
        found = [move for move in self._moves(scene) if move.then != scene]
        for move in found:
            yield move.then, (move.text, ()), ()
        if all(move.idle for move in found) and not any(
            not after.idle and after.then != move.then
            for move in found
            for after in self._moves(move.then)
        ):
            promises.check_end(self.setting, scene)

    # What may happen.

    def _moves(self, scene: Scene) -> Iterator[Move]:
        for at, call in enumerate(scene.calls):
            if call.stands == UNSENT:
                yield from self._publish(scene, at)
            if call.turns is not None:
                yield from self._turn(scene, at, call.turns)
            for position in range(len(call.deliveries)):
                yield from self._deliver(scene, at, position)
            if call.stands == RUNS:
                yield from self._body(scene, at)
            elif call.stands == STORED and self._followers_are_sent(scene, at):
                yield from self._let_go(scene, at)
            elif call.stands == DEAD:
                yield self._note(at, "expires on the nodes", self._without(scene, at))
            if call.frees is not None:
                yield self._note(at, "its hand-over is looked at", self._freed(scene, at))
            yield from self._faults(scene, at)
        yield from self._world(scene)

    def _world(self, scene: Scene) -> Iterator[Move]:
        if scene.down:
            yield Move("the nodes reply again", scene._replace(down=False))
        elif scene.outages:
            self.reached.add("no node replies")
            yield Move("no node replies", scene._replace(down=True, outages=scene.outages - 1))
        if scene.reserved is not None and scene.reserved[1] is Role.FINISHED:
            yield Move("the window is over", scene._replace(reserved=None))
        held = scene.reserved
        if held is not None and self._is_nobodys(scene, *held):
            yield Move("a reservation expires", scene._replace(reserved=None))
        if scene.beside is not None and self._is_nobodys(scene, *scene.beside):
            yield Move("a request to stop expires", scene._replace(beside=None))
        ticks = {caller.tick for caller in self.setting.callers if caller.tick is not None}
        for tick in sorted(ticks - scene.missed) if scene.deadlines else ():
            missed = scene.missed | {tick}
            then = scene._replace(missed=missed, deadlines=scene.deadlines - 1)
            yield Move(f"the deadline of tick {tick} passes", then)
        if scene.base is None and any(caller.old_leader for caller in self.setting.callers):
            self.reached.add("a newer leader takes over")
            for base in sorted({0, *ticks}):
                yield Move(f"a newer leader takes over at {base}", scene._replace(base=base))

    def _is_nobodys(self, scene: Scene, at: int, role: Role) -> bool:
        call = scene.calls[at]
        waits = call.deliveries or call.step in ("reserved", "sends")
        return role is Role.QUEUED and not waits and not self._is_handed(scene, at)

    def _is_handed(self, scene: Scene, at: int) -> bool:
        return any(call.hands == at and call.stands in (RUNS, STORED) for call in scene.calls)

    # Publishing.

    def _publish(self, scene: Scene, at: int) -> Iterator[Move]:
        caller, call = self.setting.callers[at], scene.calls[at]
        if caller.by is not None and not promises.has_outcome(scene.calls[caller.by]):
            return
        if caller.retries is not None:
            yield from self._publish_retry(scene, at, caller.retries)
            return
        if not self._mode.at_publish:
            yield self._send(scene, at, "sent")
            return
        if call.step == "reserved":
            yield from self._send_reserved(scene, at)
        elif call.step == "sends":
            yield from self._send_newer(scene, at)
        elif scene.down:
            yield self._send(scene, at, "sent without the lock")
        elif call.step == "replaces" and scene.reserved in (None, (call.older, Role.QUEUED)):
            yield self._note(at, "takes the lock over", self._replaced(scene, at, call.older))
        elif scene.reserved is None:
            begun = self._as_sent(scene, at, None)
            then = scene._replace(reserved=(at, Role.QUEUED))
            yield self._note(at, "reserves", then.with_call(at, step="reserved", **begun))
        else:
            yield from self._contended(scene, at, awaited=False)
            if call.step == "awaits":
                yield from self._contended(scene, at, awaited=True)

    def _publish_retry(self, scene: Scene, at: int, before: int) -> Iterator[Move]:
        older = scene.calls[before]
        if older.stands != RUNS or older.hands is not None or not older.bodies:
            return
        if "retry" not in self.setting.callers[before].ends:
            return
        mode = self._mode
        hands_over = mode.at_publish and mode.held_in_body
        hands_over = hands_over and not older.unlocked
        event = ending.Move.HAND_OVER if hands_over else ending.Move.CONTINUE
        then = scene.with_call(before, hands=at, state=ending.moved(older.state, event))
        if hands_over or not mode.at_publish or then.down:
            yield self._send(then, at, "is sent to continue", brought=hands_over)
        elif then.reserved is None:
            then = then._replace(reserved=(at, Role.QUEUED))
            yield self._send(then, at, "is sent to continue", brought=True)
        else:
            yield from self._contended(then, at, awaited=False)

    def _contended(self, scene: Scene, at: int, *, awaited: bool) -> Iterator[Move]:
        assert scene.reserved is not None
        holder, role = scene.reserved
        facts = self._at_publish(scene, at, holder, role, awaited=awaited)
        choice = publish.on_duplicate(facts)
        call = scene.calls[at]
        rival = facts.holder is Holder.OTHER and facts.same_work and role is not Role.FINISHED
        rival = rival and not (facts.holder_has_ended or facts.continues)
        first = holder if rival and not facts.holder_may_be_skipped else None
        if choice is Publish.AWAIT_RELEASE:
            yield self._note(at, "waits for the release", scene.with_call(at, step="awaits"))
        elif choice is Publish.REPLACE:
            promises.check_rival(self.setting, at, holder, "replaces")
            if call.step != "replaces" or call.older != holder:
                then = scene.with_call(at, step="replaces", older=holder)
                yield self._note(at, "sees that an older one waits", then)
        elif choice in (Publish.DROP, Publish.REFUSE):
            text = "dropped" if choice is Publish.DROP else "refused"
            promises.check_drop(self.setting, at, text)
            promises.check_rival(self.setting, at, holder, text)
            changes = {**self._as_sent(scene, at, first), "stands": OVER, "stands_for": holder}
            yield self._note(at, text, scene.with_call(at, **changes))
        elif choice is Publish.SEND_AFTER:
            yield self._send(scene, at, "sent after", after=holder)
        elif choice is Publish.SEND_AS_DUPLICATE:
            yield self._send(scene, at, "sent as a duplicate", repeats=holder, first=first)
        else:
            yield self._send(scene, at, "sent without the lock", first=first)

    def _at_publish(
        self, scene: Scene, at: int, holder: int, role: Role, *, awaited: bool
    ) -> publish.Duplicate:
        caller = self.setting.callers[at]
        who = self._who(scene, at, holder)
        if who is Holder.OTHER and self._is_copy(at, holder) and not role.is_over:
            who = Holder.COPY
        running = role is Role.RUNNING
        return replace(
            DUPLICATE,
            holder=who,
            role=role,
            same_work=self._is_of_the_same_task(at, holder),
            holder_has_ended=running
            and scene.calls[holder].stands == STORED
            and self._is_of_the_same_task(at, holder),
            has_waited=awaited,
            has_dependents=caller.tied or caller.retries is not None,
            continues=caller.retries is not None,
            policy=DuplicatePolicy(caller.policy),
            holder_may_be_skipped=self._may_be_skipped(at, holder, role),
            held_in_body=self._mode.held_in_body,
        )

    def _send(self, scene: Scene, at: int, text: str, **changes: Any) -> Move:
        first = changes.pop("first", None)
        changes = {**self._as_sent(scene, at, first), **changes, "stands": WAITS, "step": ""}
        return self._note(at, text, scene.with_call(at, deliveries=(Delivery(),), **changes))

    def _as_sent(self, scene: Scene, at: int, first: int | None) -> dict[str, Any]:
        """A call has its place in the order, and who serves it, from its reservation on."""
        if scene.calls[at].sent:
            return {"first": first, "blind": scene.down}
        under_way = {n for n, call in enumerate(scene.calls) if call.stands == RUNS}
        sent = 1 + max(call.sent for call in scene.calls)
        served = frozenset(under_way)
        return {"sent": sent, "served": served, "first": first, "blind": scene.down}

    def _send_reserved(self, scene: Scene, at: int) -> Iterator[Move]:
        tick = self.setting.callers[at].tick
        marker = None if tick is None or scene.down else scene.markers[self._piece(at)]
        choice = publish.on_reservation(publish.TickState(tick=marker and marker[1]))
        if choice is Publish.SEND_WITH_LOCK:
            yield self._send(scene, at, "sent with the lock", brought=True)
        else:
            free = scene.without((at, Role.QUEUED), "reserved")
            if choice is Publish.SEND:
                yield self._send(free, at, "sent without the lock")
            else:
                assert marker is not None
                then = free.with_call(at, stands=OVER, excused=True, stands_for=marker[0])
                yield self._note(at, "dropped for its tick", then)
        if scene.losses:
            then = scene.with_call(at, stands=OVER, step="lost", spared=True)
            yield self._note(at, "its publisher is lost", then._replace(losses=scene.losses - 1))

    def _replaced(self, scene: Scene, at: int, older: int | None) -> Scene:
        """
        Return the scene after a publisher has taken a lock over and withdrawn its message.

        One exchange with the nodes. Where the older message's marker is held, the lock alone.
        """
        assert older is not None
        piece = self._piece(older)
        begun = self._as_sent(scene, at, None)
        then = scene._replace(reserved=(at, Role.QUEUED)).with_call(at, step="sends", **begun)
        then = then.with_call(older, replaced_by=at)
        if scene.markers[piece] is None:
            then = then.with_marker(piece, (at, Role.QUEUED)).with_call(at, turns=older)
        return then

    def _send_newer(self, scene: Scene, at: int) -> Iterator[Move]:
        older = scene.calls[at].older
        assert older is not None
        yield self._send(scene, at, "sent with the lock", brought=True)
        if scene.losses:
            then = scene.with_call(at, stands=OVER, step="lost", spared=True)
            then = then.with_call(older, spared=True, replaced_by=None)
            yield self._note(at, "its publisher is lost", then._replace(losses=scene.losses - 1))

    def _turn(self, scene: Scene, at: int, older: int) -> Iterator[Move]:
        """After the newer message is out, the older one's marker says so; or its grace ends."""
        call, piece = scene.calls[at], self._piece(older)
        if call.stands == UNSENT:
            return
        then = scene.with_call(at, turns=None)
        ours = scene.markers[piece] == (at, Role.QUEUED)
        if call.step == "lost" and ours:
            yield self._note(at, "its withdrawal expires", then.with_marker(piece, None))
        elif scene.down:
            spared = then.with_marker(piece, None) if ours else then
            yield self._note(at, "cannot revoke", spared.with_call(older, spared=True))
        elif ours:
            then = then.with_marker(piece, (at, Role.REPLACED))
            yield self._note(at, "revokes the older one", then)
        else:
            yield self._note(at, "need not revoke", then)

    # Arriving.

    def _deliver(self, scene: Scene, at: int, position: int) -> Iterator[Move]:
        delivery = scene.calls[at].deliveries[position]
        if delivery.phase == "queued":
            yield from self._arrive(scene, at, position)
        elif delivery.phase == "admitted":
            yield from self._take(scene, at, position)
        elif delivery.phase == "ends":
            yield from self._sign(scene, at, position)
        else:
            yield self._end_unrun(scene, at, position)

    def _arrive(self, scene: Scene, at: int, position: int) -> Iterator[Move]:
        call, caller = scene.calls[at], self.setting.callers[at]
        delivery = call.deliveries[position]
        late = caller.old_leader and scene.base is not None and (caller.tick or 0) > scene.base
        facts = Arrival(
            missed_deadline=caller.tick in scene.missed,
            continues=caller.retries is not None,
            may_have_begun=self._may_have_begun(call, delivery),
            names_original=call.repeats is not None,
            evidence=Evidence.UNREAD,
            policy=DuplicatePolicy(caller.policy),
            from_leader=caller.old_leader,
            brought_lock=call.brought,
            record=Record.UNREAD,
        )
        action = arrival.on_arrival(facts)
        while action in (Need.EVIDENCE, Need.RECORD):
            if scene.down:
                yield from self._met(scene, at, position, Obstacle.NO_QUORUM, None)
                return
            if action is Need.EVIDENCE:
                assert call.repeats is not None
                facts = replace(facts, evidence=self._evidence(scene, call.repeats))
            else:
                record = Record.SUPERSEDED if late else Record.CURRENT
                facts = replace(facts, record=record)
            action = arrival.on_arrival(facts)
        self.reached.add(action.name)
        if action is Action.TAKE:
            marks = delivery._replace(
                phase="admitted", late=late, missed=facts.missed_deadline, then=None
            )
            then = scene.with_delivery(at, position, marks)
            yield self._note(at, "is looked at", then, idle=True)
        elif action is Action.DROP_AS_SUPERSEDED:
            then = scene.with_delivery(at, position, None).with_call(at, excused=True)
            yield self._note(at, "dropped as superseded", then)
        elif action is not Action.WAIT:
            for_whom = call.repeats if action is not Action.SKIP_AS_MISSED else None
            yield self._will_end(scene, at, position, action, for_whom)

    def _evidence(self, scene: Scene, first: int) -> Evidence:
        marker = scene.markers[self._piece(first)]
        held = scene.reserved
        role = held[1] if held is not None and held[0] == first else None
        return arrival.evidence_of([Sighting(marker=marker and marker[1], key=role)], 1)

    def _may_have_begun(self, call: Call, delivery: Delivery) -> bool:
        accepted = call.brought if self._mode.at_publish else self.setting.acks_late
        return delivery.begun or (delivery.again and accepted)

    def _take(self, scene: Scene, at: int, position: int) -> Iterator[Move]:
        mode, mine = self._mode, (at, Role.QUEUED)
        marker = scene.markers[self._piece(at)] if self._is_marked(at) else None
        own_lock = mode.own_queue_key or not mode.at_publish
        stops = self.setting.stops and own_lock
        placed = scene.calls[at].deliveries[position].placed
        if scene.down:
            yield from self._met(scene, at, position, Obstacle.NO_QUORUM, None)
        elif marker is not None:
            yield from self._met(scene, at, position, Obstacle.MARKER, marker)
        elif mode.at_publish and scene.reserved not in (None, mine):
            yield from self._met(scene, at, position, Obstacle.RESERVED, scene.reserved)
        elif stops and scene.beside == mine and not placed:
            yield from self._met(scene, at, position, Obstacle.LOCK, mine)
        elif own_lock and scene.lock is not None:
            yield from self._met(scene, at, position, Obstacle.LOCK, scene.lock)
        elif stops and scene.beside not in (None, mine):
            yield from self._met(scene, at, position, Obstacle.LOCK, scene.beside)
        else:
            yield self._begin(scene, at, position)

    def _met(
        self, scene: Scene, at: int, position: int, obstacle: Obstacle, held: Owner | None
    ) -> Iterator[Move]:
        """The message did not get what it takes."""
        delivery = scene.calls[at].deliveries[position]
        facts = self._contention(scene, at, delivery, obstacle, held)
        if arrival.on_contention(facts) is Need.POLICY:
            for answer in (ConflictPolicy.STOP, ConflictPolicy.REQUEUE):
                answered = replace(facts, at_run=answer)
                yield from self._decided(scene, at, position, obstacle, held, answered)
        else:
            yield from self._decided(scene, at, position, obstacle, held, facts)

    def _decided(
        self,
        scene: Scene,
        at: int,
        position: int,
        obstacle: Obstacle,
        held: Owner | None,
        facts: arrival.Contention,
    ) -> Iterator[Move]:
        """Do what the rules decide about the message."""
        call = scene.calls[at]
        delivery = call.deliveries[position]
        action = arrival.on_contention(facts)
        self.reached.add(action.name)
        holder = None if held is None else held[0]
        if action is Action.WAIT:
            # To try by name leads back to this state, and from there to both answers.
            refused = obstacle is not Obstacle.NO_QUORUM
            action = arrival.how_to_wait(
                Waiting(eager=False, is_exhausted=False, is_refused=refused, is_registered=False)
            )
            if action is Action.TRY_BY_NAME:
                self.reached.add(action.name)
                action = arrival.how_to_wait(
                    Waiting(eager=False, is_exhausted=False, is_refused=True, is_registered=True)
                )
        again = delivery._replace(phase="queued", late=False, missed=False)
        if action is Action.REQUEUE:
            yield self._note(at, "requeued", scene.with_delivery(at, position, again), idle=True)
        elif action is Action.REQUEUE_COPY:
            runs = facts.role is Role.RUNNING and self.setting.callers[at].tick is not None
            again = again._replace(begun=again.begun or runs)
            then = scene.with_delivery(at, position, again)
            yield self._note(at, "requeued as a copy", then, idle=True)
        elif action is Action.RETAKE:
            again = again._replace(phase="admitted", retaken=True, begun=True)
            then = scene.with_marker(self._piece(at), None)
            yield self._note(at, "evicts the marker", then.with_delivery(at, position, again))
        elif action in (Action.REQUEST_STOP, Action.OVERTAKE):
            promises.check_rival(self.setting, at, holder, action.name)
            brought = self._mode.own_queue_key and call.brought
            if not brought and scene.beside not in (None, held, (at, Role.QUEUED)):
                # Another call is the next already; the rules decide about that one.
                yield from self._met(scene, at, position, Obstacle.LOCK, scene.beside)
                return
            if action is Action.REQUEST_STOP and holder is not None:
                scene = scene.with_call(holder, asked=True)
            then = scene._replace(beside=None if brought else (at, Role.QUEUED))
            if self.setting.acks_late and scene.losses:
                lost = again._replace(again=True, placed=False)
                lose = then.with_delivery(at, position, lost)._replace(losses=scene.losses - 1)
                yield self._note(at, "its worker is lost before it requeues it", lose)
            phase = "admitted" if action is Action.OVERTAKE else "queued"
            again = again._replace(phase=phase, placed=not brought)
            then = then.with_delivery(at, position, again)
            idle = then.beside == scene.beside and again.placed == delivery.placed
            yield self._note(at, f"is the next ({action.name})", then, idle=idle)
        elif action is Action.RUN_UNLOCKED:
            yield self._begin(scene, at, position, unlocked=True)
        elif action is Action.IGNORE:
            then = scene.with_delivery(at, position, None)
            if call.stands_for is None and holder != at:
                then = then.with_call(at, stands_for=holder, excused=True)
            yield self._note(at, "IGNORE", then)
        elif action is Action.REJECT:
            then = scene.with_delivery(at, position, None).with_call(at, excused=True)
            yield self._note(at, "REJECT", then)
        else:
            yield self._will_end(scene, at, position, action, holder, obstacle)

    def _contention(
        self, scene: Scene, at: int, delivery: Delivery, obstacle: Obstacle, held: Owner | None
    ) -> arrival.Contention:
        callers, call = self.setting.callers, scene.calls[at]
        caller = callers[at]
        holder, role = held if held is not None else (at, Role.QUEUED)
        who = Holder.FOREIGN if held is None else self._who(scene, at, holder)
        tick = caller.tick  # its own owner values have its tick, too
        if held is not None and role is Role.QUEUED and tick == callers[holder].tick is not None:
            who = Holder.COPY
        mine, theirs = (promises.age(self.setting, scene, one) for one in (at, holder))
        order = {True: Order.OLDER, False: Order.UNKNOWN}[theirs < mine]
        return replace(
            CONTENTION,
            obstacle=obstacle,
            holder=who,
            role=role,
            order=Order.NEWER if theirs > mine else order,
            same_work=self._is_of_the_same_task(at, holder),
            same_message=holder == at,
            holds_until_result=self._is_marked(at),
            holder_may_be_skipped=self._may_be_skipped(at, holder, role),
            locks_at_publish=self._mode.at_publish,
            for_window=self._mode.for_window,
            brought_lock=call.brought,
            continues=caller.retries is not None,
            may_have_begun=self._may_have_begun(call, delivery),
            has_retaken=delivery.retaken,
            may_be_rejected=self.setting.acks_late and not caller.tied,
            at_publish=DuplicatePolicy(caller.policy),
            at_run=ConflictPolicy(self.setting.at_run),
            unavailable=Unavailable(self.setting.unavailable),
        )

    # Ending without a body.

    def _will_end(
        self,
        scene: Scene,
        at: int,
        position: int,
        action: Action,
        for_whom: int | None,
        obstacle: Obstacle = Obstacle.RESERVED,
    ) -> Move:
        delivery = scene.calls[at].deliveries[position]
        by_policy = obstacle in (Obstacle.LOCK, Obstacle.NO_QUORUM)
        excused = (by_policy and action is not Action.END_AS_REPLACED) or (
            action in (Action.SKIP_AS_MISSED, Action.END_AS_REVOKED)
        )
        promises.check_skip(self.setting, scene, at, None if excused else for_whom, action)
        if obstacle is not Obstacle.LOCK or self.setting.stops:
            promises.check_rival(self.setting, at, for_whom, f"will end: {action.name}")
        over = obstacle is Obstacle.MARKER
        ends = delivery._replace(phase="ends", then=action, over=over, to=for_whom, excused=excused)
        then = scene.with_delivery(at, position, ends)
        return self._note(at, f"will end: {action.name}", then)

    def _sign(self, scene: Scene, at: int, position: int) -> Iterator[Move]:
        """The worker takes the marker alone, also one that says that the message was withdrawn."""
        delivery = scene.calls[at].deliveries[position]
        piece = self._piece(at)
        marker = scene.markers[piece]
        signed = delivery._replace(phase="signed")
        withdrawn = marker is not None and marker[1] in (Role.REPLACED, Role.REVOKED)
        if not self._is_marked(at) or scene.down:
            then = scene.with_delivery(at, position, signed)
            then = then.with_call(at, spared=then.calls[at].spared or scene.down)
            yield self._note(at, "ends without a marker", then)
        elif marker is None or (delivery.over and withdrawn):
            then = scene.with_marker(piece, (at, Role.QUEUED))
            yield self._note(at, "takes its marker", then.with_delivery(at, position, signed))
        else:
            retaken = scene.with_delivery(at, position, delivery._replace(retaken=True))
            yield from self._met(retaken, at, position, Obstacle.MARKER, marker)

    def _end_unrun(self, scene: Scene, at: int, position: int) -> Move:
        call = scene.calls[at]
        delivery = call.deliveries[position]
        assert delivery.then is not None
        marked = arrival.MARKED_AS[delivery.then]
        remains = self._remains(at, state=ending.State.UNRUN, unrun_as=marked)
        then = scene.with_delivery(at, position, None)
        piece = self._piece(at)
        if scene.markers[piece] == (at, Role.QUEUED):
            role = ending.marker_after(remains)
            then = then.with_marker(piece, None if role is None else (at, role))
        raised = Raised.NOTHING
        if delivery.then in (Action.END_AS_REPLACED, Action.END_AS_REVOKED):
            raised = Raised.IGNORE
        unused = ending.Unused(
            state=ending.State.UNRUN, raised=raised, acks_late=self.setting.acks_late
        )
        if not ending.keeps_reservation(unused):
            then = then.without((at, Role.QUEUED), "reserved")
        then = then.with_call(
            at,
            stands_for=delivery.to if call.stands_for is None else call.stands_for,
            outcomes=call.outcomes + 1,
            excused=call.excused or delivery.excused,
        )
        promises.check_outcome(self.setting, then, at)
        return self._note(at, f"ends: {delivery.then.name}", then)

    # Running.

    def _begin(self, scene: Scene, at: int, position: int, *, unlocked: bool = False) -> Move:
        call, mode = scene.calls[at], self._mode
        delivery = call.deliveries[position]
        promises.check_arrival(self.setting, scene, at, delivery)
        state = ending.moved(ending.State.WAITING, ending.Move.BEGIN)
        then = scene.with_delivery(at, position, None).with_call(
            at,
            stands=RUNS,
            bodies=call.bodies + 1,
            unlocked=unlocked,
            state=state,
            hands=None,
            asked=False,
            owed=False,
        )
        if not unlocked:
            if self._is_marked(at):
                then = then.with_marker(self._piece(at), (at, Role.RUNNING))
            if mode.at_publish:
                held = mode.held_in_body
                then = then._replace(reserved=(at, Role.RUNNING) if held else None)
            if mode.own_queue_key or not mode.at_publish:
                then = then._replace(lock=(at, Role.RUNNING))
            if self.setting.stops:
                then = then._replace(beside=(at, Role.RUNNING))
        for other, served in enumerate(then.calls):
            if served.sent:
                then = then.with_call(other, served=served.served | {at})
        promises.check_body(self.setting, then, at, piece=self._piece)
        return self._note(at, "begins", then)

    def _body(self, scene: Scene, at: int) -> Iterator[Move]:
        call = scene.calls[at]
        ends = ("success", *self.setting.callers[at].ends)
        if call.asked:
            ends = (*ends, "stops")
        if call.hands is not None:
            ends = ("retry",)
        for end in ends:
            if end == "retry" and call.hands is None:
                continue
            then = scene.with_call(at, stands=STORED, end=end)
            text = {"success": "stores its result", "stops": "stops"}.get(end, f"ends: {end}")
            if end not in ("success", "failure", "retry", "stops"):
                owed = end in ("back", "killed") and self.setting.acks_late
                then = then.with_call(at, spared=True, owed=owed)
            elif end != "retry":
                then = then.with_call(at, outcomes=call.outcomes + 1)
            promises.check_outcome(self.setting, then, at)
            leaving = ending.Leaving(
                holds_until_result=self._is_marked(at), process_ends=end == "killed", is_traced=True
            )
            if ending.moment_of(leaving) is ending.Moment.NOW and not scene.down:
                then = self._released(then, at)
            yield self._note(at, text, then)
        if scene.losses:
            lost = scene.with_call(at, stands=DEAD, spared=True)
            if self.setting.acks_late:
                lost = lost.with_call(at, deliveries=(*call.deliveries, Delivery(again=True)))
            yield self._note(at, "is lost", lost._replace(losses=scene.losses - 1))

    def _let_go(self, scene: Scene, at: int) -> Iterator[Move]:
        if scene.down:
            then = scene.with_call(at, stands=DEAD, spared=True)
            yield self._note(at, "cannot release", self._redelivered(then, at))
        else:
            then = self._released(scene, at).with_call(at, stands=OVER)
            yield self._note(at, "lets go", self._redelivered(then, at))

    def _released(self, scene: Scene, at: int) -> Scene:
        """Apply the tables of endings to what a call holds."""
        call, mode = scene.calls[at], self._mode
        celery_state, raised = _ENDS[call.end]
        rejections = (Raised.REJECT, Raised.REJECT_TO_QUEUE)
        end = ending.ending_of(
            replace(
                ENDED,
                state=call.state,
                celery_state=celery_state,
                rejection=raised if raised in rejections else Raised.NOTHING,
                process_ends=raised is Raised.PROCESS_END,
                retry_is_out=call.hands is not None,
                acks_late=self.setting.acks_late,
            )
        )
        gives_back = call.brought and not mode.own_queue_key
        remains = self._remains(at, state=call.state, ending=end, can_give_back=gives_back)
        then, piece = scene, self._piece(at)
        if scene.markers[piece] == (at, Role.RUNNING):
            role = ending.marker_after(remains)
            then = then.with_marker(piece, None if role is None else (at, role))
        keys = ending.keys_after(remains)
        if then.reserved == (at, Role.RUNNING):
            held = {
                Keys.RELEASE: None,
                Keys.HAND_OVER: (call.hands, Role.QUEUED),
                Keys.GIVE_BACK: (at, Role.QUEUED),
                Keys.KEEP_FOR_WINDOW: (at, Role.FINISHED),
                Keys.KEEP_FOR_MINIMUM: (at, Role.RUNNING),
            }[keys]
            then = then._replace(reserved=held)
            if keys is Keys.HAND_OVER:
                then = then.with_call(at, frees=call.hands)
        return then.without((at, Role.RUNNING), "lock", "beside")

    def _redelivered(self, scene: Scene, at: int) -> Scene:
        call = scene.calls[at]
        then = scene.with_call(at, end="")
        comes_again = call.end in ("back", "killed") and self.setting.acks_late
        if not comes_again:
            return then
        return then.with_call(at, deliveries=(*call.deliveries, Delivery(again=True)))

    def _freed(self, scene: Scene, at: int) -> Scene:
        """Free a lock that was handed over, if its message will not take it over any more."""
        to = scene.calls[at].frees
        assert to is not None
        marker = scene.markers[self._piece(to)]
        then = scene.with_call(at, frees=None)
        unused = marker is not None and marker[1] is not Role.QUEUED
        return then.without((to, Role.QUEUED), "reserved") if unused else then

    def _remains(self, at: int, **what: Any) -> ending.Remains:
        return replace(
            REMAINS,
            for_tick=self.setting.callers[at].tick is not None,
            held_in_body=self._mode.in_body,
            has_window=self._mode.for_window,
            **what,
        )

    # Faults.

    def _faults(self, scene: Scene, at: int) -> Iterator[Move]:
        call = scene.calls[at]
        piece = self._piece(at)
        queued = [n for n, one in enumerate(call.deliveries) if one.phase == "queued"]
        if call.revoking:
            then = scene.with_call(at, revoking=False).without((at, Role.QUEUED), "reserved")
            yield self._note(at, "its lock is freed", then)
        may_be_revoked = call.brought and not scene.down and call.stands == WAITS
        if scene.revokes and may_be_revoked and queued and scene.markers[piece] is None:
            gone = scene.with_marker(piece, (at, Role.REVOKED))
            gone = gone.with_call(at, spared=True, revoked=True, revoking=True)
            yield self._note(at, "revoked", gone._replace(revokes=scene.revokes - 1))
        alone = len(call.deliveries) == 1 and queued and call.stands == WAITS
        if scene.expires and alone and scene.markers[piece] is None:
            gone = scene.with_call(at, stands=OVER, deliveries=(), spared=True, revoking=True)
            yield self._note(at, "expires", gone._replace(expires=scene.expires - 1))
        may_come_twice = self._is_marked(at) and len(call.deliveries) == 1 and queued
        if scene.twice and may_come_twice and call.stands == WAITS:
            more = scene.with_call(at, deliveries=(*call.deliveries, Delivery()))
            yield self._note(at, "is delivered twice", more._replace(twice=scene.twice - 1))

    def _without(self, scene: Scene, at: int) -> Scene:
        then, piece = (
            scene.without((at, Role.RUNNING), "reserved", "lock", "beside"),
            self._piece(at),
        )
        if then.markers[piece] == (at, Role.RUNNING):
            then = then.with_marker(piece, None)
        return then.with_call(at, stands=WAITS if then.calls[at].deliveries else OVER)

    # What is known.

    @property
    def _mode(self) -> Any:
        return MODES[self.setting.mode]

    def _piece(self, at: int) -> int:
        tick = self.setting.callers[at].tick
        return at if tick is None else len(self.setting.callers) + tick

    def _is_marked(self, at: int) -> bool:
        return bool(self._mode.at_publish) or self.setting.callers[at].tick is not None

    def _is_of_the_same_task(self, at: int, holder: int) -> bool:
        return self.setting.callers[at].task == self.setting.callers[holder].task

    def _is_copy(self, at: int, holder: int) -> bool:
        tick = self.setting.callers[at].tick
        return holder != at and tick is not None and tick == self.setting.callers[holder].tick

    def _who(self, scene: Scene, at: int, holder: int) -> Holder:
        callers = self.setting.callers
        if promises.root(callers, at) == promises.root(callers, holder):
            return Holder.ITSELF
        if scene.calls[at].after == holder:
            return Holder.PREDECESSOR
        return Holder.SENDER if callers[at].by == holder else Holder.OTHER

    def _may_be_skipped(self, at: int, holder: int, role: Role) -> bool:
        mine, theirs = self.setting.callers[at].tick, self.setting.callers[holder].tick
        if mine is None or theirs is None or not self.setting.deadlines:
            return False
        return role is Role.QUEUED and theirs < mine

    def _followers_are_sent(self, scene: Scene, at: int) -> bool:
        callers = zip(self.setting.callers, scene.calls, strict=True)
        return all(call.stands != UNSENT for caller, call in callers if caller.by == at)

    def _note(self, at: int, what: str, then: Scene, *, idle: bool = False) -> Move:
        self.reached.add(what)
        return Move(f"{NAMES[at]}: {what}", then, idle)
