"""A Django project inside the test process, on SQLite and on a real PostgreSQL."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.apps import apps
from django.db import connections

from tests.support.django_site import set_up, use_databases

set_up()


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
    models = [model for model in apps.get_app_config("bank").get_models() if not model._meta.proxy]
    use_databases(databases)
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
