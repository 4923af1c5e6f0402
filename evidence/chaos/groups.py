"""Faults of Sentinel groups: which come when, and how they are carried out and mended."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import redis

from celery_redlock.testing import LocalClusterError, LocalSentinel
from evidence.chaos.history import Journal, now
from evidence.chaos.nemesis import Nemesis, Progress
from evidence.chaos.schedule import Fault, deck, worker_faults
from evidence.chaos.workers import WorkerCrew

GROUPS, SENTINELS = 3, 3

#: Five seconds for which a named master counts as one, a reply, and two until Sentinels know.
TAKEOVER = 8.0

#: Sentinels that were paused take part in no failover for half a minute.
_PROMOTED_WITHIN = 45.0

#: A former master becomes a replica after ten seconds, if the Sentinels are well.
_WHOLE_WITHIN = 90.0

Breaks = Callable[[LocalSentinel, int, int], object]


def _hide(groups: LocalSentinel, group: int, server: int) -> None:
    """Let Sentinels alone take a server for dead; it answers them with an error."""
    _execute(groups, group, server, "ACL SETUSER default -ping")


def _show(groups: LocalSentinel, group: int, server: int) -> None:
    _execute(groups, group, server, "ACL SETUSER default +ping")


def _order_failover(groups: LocalSentinel, group: int, server: int) -> None:
    """Ask the Sentinels for a failover until one of them promises it."""
    for sentinel in range(SENTINELS):
        client: Any = groups.sentinel_client(sentinel)
        with contextlib.suppress(redis.RedisError):
            client.execute_command("SENTINEL FAILOVER", groups.name(group))
            return


def _nothing(groups: LocalSentinel, group: int, server: int) -> None:
    """Do nothing: the former master is well."""


def _execute(groups: LocalSentinel, group: int, server: int, command: str) -> None:
    client: Any = groups.client(group, server)
    client.execute_command(*command.split())


#: What is done to a group's master, and undone some time after another one was promoted.
MASTER_FAULTS: Mapping[str, tuple[Breaks, Breaks]] = {
    "kill master": (LocalSentinel.kill, LocalSentinel.restart),
    "pause master": (LocalSentinel.pause, LocalSentinel.resume),
    "cut master off": (LocalSentinel.cut, LocalSentinel.heal),
    "hide master": (_hide, _show),
    "fail over": (_order_failover, _nothing),
}

#: What is done to Sentinels.
SENTINEL_FAULTS: Mapping[str, tuple[Callable[..., object], Callable[..., object]]] = {
    "kill Sentinels": (LocalSentinel.kill_sentinel, LocalSentinel.restart_sentinel),
    "pause Sentinels": (LocalSentinel.pause_sentinel, LocalSentinel.resume_sentinel),
}


def plan_groups(seed: int, duration: float) -> list[Fault]:
    """Return the faults of a run in order; the same seed gives the same ones."""
    parts = (
        worker_faults(random.Random(f"{seed} workers"), duration),
        _faults(random.Random(f"{seed} masters"), duration, MASTER_FAULTS, pause=3.0),
        _faults(random.Random(f"{seed} Sentinels"), duration, SENTINEL_FAULTS, pause=30.0),
    )
    return sorted((fault for part in parts for fault in part), key=lambda fault: fault.at)


def _faults(
    rng: random.Random, duration: float, kinds: Mapping[str, object], *, pause: float
) -> Iterator[Fault]:
    """Yield faults of one of the three, and now and then of two at once."""
    dealt = deck(rng, list(kinds))
    at = 1.0
    while (at := at + rng.expovariate(1 / pause)) < duration:
        targets = tuple(rng.sample(range(3), rng.choice((1, 1, 1, 2))))
        yield Fault(at=at, kind=next(dealt), targets=targets, seconds=rng.uniform(0.0, 8.0))


class GroupNemesis(Nemesis):
    """
    Breaks masters, Sentinels and workers.

    A fault of masters waits until all groups are whole again, one of Sentinels for no master.
    """

    def __init__(
        self,
        *,
        groups: LocalSentinel,
        crew: WorkerCrew,
        journal: Journal,
        keys: Sequence[str],
        guarded: bool,
    ) -> None:
        super().__init__(crew=crew, journal=journal, keys=keys, nodes=GROUPS)
        self._groups = groups
        self._guarded = guarded
        self._sentinels_are_faulty = False

    def _client(self, node: int) -> redis.Redis:
        try:
            return self._groups.client(node, self._groups.master(node))
        except LocalClusterError as error:
            raise redis.ConnectionError(str(error)) from error

    def _may_harm(self, fault: Fault) -> bool:
        return not (self._sentinels_are_faulty if fault.kind in SENTINEL_FAULTS else self._faulty)

    def _harmed(self, fault: Fault) -> Progress:
        on_sentinels = fault.kind in SENTINEL_FAULTS
        return self._on_sentinels(fault) if on_sentinels else self._on_masters(fault)

    def _on_sentinels(self, fault: Fault) -> Progress:
        self._sentinels_are_faulty = True
        begin, end = SENTINEL_FAULTS[fault.kind]
        self._journal.note("sentinel fault", kind=fault.kind, sentinels=fault.targets)
        for sentinel in fault.targets:
            begin(self._groups, sentinel)
        yield fault.seconds
        for sentinel in fault.targets:
            end(self._groups, sentinel)
        self._journal.note("sentinel fault over", kind=fault.kind)
        self._sentinels_are_faulty = False

    def _on_masters(self, fault: Fault) -> Progress:
        begin, end = MASTER_FAULTS[fault.kind]
        nodes = fault.targets
        self._journal.note("fault", kind=fault.kind, nodes=nodes)
        self._faulty.update(nodes)
        for node in nodes:
            self._harmed_at[node] = float("inf")
        yield from self._until_whole()
        former = {node: self._groups.master(node) for node in nodes}
        for node, server in former.items():
            begin(self._groups, node, server)
        deadline = now() + _PROMOTED_WITHIN
        while not all(map(self._has_another, nodes, former.values())) and now() < deadline:
            yield 0.1
        promoted = sum(map(self._has_another, nodes, former.values()))
        self.faults[f"{fault.kind}: promoted"] += promoted
        yield fault.seconds
        for node, server in former.items():
            end(self._groups, node, server)
        self._journal.note("mended", kind=fault.kind, nodes=nodes, promoted=promoted)
        yield from self._until_whole()
        for node in nodes:
            if self._guarded:
                yield from self._until_it_serves(node)
            self._harmed_at[node] = now()
        self._faulty.clear()
        self._journal.note("serving", kind=fault.kind, nodes=nodes)

    def _has_another(self, node: int, former: int) -> bool:
        """Return whether another server than the former master has the role of one."""
        with contextlib.suppress(redis.RedisError, LocalClusterError):
            return self._groups.master(node) != former
        return False

    def _until_whole(self) -> Progress:
        """Wait until each group has one master and one replica again."""
        deadline = now() + _WHOLE_WITHIN
        while now() < deadline:
            with contextlib.suppress(redis.RedisError):
                clients: list[Any] = [self._client(node) for node in range(GROUPS)]
                if all(one.info("replication")["connected_slaves"] == 1 for one in clients):
                    return
            yield 0.1
        self._journal.note("violation", rule="a group is whole again", nodes=list(self._faulty))
