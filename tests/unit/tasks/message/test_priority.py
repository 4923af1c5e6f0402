"""The rank of a message is by its priority, as its broker means that."""

from __future__ import annotations

from typing import Any

import pytest
from celery import Celery

from celery_redlock.protocol.commands import MAX_RANK
from celery_redlock.tasks.message.envelope import rank_of


def rank(broker: str, priority: Any) -> int:
    app = Celery("priority", broker=broker, set_as_current=False)
    return rank_of(app, {"priority": priority})


@pytest.mark.parametrize("broker", ["redis://", "rediss://", "sentinel://a;sentinel://b"])
def test_with_redis_the_smallest_priority_is_first(broker: str) -> None:
    assert rank(broker, 0) < rank(broker, 3) < rank(broker, 9)


@pytest.mark.parametrize("broker", ["amqp://", "pyamqp://", "memory://", "filesystem://"])
def test_with_all_others_the_largest_priority_is_first(broker: str) -> None:
    assert rank(broker, 9) < rank(broker, 3) < rank(broker, 0)


@pytest.mark.parametrize("broker", ["redis://", "amqp://"])
@pytest.mark.parametrize("priority", [None, 0, -1, "9", 3.5, [9]])
def test_what_is_no_priority_counts_as_none(broker: str, priority: Any) -> None:
    assert rank(broker, priority) == 0


@pytest.mark.parametrize("broker", ["redis://", "amqp://"])
def test_a_priority_that_amqp_cannot_have_counts_as_its_largest(broker: str) -> None:
    assert abs(rank(broker, 10**9)) == MAX_RANK


def test_a_call_without_a_delivery_has_no_rank() -> None:
    assert rank_of(Celery("priority", broker="redis://", set_as_current=False), None) == 0


def test_the_broker_from_which_a_worker_reads_decides() -> None:
    app = Celery("priority", broker="amqp://", set_as_current=False)
    app.conf.broker_read_url = "redis://"
    assert rank_of(app, {"priority": 5}) > 0
