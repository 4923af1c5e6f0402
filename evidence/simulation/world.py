"""
One history: a plan carried out on the shipped code.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import logging
import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any
from unittest import mock

from celery_redlock.core import Redlock
from celery_redlock.core.attempt import attempt_once, move, raise_fence
from celery_redlock.core.holding import heal
from celery_redlock.core.limits import Limit, Rate, limited_key
from celery_redlock.core.watchdog import Watchdog, process_watchdog
from celery_redlock.errors import LockNotAcquired
from celery_redlock.protocol.mastership import MAX_AGE, Master
from celery_redlock.protocol.rounds import Phase
from celery_redlock.protocol.votes import Failed, Quarantined
from evidence.simulation.failovers import KNOWN_WITHIN, SENTINEL_PORT, Group, SimSentinel
from evidence.simulation.faults import inflict
from evidence.simulation.history import History, Hold, Resource, Violation
from evidence.simulation.limits import KEPT, limits_of_plan, rates_of_plan
from evidence.simulation.network import Network, SimConnector, SimWakeUps
from evidence.simulation.node import Parser, SimNode
from evidence.simulation.plan import SENTINELS, Plan
from evidence.simulation.scheduler import Clock, Machine, Scheduler
from evidence.simulation.shims import Files, Os, Poller, Threading, Time, WakeupPipe
from evidence.simulation.tidiness import Tidiness
from evidence.simulation.unique import Broker
from evidence.simulation.workload import Worker
from tests.support.waiting import wait_until


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a history ended."""

    violations: list[Violation]
    counters: Counter[str]
    trace: list[str]

    @property
    def digest(self) -> str:
        return hashlib.sha256("\n".join(self.trace).encode()).hexdigest()


class World:
    """Everything that exists in one history."""

    def __init__(self, plan: Plan, *, traced: bool) -> None:
        self.plan = plan
        self.healed = False
        self.keys = [f"key{number}" for number in range(plan.keys)]
        self.limits, self.rates = limits_of_plan(plan), rates_of_plan(plan)
        self.lines: list[str] = []
        self._traced = traced
        self.scheduler = Scheduler()
        self.files = Files(self.scheduler)
        self.network = Network(self.scheduler, self.files, plan)
        self.history = History(plan, lambda: self.scheduler.now, self._valid)
        parser, count = Parser(), len(plan.nodes)
        servers = [
            SimNode(
                self.scheduler,
                index,
                (f"n{index}" if index < count else f"r{index - count}", 6379),
                Clock(self.scheduler, rate, wall, disciplined=False),
                parser,
                self.history.set_on,
                self.trace if traced else None,
            )
            for index, (rate, wall) in enumerate(plan.servers)
        ]
        #: of each node the server that is its master
        self.nodes, replicas = servers[:count], servers[count:]
        self.groups = [
            Group(f"group{number}", self.nodes[number], replica)
            for number, replica in enumerate(replicas)
        ]
        self.sentinels = [
            SimSentinel(self.scheduler, len(servers) + number, number, self.groups, plan.seed)
            for number in range(SENTINELS if replicas else 0)
        ]
        self.network.servers = {one.address: one for one in (*servers, *self.sentinels)}
        self.resources = {
            key: (
                Resource(key, self.history, guarded=True),
                Resource(key, self.history, guarded=False),
            )
            for key in (*self.keys, *self._slots())
        }
        self.machines: list[Machine] = []
        self.broker = Broker()
        self._births = 0
        self._watchdogs: dict[Machine, Any] = {}

    def _slots(self) -> Iterator[str]:
        for limit in self.limits:
            yield from limited_key(limit).places

    def run(self) -> Outcome:
        for slot in range(len(self.plan.machines)):
            self.machines.append(self._new_machine(slot))
            self._work(self.machines[slot])
        for fault in self.plan.faults:
            self.scheduler.at(fault.at, inflict, self, fault)
        self.scheduler.run(self.plan.duration, self._broken)
        if not self._broken():
            self._heal()
            self._probe()
        if not self._broken() and self.plan.seed % 3 == 0 and self.plan.flavour == "inside":
            self._tidy()
        for machine in self.machines:
            machine.kill()
        counters = self.history.counters
        counters["late reply"] += self.network.late_replies
        counters["woken"] += self.network.woken
        counters["connections"] += self.network.connections
        for server in self.network.servers.values():
            if isinstance(server, SimNode):
                counters["commands"] += sum(server.commands.values())
        return Outcome(self.history.violations, counters, self.lines)

    def trace(self, text: str) -> None:
        if self._traced:
            self.lines.append(f"{self.scheduler.now:10.5f} {text}")

    def kill(self, slot: int) -> None:
        machine = self.machines[slot]
        self.history.died(machine)
        machine.kill()

    def start_machine(self, slot: int) -> None:
        if self.machines[slot].dead and not self.healed:
            self.machines[slot] = self._new_machine(slot)
            self._work(self.machines[slot])

    def start_node(self, node: SimNode, data: str) -> None:
        if node.down:
            self.trace(f"node {node.address[0]} starts with its data: {data}")
            if node.start(data):
                self.history.data_lost()

    def make_master(self, node: SimNode) -> None:
        if node.read_only:
            node.read_only = False
            node.change_role()

    def promote(self, number: int, unaware: float) -> None:
        """Promote a replica, if there is one; the former master hears of it later."""
        group = self.groups[number]
        if not group.has_replica:
            return
        group.promote()
        self.trace(f"{group.master.address[0]} is promoted")
        self.nodes[number] = group.master
        self.history.counters["promotions"] += 1
        # What the former master grants from now on is on no replica.
        self.history.data_lost()
        for sentinel in self.sentinels:
            sentinel.hear_of(group)
        self.scheduler.after(unaware, self.demote, group)

    def demote(self, group: Group) -> None:
        if not group.has_replica:
            self.trace(f"{group.other.address[0]} follows {group.master.address[0]}")
            group.demote(self.network)

    def process_watchdog(self) -> Any:
        machine = self.files.machine()
        if machine not in self._watchdogs:
            self._watchdogs[machine] = Watchdog()
        return self._watchdogs[machine]

    def _broken(self) -> bool:
        return bool(self.history.violations)

    def _valid(self, hold: Hold) -> bool:
        machine = hold.machine
        before = self.files.observed
        self.files.observed = machine
        machine.observed = True
        try:
            return bool(hold.lease.is_valid)
        finally:
            machine.observed = False
            self.files.observed = before

    def _new_machine(self, slot: int) -> Machine:
        self._births += 1
        rate, wall = self.plan.machines[slot]
        name = f"client{slot}.{self._births}"
        return Machine(self.scheduler, name, f"{self.plan.seed} {name}", rate, wall)

    def _urls(self) -> list[str]:
        at = ",".join(f"s{number}:{SENTINEL_PORT}" for number in range(SENTINELS))
        urls = [f"redis+sentinel://{at}/{group.name}" for group in self.groups]
        return urls + [f"redis://n{index}:6379" for index in range(len(urls), len(self.nodes))]

    def _client(self, *, max_ttl: float | None = None) -> Redlock:
        plan = self.plan
        return Redlock(
            self._urls(),
            ttl=plan.ttl,
            max_ttl=max_ttl or plan.max_ttl,
            takeover=plan.takeover,
            key_prefix="",
            drift_factor=plan.drift_factor,
            node_timeout=plan.node_timeout,
            guard=plan.guard,
        )

    def _work(self, machine: Machine) -> None:
        client = self._client()
        for _ in range(self.plan.threads):
            machine.spawn(Worker(self, machine, client).run)

    def _heal(self) -> None:
        """End every fault and kill every client, holders and all, with its words under way."""
        self.trace("everything is healed, all clients die")
        self.healed = True
        for slot in range(len(self.machines)):
            self.kill(slot)
        self.network.heal()
        for node in self.nodes:
            self.start_node(node, "full")
            self.make_master(node)
        for group in self.groups:
            self.demote(group)
        for server in self.network.servers.values():
            server.stopped_until = min(server.stopped_until, self.scheduler.now)
            server.go_on()

    def _probe(self) -> None:
        """Every key can be had within TTL, quarantine and backoff; every slot of one, at once."""
        plan = self.plan
        slowest = min(rate for rate, _ in plan.servers)
        quickest = max(rate for rate, _ in plan.machines)
        # What is on its way still arrives; then a key lives a TTL, and a node may sit out.
        under_way = 20 * plan.node_timeout
        patience = (under_way + plan.ttl + plan.max_ttl + 0.5) / slowest * quickest
        if plan.replicas:
            # It knows the new master, which sits out the time of the former one's votes as well.
            patience += KNOWN_WITHIN + MAX_AGE + plan.takeover
        if plan.unique:
            # A message's lock ends at an instant of the wall clock, which each client reads wrong.
            patience += plan.max_ttl
        probe = Machine(self.scheduler, "probe", f"{plan.seed} probe", 1.0, 0.0)
        self.machines.append(probe)
        client = self._client()
        # Those that waited for a rate and died are waited for, each until its turn and 2 s more.
        turns = KEPT * (1 + self._births * plan.threads) + 2 if plan.rates else 0.0
        asked: list[tuple[str | Limit | Rate, float]] = [(key, patience) for key in self.keys]
        asked += [(rate, patience + turns) for rate in self.rates]
        asked += [(key, patience) for key in self.limits for _ in range(int(key.limit))]
        waiting = dict.fromkeys(range(len(asked)))

        def take(number: int, key: str | Limit | Rate, patience: float) -> None:
            try:
                with client.lock(key, ttl=plan.ttl, wait=patience) as lease:
                    hold = self.history.granted(lease, probe)
                    del waiting[number]
                    # As many as the limit hold it then, and none lets another in.
                    while isinstance(key, Limit) and key in [asked[at][0] for at in waiting]:
                        probe.wait(0.01)
                    self.history.ended(hold)
            except LockNotAcquired as exc:
                if plan.flavour == "inside":
                    self.history.violate("liveness", f"after {patience:.2f} s: {exc}")
                waiting.pop(number)

        for number, (key, patience) in enumerate(asked):
            probe.spawn(lambda given=(number, key, patience): take(*given))
        end = self.scheduler.now + 3 * max(wait for _, wait in asked) + 5
        self.scheduler.run(end, lambda: not waiting or self._broken())
        if waiting and not self._broken():
            unanswered = [asked[number][0] for number in waiting]
            self.history.violate("liveness", f"no answer at all for {unanswered}")

    def _tidy(self) -> None:
        # A new master that sits out denies messages their majority for longer than peace lasts.
        self.scheduler.run(self.scheduler.now + self.plan.takeover, self._broken)
        machine = Machine(self.scheduler, "tidy", f"{self.plan.seed} tidy", 1.0, 0.0)
        worker = Machine(self.scheduler, "tidy worker", f"{self.plan.seed} worker", 1.0, 0.0)
        self.machines += [machine, worker]
        client, at_work = self._client(max_ttl=60.0), self._client(max_ttl=60.0)
        Tidiness(self, machine, client, worker, at_work).judge()


class _Errors(logging.Handler):
    """An exception that the shipped code logs and survives is a finding, too."""

    def __init__(self, world: World) -> None:
        super().__init__(logging.ERROR)
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        if not self._world.files.machine().dead:
            error = record.exc_info[1] if record.exc_info else None
            self._world.history.violate("error", f"{record.getMessage()}: {error!r}")


def _no_watchdog_runs() -> bool:
    """End this process's watchdog unless it has work, and return whether it has ended."""
    watchdog = process_watchdog()
    watchdog.stop_if_idle()
    return watchdog._thread is None


@contextlib.contextmanager
def _simulated(world: World) -> Iterator[None]:
    """Let the shipped modules find the simulated machine, and count what passes."""
    # The one of this process, if an earlier test has left one to idle, would look for it, too.
    wait_until(_no_watchdog_runs, message="the watchdog of this process did not end")
    history, files, counters = world.history, world.files, world.history.counters
    os_, time_, threads = Os(files), Time(files), Threading(files)
    really_counted = Master.counted
    split: dict[int, Any] = {}

    def attempt(transport: Any, params: Any) -> Any:
        floors = history.floors(tuple(name for name, _ in params.places))
        began = world.scheduler.now
        counters["attempts"] += 1
        if split.pop(id(params), None) is params:
            counters["split retry"] += 1
        made = attempt_once(transport, params)
        files.machine().owners.add(made.owner)
        if made.is_granted:
            history.won(made.owner, floors, began)
        elif made.phase is Phase.SPLIT:
            split[id(params)] = params
        if any(type(vote) is Quarantined for vote in made.round.votes):
            counters["quarantine"] += 1
        if world._traced:
            world.trace(
                f"{files.machine().name} attempt {made.owner[:8]} on "
                f"{' '.join(key.stored for key in params.keys)}: "
                f"{made.phase.name} {made.round.token}"
            )
        return made

    def counting(event: str, really: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any) -> Any:
            counters[event] += 1
            return really(*args)

        return counted

    def counted(master: Master, vote: Any, *args: Any) -> Any:
        is_former = world.network.servers[master.address] not in world.nodes
        counts_as: Any = really_counted(master, vote, *args)
        if counts_as is vote:
            counters["former counted"] += is_former
        elif type(counts_as) is not Failed or counts_as.reason.startswith("was promoted"):
            counters["too early"] += 1
        else:
            counters["former unconfirmed" if is_former else "unconfirmed"] += 1
        return counts_as

    connector = partial(SimConnector, world.network)

    def new_poller() -> Poller:
        return Poller(files)

    def wakeup() -> WakeupPipe:
        return WakeupPipe(files)

    places: dict[str, Any] = {
        "core.attempt.os": os_,
        "core.attempt.raise_fence": counting("second round", raise_fence),
        "core.attempt.move": counting("second round of slots", move),
        "core.client.process_watchdog": world.process_watchdog,
        "core.client.attempt_once": attempt,
        "core.client.os": os_,
        "core.holding.heal": counting("heal", heal),
        "core.lease.process_watchdog": world.process_watchdog,
        # The id of this process would make a difference to the slots that are drawn.
        "core.options.client_label": lambda: "",
        "core.release.process_watchdog": world.process_watchdog,
        "core.waiting.attempt_once": attempt,
        "core.waiting.os": os_,
        "core.watchdog.WakeupPipe": wakeup,
        "core.watchdog.unpatched": threads.unpatched,
        "core.watchdog.time": time_,
        "core.watchdog.new_poller": new_poller,
        "core.watchdog.start_native_thread": threads.start_native_thread,
        "protocol.mastership.Master.counted": counted,
        "transport.clock.time": time_,
        "transport.listeners.WakeupPipe": wakeup,
        # How many bytes a command has, and so where a full buffer cuts a call in two, depends on
        # earlier nonces.
        "transport.redis.connection._nonces": itertools.count(1),
        "transport.redis.connections.WakeupPipe": wakeup,
        "transport.redis.connections.threading": threads,
        "transport.redis.connections.new_poller": new_poller,
        "transport.redis.connections.start_native_thread": threads.start_native_thread,
        "transport.redis.connections.close_greenlet_hub": lambda: None,
        "transport.redis.masters.Connector": connector,
        "transport.redis.masters.GroupConnector": connector,
        "transport.redis.masters.WakeupPipe": wakeup,
        "transport.redis.masters.close_greenlet_hub": lambda: None,
        "transport.redis.masters.on_native_thread": threads.on_native_thread,
        "transport.redis.masters.start_native_thread": threads.start_native_thread,
        "transport.redis.masters.time": time_,
        "transport.redis.masters.unpatched": threads.unpatched,
        "transport.redis.node_set.time": time_,
        "transport.redis.sentinel.Connector": lambda *given: connector(*given[:2]),
        "transport.redis.sentinel.close_greenlet_hub": lambda: None,
        "transport.redis.sentinel.new_poller": new_poller,
        "transport.redis.sentinel.start_native_thread": threads.start_native_thread,
        "transport.redis.transport.on_native_thread": threads.on_native_thread,
        "transport.redis.transport.time": time_,
        "transport.redis.transport.RedisWakeUps": lambda _: SimWakeUps(world.network, files),
    }
    logger = logging.getLogger("celery_redlock")
    with contextlib.ExitStack() as stack:
        for place, value in places.items():
            stack.enter_context(mock.patch(f"celery_redlock.{place}", value))
        stack.enter_context(mock.patch.multiple(logger, handlers=[_Errors(world)], propagate=False))
        stack.callback(logger.setLevel, logger.level)
        logger.setLevel(logging.ERROR)
        # Shipped code and tenacity draw their jitter from the module's own generator.
        stack.callback(random.setstate, random.getstate())
        random.seed(f"jitter {world.plan.seed}")
        yield


def carry_out(plan: Plan, *, traced: bool = False, world: World | None = None) -> Outcome:
    """Run one plan; the same plan gives the same outcome, and the same trace byte for byte."""
    world = world or World(plan, traced=traced)
    with _simulated(world):
        return world.run()
