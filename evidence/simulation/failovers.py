"""
Nodes that fail over: two servers each, and the Sentinels that tell which of them is the master.

The Sentinels keep to what the lock relies on. Each knows of a promotion at most `KNOWN_WITHIN`
seconds after it, even if it is silent meanwhile, and only a server that has followed the master is
promoted. What a client hears of them is another matter: its links to them may be cut.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import hiredis

from evidence.simulation.network import Network, Wire
from evidence.simulation.node import Server, SimNode
from evidence.simulation.plan import SENTINELS
from evidence.simulation.scheduler import Scheduler

#: Where each Sentinel is.
SENTINEL_PORT = 26379

#: Seconds after a promotion in which Sentinels may still name the former master.
KNOWN_WITHIN = 2.0

#: The probability that a Sentinel takes the former master for dead until it knows of the new one.
_DOUBT = 0.3


class Group:
    """
    A node of two servers, of which one is the master.

    Attributes:
        name: that the Sentinels have for it.
        master: whom they agree on, or will.
        other: its replica; after a promotion the former master, which knows nothing of it yet.
        promotions: how many there were.
    """

    def __init__(self, name: str, master: SimNode, other: SimNode) -> None:
        self.name = name
        self.master = master
        self.other = other
        self.promotions = 0
        other.follow(master)

    @property
    def has_replica(self) -> bool:
        """Whether the other server follows the master."""
        return not self.other.state.identity.is_master

    def replicate(self) -> None:
        """Bring the replica up to date; what the master writes later does not reach it."""
        if self.has_replica:
            self.other.follow(self.master)

    def promote(self) -> None:
        """Make the replica the master, with the data that it has."""
        self.promotions += 1
        self.master, self.other = self.other, self.master
        self.master.read_only = False
        self.master.change_role()

    def demote(self, network: Network) -> None:
        """Tell the former master: it drops its data and its clients, and follows the new one."""
        if not self.has_replica:
            self.other.follow(self.master)
            for wire in network.wires(None, self.other.index):
                wire.refused()


class SimSentinel(Server):
    """A Sentinel, which answers `SENTINEL MASTER`."""

    def __init__(
        self, scheduler: Scheduler, index: int, number: int, groups: Sequence[Group], seed: int
    ) -> None:
        super().__init__(scheduler, index, (f"s{number}", SENTINEL_PORT))
        self._random = random.Random(f"{seed} sentinel {number}")
        #: of each group the master, the number of its promotion, and the flags
        self._known = {group.name: (group.master.address, 0, "master") for group in groups}

    def names(self, group: str) -> tuple[tuple[str, int], int]:
        """Return the address that it has for a group's master, and the number of its promotion."""
        return self._known[group][:2]

    def hear_of(self, group: Group) -> None:
        """Learn of a promotion that has just been made, sooner or later."""
        former, epoch, _ = self._known[group.name]
        if self._random.random() < _DOUBT:
            self._known[group.name] = former, epoch, "master,o_down,failover_in_progress"
        known = group.master.address, group.promotions, "master"
        self._scheduler.after(
            self._random.uniform(0.0, KNOWN_WITHIN), self._known.__setitem__, group.name, known
        )

    def _run(self, wire: Wire, data: bytes, said_at: float) -> None:
        wire.taken(len(data))
        reader = hiredis.Reader()
        reader.feed(data)
        while (words := reader.gets()) is not False:
            assert words[:2] == [b"SENTINEL", b"MASTER"]
            wire.answer(self._answer(words[2].decode()), said_at)

    def _answer(self, name: str) -> bytes:
        (host, port), epoch, flags = self._known[name]
        fields: dict[str, object] = {
            "name": name,
            "ip": host,
            "port": port,
            "flags": flags,
            "config-epoch": epoch,
            "num-other-sentinels": SENTINELS - 1,
        }
        words = [str(word).encode() for field in fields.items() for word in field]
        return b"*%d\r\n" % len(words) + b"".join(
            b"$%d\r\n%s\r\n" % (len(word), word) for word in words
        )
