"""How many have each key of a call, and how many more may."""

from __future__ import annotations

from typing import Any

import pytest

from celery_redlock import Limit, Rate
from celery_redlock.errors import ConfigurationError, LockKeyError
from tests.support.tasks import Bench
from tests.unit.tasks.limits.slots import limited, rated, taken


def test_a_key_that_nobody_has_is_free(bench: Bench) -> None:
    (usage,) = limited(bench).lock_usage()
    assert (usage.key, usage.slots, usage.holders, usage.free) == ("k", 2, (), 2)
    assert usage.next_free_in == 0.0


def test_each_holder_is_there_with_its_slot(bench: Bench) -> None:
    task = limited(bench)
    ids = {task.delay().id for _ in range(2)}
    (usage,) = task.lock_usage()
    assert {holder.task_id for holder in usage.holders} == ids
    assert {holder.slot for holder in usage.holders} == {0, 1}
    assert usage.free == 0


def test_the_next_slot_is_free_when_the_first_lease_expires(bench: Bench) -> None:
    for ttl in (60, 20):
        bench.elsewhere.acquire(Limit("k", 2), ttl=ttl)
    (usage,) = limited(bench).lock_usage()
    assert 10 < usage.next_free_in <= 20


def test_while_one_slot_is_free_nobody_has_to_wait(bench: Bench) -> None:
    bench.elsewhere.acquire(Limit("k", 2), ttl=60)
    (usage,) = limited(bench).lock_usage()
    assert (usage.free, usage.next_free_in) == (1, 0.0)


def test_a_rate_has_those_that_got_it_within_its_period(bench: Bench) -> None:
    task = rated(bench)
    bench.call(task)
    (usage,) = task.lock_usage()
    assert (usage.key, usage.slots, usage.free) == ("k", 2, 1)


def test_each_key_of_a_call_has_its_own(bench: Bench) -> None:
    keys = ["a:{n}", Limit("t:{n}", 3), Rate("s", "2/h")]
    task = limited(bench, lambda self, n: n, lock_limit=None, lock_key=keys)
    task.delay(1)
    used = {usage.key: (usage.slots, usage.free) for usage in task.lock_usage(1)}
    assert used == {"a:1": (1, 0), "t:1": (3, 2), "s": (2, 1)}
    assert {usage.free for usage in task.lock_usage(2)} == {1, 3}


def test_a_queued_message_has_a_slot_of_its_own_where_bodies_have_others(bench: Bench) -> None:
    task = limited(bench, lock_mode="until_and_while_executing")
    task.delay()
    assert [(usage.key, usage.free) for usage in task.lock_usage()] == [("k", 2), ("k", 1)]


def test_the_holder_of_a_limit_is_one_of_them(bench: Bench) -> None:
    task = limited(bench)
    ids = {task.delay().id for _ in range(2)}
    assert task.lock_holder().task_id in ids


def test_all_holders_are_released(bench: Bench) -> None:
    task = limited(bench)
    for _ in range(2):
        task.delay()
    assert task.release_lock()
    assert taken(bench) == {}


def test_all_queued_messages_are_revoked(bench: Bench) -> None:
    task = limited(bench)
    for _ in range(2):
        task.delay()
    assert task.revoke_queued() is not None
    assert taken(bench) == {}


@pytest.mark.parametrize(
    ("options", "args", "error"),
    [({}, (1, 2, 3, 4), LockKeyError), ({"lock_key": None}, (), ConfigurationError)],
)
def test_it_refuses_as_lock_holder_does(
    bench: Bench, options: dict[str, Any], args: tuple[Any, ...], error: type[Exception]
) -> None:
    task = bench.task(lambda n=1: None, name="plain", **({"lock_limit": 2} if args else {}))
    with pytest.raises(error):
        task.lock_usage(*args)


def test_a_call_that_has_run_is_not_revoked_although_its_rate_still_counts_it(
    bench: Bench,
) -> None:
    task = rated(bench)
    bench.call(task)
    assert task.revoke_queued() is None
    assert task.lock_usage()[0].free == 1


def test_a_queued_call_that_a_rate_has_counted_is_revoked(bench: Bench) -> None:
    task = rated(bench)
    request = bench.send(task)
    assert task.revoke_queued() is not None
    assert bench.run(request).value != "ran"


@pytest.mark.parametrize("mode", ["while_executing", "until_executed"])
def test_a_rate_has_no_holder_and_nothing_to_release(bench: Bench, mode: str) -> None:
    task = rated(bench, lock_mode=mode)
    bench.call(task)
    assert task.lock_holder() is None
    assert not task.release_lock()
    assert task.lock_usage()[0].free == 1


def test_the_holder_of_a_limit_is_found_beside_a_rate(bench: Bench) -> None:
    task = limited(bench, lock_rate="2/h")
    sent = task.delay()
    assert task.lock_holder().task_id == sent.id
    assert task.release_lock()
    assert task.lock_holder() is None
