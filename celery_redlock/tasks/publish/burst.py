"""
Debounced calls: when each is due, and what it takes over from the call that it replaces.

A burst is the calls for one key of which each replaces the one before. The time of its first call
is in the label of the lock, so the publisher of a newer call reads it where the nodes refuse the
key, and writes it into its own label: no round trip more, and no promise of a broker.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Self

from celery_redlock.errors import ConfigurationError
from celery_redlock.tasks.border import TaskLike
from celery_redlock.tasks.config.option_values import Debounce
from celery_redlock.tasks.message.expiry import expires_at
from celery_redlock.tasks.message.owner_label import TaskOwner
from celery_redlock.tasks.rules.facts import Burst, Role

#: For how many seconds after its burst is over a worker is expected to begin a call.
BEGINS_WITHIN = 1.0


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
