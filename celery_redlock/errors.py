"""
Every error this package raises, under one root.

Each error can be pickled and can be rebuilt from its `args` alone, which is what Celery's result
backends do: `type(exc)(*exc.args)` is an equal error. `str(exc)` is the message.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any

__all__ = [
    "AmbiguousCall",
    "ConfigurationError",
    "DuplicateTask",
    "FenceRecordCorrupt",
    "FencedResourceMissing",
    "InvalidFencingToken",
    "InvalidResourceName",
    "LeaseLost",
    "LockContended",
    "LockKeyError",
    "LockNotAcquired",
    "LossReason",
    "QuorumUnavailable",
    "RedlockError",
    "StaleFencingToken",
]


class RedlockError(Exception):
    """
    An operation on a lock failed; the message names the cause and the remedy.

    Attributes:
        message: the sentence an operator reads.
    """

    def __init__(self, message: str = "", *details: Any) -> None:
        super().__init__(message, *details)
        self.message = message

    def __str__(self) -> str:
        return self.message


class ConfigurationError(RedlockError):
    """An option or setting cannot work as written. Raised at declaration or start."""


class LockKeyError(RedlockError):
    """No safe lock key can be made from this task's arguments or template."""


class AmbiguousCall(RedlockError):
    """
    Several tasks hold the keys of a call, and nothing was changed: name one by its task id.

    Attributes:
        task_ids: theirs; one that is no task of this package has none.
    """

    def __init__(self, message: str = "", task_ids: Sequence[str] = ()) -> None:
        super().__init__(message, tuple(task_ids))
        self.task_ids = tuple(task_ids)


class LockNotAcquired(RedlockError):
    """The lock was not acquired; every key that the attempt had set is released."""


class LockContended(LockNotAcquired):
    """
    Another owner holds the lock.

    Attributes:
        key: the lock key, or None where it is not known.
        holder: the holder's owner value as stored on the nodes; None for a key with a rate.
        expires_in: seconds until the holder's key expires if it is not extended; negative if it
            has no expiry. For a key with a rate, until the attempt's turn.
        split: several contenders share the nodes and none has a quorum, so this is no proof that
            another task does the work; never skip or drop because of it.
        keys: the requested lock keys that the holder has; a holder of only some of several
            does other work.
        nodes: for each node, by its name (never with a password), how it voted.
        before: how many others have waited longer, where it was asked by one that waits.
    """

    def __init__(
        self,
        message: str = "",
        key: str | None = None,
        holder: str | None = None,
        expires_in: float | None = None,
        split: bool = False,
        keys: Sequence[str] = (),
        nodes: Mapping[str, str] | None = None,
        before: int = 0,
    ) -> None:
        named = dict(nodes or {})
        super().__init__(message, key, holder, expires_in, split, tuple(keys), named, before)
        self.key = key
        self.holder = holder
        self.expires_in = expires_in
        self.split = split
        self.keys = tuple(keys)
        self.nodes = named
        self.before = before


class QuorumUnavailable(LockNotAcquired):
    """
    Too few lock nodes replied for any decision.

    Attributes:
        key: the lock key, or None where it is not known.
        nodes: for each node, by its name (never with a password), its vote, or why it has none.
        available_in: seconds until enough quarantined nodes vote again, if those vote that have not
            replied; None where the end of the outage is not known.
    """

    def __init__(
        self,
        message: str = "",
        key: str | None = None,
        nodes: Mapping[str, str] | None = None,
        available_in: float | None = None,
    ) -> None:
        super().__init__(message, key, dict(nodes or {}), available_in)
        self.key = key
        self.nodes = dict(nodes or {})
        self.available_in = available_in


class LossReason(StrEnum):
    """Why a lease is not valid any more; the value is the sentence that errors and logs show."""

    EXPIRED = "it was not extended in time"
    NOT_EXTENDED = "no quorum of nodes extended it in time"
    GONE = "a quorum of nodes no longer has it"
    MAX_HOLD = "it was held for as long as max_hold allows"
    STOP_REQUESTED = "a newer run asked this one to stop"
    REPORTED = "the application reported its loss"
    RELEASED = "it was released"
    FORKED = "it is held by the parent of this forked process"


class LeaseLost(RedlockError):
    """
    The lease is not valid any more: another owner may hold the lock now.

    Stop writing. A resource that checks the fencing token refuses late writes by itself.

    Attributes:
        key: the lock key.
        reason: what ended the validity.
    """

    def __init__(
        self, message: str = "", key: str | None = None, reason: LossReason | None = None
    ) -> None:
        # A result backend brings it back as plain text, perhaps that of another version.
        reason = next((known for known in LossReason if known == reason), None)
        super().__init__(message, key, reason)
        self.key = key
        self.reason = reason


class DuplicateTask(RedlockError):
    """
    The same task is already queued or running.

    Attributes:
        task_id: id of the existing task.
        result: its result, for the publisher that gets this error; None where a worker raised it.
    """

    def __init__(self, message: str = "", task_id: str | None = None) -> None:
        super().__init__(message, task_id)
        self.task_id = task_id
        self.result: Any = None


class StaleFencingToken(RedlockError):
    """
    The resource has seen a newer fencing token: this holder was superseded.

    Attributes:
        resource: name of the resource that refused.
        seen: the newest token that the resource has seen.
        offered: the token that was refused.
    """

    def __init__(
        self,
        message: str = "",
        resource: str | None = None,
        seen: int | None = None,
        offered: int | None = None,
    ) -> None:
        super().__init__(message, resource, seen, offered)
        self.resource = resource
        self.seen = seen
        self.offered = offered


class FencedResourceMissing(RedlockError):
    """
    There is nothing to write to: the fenced row or object does not exist.

    This is no verdict about the token: there was none to compare it with.

    Attributes:
        resource: name of the missing resource.
    """

    def __init__(self, message: str = "", resource: str | None = None) -> None:
        super().__init__(message, resource)
        self.resource = resource


class FenceRecordCorrupt(RedlockError):
    """
    The record of the highest token that a fence has seen is no token.

    The fence writes nothing then: it cannot know which holder is stale.

    Attributes:
        resource: name of the fenced resource.
    """

    def __init__(self, message: str = "", resource: str | None = None) -> None:
        super().__init__(message, resource)
        self.resource = resource


class InvalidFencingToken(RedlockError, ValueError):
    """A fencing token is an int from 1 to 2**53 - 1; bool is not accepted."""


class InvalidResourceName(ConfigurationError, ValueError):
    """A fence refuses this name of a resource: no text, a name of the fence's own, or no slot."""
