"""
Calls with one key, as states and moves.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from celery_redlock.tasks.rules import arrival, publish
from celery_redlock.tasks.rules.arrival import Arrival, Conflict, Repetition, Sighting
from celery_redlock.tasks.rules.facts import Holder, Role
from celery_redlock.tasks.rules.publish import Occupied, Publish
from tests.models.calls import Caller, CallSetting
from tests.models.explorer import Label, State, ViolationError
from tests.models.state import NAMES, Table

_UNSENT, _WAITS, _RUNS, _STORED, _OVER = "unsent", "waits", "runs", "stored", "over"


@dataclass(frozen=True, slots=True)
class Call:
    """
    What has become of a call.

    Attributes:
        stands: where its task is; `stored`: its result is readable, and the key not yet free.
        copies: its messages on their way.
        mark: what its message's mark says.
        brought: it was sent with the lock.
        repeats: the call that it was sent as a duplicate of.
        after: the call whose end its sender knew of.
        bodies: how many of its bodies have begun.
        spared: by a fault it need not run, or may run twice.
        first: the call that had the key, and had not ended, when it was sent.
        sent: how many calls had been sent before.
        served: calls whose body was under way when it was sent, or began since.
        replaced_by: the call that took its place.
        stands_for: the call that its caller was referred to.
    """

    stands: str = _UNSENT
    copies: int = 0
    mark: Role | None = None
    brought: bool = False
    repeats: int | None = None
    after: int | None = None
    bodies: int = 0
    spared: bool = False
    first: int | None = None
    sent: int = 0
    served: frozenset[int] = frozenset()
    replaced_by: int | None = None
    stands_for: int | None = None


@dataclass(frozen=True, slots=True)
class Scene:
    """All calls, the key (whose, and as what), and what is left of each budget."""

    calls: tuple[Call, ...]
    key: tuple[int, Role] | None
    revokes: int
    expires: int
    losses: int
    twice: int

    def with_call(self, at: int, **changes: object) -> Scene:
        call = replace(self.calls[at], **changes)  # type: ignore[arg-type]
        return replace(self, calls=(*self.calls[:at], call, *self.calls[at + 1 :]))

    def without_key_of(self, at: int) -> Scene:
        return replace(self, key=None) if self.key is not None and self.key[0] == at else self


Move = tuple[str, Scene]


@dataclass(slots=True)
class Calls:
    """The model of one setting."""

    setting: CallSetting
    reached: set[str] = field(default_factory=set)
    _scenes: Table = field(default_factory=Table)

    def initial(self) -> State:
        setting = self.setting
        scene = Scene(
            (Call(),) * len(setting.callers),
            None,
            setting.revokes,
            setting.expires,
            setting.losses,
            setting.twice,
        )
        return (self._scenes.number(scene),)

    def moves(self, state: State) -> Iterator[tuple[State, Label, tuple[int, ...]]]:
        scene: Scene = self._scenes.things[state[0]]
        ended = True
        for text, then in self._moves(scene):
            ended = False
            yield (self._scenes.number(then),), (text, ()), ()
        if ended:
            self._check_end(scene)

    def _moves(self, scene: Scene) -> Iterator[Move]:
        for at, call in enumerate(scene.calls):
            name = NAMES[at]
            if call.stands == _UNSENT and self._may_be_sent(scene, self.setting.callers[at]):
                yield from self._publish(scene, at)
            if call.copies:
                yield from self._deliver(scene, at)
            if call.stands == _RUNS:
                yield self._note(name, "stores its result", scene.with_call(at, stands=_STORED))
                if scene.losses:
                    lost = scene.with_call(at, stands=_OVER, mark=None, spared=True)
                    lost = replace(lost, losses=scene.losses - 1).without_key_of(at)
                    yield self._note(name, "is lost", lost)
            if call.stands == _STORED and self._has_sent_what_follows(scene, at):
                done = scene.with_call(at, stands=_OVER, mark=Role.FINISHED).without_key_of(at)
                yield self._note(name, "lets go", done)
            if call.stands == _WAITS:
                yield from self._faults(scene, at)

    def _faults(self, scene: Scene, at: int) -> Iterator[Move]:
        call, name = scene.calls[at], NAMES[at]
        waits_with_key = scene.key == (at, Role.QUEUED) and call.mark is None
        if scene.revokes and waits_with_key:
            gone = scene.with_call(at, mark=Role.REVOKED, spared=True).without_key_of(at)
            yield self._note(name, "revoked", replace(gone, revokes=scene.revokes - 1))
        if scene.expires and call.mark is None and call.copies == 1:
            gone = scene.with_call(at, stands=_OVER, copies=0, spared=True)
            gone = gone if scene.key != (at, Role.QUEUED) else gone.without_key_of(at)
            yield self._note(name, "expires", replace(gone, expires=scene.expires - 1))
        if scene.twice and call.copies == 1:
            more = replace(scene.with_call(at, copies=2), twice=scene.twice - 1)
            yield self._note(name, "is delivered twice", more)

    def _may_be_sent(self, scene: Scene, caller: Caller) -> bool:
        return caller.by is None or scene.calls[caller.by].stands == _STORED

    def _has_sent_what_follows(self, scene: Scene, at: int) -> bool:
        callers = zip(self.setting.callers, scene.calls, strict=True)
        return all(call.stands != _UNSENT for caller, call in callers if caller.by == at)

    def _publish(self, scene: Scene, at: int) -> Iterator[Move]:
        sent = 1 + max(call.sent for call in scene.calls)
        under_way = {n for n, call in enumerate(scene.calls) if call.stands == _RUNS}
        changes = {"stands": _WAITS, "copies": 1, "sent": sent, "served": frozenset(under_way)}
        if scene.key is None:
            then = replace(scene, key=(at, Role.QUEUED)).with_call(at, brought=True, **changes)
            yield self._note(NAMES[at], "sent with the lock", then)
            return
        holder, role = scene.key
        ended = scene.calls[holder].stands == _STORED
        first = None if ended else holder
        for awaited in (False, True):
            choice = publish.decide(self._occupied(at, holder, role, ended=ended, awaited=awaited))
            if choice is not Publish.AWAIT_RELEASE:
                break
        yield self._sent(scene, at, choice, {**changes, "first": first})

    def _occupied(
        self, at: int, holder: int, role: Role, *, ended: bool, awaited: bool
    ) -> Occupied:
        caller = self.setting.callers[at]
        return Occupied(
            split=False,
            holder=Holder.SENDER if caller.by == holder else Holder.OTHER,
            role=role,
            same_work=True,
            ended=ended,
            awaited=awaited,
            tied=caller.tied,
            continues=False,
            policy=caller.policy,
            may_be_skipped=False,
            held_in_body=not self.setting.frees_at_start,
        )

    def _sent(self, scene: Scene, at: int, choice: Publish, changes: dict[str, object]) -> Move:
        assert scene.key is not None
        name, (holder, _) = NAMES[at], scene.key
        if choice in (Publish.DROP, Publish.REFUSE):
            text = "dropped" if choice is Publish.DROP else "refused"
            if self.setting.callers[at].tied:
                raise ViolationError((f"{name}: {text}", ()), "somebody waits for it for ever")
            return self._note(
                name,
                text,
                scene.with_call(
                    at, **{**changes, "stands": _OVER, "copies": 0, "stands_for": holder}
                ),
            )
        if choice is Publish.REPLACE:
            older = scene.calls[holder]
            then = scene.with_call(at, brought=True, **changes)
            then = then.with_call(holder, mark=older.mark or Role.REPLACED, replaced_by=at)
            return self._note(name, "replaces", replace(then, key=(at, Role.QUEUED)))
        if choice is Publish.SEND_AFTER:
            return self._note(name, "sent after", scene.with_call(at, after=holder, **changes))
        if choice is Publish.SEND_AS_DUPLICATE:
            then = scene.with_call(at, repeats=holder, **changes)
            return self._note(name, "sent as a duplicate", then)
        return self._note(name, "sent without the lock", scene.with_call(at, **changes))

    def _deliver(self, scene: Scene, at: int) -> Iterator[Move]:
        call, name = scene.calls[at], NAMES[at]
        taken = {"copies": call.copies - 1}
        if call.mark is Role.REPLACED or call.mark is Role.REVOKED:
            says = Role.FINISHED if call.mark is Role.REPLACED else Role.FAILED
            yield self._note(
                name, "stands back", scene.with_call(at, stands=_OVER, mark=says, **taken)
            )
        elif call.mark is not None and call.mark.is_over:
            yield self._note(name, "ignored as a copy", scene.with_call(at, **taken))
        elif call.mark is None:
            yield from self._take(scene, at, taken)

    def _take(self, scene: Scene, at: int, taken: dict[str, object]) -> Iterator[Move]:
        call, caller, name = scene.calls[at], self.setting.callers[at], NAMES[at]
        over = {**taken, "stands": _OVER, "mark": Role.FINISHED}
        if call.repeats is not None:
            choice = arrival.decide(Repetition(self._evidence(scene, call.repeats), caller.policy))
            if choice in (Arrival.SKIP, Arrival.FAIL):
                text = "skipped" if choice is Arrival.SKIP else "failed"
                then = scene.with_call(at, stands_for=call.repeats, **over)
                self._check_skip(scene, at, call.repeats)
                yield self._note(name, f"{text} as a repetition", then)
            if choice is not Arrival.TAKE:
                return
        if scene.key is None or scene.key == (at, Role.QUEUED):
            yield self._begin(scene, at, taken)
            return
        holder, role = scene.key
        if holder in (at, call.after):
            return
        choice = arrival.settle(
            Conflict(
                is_task=True,
                role=role,
                same_work=True,
                brought_lock=call.brought,
                has_begun=False,
                policy=caller.policy,
                may_be_skipped=False,
            )
        )
        if choice is not Arrival.REQUEUE:
            then = scene.with_call(at, stands_for=holder, **over)
            yield self._note(name, f"ends as {choice.name}", then)

    def _evidence(self, scene: Scene, first: int) -> arrival.Evidence:
        role = scene.key[1] if scene.key is not None and scene.key[0] == first else None
        return arrival.evidence_of([Sighting(mark=scene.calls[first].mark, key=role)], 1)

    def _begin(self, scene: Scene, at: int, taken: dict[str, object]) -> Move:
        call = scene.calls[at]
        then = scene.with_call(at, stands=_RUNS, mark=Role.RUNNING, bodies=call.bodies + 1, **taken)
        then = replace(then, key=None if self.setting.frees_at_start else (at, Role.RUNNING))
        for other, served in enumerate(then.calls):
            if served.stands != _UNSENT:
                then = then.with_call(other, served=served.served | {at})
        self._check_body(then, at)
        return self._note(NAMES[at], "begins", then)

    def _check_body(self, scene: Scene, at: int) -> None:
        label: Label = (f"{NAMES[at]}: begins", ())
        call = scene.calls[at]
        if call.bodies > 1 and not call.spared:
            raise ViolationError(label, "one message ran twice")
        if call.replaced_by is not None:
            raise ViolationError(label, "a call ran that a newer one had replaced")
        pairs = [(at, first) for first in self._first_and_heirs(scene, at)]
        pairs += [(n, at) for n in self._repeaters(scene, at)]
        for later, first in pairs:
            if self._both_ran(scene, later, first):
                raise ViolationError(label, "a call and its duplicate both ran")

    def _repeaters(self, scene: Scene, at: int) -> list[int]:
        return [n for n, call in enumerate(scene.calls) if at in self._first_and_heirs(scene, n)]

    def _first_and_heirs(self, scene: Scene, at: int) -> list[int]:
        found, first = [], scene.calls[at].first
        while first is not None and first != at:
            found.append(first)
            first = scene.calls[first].replaced_by
        return found

    def _both_ran(self, scene: Scene, later: int, first: int) -> bool:
        if self.setting.callers[later].policy == "replace":
            return False  # it replaces what waits, and follows what runs
        ran = scene.calls[first].bodies and not scene.calls[first].spared
        return bool(ran and scene.calls[later].bodies)

    def _check_skip(self, scene: Scene, at: int, first: int) -> None:
        call = scene.calls[first]
        if call.spared and not call.bodies and call.replaced_by is None:
            label = (f"{NAMES[at]}: ends as a repetition", ())
            raise ViolationError(label, "it ended for a call that never runs")

    def _check_end(self, scene: Scene) -> None:
        for at, call in enumerate(scene.calls):
            label: Label = (f"nothing is left to do, and {NAMES[at]} {call.stands}", ())
            if call.stands == _WAITS and call.copies:
                raise ViolationError(label, "a message waits for ever")
            if call.stands == _UNSENT or call.bodies or call.spared:
                continue
            doer = self._doer(scene, at)
            if doer is None or not self._serves(scene, at, doer):
                raise ViolationError(label, "a call was lost")

    def _doer(self, scene: Scene, at: int) -> int | None:
        """Return the call that does a call's work in its place."""
        place: int | None = at
        seen = set()
        while place is not None and place not in seen:
            seen.add(place)
            call = scene.calls[place]
            if call.bodies or call.spared:
                return place
            place = call.stands_for if call.replaced_by is None else call.replaced_by
        return None

    def _serves(self, scene: Scene, at: int, doer: int) -> bool:
        call, by = scene.calls[at], scene.calls[doer]
        if self.setting.callers[at].policy == "replace" and by.sent < call.sent:
            return False
        # Who shares the work shares its fate.
        return by.spared or doer in call.served

    def _note(self, name: str, what: str, then: Scene) -> Move:
        self.reached.add(what)
        return f"{name}: {what}", then
