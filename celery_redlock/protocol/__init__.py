"""
The Redlock protocol without I/O: votes, rounds, scripts and what they mean.

Nothing here opens a socket, reads a clock or draws a random number; time, randomness and replies
are passed in. Whatever drives these objects (Redis, in-memory nodes, a model checker) drives the
code that ships.
"""

from celery_redlock.protocol.commands import (
    Command,
    Fate,
    Kind,
    acquire,
    extend,
    fetch,
    heal,
    look,
    raise_fence,
    release,
    store,
)
from celery_redlock.protocol.looking import LookRound
from celery_redlock.protocol.naming import (
    fence_key,
    number_after,
    owner_candidate,
    owner_value,
    register_record,
    validate_extra,
    validate_key,
    validate_place,
)
from celery_redlock.protocol.recording import FetchRound, StoreRound
from celery_redlock.protocol.rounds import (
    AcquireRound,
    ExtendRound,
    Phase,
    ReleaseRound,
    ReserveRound,
    Round,
)
from celery_redlock.protocol.timing import MAX_TOKEN, drift, milliseconds, quorum
from celery_redlock.protocol.votes import (
    Acknowledged,
    Failed,
    Fetched,
    Granted,
    Held,
    Holder,
    NotHeld,
    Outranked,
    Quarantined,
    Record,
    Seen,
    Versioned,
    Vote,
)

__all__ = [
    "MAX_TOKEN",
    "Acknowledged",
    "AcquireRound",
    "Command",
    "ExtendRound",
    "Failed",
    "Fate",
    "FetchRound",
    "Fetched",
    "Granted",
    "Held",
    "Holder",
    "Kind",
    "LookRound",
    "NotHeld",
    "Outranked",
    "Phase",
    "Quarantined",
    "Record",
    "ReleaseRound",
    "ReserveRound",
    "Round",
    "Seen",
    "StoreRound",
    "Versioned",
    "Vote",
    "acquire",
    "drift",
    "extend",
    "fence_key",
    "fetch",
    "heal",
    "look",
    "milliseconds",
    "number_after",
    "owner_candidate",
    "owner_value",
    "quorum",
    "raise_fence",
    "register_record",
    "release",
    "store",
    "validate_extra",
    "validate_key",
    "validate_place",
]
