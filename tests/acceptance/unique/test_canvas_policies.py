"""In a canvas the worker settles conflicts by the policy for publishes; and tasks that replace."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from celery import chain, chord, group, states
from celery.exceptions import ChordError

from celery_redlock import DuplicateTask, is_duplicate
from tests.acceptance.apps.unique_tasks import MODES
from tests.acceptance.scene import Journal, Lock
from tests.acceptance.unique.publisher import Publisher
from tests.acceptance.worker import Worker
from tests.support.waiting import TIMEOUT, wait_until

# Under `until_expired` the parts that are the same task would wait for the window to end.
FREE_AT_THE_END = [mode for mode in MODES if mode != "until_expired"]


def test_a_member_of_a_chord_that_shall_raise_fails_and_with_it_the_chord(
    publisher: Publisher, worker: Worker, lock: Lock, journal: Journal
) -> None:
    running = publisher.send("unique.raise", journal.key)
    journal.wait_for("entered")
    header = [publisher.step("unique.raise", journal.key) for _ in range(2)]
    body = publisher.task("unique.tally").s(journal.key)
    body.on_error(publisher.step("unique.tell", journal.key))

    result = chord(header, app=publisher.app)(body)

    journal.wait_for("called back")
    wait_until(lambda: result.state == states.FAILURE, message="the chord to fail")
    assert isinstance(result.result, ChordError)
    assert "DuplicateTask" in str(result.result)
    journal.open()
    assert running.get(timeout=TIMEOUT) == "held"
    wait_until(lambda: worker.queue_is_empty, message="no message to be left")
    assert len(journal.of("entered")) == 1
    assert journal.of("tallied") == []
    lock.wait_until_gone()


def test_a_step_of_a_chain_that_shall_raise_ends_the_chain_and_tells_the_result_that_is_there(
    publisher: Publisher, worker: Worker, lock: Lock, journal: Journal
) -> None:
    running = publisher.send("unique.raise", journal.key)
    journal.wait_for("entered")
    steps = chain(
        publisher.step("unique.raise", journal.key),
        publisher.task("unique.follow").s(journal.key),
    )

    result = steps.apply_async(link_error=publisher.step("unique.tell", journal.key))

    with pytest.raises(DuplicateTask) as raised:
        result.get(timeout=TIMEOUT)
    assert running.id in str(raised.value)
    journal.wait_for("called back")
    journal.open()
    assert running.get(timeout=TIMEOUT) == "held"
    wait_until(lambda: worker.queue_is_empty, message="no message to be left")
    assert journal.of("followed") == []
    assert len(journal.of("entered")) == 1
    lock.wait_until_gone()


def test_a_member_of_a_chord_replaces_a_task_that_waits(
    keep_away: Callable[[], None],
    publisher: Publisher,
    worker: Worker,
    lock: Lock,
    journal: Journal,
) -> None:
    older = publisher.send("unique.replace", journal.key)
    journal.open()

    result = chord([publisher.step("unique.replace", journal.key)], app=publisher.app)(
        publisher.task("unique.tally").s(journal.key)
    )

    keep_away()
    assert result.get(timeout=TIMEOUT) == ["held"]
    wait_until(lambda: older.state == states.REVOKED, message="the older task to be revoked")
    wait_until(lambda: worker.queue_is_empty, message="no message to be left")
    (entered,) = journal.of("entered")
    assert entered["id"] != older.id
    assert len(journal.of("tallied")) == 1
    lock.wait_until_gone()


def test_members_of_a_group_that_shall_replace_wait_for_the_one_that_runs(
    publisher: Publisher, worker: Worker, lock: Lock, journal: Journal
) -> None:
    running = publisher.send("unique.replace", journal.key)
    journal.wait_for("entered")

    result = group([publisher.step("unique.replace", journal.key)])()

    (waiting,) = result.results
    wait_until(lambda: waiting.state == states.RETRY, message="the member to wait")
    journal.open()
    assert running.get(timeout=TIMEOUT) == "held"
    assert result.get(timeout=TIMEOUT) == ["held"]
    wait_until(lambda: worker.queue_is_empty, message="no message to be left")
    assert [entry["id"] for entry in journal.of("entered")] == [running.id, waiting.id]
    lock.wait_until_gone()


@pytest.mark.parametrize("by", ["a_chain", "a_chord"])
@pytest.mark.parametrize("mode", FREE_AT_THE_END)
def test_a_task_that_replaces_itself_by_a_canvas_has_its_result_and_frees_the_key(
    mode: str,
    by: str,
    publisher: Publisher,
    worker: Worker,
    lock: Lock,
    queued: Lock,
    journal: Journal,
) -> None:
    journal.open()

    result = publisher.send(f"unique.{mode}", journal.key, f"replace_by_{by}")

    assert result.get(timeout=TIMEOUT) == (["held", "held"] if by == "a_chord" else "held")
    wait_until(lambda: worker.queue_is_empty, message="no message to be left")
    assert len(journal.of("entered")) == 3
    assert len({entry["id"] for entry in journal.of("entered")}) == 3 - (by == "a_chain")
    lock.wait_until_gone()
    queued.wait_until_gone()
    assert not is_duplicate(publisher.send(f"unique.{mode}", journal.key))
