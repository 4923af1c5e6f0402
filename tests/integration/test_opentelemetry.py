"""The spans of locks: their parents, times and attributes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import count

import pytest

pytest.importorskip("opentelemetry.sdk", reason="needs the package opentelemetry-sdk")

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import Tracer

from celery_redlock import Redlock
from celery_redlock.opentelemetry import trace_locks

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
    return [f"memory://traced-forked-{number}-{node}" for node in range(3)]


@pytest.fixture
def client(nodes: list[str]) -> Iterator[Redlock]:
    with Redlock(nodes, guard=False) as client:
        yield client


def test_a_forked_child_ends_no_hold_of_its_parent(traces: Traces, client: Redlock) -> None:
    lease = client.acquire("k")
    child = os.fork()
    if not child:
        lease.release()
        os._exit(len(traces.holds))
    assert os.waitpid(child, 0)[1] == 0
    lease.release()
    assert len(traces.holds) == 1
