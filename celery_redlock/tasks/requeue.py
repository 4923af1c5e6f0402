"""
Putting a task back into its queue because its lock cannot be taken now.

The message is made anew from the request, so everything that Celery carries in it stays: id, chord,
chain, group, links, expiry, limits, stamps and priority. How often and for how long is counted in a
header of our own, never in the task's `retries`.
"""

from __future__ import annotations

import random
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from celery.exceptions import Reject, Retry
from celery.utils.log import get_logger

from celery_redlock.errors import LockNotAcquired
from celery_redlock.tasks.options import LockOptions

__all__ = ["HEADER", "Episode", "end_episode", "episode_of", "give_up", "requeue"]

logger = get_logger(__name__)

HEADER = "redlock"
SHORTEST_DELAY = 0.25
FIRST_DELAY = 1.0
MAX_DELAY = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Episode:
    """
    The time that one message has spent on its way to a lock.

    Attributes:
        first_seen: when a worker first failed to take the lock, in seconds since the epoch.
        hops: how often the message has been put back since.
        retries: the task's own retry count meanwhile; a retry begins a new episode.
    """

    first_seen: float
    hops: int
    retries: int

    def waited(self, now: float) -> float:
        """Return the seconds since the first attempt; clocks of different hosts may disagree."""
        return max(0.0, now - self.first_seen)


def episode_of(request: Any, started: float) -> Episode:
    """Read the episode that a request belongs to, or begin one at `started`."""
    fresh = Episode(first_seen=started, hops=0, retries=request.retries)
    if (request.delivery_info or {}).get("redelivered"):
        # The body may have run for hours before its worker died; that was not waiting.
        return fresh
    header = (request.headers or {}).get(HEADER)
    if not isinstance(header, Mapping) or header.get("retries") != request.retries:
        return fresh
    try:
        return Episode(
            first_seen=float(header["first_seen"]),
            hops=int(header["hops"]),
            retries=request.retries,
        )
    except (KeyError, TypeError, ValueError):
        return fresh


def end_episode(request: Any) -> None:
    """The lock is held: what the body sends from its request must not carry our header on."""
    headers = request.headers
    if headers and HEADER in headers:
        request.headers = {name: value for name, value in headers.items() if name != HEADER}
        request.__dict__.pop(HEADER, None)


def requeue(
    task: Any, request: Any, options: LockOptions, error: LockNotAcquired, started: float
) -> NoReturn:
    """Publish the task again, to run later, and end this run with `Retry`."""
    now = time.time()
    episode = episode_of(request, started)
    left = options.give_up_after - episode.waited(now)
    if left <= 0:
        give_up(task, request, options, error, episode.waited(now), episode.hops)
    delay = min(_delay(episode.hops, _longest_delay(task.app)), left)
    headers = dict(request.as_execution_options()["headers"] or {})
    headers[HEADER] = {
        "first_seen": episode.first_seen,
        "hops": episode.hops + 1,
        "retries": episode.retries,
    }
    again = task.signature_from_request(
        request,
        countdown=delay,
        headers=headers,
        ignore_result=_ignores_result(task, request),
    )
    try:
        again.apply_async()
    except Exception as exc:
        _not_published(task, request, error, exc)
    logger.info(
        "Task %s[%s] is put back for %.1f s, %.0f s before it gives up (hop %d): %s",
        task.name,
        request.id,
        delay,
        left,
        episode.hops + 1,
        error,
    )
    raise Retry("lock", exc=error, when=delay, sig=again)


def _ignores_result(task: Any, request: Any) -> Any:
    # The class of a request says False where the message said nothing.
    said = vars(request).get("ignore_result")
    return task.ignore_result if said is None else said


def give_up(
    task: Any, request: Any, options: LockOptions, error: LockNotAcquired, waited: float, hops: int
) -> NoReturn:
    """End a task whose patience (`lock_give_up_after`) is used up."""
    logger.error(
        "Task %s[%s] gives up after %.0f s and %d more tries without its lock: %s",
        task.name,
        request.id,
        waited,
        hops,
        error,
    )
    raise LockNotAcquired(
        f"Task {task.name}[{request.id}] did not get its lock within lock_give_up_after = "
        f"{options.give_up_after:g} s (tried again {hops} times). The last attempt: {error}"
    ) from error


def _not_published(task: Any, request: Any, error: LockNotAcquired, failure: Exception) -> NoReturn:
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


def _delay(hops: int, longest: float) -> float:
    # Full jitter: waiting tasks that started together must not come back together.
    ceiling = min(longest, FIRST_DELAY * 2.0 ** min(hops, 16))
    # Celery stores RETRY for this run only after the new message is out. A run that began at once
    # could end before that, and its SUCCESS would be overwritten.
    floor = min(SHORTEST_DELAY, ceiling)
    return random.uniform(floor, ceiling)  # noqa: S311  # spreads load, protects nothing


def _longest_delay(app: Any) -> float:
    """
    Keep well below the visibility timeout.

    A worker holds a delayed message unacknowledged; when the timeout passes, the broker delivers
    it a second time.
    """
    visibility = (app.conf.broker_transport_options or {}).get("visibility_timeout")
    return MAX_DELAY if not visibility else min(MAX_DELAY, float(visibility) / 2)
