"""
One conversation with all Redis nodes: said to all at once, answers taken as they come.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import hiredis

from celery_redlock.protocol import Command, Failed, Phase, Round, Script
from celery_redlock.protocol.commands import read_reply
from celery_redlock.protocol.scripts import SHA, SOURCE
from celery_redlock.transport.base import AckedNodes
from celery_redlock.transport.clock import now as clock
from celery_redlock.transport.redis.connection import (
    KEY_SETTING_SCRIPTS,
    ConnectionBrokenError,
    NodeConnection,
    PendingReply,
)
from celery_redlock.transport.redis.connections import Connections

if TYPE_CHECKING:
    from celery_redlock.transport.redis.transport import RedisTransport

_nonces = itertools.count(1)

#: A connection that was idle for longer is looked at before it is trusted with an attempt.
_IDLE = 1.0

#: A node whose answer is read later than this gets no follow-up: that names a duration, which began
#: when the follow-up was made.
_FOLLOWUP_WINDOW = 1.0

#: Answer of a node that has done all that was said.
_ACKNOWLEDGED = [b"A"]


class RedisChannel:
    """A `Channel` over one connection to each node."""

    def __init__(self, transport: RedisTransport, *, native: bool) -> None:
        self.native = native
        self.queued_sends: list[Callable[[RedisChannel], None]] = []
        self.closed = False
        self._transport = transport
        self._health = transport.health
        self._node_timeout = transport.node_timeout
        self._connections = Connections(transport, self._send_deferred, native=native)
        self._by_node = self._connections.by_node
        self._used_at = clock()
        # The exchange under way: its number, the rounds that wait (with the phase that they wait
        # in) and how many answers each node owes to it.
        self._number = 0
        self._open_rounds: dict[Round, Phase] = {}
        self._unanswered: dict[int, int] = {}

    def connect(self, limit: float = math.inf) -> None:
        """Wait, within bounds, until a quorum of nodes can be spoken to."""
        now = clock()
        idle = now - self._used_at >= _IDLE
        if not idle and self._connections.complete:
            return
        if idle:
            self._receive_replies(0.0)
        for index, connection in enumerate(self._by_node):
            if connection is not None and connection.is_overdue(now, self._node_timeout):
                self._drain_overdue(index, connection, now)
        self._send_deferred_to(self._connections.ensure(now, limit), now)
        self._used_at = clock()

    def exchange(
        self,
        batch: Sequence[tuple[Command, Round]],
        timeout: float,
        *,
        linger: float = 0.0,
        acked: AckedNodes | None = None,
    ) -> None:
        """Say a batch to every node and feed the answers into its rounds."""
        self._number += 1
        self._used_at = now = clock()
        entries = []
        data = b""
        for command, round_ in batch:
            nonce = b"%x" % next(_nonces)
            data += _pack(command, nonce)
            entries.append(PendingReply(nonce, command, round_, self._number, now, acked))
        self._open_rounds = {round_: round_.phase for _, round_ in batch}
        self._unanswered = {}
        self._send_batch(data, entries, now)
        deadline = now + timeout
        while self._open_rounds and self._unanswered and (remaining := deadline - clock()) > 0:
            self._receive_replies(remaining)
        if self._open_rounds:
            self._time_out(timeout)
        elif linger:
            deadline = min(deadline, clock() + linger)
            while self._unanswered and (remaining := deadline - clock()) > 0:
                self._receive_replies(remaining)
        # What is still owed is a leftover from now on: it counts for nothing and is not said again.
        self._unanswered = {}
        self._send_deferred_to(self._connections.take_connected(), now)

    def send(self, command: Command, nodes: Sequence[int] | None = None) -> None:
        """Say a command without waiting; where there is no connection, when there is one."""
        now = clock()
        nonce = b"%x" % next(_nonces)
        data = _pack(command, nonce)
        entry = PendingReply(nonce, command, None, 0, now)
        for index in range(len(self._by_node)) if nodes is None else nodes:
            connection = self._by_node[index]
            if connection is None or connection.is_full_for(command):
                self._defer(index, command)
            else:
                self._send_to(index, connection, data, [entry])
        self._send_deferred_to(self._connections.take_connected(), now)

    def nodes_in_doubt(self) -> frozenset[int]:
        """Return the nodes where a key may yet be set by something said on this channel."""
        return frozenset(
            index
            for index, connection in enumerate(self._by_node)
            if connection is not None
            and any(entry.command.script in KEY_SETTING_SCRIPTS for entry in connection.pending)
        )

    def drain(self) -> None:
        """Take the answers that have come, without waiting for any."""
        for index, connection in enumerate(self._by_node):
            if connection is not None and connection.pending:
                self._drain_node(index, connection)

    def send_after_ack(self, command: Command, acked: AckedNodes) -> None:
        """Say a command to the nodes in `done`, and to those that turn out to be in a moment."""
        self.drain()
        acked.followup, acked.followup_deadline = command, clock() + _FOLLOWUP_WINDOW
        self.send(command, sorted(acked))

    def close(self) -> None:
        """Close the connections."""
        self._connections.close()

    def reset_after_fork(self) -> None:
        """Forget the connections in a forked child, which shares them with its parent."""
        self._connections.reset_after_fork()

    def _send_batch(self, data: bytes, entries: list[PendingReply], now: float) -> None:
        """Send to every node that is worth it; the others fail at once."""
        count = len(entries)
        unhealthy: list[int] = []
        for index, connection in enumerate(self._by_node):
            if connection is not None and connection.is_overdue(now, self._node_timeout):
                connection = self._drain_overdue(index, connection, now)
            health = self._health[index]
            if connection is None or (health.reason is not None and health.is_backing_off(now)):
                unhealthy.append(index)
            elif self._send_to(index, connection, data, entries):
                self._unanswered[index] = count
            else:
                unhealthy.append(index)
        if unhealthy:
            self._send_to_unhealthy(unhealthy, data, entries, now)

    def _send_to_unhealthy(
        self, unhealthy: list[int], data: bytes, entries: list[PendingReply], now: float
    ) -> None:
        needed = len(self._unanswered) < self._transport.quorum
        # Whatever does not set keys is said to a node that does not answer, too: it may hold ours.
        harmless = all(entry.command.script not in KEY_SETTING_SCRIPTS for entry in entries)
        for index in unhealthy:
            connection = self._by_node[index]
            if connection is None or any(
                connection.is_full_for(entry.command) for entry in entries
            ):
                for entry in entries:
                    self._defer(index, entry.command)
            elif (
                (needed or harmless) and self._send_to(index, connection, data, entries) and needed
            ):
                self._unanswered[index] = len(entries)
                continue
            reason = self._health[index].reason
            # A node that has not failed is only not connected yet, and was not tried.
            attempted = needed and reason is not None
            self._fail(index, Failed(reason or "not connected yet", attempted=attempted), now)

    def _defer(self, index: int, command: Command) -> None:
        # Only what undoes may be said late: a key that is set after its lease has ended stays.
        if command.script is Script.RELEASE:
            self._connections.defer(index, command)

    def _send_deferred_to(self, nodes: Sequence[int], now: float) -> None:
        for index in nodes:
            connection = self._by_node[index]
            if connection is not None:
                try:
                    self._send_deferred(index, connection)
                except ConnectionBrokenError as exc:
                    self._connections.drop(index, str(exc))

    def _send_deferred(self, index: int, connection: NodeConnection) -> None:
        """Say what a node is owed; also called by the thread that has just made the link."""
        now = clock()
        for command in self._health[index].take_deferred():
            nonce = b"%x" % next(_nonces)
            connection.pending.append(PendingReply(nonce, command, None, 0, now))
            connection.send(_pack(command, nonce))

    def _send_to(
        self, index: int, connection: NodeConnection, data: bytes, entries: list[PendingReply]
    ) -> bool:
        try:
            connection.pending.extend(entries)
            connection.send(data)
        except ConnectionBrokenError as exc:
            self._connections.drop(index, str(exc))
            return False
        if connection.has_unsent:
            self._connections.await_writable(connection)
        return True

    def _drain_overdue(
        self, index: int, connection: NodeConnection, now: float
    ) -> NodeConnection | None:
        """Read what an overdue node has said meanwhile; if that is not all, it has failed."""
        if not self._drain_node(index, connection):
            return None
        if connection.is_overdue(now, self._node_timeout):
            self._health[index].record_failure(_no_answer(self._node_timeout), now)
            self._connections.complete = False
        return connection

    def _drain_node(self, index: int, connection: NodeConnection) -> bool:
        """Count what a node has said; return whether the connection is still good."""
        try:
            for pending, reply in connection.receive():
                self._handle_reply(index, connection, pending, reply)
                self._health[index].record_success()
        except ConnectionBrokenError as exc:
            self._connections.drop(index, str(exc))
            return False
        return True

    def _receive_replies(self, remaining: float) -> None:
        """Wait for any node, at most so long, and count what has come."""
        for index, connection in self._connections.ready(remaining):
            try:
                for pending, reply in connection.receive():
                    self._handle_reply(index, connection, pending, reply)
            except ConnectionBrokenError as exc:
                self._connections.drop(index, str(exc))
                if self._unanswered.pop(index, None):
                    self._fail(index, Failed(str(exc)), clock())
                continue
            if self._health[index].reason is not None:
                self._health[index].record_success()

    def _handle_reply(
        self, index: int, connection: NodeConnection, pending: PendingReply, reply: Any
    ) -> None:
        current = pending.exchange == self._number and index in self._unanswered
        if isinstance(reply, Exception):
            text = str(reply)
            if text.startswith("NOSCRIPT") and (current or _may_run_late(pending)):
                # It has not run. What is still of use is said again, with the whole script.
                data = _pack(pending.command, pending.nonce, in_full=True)
                self._send_to(index, connection, data, [pending])
                return
            if not text.startswith("NOSCRIPT"):
                text = self._health[index].record_refusal(pending.command.script, text)
            vote: Any = Failed(text) if current else None
        else:
            if self._health[index].refusals and reply[:1] == _ACKNOWLEDGED:
                self._health[index].refusals.pop(pending.command.script, None)
            vote = read_reply(reply) if current or pending.acked is not None else None
            if pending.acked is not None:
                self._record_ack(index, connection, pending.acked, vote)
            vote = vote if current else None
        if vote is None or pending.round is None:
            return
        unanswered = self._unanswered.get(index, 0) - 1
        if unanswered > 0:
            self._unanswered[index] = unanswered
        else:
            self._unanswered.pop(index, None)
        self._vote(pending.round, index, vote, clock())

    def _record_ack(
        self, index: int, connection: NodeConnection, acked: AckedNodes, vote: Any
    ) -> None:
        now = clock()
        command = acked.record_vote(index, vote, now)
        if command is not None:
            nonce = b"%x" % next(_nonces)
            self._send_to(
                index,
                connection,
                _pack(command, nonce),
                [PendingReply(nonce, command, None, 0, now)],
            )

    def _vote(self, round_: Round, index: int, vote: Any, now: float) -> None:
        awaited = self._open_rounds.get(round_)
        if awaited is None and round_.phase is Phase.RAISING:
            return  # a vote on the first command, when the second is what has to be said next
        if round_.vote(index, vote, now) is not awaited:
            self._open_rounds.pop(round_, None)

    def _fail(self, index: int, vote: Failed, now: float) -> None:
        for round_ in tuple(self._open_rounds):
            self._vote(round_, index, vote, now)

    def _time_out(self, timeout: float) -> None:
        now = clock()
        for index in self._unanswered:
            reason = _no_answer(timeout)
            self._health[index].record_failure(reason, now)
            self._fail(index, Failed(reason), now)
        self._connections.complete = False


def _pack(command: Command, nonce: bytes, *, in_full: bool = False) -> bytes:
    script = command.script
    head = ("EVAL", SOURCE[script]) if in_full else ("EVALSHA", SHA[script])
    words: Any = (*head, len(command.keys), *command.keys, nonce, *command.args)
    packed: bytes = hiredis.pack_command(words)
    return packed


def _may_run_late(pending: PendingReply) -> bool:
    """Tell whether a command is of use whenever it runs: it sets nothing that was not there."""
    script = pending.command.script
    return script is Script.RELEASE or (script is Script.EXTEND and pending.round is None)


def _no_answer(seconds: float) -> str:
    return f"no answer within {seconds:.3g} s"
