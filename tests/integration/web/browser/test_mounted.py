"""The page below a prefix, in applications with users of their own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from celery_redlock import LeaseLost
from tests.integration.web.browser.looks import Watch, row
from tests.integration.web.hosted import Host, hosted
from tests.support.nodes import ServerNodes

pytestmark = pytest.mark.system


@pytest.fixture(params=["fastapi", "django"])
def host(request: pytest.FixtureRequest, servers: ServerNodes, tmp_path: Path) -> Iterator[Host]:
    with hosted(request.param, servers.urls, tmp_path) as found:
        found.program.show_if_it_fails(request.node)
        yield found


def log_in(page: Page, host: Host, name: str) -> None:
    answer = page.request.get(f"http://127.0.0.1:{host.port}/login/{name}")
    assert answer.ok


def open_page(page: Page, host: Host) -> None:
    # Without its last slash, as people type it.
    page.goto(host.address.rstrip("/"))
    expect(page).to_have_url(host.address)
    expect(page.get_by_text("5 of 5 nodes answer")).to_be_visible()


def test_a_user_who_may_releases_a_lock(
    tab: Page, watch: Watch, host: Host, servers: ServerNodes
) -> None:
    lease = servers.connected().acquire("account:7")
    log_in(tab, host, "ada")
    open_page(tab, host)
    tab.get_by_label("Filter").fill("account:*")
    tab.get_by_role("button", name="Details of account:7").click()
    expect(tab.get_by_role("cell", name="this owner")).to_have_count(5)
    tab.get_by_role("button", name="Close").click()

    tab.get_by_role("button", name="Release account:7").click()
    tab.get_by_role("dialog").get_by_role("button", name="Release").click()

    expect(tab.get_by_text("account:7: Released: 1.")).to_be_visible()
    with pytest.raises(LeaseLost):
        lease.extend()
    assert not watch.complaints


def test_a_user_who_may_not_has_no_button_to_release(
    tab: Page, host: Host, servers: ServerNodes
) -> None:
    lease = servers.connected().acquire("account:7")
    log_in(tab, host, "bob")
    open_page(tab, host)

    expect(row(tab, "account:7")).to_be_visible()
    expect(tab.get_by_role("button", name="Release account:7")).to_have_count(0)
    assert lease.extend() is None


def test_a_user_who_may_no_longer_is_refused(tab: Page, host: Host, servers: ServerNodes) -> None:
    lease = servers.connected().acquire("account:7")
    log_in(tab, host, "ada")
    open_page(tab, host)
    tab.get_by_role("button", name="Release account:7").click()
    log_in(tab, host, "bob")

    tab.get_by_role("dialog").get_by_role("button", name="Release").click()

    expect(tab.get_by_text("you may not release locks")).to_be_visible()
    assert lease.extend() is None


def test_a_user_who_logs_out_sees_no_more_until_the_next_login(
    tab: Page, host: Host, servers: ServerNodes
) -> None:
    lease = servers.connected().acquire("account:7")
    log_in(tab, host, "ada")
    open_page(tab, host)
    expect(row(tab, "account:7")).to_be_visible()
    tab.get_by_role("button", name="Release account:7").click()
    tab.get_by_role("button", name="Keep it").click()
    tab.get_by_role("button", name="Details of account:7").click()
    expect(tab.get_by_role("cell", name="this owner")).to_have_count(5)

    tab.context.clear_cookies()

    expect(tab.get_by_role("alert")).to_contain_text("Your access to this page has ended")
    assert "account:7" not in tab.locator("body").inner_html()
    assert not tab.locator("tbody tr").count()

    log_in(tab, host, "ada")
    expect(row(tab, "account:7")).to_be_visible()
    assert lease.extend() is None


def test_a_user_who_stays_notices_nothing_of_being_asked_again(
    tab: Page, watch: Watch, host: Host, servers: ServerNodes
) -> None:
    log_in(tab, host, "bob")
    open_page(tab, host)
    tab.evaluate(
        "() => { window.problems = 0; new MutationObserver(() => { window.problems += 1; })"
        ".observe(document.getElementById('problem'), {childList: true}); }"
    )
    for _ in range(2):
        with tab.expect_request("**/events*"):
            pass

    lease = servers.connected().acquire("account:7")
    expect(row(tab, "account:7")).to_be_visible()
    assert tab.evaluate("window.problems") == 0
    assert not watch.complaints
    assert lease.extend() is None
