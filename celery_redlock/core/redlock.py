"""
The client: acquires locks on N independent nodes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Self, Unpack

from celery_redlock._greenlets.threads import call_in_app
from celery_redlock._log import event_logger
from celery_redlock.core import instrumentation
from celery_redlock.core.attempt import Attempt, attempt_once, report_acquire
from celery_redlock.core.current import refuse_own_lock, under_lease
from celery_redlock.core.failures import not_acquired_error
from celery_redlock.core.functions import check_on_lost
from celery_redlock.core.inspection import LockInfo
from celery_redlock.core.lease import Lease, release_leases
from celery_redlock.core.limits import Limit, Rate
from celery_redlock.core.options import (
    ACQUIRE_OPTIONS,
    CLIENT_OPTIONS,
    AcquireOptions,
    AcquireRequest,
    ClientOptions,
    acquire_request,
    check_names,
    client_settings,
)
from celery_redlock.core.release import deliver_later
from celery_redlock.core.reservations import Reservations
from celery_redlock.core.retry import retry_until_granted
from celery_redlock.core.validation import LockKeys, checked_hold, checked_keys, checked_node_keys
from celery_redlock.core.waiting import ThreadWait
from celery_redlock.core.watchdog import process_watchdog
from celery_redlock.errors import ConfigurationError, LockContended
from celery_redlock.protocol.keys import owner_label, slots_of, user_key
from celery_redlock.protocol.texts import shortened
from celery_redlock.transport import (
    NodeAddress,
    Transport,
    advice_about,
    open_transport,
    parse_nodes,
)

_logger = event_logger(__name__)

#: Leases that a client may have before it looks for expired ones among them.
_MANY_LEASES = 1000

#: Default end of a watched hold, in seconds: a body that hangs must not hold its lock forever.
MAX_HOLD = 24 * 3600.0

#: The names of node sets that are logged already. A forked child inherits it.
logged_nodes: set[tuple[str, ...]] = set()

LOCK_OPTIONS = ACQUIRE_OPTIONS | {"on_lost", "max_hold"}


_advised: set[tuple[str, ...]] = set()
"""Nodes that a line was logged about. Forked children inherit it and do not repeat the line."""


def _advise_once(nodes: Sequence[NodeAddress]) -> None:
    """Warn once of a set of nodes that is not wise."""
    names, advice = tuple(node.name for node in nodes), advice_about(nodes)
    if advice and names not in _advised:
        _advised.add(names)
        _logger.warning(
            "node-set-unwise",
            "%(reason)s Nodes: %(nodes)s.",
            reason=advice,
            nodes=", ".join(names),
        )


class Redlock:
    """
    A client for locks on N independent Redis or Valkey masters.

    Guarantee: at most one holder of a key at a time while clocks drift within `drift_factor`,
    processes are not paused past their lease, and restarted nodes stay quarantined for `max_ttl`
    (as they do by themselves); any minority of nodes may fail. Fencing tokens of successive holders
    increase whatever the timing. Limit: a holder that is paused past its lease cannot know; only a
    resource that checks the token can refuse it.

    Locks are not re-entrant: a block or a task that asks for a key which it holds itself, through
    any client of the same nodes, gets `LockContended` at once. A lease that was acquired without a
    block is not known as its own: with `wait=None` its thread would wait without end. Thread-safe,
    and fork-safe: a child opens connections of its own. Connects when first used; once closed, it
    acquires nothing.

    Args:
        nodes: URLs, or one string with commas: redis://, rediss://, unix://, memory://.
        **options: see `ClientOptions`.

    Raises:
        ConfigurationError: a value cannot work; the message names one that can.
    """

    def __init__(self, nodes: str | Sequence[str], **options: Unpack[ClientOptions]) -> None:
        check_names(type(self).__name__, options, CLIENT_OPTIONS)
        addresses = parse_nodes(nodes)
        self.settings = client_settings(len(addresses), **options)
        #: The nodes, in order. Their URLs may have passwords; their names never do.
        self.addresses = addresses
        self.transport: Transport = open_transport(
            addresses,
            node_timeout=self.settings.node_timeout,
            max_ttl=self.settings.max_ttl,
            on_deferred=deliver_later,
        )
        self.reservations = Reservations(
            self.transport, self.settings, self._acquire, self.check_open
        )
        self._closed = False
        # Strong references: a lease that its caller dropped keeps its keys until `close`.
        self._leases: set[Lease] = set()
        self._sweep_at = _MANY_LEASES
        _advise_once(addresses)
        names = self.node_names
        if len(names) == 1 and names not in logged_nodes and not names[0].startswith("memory://"):
            logged_nodes.add(names)
            _logger.info(
                "single-node",
                "One lock node (%(node)s): its loss stops all locks, and its restart may allow "
                "two holders of one key%(quarantine_note)s. Name three or five independent nodes "
                "to bear both.",
                node=names[0],
                quarantine_note=""
                if self.settings.quarantine_ms
                else " (the restart quarantine is off; guard=True or redlock_guard switches it on)",
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

    def node_key(self, key: str | Limit | Rate) -> str:
        """Return a lock key as nodes store it."""
        return checked_node_keys(self.settings.key_prefix, checked_keys(key), ())[0]

    def user_key(self, node_key: str) -> str:
        """Return a lock key as users write it; a reserved key as it is."""
        return user_key(node_key, self.settings.key_prefix)

    def acquire(self, key: LockKeys, **options: Unpack[AcquireOptions]) -> Lease:
        """
        Acquire a lock, or several at once, for `ttl` seconds; the watchdog does not extend it.

        Args:
            key: the lock's key, of at most 10,000 bytes with the prefix; of several, at most 1,000,
                all or none are acquired, in any order without deadlock. A `Limit` is a key that
                several may hold, a `Rate` one that only so many get in a time.
            **options: see `AcquireOptions`.

        Raises:
            LockContended: another owner holds a key; or the block or task that asks for it holds it
                itself.
            QuorumUnavailable: too few nodes answered.
            LockKeyError: the key cannot be used.
            ConfigurationError: the client is closed, or an option cannot work.
        """
        check_names("acquire", options, ACQUIRE_OPTIONS)
        request = acquire_request(self.settings, self.transport, key, **options)
        if request.budget.wait:
            refuse_own_lock(self.transport, request.params.node_keys)
        return self._acquire(request)

    def check_open(self) -> None:
        """Raise `ConfigurationError` if the client is closed."""
        if self._closed:
            raise ConfigurationError(
                f"{self!r} is closed, so it asks no node. Close a client when its last user "
                "has ended, or make a new one."
            )

    def _acquire(self, request: AcquireRequest) -> Lease:
        self.check_open()
        transport = self.transport
        began = transport.now()
        attempt, attempts = attempt_once(transport, request.params), 1
        if not attempt.is_granted:
            with contextlib.closing(
                ThreadWait(transport, request, attempt, self.check_open)
            ) as wait:
                attempt, attempts = retry_until_granted(
                    attempt, wait.attempt, wait.budget, wait.sleep
                )
            attempts += wait.woken_tries
        return self._lease_from(request, attempt, attempts, began)

    def _lease_from(
        self, request: AcquireRequest, attempt: Attempt, attempts: int, began: float
    ) -> Lease:
        """Return the lease of the last attempt for a request, or raise why it was not granted."""
        lease = self._registered(request, attempt) if attempt.is_granted else None
        if instrumentation.receivers:
            try:
                report_acquire(self.transport, request.keys, attempt, attempts, began)
            except BaseException:
                if lease is not None:
                    lease.release()  # the caller never gets it
                raise
        if lease is None:
            error = not_acquired_error(
                attempt, request.params, self.node_names, request.budget.wait
            )
            if isinstance(error, LockContended):
                refuse_own_lock(self.transport, request.params.node_keys)
            raise error
        if request.at_least_for:
            lease.hold_at_least(request.at_least_for)
        return lease

    def _registered(self, request: AcquireRequest, attempt: Attempt) -> Lease:
        """Return the lease of a granted attempt, which `close` releases."""
        lease = Lease(self.transport, request.keys, request.params, attempt, self._leases.discard)
        self._leases.add(lease)
        if self._closed:  # during the attempt: `close` may not have seen the lease
            lease.release()
            self.check_open()
        if len(self._leases) > self._sweep_at:
            self._forget_expired()
        return lease

    @contextlib.contextmanager
    def lock(
        self,
        key: LockKeys,
        *,
        on_lost: Callable[[Lease], None] | None = None,
        max_hold: float | timedelta = MAX_HOLD,
        **options: Unpack[AcquireOptions],
    ) -> Iterator[Lease]:
        """
        Hold a lock for a block; the watchdog extends it until the block ends.

        Within the block the lease is the `current_lease()`.

        Arguments as for `acquire`, and:

        Args:
            on_lost: called once, if the lease is lost, from the watchdog's thread; it must not
                block, because that thread extends all other leases. Under gevent and eventlet it
                runs in a greenlet, which starts when the running one yields, and may block.
            max_hold: seconds after which the watchdog reports the lease as lost instead of
                extending it; `math.inf` for no end.

        Raises:
            ConfigurationError: `on_lost` cannot be called with a lease; or as `acquire`.
        """
        check_names("lock", options, LOCK_OPTIONS)
        hold = checked_hold(max_hold)
        check_on_lost(on_lost)
        lease = self.acquire(key, **options)
        try:
            self.watch(lease, on_lost=on_lost, max_hold=hold)
            with under_lease(lease):
                yield lease
        finally:
            lease.release()

    def watch(
        self,
        lease: Lease,
        *,
        on_lost: Callable[[Lease], None] | None = None,
        max_hold: float | timedelta = MAX_HOLD,
    ) -> None:
        """
        Let the process's watchdog extend a lease until it is released.

        A second call for the same lease replaces `on_lost` and the end of the hold. A lease on
        rates alone does not expire from now on, without an extension.

        Args:
            lease: a lease of this client.
            on_lost: called once, if the lease is lost, as by `lock`.
            max_hold: seconds from now after which the watchdog reports the lease as lost instead
                of extending it; `math.inf` for no end.
        """
        hold = checked_hold(max_hold)
        lease.set_on_lost(on_lost)
        if not lease.node_keys:  # rates alone: the nodes keep nothing that could be lost
            lease.never_expire()
        process_watchdog().watch(lease, hold)

    def unwatch(self, lease: Lease) -> None:
        """Stop extending a lease."""
        process_watchdog().unwatch(lease)

    def holder(self, key: str) -> LockInfo | None:
        """
        Return the holder of a lock key, or None: what a quorum of nodes has at this moment.

        Errors as `holders`.
        """
        return self.holders(key)[0]

    def holders(self, key: str | Limit | Rate) -> tuple[LockInfo | None, ...]:
        """
        Return the holder of each slot of a key with a limit or rate; None for a free slot.

        The next slot is free when the first of them expires, if not before. A key without a limit
        has one slot.

        Raises:
            QuorumUnavailable: fewer nodes than a quorum answered.
            LockKeyError: the key cannot be used.
            ConfigurationError: the client is closed.
        """
        self.check_open()
        return self.reservations.inspect(slots_of(self.node_key(key)))

    def force_release(self, key: str | Limit | Rate) -> bool:
        """
        Take a lock key away from its holder, or from all that hold it, on all nodes.

        For people, when a lock is in the way. The holder finds out at its next extension, and may
        write until then, beside a new holder; only a resource that checks fencing tokens refuses
        it. Of a lease on several keys, the other keys stay with it until then.

        Returns:
            Whether there was a holder.

        Raises:
            QuorumUnavailable: fewer nodes than a quorum answered; nothing was released.
            LockKeyError: the key cannot be used.
            ConfigurationError: the client is closed.
        """
        self.check_open()
        node_key = self.node_key(key)
        found = [info for info in self.reservations.evict_holders(slots_of(node_key)) if info]
        for info in found:
            call_in_app(
                _logger.warning,
                "lock-evicted",
                "Lock %(key)r is taken away from %(holder)r",
                key=shortened(str(self.user_key(node_key))),
                holder=shortened(owner_label(info.owner)),
            )
        return bool(found)

    def close(self) -> None:
        """
        Release the leases that are still held, and close all connections. Idempotent.

        From then on the client acquires nothing.
        """
        self._closed = True
        self.disconnect()

    def disconnect(self) -> None:
        """Release and close as `close` does; the next call connects again."""
        try:
            held = [lease for lease in list(self._leases) if lease.begin_release() is not None]
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

    def _forget_expired(self) -> None:
        """Drop leases that expired without a release."""
        for lease in list(self._leases):
            if not lease.is_valid:
                self._leases.discard(lease)
        self._sweep_at = 2 * len(self._leases) + _MANY_LEASES
