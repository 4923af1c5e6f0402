"""What most scenes do: name entries, watch who sends, end beats, wait until all is done, judge."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from tests.acceptance.beat.beats import Beat, Schedule
from tests.acceptance.beat.checker import Violation
from tests.acceptance.beat.history import History, Note, Sent, read_history
from tests.acceptance.scene import Journal
from tests.acceptance.worker import Worker
from tests.support.waiting import TIMEOUT, wait_until

# A scene lasts long and is looked at again and again: not more often than its ticks need.
LOOK_EVERY = 0.1
# Seconds: jobs of several seconds wait for each other in some scenes.
LONGEST_QUEUE = 2 * TIMEOUT
# With this news a message ends without a body.
ENDS = {"task_skipped", "task_gave_up", "redelivery_ignored", "tick_superseded", "tick_missed"}


def entry(task: str, key: str, name: str, schedule: Any = 1.0, **more: Any) -> Schedule:
    """
    Return an entry of a schedule, by its name, for one of the tasks.

    Args:
        task: the task's name.
        key: whose journal its bodies write to.
        name: the beginning of the entry's name. Scenes share lock nodes, and two with one entry and
            clocks that differ would be about the same ticks.
        schedule: an interval in seconds, or the kind of another schedule and its options.
        more: what else stands in the entry.
    """
    name = f"{name} of {key}"
    return {name: {"task": task, "schedule": schedule, "args": [key, name], **more}}


class Watch:
    """
    What beats are sending, while they do.

    Args:
        journal: what they write to.
        beats: all of them; more may be added.
    """

    def __init__(self, journal: Journal, beats: Iterable[Beat]) -> None:
        self._journal = journal
        self._notes: list[Note] = []
        self._beats = {beat.name: beat for beat in beats}

    def add(self, beat: Beat) -> Beat:
        self._beats[beat.name] = beat
        return beat

    @property
    def notes(self) -> list[Note]:
        self._notes += self._journal.entries_from(len(self._notes))
        return self._notes

    @property
    def sent(self) -> list[Note]:
        return [note for note in self.notes if note["event"] == "sent"]

    def wait_until_sent(self, count: int = 1, *, by: Beat | None = None) -> None:
        """Wait until so many messages more have been sent."""
        begin = len(self.sent)
        wait_until(
            lambda: (
                len([note for note in self.sent[begin:] if by is None or note["beat"] == by.name])
                >= count
            ),
            message=lambda: f"{count} more messages{self._told}",
            interval=LOOK_EVERY,
        )

    def wait_until_each_has_sent(
        self, *beats: Beat, count: int = 1, task: str | None = None, timeout: float = TIMEOUT
    ) -> None:
        """Wait until each of these has sent so much since it was started."""

        def sent() -> bool:
            by = [note["beat"] for note in self.sent if task is None or note["task"] == task]
            return all(by.count(beat.name) >= count for beat in beats)

        wait_until(
            sent,
            timeout,
            message=lambda: f"{count} of each of {[beat.name for beat in beats]}{self._told}",
            interval=LOOK_EVERY,
        )

    def wait_for_leader_after(self, token: int) -> Beat:
        """Wait until a newer leader sends, and return it."""
        newer = wait_until(
            lambda: [note for note in self.sent if note["token"] > token],
            message=lambda: f"a leader after {token}{self._told}",
            interval=LOOK_EVERY,
        )
        return self._beats[newer[0]["beat"]]

    @property
    def leader(self) -> tuple[Beat, int]:
        """The beat that sent the last message, and its token."""
        last = self.sent[-1]
        return self._beats[last["beat"]], last["token"]

    @property
    def _told(self) -> str:
        return "\n".join(["", *map(str, self.notes[-20:])])


def end_all(*beats: Beat) -> None:
    """End those beats that still run."""
    for beat in beats:
        if beat.is_running:
            beat.end()


def settled(worker: Worker, journal: Journal) -> History:
    """
    Return the history once every message that was sent has come to its end.

    An empty queue does not tell: a message that waits for its lock is in a process of the worker.
    """

    def unsettled() -> list[Sent]:
        history = read_history(journal.entries)
        ends = Counter(run.id for run in history.runs if run.ended)
        begun = {run.id for run in history.runs}
        for task_id, kinds in history.news.items():
            # A body that a newer call asks to stop has the same news as a message that it replaces.
            of_it = ENDS if task_id in begun else ENDS | {"task_replaced"}
            ends[task_id] += sum(kind in of_it for kind in kinds)
        open_ = Counter(message.id for message in history.sent) - ends
        return [message for message in history.sent if message.id in open_]

    wait_until(
        lambda: worker.queue_is_empty and not unsettled(),
        LONGEST_QUEUE,
        message=lambda: "\n".join(["an end of each of these:", *map(str, unsettled())]),
        interval=LOOK_EVERY,
    )
    return read_history(journal.entries)


def assert_none(violations: Iterable[Violation]) -> None:
    found = [str(violation) for violation in violations]
    assert not found, "\n".join(found)
