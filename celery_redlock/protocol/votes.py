"""
A node's possible replies to a command.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Granted:
    """
    The node acquired all keys.

    Attributes:
        low: the smallest fence counter among the keys' buckets.
        high: the largest; equal to `low` when there is one key.
        slots: the slot of each limited key, in the order of the keys.
    """

    low: int
    high: int
    slots: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class KeyHolder:
    """
    The owner of one key on one node.

    Attributes:
        key: index among the command's keys, counting each slot of a limited key separately.
        owner: the value stored there.
        expires_in: seconds until the node drops it; negative where it never will.
    """

    key: int
    owner: str
    expires_in: float


@dataclass(frozen=True, slots=True)
class Refused:
    """
    The node acquired nothing, because another owner has a key there, or others have all its slots.

    Attributes:
        holders: of the keys and slots that are taken.
        turn_in: seconds until it is this waiter's turn at a key with a rate; 0 if no such key
            refuses.
        before: how many others come before this one for one of the keys, if it waits; all that the
            node remembers, if it has no name.
    """

    holders: tuple[KeyHolder, ...]
    turn_in: float = 0.0
    before: int = 0


@dataclass(frozen=True, slots=True)
class Quarantined:
    """
    The node restarted, lost data or changed its role, and does not vote before old leases expire.

    Attributes:
        remaining: seconds until it votes again.
    """

    remaining: float


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """The keys were ours, and the node executed the command."""


@dataclass(frozen=True, slots=True)
class NotHeld:
    """
    Not all keys were ours.

    Attributes:
        missing: the other keys have no owner, so a heal may set them again.
        turn_in: if another owner has the slot of a key with a rate, seconds until it is free;
            otherwise 0.
    """

    missing: bool
    turn_in: float = 0.0


@dataclass(frozen=True, slots=True)
class LeaseVotes:
    """
    Reply to the extension of several leases.

    Attributes:
        votes: one for each lease, as if it were extended alone.
    """

    votes: tuple[Vote, ...]


@dataclass(frozen=True, slots=True)
class KeyState:
    """
    One key on one node.

    Attributes:
        owner: the value stored there, or None.
        expires_in: seconds until the node drops it; negative where it never will.
        counter: its fence counter.
    """

    owner: str | None
    expires_in: float
    counter: int


@dataclass(frozen=True, slots=True)
class KeyStates:
    """Reply to an inspection: one state for each key."""

    states: tuple[KeyState, ...]


@dataclass(frozen=True, slots=True)
class Superseded:
    """
    The register has seen a newer token, and refuses older ones.

    Attributes:
        token: the newest that it has seen.
    """

    token: int


@dataclass(frozen=True, slots=True)
class VersionedValue:
    """
    A field of a register.

    Attributes:
        token: fencing token of the holder that wrote it.
        version: that holder's version number; the larger is the newer.
        text: the value.
    """

    token: int
    version: int
    text: str

    @property
    def rank(self) -> tuple[int, int]:
        """Sort key: the largest is the newest value of a field."""
        return (self.token, self.version)

    def __str__(self) -> str:
        """Return it as nodes store it."""
        return f"{self.token} {self.version} {self.text}"


@dataclass(frozen=True, slots=True)
class RegisterContents:
    """
    A register, or a part of it, as one node has it.

    Attributes:
        token: the newest token that it has seen; 0 if none.
        fields: the requested fields that exist, by name.
        truncated: names of further ones, omitted because the reply would be too large.
    """

    token: int
    fields: Mapping[str, VersionedValue]
    truncated: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Failed:
    """
    The node gave no usable reply; it may or may not have executed the command.

    Attributes:
        reason: the cause, in a few words.
        attempted: False if the node was not asked, because it was backing off.
    """

    reason: str
    attempted: bool = True


Vote = (
    Granted
    | Refused
    | Quarantined
    | Acknowledged
    | NotHeld
    | LeaseVotes
    | KeyStates
    | Superseded
    | RegisterContents
    | Failed
)

ACKNOWLEDGED = Acknowledged()
MISSING = NotHeld(missing=True)
FOREIGN = NotHeld(missing=False)
