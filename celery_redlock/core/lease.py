"""
A lease: the right to act until a known instant, with the fencing token that orders it.

The leases under which the calling code runs are kept here and not in the Celery layer, so that a
guard at the resource can find the token without Celery.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from datetime import timedelta
from functools import partial
from typing import TypeAlias

from celery_redlock._greenlets.threads import call_in_app
from celery_redlock._log import event_logger
from celery_redlock.core import instrumentation
from celery_redlock.core.failures import Refusal, describe_problems, node_votes
from celery_redlock.core.holding import Holding, extend_leases
from celery_redlock.core.instrumentation import ReleaseDetails
from celery_redlock.core.release import (
    HANDBACK_TTL,
    release_to,
    send_release,
    send_unawaited,
)
from celery_redlock.core.reservation import Reservation
from celery_redlock.core.validation import checked_ttl
from celery_redlock.core.watchdog import process_watchdog
from celery_redlock.errors import LossReason, QuorumUnavailable
from celery_redlock.protocol.commands import Command, ReleaseAction
from celery_redlock.protocol.keys import Key
from celery_redlock.protocol.rounds import Phase
from celery_redlock.protocol.texts import shortened
from celery_redlock.transport import Transport, borrowed

_logger = event_logger(__name__)

#: Default end of a watched hold, in seconds: a body that hangs must not hold its lock forever.
MAX_HOLD = 24 * 3600.0

#: Releases sent to a node at once; more would delay the node's other clients.
_BATCH = 100

#: Exchanges in a row without a quorum after which the nodes count as gone.
_MAX_SILENT = 5


class LeaseFacts:
    """The facts of a lease that threads and event loops read without asking a node."""

    def __init__(self, holding: Holding) -> None:
        self._holding = holding

    @property
    def key(self) -> str:
        """The lock key as the caller gave it; the first of several."""
        return self._holding.key

    @property
    def keys(self) -> tuple[str, ...]:
        """The lock keys as the caller gave them, without those that are released already."""
        return self._holding.keys

    @property
    def slots(self) -> dict[str, int]:
        """The lease's slot of each key with a limit; none for a key with a rate."""
        return self._holding.slots

    @property
    def slot(self) -> int | None:
        """The slot of the first key with a limit; None if no key has one."""
        return next(iter(self.slots.values()), None)

    @property
    def owner(self) -> str:
        """The value that marks this lease on the nodes."""
        return self._holding.owner

    @property
    def fencing_token(self) -> int:
        """Larger than the token of every earlier holder; it never changes during the lease."""
        return self._holding.fencing_token

    @property
    def ttl(self) -> float:
        """The length to which each extension extends the lease, in seconds."""
        return self._holding.ttl

    @property
    def expires_in(self) -> float:
        """Seconds until the lease expires; 0.0 if it is lost, released, or another process's."""
        return self._holding.expires_in

    @property
    def is_valid(self) -> bool:
        """Whether the lease is valid at this instant."""
        return self._holding.is_valid

    @property
    def lost(self) -> LossReason | None:
        """Why the lease was lost; None while it is held, and if it was released in time."""
        return self._holding.lost

    def check(self) -> None:
        """Raise `LeaseLost` unless the lease is valid at this instant."""
        self._holding.check()


class Lease(LeaseFacts):
    """
    A lock that a quorum of nodes has granted, until it expires, is lost or is released.

    Guarantee: while `is_valid`, no other owner holds the lock, as long as clocks drift within the
    configured factor and this process is not paused between the check and what follows from it.
    Limit: nothing that runs here can rule such a pause out. Give `fencing_token` to the resource,
    which then refuses a holder that was superseded.

    Usable from any thread. In a forked child it is not valid and releases nothing: the parent
    holds it.
    """

    def __repr__(self) -> str:
        state = f"lost: {self.lost}" if self.lost else f"{self.expires_in:.3f} s left"
        return f"<Lease {shortened(self.key)!r} token {self.fencing_token} ({state})>"

    def mark_lost(self, reason: LossReason = LossReason.REPORTED) -> None:
        """
        End the lease's validity, and report it as lost: in the log, to `on_lost` and to `observe`.

        Calls these in the caller's thread. Further calls have no effect.
        """
        self._holding.mark_lost(reason)

    def extend(self, ttl: float | timedelta | None = None) -> None:
        """
        Extend the lease to `ttl` seconds from now; never shortens it.

        Args:
            ttl: the new length in seconds, for this extension and later ones. Default: the current
                `ttl`.

        Raises:
            LeaseLost: the lease was no longer valid, or a quorum of nodes no longer has it.
            QuorumUnavailable: no quorum replied; the lease keeps its remaining time.
        """
        self.check()
        held, transport = self._holding, self._holding.transport
        if ttl is not None:
            held.ttl = checked_ttl(ttl, held.max_ttl)
        with borrowed(transport) as channel:
            channel.connect(self.expires_in)
            # A release that leaves keys behind must not overtake it on the way to a slow node.
            linger = math.inf if held.shortens({}) else 0.0
            rounds = extend_leases(channel, [held], until=held.valid_until, linger=linger)
        self.check()
        round_ = rounds[held]
        if round_.phase is not Phase.GRANTED:
            nodes = node_votes(round_, transport.names)
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
            wait: whether to wait until a quorum of nodes has replied. Without it the release has
                been sent when this returns, but a call in another thread may reach a node first.
                The process reads the replies within about a second, and then reports the release
                to the receivers of `observe`.

        Returns:
            Whether the lease was still valid and, with `wait`, a quorum of nodes still had its
            keys.
        """
        return release_with(self, {}, wait=wait)


def holding_of(lease: Lease) -> Holding:
    """Return the `Holding` of a lease."""
    return lease._holding


def watch(
    lease: Lease,
    *,
    on_lost: Callable[[Lease], None] | None = None,
    max_hold: float = MAX_HOLD,
    seen_within: float = math.inf,
) -> None:
    """
    Let the process's watchdog extend a lease until it is released, as by `Redlock.watch`.

    Args:
        lease: the lease.
        on_lost: called once if it is lost.
        max_hold: for how many seconds it is extended.
        seen_within: seconds between two extensions, at most; the next one finds a lost key.
    """
    holding = lease._holding
    holding.on_lost = None if on_lost is None else partial(on_lost, lease)
    if not holding.held_keys:  # rates alone: the nodes keep nothing that could be lost
        holding.never_expire()
    process_watchdog().watch(holding, max_hold, seen_within)


def unwatch(lease: Lease) -> None:
    """Stop extending a lease."""
    process_watchdog().unwatch(lease._holding)


def release_with(
    lease: Lease,
    actions: Mapping[Key, ReleaseAction],
    reservation: Reservation | None = None,
    *,
    grace: float = HANDBACK_TTL,
    wait: bool = True,
    on_settled: Callable[[bool], object] | None = None,
) -> bool:
    """
    Release a lock as `Lease.release` does, but leave some keys behind. Never raises.

    Args:
        lease: the lease.
        actions: actions on single keys; the others are released.
        reservation: gets those of its keys that the lease has, until it expires. A node that
            sets them late, because it was stopped, keeps them for `grace` only.
        grace: seconds.
        wait: as for `Lease.release`; a release to a reservation is always waited for.
        on_settled: called once, with the result that a release with `wait` returns.

    Returns:
        As `Lease.release`.
    """
    holding, held = lease._holding, False
    try:
        begun = begin_release(lease)
        if begun is not None:
            command = holding.release_command(actions, reservation, grace)
            if reservation is None and not wait:
                return _release_unawaited(holding, command, begun, on_settled)
            held = holding.settled(_release_awaited(holding, command, reservation))
    except Exception as exc:
        call_in_app(
            _logger.error,
            "release-failed",
            "Release of lock %(key)r failed; the lock ends with its TTL",
            key=shortened(lease.key),
            exc_info=exc,
        )
    if on_settled is not None:
        on_settled(held)
    return held


def begin_release(lease: Lease) -> bool | None:
    """Stop extending a lease, and end its validity; return as `Holding.begin_release`."""
    process_watchdog().unwatch(lease._holding)
    return lease._holding.begin_release()


def _release_awaited(holding: Holding, command: Command, reservation: Reservation | None) -> Phase:
    transport, node_timeout = holding.transport, holding.node_timeout
    if reservation is not None:
        phase, channel = release_to(transport, command, reservation, node_timeout)
    else:
        (phase,), channel = send_release(transport, [command], node_timeout)
    holding.after_release(command, channel)
    return phase


def _release_unawaited(
    holding: Holding,
    command: Command,
    begun: bool,
    on_settled: Callable[[bool], object] | None,
) -> bool:
    def settle(phase: Phase) -> None:
        held = holding.settled(phase)
        if on_settled is not None:
            on_settled(held)

    sent = send_unawaited(holding.transport, command, holding.node_timeout, settle)
    holding.after_release(command, sent.channel)
    if begun:
        process_watchdog().settle_later(holding.transport, sent.settle)
    else:
        settle(sent.round.phase)  # no reply can change that it was lost
    return begun


def release_keys(lease: Lease, keys: Iterable[Key]) -> None:
    """Release some of the keys now; the lease keeps the others."""
    holding = lease._holding
    command = holding.give_up(keys)
    if command is None:
        return
    # An extension under way names all keys, and would find the released ones missing.
    holding.wait_for_extension()
    _, channel = send_release(holding.transport, [command], holding.node_timeout)
    holding.send_where_in_doubt(command, channel)


def release_leases(transport: Transport, leases: Sequence[Lease]) -> None:
    """
    Release leases of one client, many in each exchange, which can take as long as `node_timeout`.

    After several exchanges in a row without a quorum, the other releases are sent without waiting:
    there may be thousands, and each exchange would wait for the dead nodes.
    """
    silent = 0
    reports: list[ReleaseDetails] = []
    try:
        for start in range(0, len(leases), _BATCH):
            held = [lease._holding for lease in leases[start : start + _BATCH]]
            commands = [holding.release_command({}, None, 0.0) for holding in held]
            waits = silent < _MAX_SILENT
            node_timeout = min(holding.node_timeout for holding in held) if waits else 0.0
            phases, channel = send_release(transport, commands, node_timeout)
            for holding, command, phase in zip(held, commands, phases, strict=True):
                holding.after_release(command, channel)
                if instrumentation.receivers:
                    reports.append(holding.release_details(had=phase is Phase.GRANTED))
            silent = silent + 1 if set(phases) <= {Phase.UNAVAILABLE, Phase.VOTING} else 0
    finally:
        # An interrupt in a receiver must not prevent the release of a lease.
        for details in reports:
            instrumentation.report(details)


#: Innermost last. The second of a pair is the flow of control that entered the lease: a coroutine
#: or a thread that inherits the context runs under the lease, too, but may wait for its release.
Leases: TypeAlias = tuple[tuple[Lease, object], ...]

_current: ContextVar[Leases] = ContextVar("celery_redlock_leases", default=())


def current_lease() -> Lease | None:
    """
    Return the lease under which the calling code runs, or None.

    It is the lease of the innermost locking task, or block of `Redlock.lock` or
    `AsyncRedlock.lock`, that runs in this thread, greenlet or coroutine. A thread that a body
    starts does not inherit it; hand the lease over. A coroutine that a block starts does.
    """
    leases = _current.get()
    return leases[-1][0] if leases else None


def set_current_lease(lease: Lease | None) -> None:
    """Make `lease` the only one that the calling code runs under."""
    _current.set(() if lease is None else ((lease, _flow()),))


def current_leases() -> Leases:
    """Return all leases that the calling code runs under, for `set_current_leases`."""
    return _current.get()


def set_current_leases(leases: Leases) -> None:
    """Make these the leases that the calling code runs under."""
    _current.set(leases)


@contextlib.contextmanager
def under_lease(lease: Lease) -> Iterator[None]:
    """Make `lease` the innermost one for a block; blocks may end in any order."""
    _current.set((*_current.get(), (lease, _flow())))
    try:
        yield
    finally:
        _current.set(tuple(entry for entry in _current.get() if entry[0] is not lease))


def refuse_own_lock(transport: Transport, keys: Sequence[Key]) -> None:
    """
    Raise `LockContended` where the calling code asks for a lock that it holds itself.

    It may hold it through another client of the same nodes.

    Args:
        transport: to the nodes.
        keys: the keys that it asks for.
    """
    held: Counter[str] = Counter()
    for lease, flow in _current.get():
        same_nodes = set(holding_of(lease).transport.names) == set(transport.names)
        if not same_nodes or flow != _flow() or not lease.is_valid:
            continue
        held.update(key.lock for key in holding_of(lease).held_keys)
        if any(held[key.stored] >= key.holders for key in keys):
            own = holding_of(lease).asked_for
            raise Refusal(own[0], lease.owner, lease.expires_in, False, own, own).error(
                f"Lock {shortened(lease.key)!r} is held by the block or task that asks for it, and "
                "locks are not re-entrant. Use current_lease(), or hand the lease over."
            )


def _flow() -> object:
    """Return the running asyncio task, else what identifies the thread or greenlet."""
    try:
        return asyncio.current_task() or threading.get_ident()
    except RuntimeError:
        return threading.get_ident()
