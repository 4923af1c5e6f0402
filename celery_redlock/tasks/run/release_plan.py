"""
The facts about a request that ends, in the terms of the rules, and how its keys are released.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from celery.exceptions import Reject

from celery_redlock.core import ReleaseAction, Reservation
from celery_redlock.protocol.keys import Key
from celery_redlock.tasks.border import TaskLike
from celery_redlock.tasks.rules.ending import (
    CeleryState,
    Ended,
    Ending,
    Keys,
    Remains,
    State,
    keys_after,
    marker_after,
)
from celery_redlock.tasks.rules.facts import Raised, Role
from celery_redlock.tasks.run.arrival_facts import raised_by
from celery_redlock.tasks.run.lock_request import LockRequest

#: The state that Celery makes of what a body raised.
_STATES = {
    Raised.NOTHING: CeleryState.SUCCESS,
    Raised.RETRY: CeleryState.RETRY,
    Raised.IGNORE: CeleryState.IGNORED,
    Raised.YIELDED: CeleryState.IGNORED,
    Raised.REJECT: CeleryState.REJECTED,
    Raised.REJECT_TO_QUEUE: CeleryState.REJECTED,
    Raised.EXCEPTION: CeleryState.FAILURE,
    Raised.PROCESS_END: CeleryState.NONE,
}


def celery_state(error: BaseException | None) -> str | None:
    """Return the state that Celery makes of what a body raised; None if it makes none."""
    return _STATES[raised_by(error)].value or None


def ended_of(
    lock_request: LockRequest,
    state: State,
    reported: str | None,
    result: Any,
    unwinding: BaseException | None,
) -> Ended:
    """
    Return the facts about the end of a request.

    Args:
        lock_request: what it took.
        state: how far it came.
        reported: Celery's state; None if Celery made none.
        result: the result, or the exception that made the state.
        unwinding: an exception on its way through Celery's tracer, which comes after the state.
    """
    rejected = unwinding if isinstance(unwinding, Reject) else result
    known = {kind.value: kind for kind in CeleryState}
    return Ended(
        state=state,
        celery_state=known.get(reported or "", CeleryState.OTHER),
        rejection=raised_by(rejected) if isinstance(rejected, Reject) else Raised.NOTHING,
        process_ends=raised_by(unwinding) is Raised.PROCESS_END,
        retry_is_out=getattr(result, "sig", None) is not None,
        acks_late=bool(lock_request.task.acks_late),
        failure_is_final=failure_is_final(lock_request.task),
        eager=bool(lock_request.request.is_eager),
    )


def release_plan(
    lock_request: LockRequest,
    ending: Ending,
    *,
    state: State,
    unrun_as: Role | None,
    handover: Reservation | None,
    age: float,
) -> tuple[Mapping[Key, ReleaseAction], Reservation | None]:
    """
    Return an action for each key that is not deleted, and the reservation that gets the keys.

    Args:
        lock_request: what the request took.
        ending: how it ended.
        state: how far it came.
        unrun_as: the role that its marker gets, where it ends without its body.
        handover: the lock of the message that continues it.
        age: seconds since the lock was taken.
    """
    window, brought = lock_request.window_remaining, lock_request.envelope.reservation
    minimum = lock_request.options.at_least_for - age
    remains = Remains(
        ending=ending,
        state=state,
        unrun_as=unrun_as,
        for_tick=lock_request.tick is not None,
        held_in_body=lock_request.options.mode_spec.in_body,
        can_give_back=brought is not None
        and bool(lock_request.transferable_keys)
        and brought.expires_at > time.time(),
        has_window=window is not None,
        window_is_over=not window,
        has_minimum=minimum > 0,
    )
    actions: dict[Key, ReleaseAction] = {}
    role = marker_after(remains)
    if lock_request.dedupe_key and role is not None:
        marker = Key.record(lock_request.dedupe_key)
        actions[marker] = _as_over(lock_request, role, lock_request.marker_ttl)
    keys = keys_after(remains)
    if keys is Keys.KEEP_FOR_WINDOW:
        kept = _as_over(lock_request, Role.FINISHED, window or 0.0)
        actions.update(dict.fromkeys(lock_request.keys, kept))
    elif keys is Keys.KEEP_FOR_MINIMUM:
        # The owner value stays: others wait for the end of this time, as for that of a body.
        kept = ReleaseAction(keep_ms=_milliseconds(minimum))
        actions.update(dict.fromkeys(lock_request.keys, kept))
    return actions, {Keys.HAND_OVER: handover, Keys.GIVE_BACK: brought}.get(keys)


def failure_is_final(task: TaskLike) -> bool:
    """Return whether the message of a failed task is acknowledged, rather than rejected."""
    acknowledged = getattr(task, "acks_on_failure", None)  # new in Celery 5.7
    if acknowledged is None:
        acknowledged = task.acks_on_failure_or_timeout
    return bool(acknowledged or not task.acks_late)


def _as_over(lock_request: LockRequest, role: Role, seconds: float) -> ReleaseAction:
    owner = lock_request.client.new_owner_value(lock_request.label_as(role))
    return ReleaseAction(keep_ms=_milliseconds(seconds), value=owner)


def _milliseconds(seconds: float) -> int:
    return max(1, round(seconds * 1000))
