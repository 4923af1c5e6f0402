"""
Send deposits to one account, and check what was written; the exit status is 0 if all is right.

    docker compose run --rm client [--deposits N] [--no-lock]
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
import time
import uuid
from collections import Counter
from typing import Any

from bank import app, deposit, deposit_without_lock, entries, interest_runs
from celery import group

from celery_redlock.core import probe_nodes

TIMEOUT = 180.0
# Interest is due every few seconds; a beat that has just started waits until the next time.
INTEREST_TIMEOUT = 60.0
# For a worker to answer; asked only where a tick ran twice.
ANSWER_TIMEOUT = 10.0


def main() -> int:
    """Run the client, and return its exit status."""
    parser = argparse.ArgumentParser(description="Deposits into one account, by all workers.")
    parser.add_argument("--deposits", type=int, default=20, metavar="N")
    parser.add_argument("--no-lock", action="store_true", help="see what goes wrong without it")
    arguments = parser.parse_args()
    task = deposit_without_lock if arguments.no_lock else deposit

    report_nodes()
    written = make_deposits(task, arguments.deposits)
    right = written[-1]["balance"] == len(written) == arguments.deposits
    if not arguments.no_lock:
        right = check_tokens(written) and right
    right = check_interest() and right
    print("all is right" if right else "NOT right: something was lost, came twice, or never")
    app.close()
    return 0 if right else 1


def report_nodes() -> None:
    """Print which lock nodes answer."""
    probes = probe_nodes(os.environ["LOCK_NODES"])
    print(f"{sum(not probe.problem for probe in probes)} of {len(probes)} lock nodes answer")
    for probe in probes:
        if probe.problem:
            print(f"  {probe.name}: {probe.problem}")


def make_deposits(task: Any, wanted: int) -> list[dict[str, Any]]:
    """Deposit 1 into a fresh account `wanted` times, and return its entries."""
    account = uuid.uuid4().hex[:8]
    print(f"{wanted} deposits of 1 into account {account}, by {task.name}")
    started = time.monotonic()
    group(task.s(account, 1) for _ in range(wanted)).apply_async().join(timeout=TIMEOUT)
    seconds = time.monotonic() - started
    written = entries(account)
    for worker, count in sorted(Counter(entry["worker"] for entry in written).items()):
        print(f"  {worker}: {count}")
    print(f"balance {written[-1]['balance']} of {wanted}, after {seconds:.1f} s")
    return written


def check_tokens(written: list[dict[str, Any]]) -> bool:
    """Return whether each holder of the lock had a greater fencing token than the one before."""
    tokens = [entry["token"] for entry in written]
    rose = all(earlier < later for earlier, later in itertools.pairwise(tokens))
    print("fencing tokens rose each time" if rose else f"fencing tokens out of order: {tokens}")
    return rose


def check_interest() -> bool:
    """Print for how many ticks interest was paid; return whether each run of a tick was due."""
    deadline = time.monotonic() + INTEREST_TIMEOUT
    while not (ticks := interest_runs()) and time.monotonic() < deadline:
        time.sleep(0.5)
    print(f"interest was paid for {len(ticks)} ticks of the schedule, once for each")
    right = bool(ticks)
    for due_at, runs in ticks.items():
        for earlier, later in itertools.pairwise(runs):
            lost = has_ended_since(earlier)
            right = right and lost
            print(
                f"  the tick of {due_at} ran again on {later['worker']}:"
                f" {earlier['worker']} {'was' if lost else 'was NOT'} lost after the run before"
            )
    return right


def has_ended_since(run: dict[str, Any]) -> bool:
    """Return whether the worker of a run has ended since: then its message may come again."""
    worker = run["worker"]
    answers = app.control.inspect([worker], timeout=ANSWER_TIMEOUT).stats() or {}
    return worker not in answers or time.time() - answers[worker]["uptime"] > run["at"]


if __name__ == "__main__":
    sys.exit(main())
