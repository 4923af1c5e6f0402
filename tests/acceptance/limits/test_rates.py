"""Real workers begin no more bodies per period than the rate, and requeue each message once."""

from __future__ import annotations

from collections import Counter
from statistics import median

from celery import Celery

from tests.acceptance.apps.limits import RATE
from tests.acceptance.limits.starts import are_within
from tests.acceptance.scene import Journal

CALLS = 4 * RATE


def test_no_second_has_more_starts_than_the_rate(app: Celery, key: str, journal: Journal) -> None:
    for number in range(CALLS):
        app.tasks["limits.rated"].delay(key, number)
    journal.wait_for("begun", CALLS)
    assert are_within(RATE, journal.of("begun"))


def test_most_messages_beyond_the_rate_are_requeued_once(
    app: Celery, key: str, journal: Journal
) -> None:
    # No more than the next second has places for: one that comes late takes nobody's place.
    for number in range(2 * RATE):
        app.tasks["limits.rated"].delay(key, number)
    journal.wait_for("begun", 2 * RATE)
    requeues = Counter(entry["id"] for entry in journal.of("requeued"))
    assert median(requeues.values()) == 1


def test_calls_that_were_counted_at_publish_run_without_being_counted_again(
    app: Celery, key: str, journal: Journal
) -> None:
    for number in range(RATE):
        app.tasks["limits.counted"].delay(key, number)
    journal.wait_for("begun", RATE)
    assert journal.of("requeued") == []
    assert len(app.tasks["limits.counted"].lock_usage(key)[0].holders) <= RATE


def test_a_body_that_outlasts_its_ttl_under_a_rate_ends(
    app: Celery, key: str, journal: Journal
) -> None:
    for number in range(RATE):
        app.tasks["limits.long"].delay(key, number)
    journal.wait_for("ended", RATE)
