"""
Nodes that Sentinels watch: which of a group's servers is the master, asked for while it matters.

A majority of the Sentinels has to agree, because one of them may know only what was, and none of
them may know of a newer promotion.
"""

from __future__ import annotations

import contextlib
import math
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import hiredis

from celery_redlock._greenlets.poller import READ, as_milliseconds, new_poller
from celery_redlock._greenlets.threads import on_native_thread, start_native_thread
from celery_redlock._greenlets.unpatched import close_greenlet_hub, native_lock, unpatched
from celery_redlock._greenlets.wakeup import WakeupPipe
from celery_redlock.protocol.keys import EPOCH_KEY, GUARD_KEY
from celery_redlock.protocol.mastership import MAX_AGE, TAKEOVER, Master
from celery_redlock.protocol.scripts import LEAD_SOURCE
from celery_redlock.protocol.texts import shortened
from celery_redlock.protocol.timing import milliseconds, quorum
from celery_redlock.transport import clock
from celery_redlock.transport.addresses import NodeAddress, parse_node
from celery_redlock.transport.base import Durations
from celery_redlock.transport.redis.connect_error import (
    OF_MASTER,
    OF_SENTINEL,
    ConnectError,
    failure_of,
    hides_ids,
)
from celery_redlock.transport.redis.connector import Connector
from celery_redlock.transport.redis.framing import ReplyReader

#: Seconds between two readings, and those for which the Sentinels are read after the last use.
_PAUSE, _IDLE = 2.0, 30.0

#: Node timeouts for which a caller waits for the first reading, or for that after a pause.
_FIRST_READING = 4

#: A Sentinel with one of these flags takes its master for dead.
_DOUBTS = frozenset({"o_down", "failover_in_progress"})

_UNKNOWN = "watches no master of that name"

#: The meanings of a Sentinel's refusals, by their beginnings.
_REFUSALS = {
    "ERR No such master": _UNKNOWN,
    "NOAUTH": f"asks for a password, and the URL has none for it; write {OF_SENTINEL.password}",
    "NOPERM": "refuses SENTINEL MASTER to the URL's user; grant it +sentinel|master",
    "ERR unknown command": "is no Sentinel; name the Sentinels' ports, 26379 by default",
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
    """The Sentinels of some nodes, each on one connection. For one thread at a time."""

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


class MasterWatch:
    """
    Watches the masters of a client's nodes, in a native thread that runs while the client is used.

    Thread-safe and fork-safe.

    Attributes:
        groups: by the identity of the node's address.
        quarantine_ms: of a promoted server; 0: the guard is off.
    """

    def __init__(self, addresses: Iterable[NodeAddress], durations: Durations) -> None:
        max_ttl, takeover = durations.max_ttl, durations.takeover
        self.groups = {one.identity: SentinelGroup(one, takeover) for one in addresses}
        # Without a takeover the guard is off.
        self.quarantine_ms = milliseconds(max_ttl + takeover) if takeover else 0
        self._timeout = durations.node_timeout
        self.reset_after_fork()

    def reset_after_fork(self) -> None:
        """Begin anew in a forked child, which has none of its parent's threads."""
        self._lock = native_lock()
        self._closed = False
        self._used_at = self._read_at = float("-inf")
        self._pipe: WakeupPipe | None = None

    def use(self, limit: float = math.inf) -> None:
        """
        Have the masters watched for a while.

        After a pause it waits for a reading, at most four node timeouts and `limit` seconds.
        """
        self._used_at = now = clock.now()
        self._closed = False
        if self._pipe is None:
            self._start()
        sleep = unpatched("time", "sleep") if on_native_thread() else time.sleep
        until = now + min(_FIRST_READING * self._timeout, limit)
        while now - self._read_at > MAX_AGE and clock.now() < until and not sys.is_finalizing():
            sleep(0.002)

    def master_of(self, address: NodeAddress) -> Master:
        """
        Return the master of a node.

        Raises:
            ConnectError: nobody has named one lately.
        """
        self.use()
        group = self.groups[address.identity]
        if group.master is None or not group.master.is_confirmed(clock.now()):
            problem = group.problem or "its Sentinels have not replied lately"
            raise ConnectError(problem, lasting=group.lasting)
        return group.master

    def close(self) -> None:
        """Stop watching until the next use. Idempotent."""
        self._closed = True
        with self._lock:
            pipe = self._pipe
        if pipe is not None:
            pipe.wake()

    def _start(self) -> None:
        with self._lock:
            if self._pipe is not None or self._closed:
                return
            try:
                self._pipe = WakeupPipe()
                start_native_thread(self._run, "redlock-masters")
            except (RuntimeError, OSError):
                self._pipe = None  # no more threads or pipes: nobody confirms the masters
            except BaseException:
                self._pipe = None
                raise

    def _run(self) -> None:
        sentinels, own = None, self._pipe
        try:
            sentinels = Sentinels(self.groups.values(), self._timeout)
            poller = new_poller(native=True)
            while (pipe := self._pipe_while_used()) is not None:
                sentinels.read(self._note_reading)
                poller.register(pipe.fd, READ)
                poller.poll(as_milliseconds(_PAUSE))
                poller.unregister(pipe.fd)
        finally:
            with self._lock:
                if self._pipe is own:
                    self._pipe = None  # after an error: the next use starts another thread
            if sentinels is not None:
                sentinels.close()
            close_greenlet_hub()

    def _note_reading(self) -> None:
        self._read_at = clock.now()

    def _pipe_while_used(self) -> WakeupPipe | None:
        """Return what ends a pause; end the watch if the client is idle or closed."""
        with self._lock:
            if not self._closed and clock.now() - self._used_at < _IDLE:
                return self._pipe
            pipe, self._pipe = self._pipe, None
        if pipe is not None:
            pipe.close()
        return None


class GroupConnector(Connector):
    """
    Opens connections to the master of a group.

    Args:
        address: the node.
        timeout: seconds for each step.
        watch: knows the master; None: the Sentinels are asked for each connection.
    """

    spelling = OF_MASTER

    def __init__(
        self, address: NodeAddress, timeout: float, watch: MasterWatch | None = None
    ) -> None:
        super().__init__(address, timeout)
        self._timeout = timeout
        self._watch = watch

    def master(self) -> Master | None:
        if self._watch is not None:
            return self._watch.master_of(self.address)
        group = SentinelGroup(self.address, 0.0)
        asked_at = clock.now()
        group.learn(ask_sentinels(self.address, self._timeout), asked_at)
        if group.master is None:
            raise ConnectError(group.problem, lasting=group.lasting)
        return group.master

    def _admit(self, connection: Any, info: dict[str, str] | None, master: Master) -> None:
        if self._watch is None or not self._watch.quarantine_ms:
            return
        if hides_ids(info):
            raise ConnectError(
                "hides INFO from this user, so its failovers cannot be noticed; grant +info",
                lasting=True,
            )
        keys = (GUARD_KEY, EPOCH_KEY)
        connection.send_command(
            "EVAL", LEAD_SOURCE, len(keys), *keys, master.epoch, self._watch.quarantine_ms
        )
        master.has_voted |= connection.read_response() == 1

    @contextlib.contextmanager
    def _explained(self, connection: Any) -> Iterator[None]:
        try:
            with super()._explained(connection):
                yield
        except ConnectError as exc:
            where = f"its master {connection.host}:{connection.port}"
            raise ConnectError(f"{where} {exc}", lasting=exc.lasting) from exc.__cause__


def ask_sentinels(address: NodeAddress, timeout: float) -> dict[str, Report | NoReport]:
    """Ask the Sentinels of one node, on connections that end with the call."""
    with contextlib.closing(Sentinels([SentinelGroup(address, 0.0)], timeout)) as sentinels:
        *_, ([reported], _) = sentinels.rounds()
    return reported


def connector_to(
    address: NodeAddress, timeout: float, watch: MasterWatch | None = None
) -> Connector:
    """Return what opens connections to a node; arguments as for `GroupConnector`."""
    if address.fails_over:
        return GroupConnector(address, timeout, watch)
    return Connector(address, timeout)
