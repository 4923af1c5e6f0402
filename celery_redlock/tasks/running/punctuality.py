"""
Ticks that come too late to be run.
"""

from __future__ import annotations

import time

from celery.exceptions import Ignore
from celery.utils.log import get_logger

from celery_redlock.core import Register
from celery_redlock.tasks.holding.arrival import Claim
from celery_redlock.tasks.holding.hold import Hold
from celery_redlock.tasks.news import News, tell
from celery_redlock.tasks.running.skips import sign, tell_monitors
from celery_redlock.tasks.schedules.state import is_late

__all__ = ["drop_late", "is_missed"]

logger = get_logger(__name__)


def is_missed(hold: Hold) -> bool:
    """
    Tell whether a tick comes after its starting deadline; then it is settled as skipped.

    Raises:
        Ignore: another message of the tick is at work, or was; so it was not missed.
    """
    claim = hold.claim
    late_by = time.time() - claim.starts_by
    if late_by <= 0 or claim.tick is None:
        return False
    sign(hold)
    task, request = claim.task, claim.request
    logger.warning(
        "Task %s[%s] is skipped and ends with lock_skip_result %r: entry %r was due at %s, and "
        "lock_starting_deadline = %g s ended %.1f s ago",
        task.name,
        request.id,
        claim.options.skip_result,
        claim.tick.entry,
        claim.tick.due_at.isoformat(),
        claim.options.starting_deadline,
        late_by,
    )
    tell(News.TICK_MISSED, task, request.id, tick=claim.tick, late_by=late_by)
    tell_monitors(claim)
    return True


def drop_late(claim: Claim) -> None:
    """
    End the message of a leader that was superseded, for a tick that its successor answers for.

    Raises:
        Ignore: it is one.
        QuorumUnavailable: too few nodes answered, so nobody can say.
    """
    tick = claim.tick
    if tick is None or tick.token is None or not tick.schedule or claim.goes_on:
        return
    if claim.options.rules.at_publish and claim.envelope.reservation is not None:
        return  # it was sent with a lock, and others may have given way to it
    recorded = Register(claim.redlock, tick.schedule).read([tick.entry]).get(tick.entry)
    if recorded is None or not is_late(tick, recorded):
        return
    task, request = claim.task, claim.request
    logger.warning(
        "Task %s[%s] is dropped: it was sent for entry %r, due at %s, by a leader of schedule %s "
        "(token %d) that had been superseded (token %d); its successor answers for this tick",
        task.name,
        request.id,
        tick.entry,
        tick.due_at.isoformat(),
        tick.schedule,
        tick.token,
        recorded.token,
    )
    tell(News.TICK_LATE, task, request.id, tick=tick, newest=recorded.token)
    raise Ignore("a newer leader answers for this tick")
