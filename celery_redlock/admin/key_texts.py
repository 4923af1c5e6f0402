"""
The lock keys of a task for people: those of a call, or templates where there is no call.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from celery_redlock.core import Limit, Rate
from celery_redlock.tasks.border import TaskLike
from celery_redlock.tasks.config.options import LockOptions, shown
from celery_redlock.tasks.config.plan import plans_with_keys


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


def key_texts(
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


def shared_with(task: TaskLike) -> tuple[str, ...]:
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
