"""
Two sites, a quick one and a slow one, crawled politely: `python -m examples.polite_crawler`.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler
from typing import Any

from examples.stage import Stage, expect, http_server, most_in_any, until

PAGES = 16
#: Seconds that a site takes for a page.
QUICK, SLOW = 0.01, 0.6


def main() -> None:
    """Start servers and a worker, and play the example."""
    with Stage() as stage, ExitStack() as sites:
        log = stage.directory / "crawler.log"
        os.environ["CRAWLER_LOG"] = str(log)
        quick, slow = (sites.enter_context(serving(seconds)) for seconds in (QUICK, SLOW))
        worker = stage.start_worker("examples.polite_crawler.tasks")
        print(f"Two sites of {PAGES} pages: {quick.address} is quick, {slow.address} is slow.")
        crawl([quick, slow])
        until(lambda: quick.is_read and slow.is_read, "all pages to be fetched", worker)
        report(quick, slow, [json.loads(line) for line in log.read_text().splitlines()])


def crawl(sites: list[Site]) -> None:
    """Send a task for the first page of each site."""
    from examples.polite_crawler.tasks import fetch

    for site in sites:
        fetch.delay(site.address, "/")


def report(quick: Site, slow: Site, bodies: list[dict[str, Any]]) -> None:
    """Print how polite the crawler was, and check it."""
    from examples.polite_crawler.tasks import A_SECOND, AT_ONCE

    began = {}
    for site in (quick, slow):
        own = [body for body in bodies if body["host"] == site.address]
        began[site] = sorted(body["began"] for body in own)
        seconds = began[site][-1] - began[site][0]
        print(
            f"{site.address}: {len(own)} pages in {seconds:.1f} s, at most {site.most_at_once}"
            " requests at once"
        )
        busiest = most_in_any(1.0, [(body["asked"], body["began"]) for body in own])
        expect(f"no second had more than {A_SECOND} starts for it", busiest <= A_SECOND)
    claim = f"no site had more than {AT_ONCE} requests at once, and the slow one had so many"
    expect(claim, quick.most_at_once <= slow.most_at_once == AT_ONCE)
    once = sorted(["/", *links()])
    expect("every page was fetched once", sorted(quick.paths) == sorted(slow.paths) == once)
    together = began[quick][0] < began[slow][-1] and began[slow][0] < began[quick][-1]
    expect("no site waited for the other", together)


def links() -> list[str]:
    """Return the paths to which the first page of a site has links."""
    return [f"/{number}" for number in range(1, PAGES)]


class Site:
    """
    A site whose first page links to all others.

    Attributes:
        address: its host and port.
        paths: the pages that were asked for, as often as they were.
        most_at_once: the largest number of requests that it had at one time.
    """

    def __init__(self, address: str, seconds: float) -> None:
        self.address = address
        self.paths: list[str] = []
        self.most_at_once = 0
        self._seconds = seconds
        self._now = self._done = 0
        self._lock = threading.Lock()

    @property
    def is_read(self) -> bool:
        """Whether all pages were fetched."""
        return self._done >= PAGES

    def page(self, path: str) -> str:
        """Take a while, and return a page."""
        with self._lock:
            self.paths.append(path)
            self._now += 1
            self.most_at_once = max(self.most_at_once, self._now)
        time.sleep(self._seconds)
        with self._lock:
            self._now -= 1
            self._done += 1
        return "".join(f'<a href="{link}">{link}</a>' for link in links()) if path == "/" else ""


@contextmanager
def serving(seconds: float) -> Iterator[Site]:
    """Run a site, with a thread for each request; a page takes it so many seconds."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            """Answer with a page."""
            page = site.page(self.path)
            self.send_response(200)
            self.end_headers()
            self.wfile.write(page.encode())

        def log_message(self, *_: object) -> None:
            """Log nothing: the example prints its own output."""

    with http_server(Handler) as address:
        site = Site(address, seconds)
        yield site


if __name__ == "__main__":
    main()
