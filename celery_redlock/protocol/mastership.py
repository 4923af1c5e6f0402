"""
Whose votes count for a lock node that can fail over.

Such a node is a group of servers, of which one is the master. While a failover is under way, and
after it for as long as the former master does not know of it, two servers may answer for the node.
Its votes are one only under both of these rules, with a quarantine of `max_ttl + takeover`:

1. A vote counts only if somebody else than its sender named the sender as the master, at most
   `MAX_AGE` seconds before the vote was received. When the command was sent does not matter: a
   process that stood still may receive at any time what was executed at any time.
2. Until `takeover` seconds after a promotion, the new master's votes on what is held already do not
   count: the former master may still vote, and expire a key that only the new one extends. Its
   votes on new locks need no such rule, because its quarantine is longer. That begins when the
   first client connects after the promotion (`lead.lua`).

`evidence/models/promoted.py` explores both.
"""

from __future__ import annotations

from celery_redlock.protocol.commands import Script
from celery_redlock.protocol.votes import Failed, Granted, LeaseVotes, NotHeld, Refused, Vote

#: Seconds for which a named master counts as the master.
MAX_AGE = 5.0

#: Seconds after a promotion in which a former master's votes may count, unless set otherwise:
#: `MAX_AGE`, and the time until those who name masters know of a promotion.
TAKEOVER = 30.0

#: Scripts besides ACQUIRE whose votes count at once after a promotion. All others are about what a
#: holder has, which the new master may have lost.
_COUNT_AT_ONCE = frozenset({Script.ENQUEUE, Script.HEAL, Script.RELEASE})


#: Seconds for which a former master's votes may count at least. Those who name masters know of a
#: promotion within two seconds, which is how often Sentinels send each other what they know.
SHORTEST_TAKEOVER = MAX_AGE + 2.0


def takeover_of(given: float | None, *, fail_over: bool) -> float:
    """Return the seconds of a takeover; None is the default, which is 0 if no node fails over."""
    if given is None:
        return TAKEOVER if fail_over else 0.0
    return given


class Master:
    """
    A server as the master of a node, from one promotion to the next.

    Attributes:
        address: its host and port.
        epoch: number of the promotion; the same server may be promoted again.
        confirmed_at: when somebody else was last asked and named it, on the client's clock.
        has_voted: whether its quarantine has ended, and with it the time in which a former master's
            votes count: it has voted on a new lock, or its guard record shows that it would.
    """

    __slots__ = ("_seen_at", "_takeover", "address", "confirmed_at", "epoch", "has_voted")

    def __init__(
        self,
        address: tuple[str, int],
        epoch: int,
        *,
        confirmed_at: float,
        seen_at: float,
        takeover: float,
    ) -> None:
        self.address = address
        self.epoch = epoch
        self.confirmed_at = confirmed_at
        self.has_voted = False
        self._seen_at = seen_at
        self._takeover = takeover

    def is_confirmed(self, now: float) -> bool:
        """Return whether a vote that is received now may count."""
        return now - self.confirmed_at <= MAX_AGE

    def counted(self, vote: Vote, script: Script, sent_at: float, now: float) -> Vote:
        """
        Return what a vote counts as: itself, or `Failed`.

        Args:
            vote: the vote of this master.
            script: of the command.
            sent_at: when the command was sent.
            now: when the vote was received.
        """
        if not self.is_confirmed(now):
            return Failed(f"was not confirmed as the master in the last {MAX_AGE:g} s")
        if script is Script.ACQUIRE:
            self.has_voted |= type(vote) in (Granted, Refused)
        elif (
            script not in _COUNT_AT_ONCE
            and not self.has_voted
            and sent_at - self._seen_at < self._takeover
        ):
            left = self._takeover - (sent_at - self._seen_at)
            early = Failed(f"was promoted; its votes on held locks will count in {left:.0f} s")
            if type(vote) is LeaseVotes:
                return LeaseVotes(tuple(_without(early, one) for one in vote.votes))
            return _without(early, vote)
        return vote


def _without(early: Failed, vote: Vote) -> Vote:
    """Return a vote that comes too early: a key that is not there may be set again at any time."""
    return vote if type(vote) is NotHeld else early
