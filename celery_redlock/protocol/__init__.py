"""
The Redlock protocol without I/O: commands, scripts, votes and rounds.

Nothing here opens a socket, reads a clock or draws a random number; time, randomness and replies
are passed in. So servers, in-memory nodes and model checkers all run the code that ships.
"""

from celery_redlock.protocol.commands import (
    Command,
    ReleaseAction,
    Script,
    acquire,
    extend,
    heal,
    inspect,
    raise_fence,
    read_register,
    release,
    write_register,
)
from celery_redlock.protocol.keys import (
    candidate_above,
    fence_key,
    owner_timestamp_us,
    owner_value,
    register_key,
    validate_key,
    validate_node_key,
    validate_reserved_key,
)
from celery_redlock.protocol.register_rounds import RegisterReadRound, RegisterWriteRound
from celery_redlock.protocol.rounds import (
    AcquireRound,
    ExtendRound,
    InspectRound,
    Phase,
    ReleaseRound,
    ReserveRound,
    Round,
)
from celery_redlock.protocol.timing import MAX_TOKEN, drift, milliseconds, quorum
from celery_redlock.protocol.votes import (
    Acknowledged,
    Failed,
    Granted,
    KeyHolder,
    KeyState,
    KeyStates,
    NotHeld,
    Quarantined,
    Refused,
    RegisterContents,
    Superseded,
    VersionedValue,
    Vote,
)

__all__ = [
    "MAX_TOKEN",
    "Acknowledged",
    "AcquireRound",
    "Command",
    "ExtendRound",
    "Failed",
    "Granted",
    "InspectRound",
    "KeyHolder",
    "KeyState",
    "KeyStates",
    "NotHeld",
    "Phase",
    "Quarantined",
    "Refused",
    "RegisterContents",
    "RegisterReadRound",
    "RegisterWriteRound",
    "ReleaseAction",
    "ReleaseRound",
    "ReserveRound",
    "Round",
    "Script",
    "Superseded",
    "VersionedValue",
    "Vote",
    "acquire",
    "candidate_above",
    "drift",
    "extend",
    "fence_key",
    "heal",
    "inspect",
    "milliseconds",
    "owner_timestamp_us",
    "owner_value",
    "quorum",
    "raise_fence",
    "read_register",
    "register_key",
    "release",
    "validate_key",
    "validate_node_key",
    "validate_reserved_key",
    "write_register",
]
