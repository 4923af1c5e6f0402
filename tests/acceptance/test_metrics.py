"""The metrics of a worker with several processes add up to what ran."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("prometheus_client", reason="needs the extra `prometheus`")

from celery.result import ResultSet
from prometheus_client import CollectorRegistry
from prometheus_client.multiprocess import MultiProcessCollector

from celery_redlock import is_skipped
from tests.acceptance.conftest import StartWorker
from tests.acceptance.scene import Journal
from tests.support.waiting import TIMEOUT, wait_until

pytestmark = pytest.mark.full

CALLS = 500


@dataclass(frozen=True, slots=True)
class Scraped:
    """What a scrape of all processes shows."""

    samples: tuple[Any, ...]

    def total(self, name: str, **labels: str) -> float:
        return sum(
            sample.value
            for sample in self.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        )

    def each(self, name: str, label: str) -> dict[str, float]:
        values = {sample.labels[label] for sample in self.samples if sample.name == name}
        return {value: self.total(name, **{label: value}) for value in values}


def scrape(directory: Path) -> Scraped:
    registry = CollectorRegistry()
    MultiProcessCollector(registry, str(directory))
    return Scraped(tuple(sample for metric in registry.collect() for sample in metric.samples))


@pytest.fixture
def metrics_journal(urls: dict[str, str]) -> Iterator[Journal]:
    journal = Journal("metrics", urls["journal"])
    yield journal
    journal.close()


@pytest.mark.timeout(10 * TIMEOUT)
def test_the_metrics_of_all_processes_add_up_to_what_ran(
    start_worker: StartWorker,
    metrics_journal: Journal,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    conf: dict[str, Any],
) -> None:
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path))
    include = {"include": ["tests.acceptance.apps.metrics"]}
    # Processes end meanwhile; what they have counted stays.
    worker = start_worker(conf=include, options=("--max-tasks-per-child=100",)).wait_until_ready()

    sent = [
        worker.send(name, number, task_id=f"{name}-{number}")
        for number in range(CALLS)
        for name in ("waits", "skips")
    ]
    # All at once: one by one, Celery 5.4 waits up to a second for a result that it has already.
    results = ResultSet(sent, app=worker.app).get(timeout=4 * TIMEOUT)

    ran = results.count("ran")
    skipped = sum(map(is_skipped, results))
    assert ran + skipped == 2 * CALLS
    assert skipped > 0
    assert len(metrics_journal.of("ran")) == ran
    # Releases are counted when the nodes have replied.
    wait_until(
        lambda: scrape(tmp_path).total("redlock_hold_seconds_count") == ran,
        message=lambda: f"{ran} holds in {scrape(tmp_path)}",
    )
    seen = scrape(tmp_path)
    assert seen.total("redlock_acquire_seconds_count", outcome="granted", kind="lease") == ran
    assert seen.total("redlock_acquire_seconds_count", outcome="granted", task="waits") == CALLS
    assert seen.each("redlock_task_events_total", "event") == {
        "task_skipped": skipped,
        "task_requeued": len(metrics_journal.of("requeued")),
    }
    acquires = seen.total("redlock_acquire_seconds_count")
    votes = seen.each("redlock_node_votes_total", "node")
    assert list(votes.values()) == [acquires] * len(conf["redlock_nodes"])
    assert seen.total("redlock_losses_total") == 0
    assert seen.total("redlock_spare_nodes") == 2
