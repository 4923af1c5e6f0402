"""Under `redlock_dedupe` a task that knows nothing of locks runs once for each message."""

from __future__ import annotations

import signal
from typing import Any

import pytest
from celery import states

from celery_redlock.testing import LocalCluster
from tests.acceptance.apps.unique_tasks import SHORT_TTL
from tests.acceptance.scene import Journal
from tests.acceptance.unique.conftest import PublishTo, StartImpatient
from tests.acceptance.unique.redeliveries import (
    DELIVERIES,
    messages_in,
    wait_until_marked_finished,
    wait_until_redelivered,
    wait_until_settled,
    was_redelivered,
)
from tests.acceptance.worker import Worker
from tests.support.waiting import TIMEOUT

LATE = "unique.plain.late"


@pytest.fixture
def impatient_conf() -> dict[str, Any]:
    return {"redlock_dedupe": True}


@pytest.mark.full
def test_without_it_a_message_that_is_redelivered_runs_twice_at_once(
    start_impatient: StartImpatient, journal: Journal
) -> None:
    worker = start_impatient(redlock_dedupe=False).wait_until_ready()

    result = worker.send(LATE, journal.key)

    journal.wait_for("entered", 2)
    assert journal.of("left") == []
    assert was_redelivered(journal, result)
    journal.open()
    wait_until_settled(worker)


def test_a_plain_task_redelivered_while_it_runs_is_not_run_a_second_time(
    pair: list[Worker], publish_to: PublishTo, journal: Journal
) -> None:
    publisher = publish_to(pair[0])
    call_back = publisher.step("unique.tell", journal.key)
    journal.open()

    result = publisher.send(LATE, journal.key, "last", link=call_back)

    entered = journal.wait_for("entered")
    assert (entered["owner"], entered["token"]) == (None, None)
    journal.wait_for("left")
    assert was_redelivered(journal, result)
    assert result.get(timeout=TIMEOUT) == "held"
    journal.wait_for("called back")
    wait_until_settled(pair[0])
    assert len(journal.of("entered")) == 1
    assert len(journal.of("called back")) == 1


def test_a_message_of_a_producer_that_knows_nothing_of_us_is_protected_as_well(
    pair: list[Worker], journal: Journal
) -> None:
    result = pair[0].send(LATE, journal.key)
    wait_until_redelivered(journal, result)
    journal.wait_for("delivered", DELIVERIES)
    assert len(journal.of("entered")) == 1

    journal.open()

    assert result.get(timeout=TIMEOUT) == "held"
    wait_until_settled(pair[0])
    assert len(journal.of("entered")) == 1


@pytest.mark.full
def test_a_redelivered_copy_of_a_plain_task_does_the_work_when_the_first_one_is_killed(
    start_impatient: StartImpatient, journal: Journal
) -> None:
    killed = start_impatient(redlock_ttl=SHORT_TTL).wait_until_ready()
    result = killed.send(LATE, journal.key)
    journal.wait_for("entered")
    start_impatient(redlock_ttl=SHORT_TTL).wait_until_ready()
    wait_until_redelivered(journal, result)

    killed.signal(signal.SIGKILL)

    assert journal.wait_for("entered", 2)["id"] == result.id
    journal.open()
    assert result.get(timeout=TIMEOUT) == "held"
    wait_until_settled(killed)
    assert len(journal.of("entered")) == 2


@pytest.mark.full
def test_a_plain_task_that_was_finished_and_not_acknowledged_is_not_run_again(
    start_impatient: StartImpatient,
    publish_to: PublishTo,
    cluster: LocalCluster,
    journal: Journal,
) -> None:
    stopped = start_impatient().wait_until_ready()
    publisher = publish_to(stopped)
    call_back = publisher.step("unique.tell", journal.key).set(queue=journal.key)
    result = publisher.send(LATE, journal.key, link=call_back)
    journal.wait_for("entered")
    stopped.signal(signal.SIGSTOP)
    journal.open()
    wait_until_marked_finished(cluster, result)
    assert result.state == states.SUCCESS
    stopped.signal(signal.SIGKILL)

    start_impatient().wait_until_ready()

    wait_until_redelivered(journal, result)
    wait_until_settled(stopped)
    assert len(journal.of("entered")) == 1
    assert messages_in(publisher, journal.key) == 1


CONTINUATIONS = [
    "retry",
    "retry_at_once",
    "retry_quietly",
    "autoretry",
    "replace_by_itself",
    "replace_by_another",
    "put_back",
]


@pytest.mark.parametrize("loaded", [True, False], ids=["from a publisher of ours", "by name"])
def test_what_a_task_sends_to_go_on_is_no_twin_of_it(
    loaded: bool, pair: list[Worker], publish_to: PublishTo, urls: dict[str, str], key: str
) -> None:
    source = publish_to(pair[0]) if loaded else pair[0]
    journals = {how: Journal(f"{key}-{how}", urls["journal"]) for how in CONTINUATIONS}
    for journal in journals.values():
        journal.open()

    results = {how: source.send(LATE, journal.key, how) for how, journal in journals.items()}

    for how, journal in journals.items():
        assert journal.wait_for("entered", 2)["id"] == results[how].id
        if how == "retry_at_once":
            # Celery stores RETRY once the retry is sent, which may have stored SUCCESS by then.
            journal.wait_for("left")
            continue
        # Celery's Redis backend keeps the first success.
        expected = "not raised" if how == "retry_quietly" else "held"
        assert results[how].get(timeout=TIMEOUT) == expected
    wait_until_settled(pair[0])
    assert {how: len(journal.of("entered")) for how, journal in journals.items()} == dict.fromkeys(
        CONTINUATIONS, 2
    )
    for journal in journals.values():
        journal.close()
