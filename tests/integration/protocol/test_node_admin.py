"""Arming: brand-new nodes vote at once, and none does that may have forgotten a lock."""

from __future__ import annotations

import pytest

from celery_redlock import QuorumUnavailable
from celery_redlock.core import arm_nodes
from celery_redlock.protocol.keys import GUARD_KEY
from celery_redlock.transport.redis.nodes import ServerSession
from tests.support.nodes import CALM, Nodes, ServerNodes
from tests.support.together import in_threads

EVERY = range(5)


def states(nodes: Nodes) -> list[str]:
    return [answer.state for answer in arm_nodes(nodes.urls)]


def test_brand_new_nodes_grant_locks_at_once(nodes: Nodes) -> None:
    nodes.flush(*EVERY)

    assert states(nodes) == ["armed"] * 5
    assert nodes.client().acquire("key").release()


@pytest.mark.parametrize("remember", [(), (3,), (3, 4)])
def test_a_majority_that_forgot_a_lease_is_not_armed(
    nodes: Nodes, remember: tuple[int, ...]
) -> None:
    """Whether those that remember can be asked or not."""
    client, other = nodes.connected(), nodes.connected()
    lease = nodes.lease_of(client)
    nodes.kill(*(node for node in (3, 4) if node not in remember))
    nodes.kill(0, 1, 2)
    nodes.restart(0, 1, 2)

    assert states(nodes)[:3] == ["missing"] * 3
    with pytest.raises(QuorumUnavailable, match="is quarantined"):
        other.acquire("key", wait=CALM / 5)
    assert lease.is_valid


def test_brand_new_nodes_are_armed_when_all_of_them_have_started(nodes: Nodes) -> None:
    nodes.flush(*EVERY)
    nodes.kill(4)
    assert states(nodes) == ["missing"] * 4 + ["failed"]

    nodes.restart(4)
    assert states(nodes) == ["armed"] * 5


def test_nodes_that_were_asked_for_a_lock_before_sit_out(nodes: Nodes) -> None:
    nodes.flush(*EVERY)
    client = nodes.client()
    with pytest.raises(QuorumUnavailable):
        client.acquire("key")

    assert "quarantined" in states(nodes)
    assert "armed" not in states(nodes)


def test_brand_new_nodes_serve_after_two_have_armed_them_at_once(nodes: Nodes) -> None:
    nodes.flush(*EVERY)
    in_threads(2, lambda _: arm_nodes(nodes.urls))
    assert states(nodes) == ["serving"] * 5


def test_a_node_that_restarts_between_the_look_and_the_arming_is_not_armed(
    servers: ServerNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    servers.flush(*EVERY)
    look = ServerSession.arm
    looks = []

    def looked(connection: ServerSession, mode: str) -> str:
        answer = look(connection, mode)
        looks.append(mode)
        if looks == ["look"] * 5:
            servers.restart(0)
        return answer

    monkeypatch.setattr(ServerSession, "arm", looked)
    assert states(servers) == ["failed"] + ["armed"] * 4
    assert not servers.cluster.client(0).exists(GUARD_KEY)
