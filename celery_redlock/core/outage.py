"""
Outages of lock nodes as a process sees them, and which of their changes are worth a log line.

Two tables, without nodes, threads or a clock. A task that fails for lack of a quorum proves an
outage; a poll proves it only the second time, because a busy process may take replies too late.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto

from celery_redlock.protocol import Quarantined, Vote
from celery_redlock.protocol.votes import Granted, Refused


class Quorum(Enum):
    """The state of the quorum, as far as it is known."""

    VOTES = auto()  #: it voted in the last poll
    IN_DOUBT = auto()  #: it missed in one poll, and no task has noticed
    LOST = auto()  #: it is lost, and that was logged


class Sign(Enum):
    """A sign that there is a quorum, or none."""

    TASK_WITHOUT = auto()  #: a task did not get its lock for lack of a quorum
    POLL_WITHOUT = auto()  #: too few nodes voted in a poll
    POLL_WITH = auto()  #: a quorum voted in a poll


class Change(Enum):
    """A change that is worth a log line."""

    QUORUM_LOST = auto()
    QUORUM_BACK = auto()
    NODE_QUARANTINED = auto()
    NODE_VOTES = auto()


#: The next state, and the change to log.
QUORUM_MOVES: dict[tuple[Quorum, Sign], tuple[Quorum, Change | None]] = {
    (Quorum.VOTES, Sign.TASK_WITHOUT): (Quorum.LOST, Change.QUORUM_LOST),
    (Quorum.VOTES, Sign.POLL_WITHOUT): (Quorum.IN_DOUBT, None),
    (Quorum.VOTES, Sign.POLL_WITH): (Quorum.VOTES, None),
    (Quorum.IN_DOUBT, Sign.TASK_WITHOUT): (Quorum.LOST, Change.QUORUM_LOST),
    (Quorum.IN_DOUBT, Sign.POLL_WITHOUT): (Quorum.LOST, Change.QUORUM_LOST),
    (Quorum.IN_DOUBT, Sign.POLL_WITH): (Quorum.VOTES, None),
    (Quorum.LOST, Sign.TASK_WITHOUT): (Quorum.LOST, None),
    (Quorum.LOST, Sign.POLL_WITHOUT): (Quorum.LOST, None),
    (Quorum.LOST, Sign.POLL_WITH): (Quorum.VOTES, Change.QUORUM_BACK),
}

#: For a node that is known to be quarantined or not, and its vote: the same. A node that fails or
#: is silent stays what it was.
NODE_MOVES: dict[tuple[bool, type[Vote]], tuple[bool, Change]] = {
    (False, Quarantined): (True, Change.NODE_QUARANTINED),
    (True, Granted): (False, Change.NODE_VOTES),
    (True, Refused): (False, Change.NODE_VOTES),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """
    One log line.

    Attributes:
        change: what it is about.
        node: the node, of a change of a node.
        seconds: of `QUORUM_LOST` since when, of `QUORUM_BACK` how long it was lost, of
            `NODE_QUARANTINED` until the node votes again.
    """

    change: Change
    node: str = ""
    seconds: float = 0.0


class Outage:
    """
    Knowledge of a process about the outages of one set of nodes.

    All times are on one clock of its caller.

    Attributes:
        quorum: its state.
        quarantined: the nodes whose quarantine was logged.
    """

    def __init__(self) -> None:
        self.quorum = Quorum.VOTES
        self.quarantined: set[str] = set()
        self._since = 0.0
        self._polled_at = 0.0
        self._task_at = 0.0

    @property
    def is_over(self) -> bool:
        """Whether nothing is left to wait for."""
        return self.quorum is Quorum.VOTES and not self.quarantined

    def task_failed(self, at: float) -> list[Notice]:
        """Take in that a task failed for lack of a quorum at that time; return what to log."""
        if self.quorum is Quorum.VOTES and at < self._polled_at:
            return []  # a quorum has voted since then
        self._task_at = max(at, self._task_at)
        return self._move(Sign.TASK_WITHOUT, at)

    def polled(self, at: float, votes: Mapping[str, Vote], needed: int) -> list[Notice]:
        """
        Take in a poll of all nodes, and return what to log.

        Args:
            at: when it began.
            votes: by node.
            needed: size of a quorum.
        """
        notices = []
        for node, vote in votes.items():
            known = node in self.quarantined
            is_quarantined, change = NODE_MOVES.get((known, type(vote)), (known, None))
            if change is None:
                continue
            (self.quarantined.add if is_quarantined else self.quarantined.discard)(node)
            seconds = vote.remaining if isinstance(vote, Quarantined) else 0.0
            notices.append(Notice(change=change, node=node, seconds=seconds))
        has_quorum = sum(isinstance(vote, Granted | Refused) for vote in votes.values()) >= needed
        previous, self._polled_at = self._polled_at, at
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
