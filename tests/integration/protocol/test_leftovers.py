"""A reservation that was used up, or never will be, stays on no node, however late commands ran."""

from __future__ import annotations

import pytest

from celery_redlock import Redlock
from celery_redlock.core import PendingReservation, Reservation, client_of
from celery_redlock.core.lease import release_with
from tests.integration.protocol.reserving import GRACE, HOUR, LONG, back_to, reserve, take_over
from tests.support.nodes import ServerNodes
from tests.support.waiting import wait_until

#: They get what is sent through the proxy when it is delivered.
FAR_NODES = (3, 4)

pytestmark = pytest.mark.usefixtures("slow_is_not_stopped")


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


def run_task(client: Redlock, reservation: Reservation) -> None:
    """Take a message's lock over on every node that lets it, and end."""
    assert release_with(take_over(client, reservation), {})


def wait_for_grants(proxied: ServerNodes, reservation: Reservation) -> None:
    """Wait until the far nodes have granted the key."""
    wait_until(lambda: all(proxied.owner(node, "key") == reservation.owner for node in FAR_NODES))


def read_answers(client: Redlock, proxied: ServerNodes) -> None:
    """Let a client be in touch with every node again: it has read all answers before then."""
    proxied.connect(client)


def test_a_far_node_that_grants_when_the_task_has_ended_keeps_the_key_for_the_grace_only(
    proxied: ServerNodes, far: Redlock, near: Redlock
) -> None:
    reserved = reserve(far)
    run_task(near, reserved.reservation)
    client_of(far).confirm(reserved)
    deliver(proxied, near)
    wait_for_grants(proxied, reserved.reservation)
    # It runs down: nobody has lengthened it.
    wait_until(lambda: all(proxied.left(node, "key") < GRACE - 0.5 for node in FAR_NODES))


def test_a_far_node_that_grants_when_the_task_has_ended_is_freed_and_counts_when_another_dies(
    proxied: ServerNodes, far: Redlock, near: Redlock
) -> None:
    reserved = reserve(far)
    run_task(near, reserved.reservation)
    deliver(proxied, near)
    wait_for_grants(proxied, reserved.reservation)
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
    wait_for_grants(proxied, reserved.reservation)
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
    wait_for_grants(proxied, reserved.reservation)
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
    onward = back_to(far)
    assert release_with(lease, {}, onward, grace=GRACE)
    run_task(near, onward)
    deliver(proxied, near)
    wait_for_grants(proxied, onward)
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
