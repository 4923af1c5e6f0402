"""
Traces of locks, for OpenTelemetry.

Needs `pip install "celery-redlock[otel]"`. Two spans of each lock are children of the span that is
current where it is acquired:

| span | from | to |
|---|---|---|
| `redlock acquire` | the first attempt | the end of the last attempt |
| `redlock hold` | the acquire | the release or the loss |

| attribute | of | value |
|---|---|---|
| `redlock.task` | both | the task that runs there; empty outside of tasks |
| `redlock.key_count` | both | the number of keys; never their names |
| `redlock.fencing_token` | both | the lease's token, where there is a lease |
| `redlock.outcome` | acquire | an `Outcome`: `granted`, `contended`, `split` or `unavailable` |
| `redlock.attempts` | acquire | the number of attempts |
| `redlock.reserves` | acquire | whether a message gets the lock, so that there is no hold |
| `redlock.failed_nodes` | acquire | the nodes that failed or were quarantined in the last attempt |
| `redlock.end` | hold | `released`, or the name of a `LossReason` |
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeAlias

from celery_redlock import __version__
from celery_redlock.core.instrumentation import (
    AcquireDetails,
    Details,
    LeaseNotes,
    LossDetails,
    Outcome,
    ReleaseDetails,
    nodes_without_service,
    observe,
)
from celery_redlock.tasks.border import running_task_name

try:
    from opentelemetry.context import Context, get_current
    from opentelemetry.trace import StatusCode, Tracer, TracerProvider, get_tracer
    from opentelemetry.util.types import AttributeValue
except ImportError as error:
    raise ModuleNotFoundError(
        'this needs the package opentelemetry-api: pip install "celery-redlock[otel]"',
        name="opentelemetry",
    ) from error

__all__ = ["trace_locks"]

#: A hold that has not ended: when it began, in nanoseconds since the epoch, the context in which
#: the lock was acquired, and those attributes of its span that are known.
_Hold: TypeAlias = tuple[int, Context, dict[str, AttributeValue]]


def trace_locks(tracer_provider: TracerProvider | None = None) -> Callable[[], None]:
    """
    Record a span for each wait for a lock and for each hold; return a function that stops it.

    A span is made at its end, with its real times, so a process that forks or ends leaves no span
    open. Therefore a lease that is never released or lost has no span of its hold, and no span is a
    child of a hold.

    Args:
        tracer_provider: makes the spans; by default the global one.
    """
    return observe(_Spans(get_tracer(__name__, __version__, tracer_provider)).on_event)


class _Spans:
    """Makes the spans of one tracer."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        self._holds: LeaseNotes[_Hold] = LeaseNotes()

    def on_event(self, details: Details) -> None:
        """Record the span that an event ends."""
        match details:
            case AcquireDetails():
                self._end_acquire(details)
            case LossDetails(reason=reason):
                self._end_hold(details, reason.name.lower(), fault=str(reason))
            case ReleaseDetails():
                self._end_hold(details, "released")

    def _end_acquire(self, details: AcquireDetails) -> None:
        now, context = time.time_ns(), get_current()
        attributes: dict[str, AttributeValue] = {
            "redlock.task": running_task_name(),
            "redlock.key_count": len(details.keys),
        }
        if details.fencing_token is not None and not details.reserves:
            attributes["redlock.fencing_token"] = details.fencing_token
            self._holds.add(details.owner, (now, context, attributes))
        self._record(
            "redlock acquire",
            context,
            now - _nanoseconds(details.waited),
            now,
            {
                **attributes,
                "redlock.outcome": details.outcome.value,
                "redlock.attempts": details.attempts,
                "redlock.reserves": details.reserves,
                "redlock.failed_nodes": nodes_without_service(details),
            },
            "too few nodes replied" if details.outcome is Outcome.UNAVAILABLE else "",
        )

    def _end_hold(self, details: LossDetails | ReleaseDetails, end: str, fault: str = "") -> None:
        hold = self._holds.take(details.owner)
        if hold is not None:  # None: lost before its release, or older than these traces
            began, context, attributes = hold
            self._record(
                "redlock hold",
                context,
                began,
                began + _nanoseconds(details.held_for),
                {**attributes, "redlock.end": end},
                fault,
            )

    def _record(
        self,
        name: str,
        context: Context,
        began: int,
        ended: int,
        attributes: dict[str, AttributeValue],
        fault: str,
    ) -> None:
        span = self._tracer.start_span(name, context, attributes=attributes, start_time=began)
        if fault:
            span.set_status(StatusCode.ERROR, fault)
        span.end(ended)


def _nanoseconds(seconds: float) -> int:
    return round(seconds * 1e9)
