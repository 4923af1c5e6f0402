"""Rates, pauses and bursts over two workers, also if one is killed or two of five nodes die."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from celery import states
from celery.result import AsyncResult

from celery_redlock import Redlock, is_skipped
from celery_redlock.errors import LockContended
from celery_redlock.testing import LocalCluster
from tests.acceptance.apps.limits import RATE
from tests.acceptance.apps.visible import instant
from tests.acceptance.limits.starts import are_within
from tests.acceptance.scene import Journal
from tests.acceptance.unique.brokers.conftest import HOW, Strike
from tests.acceptance.unique.conftest import MakePublisher
from tests.acceptance.waiters import kept, wait_until_kept
from tests.acceptance.worker import Worker
from tests.support.waiting import TIMEOUT, wait_until

pytestmark = pytest.mark.parametrize("how", HOW)

#: Seconds; longer than any test.
LONG = 600.0


@pytest.fixture
def redlock(cluster: LocalCluster) -> Iterator[Redlock]:
    """A client of the workers' nodes."""
    with Redlock(cluster.urls, node_timeout=1.0) as redlock:
        yield redlock


def send(workers: Sequence[Worker], task: str, key: str, count: int) -> list[AsyncResult]:
    """Send messages to the workers in turn."""
    return [workers[number % 2].send(task, key) for number in range(count)]


def ids(entries: Sequence[dict[str, Any]]) -> set[str]:
    return {entry["id"] for entry in entries}


def test_no_second_has_more_starts_than_the_rate_and_all_calls_run(
    workers: tuple[Worker, Worker], strike: Strike, key: str, journal: Journal
) -> None:
    results = send(workers, "limits.rated_late", key, 4 * RATE)
    sent = {result.id for result in results}
    there = {result.id for result in results[1::2]}
    wait_until(lambda: there <= ids(journal.of("begun")) | kept(workers[1]).keys())

    strike()

    wait_until(lambda: ids(journal.of("begun")) == sent, 2 * TIMEOUT, message="all to run")
    assert are_within(RATE, journal.of("begun"))


def assert_skipped(result: AsyncResult) -> None:
    assert is_skipped(result.get(timeout=TIMEOUT))


def assert_refused(result: AsyncResult) -> None:
    with pytest.raises(LockContended):
        result.get(timeout=TIMEOUT)


@pytest.mark.parametrize(
    ("task", "assert_ended"),
    [("limits.dropped", assert_skipped), ("limits.refused", assert_refused)],
    ids=["skip", "raise"],
)
def test_what_is_beyond_the_rate_ends_as_the_policy_says(
    workers: tuple[Worker, Worker],
    strike: Strike,
    key: str,
    journal: Journal,
    task: str,
    assert_ended: Any,
) -> None:
    within = send(workers, task, key, RATE)
    journal.wait_for("begun", RATE)

    strike()

    for result in send(workers, task, key, RATE):
        assert_ended(result)
    assert ids(journal.of("begun")) == {result.id for result in within}


def test_no_body_begins_during_a_pause_and_resume_starts_all(
    workers: tuple[Worker, Worker], strike: Strike, redlock: Redlock, key: str, journal: Journal
) -> None:
    redlock.pause(key, LONG)
    waiters = send(workers, "pausing.run_late", key, 6)
    sent = {result.id for result in waiters}
    for place, worker in enumerate(workers):
        wait_until_kept(worker, waiters[place::2])

    second = strike()

    wait_until_kept(second.wait_until_ready(), waiters[1::2])
    before_resume = instant()
    redlock.resume(key)
    wait_until(lambda: ids(journal.of("ran")) == sent, message="all to run")
    assert min(entry["at"] for entry in journal.of("ran")) >= before_resume


def test_of_a_burst_the_newest_call_runs_and_none_that_it_replaced(
    workers: tuple[Worker, Worker],
    strike: Strike,
    make_publisher: MakePublisher,
    key: str,
    journal: Journal,
) -> None:
    publishers = [make_publisher(one.name) for one in workers]
    task = "unique.debounced.until_executing"
    results = [publishers[number % 2].send(task, key, number) for number in range(4)]
    journal.wait_for("delivered", len(results))

    strike()

    wait_until(lambda: all(result.ready() for result in results), message="all to end")
    # A busy machine may be quiet for so long that an earlier call runs, too.
    ran = [entry["number"] for entry in journal.of("ran")]
    assert (ran, ran[-1]) == (sorted(set(ran)), 3)
    ended = [states.SUCCESS if number in ran else states.REVOKED for number in range(4)]
    assert [result.state for result in results] == ended
