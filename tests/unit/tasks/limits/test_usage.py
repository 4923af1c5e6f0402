"""How many have each key of a call, and how many more may."""

from __future__ import annotations

from typing import Any

import pytest

from celery_redlock import Limit, Rate
from celery_redlock.errors import AmbiguousCall, ConfigurationError, LockKeyError
from celery_redlock.tasks.message.owner_label import parse_owner
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
    assert (usage.free, task.lock_holder().task_id in ids) == (0, True)


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


@pytest.mark.parametrize("method", ["release_lock", "revoke_queued"])
def test_of_several_calls_none_is_chosen_and_all_are_named(bench: Bench, method: str) -> None:
    task = limited(bench, name="job", lock_limit=3)
    ids = [task.delay().id for _ in range(3)]
    with pytest.raises(
        AmbiguousCall, match=r"3 holders have 'k' of task job: .*\(\.\.\., task_id='"
    ) as one:
        getattr(task, method)()
    assert sorted(one.value.task_ids) == sorted(ids)
    assert all(id in str(one.value) for id in ids)
    assert len(taken(bench)) == 3


@pytest.mark.parametrize("method", ["release_lock", "revoke_queued"])
@pytest.mark.parametrize("mode", ["until_executed", "until_and_while_executing"])
def test_one_of_several_calls_is_chosen_by_its_id(bench: Bench, method: str, mode: str) -> None:
    task = limited(bench, lock_mode=mode)
    first, second = task.delay().id, task.delay().id
    assert getattr(task, method)(task_id=first)
    assert task.lock_holder().task_id == second
    assert not getattr(task, method)(task_id=first)
    assert task.lock_holder().task_id == second


@pytest.mark.parametrize("options", [{}, {"lock_rate": "2/h"}], ids=["", "beside a rate"])
def test_a_single_call_with_a_slot_needs_no_name(bench: Bench, options: dict[str, Any]) -> None:
    task = limited(bench, **options)
    sent = task.delay()
    assert task.lock_holder().task_id == sent.id
    assert task.revoke_queued().task_id == sent.id
    task.delay()
    assert task.release_lock()
    assert (taken(bench), task.lock_holder()) == ({}, None)


@pytest.fixture
def two_calls(bench: Bench) -> tuple[Any, str, str]:
    """A task and two calls with a key for each, and one that several may have."""
    keys = ["n:{n}", Limit("k", 3)]
    task = limited(bench, lambda self, n: n, lock_limit=None, lock_key=keys)
    return task, task.delay(1).id, task.delay(2).id


@pytest.mark.parametrize("method", ["revoke_queued", "release_lock"])
def test_the_other_keys_of_a_call_choose_among_those_that_share_a_limit(
    bench: Bench, two_calls: tuple[Any, str, str], method: str
) -> None:
    task, first, _ = two_calls
    assert getattr(task, method)(2)
    assert not getattr(task, method)(2)
    assert [parse_owner(owner).task_id for owner in taken(bench).values()] == [first]


def test_a_call_of_which_only_the_limit_is_shared_has_no_holder_while_a_slot_is_free(
    two_calls: tuple[Any, str, str],
) -> None:
    task, first, second = two_calls
    assert [task.lock_holder(n).task_id for n in (1, 2)] == [first, second]
    assert task.lock_holder(3) is None
    third = task.delay(3)
    assert task.lock_holder(4).task_id in (first, second, third.id)


def test_a_release_of_a_call_that_only_its_full_limit_keeps_away_has_to_name_one(
    two_calls: tuple[Any, str, str],
) -> None:
    task, first, second = two_calls
    third = task.delay(3).id
    with pytest.raises(AmbiguousCall) as several:
        task.release_lock(4)
    assert set(several.value.task_ids) == {first, second, third}


def test_the_calls_that_are_not_revoked_run(bench: Bench) -> None:
    task = limited(bench, lock_limit=3)
    requests = [bench.send(task) for _ in range(3)]
    task.revoke_queued(task_id=requests[1]["id"])
    assert [bench.run(request).state for request in requests] == ["SUCCESS", "IGNORED", "SUCCESS"]


def test_of_the_calls_that_a_rate_counts_the_one_that_has_run_is_none(bench: Bench) -> None:
    task = rated(bench)
    bench.call(task)
    queued = task.delay()
    assert task.revoke_queued().task_id == queued.id


@pytest.mark.parametrize("options", [{}, {"lock_limit": 1}], ids=["key", "limit of one"])
def test_a_run_and_a_queued_call_of_a_key_for_one_are_released_together(
    bench: Bench, options: dict[str, Any]
) -> None:
    task = bench.task(
        lambda: None, name="one", lock_key="k", lock_mode="until_and_while_executing", **options
    )
    lock = Limit("k", 1) if options else "k"
    bench.elsewhere.acquire(lock, ttl=60)
    task.delay()
    assert task.release_lock()
    assert [usage.holders for usage in task.lock_usage()] == [(), ()]


def test_several_programs_with_a_slot_are_named_by_their_labels(bench: Bench) -> None:
    for label in ("import", "export"):
        bench.elsewhere.acquire(Limit("k", 2), ttl=60, label=label)
    with pytest.raises(AmbiguousCall, match="import") as one:
        limited(bench).release_lock()
    assert one.value.task_ids == ()


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


def test_a_queued_call_that_a_rate_has_counted_is_revoked(bench: Bench) -> None:
    task = rated(bench)
    request = bench.send(task)
    assert task.revoke_queued() is not None
    assert bench.run(request).value != "ran"


@pytest.mark.parametrize("mode", ["while_executing", "until_executed"])
def test_a_rate_has_no_holder_and_nothing_to_release(bench: Bench, mode: str) -> None:
    task = rated(bench, lock_mode=mode)
    bench.call(task)
    assert (task.lock_holder(), task.release_lock()) == (None, False)
    assert task.lock_usage()[0].free == 1
