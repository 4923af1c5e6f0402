"""
A worker process: takes locks and does read-modify-write under them until its stdin ends.

SIGUSR1 asks it to stop itself (SIGSTOP) the next time that it is between the check of its lease and
the write, where no lock can help. The nemesis lets it go on.
"""

from __future__ import annotations

import json
import logging
import os
import random
import signal
import sys
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from celery_redlock.core import Lease, Limit, Redlock
from celery_redlock.core.lease import holding_of
from celery_redlock.errors import LeaseLost, LockContended, QuorumUnavailable
from evidence.chaos.history import Journal, now, watch_for_stalls
from evidence.chaos.resources import Record, Refused, Resource
from evidence.chaos.schedule import DRIFT_FACTOR, FENCED, LIMIT, LIMITED, MAX_TTL, PLAIN, SLOTS, TTL


@dataclass(frozen=True, slots=True, kw_only=True)
class Orders:
    """
    What a worker is told at its start.

    Attributes:
        name: `<slot>.<generation>`, its name in the history and in owner values.
    """

    name: str
    seed: int
    nodes: list[str]
    directory: str
    takeover: float
    guard: bool

    def encode(self) -> str:
        """Return them as one argument of a command line."""
        return json.dumps(asdict(self))


class Worker:
    """Does one hold after the other."""

    def __init__(self, orders: Orders) -> None:
        self._orders = orders
        self._random = random.Random(orders.seed)
        directory = Path(orders.directory)
        self._journal = Journal(directory / f"worker-{orders.name}.jsonl", worker=orders.name)
        self._resources = {key: Resource(directory / key) for key in (*PLAIN, *FENCED, *SLOTS)}
        self._client = Redlock(
            orders.nodes,
            ttl=TTL,
            max_ttl=MAX_TTL,
            takeover=orders.takeover,
            drift_factor=DRIFT_FACTOR,
            guard=orders.guard,
        )
        self._stopping = threading.Event()
        self._freeze = False
        self._count = 0

    def run(self) -> None:
        """Work until stdin ends."""
        signal.signal(signal.SIGUSR1, self._on_freeze)
        threading.Thread(target=self._await_end, daemon=True).start()
        threading.Thread(
            target=watch_for_stalls, args=(self._journal.note, threading.Event()), daemon=True
        ).start()
        self._journal.note("started", pid=os.getpid())
        while not self._stopping.is_set():
            self._count += 1
            self._hold(f"{self._orders.name}.{self._count}", self._choose_key())
        self._client.close()
        self._journal.note("ended")

    def _hold(self, hold: str, key: str) -> None:
        note = self._journal.note
        note("invoked", hold=hold, key=key)
        try:
            lease = self._client.acquire(
                Limit(key, LIMIT) if key == LIMITED else key,
                wait=self._random.choice((0.0, 0.3)),
                label=self._orders.name,
            )
        except LockContended as error:
            note("contended", hold=hold, split=error.split)
            self._rest()
            return
        except QuorumUnavailable:
            note("unavailable", hold=hold)
            self._rest()
            return
        if lease.slot is not None:
            key = SLOTS[lease.slot]
        note(
            "granted",
            hold=hold,
            key=key,
            token=lease.fencing_token,
            until=holding_of(lease).valid_until,
        )
        self._client.watch(
            lease, on_lost=lambda lost: note("lost", hold=hold, why=lost.lost, until=_until(lost))
        )
        try:
            if key in PLAIN:
                self._change_plain(hold, lease, self._resources[key])
            else:
                self._change_fenced(hold, lease, self._resources[key])
        except (LeaseLost, Refused) as error:
            note("gave up", hold=hold, because=type(error).__name__)
        note("releasing", hold=hold, until=_until(lease))
        note("released", hold=hold, held=lease.release())

    def _change_plain(self, hold: str, lease: Lease, resource: Resource) -> None:
        """Trust the lease: a last check, then the write."""
        read = resource.read(hold)
        self._think(hold, lease)
        lease.check()
        self._journal.note("checked", hold=hold, until=_until(lease))
        self._stop_if_asked()
        self._write(hold, resource, read)

    def _change_fenced(self, hold: str, lease: Lease, resource: Resource) -> None:
        """Trust the guard alone: nobody looks at the lease before the write."""
        read = resource.read(hold, lease.fencing_token)
        self._think(hold, lease)
        self._stop_if_asked()
        self._write(hold, resource, read, lease.fencing_token)

    def _write(self, hold: str, resource: Resource, read: Record, token: int = 0) -> None:
        self._journal.note("writing", hold=hold, token=token)
        try:
            resource.write(hold, read, token)
        except Refused:
            self._journal.note("refused", hold=hold, token=token)
            raise
        self._journal.note("written", hold=hold, token=token)

    def _think(self, hold: str, lease: Lease) -> None:
        """Take some time, now and then more than one TTL, so that the watchdog has to renew."""
        rolled = self._random.random()
        if rolled < 0.82:
            seconds = self._random.uniform(0.002, 0.03)
        elif rolled < 0.98:
            seconds = self._random.uniform(0.05, 0.3)
        else:
            seconds = self._random.uniform(1.1, 2.2) * TTL
        end = now() + seconds
        told = _until(lease)
        while (left := end - now()) > 0:
            time.sleep(min(left, 0.05))
            if _until(lease) != told:
                told = _until(lease)
                self._journal.note("extended", hold=hold, until=told)

    def _rest(self) -> None:
        time.sleep(self._random.uniform(0.01, 0.06))

    def _choose_key(self) -> str:
        return self._random.choice((*PLAIN, *FENCED, *[LIMITED] * LIMIT))

    def _stop_if_asked(self) -> None:
        if self._freeze:
            self._freeze = False
            os.kill(os.getpid(), signal.SIGSTOP)

    def _on_freeze(self, *_: object) -> None:
        self._freeze = True

    def _await_end(self) -> None:
        sys.stdin.buffer.read()
        self._stopping.set()


def _until(lease: Lease) -> float:
    return holding_of(lease).valid_until


if __name__ == "__main__":
    # Losses are in the history; on stderr they would only push the verdict off the screen.
    logging.disable(logging.WARNING)
    Worker(Orders(**json.loads(sys.argv[1]))).run()
