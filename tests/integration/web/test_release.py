"""Releases from the page."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from celery_redlock import Lease, Rate
from tests.integration.web.site import Site, served
from tests.support.nodes import MemoryNodes, Nodes


@pytest.fixture
def lease(memory: MemoryNodes, site: Site) -> Lease:
    return memory.client().acquire("account:7")


@pytest.fixture
def any_site(nodes: Nodes) -> Iterator[Site]:
    with served(nodes.connected()) as found:
        yield found


def test_a_lock_is_taken_away_from_the_owner_that_was_seen(any_site: Site, nodes: Nodes) -> None:
    lease = nodes.connected().acquire("account:7")

    answer = any_site.release(lease.owner)

    assert (answer.status, json.loads(answer.text)) == (200, {"message": "Released: 1."})
    nodes.wait_free("account:7")


def test_a_lock_that_has_passed_on_stays(any_site: Site, nodes: Nodes) -> None:
    client = nodes.connected()
    seen = client.acquire("account:7")
    seen.release()
    lease = client.acquire("account:7", wait=5.0)

    assert any_site.release(seen.owner).status == 409
    assert lease.extend() is None


def test_the_other_slots_of_a_limit_stay(memory: MemoryNodes, site: Site) -> None:
    client = memory.client()
    first, second = (client.acquire("gpu", limit=2) for _ in range(2))

    assert site.release(first.owner, "gpu").status == 200
    assert second.extend() is None


@pytest.mark.parametrize(("rates", "status"), [(False, 409), (True, 200)])
def test_a_rate_forgets_a_start_only_if_that_is_asked(
    memory: MemoryNodes, site: Site, rates: bool, status: int
) -> None:
    lease = memory.client().acquire(Rate("api", "1/m"))

    assert site.release(lease.owner, "api", rates=rates).status == status


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": None},
        {"X_Redlock_CSRF": "wrong"},
        {"X_Redlock_CSRF": None},
        {"Sec_Fetch_Site": "cross-site"},
    ],
)
def test_a_release_that_does_not_come_from_the_page_is_refused(
    site: Site, lease: Lease, headers: dict[str, str]
) -> None:
    assert site.release(lease.owner, **headers).status == 403
    assert lease.extend() is None


def test_a_release_is_never_a_get(site: Site) -> None:
    assert site.ask("/release?key=account:7").status == 405


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{",
        b'{"key": "a"}',
        b'{"key": 1, "owners": [], "rates": false}',
        b'{"key": "a", "owners": "text", "rates": false}',
        b'{"key": "a", "owners": [1], "rates": false}',
        b'{"key": "a", "owners": [], "rates": 1}',
        b" " * 300_000,
        b"[" * 100_000,
        b"\xff",
    ],
    ids=range(11),
)
def test_a_body_that_cannot_be_read_is_explained(site: Site, body: bytes) -> None:
    headers = {"Origin": f"http://127.0.0.1:{site.port}", "X-Redlock-CSRF": site.access.csrf}

    answer = site.ask("/release", method="POST", headers=headers, body=body)

    assert answer.status == 400
    assert "Send" in json.loads(answer.text)["message"]


@pytest.mark.parametrize("key", ["", "a\nb", "x" * 20_000, "\ud800"])
def test_a_text_that_cannot_be_a_key_is_explained(site: Site, key: str) -> None:
    answer = site.release("owner", key)

    assert answer.status in (400, 409)
    assert json.loads(answer.text)["message"]


def test_without_a_quorum_nothing_is_released(
    memory: MemoryNodes, site: Site, lease: Lease
) -> None:
    memory.kill(0, 1, 2)

    answer = site.release(lease.owner)

    assert answer.status == 503
    assert "it takes 3 of 5 nodes" in json.loads(answer.text)["message"]


def test_a_release_is_among_the_changes(memory: MemoryNodes, site: Site, lease: Lease) -> None:
    with site.viewer() as looks:
        next(looks)
        site.release(lease.owner)

        whats = ([change["what"] for change in look["changes"]] for look in looks)
        assert any("released from this page" in what and "ended" in what for what in whats)
