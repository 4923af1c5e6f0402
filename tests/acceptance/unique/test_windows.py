"""A window (`until_expired`) on hosts whose clocks disagree."""

from __future__ import annotations

import pytest
from celery.result import AsyncResult

from celery_redlock import is_duplicate
from tests.acceptance.apps.unique_tasks import WINDOW
from tests.acceptance.conftest import KeepWorker
from tests.acceptance.scene import Journal, Lock
from tests.acceptance.unique.conftest import MakePublisher
from tests.acceptance.unique.publisher import Publisher
from tests.support.skew import clock_off_by
from tests.support.waiting import wait_until

TASK = "unique.until_expired"

by_minutes = pytest.mark.parametrize("skew", [-2 * WINDOW, 2 * WINDOW])
through_all_hands = pytest.mark.parametrize("how", ["hold", "retry", "retry_at_once"])


def assert_runs_once_in_its_window(
    first: AsyncResult, publisher: Publisher, lock: Lock, journal: Journal, skew: float
) -> None:
    finished = f" finished {first.id} "
    wait_until(lambda: finished in (lock.owner or ""), message="it to finish")
    for _ in range(3):
        with clock_off_by(skew):
            assert is_duplicate(publisher.send(TASK, journal.key))
    assert {entry["id"] for entry in journal.of("entered")} == {first.id}
    assert lock.free_in <= WINDOW


@by_minutes
@through_all_hands
def test_a_publisher_with_a_wrong_clock_gets_one_run_in_a_window(
    how: str, skew: float, publisher: Publisher, lock: Lock, journal: Journal
) -> None:
    journal.open()
    with clock_off_by(skew):
        first = publisher.send(TASK, journal.key, how)
    assert_runs_once_in_its_window(first, publisher, lock, journal, skew)


@pytest.mark.full
@by_minutes
@through_all_hands
def test_a_worker_with_a_wrong_clock_keeps_a_key_for_its_window(
    how: str,
    skew: float,
    keep_worker: KeepWorker,
    make_publisher: MakePublisher,
    lock: Lock,
    journal: Journal,
) -> None:
    worker = keep_worker("solo", skew=skew)
    publisher = make_publisher(worker.name)
    journal.open()
    first = publisher.send(TASK, journal.key, how)
    assert_runs_once_in_its_window(first, publisher, lock, journal, 0.0)
