"""
Holders of keys, read without touching the keys.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from celery_redlock.core.failures import describe_problems, node_votes
from celery_redlock.errors import QuorumUnavailable
from celery_redlock.protocol.commands import Waiter, enqueue, inspect
from celery_redlock.protocol.keys import owner_timestamp_us
from celery_redlock.protocol.rounds import InspectRound, Phase
from celery_redlock.protocol.votes import KeyState, KeyStates
from celery_redlock.transport import Transport, borrowed

#: Waiters in one command, so that no node is held up.
_WAITERS_AT_ONCE = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class LockInfo:
    """
    A key that one owner has on a quorum of nodes, according to the nodes that answered.

    Attributes:
        owner: the value stored there.
        expires_in: seconds until it expires on the last of those nodes unless it is extended;
            negative if it never expires on one of them: then no client of locks has set it.
        token: the holder's fencing token if the counters prove it, else None.
    """

    owner: str
    expires_in: float
    token: int | None


def inspect_locks(
    transport: Transport,
    node_keys: tuple[str, ...],
    node_timeout: float,
    waiters: Sequence[tuple[str, Waiter]] = (),
) -> tuple[LockInfo | None, ...]:
    """Return for each key its holder, or None; see `Client.inspect`."""
    round_ = _run_inspection(transport, node_keys, node_timeout, waiters)
    return tuple(
        lock_info(records, round_.needed) if records else None for records in round_.key_states()
    )


def owners_by_node(
    transport: Transport, node_keys: tuple[str, ...], node_timeout: float
) -> tuple[tuple[str | None, ...], ...]:
    """Return the owner values of the keys, in their order, for each node that answered."""
    votes = _run_inspection(transport, node_keys, node_timeout).votes
    return tuple(
        tuple(record.owner for record in vote.states)
        for vote in votes
        if isinstance(vote, KeyStates)
    )


def _run_inspection(
    transport: Transport,
    node_keys: tuple[str, ...],
    node_timeout: float,
    waiters: Sequence[tuple[str, Waiter]] = (),
) -> InspectRound:
    round_ = InspectRound(len(transport.names))
    with borrowed(transport) as channel:
        channel.connect()
        for at in range(0, len(waiters), _WAITERS_AT_ONCE):
            channel.send(enqueue(waiters[at : at + _WAITERS_AT_ONCE]))
        channel.exchange(((inspect(node_keys), round_),), node_timeout)
    if round_.phase is not Phase.GRANTED:
        nodes = node_votes(round_, transport.names)
        raise QuorumUnavailable(
            f"The holder of {', '.join(node_keys)!r} is not known: it takes {round_.needed} of "
            f"{len(transport.names)} nodes. {describe_problems(nodes)}.",
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
