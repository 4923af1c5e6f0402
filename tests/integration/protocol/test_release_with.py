"""What a lease leaves behind: markers, a lock for the next message, or nothing, key by key."""

from __future__ import annotations

import pytest

from celery_redlock import Lease, Limit, LockContended, Rate, Redlock
from celery_redlock.core import ReleaseAction, client_of, release
from celery_redlock.core.lease import holding_of, release_keys, release_with
from celery_redlock.protocol.keys import Key
from celery_redlock.protocol.rounds import Phase
from celery_redlock.transport.redis import channel as channels
from tests.integration.protocol.reserving import (
    GRACE,
    LONG,
    MESSAGE,
    back_to,
    everywhere,
    long_on,
    take_over,
)
from tests.support.nodes import Nodes
from tests.support.waiting import TIMEOUT, wait_until

pytestmark = pytest.mark.usefixtures("slow_is_not_stopped")

#: The end of a message, as its record has it.
FINISHED = {Key.read(MESSAGE): ReleaseAction(60_000, "finished")}


def give_up(client: Redlock, lease: Lease, *keys: str | Limit) -> None:
    """Release some keys of a lease."""
    release_keys(lease, [client_of(client).key_of(key) for key in keys])


def test_each_key_ends_as_it_was_told(any_nodes: Nodes, client: Redlock) -> None:
    lease = client_of(client).acquire_for_task(["gone", "kept"], [MESSAGE])
    any_nodes.wait_held(lease)
    actions = {
        Key.read(MESSAGE): ReleaseAction(keep_ms=3_600_000, value="finished"),
        client_of(client).key_of("kept"): ReleaseAction(keep_ms=20_000),
    }
    assert release_with(lease, actions)
    any_nodes.wait_free("gone")
    wait_until(lambda: everywhere(any_nodes, "finished", MESSAGE))
    wait_until(lambda: all(any_nodes.left(node, "kept") <= 20 for node in range(5)))
    assert all(any_nodes.left(node, MESSAGE) > LONG for node in range(5))
    assert any_nodes.owners("kept") == [lease.owner] * 5


def test_finishing_raises_the_counters_as_a_release_does(any_nodes: Nodes, client: Redlock) -> None:
    lease = client_of(client).acquire_for_task(["key"], [MESSAGE])
    for node in range(5):
        any_nodes.set_fence(node, "key", 1)
    assert release_with(lease, FINISHED)
    wait_until(
        lambda: [any_nodes.fence(node, "key") for node in range(5)] == [lease.fencing_token] * 5
    )


def test_a_lease_ends_once(any_nodes: Nodes, client: Redlock) -> None:
    lease = client_of(client).acquire_for_task(["key"], [MESSAGE])
    assert release_with(lease, FINISHED)
    assert not release_with(lease, {})
    assert not lease.release()
    assert not lease.is_valid
    wait_until(lambda: everywhere(any_nodes, "finished", MESSAGE))


def test_a_lease_that_was_released_leaves_nothing(nodes: Nodes, client: Redlock) -> None:
    lease = client_of(client).acquire_for_task(["key"], [MESSAGE])
    lease.release()
    assert not release_with(lease, FINISHED)
    nodes.wait_free(MESSAGE)


def test_what_somebody_else_has_is_not_marked(any_nodes: Nodes, client: Redlock) -> None:
    lease = client_of(client).acquire_for_task(["key"], [MESSAGE])
    any_nodes.wait_held(lease)
    any_nodes.hold(MESSAGE, "them", range(5))
    assert not release_with(lease, FINISHED)
    assert any_nodes.owners(MESSAGE) == ["them"] * 5
    any_nodes.wait_free("key")


def test_keys_without_a_fate_of_their_own_keep_their_minimum_hold(nodes: Nodes) -> None:
    client = nodes.connected()
    lease = client_of(client).acquire_for_task(["key"], [MESSAGE], ttl=30.0, at_least_for=20.0)
    nodes.wait_held(lease)
    assert release_with(lease, FINISHED)
    wait_until(lambda: all(0 < nodes.left(node, "key") <= 20 for node in range(5)))


def test_a_lock_is_handed_back_until_its_message_ends(any_nodes: Nodes, client: Redlock) -> None:
    lease = client_of(client).acquire_for_task(["key"], [MESSAGE])
    any_nodes.wait_held(lease)
    back = back_to(client)
    assert release_with(lease, FINISHED, back)
    wait_until(lambda: long_on(any_nodes, client, back))
    with pytest.raises(LockContended):
        client.acquire("key")
    assert take_over(client, back).fencing_token > lease.fencing_token


def test_a_stopped_node_that_hands_back_late_keeps_it_for_the_grace_only(
    any_nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channels, "_FOLLOWUP_WINDOW", 0.0)  # whatever is late is later than that
    monkeypatch.setattr(release, "_LINGER", 0.0)
    client = any_nodes.connected()
    lease = any_nodes.lease_of(client)
    any_nodes.pause(3, 4)
    back = back_to(client)
    assert release_with(lease, {}, back, grace=GRACE)
    any_nodes.resume(3, 4)
    any_nodes.connect(client)
    wait_until(lambda: everywhere(any_nodes, back.owner, "key"))
    wait_until(lambda: long_on(any_nodes, client, back, 0, 1, 2))
    assert all(any_nodes.left(node, "key") <= GRACE for node in (3, 4))


def test_nothing_is_handed_back_to_a_message_that_has_ended(any_nodes: Nodes) -> None:
    client = any_nodes.connected()
    lease = any_nodes.lease_of(client)
    assert release_with(lease, {}, back_to(client, seconds=-1.0))
    any_nodes.wait_free("key")


def test_keys_that_a_lease_does_not_have_are_not_handed_back(nodes: Nodes, client: Redlock) -> None:
    lease = client.acquire("key")
    assert release_with(lease, {}, back_to(client, "other"))
    nodes.connect(client)
    assert not any(nodes.owners("other"))
    nodes.wait_free("key")


def test_a_lost_lock_is_not_handed_back_over_its_next_holder(any_nodes: Nodes) -> None:
    client = any_nodes.connected()
    lease = any_nodes.lease_of(client)
    any_nodes.hold("key", "them", range(5))
    assert not release_with(lease, {}, back_to(client))
    assert any_nodes.owners("key") == ["them"] * 5


def test_finishing_without_nodes_does_not_raise(nodes: Nodes, client: Redlock) -> None:
    lease = client.acquire("key")
    nodes.kill(*range(5))
    assert not release_with(lease, {}, back_to(client))


def test_some_keys_are_given_up_and_the_lease_goes_on(any_nodes: Nodes, client: Redlock) -> None:
    lease = client_of(client).acquire_for_task(["queued", "run"], [MESSAGE], ttl=5.0)
    any_nodes.wait_held(lease)
    give_up(client, lease, "queued")
    any_nodes.wait_free("queued")
    assert (lease.key, lease.keys) == ("run", ("run",))
    lease.extend(30.0)
    assert lease.expires_in > 20
    other = client.acquire("queued")
    assert release_with(lease, {})
    any_nodes.wait_held(other)
    any_nodes.wait_free("run")


def test_the_keys_of_a_lease_are_those_that_were_asked_for(any_nodes: Nodes) -> None:
    client = any_nodes.connected()
    asked = ["plain", Limit("plain", 2), Rate("counted", "9/h")]
    lease = client_of(client).acquire_for_task(asked, [MESSAGE])
    assert lease.keys == ("plain", "plain", "counted")
    release_keys(lease, [Key.read(MESSAGE)])
    assert lease.keys == ("plain", "plain", "counted")
    give_up(client, lease, Limit("plain", 2))
    assert lease.keys == ("plain", "counted")


def test_of_a_lease_without_the_keys_that_were_asked_for_the_others_are_named(
    any_nodes: Nodes, client: Redlock
) -> None:
    lease = client_of(client).acquire_for_task(["queued"], [MESSAGE])
    give_up(client, lease, "queued")
    assert lease.keys == (MESSAGE,)


def test_a_stopped_node_gives_up_what_it_takes_late(any_nodes: Nodes, client: Redlock) -> None:
    any_nodes.pause(3, 4)
    lease = client_of(client).acquire_for_task(["queued", "run"])
    give_up(client, lease, "queued")
    any_nodes.resume(3, 4)
    wait_until(lambda: any_nodes.owners("run") == [lease.owner] * 5)
    any_nodes.wait_free("queued")


def test_an_extension_that_was_under_way_when_keys_were_given_up_loses_nothing(
    nodes: Nodes, client: Redlock
) -> None:
    lease = client_of(client).acquire_for_task(["queued", "run"])
    nodes.wait_held(lease)
    command, round_ = holding_of(lease).extend_command()
    give_up(client, lease, "queued")
    nodes.wait_free("queued")
    channel = client_of(client).transport.checkout()
    channel.exchange([(command, round_)], holding_of(lease).node_timeout)
    holding_of(lease).apply_extension(command, round_, channel)
    client_of(client).transport.checkin(channel)
    assert round_.phase is Phase.GONE
    assert lease.lost is None
    assert lease.is_valid


def test_keys_are_given_up_while_the_watchdog_renews_them(nodes: Nodes, client: Redlock) -> None:
    for _ in range(2):
        lease = client_of(client).acquire_for_task(["queued", "run"], ttl=4.0, wait=TIMEOUT)
        client.watch(lease)
        renewed = holding_of(lease).valid_until
        give_up(client, lease, "queued")
        wait_until(lambda lease=lease, renewed=renewed: holding_of(lease).valid_until > renewed)
        assert lease.lost is None
        assert lease.release()


def test_what_was_given_up_is_not_healed(nodes: Nodes, client: Redlock) -> None:
    lease = client_of(client).acquire_for_task(["queued", "run"])
    nodes.wait_held(lease)
    give_up(client, lease, "queued")
    nodes.wait_free("queued")
    nodes.forget(0, "run")

    def healed() -> bool:
        lease.extend()
        return nodes.owner(0, "run") == lease.owner

    wait_until(healed)
    assert not any(nodes.owners("queued"))


def test_a_lease_keeps_one_key_at_least(nodes: Nodes, client: Redlock) -> None:
    lease = client_of(client).acquire_for_task(["queued", "run"])
    with pytest.raises(ValueError, match="release the lease instead"):
        give_up(client, lease, "queued", "run")
    assert lease.release()


def test_giving_up_what_is_not_held_does_nothing(nodes: Nodes, client: Redlock) -> None:
    lease = client.acquire("key")
    give_up(client, lease, "other")
    assert lease.keys == ("key",)
    lease.release()
    give_up(client, lease, "key")
