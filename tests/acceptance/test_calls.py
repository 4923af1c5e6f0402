"""Forks, eager and plain calls, and what a body sees of its own lease."""

from __future__ import annotations

import pytest

from celery_redlock.errors import ConfigurationError
from tests.acceptance.matrix import row
from tests.acceptance.scene import Journal, Lock
from tests.acceptance.worker import Worker
from tests.support.waiting import TIMEOUT


@row("self.lease, current_lease(), request.fencing_token")
def test_a_body_sees_one_lease_by_all_its_names(worker: Worker, key: str, lock: Lock) -> None:
    told = worker.send("tell_lease", key).get(timeout=TIMEOUT)

    assert told["same"]
    assert told["own"] == told["current"] == told["request"] > 0
    assert told["key"] == key
    lock.wait_until_gone()


@row("self.lease, current_lease(), request.fencing_token")
def test_the_tokens_of_successive_holders_increase(worker: Worker, key: str) -> None:
    tokens = [worker.send("tell_lease", key).get(timeout=TIMEOUT)["own"] for _ in range(5)]

    assert tokens == sorted(set(tokens))


@row("self.lease, current_lease(), request.fencing_token")
def test_the_stored_owner_can_be_read_as_task_host_and_process(
    worker: Worker, key: str, lock: Lock, journal: Journal
) -> None:
    result = worker.send("hold", key)
    entered = journal.wait_for("entered")

    owner = lock.owner

    assert owner is not None
    assert result.id in owner
    assert str(entered["pid"]) in owner

    journal.open()
    result.get(timeout=TIMEOUT)


@row("fork in the body")
def test_a_child_forked_by_a_body_holds_nothing_and_its_end_releases_nothing(
    worker: Worker, key: str, lock: Lock, journal: Journal
) -> None:
    result = worker.send("fork", key)
    child = journal.wait_for("child")
    assert (child["valid"], child["released"]) == (False, False)

    assert journal.wait_for("child ended")["valid"]
    assert lock.owner == journal.wait_for("entered")["owner"]

    journal.open()
    assert result.get(timeout=TIMEOUT) == "still valid: True"
    lock.wait_until_gone()


@row("eager apply()")
def test_an_eager_task_locks_like_one_in_a_worker(
    worker: Worker, key: str, lock: Lock, journal: Journal
) -> None:
    result = worker.send("apply_eagerly", key)
    entered = journal.wait_for("entered")
    assert entered["token"]
    assert lock.owner == entered["owner"] is not None

    journal.open()

    assert result.get(timeout=TIMEOUT) == "held"
    lock.wait_until_gone()


@row("plain call")
def test_a_plain_call_takes_no_lock(worker: Worker, key: str, lock: Lock, journal: Journal) -> None:
    result = worker.send("call_plainly", key)
    entered = journal.wait_for("entered")
    assert (entered["owner"], entered["token"]) == (None, None)
    assert lock.is_gone

    journal.open()

    assert result.get(timeout=TIMEOUT) == "held"


@row("plain call inside its own body")
def test_a_plain_call_from_inside_the_own_body_neither_waits_nor_gives_the_lock_back(
    worker: Worker, key: str, lock: Lock, journal: Journal
) -> None:
    result = worker.send("call_itself", key)
    journal.wait_for("nested")
    assert lock.owner == journal.wait_for("entered")["owner"]

    journal.open()

    assert result.get(timeout=TIMEOUT) == "nested, still valid: True"
    lock.wait_until_gone()


@row("redlock_tasks pattern on a plain task")
def test_a_task_of_somebody_elses_is_locked_by_a_pattern_in_the_settings(
    worker: Worker, key: str, lock: Lock, journal: Journal
) -> None:
    result = worker.send("vendor.hold", key)
    entered = journal.wait_for("entered")
    assert entered["token"]
    assert lock.is_held

    journal.open()

    assert result.get(timeout=TIMEOUT) == "vendor held"
    lock.wait_until_gone()


def test_a_plain_task_beside_locked_ones_takes_no_lock(
    worker: Worker, key: str, lock: Lock, journal: Journal
) -> None:
    result = worker.send("hold_nothing", key)
    journal.wait_for("entered")
    assert lock.is_gone

    journal.open()

    assert result.get(timeout=TIMEOUT) == "held nothing"


@row("map, starmap, chunks")
@pytest.mark.parametrize("mapping", ["celery.map", "celery.starmap"])
def test_a_message_that_would_run_items_without_their_lock_is_refused(
    worker: Worker, key: str, journal: Journal, mapping: str
) -> None:
    items = [key] if mapping == "celery.map" else [[key]]
    result = worker.send(mapping, kwargs={"task": worker.step("hold"), "it": items})

    with pytest.raises(ConfigurationError, match="Send one message per item"):
        result.get(timeout=TIMEOUT)
    assert not journal.of("entered")
