"""
Locks for messages: taken before one is sent, cancelled when it will never arrive.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from typing import Self

from celery_redlock._greenlets.threads import call_in_app
from celery_redlock.core.attempt import AcquireParams, Attempt, attempt_once
from celery_redlock.core.failures import not_acquired_error, user_key
from celery_redlock.core.inspection import LockInfo, inspect_locks, owners_by_node
from celery_redlock.core.release import (
    HANDBACK_TTL,
    release_to,
    send_release,
)
from celery_redlock.core.reservation import Reservation
from celery_redlock.core.retry import (
    DEFAULT_WAIT,
    PUBLISH_WAIT,
    RetryBudget,
    try_until_granted,
)
from celery_redlock.errors import LockKeyError
from celery_redlock.protocol import (
    Command,
    Phase,
    ReleaseAction,
    ReleaseRound,
    candidate_above,
    extend,
    milliseconds,
    owner_timestamp_us,
    owner_value,
    release,
    validate_key,
    validate_node_key,
)
from celery_redlock.protocol.keys import META_PREFIX, check_key_count
from celery_redlock.protocol.texts import enumerated
from celery_redlock.transport import AckedNodes, Channel, Transport

_logger = logging.getLogger(__name__)


class PendingReservation:
    """
    A reservation that has just been made: it ends after its grace unless it is lengthened.

    Attributes:
        reservation: what the message carries.
    """

    __slots__ = ("_acked", "_channel", "_pid", "reservation")

    def __init__(self, reservation: Reservation, channel: Channel, acked: AckedNodes) -> None:
        # Made before the message is sent: from here on an answer may come from a node that the
        # message's receiver has been at first. It counts only if nothing newer was at that node.
        acked.max_counter = owner_timestamp_us(reservation.owner)
        acked.undo = release(reservation.node_keys, reservation.owner, 0)
        self.reservation = reservation
        self._channel = channel
        self._acked = acked
        self._pid = os.getpid()

    def confirm(self, transport: Transport) -> None:
        """Let the nodes that are known to have it keep it to its end."""
        left = self.reservation.left_ms(transport.wall_us())
        if self._pid == os.getpid() and left > 0:
            command = extend(self.reservation.node_keys, self.reservation.owner, left, 0)
            transport.send_after_ack(self._channel, command, self._acked)


class Reservations:
    """
    The part of a client that deals with locks of messages, and with keys of others.

    Attributes:
        transport: through which the nodes are spoken to.
        key_prefix: put before every lock key.
        drift_factor: part of a TTL by which clocks may differ while it runs.
        max_ttl: how long a restarted node sits out, in seconds.
        node_timeout: seconds in which a node has to answer.
        guard: whether restarted nodes sit out.
    """

    transport: Transport
    key_prefix: str
    drift_factor: float
    max_ttl: float
    node_timeout: float
    guard: bool

    @property
    def reservations(self) -> Self:
        """The locks of messages."""
        return self

    def node_key(self, key: str) -> str:
        """Return the name that a lock key has on the nodes."""
        if not isinstance(key, str):
            raise LockKeyError(f"A lock key is a str, not {type(key).__name__}: {key!r:.80}.")
        if not key:
            raise LockKeyError("A lock key cannot be empty. Name one key or several.")
        return validate_key(self.key_prefix + key)

    def user_key(self, node_key: str) -> str:
        """Return the lock key at a place, as errors name it; a reserved record by its place."""
        return user_key(node_key, self.key_prefix)

    def new_owner_value(self, label: str) -> str:
        """Return an owner value that nothing has had before."""
        return owner_value(os.urandom(16), self.transport.wall_us(), label)

    def reserve(
        self,
        node_keys: Sequence[str],
        *,
        ttl: float,
        grace: float,
        label: str,
        retry_for: float,
        previous: str = "",
        previous_until: float = 0.0,
        wait: float = 0.0,
        wait_for_owner: str = "",
    ) -> PendingReservation:
        """
        Take keys for a message that is about to be sent: nobody renews them.

        One round trip. They end after `grace` seconds unless `confirm` follows, so that a process
        that dies before it has sent the message blocks nobody for long.

        Args:
            node_keys: names of keys on the nodes.
            ttl: seconds for which the lock shall last.
            grace: seconds for which it lasts until it is lengthened.
            label: put into the owner value.
            retry_for: seconds in which it is tried again while nothing is decided.
            previous: owner value whose keys are taken over.
            previous_until: when those would have ended, in seconds since the epoch; so long they
                are given back for if this fails.
            wait: seconds in which it is tried again while `wait_for_owner` holds a key.
            wait_for_owner: an owner value, see `wait`.

        Raises:
            LockContended: somebody else holds one of them, or it stayed undecided (`split`).
            QuorumUnavailable: too few nodes answered.
        """
        keys = _checked_node_keys(node_keys)
        replaced = Reservation(node_keys=keys, owner=previous, expires_at=previous_until)
        params = self._params_for(
            keys, min(grace, ttl), label, replaced if previous else None, as_reservation=True
        )
        attempt = _try_to_reserve(self.transport, params, retry_for, wait, wait_for_owner)
        if not attempt.is_granted:
            raise not_acquired_error(attempt, params, self.key_prefix, self.transport.names, wait)
        return _reserved_by(attempt, params, self.transport.wall_us(), ttl)

    def confirm(self, reserved: PendingReservation) -> None:
        """
        Let a reservation last to its end, because its message has been sent. Never waits or raises.

        A node that had not answered when the message was sent may set the keys after the message
        was dealt with. There they last only if its answer is read within a second and shows that
        nothing newer was at that node; otherwise they are given up, at the latest with the grace.
        """
        try:
            reserved.confirm(self.transport)
        except Exception as exc:
            text = "Reservation %s ends with its grace"
            keys = enumerated(reserved.reservation.node_keys)
            call_in_app(_logger.error, text, keys, exc_info=exc)

    def cancel(
        self,
        reservation: Reservation,
        *,
        wait: bool = False,
        previous: str = "",
        previous_until: float = 0.0,
    ) -> bool:
        """
        Drop a reservation whose message will not arrive. Never raises.

        Where somebody has taken it over this does nothing.

        Args:
            reservation: what was reserved.
            wait: wait for a quorum of nodes.
            previous: owner value to which the keys are given back; waits as well.
            previous_until: when they end then, in seconds since the epoch.

        Returns:
            Whether a quorum of nodes still had it; True at once if it is not waited for.
        """
        try:
            if previous:
                before = Reservation(
                    node_keys=reservation.node_keys, owner=previous, expires_at=previous_until
                )
                return _give_back(self.transport, reservation, before, self.node_timeout)
            return _cancel(self.transport, reservation, self.node_timeout, wait=wait)
        except Exception as exc:
            text = "Reservation %s was not cancelled; it ends by itself"
            call_in_app(_logger.error, text, enumerated(reservation.node_keys), exc_info=exc)
            return False

    def relabel(self, reservation: Reservation, label: str, ttl: float) -> None:
        """
        Give a reservation another label and life. Never waits or raises.

        Where it has ended or somebody has taken it over this does nothing.

        Args:
            reservation: what was reserved.
            label: put into the new owner value.
            ttl: seconds for which the keys stand from now on.
        """
        action = ReleaseAction(milliseconds(ttl), self.new_owner_value(label))
        actions = dict.fromkeys(reservation.node_keys, action)
        try:
            _post(
                self.transport,
                release(reservation.node_keys, reservation.owner, 0, actions=actions),
            )
        except Exception as exc:
            text = "Reservation %s ends by itself"
            call_in_app(_logger.error, text, reservation.node_keys, exc_info=exc)

    def inspect(self, node_keys: Sequence[str]) -> tuple[LockInfo | None, ...]:
        """
        Return for each key who holds it on a quorum of nodes; those that are silent may be of it.

        Args:
            node_keys: names of keys on the nodes.

        Raises:
            QuorumUnavailable: too few nodes answered.
        """
        return inspect_locks(
            self.transport, tuple(map(validate_node_key, node_keys)), self.node_timeout
        )

    def owners_by_node(self, node_keys: Sequence[str]) -> tuple[tuple[str | None, ...], ...]:
        """
        Return what each node shows, for whoever has to count otherwise than by owner values.

        Args:
            node_keys: names of keys on the nodes.

        Returns:
            For each node that has answered the owner values of the keys, in their order; None
            where a key is free.

        Raises:
            QuorumUnavailable: too few nodes answered.
        """
        return owners_by_node(
            self.transport, tuple(map(validate_node_key, node_keys)), self.node_timeout
        )

    def evict(self, node_key: str, owner: str) -> bool:
        """
        Delete a key of somebody else, if it still has this owner value.

        Its holder notices at its next renewal, and may work on until then.

        Returns:
            Whether a quorum of nodes still had it.
        """
        keys = (node_key,)
        gone = Reservation(node_keys=keys, owner=owner, expires_at=0.0)
        return _cancel(self.transport, gone, self.node_timeout, wait=True)

    def _params_for(
        self,
        keys: tuple[str, ...],
        ttl: float,
        label: str,
        previous: Reservation | None,
        *,
        as_reservation: bool = False,
    ) -> AcquireParams:
        return AcquireParams(
            node_keys=keys,
            ttl=ttl,
            label=label,
            drift_factor=self.drift_factor,
            node_timeout=min(self.node_timeout, ttl / 3),
            quarantine_ms=milliseconds(self.max_ttl) if self.guard else 0,
            previous=previous,
            as_reservation=as_reservation,
        )


def _checked_node_keys(node_keys: Sequence[str]) -> tuple[str, ...]:
    """Return the names of keys on the nodes, each once, or raise `LockKeyError`."""
    keys = tuple(dict.fromkeys(map(validate_node_key, node_keys)))
    check_key_count(sum(not key.startswith(META_PREFIX) for key in keys))
    return keys


def _try_to_reserve(
    transport: Transport, params: AcquireParams, retry_for: float, wait: float, wait_for_owner: str
) -> Attempt:
    """Try to reserve until it is decided, for `retry_for` seconds at most; return the last try."""
    first = attempt_once(transport, params)
    if first.is_granted:
        return first

    def is_held_by_another(made: Attempt) -> bool:
        holder = made.round.holder() if made.phase is Phase.CONTENDED else None
        return holder is not None and holder.owner != wait_for_owner

    return try_until_granted(
        first,
        lambda: attempt_once(transport, params),
        RetryBudget(
            wait=wait,
            undecided_wait=retry_for,
            policy=DEFAULT_WAIT if wait else PUBLISH_WAIT,
            now=transport.now,
            give_up_on=is_held_by_another if wait else None,
        ),
        transport.sleep,
    )


def _reserved_by(
    attempt: Attempt, params: AcquireParams, wall_us: int, ttl: float
) -> PendingReservation:
    """Return what a granted attempt has reserved."""
    reservation = Reservation(
        node_keys=params.node_keys, owner=attempt.owner, expires_at=wall_us / 1_000_000 + ttl
    )
    return PendingReservation(
        reservation, attempt.channel, AckedNodes() if attempt.acked is None else attempt.acked
    )


def _cancel(
    transport: Transport, reservation: Reservation, node_timeout: float, *, wait: bool
) -> bool:
    """Delete a reservation's keys where they still have its value, or are yet to get it."""
    number = candidate_above(reservation.owner, transport.wall_us())
    command = release(_checked_node_keys(reservation.node_keys), reservation.owner, number)
    if wait:
        round_ = ReleaseRound(len(transport.names))
        send_release(transport, [(command, round_)], node_timeout)
        return round_.phase is Phase.GRANTED
    _post(transport, command)
    return True


def _post(transport: Transport, command: Command) -> None:
    """Send a command to all nodes and wait for none."""
    channel = transport.checkout()
    try:
        # Where there is no connection one is made meanwhile, and whoever makes it sends a release.
        channel.connect(0.0)
        channel.send(command)
    except BaseException:
        transport.discard(channel)
        raise
    transport.checkin(channel)


def _give_back(
    transport: Transport, reservation: Reservation, previous: Reservation, node_timeout: float
) -> bool:
    """Leave a reservation's keys to the one that it had replaced."""
    left = previous.left_ms(transport.wall_us())
    action = ReleaseAction(min(left, milliseconds(HANDBACK_TTL)), previous.owner)
    actions = dict.fromkeys(previous.node_keys, action)
    command = release(
        _checked_node_keys(reservation.node_keys), reservation.owner, 0, actions=actions
    )
    return release_to(transport, command, previous, node_timeout)[0]
