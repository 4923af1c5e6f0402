"""
The app that the containers run: deposits into accounts, and interest paid by the clock.

An account is a list of entries in Redis; the newest one has its balance. A deposit reads it, works
for a while and writes a new entry: two at once would lose one of them.

When a worker is killed, the broker delivers its message again, even if the body had written before.
Each body therefore looks for its own work first: a deposit by its task id, interest by the tick.
"""

from __future__ import annotations

import json
import os
import time
from operator import itemgetter
from typing import Any

import redis
from celery import Celery
from celery.signals import beat_init, worker_init, worker_ready
from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.multiprocess import MultiProcessCollector

from celery_redlock import RedlockTask
from celery_redlock.fencing import RedisFence
from celery_redlock.prometheus import export_metrics

WORK_SECONDS = 0.2
INTEREST_EVERY = 10.0

app = Celery("bank", broker=os.environ["BROKER_URL"], backend=os.environ["RESULT_URL"])
app.conf.update(
    redlock_nodes=os.environ["LOCK_NODES"],
    redlock_max_ttl=30.0,
    # How long a lock outlives a worker that was killed, and a schedule the beat that led it.
    redlock_ttl=5.0,
    beat_schedule={
        "interest": {"task": "bank.pay_interest", "schedule": INTEREST_EVERY},
    },
    broker_connection_retry_on_startup=True,
    # The message of a worker that was killed goes to another one.
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    worker_prefetch_multiplier=1,
    worker_cancel_long_running_tasks_on_connection_loss=True,
    result_expires=3600,
)

#: The first run of a tick pays. Each later one adds a record, which the client judges.
PAY = """
redis.call('HSETNX', KEYS[1], ARGV[1], ARGV[2])
if redis.call('HGET', KEYS[1], ARGV[1]) ~= ARGV[2] then redis.call('SADD', KEYS[2], ARGV[2]) end
"""

if "METRICS_PORT" in os.environ:
    # Not at import: health checks import the app, too, and each would leave files of its own.
    @worker_init.connect
    @beat_init.connect
    def measure(**_: Any) -> None:
        """Measure locks in this process, and in those that it forks."""
        os.makedirs(os.environ["PROMETHEUS_MULTIPROC_DIR"], exist_ok=True)
        export_metrics()

    @worker_ready.connect
    @beat_init.connect
    def serve_metrics(**_: Any) -> None:
        """Add up what these processes have measured, whenever Prometheus asks."""
        registry = CollectorRegistry()
        MultiProcessCollector(registry)
        start_http_server(int(os.environ["METRICS_PORT"]), registry=registry)


store = redis.Redis.from_url(os.environ["STORE_URL"], decode_responses=True)
fence = RedisFence(store)


def entries(account: str) -> list[dict[str, Any]]:
    """Return what was written into an account, oldest first."""
    return [json.loads(entry) for entry in store.lrange(f"account:{account}", 0, -1)]


def _deposit(task: Any, account: str, amount: int) -> dict[str, Any]:
    written = entries(account)
    for entry in written:
        # Delivered a second time, after the first had written and before it was acknowledged.
        if entry["id"] == task.request.id:
            return entry
    time.sleep(WORK_SECONDS)
    entry = {
        "id": task.request.id,
        "balance": (written[-1]["balance"] if written else 0) + amount,
        "token": task.request.fencing_token,
        "worker": task.request.hostname,
    }
    if entry["token"] is None:
        store.rpush(f"account:{account}", json.dumps(entry))
    else:
        # Refused when a newer holder of the lock has been here.
        fence.run(
            "return redis.call('RPUSH', KEYS[1], ARGV[1])",
            [f"account:{account}"],
            [json.dumps(entry)],
        )
    return entry


@app.task(
    base=RedlockTask,
    bind=True,
    name="bank.deposit",
    lock_key="account:{account}",
    # Many want the same account: to wait here for some seconds is quicker than through the queue.
    lock_wait=10.0,
)
def deposit(self: Any, account: str, amount: int) -> dict[str, Any]:
    """Add to an account, one task at a time."""
    fence.claim(f"account:{account}")
    return _deposit(self, account, amount)


@app.task(base=RedlockTask, bind=True, name="bank.deposit_without_lock")
def deposit_without_lock(self: Any, account: str, amount: int) -> dict[str, Any]:
    """Add to an account without a lock: two tasks at once lose a deposit."""
    return _deposit(self, account, amount)


@app.task(base=RedlockTask, bind=True, name="bank.pay_interest", lock_key="interest")
def pay_interest(self: Any) -> None:
    """Pay interest for a tick of the schedule, unless an earlier run has paid it."""
    due_at = self.request.tick.due_at.isoformat()
    run = {
        "due_at": due_at,
        "token": self.request.fencing_token,
        "worker": self.request.hostname,
        "at": time.time(),
    }
    fence.run(PAY, ["interest", "interest:again"], [due_at, json.dumps(run)])


def interest_runs() -> dict[str, list[dict[str, Any]]]:
    """Return the runs of `pay_interest` for each tick, the one that paid first."""
    runs: dict[str, list[dict[str, Any]]] = {}
    for text in (*store.hvals("interest"), *store.smembers("interest:again")):
        run = json.loads(text)
        runs.setdefault(run["due_at"], []).append(run)
    return {due_at: sorted(runs[due_at], key=itemgetter("token")) for due_at in sorted(runs)}
