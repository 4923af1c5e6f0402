"""A first try on one Redis: the broker is the lock node when no nodes are given."""

from __future__ import annotations

from tests.acceptance.conftest import StartWorker
from tests.acceptance.scene import Journal, Lock
from tests.support.waiting import TIMEOUT


def test_without_nodes_the_redis_broker_is_the_only_one_and_the_log_says_what_that_risks(
    start_worker: StartWorker, urls: dict[str, str], key: str, journal: Journal
) -> None:
    lock = Lock(key, [urls["broker"]])
    worker = start_worker(conf={"redlock_nodes": None}).wait_until_ready()

    result = worker.send("hold", key)
    entered = journal.wait_for("entered")

    assert lock.owner == entered["owner"] is not None
    assert entered["token"]
    journal.open()
    assert result.get(timeout=TIMEOUT) == "held"
    lock.wait_until_gone()
    lock.close()
    assert "redlock_nodes is not set" in worker.log
    assert "two bodies can run at once" in worker.log
