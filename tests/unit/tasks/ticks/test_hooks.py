"""What a scheduler of ours adds to a tick, and learns of it, and what cannot be sent or told."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from celery import Task

from celery_redlock.tasks.message.tick import Tick
from celery_redlock.tasks.ticks.tick_context import pending_tick_owns_id
from tests.unit.schedules.test_due_times import SinceLastRun
from tests.unit.tasks.ticks.simulated import (
    MINUTE,
    beat,
    messages_of,
    one_message,
)


def failing(*_: Any) -> Any:
    raise RuntimeError("broken hook")


@pytest.mark.parametrize("hook", ["decorate", "options", "sent"])
def test_a_hook_that_fails_does_not_keep_a_tick_from_being_sent(
    hook: str, caplog: pytest.LogCaptureFixture
) -> None:
    sent = beat(hooks={hook: failing}).run(120)
    assert [message.tick.entry for message in sent] == ["e", "e"]
    assert "broken hook" in caplog.text


def test_an_entry_of_which_nobody_can_tell_whether_it_is_protected_is_left_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    sent = beat(hooks={"protect": failing}).run(121)
    assert [message.header for message in sent] == [None, None]
    assert len(messages_of(caplog)) == 1


# What others add


def test_a_tick_can_be_given_more_before_it_is_sent() -> None:
    made = beat(hooks={"decorate": lambda entry, tick: replace(tick, schedule="s", token=7)})
    tick = one_message(made).tick
    assert (tick.schedule, tick.token) == ("s", 7)


def test_a_tick_can_be_withheld() -> None:
    made = beat(hooks={"decorate": lambda entry, tick: None})
    assert made.run(300) == []
    assert made.scheduler.schedule["e"].total_run_count == 5


def test_options_go_before_the_entrys_own_and_are_not_kept() -> None:
    made = beat(
        {"options": {"task_id": "own", "priority": 3}},
        hooks={"options": lambda entry, tick: {"task_id": f"{entry.name}-{tick.due_us}"}},
    )
    assert one_message(made).headers["id"] == f"e-{int(MINUTE.timestamp())}000000"
    assert made.scheduler.schedule["e"].options["task_id"] == "own"


@pytest.mark.parametrize(("own", "expected"), [({}, True), ({"task_id": "own"}, False)])
def test_a_publish_can_tell_an_id_that_was_chosen_for_the_tick_from_the_entrys_own(
    own: dict[str, Any], expected: bool
) -> None:
    told = []

    class Asking(Task):  # type: ignore[misc]  # Celery is untyped
        abstract = True

        def apply_async(self, *args: Any, **options: Any) -> Any:
            told.append((pending_tick_owns_id(self.name), pending_tick_owns_id("other")))
            return super().apply_async(*args, **options)

    made = beat({"task": "asks", "options": own}, hooks={"options": lambda *_: {"task_id": "t"}})
    made.task("asks", base=Asking)
    made.run(60)
    assert told == [(expected, False)]
    assert pending_tick_owns_id("asks") is False


def test_options_go_to_an_entry_without_a_tick_as_well() -> None:
    class Often(SinceLastRun):
        def is_due(self, last_run_at: datetime) -> tuple[bool, float]:
            return self.now() - last_run_at > timedelta(seconds=40), 10

    ids = {Tick: "with", type(None): "without"}
    hooks = {"options": lambda entry, tick: {"task_id": ids[type(tick)]}}
    assert one_message(beat({"schedule": Often()}, hooks=hooks)).headers["id"] == "without"


def test_what_was_sent_is_told_after_it_was_sent() -> None:
    told: list[Any] = []
    made = beat(hooks={"sent": lambda *facts: told.append((*facts, len(made.sent)))})
    made.run(60)
    ((entry, tick, error, sent_before),) = told
    assert (entry.name, tick.due_at, error, sent_before) == ("e", MINUTE, None, 1)


def test_what_could_not_be_sent_is_told_with_its_error() -> None:
    told: list[Any] = []
    made = beat(
        {"options": {"serializer": "none such"}},
        hooks={"sent": lambda entry, tick, error: told.append(error)},
    )
    assert made.run(60) == []
    assert "Couldn't apply scheduled task e" in str(told[0])


def test_a_task_that_sends_no_message_of_its_name_is_reported_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Elsewhere(Task):  # type: ignore[misc]  # Celery is untyped
        abstract = True

        def apply_async(self, *args: Any, **options: Any) -> Any:
            return self.app.send_task("other")

    made = beat({"task": "proxy"})
    made.task("proxy", base=Elsewhere)
    assert [sent.tick for sent in made.run(180)] == [None, None, None]
    (warning,) = messages_of(caplog)
    assert "no message of proxy was seen to be sent" in warning


@pytest.mark.parametrize("conf", [{"task_always_eager": True}, {"redlock_nodes": ["memory://dup"]}])
def test_a_task_that_needs_no_message_is_not_reported(
    conf: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    made = beat({"task": "unique"}, conf=conf)
    made.task("unique", lock_mode="until_executed")
    assert len(made.run(180)) <= 1
    assert messages_of(caplog) == []
