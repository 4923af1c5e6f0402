"""
The decisions of the rules in words: one sentence for each action, in which *it* is the call.

Names in braces are filled in by `explanation`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum
from itertools import takewhile

from celery_redlock.admin.courses import Course, Step
from celery_redlock.protocol.texts import readable
from celery_redlock.tasks.rules.arrival import Action
from celery_redlock.tasks.rules.ending import Keys
from celery_redlock.tasks.rules.publish import Publish

#: Each action in one or two words for a drawing, empty if the next step decides; and in a sentence.
ACTIONS: Mapping[Enum, tuple[str, str]] = {
    Publish.SEND_WITH_LOCK: ("", "The publisher takes the lock and sends it."),
    Publish.SEND: ("", "The publisher sends it."),
    Publish.SEND_UNDECIDED: ("", "The publisher logs a warning and sends it without the lock."),
    Publish.SEND_AFTER: ("", "The publisher sends it; the first call is no obstacle to it."),
    Publish.SEND_AS_DUPLICATE: ("", "The publisher sends it, marked as a duplicate."),
    Publish.AWAIT_RELEASE: ("waits", "The publisher tries again until the lock is released."),
    Publish.REPLACE: (
        "replaces it",
        "The publisher sends it in place of the first, which ends as revoked without its body.",
    ),
    Publish.REFUSE: ("refused", "It is not sent: delay() raises DuplicateTask."),
    Publish.FAIL: ("refused", "It is not sent: delay() raises LockContended."),
    Publish.DROP: ("dropped", "It is not sent: delay() returns the result of the first."),
    Publish.DROP_TICK: ("dropped", "It is not sent: its tick has been run."),
    Action.TAKE: ("runs", "A worker runs it{locked}."),
    Action.RETAKE: ("runs", "A worker runs it{locked} again."),
    Action.WAIT: ("waits", ""),
    Action.TRY_BY_NAME: ("waits", "A worker registers it as a waiter."),
    Action.REQUEUE: (
        "waits",
        "A worker requeues it; it occupies no process, and starts {when_free}.",
    ),
    Action.WAIT_IN_PLACE: ("waits", "It waits in the thread of its caller."),
    Action.REQUEUE_COPY: (
        "waits",
        "A worker requeues this delivery while the other one has the lock.",
    ),
    Action.REQUEST_STOP: (
        "stops it",
        "A worker asks the first to stop; it starts when that has ended.",
    ),
    Action.OVERTAKE: (
        "goes first",
        "It goes before that one, which ends as revoked without its body.",
    ),
    Action.RUN_UNLOCKED: (
        "runs",
        "A worker runs it WITHOUT the lock, perhaps beside another body.",
    ),
    Action.SKIP: ("skipped", "A worker ends it without its body, with {skip_result}."),
    Action.SKIP_AS_MISSED: ("skipped", "A worker ends it without its body, with {skip_result}."),
    Action.FAIL: ("fails", "A worker fails it without its body, with {error}."),
    Action.FAIL_NOT_REJECTED: (
        "fails",
        "A worker fails it without its body, with {error}: a rejection needs acks_late.",
    ),
    Action.FAIL_AS_DUPLICATE: ("fails", "A worker fails it without its body, with DuplicateTask."),
    Action.GIVE_UP: ("fails", "It fails without its body, with LockNotAcquired."),
    Action.REJECT: ("rejected", "A worker rejects it to the dead letter queue."),
    Action.IGNORE: (
        "ignored",
        "A worker ignores this delivery; it recognises it for {dedupe_window}.",
    ),
    Action.DROP_AS_SUPERSEDED: ("ignored", "A worker ignores it: a newer leader sends its tick."),
    Action.END_AS_REPLACED: ("revoked", "A worker ends it as revoked, without its body."),
    Action.END_AS_REVOKED: ("revoked", "A worker ends it as revoked, without its body."),
}

KEYS: Mapping[Keys, str] = {
    Keys.RELEASE: "The lock is released.",
    Keys.HAND_OVER: "The lock passes to the message that continues the task.",
    Keys.GIVE_BACK: "The lock passes back to the message.",
    Keys.KEEP_FOR_WINDOW: "The lock stays taken until its window ends.",
    Keys.KEEP_FOR_MINIMUM: "The lock stays taken until it has been held for {at_least_for}.",
}

#: The effect of `lock_on_lost`; the last one is a function's.
LOSSES: Mapping[str, str] = {
    "interrupt": "LeaseLost is raised in the body.",
    "flag": "The body continues, and self.lease.is_valid turns false.",
    "function": "{on_lost}() decides whether LeaseLost is raised in the body.",
}


#: Precedes the sentence about a worker that first tries for a while.
_TRIES = "A worker process waits for the lock for up to {wait}. If it does not get it, "


def duration(seconds: float) -> str:
    """Format seconds as a whole number of days, hours or minutes if they are one."""
    for unit, length in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= length and seconds % length == 0:
            return f"{seconds // length:,.0f} {unit}"
    return f"{readable(seconds)} s"


def short_of(courses: tuple[Course, ...], terms: Mapping[str, str]) -> str:
    """Return the outcome of a call in one or two words; arguments as `sentences_of`."""
    if len(courses) > 1:
        return f"asks {terms[courses[0].option]}()"
    found = (short for short, _ in (ACTIONS[step.action] for step in courses[0].steps))
    return next(filter(None, found), "")


def sentences_of(courses: tuple[Course, ...], terms: Mapping[str, str]) -> str:
    """
    Return the course of a call in sentences.

    Args:
        courses: one, or one for each answer of a function.
        terms: the values of the names in braces, and of `lock_wait` and `lock_give_up_after`.
    """
    columns = zip(*(course.steps for course in courses), strict=False)
    common = tuple(steps[0] for steps in takewhile(lambda steps: len(set(steps)) == 1, columns))
    found = _sentences(common, terms)
    if len(courses) > 1:
        found.append(f"It depends on {terms[courses[0].option]}().")
    for course in courses:
        rest = _sentences(course.steps[len(common) :], terms)
        if rest:
            found += [f"{course.answer!r}: {_lowered(rest[0])}", *rest[1:]]
    return " ".join(found)


def _sentences(steps: Iterable[Step], terms: Mapping[str, str]) -> list[str]:
    found, tried = [], ""
    for step in steps:
        tried = _TRIES.format_map(terms) if step.tries else tried
        when = f"After waiting for {terms['give_up_after']}, " if step.gives_up else tried
        _, sentence = ACTIONS[step.action]
        sentence = sentence.format_map(terms)
        if sentence:
            found.append(when + _lowered(sentence) if when else sentence)
            tried = ""
    return found


def _lowered(sentence: str) -> str:
    return sentence[:1].lower() + sentence[1:]
