"""
Signals about locks, in the style of `celery.signals`.

Receivers run immediately, in the process in which the event happens (publisher, pool process). They
get the task as `sender`, an id as `task_id`, and the arguments below. Their exceptions are logged
and not raised. Receivers of `lock_lost` run in their own thread, or greenlet under gevent and
eventlet.

| signal | what happened to `task_id` | arguments |
|---|---|---|
| `task_duplicate` | a duplicate of it was not sent, or was refused | `key`, `refused` |
| `task_replaced` | a newer task replaced it in the queue, or asked it to stop | `by` |
| `task_superseded` | it arrived after it had been replaced, and ended as revoked | `by` |
| `task_skipped` | it ended without running, because another task does the work | `error` |
| `task_requeued` | it was requeued to wait for its lock | `delay`, `requeues`, `error` |
| `task_gave_up` | it waited for longer than `lock_give_up_after` | `waited`, `requeues`, `error` |
| `task_without_lock` | it was sent or run without its lock: too few nodes replied | `error` |
| `lock_node_failed` | it was sent with its lock, while a minority of nodes failed | `nodes` |
| `tick_missed` | it ended, as it came after its `lock_starting_deadline` | `tick`, `late_by` |
| `tick_superseded` | it was dropped: a newer leader is responsible for it | `tick`, `newest` |
| `redelivery_ignored` | its message was delivered again after it had finished | `finished_by` |
| `redelivery_requeued` | its message was delivered again while it was running | `delay`, `error` |
| `lock_lost` | its lock was lost while its body was running (see above) | `key`, `reason` |

`RedlockScheduler` sends these between two passes, with itself as the `sender`, so receivers must
not take long.

| signal | what happened | arguments |
|---|---|---|
| `beat_leader_started` | it leads, and knows what earlier leaders have sent | `token`, `reason` |
| `beat_leader_stopped` | it leads no longer, and has handed over | `token`, `reason` |

Example:
    ```python
    from celery_redlock.signals import task_duplicate


    @task_duplicate.connect
    def count(sender, task_id, key, **_):
        metrics.increment("duplicates", task=sender.name)
    ```
"""

from __future__ import annotations

from celery.utils.dispatch import Signal

from celery_redlock.tasks.events import SIGNALS, Event

__all__ = [
    "beat_leader_started",
    "beat_leader_stopped",
    "lock_lost",
    "lock_node_failed",
    "redelivery_ignored",
    "redelivery_requeued",
    "task_duplicate",
    "task_gave_up",
    "task_replaced",
    "task_requeued",
    "task_skipped",
    "task_superseded",
    "task_without_lock",
    "tick_missed",
    "tick_superseded",
]

lock_lost = SIGNALS[Event.LOCK_LOST]
lock_node_failed = SIGNALS[Event.NODE_FAILED]
task_duplicate = SIGNALS[Event.DUPLICATE]
task_gave_up = SIGNALS[Event.GAVE_UP]
task_replaced = SIGNALS[Event.REPLACED]
task_requeued = SIGNALS[Event.REQUEUED]
task_skipped = SIGNALS[Event.SKIPPED]
task_superseded = SIGNALS[Event.SUPERSEDED]
task_without_lock = SIGNALS[Event.WITHOUT_LOCK]
tick_superseded = SIGNALS[Event.TICK_SUPERSEDED]
tick_missed = SIGNALS[Event.TICK_MISSED]
redelivery_ignored = SIGNALS[Event.REDELIVERY_IGNORED]
redelivery_requeued = SIGNALS[Event.REDELIVERY_REQUEUED]

beat_leader_started = Signal(name="beat_leader_started", providing_args={"token", "reason"})
beat_leader_stopped = Signal(name="beat_leader_stopped", providing_args={"token", "reason"})
