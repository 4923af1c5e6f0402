"""Viewers of the page."""

from __future__ import annotations

import json
import socket
from contextlib import ExitStack

import pytest

from celery_redlock import Limit, Rate
from celery_redlock.testing import LocalCluster
from celery_redlock.web import refresher
from tests.integration.web.site import Site, keys, served
from tests.support.nodes import MemoryNodes, Nodes
from tests.support.waiting import wait_until


def test_a_viewer_sees_a_lock_come_and_end(any_site: Site, nodes: Nodes) -> None:
    with any_site.viewer() as looks:
        assert keys(next(looks)) == []
        lease = nodes.connected().acquire("account:7", label="by hand")

        look = next(look for look in looks if keys(look) == ["account:7"])
        (row,) = look["locks"]["keys"][0]["rows"]
        assert row["owner"] == lease.owner
        assert row["state"] == "foreign"
        assert 0 < row["expires_in"] <= 30

        lease.release()
        look = next(look for look in looks if not keys(look))
        assert [change["what"] for change in look["changes"]][:2] == ["ended", "acquired"]


def test_slots_of_a_limit_and_of_a_rate_are_together(memory: MemoryNodes, site: Site) -> None:
    client = memory.client()
    leases = [client.acquire(Limit("gpu", 3)) for _ in range(2)]
    leases += [client.acquire(Rate("api", "5/m")) for _ in range(3)]

    with site.viewer() as looks:
        groups = next(looks)["locks"]["keys"]

    assert [(group["key"], group["kind"], len(group["rows"])) for group in groups] == [
        ("api", "rate", 3),
        ("gpu", "limit", 2),
    ]


def test_two_viewers_get_their_filters_from_the_same_looks(memory: MemoryNodes, site: Site) -> None:
    client = memory.client()
    leases = [client.acquire(key) for key in ("account:7", "account:8", "report")]

    with site.viewer("account:*") as mine, site.viewer("REPO") as yours:
        assert keys(next(mine)) == ["account:7", "account:8"]
        assert keys(next(yours)) == ["report"]
        wait_until(lambda: ("account:*", "REPO") in site.looks)
    assert len(leases) == 3


def test_many_viewers_cost_the_nodes_no_more_than_one(site: Site) -> None:
    with ExitStack() as stack:
        viewers = [stack.enter_context(site.viewer()) for _ in range(20)]
        before = len(site.looks)
        for _ in range(3):
            for looks in viewers:
                next(looks)
        # A look more for each: those that were waiting, and one that has just begun.
        assert len(site.looks) - before <= 3 + 2
    assert set(site.looks) == {("",)}


def test_nobody_watching_costs_the_nodes_nothing(site: Site) -> None:
    site.ask("/")
    assert not site.looks

    with site.viewer() as looks:
        next(looks)
    wait_until(lambda: not site.is_looking)
    before = len(site.looks)
    site.ask("/")

    assert len(site.looks) == before


def test_a_viewer_that_comes_back_starts_the_looks_again(site: Site) -> None:
    for _ in range(2):
        with site.viewer() as looks:
            assert next(looks)["problem"] is None
        wait_until(lambda: not site.is_looking)


def test_a_slow_viewer_holds_up_nobody(memory: MemoryNodes, site: Site) -> None:
    client = memory.client()
    leases = [client.acquire("k" * 4000 + str(n)) for n in range(50)]
    with socket.socket() as slow, site.viewer() as looks:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
        slow.connect(("127.0.0.1", site.port))
        slow.sendall(b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n")
        while not site.is_stalled:
            next(looks)
        for _ in range(3):
            assert next(looks)["locks"]["found"] == len(leases)


def test_another_viewer_than_the_most_is_refused(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(refresher, "MOST_VIEWERS", 1)
    with site.viewer():
        answer = site.ask("/events")

    assert answer.status == 503
    assert "Too many viewers" in json.loads(answer.text)["message"]


def test_a_filter_that_is_too_long_is_refused(site: Site) -> None:
    assert site.ask(f"/events?filter={'x' * 201}").status == 400


def test_nodes_that_are_down_are_a_sentence_until_they_are_back(
    any_site: Site, nodes: Nodes
) -> None:
    with any_site.viewer() as looks:
        assert next(looks)["problem"] is None
        nodes.kill(0, 1, 2)

        look = next(look for look in looks if look["problem"])
        assert look["problem"].startswith("The locks cannot be read: 3 of 5 nodes have to answer.")
        assert look["locks"] is None

        nodes.restart(0, 1, 2)
        look = next(look for look in looks if look["problem"] is None)
        assert keys(look) == []
        whats = {change["what"] for change in look["changes"]}
        assert whats >= {"does not answer", "answers again"}


def test_the_health_of_nodes_is_beside_the_locks(any_site: Site, nodes: Nodes) -> None:
    nodes.kill(4)
    with any_site.viewer() as looks:
        look = next(looks)

    assert [node["reachable"] for node in look["nodes"]] == [True] * 4 + [False]
    assert "node-unreachable" in {finding["code"] for finding in look["findings"]}
    assert look["problem"] is None


def test_a_key_is_shown_with_those_that_wait(any_site: Site, nodes: Nodes) -> None:
    lease = nodes.connected().acquire("account:7")
    nodes.wait_held(lease)

    (found,) = json.loads(any_site.ask("/key?key=account:7").text)["locks"]

    assert found["owner"] == lease.owner
    assert [node["has"] for node in found["by_node"]] == ["this owner"] * 5
    assert found["waiters"] == []


def test_no_answer_has_a_password() -> None:
    with LocalCluster(3, requirepass="a-secret-word") as cluster:
        nodes = MemoryNodes([])
        with served(nodes.client(nodes=cluster.urls)) as site:
            cluster.kill(0)
            with site.viewer() as looks:
                shown = json.dumps(next(looks))
                cluster.kill(1)
                shown += json.dumps(next(look for look in looks if look["problem"]))
            shown += site.ask("/").text + site.ask("/key?key=a").text
        nodes.close()
    assert "127.0.0.1" in shown
    assert "a-secret-word" not in shown


def test_viewers_do_not_keep_the_server_from_ending(memory: MemoryNodes) -> None:
    with served(memory.client()) as site, site.viewer() as looks:
        next(looks)
        site.server.should_exit = True
        for _ in looks:
            pass
