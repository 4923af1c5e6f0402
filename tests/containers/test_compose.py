"""The whole deployment of docker/: it gets healthy, locks, and bears the loss of any one part."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from celery_redlock.protocol.keys import fence_key
from celery_redlock.tasks.message.envelope import HEADER, Envelope, fresh_nonce
from celery_redlock.tasks.message.tick import Tick
from tests.containers.deployment import Deployment, outcome
from tests.containers.stage import SCENE_TIMEOUT
from tests.support.waiting import TIMEOUT, wait_until

pytestmark = [pytest.mark.containers, pytest.mark.timeout(30 * TIMEOUT)]

# Enough that the client still runs when it is known that a worker is at it.
MANY = "60"


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    deployment = Deployment(tmp_path_factory.mktemp("checkout"))
    try:
        deployment.up()
        yield deployment
    finally:
        deployment.down()


@pytest.fixture
def deployment(started: Deployment) -> Iterator[Deployment]:
    """Everything running and healthy; what a test has stopped runs again after it."""
    started.wait_until_healthy()
    yield started
    for container in started.containers():
        if container.status != "running" and container.labels[SERVICE] != "init":
            container.start()


SERVICE = "com.docker.compose.service"


def test_every_service_gets_healthy(deployment: Deployment) -> None:
    services = sorted(container.labels[SERVICE] for container in deployment.containers())
    assert services == [
        *("beat", "beat", "broker", "init"),
        *("lock1", "lock2", "lock3", "lock4", "lock5"),
        *("store", "worker", "worker"),
    ]


def test_the_client_finds_all_deposits_made_one_by_one(deployment: Deployment) -> None:
    status, said = outcome(deployment.client())

    assert status == 0, said
    assert "5 of 5 lock nodes answer" in said
    assert "balance 20 of 20" in said
    assert "fencing tokens rose each time" in said


def test_the_client_finds_deposits_lost_without_the_lock(deployment: Deployment) -> None:
    status, said = outcome(deployment.client("--no-lock"))

    assert status == 1, said
    assert "NOT right" in said


def test_nothing_changes_when_a_lock_node_is_stopped(deployment: Deployment) -> None:
    (node,) = deployment.containers("lock3")
    node.stop(timeout=1)

    status, said = outcome(deployment.client())

    assert status == 0, said
    assert "4 of 5 lock nodes answer" in said


def test_a_lock_node_keeps_its_fencing_counters_when_it_restarts(deployment: Deployment) -> None:
    (node,) = deployment.containers("lock1")
    before = wait_until(lambda: _counter(node), SCENE_TIMEOUT, message="interest to be paid")

    node.restart()

    deployment.wait_until_healthy()
    # It sits out, and so knows of no newer holder; only the look at it before may have been early.
    assert _counter(node) >= before


@pytest.mark.parametrize(
    ("changed", "is_well"),
    [({}, True), ({"REDIS_PASSWORD": "another"}, False)],
    ids=["as it is", "with a wrong password"],
)
def test_the_health_check_of_a_lock_node_tells_whether_a_client_could_use_it(
    deployment: Deployment, changed: dict[str, str], is_well: bool
) -> None:
    (node,) = deployment.containers("lock2")
    sort, command = node.attrs["Config"]["Healthcheck"]["Test"]
    assert sort == "CMD-SHELL"
    status, said = node.exec_run(["sh", "-c", command], environment=changed)
    assert (status == 0) is is_well, said


def _counter(node: Any) -> int:
    """Return the newest fencing token that a lock node has given out for interest; 0 for none."""
    ask = 'REDISCLI_AUTH="$REDIS_PASSWORD" redis-cli --user redlock get "$0"'
    _, answer = node.exec_run(["sh", "-c", ask, fence_key("redlock:interest")], stderr=False)
    return int(answer or 0)


def test_no_deposit_is_lost_or_made_twice_when_a_worker_is_killed(deployment: Deployment) -> None:
    victim, other = deployment.containers("worker")
    before = len(victim.logs())
    client = deployment.client("--deposits", MANY)
    wait_until(
        lambda: b"bank.deposit" in victim.logs()[before:],
        SCENE_TIMEOUT,
        message="a deposit to come in",
    )

    victim.kill()

    assert client.poll() is None
    status, said = outcome(client)
    assert status == 0, said
    assert f"balance {MANY} of {MANY}" in said
    assert other.id[:12] in said


def test_a_tick_that_ran_twice_is_paid_once_and_right_only_if_a_worker_was_lost(
    deployment: Deployment,
) -> None:
    workers = deployment.containers("worker")
    status, said = workers[0].exec_run(["python", "-c", RUN_TWICE, A_TICK])
    assert status == 0, said
    status, said = outcome(deployment.client("--deposits", "1"))
    assert status == 1, said

    for worker in workers:
        worker.kill()
        worker.start()

    deployment.wait_until_healthy()
    status, said = outcome(deployment.client("--deposits", "1"))
    assert status == 0, said
    assert "ran again" in said


# A retry has the tick of its first run and a dedupe marker of its own, so its body runs, too.
RUN_TWICE = f"""
import sys, json, bank
for retries in (0, 1):
    headers = {{{HEADER!r}: json.loads(sys.argv[1])}}
    sent = bank.app.send_task("bank.pay_interest", headers=headers, retries=retries)
    sent.get(timeout={SCENE_TIMEOUT})
"""
A_TICK = json.dumps(Envelope(nonce=fresh_nonce(), tick=Tick(entry="interest", due=0.0)).write())


def test_the_other_beat_leads_when_the_leader_is_killed(deployment: Deployment) -> None:
    beats = {beat.id[:12]: beat for beat in deployment.containers("beat")}
    first = wait_until(lambda: _leader(beats), SCENE_TIMEOUT, message="a beat to lead")

    beats.pop(first).kill()

    (second,) = beats
    wait_until(lambda: _leader(beats) == second, SCENE_TIMEOUT, message="the other beat to lead")
    status, said = outcome(deployment.client())
    assert status == 0, said


def _leader(beats: dict[str, Any]) -> str | None:
    """Ask any beat that runs who leads."""
    beat = next(iter(beats.values()))
    status, answer = beat.exec_run(["celery-redlock", "beat", "--app=bank", "--json"], stderr=False)
    return json.loads(answer)["leader"]["host"] if status == 0 else None
