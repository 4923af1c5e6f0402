"""A headless browser from the distribution's package, which Playwright drives."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import Browser, expect, sync_playwright

from tests.support.waiting import TIMEOUT

NAMES = ("chromium", "google-chrome")

expect.set_options(timeout=TIMEOUT * 1000)


@contextmanager
def running_chromium() -> Iterator[Browser]:
    """
    Start a browser that asks nothing of the network but what its pages ask.

    Until it ends, asyncio takes this thread's event loop to be running.
    """
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        raise RuntimeError("no Chromium: apt-get install chromium")
    with sync_playwright() as playwright:
        # Its sandbox refuses to run as root.
        browser = playwright.chromium.launch(executable_path=found, chromium_sandbox=False)
        try:
            yield browser
        finally:
            browser.close()
