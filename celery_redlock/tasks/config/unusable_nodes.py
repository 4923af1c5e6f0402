"""
Nodes that can never serve as they are set up: the error about them, and which apps were checked.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any

from celery_redlock.core.failures import describe_problems
from celery_redlock.errors import ConfigurationError
from celery_redlock.tasks.border import AppLike, app_itself

_checked: weakref.WeakSet[Any] = weakref.WeakSet()
"""Apps whose nodes were checked. Pool children inherit it, and do not check them again."""


def record_nodes_checked(app: AppLike) -> None:
    """Record that this process or its parent has found no unusable node of the app."""
    _checked.add(app_itself(app))


def are_nodes_checked(app: AppLike) -> bool:
    """Return whether the app's nodes were checked in this process or its parent."""
    return app_itself(app) in _checked


def unusable_nodes_error(problems: Mapping[str, str]) -> ConfigurationError:
    """
    Return the error that names nodes that can never serve.

    Args:
        problems: why each of them can never serve.
    """
    return ConfigurationError(
        f"Lock nodes cannot be used: {describe_problems(problems)}. Correct redlock_nodes (or the "
        "broker URL, where redlock_nodes is not set). With redlock_on_unusable_node = 'warn', the "
        "other nodes are used if there are enough of them."
    )
