"""
A message that does not simply get its lock: what is known of it, and how its worker learns more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

from celery_redlock.core import Register
from celery_redlock.core.failures import Refusal
from celery_redlock.errors import LockContended, LockNotAcquired
from celery_redlock.tasks.config.option_values import resolve_policy
from celery_redlock.tasks.message.owner_label import TaskOwner, parse_owner
from celery_redlock.tasks.rules import arrival as rules
from celery_redlock.tasks.rules.arrival import Arrival, Contention
from celery_redlock.tasks.rules.facts import (
    ConflictPolicy,
    DuplicatePolicy,
    Evidence,
    Need,
    Obstacle,
    Record,
)
from celery_redlock.tasks.run.arrival_facts import sightings_of
from celery_redlock.tasks.run.lock_request import LockRequest
from celery_redlock.tasks.run.running_lock import RunningLock
from celery_redlock.tasks.ticks.entry_state import is_superseded


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """
    A message, and how it failed to get its lock.

    Attributes:
        running_lock: the running lock of its request.
        arrival: the facts before it acquires anything; None: it has tried.
        contention: the facts after it has tried; None: they have not been collected.
        error: the failed acquire, or a stand-in that names the call it repeats; None if there is
            neither.
        newest_token: fencing token of the newest leader that recorded its tick; None: not read.
        has_retaken: it has evicted a marker that did not concern it.
        has_taken_over: it was ending as replaced or revoked, and did not get its marker for that.
        is_refused: the error is that of its own attempt, not a stand-in.
        answered: the holder for which `lock_on_conflict` was called, and its answer.
        pauses: how often it has waited in place.
        is_logged: it was logged that it waits in place.
    """

    running_lock: RunningLock
    arrival: Arrival | None = None
    contention: Contention | None = None
    error: LockNotAcquired | None = None
    newest_token: int | None = None
    has_retaken: bool = False
    has_taken_over: bool = False
    is_refused: bool = False
    answered: tuple[str, ConflictPolicy] | None = None
    pauses: int = 0
    is_logged: bool = False

    def met(self, error: LockNotAcquired, *, is_refused: bool = True, **changes: Any) -> Case:
        """Return the case of a message that did not get its lock and marker."""
        return replace(
            self, arrival=None, contention=None, error=error, is_refused=is_refused, **changes
        )

    def knowing(self, **facts: Any) -> Case:
        """Return the case with more facts about the message."""
        if self.arrival is not None:
            return replace(self, arrival=replace(self.arrival, **facts))
        return replace(self, contention=self.contention and replace(self.contention, **facts))

    @property
    def lock_request(self) -> LockRequest:
        """The keys that the message takes."""
        return self.running_lock.lock_request

    @property
    def task_name(self) -> str:
        """The name of its task."""
        return str(self.lock_request.task.name)

    @property
    def task_id(self) -> str:
        """The task's id."""
        return str(self.lock_request.request.id)

    @property
    def name(self) -> str:
        """The task as texts name it."""
        return f"{self.task_name}[{self.task_id}]"

    @property
    def why(self) -> LockNotAcquired:
        """The error because of which the message has no lock."""
        return self.error or LockNotAcquired(f"Task {self.name} did not take its lock.")

    @property
    def holder_value(self) -> str:
        """The owner value that is in the way; empty if none is."""
        return (self.error.holder if isinstance(self.error, LockContended) else None) or ""

    @property
    def holder(self) -> TaskOwner | None:
        """The task behind that owner value."""
        return parse_owner(self.holder_value)

    @property
    def holder_id(self) -> str:
        """The id of the task that is in the way; empty if none is."""
        return "" if self.holder is None else self.holder.task_id

    @property
    def came_again(self) -> str:
        """How texts state that another delivery, or message of the same tick, came before it."""
        tick = self.lock_request.tick
        if tick is None:
            return "was delivered again"
        return f"came once more for entry {tick.entry!r}, due at {tick.due_at.isoformat()},"


def _read_evidence(case: Case) -> Case:
    lock_request = case.lock_request
    try:
        shown = sightings_of(lock_request)
    except LockNotAcquired as error:
        return case.met(error, is_refused=False)
    nodes = len(lock_request.client.node_names)
    evidence = rules.evidence_of([sighting for sighting, _ in shown], nodes)
    holder = next((owner for _, owner in shown if owner is not None), None)
    repeats = _repeats(lock_request, holder, split=evidence is Evidence.UNCLEAR)
    return replace(case.knowing(evidence=evidence), error=repeats)


def _read_record(case: Case) -> Case:
    try:
        newest = _newest_leader(case.lock_request)
    except LockNotAcquired as error:
        return case.met(error, is_refused=False)
    record = Record.CURRENT if newest is None else Record.SUPERSEDED
    return replace(case.knowing(record=record), newest_token=newest)


def _ask_policy(case: Case) -> Case:
    error = cast(LockContended, case.error)  # no other error leads here
    task, options = case.lock_request.task, case.lock_request.options
    if case.contention is None or case.contention.obstacle is not Obstacle.LOCK:
        asked = resolve_policy(task, "lock_on_duplicate", options.on_duplicate, error)
        fact = "policy" if case.arrival is not None else "at_publish"
        return case.knowing(**{fact: DuplicatePolicy(asked)})
    holder, answer = case.answered or ("", None)
    if answer is None or holder != case.holder_value:
        asked = resolve_policy(task, "lock_on_conflict", options.on_conflict, error)
        answer = ConflictPolicy(asked)
    return replace(case.knowing(at_run=answer), answered=(case.holder_value, answer))


def _repeats(lock_request: LockRequest, holder: str | None, *, split: bool) -> LockContended:
    original = lock_request.envelope.duplicate_of
    keys = lock_request.keys
    return Refusal(keys[0], holder, None, split, keys, keys).error(
        f"Task {lock_request.task.name}[{lock_request.request.id}] repeats "
        f"{original.task_id if original else ''}, which had the lock {keys[0].text!r} when this "
        "one was sent."
    )


def _newest_leader(lock_request: LockRequest) -> int | None:
    """Return the token of a leader that took over before a message's tick; None: there is none."""
    tick = lock_request.tick
    if tick is None:
        return None
    register = Register(lock_request.client, tick.schedule)
    recorded = register.read([tick.entry]).get(tick.entry)
    return recorded.token if recorded is not None and is_superseded(tick, recorded) else None


#: One function for each need; it returns the case with the new fact.
LEARN: Mapping[Need, Callable[[Case], Case]] = {
    Need.EVIDENCE: _read_evidence,
    Need.RECORD: _read_record,
    Need.POLICY: _ask_policy,
}
