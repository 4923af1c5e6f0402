"""Eight processes write a thousand times each and are paused past their leases meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
import redis

from celery_redlock.fencing import FileFence, RedisFence
from celery_redlock.testing import LocalCluster
from celery_redlock.testing.plugin import ClusterFactory
from tests.fencing.stress import Load, Opener, Store, check, run_stress
from tests.support.waiting import TIMEOUT

KEY = "state"


class RedisStore:
    """A key behind the guard."""

    def __init__(self, client: redis.Redis) -> None:
        self.fence = RedisFence(client)

    def claim(self, token: int) -> None:
        self.fence.claim(KEY, token)

    def read(self) -> bytes | None:
        content = self.fence.get(KEY)
        assert content is None or isinstance(content, bytes)
        return content

    def write(self, content: bytes, token: int) -> None:
        self.fence.set(KEY, content, token)


class UnguardedStore(RedisStore):
    """The same key without the guard."""

    def claim(self, token: int) -> None:
        pass

    def write(self, content: bytes, token: int) -> None:
        self.fence.client.set(KEY, content)


class FileStore:
    """A file behind the guard."""

    def __init__(self, path: Path) -> None:
        # Nobody cuts the power here, and most of the time would go into waiting for the disk.
        self.fence = FileFence(path, fsync=False)

    def claim(self, token: int) -> None:
        self.fence.claim(token)

    def read(self) -> bytes | None:
        return self.fence.read() if self.fence.path.exists() else None

    def write(self, content: bytes, token: int) -> None:
        self.fence.write(content, token)


@contextmanager
def open_redis(store: type[RedisStore], url: str) -> Iterator[Store]:
    with redis.Redis.from_url(url) as client:
        yield store(client)


@contextmanager
def open_file(path: Path) -> Iterator[Store]:
    yield FileStore(path)


@pytest.fixture(params=["redis", "file"])
def opener(
    request: pytest.FixtureRequest, tmp_path: Path, redlock_cluster_factory: ClusterFactory
) -> Opener:
    if request.param == "file":
        return partial(open_file, tmp_path / "state")
    return partial(open_redis, RedisStore, redlock_cluster_factory(1).urls[0])


@pytest.mark.full
@pytest.mark.timeout(10 * TIMEOUT)
def test_no_accepted_write_is_lost_and_the_highest_token_s_write_is_left(
    redlock_cluster: LocalCluster, opener: Opener
) -> None:
    load = Load()
    check(run_stress(redlock_cluster.urls, opener, load), load)


@pytest.mark.full
def test_without_the_guard_accepted_writes_are_lost(
    redlock_cluster: LocalCluster, redlock_cluster_factory: ClusterFactory
) -> None:
    unguarded = partial(open_redis, UnguardedStore, redlock_cluster_factory(1).urls[0])
    outcome = run_stress(redlock_cluster.urls, unguarded, Load(writes=100, pausing=0.5))
    assert sum(outcome.counted) < sum(outcome.accepted)
