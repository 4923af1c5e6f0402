"""
`lock_skip_result`: what a task ends with that is skipped.
"""

from __future__ import annotations

from typing import Any

from kombu.exceptions import SerializerNotInstalled
from kombu.serialization import dumps

from celery_redlock.errors import ConfigurationError

__all__ = ["check_storable"]


def check_storable(value: Any, label: str, app: Any) -> None:
    """
    Check that the app's serializer for results takes a value.

    Raises:
        ConfigurationError: it does not; `label` begins the text.
    """
    serializer = app.conf.result_serializer
    try:
        dumps(value, serializer=serializer)
    except SerializerNotInstalled:
        return  # no result at all can be stored, and Celery reports that
    except Exception as exc:
        raise ConfigurationError(
            f"{label}={value!r} cannot be stored with result_serializer={serializer!r} ({exc}); "
            "give a value that it takes, such as a str."
        ) from None
