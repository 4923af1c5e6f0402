"""
One unique publish: reserve the lock, send the message, confirm the reservation.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from celery_redlock._log import event_logger
from celery_redlock.core import PendingReservation, Redlock, Reservation
from celery_redlock.errors import (
    ConfigurationError,
    DuplicateTask,
    LockContended,
    LockNotAcquired,
    QuorumUnavailable,
)
from celery_redlock.protocol.keys import all_places
from celery_redlock.tasks.config.options import LockOptions
from celery_redlock.tasks.config.policies import PUBLISH, resolve_policy
from celery_redlock.tasks.events import Event, emit
from celery_redlock.tasks.message.duplicate_result import DuplicateResult, result_of
from celery_redlock.tasks.message.envelope import HEADER, Envelope, Original
from celery_redlock.tasks.message.in_words import in_words, lock_key_of, reason_of
from celery_redlock.tasks.message.node_keys import (
    dedupe_key_of,
    does_same_work,
    is_limit,
    tick_dedupe_key,
    tick_id_of,
)
from celery_redlock.tasks.message.owner_label import Role, TaskOwner, label_for, parse_owner
from celery_redlock.tasks.message.periodic import holder_may_expire
from celery_redlock.tasks.message.tick import Tick
from celery_redlock.tasks.message.withdrawal import revoke_in_workers, withdraw
from celery_redlock.tasks.publish.holder_ended import has_ended
from celery_redlock.tasks.publish.node_reports import (
    check_nodes,
    report_failing_nodes,
    warn_without_lock,
)
from celery_redlock.tasks.rules.facts import Holder, PublishPolicy
from celery_redlock.tasks.rules.publish import (
    Contention,
    Publish,
    TickState,
    on_contention,
    on_reservation,
)
from celery_redlock.tasks.run.ended_tasks import sending_task

__all__ = ["UniquePublish", "continues", "send_as"]

logger = event_logger(__name__)

#: Retry budget in seconds while contenders share the nodes: a split vote must not drop a call.
RETRY_FOR = 4.0
#: How long a call waits, in seconds, for the release of a lock whose task has stored its result.
RELEASE_WAIT = 1.0
SHORTEST_LIFE = 1.0
#: A call with one of these options continues a run that has begun.
CONTINUES = ("retries", "replaced_task_nesting")


def continues(options: Mapping[str, Any]) -> bool:
    """Return whether a call continues a run that has begun: a retry, or a replacement."""
    return any(options.get(option) for option in CONTINUES)


def send_as(
    send: Callable[..., Any],
    args: Any,
    kwargs: Any,
    task_id: str,
    options: Mapping[str, Any],
    envelope: Envelope,
) -> Any:
    """Send a task with this envelope in its header."""
    headers = {**dict(options.get("headers") or {}), HEADER: envelope.write()}
    return send(args, kwargs, task_id=task_id, **{**options, "headers": headers})


def _call_of(holder: TaskOwner) -> Original | None:
    return None if holder.marker is None else Original(task_id=holder.task_id, marker=holder.marker)


@dataclass(frozen=True, slots=True, kw_only=True)
class UniquePublish:
    """
    One call of `apply_async`.

    Attributes:
        nonce: of the message.
        marker: digest of the message's dedupe key.
        end: when the reservation expires, in seconds since the epoch.
        window_until: when `lock_window` ends, in seconds since the epoch.
        has_dependents: another program knows the message's id or something runs after it, so the
            message must not be dropped.
        tick: the tick for which a schedule sends it, if any.
        continued: the tick of the run that it continues, if it is a retry or a replacement.
    """

    task: Any
    redlock: Redlock
    node_keys: tuple[str, ...]
    apply_async: Callable[..., Any]
    args: Any
    kwargs: Any
    task_id: str
    nonce: str
    marker: str
    options: dict[str, Any]
    end: float
    window_until: float | None
    has_dependents: bool
    tick: Tick | None = None
    continued: Tick | None = None

    @property
    def lock(self) -> LockOptions:
        """The task's lock options."""
        return self.task.redlock_plan.options  # type: ignore[no-any-return]

    def send(self) -> Any:
        """Send the message with a lock, without one, or not at all."""
        return self._try_to_send()

    def _try_to_send(self, wait_for: str = "") -> Any:
        if not self.node_keys:
            return self._send_without()  # rates only, which the worker takes in this mode
        try:
            reserved = self._reserve_checked(wait_for)
        except LockContended as error:
            return self._contended(error, awaited=bool(wait_for))
        except QuorumUnavailable as error:
            return self._unlocked(error)
        if self.tick is None:
            return self._send_with(reserved)
        return self._send_once(reserved, self.tick)

    def _send_once(self, reserved: PendingReservation, tick: Tick) -> Any:
        """Send the message of a tick, unless another message of the tick runs or has run."""
        # Read while this message holds the lock: a worker that ends the other one frees the lock
        # and sets its marker in one step.
        other = self._tick_owner(tick)
        action = on_reservation(TickState(tick=None if other is None else other.role))
        if action is Publish.SEND_WITH_LOCK or other is None:
            return self._send_with(reserved)
        self.redlock.reservations.cancel(reserved.reservation, wait=True)
        if action is Publish.DROP_TICK:
            return self._drop_tick(tick, other)
        return self._send_without()

    def _reserve_checked(self, wait_for: str) -> PendingReservation:
        """Reserve; report the nodes that failed, and raise for one that can never serve."""
        try:
            reserved = self._reserve(wait_for=wait_for)
        except LockNotAcquired:
            check_nodes(self.task, self.redlock)
            raise
        try:
            check_nodes(self.task, self.redlock)
        except ConfigurationError:
            self.redlock.reservations.cancel(reserved.reservation, wait=True)
            raise
        report_failing_nodes(self.task, self.task_id, self.redlock)
        return reserved

    def _tick_owner(self, tick: Tick) -> TaskOwner | None:
        """Return the task that runs or has run for a tick; None also if too few nodes replied."""
        key = tick_dedupe_key(self.redlock, tick, name=self.task.name, retries=0, nesting=0)
        try:
            (held,) = self.redlock.reservations.inspect([key])
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
        return result_of(self.task, other.task_id, ignored=bool(self.task.ignore_result))

    def _reserve(
        self,
        reserved_keys: tuple[str, ...] = (),
        *,
        previous: str = "",
        previous_until: float = 0.0,
        wait_for: str = "",
    ) -> PendingReservation:
        life = max(SHORTEST_LIFE, self.end - time.time())
        try:
            return self.redlock.reservations.reserve(
                self.node_keys,
                reserved_keys,
                ttl=life,
                grace=min(life, self.lock.publish_grace),
                label=self._label,
                previous=previous,
                previous_until=previous_until,
                retry_for=RETRY_FOR,
                wait=RELEASE_WAIT if wait_for else 0.0,
                wait_for_owner=wait_for,
            )
        except (LockContended, QuorumUnavailable) as error:
            raise in_words(error, self.redlock) from None

    @property
    def _label(self) -> str:
        tick = self.tick or self.continued
        due_us = None if tick is None else tick.due_us
        return label_for(
            Role.QUEUED,
            self.task_id,
            due_us=due_us,
            tick_id=self._tick_id,
            marker=self.marker,
            task=self.task.name,
        )

    @property
    def _tick_id(self) -> str | None:
        tick = self.tick or self.continued
        return None if tick is None else tick_id_of(self.redlock, tick, name=self.task.name)

    def _contended(self, error: LockContended, *, awaited: bool) -> Any:
        holder = parse_owner(error.holder)
        contention = self._contention(error, holder, awaited=awaited)
        action = on_contention(contention)
        if action is Publish.ASK_POLICY:
            policy = resolve_policy(self.task, self.lock.publish_policy, error, PUBLISH)
            action = on_contention(replace(contention, policy=PublishPolicy(policy)))
        if action is Publish.SEND_UNDECIDED:
            return self._unlocked(error)
        if action is Publish.FAIL:
            raise error
        if action is Publish.SEND or holder is None:
            return self._send_without()
        effects: dict[Publish, Callable[[], Any]] = {
            Publish.AWAIT_RELEASE: lambda: self._try_to_send(wait_for=error.holder or ""),
            Publish.SEND_AFTER: lambda: self._send_without(after=holder.task_id),
            Publish.SEND_AS_DUPLICATE: lambda: self._send_without(duplicate_of=_call_of(holder)),
            Publish.REPLACE: lambda: self._replace(error, holder, awaited=awaited),
            Publish.REFUSE: lambda: self._drop(error, holder, refused=True),
            Publish.DROP: lambda: self._drop(error, holder, refused=False),
        }
        return effects[action]()

    def _contention(
        self, error: LockContended, holder: TaskOwner | None, *, awaited: bool
    ) -> Contention:
        """Return what is known, in the terms of the rules."""
        policy = self.lock.publish_policy
        same = does_same_work(self.redlock, self.node_keys, self.task.name, error, holder)
        return Contention(
            split=error.split,
            holder=self._who(holder),
            role=Role.QUEUED if holder is None else holder.role,
            same_work=same,
            is_limit=is_limit(error.key),
            holder_has_ended=holder is not None
            and same
            and not error.split
            and self._has_ended(holder),
            has_waited=awaited,
            has_dependents=self.has_dependents,
            continues=continues(self.options),
            policy=PublishPolicy.FUNCTION if callable(policy) else PublishPolicy(policy),
            holder_may_be_skipped=holder is not None
            and holder_may_expire(holder, self.tick, self.lock),
            held_in_body=self.lock.mode_spec.in_body and not self.lock.mode_spec.own_queue_key,
        )

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
        warn_without_lock(self.task, self.task_id, self.redlock, error)
        return self._send_without()

    def _drop(self, error: LockContended, holder: TaskOwner, *, refused: bool) -> DuplicateResult:
        existing = result_of(self.task, holder.task_id, ignored=self._ignores_result())
        logger.info(
            "duplicate-not-sent",
            "Task %(task)s is not sent: %(other_task_id)s is %(role)s already (%(error)s)",
            task=self.task.name,
            other_task_id=holder.task_id,
            role=holder.role,
            error=error,
        )
        key = lock_key_of(self.redlock, error.key)
        emit(Event.DUPLICATE, self.task, holder.task_id, key=key, refused=refused)
        if not refused:
            return existing
        duplicate = DuplicateTask(
            f"Task {self.task.name} was not sent: {holder.task_id} is {holder.role} already, "
            f"since {holder.host}[{holder.pid}] acquired {key!r}. Its outcome is in .result; "
            "lock_on_conflict='existing' would return that instead of raising.",
            holder.task_id,
        )
        duplicate.result = existing
        raise duplicate from error

    def _ignores_result(self) -> bool:
        requested = self.options.get("ignore_result")
        return bool(self.task.ignore_result if requested is None else requested)

    def _replace(self, error: LockContended, holder: TaskOwner, *, awaited: bool) -> Any:
        """Take the lock over from a queued message, send this one, and revoke the other."""
        previous = error.holder or ""
        until = time.time() + (error.expires_in or 0.0)
        try:
            reserved, withdrawn = self._take_over(holder, previous, until)
        except LockNotAcquired as exc:
            # The holder has begun to run, or another call was faster: decide about the new holder.
            if isinstance(exc, LockContended) and exc.holder != error.holder:
                return self._contended(exc, awaited=awaited)
            return self._unlocked(exc)
        sent = self._send_with(reserved, previous=previous, until=until, withdrawn=withdrawn)
        if withdrawn is not None:
            marker_ttl = (error.expires_in or 0.0) + self.lock.dedupe_window
            label = label_for(Role.REPLACED, self.task_id)
            self.redlock.reservations.relabel(withdrawn, label, marker_ttl)
        # A minority of nodes may execute the reservation of the older message late.
        places = all_places(self.node_keys)
        older = Reservation(node_keys=places, owner=previous, expires_at=until)
        self.redlock.reservations.cancel(older)
        logger.info(
            "message-replaces-older",
            "Task %(task)s[%(task_id)s] replaces %(other_task_id)s, which is revoked",
            task=self.task.name,
            task_id=self.task_id,
            other_task_id=holder.task_id,
        )
        emit(Event.REPLACED, self.task, holder.task_id, by=self.task_id)
        revoke_in_workers(self.task.app, holder.task_id)
        return sent

    def _take_over(
        self, older: TaskOwner, previous: str, until: float
    ) -> tuple[PendingReservation, Reservation | None]:
        """
        Take the lock over from a queued message, and withdraw that one in the same step.

        Before this message is sent: it may have finished before a worker receives the older one.
        Until it is sent the marker only makes workers requeue that one, as this process may die.
        """
        if older.marker is not None:
            marker = (dedupe_key_of(older.marker),)
            try:
                reserved = self._reserve(marker, previous=previous, previous_until=until)
                return reserved, replace(reserved.reservation, node_keys=marker)
            except LockContended as error:
                if error.split:
                    raise
        # Its marker is held: its body has begun, or another process ends it.
        reserved = self._reserve(previous=previous, previous_until=until)
        return reserved, self._withdraw(older)

    def _withdraw(self, older: TaskOwner) -> Reservation | None:
        try:
            return withdraw(
                self.redlock,
                older,
                Role.QUEUED,
                by=self.task_id,
                marker_ttl=self.lock.publish_grace,
            )
        except LockNotAcquired as exc:
            logger.warning(
                "replaced-message-may-run",
                "Task %(task)s[%(task_id)s] replaces %(other_task_id)s, which may still run after "
                "it: its dedupe marker could not be set. %(reason)s",
                task=self.task.name,
                task_id=self.task_id,
                other_task_id=older.task_id,
                reason=reason_of(exc, self.redlock),
            )
            return None

    def _send_with(
        self,
        reserved: PendingReservation,
        previous: str = "",
        until: float = 0.0,
        withdrawn: Reservation | None = None,
    ) -> Any:
        reservation = reserved.reservation
        began = time.monotonic()
        try:
            sent = self._send(reservation)
        except BaseException:
            # Awaited, so that a caller that retries at once finds the lock free. The key before the
            # marker: a worker that receives the older message meanwhile requeues it, and does not
            # end it for a call that is never sent.
            try:
                self.redlock.reservations.cancel(
                    reservation, wait=True, previous=previous, previous_until=until
                )
            finally:
                if withdrawn is not None:
                    self.redlock.reservations.cancel(withdrawn, wait=True)
            raise
        self.redlock.reservations.confirm(reserved)
        took = time.monotonic() - began
        if took >= self.lock.publish_grace:
            logger.warning(
                "publish-outlasted-grace",
                "Sending task %(task)s[%(task_id)s] took %(seconds).1f s, longer than "
                "lock_publish_grace=%(grace)g, so its lock has expired and a duplicate may be "
                "sent, too; raise lock_publish_grace.",
                task=self.task.name,
                task_id=self.task_id,
                seconds=took,
                grace=self.lock.publish_grace,
            )
        return sent

    def _send_without(
        self, *, duplicate_of: Original | None = None, after: str | None = None
    ) -> Any:
        return self._send(None, duplicate_of=duplicate_of, after=after)

    def _send(self, reservation: Reservation | None, **facts: Any) -> Any:
        envelope = Envelope(
            nonce=self.nonce,
            reservation=reservation,
            window_until=self.window_until,
            tick=self.continued,  # a beat adds its own at `before_task_publish`, see tick_context
            **facts,
        )
        return send_as(
            self.apply_async, self.args, self.kwargs, self.task_id, self.options, envelope
        )
