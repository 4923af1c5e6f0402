"""
The rank of a message among the waiters of a key, from its Celery priority.

Celery hands a message's `priority` to the broker, and brokers disagree on its meaning: with Redis,
0 is the most urgent; with RabbitMQ and all others that order messages, the largest number is. A
message that names none has 0 with each of them.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any

from celery_redlock.protocol.commands import MAX_RANK
from celery_redlock.tasks.border import AppLike, app_itself

#: For each app, 1 or -1, by which a priority becomes a rank: to ask kombu takes 0.1 ms.
_signs: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()


def rank_of(app: AppLike, delivery_info: Mapping[str, Any] | None) -> int:
    """Return the rank of a message, from what came with its delivery; see `Waiter.rank`."""
    priority = (delivery_info or {}).get("priority")
    if not isinstance(priority, int) or priority <= 0:  # any program may have sent it
        return 0
    return min(priority, MAX_RANK) * _sign_of(app_itself(app))


def _sign_of(app: AppLike) -> int:
    sign = _signs.get(app)
    if sign is None:
        driver = app.connection_for_read().get_transport_cls().driver_type
        sign = _signs[app] = 1 if driver == "redis" else -1  # Sentinel's is "redis" too
    return sign
