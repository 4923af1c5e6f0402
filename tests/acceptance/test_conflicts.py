"""What a task does when somebody else holds its lock."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from celery import chain, chord, states
from celery.exceptions import ChordError

from celery_redlock import is_skipped
from celery_redlock.errors import LeaseLost, LockContended, LockNotAcquired
from tests.acceptance.conftest import StartWorker
from tests.acceptance.matrix import row
from tests.acceptance.scene import Journal, Lock
from tests.acceptance.worker import Worker
from tests.support.waiting import TIMEOUT, wait_until


@row("requeue on conflict")
def test_a_task_waits_for_the_holder_under_its_own_id_without_using_up_retries(
    worker: Worker, key: str, lock: Lock, journal: Journal
) -> None:
    journal.open()
    lock.occupy()
    result = worker.send("queue_up", key)  # its max_retries is 0
    wait_until(lambda: result.state == states.RETRY, message="the task to be requeued")
    assert journal.entries == []

    lock.delete()

    assert result.get(timeout=TIMEOUT) == "held"
    (entered,) = journal.of("entered")
    assert (entered["id"], entered["retries"]) == (result.id, 0)
    lock.wait_until_gone()


def test_two_tasks_with_one_key_run_one_after_the_other(
    worker: Worker, key: str, lock: Lock, journal: Journal
) -> None:
    first, second = (worker.send("queue_up", key) for _ in range(2))
    journal.wait_for("entered")
    wait_until(
        lambda: states.RETRY in (first.state, second.state), message="one task to be requeued"
    )
    assert len(journal.of("entered")) == 1

    journal.open()

    assert [first.get(timeout=TIMEOUT), second.get(timeout=TIMEOUT)] == ["held", "held"]
    assert [entry["event"] for entry in journal.entries] == ["entered", "left"] * 2
    earlier, later = journal.of("entered")
    assert later["token"] > earlier["token"]
    lock.wait_until_gone()


@row("asked to stop by a newer call")
def test_a_newer_call_runs_when_the_older_body_has_stopped(
    worker: Worker, key: str, lock: Lock, journal: Journal
) -> None:
    journal.open("unwound")
    older = worker.send("give_way", key)
    journal.wait_for("entered")

    newer = worker.send("give_way", key)

    with pytest.raises(LeaseLost):
        older.get(timeout=TIMEOUT)
    journal.wait_for("entered", 2)
    assert [entry["id"] for entry in journal.of("entered")] == [older.id, newer.id]
    assert [entry["event"] for entry in journal.entries] == [
        *("entered", "asked", "unwound", "entered")
    ]
    journal.open()
    assert newer.get(timeout=TIMEOUT) == "held"
    lock.wait_until_gone()


@row("asked to stop by a newer call")
def test_a_call_that_waits_ends_as_replaced_when_a_newer_one_comes(
    worker: Worker, key: str, journal: Journal
) -> None:
    first = worker.send("give_way", key)
    journal.wait_for("entered")
    second = worker.send("give_way", key)
    journal.wait_for("asked")

    third = worker.send("give_way", key)

    wait_until(lambda: second.state == states.REVOKED, message="the second call to be replaced")
    journal.open("unwound")
    journal.open()
    assert third.get(timeout=TIMEOUT) == "held"
    assert [entry["id"] for entry in journal.of("entered")] == [first.id, third.id]


@row("skip on conflict")
def test_a_skipped_task_succeeds_with_the_skip_result_and_leaves_the_holder_alone(
    worker: Worker, key: str, lock: Lock, journal: Journal
) -> None:
    lock.occupy()

    result = worker.send("skip", key)

    assert result.get(timeout=TIMEOUT) == "skipped"
    assert result.state == states.SUCCESS
    assert journal.entries == []
    assert lock.owner == "somebody-else"


@row("skip on conflict")
def test_a_chord_completes_when_a_member_is_skipped(worker: Worker, key: str, lock: Lock) -> None:
    lock.occupy()

    header = [worker.step("skip", key), worker.step("echo", "ran")]
    result = chord(header, app=worker.app)(worker.step("tally"))

    assert result.get(timeout=TIMEOUT) == ["skipped", "ran"]


@row("skip on conflict")
def test_the_next_step_of_a_chain_gets_the_skip_result(
    worker: Worker, key: str, lock: Lock
) -> None:
    lock.occupy()

    result = chain(worker.step("skip", key), worker.step("echo"), app=worker.app)()

    assert result.get(timeout=TIMEOUT) == "skipped"


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_a_skipped_run_does_not_look_like_one_that_ran(
    start_worker: StartWorker, pool: str, key: str, lock: Lock
) -> None:
    worker = start_worker(pool, options=["-E"]).wait_until_ready()
    seen: dict[str, dict[str, Any]] = {}
    lock.occupy()

    with worker.app.connection_for_read() as connection:
        note = {"*": lambda event: seen.update({event["type"]: event})}
        receiver = worker.app.events.Receiver(connection, handlers=note)

        def hears_all() -> bool:
            with suppress(TimeoutError):
                events.drain_events(timeout=0.2)
            # Sent side by side: either may come first.
            return {"task-succeeded", "redlock-skipped"} <= seen.keys()

        with receiver.consumer_context() as (events, *_):
            assert not hears_all()  # kombu subscribes when it first waits
            result = worker.send("skip_readably", key)
            value = result.get(timeout=TIMEOUT)
            wait_until(hears_all, message="the monitor to hear of skip and end")

    reason = f"Lock '{key}' is held by 'somebody-else'."
    assert value == {"celery_redlock": "skipped", "reason": reason}
    assert is_skipped(value)
    assert "'celery_redlock': 'skipped'" in seen["task-succeeded"]["result"]  # as Flower prints it
    told = seen["redlock-skipped"]
    assert (told["uuid"], told["key"], told["reason"]) == (result.id, key, reason)
    assert told["holder"] == "somebody-else"
    lines = [line for line in worker.log.splitlines() if result.id in line]
    assert "'celery_redlock': 'skipped'" in lines[-2]
    assert "is skipped: " in lines[-1]


@row("raise on conflict")
def test_a_task_that_shall_raise_has_lock_contended_as_its_result(
    worker: Worker, key: str, lock: Lock, journal: Journal
) -> None:
    lock.occupy()

    result = worker.send("raise", key)

    with pytest.raises(LockContended) as raised:
        result.get(timeout=TIMEOUT)
    assert raised.value.key == key
    assert raised.value.holder == "somebody-else"
    assert journal.entries == []


@row("reject on conflict")
def test_a_task_that_shall_reject_gives_its_message_back_to_the_broker_for_good(
    worker: Worker, key: str, lock: Lock, journal: Journal
) -> None:
    lock.occupy()

    result = worker.send("refuse", key)

    worker.wait_for_log(f"refuse[{result.id}] is rejected")
    wait_until(lambda: worker.queue_is_empty, message="the rejected message to be gone")
    assert journal.entries == []


@row("reject on conflict")
def test_a_chord_fails_when_a_member_is_rejected(worker: Worker, key: str, lock: Lock) -> None:
    lock.occupy()

    header = [worker.step("refuse", key), worker.step("echo", "ran")]
    result = chord(header, app=worker.app)(worker.step("tally"))

    wait_until(lambda: result.state == states.FAILURE, message="the chord to fail")
    assert isinstance(result.result, ChordError)
    assert "LockContended" in str(result.result)


@row("callable on conflict")
def test_a_callable_is_asked_what_to_do_about_a_conflict(
    worker: Worker, key: str, lock: Lock, journal: Journal
) -> None:
    lock.occupy()

    result = worker.send("decide", key)

    with pytest.raises(LockContended):
        result.get(timeout=TIMEOUT)
    assert journal.of("conflict")[0]["holder"] == "somebody-else"


@row("lock_give_up_after")
def test_a_task_gives_up_after_its_total_patience(
    worker: Worker, key: str, lock: Lock, journal: Journal
) -> None:
    lock.occupy()

    result = worker.send("give_up", key)

    with pytest.raises(LockNotAcquired):
        result.get(timeout=TIMEOUT)
    assert journal.entries == []
