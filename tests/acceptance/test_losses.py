"""Long bodies keep their lease, and bodies that lose it are told."""

from __future__ import annotations

import pytest

from celery_redlock.errors import LeaseLost
from celery_redlock.testing import LocalCluster
from tests.acceptance.conftest import PauseNodes, StartWorker
from tests.acceptance.matrix import row
from tests.acceptance.scene import Journal, Lock
from tests.acceptance.worker import Worker
from tests.support.waiting import TIMEOUT, wait_until


@row("body longer than the TTL")
def test_a_body_longer_than_its_ttl_keeps_the_lock(
    worker: Worker, key: str, lock: Lock, journal: Journal
) -> None:
    result = worker.send("hold_renewed", key)
    entered = journal.wait_for("entered")

    # Renewed at a third of the TTL: the fourth is beyond the end that the first lease had.
    lock.wait_for_renewals(4)

    assert lock.owner == entered["owner"]
    journal.open()
    assert result.get(timeout=TIMEOUT) == "held"
    lock.wait_until_gone()


@row("lease lost, interrupt while sleeping")
def test_a_sleeping_body_is_woken_by_the_loss_of_its_lease(
    worker: Worker, key: str, lock: Lock, journal: Journal
) -> None:
    result = worker.send("sleep_on", key)
    journal.wait_for("entered")

    lock.take_away()

    assert journal.wait_for("unwound")["by"] == "LeaseLost"
    with pytest.raises(LeaseLost) as raised:
        result.get(timeout=TIMEOUT)
    assert raised.value.key == key
    lock.wait_until_gone()


@row("lease lost, interrupt while working")
def test_a_working_body_is_interrupted_by_the_loss_of_its_lease(
    worker: Worker, key: str, lock: Lock, journal: Journal
) -> None:
    result = worker.send("work_on", key)
    journal.wait_for("entered")

    lock.take_away()

    assert journal.wait_for("unwound")["by"] == "LeaseLost"
    with pytest.raises(LeaseLost):
        result.get(timeout=TIMEOUT)
    lock.wait_until_gone()


@row("lease lost, interrupt while working")
def test_a_body_is_interrupted_when_too_many_nodes_stop_for_its_lease_to_be_renewed(
    worker: Worker, key: str, journal: Journal, pause_nodes: PauseNodes
) -> None:
    result = worker.send("work_on", key)
    journal.wait_for("entered")

    pause_nodes(0, 1, 2)

    assert journal.wait_for("unwound")["by"] == "LeaseLost"
    with pytest.raises(LeaseLost):
        result.get(timeout=TIMEOUT)


@row("lease lost, flag")
def test_a_body_that_wants_a_flag_goes_on_with_a_marked_lease(
    worker: Worker, key: str, lock: Lock, journal: Journal
) -> None:
    result = worker.send("watch_flag", key)
    journal.wait_for("entered")

    lock.take_away()

    flagged = journal.wait_for("flagged")
    assert not flagged["valid"]
    assert flagged["lost"]
    journal.open()
    assert result.get(timeout=TIMEOUT) == "went on"


@row("lease lost, callable")
def test_a_callable_is_told_of_the_loss_once_and_the_body_goes_on(
    worker: Worker, key: str, lock: Lock, journal: Journal
) -> None:
    result = worker.send("be_told", key)
    journal.wait_for("entered")

    lock.take_away()

    assert journal.wait_for("told")["lost"]
    journal.open()
    assert result.get(timeout=TIMEOUT) == "went on"
    assert len(journal.of("told")) == 1


@row("lease lost, interrupt while working")
def test_a_worker_goes_on_after_a_task_that_lost_its_lease(
    worker: Worker, key: str, lock: Lock, journal: Journal
) -> None:
    lost = worker.send("work_on", key)
    journal.wait_for("entered")
    lock.take_away()
    journal.wait_for("unwound")
    wait_until(lost.ready, message="the task that lost its lease to have a result")
    lock.wait_until_gone()

    journal.open()

    assert worker.send("hold", key).get(timeout=TIMEOUT) == "held"


@pytest.mark.parametrize("pool", ["gevent", "eventlet"])
def test_leases_are_renewed_and_losses_told_while_other_greenlets_log(
    start_worker: StartWorker,
    pool: str,
    key: str,
    lock: Lock,
    journal: Journal,
    cluster: LocalCluster,
    urls: dict[str, str],
) -> None:
    # What the watchdog's own thread has to say meets the lock of a handler that is taken, and in a
    # process with greenlets whoever waits for it there may wait for ever.
    other = f"{key}-kept"
    kept, gate = Lock(other, list(cluster.urls)), Journal(other, urls["journal"])
    worker = start_worker(pool).wait_until_ready()
    logging = worker.send("log_on", other)
    gate.wait_for("logging")
    worker.send("hold_renewed", other)
    worker.send("work_on", key)
    gate.wait_for("entered")
    journal.wait_for("entered")

    lock.take_away()

    assert journal.wait_for("unwound")["by"] == "LeaseLost"
    kept.wait_for_renewals(2)
    gate.open()
    logging.get(timeout=TIMEOUT)
    kept.wait_until_gone()
    kept.close()
    gate.close()
