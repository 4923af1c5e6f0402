"""
Two clients, one key and three nodes; the master of the first node is replaced.

The former master answers on, and each client asks it until it learns of the new one, which may have
missed the newest writes. The shipped rounds count what `Master` counts of their votes, and the
shipped node model grants, extends and sits out its quarantine. A command reaches any of the nodes,
and its replies come back from any of those.

Times are those that remain. A lease is valid as long as its keys are there, so clocks may drift
apart as far as is allowed.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache, partial
from typing import ClassVar, NamedTuple

from celery_redlock.protocol.commands import Command, acquire, extend
from celery_redlock.protocol.keys import Key
from celery_redlock.protocol.mastership import MAX_AGE, Master
from celery_redlock.protocol.node_model import GuardRecord, Identity, ModelNode, StoredKey
from celery_redlock.protocol.rounds import AcquireRound, ExtendRound, Phase, Round
from celery_redlock.protocol.votes import Failed, Quarantined, Vote
from evidence.models.explorer import AnySetting, Found, Label, ViolationError

#: Nothing is there: no key, no lease, no promotion, no record of a quarantine.
NONE = -1

#: The quarantine is over. At its last instant it is not: a lease is valid at its own.
OVER = -2

_LATER_QUARANTINE = {NONE: NONE, 0: OVER, OVER: OVER}

#: The instant of every state, in ms.
NOW = 1000

KEY, OTHER = "k", "other"
OWNERS = ("A", "B")

#: The servers: two of the first node, and one of each other.
FORMER, PROMOTED, *OTHERS = range(4)
NAMES = ("the former master", "the new master", "node 2", "node 3")


@dataclass(frozen=True, slots=True, kw_only=True)
class PromotionSetting(AnySetting):
    """
    What is explored. A tick is the time for which a named master counts as the master.

    Attributes:
        ttl: of every lease, in ticks; the longest that there is.
        takeover: ticks; a tick more than `unaware` are needed.
        unaware: ticks after the promotion in which others name the former master.
    """

    model: ClassVar = "evidence.models.promoted:Promoted"
    ttl: int = 2
    takeover: int = 2
    unaware: int = 1
    expects: frozenset[str] = frozenset(
        {
            *("promoted with the key", "promoted without the key"),
            *("granted with the former master", "granted with the new master"),
            *("extended with the former master", "extended with the new master"),
            *("quarantined", "not confirmed", "too early", "two servers vote for one node"),
        }
    )


class Stored(NamedTuple):
    """A key on a server: the number of its owner, and for how long it stays."""

    owner: int = NONE
    left: int = NONE


class Party(NamedTuple):
    """
    A client.

    Attributes:
        lease: for how long its lease is valid.
        has_tried: whether it has tried to acquire the key.
        knows: for how long it has known the new master; `NONE`: it asks the former one.
        saw_vote: whether the new master has voted on a lock of it.
    """

    lease: int = NONE
    has_tried: int = 0
    knows: int = NONE
    saw_vote: int = 0


class At(NamedTuple):
    """
    A state.

    Attributes:
        keys: the key on each server.
        parties: the clients.
        since: for how long the new master has been that; `NONE`: it is a replica.
        quarantine: for how long it forbids new locks; `NONE`: nobody has asked it for one; `OVER`.
    """

    keys: tuple[Stored, ...] = (Stored(),) * 4
    parties: tuple[Party, ...] = (Party(),) * 2
    since: int = NONE
    quarantine: int = NONE


@dataclass(slots=True)
class Promoted:
    """The model of one setting."""

    setting: PromotionSetting
    reached: set[str] = field(default_factory=set)

    def initial(self) -> At:
        return At()

    def moves(self, at: At) -> Iterator[Found]:
        for label, found in self._moves(at):
            self._look(label, found)
            *masters, second, third = found.keys
            if third < second:
                found = found._replace(keys=(*masters, third, second))
            # The first node stays where it is.
            yield found, label, (-1, second < third, second > third)

    def _moves(self, at: At) -> Iterator[tuple[Label, At]]:
        yield ("a tick passes", ()), self._later(at)
        if at.since == NONE:
            setting = self.setting
            asked = acquire((Key(OTHER, OTHER),), "C", 1, 0, setting.ttl + setting.takeover)
            for has_key, is_asked in itertools.product((True, False), repeat=2):
                stored = at.keys[FORMER] if has_key else Stored()
                event = f"promoted {'with' if has_key else 'without'} the key"
                self.reached.add(event)
                then = _put(at, PROMOTED, stored)._replace(since=0)
                if is_asked:
                    event += ", and asked at once for another lock"
                    then = then._replace(quarantine=_run(PROMOTED, Stored(), NONE, asked)[1])
                yield (f"a replica is {event}", ()), then
        for who in range(2):
            party = at.parties[who]
            if at.since != NONE and party.knows == NONE:
                yield (f"{OWNERS[who]} learns of the new master", ()), _with(at, who, knows=0)
            yield from self._asks(at, who, party)

    def _later(self, at: At) -> At:
        setting = self.setting
        return At(
            tuple(Stored(one.owner, one.left - 1) if one.left > 0 else Stored() for one in at.keys),
            tuple(
                party._replace(
                    lease=max(NONE, party.lease - 1),
                    knows=NONE if party.knows == NONE else min(setting.takeover, party.knows + 1),
                )
                for party in at.parties
            ),
            NONE if at.since == NONE else min(setting.unaware + 2, at.since + 1),
            _LATER_QUARANTINE.get(at.quarantine, at.quarantine - 1),
        )

    def _asks(self, at: At, who: int, party: Party) -> Iterator[tuple[Label, At]]:
        ttl, quarantine = self.setting.ttl, self.setting.ttl + self.setting.takeover
        keys, owner = (Key(KEY, KEY),), OWNERS[who]
        # A clock that stands: a lease ends when the model says so.
        stands = {"sent_at": 0.0, "ttl": 10.0, "drift_factor": 0.0}
        if not party.has_tried:
            command, tried = acquire(keys, owner, ttl, 0, quarantine), _with(at, who, has_tried=1)
            make_round = partial(AcquireRound, 3, **stands)
            yield from self._delivered(tried, who, command, make_round, "asks for the lock")
        if party.lease != NONE:
            command = extend(keys, owner, ttl, 1)
            make_round = partial(ExtendRound, 3, **stands, valid_until=1.0)
            yield from self._delivered(at, who, command, make_round, "extends its lease")

    def _delivered(
        self, at: At, who: int, command: Command, make_round: Callable[[], Round], does: str
    ) -> Iterator[tuple[Label, At]]:
        """Yield the state after a command, for all nodes that it may reach and that may reply."""
        for reached, replied in _DELIVERIES:
            round_ = make_round()
            then, by = self._exchanged(at, who, command, round_, reached, replied)
            is_granted = round_.phase in (Phase.GRANTED, Phase.RAISING)
            if is_granted:
                done = "extended" if isinstance(round_, ExtendRound) else "granted"
                self.reached.add(f"{done} with {by}")
                then = _with(then, who, lease=self.setting.ttl)
            yield _label(who, does, reached, replied, granted=is_granted), then

    def _exchanged(
        self,
        at: At,
        who: int,
        command: Command,
        round_: Round,
        reached: tuple[bool, ...],
        replied: tuple[bool, ...],
    ) -> tuple[At, str]:
        """Execute a command where it arrives; return the state then, and who voted for node 1."""
        first = FORMER if at.parties[who].knows == NONE else PROMOTED
        counted = ""
        for node, server in enumerate((first, *OTHERS)):
            vote: Vote = Failed("no reply")
            if reached[node]:
                at, vote = self._executed(at, server, command)
                if not replied[node]:
                    vote = Failed("no reply")
                elif node == 0:
                    at, vote = self._counted(at, who, vote, command)
                    counted = NAMES[server] if not isinstance(vote, Failed) else ""
            round_.vote(node, vote, 0.0)
        return at, counted or "others alone"

    def _executed(self, at: At, server: int, command: Command) -> tuple[At, Vote]:
        quarantine = at.quarantine if server == PROMOTED else OVER
        stored, quarantine, vote = _run(server, at.keys[server], quarantine, command)
        at = _put(at, server, stored)
        if isinstance(vote, Quarantined):
            self.reached.add("quarantined")
        return (at._replace(quarantine=quarantine) if server == PROMOTED else at), vote

    def _counted(self, at: At, who: int, vote: Vote, command: Command) -> tuple[At, Vote]:
        """Return what the client counts of the vote for the first node."""
        party, takeover = at.parties[who], self.setting.takeover * MAX_AGE
        if party.knows == NONE:
            # It is named until the others know better.
            unconfirmed = max(0, at.since - self.setting.unaware) * MAX_AGE
            master = Master(
                ("former", 1),
                0,
                confirmed_at=-unconfirmed,
                seen_at=-2 * takeover,
                takeover=takeover,
            )
        else:
            seen_at = -party.knows * MAX_AGE
            master = Master(("new", 1), 1, confirmed_at=0.0, seen_at=seen_at, takeover=takeover)
            master.has_voted = bool(party.saw_vote)
        counted = master.counted(vote, command.script, 0.0, 0.0)
        if counted is not vote:
            self.reached.add("not confirmed" if party.knows == NONE else "too early")
        if party.knows != NONE:
            at = _with(at, who, saw_vote=int(master.has_voted))
        return at, counted

    def _look(self, label: Label, at: At) -> None:
        if all(party.lease != NONE for party in at.parties):
            raise ViolationError(label, "two clients hold the lock")
        owners = {at.keys[FORMER].owner, at.keys[PROMOTED].owner}
        if owners == {0, 1}:
            self.reached.add("two servers vote for one node")


@cache
def _run(
    server: int, stored: Stored, quarantine: int, command: Command
) -> tuple[Stored, int, Vote]:
    """Execute a command; return the server's key then, the rest of its quarantine, and its vote."""
    name, former = NAMES[server], NAMES[FORMER]
    keys = {} if stored.owner == NONE else {KEY: StoredKey(OWNERS[stored.owner], NOW + stored.left)}
    recorded = former if quarantine == NONE else name
    not_before = (NOW + quarantine) * 1000 + 1 if quarantine >= 0 else NOW * 1000
    record = GuardRecord(recorded, recorded, not_before)
    node = ModelNode(Identity(name, name, former * (server == PROMOTED)), keys, guard=record)
    vote = node.run(command, NOW * 1000)
    owner = node.owner(KEY, NOW * 1000)
    if owner is not None:
        stored = Stored(OWNERS.index(owner), int(node.keys[KEY].expires_at) - NOW)
    assert node.guard is not None
    if node.guard.run == name:
        left = node.guard.not_before - NOW * 1000
        quarantine = left // 1000 if left > 0 else OVER
    return stored, quarantine, vote


#: The nodes that a command may reach, and those of them whose replies come back.
_DELIVERIES = tuple(
    (tuple(fate > 0 for fate in fates), tuple(fate > 1 for fate in fates))
    for fates in itertools.product((0, 1, 2), repeat=3)
)


@cache
def _label(
    who: int, does: str, reached: tuple[bool, ...], replied: tuple[bool, ...], *, granted: bool
) -> Label:
    told = [
        "{}" + " (its reply is lost)" * (not came)
        for came, is_there in zip(replied, reached, strict=True)
        if is_there
    ]
    end = "granted" if granted else "not granted"
    text = f"{OWNERS[who]} {does}, which reaches {', '.join(told) or 'no node'}: {end}"
    return text, tuple(node for node in range(3) if reached[node])


def _put(at: At, server: int, stored: Stored) -> At:
    return at._replace(keys=(*at.keys[:server], stored, *at.keys[server + 1 :]))


def _with(at: At, who: int, **changes: int) -> At:
    parties = list(at.parties)
    parties[who] = parties[who]._replace(**changes)
    return at._replace(parties=tuple(parties))


PROMOTIONS = (PromotionSetting(name="promotion"),)
