"""
Attributes of this package on Celery's request.

`fencing_token` and `tick` are for the application; everything else is in one `RequestState`. Class
attributes of Celery's `Context` are defaults and are never sent in the headers of a message.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from celery.app.task import Context

from celery_redlock.tasks.border import RequestLike

Context.fencing_token = None
Context.redlock_state = None
Context.tick = None


@dataclass(slots=True)
class RequestState:
    """
    The course of one request.

    Attributes:
        entered: the call that runs the request has begun; later calls come from inside its body.
        traced: Celery has sent `task_prerun`, so `task_postrun` will follow.
        running_lock: the lock and dedupe marker of the request, until they are released.
        ended: they have been released.
        last_words: logs why the body did not run, after Celery has logged the end of the task.
    """

    entered: bool = False
    traced: bool = False
    running_lock: Any = None
    ended: bool = False
    last_words: Callable[[], object] | None = None


def state_of(request: RequestLike) -> RequestState:
    """Return the state of a request. A value that a message's headers have set is replaced."""
    state = getattr(request, "redlock_state", None)
    if not isinstance(state, RequestState):
        state = request.redlock_state = RequestState()
    return state
