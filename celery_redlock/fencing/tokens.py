"""
The fencing token that a fence compares.
"""

from __future__ import annotations

import re

from celery_redlock.core.current import current_lease
from celery_redlock.core.validation import checked_token
from celery_redlock.errors import InvalidFencingToken, StaleFencingToken
from celery_redlock.protocol.timing import MAX_TOKEN


def token_or_current(token: int | None = None) -> int:
    """
    Return `token`, or that of the lease under which the calling code runs.

    The lease need not be valid: only the resource knows whether a newer holder has written.

    Raises:
        InvalidFencingToken: the token is invalid; or none was given and the code does not run under
            a lease: outside a task, in a thread that the body started, or in a task without its
            lock.
    """
    if token is not None:
        return checked_token(token)
    lease = current_lease()
    if lease is None:
        raise InvalidFencingToken(
            "No fencing token was given, and this code does not run under a lease. Give the token "
            "(lease.fencing_token), or call this in the body of a task that holds its lock, in "
            "the body's own thread."
        )
    return checked_token(lease.fencing_token)


def token_in(text: str) -> int | None:
    """Return the token that a resource has stored as this text; None if it is no token."""
    if re.fullmatch(r"[1-9][0-9]{0,15}", text) and int(text) <= MAX_TOKEN:
        return int(text)
    return None


def stale(resource: str, seen: int, offered: int) -> StaleFencingToken:
    """Return the error for a token that is below the highest one a resource has seen."""
    return StaleFencingToken(
        f"{resource!r} has seen fencing token {seen}; token {offered} is older and was refused. "
        f"{_advice(offered)}",
        resource,
        seen,
        offered,
    )


def _advice(offered: int) -> str:
    lease = current_lease()
    if lease and lease.slots and lease.fencing_token == offered and lease.is_valid:
        return (
            "The lease is still valid, so the newer token is another slot's or another key's, "
            "unless the lock was released by force. Give each slot a fence record of its own: "
            "slot_resource(name)."
        )
    return "Another holder has acquired the lock meanwhile: stop, and let it work."
