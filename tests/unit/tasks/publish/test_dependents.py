"""A duplicate that somebody counts on is sent."""

from __future__ import annotations

from typing import Any

import pytest

from celery_redlock.tasks.message.envelope import Envelope
from tests.support.tasks import Bench
from tests.support.unique import declare, owned_by

TIES: list[dict[str, Any]] = [
    {"task_id": "mine"},
    {"link": []},
    {"link_error": []},
    {"chord": {"task": "x"}},
    {"chain": [{"task": "x"}]},
    {"group_id": "g"},
]


@pytest.mark.parametrize("policy", ["existing", "raise"])
@pytest.mark.parametrize("tie", TIES, ids=lambda tie: next(iter(tie)))
def test_a_duplicate_that_somebody_counts_on_is_sent_without_a_lock(
    bench: Bench, tie: dict[str, Any], policy: str
) -> None:
    task = declare(bench, lock_on_duplicate=policy)
    tie = {name: value or [task.si()] for name, value in tie.items()}
    owned_by(bench, "other")
    message = bench.send(task, **tie)
    assert Envelope.read(message).reservation is None
    assert Envelope.read(message).nonce


def test_a_policy_is_not_asked_at_publish_about_a_duplicate_that_has_to_be_sent(
    bench: Bench,
) -> None:
    task = declare(bench, lock_on_duplicate=lambda task, error: 1 / 0)
    task.delay()
    task.apply_async(task_id="mine")
    assert bench.queue_length == 2


def test_a_plain_signature_is_dropped_as_a_duplicate(bench: Bench) -> None:
    task = declare(bench)
    first = task.s().delay()
    assert task.si().apply_async().id == first.id
    assert bench.queue_length == 1
