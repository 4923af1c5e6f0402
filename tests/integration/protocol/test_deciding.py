"""An attempt is decided as early as it can be, and only a quorum decides."""

from __future__ import annotations

import threading
import time
from functools import partial

import pytest

from celery_redlock import LockContended, QuorumUnavailable, Redlock
from celery_redlock.core import options
from celery_redlock.core.failures import NO_REPLY, VOTED
from celery_redlock.core.waiting import SPLIT_BUDGET, RetryOptions
from celery_redlock.protocol.rounds import Phase
from tests.support.nodes import Nodes
from tests.support.patching import channel_type, failing
from tests.support.together import in_threads
from tests.support.waiting import wait_until


def test_early_decision_a_grant_does_not_wait_for_stopped_nodes(any_nodes: Nodes) -> None:
    client = any_nodes.connected()
    any_nodes.pause(3, 4)
    attempt = any_nodes.attempt(client, "key")
    assert attempt.is_granted
    assert attempt.round.votes[3:] == [None, None]
    any_nodes.resume(3, 4)


def test_early_decision_a_conflict_does_not_wait_for_stopped_nodes(nodes: Nodes) -> None:
    client = nodes.connected()
    nodes.hold("key", "somebody", [0, 1, 2])
    nodes.pause(3, 4)
    attempt = nodes.attempt(client, "key")
    assert attempt.phase is Phase.CONTENDED
    assert attempt.round.votes[3:] == [None, None]
    nodes.resume(3, 4)


def test_a_conflict_tells_the_holder_and_for_how_long(any_nodes: Nodes) -> None:
    any_nodes.hold("key", "somebody", range(5), ttl=40.0)
    with pytest.raises(LockContended, match="held by 'somebody'") as taken:
        any_nodes.client().acquire("key")
    error = taken.value
    assert (error.key, error.holder, error.split) == ("key", "somebody", False)
    assert 0 < (error.expires_in or 0) <= 40


def test_a_split_vote_is_no_conflict(any_nodes: Nodes, client: Redlock) -> None:
    any_nodes.hold("key", "a", [0, 1])
    any_nodes.hold("key", "b", [2, 3])
    with pytest.raises(LockContended, match="no owner has it on 3 of 5 nodes") as taken:
        client.acquire("key")
    assert taken.value.split
    for node, holder in zip(client.node_names, "aabb", strict=False):
        assert f"{node}: held by {holder!r} for up to" in str(taken.value)
    wait_until(lambda: any_nodes.owners("key")[4:] == [None])


def test_a_split_vote_is_tried_again_even_without_patience(
    any_nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    patient = partial(RetryOptions, undecided=20 * SPLIT_BUDGET)
    monkeypatch.setattr(options, "RetryOptions", patient)
    client = any_nodes.connected()
    any_nodes.hold("key", "a", [0, 1])
    any_nodes.hold("key", "b", [2, 3], ttl=0.05)
    lease = client.acquire("key", wait=0)
    assert any_nodes.owners("key") == ["a", "a", lease.owner, lease.owner, lease.owner]


def test_two_contenders_never_both_give_way_to_each_other(nodes: Nodes) -> None:
    clients = [nodes.connected() for _ in range(2)]
    rounds = 60
    gate = threading.Barrier(2)

    def contend(me: int) -> list[bool]:
        gave_way = []
        for number in range(rounds):
            gate.wait()
            try:
                clients[me].acquire(f"prize-{number}")
            except LockContended as taken:
                gave_way.append(not taken.split)
            else:
                gave_way.append(False)
        return gave_way

    assert (True, True) not in zip(*in_threads(2, contend), strict=True)


def test_three_of_five_dead_nodes_leave_no_quorum_and_are_named(any_nodes: Nodes) -> None:
    client = any_nodes.connected()
    any_nodes.kill(1, 2, 3)
    with pytest.raises(QuorumUnavailable, match="needs 3 of 5 nodes") as failed:
        client.acquire("key")
    assert list(failed.value.nodes) == list(client.node_names)
    voted = {client.node_names[node] for node in (0, 4)}
    assert all(
        (why in (VOTED, NO_REPLY)) == (name in voted) for name, why in failed.value.nodes.items()
    )
    assert "voted" not in str(failed.value)
    any_nodes.restart(1, 2, 3)
    any_nodes.wait_free("key")


def test_nodes_have_their_whole_timeout_although_this_process_paused_while_it_sent(
    servers: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = servers.connected(node_timeout=0.5)
    channel = channel_type(client)
    send = channel._send_to  # type: ignore[attr-defined]

    def pause_before_the_third(self: object, index: int, *rest: object) -> bool:
        if index == 2:
            time.sleep(0.6)  # as a collection of garbage can take
        return bool(send(self, index, *rest))

    monkeypatch.setattr(channel, "_send_to", pause_before_the_third)
    servers.pause(3, 4)
    lease = client.acquire("key", ttl=30.0)
    monkeypatch.undo()
    assert lease.release()
    servers.resume(3, 4)
    assert failing(client) == []  # nodes 3 and 4 were silent for a moment only


def test_every_attempt_has_an_owner_value_of_its_own(nodes: Nodes) -> None:
    client = nodes.client()
    nodes.hold("key", "somebody", range(5))
    owners = {nodes.attempt(client, "key").owner for _ in range(20)}
    assert len(owners) == 20


def test_the_owner_value_tells_when_it_was_made_and_ends_with_the_label(nodes: Nodes) -> None:
    before = time.time_ns() // 1000
    lease = nodes.client().acquire("key", label="task-1 host 42")
    entropy, made_at, label = lease.owner.split(" ", 2)
    assert (len(entropy), label) == (32, "task-1 host 42")
    assert before <= int(made_at) <= time.time_ns() // 1000
    nodes.wait_held(lease, [n for n, owner in enumerate(nodes.owners("key")) if owner])
