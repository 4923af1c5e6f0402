"""
One node and its copies, as states and moves; the shipped check decides whether it votes.

What a server does to its ids is modelled after the sources of Redis and Valkey: a start makes both
anew, a master's first replica or backup creates the replication backlog and with it a new
`master_replid`, and so does the freeing of the backlog when no replica was there for its TTL; a
promotion leaves the id of the master in `master_replid2`, which those two empty.

Times are those that remain, and ids are numbered in the order in which a state names them, so the
states are finitely many, and all histories of any length are explored.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

from celery_redlock.protocol.commands import acquire
from celery_redlock.protocol.keys import Key
from celery_redlock.protocol.node_model import GuardRecord, Identity, ModelNode, StoredKey
from celery_redlock.protocol.votes import Granted, Quarantined
from evidence.models.explorer import AnySetting, Found, ViolationError

#: Nothing is there: no key, no id, no backlog.
NONE = -1

#: The instant of every state, in ms.
NOW = 1000

KEY = "k"


@dataclass(frozen=True, slots=True, kw_only=True)
class IdentitySetting(AnySetting):
    """
    What is explored.

    Attributes:
        max_ttl: longest lease, and every lease, in ms.
        backlog_ttl: `repl-backlog-ttl`, in ms; long enough by default.
    """

    model: ClassVar = "evidence.models.identifying:Identifying"
    max_ttl: int = 2
    backlog_ttl: int = 2


class Data(NamedTuple):
    """
    What a server stores.

    Attributes:
        key: for how long the key stays.
        run: process that the guard record names; without a record `NONE`, like the rest of it.
        replication: id that it names.
        quarantine: for how long it forbids to vote.
    """

    key: int = NONE
    run: int = NONE
    replication: int = NONE
    quarantine: int = 0


class At(NamedTuple):
    """
    A state.

    Attributes:
        lease: for how long the lease is valid that the node, or its master, granted last.
        data: of the node.
        run: id of its process.
        replication: its `master_replid`.
        before: its `master_replid2`.
        backlog: in how many ms its backlog may be freed; `NONE` if it has none.
        follows: whether it is a replica.
        copy: an older state of the data, on a disk or on another server.
        copied: the `master_replid` of that time.
        unsure: whether it has started, lost its data or followed another server since it voted.
        renewed: whether its backlog was created or freed since it voted.
    """

    lease: int = 0
    data: Data = Data(run=0, replication=0)
    run: int = 0
    replication: int = 0
    before: int = NONE
    backlog: int = NONE
    follows: int = 0
    copy: Data = Data()
    copied: int = NONE
    unsure: int = 0
    renewed: int = 0


@dataclass(slots=True)
class Identifying:
    """The model of one setting."""

    setting: IdentitySetting
    reached: set[str] = field(default_factory=set)

    def initial(self) -> At:
        return At()

    def moves(self, at: At) -> Iterator[Found]:
        for label, found in self._moves(at):
            yield _numbered(found), (label, ()), ()

    def _moves(self, at: At) -> Iterator[tuple[str, At]]:
        yield "a millisecond passes", _later(at)
        yield self._asked(at)
        yield from self._started(at)
        yield self._event("flush", "its data is flushed", at, data=Data(), unsure=1)
        if at.follows:
            yield from self._replica(at)
        else:
            yield from self._master(at)

    def _asked(self, at: At) -> tuple[str, At]:
        """Let somebody try to acquire the key, by the shipped code; a replica may take writes."""
        data, valid = at.data, self.setting.max_ttl
        keys = {} if data.key == NONE else {KEY: StoredKey("old", NOW + data.key)}
        record = GuardRecord(str(data.run), str(data.replication), (NOW + data.quarantine) * 1000)
        state = ModelNode(
            Identity(
                str(at.run),
                str(at.replication),
                "" if at.before == NONE else str(at.before),
                is_master=not at.follows,
            ),
            keys,
            guard=None if data.run == NONE else record,
        )
        vote = state.run(acquire((Key(KEY, KEY),), "new", valid, 0, valid), NOW * 1000)
        label = f"an acquire: {type(vote).__name__.lower()}"
        self.reached.add(type(vote).__name__.lower())
        if isinstance(vote, Quarantined):
            if not at.unsure and not at.follows:
                raise ViolationError((label, ()), "a node that has lost nothing is quarantined")
        elif data.key == NONE and at.lease > 0:
            raise ViolationError((label, ()), "a node votes that has lost the key of a valid lease")
        elif at.renewed and not at.unsure:
            self.reached.add("a backlog was renewed, and it votes")
        assert state.guard is not None
        then = at._replace(
            data=Data(
                data.key,
                int(state.guard.run),
                int(state.guard.replication),
                max(0, state.guard.not_before // 1000 - NOW),
            )
        )
        if not isinstance(vote, Quarantined):
            then = then._replace(unsure=0, renewed=0)
        if isinstance(vote, Granted):
            then = then._replace(lease=valid, data=then.data._replace(key=valid))
        return label, then

    def _started(self, at: At) -> Iterator[tuple[str, At]]:
        """Start another process, with no data, all of it or an older state, as a master."""
        for what, data in (("empty", Data()), ("with its data", at.data), ("from a copy", at.copy)):
            # A snapshot that was made with a backlog names an id, which becomes the second one.
            for before in {NONE, at.copied}:
                yield self._event(
                    "starts",
                    f"it starts again {what}",
                    at,
                    data=data,
                    run=_new(at),
                    replication=_new(at),
                    before=before,
                    backlog=NONE if before == NONE else self.setting.backlog_ttl,
                    follows=0,
                    unsure=1,
                )

    def _master(self, at: At) -> Iterator[tuple[str, At]]:
        begun = {"copy": at.data, "backlog": self.setting.backlog_ttl}
        if at.backlog == NONE:
            yield self._event(
                "backup",
                "its first replica or a backup attaches",
                at,
                **begun,
                replication=_new(at),
                before=NONE,
                copied=_new(at),
                renewed=1,
            )
        else:
            label = "a replica or a backup attaches"
            yield self._event("backup", label, at, **begun, copied=at.replication)
        if at.backlog == 0:
            yield self._event(
                "backlog freed",
                "its backlog is freed",
                at,
                backlog=NONE,
                replication=_new(at),
                before=NONE,
                renewed=1,
            )
        follows = {"follows": 1, "backlog": self.setting.backlog_ttl, "unsure": 1}
        yield self._event("demoted", "it follows a server that it does not reach", at, **follows)
        if at.copied != NONE:
            follows |= {"data": at.copy, "before": NONE}
            for whom, replication in (("", at.copied), (", which was promoted", _new(at))):
                label = f"it follows its replica{whom}, and has the data of that"
                yield self._event("demoted", label, at, **follows, replication=replication)

    def _replica(self, at: At) -> Iterator[tuple[str, At]]:
        yield self._event(
            "promoted",
            "it is promoted",
            at,
            follows=0,
            before=at.replication,
            replication=_new(at),
            backlog=self.setting.backlog_ttl,
        )
        label = "its master grants a lease, and it does not get the key"
        yield label, at._replace(lease=self.setting.max_ttl, data=at.data._replace(key=NONE))

    def _event(self, event: str, label: str, at: At, **changes: object) -> tuple[str, At]:
        self.reached.add(event)
        then = at._replace(**changes)
        if then.lease > 0 and then.data.key == NONE:
            self.reached.add("a key is lost")
        return label, then


def _later(at: At) -> At:
    return at._replace(
        lease=max(0, at.lease - 1),
        data=_aged(at.data),
        copy=_aged(at.copy),
        # A backlog of a replica stays.
        backlog=at.backlog if at.follows else max(min(at.backlog, 0), at.backlog - 1),
    )


def _aged(data: Data) -> Data:
    return data._replace(key=max(NONE, data.key - 1), quarantine=max(0, data.quarantine - 1))


def _new(at: At) -> int:
    """Return an id that no part of a state names."""
    return 1 + max(
        *(at.run, at.replication, at.before, at.copied),
        *(data for part in (at.data, at.copy) for data in (part.run, part.replication)),
    )


def _numbered(at: At) -> At:
    """Return the same state with its ids in the order in which it names them."""
    numbers = {NONE: NONE}

    def number(name: int) -> int:
        return numbers.setdefault(name, len(numbers) - 1)

    def named(data: Data) -> Data:
        return data._replace(run=number(data.run), replication=number(data.replication))

    return at._replace(
        run=number(at.run),
        replication=number(at.replication),
        before=number(at.before),
        data=named(at.data),
        copied=number(at.copied),
        copy=named(at.copy),
    )


IDENTITIES = (
    IdentitySetting(
        name="identity",
        expects=frozenset(
            {
                *("granted", "refused", "quarantined", "starts", "flush", "demoted", "promoted"),
                *("backup", "backlog freed", "a backlog was renewed, and it votes"),
                "a key is lost",
            }
        ),
    ),
)
