"""Time limits, revocation and killed children: what becomes of the lock in each case."""

from __future__ import annotations

import os
import signal

import pytest
from celery import states
from celery.concurrency import gevent
from celery.exceptions import SoftTimeLimitExceeded, TimeLimitExceeded, WorkerLostError

from tests.acceptance.matrix import row
from tests.acceptance.scene import Journal, Lock, assert_next_waits_it_out
from tests.acceptance.worker import Worker
from tests.support.waiting import TIMEOUT, wait_until


@row("soft time limit")
def test_a_lock_stays_held_while_the_body_handles_its_soft_limit(
    worker: Worker, key: str, lock: Lock, journal: Journal
) -> None:
    result = worker.send("outlast_soft_limit", key, soft_time_limit=4)
    journal.wait_for("soft limit")
    assert lock.owner == journal.wait_for("entered")["owner"]

    journal.open()

    with pytest.raises(SoftTimeLimitExceeded):
        result.get(timeout=TIMEOUT)
    lock.wait_until_gone()


@row("hard time limit")
def test_a_lock_is_free_again_after_the_hard_limit_of_its_holder(
    worker: Worker, key: str, lock: Lock, journal: Journal
) -> None:
    result = worker.send("hold_shortly", key, time_limit=4)
    journal.wait_for("entered")

    with pytest.raises(TimeLimitExceeded):
        result.get(timeout=TIMEOUT)
    lock.wait_until_gone()


@row("hard time limit, the body does not unwind within 0.1 s")
def test_a_body_that_hangs_on_past_its_hard_limit_is_killed_and_its_lock_ends_with_the_ttl(
    worker: Worker, key: str, lock: Lock, journal: Journal
) -> None:
    result = worker.send("be_stubborn", key, time_limit=4)
    entered = journal.wait_for("entered")
    wait_until(lambda: not is_alive(entered["pid"]), message="the child to be killed")

    with pytest.raises(TimeLimitExceeded):
        result.get(timeout=TIMEOUT)
    assert journal.of("unwound") == []
    lock.wait_until_gone()


@row("revoke(terminate=True)")
def test_a_task_that_is_revoked_while_it_runs_gives_the_lock_back(
    pool: str, worker: Worker, key: str, lock: Lock, journal: Journal
) -> None:
    if pool == "gevent" and "terminate_job" not in vars(gevent.TaskPool):
        pytest.skip("this Celery cannot terminate a greenlet of gevent")
    result = worker.send("hold", key)
    journal.wait_for("entered")
    assert lock.is_held

    worker.revoke(result)

    journal.wait_for("unwound")
    lock.wait_until_gone()
    wait_until(lambda: result.state == states.REVOKED, message="the task to be revoked")


@row("SIGKILL of a pool child")
def test_a_lock_whose_holder_was_killed_ends_with_its_ttl_and_the_next_task_waits_it_out(
    worker: Worker, key: str, lock: Lock, journal: Journal
) -> None:
    killed = worker.send("hold_shortly", key)
    first = journal.wait_for("entered")

    os.kill(first["pid"], signal.SIGKILL)

    with pytest.raises(WorkerLostError):
        killed.get(timeout=TIMEOUT)
    assert_next_waits_it_out(worker, key, lock, journal)


@row("SIGKILL of a pool child")
def test_a_message_redelivered_after_its_holder_was_killed_waits_the_lock_out_and_runs(
    worker: Worker, key: str, lock: Lock, journal: Journal
) -> None:
    result = worker.send("hold_late", key)
    first = journal.wait_for("entered")

    os.kill(first["pid"], signal.SIGKILL)

    second = journal.wait_for("entered", 2)
    assert second["id"] == first["id"] == result.id
    assert lock.owner == second["owner"] != first["owner"]
    assert second["token"] > first["token"]
    journal.open()
    assert result.get(timeout=TIMEOUT) == "held"
    lock.wait_until_gone()


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
