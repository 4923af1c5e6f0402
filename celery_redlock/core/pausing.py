"""
Pauses of keys, on every node that can be reached.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta

from celery_redlock._greenlets.threads import call_in_app
from celery_redlock._log import event_logger
from celery_redlock.core.client import Client
from celery_redlock.core.client_label import person_label
from celery_redlock.core.failures import describe_problems
from celery_redlock.core.limits import Limit, Rate
from celery_redlock.core.node_admin import PollRound
from celery_redlock.core.validation import checked_seconds
from celery_redlock.errors import QuorumUnavailable
from celery_redlock.protocol.commands import Command, pause, resume
from celery_redlock.protocol.keys import owner_label
from celery_redlock.protocol.texts import shortened
from celery_redlock.protocol.timing import milliseconds, quorum
from celery_redlock.protocol.votes import Acknowledged, Failed, Vote
from celery_redlock.transport import borrowed

_logger = event_logger(__name__)

#: Node timeouts, and seconds at least, to wait for nodes to which this process is still connecting:
#: a quorum is enough for a lock, but each node without a pause is one that may grant the key.
_CONNECT_TIMEOUTS, _CONNECTS_WITHIN = 4, 1.0


def pause_lock(
    client: Client, name: str | Limit | Rate, seconds: float | timedelta
) -> dict[str, str]:
    """Refuse a key to all callers for a while; see `Redlock.pause`."""
    client.check_open()
    key, ms = client.key_of(name), milliseconds(checked_seconds("seconds", seconds))
    owner = client.new_owner_value(person_label())
    votes = _on_all_nodes(client, pause(key, owner, max(1, ms)))
    silent = _silent(votes)
    set_on, needed = len(votes) - len(silent), quorum(len(votes))
    if set_on < needed:
        raise QuorumUnavailable(
            f"Lock {shortened(key.text)!r} is paused on {set_on} of {len(votes)} nodes, but "
            f"{needed} are needed: others may still get it. {describe_problems(silent)}. Try "
            "again.",
            key.text,
            silent,
        )
    call_in_app(
        _logger.info,
        "key-paused",
        "Lock %(key)r is paused for %(seconds)g s by %(by)s",
        key=shortened(key.text),
        seconds=ms / 1000,
        by=owner_label(owner),
    )
    return silent


def resume_lock(client: Client, name: str | Limit | Rate) -> bool:
    """End the pause of a key; see `Redlock.resume`."""
    client.check_open()
    key = client.key_of(name)
    votes = _on_all_nodes(client, resume(key))
    silent = _silent(votes)
    resumed, needed = len(votes) - len(silent), quorum(len(votes))
    if resumed < needed:
        raise QuorumUnavailable(
            f"Lock {shortened(key.text)!r} may still be paused: {resumed} of {len(votes)} nodes "
            f"replied, but {needed} are needed. {describe_problems(silent)}. Try again.",
            key.text,
            silent,
        )
    if not any(isinstance(vote, Acknowledged) for vote in votes.values()):
        return False
    call_in_app(
        _logger.info,
        "key-resumed",
        "The pause of lock %(key)r is ended by %(by)s",
        key=shortened(key.text),
        by=person_label(),
    )
    return True


def _silent(votes: Mapping[str, Vote]) -> dict[str, str]:
    return {name: vote.reason for name, vote in votes.items() if isinstance(vote, Failed)}


def _on_all_nodes(client: Client, command: Command) -> dict[str, Vote]:
    """Let all nodes execute a command, also those that are about to be connected."""
    transport, node_timeout = client.transport, client.settings.node_timeout
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
                isinstance(vote, Failed) and failures.get(name) is None
                for name, vote in votes.items()
            )
            if not connects or transport.now() >= until:
                return votes
            transport.sleep(_CONNECTS_WITHIN / 50)
