"""
One call of `apply_async`: the header with which it is sent, and when it is due if it is debounced.

A burst is the calls for one key of which each replaces the one before. The time of its first call
is in the label of the lock, so the publisher of a newer call reads it where the nodes refuse the
key, and writes it into its own label: no round trip more, and no promise of a broker.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Self

from celery_redlock.errors import ConfigurationError
from celery_redlock.tasks.border import TaskLike
from celery_redlock.tasks.config.option_values import Debounce
from celery_redlock.tasks.config.options import LockOptions
from celery_redlock.tasks.message.envelope import HEADER, Envelope
from celery_redlock.tasks.message.expiry import expires_at
from celery_redlock.tasks.message.owner_label import TaskOwner
from celery_redlock.tasks.rules.facts import Burst, Role
from celery_redlock.tasks.run.ended_tasks import may_replace

#: With one of these options, Celery waits for the message's id or runs something after it.
DEPENDENT_OPTIONS = ("chord", "chain", "group_id", "link", "link_error")
#: For how many seconds after its burst is over a worker is expected to begin a call.
BEGINS_WITHIN = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """
    A call of a task that has a lock plan.

    Attributes:
        apply_async: Celery's own method of the task.
        options: all arguments of the call but these.
    """

    task: TaskLike
    apply_async: Callable[..., Any]
    args: Any
    kwargs: Any
    task_id: str
    options: dict[str, Any]

    @property
    def lock(self) -> LockOptions:
        """The task's lock options."""
        return self.task.redlock_plan.options  # type: ignore[no-any-return]

    @property
    def continues(self) -> bool:
        """Whether it continues a run that has begun: a retry, or a replacement."""
        if self.options.get("retries"):
            return True
        return bool(self.options.get("replaced_task_nesting")) and may_replace(self.task_id)

    @property
    def has_dependents(self) -> bool:
        """Whether Celery waits for the message's id, or runs something after the message."""
        return any(self.options.get(option) for option in DEPENDENT_OPTIONS)

    @property
    def ignores_result(self) -> bool:
        """Whether its result is not stored."""
        requested = self.options.get("ignore_result")
        return bool(self.task.ignore_result if requested is None else requested)

    def having(self, options: dict[str, Any]) -> Self:
        """Return the call with other options."""
        return replace(self, options=options)

    def send(self, envelope: Envelope) -> Any:
        """Send the message with this envelope in its header; return the task's result."""
        headers = {**dict(self.options.get("headers") or {}), HEADER: envelope.write()}
        options = {**self.options, "headers": headers}
        return self.apply_async(self.args, self.kwargs, task_id=self.task_id, **options)


@dataclass(frozen=True, slots=True, kw_only=True)
class DebouncedCall:
    """
    A call of a task with `lock_debounce`. Its times are by the clocks of publishers.

    Attributes:
        debounce: the option.
        made: when it was made, in seconds since the epoch.
        first: when the first call of its burst was made; its own time where it begins one.
    """

    debounce: Debounce
    made: float
    first: float

    @property
    def due(self) -> float:
        """When it is due, in seconds since the epoch."""
        return self.debounce.due(self.made, self.first)

    @property
    def first_us(self) -> int:
        """When the first call of its burst was made, in microseconds since the epoch."""
        return round(self.first * 1_000_000)

    def with_eta(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return the options of an `apply_async` call with the ETA of this one."""
        return {**options, "eta": datetime.fromtimestamp(self.due, UTC)}

    def replacing(self, holder: TaskOwner) -> Self:
        """Return the call as one more of the burst of the call that it replaces."""
        begun = self.made if holder.burst_us is None else holder.burst_us / 1_000_000
        return replace(self, first=min(self.made, begun))

    def burst_of(self, holder: TaskOwner, now: float) -> Burst:
        """Return the state of the burst of a call that has the key."""
        if holder.burst_us is None or holder.role is not Role.QUEUED:
            return Burst.OPEN
        over_for = now - (holder.burst_us / 1_000_000 + self.debounce.at_most)
        return Burst.DUE if 0 <= over_for < BEGINS_WITHIN else Burst.OPEN


def debounced_call(
    task: TaskLike, debounce: Debounce, options: Mapping[str, Any], now: float
) -> DebouncedCall:
    """
    Return a call that is made now, as the first one of its burst.

    Raises:
        ConfigurationError: the call has an ETA of its own, or expires before it is due.
    """
    given = [name for name in ("countdown", "eta") if options.get(name)]
    if given:
        raise ConfigurationError(
            f"A call of task {task.name} takes no {given[0]}, because lock_debounce determines "
            f"when it runs. Leave {given[0]} out, or declare a second task with the same body and "
            "without lock_debounce."
        )
    call = DebouncedCall(debounce=debounce, made=now, first=now)
    expiry = expires_at(task, options, now)
    if expiry is not None and expiry <= call.due:
        raise ConfigurationError(
            f"A call of task {task.name} would expire {expiry - now:.3g} s after it is made, and "
            f"lock_debounce lets it run after {debounce.quiet:g} s, so it would replace an older "
            "call and never run. Give a later expires, or none."
        )
    return call
