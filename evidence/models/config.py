"""
What one exploration is about: who contends, and what may go wrong meanwhile.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, ClassVar

from evidence.models.explorer import AnySetting


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """
    One attempt and what follows from it.

    Attributes:
        candidate: µs by which its wall clock is ahead; the candidate itself where time stands.
        keys: lock keys, as nodes store them.
        extends: how many extensions it may try.
        extends_to: length that extensions ask for, in ticks; the lease's own if None.
        releases: it may release; otherwise it holds on until its time is over.
        after: contender that must have ended before; the same client tries again.
        behind: contender that must have the lock, or have ended, before this one starts.
        gives_up: it may stop to wait for answers before they decide.
        starts_from: first tick at which it may start.
        starts_by: last tick at which it may start.
        reserves: it sends a message: takes its keys for whoever gets that, and holds no lease.
        takes_over: whose reservation counts as free for it: `Q`, which a message has brought along,
            or the name of a contender that has reserved or hands back.
        ends: what becomes of its keys: `release`, `finish` (the message's mark says so from then
            on), `hand back` (they are reserved again); of a reservation: `lengthen`, `cancel`.
        waits: nodes that refuse it shall wake it.
        fair: it lets those that have waited longer go first; implies `waits`.
    """

    candidate: int = 0
    keys: tuple[str, ...] = ("k",)
    extends: int = 0
    extends_to: int | None = None
    releases: bool = True
    after: int | None = None
    behind: int | None = None
    gives_up: bool = True
    starts_from: int = 0
    starts_by: int = 99
    reserves: bool = False
    takes_over: str = ""
    ends: tuple[str, ...] = ("release",)
    waits: bool = False
    fair: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting(AnySetting):
    """
    What is explored.

    Attributes:
        contenders: who contends.
        timed: time passes in ticks of 1 ms; otherwise it stands, and keys expire at any moment.
        ttl: lease length in ticks.
        drift_factor: as the setting.
        horizon: last tick.
        max_ttl: what a restarted node sits out, in ticks; 0: guard off.
        crashes: how many nodes may crash in total.
        crash_kinds: of `empty` (restart without data), `noticed` (the same, and somebody else asks
            the node at once), `stale` (restart with data from before the locks), `flush` (data lost
            while running), `counters` (only the fence counters lost), `queues` (only the wait
            queues lost), `snapshot` (restart with data from when the message was sent).
        leaps: how many times a node's clock may gain `leap` ticks.
        losses: how many commands may be lost on their way.
        fences: counters that each node has from before.
        expiries: how many keys may expire where time stands; None: any number.
        split: it is a violation when all contenders conclude that the lock is contended.
        brought: `k` is reserved for the message of `Q` on every node from the beginning.
        keeps: nothing is lost: the reservation survives if nobody gets the lock, and is gone
            otherwise.
        clears: a reservation that was taken over and given up is on no node for longer than its
            grace, once everything that was begun is done.
        wakes: each contender that was refused is woken after the holder's release.
        period: ticks within which one slot of a key with a rate is granted once.
    """

    model: ClassVar = "evidence.models.world:World"
    contenders: tuple[Contender, ...]
    nodes: int = 3
    timed: bool = False
    ttl: int = 4
    drift_factor: float = 0.0
    horizon: int = 0
    max_ttl: int = 0
    crashes: int = 0
    crash_kinds: tuple[str, ...] = ("empty",)
    leaps: int = 0
    leap: int = 3
    losses: int = 0
    fences: tuple[tuple[str, int], ...] = ()
    expiries: int | None = None
    split: bool = False
    whole: bool = False
    brought: bool = False
    keeps: bool = False
    clears: bool = False
    wakes: bool = False
    period: int = 0


def explored(
    name: str, *contenders: Contender, expects: Collection[str] = (), **what: Any
) -> Setting:
    """Return a setting."""
    return Setting(name=name, contenders=contenders, expects=frozenset(expects), **what)
