"""The name look-up of one node holds up no start, no command and no page."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from celery_redlock import Redlock
from celery_redlock.admin.lock_list import list_locks
from celery_redlock.admin.node_report import report_nodes
from celery_redlock.core import probe_nodes
from celery_redlock.testing import LocalCluster
from tests.support.waiting import TIMEOUT

SLOW = "slow.example"
REASON = "the look-up of its host name took longer than 0.5 s"


@pytest.fixture
def urls(redlock_cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Nodes of which one has a name that is not found out before the test is over."""
    over = threading.Event()
    find = socket.getaddrinfo

    def find_late(host: Any, *args: Any, **options: Any) -> Any:
        if host == SLOW:
            over.wait()
        return find("127.0.0.1" if host == SLOW else host, *args, **options)

    monkeypatch.setattr(socket, "getaddrinfo", find_late)
    *others, slow = redlock_cluster.urls
    yield [*others, slow.replace("127.0.0.1", SLOW)]
    over.set()


def test_a_worker_that_starts_hears_of_the_others(urls: list[str]) -> None:
    *others, slow = probe_nodes(urls, timeout=0.5)
    assert {probe.problem for probe in others} == {None}
    assert (slow.problem, slow.lasting) == (REASON, False)


def test_a_report_names_the_node(urls: list[str]) -> None:
    *others, slow = report_nodes(urls, timeout=0.5)
    assert {report.failure for report in others} == {None}
    assert slow.failure is not None
    assert slow.failure.text == REASON


def test_locks_are_listed_without_the_node(urls: list[str]) -> None:
    with Redlock(urls, node_timeout=0.5) as redlock:
        redlock.acquire("key", wait=0.0)
        (entry,) = list_locks(redlock, timeout=0.5)
    assert entry.key == "key"


def test_a_client_gets_its_connections_although_each_look_up_outlasts_a_reply(
    redlock_cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = socket.getaddrinfo

    def find_slowly(*args: Any, **options: Any) -> Any:
        time.sleep(0.5)
        return find(*args, **options)

    monkeypatch.setattr(socket, "getaddrinfo", find_slowly)
    with Redlock(redlock_cluster.urls, node_timeout=0.1) as redlock:
        assert redlock.acquire("key", wait=TIMEOUT).is_valid
