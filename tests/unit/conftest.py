"""What all unit tests share."""

from __future__ import annotations

import pytest
from celery import signals


@pytest.fixture(autouse=True)
def unmarked_messages() -> None:
    """
    Have no message marked for the app of an earlier test.

    Signals are the process's: an app with `redlock_dedupe` has all messages marked from then on,
    and the first message of a process looks for such apps, even where nobody holds one any more.
    """
    for handler in ("before_task_publish", "first_publish"):
        signals.before_task_publish.disconnect(dispatch_uid=f"celery_redlock.{handler}")
