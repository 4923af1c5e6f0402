"""Beats that stand by for each other run each tick once, whatever becomes of the leader."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable

import pytest

from tests.acceptance.apps.visible import instant
from tests.acceptance.beat.beats import LEADER, REDLOCK, TASKS, Beat
from tests.acceptance.beat.checker import (
    Fault,
    Gap,
    check_arrival,
    check_dated,
    check_gaps,
    check_grid,
    check_once,
    check_reigns,
    check_repeats,
    check_succession,
    find_gaps,
)
from tests.acceptance.beat.conftest import StartBeat
from tests.acceptance.beat.history import History, since_due
from tests.acceptance.beat.scenes import Watch, assert_none, end_all, entry, settled
from tests.acceptance.conftest import PauseNodes
from tests.acceptance.scene import Journal
from tests.acceptance.worker import Worker
from tests.support.waiting import TIMEOUT

pytestmark = pytest.mark.full

DURATION = 60.0
EVERY = 1.0
TTL = 5.0
RETRY = TTL / 6
# So many ticks of a leader before something becomes of it.
REIGN = 4


class Troupe:
    """Three beats, of which one leads; who is lost is replaced."""

    def __init__(self, start: Callable[[], Beat], journal: Journal) -> None:
        self._start = start
        self.beats = [start() for _ in range(3)]
        self.watch = Watch(journal, self.beats)
        self.faults: list[Fault] = []

    def kill_leader(self) -> None:
        leader, token = self.watch.leader
        leader.kill()
        self._note("it was killed", token, TTL + EVERY)
        self._replace()

    def freeze_leader(self) -> None:
        leader, token = self.watch.leader
        leader.freeze()
        self._note("it was stopped for longer than its TTL", token, TTL + EVERY)
        self.watch.wait_until_sent(REIGN // 2)
        leader.thaw()

    def end_leader(self) -> None:
        leader, token = self.watch.leader
        leader.end()
        self._note("it was ended cleanly", token, RETRY + EVERY, is_sudden=False)
        self._replace()

    def time_lost(self, gap: Gap, fault: Fault | None, history: History) -> float:
        """Return how long those who should have closed a gap did not get to run."""
        sent = {message.id: message for message in reversed(history.sent)}
        before, after = sent.get(gap.before.id), sent.get(gap.after.id)
        since = since_due(gap.before)
        until = after.at if after else gap.after.began
        culprits = [
            beat
            for beat in self.beats
            if before is None or (beat.name == before.beat) == (fault is None)
        ]
        # Any of those that stand by could have closed it.
        return min(beat.pulse.lost(since, until) for beat in culprits)

    def _note(self, what: str, token: int, longest: float, *, is_sudden: bool = True) -> None:
        fault = Fault(what=what, token=token, longest=longest, is_sudden=is_sudden)
        self.faults.append(fault)
        self.watch.wait_for_leader_after(token)

    def _replace(self) -> None:
        self.beats.append(self.watch.add(self._start()))


@pytest.mark.timeout(10 * TIMEOUT)
def test_three_beats_run_each_tick_once_whatever_becomes_of_the_leader(
    worker: Worker,
    key: str,
    journal: Journal,
    start_beat: StartBeat,
    pause_nodes: PauseNodes,
) -> None:
    # One lock node is down all the time, in the way that costs most: it accepts, and never answers.
    pause_nodes(1)
    troupe = Troupe(
        lambda: start_beat(
            worker,
            entry("beat.tick", key, "job", EVERY),
            scheduler=REDLOCK,
            conf={"redlock_beat_ttl": TTL},
            include=(TASKS, LEADER),
        ),
        journal,
    )
    troupe.watch.wait_until_sent()

    end = instant() + DURATION
    for befall in itertools.cycle([troupe.kill_leader, troupe.freeze_leader, troupe.end_leader]):
        troupe.watch.wait_until_sent(REIGN)
        if instant() > end:
            break
        befall()
    end_all(*troupe.beats)

    history = settled(worker, journal)
    gaps = list(find_gaps(history.runs, EVERY))
    excused: list[str] = []

    def lost(gap: Gap, fault: Fault | None) -> float:
        seconds = troupe.time_lost(gap, fault, history)
        excused.append(f"{gap.length:g} s without a tick, {seconds:.2f} s of them without a CPU")
        return seconds

    assert_none(check_dated(history.runs))
    assert_none(check_grid(history.runs, EVERY))
    assert_none(check_once(history.runs))
    assert_none(check_arrival(history, excused=["tick_superseded"]))
    assert_none(check_reigns(history))
    assert_none(check_repeats(history, troupe.faults))
    assert_none(check_succession(history.runs))
    assert_none(check_gaps(gaps, EVERY, troupe.faults, lost=lost))
    for fault in troupe.faults:
        print(f"leader {fault.token}: {fault.what}")
    for gap in gaps:
        print(f"{gap.missed} ticks missing in {gap.length:g} s after leader {gap.before.token}")
    for told in excused:
        warnings.warn(f"this machine is too busy to judge a gap by: {told}", stacklevel=1)
    assert len({run.token for run in history.runs}) > len(troupe.faults) >= 3
