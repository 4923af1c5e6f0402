"""
The Sentinels of a group of servers: what they report, and which server is the master by that.

A majority of the Sentinels has to agree, because one of them may know only what was, and none of
them may know of a newer promotion.
"""

from __future__ import annotations

import contextlib
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import hiredis

from celery_redlock._greenlets.polling import READ, WakeupPipe, as_milliseconds, new_poller
from celery_redlock._greenlets.threads import start_native_thread
from celery_redlock._greenlets.unpatched import close_greenlet_hub, native_lock
from celery_redlock.protocol.mastership import TAKEOVER, Master
from celery_redlock.protocol.texts import shortened
from celery_redlock.protocol.timing import quorum
from celery_redlock.transport import clock
from celery_redlock.transport.addresses import NodeAddress, parse_node
from celery_redlock.transport.redis.connect_error import OF_SENTINEL, ConnectError, failure_of
from celery_redlock.transport.redis.connector import Connector
from celery_redlock.transport.redis.framing import ReplyReader

#: Timeouts for which Sentinels are waited for that have to be connected first, in several steps.
FIRST_READING = 4

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


def named_master(
    reports: Sequence[Report | ConnectError], *, of_all: bool = False
) -> Report | None:
    """
    Return the report of the master that a majority of Sentinels vouches for.

    Args:
        reports: one for each Sentinel that was asked, or why it reported nothing.
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


def _majority(reports: Sequence[Report | ConnectError], *, of_all: bool) -> int:
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

    def learn(self, reports: Mapping[str, Report | ConnectError], asked_at: float) -> None:
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

    def named_by(self, reported: Sequence[Report | ConnectError]) -> Report | None:
        """Return the report that counts: with the guard on, a majority of all Sentinels agrees."""
        return named_master(reported, of_all=self._takeover > 0)

    def _was_set_up_anew(self, known: Master, now: float) -> bool:
        """Return whether the Sentinels, whose epochs have gone back, count from the start again."""
        return now - known.confirmed_at > max(self._takeover, TAKEOVER)

    def _explain(self, reported: Sequence[Report | ConnectError]) -> tuple[str, bool]:
        needed = quorum(len(reported))
        silent = [one for one in reported if isinstance(one, ConnectError)]
        lasting = sum(one.lasting for one in silent) > len(reported) - needed
        if sum(str(one).endswith(_UNKNOWN) for one in silent) >= needed:
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
        self._timeout = timeout
        watched: dict[str, list[str]] = {}
        for group in self._groups:
            for sentinel in group.sentinels:
                watched.setdefault(sentinel, []).append(group.name)
        self._sentinels = [_Sentinel(url, names, timeout) for url, names in watched.items()]

    @property
    def are_done(self) -> bool:
        """Whether all have replied, or will not before they are asked another time."""
        return all(one.is_done for one in self._sentinels)

    def rounds(
        self, pipe: WakeupPipe, limit: float = math.inf
    ) -> Iterator[tuple[list[dict[str, Report | ConnectError]], bool]]:
        """
        Ask those that are connected, and the others once they are; a bad one delays no other.

        It ends when all have replied, or after a timeout, in which one that has just been connected
        may reply as well. A later reply is never read: it would seem to be newer than it is.

        Args:
            pipe: ends a wait, so that one that has been connected is asked.
            limit: seconds after which it ends in any case.

        Yields:
            The reports by group, and whether they are whole: once all have replied that were
            connected, and with each one that replies then.
        """
        begun, timeout = clock.now(), min(limit, self._timeout)
        for one in self._sentinels:
            one.begin(pipe.wake)
        connected = [one for one in self._sentinels if one.is_awaited]
        # This process may have paused while it asked them.
        until = clock.now() + (timeout if connected else min(limit, FIRST_READING * timeout))
        poller = new_poller()
        while True:
            for one in self._sentinels:
                if one.go_on():
                    until = max(until, min(clock.now() + timeout, begun + limit))
            is_whole = clock.now() >= until or self.are_done
            if is_whole:
                for one in self._sentinels:
                    one.give_up(timeout)
            if is_whole or all(one.is_done for one in connected):
                yield self._reports(), is_whole
            if is_whole:
                return
            polled = [pipe.fd, *(one.fd for one in self._sentinels if one.is_awaited)]
            for fd in polled:
                poller.register(fd, READ)
            poller.poll(as_milliseconds(until - clock.now()))
            for fd in polled:
                poller.unregister(fd)
            pipe.drain()

    def _reports(self) -> list[dict[str, Report | ConnectError]]:
        reports = {
            (one.url, name): report for one in self._sentinels for name, report in one.reports()
        }
        return [
            {url: reports[url, group.name] for url in group.sentinels} for group in self._groups
        ]

    def close(self) -> None:
        """Close the connections."""
        for sentinel in self._sentinels:
            sentinel.close()

    def reset_after_fork(self) -> None:
        """Close a forked child's copies of the connections, which the parent uses."""
        for sentinel in self._sentinels:
            sentinel.reset_after_fork()


class _Sentinel:
    """One Sentinel: connected to in a thread of its own, and read in another one."""

    def __init__(self, url: str, names: Sequence[str], timeout: float) -> None:
        self.url = url
        address = parse_node(url)
        self._host = address.identity
        self._names = names
        self._connector = Connector(address, timeout, OF_SENTINEL)
        self._failure = self._no_report("has not replied yet", lasting=False)
        self._connection: Any = None
        self._socket: Any = None
        self._is_asked = False
        self._replies: list[Report | ConnectError] = []
        self.reset_after_fork()

    def reset_after_fork(self) -> None:
        """Close a forked child's copy of the connection, and begin anew."""
        if self._connection is not None:
            self._socket.close()  # no more: to disconnect would be to end the parent's
            self._connection = None
        self._lock = native_lock()
        self._closed = False
        self._is_connecting = False

    @property
    def is_awaited(self) -> bool:
        """Whether a reply is missing."""
        return self._is_asked and len(self._replies) < len(self._names)

    @property
    def is_done(self) -> bool:
        """Whether it has replied, or will not before it is asked another time."""
        # In this order: a connection is there when it is made no more.
        is_idle = not self._is_connecting and self._connection is None
        return is_idle or (self._is_asked and not self.is_awaited)

    @property
    def fd(self) -> int:
        """The descriptor of its connection."""
        fd: int = self._socket.fileno()
        return fd

    def begin(self, wake: Callable[[], None]) -> None:
        """
        Ask about all masters, or begin to connect.

        Args:
            wake: called when it has been connected, or cannot be.
        """
        self._wake = wake
        self._is_asked, self._replies = False, []
        self._closed = False
        self.go_on()
        with self._lock:
            if self._is_connecting or self._connection is not None:
                return
            self._is_connecting = True
        try:
            start_native_thread(self._connect, "redlock-sentinel")
        except (RuntimeError, OSError) as exc:
            self._note(exc)  # no more threads
            self._is_connecting = False

    def go_on(self) -> bool:
        """Ask if it is connected, take what has come, and return whether it was asked now."""
        try:
            if self._connection is None:
                return False
            if not self._is_asked:
                self._ask()
                return True
            if self.is_awaited:
                self._take_replies()
        except Exception as exc:
            self._fail(exc)
        return False

    def give_up(self, timeout: float) -> None:
        """Close the connection if a reply is missing."""
        if self.is_awaited:
            self._fail(TimeoutError(f"no answer within {timeout:.3g} s"))

    def reports(self) -> Iterable[tuple[str, Report | ConnectError]]:
        """Return what it reports about all masters."""
        if self._is_asked and not self.is_awaited:
            return zip(self._names, self._replies, strict=True)
        return [(name, self._failure) for name in self._names]

    def close(self) -> None:
        """Close the connection, also one that is being made."""
        with self._lock:
            self._closed = True
        self._drop()

    def _connect(self) -> None:
        connection = sock = None
        try:
            connection, sock = self._connector.open_unchecked(None)
            sock.setblocking(False)
        except Exception as exc:
            self._note(exc)
        finally:
            with self._lock:
                if connection is not None and not self._closed:
                    self._socket, self._reader = sock, ReplyReader(sock)
                    self._connection, connection = connection, None
                self._is_connecting = False
            if connection is not None:
                connection.disconnect()
            self._wake()
            close_greenlet_hub()

    def _ask(self) -> None:
        self._take_replies()
        if self._replies:
            raise OSError("answered before it was asked")
        commands = (("SENTINEL", "MASTER", name) for name in self._names)
        self._socket.sendall(b"".join(map(hiredis.pack_command, commands)))  # type: ignore[arg-type]
        self._is_asked = True

    def _take_replies(self) -> None:
        self._replies += map(self._report, self._reader.read())
        if len(self._replies) > len(self._names):
            raise OSError("answered more than it was asked")

    def _fail(self, exc: Exception) -> None:
        self._drop()
        self._note(exc)

    def _note(self, exc: Exception) -> None:
        failure = failure_of(exc)
        self._failure = self._no_report(str(failure), lasting=failure.lasting)

    def _no_report(self, reason: str, *, lasting: bool) -> ConnectError:
        return ConnectError(f"{self._host} {reason}", lasting=lasting)

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        self._is_asked = False
        if connection is not None:
            connection.disconnect()

    def _report(self, reply: Any) -> Report | ConnectError:
        """Read a reply to SENTINEL MASTER."""
        if isinstance(reply, Exception):
            text = str(reply)
            meant = [_REFUSALS[words] for words in _REFUSALS if text.startswith(words)]
            reason = meant[0] if meant else f"refuses SENTINEL MASTER: {shortened(text)}"
            return self._no_report(reason, lasting=True)
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


def ask_sentinels(address: NodeAddress, timeout: float) -> dict[str, Report | ConnectError]:
    """Ask the Sentinels of one node, on connections that end with the call."""
    with (
        contextlib.closing(WakeupPipe()) as pipe,
        contextlib.closing(Sentinels([SentinelGroup(address, 0.0)], timeout)) as sentinels,
    ):
        *_, ([reported], _) = sentinels.rounds(pipe)
    return reported
