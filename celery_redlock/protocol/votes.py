"""
What one node can say to one command.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Granted:
    """
    The node took all keys.

    Attributes:
        low: the smallest fence counter among the keys' buckets.
        high: the largest; equal to `low` when there is one key.
    """

    low: int
    high: int


@dataclass(frozen=True, slots=True)
class KeyHolder:
    """
    Who has one key on one node.

    Attributes:
        key: position of the key in the command.
        owner: the value stored there.
        expires_in: seconds until the node drops it; negative where it never will.
    """

    key: int
    owner: str
    expires_in: float


@dataclass(frozen=True, slots=True)
class Refused:
    """The node took nothing, because somebody else has a key there."""

    holders: tuple[KeyHolder, ...]


@dataclass(frozen=True, slots=True)
class Quarantined:
    """
    The node restarted, lost data or changed its role, and sits out until old leases have ended.

    Attributes:
        remaining: seconds until it votes again.
    """

    remaining: float


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """The keys were ours there, and the command was done."""


@dataclass(frozen=True, slots=True)
class NotHeld:
    """
    The keys were not all ours there.

    Attributes:
        missing: nobody has those that we lack, so a heal may set them again.
    """

    missing: bool


@dataclass(frozen=True, slots=True)
class KeyState:
    """
    One key as a node has it.

    Attributes:
        owner: the value stored there, None where there is none.
        expires_in: seconds until the node drops it; negative where it never will.
        counter: its fence counter.
    """

    owner: str | None
    expires_in: float
    counter: int


@dataclass(frozen=True, slots=True)
class KeyStates:
    """The node was only asked what it has; one record for each key."""

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
        version: that holder's number for it; of two, the larger is the newer.
        text: what was written.
    """

    token: int
    version: int
    text: str

    @property
    def rank(self) -> tuple[int, int]:
        """What orders the texts that a field has had."""
        return (self.token, self.version)

    def __str__(self) -> str:
        """Return it as it stands on a node."""
        return f"{self.token} {self.version} {self.text}"


@dataclass(frozen=True, slots=True)
class RegisterContents:
    """
    What a node has of a register.

    Attributes:
        token: the newest token that it has seen; 0 if none.
        fields: those asked for that there are, by name.
        truncated: names of those that there are, too, but made the answer too long.
    """

    token: int
    fields: Mapping[str, VersionedValue]
    truncated: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Failed:
    """
    The node gave no usable answer; the command may or may not have run there.

    Attributes:
        reason: why, in a few words.
        attempted: it was asked; otherwise it was left out because it had failed lately.
    """

    reason: str
    attempted: bool = True


Vote = (
    Granted
    | Refused
    | Quarantined
    | Acknowledged
    | NotHeld
    | KeyStates
    | Superseded
    | RegisterContents
    | Failed
)

ACKNOWLEDGED = Acknowledged()
MISSING = NotHeld(missing=True)
FOREIGN = NotHeld(missing=False)
