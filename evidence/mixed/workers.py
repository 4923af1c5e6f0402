"""
Workers of two versions with one queue: the messages of each wait for the locks of the other.
"""

from __future__ import annotations

import itertools
import os
import sys
import tempfile
from collections import Counter
from pathlib import Path

from celery import Celery

from celery_redlock.testing import LocalCluster
from tests.acceptance.program import ROOT, Program
from tests.support.waiting import wait_until

MESSAGES = 200
GROUPS = 2
#: Seconds for all messages: nobody wakes those that wait in an old worker.
TIMEOUT = 180.0

COMMAND = (
    *(sys.executable, "-m", "celery", "-A", "evidence.mixed.app", "worker"),
    *("--concurrency=3", "--loglevel=INFO", "--without-gossip", "--without-mingle"),
)


def run_workers(versions: dict[str, Path], nodes: LocalCluster, broker: str) -> dict[str, int]:
    """
    Send messages that wait for few keys to workers of several versions, and count what they ran.

    Args:
        versions: the directory that has each version's package.
        nodes: the lock nodes.
        broker: its URL.
    """
    with tempfile.TemporaryDirectory() as made:
        home = Path(made)
        notes = home / "notes"
        notes.touch()
        shared = {"MIXED_BROKER": broker, "MIXED_NODES": ",".join(nodes.urls)}
        workers = [
            Program(
                who,
                [*COMMAND, f"--hostname={who}@mixed"],
                {
                    **os.environ,
                    **shared,
                    "MIXED_NOTES": str(notes),
                    "MIXED_WHO": who,
                    "MIXED_VERSION": str(directory),
                    "PYTHONPATH": f"{directory}:{ROOT}",
                },
                home,
                cwd=directory,
            )
            for who, directory in versions.items()
        ]
        try:
            for worker in workers:
                worker.wait_for_log(" ready.")
            with Celery("sender", broker=broker, set_as_current=False) as app:
                for number in range(MESSAGES):
                    app.send_task("mixed.hold", (number, number % GROUPS), ignore_result=True)

            def lines() -> list[list[str]]:
                return [line.split() for line in notes.read_text().splitlines()]

            wait_until(
                lambda: len({line[1] for line in lines()}) == MESSAGES,
                TIMEOUT,
                message=lambda: f"{len(lines())} of {MESSAGES} bodies to run",
            )
        finally:
            for worker in workers:
                worker.stop()
        return {
            **{f"bodies:{who}": sum(line[0] == who for line in lines()) for who in versions},
            "bodies twice": sum(
                count > 1 for count in Counter(line[1] for line in lines()).values()
            ),
            "bodies at once": sum(_overlaps(lines(), str(group)) for group in range(GROUPS)),
        }


def _overlaps(lines: list[list[str]], group: str) -> int:
    times = sorted((float(line[3]), float(line[4])) for line in lines if line[2] == group)
    return sum(later[0] < earlier[1] for earlier, later in itertools.pairwise(times))
