"""
Decisions about a call at publish: sent with its lock, without it, or not sent.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from celery_redlock.tasks.rules.facts import (
    Burst,
    DuplicatePolicy,
    Holder,
    Need,
    Role,
    Row,
    first_match,
)


class Publish(Enum):
    """The publisher's next step with the call."""

    SEND_WITH_LOCK = auto()
    SEND = auto()  #: without a lock; its worker acquires it
    SEND_UNDECIDED = auto()  #: without a lock; log that no quorum could decide
    SEND_AFTER = auto()  #: without a lock, naming the holder as a task that is no obstacle
    SEND_AS_DUPLICATE = auto()  #: without a lock, naming the holder's call as the one it repeats
    AWAIT_RELEASE = auto()  #: try again for the lock, whose holder has ended; then decide anew
    REPLACE = auto()  #: take the lock over from the message that waits
    REFUSE = auto()  #: raise `DuplicateTask`
    FAIL = auto()  #: raise the error of the failed acquire
    DROP = auto()  #: return the result of the holder's task
    DROP_TICK = auto()  #: return the result of the message that was run for the same tick


@dataclass(frozen=True, slots=True, kw_only=True)
class TickState:
    """
    The facts when the publisher has reserved the lock of a call.

    Attributes:
        tick: the state of the tick that the call is for; None if it is for none, if no worker has
            begun the tick, or if too few nodes replied.
    """

    tick: Role | None


TICKS: tuple[Row[TickState, Publish], ...] = (
    Row("no worker has begun its tick", lambda s: s.tick is None, Publish.SEND_WITH_LOCK),
    Row("its tick is over", lambda s: s.tick is not None and s.tick.is_over, Publish.DROP_TICK),
    Row("a worker has begun its tick, and may be lost", lambda _: True, Publish.SEND),
)


def on_reservation(state: TickState) -> Publish:
    """Return the next step for a call that has reserved its lock."""
    return first_match(TICKS, state).then


@dataclass(frozen=True, slots=True, kw_only=True)
class Duplicate:
    """
    The facts when the lock of a call is held.

    Attributes:
        split: several contenders share the nodes, and none has a quorum.
        holder: the holder of the key.
        role: the state of the holder's task.
        same_work: the holder's call is of the same task and has all keys, not only some.
        is_limit: the key has a limit or a rate, which is reached.
        holder_has_ended: the publisher can know that the holder's task has ended: its result is
            readable, or what follows it is running.
        has_waited: the publisher has waited for this holder for as long as a release may take.
        has_dependents: another program waits for this very message, or something is to follow it.
        continues: the call continues work that has begun: a retry, or a replacement.
        policy: `lock_on_duplicate`.
        holder_may_be_skipped: the holder is an earlier tick that may miss its starting deadline.
        held_in_body: a task holds the key while its body runs, not only until then.
        burst: the burst of the call, if it is debounced.
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
    policy: DuplicatePolicy
    holder_may_be_skipped: bool
    held_in_body: bool
    burst: Burst

    @property
    def may_be_refused(self) -> bool:
        """Whether a limit is reached, and nothing depends on the call."""
        return self.is_limit and not self.has_dependents and not self.continues


DUPLICATES: tuple[Row[Duplicate, Publish | Need], ...] = (
    Row("no contender has a quorum", lambda c: c.split, Publish.SEND_UNDECIDED),
    # The call is not dropped: the other message's beat may die before that message is out.
    Row("another message of its tick waits", lambda c: c.holder is Holder.COPY, Publish.SEND),
    # All slots are taken, which makes the call no duplicate: the worker waits, unless the policy
    # is to notify the caller at once.
    Row(
        "a limit or rate is reached, and the policy is a function",
        lambda c: c.may_be_refused and c.policy is DuplicatePolicy.FUNCTION,
        Need.POLICY,
    ),
    Row(
        "a limit or rate is reached, and the policy is raise",
        lambda c: c.may_be_refused and c.policy is DuplicatePolicy.RAISE,
        Publish.FAIL,
    ),
    Row("a limit or rate is reached", lambda c: c.is_limit, Publish.SEND),
    # A foreign holder does no task's work. A call with the same id is another one on purpose; a
    # debounced one is not.
    Row(
        "the holder is no other task of this package",
        lambda c: (
            c.holder is Holder.FOREIGN or (c.holder is Holder.ITSELF and c.burst is Burst.NONE)
        ),
        Publish.SEND,
    ),
    Row("the holder does other work", lambda c: not c.same_work, Publish.SEND),
    Row(
        "the holder sends it as its next step or its last",
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
        lambda c: c.policy is DuplicatePolicy.FUNCTION and not c.has_dependents,
        Need.POLICY,
    ),
    # Calls that follow each other faster than a worker gets them would otherwise replace each
    # other without end.
    Row(
        "debounce: the burst is over, and a worker is about to begin its call",
        lambda c: c.burst is Burst.DUE and not c.has_waited,
        Publish.AWAIT_RELEASE,
    ),
    Row(
        "replace: the older message waits",
        lambda c: c.policy is DuplicatePolicy.REPLACE and c.role is Role.QUEUED,
        Publish.REPLACE,
    ),
    Row(
        "replace: the older task releases the key before its body",
        lambda c: (
            c.policy is DuplicatePolicy.REPLACE
            and c.role is Role.RUNNING
            and not c.held_in_body
            and not c.has_waited
        ),
        Publish.AWAIT_RELEASE,
    ),
    Row(
        "replace: the older task runs",
        lambda c: c.policy is DuplicatePolicy.REPLACE and c.role is Role.RUNNING,
        Publish.SEND,
    ),
    Row("the holder may be skipped", lambda c: c.holder_may_be_skipped, Publish.SEND),
    Row("something depends on it", lambda c: c.has_dependents, Publish.SEND_AS_DUPLICATE),
    Row("raise", lambda c: c.policy is DuplicatePolicy.RAISE, Publish.REFUSE),
    Row(
        "a duplicate",
        lambda c: c.policy in (DuplicatePolicy.EXISTING, DuplicatePolicy.REPLACE),
        Publish.DROP,
    ),
)


def on_duplicate(duplicate: Duplicate) -> Publish | Need:
    """Return the next step for a call whose key is held."""
    return first_match(DUPLICATES, duplicate).then
