"""Receivers of signals get what happens to tasks because of their locks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from celery_redlock import signals
from celery_redlock.tasks.events import SIGNALS, Event, emit
from tests.support.events import listening


@pytest.fixture
def heard() -> Iterator[list[dict[str, Any]]]:
    with listening(signals.task_duplicate) as heard:
        yield heard


def test_every_kind_of_news_has_a_public_signal() -> None:
    assert {kind: getattr(signals, kind.value) for kind in Event} == SIGNALS


def test_receivers_get_the_task_the_id_and_the_facts(heard: list[dict[str, Any]]) -> None:
    emit(Event.DUPLICATE, "the task", "id", existing="other")
    assert [
        (news["sender"], news["task_id"], news["existing"], news["signal"]) for news in heard
    ] == [("the task", "id", "other", signals.task_duplicate)]


def test_a_receiver_that_fails_disturbs_nobody(heard: list[dict[str, Any]]) -> None:
    def fail(**_: Any) -> None:
        raise RuntimeError("receiver")

    signals.task_duplicate.connect(fail, weak=False)
    try:
        emit(Event.DUPLICATE, None, "id")
    finally:
        signals.task_duplicate.disconnect(fail)
    assert len(heard) == 1
