"""Lock nodes and brokers that restart under a task that goes on."""

from __future__ import annotations

from typing import Any

import pytest

from celery_redlock import Redlock
from celery_redlock.errors import LockContended
from celery_redlock.testing.containers import RedlockTestCluster, RedlockTestNode
from tests.acceptance.scene import Journal, Lock
from tests.containers.stage import SCENE_TIMEOUT, Stage
from tests.containers.tasks import MAX_TTL
from tests.support.waiting import TIMEOUT, wait_until

pytestmark = [pytest.mark.containers, pytest.mark.timeout(10 * TIMEOUT)]

RENEWALS = 3


def test_a_long_task_keeps_its_lock_while_all_five_nodes_restart_one_by_one(
    stage: Stage, journal: Journal, celery_redlock_cluster: RedlockTestCluster
) -> None:
    result = stage.send("hold")
    entered = journal.wait_for("entered")

    for node in celery_redlock_cluster:
        node.restart()
        _wait_until_it_votes(node, celery_redlock_cluster)
        # Empty at first; the holder mends it once its lease stands on the others.
        wait_until(
            lambda node=node: node.client.get(f"redlock:{stage.key}") == entered["owner"],
            SCENE_TIMEOUT,
            message=f"the lock back on {node.name()}",
        )

    with (
        Redlock(celery_redlock_cluster.host_urls, max_ttl=MAX_TTL, ttl=MAX_TTL) as elsewhere,
        pytest.raises(LockContended),
    ):
        elsewhere.acquire(stage.key)
    journal.open()
    assert result.get(timeout=SCENE_TIMEOUT) == "held"
    assert [entry["event"] for entry in journal.entries] == ["entered", "left"]


def _wait_until_it_votes(node: RedlockTestNode, cluster: RedlockTestCluster) -> None:
    """What an operator waits for between two nodes; a restarted one sits out once it is asked."""
    with Redlock(cluster.host_urls, max_ttl=MAX_TTL, ttl=1.0) as client:

        def votes() -> bool:
            client.acquire("elsewhere", wait=5.0).release()
            return node.state == "serving"

        wait_until(
            votes, SCENE_TIMEOUT, interval=0.2, message=lambda: f"{node.name()}: {node.state}"
        )


def test_a_task_keeps_its_lock_while_the_broker_is_away_and_its_message_runs_once(
    stage: Stage, lock: Lock, journal: Journal, celery_broker: Any
) -> None:
    result = stage.send("hold_once")
    entered = journal.wait_for("entered")

    celery_broker.kill()
    lock.wait_for_renewals(RENEWALS)
    celery_broker.restart()
    wait_until(
        lambda: stage.workers_answering == 2, SCENE_TIMEOUT, message="both workers to be back"
    )

    assert lock.owner == entered["owner"]
    journal.open()
    assert result.get(timeout=SCENE_TIMEOUT) == "held"
    # The broker has delivered the message of the body that ran on a second time.
    wait_until(lambda: stage.all_is_done, SCENE_TIMEOUT, message="no message to be left")
    assert [entry["event"] for entry in journal.entries] == ["entered", "left"]
