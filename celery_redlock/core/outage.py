"""
Outages of lock nodes as a process sees them, and which of their changes are worth a log line.

Two tables, without nodes, threads or a clock. A task that fails for lack of a quorum proves an
outage, unless a quorum is known to have voted since; a poll proves it only the second time, because
a busy process may read replies too late.
While there is no quorum, single nodes that do not vote are not judged: the line about the quorum
names them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto

from celery_redlock.protocol.votes import Granted, Quarantined, Refused, Vote


class Quorum(Enum):
    """The state of the quorum, as far as it is known."""

    VOTES = auto()  #: it voted in the last poll
    IN_DOUBT = auto()  #: it missed in one poll, and no task has noticed
    UNMET = auto()  #: it is lost, that was logged, and no task has met it
    LOST = auto()  #: it is lost, that was logged, and so was the first task that met it


class Sign(Enum):
    """A sign that there is a quorum, or none."""

    TASK_WITHOUT = auto()  #: a task did not get its lock for lack of a quorum
    TASK_BEFORE = auto()  #: the same, but before the end of a poll in which a quorum voted
    POLL_WITHOUT = auto()  #: too few nodes voted in a poll
    POLL_WITH = auto()  #: a quorum voted in a poll


class Node(Enum):
    """The state of a node, as far as it is known."""

    VOTES = auto()  #: it voted in the last poll that judged it
    IN_DOUBT = auto()  #: it did not vote in one poll
    SILENT = auto()  #: it does not vote, and that was logged
    QUARANTINED = auto()  #: it is quarantined, and that was logged


class Seen(Enum):
    """The result of a poll for one node."""

    VOTE = auto()
    NO_VOTE = auto()
    QUARANTINE = auto()


class Change(Enum):
    """A change that is worth a log line."""

    QUORUM_LOST = auto()
    QUORUM_MET = auto()  #: the first task has met a loss that is known
    QUORUM_BACK = auto()
    NODE_SILENT = auto()
    NODE_QUARANTINED = auto()
    NODE_VOTES = auto()  #: its quarantine has ended
    NODE_BACK = auto()


#: The next state, and the change to log.
QUORUM_MOVES: dict[tuple[Quorum, Sign], tuple[Quorum, Change | None]] = {
    (Quorum.VOTES, Sign.TASK_WITHOUT): (Quorum.LOST, Change.QUORUM_LOST),
    (Quorum.VOTES, Sign.TASK_BEFORE): (Quorum.IN_DOUBT, None),
    (Quorum.VOTES, Sign.POLL_WITHOUT): (Quorum.IN_DOUBT, None),
    (Quorum.VOTES, Sign.POLL_WITH): (Quorum.VOTES, None),
    (Quorum.IN_DOUBT, Sign.TASK_WITHOUT): (Quorum.LOST, Change.QUORUM_LOST),
    (Quorum.IN_DOUBT, Sign.TASK_BEFORE): (Quorum.IN_DOUBT, None),
    (Quorum.IN_DOUBT, Sign.POLL_WITHOUT): (Quorum.UNMET, Change.QUORUM_LOST),
    (Quorum.IN_DOUBT, Sign.POLL_WITH): (Quorum.VOTES, None),
    (Quorum.UNMET, Sign.TASK_WITHOUT): (Quorum.LOST, Change.QUORUM_MET),
    (Quorum.UNMET, Sign.TASK_BEFORE): (Quorum.UNMET, None),
    (Quorum.UNMET, Sign.POLL_WITHOUT): (Quorum.UNMET, None),
    (Quorum.UNMET, Sign.POLL_WITH): (Quorum.VOTES, Change.QUORUM_BACK),
    (Quorum.LOST, Sign.TASK_WITHOUT): (Quorum.LOST, None),
    (Quorum.LOST, Sign.TASK_BEFORE): (Quorum.LOST, None),
    (Quorum.LOST, Sign.POLL_WITHOUT): (Quorum.LOST, None),
    (Quorum.LOST, Sign.POLL_WITH): (Quorum.VOTES, Change.QUORUM_BACK),
}

#: The same for a node.
NODE_MOVES: dict[tuple[Node, Seen], tuple[Node, Change | None]] = {
    (Node.VOTES, Seen.VOTE): (Node.VOTES, None),
    (Node.VOTES, Seen.NO_VOTE): (Node.IN_DOUBT, None),
    (Node.VOTES, Seen.QUARANTINE): (Node.QUARANTINED, Change.NODE_QUARANTINED),
    (Node.IN_DOUBT, Seen.VOTE): (Node.VOTES, None),
    (Node.IN_DOUBT, Seen.NO_VOTE): (Node.SILENT, Change.NODE_SILENT),
    (Node.IN_DOUBT, Seen.QUARANTINE): (Node.QUARANTINED, Change.NODE_QUARANTINED),
    (Node.SILENT, Seen.VOTE): (Node.VOTES, Change.NODE_BACK),
    (Node.SILENT, Seen.NO_VOTE): (Node.SILENT, None),
    (Node.SILENT, Seen.QUARANTINE): (Node.QUARANTINED, Change.NODE_QUARANTINED),
    (Node.QUARANTINED, Seen.VOTE): (Node.VOTES, Change.NODE_VOTES),
    (Node.QUARANTINED, Seen.NO_VOTE): (Node.QUARANTINED, None),
    (Node.QUARANTINED, Seen.QUARANTINE): (Node.QUARANTINED, None),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """
    One log line.

    Attributes:
        change: what it is about.
        node: the node, for a change of a node.
        seconds: for `QUORUM_LOST`, when the quorum was lost; for `QUORUM_BACK`, for how long; for
            `NODE_QUARANTINED`, seconds until the node votes again.
    """

    change: Change
    node: str = ""
    seconds: float = 0.0


class Outage:
    """
    A process's knowledge of the outages of one set of nodes.

    All times are on one clock of its caller.

    Attributes:
        quorum: its state.
        nodes: the state of each node that does not vote.
    """

    def __init__(self) -> None:
        self.quorum = Quorum.VOTES
        self.nodes: dict[str, Node] = {}
        self._since = 0.0
        self._polled_at = 0.0
        self._voted_until = 0.0
        self._task_at = 0.0

    @property
    def is_urgent(self) -> bool:
        """Whether a change is near or matters to every task: no quorum, a doubt, a quarantine."""
        settled = set(self.nodes.values()) <= {Node.SILENT}
        return self.quorum is not Quorum.VOTES or not settled

    def task_failed(self, at: float) -> list[Notice]:
        """Note that a task failed at that time for lack of a quorum; return what to log."""
        self._task_at = max(at, self._task_at)
        return self._move(Sign.TASK_BEFORE if at < self._voted_until else Sign.TASK_WITHOUT, at)

    def polled(
        self, at: float, until: float, votes: Mapping[str, Vote | None], needed: int
    ) -> list[Notice]:
        """
        Note the result of a poll of all nodes, and return what to log.

        Args:
            at: when it began.
            until: when it ended; a node may have voted at any time in between.
            votes: by node; None for a node that has not replied.
            needed: size of a quorum.
        """
        seen = {node: _seen(vote) for node, vote in votes.items()}
        has_quorum = sum(one is Seen.VOTE for one in seen.values()) >= needed
        notices = []
        for node, one in seen.items():
            if one is Seen.NO_VOTE and not has_quorum:
                continue
            state, change = NODE_MOVES[self.nodes.pop(node, Node.VOTES), one]
            if state is not Node.VOTES:
                self.nodes[node] = state
            if change is not None:
                vote = votes[node]
                seconds = vote.remaining if isinstance(vote, Quarantined) else 0.0
                notices.append(Notice(change=change, node=node, seconds=seconds))
        previous, self._polled_at = self._polled_at, at
        if has_quorum:
            self._voted_until = until
        if has_quorum and self.quorum is Quorum.LOST and self._task_at > previous:
            return notices  # tasks still fail; the next poll decides
        return notices + self._move(Sign.POLL_WITH if has_quorum else Sign.POLL_WITHOUT, at)

    def _move(self, sign: Sign, at: float) -> list[Notice]:
        if self.quorum is Quorum.VOTES:
            self._since = at
        self.quorum, change = QUORUM_MOVES[self.quorum, sign]
        if change is None:
            return []
        seconds = self._since if change is Change.QUORUM_LOST else at - self._since
        return [Notice(change=change, seconds=seconds)]


def _seen(vote: Vote | None) -> Seen:
    if isinstance(vote, Granted | Refused):
        return Seen.VOTE
    return Seen.QUARANTINE if isinstance(vote, Quarantined) else Seen.NO_VOTE
