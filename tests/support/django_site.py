"""One Django project for all tests of a process: it can be set up only once."""

from __future__ import annotations

import django
from asgiref.local import Local
from django.conf import settings
from django.db import connections

__all__ = ["set_up", "use_databases"]


def set_up() -> None:
    """
    Set Django up, with the apps of all tests. Idempotent.

    Not through DJANGO_SETTINGS_MODULE, which would make the Celery apps of other tests and their
    workers load this project too.
    """
    if settings.configured:
        return
    settings.configure(
        INSTALLED_APPS=["tests.fencing.django.bank", "django_celery_beat"],
        DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
        USE_TZ=True,
        LOGGING_CONFIG=None,
    )
    django.setup()


def use_databases(databases: dict[str, dict[str, object]]) -> None:
    """Give a test databases of its own, in all threads; Django reads its settings once."""
    connections.settings = connections.configure_settings(databases)
    connections._connections = Local(thread_critical=True)
