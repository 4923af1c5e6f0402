"""What a task's options come to, with real apps."""

from __future__ import annotations

import re
import types
from typing import Any

import pytest
import tenacity
from celery import Celery, Task

from celery_redlock import Limit, Rate
from celery_redlock.errors import ConfigurationError
from celery_redlock.tasks.config.option_values import DESCRIBED, MODES
from celery_redlock.tasks.config.options import LockOptions
from celery_redlock.tasks.config.resolve import origins_of, resolve_options
from celery_redlock.tasks.config.settings import read_settings


def settle_of(conf: dict[str, Any] | None, **options: Any) -> Any:
    """Declare a task in an app with this configuration."""
    app = Celery("options", broker="memory://", set_as_current=False)
    app.conf.update(conf or {})

    @app.task(name="bank.settle", shared=False, **options)
    def settle(account_id):
        pass

    app.finalize()
    return app.tasks["bank.settle"]


def resolve(*, base: type = Task, conf: dict[str, Any] | None = None, **options: Any) -> Any:
    task = settle_of(conf, base=base, **options)
    return resolve_options(type(task), read_settings(task.app))


def origins(
    *, mode: str = "while_executing", conf: dict[str, Any] | None = None, **options: Any
) -> dict[str, str]:
    """Return from where each option of a task comes; arguments as `resolve`."""
    task = settle_of(conf, **options)
    return origins_of(type(task), read_settings(task.app), MODES[mode])


def refused(message: str, **options: Any) -> str:
    with pytest.raises(ConfigurationError, match=re.escape(message)) as caught:
        resolve(**options)
    assert "bank.settle" in str(caught.value)
    return str(caught.value)


class Slow(Task):
    abstract = True
    lock_ttl = 11
    lock_wait = 1


def test_a_task_without_lock_options_does_not_lock() -> None:
    assert resolve() is None


def test_an_app_wide_default_alone_switches_nothing_on() -> None:
    assert resolve(conf={"redlock_ttl": 20, "redlock_key": "everything"}) is None


@pytest.mark.parametrize(
    "arguments",
    [
        {"lock_key": True},
        {"lock_at_least_for": 0},
        {"base": Slow},
        {"conf": {"task_annotations": {"*": {"lock_key": True}}}},
        {"conf": {"task_annotations": {"bank.settle": {"lock_key": True}}}},
        {"conf": {"redlock_tasks": {"bank.*": {"lock_key": True}}}},
    ],
)
def test_one_option_anywhere_on_the_task_switches_locking_on(arguments: dict[str, Any]) -> None:
    assert resolve(**arguments) is not None


def test_the_defaults_are_those_of_the_documentation() -> None:
    assert resolve(lock_key=True) == LockOptions(
        key=True,
        mode="while_executing",
        ttl=30.0,
        wait=None,
        retry=None,
        queue_ttl=7200.0,
        window=None,
        dedupe_window=4200.0,
        on_conflict="requeue",
        on_duplicate="existing",
        skip_result=DESCRIBED,
        give_up_after=3600.0,
        fair=False,
        on_unavailable="requeue",
        on_lost="interrupt",
        max_hold=86400.0,
        at_least_for=0.0,
        starting_deadline=None,
    )


#: Where a TTL is set, with the TTL, and how that place is called.
LAYERS: list[tuple[dict[str, Any], float, str]] = [
    ({"conf": {"redlock_ttl": 10}}, 10, "redlock_ttl"),
    ({"conf": {"redlock_tasks": {"bank.*": {"lock_ttl": 10.5}}}}, 10.5, "redlock_tasks['bank.*']"),
    ({"base": Slow}, 11, f"base class {__name__}.Slow"),
    ({"lock_ttl": 12}, 12, "the task"),
    ({"annotations": {"bank.settle": {"lock_ttl": 13}}}, 13, "task_annotations"),
    ({"annotations": {"*": {"lock_ttl": 14}}}, 14, "task_annotations"),
]


def task_with(*layers: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of `resolve` and `origins` for a task with these layers."""
    made: dict[str, Any] = {"conf": {"task_annotations": {}}}
    for layer in layers:
        made["conf"] |= layer.get("conf", {})
        made["conf"]["task_annotations"] |= layer.get("annotations", {})
        made |= {name: value for name, value in layer.items() if name in ("base", "lock_ttl")}
    return made


@pytest.mark.parametrize("count", range(1, len(LAYERS) + 1))
def test_each_layer_goes_before_all_earlier_ones(count: int) -> None:
    layers = [layer for layer, *_ in LAYERS[:count]]
    # Something on the task itself, so that the setting has a task to apply to.
    assert resolve(lock_max_hold=1000, **task_with(*layers)).ttl == LAYERS[count - 1][1]


@pytest.mark.parametrize(("layer", "_", "origin"), LAYERS)
def test_the_origin_of_an_option_is_named(layer: dict[str, Any], _: float, origin: str) -> None:
    assert origins(lock_key="k", **task_with(layer))["ttl"] == origin


def test_an_option_that_nothing_sets_is_a_default() -> None:
    assert origins(lock_key="k")["ttl"] == "default"


def test_a_setting_that_the_mode_ignores_is_no_origin() -> None:
    found = origins(lock_key="k", conf={"redlock_on_duplicate": "raise"})
    assert found["on_duplicate"] == "default"


def test_layers_that_say_different_things_add_up() -> None:
    options = resolve(base=Slow, lock_max_hold=99, conf={"redlock_give_up_after": 77})
    assert (options.ttl, options.wait, options.max_hold, options.give_up_after) == (11, 1, 99, 77)


def test_none_means_not_said_here() -> None:
    assert resolve(lock_ttl=None) is None
    assert resolve(base=Slow, lock_ttl=None, conf={"redlock_ttl": 20}).ttl == 20


def test_a_tasks_own_name_goes_before_a_pattern_and_the_first_pattern_before_later_ones() -> None:
    patterns = {"bank.*": {"lock_ttl": 5}, "*": {"lock_ttl": 6}}
    assert resolve(conf={"redlock_tasks": patterns}).ttl == 5
    assert resolve(conf={"redlock_tasks": {**patterns, "bank.settle": {"lock_ttl": 7}}}).ttl == 7


def test_a_small_max_ttl_lowers_the_default_ttl() -> None:
    assert resolve(lock_key=True, conf={"redlock_max_ttl": 5}).ttl == 5


def test_functions_are_not_bound_to_the_task() -> None:
    def decide(task, error):
        pass

    options = resolve(lock_on_conflict=decide, lock_on_lost=decide, lock_key=decide)
    assert options.on_conflict is options.on_lost is options.key is decide


def test_a_static_method_of_the_class_is_the_function() -> None:
    class Keyed(Task):
        @staticmethod
        def lock_key(account_id):
            return f"account:{account_id}"

    assert isinstance(resolve(base=Keyed).key, types.FunctionType)


@pytest.mark.parametrize(
    "retry", [tenacity.wait_fixed(1), tenacity.Retrying(stop=tenacity.stop_after_delay(3))]
)
def test_retry_is_a_tenacity_wait_or_a_whole_policy(retry: Any) -> None:
    assert resolve(lock_retry=retry).retry is retry


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lock_tll": 3}, "lock_tll is unknown; did you mean lock_ttl?"),
        ({"lock_xyz": 3}, "lock_xyz is unknown; the names are: lock_at_least_for"),
        ({"lock_ttl": 0.1}, "lock_ttl=0.1 is out of range; give at least 0.2 s"),
        ({"lock_ttl": 61}, "lock_ttl=61 is above redlock_max_ttl=60"),
        ({"lock_wait": 9, "lock_give_up_after": 8}, "lock_wait=9 is above lock_give_up_after=8"),
        ({"lock_max_hold": 9}, "lock_max_hold=9 is below lock_ttl=30"),
        (
            {"lock_at_least_for": 99, "lock_max_hold": 98},
            "lock_at_least_for=99 is above lock_max_hold=98",
        ),
        ({"lock_skip_result": 1}, "lock_on_conflict='requeue' never skips"),
        ({"lock_on_conflict": "ignore"}, "lock_on_conflict='ignore' is not a choice here"),
        (
            {"lock_on_conflict": "replace"},
            "lock_on_conflict='replace' is not a choice here, but lock_on_duplicate has it; use "
            "'requeue', 'skip', 'stop', 'reject', 'raise' or a function",
        ),
        (
            {"lock_mode": "until_executed", "lock_on_conflict": "skip"},
            "lock_on_conflict is for a lock that the worker acquires, and in "
            "lock_mode='until_executed' it acquires none; remove it or use lock_on_duplicate",
        ),
        (
            {"lock_on_duplicate": "raise"},
            "lock_on_duplicate is for a lock that the publisher acquires, and in "
            "lock_mode='while_executing' it acquires none; remove it or use a mode that begins",
        ),
        (
            {"lock_mode": "until_executed", "lock_on_duplicate": "skip"},
            "lock_on_duplicate='skip' is not a choice here, but lock_on_conflict has it; use "
            "'existing', 'replace', 'raise' or a function",
        ),
        ({"lock_on_conflict": ["skip"]}, "lock_on_conflict=['skip'] is not a choice here"),
        ({"lock_on_unavailable": "skip"}, "lock_on_unavailable='skip' is not a choice here"),
        ({"lock_on_lost": "panic"}, "lock_on_lost='panic' is not a choice here"),
        ({"lock_mode": "while_queued"}, "lock_mode='while_queued' is not a choice here"),
        ({"lock_retry": 3}, "lock_retry=3 is not a retry policy"),
        ({"lock_retry": tenacity.AsyncRetrying()}, "is not a retry policy"),
        ({"lock_key": False}, "lock_key=False is not a key"),
        ({"lock_key": []}, "lock_key=[] is not a key"),
        ({"lock_key": ["a", 1]}, "lock_key=['a', 1] is not a key"),
        (
            {"lock_queue_ttl": 9},
            "lock_queue_ttl is for a lock that the publisher acquires, and in "
            "lock_mode='while_executing' it acquires none; remove it or use a mode that begins",
        ),
        (
            {"lock_window": 9},
            "lock_window goes with lock_mode='until_expired', not with lock_mode=",
        ),
        ({"lock_mode": "until_expired"}, "needs lock_window, the seconds for which the key stays"),
        (
            {"lock_mode": "until_expired", "lock_window": 9, "lock_queue_ttl": 9},
            "lock_queue_ttl has no use in lock_mode='until_expired', where lock_window sets",
        ),
        (
            {"lock_mode": "until_expired", "lock_window": 9, "lock_at_least_for": 3},
            "lock_at_least_for has no use in lock_mode='until_expired', where lock_window sets",
        ),
        (
            {"lock_mode": "until_executing", "lock_on_lost": "flag"},
            "lock_on_lost is about the lock of a body, and in lock_mode='until_executing' the body "
            "has none; remove it or use 'until_executed'",
        ),
        (
            {"lock_mode": "until_executed", "lock_on_duplicate": "raise", "lock_skip_result": 1},
            "lock_on_duplicate='raise' never skips; use 'existing' or remove",
        ),
        ({"lock_overlap": "forbid"}, "lock_overlap is unknown; did you mean lock_on_conflict?"),
        (
            {"lock_on_conflict": "stop", "lock_fair": True},
            "lock_fair gives the lock to the message that has waited longest, and "
            "lock_on_conflict='stop' to the newest; remove one of them",
        ),
        ({"lock_starting_deadline": 0}, "lock_starting_deadline=0 is out of range; give at least"),
        ({"lock_on_conflict": "stop", "lock_skip_result": 1}, "never skips"),
    ],
)
def test_an_option_that_cannot_work_is_refused(options: dict[str, Any], message: str) -> None:
    assert refused(message, **options).startswith("task 'bank.settle': ")


class Misspelt(Task):
    abstract = True
    lock_tll = 3


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        *(("lockkey", "lock_key"), ("lockTtl", "lock_ttl"), ("lok_key", "lock_key")),
        ("redlock_wait", "lock_wait"),
        # Of other packages.
        ("unique_on", "lock_key"),
        ("unlock_before_run", "lock_mode='until_executing'"),
        ("lock_expiry", "lock_queue_ttl"),
        ("raise_on_duplicate", "lock_on_duplicate='raise'"),
    ],
)
def test_a_name_that_is_surely_meant_as_an_option_is_refused_with_it(name: str, meant: str) -> None:
    refused(f"{name} is unknown; did you mean {meant}?", **{name: 3})


@pytest.mark.parametrize(
    "arguments",
    [
        {"lock_tll": None},
        {"conf": {"task_annotations": {"*": {"lock_tll": 3}}}},
        {"base": Misspelt},
    ],
    ids=["whatever its value", "in an annotation", "of a base class"],
)
def test_such_a_name_is_refused(arguments: dict[str, Any]) -> None:
    refused("lock_tll is unknown; did you mean lock_ttl?", **arguments)


def test_the_option_of_celery_once_is_refused_with_ours() -> None:
    refused("once is unknown; did you mean lock_mode='until_executed'?", once={"graceful": True})


OURS = type("Ours", (Task,), {"lock_holder": lambda self: None, "__module__": "celery_redlock.x"})


@pytest.mark.parametrize(
    "attributes",
    [
        *({name: 3} for name in ("clock_key", "block_key", "look_key", "wait", "key", "ttl")),
        {"once": lambda self: None},
        {"unique_on": None},
        {"base": OURS},
    ],
    ids=lambda attributes: "our own methods" if "base" in attributes else next(iter(attributes)),
)
def test_an_attribute_that_only_resembles_an_option_is_none(attributes: dict[str, Any]) -> None:
    assert resolve(lock_ttl=3, **attributes).ttl == 3


@pytest.mark.parametrize(
    "options",
    [
        {"lock_on_conflict": "skip", "lock_skip_result": 1},
        {"lock_on_conflict": lambda task, error: None, "lock_skip_result": 1},
        {"lock_starting_deadline": 9, "lock_skip_result": 1},
        {"lock_key": True, "conf": {"redlock_skip_result": 1}},
    ],
    ids=["skip", "a function", "runs that come too late", "any task if it is the app's"],
)
def test_a_skip_result_goes_with(options: dict[str, Any]) -> None:
    assert resolve(**options).skip_result == 1


def test_a_default_wait_is_no_contradiction() -> None:
    assert resolve(lock_give_up_after=0).give_up_after == 0


@pytest.mark.parametrize(
    ("mode", "conflict", "duplicate"),
    [
        ("while_executing", "skip", "existing"),
        ("until_executed", "requeue", "raise"),
        ("until_and_while_executing", "skip", "raise"),
    ],
)
def test_an_app_wide_policy_counts_in_the_modes_that_have_a_use_for_it(
    mode: str, conflict: str, duplicate: str
) -> None:
    conf = {"redlock_on_conflict": "skip", "redlock_on_duplicate": "raise"}
    options = resolve(lock_mode=mode, conf=conf)
    assert (options.on_conflict, options.on_duplicate) == (conflict, duplicate)


def test_the_function_of_each_side_is_the_policy_of_that_side() -> None:
    def at_publish(task: Any, error: Any) -> str:
        return "replace"

    def in_worker(task: Any, error: Any) -> str:
        return "skip"

    options = resolve(
        lock_mode="until_and_while_executing",
        lock_on_duplicate=at_publish,
        lock_on_conflict=in_worker,
    )
    assert (options.on_duplicate, options.on_conflict) == (at_publish, in_worker)


def test_a_tasks_own_policy_comes_before_the_app_wide_one() -> None:
    conf = {"redlock_on_duplicate": "raise"}
    options = resolve(lock_mode="until_executed", lock_on_duplicate="replace", conf=conf)
    assert options.on_duplicate == "replace"


def test_an_app_wide_window_leaves_other_modes_alone() -> None:
    conf = {"redlock_window": 60, "redlock_queue_ttl": 90}
    assert resolve(lock_mode="until_executed", conf=conf).window is None
    assert resolve(lock_mode="until_expired", conf=conf).window == 60


def test_an_app_wide_starting_deadline_counts_for_tasks_that_lock() -> None:
    conf = {"redlock_starting_deadline": 60}
    assert resolve(lock_key=True, conf=conf).starting_deadline == 60
    assert resolve(conf=conf) is None


@pytest.mark.parametrize("limit", [1, 128, lambda account_id: 5])
def test_a_limit_is_a_number_or_a_function(limit: Any) -> None:
    assert resolve(lock_limit=limit).limit == limit


@pytest.mark.parametrize("limit", [0, 129, "5", True, 1.0, [5]])
def test_what_is_no_limit_is_refused_with_the_range(limit: Any) -> None:
    refused("is not a limit; give a whole number from 1 to 128, or a function", lock_limit=limit)


@pytest.mark.parametrize("rate", ["often", "5/w", 0, -1, True, ""])
def test_what_is_no_rate_is_refused_with_examples(rate: Any) -> None:
    refused("is not a valid rate; use a number per s, m, h or d", lock_rate=rate)


@pytest.mark.parametrize(
    "options",
    [
        {"lock_limit": 2},
        {"lock_rate": "2/s"},
        {"lock_limit": lambda account_id: 2},
        {"lock_key": Limit("k", 2)},
        {"lock_key": ["a", Rate("k", "2/s")]},
    ],
)
def test_no_older_run_can_be_asked_to_stop_where_several_may_run(options: dict[str, Any]) -> None:
    refused("and a limit or a rate lets several have it", lock_on_conflict="stop", **options)


@pytest.mark.parametrize("options", [{"lock_limit": 1}, {"lock_key": Limit("k", 1)}])
def test_the_only_run_can_be_asked_to_stop(options: dict[str, Any]) -> None:
    assert resolve(lock_on_conflict="stop", **options).stops
