"""
Holders of keys, read without touching the keys.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from celery_redlock.core.failures import describe_problems, node_votes
from celery_redlock.errors import QuorumUnavailable
from celery_redlock.protocol.commands import Waiter, enqueue, inspect
from celery_redlock.protocol.keys import owner_timestamp_us, validate_node_key
from celery_redlock.protocol.rounds import InspectRound, Phase
from celery_redlock.protocol.votes import KeyState
from celery_redlock.transport import Transport, borrowed

#: Waiters in one command, so that no node is held up.
_WAITERS_AT_ONCE = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class LockInfo:
    """
    A key that one owner has on a quorum of nodes, according to the nodes that answered.

    Attributes:
        owner: the value stored there.
        expires_in: seconds until it expires on the last of those nodes unless it is extended;
            negative if it never expires on one of them: then it was not set by a lock client.
        token: the holder's fencing token if the counters prove it, else None.
    """

    owner: str
    expires_in: float
    token: int | None


def run_inspection(
    transport: Transport,
    node_keys: Sequence[str],
    node_timeout: float,
    waiters: Sequence[tuple[str, Waiter]] = (),
) -> InspectRound:
    """Ask a quorum of nodes for keys; see `Client.inspect`."""
    node_keys = tuple(map(validate_node_key, node_keys))
    round_ = InspectRound(len(transport.names))
    with borrowed(transport) as channel:
        channel.connect()
        for at in range(0, len(waiters), _WAITERS_AT_ONCE):
            channel.send(enqueue(waiters[at : at + _WAITERS_AT_ONCE]))
        channel.exchange(((inspect(node_keys), round_),), node_timeout)
    if round_.phase is not Phase.GRANTED:
        nodes = node_votes(round_, transport.names)
        raise QuorumUnavailable(
            f"The holder of {', '.join(node_keys)!r} is not known: {round_.needed} of "
            f"{len(transport.names)} nodes have to answer. {describe_problems(nodes)}.",
            node_keys[0],
            nodes,
        )
    return round_


def lock_info(records: tuple[KeyState, ...], needed: int) -> LockInfo:
    """Return the holder of a key from the records that have its owner; `needed` is a quorum."""
    owner = records[0].owner or ""
    lives = [record.expires_in for record in records]
    return LockInfo(
        owner=owner,
        expires_in=min(lives) if min(lives) < 0 else max(lives),
        token=_token(owner, records, needed),
    )


def _token(owner: str, records: tuple[KeyState, ...], needed: int) -> int | None:
    """
    Return the token that an owner's attempt got, if the counters prove it.

    A token is the attempt's candidate, or larger. If it is larger, a quorum of counters was raised
    above the candidate, and counters never fall; so a quorum that shows the candidate rules it out.
    """
    candidate = owner_timestamp_us(owner)
    exact = sum(record.counter == candidate for record in records)
    return candidate if exact >= needed else None
