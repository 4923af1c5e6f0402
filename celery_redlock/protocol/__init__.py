"""
The Redlock protocol without I/O: votes, rounds, scripts and what they mean.

Nothing here opens a socket, reads a clock or draws a random number; time, randomness and replies
are passed in. Whatever drives these objects (Redis, in-memory nodes, a model checker) drives the
code that ships.
"""

from celery_redlock.protocol.commands import (
    Command,
    Kind,
    acquire,
    extend,
    heal,
    raise_fence,
    release,
)
from celery_redlock.protocol.naming import fence_key, owner_value, validate_key
from celery_redlock.protocol.rounds import AcquireRound, ExtendRound, Phase, ReleaseRound, Round
from celery_redlock.protocol.timing import MAX_TOKEN, drift, milliseconds, quorum
from celery_redlock.protocol.votes import (
    Acknowledged,
    Failed,
    Granted,
    Held,
    Holder,
    NotHeld,
    Quarantined,
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
    "Held",
    "Holder",
    "Kind",
    "NotHeld",
    "Phase",
    "Quarantined",
    "ReleaseRound",
    "Round",
    "Vote",
    "acquire",
    "drift",
    "extend",
    "fence_key",
    "heal",
    "milliseconds",
    "owner_value",
    "quorum",
    "raise_fence",
    "release",
    "validate_key",
]
