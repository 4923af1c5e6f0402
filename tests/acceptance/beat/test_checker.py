"""The checks must see what they are there for: each rule fires on a history made for it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from tests.acceptance.apps.beat_pulse import PULSE
from tests.acceptance.beat.checker import (
    Fault,
    Gap,
    Violation,
    check_arrival,
    check_dated,
    check_exclusion,
    check_gaps,
    check_grid,
    check_once,
    check_reigns,
    check_repeats,
    check_succession,
    find_gaps,
)
from tests.acceptance.beat.history import (
    History,
    Pulse,
    Run,
    Sent,
    date_by_sending,
    read_history,
    wall,
)


def run(due: float | None, **changes: Any) -> Run:
    """A body of half a second that began a little after its tick was due."""
    began = changes.pop("began", (due or 0) + 0.01)
    values = {"entry": "e", "id": f"id-{due}", "began": began, "ended": began + 0.5}
    return Run(due=due, **{**values, **changes})


def sent(due: float | None, **changes: Any) -> Sent:
    values = {"beat": "b", "entry": "e", "id": f"id-{due}", "at": due or 0}
    return Sent(due=due, **{**values, **changes})


def told(violations: Iterable[Violation]) -> list[str]:
    return [violation.what for violation in violations]


def test_a_clean_history_breaks_no_rule() -> None:
    history = History(
        runs=[run(float(due)) for due in range(10)], sent=[sent(float(due)) for due in range(10)]
    )

    assert told(check_once(history.runs)) == []
    assert told(check_dated(history.runs)) == []
    assert told(check_grid(history.runs, 1.0)) == []
    assert told(check_arrival(history)) == []
    assert told(check_exclusion(history.runs)) == []
    assert told(check_gaps(find_gaps(history.runs, 1.0), 1.0)) == []


def test_a_tick_that_ran_twice_is_found() -> None:
    twice = [run(1.0), run(2.0, id="one"), run(2.0, id="two", began=9.0)]

    (found,) = check_once(twice)

    assert found.what == "e due at 2.0 ran 2 times"
    assert [copy.id for copy in found.shown_by] == ["one", "two"]


def test_a_tick_that_the_very_same_message_ran_twice_for_is_found() -> None:
    assert len(list(check_once([run(2.0), run(2.0)]))) == 1


def test_due_times_that_differ_by_a_rounding_are_one_tick() -> None:
    assert len(list(check_once([run(2.0), run(2.0000001)]))) == 1


def test_entries_that_are_due_at_the_same_time_are_different_ticks() -> None:
    assert list(check_once([run(2.0), run(2.0, entry="other")])) == []


def test_a_body_without_a_tick_is_found() -> None:
    assert told(check_dated([run(None)])) == ["e ran for none"]


def test_a_due_time_off_the_grid_is_found() -> None:
    assert told(check_grid([run(2.0), run(3.01)], 1.0)) == [
        "e was due at 3.01, with an interval of 1.0 s"
    ]


def test_a_tick_that_was_sent_and_never_ran_is_found() -> None:
    history = History(runs=[run(1.0)], sent=[sent(1.0), sent(2.0)])

    assert told(check_arrival(history)) == ["e due at 2.0 was sent by b in vain"]


def test_a_tick_that_was_dropped_for_a_reason_that_counts_is_excused() -> None:
    history = History(sent=[sent(2.0)], news={"id-2.0": ["task_requeued", "tick_superseded"]})

    assert told(check_arrival(history, excused=["tick_superseded"])) == []
    assert len(list(check_arrival(history, excused=["task_skipped"]))) == 1


def test_a_second_message_for_a_tick_that_ran_is_not_in_vain() -> None:
    history = History(runs=[run(1.0)], sent=[sent(1.0), sent(1.0, id="another", beat="c")])

    assert list(check_arrival(history)) == []


def test_missing_ticks_are_counted_and_measured_by_due_times() -> None:
    (gap,) = find_gaps([run(1.0), run(2.0), run(6.0), run(7.0)], 1.0)

    assert (gap.missed, gap.length) == (3, 4.0)


def test_gaps_are_found_whatever_the_order_of_the_bodies() -> None:
    assert [gap.missed for gap in find_gaps([run(6.0), run(1.0), run(2.0)], 1.0)] == [3]


def test_each_entry_has_its_own_gaps() -> None:
    assert list(find_gaps([run(1.0), run(2.0, entry="other"), run(2.0)], 1.0)) == []


def test_a_missing_tick_of_one_leader_is_found() -> None:
    gaps = find_gaps([run(1.0, token=1), run(3.0, token=1)], 1.0)

    (found,) = check_gaps(gaps, 1.0, [Fault(what="a kill", token=1, longest=6.0)])

    assert found.rule == "no tick is missing while a leader is there"


def test_a_gap_after_a_leader_to_whom_nothing_was_done_is_found() -> None:
    gaps = find_gaps([run(1.0, token=2), run(3.0, token=3)], 1.0)

    assert len(list(check_gaps(gaps, 1.0, [Fault(what="a kill", token=1, longest=6.0)]))) == 1


def test_missing_ticks_of_plain_beats_are_found() -> None:
    assert len(list(check_gaps(find_gaps([run(1.0), run(3.0)], 1.0), 1.0))) == 1


@pytest.mark.parametrize(("after", "violations"), [(7.0, 0), (8.0, 1)])
def test_a_gap_after_a_fault_may_be_as_long_as_promised_and_no_longer(
    after: float, violations: int
) -> None:
    gaps = find_gaps([run(1.0, token=1), run(after, token=2)], 1.0)

    found = list(check_gaps(gaps, 1.0, [Fault(what="a kill", token=1, longest=6.0)]))

    assert len(found) == violations


@pytest.mark.parametrize(("lost", "violations"), [(0.4, 1), (0.6, 0)])
def test_a_machine_that_withheld_at_least_half_the_time_excuses_a_gap(
    lost: float, violations: int
) -> None:
    gaps = find_gaps([run(1.0), run(3.0)], 1.0)

    assert len(list(check_gaps(gaps, 1.0, lost=lambda gap, fault: lost))) == violations


def test_whom_a_fault_befell_is_known_when_the_time_is_asked_for() -> None:
    asked: list[tuple[Gap, Fault | None]] = []
    gaps = list(find_gaps([run(1.0, token=1), run(9.0, token=2)], 1.0))
    fault = Fault(what="a kill", token=1, longest=6.0)

    list(check_gaps(gaps, 1.0, [fault], lost=lambda *facts: asked.append(facts) or 9.0))

    assert asked == [(gaps[0], fault)]


def test_a_body_that_ran_for_a_leader_of_the_past_is_found() -> None:
    late = History(
        runs=[run(1.0, token=1), run(4.0, token=2), run(2.0, token=1)],
        sent=[
            sent(1.0, token=1),
            sent(4.0, token=2),
            sent(2.0, token=1, at=5.0),
        ],
    )

    (found,) = check_reigns(late)

    assert found.what == "e due at 2.0 ran for leader 1, after 2 had begun"


def test_a_message_of_the_past_whose_tick_ran_for_the_newer_leader_did_no_harm() -> None:
    late = History(runs=[run(4.0, token=2)], sent=[sent(4.0, token=2), sent(4.0, token=1, at=5.0)])

    assert list(check_reigns(late)) == []


def test_a_tick_that_two_leaders_sent_is_found() -> None:
    history = History(sent=[sent(1.0, token=1), sent(1.0, token=2)])

    assert told(check_repeats(history)) == ["e due at 1.0 was sent twice"]


def test_a_tick_that_one_leader_sent_twice_is_found() -> None:
    history = History(sent=[sent(1.0, token=1), sent(1.0, token=1)])

    fault = Fault(what="a kill", token=1, longest=6.0)
    assert len(list(check_repeats(history, [fault]))) == 1


def test_only_the_last_tick_of_a_leader_that_fell_suddenly_may_be_sent_again() -> None:
    kill = Fault(what="a kill", token=1, longest=6.0)
    end = Fault(what="an end", token=1, longest=2.0, is_sudden=False)
    last = History(sent=[sent(1.0, token=1), sent(2.0, token=1), sent(2.0, token=2)])
    earlier = History(sent=[sent(1.0, token=1), sent(2.0, token=1), sent(1.0, token=2)])

    assert list(check_repeats(last, [kill])) == []
    assert len(list(check_repeats(last, [end]))) == 1
    assert len(list(check_repeats(earlier, [kill]))) == 1


def test_a_tick_of_a_former_leader_after_one_of_a_newer_leader_is_found() -> None:
    runs = [run(1.0, token=1), run(2.0, token=2), run(3.0, token=1)]

    assert told(check_succession(runs)) == ["1 after 2"]
    assert told(check_succession([runs[0], runs[1], run(3.0, token=2)])) == []


def test_bodies_that_run_at_once_are_found() -> None:
    first, second, third = run(1.0, ended=4.0), run(2.0, began=3.9, ended=5.0), run(5.5)

    (found,) = check_exclusion([third, second, first])

    assert list(found.shown_by) == [first, second]


def test_a_body_that_never_ended_overlaps_with_all_that_follow() -> None:
    assert len(list(check_exclusion([run(1.0, ended=None), run(50.0)]))) == 1


def test_a_body_that_begins_as_another_ends_does_not_overlap() -> None:
    assert list(check_exclusion([run(1.0, began=1.0, ended=2.0), run(2.0, began=2.0)])) == []


def test_bodies_of_different_entries_may_run_at_once() -> None:
    assert list(check_exclusion([run(1.0), run(1.0, entry="other")])) == []


def test_the_end_of_a_body_is_matched_to_the_process_that_it_began_in() -> None:
    begin = {"event": "began", "entry": "e", "due": 1.0, "token": None, "id": "i"}
    notes = [
        {**begin, "at": 1.0, "pid": 7},
        {**begin, "at": 2.0, "pid": 8},
        {"event": "ended", "at": 3.0, "id": "i", "by": None, "pid": 8},
    ]

    history = read_history(notes)

    assert [(each.pid, each.ended) for each in history.runs] == [(7, None), (8, 3.0)]
    assert len(list(check_once(history.runs))) == 1


def test_bodies_that_nothing_dates_are_dated_by_their_sending() -> None:
    moment = wall(100.0)
    history = History(runs=[run(None, id="i")], sent=[sent(None, id="i", at=100.0)])

    (dated,) = date_by_sending(history, 5.0).runs

    assert dated.due is not None
    assert dated.due % 5.0 == 0
    assert 0 <= moment - dated.due < 5.1


def test_a_pulse_tells_for_how_long_a_process_did_not_run() -> None:
    steady = [n * PULSE for n in range(100)]
    stopped = [stamp for stamp in steady if not 1.0 < stamp < 3.0]

    assert Pulse(steady).lost(0.5, 3.5) == pytest.approx(0)
    assert Pulse(stopped).lost(0.5, 3.5) == pytest.approx(2.0 - PULSE, abs=PULSE)


def test_a_process_without_a_pulse_did_not_run() -> None:
    assert Pulse([]).lost(1.0, 3.0) == pytest.approx(2.0 - PULSE)
