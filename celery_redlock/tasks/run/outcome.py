"""
What becomes of what a request holds when it has ended.

A message may be delivered again after its task has run. Whether that would be one time too many is
known by the mark: left as *finished*, it says so for `lock_dedupe_window`. It is left where the
outcome is out: a result, or a message that goes on in this one's place. It is taken away where the
work is still to be done by whoever gets the message next.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from enum import Enum
from typing import TYPE_CHECKING, Any

from celery import states
from celery.exceptions import Ignore, Reject, Retry

from celery_redlock.core import ReleaseAction, Reservation
from celery_redlock.tasks.message.owner_label import Role

if TYPE_CHECKING:
    from celery_redlock.tasks.run.lock_request import LockRequest
    from celery_redlock.tasks.run.running_lock import RunningLock

__all__ = ["Outcome", "celery_state", "outcome_of", "release_plan"]


class Outcome(Enum):
    """How a request has ended, as far as its lock is concerned."""

    DONE = "done"  #: its outcome is out
    IGNORED = "ignored"  #: the body has ended and wants no outcome
    REJECTED = "rejected"  #: the body has ended, and its message goes to the dead letters
    REDELIVERED = "redelivered"  #: the broker delivers the message again, with the lock it brought
    INTERRUPTED = "interrupted"  #: whoever gets the message next begins anew


#: The work may yet be done by who gets the message next, or by nobody.
WITHOUT_OUTCOME = (Outcome.REDELIVERED, Outcome.REJECTED, Outcome.INTERRUPTED)


def celery_state(error: BaseException | None) -> str | None:
    """Return the state that Celery makes of what a body raised; None: it does not come to that."""
    if error is None:
        return str(states.SUCCESS)
    if isinstance(error, Retry):
        return str(states.RETRY)
    if isinstance(error, Reject):
        return str(states.REJECTED)
    if isinstance(error, Ignore):
        return str(states.IGNORED)
    return str(states.FAILURE) if isinstance(error, Exception) else None


def outcome_of(
    running_lock: RunningLock, state: str | None, result: Any, unwinding: BaseException | None
) -> Outcome:
    """
    Tell how a request has ended.

    Args:
        running_lock: what it holds.
        state: Celery's state; None where it came to none.
        result: the result, or the exception that made the state.
        unwinding: an exception on its way through Celery's tracer, which comes after the state.
    """
    if running_lock.continued or running_lock.ended_as:
        return Outcome.DONE
    rejected = unwinding if isinstance(unwinding, Reject) else result
    if isinstance(rejected, Reject):
        return Outcome.REDELIVERED if rejected.requeue else Outcome.REJECTED
    if unwinding is not None and not isinstance(unwinding, Exception):
        return Outcome.INTERRUPTED  # the process ends, perhaps before the outcome is out
    if state == states.RETRY:
        # A body may raise `Retry` without having sent anything; `apply()` runs it again itself.
        sent = getattr(result, "sig", None) is not None and not running_lock.request.is_eager
        return Outcome.DONE if sent else Outcome.INTERRUPTED
    if state == states.IGNORED:
        return Outcome.IGNORED
    eager_and_raised = state is None and running_lock.request.is_eager
    if state == states.FAILURE or eager_and_raised:
        return Outcome.DONE if _failure_is_final(running_lock.task) else Outcome.REJECTED
    return Outcome.DONE if state == states.SUCCESS else Outcome.INTERRUPTED


def _failure_is_final(task: Any) -> bool:
    """Tell whether the message of a failed task is acknowledged, rather than rejected."""
    acknowledged = getattr(task, "acks_on_failure", None)  # new in Celery 5.7
    if acknowledged is None:
        acknowledged = task.acks_on_failure_or_timeout
    return bool(acknowledged or not task.acks_late)


def release_plan(
    running_lock: RunningLock, outcome: Outcome
) -> tuple[Mapping[str, ReleaseAction], Reservation | None]:
    """Return what becomes of each key that is not deleted, and to which message they go, if any."""
    lock_request = running_lock.lock_request
    actions: dict[str, ReleaseAction] = {}
    role = _marker_state(running_lock, outcome)
    if lock_request.dedupe_key and role is not None:
        actions[lock_request.dedupe_key] = _over(lock_request, role, lock_request.marker_ttl)
    if running_lock.ended_as or not lock_request.options.mode_spec.in_body:
        return actions, None
    successor = _successor(running_lock, outcome)
    kept = None if successor is not None else _kept(running_lock, outcome)
    if kept is not None:
        actions.update(dict.fromkeys(lock_request.node_keys, kept))
    return actions, successor


def _marker_state(running_lock: RunningLock, outcome: Outcome) -> Role | None:
    """Return what is left of a mark; None: nothing, and the next delivery begins anew."""
    if running_lock.ended_as:
        return running_lock.ended_as if running_lock.lock_request.tick is None else Role.SKIPPED
    if running_lock.lock_request.tick is not None and outcome in (
        Outcome.IGNORED,
        Outcome.REJECTED,
    ):
        return Role.ABANDONED  # the messages of other beats are no deliveries of this one
    return Role.FINISHED if outcome is Outcome.DONE else None


def _successor(running_lock: RunningLock, outcome: Outcome) -> Reservation | None:
    if running_lock.handover_reservation is not None:
        return running_lock.handover_reservation
    brought = running_lock.lock_request.envelope.reservation
    if (
        outcome is not Outcome.REDELIVERED
        or brought is None
        or not running_lock.lock_request.transferable_keys
    ):
        return None
    return brought if brought.expires_at > time.time() else None


def _kept(running_lock: RunningLock, outcome: Outcome) -> ReleaseAction | None:
    lock_request = running_lock.lock_request
    rest = lock_request.window_remaining
    if rest is not None:
        # A retry or replacement that did not get this lock may need it.
        over = running_lock.continued or outcome in WITHOUT_OUTCOME or not rest
        return None if over else _over(lock_request, Role.FINISHED, rest)
    # Under the same owner value: somebody waits for its end, as for that of a body.
    left = lock_request.options.at_least_for - running_lock.age
    return ReleaseAction(keep_ms=_milliseconds(left)) if left > 0 else None


def _over(lock_request: LockRequest, role: Role, seconds: float) -> ReleaseAction:
    owner = lock_request.redlock.reservations.new_owner_value(lock_request.label_as(role))
    return ReleaseAction(keep_ms=_milliseconds(seconds), value=owner)


def _milliseconds(seconds: float) -> int:
    return max(1, round(seconds * 1000))
