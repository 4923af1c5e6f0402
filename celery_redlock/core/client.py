"""
The part of a lock client that speaks to the nodes: it acquires locks, also for messages.

The lock of a message is reserved before it is sent, taken over by its receiver, or cancelled.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial
from typing import Unpack

from celery_redlock._greenlets.threads import call_in_app
from celery_redlock._log import event_logger
from celery_redlock.core import instrumentation
from celery_redlock.core.attempt import AcquireParams, Attempt, attempt_once, report_acquire
from celery_redlock.core.failures import Refusal, not_acquired_error
from celery_redlock.core.holding import Holding
from celery_redlock.core.inspection import LockInfo, lock_info, run_inspection
from celery_redlock.core.lease import (
    Lease,
    begin_release,
    holding_of,
    refuse_own_lock,
    release_leases,
)
from celery_redlock.core.limits import Limit, Rate
from celery_redlock.core.options import AcquireOptions, checked_options
from celery_redlock.core.release import HANDBACK_TTL, deliver_later, release_to, send_release
from celery_redlock.core.reservation import Reservation
from celery_redlock.core.settings import (
    DEFAULT_POLICY,
    PUBLISH_POLICY,
    ClientOptions,
    ClientSettings,
    client_settings,
)
from celery_redlock.core.validation import Name, checked_keys, checked_records, each_once
from celery_redlock.core.waiting import After, RetryOptions, in_thread, retries
from celery_redlock.core.watchdog import process_watchdog
from celery_redlock.errors import ConfigurationError, LockContended, LockKeyError
from celery_redlock.protocol.commands import (
    Command,
    ReleaseAction,
    Waiter,
    extend,
    forget_waiter,
    granted_keys,
    release,
)
from celery_redlock.protocol.keys import (
    Key,
    candidate_above,
    check_key_count,
    has_limit,
    owner_label,
    owner_timestamp_us,
    owner_value,
    places_of,
)
from celery_redlock.protocol.rounds import Phase
from celery_redlock.protocol.texts import enumerated, shortened
from celery_redlock.protocol.timing import milliseconds
from celery_redlock.protocol.votes import KeyStates
from celery_redlock.transport import (
    AckedNodes,
    Channel,
    Durations,
    NodeAddress,
    Transport,
    advice_about,
    borrowed,
    kind_of,
    open_transport,
    parse_nodes,
)

_logger = event_logger(__name__)

#: Seconds for which others leave a free key to one that was woken for it.
FAIR_GRACE = 0.5


#: Leases that a client may have before it looks for expired ones among them.
_MANY_LEASES = 1000

#: The names of node sets that are logged already. A forked child inherits it.
logged_nodes: set[tuple[str, ...]] = set()

#: The names of node sets that were advised against, likewise.
_advised: set[tuple[str, ...]] = set()


def _advise_once(nodes: Sequence[NodeAddress], *, has_guard: bool) -> None:
    """Log once what is not wise about a set of nodes."""
    names, advice = tuple(node.name for node in nodes), advice_about(nodes)
    if advice and names not in _advised:
        _advised.add(names)
        _logger.warning(
            "node-set-unwise",
            "%(reason)s Nodes: %(nodes)s.",
            reason=advice,
            nodes=", ".join(names),
        )
    is_alone = len(names) == 1 and not kind_of(nodes[0]).is_in_process
    if is_alone and names not in logged_nodes:
        logged_nodes.add(names)
        _logger.info(
            "single-node",
            "One lock node (%(node)s): its loss stops all locks, and its %(trouble)s may allow "
            "two holders of one key%(quarantine_note)s. Three or five independent nodes "
            "survive both.",
            node=names[0],
            trouble="restart or failover" if nodes[0].fails_over else "restart",
            quarantine_note=""
            if has_guard
            else " (the restart quarantine is off; guard=True or redlock_guard switches it on)",
        )


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
            acked.undo = release(reservation.keys, reservation.owner, 0)
        self.reservation = reservation
        self._channel = channel
        self._acked = acked
        self._pid = os.getpid()

    def confirm(self, transport: Transport) -> None:
        """Extend the reservation to its end on the nodes that acknowledged it."""
        left = self.reservation.left_ms(transport.wall_us())
        if self._pid == os.getpid() and left > 0 and self.reservation.node_keys:
            command = extend(self.reservation.keys, self.reservation.owner, left, 0)
            transport.send_after_ack(self._channel, command, self._acked)


class Client:
    """
    The part of a `Redlock` or an `AsyncRedlock` that speaks to the nodes.

    Beside the locks of both it has those of messages, and other owners' keys. Thread-safe, and
    fork-safe.

    Args:
        nodes: as for `Redlock`.
        **options: as for `Redlock`.

    Attributes:
        settings: of the client.
        addresses: the nodes, in order. Their URLs may have passwords; their names never do.
        transport: to the nodes.
        closed: it acquires nothing any more.
    """

    def __init__(self, nodes: str | Sequence[str], **options: Unpack[ClientOptions]) -> None:
        addresses = parse_nodes(nodes)
        settings = client_settings(
            len(addresses),
            fail_over=any(address.fails_over for address in addresses),
            **options,
        )
        self._begin(addresses, settings)
        _advise_once(self.addresses, has_guard=self.settings.guard)

    def _begin(self, addresses: tuple[NodeAddress, ...], settings: ClientSettings) -> None:
        self.addresses, self.settings = addresses, settings
        self.transport: Transport = open_transport(
            addresses,
            Durations(
                node_timeout=settings.node_timeout,
                max_ttl=settings.max_ttl,
                takeover=settings.takeover,
            ),
            deliver_later,
        )
        self.closed = False
        # Strong references: a lease that its caller dropped keeps its keys until `close`.
        self._leases: set[Lease] = set()
        self._sweep_at = _MANY_LEASES

    @contextmanager
    def patient(self, seconds: float) -> Iterator[Client]:
        """Yield a client of the same nodes, each of which has at least this long to answer."""
        if self.settings.node_timeout >= seconds:
            yield self
            return
        patient = object.__new__(Client)
        patient._begin(self.addresses, replace(self.settings, node_timeout=seconds))
        with closing(patient):
            yield patient

    def __repr__(self) -> str:
        return f"<Redlock {', '.join(self.node_names)}>"

    @property
    def node_names(self) -> tuple[str, ...]:
        """The nodes, without users and passwords."""
        return self.transport.names

    def key_of(self, name: str | Limit | Rate) -> Key:
        """Return the key of this name, or raise `LockKeyError`."""
        keys = checked_keys(self.settings.key_prefix, name)
        if not keys:
            raise LockKeyError("A lock key cannot be empty. Name one key.")
        return keys[0]

    def check_open(self) -> None:
        """Raise `ConfigurationError` if the client is closed."""
        if self.closed:
            raise ConfigurationError(
                f"{self!r} is closed and cannot be used. Close a client only when its last user "
                "has ended, or create a new one."
            )

    def acquire(self, params: AcquireParams, tries: RetryOptions) -> Lease:
        """Acquire locks in this thread or greenlet; errors as `Redlock.acquire`."""
        self.check_open()
        began = self.transport.now()
        attempt, attempts = attempt_once(self.transport, params), 1
        if not attempt.is_granted:
            steps = retries(self.transport, tries, attempt)
            attempt, attempts = in_thread(steps, self.transport, self.check_open)
        return self.lease_from(params, tries.seconds, attempt, attempts, began)

    def lease_from(
        self, params: AcquireParams, tried_for: float, attempt: Attempt, attempts: int, began: float
    ) -> Lease:
        """
        Return the lease of the last attempt of a call, or raise why it was not granted.

        Args:
            params: of the first attempt, or of the attempt whose lease is only released.
            tried_for: seconds for which the call was to try.
            attempt: the last attempt.
            attempts: how many there were.
            began: when the first one began, on the transport's clock.
        """
        lease = self._registered(params, attempt) if attempt.is_granted else None
        if instrumentation.receivers:
            try:
                report_acquire(self.transport, attempt, attempts, began)
            except BaseException:
                if lease is not None:
                    lease.release()  # the caller never gets it
                raise
        if lease is None:
            error = not_acquired_error(attempt, self.node_names, tried_for)
            if isinstance(error, LockContended):
                refuse_own_lock(self.transport, params.keys)
            raise error
        if params.at_least_for:
            holding_of(lease).hold_at_least(params.at_least_for)
        return lease

    def _registered(self, params: AcquireParams, attempt: Attempt) -> Lease:
        """Return the lease of a granted attempt, which `close` releases."""
        lease = Lease(Holding(self.transport, params, attempt, lambda: self._leases.discard(lease)))
        self._leases.add(lease)
        if self.closed:  # during the attempt: `close` may not have seen the lease
            lease.release()
            self.check_open()
        if len(self._leases) > self._sweep_at:
            self._forget_expired()
        return lease

    def _forget_expired(self) -> None:
        """Drop leases that expired without a release."""
        for lease in list(self._leases):
            if not lease.is_valid:
                self._leases.discard(lease)
        self._sweep_at = 2 * len(self._leases) + _MANY_LEASES

    def close(self) -> None:
        """Disconnect, and acquire nothing from then on. Idempotent."""
        self.closed = True
        self.disconnect()

    def disconnect(self) -> None:
        """Release the leases that are held, and close all connections; the next call connects."""
        try:
            held = [lease for lease in list(self._leases) if begin_release(lease) is not None]
            release_leases(self.transport, held)
        except Exception as exc:
            call_in_app(
                _logger.error,
                "close-release-failed",
                "Locks could not be released at close; they end with their TTLs",
                exc_info=exc,
            )
        self.transport.close()
        process_watchdog().settle_now(self.transport)
        process_watchdog().stop_if_idle()

    def new_owner_value(self, label: str) -> str:
        """Return an owner value that no attempt has used before."""
        return owner_value(os.urandom(16), self.transport.wall_us(), label)

    def acquire_for_task(
        self,
        keys: Sequence[Name],
        records: Sequence[str | Key] = (),
        *,
        reservation: Reservation | None = None,
        decide: Callable[[Refusal], After] | None = None,
        waiter: Waiter | None = None,
        first_waiter: Waiter | None = None,
        registers_as: Callable[[], Waiter | None] | None = None,
        is_held: bool = False,
        **options: Unpack[AcquireOptions],
    ) -> Lease:
        """
        Acquire locks as `Redlock.acquire` does, also with records, or from a reservation.

        Args:
            keys: lock keys; may be empty if there are records.
            records: records of the lock's own, or their names on the nodes.
            reservation: its keys count as free. If the lock is not granted, it gets them back on
                the nodes that acknowledged the attempt. A slot that is above a limit which was
                lowered since is released once the lock is granted.
            decide: returns what follows an attempt that others refused; called once for each.
            waiter: by which name it waits, also after this call.
            first_waiter: as which the first try waits: by its name already, as one that may be
                remembered from an earlier call; without one, as one that lets those go first that
                were just woken; None: it takes a key that is free.
            registers_as: returns as which it tries once more after `After.REGISTER`; None: not.
            is_held: the reservation is a lock that this process holds, so pauses do not refuse it.
            **options: see `AcquireOptions`.

        Raises:
            LockContended: another owner holds one of the keys: its `key`.
            QuorumUnavailable: too few nodes answered.
            LockKeyError: a key cannot be used.
        """
        params, tries = checked_options(self.settings, keys, records, **options)
        params = replace(params, previous=reservation, waiter=first_waiter, is_held=is_held)
        tries = replace(tries, waiter=waiter, registers_as=registers_as, decide=decide)
        lease = self.acquire(params, tries)
        if reservation is not None and (left := _above_limits(reservation, params)):
            self.cancel(replace(reservation, node_keys=left))
        return lease

    def reserve(
        self,
        keys: Sequence[Key | str],
        records: Sequence[Key | str] = (),
        *,
        ttl: float,
        grace: float,
        label: str,
        retry_for: float,
        previous: Reservation | None = None,
        wait: float = 0.0,
        wait_for_owner: str = "",
    ) -> PendingReservation:
        """
        Reserve keys for a message that is about to be sent; no process extends them.

        One round trip, unless others want the keys at the same moment. A free slot of a key with a
        limit is left to those that wait for one. The keys expire after `grace` seconds unless
        `confirm` follows, so a process that dies before it sends the message blocks others only
        briefly.

        Args:
            keys: the keys, or their names on the nodes.
            records: records of the lock's own that get the same owner value in the same step. They
                have to be free, are no part of the reservation, and expire after `grace`.
            ttl: seconds for which the reservation lasts once it is confirmed.
            grace: seconds for which it lasts until then.
            label: suffix of the owner value.
            retry_for: seconds of retries while attempts end undecided.
            previous: reservation of these keys that is taken over; the nodes give them back to it
                if this call fails.
            wait: seconds of retries while `wait_for_owner` holds a key.
            wait_for_owner: an owner value, see `wait`.

        Raises:
            LockContended: another owner holds one of the keys, or no contender has a quorum
                (`split`).
            QuorumUnavailable: too few nodes answered.
        """
        self.check_open()
        began = self.transport.now()
        asked = _checked(keys, self.settings.key_prefix)
        beside = checked_records(records)
        params = AcquireParams(
            settings=self.settings,
            keys=(*asked, *beside),
            ttl=min(grace, ttl),
            label=label,
            previous=previous and replace(previous, node_keys=places_of(asked)),
            as_reservation=True,
            waiter=_newcomer(self.transport) if has_limit(asked) else None,
            settled_by=began if previous or has_limit(asked) else began + retry_for,
        )
        attempt, attempts = attempt_once(self.transport, params), 1
        if not attempt.is_granted:
            options = RetryOptions(
                seconds=wait,
                undecided=max(0.0, began + retry_for - self.transport.now()),
                policy=DEFAULT_POLICY if wait else PUBLISH_POLICY,
                listens=False,
                decide=partial(_wait_only_for, wait_for_owner),
            )
            steps = retries(self.transport, options, attempt)
            attempt, attempts = in_thread(steps, self.transport, self.check_open)
        reserved = None
        if attempt.is_granted:
            granted = granted_keys(params.keys, attempt.round.slots)[: len(asked)]
            own = tuple(key.stored for key in granted if not key.stays)
            ends = self.transport.wall_us() / 1_000_000 + ttl
            reservation = Reservation(node_keys=own, owner=attempt.owner, expires_at=ends)
            acked = AckedNodes() if attempt.acked is None else attempt.acked
            reserved = PendingReservation(reservation, attempt.channel, acked)
        if instrumentation.receivers:
            try:
                report_acquire(self.transport, attempt, attempts, began)
            except BaseException:
                if reserved is not None:  # the caller never gets it
                    self.cancel(reserved.reservation, wait=True, previous=previous)
                    if beside:
                        records_too = replace(reserved.reservation, node_keys=places_of(beside))
                        self.cancel(records_too, wait=True)
                raise
        if reserved is None:
            raise not_acquired_error(attempt, self.node_names, wait)
        return reserved

    def confirm(self, reserved: PendingReservation) -> None:
        """
        Extend a reservation to its end, because its message was sent. Never waits or raises.

        A node that had not replied when the message was sent may set the keys after the message was
        processed. There they are extended only if its reply is read within a second and shows that
        the node had nothing newer; otherwise they are released, or expire after the grace.
        """
        try:
            reserved.confirm(self.transport)
        except Exception as exc:
            call_in_app(
                _logger.error,
                "reservation-not-confirmed",
                "Reservation %(keys)s was not confirmed; it will expire early",
                keys=enumerated(reserved.reservation.node_keys),
                exc_info=exc,
            )

    def cancel(
        self,
        reservation: Reservation,
        *,
        wait: bool = False,
        previous: Reservation | None = None,
    ) -> bool:
        """
        Drop a reservation whose message will not arrive. Never raises.

        Has no effect on keys that another owner has taken over, nor on rates.

        Args:
            reservation: the reservation.
            wait: wait for a quorum of nodes.
            previous: reservation to which the keys are given back; waits as well.

        Returns:
            Whether a quorum of nodes still had it; True at once without `wait`.
        """
        if not reservation.node_keys:
            return True
        try:
            if previous is not None:
                before = replace(previous, node_keys=reservation.node_keys)
                return _give_back(self.transport, reservation, before, self.settings.node_timeout)
            return _cancel(self.transport, reservation, self.settings.node_timeout, wait=wait)
        except Exception as exc:
            call_in_app(
                _logger.error,
                "reservation-not-cancelled",
                "Reservation %(keys)s was not cancelled; it will expire",
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
        try:
            keys = reservation.keys
            command = release(keys, reservation.owner, 0, actions=dict.fromkeys(keys, action))
            _post(self.transport, command)
        except Exception as exc:
            call_in_app(
                _logger.error,
                "reservation-not-relabelled",
                "Reservation %(keys)s was not relabelled; it will expire",
                keys=enumerated(reservation.node_keys),
                exc_info=exc,
            )

    def forget_waiter(self, keys: Sequence[Key | str], waiter: Waiter) -> None:
        """
        Have nodes forget a waiter that has ended without its keys. Never waits or raises.

        They would wake it in the place of one that can take the keys.

        Args:
            keys: the keys, or their names on the nodes.
            waiter: as which it waited.
        """
        try:
            _post(self.transport, forget_waiter(_checked(keys), waiter))
        except Exception as exc:
            call_in_app(
                _logger.error,
                "waiter-not-forgotten",
                "Waiter %(waiter)s stays in its wait queues until they end",
                waiter=shortened(waiter.name),
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
        timeout = self.settings.node_timeout
        round_ = run_inspection(self.transport, node_keys, timeout, waiters)
        return tuple(
            lock_info(records, round_.needed) if records else None
            for records in round_.key_states()
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
        round_ = run_inspection(self.transport, node_keys, self.settings.node_timeout)
        return tuple(
            tuple(record.owner for record in vote.states)
            for vote in round_.votes
            if isinstance(vote, KeyStates)
        )

    def holders(self, name: str | Limit | Rate) -> tuple[LockInfo | None, ...]:
        """Return the holder of each slot of a key; see `Redlock.holders`."""
        self.check_open()
        return self.inspect(self.key_of(name).places)

    def force_release(self, name: str | Limit | Rate) -> bool:
        """Take a key away from its holders; see `Redlock.force_release`."""
        self.check_open()
        key = self.key_of(name)
        held = self.inspect(key.places)
        for place, info in zip(key.places, held, strict=True):
            if info is not None:
                # Its result does not count: with a node down, a quorum may not have had the key.
                self.evict(place, info.owner)
        found = [info for info in held if info is not None]
        for info in found:
            call_in_app(
                _logger.warning,
                "lock-evicted",
                "Lock %(key)r is taken away from %(holder)r",
                key=shortened(key.text),
                holder=shortened(owner_label(info.owner)),
            )
        return bool(found)

    def evict(self, node_key: str, owner: str) -> bool:
        """
        Delete another owner's key, if it still has this owner value, and wake those that wait.

        Its holder finds out at its next extension, and may continue to write until it reacts.

        Args:
            node_key: the key as nodes store it.
            owner: the owner value.

        Returns:
            Whether a quorum of nodes still had it. False may also mean that it is not known.
        """
        # Nodes wake nobody where there is no token; that of a foreign owner is not known.
        number = max(1, candidate_above(owner, self.transport.wall_us()))
        command = release(_checked((node_key,)), owner, number)
        return _release_awaited(self.transport, command, self.settings.node_timeout)


def _newcomer(transport: Transport) -> Waiter:
    """Return a name for one that is not remembered, and goes after those that nodes remember."""
    now_ms = transport.wall_us() // 1000
    return Waiter(os.urandom(8).hex(), now_ms, keep_ms=0, grace_ms=milliseconds(FAIR_GRACE))


def _above_limits(reservation: Reservation, params: AcquireParams) -> tuple[str, ...]:
    """Return the slots of a reservation that the limits of its keys do not have any more."""
    names, locks = {name for name, _ in params.places}, {key.stored for key in params.keys}
    return tuple(
        key.stored
        for key in reservation.keys
        if key.slot is not None and key.lock in locks and key.stored not in names
    )


def _checked(keys: Sequence[Key | str], prefix: str = "") -> tuple[Key, ...]:
    """Return keys, or what their names on the nodes stand for, or raise `LockKeyError`."""
    found = (key if isinstance(key, Key) else Key.read(key, prefix) for key in keys)
    checked = each_once(found)
    check_key_count(sum(key.holders for key in checked if not key.is_record))
    return checked


def _wait_only_for(owner: str, refusal: Refusal) -> After:
    """Wait for the release of one owner, and for the end of a split vote."""
    is_another = not refusal.split and refusal.holder not in (None, owner)
    return After.END if is_another else After.WAIT


def _cancel(
    transport: Transport, reservation: Reservation, node_timeout: float, *, wait: bool
) -> bool:
    """Delete a reservation's keys on nodes that have its owner value, or set it later."""
    number = candidate_above(reservation.owner, transport.wall_us())
    command = release(_checked(reservation.node_keys), reservation.owner, number)
    if wait:
        return _release_awaited(transport, command, node_timeout)
    _post(transport, command)
    return True


def _release_awaited(transport: Transport, command: Command, node_timeout: float) -> bool:
    """Send a release, and return whether a quorum of nodes still had its keys."""
    (phase,), _ = send_release(transport, [command], node_timeout)
    return phase is Phase.GRANTED


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
    actions = dict.fromkeys(previous.keys, action)
    command = release(_checked(reservation.node_keys), reservation.owner, 0, actions=actions)
    return release_to(transport, command, previous, node_timeout)[0] is Phase.GRANTED
