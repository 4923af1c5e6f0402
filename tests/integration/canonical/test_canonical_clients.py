"""Clients that speak the canonical algorithm exclude ours on the same key, and are excluded."""

from __future__ import annotations

from typing import Any

import pytest
import redlock as redlock_py  # type: ignore[import-untyped]

from celery_redlock import LockContended, Redlock
from celery_redlock.testing import LocalCluster


@pytest.fixture
def nodes(redlock_cluster: LocalCluster) -> LocalCluster:
    return redlock_cluster


def test_the_lock_of_redis_py_on_one_node_excludes_us_and_is_excluded(nodes: LocalCluster) -> None:
    theirs: Any = nodes.client(0).lock("shared", timeout=30, blocking=False)
    with Redlock(nodes.urls[0], key_prefix="", node_timeout=5.0) as ours:
        assert theirs.acquire()
        with pytest.raises(LockContended) as taken:
            ours.acquire("shared")
        assert taken.value.holder == theirs.local.token.decode()
        theirs.release()
        lease = ours.acquire("shared")
        assert not theirs.acquire()
        assert lease.release()
        assert theirs.acquire()
        theirs.release()


def test_redlock_py_on_five_nodes_excludes_us_and_is_excluded(nodes: LocalCluster) -> None:
    theirs = redlock_py.Redlock(list(nodes.urls), retry_count=1)
    with Redlock(nodes.urls, key_prefix="", node_timeout=5.0) as ours:
        held = theirs.lock("shared", 30_000)
        assert held
        with pytest.raises(LockContended):
            ours.acquire("shared")
        theirs.unlock(held)
        lease = ours.acquire("shared", wait=5.0)
        assert not theirs.lock("shared", 30_000)
        assert lease.release()
        again = theirs.lock("shared", 30_000)
        assert again
        theirs.unlock(again)


def test_a_foreign_release_does_not_touch_our_lock(nodes: LocalCluster) -> None:
    theirs = redlock_py.Redlock(list(nodes.urls), retry_count=1)
    with Redlock(nodes.urls, key_prefix="", node_timeout=5.0) as ours:
        lease = ours.acquire("shared")
        theirs.unlock(redlock_py.Lock(30_000, "shared", "not the owner"))
        lease.extend()
        assert lease.release()
