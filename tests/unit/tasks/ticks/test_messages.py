"""What a scheduler of ours adds to what it sends, and what is sent without a tick."""

from __future__ import annotations

from typing import Any

import pytest
from celery import Task

from celery_redlock.tasks.ticks.tick_context import pending_tick
from celery_redlock.tasks.ticks.tick_stamping import TickScheduler
from tests.unit.tasks.ticks.simulated import MINUTE, beat, messages_of, one_message


class Adding(TickScheduler):
    """A scheduler that chooses the ids of its messages."""

    def redlock_options(self, sending: Any, entry: Any, tick: Any) -> Any:
        return {"task_id": f"{entry.name}-{0 if tick is None else tick.due_us}"}


def failing(*_: Any) -> Any:
    raise RuntimeError("broken hook")


def test_an_entry_of_which_nobody_knows_whether_it_is_protected_is_left_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    sent = beat(protect=failing).run(121)
    assert [message.header for message in sent] == [None, None]
    assert len(messages_of(caplog)) == 1


def test_options_go_before_the_entrys_own_and_are_not_kept() -> None:
    made = beat({"options": {"task_id": "own", "priority": 3}}, mixin=Adding)
    assert one_message(made).headers["id"] == f"e-{int(MINUTE.timestamp())}000000"
    assert made.scheduler.schedule["e"].options["task_id"] == "own"


@pytest.mark.parametrize(("own", "expected"), [({}, True), ({"task_id": "own"}, False)])
def test_a_publish_can_tell_an_id_that_was_chosen_for_the_tick_from_the_entrys_own(
    own: dict[str, Any], expected: bool
) -> None:
    seen = []

    class Asking(Task):  # type: ignore[misc]  # Celery is untyped
        abstract = True

        def apply_async(self, *args: Any, **options: Any) -> Any:
            seen.append((pending_tick(self.name).owns_id, pending_tick("other")))
            return super().apply_async(*args, **options)

    made = beat({"task": "asks", "options": own}, mixin=Adding)
    made.task("asks", base=Asking)
    made.run(60)
    assert seen == [(expected, None)]
    assert pending_tick("asks") is None


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
    assert "no message of proxy was sent" in warning


@pytest.mark.parametrize("conf", [{"task_always_eager": True}, {"redlock_nodes": ["memory://dup"]}])
def test_a_task_that_needs_no_message_is_not_reported(
    conf: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    made = beat({"task": "unique"}, conf=conf)
    made.task("unique", lock_mode="until_executed")
    assert len(made.run(180)) <= 1
    assert messages_of(caplog) == []
