"""A record for each slot lets its holder write what all slots share, in the same step."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis

from celery_redlock.errors import StaleFencingToken
from celery_redlock.fencing import RedisFence, slot_resource
from celery_redlock.testing.plugin import ClusterFactory


@pytest.fixture
def client(redlock_cluster_factory: ClusterFactory) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(redlock_cluster_factory(1).urls[0]) as client:
        yield client


def add_one(client: redis.Redis, slot: int, token: int) -> None:
    RedisFence(client).run(
        client.pipeline().incr("jobs:done"), [slot_resource("jobs", slot)], (), token
    )


def test_the_holders_of_two_slots_change_a_key_that_they_share(client: redis.Redis) -> None:
    add_one(client, 0, 9)
    add_one(client, 1, 5)

    assert client.get("jobs:done") == b"2"


def test_an_earlier_holder_of_a_slot_changes_no_key_that_slots_share(client: redis.Redis) -> None:
    add_one(client, 0, 9)

    with pytest.raises(StaleFencingToken):
        add_one(client, 0, 8)
    assert client.get("jobs:done") == b"1"
