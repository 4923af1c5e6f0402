"""
`DuplicateResult`: the publisher of a duplicate gets the result of the existing task.
"""

from __future__ import annotations

from typing import Any, TypeGuard

from celery.backends.base import DisabledBackend
from celery.backends.rpc import RPCBackend
from celery.result import AsyncResult

from celery_redlock._log import event_logger
from celery_redlock.errors import ConfigurationError
from celery_redlock.tasks.border import AppLike, TaskLike, app_of
from celery_redlock.tasks.config.options import LockOptions
from celery_redlock.tasks.message.owner_label import TaskOwner

logger = event_logger(__name__)

NO_BACKEND = "there is no result backend; set result_backend"
RPC = (
    "the result backend rpc:// sends a result to the process that sent the task and to no other; "
    "use another result_backend"
)
IGNORED = "its result is not stored; remove ignore_result"


class DuplicateResult(AsyncResult):  # type: ignore[misc]  # Celery is untyped
    """
    The result of the existing task, for a duplicate that was not sent.

    It has the existing task's id and behaves like any result of it. `is_duplicate` recognises
    it.
    """

    @property
    def readable(self) -> bool:
        """Whether this process can read the result; if not, `get` raises at once."""
        return self._unreadable() is None

    def get(self, *args: Any, **kwargs: Any) -> Any:
        """
        Return the result, as `AsyncResult.get` does.

        Raises:
            ConfigurationError: this process can never read the result.
        """
        problem = self._unreadable()
        if problem:
            raise ConfigurationError(
                f"The result of {self.id} cannot be read by the sender of its duplicate: "
                f"{problem}, or do not wait for it if is_duplicate(result)."
            )
        return super().get(*args, **kwargs)

    wait = get

    def _unreadable(self) -> str | None:
        if self.ignored:
            return IGNORED
        if isinstance(self.backend, DisabledBackend):
            return NO_BACKEND
        return RPC if isinstance(self.backend, RPCBackend) else None


def is_duplicate(result: object) -> TypeGuard[DuplicateResult]:
    """Return whether the result of a call is that of an existing task: the call was a duplicate."""
    return isinstance(result, DuplicateResult)


def result_of(task: TaskLike, holder: TaskOwner, *, ignored: bool) -> DuplicateResult:
    """
    Return the result of an existing task.

    Args:
        task: the task that was called.
        holder: the existing task.
        ignored: no worker stores the result of the call; it is of the same task as the holder's.
    """
    result = DuplicateResult(
        holder.task_id, backend=task.backend, task_name=task.name, app=app_of(task)
    )
    result.ignored = ignored or holder.ignored
    return result


_warned: set[tuple[str, str]] = set()


def warn_of_unreadable(cls: Any, app: AppLike, lock: LockOptions) -> None:
    """Warn once that senders of a duplicate cannot read the existing task's result."""
    if not lock.mode_spec.at_publish or lock.on_duplicate in ("raise", "replace"):
        return
    backend = app.backend_cls or app.conf.result_backend
    if cls.ignore_result or app.conf.task_ignore_result:
        problem = IGNORED
    elif not backend or backend == "disabled":
        problem = NO_BACKEND
    elif isinstance(backend, str) and backend.partition(":")[0] == "rpc":
        problem = RPC
    else:
        return
    if (cls.name, problem) not in _warned:
        _warned.add((cls.name, problem))
        logger.warning(
            "duplicate-result-unreadable",
            "Task %(task)s is unique, and the sender of a duplicate gets the existing task's "
            "result, which cannot be read: %(reason)s. Or do not wait for it if "
            "is_duplicate(result).",
            task=cls.name,
            reason=problem,
        )
