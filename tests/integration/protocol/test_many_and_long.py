"""A lock may have many keys, and long ones; what is too much is refused before anybody is asked."""

from __future__ import annotations

import pytest

from celery_redlock import LockContended, LockKeyError, QuorumUnavailable, Redlock
from celery_redlock.core import client_of
from celery_redlock.core.lease import holding_of
from celery_redlock.protocol.keys import MAX_KEYS
from tests.support.nodes import Nodes
from tests.support.waiting import TIMEOUT


def test_the_most_keys_are_taken_extended_seen_as_held_and_released(any_nodes: Nodes) -> None:
    keys = [f"key-{number}" for number in range(MAX_KEYS)]
    client = any_nodes.client()
    marks = [f"redlock-meta:test:{number}" for number in range(MAX_KEYS)]
    lease = client_of(client).acquire_for_task(keys, marks, wait=TIMEOUT)
    lease.extend()
    with pytest.raises(LockContended) as refused:
        client_of(client).acquire_for_task(keys, marks)
    assert len(refused.value.keys) == 2 * MAX_KEYS
    assert lease.release()


def test_more_keys_are_refused_by_number(redlock_memory_nodes: list[str]) -> None:
    keys = [f"key-{number}" for number in range(12_000)]
    with Redlock(redlock_memory_nodes) as client:
        with pytest.raises(LockKeyError, match=r"at most 1,000 keys, .* 12,000") as refused:
            client.acquire(keys)
        assert len(str(refused.value)) < 300
        with pytest.raises(LockKeyError, match=r"at most 1,000 keys, .* 12,000"):
            client_of(client).reserve(keys, ttl=9.0, grace=9.0, label="", retry_for=1.0)


def test_what_many_long_keys_are_told_by_is_short(any_nodes: Nodes) -> None:
    keys = [f"{number:09000}" for number in range(20)]
    holder, client = any_nodes.client(), any_nodes.client()
    with holder.lock(keys, ttl=60.0, wait=TIMEOUT) as lease:
        with pytest.raises(LockContended, match="9,000 characters") as held:
            client.acquire(keys)
        assert held.value.key in keys
        assert len(str(held.value)) < 1000
        assert len(repr(lease)) < 1000
        lease.mark_lost()
        assert len(str(holding_of(lease).lost_error())) < 1000
    any_nodes.kill(*range(len(any_nodes)))
    with pytest.raises(QuorumUnavailable, match=r"\.\.\. and 15 more") as failed:
        client.acquire(keys)
    assert len(str(failed.value)) < 2000


def test_a_text_of_somebody_else_is_shortened(any_nodes: Nodes) -> None:
    any_nodes.hold("key", "x" * 100_000, range(len(any_nodes)))
    with pytest.raises(LockContended, match=r"100,000 characters") as held:
        any_nodes.client().acquire("key")
    assert held.value.holder == "x" * 100_000
    assert len(str(held.value)) < 1000
