"""A Django project whose database holds the schedule."""

from __future__ import annotations

from tests.acceptance.apps.visible import stage

SECRET_KEY = "of a test"
INSTALLED_APPS = ["django_celery_beat"]
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": stage()["database"],
        # Beats and whoever edits the schedule meet in one file.
        "OPTIONS": {"timeout": 20},
    }
}
USE_TZ = True
