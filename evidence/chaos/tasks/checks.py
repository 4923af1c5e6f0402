"""The verdict on a run of the task layer: all rules, and the figures beside them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from evidence.chaos.checks import (
    Violation,
    check_exclusion,
    check_losses,
    check_order,
    check_tokens,
    find_overlaps,
    planted_by_nemesis,
)
from evidence.chaos.history import Event, History
from evidence.chaos.tasks.duplicates import Pairs, check_answers, check_pairs, check_skips
from evidence.chaos.tasks.history import Body, TaskHistory
from evidence.chaos.tasks.kinds import KINDS, TAKEN_AWAY
from evidence.chaos.tasks.leftovers import check_leftovers, keys_of_lost
from evidence.chaos.tasks.order import check_newest, check_once
from evidence.chaos.tasks.outcomes import check_followers, check_outcomes, outcome_of

#: Seconds by which a message has to come before its time to count as woken.
_EARLY = 0.1

_TOKEN_RULE = "a body that is to hold its lock has a lease and a token"
_DRAINED_RULE = "the broker is empty some time after everything is mended"


@dataclass(slots=True, kw_only=True)
class Verdict:
    """
    All figures of a run of the task layer.

    Attributes:
        outcomes: for each kind of task, how often calls came to which outcome.
        endings: how bodies ended.
        beside: bodies that ran beside another of their key, after their lease had been lost.
        requeued: how often a message was requeued to wait.
        woken: how often it came back before its time, because a release woke it.
    """

    violations: list[Violation] = field(default_factory=list)
    outcomes: Mapping[str, Counter[str]] = field(default_factory=dict)
    endings: Counter[str] = field(default_factory=Counter)
    pairs: Pairs = field(default_factory=Pairs)
    beside: int = 0
    requeued: int = 0
    woken: int = 0

    @property
    def broken(self) -> Counter[str]:
        """How often each rule was broken."""
        return Counter(violation.rule for violation in self.violations)


def judge(history: TaskHistory) -> Verdict:
    """Check everything."""
    verdict = Verdict(
        outcomes=count_outcomes(history),
        endings=Counter(body.how or "killed" for body in history.bodies),
        beside=sum(1 for _ in _beside(history)),
        requeued=sum(1 for _ in _requeues(history)),
        woken=count_woken(history),
    )
    found = verdict.violations
    found += planted_by_nemesis(history.events)
    found += check_locks(history.locks)
    found += check_tokens_of_bodies(history)
    found += check_outcomes(history)
    found += check_followers(history)
    found += check_answers(history, verdict.pairs)
    found += check_skips(history, verdict.pairs)
    found += check_pairs(history, verdict.pairs)
    found += check_newest(history)
    found += check_once(history)
    found += check_leftovers(history)
    found += check_drained(history)
    return verdict


def count_outcomes(history: TaskHistory) -> dict[str, Counter[str]]:
    """Return how often calls of each kind came to which outcome."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for call in history.calls.values():
        outcome = outcome_of(history, call) if call.accepted else call.answer or "unanswered"
        counts[call.kind.name][outcome] += 1
    return {name: counts[name] for name in KINDS if name in counts}


def check_locks(locks: History) -> Iterator[Violation]:
    """Bodies that hold a lock obey all rules of the lock layer."""
    yield from check_tokens(locks.holds)
    # Whose lock is taken away may run on for a moment, and is replaced at once.
    kept = [hold for hold in locks.holds if TAKEN_AWAY not in hold.key]
    yield from check_order(kept)
    yield from check_exclusion(kept, list(find_overlaps(kept)))
    yield from check_losses(
        History(holds=kept, pauses=locks.pauses, killed=locks.killed, events=locks.events)
    )


def check_tokens_of_bodies(history: TaskHistory) -> Iterator[Violation]:
    """No body runs without its lock in a mode that holds it there."""
    for body in history.bodies:
        if body.kind.in_body and body.token is None:
            yield Violation(
                rule=_TOKEN_RULE,
                what=f"{body.name} of {body.key} has none",
                lines=body.events,
            )


def count_woken(history: TaskHistory) -> int:
    """Return how many requeued messages came back before their time."""
    woken = 0
    for requeued in _requeues(history):
        due = requeued["t"] + requeued["delay"] - _EARLY
        events = history.by_task[requeued["id"]]
        came = (event["t"] for event in events if event["event"] == "arrived")
        woken += any(requeued["t"] < at < due for at in came)
    return woken


def _requeues(history: TaskHistory) -> Iterator[Event]:
    return (event for event in history.events if event["event"] == "requeued")


def check_drained(history: TaskHistory) -> Iterator[Violation]:
    """No message is left but those that wait for the key of a message that was lost."""
    keys = {call.id: call.key for call in history.calls.values()}
    taken = keys_of_lost(history)
    waiting = [task_id for task_id in history.waiting if keys.get(task_id) not in taken]
    if waiting:
        wanted = ", ".join(sorted({keys.get(task_id, "no key") for task_id in waiting}))
        yield Violation(
            rule=_DRAINED_RULE,
            what=f"{len(waiting)} messages are left; they need {wanted}",
            lines=[
                history.by_task[task_id][-1] for task_id in waiting if task_id in history.by_task
            ],
        )


def _beside(history: TaskHistory) -> Iterator[Body]:
    """Yield bodies that ran on while the next holder of their key ran."""
    running: dict[str, Body] = {}
    for body in history.bodies:
        if not body.kind.in_body or TAKEN_AWAY in body.key:
            continue
        before = running.get(body.key)
        if before is not None and before.end > body.began:
            yield before
        if before is None or body.end > before.end:
            running[body.key] = body
