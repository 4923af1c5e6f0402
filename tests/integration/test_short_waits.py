"""The fixture `redlock_testing`: tests that would wait end soon, and leave nothing behind."""

from __future__ import annotations

from pathlib import Path

from tests.integration.test_pytest_plugin import run_pytest

HEAD = """
import time
import pytest
from celery import Celery
from celery_redlock import LockContended, LockNotAcquired, Redlock, RedlockTask
from celery_redlock import is_duplicate, is_skipped

app = Celery("shop", broker="memory://", backend="cache+memory://")
app.conf.redlock_nodes = ["memory://shop"]
pytestmark = pytest.mark.usefixtures("redlock_testing")


@app.task(base=RedlockTask, lock_key="account:{account_id}")
def settle(account_id):
    return "settled"


@app.task(base=RedlockTask, lock_key="sync:{shop_id}", lock_mode="until_executed")
def sync(shop_id, again=False):
    return sync.delay(shop_id).get() if again else "synced"

"""


def test_an_eager_call_that_finds_its_key_held_gives_up_soon_and_names_the_limit(
    tmp_path: Path,
) -> None:
    run_pytest(
        tmp_path,
        HEAD
        + """
def test_held():
    app.conf.task_always_eager = True
    with Redlock(["memory://shop"]) as redlock:
        redlock.acquire("account:7")
        began = time.monotonic()
        with pytest.raises(LockNotAcquired, match="within 2 s, the limit of this test"):
            settle.delay(7).get()
        assert time.monotonic() - began < 20


@pytest.mark.parametrize("redlock_testing", [0.3], indirect=True)
def test_held_for_another_time(redlock_testing):
    with Redlock(["memory://shop"]) as redlock:
        redlock.acquire("account:7")
        with pytest.raises(LockNotAcquired, match="within 0.3 s, the limit of this test"):
            settle.apply((7,)).get()


@pytest.mark.parametrize("redlock_testing", [0.3], indirect=True)
def test_a_client_does_not_wait_longer(redlock_testing):
    with Redlock(["memory://shop"]) as one, Redlock(["memory://shop"]) as other:
        one.acquire("a")
        with pytest.raises(LockContended, match="not acquired within 0.3 s"):
            other.acquire("a", wait=3600)
""",
    )


def test_the_next_test_finds_the_memory_nodes_empty_and_without_faults(tmp_path: Path) -> None:
    run_pytest(
        tmp_path,
        HEAD
        + """
redlock = Redlock(["memory://shop"])


def test_leave():
    redlock.acquire("account:7", ttl=30)
    sync.delay(1)
    assert is_duplicate(sync.delay(1))


def test_find():
    redlock.acquire("account:7")
    assert sync.lock_holder(1) is None
""",
    )


def test_an_eager_duplicate_tells_that_it_is_one(tmp_path: Path) -> None:
    run_pytest(
        tmp_path,
        HEAD
        + """
def test_duplicate():
    app.conf.task_always_eager = True
    result = sync.apply((1,), {"again": True}).get()
    assert is_skipped(result)
    assert result["reason"].startswith("Lock 'sync:1' is held by ")
""",
    )
