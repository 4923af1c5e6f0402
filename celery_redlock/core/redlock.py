"""
The client: takes locks on N independent nodes.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Self

from celery_redlock._greenlets.threads import call_in_app
from celery_redlock.core.attempt import Attempt, attempt_once
from celery_redlock.core.failures import not_acquired_error
from celery_redlock.core.lease import Lease
from celery_redlock.core.release import release_leases
from celery_redlock.core.reservation import Reservation
from celery_redlock.core.retry import RetryPolicy, checked_policy, try_until_granted
from celery_redlock.core.validation import (
    checked_drift_factor,
    checked_keys,
    checked_prefix,
    checked_seconds,
)
from celery_redlock.core.watchdog import process_watchdog
from celery_redlock.core.wishing import AcquireRequest, RequestBuilder
from celery_redlock.errors import LockContended
from celery_redlock.transport import Transport, open_transport, parse_nodes

_logger = logging.getLogger(__name__)

_MANY_LEASES = 1000

#: Default end of a watched hold, in seconds: a body that hangs must not hold for ever.
MAX_HOLD = 24 * 3600.0


class Redlock(RequestBuilder):
    """
    A client for locks on N independent Redis or Valkey masters.

    Guarantee: at most one holder of a key at a time while clocks drift within `drift_factor`,
    processes are not paused past their lease, and restarted nodes sit out `max_ttl` (they do so by
    themselves); any minority of nodes may fail. Fencing tokens of successive holders increase
    whatever the timing. Limit: a holder that is paused past its lease cannot know; only a resource
    that checks the token can refuse it.

    Thread-safe, and fork-safe: a child opens connections of its own. Connects when first used.

    Args:
        nodes: URLs, or one string with commas: redis://, rediss://, unix://, memory://.
        ttl: default lease length in seconds, from 0.2 to `max_ttl`.
        max_ttl: longest lease of the whole deployment in seconds; every client of the same nodes
            must use the same value, because a restarted node sits out that long.
        key_prefix: put before every key.
        drift_factor: part of a TTL by which clocks may differ while it runs.
        node_timeout: seconds in which a node has to answer.
        guard: the restart guard; None means on for two nodes and more.
        retry: a tenacity wait, or a whole `tenacity.Retrying`, for `wait`.

    Raises:
        ConfigurationError: a value cannot work; the message says what to write.
    """

    def __init__(
        self,
        nodes: str | Sequence[str],
        *,
        ttl: float | timedelta = 30.0,
        max_ttl: float | timedelta = 60.0,
        key_prefix: str = "redlock:",
        drift_factor: float = 0.01,
        node_timeout: float | timedelta = 0.2,
        guard: bool | None = None,
        retry: RetryPolicy | None = None,
    ) -> None:
        addresses = parse_nodes(nodes)
        self.max_ttl = checked_seconds("max_ttl", max_ttl)
        self.ttl = self.checked_ttl(ttl)
        self.key_prefix = checked_prefix(key_prefix)
        self.drift_factor = checked_drift_factor(drift_factor)
        self.node_timeout = checked_seconds("node_timeout", node_timeout)
        self.guard = len(addresses) > 1 if guard is None else guard
        self.policy = checked_policy(retry)
        self.transport: Transport = open_transport(
            addresses, node_timeout=self.node_timeout, max_ttl=self.max_ttl
        )
        # Held strongly: a lease that its taker has dropped keeps its keys until it is released.
        self._leases: set[Lease] = set()
        self._sweep_at = _MANY_LEASES
        if len(addresses) == 1:
            _logger.info(
                "One lock node (%s): its loss stops all locks, and its restart may allow two "
                "holders of one key%s. Name three or five independent nodes to bear both.",
                addresses[0].name,
                ""
                if self.guard
                else " (the restart guard is off; guard=True or redlock_guard switches it on)",
            )

    def __repr__(self) -> str:
        return f"<Redlock {', '.join(self.node_names)}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def node_names(self) -> tuple[str, ...]:
        """The nodes, without users and passwords."""
        return self.transport.names

    def acquire(
        self,
        key: str | Sequence[str],
        *,
        ttl: float | timedelta | None = None,
        wait: float | timedelta = 0.0,
        retry: RetryPolicy | None = None,
        label: str = "",
        at_least_for: float | timedelta = 0.0,
    ) -> Lease:
        """
        Take a lock, or several at once, for `ttl` seconds. It is not renewed by itself.

        Args:
            key: the lock's key, of at most 10,000 bytes with the prefix; of several, at most 1,000,
                all or none are taken, in any order without deadlock.
            ttl: lease length in seconds.
            wait: how long to try in seconds.
            retry: how to wait between tries; the client's policy if not given.
            label: put into the owner value, for people who look at a node.
            at_least_for: seconds for which the lock stays taken even if it is released earlier.

        Raises:
            LockContended: somebody else holds it.
            QuorumUnavailable: too few nodes answered.
            LockKeyError: the key cannot be used.
        """
        return self.acquire_for_task(
            checked_keys(key),
            ttl=ttl,
            wait=wait,
            retry=retry,
            label=label,
            at_least_for=at_least_for,
        )

    def acquire_for_task(
        self,
        keys: Sequence[str],
        reserved_keys: Sequence[str] = (),
        *,
        ttl: float | timedelta | None = None,
        wait: float | timedelta = 0.0,
        retry: RetryPolicy | None = None,
        label: str = "",
        at_least_for: float | timedelta = 0.0,
        reservation: Reservation | None = None,
        give_up_on: Callable[[LockContended], bool] | None = None,
    ) -> Lease:
        """
        Take locks as `acquire` does, and reserved records with them; take a reservation over.

        Args:
            keys: lock keys; may be empty if there are extras.
            reserved_keys: names of reserved records on the nodes.
            ttl: lease length in seconds.
            wait: how long to try in seconds.
            retry: how to wait between tries; the client's policy if not given.
            label: put into the owner value, for people who look at a node.
            at_least_for: seconds for which the lock stays taken even if it is released earlier.
            reservation: keys that it has count as free. If the lock is not granted, it gets them
                back, but for the nodes that gave no answer.
            give_up_on: tells that no waiting will help against this error.

        Raises:
            LockContended: somebody else holds one of them: its `key`.
            QuorumUnavailable: too few nodes answered.
            LockKeyError: a key cannot be used.
        """
        request = self._build_request(
            keys,
            reserved_keys,
            ttl=ttl,
            wait=wait,
            retry=retry,
            label=label,
            at_least_for=at_least_for,
            reservation=reservation,
            give_up_on=give_up_on,
        )
        transport = self.transport
        attempt = attempt_once(transport, request.params)
        if not attempt.is_granted:
            attempt = try_until_granted(
                attempt,
                lambda: attempt_once(transport, request.params),
                request.budget,
                transport.sleep,
            )
        return self._lease_from(request, attempt)

    def _lease_from(self, request: AcquireRequest, attempt: Attempt) -> Lease:
        """Return the lease that the last attempt at a wish has brought, or raise why it has not."""
        if not attempt.is_granted:
            waited = request.budget.wait
            raise not_acquired_error(
                attempt, request.params, self.key_prefix, self.node_names, waited
            )
        lease = Lease(self, request.keys, request.params, attempt)
        if request.at_least_for:
            lease.hold_at_least(request.at_least_for)
        self._leases.add(lease)
        if len(self._leases) > self._sweep_at:
            self._forget_expired()
        return lease

    @contextlib.contextmanager
    def lock(
        self,
        key: str | Sequence[str],
        *,
        ttl: float | timedelta | None = None,
        wait: float | timedelta = 0.0,
        retry: RetryPolicy | None = None,
        label: str = "",
        on_lost: Callable[[Lease], None] | None = None,
        max_hold: float = MAX_HOLD,
        at_least_for: float | timedelta = 0.0,
    ) -> Iterator[Lease]:
        """
        Hold a lock for a block; the watchdog renews it until the block ends.

        As `acquire`, and:

        Args:
            on_lost: called once, if the lease is lost, from the watchdog's thread; it must not
                block, because that thread renews all other leases. Under gevent and eventlet it is
                called in a greenlet, when the one that runs lets others run, and may block.
            max_hold: seconds after which it is no longer renewed but reported as lost.
        """
        lease = self.acquire(
            key, ttl=ttl, wait=wait, retry=retry, label=label, at_least_for=at_least_for
        )
        try:
            self.watch(lease, on_lost=on_lost, max_hold=max_hold)
            yield lease
        finally:
            lease.release()

    def watch(
        self,
        lease: Lease,
        *,
        on_lost: Callable[[Lease], None] | None = None,
        max_hold: float = MAX_HOLD,
    ) -> None:
        """
        Let the process's watchdog renew a lease until it is released.

        Called again for the same lease it sets `on_lost` and the end of the hold anew.

        Args:
            lease: a lease of this client.
            on_lost: called once, if the lease is lost, from the watchdog's thread; it must not
                block, because that thread renews all other leases. Under gevent and eventlet it is
                called in a greenlet, when the one that runs lets others run, and may block.
            max_hold: seconds from now after which it is no longer renewed but reported as lost;
                `math.inf` for no end.
        """
        lease.set_on_lost(on_lost)
        process_watchdog().watch(lease, max_hold)

    def unwatch(self, lease: Lease) -> None:
        """Stop renewing a lease."""
        process_watchdog().unwatch(lease)

    def forget(self, lease: Lease) -> None:
        """Stop counting a lease among those that `close` releases."""
        self._leases.discard(lease)

    def close(self) -> None:
        """Release the leases that are still held, and close all connections. Idempotent."""
        try:
            held = [lease for lease in self._unreleased() if lease.begin_release() is not None]
            release_leases(self.transport, held)
        except Exception as exc:
            text = "Locks could not be released at close; they end with their TTLs"
            call_in_app(_logger.error, text, exc_info=exc)
        process_watchdog().stop_if_idle()
        self.transport.close()

    def _unreleased(self) -> list[Lease]:
        return list(self._leases)

    def _forget_expired(self) -> None:
        """Drop the leases that were left to end by themselves."""
        for lease in self._unreleased():
            if not lease.is_valid:
                self._leases.discard(lease)
        self._sweep_at = 2 * len(self._leases) + _MANY_LEASES
