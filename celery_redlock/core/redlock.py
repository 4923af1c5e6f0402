"""
The client: acquires locks on N independent nodes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Self, Unpack

from celery_redlock.core.client import Client
from celery_redlock.core.inspection import LockInfo
from celery_redlock.core.lease import MAX_HOLD, Lease, refuse_own_lock, under_lease, unwatch, watch
from celery_redlock.core.limits import Limit, Rate
from celery_redlock.core.options import (
    ACQUIRE_OPTIONS,
    AcquireOptions,
    check_names,
    checked_options,
)
from celery_redlock.core.pausing import pause_lock, resume_lock
from celery_redlock.core.settings import CLIENT_OPTIONS, ClientOptions
from celery_redlock.core.validation import LockKeys, check_on_lost, checked_hold

LOCK_OPTIONS = ACQUIRE_OPTIONS | {"on_lost", "max_hold"}


class Redlock:
    """
    A client for locks on N independent Redis or Valkey masters.

    Guarantee: at most one holder of a key at a time while clocks drift within `drift_factor`,
    processes are not paused past their lease, and restarted nodes stay quarantined for `max_ttl`
    (see `guard`, which is off by default for one node). Any minority of nodes may fail. The fencing
    tokens of successive holders increase, whatever happens to clocks and processes. Limit: a holder
    that is paused past its lease does not notice; only a resource that checks the token can refuse
    its write.

    Locks are not re-entrant: a block or a task that asks for a key that it holds itself, through
    any client of the same nodes, gets `LockContended` at once. A lease from `acquire` belongs to no
    block: a thread that holds one and acquires its key again with `wait=None` waits until that
    lease has expired, which it does not while it is watched.
    Thread-safe, and fork-safe: a child opens its own connections. Connects when first used; once
    closed, it acquires nothing.

    Args:
        nodes: URLs, or one string with commas, as in `redlock_nodes`.
        **options: see `ClientOptions`.

    Raises:
        ConfigurationError: a value is invalid; the message names a valid one.
    """

    def __init__(self, nodes: str | Sequence[str], **options: Unpack[ClientOptions]) -> None:
        check_names(type(self).__name__, options, CLIENT_OPTIONS)
        self._client = Client(nodes, **options)

    def __repr__(self) -> str:
        return repr(self._client)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def node_names(self) -> tuple[str, ...]:
        """The nodes, without users and passwords."""
        return self._client.node_names

    def acquire(self, key: LockKeys, **options: Unpack[AcquireOptions]) -> Lease:
        """
        Acquire a lock, or several at once, for `ttl` seconds; the watchdog does not extend it.

        Args:
            key: the lock key, at most 10,000 bytes long with its prefix, or up to 1,000 keys, of
                which all or none are acquired. Their order does not matter; there is no deadlock.
                A `Limit` is a key that several may hold, and a `Rate` one with a maximum number of
                grants per period.
            **options: see `AcquireOptions`.

        Raises:
            LockContended: another owner holds a key, or the calling block or task holds it itself.
            QuorumUnavailable: too few nodes replied.
            LockKeyError: the key cannot be used.
            ConfigurationError: the client is closed, or an option is invalid.
        """
        check_names("acquire", options, ACQUIRE_OPTIONS)
        client = self._client
        params, tries = checked_options(client.settings, key, **options)
        if tries.seconds:
            refuse_own_lock(client.transport, params.keys)
        return client.acquire(params, tries)

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
            on_lost: called once with the lease if it is lost. The block itself continues, so call
                `lease.check()` before a write. It runs in the watchdog's thread, which extends all
                other leases, and must not block; under gevent and eventlet it runs in a greenlet of
                its own, as soon as the current one yields, and may block.
            max_hold: seconds after which the watchdog reports the lease as lost instead of
                extending it; `math.inf` for no end.

        Raises:
            ConfigurationError: `on_lost` cannot be called with a lease. Other errors as `acquire`.
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

        A second call for the same lease replaces `on_lost` and `max_hold`. A lease that has only
        keys with rates does not expire while it is watched; it needs no extension.

        Args:
            lease: a lease of this client.
            on_lost: called once with the lease if it is lost, as by `lock`.
            max_hold: seconds from now after which the watchdog reports the lease as lost instead
                of extending it; `math.inf` for no end.
        """
        watch(lease, on_lost=on_lost, max_hold=checked_hold(max_hold))

    def unwatch(self, lease: Lease) -> None:
        """Stop extending a lease."""
        unwatch(lease)

    def holder(self, key: str) -> LockInfo | None:
        """
        Return the holder of a lock key, or None: what a quorum of nodes has at this moment.

        Errors as `holders`.
        """
        return self.holders(key)[0]

    def holders(self, key: str | Limit | Rate) -> tuple[LockInfo | None, ...]:
        """
        Return the holder of each slot of a key with a limit or a rate, and None for a free slot.

        A key without a limit has one slot. If all slots are taken, one is free by the time that
        the first of these holders expires, unless its lease is extended.

        Raises:
            QuorumUnavailable: fewer nodes than a quorum replied.
            LockKeyError: the key cannot be used.
            ConfigurationError: the client is closed.
        """
        return self._client.holders(key)

    def force_release(self, key: str | Limit | Rate) -> bool:
        """
        Take a lock key away from its holder, or from all its holders, on all nodes.

        This is for people who need to remove a lock that is in the way. The holder finds out at its
        next extension. Until it reacts, it may write beside a new holder, and only a resource that
        checks fencing tokens refuses its writes. If its lease has other keys, it keeps them until
        that extension.

        Returns:
            Whether there was a holder.

        Raises:
            QuorumUnavailable: fewer nodes than a quorum replied; nothing was released.
            LockKeyError: the key cannot be used.
            ConfigurationError: the client is closed.
        """
        return self._client.force_release(key)

    def pause(self, key: str | Limit | Rate, seconds: float | timedelta) -> dict[str, str]:
        """
        Refuse a lock key to all callers for a while, on all nodes that can be reached.

        Guarantee: an attempt that begins after this call has returned is not granted before the
        pause ends, unless a quorum of nodes lacks the pause. A call with `wait` gets the key after
        the pause; any other gets `LockContended` at once. Holders keep the key, and leases are
        extended. The key is paused with each limit and rate that it is used with. A further call
        moves the end, earlier or later. Limit: a node that is down now, or that loses its data,
        grants the key. In that case, call this again.

        Args:
            key: the lock key.
            seconds: how long.

        Returns:
            The nodes that have not confirmed it, each with the reason; empty if all have.

        Raises:
            QuorumUnavailable: fewer nodes than a quorum confirmed it; those that did keep it.
            LockKeyError: the key cannot be used.
            ConfigurationError: `seconds` is invalid, or the client is closed.
        """
        return pause_lock(self._client, key, seconds)

    def resume(self, key: str | Limit | Rate) -> bool:
        """
        End the pause of a lock key at once, and wake those that wait for it.

        Returns:
            Whether it was paused.

        Raises:
            QuorumUnavailable: fewer nodes than a quorum replied; on these the pause has ended.
            LockKeyError: the key cannot be used.
            ConfigurationError: the client is closed.
        """
        return resume_lock(self._client, key)

    def close(self) -> None:
        """
        Release the leases that are still held, and close all connections. Idempotent.

        From then on the client acquires nothing.
        """
        self._client.close()

    def disconnect(self) -> None:
        """Release and close as `close` does; the next call connects again."""
        self._client.disconnect()


def client_of(redlock: Redlock | Client) -> Client:
    """Return the part of a `Redlock` that speaks to the nodes; a `Client` is its own."""
    return redlock if isinstance(redlock, Client) else redlock._client
