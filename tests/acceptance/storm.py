"""
Send tasks while the broker is killed and started again, and count those that are lost.

`python -m tests.acceptance.storm` runs the same storm with plain tasks, with tasks that lock while
they run, with tasks that wait for a few keys, and with unique ones. What plain tasks lose as well
is between Celery and its broker. The broker is a Valkey that loses nothing that it has acknowledged
(`appendonly`); lock nodes stay up.
"""

from __future__ import annotations

import argparse
import importlib
import itertools
import json
import os
import re
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

from celery_redlock.testing import LocalCluster
from tests.acceptance.program import Program
from tests.support.waiting import TIMEOUT

KINDS = ("plain", "locked", "waiting", "unique")
#: Seconds for which the broker is up, and then down.
UP, DOWN = 2.0, 0.3
#: Seconds for what is left in queues to be run, redelivery after the visibility timeout included.
END_TIMEOUT = 6 * TIMEOUT
RECEIVED = re.compile(r"Task \w+\[([^]]+)\] received")


class Storm:
    """
    One storm with one kind of task.

    Attributes:
        sent: numbers of the calls that returned, with their task ids.
        failed: how many calls raised.
    """

    def __init__(self, task: Any, seconds: float) -> None:
        self.sent: dict[int, str] = {}
        self.failed: Counter[str] = Counter()
        self._task = task
        self._seconds = seconds
        self._numbers = itertools.count()

    def send(self) -> None:
        until = time.monotonic() + self._seconds
        while time.monotonic() < until:
            number = next(self._numbers)
            try:
                sent = self._task.delay(number)
            except Exception as exc:
                self.failed[type(exc).__name__] += 1
            else:
                self.sent[number] = sent.id
            time.sleep(0.01)

    def blow(self, broker: LocalCluster, senders: int) -> int:
        """Send from several threads, and return how often the broker was killed meanwhile."""
        threads = [threading.Thread(target=self.send) for _ in range(senders)]
        for thread in threads:
            thread.start()
        kills = 0
        while any(thread.is_alive() for thread in threads):
            time.sleep(UP)
            broker.kill(0)
            kills += 1
            time.sleep(DOWN)
            broker.restart(0, keep_data=True)
        return kills


def run(kind: str, *, late: bool, seconds: float, senders: int) -> dict[str, Any]:
    """Let one storm blow, and return what became of its messages."""
    with (
        tempfile.TemporaryDirectory(prefix="storm-") as made,
        LocalCluster(1, armed=False, config={"appendonly": "yes"}) as broker,
        LocalCluster(5) as nodes,
    ):
        home = Path(made)
        ran = home / "ran"
        ran.touch()
        os.environ.update(
            STORM_BROKER=broker.urls[0],
            STORM_NODES=",".join(nodes.urls),
            STORM_RAN=str(ran),
            STORM_LATE=str(int(late)),
        )
        app = importlib.reload(importlib.import_module("tests.acceptance.apps.storm"))
        words = "-A tests.acceptance.apps.storm worker --pool=prefork --concurrency=4 -l INFO"
        command = [sys.executable, "-m", "celery", *words.split(), "--without-gossip"]
        worker = Program("worker", command, os.environ, home)
        worker.wait_for_log(" ready.")
        storm = Storm(app.KINDS[kind], seconds)
        kills = storm.blow(broker, senders)
        # One that a broken connection has stopped leaves its messages to the next.
        worker.stop()
        worker = Program("next-worker", command, os.environ, home)
        worker.wait_for_log(" ready.")

        def bodies() -> Counter[int]:
            return Counter(int(line) for line in ran.read_text().splitlines())

        def in_broker() -> int:
            client = broker.client(0)
            return int(client.llen("celery") + client.hlen("unacked"))

        until = time.monotonic() + END_TIMEOUT
        while storm.sent.keys() - set(bodies()) and in_broker() and time.monotonic() < until:
            time.sleep(0.5)
        left = in_broker()
        worker.stop()
        times = bodies()
        received = set(RECEIVED.findall("".join(log.read_text() for log in home.glob("*.log"))))
        missing = [number for number in storm.sent if number not in times]
        return {
            "kind": kind,
            "acks": "late" if late else "early",
            "broker killed": kills,
            "sent": len(storm.sent),
            "calls failed": dict(storm.failed),
            "lost": max(0, len(missing) - left),
            "never reached a worker": sum(storm.sent[each] not in received for each in missing),
            "still in the broker": left,
            "bodies twice": sum(count > 1 for count in times.values()),
        }


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.acceptance.storm", description=__doc__)
    parser.add_argument("kinds", nargs="*", choices=[*KINDS, []], help="all by default")
    parser.add_argument("--seconds", type=float, default=40.0)
    parser.add_argument("--senders", type=int, default=2)
    given = parser.parse_args()
    for late in (False, True):
        for kind in given.kinds or KINDS:
            outcome = run(kind, late=late, seconds=given.seconds, senders=given.senders)
            print(json.dumps(outcome), flush=True)


if __name__ == "__main__":
    main()
