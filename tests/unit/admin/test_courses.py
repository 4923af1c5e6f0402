"""What the rules decide about a second call is what happens to it, for every mode and policy."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, get_args

import pytest
from celery.utils import uuid

from celery_redlock import DuplicateTask, LockContended, is_skipped
from celery_redlock.admin import courses
from celery_redlock.admin.courses import Call, Stage, State
from celery_redlock.admin.wording import ACTIONS, KEYS, LOSSES, duration, sentences_of, short_of
from celery_redlock.tasks.config.option_values import (
    ConflictPolicyName,
    DuplicatePolicyName,
    LossPolicyName,
    UnavailablePolicyName,
)
from celery_redlock.tasks.config.options import LockOptions
from celery_redlock.tasks.message.envelope import Envelope
from celery_redlock.tasks.publish import unique_publish
from celery_redlock.tasks.rules import arrival, publish
from celery_redlock.tasks.rules.arrival import Action
from celery_redlock.tasks.rules.ending import Keys
from celery_redlock.tasks.rules.publish import Publish
from celery_redlock.tasks.run import arrival_facts
from celery_redlock.tasks.run.running_lock import failure_is_final
from tests.support.tasks import Bench, Outcome
from tests.support.unique import KEY, MODES, declare, mark, owned_by
from tests.unit.tasks.jobs import ALL_MODES

ON_CONFLICT, ON_DUPLICATE = get_args(ConflictPolicyName), get_args(DuplicatePolicyName)
#: Words for the names in braces, each other than any sentence.
TERMS = dict.fromkeys(
    (
        *("when_free", "skip_result", "error", "locked", "on_lost", "wait", "give_up_after"),
        *("at_least_for", "dedupe_window", "lock_on_conflict", "lock_on_duplicate"),
    ),
    "<term>",
)


#: The outcome at which a call is seen that runs in place of another one, or asks it to stop.
SEEN_AS = {"replaces it": "runs", "stops it": "waits"}


def given(**options: Any) -> Call:
    """Return a call of a task whose messages are acknowledged late."""
    found = LockOptions(**options)
    marks = found.mode_spec.at_publish
    return Call(options=found, marks_messages=marks, acks_late=True, failure_is_final=True)


def policies() -> Iterator[dict[str, Any]]:
    """Return each mode with each policy that it uses."""
    for mode, conflict, duplicate in itertools.product(ALL_MODES, ON_CONFLICT, ON_DUPLICATE):
        spec = LockOptions(mode=mode).mode_spec
        if (spec.waits_at_run or conflict == ON_CONFLICT[0]) and (
            spec.at_publish or duplicate == ON_DUPLICATE[0]
        ):
            yield {
                "lock_mode": mode,
                **({"lock_on_conflict": conflict} if spec.waits_at_run else {}),
                **({"lock_on_duplicate": duplicate} if spec.at_publish else {}),
            }


CASES = [
    (stage, options)
    for options in policies()
    for stage in Stage
    if stage is not Stage.KEPT or options["lock_mode"] == "until_expired"
]
IDS = [f"{stage.value}-{'-'.join(options.values())}" for stage, options in CASES]


def declared(bench: Bench, body: Any = None, **options: Any) -> Any:
    """Declare a unique task of an app that has all its tasks."""
    task = declare(bench, body, **options)
    bench.app.finalize()
    return task


def stage_first(bench: Bench, task: Any, stage: Stage) -> None:
    """Let another call of the task come as far as a stage."""
    if stage is Stage.QUEUED:
        bench.send(task)
    elif stage is Stage.RUNNING and task.redlock_plan.options.mode_spec.in_body:
        owned_by(bench, "first")
    elif stage is Stage.KEPT:
        bench.call(task)
    elif stage is Stage.PAUSED:
        bench.elsewhere.pause("k", 60)


def observed(bench: Bench, task: Any) -> str:
    """Call a task, run its message if there is one, and return the outcome in one word."""
    try:
        task.delay()
    except DuplicateTask:
        return "refused"
    if not bench.queue_length:
        return "dropped"
    return word_of(bench.run(bench.receive()))


def word_of(outcome: Outcome) -> str:
    if outcome.state == "SUCCESS":
        return "skipped" if is_skipped(outcome.value) else "runs"
    return {"RETRY": "waits", "FAILURE": "fails", "REJECTED": "rejected"}[outcome.state]


def call_of(task: Any) -> Call:
    plan = task.redlock_plan
    return Call(
        options=plan.options,
        marks_messages=plan.marks_messages,
        acks_late=bool(task.acks_late),
        failure_is_final=failure_is_final(task),
    )


def state_of(call: Call, stage: Stage) -> State:
    return next(state for state in call.states() if state.stage is stage)


@pytest.mark.parametrize(("stage", "options"), CASES, ids=IDS)
def test_a_second_call_fares_as_it_is_explained(
    bench: Bench, stage: Stage, options: dict[str, Any]
) -> None:
    task = declared(bench, acks_late=True, **options)
    call = call_of(task)
    stage_first(bench, task, stage)
    explained = short_of(call.courses(state_of(call, stage)), TERMS)
    assert observed(bench, task) == SEEN_AS.get(explained, explained)


@pytest.mark.parametrize(("stage", "options"), CASES, ids=IDS)
def test_the_facts_are_those_of_a_real_message(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, stage: Stage, options: dict[str, Any]
) -> None:
    task = declared(bench, acks_late=True, **options)
    call, real, explained = call_of(task), [], []
    stage_first(bench, task, stage)
    first_match = courses.first_match

    def spied(rows: Any, facts: Any) -> Any:
        explained.append(facts)
        return first_match(rows, facts)

    monkeypatch.setattr(courses, "first_match", spied)
    for module, name in ((unique_publish, "on_duplicate"), (arrival_facts, "on_contention")):
        decide = getattr(module, name)
        monkeypatch.setattr(
            module, name, lambda facts, decide=decide: (real.append(facts), decide(facts))[1]
        )
    observed(bench, task)
    call.courses(state_of(call, stage))
    # A step may change the facts of the next one, such as a lock that the message has then.
    first_of_each = {type(facts): facts for facts in reversed(real)}.values()
    assert [facts for facts in first_of_each if facts not in explained] == []


UNIQUE = list(itertools.product(MODES, ON_DUPLICATE))


@pytest.mark.parametrize(("mode", "policy"), UNIQUE)
def test_a_call_with_a_task_id_fares_as_it_is_explained(
    bench: Bench, mode: str, policy: str
) -> None:
    task = declared(bench, lock_mode=mode, lock_on_duplicate=policy)
    bench.send(task)
    call = replace(call_of(task), has_dependents=True)
    explained = short_of(call.courses(state_of(call, Stage.QUEUED)), TERMS)
    request = bench.send(task, task_id=uuid())
    assert word_of(bench.run(request)) == SEEN_AS.get(explained, explained)


@pytest.mark.parametrize(("mode", "policy"), UNIQUE)
def test_a_call_that_finds_another_task_s_lock_fares_as_it_is_explained(
    bench: Bench, mode: str, policy: str
) -> None:
    other = declare(bench, name="other", lock_mode=mode, lock_on_duplicate=policy)
    task = declared(bench, lock_mode=mode, lock_on_duplicate=policy)
    bench.send(other)
    call = replace(call_of(task), same_work=False)
    explained = short_of(call.courses(state_of(call, Stage.QUEUED)), TERMS)
    assert observed(bench, task) == explained


@pytest.mark.parametrize(("mode", "policy"), UNIQUE)
def test_a_call_that_finds_no_slot_free_fares_as_it_is_explained(
    bench: Bench, mode: str, policy: str
) -> None:
    task = declared(bench, lock_limit=2, lock_mode=mode, lock_on_duplicate=policy)
    for _ in range(2):
        bench.send(task)
    call = replace(call_of(task), is_limit=True)
    (course,) = call.courses(state_of(call, Stage.QUEUED))
    if course.steps[0].action is Publish.FAIL:
        with pytest.raises(LockContended):
            task.delay()
    else:
        assert observed(bench, task) == short_of((course,), TERMS)


@pytest.mark.parametrize("shared", [{"lock_limit": 2}, {"lock_rate": "2/m"}], ids=["limit", "rate"])
@pytest.mark.parametrize("mode", MODES)
def test_a_call_whose_slots_are_paused_fares_as_it_is_explained(
    bench: Bench, mode: str, shared: dict[str, Any]
) -> None:
    task = declared(bench, lock_mode=mode, **shared)
    bench.elsewhere.pause("k", 60)
    call = replace(call_of(task), has_rate="lock_rate" in shared)
    (course,) = call.courses(state_of(call, Stage.PAUSED))
    request = bench.send(task)
    is_locked = Envelope.read(request).reservation is not None
    assert is_locked == (course.steps[0].action is Publish.SEND_WITH_LOCK)
    assert word_of(bench.run(request)) == short_of((course,), TERMS)


def test_every_action_has_words() -> None:
    assert set(ACTIONS) == {*Publish, *Action}
    assert set(KEYS) == set(Keys)
    assert set(LOSSES) == {*get_args(LossPolicyName), "function"}


@pytest.mark.parametrize("action", [*Publish, *Action], ids=lambda action: action.name)
def test_the_words_of_an_action_are_a_sentence(action: Any) -> None:
    _, sentence = ACTIONS[action]
    text = sentence.format_map(TERMS)
    assert action is Action.WAIT or (text[0].isupper() and text.endswith("."))


@pytest.mark.parametrize("keys", Keys, ids=lambda keys: keys.name)
def test_the_end_of_a_lock_is_a_sentence(keys: Keys) -> None:
    assert KEYS[keys].format_map(TERMS).endswith(".")


def test_a_changed_rule_changes_the_text(monkeypatch: pytest.MonkeyPatch) -> None:
    call = given(mode="until_executed")
    rows = tuple(
        replace(row, then=Publish.REFUSE) if row.name == "a duplicate" else row
        for row in publish.DUPLICATES
    )
    queued = state_of(call, Stage.QUEUED)
    before = sentences_of(call.courses(queued), TERMS)
    monkeypatch.setattr(publish, "DUPLICATES", rows)
    after = sentences_of(call.courses(queued), TERMS)
    assert "returns the result of the first" in before
    assert "raises DuplicateTask" in after


def test_a_changed_rule_of_the_worker_changes_the_text(monkeypatch: pytest.MonkeyPatch) -> None:
    call = given()
    rows = tuple(
        replace(row, then=Action.SKIP) if row.name == "conflict at run: requeue" else row
        for row in arrival.CONTENTION
    )
    running = state_of(call, Stage.RUNNING)
    assert short_of(call.courses(running), TERMS) == "waits"
    monkeypatch.setattr(arrival, "CONTENTION", rows)
    assert short_of(call.courses(running), TERMS) == "skipped"


@pytest.mark.parametrize(
    ("options", "option", "answers"),
    [
        ({}, "on_conflict", ON_CONFLICT),
        ({"mode": "until_executed"}, "on_duplicate", ON_DUPLICATE),
    ],
)
def test_a_function_has_a_course_for_each_answer(
    options: dict[str, Any], option: str, answers: tuple[str, ...]
) -> None:
    call = given(**options, **{option: lambda task, error: ""})
    running = state_of(call, Stage.RUNNING)
    for course in call.courses(running):
        plain = given(**options, **{option: course.answer})
        assert [replace(course, option="", answer="")] == list(plain.courses(running))
    assert {course.answer for course in call.courses(running)} == set(answers)


@pytest.mark.parametrize("policy", get_args(UnavailablePolicyName))
def test_without_a_quorum_a_worker_does_as_the_option_demands(policy: str) -> None:
    words = {"requeue": "waits", "raise": "fails", "run_unlocked": "runs"}
    assert short_of(given(on_unavailable=policy).without_quorum(), TERMS) == words[policy]


def test_a_message_that_waits_gives_up_at_the_end() -> None:
    call = given()
    (course,) = call.courses(state_of(call, Stage.RUNNING))
    assert [step.action for step in course.steps] == [
        Publish.SEND,
        Action.WAIT,
        Action.REQUEUE,
        Action.GIVE_UP,
    ]


@pytest.mark.parametrize(
    ("options", "tries"),
    [
        ({}, False),
        ({"wait": 5.0}, True),
        ({"on_conflict": "skip"}, True),
        ({"on_conflict": "skip", "wait": 0.0}, False),
    ],
)
def test_a_worker_tries_as_long_as_lock_wait_before_the_policy(
    options: dict[str, Any], tries: bool
) -> None:
    call = given(**options)
    (course,) = call.courses(state_of(call, Stage.RUNNING))
    assert any(step.tries for step in course.steps) is tries


@pytest.mark.parametrize("mode", ALL_MODES)
def test_a_redelivery_fares_as_it_is_explained(bench: Bench, mode: str) -> None:
    task = declared(bench, acks_late=True, lock_mode=mode)
    request = bench.send(task)
    bench.run(request)
    again = bench.run(request, delivery_info={**request["delivery_info"], "redelivered": True})
    word = "ignored" if again.state == "IGNORED" else word_of(again)
    assert short_of(call_of(task).redelivery(has_ended=True), TERMS) == word


@pytest.mark.parametrize("mode", ALL_MODES)
def test_a_redelivery_during_the_body_fares_as_it_is_explained(bench: Bench, mode: str) -> None:
    task = declared(bench, acks_late=True, lock_mode=mode)
    request = bench.send(task)
    owned_by(bench, request["id"], place=KEY if mode == "while_executing" else mark(bench, request))
    bench.run(request, delivery_info={**request["delivery_info"], "redelivered": True})
    word = "waits" if bench.queue_length else "ends"
    assert short_of(call_of(task).redelivery(has_ended=False), TERMS) == word


@pytest.mark.parametrize("mode", ALL_MODES)
def test_the_lock_of_an_ended_body_fares_as_it_is_explained(bench: Bench, mode: str) -> None:
    task = declared(bench, lock_mode=mode)
    bench.call(task)
    kept = call_of(task).keys_after() is not Keys.RELEASE
    assert bench.is_held(KEY.removeprefix("redlock:")) is kept


@pytest.mark.parametrize("mode", ALL_MODES)
def test_the_lock_of_a_body_that_retries_fares_as_it_is_explained(bench: Bench, mode: str) -> None:
    def body(self: Any) -> None:
        raise self.retry(countdown=60)

    task = declared(bench, body, lock_mode=mode)
    bench.call(task)
    handed_over = call_of(task).keys_after_retry() is Keys.HAND_OVER
    assert bench.is_held(KEY.removeprefix("redlock:")) is (handed_over or mode == "until_executing")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.5, "0.5 s"), (90, "90 s"), (60, "1 min"), (3600, "1 h"), (172_800, "2 d"), (0, "0 s")],
)
def test_a_duration_has_the_largest_unit_that_divides_it(seconds: float, text: str) -> None:
    assert duration(seconds) == text
