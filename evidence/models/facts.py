"""
The facts of an ordinary call, for the shipped rules; a model replaces those that differ.
"""

from __future__ import annotations

from celery_redlock.tasks.rules import arrival, ending, publish
from celery_redlock.tasks.rules.facts import (
    Burst,
    ConflictPolicy,
    DuplicatePolicy,
    Holder,
    Obstacle,
    Order,
    Raised,
    Role,
    Unavailable,
)

#: A call is sent while another one waits.
DUPLICATE = publish.Duplicate(
    split=False,
    holder=Holder.OTHER,
    role=Role.QUEUED,
    same_work=True,
    is_limit=False,
    holder_has_ended=False,
    has_waited=False,
    has_dependents=False,
    continues=False,
    policy=DuplicatePolicy.EXISTING,
    holder_may_be_skipped=False,
    held_in_body=True,
    burst=Burst.NONE,
)

#: A message arrives, and another one has its key.
CONTENTION = arrival.Contention(
    obstacle=Obstacle.RESERVED,
    split=False,
    holder=Holder.OTHER,
    role=Role.QUEUED,
    order=Order.UNKNOWN,
    same_work=True,
    same_message=False,
    holds_until_result=True,
    holder_may_be_skipped=False,
    holder_is_newer=False,
    locks_at_publish=True,
    for_window=False,
    brought_lock=False,
    continues=False,
    may_have_begun=False,
    has_retaken=False,
    has_taken_over=False,
    may_be_rejected=False,
    at_publish=DuplicatePolicy.EXISTING,
    at_run=ConflictPolicy.REQUEUE,
    unavailable=Unavailable.REQUEUE,
    eager=False,
)

#: A body has succeeded, and what is left of it then.
ENDED = ending.Ended(
    state=ending.State.RUNNING,
    celery_state=ending.CeleryState.SUCCESS,
    rejection=Raised.NOTHING,
    process_ends=False,
    retry_is_out=False,
    acks_late=False,
    failure_is_final=True,
    eager=False,
)
REMAINS = ending.Remains(
    ending=ending.Ending.DONE,
    state=ending.State.RUNNING,
    unrun_as=None,
    for_tick=False,
    held_in_body=True,
    can_give_back=False,
    has_window=False,
    window_is_over=False,
    has_minimum=False,
)
