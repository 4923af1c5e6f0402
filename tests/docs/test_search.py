"""The search of the documentation, in a real browser."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from playwright.sync_api import Browser, expect

from tests.docs.blocks import DOCS, ROOT
from tests.support.chromium import running_chromium
from tests.support.waiting import TIMEOUT

pytestmark = [pytest.mark.system, pytest.mark.timeout(8 * TIMEOUT)]

#: What people type, and the guide that they need.
FIRST = {
    "throttle": "limit-what-a-tenant-may-take",
    "rate limit": "limit-what-a-tenant-may-take",
    "semaphore": "limit-what-a-tenant-may-take",
    "debounce": "run-once-after-the-last-change",
    "coalesce": "run-once-after-the-last-change",
    "cancel": "cancel-the-running-task",
    "mutex": "choose-a-mode",
    "dedupe": "choose-a-mode",
    "idempotent": "choose-a-mode",
    "idempotency": "choose-a-mode",
    "singleton": "schedule-a-singleton-job",
    "celery-singleton": "migrate-from-celery-singleton",
    "beat": "run-several-beats",
    "pause": "pause-a-key",
    "docker": "run-in-containers",
    "acl": "acl-user",
    "stuck": "find-and-free-a-lock",
    "priorities": "wait-for-a-hot-key",
    "django": "use-from-a-web-application",
    "sentry": "use-sentry-and-flower",
}


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *args: object) -> None:
        """Say nothing."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of the documentation."""
    pages: Path = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-q", "-b", "html", "-j", "auto", DOCS, pages]
    subprocess.run(command, cwd=ROOT, check=True)
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=pages))
    thread = Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with running_chromium() as browser:
        yield browser


@pytest.fixture(scope="module")
def found(site: str, chromium: Browser) -> dict[str, list[str]]:
    """The pages that each phrase finds, the first ones first."""
    return {words: _found(chromium, f"{site}/search.html?q={words}") for words in FIRST}


def _found(chromium: Browser, search: str) -> list[str]:
    page = chromium.new_page()
    page.goto(search)
    expect(page.locator(".search-summary")).to_contain_text("found")
    found = page.locator("ul.search > li > a")
    expect(found.first).to_be_visible()
    links = [str(link.get_attribute("href")).partition(".html")[0] for link in found.all()]
    page.close()
    return links


# One test for all phrases: each process of a test run that has one of them builds all pages.
def test_a_search_finds_the_guide_first_and_no_decision(found: dict[str, list[str]]) -> None:
    assert {words: pages[0] for words, pages in found.items()} == {
        words: f"how-to/{page}" for words, page in FIRST.items()
    }
    first = [page for pages in found.values() for page in pages[:3]]
    assert not [page for page in first if page.startswith("explanation/decisions/")]
