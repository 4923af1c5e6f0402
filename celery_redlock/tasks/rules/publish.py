"""
What becomes of a call that is being sent while its key is held.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from celery_redlock.tasks.rules.facts import Holder, Role, Row, first_match

__all__ = ["ROWS", "Occupied", "Publish", "decide"]


class Publish(Enum):
    """What to do with the call."""

    SEND = auto()  #: without a lock; the worker takes it
    SEND_UNDECIDED = auto()  #: the same, and say that nobody could decide
    SEND_AFTER = auto()  #: without a lock, naming the holder as a task that is no obstacle
    SEND_AS_DUPLICATE = auto()  #: without a lock, naming the holder's call as the one it repeats
    AWAIT_RELEASE = auto()  #: try again for the lock, whose holder has ended; then decide anew
    ASK = auto()  #: call the task's `lock_on_conflict`, and decide anew
    REPLACE = auto()  #: take the lock over from the message that waits
    REFUSE = auto()  #: raise `DuplicateTask`
    DROP = auto()  #: return the result of the holder's task


@dataclass(frozen=True, slots=True, kw_only=True)
class Occupied:
    """
    What is known when the lock of a call is held.

    Attributes:
        split: several contenders share the nodes, and none has a quorum.
        holder: who holds the key.
        role: what the holder's task is doing.
        same_work: the holder's call is of the same task, and has all keys, not only some.
        ended: the sender can know that the holder's task has ended: its result is readable, or what
            follows it is running.
        awaited: it has been tried for as long as an ended task's release may take.
        tied: somebody waits for this very message, or something is to follow it.
        continues: the message goes on with work that has begun: a retry, or a replacement.
        policy: `lock_on_conflict` at publish; None where it is a function that was not called yet.
        may_be_skipped: the holder is an earlier tick that may come too late to be run.
        held_in_body: a task that runs holds the key while its body runs; otherwise only until then.
    """

    split: bool
    holder: Holder
    role: Role
    same_work: bool
    ended: bool
    awaited: bool
    tied: bool
    continues: bool
    policy: str | None
    may_be_skipped: bool
    held_in_body: bool


def _passes(occupied: Occupied) -> bool:
    return occupied.role is Role.RUNNING and not occupied.held_in_body


_STRANGERS = (Holder.FOREIGN, Holder.ITSELF)

ROWS: tuple[Row[Occupied, Publish], ...] = (
    Row("nobody holds a quorum", lambda o: o.split, Publish.SEND_UNDECIDED),
    # Not dropped: the beat that sent the other one may die before its message is out.
    Row("another message of its tick", lambda o: o.holder is Holder.COPY, Publish.SEND),
    # It stands for no task. To replace an earlier message of the same id would revoke this one too.
    Row("no other task of ours", lambda o: o.holder in _STRANGERS, Publish.SEND),
    Row("the holder does other work", lambda o: not o.same_work, Publish.SEND),
    Row(
        "sent by the holder, which goes on in it or has ended",
        lambda o: o.holder is Holder.SENDER and (o.tied or o.ended),
        Publish.SEND_AFTER,
    ),
    Row("the holder has ended", lambda o: o.ended and not o.awaited, Publish.AWAIT_RELEASE),
    Row("the holder has ended and keeps the key", lambda o: o.ended, Publish.SEND_AFTER),
    Row("goes on with work that has begun", lambda o: o.continues, Publish.SEND),
    # Of a call that has to be sent the worker asks.
    Row("the policy is a function", lambda o: o.policy is None and not o.tied, Publish.ASK),
    Row(
        "the newer one counts",
        lambda o: o.policy == "replace" and o.role is Role.QUEUED,
        Publish.REPLACE,
    ),
    Row(
        "the newer one counts, and the older is about to give the key up",
        lambda o: o.policy == "replace" and _passes(o) and not o.awaited,
        Publish.AWAIT_RELEASE,
    ),
    Row(
        "the newer one counts, and the older runs already",
        lambda o: o.policy == "replace" and o.role is Role.RUNNING,
        Publish.SEND,
    ),
    Row("the holder may be skipped", lambda o: o.may_be_skipped, Publish.SEND),
    Row("somebody counts on it", lambda o: o.tied, Publish.SEND_AS_DUPLICATE),
    Row("duplicates are refused", lambda o: o.policy == "raise", Publish.REFUSE),
    Row("a duplicate", lambda _: True, Publish.DROP),
)


def decide(occupied: Occupied) -> Publish:
    """Return what becomes of the call."""
    return first_match(ROWS, occupied).then
