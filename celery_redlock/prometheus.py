"""
Metrics of locks and of tasks with locks, for Prometheus.

Needs `pip install "celery-redlock[prometheus]"`. Call `export_metrics` once in each process, or in
the module of the Celery app: a forked child keeps it.

| metric | kind | labels |
|---|---|---|
| `redlock_acquire_seconds` | histogram | `outcome`, `kind`, `task` |
| `redlock_hold_seconds` | histogram | `task` |
| `redlock_extensions_total` | counter | `outcome` |
| `redlock_losses_total` | counter | `reason`, `task` |
| `redlock_node_votes_total` | counter | `node`, `vote` |
| `redlock_spare_nodes` | gauge | |
| `redlock_task_events_total` | counter | `event`, `task` |

No label has a lock key. `task` is the task that runs where the lock is acquired, empty outside of
tasks; `kind` is `lease`, or `reservation` where a message gets the lock; `event` is the name of a
signal of `celery_redlock.signals`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from celery_redlock.core.instrumentation import (
    AcquireDetails,
    Details,
    ExtendDetails,
    LeaseNotes,
    LossDetails,
    Outcome,
    ReleaseDetails,
    nodes_without_service,
    observe,
)
from celery_redlock.errors import ConfigurationError
from celery_redlock.protocol.timing import quorum
from celery_redlock.tasks.border import running_task_name
from celery_redlock.tasks.events import SIGNALS

try:
    from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram
except ImportError as error:
    raise ModuleNotFoundError(
        'this needs the package prometheus_client: pip install "celery-redlock[prometheus]"',
        name="prometheus_client",
    ) from error

__all__ = ["METRICS", "Metric", "export_metrics"]

#: Upper bounds in seconds: a vote takes a millisecond, a wait for a busy key minutes.
_WAITS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)
_HOLDS = (0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60, 300, 900, 3600, 14400, 86400)


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """
    One metric.

    Attributes:
        name: as Prometheus shows it.
        kind: its class in `prometheus_client`.
        labels: the names of its labels.
        help: what it is.
        options: further arguments of its class.
    """

    name: str
    kind: type[Counter] | type[Gauge] | type[Histogram]
    help: str
    labels: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)


METRICS = (
    Metric(
        name="redlock_acquire_seconds",
        kind=Histogram,
        labels=("outcome", "kind", "task"),
        help="Seconds from the first attempt to acquire a lock to the last, by its outcome.",
        options={"buckets": _WAITS},
    ),
    Metric(
        name="redlock_hold_seconds",
        kind=Histogram,
        labels=("task",),
        help="Seconds from the acquire of a lease to its release or loss.",
        options={"buckets": _HOLDS},
    ),
    Metric(
        name="redlock_extensions_total",
        kind=Counter,
        labels=("outcome",),
        help="Extensions of leases, by their outcome.",
    ),
    Metric(
        name="redlock_losses_total",
        kind=Counter,
        labels=("reason", "task"),
        help="Leases that were lost, by the reason.",
    ),
    Metric(
        name="redlock_node_votes_total",
        kind=Counter,
        labels=("node", "vote"),
        help="Votes of each node in the last attempt of each call to acquire; none: not needed.",
    ),
    Metric(
        name="redlock_spare_nodes",
        kind=Gauge,
        help="Nodes beyond a quorum that did not fail in the latest acquire; negative: no quorum.",
        # One value for all processes of a worker, that of the latest acquire.
        options={"multiprocess_mode": "mostrecent"},
    ),
    Metric(
        name="redlock_task_events_total",
        kind=Counter,
        labels=("event", "task"),
        help="Events of tasks that their locks cause, by the name of the signal.",
    ),
)


def export_metrics(registry: CollectorRegistry | None = None) -> Callable[[], None]:
    """
    Count and measure the locks of this process for Prometheus; return a function that stops it.

    Each event is counted once, in the process in which it happens. In a worker with a pool of
    processes set `PROMETHEUS_MULTIPROC_DIR`, so that a scrape adds the processes up. Limits: the
    hold of a lease that is never released or lost is not measured; `redlock_spare_nodes` is
    about one set of nodes, and counts a silent node as failed only if the client had to wait for it
    or is backing off from it.

    Args:
        registry: gets the metrics; by default that of `prometheus_client`.

    Raises:
        ConfigurationError: the registry has these metrics already.
    """
    registry = REGISTRY if registry is None else registry
    exporter = _Exporter(registry)
    forget = observe(exporter.on_event)
    for signal in SIGNALS.values():
        signal.connect(exporter.count_event, weak=False)

    def end() -> None:
        forget()
        for signal in SIGNALS.values():
            signal.disconnect(exporter.count_event)
        exporter.unregister(registry)

    return end


class _Exporter:
    """The metrics in one registry, filled from events."""

    def __init__(self, registry: CollectorRegistry) -> None:
        try:
            self._metrics: dict[str, Any] = {
                metric.name: metric.kind(
                    metric.name, metric.help, metric.labels, registry=registry, **metric.options
                )
                for metric in METRICS
            }
        except ValueError as error:
            raise ConfigurationError(
                f"The metrics of locks cannot be added to {registry!r}: {error}. Call "
                "export_metrics once for each registry, or end the earlier export first."
            ) from error
        #: By metric and labels: the client's own look-up costs more than the count.
        self._labelled: dict[tuple[str, ...], Any] = {}
        self._tasks: LeaseNotes[str] = LeaseNotes()

    def unregister(self, registry: CollectorRegistry) -> None:
        """Take the metrics out of the registry, if they are still in it."""
        for metric in self._metrics.values():
            registry.unregister(metric)

    def count_event(self, signal: Any, sender: Any, **_: Any) -> None:
        """Count an event of a task."""
        self._of("redlock_task_events_total", signal.name, getattr(sender, "name", "")).inc()

    def on_event(self, details: Details) -> None:
        """Count and measure one event of a lock."""
        match details:
            case AcquireDetails():
                self._count_acquire(details)
            case ExtendDetails(outcome=outcome):
                self._of("redlock_extensions_total", outcome).inc()
            case LossDetails(reason=reason):
                task = self._end_hold(details)
                self._of("redlock_losses_total", reason.name.lower(), task).inc()
            case ReleaseDetails():
                self._end_hold(details)

    def _count_acquire(self, details: AcquireDetails) -> None:
        task, kind = running_task_name(), "reservation" if details.reserves else "lease"
        waits = self._of("redlock_acquire_seconds", details.outcome, kind, task)
        waits.observe(details.waited)
        for node, vote in details.votes.items():
            self._of("redlock_node_votes_total", node, vote).inc()
        serving = len(details.votes) - len(nodes_without_service(details))
        self._of("redlock_spare_nodes").set(serving - quorum(len(details.votes)))
        if details.outcome is Outcome.GRANTED and not details.reserves:
            self._tasks.add(details.owner, task)

    def _end_hold(self, details: LossDetails | ReleaseDetails) -> str:
        """Measure a hold at its first end, loss or release; return the task that acquired it."""
        task = self._tasks.take(details.owner)
        if task is not None:
            self._of("redlock_hold_seconds", task).observe(details.held_for)
        return task or ""

    def _of(self, *name_and_labels: str) -> Any:
        found = self._labelled.get(name_and_labels)
        if found is None:
            name, *labels = name_and_labels
            metric = self._metrics[name]
            found = self._labelled[name_and_labels] = metric.labels(*labels) if labels else metric
        return found
