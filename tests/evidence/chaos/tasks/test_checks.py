"""The checks must see what they are there for: each rule fires on a history made for it."""

from __future__ import annotations

from typing import Any

import pytest

from celery_redlock.protocol.keys import META_PREFIX
from evidence.chaos.tasks.builder import build_history
from evidence.chaos.tasks.checks import (
    check_drained,
    check_locks,
    check_tokens_of_bodies,
    count_woken,
    judge,
)
from evidence.chaos.tasks.duplicates import Pairs, check_answers, check_pairs, check_skips
from evidence.chaos.tasks.history import Left, TaskHistory
from evidence.chaos.tasks.kinds import SKIPPED
from evidence.chaos.tasks.leftovers import check_leftovers
from evidence.chaos.tasks.order import check_newest, check_once
from evidence.chaos.tasks.outcomes import check_followers, check_outcomes

pytestmark = pytest.mark.full

SUCCESS = {"status": "SUCCESS", "result": {"id": "x", "call": "x"}}
SKIP = {"status": "SUCCESS", "result": SKIPPED}


class Script:
    """Writes the lines of a history, as publishers, workers and the nemesis do."""

    def __init__(self, kind: str = "executed") -> None:
        self.kind = kind
        self.events: list[dict[str, Any]] = []
        self.states: dict[str, Any] = {}
        self.left: list[Left] = []
        self.waiting: set[str] = set()

    def note(self, t: float, event: str, worker: str = "nemesis", **details: Any) -> Script:
        self.events.append({"t": t, "event": event, "worker": worker, **details})
        return self

    def send(
        self,
        t: float,
        call: str,
        *,
        answer: str = "accepted",
        task_id: str = "",
        form: str = "plain",
        knows: tuple[str, ...] = (),
        key: str = "k",
    ) -> Script:
        self.note(
            t,
            "sending",
            "p0.1/1",
            calls=[call],
            kind=self.kind,
            key=key,
            form=form,
            knows=list(knows),
        )
        return self.note(
            t + 0.01, "sent", "p0.1/1", call=call, answer=answer, id=task_id or f"id-{call}"
        )

    def run(
        self,
        began: float,
        ended: float | None,
        call: str,
        *,
        how: str = "done",
        worker: str = "w0.1/2",
        token: int | None = 7,
        retries: int = 0,
        until: float | None = None,
        state: str = "SUCCESS",
    ) -> Script:
        task_id = f"id-{call}"
        body = f"{worker}.{call}.{began}"
        until = began + 1.0 if until is None else until
        self.note(began - 0.02, "received", worker, id=task_id)
        self.note(began - 0.01, "arrived", worker, id=task_id)
        self.note(
            began,
            "began",
            worker,
            body=body,
            call=call,
            id=task_id,
            kind=self.kind,
            key="k",
            retries=retries,
            token=token,
            until=until if token else None,
        )
        if ended is not None:
            self.note(ended, "ended", worker, body=body, how=how)
            self.note(ended + 0.01, "left", worker, id=task_id, state=state)
            if how == "done":
                self.states[task_id] = SUCCESS
        return self

    def skip(self, t: float, call: str) -> Script:
        self.states[f"id-{call}"] = SKIP
        self.note(t - 0.1, "arrived", "w0.1/2", id=f"id-{call}")
        return self.note(t, "left", "w0.1/2", id=f"id-{call}", state="SUCCESS")

    def history(self) -> TaskHistory:
        events = sorted(self.events, key=lambda event: event["t"])
        return build_history(events, self.states, self.left, self.waiting)


def rules(found: Any) -> list[str]:
    return [violation.rule for violation in found]


def answers(script: Script) -> list[str]:
    return rules(check_answers(script.history(), Pairs()))


def pairs(script: Script) -> tuple[list[str], int]:
    counted = Pairs()
    return rules(check_pairs(script.history(), counted)), counted.judged


def test_calls_that_run_one_after_the_other_break_no_rule():
    script = Script().send(1.0, "a").run(1.1, 1.2, "a")
    script.send(1.05, "b", answer="duplicate", task_id="id-a")
    script.send(2.0, "c").run(2.1, 2.2, "c", token=8)
    assert judge(script.history()).violations == []


# Outcomes


def test_an_accepted_call_that_never_runs_is_found():
    script = Script().send(1.0, "a")
    assert rules(check_outcomes(script.history())) == ["every accepted call comes to an outcome"]


def test_a_call_whose_publisher_had_no_answer_owes_nothing():
    script = Script()
    script.note(1.0, "sending", calls=["a"], kind="executed", key="k", form="plain", knows=[])
    assert rules(check_outcomes(script.history())) == []


def test_a_message_that_the_broker_still_has_is_not_lost_but_not_drained():
    script = Script().send(1.0, "a")
    script.waiting.add("id-a")
    assert rules(check_outcomes(script.history())) == []
    assert len(rules(check_drained(script.history()))) == 1


def test_a_call_whose_worker_was_killed_after_it_was_acknowledged_is_excused():
    script = Script().send(1.0, "a").run(1.1, None, "a")
    script.note(1.2, "killed", worker="w0.1")
    assert rules(check_outcomes(script.history())) == []


def test_a_message_that_was_on_its_way_to_a_worker_that_was_killed_is_excused():
    script = Script("executed-late").send(1.0, "a").note(1.1, "killed", worker="w0.1")
    script.send(7.0, "b", answer="duplicate", task_id="id-a")
    assert rules(check_outcomes(script.history())) == []
    script = Script("executed-late").send(1.0, "a").note(1.1, "killed", worker="w0.1/2")
    assert len(rules(check_outcomes(script.history()))) == 1


def test_a_late_acknowledged_call_whose_worker_was_killed_is_not_excused():
    script = Script("executed-late").send(1.0, "a").run(1.1, None, "a")
    script.note(9.0, "killed", worker="w0.1")
    assert len(rules(check_outcomes(script.history()))) == 1


def test_the_kill_of_another_worker_excuses_nothing():
    script = Script().send(1.0, "a").run(1.1, 1.2, "a", how="broken off")
    script.note(9.0, "killed", worker="w1.1")
    assert len(rules(check_outcomes(script.history()))) == 1


def test_a_lost_retry_is_found_as_such():
    for how in ("retry", "lost", "lost in retry"):
        script = Script().send(1.0, "a").run(1.1, 1.2, "a", how=how)
        assert rules(check_outcomes(script.history())) == ["a chain of retries is never lost"]


def test_a_retry_that_failed_while_it_was_sent_is_found_as_lost():
    script = Script().send(1.0, "a").run(1.1, 1.2, "a", how="lost", state="REJECTED")
    script.states["id-a"] = {"status": "FAILURE", "result": {"exc_type": "Reject"}}
    assert rules(check_outcomes(script.history())) == ["a chain of retries is never lost"]


def test_a_chain_of_retries_that_ends_is_an_outcome():
    script = Script().send(1.0, "a").run(1.1, 1.2, "a", how="retry")
    script.run(1.4, 1.5, "a", retries=1, token=8)
    assert rules(check_outcomes(script.history())) == []


def test_a_call_that_is_revoked_by_nobody_is_lost():
    script = Script().send(1.0, "a")
    script.states["id-a"] = {"status": "REVOKED", "result": None}
    assert len(rules(check_outcomes(script.history()))) == 1
    script.note(1.5, "revoking", id="id-a", freed=False)
    assert rules(check_outcomes(script.history())) == []


def test_a_replaced_call_needs_nobody_who_revokes_it():
    script = Script("executed-replace").send(1.0, "a")
    script.states["id-a"] = {"status": "REVOKED", "result": None}
    assert rules(check_outcomes(script.history())) == []


def test_a_call_that_fails_for_its_lock_is_found():
    script = Script().send(1.0, "a")
    script.states["id-a"] = {"status": "FAILURE", "result": {"exc_type": "LockNotAcquired"}}
    assert rules(check_outcomes(script.history())) == ["no call fails because of its lock"]


def test_a_link_that_does_not_run_is_found():
    script = Script().send(1.0, "a", form="linked").run(1.1, 1.2, "a")
    script.note(1.0, "expecting", follower="a", id="after-a", calls=["a"])
    (rule,) = rules(check_followers(script.history()))
    assert rule == "what follows a task runs: links, bodies of chords, next steps"
    script.note(1.3, "followed", "w0.1/2", call="a", id="after-a")
    assert rules(check_followers(script.history())) == []


def test_the_body_of_a_chord_is_owed_by_skipped_members_too():
    script = Script().send(1.0, "a", form="chord").run(1.1, 1.2, "a")
    script.send(1.0, "b", form="chord").skip(1.3, "b")
    script.note(1.0, "expecting", follower="a", id="after-a", calls=["a", "b"])
    assert len(rules(check_followers(script.history()))) == 1


def test_a_next_step_that_is_lost_is_found():
    script = Script().send(1.0, "a", form="chain").run(1.1, 1.2, "a")
    script.note(1.0, "expecting step", call="b", id="id-b", after="a", kind="executed", key="k")
    (rule,) = rules(check_outcomes(script.history()))
    assert rule == "what follows a task runs: links, bodies of chords, next steps"


# Duplicates


def test_an_answer_for_a_task_whose_result_was_read_is_found():
    script = Script().send(1.0, "a").run(1.1, 1.2, "a")
    script.note(1.25, "read", "p0.1/1", id="id-a", state="SUCCESS")
    script.send(1.26, "b", answer="duplicate", task_id="id-a")
    assert answers(script) == ["who has read a result, or follows it, sends a new call"]


def test_an_answer_to_a_link_for_its_own_task_is_found():
    script = Script().send(1.0, "a").run(1.1, 1.2, "a")
    script.send(1.21, "b", answer="duplicate", task_id="id-a", knows=("id-a",))
    assert answers(script) == ["who has read a result, or follows it, sends a new call"]


def test_an_answer_while_the_result_is_on_its_way_is_none_of_these():
    script = Script().send(1.0, "a").run(1.1, 1.2, "a")
    script.send(1.22, "b", answer="duplicate", task_id="id-a")
    assert answers(script) == []


def test_an_answer_for_a_task_that_ended_long_ago_is_found():
    script = Script().send(1.0, "a").run(1.1, 1.2, "a")
    script.send(9.0, "b", answer="duplicate", task_id="id-a")
    assert answers(script) == ["a duplicate is answered for a task that waits or runs"]


def test_an_answer_for_a_body_that_has_begun_is_found_where_only_waiting_counts():
    script = Script("executing").send(1.0, "a").run(1.1, 9.0, "a", token=None)
    script.send(5.0, "b", answer="duplicate", task_id="id-a")
    assert answers(script) == ["a duplicate is answered for a task that waits or runs"]


def test_an_answer_within_the_window_is_right_and_one_after_it_is_found():
    script = Script("expired").send(1.0, "a").run(1.1, 1.2, "a")
    script.send(3.5, "b", answer="duplicate", task_id="id-a")
    assert answers(script) == []
    script.send(30.0, "c", answer="duplicate", task_id="id-a")
    assert answers(script) == ["a duplicate is answered for a task that waits or runs"]


def test_an_answer_for_a_task_that_was_revoked_before_is_counted_and_not_judged():
    script = Script().send(1.0, "a").note(1.5, "revoking", id="id-a", freed=False)
    script.send(1.6, "b", answer="duplicate", task_id="id-a")
    counted = Pairs()
    assert rules(check_answers(script.history(), counted)) == []
    assert counted.revoked == 1


def test_an_answer_for_a_task_that_a_worker_dropped_as_revoked_is_found():
    script = Script().send(1.0, "a").note(1.5, "revoking", id="id-a", freed=False)
    script.note(1.6, "revoked", "w0.1/2", id="id-a")
    script.send(1.7, "b", answer="duplicate", task_id="id-a")
    assert answers(script) == []
    script.send(5.0, "c", answer="duplicate", task_id="id-a")
    assert answers(script) == ["a duplicate is answered for a task that waits or runs"]


def test_an_answer_for_a_task_whose_key_was_freed_with_its_revocation_is_found():
    script = Script().send(1.0, "a").note(1.5, "revoking", id="id-a", freed=True)
    script.send(1.6, "b", answer="duplicate", task_id="id-a")
    assert answers(script) == ["who revokes what waits and frees its key sends a new call"]


def test_a_call_that_is_revoked_by_its_key_needs_nobody_who_noted_its_id():
    script = Script().send(1.0, "a").note(1.5, "revoking key", key="k")
    script.states["id-a"] = {"status": "REVOKED", "result": None}
    assert rules(check_outcomes(script.history())) == []


def test_a_skip_for_nobody_is_found():
    script = Script().send(1.0, "a").run(1.1, 1.2, "a")
    script.send(9.0, "b", form="group").skip(9.5, "b")
    assert rules(check_skips(script.history(), Pairs())) == [
        "a task is skipped for another that ran meanwhile, or will"
    ]


def test_a_skip_for_a_task_that_was_revoked_is_counted_and_not_judged():
    script = Script().send(1.0, "a").note(1.5, "revoking", id="id-a", freed=False)
    script.send(1.6, "b", form="group").skip(2.5, "b")
    script.note(2.4, "skipped", id="id-b", holder="00 1 queued id-a host 1")
    counted = Pairs()
    assert rules(check_skips(script.history(), counted)) == []
    assert counted.revoked == 1


def test_a_skip_for_a_body_that_ran_meanwhile_is_right():
    script = Script().send(1.0, "a").run(1.1, 2.2, "a")
    script.send(2.0, "b", form="group").skip(2.5, "b")
    assert rules(check_skips(script.history(), Pairs())) == []


def test_a_next_step_that_is_skipped_for_the_task_before_it_is_found():
    script = Script().send(1.0, "a", form="chain").run(1.1, 1.2, "a")
    script.note(1.0, "expecting step", call="b", id="id-b", after="a", kind="executed", key="k")
    script.skip(1.5, "b")
    assert len(rules(check_skips(script.history(), Pairs()))) == 1


def test_two_bodies_of_a_pair_are_found():
    script = Script().send(1.0, "a", form="group").send(1.0, "b", form="group")
    script.events[2]["t"], script.events[3]["t"] = 1.02, 1.03
    script.run(1.1, 1.2, "a").run(1.6, 1.7, "b", token=8)
    assert pairs(script) == (["sent twice, run once"], 1)


def test_a_second_call_while_the_first_runs_is_no_pair_of_these():
    script = Script("executing").send(1.0, "a").run(1.1, 2.0, "a", token=None)
    script.send(1.5, "b").run(1.6, 1.7, "b", token=None)
    assert pairs(script) == ([], 0)


def test_a_pair_with_a_fault_at_its_time_is_not_judged():
    script = Script().send(1.0, "a").send(1.02, "b")
    script.run(1.1, 1.2, "a").run(1.6, 1.7, "b", token=8)
    script.note(0.5, "fault", nodes=[1], kind="stop").note(1.05, "serving", nodes=[1], kind="stop")
    assert pairs(script) == ([], 0)


def test_a_pair_of_which_one_was_sent_without_its_lock_is_not_judged():
    script = Script().send(1.0, "a").send(1.02, "b").note(1.03, "unlocked", id="id-b")
    script.run(1.1, 1.2, "a").run(1.6, 1.7, "b", token=8)
    assert pairs(script) == ([], 0)


# Order


def test_an_older_call_that_runs_after_a_newer_one_is_found():
    script = Script("executed-replace").send(1.0, "a").send(1.1, "b")
    script.run(1.3, 1.4, "b").run(1.6, 1.7, "a", token=8)
    assert rules(check_newest(script.history())) == ["the newest arguments run last"]


def test_a_call_that_was_sent_while_a_body_had_the_key_is_in_no_order():
    script = Script("executed-replace").send(0.5, "first").run(0.6, 1.2, "first")
    script.send(1.0, "a").send(1.1, "b")
    script.run(1.3, 1.4, "b", token=8).run(1.6, 1.7, "a", token=9)
    assert rules(check_newest(script.history())) == []


def test_calls_that_run_as_they_were_sent_are_in_order():
    script = Script("executed-replace").send(1.0, "a").send(1.1, "b")
    script.run(1.3, 1.4, "a").run(1.6, 1.7, "b", token=8)
    assert rules(check_newest(script.history())) == []


def test_a_message_that_runs_twice_is_found():
    script = Script().send(1.0, "a").run(1.1, 1.2, "a")
    script.run(1.5, 1.6, "a", worker="w1.1/3", token=8)
    assert rules(check_once(script.history())) == ["one message, one body"]


def test_a_message_whose_first_body_was_killed_may_run_again():
    script = Script("executed-late").send(1.0, "a").run(1.1, None, "a")
    script.note(1.2, "killed", worker="w0.1")
    script.run(7.5, 7.6, "a", worker="w1.1/3", token=8)
    assert rules(check_once(script.history())) == []


# Locks


def test_two_bodies_of_one_key_at_once_are_found():
    script = Script().send(1.0, "a").send(1.0, "b")
    script.run(1.1, 1.6, "a").run(1.3, 1.7, "b", worker="w1.1/3", token=8)
    assert rules(check_locks(script.history().locks)) == ["at most one holder trusts its lease"]


def test_a_body_that_outlives_its_lease_is_excused_by_a_pause_of_its_worker_only():
    script = Script().send(1.0, "a").run(1.1, 4.0, "a")
    assert rules(check_locks(script.history().locks)) == [
        "a loss is reported before trust ends, unless the process was paused"
    ]
    script.note(1.5, "stopping", worker="w1.1").note(3.9, "continued", worker="w1.1")
    assert len(rules(check_locks(script.history().locks))) == 1
    script.note(1.5, "stopping", worker="w0.1").note(3.9, "continued", worker="w0.1")
    assert rules(check_locks(script.history().locks)) == []


def test_a_loss_that_is_noted_a_moment_late_is_no_late_report_and_one_noted_later_is():
    for noted, broken in ((2.15, 0), (2.25, 1)):
        script = Script().send(1.0, "a").run(1.1, 2.3, "a", how="lost")
        script.note(noted, "lost", "w0.1/2", id="id-a")
        assert len(rules(check_locks(script.history().locks))) == broken


def test_a_body_without_a_token_is_found_where_it_is_to_hold_its_lock():
    script = Script().send(1.0, "a").run(1.1, 1.2, "a", token=None)
    assert len(rules(check_tokens_of_bodies(script.history()))) == 1
    script = Script("executing").send(1.0, "a").run(1.1, 1.2, "a", token=None)
    assert rules(check_tokens_of_bodies(script.history())) == []


# What is left


def left(key: str, task_id: str, node: int = 3) -> Left:
    value = f"{'0' * 32} 1000000 queued {task_id} host 1"
    return Left(node=node, key=key, value=value, left=200.0, clock=0.0)


def on_a_quorum(key: str, task_id: str) -> list[Left]:
    return [left(key, task_id, node) for node in (0, 3, 4)]


def test_a_key_that_outlives_its_task_is_found_in_each_place_of_locks():
    for key in ("redlock:k", f"{META_PREFIX}queued:redlock:k"):
        script = Script().send(1.0, "a").run(1.1, 1.2, "a")
        script.left += on_a_quorum(key, "id-a")
        (rule,) = rules(check_leftovers(script.history()))
        assert rule == "no key is taken when its task has ended"


def test_what_several_tasks_leave_of_one_key_counts_together():
    script = Script().send(1.0, "a").run(1.1, 1.2, "a").send(2.0, "b").run(2.1, 2.2, "b")
    script.left += [*on_a_quorum("redlock:k", "id-a")[:2], left("redlock:k", "id-b", 4)]
    assert len(rules(check_leftovers(script.history()))) == 1


def test_what_stands_on_a_minority_keeps_nobody_away():
    script = Script().send(1.0, "a").run(1.1, 1.2, "a")
    script.left += on_a_quorum("redlock:k", "id-a")[:2]
    assert rules(check_leftovers(script.history())) == []


def test_marks_and_counters_may_stay():
    script = Script().send(1.0, "a").run(1.1, 1.2, "a")
    for kind in ("message:", "fence:"):
        script.left += on_a_quorum(f"{META_PREFIX}{kind}x", "id-a")
    assert rules(check_leftovers(script.history())) == []


def test_the_key_of_a_message_that_died_with_its_worker_is_excused():
    script = Script().send(1.0, "a").run(1.1, None, "a").note(1.2, "killed", worker="w0.1")
    script.left += on_a_quorum("redlock:k", "id-a")
    assert rules(check_leftovers(script.history())) == []


def test_a_key_from_an_old_snapshot_is_excused_at_that_node_only():
    script = Script().send(1.0, "a").run(1.1, 1.2, "a")
    script.left += on_a_quorum("redlock:k", "id-a")
    script.note(2.0, "mended", kind="restart stale", nodes=[2])
    assert len(rules(check_leftovers(script.history()))) == 1
    script.note(2.0, "mended", kind="restart stale", nodes=[3])
    assert rules(check_leftovers(script.history())) == []


def waits_behind_a_lost_message(*copies: Left) -> Script:
    script = Script().send(1.0, "a").note(1.2, "killed", worker="w0.1").send(2.0, "b")
    script.note(1.1, "received", "w0.1/1", id="id-a", task="chaos.executed")
    script.waiting.add("id-b")
    script.left += copies
    return script


def test_a_message_may_wait_for_the_key_of_a_lost_message():
    script = waits_behind_a_lost_message(*on_a_quorum("redlock:k", "id-a"))
    assert rules(check_drained(script.history())) == []


@pytest.mark.parametrize(
    "copies",
    [
        [],
        on_a_quorum("redlock:k", "id-a")[:2],
        on_a_quorum(f"{META_PREFIX}message:x", "id-a"),
    ],
    ids=["free", "on a minority", "only a mark"],
)
def test_a_message_may_not_wait_for_a_free_key(copies: list[Left]):
    assert len(rules(check_drained(waits_behind_a_lost_message(*copies).history()))) == 1


def test_a_message_may_not_wait_for_the_key_of_one_that_has_ended():
    script = Script().send(1.0, "a").run(1.1, 1.2, "a").send(2.0, "b")
    script.waiting.add("id-b")
    script.left += on_a_quorum("redlock:k", "id-a")
    assert len(rules(check_drained(script.history()))) == 1


def requeued(delay: float, came_after: float) -> TaskHistory:
    script = Script().note(1.0, "requeued", "w0.1/2", id="a", delay=delay)
    return script.note(1.0 + came_after, "arrived", "w0.1/2", id="a").history()


def test_a_message_that_comes_back_before_its_time_was_woken():
    assert count_woken(requeued(1.0, 0.3)) == 1
    assert count_woken(requeued(1.0, 1.01)) == 0
