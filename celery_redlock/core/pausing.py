"""
Pauses of keys, on every node that can be reached.
"""

from __future__ import annotations

from collections.abc import Mapping

from celery_redlock.core.failures import describe_problems
from celery_redlock.core.node_poll import PollRound
from celery_redlock.errors import QuorumUnavailable
from celery_redlock.protocol.commands import Command, pause, resume
from celery_redlock.protocol.keys import Key
from celery_redlock.protocol.texts import shortened
from celery_redlock.protocol.timing import quorum
from celery_redlock.protocol.votes import Acknowledged, Failed, Vote
from celery_redlock.transport import Transport, borrowed

#: Node timeouts, and seconds at least, to wait for nodes to which this process is still connecting:
#: a quorum is enough for a lock, but each node without a pause is one that may grant the key.
_CONNECT_TIMEOUTS, _CONNECTS_WITHIN = 4, 1.0


def pause_key(
    transport: Transport, key: Key, owner: str, ms: int, node_timeout: float
) -> dict[str, str]:
    """Pause a key; see `Redlock.pause`."""
    votes = _on_all_nodes(transport, pause(key, owner, ms), node_timeout)
    silent = _silent(votes)
    set_on, needed = len(votes) - len(silent), quorum(len(votes))
    if set_on < needed:
        raise QuorumUnavailable(
            f"Lock {shortened(key.text)!r} is paused on {set_on} of {len(votes)} nodes, and it "
            f"takes {needed}: others may still get it. {describe_problems(silent)}. Try again.",
            key.text,
            silent,
        )
    return silent


def resume_key(transport: Transport, key: Key, node_timeout: float) -> bool:
    """End the pause of a key; see `Redlock.resume`."""
    votes = _on_all_nodes(transport, resume(key), node_timeout)
    silent = _silent(votes)
    resumed, needed = len(votes) - len(silent), quorum(len(votes))
    if resumed < needed:
        raise QuorumUnavailable(
            f"Lock {shortened(key.text)!r} may still be paused: {resumed} of {len(votes)} nodes "
            f"replied, and it takes {needed}. {describe_problems(silent)}. Try again.",
            key.text,
            silent,
        )
    return any(isinstance(vote, Acknowledged) for vote in votes.values())


def _silent(votes: Mapping[str, Vote]) -> dict[str, str]:
    return {name: vote.reason for name, vote in votes.items() if isinstance(vote, Failed)}


def _on_all_nodes(transport: Transport, command: Command, node_timeout: float) -> dict[str, Vote]:
    """Let all nodes execute a command, also those that are about to be connected."""
    votes: dict[str, Vote] = {}
    until = transport.now() + max(_CONNECT_TIMEOUTS * node_timeout, _CONNECTS_WITHIN)
    with borrowed(transport) as channel:
        while True:
            round_ = PollRound(len(transport.names))
            channel.connect()
            channel.exchange(((command, round_),), node_timeout)
            for name, vote in zip(transport.names, round_.votes, strict=True):
                if vote is not None and isinstance(votes.get(name), Failed | None):
                    votes[name] = vote
            failures = transport.failures()
            connects = any(
                isinstance(vote, Failed) and (name not in failures or not failures[name].tried)
                for name, vote in votes.items()
            )
            if not connects or transport.now() >= until:
                return votes
            transport.sleep(_CONNECTS_WITHIN / 50)
