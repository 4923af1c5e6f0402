"""
One unique publish: reserve the lock, send the message, confirm the reservation.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Self

from celery_redlock._log import event_logger
from celery_redlock.core import Client, PendingReservation, Reservation
from celery_redlock.core.failures import Refusal
from celery_redlock.errors import (
    ConfigurationError,
    DuplicateTask,
    LockContended,
    LockNotAcquired,
    QuorumUnavailable,
)
from celery_redlock.protocol.keys import Key, places_of
from celery_redlock.tasks.border import TaskLike
from celery_redlock.tasks.config.option_values import resolve_policy
from celery_redlock.tasks.config.options import LockOptions
from celery_redlock.tasks.events import Event, emit
from celery_redlock.tasks.message import expiry
from celery_redlock.tasks.message.duplicate_result import DuplicateResult, result_of
from celery_redlock.tasks.message.envelope import Envelope, Original
from celery_redlock.tasks.message.expiry import holder_may_expire, reservation_end, window_end
from celery_redlock.tasks.message.in_words import in_words, lock_key_of, reason_of
from celery_redlock.tasks.message.node_keys import (
    dedupe_key_of,
    does_same_work,
    tick_dedupe_key,
    tick_id_of,
)
from celery_redlock.tasks.message.owner_label import TaskOwner, label_for, parse_owner
from celery_redlock.tasks.message.tick import Tick
from celery_redlock.tasks.message.withdrawal import withdraw
from celery_redlock.tasks.publish.call import Call, DebouncedCall
from celery_redlock.tasks.publish.holder_ended import has_ended
from celery_redlock.tasks.publish.node_reports import (
    check_nodes,
    report_failing_nodes,
    warn_without_lock,
)
from celery_redlock.tasks.rules.facts import Burst, DuplicatePolicy, Holder, Need, Role
from celery_redlock.tasks.rules.publish import (
    Duplicate,
    Publish,
    TickState,
    on_duplicate,
    on_reservation,
)
from celery_redlock.tasks.run.ended_tasks import sending_task

logger = event_logger(__name__)

#: Retry budget in seconds while contenders share the nodes: a split vote must not drop a call.
RETRY_FOR = 4.0
#: How long a call waits, in seconds, for the release of a lock whose task has stored its result.
RELEASE_WAIT = 1.0
SHORTEST_LIFE = 1.0


def _call_of(holder: TaskOwner) -> Original | None:
    return None if holder.marker is None else Original(task_id=holder.task_id, marker=holder.marker)


@dataclass(frozen=True, slots=True, kw_only=True)
class UniquePublish:
    """
    One call, and what its publisher knows of it.

    Attributes:
        envelope: what the message carries beside its reservation. Its tick is that of the run that
            the call continues, if it is a retry or a replacement.
        marker: digest of the message's dedupe key.
        now: when it is published, in seconds since the epoch.
        has_dependents: whether another program knows the message's id or something runs after the
            message, so that it must not be dropped.
        tick: the tick for which a schedule sends it, if any. A beat adds it to the envelope at
            `before_task_publish`, see `tick_context`.
        debounced: the call, if its task has `lock_debounce`; its options then have an ETA.
        replaces: the marker of the call that it replaces, if it does.
    """

    call: Call
    client: Client
    keys: tuple[Key, ...]
    envelope: Envelope
    marker: str
    now: float
    has_dependents: bool
    tick: Tick | None = None
    debounced: DebouncedCall | None = None
    replaces: str | None = None

    @property
    def task(self) -> TaskLike:
        """The task that is called."""
        return self.call.task

    @property
    def task_id(self) -> str:
        """The id of the message's task."""
        return self.call.task_id

    @property
    def lock(self) -> LockOptions:
        """The task's lock options."""
        return self.call.lock

    def send(self, wait_for: str = "") -> Any:
        """
        Send the message with a lock, without one, or not at all.

        Args:
            wait_for: owner value whose release this call waits for.
        """
        if not self.keys:
            return self._send()  # it has only rates, which the worker takes in this mode
        try:
            reserved = self._reserve_checked(wait_for)
        except LockContended as error:
            return self._contended(error, awaited=error.holder == wait_for)
        except QuorumUnavailable as error:
            return self._unlocked(error)
        if self.tick is None:
            return self._send_with(reserved)
        return self._send_once(reserved, self.tick)

    def _send_once(self, reserved: PendingReservation, tick: Tick) -> Any:
        """Send the message of a tick, unless another message of the tick runs or has run."""
        # Read while this message holds the lock: a worker that ends the tick's other message frees
        # the lock and sets its marker in one step.
        other = self._tick_owner(tick)
        action = on_reservation(TickState(tick=None if other is None else other.role))
        if action is Publish.SEND_WITH_LOCK or other is None:
            return self._send_with(reserved)
        self.client.cancel(reserved.reservation, wait=True)
        if action is Publish.DROP_TICK:
            return self._drop_tick(tick, other)
        return self._send()

    def _reserve_checked(self, wait_for: str) -> PendingReservation:
        """Reserve; report the nodes that failed, and raise for one that can never serve."""
        try:
            reserved = self._reserve(wait_for=wait_for)
        except LockNotAcquired:
            check_nodes(self.task, self.client)
            raise
        try:
            check_nodes(self.task, self.client)
        except ConfigurationError:
            self.client.cancel(reserved.reservation, wait=True)
            raise
        report_failing_nodes(self.task, self.task_id, self.client)
        return reserved

    def _tick_owner(self, tick: Tick) -> TaskOwner | None:
        """Return the task that runs or has run for a tick; None also if too few nodes replied."""
        key = tick_dedupe_key(self.client, tick, name=self.task.name)
        try:
            (held,) = self.client.inspect([key])
        except QuorumUnavailable:
            return None  # the worker that receives the message reads it again
        return None if held is None else parse_owner(held.owner)

    def _drop_tick(self, tick: Tick, other: TaskOwner) -> DuplicateResult:
        logger.info(
            "tick-run-already",
            "Task %(task)s is not sent: entry %(entry)r, due at %(due)s, has been run by "
            "%(other_task_id)s",
            task=self.task.name,
            entry=tick.entry,
            due=tick.due_at.isoformat(),
            other_task_id=other.task_id,
        )
        emit(Event.DUPLICATE, self.task, other.task_id, key=None, refused=False)
        return result_of(self.task, other, ignored=self.task.ignore_result)

    def _reserve(
        self,
        records: tuple[str, ...] = (),
        *,
        previous: Reservation | None = None,
        wait_for: str = "",
    ) -> PendingReservation:
        life = self._life
        try:
            return self.client.reserve(
                self.keys,
                records,
                ttl=life,
                grace=min(life, expiry.PUBLISH_GRACE),
                label=self._label,
                previous=previous,
                retry_for=RETRY_FOR,
                wait=RELEASE_WAIT if wait_for else 0.0,
                wait_for_owner=wait_for,
            )
        except (LockContended, QuorumUnavailable) as error:
            raise in_words(error) from None

    @property
    def _life(self) -> float:
        """For how many seconds from now the lock waits for a worker, once the message is sent."""
        end = reservation_end(self.task, self.lock, self.call.options, self.now, continuation=False)
        return max(SHORTEST_LIFE, end - time.time())

    @property
    def _label(self) -> str:
        tick = self.tick or self.envelope.tick
        due_us = None if tick is None else tick.due_us
        return label_for(
            Role.QUEUED,
            self.task_id,
            due_us=due_us,
            tick_id=self._tick_id,
            marker=self.marker,
            task=self.task.name,
            burst_us=None if self.debounced is None else self.debounced.first_us,
            replaces=self.replaces,
            ignored=self.call.ignores_result,
        )

    @property
    def _tick_id(self) -> str | None:
        tick = self.tick or self.envelope.tick
        return None if tick is None else tick_id_of(self.client, tick, name=self.task.name)

    def _contended(self, error: LockContended, *, awaited: bool) -> Any:
        holder = parse_owner(error.holder)
        duplicate = self._duplicate(error, holder, awaited=awaited)
        action = on_duplicate(duplicate)
        if action is Need.POLICY:
            policy = resolve_policy(self.task, "lock_on_duplicate", self.lock.on_duplicate, error)
            action = on_duplicate(replace(duplicate, policy=DuplicatePolicy(policy)))
        if action is Publish.SEND_UNDECIDED:
            return self._unlocked(error)
        if action is Publish.FAIL:
            raise error
        if action is Publish.SEND or holder is None:
            return self._send()
        effects: dict[Publish | Need, Callable[[], Any]] = {
            Publish.AWAIT_RELEASE: lambda: self.send(wait_for=error.holder or ""),
            Publish.SEND_AFTER: lambda: self._send(after=holder.task_id),
            Publish.SEND_AS_DUPLICATE: lambda: self._send(duplicate_of=_call_of(holder)),
            Publish.REPLACE: lambda: self._replace(error, holder, awaited=awaited),
            Publish.REFUSE: lambda: self._drop(error, holder, refused=True),
            Publish.DROP: lambda: self._drop(error, holder, refused=False),
        }
        return effects[action]()

    def _duplicate(
        self, error: LockContended, holder: TaskOwner | None, *, awaited: bool
    ) -> Duplicate:
        """Return the facts, in the terms of the rules."""
        refusal = Refusal.of(error)
        same = does_same_work(self.keys, self.task.name, refusal, holder)
        return Duplicate(
            split=error.split,
            holder=self._who(holder),
            role=Role.QUEUED if holder is None else holder.role,
            same_work=same,
            # The call is sent if it is paused, and the worker takes what refuses it.
            is_limit=refusal.is_shared and not refusal.is_paused,
            holder_has_ended=holder is not None
            and same
            and not error.split
            and self._has_ended(holder),
            has_waited=awaited,
            has_dependents=self.has_dependents,
            continues=self.call.continues,
            policy=DuplicatePolicy.of(self.lock.on_duplicate),
            holder_may_be_skipped=holder is not None
            and holder_may_expire(holder, self.tick, self.lock),
            held_in_body=self.lock.mode_spec.held_in_body,
            burst=self._burst_of(holder),
        )

    def _burst_of(self, holder: TaskOwner | None) -> Burst:
        if self.debounced is None or holder is None:
            return Burst.NONE
        return self.debounced.burst_of(holder, time.time())

    def _replacing(self, holder: TaskOwner) -> Self:
        """Return the publish that replaces the holder, as one more call of its burst."""
        if self.debounced is None:
            return replace(self, replaces=holder.marker)
        debounced = self.debounced.replacing(holder)
        call = self.call.having(debounced.with_eta(self.call.options))
        now = time.time()
        return replace(self, call=call, now=now, debounced=debounced, replaces=holder.marker)

    def _has_ended(self, holder: TaskOwner) -> bool:
        # A minimum hold keeps duplicates away even after the task has ended.
        return (
            not holder.is_of(self.task_id)
            and not self.lock.at_least_for
            and has_ended(self.task, holder)
        )

    def _who(self, holder: TaskOwner | None) -> Holder:
        if holder is None:
            return Holder.FOREIGN
        if self.tick is not None and not holder.role.is_over and holder.tick_id == self._tick_id:
            return Holder.COPY
        if holder.is_of(self.task_id):
            return Holder.ITSELF
        return Holder.SENDER if holder.is_of(sending_task()) else Holder.OTHER

    def _unlocked(self, error: LockNotAcquired) -> Any:
        warn_without_lock(self.task, self.task_id, self.client, error)
        return self._send()

    def _drop(self, error: LockContended, holder: TaskOwner, *, refused: bool) -> DuplicateResult:
        existing = result_of(self.task, holder, ignored=self.call.ignores_result)
        logger.info(
            "duplicate-not-sent",
            "Task %(task)s is not sent: %(other_task_id)s is %(role)s already (%(error)s)",
            task=self.task.name,
            other_task_id=holder.task_id,
            role=holder.role,
            error=reason_of(error),
        )
        key = lock_key_of(error.key)
        emit(Event.DUPLICATE, self.task, holder.task_id, key=key, refused=refused)
        if not refused:
            return existing
        duplicate = DuplicateTask(
            f"Task {self.task.name} was not sent: {holder.task_id} is {holder.role} already; "
            f"{holder.host}[{holder.pid}] acquired {key!r} for it. Its result is in this error's "
            ".result; lock_on_duplicate='existing' would return it.",
            holder.task_id,
        )
        duplicate.result = existing
        raise duplicate from error

    def _replace(self, error: LockContended, holder: TaskOwner, *, awaited: bool) -> Any:
        """Take the lock over from a queued message, send this one, and withdraw the other."""
        older = Reservation.of_holder(error, places_of(self.keys))
        try:
            newer, reserved, withdrawn = self._take_over(holder, older)
        except LockNotAcquired as exc:
            # The holder has begun to run, or another call was faster: decide about the new holder.
            if isinstance(exc, LockContended) and exc.holder != error.holder:
                return self._contended(exc, awaited=awaited)
            return self._unlocked(exc)
        sent = newer._send_with(reserved, previous=older, withdrawn=withdrawn)
        markers = [] if withdrawn is None else [withdrawn]
        if holder.replaces is not None:
            # The publisher of the older message may have died or failed before it had this done.
            markers.append(replace(older, node_keys=(dedupe_key_of(holder.replaces),)))
        label = label_for(Role.REPLACED, self.task_id)
        # The lock of a message that is being sent has the TTL of a send, but the message may have
        # a countdown like this one's.
        marker_ttl = max(error.expires_in or 0.0, newer._life) + self.lock.dedupe_window
        for marker in markers:
            self.client.relabel(marker, label, marker_ttl)
        # A minority of nodes may execute the reservation of the older message late.
        self.client.cancel(older)
        logger.info(
            "message-replaces-older",
            "Task %(task)s[%(task_id)s] replaces %(other_task_id)s, which will not run",
            task=self.task.name,
            task_id=self.task_id,
            other_task_id=holder.task_id,
        )
        emit(Event.REPLACED, self.task, holder.task_id, by=self.task_id)
        # Workers are sent no revocation: they would discard a later call with the id as well.
        return sent

    def _take_over(
        self, older: TaskOwner, previous: Reservation
    ) -> tuple[Self, PendingReservation, Reservation | None]:
        """
        Take the lock over from a queued message, and withdraw that message in the same step.

        This comes before the new message is sent, which may finish before a worker receives the
        older one. Until it is sent, workers only requeue the older one: this process may die.

        Returns:
            The publish with what it takes over from the older call's burst, its reservation, and
            the older message's marker if it was set.
        """
        if older.marker is not None:
            marker, newer = (dedupe_key_of(older.marker),), self._replacing(older)
            try:
                reserved = newer._reserve(marker, previous=previous)
                return newer, reserved, replace(reserved.reservation, node_keys=marker)
            except LockContended as error:
                if error.split:
                    raise
        # The older message's marker is held: its body has begun, or another process ends it. So
        # there is no burst to continue.
        reserved = self._reserve(previous=previous)
        return self, reserved, self._withdraw(older)

    def _withdraw(self, older: TaskOwner) -> Reservation | None:
        try:
            return withdraw(
                self.client,
                older,
                Role.QUEUED,
                by=self.task_id,
                marker_ttl=expiry.PUBLISH_GRACE,
            )
        except LockNotAcquired as exc:
            logger.warning(
                "replaced-message-may-run",
                "Task %(task)s[%(task_id)s] replaces %(other_task_id)s, which may still run, "
                "because its dedupe marker could not be set: %(reason)s",
                task=self.task.name,
                task_id=self.task_id,
                other_task_id=older.task_id,
                reason=reason_of(exc),
            )
            return None

    def _send_with(
        self,
        reserved: PendingReservation,
        previous: Reservation | None = None,
        withdrawn: Reservation | None = None,
    ) -> Any:
        reservation = reserved.reservation
        began = time.monotonic()
        try:
            sent = self._send(reservation)
        except BaseException:
            # Awaited, so that a caller that retries at once finds the lock free. The key before the
            # marker: a worker that receives the older message meanwhile requeues it, and does not
            # end it for a call that is never sent. A call that has taken the key over meanwhile
            # needs the marker, and relabels it.
            is_ours = True
            try:
                is_ours = self.client.cancel(reservation, wait=True, previous=previous)
            finally:
                if withdrawn is not None and is_ours:
                    self.client.cancel(withdrawn, wait=True)
            raise
        self.client.confirm(reserved)
        took = time.monotonic() - began
        if took >= expiry.PUBLISH_GRACE:
            logger.warning(
                "publish-outlasted-grace",
                "Sending task %(task)s[%(task_id)s] took %(seconds).1f s, longer than the "
                "%(grace)g s for which its lock is held during the send, so the lock has expired "
                "and a duplicate may be sent, too. Find out why the broker is slow.",
                task=self.task.name,
                task_id=self.task_id,
                seconds=took,
                grace=expiry.PUBLISH_GRACE,
            )
        return sent

    def _send(self, reservation: Reservation | None = None, **facts: Any) -> Any:
        until = window_end(self.task, self.lock, self.call.options, self.now)
        return self.call.send(
            replace(self.envelope, reservation=reservation, window_until=until, **facts)
        )
