"""
Two workers, and an API that refuses a fourth call at once: `python -m examples.api_client`.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

from examples.stage import Process, Stage, expect, http_server, most_in_any, until

QUICK_CALLS, SLOW_CALLS = 35, 12
#: Seconds that the API takes for a call.
QUICK, SLOW = 0.01, 0.5


def main() -> None:
    """Start servers and two workers, and play the example."""
    with Stage() as stage, serving() as api:
        log = stage.directory / "client.log"
        os.environ["CLIENT_LOG"] = str(log)
        workers = [
            stage.start_worker("examples.api_client.tasks", name=name) for name in ("one", "two")
        ]
        quick_calls(api, workers, log)
        slow_calls(api, workers)
        both_kept_to_the_contract(api, log)


def quick_calls(api: Api, workers: list[Process], log: Path) -> None:
    """Make short calls, which only the rate keeps apart."""
    from examples.api_client.tasks import A_SECOND, call

    results = [call.delay("/quick") for _ in range(QUICK_CALLS)]
    print(f"{QUICK_CALLS} calls of {QUICK:g} s are sent at once.")
    until(lambda: call.lock_usage("/quick")[1].free == 0, "the rate to be used up", *workers)
    limit, rate = call.lock_usage("/quick")
    print(
        f"The nodes count {len(limit.holders)} of {limit.slots} at once, and {len(rate.holders)} of"
        f" {rate.slots} in the last second; the next may begin in {rate.next_free_in:.2f} s."
    )
    until(lambda: all(result.ready() for result in results), "the quick calls", *workers)
    bodies = read(log)
    seconds = max(body["began"] for body in bodies) - min(body["began"] for body in bodies)
    print(f"They took {seconds:.1f} s.")
    busiest = most_in_any(1.0, [(body["asked"], body["began"]) for body in bodies])
    expect(f"no second had more than {A_SECOND} starts", busiest <= A_SECOND)
    expect("every call was answered", all(result.successful() for result in results))


def slow_calls(api: Api, workers: list[Process]) -> None:
    """Make long calls, which only the limit keeps apart."""
    from examples.api_client.tasks import AT_ONCE, call

    results = [call.delay("/slow") for _ in range(SLOW_CALLS)]
    print(f"{SLOW_CALLS} calls of {SLOW:g} s are sent at once.")
    until(lambda: all(result.ready() for result in results), "the slow calls", *workers)
    expect(f"the API had {AT_ONCE} calls at once, and never more", api.most_at_once == AT_ONCE)
    expect("every call was answered", all(result.successful() for result in results))


def both_kept_to_the_contract(api: Api, log: Path) -> None:
    """Check what holds for all calls."""
    by_worker = {body["worker"].partition("@")[0] for body in read(log)}
    expect("both workers made calls", by_worker == {"one", "two"})
    expect("the API refused none", api.refused == 0)


def read(log: Path) -> list[dict[str, Any]]:
    """Return what the bodies have noted."""
    return [json.loads(line) for line in log.read_text().splitlines()]


class Api:
    """
    An API that refuses a call beyond the limit with 429 Too Many Requests.

    Attributes:
        most_at_once: the largest number of calls that it had at one time.
        refused: how many it has refused.
    """

    def __init__(self, at_once: int) -> None:
        self.most_at_once = self.refused = self._now = 0
        self._at_once = at_once
        self._lock = threading.Lock()

    def answer(self, path: str) -> int:
        """Take a while, and return the status."""
        with self._lock:
            self._now += 1
            is_refused = self._now > self._at_once
            self.refused += is_refused
            self.most_at_once = max(self.most_at_once, self._now)
        time.sleep(QUICK if path == "/quick" else SLOW)
        with self._lock:
            self._now -= 1
        return 429 if is_refused else 200


@contextmanager
def serving() -> Iterator[Api]:
    """Run the API with a thread for each call."""
    from examples.api_client.tasks import AT_ONCE

    api = Api(AT_ONCE)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            """Answer when the call is done, or refused."""
            self.send_response(api.answer(self.path))
            self.end_headers()
            self.wfile.write(b"done")

        def log_message(self, *_: object) -> None:
            """Log nothing: the example prints its own output."""

    with http_server(Handler) as address:
        os.environ["API_URL"] = f"http://{address}"
        yield api


if __name__ == "__main__":
    main()
