"""
A poll of all nodes: which of them vote now, whatever a quorum decides.
"""

from __future__ import annotations

import os

from celery_redlock.core.settings import ClientSettings
from celery_redlock.protocol.commands import acquire, release
from celery_redlock.protocol.keys import META_PREFIX, Key, owner_value
from celery_redlock.protocol.rounds import Phase, Round
from celery_redlock.protocol.timing import milliseconds
from celery_redlock.protocol.votes import Vote
from celery_redlock.transport import Transport, borrowed

#: Acquired by every poll. If another poll holds it, the node has voted, too.
POLL_KEY = Key.record(META_PREFIX + "poll")

#: Seconds after which a node that was stopped before its release drops the key.
_TTL = 1.0


class PollRound(Round):
    """A round that ends with the vote of the last node."""

    __slots__ = ()

    def vote(self, node: int, vote: Vote, now: float) -> Phase:
        """Count one node's reply and return the phase after it."""
        if self.votes[node] is None:
            self.votes[node] = vote
            if None not in self.votes:
                return self._enter(Phase.GRANTED)
        return self._phase


def poll_nodes(transport: Transport, settings: ClientSettings) -> PollRound:
    """
    Ask every node for a lock, release it, and return the votes. Takes about the node timeout.

    Like any acquire, it begins the quarantine of a node that restarted.
    """
    round_ = PollRound(len(transport.names))
    owner = owner_value(os.urandom(16), transport.wall_us(), "poll")
    command = acquire(
        (POLL_KEY,), owner, milliseconds(_TTL), transport.wall_us(), settings.quarantine_ms
    )
    with borrowed(transport) as channel:
        channel.connect()
        channel.exchange(((command, round_),), settings.node_timeout)
        channel.send(release((POLL_KEY,), owner, 0))
    return round_
