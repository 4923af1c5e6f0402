"""Receivers of signals get what happens to tasks because of their locks."""

from __future__ import annotations

from typing import Any

from celery_redlock import signals
from celery_redlock.tasks.events import SIGNALS, Event, emit
from tests.support.events import listening


def test_every_kind_of_news_has_a_public_signal() -> None:
    assert {kind: getattr(signals, kind.value) for kind in Event} == SIGNALS


def test_a_receiver_that_fails_disturbs_nobody() -> None:
    def fail(**_: Any) -> None:
        raise RuntimeError("receiver")

    signals.task_duplicate.connect(fail, weak=False)
    try:
        with listening(signals.task_duplicate) as heard:
            emit(Event.DUPLICATE, None, "id")
    finally:
        signals.task_duplicate.disconnect(fail)
    assert len(heard) == 1
