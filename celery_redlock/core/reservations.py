"""
Locks of messages: reserved before a message is sent, taken over by its receiver, or cancelled.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Unpack

from celery_redlock._greenlets.threads import call_in_app
from celery_redlock._log import event_logger
from celery_redlock.core import instrumentation
from celery_redlock.core.attempt import AcquireParams, Attempt, attempt_once, report_acquire
from celery_redlock.core.failures import not_acquired_error
from celery_redlock.core.inspection import LockInfo, inspect_locks, owners_by_node
from celery_redlock.core.lease import Lease
from celery_redlock.core.limits import Limit, Rate
from celery_redlock.core.options import (
    AcquireOptions,
    AcquireRequest,
    ClientSettings,
    acquire_request,
)
from celery_redlock.core.release import HANDBACK_TTL, release_to, send_release
from celery_redlock.core.reservation import Reservation
from celery_redlock.core.retry import (
    DEFAULT_WAIT,
    PUBLISH_WAIT,
    RetryBudget,
    retry_until_granted,
)
from celery_redlock.errors import LockContended
from celery_redlock.protocol import (
    Command,
    Phase,
    ReleaseAction,
    ReleaseRound,
    Waiter,
    candidate_above,
    extend,
    milliseconds,
    owner_timestamp_us,
    owner_value,
    release,
    validate_node_key,
)
from celery_redlock.protocol.commands import granted_keys, has_limit
from celery_redlock.protocol.keys import (
    all_places,
    check_key_count,
    is_lock_key,
    lock_of,
    slot_count,
    slot_number,
    stays,
    user_key,
)
from celery_redlock.protocol.texts import enumerated
from celery_redlock.transport import AckedNodes, Channel, Transport, borrowed

_logger = event_logger(__name__)

#: Seconds for which others leave a free key to one that was woken for it.
FAIR_GRACE = 0.5


class PendingReservation:
    """
    A reservation whose message has not been sent yet: it ends after its grace unless confirmed.

    Attributes:
        reservation: what the message carries.
    """

    __slots__ = ("_acked", "_channel", "_pid", "reservation")

    def __init__(self, reservation: Reservation, channel: Channel, acked: AckedNodes) -> None:
        # From here on the message may be sent, so a late reply may come from a node that its
        # receiver has reached first. Such a reply counts only if the node had nothing newer.
        acked.max_counter = owner_timestamp_us(reservation.owner)
        if reservation.node_keys:
            acked.undo = release(reservation.node_keys, reservation.owner, 0)
        self.reservation = reservation
        self._channel = channel
        self._acked = acked
        self._pid = os.getpid()

    def confirm(self, transport: Transport) -> None:
        """Extend the reservation to its end on the nodes that acknowledged it."""
        left = self.reservation.left_ms(transport.wall_us())
        if self._pid == os.getpid() and left > 0 and self.reservation.node_keys:
            command = extend(self.reservation.node_keys, self.reservation.owner, left, 0)
            transport.send_after_ack(self._channel, command, self._acked)


class Reservations:
    """
    The part of a client that serves the Celery layer: locks of messages, and other owners' keys.

    Args:
        transport: the nodes.
        settings: the client's settings.
        acquire: acquires a lock for a checked request.
        check_open: raises if the client is closed.
    """

    def __init__(
        self,
        transport: Transport,
        settings: ClientSettings,
        acquire: Callable[[AcquireRequest], Lease],
        check_open: Callable[[], None],
    ) -> None:
        self._transport = transport
        self._settings = settings
        self._acquire = acquire
        self._check_open = check_open

    def new_owner_value(self, label: str) -> str:
        """Return an owner value that no attempt has used before."""
        return owner_value(os.urandom(16), self._transport.wall_us(), label)

    def acquire_for_task(
        self,
        keys: Sequence[str | Limit | Rate],
        reserved_keys: Sequence[str] = (),
        *,
        reservation: Reservation | None = None,
        give_up_on: Callable[[LockContended], bool] | None = None,
        waiter: Waiter | None = None,
        first_waiter: Waiter | None = None,
        **options: Unpack[AcquireOptions],
    ) -> Lease:
        """
        Acquire locks as `Redlock.acquire` does, with reserved keys, or from a reservation.

        Args:
            keys: lock keys; may be empty if there are reserved keys.
            reserved_keys: keys under the reserved prefix, as nodes store them.
            reservation: its keys count as free. If the lock is not granted, it gets them back on
                the nodes that acknowledged the attempt. A slot that is above a limit which was
                lowered since is released once the lock is granted.
            give_up_on: returns whether no retry can help after this error.
            waiter: by which name it waits, also after this call.
            first_waiter: as which the first try waits: by its name already, as one that may be
                remembered from an earlier call; without one, as one that lets those go first that
                were just woken; None: it takes a key that is free.
            **options: see `AcquireOptions`.

        Raises:
            LockContended: another owner holds one of the keys: its `key`.
            QuorumUnavailable: too few nodes answered.
            LockKeyError: a key cannot be used.
        """
        request = acquire_request(
            self._settings,
            self._transport,
            tuple(keys),
            reserved_keys,
            reservation=reservation,
            give_up_on=give_up_on,
            waiter=waiter,
            first_waiter=first_waiter,
            **options,
        )
        lease = self._acquire(request)
        if reservation is not None and (left := _above_limits(reservation, request.params)):
            self.cancel(replace(reservation, node_keys=left))
        return lease

    def reserve(
        self,
        node_keys: Sequence[str],
        reserved_keys: Sequence[str] = (),
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
        Reserve keys for a message that is about to be sent; no process extends them.

        One round trip. A free slot of a key with a limit is left to those that wait for one. The
        keys expire after `grace` seconds unless `confirm` follows, so a process
        that dies before it sends the message blocks others only briefly.

        Args:
            node_keys: keys as nodes store them.
            reserved_keys: keys under the reserved prefix, as nodes store them, that get the same
                owner value in the same step. They have to be free, are no part of the reservation,
                and expire after `grace`.
            ttl: seconds for which the reservation lasts once it is confirmed.
            grace: seconds for which it lasts until then.
            label: suffix of the owner value.
            retry_for: seconds of retries while attempts end undecided.
            previous: owner value whose keys are taken over.
            previous_until: when those would have expired, in seconds since the epoch; the nodes
                give them back until then if this call fails.
            wait: seconds of retries while `wait_for_owner` holds a key.
            wait_for_owner: an owner value, see `wait`.

        Raises:
            LockContended: another owner holds one of the keys, or no contender has a quorum
                (`split`).
            QuorumUnavailable: too few nodes answered.
        """
        self._check_open()
        keys = _checked_node_keys(node_keys)
        beside = tuple(map(validate_node_key, reserved_keys))
        replaced = Reservation(
            node_keys=all_places(keys), owner=previous, expires_at=previous_until
        )
        params = self._settings.acquire_params(
            (*keys, *beside),
            min(grace, ttl),
            label,
            replaced if previous else None,
            as_reservation=True,
            waiter=_newcomer(self._transport) if has_limit(keys) else None,
        )
        began = self._transport.now()
        attempt, attempts = _try_to_reserve(
            self._transport, params, retry_for, wait, wait_for_owner
        )
        reserved = None
        if attempt.is_granted:
            granted = granted_keys(params.node_keys, attempt.slots)[: len(keys)]
            own = tuple(key for key in granted if not stays(key))
            reserved = _reserved_by(attempt, own, self._transport.wall_us(), ttl)
        if instrumentation.receivers:
            shown = tuple(user_key(key, self._settings.key_prefix) for key in params.node_keys)
            try:
                report_acquire(self._transport, shown, attempt, attempts, began, reserves=True)
            except BaseException:
                if reserved is not None:  # the caller never gets it
                    self.cancel(
                        reserved.reservation,
                        wait=True,
                        previous=previous,
                        previous_until=previous_until,
                    )
                    if beside:
                        self.cancel(replace(reserved.reservation, node_keys=beside), wait=True)
                raise
        if reserved is None:
            raise not_acquired_error(attempt, params, self._transport.names, wait)
        return reserved

    def confirm(self, reserved: PendingReservation) -> None:
        """
        Extend a reservation to its end, because its message was sent. Never waits or raises.

        A node that had not replied when the message was sent may set the keys after the message was
        processed. There they are extended only if its reply is read within a second and shows that
        the node had nothing newer; otherwise they are released, or expire after the grace.
        """
        try:
            reserved.confirm(self._transport)
        except Exception as exc:
            call_in_app(
                _logger.error,
                "reservation-not-confirmed",
                "Reservation %(keys)s ends with its grace",
                keys=enumerated(reserved.reservation.node_keys),
                exc_info=exc,
            )

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

        Has no effect on keys that another owner has taken over, nor on rates.

        Args:
            reservation: the reservation.
            wait: wait for a quorum of nodes.
            previous: owner value to which the keys are given back; waits as well.
            previous_until: when they expire then, in seconds since the epoch.

        Returns:
            Whether a quorum of nodes still had it; True at once without `wait`.
        """
        if not reservation.node_keys:
            return True
        try:
            if previous:
                before = Reservation(
                    node_keys=reservation.node_keys, owner=previous, expires_at=previous_until
                )
                return _give_back(self._transport, reservation, before, self._settings.node_timeout)
            return _cancel(self._transport, reservation, self._settings.node_timeout, wait=wait)
        except Exception as exc:
            call_in_app(
                _logger.error,
                "reservation-not-cancelled",
                "Reservation %(keys)s was not cancelled; it ends by itself",
                keys=enumerated(reservation.node_keys),
                exc_info=exc,
            )
            return False

    def relabel(self, reservation: Reservation, label: str, ttl: float) -> None:
        """
        Give a reservation another label and TTL. Never waits or raises.

        Has no effect on keys that have expired or that another owner has taken over.

        Args:
            reservation: the reservation.
            label: suffix of the new owner value.
            ttl: seconds until the keys expire.
        """
        action = ReleaseAction(milliseconds(ttl), self.new_owner_value(label))
        actions = dict.fromkeys(reservation.node_keys, action)
        try:
            _post(
                self._transport,
                release(reservation.node_keys, reservation.owner, 0, actions=actions),
            )
        except Exception as exc:
            call_in_app(
                _logger.error,
                "reservation-not-relabelled",
                "Reservation %(keys)s ends by itself",
                keys=reservation.node_keys,
                exc_info=exc,
            )

    def inspect(
        self,
        node_keys: Sequence[str],
        *,
        waiters: Sequence[tuple[str, Waiter]] = (),
    ) -> tuple[LockInfo | None, ...]:
        """
        Return for each key its holder on a quorum of nodes, or None.

        Silent nodes count as if they agreed with the others.

        Args:
            node_keys: keys as nodes store them.
            waiters: each with a key that it waits for. Nodes put them into the wait queues first,
                so that the release of a holder that is returned wakes them.

        Raises:
            QuorumUnavailable: too few nodes answered.
        """
        return inspect_locks(
            self._transport,
            tuple(map(validate_node_key, node_keys)),
            self._settings.node_timeout,
            waiters,
        )

    def owners_by_node(self, node_keys: Sequence[str]) -> tuple[tuple[str | None, ...], ...]:
        """
        Return the owner values on each node, for callers that count in another way than `inspect`.

        Args:
            node_keys: keys as nodes store them.

        Returns:
            For each node that answered, the owner values of the keys in their order; None for a
            free key.

        Raises:
            QuorumUnavailable: too few nodes answered.
        """
        return owners_by_node(
            self._transport, tuple(map(validate_node_key, node_keys)), self._settings.node_timeout
        )

    def evict_holders(self, node_keys: Sequence[str]) -> tuple[LockInfo | None, ...]:
        """
        Delete keys of whatever owner has them on a quorum, and return what `inspect` had found.

        Errors as `inspect`.
        """
        held = self.inspect(node_keys)
        for node_key, found in zip(node_keys, held, strict=True):
            if found is not None:
                # Its result does not count: with a node down, a quorum may not have had the key.
                self.evict(node_key, found.owner)
        return held

    def evict(self, node_key: str, owner: str) -> bool:
        """
        Delete another owner's key, if it still has this owner value, and wake those that wait.

        Its holder finds out at its next extension, and may continue to write until then.

        Args:
            node_key: the key as nodes store it.
            owner: the owner value.

        Returns:
            Whether a quorum of nodes still had it. False may also mean that it is not known.
        """
        # Nodes wake nobody where there is no token; that of a foreign owner is not known.
        number = max(1, candidate_above(owner, self._transport.wall_us()))
        command = release(_checked_node_keys((node_key,)), owner, number)
        return _release_awaited(self._transport, command, self._settings.node_timeout)


def _newcomer(transport: Transport) -> Waiter:
    """Return a name for one that is not remembered, and goes after those that nodes remember."""
    now_ms = transport.wall_us() // 1000
    return Waiter(os.urandom(8).hex(), now_ms, keep_ms=0, grace_ms=milliseconds(FAIR_GRACE))


def _above_limits(reservation: Reservation, params: AcquireParams) -> tuple[str, ...]:
    """Return the slots of a reservation that the limits of its keys do not have any more."""
    keys, places = set(params.node_keys), set(params.places)
    return tuple(
        place
        for place in reservation.node_keys
        if place not in places and slot_number(place) is not None and lock_of(place) in keys
    )


def _checked_node_keys(node_keys: Sequence[str]) -> tuple[str, ...]:
    """Return node keys, each once, or raise `LockKeyError`."""
    keys = tuple(dict.fromkeys(map(validate_node_key, node_keys)))
    check_key_count(sum(slot_count(key) for key in keys if is_lock_key(key)))
    return keys


def _try_to_reserve(
    transport: Transport, params: AcquireParams, retry_for: float, wait: float, wait_for_owner: str
) -> tuple[Attempt, int]:
    """Retry until an attempt is decided, for `retry_for` seconds; return the last, and how many."""
    first = attempt_once(transport, params)
    if first.is_granted:
        return first, 1

    def is_held_by_another(made: Attempt) -> bool:
        holder = made.round.holder() if made.phase is Phase.CONTENDED else None
        return holder is not None and holder.owner != wait_for_owner

    return retry_until_granted(
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
    attempt: Attempt, node_keys: tuple[str, ...], wall_us: int, ttl: float
) -> PendingReservation:
    """Return the reservation of a granted attempt."""
    reservation = Reservation(
        node_keys=node_keys, owner=attempt.owner, expires_at=wall_us / 1_000_000 + ttl
    )
    return PendingReservation(
        reservation, attempt.channel, AckedNodes() if attempt.acked is None else attempt.acked
    )


def _cancel(
    transport: Transport, reservation: Reservation, node_timeout: float, *, wait: bool
) -> bool:
    """Delete a reservation's keys on nodes that have its owner value, or set it later."""
    number = candidate_above(reservation.owner, transport.wall_us())
    command = release(_checked_node_keys(reservation.node_keys), reservation.owner, number)
    if wait:
        return _release_awaited(transport, command, node_timeout)
    _post(transport, command)
    return True


def _release_awaited(transport: Transport, command: Command, node_timeout: float) -> bool:
    """Send a release, and return whether a quorum of nodes still had its keys."""
    round_ = ReleaseRound(len(transport.names))
    send_release(transport, [(command, round_)], node_timeout)
    return round_.phase is Phase.GRANTED


def _post(transport: Transport, command: Command) -> None:
    """Send a command to all nodes and wait for none."""
    with borrowed(transport) as channel:
        # A missing connection is made in the background, and a release is sent on it then.
        channel.connect(0.0)
        channel.send(command)


def _give_back(
    transport: Transport, reservation: Reservation, previous: Reservation, node_timeout: float
) -> bool:
    """Leave a reservation's keys to the reservation that it had replaced."""
    left = previous.left_ms(transport.wall_us())
    action = ReleaseAction(min(left, milliseconds(HANDBACK_TTL)), previous.owner)
    actions = dict.fromkeys(previous.node_keys, action)
    command = release(
        _checked_node_keys(reservation.node_keys), reservation.owner, 0, actions=actions
    )
    return release_to(transport, command, previous, node_timeout)[0] is Phase.GRANTED
