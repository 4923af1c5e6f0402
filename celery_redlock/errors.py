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
    An operation on a lock failed. The message names the cause, and what to do about it.

    Attributes:
        message: the text of the error, written for operators.
    """

    def __init__(self, message: str = "", *details: Any) -> None:
        super().__init__(message, *details)
        self.message = message

    def __str__(self) -> str:
        return self.message


class ConfigurationError(RedlockError):
    """
    An option or setting is invalid.

    Raised when a worker or beat starts, when the app is finalized, or when a task is first used.

    The message names each option and setting, and what to write instead.
    """


class LockKeyError(RedlockError):
    """
    A lock key is invalid, or cannot be made from a task's arguments.

    The message names the key or the argument to correct. The body has not run. In a mode that
    acquires the lock at publish, nothing was sent, unless something depends on the call.
    """


class AmbiguousCall(RedlockError):
    """
    Several tasks hold the keys of this call. Nothing was changed; name one of them by its task id.

    Attributes:
        task_ids: the ids of those tasks. A holder outside Celery has no id.
    """

    def __init__(self, message: str = "", task_ids: Sequence[str] = ()) -> None:
        super().__init__(message, tuple(task_ids))
        self.task_ids = tuple(task_ids)


class LockNotAcquired(RedlockError):
    """The lock was not acquired. Keys that the attempt had set were released, or expire."""


class LockContended(LockNotAcquired):
    """
    Another owner holds the lock.

    Wait for it (`wait`, or `lock_on_conflict="requeue"`), or do without the work.

    Attributes:
        key: the lock key, or None where it is not known.
        holder: the holder's owner value as the nodes store it; None for a key with a rate.
        expires_in: seconds until the holder's key expires unless it is extended; negative if it
            never expires. For a key with a rate: seconds until it is this caller's turn.
        split: several callers hold some nodes each, and none has a quorum. This does not prove
            that another task does the work, so never skip or drop a task because of it.
        keys: those of the requested lock keys that the holder has. If it has only some of them,
            it does other work.
        nodes: how each node voted, by the node's name, which never contains a password.
        before: how many others come before the caller, if it waits; otherwise 0.
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
        # The `Refusal` that it is about, with the keys; for this package alone, in this process.
        self.refusal: object = None

    def __reduce__(self) -> tuple[Any, ...]:
        """Return what a copy is made of: no part of this package that another version may lack."""
        return type(self), self.args, {**vars(self), "refusal": None}


class QuorumUnavailable(LockNotAcquired):
    """
    Too few lock nodes replied to decide anything.

    Try again later, or restore the nodes: the message and `nodes` give the reason of each.

    Attributes:
        key: the lock key, or None where it is not known.
        nodes: each node's vote, or the reason why it has none, by the node's name, which never
            contains a password.
        available_in: seconds until enough quarantined nodes vote again, if those that the call did
            not await vote as well; None if the end of the outage is not known.
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
    """Why a lease is no longer valid. The value is the text that errors and logs show."""

    EXPIRED = "it was not extended in time"
    NOT_EXTENDED = "no quorum of nodes extended it in time"
    GONE = "a quorum of nodes no longer has it"
    MAX_HOLD = "it was held for as long as max_hold allows"
    STOP_REQUESTED = "a newer call asked this one to stop"
    REPORTED = "the application reported its loss"
    RELEASED = "it was released"
    FORKED = "it is held by the parent of this forked process"


class LeaseLost(RedlockError):
    """
    The lease is no longer valid: another owner may hold the lock now.

    Stop writing. A resource that checks the fencing token refuses late writes on its own.

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

    Wait for `result`, or send again when that task has ended. Raised by
    `lock_on_duplicate="raise"`.

    Attributes:
        task_id: id of the existing task.
        result: the result of the existing task, if a publisher gets this error; None if a worker
            raised it.
    """

    def __init__(self, message: str = "", task_id: str | None = None) -> None:
        super().__init__(message, task_id)
        self.task_id = task_id
        self.result: Any = None


class StaleFencingToken(RedlockError):
    """
    The resource has seen a newer fencing token: this holder was superseded.

    Nothing was written. Discard the work, or start it again with a new call.

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
    The fenced row or object does not exist, so there is nothing to write to.

    This does not mean that the token is stale: there was nothing to compare it with. Create the
    row or object first.

    Attributes:
        resource: name of the missing resource.
    """

    def __init__(self, message: str = "", resource: str | None = None) -> None:
        super().__init__(message, resource)
        self.resource = resource


class FenceRecordCorrupt(RedlockError):
    """
    A fence's record of the highest token it has seen does not contain a token.

    The fence writes nothing, because it cannot know which holder is stale. Find out what else
    writes this record; delete it only while no holder is running.

    Attributes:
        resource: name of the fenced resource.
    """

    def __init__(self, message: str = "", resource: str | None = None) -> None:
        super().__init__(message, resource)
        self.resource = resource


class InvalidFencingToken(RedlockError, ValueError):
    """
    A fencing token is an int from 1 to 2**53 - 1; bool is not accepted.

    Pass `lease.fencing_token`, or `self.request.fencing_token` of a task that has a lease.
    """


class InvalidResourceName(ConfigurationError, ValueError):
    """
    A fence cannot use this resource name: it is not a string, is reserved, or names no slot.

    Give the resource another name.
    """
