"""What would run a body without its lock is refused to a task that locks, and to no other."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from celery import Task, chunks, group, xmap, xstarmap

from celery_redlock import RedlockTask
from celery_redlock.errors import ConfigurationError
from celery_redlock.tasks.adoption import lock_matching_tasks, protect_tasks
from tests.support.tasks import Bench, Outcome
from tests.unit.tasks.jobs import job, raising

#: The refusal of a call shows the group that calls the task with the same arguments.
REFUSED = {
    call: rf"Task job takes a lock, and {call} would .* group\(job\.s\({item}\) for item in items\)"
    for call, item in {"map": "item", "starmap": r"\*item", "chunks": r"\*item"}.items()
}

CALLS = {
    "map": lambda task: task.map(["a", "b"]),
    "starmap": lambda task: task.starmap([("a",), ("b",)]),
    "chunks": lambda task: task.chunks([("a",), ("b",)], 1),
}


def note_key(self: Any, key: str) -> str:
    return f"ran {key}"


@pytest.mark.parametrize("call", CALLS)
def test_a_call_for_items_of_a_task_that_locks_is_refused(bench: Bench, call: str) -> None:
    with pytest.raises(ConfigurationError, match=REFUSED[call]):
        CALLS[call](job(bench, note_key, lock_key="{key}"))


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("conf", [{}, {"redlock_dedupe": True}])
def test_a_call_for_items_of_a_task_that_takes_no_lock_is_celerys(
    conf: dict[str, Any], call: str
) -> None:
    bench = Bench(**conf)
    CALLS[call](bench.task(note_key, bind=True, base=RedlockTask)).apply_async()
    assert bench.run(bench.receive()).value[0] == "ran a"
    bench.close()


@pytest.mark.parametrize("call", CALLS)
def test_a_call_for_items_of_a_task_that_a_pattern_locks_is_refused(call: str) -> None:
    bench = Bench(redlock_tasks={"job": {"lock_key": "{key}"}})
    plain = bench.app.task(note_key, bind=True, name="job", shared=False)
    lock_matching_tasks(bench.app)
    with pytest.raises(ConfigurationError, match=REFUSED[call]):
        CALLS[call](plain)
    bench.close()


@pytest.mark.parametrize(
    "signature",
    [
        lambda task: xmap(task.s(), ["a"], app=task.app),
        lambda task: xstarmap(task.s(), [("a",)], app=task.app),
        lambda task: chunks(task.s(), [("a",)], 1, app=task.app).group(),
    ],
    ids=CALLS,
)
def test_a_worker_refuses_a_message_with_items_however_it_was_sent(
    bench: Bench, signature: Any
) -> None:
    bodies: list[str] = []
    task = job(bench, lambda self, key: bodies.append(key), lock_key="{key}")
    signature(task).apply_async()
    outcome = bench.run(bench.receive())
    assert isinstance(outcome.value, ConfigurationError)
    assert "Send one message per item" in str(outcome.value)
    assert bodies == []


@pytest.mark.parametrize(
    ("errback", "warns"),
    [(lambda request, exc, traceback: None, True), (lambda task_id: None, False)],
    ids=["called", "sent"],
)
def test_a_worker_warns_of_an_errback_that_celery_calls_without_its_lock(
    bench: Bench, errback: Any, warns: bool, caplog: pytest.LogCaptureFixture
) -> None:
    fails = bench.task(raising(ValueError("no")), name="fails", base=Task)
    cleanup = bench.task(errback, name="cleanup", lock_key="c")
    bench.call(fails, link_error=cleanup.s())
    assert ("cleanup is the link_error of fails[" in caplog.text) is warns
    assert bench.queue_length == (0 if warns else 1)


def test_a_group_has_a_lock_for_each_item(bench: Bench) -> None:
    task = job(bench, lambda self, key: self.lease.key, lock_key="{key}")
    group(task.s(key) for key in "ab").apply_async()
    assert [bench.run(bench.receive()).value for _ in "ab"] == ["a", "b"]


def test_a_task_that_maps_may_call_others_that_lock_as_functions(bench: Bench) -> None:
    locking = job(bench, note_key, lock_key="{key}")
    plain = bench.task(lambda key: locking(key), name="plain", base=bench.app.Task)
    plain.map(["a"]).apply_async()
    assert bench.run(bench.receive()).value == ["ran a"]


async def coroutine_body(self: Any) -> str:
    return "ran"


async def generator_body(self: Any) -> Any:
    yield "ran"


@pytest.mark.parametrize("body", [coroutine_body, generator_body])
def test_a_coroutine_function_is_refused_when_its_task_is_bound(bench: Bench, body: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"task 'job': .* calls asyncio\.run\(\)"):
        job(bench, body, lock_key="k").bind(bench.app)


def test_a_generator_function_is_refused_when_its_task_is_bound(bench: Bench) -> None:
    def body(self: Any) -> Iterator[str]:
        yield "ran"

    with pytest.raises(ConfigurationError, match="task 'job': its body is a generator function"):
        job(bench, body, lock_key="k").bind(bench.app)


def test_a_coroutine_function_that_a_pattern_locks_is_refused() -> None:
    bench = Bench(redlock_tasks={"job": {"lock_key": "k"}})
    bench.app.task(coroutine_body, bind=True, name="job", shared=False)
    with pytest.raises(ConfigurationError, match="task 'job': its body is a coroutine function"):
        lock_matching_tasks(bench.app)
    bench.close()


@pytest.mark.parametrize("conf", [{}, {"redlock_dedupe": True}])
def test_a_coroutine_function_that_takes_no_lock_is_celerys(conf: dict[str, Any]) -> None:
    bench = Bench(**conf)
    task = bench.app.task(coroutine_body, bind=True, base=RedlockTask, name="job", shared=False)
    assert task.redlock_plan is None or task.redlock_plan.keys is None
    bench.close()


@pytest.mark.parametrize(
    ("body", "returned"), [(coroutine_body, "coroutine"), (generator_body, "async_generator")]
)
def test_a_body_that_has_not_run_fails(bench: Bench, body: Any, returned: str) -> None:
    outcome = bench.run(bench.send(job(bench, lambda self: body(self), lock_key="k")))
    assert f"Task job returned a {returned}" in str(outcome.value)


def test_the_lock_of_a_body_that_has_not_run_is_free_again(bench: Bench) -> None:
    task = job(bench, lambda self: coroutine_body(self), lock_key="k")
    bench.run(bench.send(task))
    assert task.lock_holder() is None


class LazyQuery(dict[str, int]):
    """A result that can be awaited, as that of several database layers."""

    def __await__(self) -> Iterator[None]:
        yield


def test_an_awaitable_of_a_body_that_has_run_is_its_result(bench: Bench) -> None:
    outcome = bench.run(bench.send(job(bench, lambda self: LazyQuery(rows=1), lock_key="k")))
    assert outcome == Outcome(state="SUCCESS", value={"rows": 1})


class InBatches(Task):
    """As celery-batches: its Strategy collects messages, and calls the body as a function."""

    abstract = True
    typing = False

    def Strategy(self, task: Any, app: Any, consumer: Any) -> Any:  # noqa: N802  # Celery's name
        return lambda *message, **more: consumer.pool.apply_async(task, ([message],))


class Started(Task):
    abstract = True

    def start_strategy(self, app: Any, consumer: Any, **options: Any) -> Any:
        return InBatches.Strategy(self, self, app, consumer)


@pytest.mark.parametrize("batches", [InBatches, Started])
def test_a_task_that_locks_may_not_have_a_strategy_of_its_own(bench: Bench, batches: Any) -> None:
    base = type("Locked", (RedlockTask, batches), {"abstract": True})
    with pytest.raises(ConfigurationError, match="'job': its class has its own Strategy"):
        job(bench, base=base, lock_key="k").delay()
    assert bench.queue_length == 0


def test_a_pattern_locks_no_task_with_a_strategy_of_its_own() -> None:
    bench = Bench(redlock_tasks={"job": {"lock_key": "k"}})
    bench.task(lambda requests: None, base=InBatches)
    with pytest.raises(ConfigurationError, match=r"add to redlock_tasks: \{'job': None\}"):
        lock_matching_tasks(bench.app)
    bench.close()


def test_a_task_with_a_strategy_of_its_own_may_do_without_a_lock(bench: Bench) -> None:
    base = type("Locked", (RedlockTask, InBatches), {"abstract": True})
    bench.send(bench.task(lambda requests: None, base=base), "an item")


def test_a_worker_warns_of_a_task_that_redlock_dedupe_does_not_reach(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bench = Bench(redlock_dedupe=True)
    bench.task(lambda requests: None, base=InBatches, name="collected")
    protect_tasks(bench.app)
    protect_tasks(bench.app)
    (warning,) = caplog.messages
    assert warning.startswith("Task 'collected' has a class with its own Strategy")
    assert type(bench.app.tasks["collected"]).__mro__[1] is InBatches
    bench.close()
