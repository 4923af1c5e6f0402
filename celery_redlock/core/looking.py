"""
Looking at locks without touching them.
"""

from __future__ import annotations

from dataclasses import dataclass

from celery_redlock.core.failures import listed, reasons
from celery_redlock.errors import QuorumUnavailable
from celery_redlock.protocol import (
    InspectRound,
    KeyState,
    KeyStates,
    Phase,
    inspect,
    owner_timestamp_us,
)
from celery_redlock.transport import Transport


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """
    A key that one owner has on a quorum of nodes, as far as the nodes that answer can tell.

    Attributes:
        owner: the value stored there.
        expires_in: seconds until the last node that was heard drops it unless it is extended;
            negative where one never will.
        token: the holder's fencing token where it can be known for sure, else None.
    """

    owner: str
    expires_in: float
    token: int | None


def look_at(
    transport: Transport, places: tuple[str, ...], patience: float
) -> tuple[Held | None, ...]:
    """Return for each key who holds it, or None."""
    round_ = _asked(transport, places, patience)
    return tuple(
        _held(records, round_.needed) if records else None for records in round_.key_states()
    )


def owners_at(
    transport: Transport, places: tuple[str, ...], patience: float
) -> tuple[tuple[str | None, ...], ...]:
    """Return for each node that has answered the owner values that it shows, in the keys' order."""
    votes = _asked(transport, places, patience).votes
    return tuple(
        tuple(record.owner for record in vote.states)
        for vote in votes
        if isinstance(vote, KeyStates)
    )


def _asked(transport: Transport, places: tuple[str, ...], patience: float) -> InspectRound:
    round_ = InspectRound(len(transport.names))
    channel = transport.checkout()
    try:
        channel.connect()
        channel.exchange(((inspect(places), round_),), patience)
    except BaseException:
        transport.discard(channel)
        raise
    transport.checkin(channel)
    if round_.phase is not Phase.GRANTED:
        nodes = reasons(round_, transport.names)
        raise QuorumUnavailable(
            f"Who holds {', '.join(places)!r} is not known: {round_.needed} of "
            f"{len(transport.names)} nodes have to say it. {listed(nodes)}.",
            places[0],
            nodes,
        )
    return round_


def _held(records: tuple[KeyState, ...], needed: int) -> Held:
    owner = records[0].owner or ""
    lives = [record.expires_in for record in records]
    return Held(
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
