"""What leaders record of an entry tells which messages come too late."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any

import pytest

from celery_redlock.tasks.message.tick import Tick
from celery_redlock.tasks.ticks.entry_state import EntryState, is_superseded


@dataclass(frozen=True, kw_only=True)
class Recorded:
    token: int
    text: str
    version: int = 0


def recorded(state: EntryState, token: int) -> Any:
    return Recorded(token=token, text=state.write())


def tick(due: float, token: int | None, part: str | None = None) -> Tick:
    return Tick(entry="nightly", due=due, schedule="beat:app", token=token, part=part)


FIRST = EntryState(due=100.0, ran_at=100.2, count=0, token=5).after(101.0, 101.2, token=5)
#: Token 5 has recorded tick 101 and token 8 took over then.
SECOND = FIRST.after(105.0, 105.3, token=8)


#: Token 8 has sent two messages of tick 110 and not all.
BEGUN = SECOND.with_part(tick(110.0, 8), token=8).with_part(tick(110.0, 8, "p1"), token=8)


@pytest.mark.parametrize("state", [SECOND, BEGUN, SECOND.scheduled(None), BEGUN.scheduled(111.0)])
def test_a_state_survives_its_record(state: EntryState) -> None:
    assert EntryState.read(recorded(state, 8)) == state


def test_a_leader_that_repeats_a_record_does_not_count_as_the_one_that_recorded_the_tick() -> None:
    read = EntryState.read(recorded(SECOND, 9))
    assert read is not None
    assert read.token == 8


def test_a_begun_tick_does_not_count() -> None:
    assert (BEGUN.due, BEGUN.count) == (SECOND.due, SECOND.count)


def test_a_message_of_a_begun_tick_is_known_by_its_part() -> None:
    sent = [part for part in (None, "p1", "p2") if BEGUN.has_sent(tick(110.0, 9, part))]
    assert sent == [None, "p1"]


def test_another_tick_has_messages_of_its_own() -> None:
    assert not BEGUN.has_sent(tick(111.0, 9))
    later = BEGUN.with_part(tick(111.0, 9, "p2"), token=9)
    assert [later.has_sent(tick(due, 9, "p1")) for due in (110.0, 111.0)] == [False, False]


def test_each_record_of_a_begun_tick_has_a_later_version() -> None:
    later = BEGUN.with_part(tick(111.0, 8), token=8)
    whole = later.after(111.0, 111.2, token=8)
    versions = [state.version for state in (SECOND, BEGUN, later, whole)]
    assert versions == sorted(set(versions))


def test_a_tick_that_was_sent_whole_is_no_longer_begun() -> None:
    assert BEGUN.after(110.0, 110.2, token=8).begun_parts == ()


def test_a_return_to_the_schedule_has_a_later_version_and_is_over_with_the_next_tick() -> None:
    away = SECOND.scheduled(None)
    back = away.scheduled(110.0)
    after = back.after(111.0, 111.2, token=8)
    states = (SECOND, away, back, after)
    assert [state.is_scheduled for state in states] == [True, False, True, True]
    assert [state.returned_at for state in (back, after)] == [110.0, 0.0]
    versions = [state.version for state in states]
    assert versions == sorted(set(versions))


def test_of_very_many_messages_the_first_are_recorded() -> None:
    state = replace(SECOND, begun_us=110_000_000, begun_parts=("p",) * 10_000)
    assert len(state.with_part(tick(110.0, 8), token=8).begun_parts) == 10_000


def test_what_was_sent_of_a_tick_is_not_late_where_a_successor_sends_the_rest() -> None:
    rest = BEGUN.with_part(tick(110.0, 9, "p2"), token=9)
    whole = rest.after(110.0, 110.3, token=9)
    for state in (rest, whole):
        assert not is_superseded(tick(110.0, 8, "p1"), recorded(state, 9))
        assert is_superseded(tick(111.0, 8), recorded(state, 9))


def test_each_tick_counts() -> None:
    assert (FIRST.count, SECOND.count) == (1, 2)


def test_a_takeover_notes_the_last_tick_of_the_leader_before() -> None:
    assert SECOND.takeovers == ((8, 101_000_000),)


def test_a_leader_notes_its_takeover_once() -> None:
    later = SECOND.after(106.0, 106.1, token=8)
    assert later.takeovers == SECOND.takeovers


def test_only_the_newest_takeovers_are_kept() -> None:
    state = FIRST
    for token in range(10, 60):
        state = state.after(float(token), float(token), token=token)
    assert [token for token, _ in state.takeovers] == list(range(44, 60))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "null",
        "[]",
        "{}",
        "[" * 100_000,
        json.dumps({"due": "x", "ran_at": 1, "count": 1, "takeovers": []}),
        json.dumps({"due": -1, "ran_at": 1, "count": 1, "takeovers": []}),
        '{"due": 1e999, "ran_at": 1, "count": 1, "takeovers": []}',
        '{"due": 1, "ran_at": 1, "count": 1e999, "takeovers": []}',
        json.dumps({"due": 1, "ran_at": 1, "count": 1, "takeovers": [1]}),
        json.dumps({"due": 1, "ran_at": 1, "count": 1, "takeovers": [[1, 2, 3]]}),
        json.dumps({"due": 1, "ran_at": 1, "count": 1, "takeovers": [], "begun": [1]}),
        json.dumps({"due": 1, "ran_at": 1, "count": 1, "takeovers": [], "begun": [1, 2]}),
    ],
)
def test_what_makes_no_sense_is_no_state(text: str) -> None:
    assert EntryState.read(Recorded(token=8, text=text)) is None  # type: ignore[arg-type]


def test_what_a_superseded_leader_sends_for_its_successors_ticks_is_late() -> None:
    assert is_superseded(tick(105.0, 5), recorded(SECOND, 8))


def test_what_it_sent_before_it_was_superseded_is_not_late_however_late_it_arrives() -> None:
    assert not is_superseded(tick(101.0, 5), recorded(SECOND, 8))


def test_the_leaders_own_ticks_are_not_late() -> None:
    assert not is_superseded(tick(105.0, 8), recorded(SECOND, 8))


def test_the_ticks_of_a_leader_that_nobody_has_seen_yet_are_not_late() -> None:
    assert not is_superseded(tick(106.0, 9), recorded(SECOND, 8))


def test_the_first_successor_answers_for_what_an_older_leader_sends() -> None:
    third = SECOND.after(110.0, 110.0, token=9)
    assert is_superseded(tick(103.0, 5), recorded(third, 9))
    assert not is_superseded(tick(103.0, 8), recorded(third, 9))


def test_a_tick_of_a_plain_beat_is_never_late() -> None:
    assert not is_superseded(tick(105.0, None), recorded(SECOND, 8))


def test_nothing_is_late_without_a_record() -> None:
    assert not is_superseded(tick(105.0, 5), None)


def test_nothing_is_late_where_the_record_is_damaged() -> None:
    assert not is_superseded(tick(105.0, 5), Recorded(token=8, text="{}"))
