"""Publishers that share the nodes settle who gets the keys: the oldest that has some keeps them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from queue import Queue
from typing import Any

import pytest

from celery_redlock import Limit, LockContended
from celery_redlock.core import PendingReservation, client_of
from celery_redlock.core.attempt import _UnderWay
from celery_redlock.protocol.keys import LIMIT_PREFIX, owner_value
from tests.support.nodes import PREFIX, Nodes
from tests.support.waiting import TIMEOUT, wait_until

YEAR = 365 * 86_400


def rival(age: float) -> str:
    """Return the owner value of somebody who has asked for so many seconds."""
    return owner_value(os.urandom(16), int((time.time() - age) * 1e6), "queued")


class Publisher:
    """A publisher that reserves a key in a thread of its own."""

    def __init__(self, nodes: Nodes, pool: ThreadPoolExecutor) -> None:
        self._pool = pool
        self.client = client_of(nodes.connected())

    def reserve(
        self, *names: str | Limit, retry_for: float = TIMEOUT, grace: float = 60.0
    ) -> Future[PendingReservation]:
        keys = [self.client.key_of(name) for name in names or ("key",)]
        return self._pool.submit(
            self.client.reserve, keys, ttl=60.0, grace=grace, label="queued", retry_for=retry_for
        )


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor() as threads:
        yield threads


@pytest.fixture
def publisher(any_nodes: Nodes, pool: ThreadPoolExecutor) -> Publisher:
    return Publisher(any_nodes, pool)


@pytest.fixture
def watching(monkeypatch: pytest.MonkeyPatch) -> Iterator[Queue[Callable[[], None]]]:
    """What happens while a publisher begins to watch the others, one for each time."""
    scenes: Queue[Callable[[], None]] = Queue()
    watch = _UnderWay._watch_others

    def watch_after_scene(*args: Any) -> int:
        if not scenes.empty():
            scenes.get()()
        return watch(*args)

    monkeypatch.setattr(_UnderWay, "_watch_others", watch_after_scene)
    yield scenes
    assert scenes.empty()


def test_the_oldest_keeps_what_it_has_until_it_has_a_quorum(
    any_nodes: Nodes, publisher: Publisher
) -> None:
    younger = [rival(-YEAR - node) for node in range(3)]
    for node, owner in enumerate(younger):
        any_nodes.hold("key", owner, [node])
    reserves = publisher.reserve()
    wait_until(lambda: all(any_nodes.owners("key")))
    ours = any_nodes.owner(3, "key")
    any_nodes.forget(0, "key")
    assert reserves.result().reservation.owner == ours
    assert any_nodes.owners("key") == [ours, *younger[1:], ours, ours]


def test_a_younger_one_gives_up_what_it_has_and_learns_who_got_the_key(
    any_nodes: Nodes, publisher: Publisher, watching: Queue[Callable[[], None]]
) -> None:
    older = [rival(YEAR + node) for node in range(3)]
    for node, owner in enumerate(older):
        any_nodes.hold("key", owner, [node])

    def end() -> None:
        wait_until(lambda: any_nodes.owners("key")[3:] == [None, None])
        any_nodes.hold("key", older[0], range(3))

    watching.put(end)
    with pytest.raises(LockContended) as taken:
        publisher.reserve().result()
    assert (taken.value.split, taken.value.holder) == (False, older[0])


@pytest.mark.parametrize("gone", [(0, 1, 2), (1, 2)])
def test_if_others_have_given_up_or_were_killed_it_asks_once_more(
    any_nodes: Nodes,
    publisher: Publisher,
    watching: Queue[Callable[[], None]],
    gone: tuple[int, ...],
) -> None:
    for node in range(3):
        any_nodes.hold("key", rival(YEAR + node), [node])
    watching.put(lambda: [any_nodes.forget(node, "key") for node in gone] and None)
    owner = publisher.reserve().result().reservation.owner
    wait_until(lambda: any_nodes.owners("key").count(owner) == 2 + len(gone))


def test_a_node_that_refuses_one_that_it_has_granted_is_undone_as_well(
    any_nodes: Nodes, publisher: Publisher
) -> None:
    for node in range(3):
        any_nodes.hold("key", rival(-YEAR - node), [node])
    reserves = publisher.reserve("key", "other", retry_for=1.0)
    wait_until(lambda: all(any_nodes.owners("key")))
    any_nodes.hold("other", rival(-YEAR), [3])
    with pytest.raises(LockContended):
        reserves.result()
    wait_until(lambda: any_nodes.owners("key")[3:] == [None, None])


def test_a_node_that_has_been_asked_twice_and_replies_late_keeps_the_key(
    servers: Nodes, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    publisher = Publisher(servers, pool)
    for node in range(3):
        servers.hold("key", rival(-YEAR - node), [node])
    pause = _UnderWay._pause

    def pause_after_scene(*args: Any) -> None:
        # Between two questions: in one that finds the node stopped, and the others taken, it fails.
        monkeypatch.setattr(_UnderWay, "_pause", pause)
        servers.pause(4)
        servers.lose("key", range(3))
        pause(*args)

    monkeypatch.setattr(_UnderWay, "_pause", pause_after_scene)
    reserves = publisher.reserve(grace=20.0)
    wait_until(lambda: servers.owner(3, "key"))
    ours = servers.owner(3, "key")
    wait_until(lambda: [servers.owner(node, "key") for node in range(4)] == [ours] * 4)
    servers.resume(4)
    publisher.client.confirm(reserves.result())
    wait_until(lambda: min(servers.left(node, "key") for node in range(5)) > 20.0)


@pytest.mark.parametrize(
    ("key", "retry_for"), [("key", 0.0), (Limit("key", 1), 0.2)], ids=["no time", "limit"]
)
def test_without_time_and_for_keys_with_a_limit_nothing_is_settled(
    any_nodes: Nodes,
    publisher: Publisher,
    monkeypatch: pytest.MonkeyPatch,
    key: str | Limit,
    retry_for: float,
) -> None:
    monkeypatch.setattr(_UnderWay, "_watch_others", lambda *_: pytest.fail("it watches"))
    for node in range(3):
        any_nodes.hold("key", rival(YEAR + node), [node])
        any_nodes.hold(f"{LIMIT_PREFIX}{PREFIX}key#0", rival(YEAR + node), [node])
    with pytest.raises(LockContended) as taken:
        publisher.reserve(key, retry_for=retry_for).result()
    assert taken.value.split
