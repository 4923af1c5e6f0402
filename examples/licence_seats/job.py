"""
A job with a tool that has three licences: `python -m examples.licence_seats.job NAME [WORK]`.

Any process may start one; the lock lets three of them run. Each has a seat of its own, whose record
it reads before it works and writes afterwards.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

from celery_redlock import Limit, Redlock, StaleFencingToken
from celery_redlock.fencing import FileFence, slot_resource

SEATS = 3


def main(name: str, work: str = "short") -> None:
    """Get a seat, run the tool, and write the job into the seat's record."""
    redlock = Redlock(
        os.environ["REDLOCK_NODES"].split(","),
        ttl=3.0,
        # Five nodes on a busy laptop may take their time.
        node_timeout=1.0,
    )
    with redlock, redlock.lock(Limit("licence", SEATS), wait=60.0) as lease:
        # One record for each slot: the tokens of its holders increase, and those of the holders of
        # other slots have nothing to do with them.
        seat = FileFence(Path(os.environ["SEATS"]) / slot_resource("seat"))
        seat.claim()
        earlier = seat.read() if seat.path.exists() else b""
        print(f"{name} has {seat.path.name} under token {lease.fencing_token}", flush=True)
        run_the_tool(seat.path, work)
        record = earlier + f"{name}\n".encode()
        try:
            seat.write(record)
        except StaleFencingToken as stale:
            raise SystemExit(f"refused: {stale}") from stale


def run_the_tool(seat: Path, work: str) -> None:
    """Take a while; or until there is a file `finish`; or freeze, like a suspended host."""
    if work == "freeze":
        print(f"frozen is process {os.getpid()}", flush=True)
        os.kill(os.getpid(), signal.SIGSTOP)
        return
    used = seat.with_suffix(".used")
    # Fails if the directory exists: then another job has this seat at this moment.
    used.mkdir()
    time.sleep(0.2)
    while work == "long" and not (seat.parent / "finish").exists():
        time.sleep(0.05)
    used.rmdir()


if __name__ == "__main__":
    main(*sys.argv[1:])
