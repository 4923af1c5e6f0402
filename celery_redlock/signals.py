"""
Signals about locks, in the style of `celery.signals`.

Receivers run in the process in which it happens (publisher, worker child), at once, and get the
task as `sender`, its id as `task_id`, and what else is known. What they raise is logged and goes no
further.

Example:
    ```python
    from celery_redlock.signals import task_duplicate


    @task_duplicate.connect
    def count(sender, task_id, existing, **_):
        metrics.increment("duplicates", task=sender.name)
    ```
"""

from __future__ import annotations

from celery_redlock.tasks.news import SIGNALS, News, counters

__all__ = [
    "counters",
    "lock_lost",
    "task_duplicate",
    "task_gave_up",
    "task_replaced",
    "task_requeued",
    "task_skipped",
    "task_superseded",
    "task_unlocked",
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
twin_ignored = SIGNALS[News.TWIN_IGNORED]
twin_put_back = SIGNALS[News.TWIN_PUT_BACK]
