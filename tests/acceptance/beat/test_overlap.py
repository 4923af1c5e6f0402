"""A job of five seconds on a schedule of one second, under each policy."""

from __future__ import annotations

import pytest

from tests.acceptance.beat.beats import OVERLAP, TASKS
from tests.acceptance.beat.checker import (
    check_arrival,
    check_dated,
    check_exclusion,
    check_once,
)
from tests.acceptance.beat.conftest import StartBeat
from tests.acceptance.beat.history import History
from tests.acceptance.beat.scenes import Watch, assert_none, entry, settled
from tests.acceptance.scene import Journal
from tests.acceptance.worker import Worker
from tests.support.waiting import wait_until


class Scene:
    """One beat that sends one job, and the worker that runs it."""

    def __init__(self, worker: Worker, journal: Journal, start_beat: StartBeat) -> None:
        self.worker = worker
        self.journal = journal
        self._start = start_beat

    def play(self, policy: str, *, sent: int = 0, begun: int = 0) -> History:
        """Return what happened until the beat had sent so much, and so many bodies had begun."""
        beat = self._start(
            self.worker,
            entry(f"overlap.{policy}", self.journal.key, "job"),
            include=(TASKS, OVERLAP),
        )
        if sent:
            Watch(self.journal, [beat]).wait_until_sent(sent)
        if begun:
            self.journal.wait_for("began", begun)
        beat.end()
        history = settled(self.worker, self.journal)
        assert_none(check_dated(history.runs))
        assert_none(check_once(history.runs))
        return history


@pytest.fixture
def scene(worker: Worker, journal: Journal, start_beat: StartBeat) -> Scene:
    return Scene(worker, journal, start_beat)


def test_jobs_that_come_too_early_are_skipped_visibly(scene: Scene) -> None:
    history = scene.play("skip", begun=3)

    assert_none(check_exclusion(history.runs))
    assert_none(check_arrival(history, excused=["task_skipped"]))
    ran = {run.id for run in history.runs}
    skipped = [message.id for message in history.sent if message.id not in ran]
    # A tick is skipped in each of the seconds of a body but the first.
    assert len(skipped) >= 2 * 3
    for task_id in skipped:
        assert history.news[task_id][-1] == "task_skipped"
        assert task_id in scene.worker.log
        wait_until(lambda task_id=task_id: scene.worker.app.AsyncResult(task_id).successful())


@pytest.mark.full
def test_jobs_that_are_requeued_run_one_after_the_other(scene: Scene) -> None:
    history = scene.play("requeue", sent=3)

    assert_none(check_exclusion(history.runs))
    assert_none(check_arrival(history))
    assert len(history.runs) == len(history.sent) >= 3
    assert {run.by for run in history.runs} == {None}


def test_the_newest_job_runs_and_the_one_before_is_interrupted(
    scene: Scene,
) -> None:
    history = scene.play("stop", begun=3)

    assert_none(check_exclusion(history.runs))
    *before, newest = sorted(history.runs, key=lambda run: run.began)
    assert {run.by for run in before} == {"LeaseLost"}
    assert newest.by is None
    assert newest.due == max(message.due for message in history.sent)
    dues = [run.due for run in history.runs]
    assert dues == sorted(dues)
