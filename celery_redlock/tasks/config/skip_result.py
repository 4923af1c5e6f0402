"""
`lock_skip_result`: the result of a skipped task.
"""

from __future__ import annotations

from typing import Any, Final, Literal, TypedDict, TypeGuard

from kombu.exceptions import SerializerNotInstalled
from kombu.serialization import dumps

from celery_redlock.errors import ConfigurationError
from celery_redlock.tasks.border import AppLike


class SkippedResult(TypedDict):
    """
    The result of a task that was skipped, unless it has a `lock_skip_result` of its own.

    It is a plain dict of strings, which every serializer and result backend keeps. It is true in a
    boolean context: code that tests `if result:` needs `is_skipped`, or `lock_skip_result=None`.

    Attributes:
        celery_redlock: `skipped`; `is_skipped` recognises the dict by it.
        reason: why the body did not run.
    """

    celery_redlock: Literal["skipped"]
    reason: str


class _Described:
    """The default of `lock_skip_result`; the reference shows this text."""

    def __repr__(self) -> str:
        return '{"celery_redlock": "skipped", "reason": "..."}'


DESCRIBED: Final = _Described()


def skip_result(value: Any, reason: str) -> Any:
    """Return the result of a skipped task whose `lock_skip_result` is this value."""
    return SkippedResult(celery_redlock="skipped", reason=reason) if value is DESCRIBED else value


def is_skipped(result: object) -> TypeGuard[SkippedResult]:
    """
    Return whether a result is that of a task that was skipped, not of one that ran.

    Limit: it does not recognise the result of a skipped task with its own `lock_skip_result`.

    Example:
        ```python
        @app.task
        def combine(results):  # the body of a chord
            return sum(result for result in results if not is_skipped(result))
        ```
    """
    return isinstance(result, dict) and result.get("celery_redlock") == "skipped"


def check_storable(value: Any, label: str, app: AppLike) -> None:
    """
    Check that the app's serializer for results takes a value.

    Raises:
        ConfigurationError: the serializer refuses it; `label` begins the text.
    """
    serializer = app.conf.result_serializer
    try:
        dumps(value, serializer=serializer)
    except SerializerNotInstalled:
        return  # no result at all can be stored, and Celery reports that
    except Exception as exc:
        raise ConfigurationError(
            f"{label}={value!r} cannot be stored with result_serializer={serializer!r} ({exc}); "
            "give a value that this serializer accepts, such as a str."
        ) from None
