"""
A message that was delivered before.

A broker delivers a message again when it has not been acknowledged in time, or when its connection
was lost, although the first delivery may still be worked on. Both deliveries are one piece of work.
So are the messages that several beats send for one tick of a schedule.
"""

from __future__ import annotations

import time
from typing import NoReturn

from celery.exceptions import Ignore, Reject
from celery.utils.log import get_logger

from celery_redlock.errors import LockContended
from celery_redlock.tasks.holding.arrival import Claim
from celery_redlock.tasks.messages.envelope import Episode
from celery_redlock.tasks.messages.owners import Role, read_owner
from celery_redlock.tasks.news import News, tell
from celery_redlock.tasks.running.requeue import delay_after, episode_of, longest_delay, put_back

__all__ = ["settle_twin"]

logger = get_logger(__name__)


def settle_twin(claim: Claim, error: LockContended) -> NoReturn:
    """
    End this delivery of a message, whose mark an earlier delivery has.

    Always with `Ignore`, which leaves the result, callbacks and chord part to the other delivery.

    Raises:
        Ignore: the other has finished; or it still runs, and this one was put back, because the
            other may yet die.
        Reject: it could not be put back, and goes back to the broker.
    """
    task, request = claim.task, claim.request
    other = read_owner(error.holder)
    if other is not None and other.role is Role.FINISHED:
        logger.info(
            "Task %s[%s] %s after it had finished on %s; this delivery is ignored",
            task.name,
            request.id,
            _came_again(claim),
            other.host,
        )
        tell(News.TWIN_IGNORED, task, request.id, finished_by=other.host)
        if claim.tick is not None and claim.envelope.reservation is not None:
            # From another beat than the one that ran, which has taken its own lock over.
            claim.redlock.cancel(claim.envelope.reservation)
        raise Ignore("this message's task has finished already")
    _wait_for_other(claim, error)


def _wait_for_other(claim: Claim, error: LockContended) -> NoReturn:
    task, request = claim.task, claim.request
    earlier = episode_of(claim)
    # Not counted as waiting for a lock: the other may run for as long as it likes.
    episode = Episode(first_seen=time.time(), hops=earlier.hops, retries=earlier.retries)
    # It has to come back while the other's mark still tells that it has finished.
    longest = min(longest_delay(task.app), claim.options.dedupe_window / 2)
    delay = delay_after(episode.hops, longest)
    try:
        put_back(claim, episode, delay)
    except Exception as exc:
        if task.acks_late:
            logger.error(  # noqa: TRY400  # what went wrong is the broker's
                "Task %s[%s] %s and could not be put back (%r); its message is "
                "returned to the broker.",
                task.name,
                request.id,
                _came_again(claim),
                exc,
            )
            raise Reject(exc, requeue=True) from exc
        logger.error(  # noqa: TRY400
            "Task %s[%s] %s and could not be put back (%r); only the earlier "
            "delivery remains, which holds its lock.",
            task.name,
            request.id,
            _came_again(claim),
            exc,
        )
        raise Ignore("an earlier delivery of this message runs") from exc
    logger.info(
        "Task %s[%s] %s while it runs; this delivery is put back for %.1f s: %s",
        task.name,
        request.id,
        _came_again(claim),
        delay,
        error,
    )
    tell(News.TWIN_PUT_BACK, task, request.id, delay=delay, error=error)
    raise Ignore("an earlier delivery of this message runs")


def _came_again(claim: Claim) -> str:
    tick = claim.tick
    if tick is None:
        return "was delivered again"
    return f"came once more for entry {tick.entry!r}, due at {tick.due_at.isoformat()},"
