"""A reservation that was used up, or never will be, stays on no node, however late commands ran."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from celery_redlock import Redlock
from celery_redlock.core import PendingReservation, Reservation, client_of
from celery_redlock.core.lease import release_with
from celery_redlock.transport.redis import channel
from tests.support.nodes import ServerNodes
from tests.support.waiting import wait_until

HOUR = 3600.0
GRACE = 60.0
LONG = 3000.0

#: They get what is sent through the proxy when it is delivered.
FAR_NODES = (3, 4)


@pytest.fixture(autouse=True)
def _slow_is_not_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    """However busy the machine is, late answers count for whatever they may count for."""
    monkeypatch.setattr(channel, "_FOLLOWUP_WINDOW", HOUR)


@pytest.fixture
def far(proxied: ServerNodes) -> Redlock:
    """A client that is far from two of the nodes."""
    client = proxied.connected()
    hold_back(proxied)
    return client


@pytest.fixture
def near(proxied: ServerNodes) -> Redlock:
    """A client that is near to all of them."""
    client = proxied.client(nodes=proxied.cluster.server_urls)
    proxied.connect(client)
    return client


def hold_back(proxied: ServerNodes) -> None:
    for node in FAR_NODES:
        proxied.cluster.delay(node, HOUR, only="requests")


def deliver(proxied: ServerNodes, *after: Redlock) -> None:
    """Let the far nodes get what was held back, after all that these clients have sent."""
    for client in after:
        proxied.connect(client)
    for node in FAR_NODES:
        proxied.cluster.heal(node)


def reserve(client: Redlock, **options: object) -> PendingReservation:
    options = {"ttl": HOUR, "grace": GRACE, "label": "queued", "retry_for": 5.0, **options}
    return client_of(client).reserve([client_of(client).key_of("key").stored], **options)  # type: ignore[arg-type]


def run_task(client: Redlock, reservation: Reservation) -> None:
    """Take a message's lock over on every node that lets it, and end."""
    lease = client_of(client).acquire_for_task(["key"], reservation=reservation)
    assert release_with(lease, {})


def has(
    proxied: ServerNodes, which: tuple[int, ...], reservation: Reservation
) -> Callable[[], bool]:
    return lambda: all(proxied.owner(node, "key") == reservation.owner for node in which)


def read_answers(client: Redlock, proxied: ServerNodes) -> None:
    """Let a client be in touch with every node again: it has read all answers before then."""
    proxied.connect(client)


def test_a_far_node_that_grants_when_the_task_has_ended_is_freed_as_its_answer_is_read(
    proxied: ServerNodes, far: Redlock, near: Redlock
) -> None:
    reserved = reserve(far)
    run_task(near, reserved.reservation)
    deliver(proxied, near)
    wait_until(has(proxied, FAR_NODES, reserved.reservation))
    client_of(far).confirm(reserved)
    read_answers(far, proxied)
    proxied.wait_free("key")


def test_a_far_node_that_grants_when_the_task_has_ended_keeps_the_key_for_the_grace_only(
    proxied: ServerNodes, far: Redlock, near: Redlock
) -> None:
    reserved = reserve(far)
    run_task(near, reserved.reservation)
    client_of(far).confirm(reserved)
    deliver(proxied, near)
    wait_until(has(proxied, FAR_NODES, reserved.reservation))
    # It runs down: nobody has lengthened it.
    wait_until(lambda: all(proxied.left(node, "key") < GRACE - 0.5 for node in FAR_NODES))


def test_with_a_dead_node_the_key_is_reserved_at_once_when_a_task_has_ended(
    proxied: ServerNodes, far: Redlock, near: Redlock
) -> None:
    reserved = reserve(far)
    run_task(near, reserved.reservation)
    deliver(proxied, near)
    wait_until(has(proxied, FAR_NODES, reserved.reservation))
    client_of(far).confirm(reserved)
    read_answers(far, proxied)
    proxied.wait_free("key")

    proxied.kill(0)

    # No patience: a first try that does not decide would raise.
    assert reserve(far, retry_for=0.0)


def test_a_far_node_that_grants_before_anybody_else_has_been_there_keeps_the_key_to_its_end(
    proxied: ServerNodes, far: Redlock
) -> None:
    reserved = reserve(far)
    client_of(far).confirm(reserved)
    deliver(proxied)
    wait_until(has(proxied, FAR_NODES, reserved.reservation))
    read_answers(far, proxied)
    wait_until(lambda: all(proxied.left(node, "key") > LONG for node in range(5)))


def test_a_far_node_that_grants_when_the_message_was_dropped_is_freed_as_its_answer_is_read(
    proxied: ServerNodes, far: Redlock, near: Redlock
) -> None:
    reserved = reserve(far)
    assert client_of(near).cancel(reserved.reservation, wait=True)
    for node in range(5):
        wait_until(lambda node=node: proxied.fence(node, "key") > number_of(reserved))
    deliver(proxied)
    wait_until(has(proxied, FAR_NODES, reserved.reservation))
    client_of(far).confirm(reserved)
    read_answers(far, proxied)
    proxied.wait_free("key")


def number_of(reserved: PendingReservation) -> int:
    return int(reserved.reservation.owner.split(" ")[1])


def test_what_a_far_node_hands_on_when_the_next_task_has_ended_lasts_for_the_grace_only(
    proxied: ServerNodes, near: Redlock
) -> None:
    far = proxied.connected()
    lease = proxied.lease_of(far)
    hold_back(proxied)
    onward = Reservation(
        node_keys=(client_of(far).key_of("key").stored,),
        owner=client_of(far).new_owner_value("queued"),
        expires_at=time.time() + HOUR,
    )
    assert release_with(lease, {}, onward, grace=GRACE)
    run_task(near, onward)
    deliver(proxied, near)
    wait_until(has(proxied, FAR_NODES, onward))
    read_answers(far, proxied)
    assert all(proxied.left(node, "key") <= GRACE for node in FAR_NODES)


@pytest.mark.parametrize("who", ["publisher", "worker"])
def test_a_node_that_is_cut_off_from_one_side_is_free_once_it_answers_again(
    proxied: ServerNodes, near: Redlock, who: str
) -> None:
    cut = proxied.connected()
    publisher, worker = (cut, near) if who == "publisher" else (near, cut)
    proxied.cluster.partition(4)
    reserved = reserve(publisher)
    client_of(publisher).confirm(reserved)
    run_task(worker, reserved.reservation)
    proxied.cluster.heal(4)
    proxied.connect(cut)
    proxied.wait_free("key")


def test_a_node_that_was_stopped_is_free_once_it_answers_again(
    proxied: ServerNodes, near: Redlock
) -> None:
    publisher = proxied.connected()
    proxied.pause(4)
    reserved = reserve(publisher)
    client_of(publisher).confirm(reserved)
    run_task(near, reserved.reservation)
    proxied.resume(4)
    proxied.connect(publisher)
    proxied.connect(near)
    proxied.wait_free("key")
