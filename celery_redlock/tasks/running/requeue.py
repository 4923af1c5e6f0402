"""
Putting a message back into its queue because its lock cannot be taken now.

The message is made anew from the request, so everything that Celery carries in it stays: id, chord,
chain, group, links, expiry, limits, stamps and priority. How often and for how long is counted in
our header, never in the task's `retries`; the message's identity and lock travel on in it.
"""

from __future__ import annotations

import random
import time
from typing import Any, NoReturn

from celery.exceptions import Reject, Retry
from celery.utils.log import get_logger

from celery_redlock.errors import LockNotAcquired
from celery_redlock.tasks.holding.arrival import Claim
from celery_redlock.tasks.messages.envelope import HEADER, Episode
from celery_redlock.tasks.news import News, tell

__all__ = ["delay_after", "episode_of", "give_up", "ignores_result", "put_back", "requeue"]
__all__ += ["strip_header"]

logger = get_logger(__name__)

SHORTEST_DELAY = 0.25
FIRST_DELAY = 1.0
MAX_DELAY = 60.0
#: After so much of the time that is left for its start a message comes back.
LAST_TRY = 0.9


def episode_of(claim: Claim) -> Episode:
    """Read the episode that a request belongs to, or begin one when it got here."""
    request, episode = claim.request, claim.envelope.episode
    # The body may have run for hours before its worker died; that was not waiting.
    redelivered = (request.delivery_info or {}).get("redelivered")
    if episode is None or redelivered or episode.retries != request.retries:
        return Episode(first_seen=claim.started, hops=0, retries=request.retries)
    return episode


def strip_header(request: Any) -> None:
    """What the body sends from its request must not carry this message's header on."""
    headers = request.headers
    if headers and HEADER in headers:
        request.headers = {name: value for name, value in headers.items() if name != HEADER}
        request.__dict__.pop(HEADER, None)


def requeue(claim: Claim, error: LockNotAcquired) -> NoReturn:
    """Publish the task again, to run later, and end this run with `Retry`."""
    task, request = claim.task, claim.request
    now = time.time()
    episode = episode_of(claim)
    left = claim.options.give_up_after - episode.waited(now)
    if left <= 0:
        give_up(claim, error, episode.waited(now), episode.hops)
    delay = min(delay_after(episode.hops, _longest_delay(claim, now)), left)
    try:
        again = put_back(claim, episode, delay)
    except Exception as exc:
        _not_published(claim, error, exc)
    logger.info(
        "Task %s[%s] is put back for %.1f s, %.0f s before it gives up (hop %d): %s",
        task.name,
        request.id,
        delay,
        left,
        episode.hops + 1,
        error,
    )
    tell(News.REQUEUED, task, request.id, delay=delay, hops=episode.hops + 1, error=error)
    raise Retry("lock", exc=error, when=delay, sig=again)


def _longest_delay(claim: Claim, now: float) -> float:
    longest = longest_delay(claim.task.app)
    if claim.overlap == "replace":
        # So long a run may take to notice that it is asked to stop.
        longest = min(longest, max(FIRST_DELAY, claim.options.ttl / 3))
    return min(longest, LAST_TRY * max(0.0, claim.starts_by - now))


def put_back(claim: Claim, episode: Episode, delay: float, *, begun: bool = False) -> Any:
    """
    Publish the same message to arrive after `delay` seconds, and return its signature.

    Args:
        claim: of the request.
        episode: its way so far.
        delay: in seconds.
        begun: a body is at this very piece of work.
    """
    request = claim.request
    later = Episode(first_seen=episode.first_seen, hops=episode.hops + 1, retries=episode.retries)
    headers = dict(request.as_execution_options()["headers"] or {})
    headers[HEADER] = claim.envelope.waiting(later, begun=begun or claim.may_have_begun).write()
    again = claim.task.signature_from_request(
        request,
        countdown=delay,
        headers=headers,
        ignore_result=ignores_result(claim.task, request),
    )
    again.apply_async()
    return again


def ignores_result(task: Any, request: Any) -> Any:
    """Tell whether nobody wants the task's result."""
    # The class of a request says False where the message said nothing.
    said = vars(request).get("ignore_result")
    return task.ignore_result if said is None else said


def give_up(claim: Claim, error: LockNotAcquired, waited: float, hops: int) -> NoReturn:
    """End a task whose patience (`lock_give_up_after`) is used up."""
    task, request = claim.task, claim.request
    logger.error(
        "Task %s[%s] gives up after %.0f s and %d more tries without its lock: %s",
        task.name,
        request.id,
        waited,
        hops,
        error,
    )
    tell(News.GAVE_UP, task, request.id, waited=waited, hops=hops, error=error)
    raise LockNotAcquired(
        f"Task {task.name}[{request.id}] did not get its lock within lock_give_up_after = "
        f"{claim.options.give_up_after:g} s (tried again {hops} times). The last attempt: {error}"
    ) from error


def _not_published(claim: Claim, error: LockNotAcquired, failure: Exception) -> NoReturn:
    task, request = claim.task, claim.request
    if task.acks_late:
        logger.error(
            "Task %s[%s] could not be put back (%r); its message is returned to the broker. %s",
            task.name,
            request.id,
            failure,
            error,
        )
        raise Reject(failure, requeue=True) from failure
    logger.error(
        "Task %s[%s] could not be put back (%r) and its message is already acknowledged, so it "
        "fails. %s",
        task.name,
        request.id,
        failure,
        error,
    )
    raise LockNotAcquired(
        f"Task {task.name}[{request.id}] did not get its lock ({error}) and could not be put back: "
        f"{failure!r}. With acks_late=True the broker would deliver it again."
    ) from failure


def delay_after(hops: int, longest: float) -> float:
    """Return for how long to put a message back that has been put back `hops` times."""
    # Full jitter: waiting tasks that started together must not come back together.
    ceiling = min(longest, FIRST_DELAY * 2.0 ** min(hops, 16))
    # Celery stores RETRY for this run only after the new message is out. A run that began at once
    # could end before that, and its SUCCESS would be overwritten.
    floor = min(SHORTEST_DELAY, ceiling)
    return random.uniform(floor, ceiling)  # noqa: S311  # spreads load, protects nothing


def longest_delay(app: Any) -> float:
    """
    Keep well below the visibility timeout.

    A worker holds a delayed message unacknowledged; when the timeout passes, the broker delivers
    it a second time.
    """
    visibility = (app.conf.broker_transport_options or {}).get("visibility_timeout")
    return MAX_DELAY if not visibility else min(MAX_DELAY, float(visibility) / 2)
