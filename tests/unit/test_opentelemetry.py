"""The spans of locks: their parents, times and attributes."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest

from celery_redlock.core.lease import holding_of

pytest.importorskip("opentelemetry.sdk", reason="needs the package opentelemetry-sdk")

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode, Tracer

from celery_redlock import LockContended, LossReason, QuorumUnavailable, Redlock
from celery_redlock.core import instrumentation
from celery_redlock.opentelemetry import trace_locks
from celery_redlock.transport import parse_node
from celery_redlock.transport.memory import memory_node
from tests.support.tasks import Bench
from tests.unit.tasks.jobs import job

_names = count()


class Traces:
    """A tracer, and the spans that have ended."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.end = trace_locks(self.provider)

    @property
    def tracer(self) -> Tracer:
        return self.provider.get_tracer("tests")

    def of(self, name: str) -> list[ReadableSpan]:
        return [span for span in self._exporter.get_finished_spans() if span.name == name]

    @property
    def acquires(self) -> list[ReadableSpan]:
        return self.of("redlock acquire")

    @property
    def holds(self) -> list[ReadableSpan]:
        return self.of("redlock hold")


@pytest.fixture
def traces() -> Iterator[Traces]:
    traces = Traces()
    yield traces
    traces.end()


@pytest.fixture
def nodes() -> list[str]:
    number = next(_names)
    return [f"memory://traced-{number}-{node}" for node in range(3)]


@pytest.fixture
def client(nodes: list[str]) -> Iterator[Redlock]:
    with Redlock(nodes, guard=False) as client:
        yield client


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench()
    yield bench
    bench.close()


def seconds(span: ReadableSpan) -> float:
    return (span.end_time - span.start_time) / 1e9


def test_wait_and_hold_are_children_of_the_span_around_them(
    traces: Traces, client: Redlock
) -> None:
    with traces.tracer.start_as_current_span("around"), client.lock("k"):
        pass
    ((around,), (acquire,), (hold,)) = traces.of("around"), traces.acquires, traces.holds
    assert acquire.parent.span_id == hold.parent.span_id == around.context.span_id
    assert acquire.context.trace_id == hold.context.trace_id == around.context.trace_id


def test_a_hold_that_outlives_the_span_is_still_its_child(traces: Traces, client: Redlock) -> None:
    with traces.tracer.start_as_current_span("around"):
        lease = client.acquire("k")
    lease.release()
    ((around,), (hold,)) = traces.of("around"), traces.holds
    assert hold.parent.span_id == around.context.span_id


def test_without_a_span_around_them_they_are_roots(traces: Traces, client: Redlock) -> None:
    client.acquire("k").release()
    assert [span.parent for span in (*traces.acquires, *traces.holds)] == [None, None]


def test_a_wait_ends_where_its_hold_begins(traces: Traces, client: Redlock) -> None:
    with traces.tracer.start_as_current_span("around"):
        lease = client.acquire("k")
        lease.release()
    ((around,), (acquire,), (hold,)) = traces.of("around"), traces.acquires, traces.holds
    assert around.start_time <= acquire.start_time <= acquire.end_time == hold.start_time
    assert seconds(hold) == pytest.approx(holding_of(lease).held_for)


def test_a_wait_that_ends_without_a_lock_has_its_whole_time(
    traces: Traces, client: Redlock
) -> None:
    client.acquire("k")
    with pytest.raises(LockContended):
        client.acquire("k", wait=0.2)
    refused = traces.acquires[1]
    assert seconds(refused) >= 0.2
    assert refused.attributes["redlock.outcome"] == "contended"
    assert refused.attributes["redlock.attempts"] > 1
    assert not traces.holds


def test_a_granted_wait_has_its_attributes(
    traces: Traces, client: Redlock, nodes: list[str]
) -> None:
    memory_node(parse_node(nodes[0])).refusing = True
    lease = client.acquire(["k", "l"])
    (acquire,) = traces.acquires
    assert dict(acquire.attributes) == {
        "redlock.task": "",
        "redlock.key_count": 2,
        "redlock.fencing_token": lease.fencing_token,
        "redlock.outcome": "granted",
        "redlock.attempts": 1,
        "redlock.reserves": False,
        "redlock.failed_nodes": (nodes[0],),
    }


def test_a_hold_has_its_attributes(traces: Traces, client: Redlock) -> None:
    with client.lock("k") as lease:
        pass
    (hold,) = traces.holds
    assert dict(hold.attributes) == {
        "redlock.task": "",
        "redlock.key_count": 1,
        "redlock.fencing_token": lease.fencing_token,
        "redlock.end": "released",
    }


def test_a_missing_quorum_is_an_error(traces: Traces, client: Redlock, nodes: list[str]) -> None:
    for node in nodes[:2]:
        memory_node(parse_node(node)).refusing = True
    with pytest.raises(QuorumUnavailable):
        client.acquire("k")
    assert traces.acquires[0].status.status_code is StatusCode.ERROR


def test_a_loss_ends_the_hold_with_its_reason_once(traces: Traces, client: Redlock) -> None:
    lease = client.acquire("k")
    lease.mark_lost(LossReason.GONE)
    lease.release()
    (hold,) = traces.holds
    assert hold.attributes["redlock.end"] == "gone"
    assert hold.status.description == LossReason.GONE


def test_a_task_is_an_attribute_of_both(traces: Traces, bench: Bench) -> None:
    bench.call(job(bench))
    bench.close()  # the release of a task is reported by another thread
    names = [span.attributes["redlock.task"] for span in (*traces.acquires, *traces.holds)]
    assert names == ["job", "job"]


def test_the_spans_of_a_task_are_in_the_trace_that_its_body_is_in(
    traces: Traces, bench: Bench
) -> None:
    request = bench.send(job(bench))
    with traces.tracer.start_as_current_span("run/job"):
        bench.run(request)
    bench.close()
    (run,) = traces.of("run/job")
    parents = {span.parent.span_id for span in (*traces.acquires, *traces.holds)}
    assert parents == {run.context.span_id}


def test_a_reservation_is_a_wait_without_a_hold(traces: Traces, bench: Bench) -> None:
    bench.send(job(bench, lock_mode="until_executed"))
    (acquire,) = traces.acquires
    assert acquire.attributes["redlock.reserves"]
    assert "redlock.fencing_token" not in acquire.attributes


def test_leases_that_are_never_released_are_forgotten(
    traces: Traces, client: Redlock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(instrumentation, "MOST_LEASES", 3)
    leases = [client.acquire(f"k{number}") for number in range(5)]
    for lease in leases:
        lease.release()
    tokens = [span.attributes["redlock.fencing_token"] for span in traces.holds]
    assert tokens == [lease.fencing_token for lease in leases[2:]]


def test_nothing_is_recorded_after_the_end(traces: Traces, client: Redlock) -> None:
    lease = client.acquire("k")
    traces.end()
    lease.release()
    client.acquire("l")
    assert (len(traces.acquires), traces.holds) == (1, [])


def test_no_attribute_has_a_lock_key(traces: Traces, client: Redlock) -> None:
    client.acquire("a-key-that-nobody-else-has").release()
    values: list[Any] = [span.to_json() for span in (*traces.acquires, *traces.holds)]
    assert not any("nobody-else" in value for value in values)
