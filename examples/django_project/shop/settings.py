"""Django's settings, and Celery's among them."""

import os
from pathlib import Path

BASE_DIR = Path(__file__).resolve().parent.parent

SECRET_KEY = "an example has no secrets"  # noqa: S105
INSTALLED_APPS = ["concerts"]
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
USE_TZ = True
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": os.environ.get("SHOP_DATABASE", BASE_DIR / "db.sqlite3"),
        "OPTIONS": {"timeout": 30},
    }
}

CELERY_BROKER_URL = os.environ.get("CELERY_BROKER_URL", "redis://localhost:6379/0")
CELERY_RESULT_BACKEND = os.environ.get("CELERY_RESULT_BACKEND", "redis://localhost:6379/1")
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
CELERY_TASK_DEFAULT_QUEUE = "examples.django_project"

# Every setting of celery-redlock is `CELERY_REDLOCK_…` here.
CELERY_REDLOCK_NODES = os.environ.get("REDLOCK_NODES", "redis://localhost:6379/2").split(",")
CELERY_REDLOCK_TTL = 10.0
CELERY_REDLOCK_WAIT = 5.0
