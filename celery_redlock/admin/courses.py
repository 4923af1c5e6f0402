"""
The course of a call, as the rules about messages decide it, without a message and without a node.

`Call` has the facts that a publisher and a worker collect (`tasks/publish/unique_publish.py`,
`tasks/run/arrival_facts.py`), here for another call while a first one is in a `State`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from celery_redlock.tasks.config.options import LockOptions
from celery_redlock.tasks.rules import arrival, ending, publish
from celery_redlock.tasks.rules.arrival import Action, Arrival, Contention, InPlace, Waiting
from celery_redlock.tasks.rules.ending import (
    CeleryState,
    Ended,
    Ending,
    Keys,
    Leaving,
    Moment,
    Remains,
)
from celery_redlock.tasks.rules.ending import State as Progress
from celery_redlock.tasks.rules.facts import (
    Burst,
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
    Row,
    Unavailable,
    first_match,
)
from celery_redlock.tasks.rules.publish import Duplicate, Publish, TickState

#: After these steps of a publisher there is no message that a worker could receive.
NOT_SENT = frozenset({Publish.REFUSE, Publish.FAIL, Publish.DROP, Publish.DROP_TICK})


class Stage(Enum):
    """How far the first call has come."""

    QUEUED = "queued"  #: its message waits for a worker
    RUNNING = "running"
    KEPT = "kept"  #: its body has ended, and its key stays taken
    PAUSED = "paused"  #: as `FREE`, while its key is paused
    FREE = "free"  #: it has ended and has no key any more


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """
    The first call in one stage.

    Attributes:
        stage: how far it has come.
        role: the role of the key's holder.
        at_publish: whether the key that a publisher takes is taken.
        at_run: whether a key that a worker takes is taken.
    """

    stage: Stage
    role: Role
    at_publish: bool
    at_run: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """
    One decision.

    Attributes:
        action: what follows.
        rule: the row of the table that decides.
        tries: whether the worker first tries to get the key, for `lock_wait`.
        gives_up: whether it is decided only once `lock_give_up_after` is over.
    """

    action: Publish | Action
    rule: str
    tries: bool = False
    gives_up: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """
    The decisions about one call, in their order.

    Attributes:
        option: the option whose function was asked; empty if none was.
        answer: the policy that the function returned.
        steps: the decisions.
    """

    steps: tuple[Step, ...]
    option: str = ""
    answer: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """
    Another call of a task.

    Attributes:
        options: the options of its task.
        marks_messages: whether each message has a dedupe marker.
        acks_late: whether a message is acknowledged after the body.
        failure_is_final: a failed task's message is acknowledged, not rejected.
        is_limit: all slots of a key with a limit or a rate are taken.
        has_rate: one of its keys has a rate, so that a pause refuses its publisher as well.
        same_work: the first call is of the same task and has all keys.
        has_dependents: another program waits for its message, or something is to follow it.
    """

    options: LockOptions
    marks_messages: bool
    acks_late: bool
    failure_is_final: bool
    is_limit: bool = False
    has_rate: bool = False
    same_work: bool = True
    has_dependents: bool = False

    def states(self) -> tuple[State, ...]:
        """Return the stages of the first call, which its mode and options decide."""
        mode = self.options.mode_spec
        in_body = State(
            stage=Stage.RUNNING,
            role=Role.RUNNING,
            at_publish=mode.at_publish and mode.held_in_body,
            at_run=mode.in_body,
        )
        kept = {
            Keys.KEEP_FOR_WINDOW: (replace(in_body, stage=Stage.KEPT, role=Role.FINISHED),),
            Keys.KEEP_FOR_MINIMUM: (replace(in_body, stage=Stage.KEPT),),
        }
        return (
            State(
                stage=Stage.QUEUED,
                role=Role.QUEUED,
                at_publish=mode.at_publish,
                at_run=mode.at_publish,
            ),
            in_body,
            *kept.get(self.keys_after(), ()),
            State(stage=Stage.PAUSED, role=Role.QUEUED, at_publish=self.has_rate, at_run=True),
            State(stage=Stage.FREE, role=Role.FINISHED, at_publish=False, at_run=False),
        )

    def courses(self, state: State) -> tuple[Course, ...]:
        """Return the course of this call; several if a function decides."""
        found = []
        for course in self._published(state):
            (step,) = course.steps
            sent = step.action
            if not isinstance(sent, Publish) or sent in NOT_SENT:
                found.append(course)
                continue
            # A worker asks the function again, and gets the same answer.
            options = self.options
            if course.answer:
                options = replace(options, on_duplicate=course.answer)
            for received in replace(self, options=options)._received(state, sent):
                asked = received if received.option else course
                found.append(replace(asked, steps=(step, *received.steps)))
        return tuple(found)

    def by_age(self, order: Order, role: Role) -> tuple[Course, ...]:
        """Return the course of a call in a worker that finds one of this age and role there."""
        facts = self._contention(Obstacle.LOCK, role=role)
        return tuple(self._on_contention(replace(facts, order=order)))

    def without_quorum(self) -> tuple[Course, ...]:
        """Return the course of a call while fewer nodes than a quorum reply."""
        at_publish = self.options.mode_spec.at_publish
        sent = Step(
            action=Publish.SEND_UNDECIDED if at_publish else Publish.SEND,
            rule="no quorum replies" if at_publish else "its mode takes no key at publish",
        )
        return tuple(
            replace(course, steps=(sent, *course.steps))
            for course in self._on_contention(
                self._contention(Obstacle.NO_QUORUM, role=Role.QUEUED)
            )
        )

    def redelivery(self, *, has_ended: bool) -> tuple[Course, ...]:
        """
        Return the course of a message that the broker delivers a second time.

        Args:
            has_ended: its first delivery has ended; otherwise that one still has its keys.
        """
        role = Role.RUNNING
        if has_ended:
            marker = ending.marker_after(self._remains())
            if marker is None or not self.marks_messages:
                again = replace(self._arrival(), may_have_begun=self.acks_late)
                return tuple(_decisions(arrival.ARRIVALS, again))
            role = marker
        obstacle = Obstacle.MARKER if self.marks_messages else Obstacle.LOCK
        facts = self._contention(obstacle, role=role, holder=Holder.ITSELF)
        return tuple(self._on_contention(replace(facts, may_have_begun=self.acks_late)))

    def keys_after(self, ended: Ending = Ending.DONE) -> Keys:
        """Return what becomes of the keys of a body that ends like this."""
        return ending.keys_after(self._remains(ended))

    def keys_after_failure(self) -> Keys:
        """Return what becomes of the keys of a body that raises an exception."""
        ended = Ended(
            state=Progress.RUNNING,
            celery_state=CeleryState.FAILURE,
            rejection=Raised.NOTHING,
            process_ends=False,
            retry_is_out=False,
            acks_late=self.acks_late,
            failure_is_final=self.failure_is_final,
            eager=False,
        )
        return self.keys_after(ending.ending_of(ended))

    def keys_after_retry(self) -> Keys:
        """Return what becomes of the keys of a body that sends a retry."""
        mode = self.options.mode_spec
        hands_over = mode.at_publish and mode.held_in_body
        state = Progress.HANDED_OVER if hands_over else Progress.CONTINUED
        return ending.keys_after(replace(self._remains(), state=state))

    @property
    def holds_until_result(self) -> bool:
        """Whether the keys are held until the result is stored, not only while the body runs."""
        leaving = Leaving(
            holds_until_result=self.marks_messages, process_ends=False, is_traced=True
        )
        return ending.moment_of(leaving) is Moment.AT_POSTRUN

    @property
    def missed(self) -> Course:
        """The course of a scheduled run that a worker receives after its starting deadline."""
        late = replace(self._arrival(), missed_deadline=True)
        (course,) = _decisions(arrival.ARRIVALS, late)
        return course

    def _published(self, state: State) -> Iterator[Course]:
        if not self.options.mode_spec.at_publish:
            rule = "its mode takes no key at publish"
            yield Course(steps=(Step(action=Publish.SEND, rule=rule),))
        elif not state.at_publish:
            yield from _decisions(publish.TICKS, TickState(tick=None))
        else:
            duplicate = self._duplicate(state)
            if state.stage is Stage.PAUSED:  # which, to a publisher, is a holder that is no task
                duplicate = replace(
                    duplicate, holder=Holder.FOREIGN, same_work=False, is_limit=False
                )
            yield from _decisions(publish.DUPLICATES, duplicate)

    def _received(self, state: State, sent: Publish) -> Iterator[Course]:
        """Iterate over the courses of the message in a worker."""
        names_original = sent is Publish.SEND_AS_DUPLICATE
        is_over = state.stage in (Stage.KEPT, Stage.FREE)
        evidence = Evidence.FINISHED if is_over else Evidence.UNDER_WAY
        facts = replace(self._arrival(), names_original=names_original, evidence=evidence)
        for course in _decisions(arrival.ARRIVALS, facts):
            (step,) = course.steps
            # A replaced message has no key any more, so its successor finds none taken.
            is_taken = state.at_run and sent is not Publish.REPLACE
            if step.action is not Action.TAKE or not is_taken:
                yield course
                continue
            mode = self.options.mode_spec
            is_queue_key = mode.own_queue_key and state.stage is Stage.QUEUED
            at_run = mode.waits_at_run and not is_queue_key
            contention = self._contention(
                Obstacle.LOCK if at_run else Obstacle.RESERVED,
                role=state.role,
                holder=Holder.PAUSE if state.stage is Stage.PAUSED else Holder.OTHER,
                brought_lock=sent is Publish.SEND_WITH_LOCK,
            )
            yield from self._on_contention(contention)

    def _on_contention(self, facts: Contention) -> Iterator[Course]:
        """Iterate over the courses of a message that does not get its lock and marker."""
        row = first_match(arrival.CONTENTION, facts)
        if row.then is Need.POLICY:
            is_lock = facts.obstacle is Obstacle.LOCK
            option = "lock_on_conflict" if is_lock else "lock_on_duplicate"
            for policy in _names(ConflictPolicy if is_lock else DuplicatePolicy):
                answered = {"at_run" if is_lock else "at_publish": policy}
                for course in self._on_contention(replace(facts, **answered)):
                    yield replace(course, option=option, answer=policy.value)
            return
        step = Step(action=Action(row.then), rule=row.name, tries=self._tries(facts, row))
        yield Course(steps=(step, *(_waits(facts) if step.action is Action.WAIT else ())))

    def _tries(self, facts: Contention, row: Row[Contention, Action | Need]) -> bool:
        """Return whether a worker tries for `lock_wait` before it does what the row decides."""
        if facts.obstacle in (Obstacle.NO_QUORUM, Obstacle.MARKER) or self.options.wait == 0:
            return False
        return arrival.waits_in_place(
            InPlace(
                is_final=arrival.is_final(facts),
                is_requeued=row.then is Action.WAIT,
                is_newer=row.then in (Action.REQUEST_STOP, Action.OVERTAKE),
                eager=False,
                wait_is_set=self.options.wait is not None,
                goes_later=False,
                is_far_behind=False,
                is_held_long=True,
            )
        )

    def _duplicate(self, state: State) -> Duplicate:
        return Duplicate(
            split=False,
            holder=Holder.OTHER,
            role=state.role,
            same_work=self.same_work and not self.is_limit,
            is_limit=self.is_limit,
            holder_has_ended=False,
            has_waited=False,
            has_dependents=self.has_dependents,
            continues=False,
            policy=DuplicatePolicy.of(self.options.on_duplicate),
            holder_may_be_skipped=False,
            held_in_body=self.options.mode_spec.held_in_body,
            burst=Burst.NONE if self.options.debounce is None else Burst.OPEN,
        )

    def _arrival(self) -> Arrival:
        return Arrival(
            missed_deadline=False,
            continues=False,
            may_have_begun=False,
            names_original=False,
            evidence=Evidence.UNREAD,
            policy=DuplicatePolicy.of(self.options.on_duplicate),
            from_leader=False,
            brought_lock=False,
            record=Record.UNREAD,
        )

    def _contention(
        self,
        obstacle: Obstacle,
        *,
        role: Role,
        holder: Holder = Holder.OTHER,
        brought_lock: bool = False,
    ) -> Contention:
        mode, is_task = self.options.mode_spec, holder is not Holder.PAUSE
        return Contention(
            obstacle=obstacle,
            split=False,
            holder=holder,
            role=role,
            order=Order.OLDER if is_task else Order.UNKNOWN,
            same_work=is_task and self.same_work and not self.is_limit,
            same_message=holder is Holder.ITSELF,
            holds_until_result=self.marks_messages,
            holder_may_be_skipped=False,
            holder_is_newer=False,
            locks_at_publish=mode.at_publish,
            for_window=mode.for_window,
            brought_lock=brought_lock,
            continues=False,
            may_have_begun=False,
            has_retaken=False,
            has_taken_over=False,
            may_be_rejected=self.acks_late,
            at_publish=DuplicatePolicy.of(self.options.on_duplicate),
            at_run=ConflictPolicy.of(self.options.on_conflict),
            unavailable=Unavailable(self.options.on_unavailable),
            eager=False,
        )

    def _remains(self, ended: Ending = Ending.DONE) -> Remains:
        mode = self.options.mode_spec
        return Remains(
            ending=ended,
            state=Progress.RUNNING,
            unrun_as=None,
            for_tick=False,
            held_in_body=mode.in_body,
            can_give_back=False,
            has_window=self.options.window is not None,
            window_is_over=False,
            has_minimum=self.options.at_least_for > 0,
        )


def _decisions(table: tuple[Row[Any, Any], ...], facts: Any) -> Iterator[Course]:
    """
    Iterate over what a table decides: one course, or one for each answer of a function.

    Such a call has all facts that the rules need, but for the policy.
    """
    row = first_match(table, facts)
    if row.then is Need.POLICY:
        for policy in _names(DuplicatePolicy):
            for course in _decisions(table, replace(facts, policy=policy)):
                yield replace(course, option="lock_on_duplicate", answer=policy.value)
    else:
        yield Course(steps=(Step(action=row.then, rule=row.name),))


def _waits(facts: Contention) -> Iterator[Step]:
    """Iterate over the decisions about a message that needs its lock later: now, and at the end."""
    for gives_up in (False, True):
        waiting = Waiting(
            eager=False,
            is_exhausted=gives_up,
            is_refused=facts.obstacle is not Obstacle.NO_QUORUM,
            is_registered=True,
        )
        row = first_match(arrival.REQUEUES, waiting)
        yield Step(action=row.then, rule=row.name, gives_up=gives_up)


def _names(policies: type[DuplicatePolicy] | type[ConflictPolicy]) -> Iterable[Any]:
    """Return the policies that a function may answer."""
    return [policy for policy in policies if policy.value != "function"]
