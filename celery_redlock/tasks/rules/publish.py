"""
Decisions about a call at publish: sent with its lock, without it, or not sent.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from celery_redlock.tasks.rules.facts import Holder, PublishPolicy, Role, Row, first_match

__all__ = ["CONTENTION", "TICKS", "Contention", "Publish", "TickState"]
__all__ += ["on_contention", "on_reservation"]


class Publish(Enum):
    """The publisher's next step with the call."""

    SEND_WITH_LOCK = auto()
    SEND = auto()  #: without a lock; the worker takes it
    SEND_UNDECIDED = auto()  #: the same, and log that no quorum could decide
    SEND_AFTER = auto()  #: without a lock, naming the holder as a task that is no obstacle
    SEND_AS_DUPLICATE = auto()  #: without a lock, naming the holder's call as the one it repeats
    AWAIT_RELEASE = auto()  #: try again for the lock, whose holder has ended; then decide anew
    ASK_POLICY = auto()  #: call the task's `lock_on_conflict`; then decide anew
    REPLACE = auto()  #: take the lock over from the message that waits
    REFUSE = auto()  #: raise `DuplicateTask`
    FAIL = auto()  #: raise why it did not get its lock
    DROP = auto()  #: return the result of the holder's task
    DROP_TICK = auto()  #: return the result of the message that was run for the same tick


@dataclass(frozen=True, slots=True, kw_only=True)
class TickState:
    """
    The facts when the publisher has reserved the lock of a call.

    Attributes:
        tick: the state of the tick that the call is for; None where it is for none, where nobody
            has begun it, or where too few nodes answered.
    """

    tick: Role | None


TICKS: tuple[Row[TickState, Publish], ...] = (
    Row("no worker has begun its tick", lambda s: s.tick is None, Publish.SEND_WITH_LOCK),
    Row("its tick is over", lambda s: s.tick is not None and s.tick.is_over, Publish.DROP_TICK),
    Row("a worker has begun its tick, and may be lost", lambda _: True, Publish.SEND),
)


def on_reservation(state: TickState) -> Publish:
    """Return what becomes of a call that has its lock."""
    return first_match(TICKS, state).then


@dataclass(frozen=True, slots=True, kw_only=True)
class Contention:
    """
    The facts when the lock of a call is held.

    Attributes:
        split: several contenders share the nodes, and none has a quorum.
        holder: who holds the key.
        role: the state of the holder's task.
        same_work: the holder's call is of the same task and has all keys, not only some.
        is_limit: several may have the key, or so many get it in a time.
        holder_has_ended: the publisher can know that the holder's task has ended: its result is
            readable, or what follows it is running.
        has_waited: the publisher has waited as long as the release of an ended task may take.
        has_dependents: somebody waits for this very message, or something is to follow it.
        continues: the call continues work that has begun: a retry, or a replacement.
        policy: `lock_on_conflict` at publish.
        holder_may_be_skipped: the holder is an earlier tick that may miss its starting deadline.
        held_in_body: a task holds the key while its body runs, not only until then.
    """

    split: bool
    holder: Holder
    role: Role
    same_work: bool
    is_limit: bool
    holder_has_ended: bool
    has_waited: bool
    has_dependents: bool
    continues: bool
    policy: PublishPolicy
    holder_may_be_skipped: bool
    held_in_body: bool

    @property
    def may_be_refused(self) -> bool:
        """Whether a limit is reached, and nothing depends on the call."""
        return self.is_limit and not self.has_dependents and not self.continues


CONTENTION: tuple[Row[Contention, Publish], ...] = (
    Row("no contender has a quorum", lambda c: c.split, Publish.SEND_UNDECIDED),
    # Not dropped: the beat that sent the other one may die before its message is out.
    Row("another message of its tick waits", lambda c: c.holder is Holder.COPY, Publish.SEND),
    # As many have the key as may. That is no duplicate: the worker waits, unless the caller shall
    # know at once.
    Row(
        "a limit or rate is reached, and the policy is a function",
        lambda c: c.may_be_refused and c.policy is PublishPolicy.FUNCTION,
        Publish.ASK_POLICY,
    ),
    Row(
        "a limit or rate is reached: raise",
        lambda c: c.may_be_refused and c.policy is PublishPolicy.RAISE,
        Publish.FAIL,
    ),
    Row("a limit or rate is reached", lambda c: c.is_limit, Publish.SEND),
    # A foreign holder does no task's work. To replace a message of the same id would revoke this
    # one, too.
    Row(
        "the holder is no other task of this package",
        lambda c: c.holder in (Holder.FOREIGN, Holder.ITSELF),
        Publish.SEND,
    ),
    Row("the holder does other work", lambda c: not c.same_work, Publish.SEND),
    Row(
        "the holder sends it as its next step, or at its end",
        lambda c: c.holder is Holder.SENDER and (c.has_dependents or c.holder_has_ended),
        Publish.SEND_AFTER,
    ),
    Row(
        "the holder has ended",
        lambda c: c.holder_has_ended and not c.has_waited,
        Publish.AWAIT_RELEASE,
    ),
    Row("the holder has ended and keeps the key", lambda c: c.holder_has_ended, Publish.SEND_AFTER),
    Row("it continues work that has begun", lambda c: c.continues, Publish.SEND),
    # For a call that has to be sent, the worker calls the function.
    Row(
        "the policy is a function",
        lambda c: c.policy is PublishPolicy.FUNCTION and not c.has_dependents,
        Publish.ASK_POLICY,
    ),
    Row(
        "replace: the older message waits",
        lambda c: c.policy is PublishPolicy.REPLACE and c.role is Role.QUEUED,
        Publish.REPLACE,
    ),
    Row(
        "replace: the older task releases the key before its body",
        lambda c: (
            c.policy is PublishPolicy.REPLACE
            and c.role is Role.RUNNING
            and not c.held_in_body
            and not c.has_waited
        ),
        Publish.AWAIT_RELEASE,
    ),
    Row(
        "replace: the older task runs",
        lambda c: c.policy is PublishPolicy.REPLACE and c.role is Role.RUNNING,
        Publish.SEND,
    ),
    Row("the holder may be skipped", lambda c: c.holder_may_be_skipped, Publish.SEND),
    Row("somebody depends on it", lambda c: c.has_dependents, Publish.SEND_AS_DUPLICATE),
    Row("raise", lambda c: c.policy is PublishPolicy.RAISE, Publish.REFUSE),
    Row("a duplicate", lambda _: True, Publish.DROP),
)


def on_contention(contention: Contention) -> Publish:
    """Return what becomes of a call whose key is held."""
    return first_match(CONTENTION, contention).then
