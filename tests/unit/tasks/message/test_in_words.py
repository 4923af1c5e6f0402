"""No message names a key that only this package has."""

from __future__ import annotations

import itertools
import logging
from typing import Any

import pytest

from celery_redlock import LockContended, QuorumUnavailable, Redlock
from celery_redlock.protocol.keys import META_PREFIX
from celery_redlock.tasks.config.client import redlock_for
from celery_redlock.tasks.message.in_words import in_words, lock_key_of, reason_of
from celery_redlock.tasks.message.node_keys import (
    dedupe_key_of,
    queue_key,
    stop_request_key,
)
from celery_redlock.transport import memory_node, parse_node
from tests.support.tasks import Bench

_numbers = itertools.count()
MARKER = dedupe_key_of("ab" * 16)


@pytest.fixture
def client() -> Redlock:
    return Redlock([f"memory://words-{next(_numbers)}-{node}" for node in range(3)], guard=False)


def met(client: Redlock, keys: tuple[str, ...], *reserved: str) -> Any:
    """Return the error of an acquire of these keys, in words."""
    with pytest.raises((LockContended, QuorumUnavailable)) as raised:
        client.reservations.acquire_for_task(keys, reserved, ttl=1)
    return in_words(raised.value, client)


def stop_nodes(client: Redlock) -> None:
    for name in client.node_names:
        memory_node(parse_node(name)).kill()


def test_a_held_marker_is_another_delivery_of_the_message(client: Redlock) -> None:
    client.reservations.acquire_for_task((), (MARKER,), label="running first")
    error = met(client, ("order:7",), MARKER)
    assert error.message.startswith("Another delivery has this message: 'running first' for up to")
    assert reason_of(error, client) == "another delivery has this message: 'running first'"
    assert (error.key, lock_key_of(client, error.key)) == (MARKER, None)


def test_a_queued_message_holds_the_lock_key(client: Redlock) -> None:
    queued = queue_key(client, "order:7")
    client.reservations.acquire_for_task((), (queued,), label="queued first")
    error = met(client, ("order:7",), queued)
    assert reason_of(error, client) == "lock 'order:7' is held by 'queued first'"
    assert error.message.startswith("Lock 'order:7' is held by 'queued first'")
    assert error.key == queued


def test_a_stop_request_counts_as_its_lock_key(client: Redlock) -> None:
    beside = stop_request_key(client.node_key("order:7"))
    client.reservations.acquire_for_task((), (beside,), label="queued newer")
    error = met(client, ("order:7",), beside)
    assert (error.key, META_PREFIX in error.message) == ("order:7", False)


@pytest.mark.parametrize(
    ("keys", "begins"),
    [
        (("order:7",), "Lock 'order:7' needs 2 of 3 nodes"),
        (("order:7", "order:8"), "Lock 'order:7, order:8' needs 2 of 3 nodes"),
        ((), "The marker of this message needs 2 of 3 nodes"),
    ],
)
def test_a_missing_quorum_is_about_the_lock_keys(
    client: Redlock, keys: tuple[str, ...], begins: str
) -> None:
    stop_nodes(client)
    error = met(client, keys, MARKER)
    assert error.message.startswith(begins)
    assert META_PREFIX not in (error.key or "")
    assert reason_of(error, client).startswith(begins[0].lower() + begins[1:])


def test_one_lock_node_is_logged_once_for_tasks(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench()
    node = f"redis://single-{next(_numbers)}"
    bench.app.conf.redlock_nodes = [node]
    with caplog.at_level(logging.INFO, "celery_redlock"):
        redlock_for(bench.app)
    assert [node in message for message in caplog.messages] == [True]
