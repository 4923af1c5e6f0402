"""
One caller's channel to all Redis nodes: it sends to all at once and takes replies as they come.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any

from celery_redlock.protocol.commands import Command, Script, inspect, read_reply
from celery_redlock.protocol.rounds import InspectRound, Phase, Round
from celery_redlock.protocol.votes import Failed
from celery_redlock.transport.base import AckedNodes, Batch, VoteReceiver
from celery_redlock.transport.clock import now as clock
from celery_redlock.transport.redis.connection import (
    ConnectionBrokenError,
    NodeConnection,
    PendingReply,
)
from celery_redlock.transport.redis.connections import Connections
from celery_redlock.transport.redis.node_set import NodeSet

#: Seconds without use after which a connection is read before an attempt relies on it, and after
#: which a quorum has to answer on it.
_IDLE = 1.0
_LONG_IDLE = 10.0

#: Seconds after which a reply brings no follow-up: a follow-up names a duration, which begins when
#: the follow-up is made.
_FOLLOWUP_WINDOW = 1.0

#: Reply of a node that has executed the whole command.
_ACKNOWLEDGED = [b"A"]


class RedisChannel:
    """
    A `Channel` over one connection to each node.

    Attributes:
        native: whether it belongs to native threads, which must not use greenlets' sockets.
        queued_sends: what to send when the borrower gives the channel back.
        closed: whether it is closed, or about to be.
    """

    def __init__(self, nodes: NodeSet, *, native: bool) -> None:
        self.native = native
        self.queued_sends: list[Callable[[RedisChannel], None]] = []
        self.closed = False
        self._nodes = nodes
        self._health = nodes.health
        self._node_timeout = nodes.node_timeout
        self._connections = Connections(nodes, self._send_deferred, native=native)
        self._by_node = self._connections.by_node
        self._used_at = clock()
        # The exchange under way: its number, its open rounds (with the phase that each waits in),
        # the number of its replies that each node has not sent yet, and what nodes get once more on
        # a new connection, or have got already (None).
        self._number = 0
        self._open_rounds: dict[Round, Phase] = {}
        self._unanswered: dict[int, int] = {}
        self._again: dict[int, list[PendingReply] | None] = {}

    def connect(self, limit: float = math.inf) -> None:
        """Wait, within bounds, until a quorum of nodes is connected."""
        now = clock()
        until = now + limit
        idle_for = now - self._used_at
        idle = idle_for >= _IDLE
        watch = self._nodes.watch
        if watch is not None:
            watch.use(limit)
        is_complete = self._connections.complete and (
            watch is None or not self._connections.lead_to_former()
        )
        if is_complete and not idle:
            return
        while idle and self._receive_replies(0.0):
            pass  # a connection that was closed shows once its last replies are read
        if idle_for >= _LONG_IDLE and limit > self._node_timeout:
            self._check(until - clock())
            now = clock()
        for index, connection in self._connections.made():
            if connection.is_overdue(now, self._node_timeout):
                self._drain_overdue(index, connection, now)
        self._send_deferred_to(self._connections.ensure(now, until - now))
        self._used_at = clock()

    def _check(self, limit: float) -> None:
        """
        Ask the nodes for a sign of life; use those connections no more on which none comes.

        Something between may have forgotten connections that were idle, without a reset. Where a
        quorum answers, the others are found out as they are used (decision 0002).
        """
        round_ = InspectRound(len(self._by_node))
        if any(self._by_node):
            self.exchange(((inspect(()), round_),), self._node_timeout, limit=limit)
            if round_.phase is not Phase.GRANTED:
                self._connections.retire_silent(clock())

    def exchange(
        self,
        batch: Batch,
        timeout: float,
        *,
        limit: float = math.inf,
        linger: float = 0.0,
        acked: AckedNodes | None = None,
    ) -> None:
        """Send a batch to every node and feed the replies into its rounds."""
        self._number += 1
        self._used_at = now = clock()
        receiver = None if acked is None else acked.record_vote
        entries = [
            PendingReply(command, now, round_, self._number, receiver) for command, round_ in batch
        ]
        self._open_rounds = {round_: round_.phase for _, round_ in batch}
        self._unanswered = {}
        self._again = {}
        self._send_batch(entries, now)
        # Not `now`: this process may have paused between two nodes.
        asked_at = clock()
        for entry in entries:
            entry.asked_at = asked_at
        deadline = min(asked_at + timeout, now + limit)
        remaining, has_more = timeout, False
        while self._open_rounds and self._is_awaited and (remaining > 0 or has_more):
            # The last reads come after the deadline: this process may have been without a CPU.
            remaining = deadline - clock()
            has_more = self._receive_replies(max(0.0, remaining))
        if self._open_rounds:
            self._time_out(deadline - asked_at, is_failure=deadline == asked_at + timeout)
        elif linger:
            deadline = min(deadline, clock() + linger)
            while self._unanswered and (remaining := deadline - clock()) > 0:
                self._receive_replies(remaining)
        # Later replies count for no round, and their commands are not sent again.
        self._unanswered = {}
        for index in self._again:
            self._give_up(index)
        self._open_rounds = {}
        self._send_deferred_to(self._connections.take_connected())

    def send(
        self,
        command: Command,
        nodes: Sequence[int] | None = None,
        *,
        receiver: VoteReceiver | None = None,
    ) -> None:
        """Send a command without waiting; a release also to nodes that are not connected yet."""
        entry = PendingReply(command, clock(), receiver=receiver)
        data = entry.packed()
        for index in range(len(self._by_node)) if nodes is None else nodes:
            connection = self._by_node[index]
            if connection is None or connection.is_full_for(command):
                self._defer(index, command, receiver)
            else:
                self._send_to(index, connection, data, [entry])
        self._send_deferred_to(self._connections.take_connected())

    def nodes_in_doubt(self) -> frozenset[int]:
        """Return the nodes where a command of this channel may yet set a key."""
        return frozenset(
            index
            for index, connection in self._connections.made()
            if any(entry.command.sets_keys for entry in connection.pending)
        )

    def drain(self) -> None:
        """Take the connections that were made and the replies that have come; wait for none."""
        self._send_deferred_to(self._connections.take_connected())
        for index, connection in self._connections.made():
            if connection.pending:
                self._receive_from(index, connection)

    def deliver_deferred(self) -> bool:
        """
        Send deferred releases where that is possible, and begin to connect to the other nodes.

        Returns:
            Whether no release is deferred, and the nodes have replied to those that were sent here.
        """
        self._receive_replies(0.0)
        self._send_deferred_to(self._connections.connect_to_deferred(clock()))
        return not (
            self._nodes.has_deferred()
            or self._connections.has_new
            or any(connection.pending for _, connection in self._connections.made())
        )

    def send_after_ack(self, command: Command, acked: AckedNodes) -> None:
        """Send a command to the nodes in `acked`, and for a second to those that join it."""
        self.drain()
        acked.followup, acked.followup_deadline = command, clock() + _FOLLOWUP_WINDOW
        self.send(command, sorted(acked))

    def await_receivers(self, until: float) -> None:
        """Wait for the replies that receivers shall get, from nodes that are not overdue."""
        while (now := clock()) < until and any(
            any(entry.receiver is not None for entry in connection.pending)
            and not connection.is_overdue(now, self._node_timeout)
            for _, connection in self._connections.made()
        ):
            self._receive_replies(until - now)
        self.drain()  # this process may have been without a CPU until then

    def close(self) -> None:
        """Close the connections."""
        for index in self._again:
            self._give_up(index)
        self._connections.close()

    def reset_after_fork(self) -> None:
        """Forget the connections in a forked child, which shares them with its parent."""
        self._connections.reset_after_fork()

    def _send_batch(self, entries: list[PendingReply], now: float) -> None:
        """Send to every healthy node, and to each other node if that is of use."""
        data = _packed(entries)
        unhealthy: list[int] = []
        for index, connection in enumerate(self._by_node):
            if connection is not None and connection.is_overdue(now, self._node_timeout):
                connection = self._drain_overdue(index, connection, now)
            health = self._health[index]
            if connection is None or (health.reason is not None and health.is_backing_off(now)):
                unhealthy.append(index)
            elif self._send_to(index, connection, data, entries):
                self._unanswered[index] = len(entries)
            elif index not in self._again:
                unhealthy.append(index)
        if unhealthy:
            self._send_to_unhealthy(unhealthy, data, entries, now)

    def _send_to_unhealthy(
        self, unhealthy: list[int], data: bytes, entries: list[PendingReply], now: float
    ) -> None:
        """Ask nodes that are backing off only if a quorum needs them (decision 0003)."""
        needed = len(self._unanswered) + len(self._again) < self._nodes.quorum
        # A silent node may hold our keys, so it gets every command that sets none.
        harmless = not any(entry.command.sets_keys for entry in entries)
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
            if index in self._again:
                continue
            reason = self._health[index].reason
            # A node without a failure is not connected yet, so this attempt has not tested it.
            attempted = needed and reason is not None
            if reason is None and self._connections.is_slow(index, now):
                reason = f"{_no_answer(self._node_timeout)} while connecting"
            self._fail(index, Failed(reason or "not connected yet", attempted=attempted), now)

    def _defer(self, index: int, command: Command, receiver: VoteReceiver | None = None) -> None:
        # Only a release may be sent late: a key set after its lease has ended would stay.
        if command.script is Script.RELEASE:
            self._connections.defer(index, command, receiver)

    def _send_deferred_to(self, nodes: Sequence[int]) -> None:
        for index in nodes:
            connection = self._by_node[index]
            if connection is not None:
                try:
                    self._send_deferred(index, connection)
                    # The thread that has connected may have left something, too.
                    if connection.has_unsent:
                        self._connections.await_writable(connection)
                except ConnectionBrokenError as exc:
                    self._lose(index, connection, str(exc))

    def _send_deferred(self, index: int, connection: NodeConnection) -> None:
        """Send a node's deferred releases; the thread that has just connected calls this, too."""
        now = clock()
        entries = [
            PendingReply(command, now, receiver=receiver)
            for command, receiver in self._health[index].take_deferred()
        ]
        # All are pending before one is sent, so that all are deferred again if a send fails.
        connection.pending.extend(entries)
        if entries:
            connection.send(_packed(entries))

    def _send_to(
        self, index: int, connection: NodeConnection, data: bytes, entries: list[PendingReply]
    ) -> bool:
        try:
            connection.pending.extend(entries)
            connection.send(data)
        except ConnectionBrokenError as exc:
            self._lose(index, connection, str(exc))
            return False
        if connection.has_unsent:
            self._connections.await_writable(connection)
        return True

    def _drain_overdue(
        self, index: int, connection: NodeConnection, now: float
    ) -> NodeConnection | None:
        """Read what an overdue node has sent meanwhile; if a reply is still overdue, it failed."""
        if not self._receive_from(index, connection):
            return None
        if connection.is_overdue(now, self._node_timeout):
            self._health[index].record_failure(_no_answer(self._node_timeout), now)
            self._connections.complete = False
        return connection

    def _receive_from(self, index: int, connection: NodeConnection) -> bool:
        """Handle the replies that a node has sent; return whether the connection is still good."""
        has_replied = False
        try:
            for pending, reply in connection.receive():
                self._handle_reply(index, connection, pending, reply)
                has_replied = True
        except ConnectionBrokenError as exc:
            self._lose(index, connection, str(exc))
            return False
        if has_replied:
            self._health[index].record_success()
        return True

    def _receive_replies(self, remaining: float) -> bool:
        """
        Wait up to `remaining` seconds for any node, and handle the replies that have come.

        Returns:
            Whether a connection had bytes, or has ended.
        """
        found = False
        for index, connection in self._connections.ready(remaining):
            found = True
            # A part of a reply is a sign of life, too.
            if self._receive_from(index, connection) and self._health[index].reason is not None:
                self._health[index].record_success()
        if any(self._again.values()):
            self._send_again()
        return found

    @property
    def _is_awaited(self) -> bool:
        """Whether a node may still vote in the exchange under way."""
        return bool(self._unanswered) or any(self._again.values())

    def _lose(self, index: int, connection: NodeConnection, reason: str) -> None:
        """
        Close a broken connection; the commands of open rounds are sent once more on a new one.

        Most connections that break were dead before: idle for too long for the server, or for
        something between. The commands of this package have the same effect twice as once.
        """
        unanswered = [
            entry
            for entry in connection.pending
            if entry.exchange == self._number and entry.round in self._open_rounds
        ]
        is_first = index not in self._again
        self._connections.drop(index, reason, keeps=unanswered if is_first else ())
        self._unanswered.pop(index, None)
        if not unanswered:
            return
        if is_first:
            self._again[index] = unanswered
            self._connections.start_connect(index, clock())
        else:
            self._fail(index, Failed(reason), clock())

    def _send_again(self) -> None:
        """Send what a broken connection has lost, to the nodes that have a new one."""
        self._send_deferred_to(self._connections.take_connected())
        now = clock()
        for index, entries in list(self._again.items()):
            connection = self._by_node[index]
            if not entries:
                continue
            if connection is None:
                if not self._connections.is_connecting(index):
                    self._give_up(index)
                continue
            self._again[index] = None
            entries = [replace(entry, sent_at=now) for entry in entries]
            if self._send_to(index, connection, _packed(entries), entries):
                self._unanswered[index] = len(entries)

    def _give_up(self, index: int) -> None:
        """Send no more what a broken connection has lost; a release is deferred."""
        entries, self._again[index] = self._again[index], None
        for entry in entries or ():
            self._defer(index, entry.command)
        if entries:
            self._fail(index, Failed(self._health[index].reason or "not connected"), clock())

    def _handle_reply(
        self, index: int, connection: NodeConnection, pending: PendingReply, reply: Any
    ) -> None:
        current = pending.exchange == self._number and index in self._unanswered
        if isinstance(reply, Exception):
            text = str(reply)
            if text.startswith("NOSCRIPT") and (
                current or _may_run_late(pending, connection.pending)
            ):
                # The node has not executed it; send it again, with the script's source.
                self._send_to(index, connection, pending.packed(in_full=True), [pending])
                return
            if not text.startswith("NOSCRIPT"):
                text = self._health[index].record_refusal(pending.command.script, text)
            vote: Any = Failed(text)
        else:
            if self._health[index].refusals and reply[:1] == _ACKNOWLEDGED:
                self._health[index].refusals.pop(pending.command.script, None)
            matters = current or pending.receiver is not None or connection.master is not None
            vote = read_reply(reply) if matters else None
        if pending.receiver is not None:
            self._give(pending.receiver, index, connection, vote)
        now = clock()
        if connection.master is not None:
            vote = connection.master.counted(vote, pending.command.script, pending.sent_at, now)
        if not current or vote is None or pending.round is None:
            return
        unanswered = self._unanswered.get(index, 0) - 1
        if unanswered > 0:
            self._unanswered[index] = unanswered
        else:
            self._unanswered.pop(index, None)
        self._vote(pending.round, index, vote, now)

    def _give(
        self, receiver: VoteReceiver, index: int, connection: NodeConnection, vote: Any
    ) -> None:
        now = clock()
        command = receiver(index, vote, now)
        if command is not None:
            entry = PendingReply(command, now)
            self._send_to(index, connection, entry.packed(), [entry])

    def _vote(self, round_: Round, index: int, vote: Any, now: float) -> None:
        awaited = self._open_rounds.get(round_)
        if awaited is None and round_.phase is Phase.RAISING:
            return  # a vote on the acquire, and the next exchange asks for votes on the raise
        if round_.vote(index, vote, now) is not awaited:
            self._open_rounds.pop(round_, None)

    def _fail(self, index: int, vote: Failed, now: float) -> None:
        for round_ in tuple(self._open_rounds):
            self._vote(round_, index, vote, now)

    def _time_out(self, waited: float, *, is_failure: bool) -> None:
        """Let the votes of silent nodes fail; no node has failed that had less than its timeout."""
        now = clock()
        reason = _no_answer(max(0.0, waited))
        for index in self._unanswered:
            if is_failure:
                self._health[index].record_failure(reason, now)
            self._fail(index, Failed(reason), now)
        self._connections.complete = False


def _packed(entries: Sequence[PendingReply]) -> bytes:
    return b"".join(entry.packed() for entry in entries)


def _may_run_late(pending: PendingReply, sent_since: Collection[PendingReply]) -> bool:
    """
    Return whether a command may run behind those that were sent after it.

    A release and the extension of an owner's keys affect that owner alone. A command that enters or
    removes a waiter would undo a later command of the same waiter.
    """
    command = pending.command
    if command.script is Script.ENQUEUE or command.forgets_a_waiter:
        return not sent_since
    if command.script is Script.RELEASE:
        return True
    return command.script is Script.EXTEND and pending.round is None


def _no_answer(seconds: float) -> str:
    return f"no answer within {seconds:.3g} s"
