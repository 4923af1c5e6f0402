"""What a person sees of locks and nodes, while they change."""

from __future__ import annotations

import re
import time
from uuid import uuid4

import pytest
from playwright.sync_api import Page, expect

from celery_redlock import Limit, Rate
from celery_redlock.protocol.commands import Waiter
from tests.integration.web.browser.looks import cell, row
from tests.integration.web.site import Site
from tests.support.commands import acquire
from tests.support.nodes import PREFIX, ServerNodes
from tests.support.waiting import TIMEOUT, wait_until

pytestmark = pytest.mark.system

_SECONDS = re.compile(r"^(\d+) s$")


def test_a_lock_appears_and_disappears_without_a_reload(page: Page, servers: ServerNodes) -> None:
    page.evaluate("window.isTheSame = true")
    lease = servers.client().acquire("account:7")
    expect(row(page, "account:7")).to_be_visible()

    lease.release()
    expect(row(page, "account:7")).to_have_count(0)
    assert page.evaluate("window.isTheSame")


def test_the_time_left_counts_down_between_looks(
    page: Page, site: Site, servers: ServerNodes
) -> None:
    servers.hold("account:7", "someone", range(5), ttl=90)
    left = cell(row(page, "account:7"), "Time left")
    expect(left).to_have_text(_SECONDS)
    # From here on there is no look, so it is the page that counts.
    page.context.route("**/events*", lambda route: route.abort())
    site.server.refresher._interval = 10 * TIMEOUT

    def seconds() -> int:
        return int(left.inner_text().removesuffix(" s"))

    first = seconds()
    wait_until(lambda: seconds() <= first - 3)


def test_the_slots_of_a_limit_are_together(page: Page, servers: ServerNodes) -> None:
    leases = [servers.client().acquire(Limit("tenant:acme", 3)) for _ in range(2)]

    group = page.locator("#lock-table tbody", has_text="tenant:acme (limit: 2 slots held")
    expect(group.locator("tr.slot")).to_have_count(len(leases))


def test_the_filter_narrows_the_rows(page: Page, servers: ServerNodes) -> None:
    leases = [servers.client().acquire(key) for key in ("account:7", "invoice:8")]
    expect(row(page, "account:7")).to_be_visible()

    page.get_by_label("Filter").fill("invoice:*")

    expect(row(page, "account:7")).to_have_count(0)
    expect(row(page, "invoice:8")).to_be_visible()
    assert len(leases) == 2


def test_a_column_sorts_the_rows_both_ways_and_not_at_all(page: Page, servers: ServerNodes) -> None:
    leases = [servers.client().acquire(key) for key in ("b", "c", "a")]
    keys = page.locator("#lock-table tbody th")
    expect(keys).to_have_count(3)
    before = keys.all_inner_texts()
    by_key = page.get_by_role("columnheader", name="Key", exact=True)

    for order, shown in (("ascending", ["a", "b", "c"]), ("descending", ["c", "b", "a"])):
        by_key.get_by_role("button").click()
        expect(by_key).to_have_attribute("aria-sort", order)
        expect(keys).to_have_text(shown)
    by_key.get_by_role("button").click()

    expect(keys).to_have_text(before)
    assert len(leases) == 3


def test_a_lock_is_one_line_on_a_wide_screen(page: Page, servers: ServerNodes) -> None:
    page.set_viewport_size({"width": 1300, "height": 800})
    label = f"running {uuid4()} billing@a-worker-with-a-long-name.example.org 4711"
    key = "account:" + "7" * 40
    lease = servers.client().acquire(key, label=label)
    line = row(page, key)
    expect(line).to_be_visible()

    assert line.bounding_box()["height"] < 40  # type: ignore[index]
    assert lease.extend() is None


def test_findings_that_nodes_share_are_one(page: Page, servers: ServerNodes) -> None:
    expect(page.get_by_text("5 of 5 nodes answer")).to_be_visible()
    texts = page.locator("#findings li").all_inner_texts()
    told = [text.split(": ")[-1] for text in texts]
    assert len(told) == len(set(told))


def test_a_finding_of_all_nodes_names_none(page: Page, servers: ServerNodes) -> None:
    # Each of them keeps nothing on its disk.
    expect(page.locator("#findings li", has_text="all 5 nodes: ")).to_have_count(1)


def test_limits_rates_and_pauses_are_seen_at_a_glance(page: Page, servers: ServerNodes) -> None:
    client = servers.client()
    leases = [client.acquire(key) for key in (Limit("gpu", 2), Limit("gpu", 2), Rate("api", "9/h"))]
    client.pause("tenant:acme", 600)

    expect(page.locator("#tile-limits .names")).to_have_text("api, gpu")
    expect(page.locator("#tile-limits .now")).to_have_text("2")
    expect(page.locator("#tile-paused .names")).to_have_text("tenant:acme")
    assert len(leases) == 3


def test_a_row_and_a_tile_tell_how_long_a_call_waits(page: Page, servers: ServerNodes) -> None:
    servers.hold("account:7", "someone", range(5), ttl=3600)
    waiter = Waiter("us", round(time.time() * 1000) - 600_000, 60_000)
    servers.run(0, acquire((f"{PREFIX}account:7",), "us", 60_000, 0, 0, "", waiter))

    expect(cell(row(page, "account:7"), "Waiting")).to_have_text("1, 10 min")
    expect(page.locator("#tile-longest .now")).to_have_text("10 min")


def test_a_lock_that_expires_is_counted(page: Page, servers: ServerNodes) -> None:
    servers.hold("account:7", "someone", range(5), ttl=5)
    expect(row(page, "account:7")).to_be_visible()

    expect(page.locator("#tile-expired .now")).to_have_text("1")
    expect(page.locator("#change-table")).to_contain_text("expired")


def test_a_reload_keeps_the_filter(page: Page, servers: ServerNodes) -> None:
    leases = [servers.client().acquire(key) for key in ("account:7", "invoice:8")]
    page.get_by_label("Filter").fill("invoice:*")
    expect(page).to_have_url(re.compile(r"\?filter=invoice%3A\*$"))

    page.reload()

    expect(page.get_by_label("Filter")).to_have_value("invoice:*")
    expect(row(page, "invoice:8")).to_be_visible()
    expect(row(page, "account:7")).to_have_count(0)
    assert len(leases) == 2


def test_a_stopped_node_is_shown_until_it_is_back(page: Page, servers: ServerNodes) -> None:
    nodes = page.locator("#node-table tbody tr")
    servers.kill(4)
    # The nodes are looked at every ten seconds.
    expect(cell(nodes.nth(4), "Answers")).to_contain_text("no:")
    expect(page.get_by_text("4 of 5 nodes answer")).to_be_visible()

    servers.restart(4)
    expect(cell(nodes.nth(4), "Answers")).to_have_text("yes")
    expect(page.get_by_text("5 of 5 nodes answer")).to_be_visible()


def test_without_a_quorum_the_last_rows_stay_and_cannot_be_released(
    page: Page, servers: ServerNodes
) -> None:
    servers.hold("account:7", "someone", range(5), ttl=3600)
    release = page.get_by_role("button", name="Release account:7")
    expect(release).to_have_attribute("aria-disabled", "false")

    servers.kill(0, 1, 2)

    expect(page.get_by_role("alert")).to_contain_text("3 of 5 nodes have to answer")
    expect(release).to_have_attribute("aria-disabled", "true")
    release.click(force=True)
    expect(page.get_by_role("dialog")).to_have_count(0)
    expect(row(page, "account:7")).to_be_visible()


def test_a_key_with_markup_is_text(page: Page, servers: ServerNodes) -> None:
    key = "<img src=x onerror='document.title=1'><b>bold</b>"
    lease = servers.client().acquire(key)
    expect(row(page, key)).to_be_visible()

    page.get_by_role("button", name=f"Details of {key}").click()
    expect(page.get_by_role("dialog", name=key)).to_be_visible()

    expect(page.locator("img, b")).to_have_count(0)
    expect(page).to_have_title("Locks")
    assert lease.extend() is None
