"""What Prometheus gets of locks and tasks."""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Iterator
from itertools import count
from threading import Thread
from typing import Any

import pytest

from celery_redlock.core.lease import holding_of, release_keys

pytest.importorskip("prometheus_client", reason="needs the extra `prometheus`")

from prometheus_client import CollectorRegistry, generate_latest

from celery_redlock import (
    LockContended,
    LossReason,
    QuorumUnavailable,
    Redlock,
    current_lease,
    prometheus,
)
from celery_redlock.core import client_of, instrumentation
from celery_redlock.errors import ConfigurationError
from celery_redlock.prometheus import METRICS, export_metrics
from celery_redlock.tasks.events import SIGNALS
from celery_redlock.transport import parse_node
from celery_redlock.transport.memory import memory_node
from tests.support.tasks import Bench
from tests.unit.tasks.jobs import job

_names = count()


class Scrape:
    """A registry with our metrics, and their values."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.end = export_metrics(self.registry)

    def value(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(name, labels)

    def total(self, name: str, **labels: str) -> float:
        """Sum up all samples of a name that have these labels."""
        samples = (
            sample
            for metric in self.registry.collect()
            for sample in metric.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        )
        return sum(sample.value for sample in samples)


@pytest.fixture
def scrape() -> Iterator[Scrape]:
    scrape = Scrape()
    yield scrape
    scrape.end()


@pytest.fixture
def nodes() -> list[str]:
    number = next(_names)
    return [f"memory://measured-{number}-{node}" for node in range(3)]


@pytest.fixture
def client(nodes: list[str]) -> Iterator[Redlock]:
    with Redlock(nodes, guard=False) as client:
        yield client


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench()
    yield bench
    bench.close()


def test_a_lock_is_counted_with_its_wait(scrape: Scrape, client: Redlock) -> None:
    client.acquire("k")
    labels = {"outcome": "granted", "kind": "lease", "task": ""}
    assert scrape.value("redlock_acquire_seconds_count", **labels) == 1
    assert 0 < scrape.value("redlock_acquire_seconds_sum", **labels) < 30


def test_a_refusal_is_counted_with_its_wait(scrape: Scrape, client: Redlock) -> None:
    client.acquire("k")
    with pytest.raises(LockContended):
        client.acquire("k", wait=0.2)
    labels = {"outcome": "contended", "kind": "lease", "task": ""}
    assert scrape.value("redlock_acquire_seconds_sum", **labels) >= 0.2


def test_a_reservation_is_counted_apart_and_has_no_hold(scrape: Scrape, bench: Bench) -> None:
    request = bench.send(job(bench, lock_mode="until_executed"))
    assert scrape.total("redlock_acquire_seconds_count", kind="reservation") == 1
    assert scrape.total("redlock_hold_seconds_count") == 0
    bench.run(request)
    assert scrape.total("redlock_acquire_seconds_count", kind="lease") == 1


def test_a_hold_is_measured_at_its_release(scrape: Scrape, client: Redlock) -> None:
    lease = client.acquire("k")
    assert scrape.total("redlock_hold_seconds_count") == 0
    lease.release()
    assert scrape.value("redlock_hold_seconds_count", task="") == 1
    assert scrape.value("redlock_hold_seconds_sum", task="") == pytest.approx(
        holding_of(lease).held_for
    )


def test_a_hold_that_was_lost_is_measured_once(scrape: Scrape, client: Redlock) -> None:
    lease = client.acquire("k")
    lease.mark_lost(LossReason.GONE)
    lease.release()
    assert scrape.total("redlock_hold_seconds_count") == 1
    assert scrape.value("redlock_losses_total", reason="gone", task="") == 1


def test_an_extension_is_counted(scrape: Scrape, client: Redlock) -> None:
    client.acquire("k").extend()
    assert scrape.value("redlock_extensions_total", outcome="granted") == 1


def test_a_release_of_some_keys_does_not_hide_the_hold(scrape: Scrape, client: Redlock) -> None:
    lease = client.acquire(["k", "l"])
    release_keys(lease, [client_of(client).key_of("k")])
    lease.release()
    assert scrape.total("redlock_hold_seconds_count") == 1


def test_the_votes_of_each_node_are_counted(
    scrape: Scrape, client: Redlock, nodes: list[str]
) -> None:
    memory_node(parse_node(nodes[0])).refusing = True
    client.acquire("k")
    assert scrape.value("redlock_node_votes_total", node=nodes[0], vote="failed") == 1
    assert scrape.value("redlock_node_votes_total", node=nodes[1], vote="granted") == 1


@pytest.mark.parametrize(("failed", "spare"), [(0, 1), (1, 0), (2, -1)])
def test_the_nodes_to_spare_are_those_beyond_a_quorum(
    scrape: Scrape, client: Redlock, nodes: list[str], failed: int, spare: int
) -> None:
    for node in nodes[:failed]:
        memory_node(parse_node(node)).refusing = True
    try:
        client.acquire("k")
    except QuorumUnavailable:
        assert failed > 1
    assert scrape.value("redlock_spare_nodes") == spare


def test_the_task_that_runs_is_a_label(scrape: Scrape, bench: Bench) -> None:
    bench.call(job(bench))
    assert scrape.total("redlock_acquire_seconds_count", task="job") == 1
    # The release of a task is reported by another thread.
    bench.close()
    assert scrape.value("redlock_hold_seconds_count", task="job") == 1


def test_the_task_of_a_loss_is_known_in_every_thread(scrape: Scrape, bench: Bench) -> None:
    def lose(self: Any) -> None:
        thread = Thread(target=current_lease().mark_lost)
        thread.start()
        thread.join()

    bench.call(job(bench, lose, lock_on_lost="flag"))
    assert scrape.value("redlock_losses_total", reason="reported", task="job") == 1


@pytest.mark.parametrize(
    ("policy", "event"), [("skip", "task_skipped"), ("requeue", "task_requeued")]
)
def test_an_event_of_a_task_is_counted(
    scrape: Scrape, bench: Bench, policy: str, event: str
) -> None:
    bench.elsewhere.acquire("k", ttl=60)
    bench.call(job(bench, lock_on_conflict=policy))
    assert scrape.value("redlock_task_events_total", event=event, task="job") == 1


def test_no_label_has_a_lock_key(scrape: Scrape, client: Redlock) -> None:
    client.acquire("a-key-that-nobody-else-has").release()
    with pytest.raises(LockContended), client.lock("a-key-that-nobody-else-has"):
        client.acquire("a-key-that-nobody-else-has")
    assert b"nobody-else" not in generate_latest(scrape.registry)


def test_nothing_is_counted_after_the_end(client: Redlock) -> None:
    before = instrumentation.receivers, [len(each.receivers) for each in SIGNALS.values()]
    scrape = Scrape()
    scrape.end()
    client.acquire("k")
    assert not list(scrape.registry.collect())
    assert before == (
        instrumentation.receivers,
        [len(each.receivers) for each in SIGNALS.values()],
    )


def test_a_registry_that_has_the_metrics_is_refused_and_still_filled(
    scrape: Scrape, client: Redlock
) -> None:
    with pytest.raises(ConfigurationError, match="once for each registry"):
        export_metrics(scrape.registry)
    client.acquire("k")
    assert scrape.total("redlock_acquire_seconds_count") == 1


def test_two_registries_get_the_same(scrape: Scrape, client: Redlock) -> None:
    other = Scrape()
    client.acquire("k").release()
    assert scrape.total("redlock_hold_seconds_count") == 1
    assert other.total("redlock_hold_seconds_count") == 1
    other.end()


def test_nothing_of_it_fails(
    scrape: Scrape, client: Redlock, caplog: pytest.LogCaptureFixture
) -> None:
    client.acquire("k").release()
    assert not [line for line in caplog.records if line.levelno >= logging.ERROR]


def test_the_page_names_every_metric_with_its_labels() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \| ?(.*) \|$", prometheus.__doc__, re.MULTILINE)
    assert [(name, kind, tuple(re.findall(r"`(\w+)`", labels))) for name, kind, labels in rows] == [
        (metric.name, metric.kind.__name__.lower(), metric.labels) for metric in METRICS
    ]


@pytest.mark.parametrize(
    ("module", "missing", "extra"),
    [("prometheus", "prometheus_client", "prometheus"), ("opentelemetry", "opentelemetry", "otel")],
)
def test_an_extra_that_is_missing_is_named_with_the_command(
    monkeypatch: pytest.MonkeyPatch, module: str, missing: str, extra: str
) -> None:
    for name in list(sys.modules):
        if name.partition(".")[0] == missing:
            monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, missing, None)
    monkeypatch.delitem(sys.modules, f"celery_redlock.{module}", raising=False)
    with pytest.raises(ImportError, match=rf'pip install "celery-redlock\[{extra}\]"'):
        __import__(f"celery_redlock.{module}")
