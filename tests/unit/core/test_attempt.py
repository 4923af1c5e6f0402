"""What an attempt knows about a reservation that it took over, and leaves behind on the nodes."""

from __future__ import annotations

import pytest

from celery_redlock.core.attempt import AcquireParams, Attempt, attempt_once
from celery_redlock.core.settings import client_settings
from celery_redlock.protocol.commands import Waiter
from celery_redlock.protocol.keys import PAUSED, Key
from celery_redlock.protocol.node_model import StoredKey
from celery_redlock.protocol.rounds import AcquireRound
from celery_redlock.protocol.votes import ACKNOWLEDGED, FOREIGN, Failed, KeyHolder, Refused, Vote
from celery_redlock.protocol.wait_queue import WaitQueue
from celery_redlock.transport import AckedNodes
from celery_redlock.transport.memory import MemoryNode, MemoryTransport


@pytest.mark.parametrize(
    ("vote", "left"),
    [(ACKNOWLEDGED, set()), (FOREIGN, {1}), (Failed("no answer"), {1}), (None, {1})],
)
def test_only_a_node_that_had_the_keys_has_given_the_reservation_up(
    vote: Vote | None, left: set[int]
) -> None:
    acked = AckedNodes()
    acked.record_vote(0, ACKNOWLEDGED, 0.0)
    acked.record_vote(1, vote, 0.0)
    round_ = AcquireRound(2, sent_at=0.0, ttl=1.0, drift_factor=0.01)
    channel = MemoryTransport([MemoryNode("0"), MemoryNode("1")])

    params = asked_by_a_waiter(Key.of("", "key"))
    attempt = Attempt(params, "owner", round_, channel, frozenset(), acked)

    assert set(attempt.nodes_not_taken_over()) == left


def asked_by_a_waiter(key: str, *, has_waited: bool = False) -> AcquireParams:
    return AcquireParams(
        settings=client_settings(
            3, ttl=10.0, max_ttl=10.0, key_prefix="", node_timeout=1.0, guard=False
        ),
        keys=(key,),
        ttl=10.0,
        label="",
        waiter=Waiter("us", 1, keep_ms=60_000, has_waited=has_waited),
    )


def test_a_node_that_refused_one_that_is_granted_does_not_wake_it() -> None:
    nodes = [MemoryNode(str(number)) for number in range(3)]
    nodes[0].state.keys["key"] = StoredKey("other", 10**18)

    assert attempt_once(MemoryTransport(nodes), asked_by_a_waiter(Key.of("", "key"))).is_granted

    assert nodes[0].state.waiting["key"].scores == {}


def test_nodes_forget_the_turn_of_one_that_is_granted() -> None:
    key = Key.of("", "key", 1, 60_000)
    nodes = [MemoryNode(str(number)) for number in range(3)]
    for node in nodes:
        node.state.waiting[key.stored] = WaitQueue(
            {"us": 1}, turns={"us": 10**15}, expires_at=10**18
        )

    granted = attempt_once(MemoryTransport(nodes), asked_by_a_waiter(key, has_waited=True))

    assert granted.is_granted
    assert [node.state.waiting[key.stored].scores for node in nodes] == [{}] * 3


@pytest.mark.parametrize("owner", [PAUSED, "waiting other"])
def test_a_key_that_is_taken_in_its_last_millisecond_is_asked_for_again(owner: str) -> None:
    round_ = AcquireRound(1, sent_at=0.0, ttl=1.0, drift_factor=0.01)
    round_.vote(0, Refused((KeyHolder(0, owner, 0.0),)), 0.0)
    channel = MemoryTransport([MemoryNode("0")])
    params = asked_by_a_waiter(Key.of("", "key"))
    assert 0 < Attempt(params, "owner", round_, channel, frozenset()).turn_in < 0.01
