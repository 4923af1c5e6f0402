"""
Signals about locks, in the style of `celery.signals`.

Receivers run in the process in which it happens (publisher, worker child), at once, and get the
task as `sender`, an id as `task_id`, and these facts. What they raise is logged and goes no
further. Those of `lock_lost` run in a thread of their own, under gevent and eventlet in a greenlet.

| signal | what happened to `task_id` | facts |
|---|---|---|
| `task_duplicate` | it stands for a duplicate, not sent or refused | `key`, `refused` |
| `task_replaced` | it gave its place in the queue to a newer task, or was asked to stop | `by` |
| `task_superseded` | it arrived after it had been replaced, and ended as revoked | `by` |
| `task_skipped` | it ended without running, because another does the work | `error` |
| `task_requeued` | it went back into its queue to wait for its lock | `delay`, `hops`, `error` |
| `task_gave_up` | it waited for longer than `lock_give_up_after` | `waited`, `hops`, `error` |
| `task_unlocked` | it was sent or run without its lock: too few nodes answered | `error` |
| `tick_missed` | it ended, as it came after its `lock_starting_deadline` | `tick`, `late_by` |
| `tick_late` | it was dropped, as a newer leader answers for its tick | `tick`, `newest` |
| `twin_ignored` | its message came again after it had finished | `finished_by` |
| `twin_put_back` | its message came again while it runs | `delay`, `error` |
| `lock_lost` | its lock was lost in its body (see above) | `key`, `reason` |

These are sent in the process of a beat with `RedlockScheduler`, which is the `sender`, between two
passes; so they must not take long.

| signal | what happened | facts |
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

from celery_redlock.tasks.news import SIGNALS, News, counters

__all__ = [
    "beat_leader_started",
    "beat_leader_stopped",
    "counters",
    "lock_lost",
    "task_duplicate",
    "task_gave_up",
    "task_replaced",
    "task_requeued",
    "task_skipped",
    "task_superseded",
    "task_unlocked",
    "tick_late",
    "tick_missed",
    "twin_ignored",
    "twin_put_back",
]

lock_lost = SIGNALS[News.LOCK_LOST]
task_duplicate = SIGNALS[News.DUPLICATE]
task_gave_up = SIGNALS[News.GAVE_UP]
task_replaced = SIGNALS[News.REPLACED]
task_requeued = SIGNALS[News.REQUEUED]
task_skipped = SIGNALS[News.SKIPPED]
task_superseded = SIGNALS[News.SUPERSEDED]
task_unlocked = SIGNALS[News.UNLOCKED]
tick_late = SIGNALS[News.TICK_LATE]
tick_missed = SIGNALS[News.TICK_MISSED]
twin_ignored = SIGNALS[News.TWIN_IGNORED]
twin_put_back = SIGNALS[News.TWIN_PUT_BACK]

beat_leader_started = Signal(name="beat_leader_started", providing_args={"token", "reason"})
beat_leader_stopped = Signal(name="beat_leader_stopped", providing_args={"token", "reason"})
