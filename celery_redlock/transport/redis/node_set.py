"""
The nodes of one client, as all its channels see them: how to connect, how they behave, limits.
"""

from __future__ import annotations

import contextlib
import math
import random
import re
import sys
import time
from collections import deque
from collections.abc import Sequence

from celery_redlock._greenlets.threads import call_in_app
from celery_redlock._greenlets.unpatched import native_lock
from celery_redlock._log import event_logger
from celery_redlock.protocol.commands import SOURCE, Command, Script
from celery_redlock.protocol.texts import shortened
from celery_redlock.protocol.timing import quorum
from celery_redlock.transport import clock
from celery_redlock.transport.addresses import NodeAddress
from celery_redlock.transport.base import Durations, VoteReceiver
from celery_redlock.transport.redis.connection import NodeConnection
from celery_redlock.transport.redis.masters import MasterWatch, connector_to

_logger = event_logger(__name__)

_MIN_BACKOFF = 0.05
_MAX_BACKOFF = 2.0
_MAX_DEFERRED = 1000

#: A release, and the receiver of the node's reply, if any.
DeferredRelease = tuple[Command, VoteReceiver | None]

#: Seconds between two log lines about the failures of one node.
_QUIET = 60.0

#: Names of the nodes whose failures a worker or a publisher logs, for all clients of the process.
logged_elsewhere: set[str] = set()

#: Consequences of refused scripts, for those whose refusal may reach no caller.
_CONSEQUENCES = {
    Script.RELEASE: "Released locks stay held there until their TTL expires",
    Script.EXTEND: "Leases and reservations expire there although they are extended",
    Script.HEAL: "Keys of leases that it has lost are not set there again",
}

_named_command = re.compile(r"permissions to run the '([^']+)' command").search
_line_in_script = re.compile(r"can't run this command or subcommand.*user_script:(\d+)").search
_refused_keys = re.compile(r"permissions to access (?:a key|one of the keys)").search
_calls = re.compile(r"redis\.p?call\('(\w+)'").findall

#: Seconds that closing waits for the connection attempts under way.
_CLOSES_WITHIN = 2.0


class NodeSet:
    """
    The nodes of one client.

    Attributes:
        names: the nodes' display names, without passwords.
        connectors: one for each node.
        watch: knows the masters of the nodes that can fail over; None if none can.
        health: one for each node.
        quorum: size of a quorum.
        node_timeout: seconds in which a node has to answer, also in each step of connecting.
        max_ttl: longest lease, in seconds.
        connecting: an object for each connection attempt that is under way.
    """

    def __init__(self, addresses: Sequence[NodeAddress], durations: Durations) -> None:
        self.node_timeout, self.max_ttl = durations.node_timeout, durations.max_ttl
        self.names = tuple(address.name for address in addresses)
        self.quorum = quorum(len(addresses))
        watched = [address for address in addresses if address.fails_over]
        self.watch = MasterWatch(watched, durations) if watched else None
        self.connectors = [
            connector_to(address, self.node_timeout, self.watch) for address in addresses
        ]
        self.health = [NodeHealth(name) for name in self.names]
        self.reset_after_fork()

    def reset_after_fork(self) -> None:
        """Forget what the threads of a parent process were doing."""
        self.connecting: set[object] = set()
        self._run_ids: dict[int, str] = {}
        self._lock = native_lock()
        if self.watch is not None:
            self.watch.reset_after_fork()

    def leads_to_former(self, index: int, connection: NodeConnection) -> bool:
        """Return whether a connection leads to a server that is no longer its node's master."""
        if self.watch is None or connection.master is None:
            return False
        group = self.watch.groups[self.connectors[index].address.identity]
        return group.master is not connection.master

    def has_deferred(self) -> bool:
        """Return whether releases are deferred."""
        return any(health.deferred for health in self.health)

    def duplicate_server_problem(self, index: int, run_id: str | None) -> str:
        """Return why a node may not vote: it has the run id of another node. Empty if it may."""
        if run_id is None:
            return ""
        # Both connections to one server are mostly made at the same time.
        with self._lock:
            for other, known in self._run_ids.items():
                if other != index and known == run_id:
                    return same_server_as(self.names[other])
            self._run_ids[index] = run_id
        return ""

    def wait_for_connects(self) -> None:
        """Wait until no connection attempt is under way; gives up one that takes too long."""
        deadline = clock.now() + _CLOSES_WITHIN
        # Attempts run in native threads or in greenlets; only sleep lets both run.
        while self.connecting and clock.now() < deadline and not sys.is_finalizing():
            time.sleep(0.002)


def same_server_as(other: str) -> str:
    """Return why a node must not vote: it is the same server as another node."""
    return f"is the same server as {other}, which would have two votes; name independent servers"


class NodeHealth:
    """
    One node, as all channels of a client see it.

    Attributes:
        name: display name.
        deferred: the releases that wait until it is connected.
        deferred_at: when a release was deferred last, on the transport's clock.
        reason: why it failed last, None while it works.
        lasting: whether that is a wrong setting, which no waiting repairs.
        was_connected: whether a connection to it has ever been made.
        refusals: the scripts that it answered with an error the last time, and the errors.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.reason: str | None = None
        self.lasting = False
        self.was_connected = False
        self.refusals: dict[Script, str] = {}
        self._failures = 0
        self._backoff_until = 0.0
        self._quiet_until = -math.inf
        self.deferred: deque[DeferredRelease] = deque(maxlen=_MAX_DEFERRED)
        self.deferred_at = -math.inf

    def record_failure(self, reason: str, now: float, *, lasting: bool = False) -> None:
        """
        Let the node back off for a jittered time that doubles with each failure in a row.

        Failures are logged from the second in a row on, at most once in a minute: the first may be
        a connection that the server closed because it was idle.
        """
        self.reason, self.lasting = reason, lasting
        if now < self._backoff_until:
            return
        backoff = min(_MIN_BACKOFF * 2.0**self._failures, _MAX_BACKOFF)
        self._backoff_until = now + backoff * random.uniform(0.5, 1.0)  # noqa: S311 - jitter
        self._failures = min(self._failures + 1, 16)
        if self._failures > 1 and now >= self._quiet_until and self.name not in logged_elsewhere:
            self._quiet_until = now + _QUIET
            call_in_app(
                _logger.warning,
                "lock-node-fails",
                "Lock node %(node)s fails: %(reason)s. Locks are acquired as long as a quorum of "
                "nodes votes.",
                node=self.name,
                reason=reason.rstrip("."),
            )

    def record_success(self) -> None:
        """End the back-off."""
        self.reason, self.lasting = None, False
        self._failures = 0
        self._backoff_until = 0.0

    def is_backing_off(self, now: float) -> bool:
        """Return whether only an attempt that needs the node for a quorum may ask it."""
        return now < self._backoff_until

    def record_refusal(self, script: Script, error: str) -> str:
        """
        Record that the node answered a script with an error; return the error, explained.

        An error that reaches no caller is logged: once, and again after the script has worked.
        """
        reason = _explain_refusal(script, error)
        if script in _CONSEQUENCES and script not in self.refusals:
            self.refusals[script] = reason
            call_in_app(
                _logger.warning,
                "script-refused",
                "Lock node %(node)s refuses the script %(script)s: %(reason)s. %(consequence)s.",
                node=self.name,
                script=script,
                reason=reason,
                consequence=_CONSEQUENCES[script],
            )
        return reason

    def defer(self, command: Command, receiver: VoteReceiver | None = None) -> None:
        """Keep a release until the node is connected, but only the newest thousand."""
        self.deferred_at = clock.now()
        self.deferred.append((command, receiver))

    def take_deferred(self) -> list[DeferredRelease]:
        """Remove and return the deferred releases."""
        deferred = []
        # Several channels may do this at once, so a check for emptiness would prove nothing.
        with contextlib.suppress(IndexError):
            while True:
                deferred.append(self.deferred.popleft())
        return deferred


def _explain_refusal(script: Script, error: str) -> str:
    """Return a node's error to a script, shortened, with the right that its user lacks."""
    right = _missing_right(script, error)
    grant = f" (script {script}; grant the user {right})" if right else ""
    return shortened(error) + grant


def _missing_right(script: Script, error: str) -> str:
    if named := _named_command(error):
        return f"+{named[1].lower()}"
    if _refused_keys(error):
        return "its lock keys and redlock-meta:* (~PATTERN)"
    if place := _line_in_script(error):
        # Redis 7.0 names only the line of the script.
        line = SOURCE[script].splitlines()[int(place[1]) - 1 : int(place[1])]
        return " ".join(f"+{call.lower()}" for call in _calls("".join(line)))
    return ""
