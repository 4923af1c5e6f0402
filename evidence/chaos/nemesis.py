"""Carries out a schedule of faults, writes down what it did, and mends everything in the end."""

from __future__ import annotations

import contextlib
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Generator, Sequence
from dataclasses import replace

import redis

from celery_redlock.protocol.keys import GUARD_KEY
from celery_redlock.testing import LocalCluster, TcpProxy
from evidence.chaos.clocks import Clock
from evidence.chaos.history import Journal, now
from evidence.chaos.schedule import (
    DRIFT_FACTOR,
    FORGETTING,
    MINORITY,
    MOST_NUDGE,
    NODES,
    NUDGE_PAUSE,
    RELAY,
    TTL,
    Fault,
)
from evidence.chaos.workers import WorkerCrew

_STEP = 0.02
_SERVES_WITHIN = 20.0
_FREEZES_WITHIN = 15.0

#: What a fault in progress yields: seconds until it wants to go on.
Progress = Generator[float, None, None]


class Nemesis(ABC):
    """
    Breaks nodes and workers.

    It waits with a fault until it may come: when the machine is slow, faults last longer than
    planned.

    Attributes:
        breaks: what its processes are.
    """

    breaks = "workers"

    def __init__(
        self, *, crew: WorkerCrew, journal: Journal, keys: Sequence[str], nodes: int
    ) -> None:
        self.faults: Counter[str] = Counter()
        self._crew = crew
        self._journal = journal
        self._keys = keys
        self._running: list[tuple[float, Progress]] = []
        self._faulty: set[int] = set()
        self._harmed_at = [0.0] * nodes
        self._busy_workers: set[int] = set()

    @abstractmethod
    def _may_harm(self, fault: Fault) -> bool:
        """Return whether a fault of nodes may come now."""

    @abstractmethod
    def _harmed(self, fault: Fault) -> Progress:
        """Carry out a fault of nodes, and mend it."""

    @abstractmethod
    def _client(self, node: int) -> redis.Redis:
        """Return a client of the server that votes for a node."""

    def run(self, schedule: Sequence[Fault], duration: float) -> None:
        """Let it all happen; returns when everything is mended and every node votes."""
        start = now()
        waiting = list(schedule)
        while now() < start + duration:
            for fault in list(waiting):
                if fault.at > now() - start:
                    break
                if self._may_begin(fault):
                    waiting.remove(fault)
                    self._begin(fault)
            self._replace_the_dead()
            self._advance()
            time.sleep(_STEP)
        while self._running:
            self._advance()
            time.sleep(_STEP)

    def _replace_the_dead(self) -> None:
        for slot in self._crew.slots:
            if slot not in self._busy_workers and not self._crew.alive(slot):
                self._journal.note(
                    "violation",
                    rule=f"{self.breaks} do not die by themselves",
                    what=self._crew.name(slot),
                    output=self._crew.output(slot)[-2000:],
                )
                self._crew.replace(slot)

    def _may_begin(self, fault: Fault) -> bool:
        if fault.on_worker:
            return not self._busy_workers.intersection(fault.targets)
        return self._may_harm(fault)

    def _begin(self, fault: Fault) -> None:
        self.faults[fault.kind] += 1
        harmed = self._on_worker(fault) if fault.on_worker else self._harmed(fault)
        self._running.append((0.0, harmed))
        # At once: what it harms decides whether the next one may begin.
        self._advance()

    def _advance(self) -> None:
        present = now()
        for entry in list(self._running):
            due, progress = entry
            if due <= present:
                self._running.remove(entry)
                pause = next(progress, None)
                if pause is not None:
                    self._running.append((now() + pause, progress))

    def _until_it_serves(self, node: int) -> Progress:
        """Wait until the guard of a node that forgot lets it vote; look only, touch nothing."""
        deadline = now() + _SERVES_WITHIN
        while now() < deadline:
            with contextlib.suppress(redis.RedisError):
                client = self._client(node)
                record = client.get(GUARD_KEY)
                identity = client.info("server")["run_id"].encode()
                seconds, micros = client.time()
                if record is not None and record.startswith(identity):
                    not_before = int(record.split()[-1])
                    if not_before <= seconds * 1_000_000 + micros:
                        return
            yield 0.05
        self._journal.note("violation", rule="a node that forgot serves again", nodes=[node])

    def _on_worker(self, fault: Fault) -> Progress:
        slot = fault.targets[0]
        self._busy_workers.add(slot)
        if fault.kind == "kill":
            self._crew.kill(slot)
            yield from self._after_kill(slot)
        elif fault.kind == "freeze before write":
            yield from self._freeze_before_write(slot, fault.seconds)
        else:
            self._crew.freeze(slot)
            yield fault.seconds
            self._crew.go_on(slot)
        self._busy_workers.discard(slot)

    def _freeze_before_write(self, slot: int, seconds: float) -> Progress:
        deadline = now() + _FREEZES_WITHIN
        while not self._crew.ready(slot) and now() < deadline:
            yield _STEP
        self._crew.ask_to_freeze(slot)
        since = now()
        while now() < deadline:
            if self._crew.stopped(slot):
                self._crew.note_stopped(slot, since)
                yield seconds
                self._crew.go_on(slot)
                return
            since = now()
            yield _STEP
        # It has not come to write anything. It may not stop when nobody expects it any more.
        self._crew.kill(slot)
        yield from self._after_kill(slot)

    def _after_kill(self, slot: int) -> Progress:
        """Replace a worker, and look whether what it held ends with its TTL."""
        killed = now()
        dead = self._crew.name(slot)
        self._crew.replace(slot)
        # Slow clocks and a nudge back may lengthen a lease by as much as is not trusted of it.
        yield TTL * (1 + DRIFT_FACTOR) + MOST_NUDGE + 0.3
        for node, harmed_at in enumerate(self._harmed_at):
            # A stopped or slow node may run the dead worker's commands later than they were sent.
            if harmed_at > killed - 0.5:
                continue
            with contextlib.suppress(redis.RedisError):
                self._check_remains(node, dead)

    def _check_remains(self, node: int, dead: str) -> None:
        client = self._client(node)
        for key in self._keys:
            owner = client.get(key)
            if owner is not None and owner.decode().endswith(f" {dead}"):
                self._journal.note(
                    "violation",
                    rule="nothing stays held longer than its TTL after its holder was killed",
                    worker=dead,
                    nodes=[node],
                    key=key,
                )


class NodeNemesis(Nemesis):
    """
    Breaks nodes, networks, clocks and workers.

    Within the assumptions never a majority of the nodes is faulty.
    """

    def __init__(
        self,
        *,
        cluster: LocalCluster,
        proxies: Sequence[TcpProxy],
        clocks: Sequence[Clock],
        crew: WorkerCrew,
        journal: Journal,
        keys: Sequence[str],
        limited: bool,
        guarded: bool,
    ) -> None:
        super().__init__(crew=crew, journal=journal, keys=keys, nodes=NODES)
        self._cluster = cluster
        self._proxies = proxies
        self._clocks = clocks
        self._limited = limited
        self._guarded = guarded
        self._nudged_at = [0.0] * NODES

    def run(self, schedule: Sequence[Fault], duration: float) -> None:
        super().run(schedule, duration)
        for clock in self._clocks:
            clock.run_at(0)

    def _client(self, node: int) -> redis.Redis:
        return self._cluster.client(node)

    def _may_harm(self, fault: Fault) -> bool:
        if fault.kind == "clock rate":
            return True
        if fault.kind == "clock nudge":
            # A step back that is under way leaves nothing of the allowance.
            return now() - self._nudged_at[fault.targets[0]] > NUDGE_PAUSE
        if self._faulty.intersection(fault.targets):
            return False
        if fault.kind == RELAY:
            return not self._faulty
        return not self._limited or len(self._faulty) < MINORITY

    def _harmed(self, fault: Fault) -> Progress:
        return self._relay(fault) if fault.kind == RELAY else self._on_nodes(fault)

    def _on_nodes(self, fault: Fault) -> Progress:
        passing = fault.kind in ("clock rate", "clock nudge")
        self._journal.note("fault", kind=fault.kind, nodes=fault.targets, amount=fault.amount)
        if passing:
            yield from self._harm(fault)
            return
        self._faulty.update(fault.targets)
        for node in fault.targets:
            self._harmed_at[node] = float("inf")
        yield from self._harm(fault)
        self._journal.note("mended", kind=fault.kind, nodes=fault.targets)
        if fault.kind in FORGETTING and self._guarded:
            yield from self._until_it_serves(fault.targets[0])
        yield 0.2
        self._faulty.difference_update(fault.targets)
        for node in fault.targets:
            self._harmed_at[node] = now()
        self._journal.note("serving", kind=fault.kind, nodes=fault.targets)

    def _relay(self, fault: Fault) -> Progress:
        """Let two nodes refuse, and one forget without a pause after they are back."""
        forgets, *refuse = fault.targets
        self._journal.note("fault", kind=fault.kind, nodes=refuse)
        self._faulty.update(refuse)
        for node in refuse:
            self._harmed_at[node] = float("inf")
            for proxy in self._proxies:
                proxy.refuse(node)
        yield fault.seconds
        for node in refuse:
            self._harmed_at[node] = now()
            for proxy in self._proxies:
                proxy.heal(node)
        self._faulty.difference_update(refuse)
        for event in ("mended", "serving"):
            self._journal.note(event, kind=fault.kind, nodes=refuse)
        yield from self._on_nodes(replace(fault, kind="flush", targets=(forgets,)))

    def _harm(self, fault: Fault) -> Progress:
        node = fault.targets[0]
        if fault.kind == "stop":
            self._cluster.pause(node)
            yield fault.seconds
            self._cluster.resume(node)
        elif fault.kind == "restart empty":
            self._cluster.kill(node)
            yield fault.seconds
            self._cluster.restart(node)
        elif fault.kind == "restart stale":
            self._cluster.client(node).save()
            yield fault.amount
            self._cluster.kill(node)
            yield fault.seconds
            self._cluster.restart(node, keep_data=True)
        elif fault.kind == "flush":
            self._cluster.flush(node)
        elif fault.kind == "wipe majority":
            for each in fault.targets:
                self._cluster.restart(each)
        elif fault.kind == "cut wake-ups":
            self._cluster.client(node).client_kill_filter(_type="pubsub")
        elif fault.kind.startswith(("clock", "majority")):
            yield from self._bend_clocks(fault)
        else:
            yield from self._bend_network(fault, node)

    def _bend_network(self, fault: Fault, node: int) -> Progress:
        proxies = self._proxies[:1] if fault.kind == "cut off from half" else self._proxies
        for proxy in proxies:
            if fault.kind.startswith("cut off"):
                proxy.partition(node)
            elif fault.kind == "slow":
                proxy.delay(node, fault.amount)
            elif fault.kind == "late replies":
                proxy.delay(node, fault.amount, only="replies")
            elif fault.kind == "refuse":
                proxy.refuse(node)
            else:
                proxy.garbage(node)
        yield fault.seconds
        for proxy in proxies:
            proxy.heal(node)

    def _bend_clocks(self, fault: Fault) -> Progress:
        clocks = [self._clocks[node] for node in fault.targets]
        if fault.kind in ("clock nudge", "majority leaps"):
            for node in fault.targets:
                self._nudged_at[node] = now()
            for clock in clocks:
                clock.step(fault.amount)
        elif fault.kind == "clock back":
            clocks[0].step(-fault.amount)
            yield fault.seconds
        elif fault.kind == "clock rate":
            clocks[0].run_at(round(fault.amount))
        else:
            for clock in clocks:
                clock.run_at(round(fault.amount))
            yield fault.seconds
            for clock in clocks:
                clock.run_at(0)
