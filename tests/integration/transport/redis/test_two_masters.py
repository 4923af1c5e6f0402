"""
Two servers answer for one node, and two clients see one of them each: still one holds the lock.

Client A reaches nodes 1 and 3, client B nodes 1 and 2. Node 1 is a Sentinel group whose former
master answers on; B's Sentinels fall silent before they could tell it of the new one.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import pytest

from celery_redlock import Lease, LeaseLost, LockContended, QuorumUnavailable, Redlock
from celery_redlock.core import client_of
from celery_redlock.protocol import mastership
from celery_redlock.protocol.mastership import Master
from celery_redlock.testing import LocalCluster, LocalSentinel, TcpProxy
from celery_redlock.testing.server import LOOPBACK
from celery_redlock.transport import clock
from celery_redlock.transport.redis import masters
from tests.support.nodes import CALM
from tests.support.waiting import TIMEOUT, wait_until

#: A node that nobody reaches.
NOWHERE = f"redis://{LOOPBACK}:1/0"

TTL, TAKEOVER = 2.0, 3.0


@dataclass
class Sides:
    """The group, the other nodes, and how B reaches its Sentinels."""

    groups: LocalSentinel
    others: LocalCluster
    to_sentinels: TcpProxy

    def client(self, which: str, **options: Any) -> Redlock:
        """Return client A or B, connected to its two nodes."""
        url = self.groups.urls[0]
        second, third = self.others.urls
        if which == "B":
            own = ",".join(f"{host}:{port}" for host, port in self.to_sentinels.addresses)
            nodes = [f"redis+sentinel://{own}/{self.groups.name(0)}", second, NOWHERE]
        else:
            nodes = [url, NOWHERE, third]
        options = {"max_ttl": TTL, "ttl": TTL, "takeover": TAKEOVER, **options}
        client = Redlock(nodes, node_timeout=options.pop("node_timeout", CALM), **options)
        client.acquire(f"connects {which}", wait=TIMEOUT).release()
        return client

    def hide(self) -> None:
        """Let the Sentinels, but no client, take the former master for dead; return then."""
        former: Any = self.groups.client(0, 0)
        former.execute_command("ACL", "SETUSER", "default", "-ping")
        self.groups.wait_for_failover(0, since=0)

    def silence(self) -> None:
        """Let B's Sentinels fall silent."""
        for index in range(len(self.to_sentinels.addresses)):
            self.to_sentinels.partition(index)


@pytest.fixture(autouse=True)
def short_takeovers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Allow takeovers in which no former master is asked here."""
    monkeypatch.setattr("celery_redlock.core.settings.SHORTEST_TAKEOVER", 0.0)


@pytest.fixture
def sides(
    redlock_sentinel_factory: Callable[..., LocalSentinel],
    redlock_cluster_factory: Callable[..., LocalCluster],
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Sides]:
    monkeypatch.setattr(masters, "_PAUSE", 0.1)
    # Nobody waits for silent Sentinels.
    monkeypatch.setattr(masters, "MAX_AGE", 600.0)
    groups, others = redlock_sentinel_factory(1), redlock_cluster_factory(2)
    ports = [urlsplit(url).port or 0 for url in groups.sentinel_urls]
    with contextlib.closing(TcpProxy([(LOOPBACK, port) for port in ports])) as proxy:
        yield Sides(groups, others, proxy)


def acquired(client: Redlock) -> Lease:
    """Try to acquire the key until the nodes grant it; no pause grows meanwhile."""

    def attempt() -> Lease | None:
        with contextlib.suppress(LockContended, QuorumUnavailable):
            return client.acquire("key", wait=0)
        return None

    lease = wait_until(attempt)
    assert lease is not None
    return lease


def master_of(client: Redlock) -> Master:
    """Return what the client takes for the master of its group."""
    watch: Any = client_of(client).transport._nodes.watch  # type: ignore[attr-defined]
    (group,) = watch.groups.values()
    master = group.master
    assert isinstance(master, Master)
    return master


def test_a_former_master_that_nobody_names_any_more_grants_nothing(
    sides: Sides, monkeypatch: pytest.MonkeyPatch
) -> None:
    # So that the new one votes before Sentinels make a replica of the former one.
    monkeypatch.setattr(mastership, "MAX_AGE", 1.0)
    a, b = sides.client("A"), sides.client("B")
    sides.silence()
    sides.hide()
    held = acquired(a)
    with pytest.raises(QuorumUnavailable, match="was not confirmed"):
        b.acquire("key", wait=0)
    assert held.is_valid


def test_nobody_extends_at_a_new_master_what_expires_at_the_former_one(
    sides: Sides, monkeypatch: pytest.MonkeyPatch
) -> None:
    # So that B may believe in the former one for as long as a busy machine takes.
    monkeypatch.setattr(mastership, "MAX_AGE", 60.0)
    # A asks the former one until it learns; its key has to stay at the new one for that long.
    options = {"ttl": 3.0, "max_ttl": 3.0, "takeover": 90.0}
    a, b = sides.client("A", **options), sides.client("B", **options)
    held, over = a.acquire("key"), threading.Event()

    def extend() -> None:
        with contextlib.suppress(LeaseLost):
            while not over.wait(0.1):
                with contextlib.suppress(QuorumUnavailable):
                    held.extend()

    extending = threading.Thread(target=extend)
    extending.start()
    sides.silence()
    sides.hide()
    acquired(b)
    was_valid = held.is_valid
    over.set()
    extending.join()
    assert not was_valid


def test_a_reply_from_a_former_master_that_comes_late_does_not_count(
    sides: Sides, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mastership, "MAX_AGE", 1.0)
    b = sides.client("B", node_timeout=60.0, max_ttl=60.0)
    former = master_of(b)
    sides.groups.pause(0, 0)
    outcome: list[object] = []

    def acquire() -> None:
        try:
            outcome.append(b.acquire("key", ttl=60.0, wait=0))
        except QuorumUnavailable as error:
            outcome.append(error)

    waiting = threading.Thread(target=acquire)
    waiting.start()
    sides.groups.wait_for_failover(0, since=0)
    wait_until(lambda: master_of(b) is not former and not former.is_confirmed(clock.now()))
    sides.groups.resume(0, 0)
    waiting.join()
    assert [type(one) for one in outcome] == [QuorumUnavailable]
