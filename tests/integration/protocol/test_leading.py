"""A server that becomes the master again begins a quarantine, whatever its ids are."""

from __future__ import annotations

from typing import Any

import pytest

from celery_redlock.protocol.commands import LEAD_SOURCE
from celery_redlock.protocol.keys import EPOCH_KEY, GUARD_KEY
from celery_redlock.protocol.node_model import GuardRecord, Identity, ModelNode
from celery_redlock.testing import LocalCluster

#: Long enough for a busy machine, in ms.
QUARANTINE = 600_000


def ids(client: Any) -> str:
    """Return the ids of the process that runs, as its guard record has them."""
    return str(client.info("server")["run_id"] + client.info("replication")["master_replid"])


def led(client: Any, epoch: int) -> bool:
    """Let a client of a promotion connect; return whether the server votes."""
    return bool(client.eval(LEAD_SOURCE, 2, GUARD_KEY, EPOCH_KEY, epoch, QUARANTINE))


@pytest.mark.parametrize(
    ("record", "known", "epoch", "votes", "then"),
    [
        (True, 0, 0, True, True),
        (True, 1, 1, True, True),
        (True, 1, 0, True, True),  # of somebody who knows no better
        (True, 0, 1, False, False),
        (True, 1, 3, False, False),
        (False, 0, 1, False, False),
    ],
)
@pytest.mark.parametrize("redlock_cluster", [{"n": 1}], indirect=True)
def test_it_votes_if_it_knows_of_the_promotion(
    redlock_cluster: LocalCluster,
    *,
    record: bool,
    known: int,
    epoch: int,
    votes: bool,
    then: bool,
) -> None:
    client: Any = redlock_cluster.client(0)
    client.flushall()
    model = ModelNode(Identity("run", "id"), epoch=known)
    if record:
        client.set(GUARD_KEY, f"{ids(client)} 0")
        model.guard = GuardRecord("run", "id", 0)
    if known:
        client.set(EPOCH_KEY, known)
    assert (led(client, epoch), led(client, epoch)) == (votes, then)
    now_us = 10**12
    modelled = [model.lead(epoch, QUARANTINE, now_us) for _ in range(2)]
    assert modelled == [votes, then]
    assert int(client.get(EPOCH_KEY) or 0) == model.epoch


@pytest.mark.parametrize("redlock_cluster", [{"n": 1}], indirect=True)
def test_a_new_server_stays_one_that_may_be_armed(redlock_cluster: LocalCluster) -> None:
    client: Any = redlock_cluster.client(0)
    client.flushall()
    led(client, 2)
    assert not client.exists(GUARD_KEY)
