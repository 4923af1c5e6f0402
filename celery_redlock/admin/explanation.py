"""
The meaning of a task's options: its keys, another call in each state of the first, and failures.

The rules about messages decide (`courses`), and `wording` has the sentences. No node is asked.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from celery_redlock.admin.courses import Call, Course, Stage, State
from celery_redlock.admin.wording import KEYS, LOSSES, duration, sentences_of, short_of
from celery_redlock.core import Limit, Rate
from celery_redlock.errors import ConfigurationError
from celery_redlock.protocol.timing import quorum
from celery_redlock.tasks.border import TaskLike
from celery_redlock.tasks.config.option_values import DESCRIBED
from celery_redlock.tasks.config.options import (
    OPTIONS,
    PREFIX,
    LockOptions,
    LockPlan,
    plans_with_keys,
    shown,
)
from celery_redlock.tasks.config.resolve import origins_of
from celery_redlock.tasks.config.settings import RedlockSettings
from celery_redlock.tasks.message.expiry import PUBLISH_GRACE, lifetime
from celery_redlock.tasks.rules.facts import Order, Role
from celery_redlock.tasks.run.lock_request import DEFAULT_WAIT
from celery_redlock.tasks.run.running_lock import failure_is_final


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyText:
    """
    A lock key, or the template of one.

    Attributes:
        text: the key as the task names it.
        slots: how many may hold it; None: a function of the arguments decides.
        period: seconds for which a rate counts a grant; 0 without a rate.
    """

    text: str
    slots: int | None = 1
    period: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """
    A part of a call's life, and where another call arrives meanwhile.

    Attributes:
        begins: the moment at which it begins.
        key: how the key is taken; empty if it is free.
        lasts: for how long at most; empty if nothing limits it.
        another: the outcome of another call, in one or two words.
    """

    begins: str
    key: str
    lasts: str
    another: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """
    Something that may happen, and what follows.

    Attributes:
        when: the case.
        text: sentences.
        courses: the decisions behind them.
    """

    when: str
    text: str
    courses: tuple[Course, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class OptionText:
    """An option of the task: its name, its value as text, and the origin of the value."""

    name: str
    value: str
    origin: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """
    The meaning of a task's options.

    Attributes:
        task: its name.
        call: its arguments, or its signature.
        keys: its lock keys.
        shared_with: other tasks of the app that may have the same key.
        bodies: how many bodies with one key may run at a time.
        stretches: the life of a call, from when it is sent.
        another_call: another call with the same keys, in each state of the first.
        failures: the effects of failures.
        options: its options, first those that are set; of the defaults, those that have an effect.
    """

    task: str
    call: str
    keys: tuple[KeyText, ...]
    shared_with: tuple[str, ...]
    bodies: str
    stretches: tuple[Stretch, ...]
    another_call: tuple[Case, ...]
    failures: tuple[Case, ...]
    options: tuple[OptionText, ...]


def explain(
    task: TaskLike, settings: RedlockSettings, call: tuple[Sequence[Any], Mapping[str, Any]] | None
) -> Explanation:
    """
    Return the meaning of a task's options.

    Args:
        task: a task that locks.
        settings: its app's settings.
        call: the arguments of the call; None: no particular call.

    Raises:
        LockKeyError: no key can be made from the arguments.
        ConfigurationError: the app has no usable lock node.
    """
    plan: LockPlan = task.redlock_plan
    if plan.keys is None:
        raise ConfigurationError(f"Task {task.name} does not lock.")
    keys, others = _key_texts(task, call), _shared_with(task)
    meaning = _Meaning(task=task, plan=plan, settings=settings, keys=keys, shared_with=others)
    return Explanation(
        task=task.name,
        call=str(signature_of(task)) if call is None else _shown_call(*call),
        keys=keys,
        shared_with=others,
        bodies=meaning.bodies(),
        stretches=tuple(meaning.stretches()),
        another_call=tuple(meaning.another_call()),
        failures=tuple(meaning.failures()),
        options=tuple(_options(task, plan.options, settings)),
    )


def signature_of(task: TaskLike) -> inspect.Signature:
    """Return the signature of a task's body, without annotations."""
    signature = inspect.signature(task.run)
    bare = [it.replace(annotation=it.empty) for it in signature.parameters.values()]
    return inspect.Signature(bare)


def as_data(explanation: Explanation) -> dict[str, Any]:
    """Return an explanation as one JSON object; actions are named as in the rules."""
    return {
        **asdict(replace(explanation, another_call=(), failures=())),
        "another_call": list(map(_case_as_data, explanation.another_call)),
        "failures": list(map(_case_as_data, explanation.failures)),
    }


def _key_texts(
    task: TaskLike, call: tuple[Sequence[Any], Mapping[str, Any]] | None
) -> tuple[KeyText, ...]:
    """
    Return the keys of a call, or the templates of a task that locks.

    Args:
        task: the task.
        call: the arguments of the call; None: no particular call.

    Raises:
        LockKeyError: no key can be made from the arguments.
    """
    plan = task.redlock_plan
    if call is None:
        return tuple(_templates(task.name, plan.options))
    return tuple(
        KeyText(text=key.text, slots=key.holders, period=key.period_ms / 1000)
        for key in plan.keys.keys_for(*call, prefix="")
    )


def _shared_with(task: TaskLike) -> tuple[str, ...]:
    """Return the other tasks of the app that may have a key of this one."""
    shapes = {template.shape for template in task.redlock_plan.keys.templates}
    return tuple(
        name
        for name, _, keys in plans_with_keys(task.app)
        if name != task.name and any(template.shape in shapes for template in keys.templates)
    )


def _templates(name: str, options: LockOptions) -> Iterator[KeyText]:
    limit, rate = options.limit, options.rate
    has_limit = limit is not None or rate is not None
    forms = (name,) if has_limit and options.key is None else options.key_forms
    if has_limit:  # for one key
        text = _template(name, *forms)
        forms = [] if limit is None else [Limit(text, limit)]
        forms += [] if rate is None else [Rate(text, rate)]
    for form in forms:
        if not isinstance(form, Limit | Rate):
            yield KeyText(text=_template(name, form))
        elif isinstance(form, Limit) and callable(form.limit):
            yield KeyText(text=form.key, slots=None)
        else:
            slots, period_ms = form.slots_and_period()
            yield KeyText(text=form.key, slots=slots, period=period_ms / 1000)


def _template(name: str, form: Any) -> str:
    if form is True or form is None:
        return f"{name}:<digest of all arguments>"
    return f"<result of {shown(form)}()>" if callable(form) else str(form)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Meaning:
    """A task with all from which its cases are made."""

    task: Any
    plan: LockPlan
    settings: RedlockSettings
    keys: tuple[KeyText, ...]
    shared_with: tuple[str, ...]

    @property
    def options(self) -> LockOptions:
        return self.plan.options

    @property
    def call(self) -> Call:
        return Call(
            options=self.options,
            marks_messages=self.plan.marks_messages,
            acks_late=bool(self.task.acks_late),
            failure_is_final=failure_is_final(self.task),
            is_limit=not self.has_plain_key,
            has_rate=any(key.period for key in self.keys),
        )

    @property
    def has_plain_key(self) -> bool:
        """Whether one of the keys has one holder at a time, and is released."""
        return any(key.slots == 1 and not key.period for key in self.keys)

    @property
    def terms(self) -> dict[str, str]:
        """The values of the names in braces of `wording`."""
        options = self.options
        skipped = f"the result {shown(options.skip_result)}"
        if options.skip_result is DESCRIBED:
            skipped = "a result that is_skipped() recognises"
        return {
            "wait": f"{duration(options.wait or DEFAULT_WAIT)} (lock_wait)",
            "when_free": self._when_free(),
            "error": "LockContended",
            "locked": " under the lock" * self.locks_body,
            "skip_result": skipped,
            "on_lost": shown(options.on_lost),
            "lock_on_conflict": shown(options.on_conflict),
            "lock_on_duplicate": shown(options.on_duplicate),
            **{
                name: f"{duration(getattr(options, name))} (lock_{name})"
                for name in ("give_up_after", "at_least_for", "dedupe_window", "ttl", "max_hold")
            },
        }

    @property
    def locks_body(self) -> bool:
        """Whether a body has a lock, which can be released or lost: a rate only counts bodies."""
        return self.options.mode_spec.in_body and not self.is_counted

    @property
    def is_counted(self) -> bool:
        """Whether the task has rates and no other key."""
        return all(key.period for key in self.keys)

    def text(self, courses: tuple[Course, ...], **terms: str) -> str:
        return sentences_of(courses, {**self.terms, **terms})

    def bodies(self) -> str:
        """How many bodies with one key may run at a time."""
        limits = [key.slots for key in self.keys if not key.period]
        if not self.locks_body:
            return "any number at a time"
        if self.has_plain_key:
            return "one at a time"
        if None in limits:
            return "as many at a time as a function of the arguments allows"
        return f"at most {min(filter(None, limits))} at a time"

    def stretches(self) -> Iterator[Stretch]:
        """The life of a call, from when it is sent."""
        call, mode = self.call, self.options.mode_spec
        states = {state.stage: state for state in call.states()}
        if self.is_counted:
            yield from self._counted()
            return
        queued = f"at most {duration(lifetime(self.options, continuation=False))}"
        queued *= mode.at_publish
        yield self._stretch("sent", "reserved" * mode.at_publish, queued, states[Stage.QUEUED])
        held = f"extended, at most {duration(self.options.max_hold)}" * mode.in_body
        yield self._stretch("body begins", "held" * mode.in_body, held, states[Stage.RUNNING])
        until_result = mode.in_body and call.holds_until_result
        ends = "result is stored" if until_result else "body ends"
        if Stage.KEPT in states:
            window, minimum = self.options.window, self.options.at_least_for
            until = f"until {duration(minimum)} after the body began"
            if window is not None:
                until = f"until {duration(window)} after the call was due"
            yield self._stretch(ends, "kept", until, states[Stage.KEPT])
            ends = "minimum ends" if window is None else "window ends"
        yield self._stretch(ends, "", "", states[Stage.FREE])

    def another_call(self) -> Iterator[Case]:
        """Another call with the same keys, in each state of the first."""
        call, mode = self.call, self.options.mode_spec
        states = call.states()
        taken = next(state for state in states if state.at_run)
        kept = "until its window ends" if mode.for_window else "until its minimum ends"
        names = {**_STATES, Stage.KEPT: kept}
        *before, paused, free = states
        for state in before if self.has_plain_key else ():
            yield self._case(names[state.stage], call.courses(state))
        if self.options.on_conflict == "stop" and self.has_plain_key:
            waits, newer = (Order.OLDER, Role.QUEUED), (Order.NEWER, Role.RUNNING)
            yield self._case("while an older call waits for the key", call.by_age(*waits))
            yield self._case("while a newer call has the key", call.by_age(*newer))
        if any(key.slots != 1 or key.period for key in self.keys):
            courses = replace(call, is_limit=True).courses(taken)
            yield self._case("while all slots are taken", courses)
        if mode.at_publish and self.shared_with and self.has_plain_key:
            courses = replace(call, same_work=False).courses(taken)
            yield self._case("while another task has the key", courses)
        if mode.at_publish:
            courses = replace(call, has_dependents=True).courses(taken)
            when = "meanwhile, with a task_id, link, chain, group or chord"
            yield self._case(when, courses)
        over = "when the pause is over"
        yield self._case(names[paused.stage], call.courses(paused), when_free=over)
        after = names[free.stage] if self.has_plain_key else "while a slot is free"
        yield self._case(after, call.courses(free))

    def failures(self) -> Iterator[Case]:
        """The effects of failures."""
        call, mode, terms = self.call, self.options.mode_spec, self.terms
        if self.locks_body:
            raised = KEYS[call.keys_after_failure()].format_map(terms)
            retried = KEYS[call.keys_after_retry()].format_map(terms)
            if raised == retried:
                yield Case(when="the body raises or retries", text=raised)
            else:
                yield Case(when="the body raises", text=raised)
                yield Case(when="the body retries", text=retried)
            hung = f"The lock is extended for up to {terms['max_hold']}, then it is lost."
            yield Case(when="the body hangs", text=hung)
            policy = "function" if callable(self.options.on_lost) else self.options.on_lost
            yield Case(when="the lock is lost", text=LOSSES[policy].format_map(terms))
        yield Case(when="a worker dies in the body", text=self._death())
        if self.task.acks_late or self.plan.marks_messages:
            yield self._delivered_twice()
        if mode.at_publish:
            option = "lock_window" if mode.for_window else "lock_queue_ttl"
            life = lifetime(self.options, continuation=False)
            lost = f"The lock stays taken until {duration(life)} ({option}) after the call was due."
            yield Case(when="its message is lost", text=lost)
            died = f"The lock stays taken for {duration(min(life, PUBLISH_GRACE))}."
            yield Case(when="the publisher dies while it sends", text=died)
        yield from self._nodes_down()
        if self.options.starting_deadline is not None:
            late = duration(self.options.starting_deadline)
            yield self._case(f"a scheduled run is more than {late} late", (call.missed,))

    def _stretch(self, begins: str, key: str, lasts: str, state: State) -> Stretch:
        another = short_of(self.call.courses(state), self.terms)
        if key and self.call.is_limit:
            another += " if no slot is free"
        return Stretch(begins=begins, key=key, lasts=lasts, another=another)

    def _counted(self) -> Iterator[Stretch]:
        """The life of a call that only rates count."""
        mode, states = self.options.mode_spec, self.call.states()
        if not mode.at_publish:
            yield self._stretch("sent", "", "", states[-1])
        taken = next(state for state in states if state.at_run)
        period = f"for {duration(max(key.period for key in self.keys))}"
        begins = "sent" if mode.at_publish else "body begins"
        yield self._stretch(begins, "counted", period, taken)
        yield self._stretch("period ends", "", "", states[-1])

    def _case(self, when: str, courses: tuple[Course, ...], **terms: str) -> Case:
        return Case(when=when, text=self.text(courses, **terms), courses=courses)

    def _when_free(self) -> str:
        if self.is_counted:
            return "at its turn"
        if self.options.fair:
            return "when the lock is free and no call has waited longer (lock_fair)"
        return "when the lock is free"

    def _death(self) -> str:
        found = [f"The lock stays taken for up to {self.terms['ttl']}."] * self.locks_body
        if not self.task.acks_late:
            return " ".join((*found, "The call does not run again: acks_late is off."))
        again = self.text(_at_first(self.call.redelivery(has_ended=False)))
        found.append(f"The broker delivers its message again. {again}")
        if not self.task.reject_on_worker_lost:
            found.append(
                "If only its pool process dies, the call fails: reject_on_worker_lost is off."
            )
        return " ".join(found)

    def _delivered_twice(self) -> Case:
        meanwhile, afterwards = (self.call.redelivery(has_ended=ended) for ended in (False, True))
        now, later = self.text(_at_first(meanwhile)), self.text(afterwards)
        return Case(
            when="its message is delivered twice",
            text=f"While its body runs: {now} Afterwards: {later}",
            courses=(*meanwhile, *afterwards),
        )

    def _nodes_down(self) -> Iterator[Case]:
        nodes = len(self.settings.nodes)
        spare = nodes - quorum(nodes)
        if spare:
            yield Case(when=_down(spare, nodes), text="Nothing changes.")
        courses = self.call.without_quorum()
        text = self.text(courses, error="QuorumUnavailable", when_free="when enough nodes reply")
        if self.locks_body:
            text += f" A body that runs loses its lock within {self.terms['ttl']}."
        yield Case(when=_down(spare + 1, nodes), text=text, courses=courses)


_STATES = {
    Stage.QUEUED: "while the first is queued",
    Stage.RUNNING: "while the first runs",
    Stage.PAUSED: "while its key is paused",
    Stage.FREE: "after the first has ended",
}


def _at_first(courses: tuple[Course, ...]) -> tuple[Course, ...]:
    """Return courses without their end for a message that waits too long."""
    return tuple(
        replace(course, steps=tuple(step for step in course.steps if not step.gives_up))
        for course in courses
    )


def _down(down: int, nodes: int) -> str:
    return (
        f"{down} of {nodes} {'node' if nodes == 1 else 'nodes'} {'is' if down == 1 else 'are'} down"
    )


def _case_as_data(case: Case) -> dict[str, Any]:
    return {
        "when": case.when,
        "text": case.text,
        "courses": [
            {
                "if": {course.option: course.answer} if course.option else None,
                "steps": [{"action": step.action.name, "rule": step.rule} for step in course.steps],
            }
            for course in case.courses
        ],
    }


def _shown_call(args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    named = (f"{name}={shown(value)}" for name, value in kwargs.items())
    return f"({', '.join((*map(shown, args), *named))})"


def _options(
    task: TaskLike, options: LockOptions, settings: RedlockSettings
) -> Iterator[OptionText]:
    cls: Any = type(task)
    origins = origins_of(cls, settings, options.mode_spec)
    for name in sorted(OPTIONS, key=lambda name: origins[name] == "default"):
        value = getattr(options, name)
        has_effect = options.mode_spec.uses(name) and value is not None and value is not DESCRIBED
        if has_effect or origins[name] != "default":
            is_duration = isinstance(value, float) and name != "rate"
            text = duration(value) if is_duration else shown(value)
            yield OptionText(name=f"{PREFIX}{name}", value=text, origin=origins[name])
