"""Two databases, and an app whose tasks run at once: for fragments that write through a fence."""

from __future__ import annotations

import sys
from typing import Any

import django
from celery import Celery, _state
from django.conf import settings
from django.db import connection, models, transaction
from django.db.models import F
from sqlalchemy import create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column
from sqlalchemy.pool import StaticPool

from celery_redlock import Redlock, RedlockTask

__all__ = [
    "Base",
    "F",
    "Mapped",
    "RedlockTask",
    "Session",
    "app",
    "compute",
    "engine",
    "mapped_column",
    "models",
    "redlock",
    "transaction",
    "work_with",
]

BALANCE, WITHDRAWN, DEPOSIT = 100, 30, 5


def eager_app(name: str) -> Celery:
    """Return an app that knows nothing of the tasks that an earlier one has."""
    _state._on_app_finalizers.clear()
    made = Celery(name)
    made.conf.task_always_eager = True
    made.conf.task_eager_propagates = True
    made.conf.redlock_nodes = [f"memory://{name}"]
    return made


app = eager_app("redis")
redlock = Redlock("memory://limited")
engine = create_engine("sqlite://", poolclass=StaticPool)


class Base(DeclarativeBase):
    """The models of the page."""


# Django asks for an app around a model. The page's blocks are the module `page`.
page = sys.modules["page"]
page.__path__ = []
page.__file__ = __file__
settings.configure(
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
    INSTALLED_APPS=["page"],
    DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
)
django.setup()


def compute(account: Any) -> int:
    """Do what takes long."""
    return 2 * int(account.balance)


def work_with(content: bytes | None) -> bytes:
    """Do what takes long."""
    return (content or b"") + b"."


def after(text: str, names: dict[str, Any]) -> None:
    """Run the tasks that a block has defined, and check what they have written."""
    if "slot_resource(" in text:
        client = names["fence"].client
        assert [client.get(names["seat"]), client.get("jobs:done")] == [b".", b"1"]
    if "def deposit(" in text:
        names["deposit"].apply(args=(7, DEPOSIT), throw=True)
        assert int(names["fence"].get("balance:7")) == DEPOSIT
        # The next part of the page gives its tasks names of their own.
        names["app"] = eager_app("sqlalchemy")
    if "fencing.sqlalchemy" in text:
        Base.metadata.create_all(engine)
        with Session(engine) as session, session.begin():
            session.add(names["Account"](id=1, balance=BALANCE))
        _run(names, 1)
        with Session(engine) as session:
            _check(session.get(names["Account"], 1))
        # The next part of the page gives its tasks the same names.
        names["app"] = eager_app("django")
    if "fencing.django" in text:
        with connection.schema_editor() as editor:
            editor.create_model(names["Account"])
        row = names["Account"].objects.create(balance=BALANCE)
        _run(names, row.pk)
        _check(names["Account"].objects.get(pk=row.pk))


def _run(names: dict[str, Any], account_id: int) -> None:
    names["withdraw"].delay(account_id, WITHDRAWN)
    names["settle"].delay(account_id)


def _check(account: Any) -> None:
    assert account.balance == 2 * (BALANCE - WITHDRAWN)
    assert account.fencing_token > 0
