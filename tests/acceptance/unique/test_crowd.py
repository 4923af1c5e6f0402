"""A hundred publishers of one key at the same moment, again and again."""

from __future__ import annotations

import pytest

from celery_redlock import is_duplicate
from tests.acceptance.scene import Journal, Lock
from tests.acceptance.unique.crowd import TASK, Crowd, one_of_each_turn
from tests.acceptance.unique.publisher import Publisher
from tests.acceptance.worker import Worker
from tests.support.waiting import TIMEOUT, wait_until

pytestmark = pytest.mark.full

TURNS = 50


@pytest.mark.timeout(10 * TIMEOUT)
def test_of_a_hundred_publishes_at_once_one_runs_and_the_others_point_at_it_fifty_times_over(
    crowd: Crowd, worker: Worker, publisher: Publisher, key: str, lock: Lock, journal: Journal
) -> None:
    chosen = one_of_each_turn(TURNS, crowd, publisher, lock, journal)

    following = publisher.send(TASK, key)

    assert not is_duplicate(following)
    journal.open()
    assert following.get(timeout=TIMEOUT) == "held"
    wait_until(lambda: worker.queue_is_empty, message="no message to be left")
    assert [entry["id"] for entry in journal.of("entered")] == [*chosen, following.id]
