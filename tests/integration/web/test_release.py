"""Releases from the page."""

from __future__ import annotations

import json

import pytest

from celery_redlock import Lease, Limit, Rate
from celery_redlock.core import client_of
from celery_redlock.protocol.keys import Key
from celery_redlock.tasks.message.node_keys import dedupe_key_of
from celery_redlock.tasks.message.owner_label import label_for
from celery_redlock.tasks.rules.facts import Role
from celery_redlock.web.access import CSRF_COOKIE, CSRF_HEADER
from tests.integration.web.site import CSRF, Site, served
from tests.support.nodes import MemoryNodes, Nodes


@pytest.fixture
def lease(memory: MemoryNodes, site: Site) -> Lease:
    return memory.client().acquire("account:7")


def test_a_lock_is_taken_away_from_the_owner_that_was_seen(any_site: Site, nodes: Nodes) -> None:
    lease = nodes.connected().acquire("account:7")

    answer = any_site.release(lease.owner)

    assert (answer.status, json.loads(answer.text)) == (200, {"message": "Released: 1."})
    nodes.wait_free("account:7")


def test_the_log_names_who_has_connected_whatever_the_request_names(
    site: Site, lease: Lease, caplog: pytest.LogCaptureFixture
) -> None:
    assert site.release(lease.owner, X_Forwarded_For="192.0.2.7").status == 200
    (line,) = [text for text in caplog.messages if "releases" in text]
    assert line == "Viewer at 127.0.0.1, for '192.0.2.7', releases 'account:7'"


def test_nobody_releases_on_a_page_that_is_read_only(memory: MemoryNodes) -> None:
    lease = memory.client().acquire("account:7")
    with served(memory.connected(), read_only=True) as site:
        answer = site.release(lease.owner)
        assert (answer.status, "--read-only" in answer.text) == (403, True)
        assert '<meta name="read-only" content="true">' in site.ask("/").text
    assert lease.extend() is None


def test_a_lock_that_has_passed_on_stays(any_site: Site, nodes: Nodes) -> None:
    client = nodes.connected()
    seen = client.acquire("account:7")
    seen.release()
    lease = client.acquire("account:7", wait=5.0)

    assert any_site.release(seen.owner).status == 409
    assert lease.extend() is None


def rows_of(site: Site, key: str) -> dict[str, str]:
    """Return the owners of a key's rows by the rows' ids."""
    found = json.loads(site.ask(f"/key?key={key}").text)["locks"]
    return {row["id"]: row["owner"] for row in found}


def test_the_other_slots_of_a_limit_stay(memory: MemoryNodes, site: Site) -> None:
    client = memory.client()
    first, second = (client.acquire(Limit("gpu", 2)) for _ in range(2))
    (row,) = [row for row, owner in rows_of(site, "gpu").items() if owner == first.owner]

    assert site.release(first.owner, "gpu", row=row).status == 200
    assert second.extend() is None


def test_what_else_the_holder_has_of_the_key_stays(memory: MemoryNodes, site: Site) -> None:
    lease = memory.client().acquire([Limit("api", 2), Rate("api", "3/m")])
    rows = sorted(rows_of(site, "api"))
    (rate,) = [row for row in rows if Key.read(row).stays]

    assert site.release(lease.owner, "api", row=rate).status == 200
    assert lease.extend() is None
    assert list(rows_of(site, "api")) == [row for row in rows if row != rate]


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": None},
        {"Origin": "http://["},
        {"Sec_Fetch_Site": "cross-site"},
        {"X_Forwarded_Proto": "https", "Cookie": f"__Host-{CSRF_COOKIE}={CSRF}"},
        {"X_Redlock_CSRF": "wrong"},
        {"X_Redlock_CSRF": None},
        {"X_Redlock_CSRF": None, "Cookie": None},
        {"X_Redlock_CSRF": "short", "Cookie": "redlock_csrf=short"},
    ],
)
def test_a_release_that_does_not_come_from_the_page_is_refused(
    site: Site, lease: Lease, headers: dict[str, str]
) -> None:
    assert site.release(lease.owner, **headers).status == 403
    assert lease.extend() is None


@pytest.mark.parametrize("headers", [{}, {"X_Forwarded_Proto": "https"}])
def test_a_page_behind_a_proxy_with_tls_releases(
    site: Site, lease: Lease, headers: dict[str, str]
) -> None:
    name = f"__Host-{CSRF_COOKIE}" if headers else CSRF_COOKIE
    origin = f"https://127.0.0.1:{site.port}"

    answer = site.release(lease.owner, Origin=origin, Cookie=f"{name}={CSRF}", **headers)

    assert answer.status == 200


def test_a_release_is_never_a_get(site: Site) -> None:
    assert site.ask("/release?key=account:7").status == 405


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{",
        b'{"key": "a"}',
        b'{"key": 1, "id": "a", "owner": "b"}',
        b'{"key": "a", "id": ["a"], "owner": "b"}',
        b'{"key": "a", "id": "a", "owner": null}',
        b" " * 300_000,
        b"[" * 100_000,
        b"\xff",
    ],
    ids=range(10),
)
def test_a_body_that_cannot_be_read_is_explained(site: Site, body: bytes) -> None:
    headers = {
        "Origin": f"http://127.0.0.1:{site.port}",
        CSRF_HEADER: CSRF,
        "Cookie": f"{CSRF_COOKIE}={CSRF}",
    }

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
    assert "3 of 5 nodes have to answer" in json.loads(answer.text)["message"]


def test_a_release_is_among_the_changes(memory: MemoryNodes, site: Site, lease: Lease) -> None:
    with site.viewer() as looks:
        next(looks)
        site.release(lease.owner)

        whats = ([change["what"] for change in look["changes"]] for look in looks)
        assert any("released from this page" in what and "ended" in what for what in whats)


@pytest.mark.parametrize("revoke", [True, False])
def test_a_queued_message_is_revoked_if_that_is_wanted(
    memory: MemoryNodes, site: Site, revoke: bool
) -> None:
    label = label_for(Role.QUEUED, "id", "host", marker="0" * 32, task="job")
    client = memory.client()
    lease = client.acquire("account:7", label=label)

    assert site.release(lease.owner, revoke=revoke).status == 200

    (marker,) = client_of(client).inspect((dedupe_key_of("0" * 32),))
    assert (marker is not None) is revoke
