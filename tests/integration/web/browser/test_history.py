"""The picture of the last minutes."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, expect

from celery_redlock import Limit
from tests.integration.web.browser.looks import pale_texts
from tests.support.nodes import ServerNodes

pytestmark = pytest.mark.system


def test_the_picture_follows_the_counts_and_says_them(page: Page, servers: ServerNodes) -> None:
    leases = [servers.client().acquire(Limit("gpu", 3)) for _ in range(2)]

    held = page.get_by_role("img", name=re.compile("^Held from .* 2 at last, .* at most 2"))
    expect(held).to_be_visible()
    expect(page.locator("#tile-held .range")).to_have_text(re.compile(r"^\d to 2 in 15 min$"))
    expect(page.get_by_text("What this page has counted since")).to_be_visible()
    assert len(leases) == 2


def test_a_time_without_a_look_is_a_gap_in_the_line(page: Page) -> None:
    points = [(now, 1 + now % 3, 0, 0, 0) for now in (*range(10), *range(20, 30))]
    # No look comes in between.
    page.evaluate("() => { source.close(); counted.clear(); }")
    page.evaluate("points => showTrends({every: 15, most: 60, now: 30, points})", points)

    line = page.locator("#tile-held .line").get_attribute("d") or ""
    assert (line.count("M"), line.count("h1")) == (2, 20)
    expect(page.locator("#tile-held .range")).to_have_text("1 to 3 in 15 min")


def test_what_another_process_has_counted_stays_in_the_picture(page: Page) -> None:
    page.evaluate("() => { source.close(); counted.clear(); }")
    for points in ([(1, 5, 0, 0, 0), (2, 5, 0, 0, 0)], [(2, 5, 0, 0, 0), (3, 5, 0, 0, 0)]):
        page.evaluate("points => showTrends({every: 15, most: 60, now: 3, points})", points)

    line = page.locator("#tile-held .line").get_attribute("d") or ""
    assert (line.count("M"), line.count("h1")) == (1, 3)


def test_another_filter_begins_another_picture(page: Page, servers: ServerNodes) -> None:
    leases = [servers.client().acquire(key) for key in ("account:7", "invoice:8")]
    expect(page.locator("#tile-held .range")).to_have_text(re.compile(r"^\d to 2 in"))

    page.get_by_label("Filter").fill("invoice:*")

    expect(page.locator("#tile-held .range")).to_have_text("1 to 1 in 15 min")
    assert len(leases) == 2


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_line_stands_out_from_what_is_behind_it(page: Page, scheme: str) -> None:
    page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
    # A line is seen if a text of its colour could be read.
    page.evaluate(
        "() => { place('trend-since').style.color ="
        " getComputedStyle(document.querySelector('svg .line')).stroke; }"
    )

    assert not pale_texts(page)
