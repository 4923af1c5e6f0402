"""
Three sites, crawled as fast as is polite: `python -m examples.crawler`.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler

from celery_redlock import is_duplicate
from examples.stage import TIMEOUT, Stage, expect, http_server

SITES = 3
PAGES = 5
#: Seconds. The clock is read a little before and after a lock is set.
SLACK = 0.02


def main() -> None:
    """Start servers and a worker, and play the example."""
    with Stage() as stage, ExitStack() as sites:
        os.environ["CRAWLER_DATABASE"] = str(stage.directory / "crawler.sqlite")
        hosts = [sites.enter_context(serving()) for _ in range(SITES)]
        stage.start_worker("examples.crawler.tasks")
        calls = crawl(hosts)
        report(hosts, calls)


@dataclass
class Calls:
    """
    The calls of `fetch_next` for one host.

    Attributes:
        sent: when each began and ended of those that were let through.
        dropped: how many were not.
    """

    sent: list[tuple[float, float]] = field(default_factory=list)
    dropped: int = 0


def crawl(hosts: list[str]) -> dict[str, Calls]:
    """Send `fetch_next` for every host again and again, until all pages are fetched."""
    from examples.crawler.tasks import fetch_next, frontier

    with closing(frontier()) as pages, pages:
        pages.executemany("INSERT INTO pages (host, path) VALUES (?, '/')", [(h,) for h in hosts])
    print(f"{SITES} sites of {PAGES} pages each, of which the first is known:", *hosts)
    calls = {host: Calls() for host in hosts}
    deadline = time.monotonic() + TIMEOUT
    while waiting := hosts_to_ask():
        if time.monotonic() > deadline:
            raise SystemExit(f"not all pages were fetched within {TIMEOUT:g} s")
        for host in waiting:
            began = time.monotonic()
            if is_duplicate(fetch_next.delay(host)):
                calls[host].dropped += 1
            else:
                calls[host].sent.append((began, time.monotonic()))
        time.sleep(0.02)
    return calls


def hosts_to_ask() -> list[str]:
    """Return the hosts with known pages that are not fetched."""
    from examples.crawler.tasks import frontier

    with closing(frontier()) as pages:
        waiting = pages.execute("SELECT DISTINCT host FROM pages WHERE NOT fetched")
        return [host for (host,) in waiting]


def report(hosts: list[str], calls: dict[str, Calls]) -> None:
    """Print what was fetched and how often, and check it."""
    from examples.crawler.tasks import WINDOW

    for host in hosts:
        asked = requests[host]
        called = calls[host]
        seconds = called.sent[-1][1] - called.sent[0][0]
        print(
            f"{host}: asked for {' '.join(asked)}; {len(called.sent)} calls let through"
            f" in {seconds:.1f} s, {called.dropped} dropped"
        )
    paths = sorted(["/", *(f"/{number}" for number in range(1, PAGES))])
    everything = all(sorted(requests[host]) == paths for host in hosts)
    expect("every page of every site was fetched, once", everything)
    gaps = [
        later[1] - earlier[0]
        for host in hosts
        for earlier, later in itertools.pairwise(calls[host].sent)
    ]
    claim = f"no host was sent two tasks within {WINDOW:g} s"
    expect(claim, min(gaps) > WINDOW - SLACK)
    expect("calls that came too early were dropped", all(calls[host].dropped for host in hosts))


requests: dict[str, list[str]] = {}


class Site(BaseHTTPRequestHandler):
    """A site whose first page links to all others; it records each request."""

    def do_GET(self) -> None:
        """Answer with a page full of links."""
        host, port, *_ = self.server.server_address
        requests[f"{host}:{port}"].append(self.path)
        links = "".join(f'<a href="/{number}">{number}</a>' for number in range(1, PAGES))
        self.send_response(200)
        self.end_headers()
        self.wfile.write(links.encode())

    def log_message(self, *_: object) -> None:
        """Log nothing: the example prints its own output."""


@contextmanager
def serving() -> Iterator[str]:
    """Run a site in a thread; yield its host and port."""
    with http_server(Site) as address:
        requests[address] = []
        yield address


if __name__ == "__main__":
    main()
