"""
A lease: the right to act until a known instant, with the fencing token that orders it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta

from celery_redlock._greenlets.threads import call_in_app
from celery_redlock._log import event_logger
from celery_redlock.core import instrumentation
from celery_redlock.core.attempt import AcquireParams, Attempt
from celery_redlock.core.failures import describe_problems, node_votes
from celery_redlock.core.instrumentation import ExtendDetails, Outcome, ReleaseDetails
from celery_redlock.core.release import (
    HANDBACK_TTL,
    release_to,
    send_release,
    send_unawaited,
)
from celery_redlock.core.reservation import Reservation
from celery_redlock.core.validation import checked_ttl
from celery_redlock.core.validity import LeaseState, LeaseValidity
from celery_redlock.core.watchdog import process_watchdog
from celery_redlock.errors import LossReason, QuorumUnavailable
from celery_redlock.protocol import (
    Command,
    ExtendRound,
    Phase,
    ReleaseAction,
    ReleaseRound,
    Script,
    extend,
    heal,
    milliseconds,
    release,
)
from celery_redlock.protocol.commands import granted_keys, limits_of
from celery_redlock.protocol.keys import (
    is_lock_key,
    lock_of,
    node_key_of,
    period_of,
    slot_number,
    stays,
    user_key,
)
from celery_redlock.protocol.texts import shortened
from celery_redlock.transport import Channel, Transport, borrowed

_logger = event_logger(__name__)

#: Releases sent to a node at once; more would delay the node's other clients.
_BATCH = 100

_EXTEND_OUTCOMES = {Phase.GRANTED: Outcome.GRANTED, Phase.GONE: Outcome.GONE}

#: Exchanges in a row without a quorum after which the nodes count as gone.
_MAX_SILENT = 5


class Lease(LeaseValidity):
    """
    A lock that a quorum of nodes has granted, until it expires, is lost or is released.

    Guarantee: while `is_valid`, nobody else holds the lock, as long as clocks drift within the
    configured factor and this process is not paused between the check and what follows from it.
    Limit: nothing that runs here can rule such a pause out. Give `fencing_token` to the resource,
    which then refuses a holder that was superseded.

    Usable from any thread. In a forked child it is not valid and releases nothing: the parent
    holds it.

    Attributes:
        key: the lock key as it was asked for (the first, if there are several).
        keys: all lock keys as they were asked for, without those that were released before.
        slots: the slot that it holds of each key with a limit, by the key.
        owner: the value that marks this lease on the nodes.
        fencing_token: larger than the token of every earlier holder; fixed for the lease's life.
        ttl: length in seconds that each extension asks for.
    """

    def __init__(
        self,
        transport: Transport,
        keys: tuple[str, ...],
        params: AcquireParams,
        attempt: Attempt,
        on_released: Callable[[Lease], object],
    ) -> None:
        round_ = attempt.round
        super().__init__(transport, keys, attempt.owner, round_.token, round_.valid_until)
        self.ttl = params.ttl
        granted = granted_keys(params.node_keys, attempt.slots)
        self._limits = limits_of(params.node_keys, granted)
        self._slot_of = {lock_of(key): key for key in self._limits}
        self._staying = tuple(key for key in self._limits if stays(key))
        if self._limits:
            held = tuple(key for key in granted if key not in self._staying)
            params = replace(params, node_keys=held)
        # A slot of a rate is another's after the period, although this lease may still be valid.
        self.slots = {
            user_key(key, params.key_prefix): slot_number(key) or 0
            for key in self._limits
            if is_lock_key(key) and not stays(key)
        }
        self._params = params
        self._waiter = params.waiter.name if params.waiter is not None else ""
        # The last command that extended the lease, and what it was made of.
        self._extension: tuple[AcquireParams, float, Command] | None = None
        self._on_released = on_released
        # Nodes where a command sent for this lease may yet set a key, as known when it was sent:
        # by the time a node replies, the key may have been set after a release that went to the
        # node on another connection.
        self._in_doubt: dict[Channel, set[int]] = {attempt.channel: set(attempt.nodes_in_doubt)}
        self._takeover = attempt if params.previous else None
        self._hold_until = 0.0
        self._was_valid = False
        self._released_as = Phase.VOTING

    def __repr__(self) -> str:
        state = f"lost: {self.lost}" if self.lost else f"{self.expires_in:.3f} s left"
        return f"<Lease {shortened(self.key)!r} token {self.fencing_token} ({state})>"

    @property
    def slot(self) -> int | None:
        """The slot of the first key with a limit; None if no key has one."""
        return next(iter(self.slots.values()), None)

    def extend(self, ttl: float | timedelta | None = None) -> None:
        """
        Extend the lease to `ttl` seconds from now; never shortens it.

        Args:
            ttl: new length in seconds, also of later extensions; as acquired if not given.

        Raises:
            LeaseLost: it was no longer valid, or a quorum of nodes no longer has it.
            QuorumUnavailable: no quorum answered; the lease keeps its remaining time.
        """
        self.check()
        if ttl is not None:
            self.ttl = checked_ttl(ttl, self._params.max_ttl)
        with borrowed(self._transport) as channel:
            channel.connect(self.expires_in)
            command, round_ = self.extend_command(self._transport.now())
            channel.exchange([(command, round_)], min(self._params.node_timeout, self.expires_in))
            self.apply_extension(command, round_, channel)
        self.check()
        if round_.phase is not Phase.GRANTED:
            nodes = node_votes(round_, self._transport.names)
            raise QuorumUnavailable(
                f"The lease on {shortened(self.key)!r} was not extended and has "
                f"{self.expires_in:.3g} s left. {describe_problems(nodes)}.",
                self.key,
                nodes,
            )

    def release(self, *, wait: bool = True) -> bool:
        """
        Release the lock. Never raises; may be called again.

        Args:
            wait: whether to wait for a quorum of replies. A release that is not waited for is sent
                when this returns; the process reads the replies within about a second and then
                reports the release to the receivers of `observe`. A call in another thread may
                reach a node earlier than the release.

        Returns:
            Whether the lease was still valid and, with `wait`, a quorum of nodes still had its
            keys.
        """
        return self.release_with({}, wait=wait)

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
        return describe_problems(self._transport.refusals(Script.RELEASE))

    def release_with(
        self,
        actions: Mapping[str, ReleaseAction],
        reservation: Reservation | None = None,
        *,
        grace: float = HANDBACK_TTL,
        wait: bool = True,
        on_settled: Callable[[bool], object] | None = None,
    ) -> bool:
        """
        Release the lock as `release` does, but leave some keys behind. Never raises.

        Args:
            actions: what becomes of single keys, by their names on nodes; others are released.
            reservation: gets those of its keys that the lease has, until it expires. A node that
                sets them late, because it was stopped, keeps them for `grace` only.
            grace: seconds.
            wait: as for `release`; a release to a reservation is always waited for.
            on_settled: called once, with what `release` returns when it waits.

        Returns:
            As `release`.
        """
        held = False
        try:
            begun = self.begin_release()
            if begun is not None:
                command = self.release_command(actions, reservation, grace)
                if reservation is None and not wait:
                    return self._release_unawaited(command, begun, on_settled)
                held = self._settled(self._release_awaited(command, reservation))
        except Exception as exc:
            call_in_app(
                _logger.error,
                "release-failed",
                "Release of lock %(key)r failed; it ends with its TTL",
                key=shortened(self.key),
                exc_info=exc,
            )
        if on_settled is not None:
            on_settled(held)
        return held

    def _release_awaited(self, command: Command, reservation: Reservation | None) -> Phase:
        if reservation is not None:
            phase, channel = release_to(self._transport, command, reservation, self.node_timeout)
        else:
            round_ = ReleaseRound(len(self._transport.names))
            channel = send_release(self._transport, [(command, round_)], self.node_timeout)
            phase = round_.phase
        self.after_release(command, channel)
        return phase

    def _release_unawaited(
        self, command: Command, begun: bool, on_settled: Callable[[bool], object] | None
    ) -> bool:
        def settle(phase: Phase) -> None:
            held = self._settled(phase)
            if on_settled is not None:
                on_settled(held)

        sent = send_unawaited(self._transport, command, self.node_timeout, settle)
        self.after_release(command, sent.channel)
        if begun:
            process_watchdog().settle_later(sent)
        else:
            settle(sent.round.phase)  # no reply can change that it was lost
        return begun

    def _settled(self, phase: Phase) -> bool:
        """Note and report how the release ended; return whether the lease was held until then."""
        self._released_as = phase
        had = phase is Phase.GRANTED
        if instrumentation.receivers:
            instrumentation.report(self.release_details(had=had))
        return had and self._was_valid

    def release_keys(self, node_keys: Sequence[str]) -> None:
        """
        Release some of the keys now; the lease keeps the others.

        Args:
            node_keys: keys as nodes store them.
        """
        named = self.places(node_keys)
        with self._lock:
            given = tuple(key for key in self._params.node_keys if key in named)
            left = tuple(key for key in self._params.node_keys if key not in named)
            if self._pid != os.getpid() or self._state is LeaseState.RELEASED or not given:
                return
            if not left:
                raise ValueError("A lease keeps at least one key; release the lease instead.")
            self._params = replace(self._params, node_keys=left)
            prefix = self._params.key_prefix
            asked_for = self.places(node_key_of(prefix, key) for key in self.keys)
            kept = zip(self.keys, asked_for, strict=True)
            self.keys = tuple(key for key, place in kept if place not in given) or tuple(
                user_key(key, prefix) for key in left
            )
            self.key = self.keys[0]
        # An extension under way names all keys, and would find the released ones missing.
        process_watchdog().wait_for_extension(self, 2 * self._params.node_timeout)
        command = release(given, self.owner, self.fencing_token)
        round_ = ReleaseRound(len(self._transport.names))
        channel = send_release(self._transport, [(command, round_)], self._params.node_timeout)
        self._send_where_in_doubt(command, channel)

    def places(self, node_keys: Iterable[str]) -> tuple[str, ...]:
        """Return keys as nodes store them, with the slots of this lease for limited ones."""
        return tuple(self._slot_of.get(key, key) for key in node_keys)

    def hold_at_least(self, seconds: float) -> None:
        """Let a release before that time only shorten the TTL, so that it ends at that time."""
        self._hold_until = self._acquired_at + seconds

    def begin_release(self) -> bool | None:
        """Stop extending, and return whether it was valid; None if there is nothing to release."""
        if self._pid != os.getpid():
            return None
        process_watchdog().unwatch(self)
        with self._lock:
            if self._state is LeaseState.RELEASED:
                return None
            held = self._state is LeaseState.HELD and self._valid_until > self._transport.now()
            self._state = LeaseState.RELEASED
            self._was_valid = held
            self._ended_at = self._transport.now()
        return held

    def release_command(
        self,
        actions: Mapping[str, ReleaseAction] | None = None,
        reservation: Reservation | None = None,
        grace: float = HANDBACK_TTL,
    ) -> Command:
        """Return the command that releases the lease."""
        keep = milliseconds(max(0.0, self._hold_until - self._transport.now()))
        if reservation is not None:
            left = reservation.left_ms(self._transport.wall_us())
            back = ReleaseAction(min(left, milliseconds(grace)), reservation.owner)
            actions = {**(actions or {}), **dict.fromkeys(reservation.node_keys, back)}
        if actions and self._limits:
            actions = dict(zip(self.places(actions), actions.values(), strict=True))
        if keep or (
            actions and any(action.keep_ms and not action.value for action in actions.values())
        ):
            # An extension that arrives after the release would undo the shortened TTL.
            process_watchdog().wait_for_extension(self, self._params.node_timeout)
        if self._staying:
            actions = {**(actions or {}), **self._rest_of_periods()}
        keys = self._params.node_keys + self._staying
        token = self.fencing_token
        return release(keys, self.owner, token, keep, actions, self._limits, self._waiter)

    def _rest_of_periods(self) -> dict[str, ReleaseAction]:
        """Return for how long slots of rates stay taken, for nodes that do not have them yet."""
        passed = milliseconds(self._transport.now() - self._acquired_at)
        return {slot: ReleaseAction(max(0, period_of(slot) - passed)) for slot in self._staying}

    def release_details(self, *, had: bool) -> ReleaseDetails:
        """Return what to report of the release; `had`: a quorum of nodes still had the keys."""
        return ReleaseDetails(
            keys=self.keys,
            fencing_token=self.fencing_token,
            held=had and self._was_valid,
            held_for=self.held_for,
            owner=self.owner,
        )

    def after_release(self, command: Command, channel: Channel) -> None:
        """
        Send the release on other channels, too, where a command of ours may still set keys.

        Args:
            command: the release.
            channel: the channel on which it was sent.
        """
        self._send_where_in_doubt(command, channel)
        self._on_released(self)
        previous = self._params.previous
        if previous is None or self._takeover is None or previous.owner in command.args:
            return
        # Nodes that were down or quarantined at the takeover still have the reservation's keys.
        kept_by = self._takeover.nodes_not_taken_over()
        if kept_by:
            forgotten = release(previous.node_keys, previous.owner, 0)
            self._transport.send_after_ack(channel, forgotten, kept_by)

    def _send_where_in_doubt(self, command: Command, channel: Channel) -> None:
        for used, nodes in self._in_doubt.items():
            if nodes and used is not channel:
                self._transport.send_behind(used, command, sorted(nodes))

    def extend_command(self, now: float) -> tuple[Command, ExtendRound]:
        """Return the command that extends the lease, and the round that counts its votes."""
        params, ttl, last = self._params, self.ttl, self._extension
        if last is None or last[0] is not params or last[1] != ttl:
            command = extend(params.node_keys, self.owner, milliseconds(ttl), self.fencing_token)
            self._extension = last = (params, ttl, command)
        round_ = ExtendRound(
            len(self._transport.names),
            sent_at=now,
            ttl=ttl,
            drift_factor=params.drift_factor,
            valid_until=self._valid_until,
        )
        return last[2], round_

    def apply_extension(self, command: Command, round_: ExtendRound, channel: Channel) -> None:
        """Take over the result of an extension, and heal the nodes that lost our keys."""
        if round_.phase is Phase.GRANTED:
            self._apply_grant(round_, channel)
        # A command from before `release_keys` also names keys that the lease no longer has.
        elif round_.phase is Phase.GONE and len(command.keys) <= 2 * len(self._params.node_keys):
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
            old_valid_until = self._valid_until
            # A caller that checked after the old deadline saw the lease lost; it stays lost.
            if self._state is not LeaseState.HELD or self._transport.now() >= old_valid_until:
                return
            self._valid_until = max(old_valid_until, round_.valid_until)
            # Under the lock that release takes first, so no heal is sent after a release.
            if round_.missing:
                command = heal(
                    self._params.node_keys, self.owner, milliseconds(self.ttl), self.fencing_token
                )
                channel.send(command, round_.missing)
                self._in_doubt.setdefault(channel, set()).update(round_.missing)

    @property
    def node_keys(self) -> tuple[str, ...]:
        """The lock keys as nodes store them."""
        return self._params.node_keys

    @property
    def node_timeout(self) -> float:
        """Seconds in which a node has to answer."""
        return self._params.node_timeout


def release_leases(transport: Transport, leases: Sequence[Lease]) -> bool:
    """
    Release leases of one client, many in each exchange, which can take as long as `node_timeout`.

    After several exchanges in a row without a quorum the rest is sent without waiting: there may be
    thousands, and each exchange with dead nodes would wait for them.

    Returns:
        Whether there was any to release, and a quorum of nodes still had each.
    """
    released = bool(leases)
    silent = 0
    reports: list[ReleaseDetails] = []
    try:
        for start in range(0, len(leases), _BATCH):
            batch = leases[start : start + _BATCH]
            phases = _release_batch(transport, batch, reports, wait=silent < _MAX_SILENT)
            released = released and phases == {Phase.GRANTED}
            silent = silent + 1 if phases <= {Phase.UNAVAILABLE, Phase.VOTING} else 0
    finally:
        # An interrupt in a receiver must not keep a lease from its release.
        for details in reports:
            instrumentation.report(details)
    return released


def _release_batch(
    transport: Transport, leases: Sequence[Lease], reports: list[ReleaseDetails], *, wait: bool
) -> set[Phase]:
    """Release leases in one exchange; add what to report, and return how their rounds ended."""
    nodes = len(transport.names)
    batch = [(lease.release_command(), ReleaseRound(nodes)) for lease in leases]
    node_timeout = min(lease.node_timeout for lease in leases) if wait else 0.0
    channel = send_release(transport, batch, node_timeout)
    for lease, (command, round_) in zip(leases, batch, strict=True):
        lease.after_release(command, channel)
        if instrumentation.receivers:
            reports.append(lease.release_details(had=round_.phase is Phase.GRANTED))
    return {round_.phase for _, round_ in batch}
