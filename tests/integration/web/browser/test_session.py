"""The connection between a browser and the command."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from tests.integration.web.browser.looks import Watch, row
from tests.integration.web.site import Site, served
from tests.support.nodes import ServerNodes
from tests.support.waiting import wait_until

pytestmark = pytest.mark.system

TOKEN = "a-token-of-the-test"


def test_the_page_connects_again_when_the_command_is_back(tab: Page, servers: ServerNodes) -> None:
    client = servers.connected(node_timeout=0.5)
    with served(client) as site:
        tab.goto(site.address)
        expect(tab.get_by_text("5 of 5 nodes answer")).to_be_visible()
    expect(tab.get_by_text("There is no connection to the server of this page")).to_be_visible()
    lease = client.acquire("account:7")

    with served(client, port=site.port):
        expect(row(tab, "account:7")).to_be_visible()
        expect(tab.get_by_text("There is no connection to the server of this page")).to_be_hidden()
    assert lease.extend() is None


def test_the_right_token_shows_the_locks_and_leaves_the_address(
    tab: Page, servers: ServerNodes
) -> None:
    with served(servers.client(), token=TOKEN) as site:
        tab.goto(f"{site.address}?token={TOKEN}")

        expect(tab.get_by_text("5 of 5 nodes answer")).to_be_visible()
        expect(tab).to_have_url(site.address)


def test_a_session_asks_no_other_host_and_has_no_errors(
    page: Page, watch: Watch, site: Site, servers: ServerNodes
) -> None:
    lease = servers.connected().acquire("account:7")
    servers.wait_held(lease)
    page.get_by_label("Filter").fill("account:*")
    page.get_by_role("button", name="Details of account:7").click()
    expect(page.get_by_role("cell", name="this owner")).to_have_count(5)
    page.get_by_role("button", name="Close").click()
    page.get_by_role("button", name="Release account:7").click()
    page.get_by_role("dialog").get_by_role("button", name="Release").click()
    expect(page.get_by_text("Released: 1.")).to_be_visible()
    page.reload()
    expect(page.get_by_text("5 of 5 nodes answer")).to_be_visible()

    assert watch.hosts == {f"127.0.0.1:{site.port}"}
    assert not watch.complaints
    assert not lease.release()


def test_a_violation_of_the_policy_would_be_noticed(page: Page, watch: Watch) -> None:
    page.evaluate("document.body.append(Object.assign(new Image(), {src: 'http://example.test/'}))")

    page.wait_for_function("document.images[0].complete")
    assert any("img-src" in complaint for complaint in watch.complaints)


def test_a_closed_page_costs_the_nodes_nothing(page: Page, site: Site) -> None:
    assert site.is_looking

    page.close()

    wait_until(lambda: not site.is_looking)


def test_a_hidden_tab_costs_the_nodes_nothing_until_it_is_seen(page: Page, site: Site) -> None:
    # Without a screen a browser takes all its tabs to be visible, so the test has to say it.
    say = (
        "value => { Object.defineProperty(document, 'hidden', {value, configurable: true});"
        " document.dispatchEvent(new Event('visibilitychange')); }"
    )
    page.evaluate(say, True)
    wait_until(lambda: not site.is_looking)

    page.evaluate(say, False)
    wait_until(lambda: site.is_looking)
