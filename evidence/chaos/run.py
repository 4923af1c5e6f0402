"""One run: nodes, proxies, clocks, workers and nemesis, from start to verdict."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from celery_redlock.protocol.keys import Key
from celery_redlock.testing import LocalCluster, LocalSentinel, TcpProxy
from celery_redlock.testing.server import LOOPBACK, find_binary
from evidence.chaos.checks import Verdict, Violation, judge
from evidence.chaos.clocks import Clock, build_shim, write_launcher
from evidence.chaos.groups import GROUPS, SENTINELS, TAKEOVER, GroupNemesis, plan_groups
from evidence.chaos.history import History, Journal, build_history, now, read_events
from evidence.chaos.nemesis import Nemesis, NodeNemesis
from evidence.chaos.resources import Resource
from evidence.chaos.schedule import (
    FENCED,
    LIMIT,
    LIMITED,
    MOST_SKEW,
    NODES,
    PLAIN,
    SLOTS,
    WORKERS,
    Fault,
    plan,
)
from evidence.chaos.worker import Orders
from evidence.chaos.workers import WorkerCrew

_ON_NODES = (
    *(Key.of("redlock:", key).stored for key in (*PLAIN, *FENCED)),
    *Key.of("redlock:", LIMITED, LIMIT).places,
)

#: Enough for a TTL, a node left out for a while, and workers that start on a busy machine.
_LIVES_WITHIN = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """
    All that is known after a run.

    Attributes:
        revived: seconds from when everything was mended until each key was granted again.
        clocks: whether clocks of nodes could be set.
        sentinel: whether the nodes were Sentinel groups, whose clocks are left alone.
    """

    seed: int
    outside: bool
    guard: bool
    seconds: float
    revived: Mapping[str, float | None]
    clocks: bool
    sentinel: bool
    faults: Mapping[str, int]
    history: History
    verdict: Verdict


def run(
    seed: int,
    duration: float,
    *,
    outside: bool = False,
    guard: bool = True,
    sentinel: bool = False,
    binary: str | None = None,
) -> Outcome:
    """
    Run for `duration` seconds of faults and judge what happened; leaves nothing behind.

    Args:
        seed: for the schedule of faults.
        duration: seconds.
        outside: go beyond the assumptions, which includes going without the restart guard.
        guard: False for faults within the assumptions and clients without the restart guard.
        sentinel: have Sentinel groups as nodes, which fail over.
        binary: their server program; None is the embedded one.
    """
    with ExitStack() as stack:
        guarded = guard and not outside
        return _Run(seed, duration, outside, guarded, sentinel, find_binary(binary), stack).go()


def make_directory(stack: ExitStack) -> Path:
    """Make a directory that ends with a run."""
    directory = Path(tempfile.mkdtemp(prefix="celery-redlock-chaos-"))
    stack.callback(shutil.rmtree, directory, ignore_errors=True)
    return directory


def make_proxies(stack: ExitStack, cluster: LocalCluster) -> tuple[list[TcpProxy], list[list[str]]]:
    """Make two proxies of all nodes; return them, and the URLs of the nodes by each."""
    # The half of the processes that loses a node while the other one still has it.
    targets = [(LOOPBACK, int(url.rpartition(":")[2][:-2])) for url in cluster.server_urls]
    proxies = [TcpProxy(targets) for _ in range(2)]
    for proxy in proxies:
        stack.callback(proxy.close)
    return proxies, [
        [f"redis://{host}:{port}/0" for host, port in one.addresses] for one in proxies
    ]


@dataclass
class _Run:
    _seed: int
    _duration: float
    _outside: bool
    _guard: bool
    _sentinel: bool
    _server: str
    _stack: ExitStack

    def __post_init__(self) -> None:
        self._directory = make_directory(self._stack)
        self._shim = build_shim(self._directory)
        self._journal = Journal(self._directory / "nemesis.jsonl")
        self._stack.callback(self._journal.close)
        keys = (*PLAIN, *FENCED, *SLOTS)
        self._resources = {key: Resource(self._directory / key) for key in keys}

    def go(self) -> Outcome:
        for resource in self._resources.values():
            resource.create()
        nemesis, schedule, clocks = self._with_groups() if self._sentinel else self._with_nodes()
        started = now()
        nemesis.run(schedule, self._duration)
        healed = now()
        self._journal.note("healed")
        revived = self._await_grants(healed)
        stuck = self._crew.end()
        seconds = now() - started
        history = build_history(read_events(self._directory))
        verdict = judge(
            history,
            {key: self._resources[key].records() for key in PLAIN},
            {key: self._resources[key].records() for key in (*FENCED, *SLOTS)},
            limits={LIMITED: LIMIT},
            expect_overlaps=self._outside or not self._guard,
        )
        for key, after in revived.items():
            if after is None:
                verdict.violations.append(
                    Violation(
                        rule="locks are granted again after all faults are mended",
                        what=f"{key} was not within {_LIVES_WITHIN:g} s",
                    )
                )
        verdict.violations += [
            Violation(rule="workers end when told to", what=f"worker {name} did not")
            for name in stuck
        ]
        return Outcome(
            seed=self._seed,
            outside=self._outside,
            guard=self._guard,
            seconds=seconds,
            revived=revived,
            clocks=clocks,
            sentinel=self._sentinel,
            faults=dict(nemesis.faults),
            history=history,
            verdict=verdict,
        )

    def _with_nodes(self) -> tuple[Nemesis, list[Fault], bool]:
        """Start nodes and workers; return what breaks them, when, and whether clocks can be set."""
        node_clocks = self._make_clocks("node", NODES)
        cluster = self._stack.enter_context(LocalCluster(NODES, binary=self._binary(node_clocks)))
        proxies, halves = make_proxies(self._stack, cluster)
        nemesis = NodeNemesis(
            cluster=cluster,
            proxies=proxies,
            clocks=node_clocks,
            crew=self._start_crew(halves),
            journal=self._journal,
            keys=_ON_NODES,
            limited=not self._outside,
            guarded=self._guard,
        )
        clocks = bool(node_clocks)
        schedule = plan(self._seed, self._duration, outside=self._outside, clocks=clocks)
        return nemesis, schedule, clocks

    def _with_groups(self) -> tuple[Nemesis, list[Fault], bool]:
        """Do the same with Sentinel groups as nodes."""
        groups = self._stack.enter_context(
            LocalSentinel(GROUPS, sentinels=SENTINELS, binary=self._server, proxy=True)
        )
        nemesis = GroupNemesis(
            groups=groups,
            crew=self._start_crew([groups.urls]),
            journal=self._journal,
            keys=_ON_NODES,
            guarded=self._guard,
        )
        return nemesis, plan_groups(self._seed, self._duration), False

    def _make_clocks(self, name: str, count: int) -> list[Clock]:
        if self._shim is None:
            return []
        clocks = [Clock(self._directory / f"{name}-{n}.clock", self._shim) for n in range(count)]
        for clock in clocks:
            self._stack.callback(clock.close)
        return clocks

    def _binary(self, clocks: list[Clock]) -> list[Path] | None:
        return [
            write_launcher(self._directory / f"server-{n}", self._server, clock.environment)
            for n, clock in enumerate(clocks)
        ] or None

    def _start_crew(self, halves: Sequence[list[str]]) -> WorkerCrew:
        # Tokens outlive lost counters by wall time; without the guard nothing bounds how soon
        # after the loss the next one is given, so clocks that differ would be a second fault.
        skewed = self._make_clocks("worker", WORKERS) if self._guard else []
        for slot, clock in enumerate(skewed):
            clock.step(MOST_SKEW * (2 * slot / (WORKERS - 1) - 1))
        orders = [
            Orders(
                name="",
                seed=self._seed,
                nodes=halves[slot % len(halves)],
                directory=str(self._directory),
                takeover=TAKEOVER if self._sentinel else 0.0,
                guard=self._guard,
            )
            for slot in range(WORKERS)
        ]
        environments = [clock.environment for clock in skewed] or [{}] * WORKERS
        self._crew = WorkerCrew(orders, environments, self._journal, self._directory)
        self._stack.callback(self._crew.close)
        for slot in self._crew.slots:
            self._crew.replace(slot)
        self._await_grants(0.0)
        return self._crew

    def _await_grants(self, after: float) -> dict[str, float | None]:
        """Wait until each key was granted to somebody; return how long each took."""
        found: dict[str, float | None] = dict.fromkeys(self._resources)
        deadline = now() + _LIVES_WITHIN
        while now() < deadline and None in found.values():
            for event in read_events(self._directory):
                if event["event"] == "granted" and event["t"] > after:
                    key = event["key"]
                    if found[key] is None:
                        found[key] = event["t"] - after
            time.sleep(0.2)
        return found
