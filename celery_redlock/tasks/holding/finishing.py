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
from celery_redlock.tasks.messages.owners import Role

if TYPE_CHECKING:
    from celery_redlock.tasks.holding.arrival import Claim
    from celery_redlock.tasks.holding.hold import Hold

__all__ = ["Ending", "ending_of", "fates_of", "state_of"]


class Ending(Enum):
    """How a request has ended, as far as its lock is concerned."""

    DONE = "done"  #: its outcome is out
    IGNORED = "ignored"  #: the body has ended and wants no outcome
    REJECTED = "rejected"  #: the body has ended, and its message goes to the dead letters
    RETURNED = "returned"  #: the broker delivers the message again, with the lock it brought
    BROKEN_OFF = "broken off"  #: whoever gets the message next begins anew


#: The work may yet be done by who gets the message next, or by nobody.
WITHOUT_OUTCOME = (Ending.RETURNED, Ending.REJECTED, Ending.BROKEN_OFF)


def state_of(error: BaseException | None) -> str | None:
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


def ending_of(
    hold: Hold, state: str | None, outcome: Any, unwinding: BaseException | None
) -> Ending:
    """
    Tell how a request has ended.

    Args:
        hold: what it holds.
        state: Celery's state; None where it came to none.
        outcome: the result, or the exception that made the state.
        unwinding: an exception on its way through Celery's tracer, which comes after the state.
    """
    if hold.continued or hold.settled:
        return Ending.DONE
    rejected = unwinding if isinstance(unwinding, Reject) else outcome
    if isinstance(rejected, Reject):
        return Ending.RETURNED if rejected.requeue else Ending.REJECTED
    if unwinding is not None and not isinstance(unwinding, Exception):
        return Ending.BROKEN_OFF  # the process ends, perhaps before the outcome is out
    if state == states.RETRY:
        # A body may raise `Retry` without having sent anything; `apply()` runs it again itself.
        sent = getattr(outcome, "sig", None) is not None and not hold.request.is_eager
        return Ending.DONE if sent else Ending.BROKEN_OFF
    if state == states.IGNORED:
        return Ending.IGNORED
    eager_and_raised = state is None and hold.request.is_eager
    if state == states.FAILURE or eager_and_raised:
        return Ending.DONE if _failure_is_final(hold.task) else Ending.REJECTED
    return Ending.DONE if state == states.SUCCESS else Ending.BROKEN_OFF


def _failure_is_final(task: Any) -> bool:
    """Tell whether the message of a failed task is acknowledged, rather than rejected."""
    acknowledged = getattr(task, "acks_on_failure", None)  # new in Celery 5.7
    if acknowledged is None:
        acknowledged = task.acks_on_failure_or_timeout
    return bool(acknowledged or not task.acks_late)


def fates_of(hold: Hold, ending: Ending) -> tuple[Mapping[str, ReleaseAction], Reservation | None]:
    """Return what becomes of each key that is not deleted, and to which message they go, if any."""
    claim = hold.claim
    fates: dict[str, ReleaseAction] = {}
    role = _what_the_mark_says(hold, ending)
    if claim.message and role is not None:
        fates[claim.message] = _over(claim, role, claim.remembered_for)
    if hold.settled or not claim.options.rules.in_body:
        return fates, None
    successor = _successor(hold, ending)
    kept = None if successor is not None else _kept(hold, ending)
    if kept is not None:
        fates.update(dict.fromkeys(claim.places, kept))
    return fates, successor


def _what_the_mark_says(hold: Hold, ending: Ending) -> Role | None:
    """Return what is left of a mark; None: nothing, and the next delivery begins anew."""
    if hold.settled:
        return hold.settled if hold.claim.tick is None else Role.SKIPPED
    if hold.claim.tick is not None and ending in (Ending.IGNORED, Ending.REJECTED):
        return Role.ABANDONED  # the messages of other beats are no deliveries of this one
    return Role.FINISHED if ending is Ending.DONE else None


def _successor(hold: Hold, ending: Ending) -> Reservation | None:
    if hold.handed is not None:
        return hold.handed
    brought = hold.claim.envelope.reservation
    if ending is not Ending.RETURNED or brought is None or not hold.claim.lasting:
        return None
    return brought if brought.expires_at > time.time() else None


def _kept(hold: Hold, ending: Ending) -> ReleaseAction | None:
    claim = hold.claim
    rest = claim.window_left
    if rest is not None:
        # A retry or replacement that did not get this lock may need it.
        over = hold.continued or ending in WITHOUT_OUTCOME or not rest
        return None if over else _over(claim, Role.FINISHED, rest)
    # Under the same owner value: somebody waits for its end, as for that of a body.
    left = claim.options.at_least_for - hold.age
    return ReleaseAction(keep_ms=_milliseconds(left)) if left > 0 else None


def _over(claim: Claim, role: Role, seconds: float) -> ReleaseAction:
    owner = claim.redlock.reservations.new_owner_value(claim.label_as(role))
    return ReleaseAction(keep_ms=_milliseconds(seconds), value=owner)


def _milliseconds(seconds: float) -> int:
    return max(1, round(seconds * 1000))
