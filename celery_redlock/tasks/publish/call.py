"""
One call of `apply_async`, and the header with which it is sent.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Self

from celery_redlock.tasks.border import TaskLike
from celery_redlock.tasks.config.options import LockOptions
from celery_redlock.tasks.message.envelope import HEADER, Envelope
from celery_redlock.tasks.run.ended_tasks import may_replace

#: With one of these options, Celery waits for the message's id or runs something after it.
DEPENDENT_OPTIONS = ("chord", "chain", "group_id", "link", "link_error")


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """
    A call of a task that has a lock plan.

    Attributes:
        apply_async: Celery's own method of the task.
        options: all arguments of the call but these.
    """

    task: TaskLike
    apply_async: Callable[..., Any]
    args: Any
    kwargs: Any
    task_id: str
    options: dict[str, Any]

    @property
    def lock(self) -> LockOptions:
        """The task's lock options."""
        return self.task.redlock_plan.options  # type: ignore[no-any-return]

    @property
    def continues(self) -> bool:
        """Whether it continues a run that has begun: a retry, or a replacement."""
        if self.options.get("retries"):
            return True
        return bool(self.options.get("replaced_task_nesting")) and may_replace(self.task_id)

    @property
    def has_dependents(self) -> bool:
        """Whether Celery waits for the message's id, or runs something after the message."""
        return any(self.options.get(option) for option in DEPENDENT_OPTIONS)

    @property
    def ignores_result(self) -> bool:
        """Whether its result is not stored."""
        requested = self.options.get("ignore_result")
        return bool(self.task.ignore_result if requested is None else requested)

    def having(self, options: dict[str, Any]) -> Self:
        """Return the call with other options."""
        return replace(self, options=options)

    def send(self, envelope: Envelope) -> Any:
        """Send the message with this envelope in its header; return the task's result."""
        headers = {**dict(self.options.get("headers") or {}), HEADER: envelope.write()}
        options = {**self.options, "headers": headers}
        return self.apply_async(self.args, self.kwargs, task_id=self.task_id, **options)
