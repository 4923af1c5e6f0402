"""One run of the task layer: broker, nodes, workers, publishers and nemesis, then the verdict."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import redis
from kombu import Connection

from celery_redlock.testing import LocalCluster
from evidence.chaos.history import Journal, now, read_events
from evidence.chaos.run import make_directory, make_proxies
from evidence.chaos.schedule import NODES, TTL
from evidence.chaos.tasks.builder import build_history
from evidence.chaos.tasks.checks import Verdict, judge
from evidence.chaos.tasks.history import Left, TaskHistory
from evidence.chaos.tasks.kinds import PUBLISH_GRACE, VISIBILITY_TIMEOUT, WINDOW
from evidence.chaos.tasks.nemesis import TaskNemesis
from evidence.chaos.tasks.process_journal import Notes
from evidence.chaos.tasks.processes import TaskCrew
from evidence.chaos.tasks.schedule import POOLS, PUBLISHERS, plan_tasks

_STARTS_WITHIN = 60.0
#: Seconds for what a killed worker had to be delivered again, and to wait for its lock.
_DRAINS_WITHIN = 45.0
#: For so long the broker has to have nothing until it counts as empty: an early acknowledged task
#: may yet publish its retry, or be put back.
_QUIET = 1.0
_REDELIVERS_EVERY = 1.0
#: Seconds for a reply of a server that is asked whether it is late.
_PATIENCE = 5.0
#: Until keys have ended whose publisher died, and windows and leases.
_KEYS_END_WITHIN = max(PUBLISH_GRACE, WINDOW) + TTL


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskOutcome:
    """
    All that is known after a run of the task layer.

    Attributes:
        seconds: how long the faults lasted, and the drain after them.
    """

    seed: int
    seconds: float
    drained: float
    faults: Mapping[str, int]
    history: TaskHistory
    verdict: Verdict


def run_tasks(seed: int, duration: float) -> TaskOutcome:
    """Run for `duration` seconds of faults, drain the broker, and judge; leaves nothing behind."""
    with ExitStack() as stack:
        return _Run(seed, duration, make_directory(stack), stack).go()


class _Run:
    def __init__(self, seed: int, duration: float, directory: Path, stack: ExitStack) -> None:
        self._seed = seed
        self._duration = duration
        self._directory = directory
        self._journal = Journal(directory / "nemesis.jsonl")
        stack.callback(self._journal.close)
        # Proxies and nodes are slow where this process does not get to run.
        notes = Notes(directory, "harness")
        stack.callback(notes.close)
        notes.watch_for_stalls()
        self._cluster = stack.enter_context(LocalCluster(NODES))
        broker = stack.enter_context(LocalCluster(1, armed=False))
        # The same for the servers themselves, where the machine has other work.
        for url in (*self._cluster.server_urls, *broker.server_urls):
            notes.watch_for_late_replies(redis.Redis.from_url(url, socket_timeout=_PATIENCE))
        self._broker_url = broker.urls[0]
        self._backend_url = self._broker_url.removesuffix("0") + "1"
        self._broker = redis.Redis.from_url(self._broker_url)
        self._backend = redis.Redis.from_url(self._backend_url)
        self._drained = threading.Event()
        self._proxies, halves = make_proxies(stack, self._cluster)
        self._crew = TaskCrew(self._orders(halves), self._journal, directory)
        stack.callback(self._crew.close)

    def go(self) -> TaskOutcome:
        self._start()
        nemesis = TaskNemesis(
            cluster=self._cluster,
            proxies=self._proxies,
            clocks=(),
            crew=self._crew,
            journal=self._journal,
            keys=(),
            limited=True,
            guarded=True,
        )
        redelivery = threading.Thread(target=self._redeliver, daemon=True)
        redelivery.start()
        began = now()
        nemesis.run(plan_tasks(self._seed, self._duration), self._duration)
        self._crew.end(self._crew.publishers)
        healed = now()
        self._journal.note("healed")
        self._drain()
        self._drained.set()
        redelivery.join()
        drained = now()
        self._journal.note("drained")
        time.sleep(_KEYS_END_WITHIN)
        left = self._read_remaining_keys()
        self._crew.end(self._crew.workers)
        events = read_events(self._directory)
        ids = {event["id"] for event in events if event.get("id")}
        history = build_history(events, self._states(ids), left, self._waiting())
        return TaskOutcome(
            seed=self._seed,
            seconds=healed - began,
            drained=drained - healed,
            faults=dict(nemesis.faults),
            history=history,
            verdict=judge(history),
        )

    def _orders(self, halves: list[list[str]]) -> list[dict[str, Any]]:
        return [
            {
                "seed": self._seed,
                "directory": str(self._directory),
                "broker": self._broker_url,
                "backend": self._backend_url,
                "nodes": halves[slot % 2],
                "prefetch": 1 if slot < len(POOLS) // 2 else 4,
            }
            for slot in range(len(POOLS) + PUBLISHERS)
        ]

    def _start(self) -> None:
        for slots in (self._crew.workers, self._crew.publishers):
            for slot in slots:
                self._crew.replace(slot)
            deadline = now() + _STARTS_WITHIN
            while not all(self._crew.ready(slot) for slot in slots):
                if now() > deadline or not all(self._crew.alive(slot) for slot in slots):
                    outputs = [self._crew.output(slot)[-2000:] for slot in slots]
                    raise RuntimeError("not ready in time:\n" + "\n".join(outputs))
                time.sleep(0.1)

    def _drain(self) -> None:
        """Wait until the broker has had nothing for a while, or for too long."""
        deadline = now() + _DRAINS_WITHIN
        empty_since = now()
        while now() < deadline:
            if self._broker.llen("celery") or self._broker.hlen("unacked"):
                empty_since = now()
            elif now() - empty_since > _QUIET:
                return
            time.sleep(0.05)

    def _redeliver(self) -> None:
        """
        Give back what killed workers had not acknowledged, once its time is over.

        Kombu does the same in every worker, but only each hundred seconds.
        """
        options = {"visibility_timeout": VISIBILITY_TIMEOUT}
        with Connection(self._broker_url, transport_options=options) as connection:
            qos = connection.default_channel.qos
            while not self._drained.wait(_REDELIVERS_EVERY):
                qos.restore_visible(num=1000, interval=1)

    def _read_remaining_keys(self) -> list[Left]:
        found = []
        offset = time.time() - now()
        for node in range(NODES):
            client = self._cluster.client(node)
            for name in client.scan_iter(count=1000):
                key = name.decode()
                if client.type(name) != b"string" or not (value := client.get(name)):
                    continue
                found.append(
                    Left(
                        node=node,
                        key=key,
                        value=value.decode(errors="replace"),
                        left=client.pttl(name) / 1000,
                        clock=offset,
                    )
                )
        return found

    def _states(self, ids: set[str]) -> dict[str, dict[str, Any]]:
        """Return what the result backend has of each task."""
        found = {}
        for task_id in ids:
            stored = self._backend.get(f"celery-task-meta-{task_id}")
            if stored:
                found[task_id] = json.loads(stored)
        return found

    def _waiting(self) -> set[str]:
        """Return the ids of all messages that the broker still has."""
        bodies = self._broker.lrange("celery", 0, -1)
        messages = [json.loads(body) for body in bodies]
        messages += [json.loads(entry)[0] for entry in self._broker.hvals("unacked")]
        return {message["headers"]["id"] for message in messages}
