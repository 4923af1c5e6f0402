"""Real workers run no more bodies of a key at once than its limit."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Iterable
from typing import Any

import pytest
from celery import Celery, chord

from celery_redlock import Limit, Redlock
from celery_redlock.core import client_of
from celery_redlock.testing import LocalCluster
from tests.acceptance.apps.limits import LIMIT, MODES, RATE
from tests.acceptance.limits.starts import are_within
from tests.acceptance.scene import Journal
from tests.acceptance.worker import Worker
from tests.support.waiting import TIMEOUT, wait_until

CALLS = 8


def most_at_once(entries: Iterable[dict[str, Any]]) -> int:
    """Return how many bodies ran at once at most."""
    steps = {"begun": 1, "ended": -1}
    running = most = 0
    # Of two at one instant the end is first: a body ends before its slot is free.
    entries = [entry for entry in entries if entry["event"] in steps]
    for entry in sorted(entries, key=lambda entry: (entry["at"], steps[entry["event"]])):
        running += steps[entry["event"]]
        most = max(most, running)
    return most


@pytest.mark.parametrize("mode", [mode for mode in MODES if mode != "until_executing"])
def test_no_more_bodies_run_at_once_than_the_limit_and_all_run(
    app: Celery, key: str, journal: Journal, mode: str
) -> None:
    task = app.tasks[f"limits.{mode}"]
    for number in range(CALLS):
        task.delay(key, number)
    journal.wait_for("ended", CALLS)
    assert most_at_once(journal.entries) == LIMIT
    assert {entry["slot"] for entry in journal.of("begun")} == set(range(LIMIT))


def test_until_executing_limits_what_waits_and_not_what_runs(
    app: Celery, key: str, journal: Journal
) -> None:
    task = app.tasks["limits.until_executing"]
    for number in range(CALLS):
        task.delay(key, number)
    journal.wait_for("ended", CALLS)


def test_all_keys_of_a_task_are_kept_to(app: Celery, key: str, journal: Journal) -> None:
    task = app.tasks["limits.several"]
    for number in range(CALLS):
        task.delay(key, number % 3)
    journal.wait_for("ended", CALLS)
    assert most_at_once(journal.entries) <= LIMIT
    assert are_within(RATE, journal.of("begun"))


def test_a_message_that_another_program_sent_by_name_keeps_to_the_limit(
    worker: Worker, key: str, journal: Journal
) -> None:
    for _ in range(CALLS):
        worker.send("limits.while_executing", key)
    journal.wait_for("ended", CALLS)
    assert most_at_once(journal.entries) == LIMIT


def test_a_release_wakes_one_that_waits_for_a_slot(app: Celery, key: str, journal: Journal) -> None:
    results = [app.tasks["limits.held"].delay(key) for _ in range(LIMIT + 1)]
    journal.wait_for("begun", LIMIT)
    running = [entry["id"] for entry in journal.of("begun")]
    journal.open(running[0])
    journal.wait_for("begun", LIMIT + 1)
    assert {entry["id"] for entry in journal.of("begun")} == {result.id for result in results}
    assert [entry["id"] for entry in journal.of("ended")] == running[:1]


def test_retries_of_tasks_with_a_limit_keep_their_slots(
    app: Celery, key: str, journal: Journal
) -> None:
    """No other call gets a slot between two runs of a task that is retried."""
    for number in range(LIMIT + 1):
        app.tasks["limits.retried"].delay(key, number)
    journal.wait_for("begun", 3 * (LIMIT + 1))
    begun = [entry["id"] for entry in journal.of("begun")]
    last = max(set(begun), key=begun.index)
    assert 3 in Counter(begun[: begun.index(last)]).values()


def test_the_slot_of_a_body_whose_process_was_killed_is_free_after_its_ttl(
    app: Celery, key: str, journal: Journal
) -> None:
    for _ in range(LIMIT):
        app.tasks["limits.held_late"].delay(key)
    journal.wait_for("begun", LIMIT)
    killed, other = journal.of("begun")
    os.kill(killed["pid"], signal.SIGKILL)
    again = journal.wait_for("begun", LIMIT + 1)
    assert (again["id"], again["slot"]) == (killed["id"], killed["slot"])
    assert again["token"] > killed["token"]
    assert other["id"] not in [entry["id"] for entry in journal.of("unwound")]


def test_a_worker_that_was_killed_leaves_all_its_slots_after_their_ttl(
    start_worker: Any, key: str, journal: Journal, worker: Worker
) -> None:
    killed = start_worker().wait_until_ready()
    for _ in range(LIMIT):
        killed.send("limits.held", key)
    journal.wait_for("begun", LIMIT)
    for entry in journal.of("begun"):
        os.kill(entry["pid"], signal.SIGKILL)
    killed.signal(signal.SIGKILL)
    killed.wait_for_exit()
    for _ in range(LIMIT):
        worker.send("limits.held", key)
    journal.wait_for("begun", 2 * LIMIT)


def test_the_loss_of_a_slot_interrupts_its_body_only(
    app: Celery, key: str, journal: Journal, cluster: LocalCluster
) -> None:
    for _ in range(LIMIT):
        app.tasks["limits.held"].delay(key)
    journal.wait_for("begun", LIMIT)
    lost, other = journal.of("begun")
    with Redlock(list(cluster.urls)) as redlock:
        holders = redlock.holders(Limit(key, LIMIT))
        assert None not in holders
        place = f"redlock-meta:limit:redlock:{key}#{lost['slot']}"
        client_of(redlock).evict(place, holders[lost["slot"]].owner)
    assert journal.wait_for("unwound")["id"] == lost["id"]
    journal.open(other["id"])
    assert journal.wait_for("ended")["id"] == other["id"]


def test_a_chord_whose_header_exceeds_the_limit_ends(
    app: Celery, worker: Worker, key: str, journal: Journal
) -> None:
    task = app.tasks["limits.until_executed"]
    header = [task.si(key, number) for number in range(CALLS)]
    for step in (*header, last := task.si(key, CALLS)):
        step.set(ignore_result=False)
    chord(header)(last)
    journal.wait_for("ended", CALLS + 1)
    assert most_at_once(journal.entries) == LIMIT


def test_a_countdown_keeps_a_slot_until_the_body_has_run(
    app: Celery, key: str, journal: Journal
) -> None:
    task = app.tasks["limits.held_from_publish"]
    for _ in range(LIMIT):
        task.apply_async((key,), countdown=1)
    (usage,) = task.lock_usage(key)
    assert usage.free == 0
    journal.open()
    journal.wait_for("ended", LIMIT)
    wait_until(lambda: task.lock_usage(key)[0].free == LIMIT, TIMEOUT)
