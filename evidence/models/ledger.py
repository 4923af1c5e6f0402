"""
What states of a schedule are made of, and what must hold in them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from celery_redlock.protocol.votes import VersionedValue
from celery_redlock.tasks.ticks.entry_state import EntryState
from evidence.models.copies import Copy, Write
from evidence.models.leader_steps import SECOND, Memory

NOTHING: Write = (0, -1)

#: The token of its leader, its tick in seconds, and its end: `sent` (none yet), `ran`, `late` or
#: `copy`.
Message = tuple[int, int, str]


@dataclass(frozen=True, slots=True)
class Leadership:
    """
    Where one leader stands.

    Attributes:
        stands: idle, claims, leads, chose, writes or over.
        memory: its records, once it has claimed.
        found: the newest write that its claim returned.
        base: up to where it found the entry done when it took over, in µs.
        due: the tick that it is about to send.
        attempted: too few nodes answered when it tried to write what is unwritten.
    """

    stands: str = "idle"
    memory: Memory | None = None
    found: Write = NOTHING
    base: int = 0
    due: int = 0
    attempted: bool = False


@dataclass(frozen=True, slots=True)
class Scene:
    """
    What all share.

    Attributes:
        time: the clock, in seconds.
        forgets: how many nodes may yet lose their data.
        gives_up: how often leaders may yet stop to wait.
        messages: those sent, in order of their tokens.
    """

    time: int = 0
    forgets: int = 0
    gives_up: int = 0
    messages: tuple[Message, ...] = ()


@dataclass(frozen=True, slots=True)
class History:
    """
    What has happened so far.

    Attributes:
        writes: what a quorum of nodes has acknowledged, then or ever.
        leaders: by their tokens.
    """

    writes: frozenset[Write]
    leaders: tuple[tuple[int, Leadership], ...]


def on_a_quorum(copies: Iterable[Copy], needed: int) -> frozenset[Write]:
    """Return the writes that a quorum of nodes has acknowledged, then or ever."""
    counts = Counter(write for copy in copies for write in copy.done)
    return frozenset(write for write, count in counts.items() if count >= needed)


def missed_by_a_claim(history: History) -> str:
    """Tell whether something is on a quorum that a newer leader's claim has not returned."""
    for token, leader in history.leaders:
        if leader.memory is None:
            continue
        for write in history.writes:
            if write[0] < token and write > leader.found:
                return (
                    f"a quorum has the tick of {write[1] // SECOND} s by token {write[0]}, which "
                    f"the claim of token {token} has not returned"
                )
    return ""


def sent_again(history: History, token: int, due: int) -> str:
    """Tell whether a leader sends a tick that an earlier one has recorded on a quorum."""
    if any(by < token and recorded >= due * SECOND for by, recorded in history.writes):
        return f"the tick of {due} s is sent again although a quorum knew it"
    return ""


def ran_twice(messages: Iterable[Message]) -> str:
    """Tell whether a tick has two bodies."""
    bodies = Counter(due for _, due, end in messages if end == "ran")
    return next((f"the tick of {due} s has two bodies" for due in bodies if bodies[due] > 1), "")


def ran_late(history: History, token: int, due: int) -> str:
    """
    Tell whether a superseded leader's message runs after a newer one has recorded the entry.

    It may if that one found the tick done when it took over.
    """
    for newer, leader in history.leaders:
        # To repeat the record that it found is no record of its own.
        own = any(by == newer and at != leader.found[1] for by, at in history.writes)
        if newer > token and own and due * SECOND > leader.base:
            return (
                f"the tick of {due} s by token {token} runs although token {newer}, which found "
                f"the entry at {leader.base // SECOND} s, has recorded it"
            )
    return ""


def dropped_for_nothing(
    messages: Iterable[Message], history: History, token: int, due: int, recorded: VersionedValue
) -> str:
    """Tell whether a tick is dropped as late, and nobody answers for it."""
    if not any(
        newer > token and leader.memory is not None and leader.base < due * SECOND
        for newer, leader in history.leaders
    ):
        return f"the tick of {due} s is dropped, which every newer leader found done"
    state = EntryState.read(recorded)
    assert state is not None
    if state.due_us < due * SECOND:
        return ""  # whoever leads from there will send it
    if any(newer > token and sent >= due for newer, sent, _ in messages):
        return ""
    return f"the tick of {due} s is dropped, and nobody has sent it or a later one instead"
