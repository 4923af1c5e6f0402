"""
Messages that end without their body.
"""

from __future__ import annotations

from celery.utils.log import get_logger

from celery_redlock.errors import LockContended, LockNotAcquired
from celery_redlock.tasks.holding.arrival import Claim
from celery_redlock.tasks.holding.hold import Hold
from celery_redlock.tasks.messages.owners import Role
from celery_redlock.tasks.news import News, tell
from celery_redlock.tasks.running.latecomers import stand_back, withdrawn_as
from celery_redlock.tasks.running.twins import settle_twin

__all__ = ["end_withdrawn", "sign", "skip", "tell_monitors"]

logger = get_logger(__name__)

SKIPPED_EVENT = "task-lock-skipped"


def sign(hold: Hold, role: Role = Role.FINISHED) -> None:
    """
    Leave the mark for a message that ends without its body, so that no copy of it runs.

    Args:
        hold: of the request.
        role: what the mark says then; a tick's says that it was skipped.

    Raises:
        Ignore: another delivery has the mark, or the message was replaced or revoked meanwhile.
    """
    if hold.claim.message:
        _sign(hold, role)


def end_withdrawn(hold: Hold, error: LockContended) -> None:
    """
    End a message whose mark says that it is not to run, if it does.

    Raises:
        Ignore: it does.
    """
    role = withdrawn_as(error)
    if role is not None:
        _sign(hold, role, over=error)
        stand_back(hold.claim, error)


def _sign(hold: Hold, role: Role, over: LockContended | None = None) -> None:
    claim = hold.claim
    try:
        hold.lease = claim.sign(over)
        hold.settled = role
    except LockContended as met:
        if over is None:
            end_withdrawn(hold, met)
        settle_twin(claim, met)
    except LockNotAcquired as error:
        logger.warning(
            "Task %s[%s] ends without a mark; another delivery of its message would be taken for "
            "a new one: %s",
            claim.task.name,
            claim.request.id,
            error,
        )


def skip(claim: Claim, error: LockNotAcquired) -> None:
    """Tell that a task is skipped, because another does the work or is at it."""
    task, request = claim.task, claim.request
    logger.info(
        "Task %s[%s] is skipped and ends with lock_skip_result %r: %s",
        task.name,
        request.id,
        claim.options.skip_result,
        error,
    )
    tell(News.SKIPPED, task, request.id, error=error)
    tell_monitors(claim, key=getattr(error, "key", None), holder=getattr(error, "holder", None))


def tell_monitors(claim: Claim, *, key: str | None = None, holder: str | None = None) -> None:
    """Send Celery's monitors an event about a task that is skipped. Never raises."""
    task = claim.task
    if claim.request.is_eager or not task.send_events:
        return
    try:
        task.send_event(SKIPPED_EVENT, retry=False, name=task.name, key=key, holder=holder)
    except Exception as exc:
        # An event is news, not work: a broker that cannot take it does not change the outcome.
        logger.warning("The event %s could not be sent: %r", SKIPPED_EVENT, exc)
