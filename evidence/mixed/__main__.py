"""
An older version and this one lock the same keys on the same nodes: `python -m evidence.mixed OLD`.

Clients hold the keys first; then workers of both versions share a queue whose messages wait for
each other. Prints what they counted. Exit status 1 if two held one key, a token was not larger than
the one before, a lease was lost, a node was quarantined, a key is left, a message ran twice, or one
version got no lock.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tarfile
import tempfile
from io import BytesIO
from pathlib import Path

from celery_redlock.testing import LocalCluster
from evidence.mixed.client import KEYS
from evidence.mixed.workers import run_workers
from tests.support.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]
CLIENT = Path(__file__).parent / "client.py"


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m evidence.mixed", description=__doc__)
    parser.add_argument("old", help="a commit")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--processes", type=int, default=3, help="of each version")
    given = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as old,
        LocalCluster(5) as nodes,
        LocalCluster(1, armed=False) as store,
    ):
        check_out(given.old, old)
        command = [sys.executable, str(CLIENT)]
        clients = [
            subprocess.Popen(
                [*command, who, ",".join(nodes.urls), store.urls[0], str(given.seconds)],
                env={**os.environ, "PYTHONPATH": path},
            )
            for who, path in (("old", old), ("new", str(ROOT)))
            for _ in range(given.processes)
        ]
        failed = sum(client.wait() != 0 for client in clients)
        counted = {
            name: int(store.client(0).get(name) or 0)
            for name in (
                *("holds:old", "holds:new", "refusals:old", "refusals:new"),
                *("overlaps", "disorder", "losses", "quarantines"),
            )
        }
        left = keys_left(nodes)
        versions = {"old": Path(old), "new": ROOT}
        bodies = run_workers(versions, nodes, store.urls[0].removesuffix("0") + "1")
    told = {**counted, "keys left": left, "clients that failed": failed, **bodies}
    for name, count in told.items():
        print(f"{name:20} {count}")
    broken = ("overlaps", "disorder", "losses", "quarantines", "bodies twice", "bodies at once")
    ran = ("holds:old", "holds:new", "bodies:old", "bodies:new")
    return int(
        any(told[name] for name in broken)
        or left > 0
        or failed > 0
        or not all(told[name] for name in ran)
    )


def check_out(commit: str, path: str) -> None:
    """Write the package of a commit into a directory."""
    archived = subprocess.run(
        ["git", "archive", commit, "celery_redlock"], cwd=ROOT, stdout=subprocess.PIPE, check=True
    )
    with tarfile.open(fileobj=BytesIO(archived.stdout)) as archive:
        archive.extractall(path, filter="data")


def keys_left(nodes: LocalCluster) -> int:
    """Return how many lock keys stay on nodes although all clients have released them."""

    def left() -> int:
        return sum(
            nodes.client(node).exists(f"redlock:{key}")
            for node in range(len(nodes))
            for key in KEYS
        )

    try:
        wait_until(lambda: left() == 0, 1.0)
    except AssertionError:
        return left()
    return 0


if __name__ == "__main__":
    sys.exit(main())
