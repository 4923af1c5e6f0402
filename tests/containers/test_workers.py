"""Worker hosts that die, are frozen, or lose sight of lock nodes."""

from __future__ import annotations

import pytest

from celery_redlock.errors import LeaseLost, StaleFencingToken
from celery_redlock.testing.containers import RedlockTestCluster
from tests.acceptance.scene import Journal, Lock
from tests.containers.stage import SCENE_TIMEOUT, Stage, second_entry
from tests.support.waiting import TIMEOUT, wait_until

pytestmark = [pytest.mark.containers, pytest.mark.timeout(10 * TIMEOUT)]

# At a third of the TTL each: together longer than the lease that stood when the scene began.
RENEWALS = 5


def test_the_task_of_a_killed_worker_runs_elsewhere_when_its_lock_has_ended(
    stage: Stage, lock: Lock, journal: Journal
) -> None:
    result = stage.send("hold")
    first = journal.wait_for("entered")

    stage.worker_of(first).kill()

    second = second_entry(journal)
    assert second["id"] == first["id"]
    assert second["host"] != first["host"]
    assert second["token"] > first["token"]
    assert lock.owner == second["owner"]
    journal.open()
    assert result.get(timeout=SCENE_TIMEOUT) == "held"


def test_a_worker_that_was_paused_past_its_ttl_wakes_without_its_lock(
    stage: Stage, lock: Lock, journal: Journal
) -> None:
    late = stage.send("hold")
    first = journal.wait_for("entered")
    sleeper = stage.worker_of(first)
    stage.send_to_nobody_but(stage.other_than(sleeper))

    sleeper.pause()
    result = stage.send("hold")
    second = second_entry(journal)
    sleeper.unpause()

    unwound = journal.wait_for("unwound")
    assert (unwound["id"], unwound["by"]) == (first["id"], "LeaseLost")
    with pytest.raises(LeaseLost):
        late.get(timeout=SCENE_TIMEOUT)
    assert second["token"] > first["token"]
    assert lock.owner == second["owner"]
    journal.open()
    assert result.get(timeout=SCENE_TIMEOUT) == "held"


def test_what_a_worker_writes_after_a_pause_past_its_ttl_is_refused(
    stage: Stage, journal: Journal
) -> None:
    late = stage.send("write", "late")
    first = journal.wait_for("entered")
    sleeper = stage.worker_of(first)
    stage.send_to_nobody_but(stage.other_than(sleeper))

    sleeper.pause()
    result = stage.send("write", "fresh")
    journal.open("fresh")
    assert result.get(timeout=SCENE_TIMEOUT) == "written"
    sleeper.unpause()
    journal.open("late")

    with pytest.raises(StaleFencingToken):
        late.get(timeout=SCENE_TIMEOUT)
    assert stage.setup.backend.container.client.get(f"data:{stage.key}") == "fresh"


def test_a_worker_that_is_cut_off_from_two_of_five_nodes_keeps_its_lock(
    stage: Stage, lock: Lock, journal: Journal, celery_redlock_cluster: RedlockTestCluster
) -> None:
    result = stage.send("hold")
    entered = journal.wait_for("entered")

    celery_redlock_cluster.cut_off(stage.worker_of(entered), 1, 3)
    lock.wait_for_renewals(RENEWALS)

    assert lock.owner == entered["owner"]
    other = stage.send("hold")
    wait_until(lambda: other.state == "RETRY", message="the other task to wait for its turn")
    journal.open()
    assert result.get(timeout=SCENE_TIMEOUT) == "held"
    assert other.get(timeout=SCENE_TIMEOUT) == "held"
    assert [entry["event"] for entry in journal.entries] == ["entered", "left"] * 2


def test_a_worker_that_is_cut_off_from_three_of_five_nodes_loses_its_lock_to_one_that_is_not(
    stage: Stage, lock: Lock, journal: Journal, celery_redlock_cluster: RedlockTestCluster
) -> None:
    lost = stage.send("hold")
    first = journal.wait_for("entered")
    alone = stage.worker_of(first)
    stage.send_to_nobody_but(stage.other_than(alone))

    celery_redlock_cluster.cut_off(alone, 0, 2, 4)
    result = stage.send("hold")

    second = second_entry(journal)
    unwound, *_ = journal.of("unwound")
    assert (unwound["id"], unwound["by"]) == (first["id"], "LeaseLost")
    assert journal.entries.index(unwound) < journal.entries.index(second)
    with pytest.raises(LeaseLost):
        lost.get(timeout=SCENE_TIMEOUT)
    assert second["token"] > first["token"]
    assert lock.owner == second["owner"]
    journal.open()
    assert result.get(timeout=SCENE_TIMEOUT) == "held"


def test_a_worker_that_sees_its_nodes_again_takes_locks_again(
    stage: Stage, journal: Journal, celery_redlock_cluster: RedlockTestCluster
) -> None:
    worker = stage.setup.worker
    stage.send_to_nobody_but(worker)
    journal.open()
    assert stage.send("hold").get(timeout=SCENE_TIMEOUT) == "held"
    celery_redlock_cluster.cut_off(worker, 0, 2, 4)
    result = stage.send("hold")
    wait_until(lambda: result.state == "RETRY", message="the task to find too few nodes")

    celery_redlock_cluster.rejoin(worker, 0, 2, 4)

    assert result.get(timeout=SCENE_TIMEOUT) == "held"
    assert {entry["host"] for entry in journal.of("entered")} == {worker.hostname()}
