"""
Apps that a command line names.
"""

from __future__ import annotations

from celery import Celery
from celery.app.utils import find_app

from celery_redlock.errors import ConfigurationError


def load_app(app_name: str) -> Celery:
    """
    Return the app that `-A` names.

    Raises:
        ConfigurationError: there is no such app.
    """
    try:
        app = find_app(app_name)
    except Exception as exc:
        # The app's module may raise any error when it is imported.
        raise _no_app(app_name, f"{type(exc).__name__}: {exc}") from exc
    if not isinstance(app, Celery):
        raise _no_app(app_name, f"it is not a Celery app but a {type(app).__name__}")
    return app


def _no_app(app_name: str, reason: str) -> ConfigurationError:
    return ConfigurationError(
        f"-A {app_name} cannot be loaded ({reason}). Name it as for celery: the module or package "
        "of the app, or module:attribute; run this where you run celery."
    )
