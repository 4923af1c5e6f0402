"""What a leader keeps of the entries, and what of it is on the nodes."""

from __future__ import annotations

import pytest

from celery_redlock import QuorumUnavailable, Redlock, StaleFencingToken
from celery_redlock.beat.leader_record import LEADER_FIELD, LeaderInfo
from celery_redlock.beat.schedule_state import ScheduleState
from celery_redlock.core import Register, VersionedValue, client_of
from celery_redlock.tasks.ticks.entry_state import EntryState
from tests.unit.beat.world import World

LEADER = LeaderInfo(host="here", pid=7, since=1_773_144_000.0, token=10)


@pytest.fixture
def redlock(world: World) -> Redlock:
    return Redlock([node.name for node in world.nodes])


def records(redlock: Redlock, token: int) -> ScheduleState:
    now = client_of(redlock).transport.now
    register = Register(client_of(redlock), "schedule")
    return ScheduleState(register, token, pause=2.0, now=now, wall=now)


@pytest.fixture
def first(redlock: Redlock) -> ScheduleState:
    """The state of the first leader, which has claimed the schedule."""
    first = records(redlock, 10)
    assert first.claim(LEADER) is None
    return first


def written(redlock: Redlock) -> dict[str, EntryState]:
    found = Register(client_of(redlock), "schedule").read()
    found.pop(LEADER_FIELD, None)
    return {name: EntryState.read(one) for name, one in found.items()}  # type: ignore[misc]


def test_the_first_leader_finds_nothing(first: ScheduleState) -> None:
    assert len(first) == 0


def test_the_next_leader_finds_what_was_written_and_by_whom(
    redlock: Redlock, first: ScheduleState
) -> None:
    first.record_sent("job", 100.0)
    first.write()
    second = records(redlock, 11)
    assert second.claim(LEADER) == LEADER
    state = second.entry_state("job")
    assert state is not None
    assert (state.due, state.count) == (100.0, 1)


def test_what_another_leader_has_removed_since_is_not_remembered(
    world: World, redlock: Redlock, first: ScheduleState
) -> None:
    first.record_start("job", client_of(redlock).transport.now(), 1)
    first.write()
    world.time.sleep(2 * DAY)
    second = records(redlock, 11)
    second.claim(LEADER)
    second.note_schedule(())
    second.write()
    third = records(redlock, 12)
    third.claim(LEADER, first.records())
    assert third.entry_state("job") is None


def test_what_is_not_written_yet_is_known_here_all_the_same(
    redlock: Redlock, first: ScheduleState
) -> None:
    first.record_sent("job", 100.0)
    assert first.entry_state("job").due == 100.0  # type: ignore[union-attr]
    assert written(redlock) == {}


def test_what_no_quorum_took_is_written_later(
    world: World, redlock: Redlock, first: ScheduleState
) -> None:
    world.pause_nodes()
    first.record_sent("job", 100.0)
    first.write()
    world.resume_nodes()
    for node in world.nodes:
        node.state.lose_data()
    world.time.sleep(3)
    first.write()
    assert written(redlock)["job"].due == 100.0


def test_nodes_that_do_not_answer_are_not_waited_for_at_each_tick(
    world: World, first: ScheduleState
) -> None:
    world.pause_nodes()
    first.record_sent("job", 100.0)
    first.write()
    before = world.now
    first.write()
    assert world.now == before
    first.write(at_once=True)
    assert world.now > before


def test_that_they_do_not_answer_is_said_once_and_so_is_that_they_do(
    world: World, first: ScheduleState
) -> None:
    world.pause_nodes()
    for due in (100.0, 101.0, 102.0):
        first.record_sent("job", due)
        first.write(at_once=True)
    assert len(world.logged("cannot be recorded")) == 1
    world.resume_nodes()
    first.record_sent("job", 103.0)
    first.write(at_once=True)
    assert len(world.logged("are recorded again")) == 1


def test_an_older_leader_is_refused(redlock: Redlock, first: ScheduleState) -> None:
    records(redlock, 11).claim(LEADER)
    first.record_sent("job", 100.0)
    with pytest.raises(StaleFencingToken):
        first.write()
    with pytest.raises(StaleFencingToken):
        records(redlock, 10).claim(LEADER)


def test_without_a_quorum_nothing_is_known(world: World, redlock: Redlock) -> None:
    world.pause_nodes(3)
    with pytest.raises(QuorumUnavailable):
        records(redlock, 10).claim(LEADER)


def test_an_entry_that_begins_is_written_with_where_it_begins(
    redlock: Redlock, first: ScheduleState
) -> None:
    first.record_start("job", 100.0, 3)
    first.write()
    state = written(redlock)["job"]
    assert (state.due, state.count, state.takeovers) == (100.0, 3, ((10, 100_000_000),))


@pytest.mark.parametrize("last_run", [-62_135_596_800.0, 253_402_300_799.0])
def test_a_last_run_that_no_register_takes_does_no_harm(
    redlock: Redlock, first: ScheduleState, last_run: float
) -> None:
    first.record_start("job", last_run, 0)
    first.write()
    assert written(redlock)["job"].count == 0
    assert not first.is_in_future


def test_ticks_sent_more_than_a_day_ahead_are_noticed(world: World, first: ScheduleState) -> None:
    first.record_sent("job", world.now + 86_000)
    assert not first.is_in_future
    first.record_sent("job", world.now + 87_000)
    assert first.is_in_future


def test_a_leader_writes_again_what_it_has_found(
    world: World, redlock: Redlock, first: ScheduleState
) -> None:
    first.record_sent("job", 100.0)
    first.write()
    second = records(redlock, 11)
    second.claim(LEADER)
    for node in world.nodes:
        node.state.lose_data()
    second.write()
    third = records(redlock, 12)
    assert third.claim(LEADER) == LEADER
    assert third.entry_state("job") == first.entry_state("job")


def test_records_are_repeated_once_a_minute_and_some_at_a_time(
    world: World, redlock: Redlock, first: ScheduleState
) -> None:
    for number in range(1000):
        first.record_start(f"job {number}", 100.0, 0)
    first.write()
    for _ in range(3):
        first.write()
    for node in world.nodes:
        node.state.lose_data()
    world.time.sleep(50)
    first.write()
    assert len(written(redlock)) == 0
    world.time.sleep(11)
    counts = []
    for _ in range(3):
        first.write()
        counts.append(len(written(redlock)))
    assert counts == [400, 800, 1000]


@pytest.mark.parametrize(
    ("found", "due"),
    [
        (None, 100.0),
        (VersionedValue(9, 300_000_000, ""), 100.0),
        (VersionedValue(10, 99_000_000, ""), 100.0),
        (VersionedValue(11, 50_000_000, ""), 50.0),
    ],
    ids=["none", "an older leader's", "an older one of its own", "a newer leader's"],
)
def test_what_a_beat_remembers_of_its_last_leadership_replaces_only_an_older_record(
    world: World, redlock: Redlock, first: ScheduleState, found: VersionedValue | None, due: float
) -> None:
    register = Register(client_of(redlock), "schedule")
    if found is not None:
        state = EntryState(due=found.version / 1_000_000, ran_at=0.0, count=1)
        for node in world.nodes:
            node.state.lose_data()
        register.write(found.token, {"job": (found.version, state.write())})
    first.record_sent("job", 100.0)
    later = records(redlock, 12)
    later.claim(LEADER, first.records())
    assert later.entry_state("job").due == due  # type: ignore[union-attr]


DAY = 86_400.0


def test_a_removed_entry_is_forgotten_after_a_hundred_days(
    world: World, redlock: Redlock, first: ScheduleState
) -> None:
    now = client_of(redlock).transport.now()
    first.record_start("gone", now, 2)
    first.record_start("yearly", now, 1)
    first.write()
    world.time.sleep(101 * DAY)
    first.note_schedule({"yearly"})
    first.write()
    assert written(redlock).keys() == {"yearly"}
    assert first.entry_state("gone") is None


def test_an_entry_that_was_removed_lately_is_remembered(
    world: World, redlock: Redlock, first: ScheduleState
) -> None:
    first.record_start("gone", client_of(redlock).transport.now(), 2)
    first.write()
    world.time.sleep(99 * DAY)
    first.note_schedule(())
    first.write()
    assert written(redlock).keys() == {"gone"}


def test_a_removed_entry_that_ran_at_most_once_is_forgotten_after_a_day(
    world: World, redlock: Redlock, first: ScheduleState
) -> None:
    now = client_of(redlock).transport.now()
    for count, name in enumerate(["never", "once", "twice"]):
        first.record_start(name, now, count)
    first.write()
    world.time.sleep(0.9 * DAY)
    first.note_schedule(())
    first.write()
    assert written(redlock).keys() == {"never", "once", "twice"}
    world.time.sleep(0.2 * DAY)
    first.note_schedule(())
    first.write()
    assert written(redlock).keys() == {"twice"}


def test_an_old_entry_that_cannot_be_written_stops_no_write(
    world: World, redlock: Redlock, first: ScheduleState
) -> None:
    first.record_start("\ud800", client_of(redlock).transport.now(), 1)
    world.time.sleep(101 * DAY)
    first.note_schedule(())
    first.record_start("job", client_of(redlock).transport.now(), 1)
    first.write()
    assert written(redlock).keys() == {"job"}
