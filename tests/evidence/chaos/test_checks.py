"""The checks must see what they are there for: each rule fires on a history made for it."""

from __future__ import annotations

from typing import Any

import pytest

from evidence.chaos.checks import (
    check_exclusion,
    check_guarded,
    check_limits,
    check_losses,
    check_order,
    check_tokens,
    find_overlaps,
    find_stale_writes,
)
from evidence.chaos.history import History, Hold, Pause, build_history
from evidence.chaos.resources import Record

pytestmark = pytest.mark.full


def hold(worker: str, granted: float, token: int, **changes: Any) -> Hold:
    values = {
        "id": f"{worker}.{token}",
        "worker": worker,
        "key": "k",
        "invoked": granted - 0.01,
        "granted": granted,
        "token": token,
        "until": granted + 1.0,
        "releasing": granted + 0.5,
    }
    return Hold(**{**values, **changes})


def history(*holds: Hold, pauses: tuple[Pause, ...] = (), **killed: float) -> History:
    return History(holds=list(holds), pauses=list(pauses), killed=killed, events=[])


def write(t: float, hold: Hold, base: str, over: str, value: int, **changes: Any) -> Record:
    written = {"base": base, "over": over, "value": value, "latest": hold.id}
    return Record(t=t, step="write", hold=hold.id, **written, **changes)


FIRST = Record(t=0.0, step="write", hold="")


def test_holds_that_follow_each_other_break_no_rule():
    calm = [hold("a", 1.0, 10), hold("b", 1.6, 11), hold("a", 2.2, 12)]
    assert list(find_overlaps(calm)) == []
    assert list(check_exclusion(calm, [])) == []
    assert list(check_tokens(calm)) == []
    assert list(check_order(calm)) == []
    assert list(check_losses(history(*calm))) == []


def test_two_holders_that_both_trust_their_lease_are_an_overlap():
    (overlap,) = find_overlaps([hold("a", 1.0, 10), hold("b", 1.2, 11)])
    assert (overlap.start, overlap.end) == (1.2, 1.5)


def test_a_frozen_holder_overlaps_nobody_once_its_trust_has_ended():
    frozen = hold("a", 1.0, 10, releasing=4.0)
    assert list(find_overlaps([frozen, hold("b", 2.1, 11)])) == []


def test_a_grant_before_a_killed_holders_trust_has_ended_is_found():
    dead = hold("a", 1.0, 10, releasing=None, lost=1.1)
    after = hold("b", 1.7, 11)
    assert list(find_overlaps([dead, after])) == []
    (violation,) = check_exclusion([dead, after], [])
    assert "another was granted for longer" in violation.rule


def test_as_many_holders_of_slots_as_the_limit_break_no_rule():
    slots = [hold("a", 1.0, 10, key="k#0"), hold("b", 1.2, 10, key="k#1")]
    later = hold("c", 1.6, 11, key="k#0")
    assert list(check_limits([*slots, later], {"k": 2})) == []
    assert list(find_overlaps([*slots, later])) == []
    assert list(check_tokens([*slots, later])) == []


def test_one_holder_more_than_the_limit_is_found_whatever_its_slot():
    holds = [hold("a", 1.0, 10, key="k#0"), hold("b", 1.2, 11, key="k#1")]
    (violation,) = check_limits([*holds, hold("c", 1.4, 12, key="k#2")], {"k": 2})
    assert violation.rule == "at most as many as its limit hold a key"


def test_a_token_that_is_given_twice_is_found():
    (violation,) = check_tokens([hold("a", 1.0, 10), hold("b", 1.005, 10)])
    assert violation.rule == "tokens are unique"


def test_a_smaller_token_for_a_later_grant_is_found():
    holds = [hold("a", 1.0, 10), hold("b", 2.0, 12), hold("c", 3.0, 11)]
    (violation,) = check_tokens(holds)
    assert violation.rule == "tokens increase in the order of grants"
    (violation,) = check_order(holds)
    assert violation.rule == "tokens increase in the order of holds"


def test_a_grant_that_is_noted_after_its_end_has_no_place_in_the_order():
    holds = [
        hold("1.1", 2.0, 8, until=3.0, releasing=2.1),
        hold("2.1", 2.5, 7, invoked=0.5, until=1.5),
    ]
    assert list(check_order(holds)) == []


def test_a_loss_that_is_never_told_is_found():
    (violation,) = check_losses(history(hold("a", 1.0, 10, releasing=2.3)))
    assert "loss is reported" in violation.rule


def test_a_late_report_is_excused_by_a_pause_at_that_time_only():
    late = hold("a", 1.0, 10, releasing=2.3)
    then = Pause(worker="a", start=1.9, end=2.2, stall=False)
    before = Pause(worker="a", start=1.1, end=1.3, stall=False)
    assert list(check_losses(history(late, pauses=(then,)))) == []
    assert len(list(check_losses(history(late, pauses=(before,))))) == 1


def test_a_killed_holder_owes_no_report():
    assert list(check_losses(history(hold("a", 1.0, 10, releasing=None), a=1.4))) == []


def test_a_write_over_something_unread_by_one_who_trusts_its_lease_is_the_locks_fault():
    a, b = hold("a", 1.0, 10), hold("b", 1.2, 11)
    records = [FIRST, write(1.3, a, "0", "0", 1), write(1.4, b, "0", a.id, 1)]
    (stale,) = find_stale_writes("k", records, history(a, b))
    assert (stale.lost, stale.trusted, stale.cause) == (1, True, "in trust")


def test_a_write_by_one_who_was_frozen_after_its_check_is_the_known_limit():
    a, b, c = hold("a", 1.0, 10, releasing=3.1), hold("b", 2.1, 11), hold("c", 2.7, 12)
    records = [
        FIRST,
        write(2.2, b, "0", "0", 1),
        write(2.8, c, b.id, b.id, 2),
        write(3.0, a, "0", c.id, 1),
    ]
    frozen = Pause(worker="a", start=1.5, end=2.9, stall=False)
    (stale,) = find_stale_writes("k", records, history(a, b, c, pauses=(frozen,)))
    assert (stale.lost, stale.trusted, stale.cause) == (2, False, "stopped")


def test_who_overwrites_such_an_intruder_is_not_to_blame():
    a, b = hold("a", 1.0, 10, releasing=2.3), hold("b", 2.1, 11)
    records = [FIRST, write(2.2, a, "0", "0", 1), write(2.4, b, "0", a.id, 1)]
    frozen = Pause(worker="a", start=1.5, end=2.15, stall=False)
    (stale,) = find_stale_writes("k", records, history(a, b, pauses=(frozen,)))
    assert (stale.lost, stale.trusted, stale.cause) == (1, False, "stopped")


def test_a_guard_that_lets_an_old_token_pass_is_found():
    a, b = hold("a", 1.0, 10), hold("b", 2.0, 11)
    records = [
        FIRST,
        write(2.1, b, "0", "0", 1, token=11, highest=11),
        write(2.2, a, b.id, b.id, 2, token=10, highest=11),
    ]
    (violation,) = check_guarded("k", records)
    assert violation.rule == "a guard accepts no token below the highest it has seen"


def test_a_lost_update_behind_a_guard_is_found_twice_over():
    a, b = hold("a", 1.0, 10), hold("b", 2.0, 11)
    records = [
        FIRST,
        write(1.1, a, "0", "0", 1, token=10, highest=10),
        write(2.1, b, "0", a.id, 1, token=11, highest=11),
    ]
    rules = [violation.rule for violation in check_guarded("k", records)]
    assert rules == ["no update is lost behind a guard"] * 2


def test_a_history_is_put_together_from_the_lines_of_workers_and_nemesis():
    built = build_history(
        [
            {"t": 1.0, "event": "invoked", "worker": "0.1", "hold": "0.1.1", "key": "k"},
            {
                "t": 1.1,
                "event": "granted",
                "worker": "0.1",
                "hold": "0.1.1",
                "key": "k",
                "token": 7,
                "until": 2.0,
            },
            {"t": 1.4, "event": "extended", "worker": "0.1", "hold": "0.1.1", "until": 2.3},
            {"t": 1.5, "event": "stopping", "worker": "0.1"},
            {"t": 3.0, "event": "continued", "worker": "0.1"},
            {"t": 3.1, "event": "lost", "worker": "0.1", "hold": "0.1.1", "until": 2.3},
            {"t": 3.2, "event": "releasing", "worker": "0.1", "hold": "0.1.1", "until": 2.3},
        ]
    )
    (only,) = built.holds
    assert (only.invoked, only.granted, only.until, only.end) == (1.0, 1.1, 2.3, 2.3)
    assert built.paused("0.1", 2.0, 2.1) == Pause(worker="0.1", start=1.5, end=3.0, stall=False)
