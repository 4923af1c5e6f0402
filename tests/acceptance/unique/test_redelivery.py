"""The broker delivers a message twice: its body runs once at a time, its results go out once."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest
from celery import chord, states

from celery_redlock.admin.lock_release import release_lock
from celery_redlock.tasks.config.client import client_for
from tests.acceptance.apps.unique_tasks import MODES
from tests.acceptance.scene import Journal, Lock
from tests.acceptance.unique.conftest import PublishTo, StartImpatient
from tests.acceptance.unique.redeliveries import (
    DELIVERIES,
    messages_in,
    wait_until_redelivered,
    wait_until_settled,
    was_redelivered,
)
from tests.acceptance.worker import Worker
from tests.support.waiting import TIMEOUT, wait_until

LATE = "unique.until_executed.late"


def test_a_message_redelivered_while_its_body_runs_is_not_run_a_second_time(
    pair: list[Worker], publish_to: PublishTo, lock: Lock, journal: Journal
) -> None:
    publisher = publish_to(pair[0])
    call_back = publisher.step("unique.tell", journal.key)
    journal.open()

    result = publisher.send(LATE, journal.key, "last", link=call_back)

    journal.wait_for("left")
    assert was_redelivered(journal, result)
    assert result.get(timeout=TIMEOUT) == "held"
    journal.wait_for("called back")
    wait_until_settled(pair[0])
    assert len(journal.of("entered")) == 1
    assert len(journal.of("called back")) == 1
    lock.wait_until_gone()


@pytest.fixture
def members(key: str, urls: dict[str, str]) -> Iterator[list[Journal]]:
    journals = [Journal(f"{key}-{number}", urls["journal"]) for number in (1, 2)]
    yield journals
    for journal in journals:
        journal.open()
        journal.close()


@pytest.mark.full
def test_a_redelivered_member_of_a_chord_is_counted_once(
    pair: list[Worker], publish_to: PublishTo, journal: Journal, members: list[Journal]
) -> None:
    publisher = publish_to(pair[0])
    header = [publisher.step(LATE, member.key) for member in members]
    body = publisher.task("unique.tally").s(journal.key)

    result = chord(header, app=publisher.app)(body)

    for member, part in zip(members, result.parent.results, strict=True):
        wait_until_redelivered(member, part)
        member.open()
    assert result.get(timeout=TIMEOUT) == ["held", "held"]
    wait_until_settled(pair[0])
    assert [entry["values"] for entry in journal.of("tallied")] == [["held", "held"]]
    assert [len(member.of("entered")) for member in members] == [1, 1]


@pytest.mark.parametrize("mode", MODES)
def test_the_copies_of_a_message_wait_while_one_of_them_runs(
    mode: str, pair: list[Worker], publish_to: PublishTo, journal: Journal
) -> None:
    result = publish_to(pair[0]).send(f"unique.{mode}.late", journal.key)
    wait_until_redelivered(journal, result)
    journal.wait_for("delivered", DELIVERIES)
    assert len(journal.of("entered")) == 1

    journal.open()

    assert result.get(timeout=TIMEOUT) == "held"
    wait_until_settled(pair[0])
    assert len(journal.of("entered")) == 1
    assert result.state == states.SUCCESS


@pytest.mark.full
def test_a_redelivered_copy_does_the_work_when_the_worker_with_the_first_one_is_killed(
    start_impatient: StartImpatient, publish_to: PublishTo, lock: Lock, journal: Journal
) -> None:
    killed = start_impatient().wait_until_ready()
    result = publish_to(killed).send(f"{LATE}.short", journal.key)
    first = journal.wait_for("entered")
    start_impatient().wait_until_ready()
    wait_until_redelivered(journal, result)

    killed.signal(signal.SIGKILL)

    second = journal.wait_for("entered", 2)
    assert second["id"] == first["id"] == result.id
    assert second["token"] > first["token"]
    journal.open()
    assert result.get(timeout=TIMEOUT) == "held"
    wait_until_settled(killed)
    assert len(journal.of("entered")) == 2
    lock.wait_until_gone()


@pytest.mark.full
def test_a_message_that_was_finished_and_not_acknowledged_calls_nobody_back_again(
    start_impatient: StartImpatient, publish_to: PublishTo, lock: Lock, journal: Journal
) -> None:
    stopped = start_impatient().wait_until_ready()
    publisher = publish_to(stopped)
    call_back = publisher.step("unique.tell", journal.key).set(queue=journal.key)
    result = publisher.send(LATE, journal.key, link=call_back)
    journal.wait_for("entered")
    # The child goes on; what acknowledges the message is the process that is stopped.
    stopped.signal(signal.SIGSTOP)
    journal.open()
    lock.wait_until_gone()
    assert result.state == states.SUCCESS
    stopped.signal(signal.SIGKILL)

    start_impatient().wait_until_ready()

    wait_until_redelivered(journal, result)
    wait_until_settled(stopped)
    assert len(journal.of("entered")) == 1
    assert messages_in(publisher, journal.key) == 1
    assert result.state == states.SUCCESS


@pytest.mark.full
def test_messages_of_a_killed_worker_that_are_revoked_do_not_run_when_they_are_delivered_again(
    start_impatient: StartImpatient,
    publish_to: PublishTo,
    journal: Journal,
    members: list[Journal],
) -> None:
    killed = start_impatient().wait_until_ready()
    publisher = publish_to(killed)
    for _ in range(4):
        killed.send("unique.plain", journal.key)
    journal.wait_for("entered", 4)  # all its processes are busy
    name = "unique.until_executed"
    lost = [publisher.send(name, member.key) for member in members]
    for result in lost:
        killed.wait_for_log(f"[{result.id}] received")
    killed.signal(signal.SIGKILL)
    killed.wait_for_exit()

    redlock = client_for(publisher.app)
    released = [release_lock(redlock, member.key, revoke=True) for member in members]

    assert [entry.task_id for (entry,) in released] == [result.id for result in lost]
    again = [publisher.send(name, member.key) for member in members]
    for member in members:
        member.open()
    start_impatient().wait_until_ready()
    for member, old, new in zip(members, lost, again, strict=True):
        wait_until_redelivered(member, old)
        wait_until(lambda old=old: old.state == states.REVOKED, message="it to end as revoked")
        assert new.get(timeout=TIMEOUT) == "held"
        assert [entry["id"] for entry in member.of("entered")] == [new.id]
