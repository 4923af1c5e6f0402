"""
What is explored of the rules themselves: every combination of the facts, table by table.

A table is total, each of its rows decides somewhere, and whatever the facts are the decision keeps
to what is promised.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from celery_redlock.tasks.rules import arrival, ending, publish
from celery_redlock.tasks.rules.arrival import Action
from celery_redlock.tasks.rules.ending import Ending, Keys, Moment, State
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
)
from celery_redlock.tasks.rules.publish import Publish
from evidence.models.explorer import AnySetting

#: What holds for every decision of a table, given the facts: by its text in a violation.
Promises = dict[str, Callable[[Any, Any], bool]]


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSetting(AnySetting):
    """
    A table to explore.

    Attributes:
        rows: the shipped table.
        facts: the type of its facts.
        promises: what its decisions keep to.
        possible: whether callers ever find such facts. A table is total over all others as well.
    """

    model: ClassVar = "evidence.models.tabulating:Rules"
    rows: tuple[Row[Any, Any], ...]
    facts: type
    promises: Promises
    possible: Callable[[Any], bool] = lambda _: True


def _possible_at_publish(c: publish.Duplicate) -> bool:
    if c.holder is Holder.PREDECESSOR:
        return False  # who has ended is known by `holder_has_ended`
    if c.holder is Holder.PAUSE:
        return False  # it is a foreign holder here
    if c.holder is Holder.FOREIGN and (c.role is not Role.QUEUED or c.holder_has_ended):
        return False
    if c.holder_has_ended and (c.role is not Role.RUNNING or not c.same_work or c.split):
        return False
    if c.is_limit and c.same_work:
        return False  # one of several holders does not do the work of the call
    if c.burst is not Burst.NONE and (
        (c.policy is not DuplicatePolicy.REPLACE or c.held_in_body or c.is_limit or c.continues)
        or (c.role not in (Role.QUEUED, Role.RUNNING) or c.holder_may_be_skipped)
    ):
        return False
    if c.burst is Burst.DUE and c.role is not Role.QUEUED:
        return False
    return not c.holder_may_be_skipped or c.role is Role.QUEUED


def _possible_at_run(c: arrival.Contention) -> bool:
    if c.holder_is_newer and (
        c.split
        or not (c.same_work and c.locks_at_publish and c.role is Role.QUEUED)
        or c.holder in (Holder.FOREIGN, Holder.PAUSE)
        or c.obstacle is not Obstacle.RESERVED
        or (c.eager or c.for_window or c.continues)
        or c.at_publish is not DuplicatePolicy.REPLACE
        or c.holder_may_be_skipped
    ):
        return False
    if c.has_taken_over and (c.obstacle is not Obstacle.MARKER or not c.has_retaken):
        return False
    if c.obstacle in (Obstacle.NO_QUORUM, Obstacle.MARKER):
        return c.obstacle is Obstacle.NO_QUORUM or not c.eager
    if c.obstacle is Obstacle.RESERVED and not c.locks_at_publish:
        return False
    if c.role not in (Role.QUEUED, Role.RUNNING) and not (
        c.role is Role.FINISHED and c.for_window and c.locks_at_publish
    ):
        return False
    if c.holder in (Holder.FOREIGN, Holder.COPY, Holder.PAUSE) and (
        c.role is not Role.QUEUED or (c.holder is not Holder.FOREIGN and c.split)
    ):
        return False
    return not c.holder_may_be_skipped or c.role is Role.QUEUED


_UNSENT = (Publish.DROP, Publish.REFUSE)
_AS_DUPLICATE = (Publish.SEND_AS_DUPLICATE, Publish.SEND_AFTER, Publish.REPLACE)
#: The message ends, and nothing of it comes again.
_ENDS = frozenset(arrival.MARKED_AS) | {Action.REJECT, Action.IGNORE, Action.DROP_AS_SUPERSEDED}
#: The message gives way to another one.
_GIVES_WAY = frozenset(
    {
        *(Action.SKIP, Action.FAIL_AS_DUPLICATE, Action.END_AS_REPLACED, Action.REJECT),
        *(Action.OVERTAKE, Action.REQUEST_STOP, Action.FAIL_NOT_REJECTED),
    }
)
_WAITS = frozenset({Action.WAIT, Action.REQUEUE_COPY, Action.REQUEST_STOP, Action.OVERTAKE})

_PUBLISH: Promises = {
    "a call that somebody depends on is sent": lambda c, then: (
        not c.has_dependents or then not in _UNSENT
    ),
    "a split vote drops, refuses and replaces nothing": lambda c, then: (
        not c.split or then is Publish.SEND_UNDECIDED
    ),
    "only another task of this package, with the same work, makes a duplicate": lambda c, then: (
        then not in (*_UNSENT, Publish.SEND_AS_DUPLICATE, Publish.REPLACE)
        or (c.same_work and c.holder in (Holder.OTHER, Holder.SENDER))
        # A call of a burst replaces an earlier one that has its id.
        or (c.same_work and c.holder is Holder.ITSELF and c.burst is not Burst.NONE)
    ),
    "a call after the holder's end is no duplicate": lambda c, then: (
        not c.holder_has_ended or then not in (*_UNSENT, Publish.SEND_AS_DUPLICATE, Publish.REPLACE)
    ),
    "work that has begun is sent, and is not a duplicate": lambda c, then: (
        not c.continues
        or then in (Publish.SEND, Publish.SEND_AFTER, Publish.AWAIT_RELEASE)
        or c.split
    ),
    "only a message that waits is replaced": lambda c, then: (
        then is not Publish.REPLACE or c.role is Role.QUEUED
    ),
    "a burst's last call is replaced only after a worker had time to begin it": lambda c, then: (
        then is not Publish.REPLACE or c.burst is not Burst.DUE or c.has_waited
    ),
    "a debounced call is sent": lambda c, then: c.burst is Burst.NONE or then not in _UNSENT,
    "under replace the newer call is sent, unless the holder only keeps the key": lambda c, then: (
        c.policy is not DuplicatePolicy.REPLACE
        or then not in _UNSENT
        or c.role not in (Role.QUEUED, Role.RUNNING)
    ),
    "a publisher waits once": lambda c, then: then is not Publish.AWAIT_RELEASE or not c.has_waited,
    "raise returns no result of another call": lambda c, then: (
        then is not Publish.DROP or c.policy is not DuplicatePolicy.RAISE
    ),
    "a function decides before its call is dropped or refused": lambda c, then: (
        then not in _UNSENT or c.policy is not DuplicatePolicy.FUNCTION
    ),
    "a tick is not dropped for one that may be skipped": lambda c, then: (
        not c.holder_may_be_skipped or then not in _UNSENT
    ),
    "a call beyond a limit is not a duplicate": lambda c, then: (
        not c.is_limit or then not in (*_UNSENT, *_AS_DUPLICATE)
    ),
    "a call beyond a limit is refused under raise only, if nothing depends on it": lambda c, then: (
        then is not Publish.FAIL
        or (
            c.is_limit
            and c.policy is DuplicatePolicy.RAISE
            and not c.has_dependents
            and not c.continues
        )
    ),
    "under raise a call beyond a limit is refused where that is safe": lambda c, then: (
        then is Publish.FAIL
        or not c.is_limit
        or c.policy is not DuplicatePolicy.RAISE
        or c.has_dependents
        or c.continues
        or c.split
        or c.holder is Holder.COPY
    ),
    "a publisher does not wait for a limit": lambda c, then: (
        not c.is_limit or then is not Publish.AWAIT_RELEASE
    ),
}

_ARRIVAL: Promises = {
    "a duplicate ends only for a call that does the work, or did": lambda a, then: (
        then not in (Action.SKIP, Action.FAIL_AS_DUPLICATE)
        or a.evidence in (Evidence.UNDER_WAY, Evidence.FINISHED, Evidence.REPLACED)
    ),
    "no deadline, newer leader or rule of duplicates ends work that has begun": lambda a, then: (
        not a.continues or then is Action.TAKE
    ),
    "a message that may have begun is no duplicate and not too late": lambda a, then: (
        not a.may_have_begun or then in (Action.TAKE, Need.RECORD, Action.DROP_AS_SUPERSEDED)
    ),
    "a tick that others gave way to is not dropped for a newer leader": lambda a, then: (
        then is not Action.DROP_AS_SUPERSEDED or not a.brought_lock
    ),
    "a tick is dropped only for a newer leader that sends it": lambda a, then: (
        then is not Action.DROP_AS_SUPERSEDED or (a.from_leader and a.record is Record.SUPERSEDED)
    ),
    "a tick that a newer leader sends does not run for the older one": lambda a, then: (
        then is not Action.TAKE
        or a.record is not Record.SUPERSEDED
        or not a.from_leader
        or a.continues
        or a.brought_lock
    ),
    "a late tick does not begin": lambda a, then: (
        then is not Action.TAKE or not a.missed_deadline or a.continues or a.may_have_begun
    ),
    "a duplicate of a call that does the work runs under replace only": lambda a, then: (
        then is not Action.TAKE
        or not a.names_original
        or a.continues
        or a.may_have_begun
        or a.evidence is Evidence.GONE
        or (
            a.policy is DuplicatePolicy.REPLACE
            and a.evidence in (Evidence.UNDER_WAY, Evidence.FINISHED)
        )
    ),
    "raise fails, and existing skips": lambda a, then: (
        (then is not Action.FAIL_AS_DUPLICATE or a.policy is DuplicatePolicy.RAISE)
        and (
            then is not Action.SKIP
            or a.evidence is Evidence.REPLACED
            or a.policy is DuplicatePolicy.EXISTING
        )
    ),
    "nothing is read twice": lambda a, then: (
        (then is not Need.EVIDENCE or a.evidence is Evidence.UNREAD)
        and (then is not Need.RECORD or a.record is Record.UNREAD)
    ),
}

_CONTENTION: Promises = {
    "a message whose key is paused waits, and nothing else": lambda c, then: (
        c.obstacle in (Obstacle.MARKER, Obstacle.NO_QUORUM)
        or c.holder is not Holder.PAUSE
        or then is Action.WAIT
    ),
    "a lock that a worker takes makes no duplicate": lambda c, then: (
        c.obstacle is not Obstacle.LOCK
        or (then is Action.SKIP and c.at_run is ConflictPolicy.SKIP)
        or then not in (Action.SKIP, Action.FAIL_AS_DUPLICATE)
    ),
    "no message gives way in a split vote": lambda c, then: (
        not c.split or c.obstacle is Obstacle.MARKER or then not in _GIVES_WAY
    ),
    "a body runs without its lock only where lock_on_unavailable allows it": lambda c, then: (
        then is not Action.RUN_UNLOCKED
        or (c.obstacle is Obstacle.NO_QUORUM and c.unavailable is Unavailable.RUN_UNLOCKED)
    ),
    "without a quorum nothing is known of another task": lambda c, then: (
        c.obstacle is not Obstacle.NO_QUORUM
        or then in (Action.WAIT, Action.FAIL, Action.RUN_UNLOCKED)
    ),
    "a delivery says nothing about its task while another one has the marker": lambda c, then: (
        c.obstacle is not Obstacle.MARKER
        or then
        in (
            *(Action.IGNORE, Action.REQUEUE_COPY, Action.RETAKE),
            *(Action.END_AS_REPLACED, Action.END_AS_REVOKED),
        )
    ),
    "a delivery is not acknowledged away while another one may be lost": lambda c, then: (
        c.obstacle is not Obstacle.MARKER
        or c.role not in (Role.RUNNING, Role.QUEUED)
        or then is Action.REQUEUE_COPY
    ),
    "a delivery does not wait for a marker that is over": lambda c, then: (
        c.obstacle is not Obstacle.MARKER
        or not c.role.is_over
        or c.has_taken_over
        or then not in _WAITS
    ),
    "a marker is evicted once at most, and not one that says finished": lambda c, then: (
        then is not Action.RETAKE
        or (not c.has_retaken and c.role in (Role.SKIPPED, Role.ABANDONED))
    ),
    "a message that never began does not run after one of its tick was skipped": lambda c, then: (
        then is not Action.RETAKE
        or (c.may_have_begun and not c.same_message)
        or (c.role is Role.ABANDONED and c.same_message)
    ),
    "a message takes its marker over once at most, and is not lost then": lambda c, then: (
        c.obstacle is not Obstacle.MARKER
        or c.role not in (Role.REPLACED, Role.REVOKED)
        or not c.has_taken_over
        or then is Action.REQUEUE_COPY
    ),
    "a message that was replaced or revoked while it waited ends as that": lambda c, then: (
        c.obstacle is not Obstacle.MARKER
        or c.has_taken_over
        or (c.holder is Holder.ITSELF and c.role is Role.REPLACED and then is Action.IGNORE)
        or (
            (c.role is Role.REPLACED) == (then is Action.END_AS_REPLACED)
            and (c.role is Role.REVOKED) == (then is Action.END_AS_REVOKED)
        )
    ),
    "another message of its tick, which waits, is no rival": lambda c, then: (
        c.obstacle in (Obstacle.MARKER, Obstacle.NO_QUORUM)
        or c.holder is not Holder.COPY
        or then is (Action.OVERTAKE if c.is_next else Action.REQUEUE_COPY)
    ),
    "a message waits for an earlier part of its own work, but under apply()": lambda c, then: (
        c.obstacle in (Obstacle.MARKER, Obstacle.NO_QUORUM)
        or c.holder not in (Holder.ITSELF, Holder.PREDECESSOR)
        or c.role is Role.FINISHED
        or c.holder_is_newer
        or c.eager
        or then is (Action.OVERTAKE if c.is_next else Action.WAIT)
    ),
    "the next step waits for the task that sent it and has its lock until then": lambda c, then: (
        c.obstacle in (Obstacle.MARKER, Obstacle.NO_QUORUM)
        or c.holder is not Holder.SENDER
        or not c.holds_until_result
        or c.role is Role.FINISHED
        or c.holder_is_newer
        or c.eager
        or then is Action.WAIT
    ),
    "only what is known to be older is asked to stop, and its own place retaken": lambda c, then: (
        then not in (Action.REQUEST_STOP, Action.OVERTAKE)
        or (c.at_run is ConflictPolicy.STOP and c.order is Order.OLDER)
        or (then is Action.OVERTAKE and c.is_next)
    ),
    "a call stops, overtakes and gives way to calls of its own task only": lambda c, then: (
        c.at_run is not ConflictPolicy.STOP
        or c.obstacle is not Obstacle.LOCK
        or (c.same_work and c.holder is not Holder.FOREIGN)
        or then in (Action.WAIT, Action.REQUEUE_COPY)
    ),
    "only a run that waits is overtaken": lambda c, then: (
        (then is not Action.OVERTAKE or c.role is Role.QUEUED)
        and (then is not Action.REQUEST_STOP or c.role is not Role.QUEUED)
    ),
    "under stop a call gives way only to a newer one": lambda c, then: (
        c.at_run is not ConflictPolicy.STOP
        or c.obstacle is not Obstacle.LOCK
        or then not in _ENDS
        or (then is Action.END_AS_REPLACED and c.order is Order.NEWER)
    ),
    "the policy at run decides about locks, the one at publish on reservations": lambda c, then: (
        then not in (Action.FAIL_AS_DUPLICATE, Action.END_AS_REPLACED)
        or c.obstacle in (Obstacle.RESERVED, Obstacle.MARKER)
        or (then is Action.END_AS_REPLACED and c.at_run is ConflictPolicy.STOP)
    ),
    "a conflict at run follows its policy": lambda c, then: (
        c.obstacle is not Obstacle.LOCK
        or then in (Action.WAIT, Action.REQUEUE_COPY)
        or {
            ConflictPolicy.FUNCTION: then is (Action.OVERTAKE if c.is_next else Need.POLICY),
            ConflictPolicy.REQUEUE: False,
            ConflictPolicy.SKIP: then is Action.SKIP,
            ConflictPolicy.STOP: then
            in (Action.REQUEST_STOP, Action.OVERTAKE, Action.END_AS_REPLACED),
            ConflictPolicy.REJECT: then
            is (Action.REJECT if c.may_be_rejected else Action.FAIL_NOT_REJECTED),
            ConflictPolicy.RAISE: then is Action.FAIL,
        }[c.at_run]
    ),
    "a message that continues work, or has begun, is no duplicate": lambda c, then: (
        c.obstacle is not Obstacle.RESERVED
        or not (c.continues or c.may_have_begun)
        or then not in _ENDS
        or (then is Action.END_AS_REPLACED and c.brought_lock)
        or c.holder_is_newer
    ),
    "a message ends as a duplicate only of the same task's work": lambda c, then: (
        c.obstacle is not Obstacle.RESERVED
        or then not in _ENDS
        or (c.same_work and c.holder is not Holder.FOREIGN)
    ),
    "a tick does not end for one that may be skipped": lambda c, then: (
        c.obstacle is not Obstacle.RESERVED or not c.holder_may_be_skipped or then not in _ENDS
    ),
    "under replace a message without a lock runs, unless a window's work is done": lambda c, then: (
        c.obstacle is not Obstacle.RESERVED
        or c.at_publish is not DuplicatePolicy.REPLACE
        or c.brought_lock
        or c.role is Role.FINISHED
        or c.holder_is_newer
        or then in _WAITS
    ),
    "under replace a message whose lock a newer call has taken over does not run": lambda c, then: (
        c.obstacle is not Obstacle.RESERVED
        or c.at_publish is not DuplicatePolicy.REPLACE
        or not (c.brought_lock and c.same_work)
        or c.holder is not Holder.OTHER
        or c.role not in (Role.QUEUED, Role.RUNNING)
        or c.split
        or c.holder_may_be_skipped
        or then is Action.END_AS_REPLACED
    ),
    "a message that loses its lock to a newer call ends as replaced": lambda c, then: (
        then is not Action.END_AS_REPLACED
        or c.obstacle in (Obstacle.MARKER, Obstacle.LOCK)
        or (c.brought_lock and c.at_publish is DuplicatePolicy.REPLACE)
        or c.holder_is_newer
    ),
    "a debounced call that a newer one follows, which waits, does not run": lambda c, then: (
        not c.holder_is_newer
        or c.holder in (Holder.COPY, Holder.FOREIGN)
        or then is (Action.IGNORE if c.holder is Holder.ITSELF else Action.END_AS_REPLACED)
    ),
    "under raise a duplicate fails, under existing it is skipped": lambda c, then: (
        c.obstacle is not Obstacle.RESERVED
        or c.holder_is_newer
        or then in _WAITS
        or {
            DuplicatePolicy.FUNCTION: then is Need.POLICY,
            DuplicatePolicy.RAISE: then is Action.FAIL_AS_DUPLICATE,
            DuplicatePolicy.EXISTING: then is Action.SKIP,
            DuplicatePolicy.REPLACE: then in (Action.SKIP, Action.END_AS_REPLACED),
        }[c.at_publish]
    ),
}

_FINAL: Promises = {
    "a message that needs its lock later waits for it": lambda c, then: (
        not then
        or (c.for_window and c.role.is_over)
        or c.has_taken_over  # it needs its marker alone
        or arrival.on_contention(c) in _ENDS | {Action.RETAKE}
    ),
    "lock_wait comes before the policy at run, but for a call that is replaced": lambda c, then: (
        not then
        or c.obstacle is not Obstacle.LOCK
        or c.for_window
        or arrival.on_contention(c) is Action.END_AS_REPLACED
    ),
    "a call that a newer one replaces does not wait until that one has ended": lambda c, then: (
        then or arrival.on_contention(c) is not Action.END_AS_REPLACED
    ),
    "no message waits for a marker that is over": lambda c, then: (
        then or c.obstacle is not Obstacle.MARKER or not c.role.is_over
    ),
    "a duplicate does not wait for the key of the first": lambda c, then: (
        then or c.obstacle is not Obstacle.RESERVED or arrival.on_contention(c) not in _ENDS
    ),
}

_ENDINGS: Promises = {
    "what continues the task is its outcome": lambda e, then: (
        not e.state.is_continued or then is Ending.DONE
    ),
    "an outcome that may not be out is none": lambda e, then: (
        not e.process_ends
        or e.state.is_continued
        or e.state is State.UNRUN
        or then is not Ending.DONE
    ),
    "a rejected message is delivered again if it is not acknowledged": lambda e, then: (
        (then is Ending.REDELIVERED)
        == (
            e.rejection is Raised.REJECT_TO_QUEUE
            and e.acks_late
            and not e.state.is_continued
            and e.state is not State.UNRUN
        )
    ),
    "a Retry without a message leaves the work to be done": lambda e, then: (
        e.celery_state.name != "RETRY"
        or e.retry_is_out
        or e.state.is_continued
        or e.state is State.UNRUN
        or then is not Ending.DONE
    ),
    "a failed message that is rejected is not done": lambda e, then: (
        e.celery_state.name != "FAILURE"
        or e.failure_is_final
        or e.state.is_continued
        or e.state is State.UNRUN
        or then is not Ending.DONE
    ),
    "success and a final failure are outcomes": lambda e, then: (
        not (
            e.celery_state.name == "SUCCESS"
            or (e.celery_state.name == "FAILURE" and e.failure_is_final)
        )
        or e.rejection in (Raised.REJECT, Raised.REJECT_TO_QUEUE)
        or e.process_ends
        or then is Ending.DONE
    ),
}

_MARKERS: Promises = {
    "an outcome leaves a marker": lambda r, then: (
        r.ending is not Ending.DONE or (then is not None and then.is_over)
    ),
    "work that is still to be done leaves none": lambda r, then: (
        r.ending not in (Ending.REDELIVERED, Ending.INTERRUPTED)
        or r.state is State.UNRUN
        or then is None
    ),
    "a tick that ends without its body is skipped, for its other messages": lambda r, then: (
        (then is Role.SKIPPED) == (r.state is State.UNRUN and r.for_tick)
    ),
    "finished means that the work is done": lambda r, then: (
        then is not Role.FINISHED
        or (r.ending is Ending.DONE and r.unrun_as is not Role.FAILED)
        or (r.ending is Ending.DONE and r.state is not State.UNRUN)
    ),
    "the other messages of a tick do not repeat a body without an outcome": lambda r, then: (
        not r.for_tick
        or r.ending not in (Ending.IGNORED, Ending.REJECTED)
        or r.state is State.UNRUN
        or then is Role.ABANDONED
    ),
}

_KEYS: Promises = {
    "a lock is handed over only to a message that is out": lambda r, then: (
        (then is Keys.HAND_OVER) <= (r.state is State.HANDED_OVER)
    ),
    "what was handed over is not released": lambda r, then: (
        r.state is not State.HANDED_OVER or not r.held_in_body or then is Keys.HAND_OVER
    ),
    "a lock goes back only to a message that comes again": lambda r, then: (
        then is not Keys.GIVE_BACK or (r.ending is Ending.REDELIVERED and r.can_give_back)
    ),
    "a message that comes again gets its lock back": lambda r, then: (
        r.ending is not Ending.REDELIVERED
        or not r.can_give_back
        or not r.held_in_body
        or r.state in (State.UNRUN, State.HANDED_OVER)
        or then is Keys.GIVE_BACK
    ),
    "a window that has passed, or work that is not done, keeps no key": lambda r, then: (
        then is not Keys.KEEP_FOR_WINDOW
        or (r.has_window and not r.window_is_over and r.state is not State.CONTINUED)
    ),
    "an interrupted body does not keep the key for its window": lambda r, then: (
        then is not Keys.KEEP_FOR_WINDOW or r.ending in (Ending.DONE, Ending.IGNORED)
    ),
    "a window keeps the key of work that is done": lambda r, then: (
        r.ending is not Ending.DONE
        or not (r.has_window and not r.window_is_over and r.held_in_body)
        or r.state in (State.UNRUN, State.CONTINUED, State.HANDED_OVER)
        or then is Keys.KEEP_FOR_WINDOW
    ),
    "a minimum hold keeps the key that the body had": lambda r, then: (
        not r.has_minimum
        or r.has_window
        or not r.held_in_body
        or r.state in (State.UNRUN, State.HANDED_OVER)
        or then in (Keys.KEEP_FOR_MINIMUM, Keys.GIVE_BACK)
    ),
    "a message that held its marker alone keeps nothing": lambda r, then: (
        r.state is not State.UNRUN or then is Keys.RELEASE
    ),
}

_RESERVATIONS: Promises = {
    "a lock stays with a message that comes again": lambda u, then: (
        then
        or u.state.has_run
        or not (u.raised is Raised.RETRY or (u.raised is Raised.REJECT_TO_QUEUE and u.acks_late))
    ),
    "a lock is not left to a message that is over": lambda u, then: (
        not then or u.raised not in (Raised.NOTHING, Raised.IGNORE, Raised.REJECT, Raised.EXCEPTION)
    ),
    "a lock that a body did without is not left behind": lambda u, then: (
        not then or not u.state.has_run
    ),
    "another delivery's lock is left alone": lambda u, then: (
        then or u.raised is not Raised.YIELDED or u.state.has_run
    ),
    "an acknowledged message does not come again": lambda u, then: (
        not then or u.acks_late or u.raised in (Raised.RETRY, Raised.YIELDED)
    ),
}

_MOMENTS: Promises = {
    "a copy that comes before the result meets the marker": lambda e, then: (
        then is Moment.AT_POSTRUN or not e.holds_until_result or e.process_ends or not e.is_traced
    ),
    "nothing waits for a postrun that does not come": lambda e, then: (
        then is Moment.NOW or (e.is_traced and not e.process_ends)
    ),
}

_TICKS: Promises = {
    "a tick that is over is not sent again, and no other is dropped": lambda r, then: (
        (then is Publish.DROP_TICK) == (r.tick is not None and r.tick.is_over)
    ),
    "the message of a tick that has begun does not stand for the next one": lambda r, then: (
        (then is Publish.SEND_WITH_LOCK) == (r.tick is None)
    ),
}

_REQUEUES: Promises = {
    "apply() requeues nothing": lambda w, then: (then is Action.WAIT_IN_PLACE) == w.eager,
    "a message does not circle longer than lock_give_up_after": lambda w, then: (
        then is not Action.REQUEUE or not w.is_exhausted
    ),
    "a message that was refused is requeued when nodes will wake it": lambda w, then: (
        then is not Action.REQUEUE or not w.is_refused or w.is_registered
    ),
    "a message tries by name once": lambda w, then: (
        then is not Action.TRY_BY_NAME or not w.is_registered
    ),
}

_IN_PLACE: Promises = {
    "no call waits where that cannot help": lambda p, then: not (then and p.is_final),
    "nobody ends without the lock before lock_wait is over": lambda p, then: (
        then or p.is_final or p.is_requeued or p.is_newer
    ),
    "a lock_wait that is set is kept": lambda p, then: (
        then or p.is_final or p.is_newer or not p.wait_is_set
    ),
    "under apply() a call waits here": lambda p, then: (
        then or p.is_final or p.is_newer or not p.eager
    ),
    "a call that has to ask an older one to stop does not wait before that": lambda p, then: (
        not (then and p.is_newer)
    ),
    "a message that is woken later leaves its process to others": lambda p, then: (
        not (then and p.is_requeued and (p.is_far_behind or (p.is_held_long and not p.goes_later)))
        or p.wait_is_set
        or p.eager
    ),
    "a message that is next for a free key does not leave its process": lambda p, then: (
        then or not p.goes_later or p.is_final or p.is_newer or p.is_far_behind
    ),
}

_POSSIBLE: dict[type, Callable[[Any], bool]] = {
    publish.Duplicate: _possible_at_publish,
    arrival.Contention: _possible_at_run,
}

TABLES = tuple(
    TableSetting(
        name=f"rules-{name}",
        rows=rows,
        facts=facts,
        promises=promises,
        # Every row decides for some facts.
        expects=frozenset(row.name for row in rows),
        possible=_POSSIBLE.get(facts, lambda _: True),
    )
    for name, rows, facts, promises in (
        ("publish", publish.DUPLICATES, publish.Duplicate, _PUBLISH),
        ("publish-ticks", publish.TICKS, publish.TickState, _TICKS),
        ("arrival", arrival.ARRIVALS, arrival.Arrival, _ARRIVAL),
        ("contention", arrival.CONTENTION, arrival.Contention, _CONTENTION),
        ("final", arrival.FINAL, arrival.Contention, _FINAL),
        ("requeue", arrival.REQUEUES, arrival.Waiting, _REQUEUES),
        ("in-place", arrival.IN_PLACE, arrival.InPlace, _IN_PLACE),
        ("ending", ending.ENDINGS, ending.Ended, _ENDINGS),
        ("marker", ending.MARKERS, ending.Remains, _MARKERS),
        ("keys", ending.KEYS, ending.Remains, _KEYS),
        ("moment", ending.MOMENTS, ending.Leaving, _MOMENTS),
        ("reservation", ending.RESERVATIONS, ending.Unused, _RESERVATIONS),
    )
)
