"""
A node: `ModelNode` behind the bytes that a server reads and writes.
"""

from __future__ import annotations

import copy
from collections import Counter
from itertools import zip_longest
from typing import Any

import hiredis

from celery_redlock.protocol.commands import SHA, SOURCE, Command, Script
from celery_redlock.protocol.keys import wake_channel
from celery_redlock.protocol.node_model import Identity, ModelNode
from celery_redlock.protocol.votes import (
    Acknowledged,
    Granted,
    KeyStates,
    LeaseVotes,
    NotHeld,
    Quarantined,
    Refused,
    Vote,
)
from evidence.simulation.network import Wire
from evidence.simulation.scheduler import Clock, Scheduler

_BY_SHA = {sha.encode(): kind for kind, sha in SHA.items()}
_BY_SOURCE = {source.encode(): kind for kind, source in SOURCE.items()}


#: Arguments of a release that leaves nothing behind under another value.
_PLAIN = 4


class Server:
    """
    One server process at one address.

    Attributes:
        index: its place in the network.
        address: its host and port.
        epoch: counts its starts; a connection to an earlier one is refused.
        down: no process serves now.
        stopped_until: SIGSTOP; what is said meanwhile runs afterwards.
    """

    def __init__(self, scheduler: Scheduler, index: int, address: tuple[str, int]) -> None:
        self.index = index
        self.address = address
        self.epoch = 1
        self.down = False
        self.stopped_until = 0.0
        self._scheduler = scheduler
        self._backlog: list[tuple[Wire, bytes, float]] = []

    def stop(self, until: float) -> None:
        self.stopped_until = max(self.stopped_until, until)
        self._scheduler.at(self.stopped_until, self.go_on)

    def go_on(self) -> None:
        if self._scheduler.now < self.stopped_until:
            return
        backlog, self._backlog = self._backlog, []
        for wire, data, said_at in backlog:
            self._run(wire, data, said_at)

    def receive(self, wire: Wire, data: bytes, said_at: float) -> None:
        if self.down or wire.epoch != self.epoch:
            wire.refused()
        elif self._backlog or self._scheduler.now < self.stopped_until:
            self._backlog.append((wire, data, said_at))
        else:
            self._run(wire, data, said_at)

    def _run(self, wire: Wire, data: bytes, said_at: float) -> None:
        raise NotImplementedError


class SimNode(Server):
    """
    A server that votes, or that may once it is promoted.

    Attributes:
        read_only: whether it takes no writes, as a replica.
        commands: how often each command has run.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        index: int,
        address: tuple[str, int],
        clock: Clock,
        parser: Parser,
        set_on: Counter[str],
        trace: Any,
    ) -> None:
        super().__init__(scheduler, index, address)
        self.clock = clock
        self.read_only = False
        self.commands: dict[Script, int] = dict.fromkeys(Script, 0)
        self.state = ModelNode(Identity(f"{index}-1", f"{index}-1"))
        self.state.arm()
        self._identities = 1
        self._scripts: set[Script] = set()
        self._snapshot: ModelNode | None = None
        self._parser = parser
        #: On how many nodes an owner value has been set.
        self._set_on = set_on
        self._set_here: set[str] = set()
        self._trace = trace

    def load_scripts(self) -> None:
        self._scripts.update(Script)

    def forget_scripts(self) -> None:
        self._scripts.clear()

    def take_snapshot(self) -> None:
        self._snapshot = copy.deepcopy(self.state)

    def new_identity(self) -> None:
        self._identities += 1
        name = f"{self.index}-{self._identities}"
        self.state.identity = Identity(name, name)

    def change_role(self) -> None:
        self._identities += 1
        before = self.state.identity
        name = f"{self.index}-{self._identities}"
        self.state.identity = Identity(before.run, name, before.replication)

    def follow(self, master: SimNode) -> None:
        """Be a replica that has just got the data of its master."""
        if self.down:
            self.start("full")
        run, replication = self.state.identity.run, master.state.identity.replication
        self.state = copy.deepcopy(master.state)
        self.state.identity = Identity(run, replication, is_master=False)
        # What it sets is set on the same node.
        self._set_here = master._set_here
        self.read_only = True

    def crash(self) -> None:
        self.down = True
        self.epoch += 1
        self.stopped_until = 0.0
        self._backlog.clear()

    def start(self, data: str) -> bool:
        """Serve again with `none`, `stale` or `full` data; tell whether anything was lost."""
        if data == "stale" and self._snapshot is not None:
            self.state = copy.deepcopy(self._snapshot)
        elif data != "full":
            self.state.lose_data()
        self.new_identity()
        self.forget_scripts()
        self.down = False
        self.read_only = False
        return data != "full"

    def _run(self, wire: Wire, data: bytes, said_at: float) -> None:
        wire.taken(len(data))
        if wire.reader is None:
            calls = self._parser.read(data)
        else:
            wire.reader.feed(data)
            calls = _calls(wire.reader)
        if not calls:
            return
        now_us = self.clock.wall_us()
        wire.answer(b"".join([self._answer(wire, call, now_us) for call in calls]), said_at)

    def _answer(self, wire: Wire, call: Any, now_us: int) -> bytes:
        in_full, nonce, command = call
        kind = command.script
        if in_full:
            self._scripts.add(kind)
        elif kind not in self._scripts:
            return b"-NOSCRIPT No matching script.\r\n"
        if self.read_only:
            return b"-READONLY You can't write against a read only replica.\r\n"
        self.commands[kind] += 1
        vote = self.state.run(command, now_us)
        while self.state.published:
            key, name = self.state.published.pop(0)
            wire.publish(wake_channel(key), name)
        has_set = type(vote) is Acknowledged and kind in (Script.HEAL, Script.RAISE)
        if has_set or type(vote) is Granted:
            self._note_set(command.args[0])
        if kind is Script.RELEASE and len(command.args) > _PLAIN:
            for value in command.args[5::3]:
                self._note_set(value)
        if self._trace is not None:
            owner = "".join(command.args[:1])[:8]
            keys = " ".join(command.keys[: len(command.keys) // 2])
            self._trace(f"{self.address[0]} {kind} {keys} {owner} of {wire.machine.name}: {vote}")
        return _reply(nonce, (len(command.keys) - 1) // 2, vote)

    def _note_set(self, owner: Any) -> None:
        if owner and owner not in self._set_here:
            self._set_here.add(owner)
            self._set_on[owner] += 1


class Parser:
    """Reads calls; the same bytes go to every node, so what was read last is remembered."""

    def __init__(self) -> None:
        self._seen: bytes = b""
        self._calls: list[Any] = []

    def read(self, data: bytes) -> list[Any]:
        if data != self._seen:
            reader = hiredis.Reader()
            reader.feed(data)
            self._seen, self._calls = data, _calls(reader)
        return self._calls


def _calls(reader: hiredis.Reader) -> list[Any]:
    calls = []
    while (words := reader.gets()) is not False:
        calls.append(_call(words))
    return calls


def _call(words: list[bytes]) -> tuple[bool, bytes, Command]:
    in_full = words[0] == b"EVAL"
    kind = _BY_SOURCE[words[1]] if in_full else _BY_SHA[words[1]]
    count = int(words[2])
    keys = tuple(word.decode() for word in words[3 : 3 + count])
    args = tuple(word.decode() for word in words[4 + count :])
    return in_full, words[3 + count], Command(kind, keys, args)


def _letter(vote: Vote) -> bytes:
    if isinstance(vote, NotHeld):
        return b"M" if vote.missing else b"F"
    return b"A"


def _reply(nonce: bytes, keys: int, vote: Any) -> bytes:
    fields: list[Any] = [nonce]
    if isinstance(vote, Granted) and vote.slots:
        counters = [vote.low] + [vote.high] * (keys - 1)
        slots = [b"%d" % slot for slot in vote.slots]
        pairs = zip_longest([b"%d" % counter for counter in counters], slots, fillvalue=b"")
        fields += [b"P", *(field for pair in pairs for field in pair)]
    elif isinstance(vote, Granted):
        fields += [b"G", b"%d" % vote.low]
        fields += [b"%d" % vote.high] * (keys - 1)
    elif isinstance(vote, Acknowledged | NotHeld):
        fields.append(_letter(vote))
    elif isinstance(vote, LeaseVotes):
        fields.append(b"".join(map(_letter, vote.votes)))
    elif isinstance(vote, Refused):
        turn, before = round(vote.turn_in * 1000), vote.before
        fields += [b"W", turn] if turn else [b"L", before] if before else [b"H"]
        for holder in vote.holders:
            fields += [holder.key, holder.owner.encode(), round(holder.expires_in * 1000)]
    elif isinstance(vote, Quarantined):
        fields += [b"Q", round(vote.remaining * 1000)]
    elif isinstance(vote, KeyStates):
        fields.append(b"S")
        for state in vote.states:
            left = -2 if state.owner is None else round(state.expires_in * 1000)
            fields += [(state.owner or "").encode(), left, b"%d" % state.counter]
    return b"*%d\r\n" % len(fields) + b"".join(
        b":%d\r\n" % field if isinstance(field, int) else b"$%d\r\n%s\r\n" % (len(field), field)
        for field in fields
    )
