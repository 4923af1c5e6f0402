"""
One conversation with all Redis nodes: said to all at once, answers taken as they come.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import hiredis

from celery_redlock.protocol import Command, Failed, Kind, Phase, Round
from celery_redlock.protocol.commands import read_reply
from celery_redlock.protocol.scripts import SHA, SOURCE
from celery_redlock.transport.clock import now as clock
from celery_redlock.transport.connections import Connections
from celery_redlock.transport.interface import Done
from celery_redlock.transport.link import SETTING, Link, LinkBrokenError, Pending

if TYPE_CHECKING:
    from celery_redlock.transport.redis import RedisTransport

_nonces = itertools.count(1)

#: A connection that was idle for longer is looked at before it is trusted with an attempt.
_IDLE = 1.0

#: A node whose answer is read later than this gets no follow-up: that names a duration, which began
#: when the follow-up was made.
_SLOW = 1.0

#: Answer of a node that has done all that was said.
_DONE = [b"A"]


class RedisChannel:
    """A `Channel` over one connection to each node."""

    def __init__(self, transport: RedisTransport, *, native: bool) -> None:
        self.native = native
        self.afterwards: list[Callable[[RedisChannel], None]] = []
        self.closed = False
        self._transport = transport
        self._health = transport.health
        self._patience = transport.node_timeout
        self._connections = Connections(transport, self._say_owed, native=native)
        self._links = self._connections.links
        self._used_at = clock()
        # The exchange under way: its number, the rounds that wait (with the phase that they wait
        # in) and how many answers each node owes to it.
        self._number = 0
        self._open: dict[Round, Phase] = {}
        self._owing: dict[int, int] = {}

    def prepare(self, limit: float = math.inf) -> None:
        """Wait, within bounds, until a quorum of nodes can be spoken to."""
        now = clock()
        idle = now - self._used_at >= _IDLE
        if not idle and self._connections.complete:
            return
        if idle:
            self._take_answers(0.0)
        for index, link in enumerate(self._links):
            if link is not None and link.overdue(now, self._patience):
                self._catch_up(index, link, now)
        self._say_owed_to(self._connections.ensure(now, limit), now)
        self._used_at = clock()

    def exchange(
        self,
        batch: Sequence[tuple[Command, Round]],
        timeout: float,
        *,
        linger: float = 0.0,
        done: Done | None = None,
    ) -> None:
        """Say a batch to every node and feed the answers into its rounds."""
        self._number += 1
        self._used_at = now = clock()
        entries = []
        data = b""
        for command, round_ in batch:
            nonce = b"%x" % next(_nonces)
            data += _pack(command, nonce)
            entries.append(Pending(nonce, command, round_, self._number, now, done))
        self._open = {round_: round_.phase for _, round_ in batch}
        self._owing = {}
        self._say(data, entries, now)
        deadline = now + timeout
        while self._open and self._owing and (left := deadline - clock()) > 0:
            self._take_answers(left)
        if self._open:
            self._give_up(timeout)
        elif linger:
            deadline = min(deadline, clock() + linger)
            while self._owing and (left := deadline - clock()) > 0:
                self._take_answers(left)
        # What is still owed is a leftover from now on: it counts for nothing and is not said again.
        self._owing = {}
        self._say_owed_to(self._connections.take_arrivals(), now)

    def post(self, command: Command, nodes: Sequence[int] | None = None) -> None:
        """Say a command without waiting; where there is no connection, when there is one."""
        now = clock()
        nonce = b"%x" % next(_nonces)
        data = _pack(command, nonce)
        entry = Pending(nonce, command, None, 0, now)
        for index in range(len(self._links)) if nodes is None else nodes:
            link = self._links[index]
            if link is None or link.refuses(command):
                self._owe(index, command)
            else:
                self._send(index, link, data, [entry])
        self._say_owed_to(self._connections.take_arrivals(), now)

    def unsettled(self) -> frozenset[int]:
        """Return the nodes where a key may yet be set by something said on this channel."""
        return frozenset(
            index
            for index, link in enumerate(self._links)
            if link is not None and any(entry.command.kind in SETTING for entry in link.pending)
        )

    def catch_up(self) -> None:
        """Take the answers that have come, without waiting for any."""
        for index, link in enumerate(self._links):
            if link is not None and link.pending:
                self._take_what_came(index, link)

    def follow(self, command: Command, done: Done) -> None:
        """Say a command to the nodes in `done`, and to those that turn out to be in a moment."""
        self.catch_up()
        done.then, done.then_until = command, clock() + _SLOW
        self.post(command, sorted(done))

    def close(self) -> None:
        """Close the connections."""
        self._connections.close()

    def abandon(self) -> None:
        """Forget the connections in a forked child, which shares them with its parent."""
        self._connections.abandon()

    def _say(self, data: bytes, entries: list[Pending], now: float) -> None:
        """Send to every node that is worth it; the others fail at once."""
        count = len(entries)
        left_out: list[int] = []
        for index, link in enumerate(self._links):
            if link is not None and link.overdue(now, self._patience):
                link = self._catch_up(index, link, now)
            health = self._health[index]
            if link is None or (health.reason is not None and health.paused(now)):
                left_out.append(index)
            elif self._send(index, link, data, entries):
                self._owing[index] = count
            else:
                left_out.append(index)
        if left_out:
            self._say_to_left_out(left_out, data, entries, now)

    def _say_to_left_out(
        self, left_out: list[int], data: bytes, entries: list[Pending], now: float
    ) -> None:
        needed = len(self._owing) < self._transport.quorum
        # Whatever does not set keys is said to a node that does not answer, too: it may hold ours.
        harmless = all(entry.command.kind not in SETTING for entry in entries)
        for index in left_out:
            link = self._links[index]
            if link is None or any(link.refuses(entry.command) for entry in entries):
                for entry in entries:
                    self._owe(index, entry.command)
            elif (needed or harmless) and self._send(index, link, data, entries) and needed:
                self._owing[index] = len(entries)
                continue
            reason = self._health[index].reason
            # A node that has not failed is only not connected yet, and was not tried.
            tried = needed and reason is not None
            self._fail(index, Failed(reason or "not connected yet", tried=tried), now)

    def _owe(self, index: int, command: Command) -> None:
        # Only what undoes may be said late: a key that is set after its lease has ended stays.
        if command.kind is Kind.RELEASE:
            self._connections.owe(index, command)

    def _say_owed_to(self, nodes: Sequence[int], now: float) -> None:
        for index in nodes:
            link = self._links[index]
            if link is not None:
                try:
                    self._say_owed(index, link)
                except LinkBrokenError as exc:
                    self._connections.drop(index, str(exc))

    def _say_owed(self, index: int, link: Link) -> None:
        """Say what a node is owed; also called by the thread that has just made the link."""
        now = clock()
        for command in self._health[index].collect():
            nonce = b"%x" % next(_nonces)
            link.pending.append(Pending(nonce, command, None, 0, now))
            link.send(_pack(command, nonce))

    def _send(self, index: int, link: Link, data: bytes, entries: list[Pending]) -> bool:
        try:
            link.pending.extend(entries)
            link.send(data)
        except LinkBrokenError as exc:
            self._connections.drop(index, str(exc))
            return False
        if link.clogged:
            self._connections.await_writable(link)
        return True

    def _catch_up(self, index: int, link: Link, now: float) -> Link | None:
        """Read what an overdue node has said meanwhile; if that is not all, it has failed."""
        if not self._take_what_came(index, link):
            return None
        if link.overdue(now, self._patience):
            self._health[index].failed(_no_answer(self._patience), now)
            self._connections.complete = False
        return link

    def _take_what_came(self, index: int, link: Link) -> bool:
        """Count what a node has said; return whether the connection is still good."""
        try:
            for pending, reply in link.receive():
                self._count(index, link, pending, reply)
                self._health[index].works()
        except LinkBrokenError as exc:
            self._connections.drop(index, str(exc))
            return False
        return True

    def _take_answers(self, left: float) -> None:
        """Wait for any node, at most so long, and count what has come."""
        for index, link in self._connections.ready(left):
            try:
                for pending, reply in link.receive():
                    self._count(index, link, pending, reply)
            except LinkBrokenError as exc:
                self._connections.drop(index, str(exc))
                if self._owing.pop(index, None):
                    self._fail(index, Failed(str(exc)), clock())
                continue
            if self._health[index].reason is not None:
                self._health[index].works()

    def _count(self, index: int, link: Link, pending: Pending, reply: Any) -> None:
        current = pending.exchange == self._number and index in self._owing
        if isinstance(reply, Exception):
            text = str(reply)
            if text.startswith("NOSCRIPT") and (current or _late_is_good(pending)):
                # It has not run. What is still of use is said again, with the whole script.
                data = _pack(pending.command, pending.nonce, in_full=True)
                self._send(index, link, data, [pending])
                return
            if not text.startswith("NOSCRIPT"):
                text = self._health[index].refused(pending.command.kind, text)
            vote: Any = Failed(text) if current else None
        else:
            if self._health[index].refusals and reply[:1] == _DONE:
                self._health[index].refusals.pop(pending.command.kind, None)
            vote = read_reply(reply) if current or pending.done is not None else None
            if pending.done is not None:
                self._note_done(index, link, pending.done, vote)
            vote = vote if current else None
        if vote is None or pending.round is None:
            return
        owed = self._owing.get(index, 0) - 1
        if owed > 0:
            self._owing[index] = owed
        else:
            self._owing.pop(index, None)
        self._vote(pending.round, index, vote, clock())

    def _note_done(self, index: int, link: Link, done: Done, vote: Any) -> None:
        now = clock()
        command = done.note(index, vote, now)
        if command is not None:
            nonce = b"%x" % next(_nonces)
            self._send(index, link, _pack(command, nonce), [Pending(nonce, command, None, 0, now)])

    def _vote(self, round_: Round, index: int, vote: Any, now: float) -> None:
        awaited = self._open.get(round_)
        if awaited is None and round_.phase is Phase.RAISING:
            return  # a vote on the first command, when the second is what has to be said next
        if round_.vote(index, vote, now) is not awaited:
            self._open.pop(round_, None)

    def _fail(self, index: int, vote: Failed, now: float) -> None:
        for round_ in tuple(self._open):
            self._vote(round_, index, vote, now)

    def _give_up(self, timeout: float) -> None:
        now = clock()
        for index in self._owing:
            reason = _no_answer(timeout)
            self._health[index].failed(reason, now)
            self._fail(index, Failed(reason), now)
        self._connections.complete = False


def _pack(command: Command, nonce: bytes, *, in_full: bool = False) -> bytes:
    kind = command.kind
    head = ("EVAL", SOURCE[kind]) if in_full else ("EVALSHA", SHA[kind])
    words: Any = (*head, len(command.keys), *command.keys, nonce, *command.args)
    packed: bytes = hiredis.pack_command(words)
    return packed


def _late_is_good(pending: Pending) -> bool:
    """Tell whether a command is of use whenever it runs: it sets nothing that was not there."""
    kind = pending.command.kind
    return kind is Kind.RELEASE or (kind is Kind.EXTEND and pending.round is None)


def _no_answer(seconds: float) -> str:
    return f"no answer within {seconds:.3g} s"
