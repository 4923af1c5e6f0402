"""
The Sentinels of a group of servers: what they report, and which server is the master by that.

A majority of the Sentinels has to agree, because one of them may know only what was, and none of
them may know of a newer promotion.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import hiredis

from celery_redlock._greenlets.poller import READ, as_milliseconds, new_poller
from celery_redlock.protocol.mastership import TAKEOVER, Master
from celery_redlock.protocol.texts import shortened
from celery_redlock.protocol.timing import quorum
from celery_redlock.transport import clock
from celery_redlock.transport.addresses import NodeAddress, parse_node
from celery_redlock.transport.redis.connect_error import OF_SENTINEL, failure_of
from celery_redlock.transport.redis.connector import Connector
from celery_redlock.transport.redis.framing import ReplyReader

#: A Sentinel with one of these flags takes its master for dead.
_DOUBTS = frozenset({"o_down", "failover_in_progress"})

_UNKNOWN = "watches no master of that name"

#: The meanings of a Sentinel's refusals, by their beginnings.
_REFUSALS = {
    "ERR No such master": _UNKNOWN,
    "NOAUTH": f"asks for a password, and the URL has none for it; write {OF_SENTINEL.password}",
    "NOPERM": "refuses SENTINEL MASTER to the URL's user; grant it +sentinel|master",
    "ERR unknown command": "is not a Sentinel; name the Sentinels' ports, 26379 by default",
}


@dataclass(frozen=True, slots=True)
class Report:
    """
    A Sentinel's reply about a group.

    Attributes:
        address: host and port of the master.
        epoch: number of its promotion.
        vouches: whether the Sentinel takes it for alive.
        others: the number of other Sentinels that it knows.
    """

    address: tuple[str, int]
    epoch: int
    vouches: bool
    others: int = 0


@dataclass(frozen=True, slots=True)
class NoReport:
    """
    Why a Sentinel reported nothing about a group.

    Attributes:
        sentinel: its host and port.
        reason: continues a sentence that begins with it.
        lasting: whether that is its or the URL's set-up, which no waiting repairs.
    """

    sentinel: str
    reason: str
    lasting: bool

    def __str__(self) -> str:
        return f"{self.sentinel} {self.reason}"


_NOT_ASKED = NoReport("a Sentinel", "has not been asked yet", lasting=False)


def named_master(reports: Sequence[Report | NoReport], *, of_all: bool = False) -> Report | None:
    """
    Return the report of the master that a majority of Sentinels vouches for.

    Args:
        reports: one for each Sentinel that was asked.
        of_all: a majority of those that they know, also of those that were not asked.

    Returns:
        None if no majority agrees, or if one of them knows of a newer promotion.
    """
    found = [report for report in reports if isinstance(report, Report)]
    vouching = [report for report in found if report.vouches]
    named = Counter(report.address for report in vouching)
    address, count = next(iter(named.most_common(1)), (None, 0))
    if address is None or count < _majority(reports, of_all=of_all):
        return None
    epoch = max(report.epoch for report in vouching if report.address == address)
    if any(report.epoch > epoch for report in found):
        return None
    return Report(address, epoch, vouches=True)


def _majority(reports: Sequence[Report | NoReport], *, of_all: bool) -> int:
    known = (1 + report.others for report in reports if isinstance(report, Report) and of_all)
    return quorum(max(len(reports), *known, 1))


class SentinelGroup:
    """
    One node.

    Attributes:
        name: of the group, as its Sentinels have it.
        sentinels: their URLs.
        master: the newest master that is known; None before the first.
        problem: why the Sentinels named none when they were last asked; empty if they did.
        lasting: whether no waiting repairs it: a wrong name, user or password, for example.
    """

    def __init__(self, address: NodeAddress, takeover: float) -> None:
        self.name = address.group
        self.sentinels = address.sentinels
        self.master: Master | None = None
        self.problem = "its Sentinels have not replied yet"
        self.lasting = False
        self._takeover = takeover

    def learn(self, reports: Mapping[str, Report | NoReport], asked_at: float) -> None:
        """
        Take note of what the Sentinels reported.

        Args:
            reports: by the Sentinel's URL.
            asked_at: before the first of them was asked.
        """
        reported = [reports[sentinel] for sentinel in self.sentinels]
        named = self.named_by(reported)
        known = self.master
        if named is None:
            self.problem, self.lasting = self._explain(reported)
            return
        if known is not None and (known.address, known.epoch) == (named.address, named.epoch):
            known.confirmed_at = asked_at
        elif known is None or named.epoch > known.epoch or self._was_set_up_anew(known, asked_at):
            self.master = Master(
                named.address,
                named.epoch,
                confirmed_at=asked_at,
                seen_at=clock.now(),
                takeover=self._takeover,
            )
        else:
            self.problem, self.lasting = "its Sentinels name a former master", False
            return
        self.problem, self.lasting = "", False

    def named_by(self, reported: Sequence[Report | NoReport]) -> Report | None:
        """Return the report that counts: with the guard on, a majority of all Sentinels agrees."""
        return named_master(reported, of_all=self._takeover > 0)

    def _was_set_up_anew(self, known: Master, now: float) -> bool:
        """Return whether the Sentinels, whose epochs have gone back, count from the start again."""
        return now - known.confirmed_at > max(self._takeover, TAKEOVER)

    def _explain(self, reported: Sequence[Report | NoReport]) -> tuple[str, bool]:
        needed = quorum(len(reported))
        silent = [one for one in reported if isinstance(one, NoReport)]
        lasting = sum(one.lasting for one in silent) > len(reported) - needed
        if sum(one.reason == _UNKNOWN for one in silent) >= needed:
            return f"its Sentinels watch no master named {self.name!r}; correct the URL", True
        if len(reported) - len(silent) < needed:
            reasons = "; ".join(sorted({str(one).rstrip(".") for one in silent}))
            return f"no majority of its Sentinels names a master: {reasons}", lasting
        if self._takeover and _majority(reported, of_all=True) > needed:
            return "its Sentinels know more than the URL names; name all of them", False
        return f"no majority of its {len(reported)} Sentinels names one master", False


class Sentinels:
    """
    The Sentinels of some nodes, each on one connection. For one thread at a time.

    Raises:
        ConfigurationError: a URL has an option that no Sentinel can be reached with.
    """

    def __init__(self, groups: Iterable[SentinelGroup], timeout: float) -> None:
        self._groups = list(groups)
        watched: dict[str, list[str]] = {}
        for group in self._groups:
            for sentinel in group.sentinels:
                watched.setdefault(sentinel, []).append(group.name)
        self._sentinels = [_Sentinel(url, names, timeout) for url, names in watched.items()]

    def read(self, on_named: Callable[[], None]) -> None:
        """
        Ask every Sentinel, and let the groups learn what they report.

        Args:
            on_named: called as soon as all masters are named, and at the end.
        """
        asked_at = clock.now()
        for reports, is_whole in self.rounds():
            are_named = True
            for group, reported in zip(self._groups, reports, strict=True):
                is_named = group.named_by(list(reported.values())) is not None
                are_named &= is_named
                if is_named or is_whole:
                    group.learn(reported, asked_at)
            if are_named or is_whole:
                on_named()

    def rounds(self) -> Iterator[tuple[list[dict[str, Report | NoReport]], bool]]:
        """
        Ask those that are connected and then the others, so that a silent one delays none.

        Of the others only one is tried once a majority is connected.

        Yields:
            The reports by group, and whether they are whole.
        """
        reports: dict[tuple[str, str], Report | NoReport] = {}
        connected = [one for one in self._sentinels if one.is_open]
        others = [one for one in self._sentinels if not one.is_open]
        if len(connected) >= quorum(len(self._sentinels)):
            others.sort(key=lambda one: one.tried_at)
            del others[1:]
        for sentinels in filter(None, (connected, others)):
            for sentinel in sentinels:
                sentinel.ask()
            for sentinel in sentinels:
                reports |= {(sentinel.url, name): report for name, report in sentinel.reports()}
            by_group = [
                {url: reports.get((url, group.name), _NOT_ASKED) for url in group.sentinels}
                for group in self._groups
            ]
            yield by_group, sentinels is others or not others

    def close(self) -> None:
        """Close the connections."""
        for sentinel in self._sentinels:
            sentinel.close()

    def reset_after_fork(self) -> None:
        """Close a forked child's copies of the connections, which the parent uses."""
        for sentinel in self._sentinels:
            sentinel.reset_after_fork()


class _Sentinel:
    """One Sentinel."""

    def __init__(self, url: str, names: Sequence[str], timeout: float) -> None:
        self.url = url
        address = parse_node(url)
        self._host = address.identity
        self._names = names
        self._connector = _SentinelConnector(address, timeout)
        self._timeout = timeout
        self.tried_at = 0.0
        self._failure = _NOT_ASKED
        self._connection: Any = None
        self._socket: Any = None

    @property
    def is_open(self) -> bool:
        """Whether it is connected."""
        return self._connection is not None

    def ask(self) -> None:
        """Ask about all masters, on a new connection if there is none."""
        try:
            if self._connection is None:
                self.tried_at = clock.now()
                self._connection, self._socket = self._connector.open_unchecked(None)
                self._socket.settimeout(self._timeout)
            commands = (("SENTINEL", "MASTER", name) for name in self._names)
            self._socket.sendall(b"".join(map(hiredis.pack_command, commands)))  # type: ignore[arg-type]
        except Exception as exc:
            self._fail(exc)

    def reports(self) -> Iterable[tuple[str, Report | NoReport]]:
        """Return what it reports about all masters after `ask`."""
        if self._connection is not None:
            try:
                return list(zip(self._names, self._replies(), strict=True))
            except Exception as exc:
                self._fail(exc)
        return [(name, self._failure) for name in self._names]

    def _fail(self, exc: Exception) -> None:
        self.close()
        failure = failure_of(exc)
        self._failure = NoReport(self._host, str(failure), failure.lasting)

    def _replies(self) -> list[Report | NoReport]:
        reader = ReplyReader(self._socket)
        replies: list[Report | NoReport] = []
        poller = new_poller(native=True)
        poller.register(self._socket.fileno(), READ)
        while len(replies) < len(self._names):
            # A native thread cannot wait in the socket of a greenlet.
            if not poller.poll(as_milliseconds(self._timeout)):
                raise TimeoutError(f"no answer within {self._timeout:.3g} s")
            replies += map(self._report, reader.received())
        return replies

    def close(self) -> None:
        """Close the connection."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.disconnect()

    def reset_after_fork(self) -> None:
        """Close a forked child's copy of the connection."""
        if self._connection is not None:
            self._socket.close()  # no more: to disconnect would be to end the parent's
            self._connection = None

    def _report(self, reply: Any) -> Report | NoReport:
        """Read a reply to SENTINEL MASTER."""
        if isinstance(reply, Exception):
            text = str(reply)
            meant = [_REFUSALS[words] for words in _REFUSALS if text.startswith(words)]
            reason = meant[0] if meant else f"refuses SENTINEL MASTER: {shortened(text)}"
            return NoReport(self._host, reason, lasting=True)
        if not isinstance(reply, list) or not all(isinstance(word, bytes) for word in reply):
            raise OSError(f"answered garbage: {str(reply)[:80]}")
        words = [word.decode(errors="replace") for word in reply]
        fields = dict(zip(words[::2], words[1::2], strict=False))
        try:
            address = fields["ip"], int(fields["port"])
            epoch, others = int(fields["config-epoch"]), int(fields["num-other-sentinels"])
            flags = frozenset(fields["flags"].split(","))
        except (KeyError, ValueError):
            raise OSError(f"answered garbage: {str(reply)[:80]}") from None
        return Report(address, epoch, vouches=not flags & _DOUBTS, others=others)


class _SentinelConnector(Connector):
    """Opens connections to a Sentinel."""

    spelling = OF_SENTINEL


def ask_sentinels(address: NodeAddress, timeout: float) -> dict[str, Report | NoReport]:
    """Ask the Sentinels of one node, on connections that end with the call."""
    with contextlib.closing(Sentinels([SentinelGroup(address, 0.0)], timeout)) as sentinels:
        *_, ([reported], _) = sentinels.rounds()
    return reported
