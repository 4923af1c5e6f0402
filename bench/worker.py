"""
The app whose tasks are counted. The bodies do nothing, so that all of the time is overhead.
"""

from __future__ import annotations

import os
from pathlib import Path

from celery import Celery

from bench.stopwatch import Stopwatch
from celery_redlock import RedlockTask

app = Celery("bench", broker=os.environ["BENCH_BROKER"], set_as_current=False)
app.conf.update(
    redlock_nodes=os.environ["BENCH_NODES"].split(","),
    task_ignore_result=True,
    broker_connection_retry_on_startup=True,
)

match os.environ.get("BENCH_OBSERVED_BY"):
    case "prometheus":
        from celery_redlock.prometheus import export_metrics

        export_metrics()
    case "opentelemetry":
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor

        from celery_redlock.opentelemetry import trace_locks

        # Spans are made and written, not sent.
        _provider = TracerProvider()
        _nowhere = Path(os.devnull).open("w")  # noqa: SIM115 - for as long as the process
        _provider.add_span_processor(
            SimpleSpanProcessor(ConsoleSpanExporter(out=_nowhere, formatter=lambda _: ""))
        )
        trace_locks(_provider)

_stopwatch = Stopwatch(Path(os.environ["BENCH_TIMES"]))


@app.task(name="bench.plain")
def plain(place: int) -> None:
    """Run as Celery runs tasks."""
    _stopwatch.note(place)


@app.task(name="bench.without_options", base=RedlockTask)
def without_options(place: int) -> None:
    """Run on our base class, without asking for a lock."""
    _stopwatch.note(place)


@app.task(name="bench.locked", base=RedlockTask, lock_key="place:{place}")
def locked(place: int) -> None:
    """Run under a lock that nobody else wants."""
    _stopwatch.note(place)
