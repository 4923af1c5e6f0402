"""No message names a key that only this package has."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from celery_redlock import LockContended, QuorumUnavailable, Redlock
from celery_redlock.core import client_of
from celery_redlock.core.failures import Refusal
from celery_redlock.protocol.keys import META_PREFIX, Key
from celery_redlock.tasks.message.in_words import in_words, lock_key_of, reason_of
from celery_redlock.tasks.message.node_keys import dedupe_key_of, queue_key, stop_request_key
from celery_redlock.transport import parse_node
from celery_redlock.transport.memory import memory_node

_numbers = itertools.count()
MARKER = dedupe_key_of("ab" * 16)


@pytest.fixture
def client() -> Redlock:
    return Redlock([f"memory://words-{next(_numbers)}-{node}" for node in range(3)], guard=False)


def met(client: Redlock, keys: tuple[str, ...], *records: str | Key) -> Any:
    """Return the error of an acquire of these keys, in words."""
    with pytest.raises((LockContended, QuorumUnavailable)) as raised:
        client_of(client).acquire_for_task(keys, records, ttl=1)
    return in_words(raised.value)


def stop_nodes(client: Redlock) -> None:
    for name in client.node_names:
        memory_node(parse_node(name)).kill()


def test_a_held_marker_is_another_delivery_of_the_message(client: Redlock) -> None:
    client_of(client).acquire_for_task((), (MARKER,), label="running first")
    error = met(client, ("order:7",), MARKER)
    assert error.message.startswith("Another delivery has this message: 'running first' for up to")
    assert reason_of(error) == "another delivery has this message: 'running first'"
    assert (error.key, lock_key_of(error.key)) == (MARKER, None)


def test_a_queued_message_holds_the_lock_key(client: Redlock) -> None:
    queued = queue_key(client_of(client).key_of("order:7"))
    client_of(client).acquire_for_task((), (queued,), label="queued first")
    error = met(client, ("order:7",), queued)
    assert reason_of(error) == "lock 'order:7' is held by 'queued first'"
    assert error.message.startswith("Lock 'order:7' is held by 'queued first'")
    assert error.key == "order:7"


def test_a_stop_request_counts_as_its_lock_key(client: Redlock) -> None:
    beside = stop_request_key(client_of(client).key_of("order:7"))
    client_of(client).acquire_for_task((), (beside,), label="queued newer")
    error = met(client, ("order:7",), beside)
    # Who has it alone has no lock key.
    assert (error.key, error.keys, META_PREFIX in error.message) == ("order:7", (), False)


def test_a_message_waits_for_no_stop_request(client: Redlock) -> None:
    lock = client_of(client).key_of("order:7")
    beside = stop_request_key(lock)
    client_of(client).acquire_for_task(("order:7",), (beside,), label="running older")
    error = met(client, ("order:7",), beside)
    assert (error.keys, Refusal.of(error).keys) == (("order:7",), (lock,))


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
    assert reason_of(error).startswith(begins[0].lower() + begins[1:])
