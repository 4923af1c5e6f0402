"""What a worker at its default log level logs of its lock nodes: each fact once, whatever pool."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from celery import states

from celery_redlock.testing import LocalCluster
from tests.acceptance.conftest import StartWorker
from tests.acceptance.matrix import POOLS
from tests.acceptance.worker import Worker
from tests.support.waiting import TIMEOUT, wait_until

#: Celery's default, so that nothing but warnings and errors is seen.
QUIET = ("--loglevel=WARNING",)
#: Without the tasks whose own TTL is longer than `SHORT_TTL`.
MODULES = ["tests.acceptance.apps.plain", "tests.acceptance.apps.conflicts"]
#: Nodes are quarantined for so long, and polled three times meanwhile.
SHORT_TTL = {"redlock_max_ttl": 3.0, "redlock_ttl": 3.0}

LOST, BACK = "No quorum of lock nodes", "A quorum of lock nodes votes again"
SILENT = "does not vote"
QUARANTINED, VOTES = "and grants no lock until then", "votes again: its quarantine has ended"

StartQuiet = Callable[..., Worker]


@pytest.fixture
def nodes() -> Iterator[LocalCluster]:
    with LocalCluster(3) as cluster:
        yield cluster


@pytest.fixture
def start_quiet(start_worker: StartWorker, nodes: LocalCluster, key: str) -> StartQuiet:
    """Start a worker at the default log level, which has run one task."""

    def start(pool: str, *options: str, policy: str = "requeue", **conf: Any) -> Worker:
        lock = {"lock_key": "{value}", "lock_on_unavailable": policy}
        conf = {
            "include": MODULES,
            "redlock_nodes": nodes.urls,
            "redlock_node_timeout": 1.0,  # nodes are as busy as the machine
            "redlock_tasks": {"echo": lock},
            **conf,
        }
        worker = start_worker(pool, options=(*QUIET, *options), conf=conf)
        assert worker.send("echo", key).get(timeout=TIMEOUT) == key
        return worker

    return start


def lines(worker: Worker, text: str) -> list[str]:
    return [line for line in worker.log.splitlines() if text in line]


def counts(worker: Worker) -> list[int]:
    return [len(lines(worker, text)) for text in (LOST, BACK, QUARANTINED, VOTES)]


@pytest.mark.parametrize("pool", POOLS)
def test_a_frozen_quorum_is_logged_once_with_nodes_and_first_task_and_its_return_once(
    start_quiet: StartQuiet, nodes: LocalCluster, key: str, pool: str
) -> None:
    worker = start_quiet(pool)
    nodes.pause(0)
    nodes.pause(1)
    count = 2 if pool == "solo" else 5  # there one waits for the nodes after the other
    results = [worker.send("echo", f"{key}-{number}") for number in range(count)]
    wait_until(lambda: all(result.state == states.RETRY for result in results))

    worker.wait_for_log(LOST)
    (lost,) = lines(worker, LOST)
    assert "no answer within" in lost
    assert all(url.removeprefix("redis://") in lost for url in nodes.urls[:2])
    assert nodes.urls[2].removeprefix("redis://") not in lost
    assert any(result.id in lost for result in results)
    assert "lock_on_unavailable='requeue'" in lost

    nodes.resume(0)
    nodes.resume(1)
    worker.wait_for_log(BACK)
    for result in results:
        result.get(timeout=TIMEOUT)
    assert counts(worker) == [1, 1, 0, 0]


@pytest.mark.parametrize("pool", ["prefork", "threads", "solo"])
def test_nodes_that_come_back_empty_are_logged_once_each_until_they_vote(
    start_quiet: StartQuiet, nodes: LocalCluster, key: str, pool: str
) -> None:
    # Tasks may begin the quarantine, and a poll has to meet it.
    worker = start_quiet(pool, redlock_max_ttl=6.0, redlock_ttl=6.0)
    nodes.kill(0)
    nodes.kill(1)
    results = [worker.send("echo", f"{key}-{number}") for number in range(5)]
    worker.wait_for_log(LOST)

    nodes.restart(0)
    nodes.restart(1)
    worker.wait_for_log(BACK)
    for result in results:
        result.get(timeout=TIMEOUT)
    wait_until(lambda: counts(worker) == [1, 1, 2, 2], message=lambda: worker.log)


@pytest.mark.full
def test_a_node_that_fails_while_a_worker_runs_is_logged_once_and_so_is_its_return(
    start_quiet: StartQuiet, nodes: LocalCluster
) -> None:
    worker = start_quiet("prefork", **SHORT_TTL)
    nodes.pause(0)
    worker.wait_for_log(SILENT)
    assert nodes.urls[0].removeprefix("redis://") in lines(worker, SILENT)[0]

    nodes.resume(0)
    wait_until(lambda: lines(worker, "votes again."), message=lambda: worker.log)
    assert (len(lines(worker, SILENT)), counts(worker)) == (1, [0, 0, 0, 0])


@pytest.mark.full
def test_a_lost_quorum_is_logged_where_no_task_runs_and_so_is_its_return(
    start_quiet: StartQuiet, nodes: LocalCluster
) -> None:
    worker = start_quiet("prefork", **SHORT_TTL)
    nodes.kill(0)
    nodes.kill(1)
    worker.wait_for_log(LOST)
    assert "No task has met it yet" in lines(worker, LOST)[0]

    nodes.restart(0)
    nodes.restart(1)
    worker.wait_for_log(BACK)
    assert counts(worker)[:2] == [1, 1]


@pytest.mark.full
def test_a_node_in_quarantine_is_logged_while_the_others_make_the_quorum(
    start_quiet: StartQuiet, nodes: LocalCluster
) -> None:
    worker = start_quiet("solo", **SHORT_TTL)
    nodes.restart(2)
    worker.wait_for_log(VOTES)
    assert counts(worker) == [0, 0, 1, 1]


@pytest.mark.full
def test_children_that_are_replaced_log_the_same_outage_once(
    start_quiet: StartQuiet, nodes: LocalCluster, key: str
) -> None:
    worker = start_quiet("prefork", "--max-tasks-per-child=1", policy="raise")
    nodes.pause(0)
    nodes.pause(1)
    results = [worker.send("echo", f"{key}-{number}") for number in range(8)]
    wait_until(lambda: all(result.state == states.FAILURE for result in results))
    nodes.resume(0)
    nodes.resume(1)
    worker.wait_for_log(BACK)
    assert counts(worker)[:2] == [1, 1]
    assert "(lock_on_unavailable='raise')" in lines(worker, LOST)[0]
