"""
The keys of a lease on the nodes, their validity, and the commands that extend and release them.
"""

from __future__ import annotations

import math
import os
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from enum import Enum, auto

from celery_redlock._greenlets.threads import call_in_app
from celery_redlock._greenlets.unpatched import native_lock
from celery_redlock._log import event_logger
from celery_redlock.core import instrumentation
from celery_redlock.core.attempt import AcquireParams, Attempt
from celery_redlock.core.failures import describe_problems
from celery_redlock.core.instrumentation import (
    ExtendDetails,
    LossDetails,
    Outcome,
    ReleaseDetails,
)
from celery_redlock.core.reservation import Reservation
from celery_redlock.errors import LeaseLost, LossReason
from celery_redlock.protocol.commands import (
    Command,
    ReleaseAction,
    Script,
    extend,
    extend_together,
    granted_keys,
    heal,
    release,
)
from celery_redlock.protocol.keys import Key
from celery_redlock.protocol.rounds import BatchRound, ExtendRound, Phase, Round
from celery_redlock.protocol.texts import shortened
from celery_redlock.protocol.timing import milliseconds
from celery_redlock.transport import Channel, Transport

_logger = event_logger(__name__)

#: Seconds; what takes longer than this in a step of a wait is a pause of the process.
_PAUSE = 0.005

#: Keys, fence counters included, in a command that extends several leases: a node does nothing else
#: while it executes one.
_KEYS_AT_ONCE = 1000

_EXTEND_OUTCOMES = {Phase.GRANTED: Outcome.GRANTED, Phase.GONE: Outcome.GONE}


class LeaseState(Enum):
    """The stage of a lease's life."""

    HELD = auto()
    LOST = auto()
    RELEASED = auto()


class Holding:
    """
    The keys of a lease on the nodes, and its validity. The watchdog extends it.

    It sends nothing by itself, except to heal a node: callers send the commands that it makes, and
    hand it the votes.

    Attributes:
        asked_for: all lock keys that were asked for, without those that were released before.
        slots: the slot that it has of each key with a limit, by the key.
        owner: the value that marks it on the nodes.
        fencing_token: larger than the token of every earlier holder; fixed for its life.
        ttl: length in seconds that each extension asks for.
        transport: to the nodes.
        valid_until: end of its validity, on the transport's clock; infinite if it never expires.
        on_lost: called once if it is lost, see `mark_lost`.
    """

    def __init__(
        self,
        transport: Transport,
        params: AcquireParams,
        attempt: Attempt,
        on_released: Callable[[], object],
    ) -> None:
        round_ = attempt.round
        self.asked_for = params.asked_for
        self.owner = attempt.owner
        self.fencing_token = round_.token
        self.transport = transport
        self.on_lost: Callable[[], object] | None = None
        self.valid_until = round_.valid_until
        self._acquired_at = transport.now()
        self._ended_at: float | None = None
        self._pid = os.getpid()
        self._lock = native_lock()
        self._state = LeaseState.HELD
        # The threads in which it is being extended.
        self._extending: set[int] = set()
        self._reason: LossReason | None = None
        self.ttl = params.ttl
        granted = granted_keys(params.keys, attempt.round.slots)
        # Empty if no key has a limit.
        self._slot_of = dict(zip(params.keys, granted, strict=True)) if attempt.round.slots else {}
        self._staying = tuple(key for key in self._slot_of.values() if key.stays)
        if attempt.round.slots:
            params = replace(params, keys=tuple(key for key in granted if not key.stays))
        # After its period, a slot of a rate is another holder's; this lease may still be valid.
        self.slots = {
            key.text: key.slot
            for key in self._slot_of.values()
            if key.slot is not None and not key.stays and not key.is_record
        }
        self._params = params
        self._waiter = params.waiter.name if params.waiter is not None else ""
        # The last command that extended the lease, and the values that it was made of.
        self._extension: tuple[AcquireParams, float, Command] | None = None
        self._on_released = on_released
        # Nodes where a command of this lease may yet set a key, as known when it was sent. A later
        # reply clears no node: the key may have been set after a release that the node received on
        # another connection.
        self._in_doubt: dict[Channel, set[int]] = {attempt.channel: set(attempt.nodes_in_doubt)}
        self._takeover = attempt if params.previous else None
        self._hold_until = 0.0
        self._was_valid = False
        self._released_as = Phase.VOTING

    @property
    def keys(self) -> tuple[str, ...]:
        """The texts of the keys in `asked_for`."""
        return tuple(key.text for key in self.asked_for)

    @property
    def key(self) -> str:
        """The text of the first key in `asked_for`."""
        return self.asked_for[0].text

    def names_of(self, keys: Iterable[Key]) -> tuple[str, ...]:
        """Return the names of keys on the nodes, this lease's slots in place of limited keys."""
        return tuple(self._slot_of.get(key, key).stored for key in keys)

    @property
    def expires_in(self) -> float:
        """Seconds until the lease expires; 0.0 if it is lost, released or another process's."""
        if self._state is not LeaseState.HELD or self._pid != os.getpid():
            return 0.0
        return max(0.0, self.valid_until - self.transport.now())

    @property
    def is_valid(self) -> bool:
        """Whether the lease is valid at this instant."""
        return self.expires_in > 0.0

    @property
    def lost(self) -> LossReason | None:
        """Why the lease was lost; None while it is held and after it was released in time."""
        if self._state is LeaseState.HELD and not self.is_valid:
            if self._pid != os.getpid():
                return LossReason.FORKED
            self.mark_lost(LossReason.EXPIRED)
        return self._reason

    def check(self) -> None:
        """Raise `LeaseLost` unless the lease is valid at this instant."""
        if not self.is_valid:
            raise self.lost_error()

    def lost_error(self) -> LeaseLost:
        """Return the error that names why the lease is not valid."""
        reason = self.lost or LossReason.RELEASED
        return LeaseLost(
            f"The lease on {shortened(self.key)!r} (token {self.fencing_token}) is not valid: "
            f"{reason}. Stop writing; another process may hold the lock.",
            self.key,
            reason,
        )

    @property
    def held_for(self) -> float:
        """Seconds since the lock was acquired, until its release."""
        return (self._ended_at or self.transport.now()) - self._acquired_at

    def now(self) -> float:
        """Read the clock of `valid_until`."""
        return self.transport.now()

    def never_expire(self) -> None:
        """Make the lease valid until it is released or reported as lost."""
        with self._lock:
            if self.is_valid:
                self.valid_until = math.inf

    def mark_lost(self, reason: LossReason = LossReason.REPORTED) -> None:
        """
        Report the lease as lost, once: to the log, to `on_lost`, to receivers of `observe`.

        The lease is invalid from now on. The reports are made in the caller's thread; for the
        watchdog under gevent and eventlet, in a greenlet that starts when the running one yields.
        """
        with self._lock:
            if self._state is not LeaseState.HELD:
                return
            self._state = LeaseState.LOST
            self._reason = reason
            on_lost = self.on_lost
        call_in_app(
            _logger.warning,
            "lease-lost",
            "Lease on %(key)r (token %(token)d) lost: %(reason)s",
            key=shortened(self.key),
            token=self.fencing_token,
            reason=reason,
        )
        if on_lost is not None:
            call_in_app(self._notify, on_lost)
        if instrumentation.receivers:
            instrumentation.report(
                LossDetails(
                    keys=self.keys,
                    fencing_token=self.fencing_token,
                    reason=reason,
                    held_for=self.held_for,
                    owner=self.owner,
                )
            )

    def _notify(self, on_lost: Callable[[], object]) -> None:
        try:
            on_lost()
        except Exception:
            _logger.exception(
                "on-lost-failed",
                "on_lost callback of the lease on %(key)r failed",
                key=shortened(self.key),
            )

    def begin_extension(self) -> bool:
        """Return whether the lease may be extended; if so, its release waits for the end of it."""
        with self._lock:
            if not self.is_valid:
                return False
            self._extending.add(threading.get_ident())
            return True

    def end_extension(self) -> None:
        """Let a release wait no longer for an extension that this thread began, if it did."""
        self._extending.discard(threading.get_ident())

    def wait_for_extension(self) -> None:
        """
        Wait up to `node_timeout` seconds for the end of an extension in another thread.

        Limit: a slow node may execute it later; one that a signal's handler interrupts in this
        thread is sent after the release.
        """
        left, before = self.node_timeout, self.now()
        while self._extending - {threading.get_ident()} and left > 0 and not sys.is_finalizing():
            self.transport.sleep(0.001)
            now = self.now()
            # While this process paused, the thread that extends did not get on, either.
            left -= min(now - before, _PAUSE)
            before = now

    def extend_command(self) -> tuple[Command, ExtendRound]:
        """Return the command that extends the lease, and the round that counts its votes."""
        params, ttl, last = self._params, self.ttl, self._extension
        if last is None or last[0] is not params or last[1] != ttl:
            command = extend(params.keys, self.owner, milliseconds(ttl), self.fencing_token)
            self._extension = last = (params, ttl, command)
        round_ = ExtendRound(
            len(self.transport.names),
            sent_at=self.transport.now(),
            ttl=ttl,
            drift_factor=params.settings.drift_factor,
            valid_until=self.valid_until,
        )
        return last[2], round_

    def apply_extension(self, command: Command, round_: ExtendRound, channel: Channel) -> None:
        """Apply the result of an extension, and heal the nodes that lost our keys."""
        if round_.phase is Phase.GRANTED:
            self._apply_grant(round_, channel)
        # A command from before `release_keys` also names keys that the lease no longer has.
        elif round_.phase is Phase.GONE and len(command.keys) <= 2 * len(self._params.keys):
            self.mark_lost(LossReason.GONE)
        if instrumentation.receivers:
            instrumentation.report(
                ExtendDetails(
                    keys=self.keys,
                    fencing_token=self.fencing_token,
                    outcome=_EXTEND_OUTCOMES.get(round_.phase, Outcome.UNAVAILABLE),
                    expires_in=self.expires_in,
                )
            )

    def _apply_grant(self, round_: ExtendRound, channel: Channel) -> None:
        with self._lock:
            old_valid_until = self.valid_until
            # A caller that checked after the old deadline saw the lease lost; it stays lost.
            if self._state is not LeaseState.HELD or self.transport.now() >= old_valid_until:
                return
            self.valid_until = max(old_valid_until, round_.valid_until)
            # Under the lock that release takes first, so no heal is sent after a release.
            if round_.missing:
                command = heal(
                    self._params.keys, self.owner, milliseconds(self.ttl), self.fencing_token
                )
                channel.send(command, round_.missing)
                self._in_doubt.setdefault(channel, set()).update(round_.missing)

    @property
    def held_keys(self) -> tuple[Key, ...]:
        """The keys and slots that it has on the nodes and that a release frees; none of a rate."""
        return self._params.keys

    @property
    def max_ttl(self) -> float:
        """Longest length in seconds to which it can be extended."""
        return self._params.settings.max_ttl

    @property
    def node_timeout(self) -> float:
        """Seconds in which a node has to answer."""
        return self._params.node_timeout

    def begin_release(self) -> bool | None:
        """End the validity; return whether it was valid, None if there is nothing to release."""
        if self._pid != os.getpid():
            return None
        with self._lock:
            if self._state is LeaseState.RELEASED:
                return None
            held = self._state is LeaseState.HELD and self.valid_until > self.transport.now()
            self._state = LeaseState.RELEASED
            self._was_valid = held
            self._ended_at = self.transport.now()
        return held

    @property
    def released_in_time(self) -> bool:
        """Whether the lease was released while it was valid."""
        return self._state is LeaseState.RELEASED and self._was_valid

    @property
    def release_is_unconfirmed(self) -> bool:
        """Whether it was released while it was valid, and too few nodes replied to the release."""
        return self.released_in_time and self._released_as not in (Phase.GRANTED, Phase.GONE)

    @property
    def unreleased(self) -> str:
        """The nodes that refuse releases now, each with its reason; empty if none does."""
        return describe_problems(self.transport.refusals(Script.RELEASE))

    def hold_at_least(self, seconds: float) -> None:
        """Keep the keys for this time from the acquire: a release earlier only shortens the TTL."""
        self._hold_until = self._acquired_at + seconds

    def shortens(self, actions: Mapping[Key, ReleaseAction]) -> bool:
        """Return whether a release with these actions leaves keys with a shorter TTL."""
        return self._hold_until > self.transport.now() or any(
            action.keep_ms and not action.value for action in actions.values()
        )

    def release_command(
        self,
        actions: Mapping[Key, ReleaseAction],
        reservation: Reservation | None,
        grace: float,
    ) -> Command:
        """
        Return the command that releases the lease; `grace` as for `lease.release_with`.

        If it leaves keys behind, it waits for an extension under way.
        """
        if self.shortens(actions):
            # An extension that arrives after the release would undo the shortened TTL.
            self.wait_for_extension()
        keep = milliseconds(max(0.0, self._hold_until - self.transport.now()))
        if reservation is not None:
            left = reservation.left_ms(self.transport.wall_us())
            back = ReleaseAction(min(left, milliseconds(grace)), reservation.owner)
            actions = {**actions, **dict.fromkeys(reservation.keys, back)}
        if actions:
            actions = {self._slot_of.get(key, key): action for key, action in actions.items()}
        if self._staying:
            # Nodes that do not have these slots yet set them for the rest of the period.
            passed = milliseconds(self.transport.now() - self._acquired_at)
            rest = {key: ReleaseAction(max(0, key.period_ms - passed)) for key in self._staying}
            actions = {**actions, **rest}
        keys = self._params.keys + self._staying
        return release(keys, self.owner, self.fencing_token, keep, actions, self._waiter)

    def after_release(self, command: Command, channel: Channel) -> None:
        """
        Send the release also on other channels on which a command of ours may still set keys.

        Args:
            command: the release.
            channel: the channel on which it was sent.
        """
        self.send_where_in_doubt(command, channel)
        self._on_released()
        previous = self._params.previous
        if previous is None or self._takeover is None or previous.owner in command.args:
            return
        # Nodes that were down or quarantined at the takeover still have the reservation's keys.
        kept_by = self._takeover.nodes_not_taken_over()
        if kept_by:
            forgotten = release(previous.keys, previous.owner, 0)
            self.transport.send_after_ack(channel, forgotten, kept_by)

    def send_where_in_doubt(self, command: Command, channel: Channel) -> None:
        """Send a release also on the channels on which a command of ours may still set keys."""
        for used, nodes in self._in_doubt.items():
            if nodes and used is not channel:
                self.transport.send_behind(used, command, sorted(nodes))

    def give_up(self, keys: Iterable[Key]) -> Command | None:
        """
        Give up some of the keys; the lease keeps the others.

        Returns:
            The command that releases these keys; None if the lease has none of them.
        """
        named = {self._slot_of.get(key, key) for key in keys}
        with self._lock:
            given = tuple(key for key in self._params.keys if key in named)
            left = tuple(key for key in self._params.keys if key not in named)
            if self._pid != os.getpid() or self._state is LeaseState.RELEASED or not given:
                return None
            if not left:
                raise ValueError("A lease keeps at least one key; release the lease instead.")
            self._params = replace(self._params, keys=left)
            kept = tuple(key for key in self.asked_for if self._slot_of.get(key, key) not in given)
            self.asked_for = kept or left
        return release(given, self.owner, self.fencing_token)

    def settled(self, phase: Phase) -> bool:
        """Note and report how the release ended; return whether the lease was held until then."""
        self._released_as = phase
        had = phase is Phase.GRANTED
        if instrumentation.receivers:
            instrumentation.report(self.release_details(had=had))
        return had and self._was_valid

    def release_details(self, *, had: bool) -> ReleaseDetails:
        """Return the report of the release; `had`: a quorum of nodes still had the keys."""
        return ReleaseDetails(
            keys=self.keys,
            fencing_token=self.fencing_token,
            held=had and self._was_valid,
            held_for=self.held_for,
            owner=self.owner,
        )


def extend_leases(
    channel: Channel, leases: Sequence[Holding], *, until: float, linger: float
) -> dict[Holding, ExtendRound]:
    """
    Extend the leases that are still valid, and apply the votes of the nodes.

    No extension begins once the release of its lease has begun; a release that comes meanwhile can
    wait for it, see `Holding.wait_for_extension`.

    Args:
        channel: to the nodes of all these leases.
        leases: the leases.
        until: when no reply is waited for any more, on the clock of the leases.
        linger: seconds to wait longer for nodes whose vote was not needed.

    Returns:
        The rounds of the votes, without those leases that were not valid any more.
    """
    try:
        extended = [lease for lease in leases if lease.begin_extension()]
        batch = [lease.extend_command() for lease in extended]
        if batch:
            node_timeout, few = min(lease.node_timeout for lease in extended), _few_commands(batch)
            limit = max(0.001, until - extended[0].now())
            channel.exchange(few, node_timeout, limit=limit, linger=linger)
    finally:
        # Before the reports of lost leases: a callback may release the lease.
        for lease in leases:
            lease.end_extension()
    rounds = {}
    for lease, (command, round_) in zip(extended, batch, strict=True):
        lease.apply_extension(command, round_, channel)
        rounds[lease] = round_
    return rounds


def _few_commands(
    extensions: Sequence[tuple[Command, ExtendRound]],
) -> Sequence[tuple[Command, Round]]:
    """Combine extensions into few commands: a node's main cost is the call of a script."""
    groups: list[list[tuple[Command, ExtendRound]]] = []
    room = 0
    for extension in extensions:
        keys = len(extension[0].keys)
        if not groups or keys > room:
            groups.append([])
            room = _KEYS_AT_ONCE
        groups[-1].append(extension)
        room -= keys
    return [
        (extend_together([command for command, _ in group]), BatchRound([own for _, own in group]))
        if len(group) > 1
        else group[0]
        for group in groups
    ]
