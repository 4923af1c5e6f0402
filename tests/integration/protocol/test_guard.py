"""The restart guard: nodes that may have forgotten keys sit out one longest lease."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Collection, Mapping
from typing import cast

import pytest

from celery_redlock import LockNotAcquired, QuorumUnavailable, Redlock
from celery_redlock.core import client, client_of
from celery_redlock.core.failures import NO_REPLY, VOTED
from celery_redlock.protocol.commands import acquire
from celery_redlock.protocol.keys import GUARD_KEY, Key
from celery_redlock.protocol.votes import Quarantined
from tests.support.nodes import CALM, Nodes, ServerNodes
from tests.support.waiting import TIMEOUT, wait_until

Loss = Callable[[Nodes, int], None]


def killed(nodes: Nodes, node: int) -> None:
    nodes.kill(node)
    nodes.restart(node)


def killed_with_an_old_snapshot(nodes: Nodes, node: int) -> None:
    # What a held key looks like in a snapshot that is older than the key.
    nodes.forget(node, "key")
    nodes.restart(node, keep_data=True)


def flushed(nodes: Nodes, node: int) -> None:
    nodes.flush(node)


def role_flipped(nodes: Nodes, node: int) -> None:
    nodes.forget(node, "key")
    nodes.flip_role(node)


LOSSES = [killed, killed_with_an_old_snapshot, flushed, role_flipped]


def take(client: Redlock, name: str) -> bool:
    try:
        client.acquire(name).release()
    except LockNotAcquired:
        return False
    return True


def sitting_out(client: Redlock, nodes: Collection[int]) -> frozenset[str]:
    """
    Return who stands in the way once it is that these nodes sit out.

    Until there is a connection again, they are said to be away.
    """
    names = {client.node_names[node] for node in nodes}

    def told() -> Mapping[str, str] | None:
        with pytest.raises(QuorumUnavailable) as refused:
            client.acquire("key", wait=CALM / 5)
        reasons = refused.value.nodes
        return reasons if all("is quarantined" in reasons.get(name, "") for name in names) else None

    # The nodes that are not quarantined voted, or had no time to.
    return frozenset(name for name, why in wait_until(told).items() if why not in (VOTED, NO_REPLY))


def test_the_error_names_when_enough_quarantined_nodes_vote_again(any_nodes: Nodes) -> None:
    client = any_nodes.connected()
    for node in range(3):
        any_nodes.flush(node)
    sitting_out(client, [0, 1, 2])
    with pytest.raises(QuorumUnavailable) as refused:
        client.acquire("key")
    assert refused.value.available_in is not None
    assert 0 < refused.value.available_in <= client_of(client).settings.max_ttl


@pytest.mark.parametrize("lose", LOSSES)
def test_nodes_that_may_have_forgotten_a_lease_do_not_grant_it_again(
    any_nodes: Nodes, lose: Loss
) -> None:
    client, other = any_nodes.connected(), any_nodes.connected()
    any_nodes.lease_of(client)
    for node in (0, 1, 2):
        lose(any_nodes, node)
    assert sitting_out(other, (0, 1, 2)) == set(other.node_names[:3])


@pytest.mark.parametrize("lose", LOSSES)
def test_without_the_guard_the_same_loss_breaks_exclusion(nodes: Nodes, lose: Loss) -> None:
    client, other = nodes.connected(guard=False), nodes.connected(guard=False)
    lease = nodes.lease_of(client)
    for node in (0, 1, 2):
        lose(nodes, node)
    second = other.acquire("key", wait=TIMEOUT)
    assert second.is_valid
    assert lease.is_valid
    assert second.fencing_token > lease.fencing_token


@pytest.mark.parametrize("lose", LOSSES)
def test_a_node_votes_again_after_one_longest_lease(nodes: Nodes, lose: Loss) -> None:
    client = nodes.connected(ttl=1.0, max_ttl=1.0)
    for node in range(5):
        lose(nodes, node)
    assert not take(client, "first look")
    wait_until(lambda: take(client, "second look"))


def test_a_backup_of_all_nodes_at_one_time_stops_no_lock(any_nodes: Nodes) -> None:
    client = any_nodes.connected()
    any_nodes.back_up(*range(5))
    votes = any_nodes.attempt(client, "key").round.votes
    assert [vote for vote in votes if isinstance(vote, Quarantined)] == []


def test_a_minority_in_quarantine_does_not_matter(nodes: Nodes) -> None:
    client = nodes.connected()
    nodes.flush(0, 1)
    lease = client.acquire("key", wait=TIMEOUT)
    assert nodes.owners("key")[:2] == [None, None]
    assert lease.release()


def test_quarantine_outlasts_another_restart(nodes: Nodes) -> None:
    client = nodes.connected(max_ttl=60.0)
    for _ in range(2):
        for node in (0, 1, 2):
            killed(nodes, node)
        assert not take(client, "key")


def test_a_single_node_is_not_guarded_unless_asked(nodes: Nodes) -> None:
    plain = nodes.client(nodes=nodes.urls[:1])
    assert take(plain, "key")
    killed(nodes, 0)
    wait_until(lambda: take(plain, "key"))
    guarded = nodes.client(nodes=nodes.urls[:1], guard=True)
    killed(nodes, 0)
    assert sitting_out(guarded, [0]) == set(guarded.node_names)


def test_a_single_node_is_told_about_in_the_log_unless_it_is_in_memory(
    nodes: Nodes, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "logged_nodes", set())
    with caplog.at_level(logging.INFO, logger="celery_redlock"):
        nodes.client(nodes=nodes.urls[:1])
    told = "restart quarantine is off; guard=True or redlock_guard switches it on" in caplog.text
    assert told is isinstance(nodes, ServerNodes)


def test_brand_new_nodes_sit_out_until_they_are_armed(servers: ServerNodes) -> None:
    client = servers.client()
    servers.flush(*range(5))
    with pytest.raises(QuorumUnavailable, match="celery-redlock init"):
        client.acquire("key")
    servers.cluster.arm()
    assert take(client, "key")


def test_a_node_that_copied_another_sits_out(servers: ServerNodes) -> None:
    client = servers.connected()
    host_and_port = servers.urls[1].removeprefix("redis://").removesuffix("/0").split(":")
    copy = servers.cluster.client(0)
    copy.replicaof(*host_and_port)
    wait_until(lambda: copy.info("replication")["master_link_status"] == "up")
    while_replica = servers.attempt(client, "key")
    copy.replicaof("NO", "ONE")
    assert while_replica.is_granted

    def vote_as_master() -> object:
        return servers.attempt(client, uuid.uuid4().hex).round.votes[0]

    assert isinstance(wait_until(vote_as_master), Quarantined)


def test_a_user_without_info_does_not_unseat_those_who_have_it(servers: ServerNodes) -> None:
    """Both see one record; if each took the other's for a restart, the node would never vote."""
    for node in range(5):
        servers.cluster.client(node).acl_setuser(
            "blind",
            enabled=True,
            passwords=["+pw"],
            keys=["*"],
            categories=["+@all"],
            commands=["-info"],
        )
    try:
        blind_urls = [url.replace("redis://", "redis://blind:pw@") for url in servers.urls]
        seeing, blind = servers.connected(), servers.connected(nodes=blind_urls)
        for _ in range(2):
            assert take(blind, "key")
            assert take(seeing, "key")
    finally:
        for node in range(5):
            servers.cluster.client(node).acl_deluser("blind")


def test_the_record_names_the_process_and_its_role(servers: ServerNodes) -> None:
    servers.flush(0)
    client, node = servers.client(), servers.cluster.client(0)

    def record() -> bytes | None:
        servers.attempt(client, "key")
        return cast("bytes | None", node.get(GUARD_KEY))

    info = {**node.info("server"), **node.info("replication")}
    written = wait_until(record, message="a record")
    assert written is not None
    assert written[:80].decode() == info["run_id"] + info["master_replid"]


def test_a_quarantine_that_a_clock_ahead_has_begun_lasts_no_longer_once_the_clock_is_right(
    servers: ServerNodes,
) -> None:
    node = servers.cluster.client(0)
    command = acquire((Key.of("redlock:", "key"),), "us", 1000, 0, 1000)
    servers.run(0, command)
    ids = cast("bytes", node.get(GUARD_KEY))[:80].decode()
    node.set(GUARD_KEY, f"{ids} {servers.now_us(0) + 3_600_000_000}")
    vote = servers.run(0, command)
    assert isinstance(vote, Quarantined)
    assert vote.remaining <= 1.0
    wait_until(lambda: not isinstance(servers.run(0, command), Quarantined))


def test_a_client_with_a_shorter_max_ttl_ends_no_quarantine_early(servers: ServerNodes) -> None:
    servers.flush(0)
    keys = (Key.of("redlock:", "key"),)
    assert isinstance(servers.run(0, acquire(keys, "us", 1000, 0, 60_000)), Quarantined)
    vote = servers.run(0, acquire(keys, "us", 1000, 0, 1000))
    assert isinstance(vote, Quarantined)
    assert vote.remaining > 10.0


def test_a_server_that_keeps_its_replication_id_over_a_restart_takes_no_part(
    servers: ServerNodes,
) -> None:
    for node in (0, 1, 2):
        client = servers.cluster.client(node)
        replication_id = client.info("replication")["master_replid"]
        client.set(GUARD_KEY, f"{'0' * 40}{replication_id} 0")
    with pytest.raises(QuorumUnavailable, match="does not notice its restarts"):
        servers.client().acquire("key")
