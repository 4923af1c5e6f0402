"""The page in a real browser, in front of five real nodes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page

from tests.integration.web.browser.looks import Watch
from tests.integration.web.site import Site, served
from tests.support.chromium import running_chromium
from tests.support.nodes import ServerNodes
from tests.support.waiting import TIMEOUT


# Not for the session: other tests of the process need asyncio for themselves.
@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with running_chromium() as browser:
        yield browser


@pytest.fixture
def site(servers: ServerNodes) -> Iterator[Site]:
    with served(servers.connected(node_timeout=0.5)) as found:
        yield found


@pytest.fixture
def options() -> dict[str, object]:
    """What is special about the browser window."""
    return {}


@pytest.fixture
def tab(chromium: Browser, options: dict[str, object]) -> Iterator[Page]:
    """An empty tab of a browser that has seen nothing yet."""
    context = chromium.new_context(**options)  # type: ignore[arg-type]
    context.set_default_timeout(TIMEOUT * 1000)
    yield context.new_page()
    context.close()


@pytest.fixture
def watch(tab: Page) -> Watch:
    """What the browser has to say about what the tab does."""
    return Watch(tab)


@pytest.fixture
def page(tab: Page, watch: Watch, site: Site) -> Page:
    """The page, which has its first look."""
    tab.goto(site.address)
    tab.get_by_text("5 of 5 nodes answer").wait_for()
    return tab
