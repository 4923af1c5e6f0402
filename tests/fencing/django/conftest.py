"""A Django project inside the test process, on SQLite and on a real PostgreSQL."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import django
import pytest
from asgiref.local import Local
from django.apps import apps
from django.conf import settings
from django.db import connections

# Not through DJANGO_SETTINGS_MODULE, which would make the Celery apps of other tests and their
# workers load this project too.
settings.configure(
    INSTALLED_APPS=["tests.fencing.django.bank"],
    DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
    LOGGING_CONFIG=None,
)
django.setup()


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.system)])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Django on an empty database with the app's tables, and on a second one."""
    sqlite = {"ENGINE": "django.db.backends.sqlite3", "OPTIONS": {"timeout": 30}}
    first: dict[str, object] = {**sqlite, "NAME": str(tmp_path / "first.sqlite")}
    if request.param == "postgresql":
        address = request.getfixturevalue("postgres_address")
        found = re.fullmatch(r"(?P<USER>.+)@(?P<HOST>.+):(?P<PORT>\d+)/(?P<NAME>.+)", address)
        first = {"ENGINE": "django.db.backends.postgresql", **found.groupdict()}
    databases = {"default": first, "second": {**sqlite, "NAME": str(tmp_path / "second.sqlite")}}
    # Django reads them once; each test has databases of its own, in all threads.
    connections.settings = connections.configure_settings(databases)
    models = [model for model in apps.get_app_config("bank").get_models() if not model._meta.proxy]
    connections._connections = Local(thread_critical=True)
    for alias in databases:
        with connections[alias].schema_editor() as editor:
            for model in models:
                editor.create_model(model)
    yield request.param
    with connections["default"].schema_editor() as editor:
        for model in reversed(models):
            editor.delete_model(model)
    for alias in databases:
        connections[alias].close()
